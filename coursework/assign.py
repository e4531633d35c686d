"""Build an assignment from its master: `make coursework NAME=transition SEED=7`.

A master is a MyST notebook for Otter Assign, and a Jinja template. The chapter on coursework says what it must hold;
whatever does not is refused here.
"""

from __future__ import annotations

import argparse
import inspect
import math
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import jupytext
import nbformat
import numpy as np
import yaml
from assignment import HERE, RUBRIC, Assignment, add_name, build_folder, masters, needed_name
from grade import can_confine, grade
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateSyntaxError
from otter.assign import main as otter_assign

CHECK = re.compile(r'check\("(\w+)"\)')


class Refused(ValueError):
    """A master that does not keep its contract; says where and why."""


def variant(master: Path, seed: int) -> dict:
    """The numbers of a seed, by name."""
    parts = master.read_text(encoding="utf-8").split("---\n")
    try:
        header = yaml.safe_load(parts[1]) if parts[0] == "" and len(parts) > 2 else None
    except yaml.YAMLError as error:
        raise Refused(f"{master.name}: its header is not YAML: {error}") from error
    if not isinstance(header, dict) or not {"kernelspec", "variants"} <= header.keys():
        raise Refused(f"{master.name}: it must begin with a header between two lines ---, with kernelspec and variants")
    lists = header["variants"]
    if not isinstance(lists, dict):
        raise Refused(f"{master.name}: variants must be lists by name, got {lists!r}")
    for name, values in lists.items():
        if not isinstance(values, list) or not values:
            raise Refused(f"{master.name}: {name} under variants must be a list that is not empty, got {values!r}")
    rng = np.random.default_rng(seed)
    return {name: values[rng.integers(len(values))] for name, values in lists.items()}


def build(master: Path, seed: int, target: Path) -> Path:
    """Build the assignment of a master with the numbers of `seed` into the folder `target`, which is emptied first.

    It then holds the student's notebook, named like the master, `solution.ipynb`, `rubric.md`, and `autograder.zip`.
    The same master and seed give the same notebooks, to the byte.
    """
    numbers = variant(master, seed)
    jinja = Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, keep_trailing_newline=True)
    file, name = f"{master.stem}.ipynb", f"{master.stem}-{seed}"
    try:
        template = jinja.from_string(master.read_text(encoding="utf-8"))
        text = template.render(name=name, notebook=file, math=math, **numbers)
    except Exception as error:  # whatever a template's expressions lead to
        line = f", line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
        raise Refused(f"{master.name}{line}: Jinja cannot fill it in: {error}") from error
    questions(master.name, text)
    if not re.search(r"^ +ok_format: false$", text, re.M):
        raise Refused(f"{master.name}: there must be ok_format: false under tests in ASSIGNMENT CONFIG")
    notebook = jupytext.reads(text, fmt="md:myst")
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        nbformat.write(notebook, folder / file)
        try:
            otter_assign(str(folder / file), str(folder / "dist"), no_pdfs=True, no_run_tests=True)
        except Exception as error:  # whatever a text that is not for Otter Assign leads to
            raise Refused(f"{master.name}: Otter Assign cannot read it: {error}") from error
        student = nbformat.read(folder / "dist" / "student" / file, as_version=4)
        solution = nbformat.read(folder / "dist" / "autograder" / file, as_version=4)
        (archive,) = (folder / "dist" / "autograder").glob("*.zip")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        shutil.copy(archive, target / "autograder.zip")
        write(solution, target / "solution.ipynb")
        try:
            assignment = Assignment.read(target)
        except ValueError as error:  # Otter's, about points
            raise Refused(f"{master.name}: {error}") from error
        verify(master.name, text, name, student, assignment)
        say_what_is_hidden(student, assignment)
        write(student, target / file)
        (target / "rubric.md").write_text(rubric(solution), encoding="utf-8")
    return target


