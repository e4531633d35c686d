"""Every chapter runs, by itself and in a fresh kernel, within its budget of time and memory.

Time is the kernel's processor time: with its threads on cores of their own a cell is done in that time or less, and
unlike the time on the clock it does not depend on what else the machine does. (A cell that only waits is stopped by
nbclient, after three times its budget on the clock.)
"""

import re
from pathlib import Path

import jupytext
import psutil
import pytest
from conftest import TIMES
from nbclient import NotebookClient

from lib import kernels

CELL_SECONDS = 20
CHAPTER_SECONDS = 60
MEGABYTES = 1200


def megabytes(pid: int) -> float:
    """The peak so far where the system records it (Linux), else what is in use now."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+) kB", status.read_text())[1]) / 1e3
    return psutil.Process(pid).memory_info().rss / 1e6


def processor_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


@pytest.fixture(scope="module")
def compiled():
    """Kernels are compiled at set-up; here again, for those that were edited since."""
    kernels.compile_all()


def test_a_chapter_runs_within_its_budget(notebook, root, compiled, kernel_environment, monkeypatch, pytestconfig):
    for name, value in kernel_environment.items():
        monkeypatch.setenv(name, value)
    path = root / f"{notebook}.md"
    content = jupytext.read(path)
    client = NotebookClient(content, timeout=3 * CELL_SECONDS, resources={"metadata": {"path": str(path.parent)}})
    seconds, peak = {}, 0.0
    try:
        with client.setup_kernel():
            for index, cell in enumerate(content.cells):
                if cell.cell_type == "code":
                    pid = client.km.provisioner.pid
                    start = processor_seconds(pid)
                    client.execute_cell(cell, index)
                    seconds[index] = processor_seconds(pid) - start
                    peak = max(peak, megabytes(pid))
    finally:
        slowest, total = max(seconds.values(), default=0), sum(seconds.values())
        pytestconfig.stash[TIMES].append(
            f"{notebook:40} {len(seconds):5} {slowest:7.1f} s {total:7.1f} s {peak:6.0f} MB"
        )
    slow = {content.cells[index].source: took for index, took in seconds.items() if took > CELL_SECONDS}
    assert not slow, "\n".join(
        f"{took:.1f} s, at most {CELL_SECONDS} allowed:\n{source}\n" for source, took in slow.items()
    )
    assert total <= CHAPTER_SECONDS
    assert peak <= MEGABYTES


def test_a_chapter_is_stored_without_outputs(document, root):
    """MyST text has no place for outputs, and there is no notebook file beside it."""
    path = root / f"{document}.md"
    assert path.exists()
    assert not path.with_suffix(".ipynb").exists()


def test_every_chapter_on_disk_is_in_the_contents(root):
    from conftest import documents

    on_disk = {str(path.relative_to(root).with_suffix("")) for path in (root / "chapters").rglob("*.md")}
    assert on_disk == set(documents())
