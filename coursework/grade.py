"""Grade a folder of submissions, without Docker: `make grade SUBMISSIONS=folder`.

Each submission is run by Otter in a process of its own. This file keeps it within its limits, works out the marks, and
writes a table and a report for each submission. What runs inside that process is in the folder `inside`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import csv
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import nbformat
import psutil
from assignment import HERE, Assignment, add_name, build_folder, checks, needed_name
from tqdm import tqdm

INSIDE = HERE / "inside"
CANARY = INSIDE / "canary.py"
CELL_SECONDS = 60  # for a cell; then an error is raised in it
CHECK_SECONDS = 20  # for a check
GRACE_SECONDS = 10  # after that, for what does not heed errors; then everything is ended
TOTAL_SECONDS = 900  # for a submission
MEMORY = 4 * 2**30  # bytes, for a submission
LARGEST = 50 * 2**20  # bytes, of a file
LONGEST = 10**5  # characters, of a cell that is looked into
KEPT = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH")  # of the environment: no passwords and tokens
KEPT_PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_")
ENTRY = re.compile(r"cell \d+|the check \w+|the start|the end")


class NotGraded(Exception):
    """A submission that cannot be run; says why."""


class OfAnother(NotGraded):
    """It belongs to another assignment, or to another seed's variant."""


@dataclass
class Result:
    """The marks of one submission, and what there is to say about it."""

    passed: dict[str, dict[str, bool]] = field(default_factory=dict)
    messages: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    executed: str | None = None

    def mark(self, assignment: Assignment, question: str) -> float:
        passed = self.passed.get(question, {})
        return sum(points for check, points in assignment.points[question].items() if passed.get(check) is True)

    def total(self, assignment: Assignment) -> float:
        return sum(self.mark(assignment, question) for question in assignment.points)


def grade(path: Path, assignment: Assignment, *, confined: bool = True) -> Result:
    """Grade one file. Whatever is in it, this returns a result."""
    try:
        notebook = read(path, assignment)
        result = run(notebook, assignment, confined)
    except NotGraded as why:
        result = Result(notes=[f"not graded: {why}"])
    except Exception as error:  # the others are to be graded all the same
        result = Result(notes=[f"not graded: the grader could not cope with it ({type(error).__name__}: {error})"])
    else:
        for number, cell in enumerate(notebook.cells, 1):
            if cell.cell_type == "code" and "otter.Notebook(" not in cell.source and len(cell.source) < LONGEST:
                for name in sorted({"check", "grader", "otter"} & assigned(cell.source)):
                    result.notes.append(f"cell {number} replaces {name}; the original checks were used")
    result.notes = list(dict.fromkeys(first_line(note) for note in result.notes))
    return result


def read(path: Path, assignment: Assignment) -> nbformat.NotebookNode:
    """The notebook in a file, or NotGraded."""
    try:
        if path.is_symlink() or not path.is_file():
            raise NotGraded("it is a link or a special file, and was not opened")
        if path.suffix.lower() != ".ipynb":
            raise NotGraded(f"it is not a notebook: its name ends in {path.suffix or 'no suffix'}, not in .ipynb")
        if path.stat().st_size > LARGEST:
            raise NotGraded(f"it is larger than {LARGEST // 2**20} MiB; its outputs may be cleared")
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        for cell in content.get("cells", []):
            if "outputs" in cell:
                cell["outputs"] = []  # they will be made anew
        with warnings.catch_warnings(action="ignore"):  # ids that are missing, or occur twice
            notebook = nbformat.reads(json.dumps(content), as_version=4)
            nbformat.validate(notebook)
        nbformat.writes(notebook).encode()
        otter = notebook.metadata.get("otter")
        name = otter.get("assignment_name", assignment.name) if isinstance(otter, dict) else assignment.name
    except OSError as error:
        raise NotGraded(f"it cannot be opened ({error.strerror})") from error
    except NotGraded:
        raise
    except Exception as error:  # whatever a file that is no notebook leads to
        raise NotGraded(f"it is not a notebook, whatever its name ({type(error).__name__}: {error})") from error
    if name != assignment.name:
        raise OfAnother(f"it belongs to {first_line(name)}, not to {assignment.name}")
    return notebook