def write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook, whose cells are counted: the names that nbformat gives them are drawn by chance."""
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number}"
    nbformat.write(notebook, path)


def questions(file: str, text: str) -> dict[str, dict]:
    """What the master says at the beginning of each question, by its name. `text` is the master with its numbers."""
    found = {}
    for block in re.findall(r"^# BEGIN QUESTION\n(.*?)^```", text, re.M | re.S):
        try:
            question = dict(yaml.safe_load(block))
        except (yaml.YAMLError, TypeError, ValueError) as error:
            raise Refused(f"{file}: what is under # BEGIN QUESTION must be lines name: value, got {block!r}") from error
        name, points = question.get("name"), question.get("points")
        if not isinstance(name, str) or not re.fullmatch(r"\w+", name) or name in found:
            raise Refused(f"{file}: the name of a question must be one word that no other one has, got {name!r}")
        if type(points) is not int or points < 1:
            raise Refused(f"{file}, question {name}: points must be an integer >= 1, got {points!r}")
        found[name] = question
    if not found:
        raise Refused(f"{file}: there is no question")
    return found


def verify(file: str, text: str, name: str, student: nbformat.NotebookNode, assignment: Assignment) -> None:
    """Refuse a master whose marks could not be trusted."""
    if assignment.name != name:
        raise Refused(f"{file}: the name under ASSIGNMENT CONFIG must be {{{{ name }}}}, got {assignment.name!r}")
    if "def check(" not in "".join(cell.source for cell in student.cells):
        raise Refused(f'{file}: there must be a cell with {{% include "check.py" %}}')
    for what, names in [
        ("check", re.findall(r"^def (test_\w+)", text, re.M)),
        ("answer", [answer for cases in assignment.checks.values() for answer in set(answers_to(cases))]),
    ]:
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise Refused(f"{file}: the name of each {what} must be its own, and {twice[0]} occurs twice")
    calls = [match[1] for cell in student.cells if (match := CHECK.fullmatch(cell.source))]
    for question, said in questions(file, text).items():
        where, points = f"{file}, question {question}", said["points"]
        if said.get("manual"):
            if (heading := f"**Rubric** ({question}, {points} points)") not in text:
                raise Refused(f"{where}: there must be {heading}, and a table under it")
            verify_rubric(where, points, assignment.rubrics.get(question, []))
        else:
            verify_checks(where, points, assignment.checks.get(question, []))
            if calls.count(question) != 1:
                raise Refused(f'{where}: there must be one cell with check("{question}"), got {calls.count(question)}')


def answers_to(cases: list) -> list[str]:
    """The names that students define for some checks."""
    return [name for case in cases for name in inspect.signature(case.body.test_func).parameters]


def verify_checks(where: str, points: int, cases: list) -> None:
    for hidden, what in [(False, "public"), (True, "hidden")]:
        if not [case for case in cases if case.hidden == hidden]:
            raise Refused(f"{where}: there must be a {what} check")
    for case in cases:
        if case.hidden and not (isinstance(case.points, int | float) and case.points > 0):
            raise Refused(f"{where}: the hidden check {case.name} must have points > 0, got {case.points!r}")
        if not case.hidden and case.points:
            raise Refused(f"{where}: the public check {case.name} must have no points, got {case.points!r}")
        if not case.name.startswith("test_"):
            raise Refused(f"{where}: the name of the check {case.name} must begin with test_")
        if not answers_to([case]):
            raise Refused(f"{where}: the check {case.name} must take an answer as its argument")
    if (total := sum(case.points for case in cases)) != points:
        raise Refused(f"{where}: it has {points} points, and its checks have {total:g}")


def verify_rubric(where: str, points: int, rows: list[tuple[str, str]]) -> None:
    for row in rows:
        if len(row) != 2 or not re.fullmatch(r"[-−]?\d+", row[1]):
            raise Refused(f"{where}: a row of the rubric must be a criterion and an integer, got {' | '.join(row)}")
    if (total := sum(int(worth) for _, worth in rows if worth.isdigit())) != points:
        raise Refused(f"{where}: it has {points} points, and its rubric has {total}")


def say_what_is_hidden(student: nbformat.NotebookNode, assignment: Assignment) -> None:
    """Tell each `check("question")` of the student's notebook how many hidden checks there are."""
    for cell in student.cells:
        if match := CHECK.fullmatch(cell.source):
            hidden = sum(case.hidden for case in assignment.checks[match[1]])
            cell.source = f'check("{match[1]}", hidden={hidden})'


def rubric(solution: nbformat.NotebookNode) -> str:
    """The rubric and the model answers, as one Markdown document."""
    parts = [cell.source for cell in solution.cells if RUBRIC.search(cell.source)]
    return "# Rubric\n\n" + "\n\n".join(RUBRIC.sub(r"## \1, \2 points\n\n\3\n\n", part, count=1) for part in parts)


def practice(target: Path) -> None:
    """Write each assignment's notebook of seed 0 to a folder, for whoever works alone. What is there is left alone."""
    for name, master in masters().items():
        if not (path := target / f"{name}.ipynb").exists():
            with tempfile.TemporaryDirectory() as folder:
                shutil.copy(build(master, 0, Path(folder) / "build") / path.name, path)


def make(name: str, seed: int) -> None:
    """Build an assignment where `make grade` finds it, if its solution has full marks."""
    target = build_folder(name, seed)
    with tempfile.TemporaryDirectory() as folder:
        built = build(masters()[name], seed, Path(folder) / "build")
        print("Running the solution (half a minute) ...", flush=True)
        assignment = Assignment.read(built)
        result = grade(built / "solution.ipynb", assignment, confined=can_confine())
        passed = all(all(checks.values()) for checks in result.passed.values())  # public ones, without points, too
        if result.notes or not passed or result.total(assignment) < assignment.possible:
            total = result.total(assignment)
            failed = [f"{check}: {why}" for whys in result.messages.values() for check, why in whys.items() if why]
            raise Refused(f"The solution has {total:g} of {assignment.possible:g}: {'; '.join(result.notes + failed)}")
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(built, target)
    print(f"It has {assignment.possible:g} of {assignment.possible:g} points. In {target}:")
    for file, what in [
        (f"{name}.ipynb", "give this to the students"),
        ("solution.ipynb", "keep this and the rest to yourself"),
        ("rubric.md", "for the answers that a person marks"),
        ("autograder.zip", "the hidden checks; make grade uses them"),
    ]:
        print(f"  {file:20} {what}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build an assignment for a course.")
    add_name(parser)
    parser.add_argument("--seed", type=int, default=0, help="chooses the numbers of the variant, >= 0")
    parser.add_argument(
        "--practice", type=Path, metavar="FOLDER", help="write a student's notebook of each assignment, and stop"
    )
    given = parser.parse_args()
    try:
        if given.practice:
            practice(given.practice)
        elif given.seed < 0:
            parser.error(f"--seed must be an integer >= 0, got {given.seed}")
        else:
            make(needed_name(parser, given), given.seed)
    except Refused as why:
        parser.exit(1, f"{why}\n")


if __name__ == "__main__":
    main()
