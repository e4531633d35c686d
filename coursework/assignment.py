"""What an assignment is: the masters that there are, and what a build of one says about marks."""

from __future__ import annotations

import argparse
import re
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import nbformat
from otter.test_files import TestCase, create_test_file

HERE = Path(__file__).resolve().parent
RUBRIC = re.compile(r"\*\*Rubric\*\* \((\w+), (\d+) points\)\n\n(.*?)\n(?:\n|$)", re.DOTALL)


def masters() -> dict[str, Path]:
    """The masters in this folder, by name."""
    return {path.stem: path for path in sorted(HERE.glob("*.md"))}


def add_name(parser: argparse.ArgumentParser) -> None:
    """Let a program's user choose among the masters. Where there is just one, no choice is needed."""
    names = list(masters())
    only = names[0] if len(names) == 1 else None
    parser.add_argument("--name", choices=names, default=only, help="the assignment")


def needed_name(parser: argparse.ArgumentParser, given: argparse.Namespace) -> str:
    """The name that was chosen, or an error."""
    if given.name is None:
        parser.error(f"which assignment? --name must be one of {', '.join(masters())}")
    return given.name


def build_folder(name: str, seed: int) -> Path:
    """Where `make coursework` puts a build, and `make grade` finds it."""
    return HERE / "build" / f"{name}-{seed}"


def checks(path: Path) -> tuple[str, list[TestCase]]:
    """The question that a file of checks belongs to, and its checks."""
    test = create_test_file(str(path), None)
    for case in test.test_cases:
        case.name = case.body.test_func.__name__
    return test.name, test.test_cases


@dataclass
class Assignment:
    """What a build of an assignment says about marks."""

    name: str  # with its seed
    archive: Path
    checks: dict[str, list[TestCase]]  # of each question that a program marks
    rubrics: dict[str, list[tuple[str, str]]]  # criteria and points of each question that a person marks

    @classmethod
    def read(cls, folder: Path) -> Assignment:
        solution = nbformat.read(folder / "solution.ipynb", as_version=4)
        with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(folder / "autograder.zip") as archive:
            members = sorted(member for member in archive.namelist() if member.startswith("tests/"))
            by_question = dict(checks(Path(archive.extract(member, scratch))) for member in members)
        by_hand = {
            question: [tuple(line.strip("| ").rsplit(" | ", 1)) for line in table.splitlines()[2:]]
            for cell in solution.cells
            for question, _, table in RUBRIC.findall(cell.source)
        }
        return cls(solution.metadata["otter"]["assignment_name"], folder / "autograder.zip", by_question, by_hand)

    @property
    def points(self) -> dict[str, dict[str, float]]:
        """Of each check of each question."""
        return {question: {case.name: case.points for case in cases} for question, cases in self.checks.items()}

    @property
    def possible(self) -> float:
        return sum(sum(checks.values()) for checks in self.points.values())

    @property
    def by_hand(self) -> dict[str, int]:
        """The points of each question that a person marks. What a rubric takes off does not count."""
        return {
            question: sum(int(points) for _, points in rows if points.isdigit())
            for question, rows in self.rubrics.items()
        }