def assigned(source: str) -> set[str]:
    """The names that a cell gives a new value (empty if it is not plain Python)."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        names = set()
        for node in ast.walk(ast.parse(source)):
            target = node.value if isinstance(node, ast.Attribute) else node
            if isinstance(target, ast.Name) and not isinstance(node.ctx, ast.Load):
                names.add(target.id)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
        return names
    return set()


def run(notebook: nbformat.NotebookNode, assignment: Assignment, confined: bool) -> Result:
    """Run a notebook and its checks. What has to be stopped is left out, and the rest run again without it."""
    stopped: dict[str, str] = {}
    deadline = time.monotonic() + TOTAL_SECONDS
    while True:
        folder = Path(tempfile.mkdtemp(prefix="submission-")).resolve()
        try:
            prepare(folder, notebook, assignment, stopped)
            entry, why = supervise(folder, deadline, confined)
            if why is None:
                return collect(folder, notebook, assignment, stopped)
        finally:  # Python's own way gives up on folders that are nested too deeply
            subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL)
        if time.monotonic() > deadline:
            raise NotGraded(f"it took more than {TOTAL_SECONDS / 60:g} minutes in all")
        if entry in stopped or entry in ("the start", "the end"):
            raise NotGraded(f"it could not be run: {entry}, {why}")
        stopped[entry] = why


def prepare(folder: Path, notebook: nbformat.NotebookNode, assignment: Assignment, stopped: dict[str, str]) -> None:
    """Fill a submission's folder: its notebook, which says where it is, the checks, and the folder that it works in."""
    prepared = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        entry = f"cell {number}"
        prepared.cells.append(nbformat.v4.new_code_cell(f"__import__('watch').begin({entry!r}, {CELL_SECONDS})"))
        source = f"raise RuntimeError({'stopped: ' + stopped[entry]!r})" if entry in stopped else cell.source
        prepared.cells.append(nbformat.v4.new_code_cell(source, metadata={"number": number}))
    prepared.cells.append(nbformat.v4.new_code_cell("__import__('watch').finish()"))
    nbformat.write(prepared, folder / "prepared.ipynb")
    for name in ("home", "matplotlib", "tests", "tmp", "work"):
        (folder / name).mkdir()
    with zipfile.ZipFile(assignment.archive) as archive:
        tests = {name: archive.read(name).decode() for name in archive.namelist() if name.startswith("tests/")}
    for name, text in (tests | {"tests/canary.py": CANARY.read_text()}).items():
        (folder / name).write_text(text.replace("from otter.test_files import", "from watch import"))
    (folder / "orders.json").write_text(json.dumps({"stopped": stopped, "check_seconds": CHECK_SECONDS}))
    (folder / "journal").write_text("the start")
    (folder / "marks.json").touch()  # for its permissions, whatever the submission's umask is
    for fonts in Path(matplotlib.get_cachedir()).glob("fontlist*.json"):  # else found anew for each submission
        (folder / "matplotlib" / fonts.name).write_bytes(fonts.read_bytes())


def supervise(folder: Path, deadline: float, confined: bool) -> tuple[str, str | None]:
    """Run what has been prepared. Returns what ran last, and why it was stopped: None if all went well."""
    environment = {
        name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_PREFIXES)
    } | {
        "SUBMISSION_FOLDER": str(folder),
        "PYTHONPATH": str(INSIDE),
        "PYTHONNOUSERSITE": "1",
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "MPLCONFIGDIR": str(folder / "matplotlib"),
        "JUPYTER_RUNTIME_DIR": str(folder / "tmp"),
    }
    command = [sys.executable, str(INSIDE / "run.py"), str(folder), *([] if confined else ["--unconfined"])]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    entry, began, why = "the start", time.monotonic(), None
    try:
        while process.poll() is None:
            time.sleep(0.1)
            if (now := running(folder, entry)) != entry:
                entry, began = now, time.monotonic()
            seconds = CHECK_SECONDS if entry.startswith("the check") else CELL_SECONDS
            if time.monotonic() - began > seconds + GRACE_SECONDS and entry != "the start":
                why = f"it ran for more than {seconds} seconds"
            elif time.monotonic() > deadline:
                why = "the submission took too long in all"
            elif memory(process) > MEMORY:
                why = f"it used more than {MEMORY // 2**30} GiB of memory"
            if why:
                break
        else:
            entry = running(folder, entry)
            if process.returncode:
                why = "it ended the program that ran it"
    finally:
        process.kill()
        end(folder)
        process.wait()
        log.close()
    return entry, why


def running(folder: Path, before: str) -> str:
    """What runs now, by the submission's journal; what ran before, if that says nothing of the kind."""
    with contextlib.suppress(OSError):  # it may be gone
        if ENTRY.fullmatch(now := left(folder / "journal", 200)):
            return now
    return before


