"""Every chapter runs, by itself and in a fresh kernel, within its budget of time and memory.

What it took is read from the execution whose outputs are in the book. Time is the kernel's processor time: unlike the
time on the clock it does not depend on what else the machine does.
"""

import execute
import pytest

CELL_SECONDS = 20
CHAPTER_SECONDS = 60
MEGABYTES = 1200
WITHOUT = '{"cells": [], "metadata": {%s}, "nbformat": 4, "nbformat_minor": 5}'


@pytest.fixture
def executed(book, notebook):
    assert execute.is_current(notebook)
    return execute.stored(notebook)


def test_a_chapter_runs_within_its_budget(executed):
    cells, took = execute.code_cells(executed), executed.metadata.execution
    assert len(cells) == len(took.seconds) > 0
    slow = [f"{s:.1f} s:\n{cell.source}" for cell, s in zip(cells, took.seconds, strict=True) if s > CELL_SECONDS]
    assert not slow, "\n\n".join(slow)
    assert 0 < sum(took.seconds) <= CHAPTER_SECONDS
    assert 50 < took.megabytes <= MEGABYTES


def test_every_cell_was_executed_in_order_without_a_warning(executed):
    cells = execute.code_cells(executed)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text


@pytest.mark.parametrize("spoilt", [None, "", '{"cells": [', "{}", "null", WITHOUT % "", WITHOUT % '"execution": {}'])
def test_a_spoilt_file_of_outputs_counts_as_none(spoilt, monkeypatch, tmp_path):
    monkeypatch.setattr(execute, "STORE", tmp_path)
    if spoilt is not None:
        (tmp_path / "a.ipynb").write_text(spoilt)
    assert execute.stored("a") is None


def test_a_chapter_is_stored_without_outputs(document, root):
    """MyST text has no place for outputs, and there is no notebook file beside it."""
    path = root / f"{document}.md"
    assert path.exists()
    assert not path.with_suffix(".ipynb").exists()


def test_every_chapter_on_disk_is_in_the_contents(root):
    on_disk = {str(path.relative_to(root).with_suffix("")) for path in (root / "chapters").rglob("*.md")}
    assert on_disk == set(execute.documents())
