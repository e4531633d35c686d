"""Ruff over the code of the chapters. Ruff knows notebooks, and in Markdown formats ```python blocks, but does not
look into MyST's ```{code-cell}: so each chapter becomes a notebook for as long as ruff runs.

python tools/ruff_chapters.py [--fix]

The rules are those of pyproject.toml, in lines of 80 characters: as many as a page shows. Prints
"chapter.md:LINE: code message" for every finding and exits with 1 if there is any. --fix writes ruff's changes back
into the cells, and touches no other byte.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 80
#: A code cell: its fence; its options, in YAML or a line each, with the blank lines that follow; its code; the fence.
CELL = re.compile(r"(?ms)^```\{code-cell\}[^\n]*\n(?:---\n.*?^---\n|(?::[^\n]*\n)*)\n*(?P<code>.*?)\n?^```$")


def findings(chapters: list[Path], root: Path = ROOT, *, fix: bool = False) -> Iterator[str]:
    """What ruff has to say about the cells of these files below ``root``, whose pyproject.toml it reads."""
    with tempfile.TemporaryDirectory() as folder:
        notebooks = {Path(folder, chapter.relative_to(root)).with_suffix(".ipynb"): chapter for chapter in chapters}
        for notebook, chapter in notebooks.items():
            notebook.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(_notebook(chapter.read_text()), notebook)
        if fix:
            _ruff(root, "check", "--fix-only", folder)
            _ruff(root, "format", folder)
            for notebook, chapter in notebooks.items():
                _write_back(notebook, chapter)
        for found in json.loads(_ruff(root, "check", "--output-format=json", folder)):
            chapter = notebooks[Path(found["filename"])]
            line = _first_lines(chapter.read_text())[found["cell"] - 1] + found["location"]["row"] - 1
            yield f"{chapter.relative_to(root)}:{line}: {found['code']} {found['message']}"
        _ruff(root, "format", folder)
        for notebook, chapter in notebooks.items():
            text = chapter.read_text()
            for first, cell, new in zip(_first_lines(text), CELL.finditer(text), _codes(notebook), strict=True):
                if cell["code"] != new:
                    yield f"{chapter.relative_to(root)}:{first}: this cell is not formatted"


def _notebook(text: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell["code"]) for cell in CELL.finditer(text)])


def _codes(notebook: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(notebook, as_version=4).cells]


def _first_lines(text: str) -> list[int]:
    """The number of the first line of each cell's code."""
    return [text.count("\n", 0, cell.start("code")) + 1 for cell in CELL.finditer(text)]


def _write_back(notebook: Path, chapter: Path) -> None:
    text = chapter.read_text()
    for cell, code in reversed(list(zip(CELL.finditer(text), _codes(notebook), strict=True))):
        text = text[: cell.start("code")] + code + text[cell.end("code") :]
    chapter.write_text(text)


def _ruff(root: Path, command: str, *arguments: str) -> str:
    config = [f"--config={root / 'pyproject.toml'}", f"--config=line-length={COLUMNS}", "--no-cache"]
    # the working folder tells ruff which imports are our own
    run = subprocess.run(
        [sys.executable, "-m", "ruff", command, *config, *arguments], cwd=root, capture_output=True, text=True
    )
    # of cells that do not parse, which the formatter refuses with 2, "ruff check" tells with 1
    if run.returncode > 1 and command == "check":
        sys.exit(run.stderr)
    return run.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Run ruff over the code cells of the chapters.")
    parser.add_argument("--fix", action="store_true", help="write fixes and format back into the cells")
    chapters = sorted((ROOT / "chapters").rglob("*.md"))
    found = list(findings(chapters, fix=parser.parse_args().fix))
    print(*found, sep="\n", end="\n" * bool(found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