def memory(process: subprocess.Popen) -> int:
    """Bytes of memory that a process and its descendants use."""
    used = 0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process.pid)
        for member in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                used += member.memory_info().rss
    return used


def end(folder: Path) -> None:
    """End every process that was started for a submission, also those that have left their parents."""
    for _ in range(20):
        family = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SUBMISSION_FOLDER") == str(folder):
                    process.kill()
                    family.append(process)
        if not family:
            return
        psutil.wait_procs(family, timeout=5)


def collect(folder: Path, notebook: nbformat.NotebookNode, assignment: Assignment, stopped: dict[str, str]) -> Result:
    """Read what a run has left. It was written by the submission's own processes, so nothing in it is trusted."""
    result = Result(notes=[f"{entry} was stopped: {why}" for entry, why in stopped.items()])
    try:
        marks = json.loads(left(folder / "marks.json", LARGEST))
        canary = [case.name for case in checks(CANARY)[1]]
        honest = all(marks.get(check, (True, ""))[0] is False for check in canary)
        for question, points in assignment.points.items():
            outcomes = {check: marks.get(check, (False, "it did not run")) for check in points}
            result.passed[question] = {check: passed is True for check, (passed, _) in outcomes.items()}
            result.messages[question] = {check: first_line(message) for check, (_, message) in outcomes.items()}
            for kind in ("NameError: ", "TimeoutError: "):
                said = {text.removeprefix(kind) for text in result.messages[question].values() if text.startswith(kind)}
                result.notes += [f"{question}: {text}" for text in sorted(said)]
        ran = nbformat.reads(left(folder / "executed.ipynb", LARGEST), as_version=4)
        outputs = {cell.metadata["number"]: cell.outputs for cell in ran.cells if "number" in cell.metadata}
        executed = copy.deepcopy(notebook)
        for number, cell in enumerate(executed.cells, 1):
            if cell.cell_type == "code":
                cell.execution_count, cell.outputs = None, outputs.get(number, [])
                for output in cell.outputs:
                    if output.output_type == "error" and f"cell {number}" not in stopped:
                        result.notes.append(f"cell {number} raised {first_line(f'{output.ename}: {output.evalue}')}")
        result.executed = nbformat.writes(executed)
    except Exception as error:
        raise NotGraded(f"its processes left something that is no result ({type(error).__name__}: {error})") from error
    if not honest:
        result.passed = {}
        result.notes.insert(
            0, "a check that must fail has passed: the checks were tampered with, so no points; read it"
        )
    return result


def left(path: Path, most: int) -> str:
    """The text of a file that a submission's processes have left: no link, no pipe, not too long."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path.name} is not a plain file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{path.name} is longer than {most} bytes")
    return data.decode(errors="replace")


def first_line(text: object) -> str:
    """Something short and harmless to print."""
    lines = str(text).strip().splitlines() or [""]
    return "".join(c if c.isprintable() else " " for c in lines[0][:200]).replace("`", "'")


def report(name: str, result: Result, assignment: Assignment) -> str:
    """A report in Markdown, with room for the marks that a person gives."""
    lines = [f"# {name}", "", f"Assignment `{assignment.name}`.", ""]
    lines += [f"**By program: {result.total(assignment):g} of {assignment.possible:g} points.**", ""]
    lines += [f"- {note}" for note in result.notes] + [""] * bool(result.notes)
    for question, worths in assignment.points.items():
        lines += [f"## {question}: {result.mark(assignment, question):g} of {sum(worths.values()):g} points", ""]
        for check, points in worths.items():
            passed = result.passed.get(question, {}).get(check, False)
            message = "" if passed else result.messages.get(question, {}).get(check, "")
            worth = f" ({points:g} point{'s' * (points != 1)})" if points else ""
            what = check.removeprefix("test_").replace("_", " ")
            lines.append(f"- [{'x' if passed else ' '}] {what}{worth}" + (f": `{message}`" if message else ""))
        lines.append("")
    lines += ["## By hand", ""]
    for question, rows in assignment.rubrics.items():
        lines += [f"**{question}**", "", "| criterion | points | given |", "|---|---|---|"]
        lines += [f"| {criterion} | {points} | |" for criterion, points in rows] + [""]
    return "\n".join(lines)


def can_confine() -> bool:
    """Whether this system can keep a process from writing outside its folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(INSIDE / "run.py"), folder, "--probe"]
        return subprocess.run(command, capture_output=True).returncode == 0


