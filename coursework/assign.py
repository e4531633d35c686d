"""Build an assignment from its master: `make coursework SEED=7`.

A master is a MyST notebook for Otter Assign, and a Jinja template: the lists under `variants` in its header are the
numbers that differ from course to course, and a seed chooses among them.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import tempfile
from pathlib import Path

import jupytext
import nbformat
import numpy as np
import yaml
from grade import HERE, RUBRIC, Assignment, can_confine, grade
from jinja2 import Environment, StrictUndefined
from otter.assign import main as otter_assign


def variant(master: str, seed: int) -> dict:
    """The numbers of a seed, by name."""
    lists = yaml.safe_load(master.split("---")[1])["variants"]
    rng = np.random.default_rng(seed)
    return {name: values[rng.integers(len(values))] for name, values in lists.items()}


def build(name: str, seed: int, target: Path) -> Path:
    """Build the assignment `name` with the numbers of `seed` into the folder `target`, which is emptied first.

    It then holds the student's notebook `name.ipynb`, `solution.ipynb`, `rubric.md`, and `autograder.zip`.
    """
    template = (HERE / f"{name}.md").read_text(encoding="utf-8")
    jinja = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    numbers = variant(template, seed)
    text = jinja.from_string(template).render(name=f"{name}-{seed}", arcosh=math.acosh, **numbers)
    master = jupytext.reads(text, fmt="md:myst")
    master.metadata = {"kernelspec": master.metadata["kernelspec"], "language_info": {"name": "python"}}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        nbformat.write(master, folder / f"{name}.ipynb")
        otter_assign(str(folder / f"{name}.ipynb"), str(folder / "dist"), no_pdfs=True, no_run_tests=True)
        student = nbformat.read(folder / "dist" / "student" / f"{name}.ipynb", as_version=4)
        solution = nbformat.read(folder / "dist" / "autograder" / f"{name}.ipynb", as_version=4)
        say_what_is_hidden(student, solution.metadata["otter"]["tests"])
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        nbformat.write(student, target / f"{name}.ipynb")
        nbformat.write(solution, target / "solution.ipynb")
        (target / "rubric.md").write_text(rubric(solution), encoding="utf-8")
        (archive,) = (folder / "dist" / "autograder").glob("*.zip")
        shutil.copy(archive, target / "autograder.zip")
    return target


def say_what_is_hidden(student: nbformat.NotebookNode, tests: dict[str, str]) -> None:
    """Tell each `check("question")` of the student's notebook how many hidden checks there are."""
    for cell in student.cells:
        if match := re.fullmatch(r'check\("(\w+)"\)', cell.source):
            cell.source = f'check("{match[1]}", hidden={tests[match[1]].count("hidden=True")})'


def rubric(solution: nbformat.NotebookNode) -> str:
    """The rubric and the model answers, as one Markdown document."""
    parts = [cell.source for cell in solution.cells if RUBRIC.search(cell.source)]
    return "# Rubric\n\n" + "\n\n".join(RUBRIC.sub(r"## \1, \2 points\n\n\3\n\n", part, count=1) for part in parts)


def practice(name: str, target: Path) -> None:
    """Write just the student's notebook of seed 0, for whoever works alone. An existing one is left as it is."""
    if not target.exists():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(build(name, 0, Path(folder) / "build") / f"{name}.ipynb", target)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build an assignment for a course.")
    parser.add_argument("--name", default="transition", help="the master without its suffix")
    parser.add_argument("--seed", type=int, default=0, help="chooses the numbers of the variant, >= 0")
    parser.add_argument("--practice", type=Path, metavar="FILE", help="write just a student's notebook, and stop")
    given = parser.parse_args()
    if given.practice:
        practice(given.name, given.practice)
        return
    if given.seed < 0:
        parser.error(f"--seed must be an integer >= 0, got {given.seed}")
    target = HERE / "build" / f"{given.name}-{given.seed}"
    with tempfile.TemporaryDirectory() as folder:
        built = build(given.name, given.seed, Path(folder) / "build")
        print("Running the solution (half a minute) ...", flush=True)
        assignment = Assignment.read(built)
        result = grade(built / "solution.ipynb", assignment, confined=can_confine())
        if result.notes or result.total(assignment) < assignment.possible:
            parser.exit(
                1, f"The solution has {result.total(assignment):g} of {assignment.possible:g}: {result.notes}\n"
            )
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(built, target)
    print(f"It has {assignment.possible:g} of {assignment.possible:g} points. In {target}:")
    for file, what in [
        (f"{given.name}.ipynb", "give this to the students"),
        ("solution.ipynb", "keep this and the rest to yourself"),
        ("rubric.md", "for the answers that a person marks"),
        ("autograder.zip", "the hidden checks; make grade uses them"),
    ]:
        print(f"  {file:20} {what}")


if __name__ == "__main__":
    main()