def safe_cell(value: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    return f"'{value}" if value.lstrip()[:1] in ("=", "+", "-", "@") else value


def found(submissions: Path) -> list[Path]:
    """The files below a folder, but for hidden ones."""

    def unreadable(error: OSError) -> None:
        print(f"{error.filename} was left out: {error.strerror}.")

    paths = []
    for folder, folders, files in os.walk(submissions, onerror=unreadable):
        folders[:] = [name for name in folders if name[0] != "." and name != "__MACOSX"]
        paths += [Path(folder, name) for name in files if name[0] != "."]
    return sorted(paths)


def refusal(path: Path, assignment: Assignment) -> NotGraded | None:
    """Why a file is not graded, if it is not."""
    try:
        read(path, assignment)
    except NotGraded as why:
        return why
    return None


def grade_folder(submissions: Path, assignment: Assignment, out: Path, *, confined: bool = True) -> None:
    """Grade every file below a folder, into `out`: grades.csv, reports/ and executed/."""
    paths = found(submissions)
    if not paths:
        raise SystemExit(f"There is no submission in {submissions}.")
    refusals = [refusal(path, assignment) for path in paths]
    others = sorted({str(why) for why in refusals if isinstance(why, OfAnother)})
    if others and None not in refusals:
        raise SystemExit(f"None of them can be graded: {'; '.join(others)}. Are they the right NAME and SEED?")
    if out.exists():  # it may hold marks that a person gave
        old = out.with_name(f"{out.name}-until-{time.strftime('%Y-%m-%d-%H%M%S')}")
        out.rename(old)
        print(f"The former results are now in {old}.")
    out.mkdir()
    # with the mark by which spreadsheets know UTF-8
    with (out / "grades.csv").open("w", newline="", encoding="utf-8-sig") as file:
        table = csv.writer(file)
        by_hand = [f"{question} (by hand, of {points})" for question, points in assignment.by_hand.items()]
        table.writerow(["submission", *assignment.points, "by program", "of", *by_hand, "notes"])
        file.flush()
        for path in tqdm(paths, unit=" submissions"):
            name = first_line(os.fsencode(path.relative_to(submissions)).decode(errors="replace"))
            result = grade(path, assignment, confined=confined)
            marks = [f"{result.mark(assignment, question):g}" for question in assignment.points]
            total = f"{result.total(assignment):g}"
            notes = "; ".join(result.notes)
            blank = [""] * len(by_hand)
            table.writerow([safe_cell(name), *marks, total, f"{assignment.possible:g}", *blank, safe_cell(notes)])
            file.flush()
            tqdm.write(f"{name}: {total} of {assignment.possible:g}" + (f" ({notes})" if notes else ""))
            for folder, suffix, text in [
                ("reports", ".md", report(name, result, assignment)),
                ("executed", "", result.executed),
            ]:
                if text is not None:
                    target = out / folder / f"{name}{suffix}"
                    try:
                        target.parent.mkdir(parents=True, exist_ok=True)
                        target.write_text(text, encoding="utf-8", errors="replace")
                    except OSError as error:
                        tqdm.write(f"{target} could not be written: {error.strerror}")
    print(f"The table is {out / 'grades.csv'}, the reports are in {out / 'reports'}.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Grade a folder of submissions.")
    add_name(parser)
    parser.add_argument("submissions", type=Path, help="a folder; every file below it is one submission")
    parser.add_argument("--seed", type=int, default=0, help="the seed that its students' variant was built with")
    parser.add_argument("--unconfined", action="store_true", help="grade where writing cannot be confined")
    given = parser.parse_args()
    name = needed_name(parser, given)
    submissions = given.submissions.expanduser().resolve()
    if not submissions.is_dir():
        parser.error(f"{given.submissions} is not a folder")
    if not given.unconfined and not can_confine():
        parser.error(
            "this system cannot keep a submission from writing outside its folder (it takes Linux 5.13 with Landlock). "
            "Grade on a machine that holds nothing else, and add UNCONFINED=1"
        )
    folder = build_folder(name, given.seed)
    if not folder.exists():
        how = f"make coursework NAME={name} SEED={given.seed}"
        parser.error(f"there is no {folder}. Are they the right NAME and SEED? If so, {how} builds it")
    out = submissions.with_name(f"{submissions.name}-grades")
    try:
        grade_folder(submissions, Assignment.read(folder), out, confined=not given.unconfined)
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}. The results go next to the submissions, in {out}")


if __name__ == "__main__":
    main()
