"""Execute chapters: several at a time, and only those whose outputs are not there yet or may be others by now.

An executed chapter is a notebook in `_build/executed`. In its metadata stand what it took (processor seconds, for each
cell too, and memory) and what it came from: `key` stands for the code of its cells, for all of `lib` and for the pinned
packages, and `reads` for the other files of the book that its kernel opened.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import nbformat
import psutil
import yaml
from myst_nb.core.read import read_myst_markdown_notebook
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
STORE = ROOT / "_build" / "executed"
SECONDS = 120  # on the clock, for a cell
# What kernels get: players instead of live widgets and no progress bars (lib.progress), and one thread each, so that
# several kernels do not wait for each other and sums are added up in one order.
ENVIRONMENT = {"EXPLORE_STATIC": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}


def documents() -> list[str]:
    """The pages of the book in their order, as _toc.yml names them."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]


def read(document: str) -> NotebookNode:
    """A chapter as a notebook without outputs."""
    return read_myst_markdown_notebook((ROOT / f"{document}.md").read_text(encoding="utf-8"))


def is_notebook(document: str) -> bool:
    path = ROOT / f"{document}.md"
    return path.is_file() and bool(re.search(r"^kernelspec:", path.read_text(encoding="utf-8"), re.MULTILINE))


def stored(document: str) -> NotebookNode | None:
    """A chapter with the outputs that it had when it was last executed, if it ever was and the file is not spoilt."""
    try:
        kept = nbformat.read(STORE / f"{document}.ipynb", as_version=4)
        took = kept.metadata.execution
    except (OSError, ValueError, AttributeError, nbformat.ValidationError):
        return None
    return kept if {"key", "seconds", "megabytes", "reads"} <= took.keys() else None


def is_current(document: str) -> bool:
    """Whether the outputs that are stored are those that the chapter would have now."""
    kept = stored(document)
    return (
        kept is not None
        and kept.metadata.execution.key == key(read(document))
        and all(digest(ROOT / name) == was for name, was in kept.metadata.execution.reads.items())
    )


def with_outputs(document: str) -> NotebookNode:
    """A chapter as it is now, with the outputs that are stored, if they are of this code."""
    notebook, kept = read(document), stored(document)
    if kept is not None and program(kept) == program(notebook):
        for cell, executed in zip(code_cells(notebook), code_cells(kept), strict=True):
            cell.outputs, cell.execution_count = executed.outputs, executed.execution_count
    return notebook


def key(notebook: NotebookNode) -> str:
    """A digest of all that outputs depend on, but for the files that cells open."""
    files = [path for path in sorted((ROOT / "lib").rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    files += [ROOT / "requirements.lock", Path(__file__), Path(__file__).with_name("reads.py")]
    parts = [sys.version, sys.platform, platform.machine(), *map(digest, files), *program(notebook)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def program(notebook: NotebookNode) -> list[str]:
    """What is executed."""
    return [text for cell in code_cells(notebook) for text in (cell.source, *sorted(cell.metadata.get("tags", [])))]


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def digest(path: Path) -> str:
    """Of a file's name and contents; of its absence, too."""
    contents = path.read_bytes() if path.is_file() else b"absent"
    return hashlib.sha256(os.fsencode(path.name) + b"\0" + contents).hexdigest()


def execute(documents: Iterable[str]) -> dict[str, str]:
    """Execute what is not current. Returns, by chapter, what went wrong: nothing if all went well."""
    stale = [document for document in documents if not is_current(document)]
    if not stale:
        return {}
    # in a process of its own and before there are several, which would all compile the same kernels
    subprocess.run(
        [sys.executable, "-c", "from lib import kernels; kernels.compile_all()"],
        env=os.environ | ENVIRONMENT,
        cwd=ROOT,
        check=True,
    )
    failures = {}
    stale.sort(key=expected_seconds, reverse=True)  # the longest first, so that none is left alone at the end
    with ThreadPoolExecutor(cores()) as pool, tqdm(total=len(stale), unit=" chapters", desc="Executing") as bar:
        futures = {pool.submit(execute_one, document): document for document in stale}
        for future in as_completed(futures):
            try:
                future.result()
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                failures[futures[future]] = str(error)
            bar.update()
    return failures


def cores() -> int:
    """How many processors this program may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def expected_seconds(document: str) -> float:
    kept = stored(document)
    return sum(kept.metadata.execution.seconds) if kept else len(read(document).cells)


def execute_one(document: str) -> None:
    """Execute a chapter in a kernel of its own, and store it."""
    notebook, path = read(document), STORE / f"{document}.ipynb"
    took = {"key": key(notebook), "seconds": [], "megabytes": 0.0, "reads": {}}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "reads"
        log.touch()
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            record_timing=False,
            resources={"metadata": {"path": str((ROOT / document).parent)}},
            extra_arguments=[
                "--IPKernelApp.log_level=ERROR",
                f"--IPKernelApp.exec_lines=__import__('runpy').run_path({str(ROOT / '_ext' / 'reads.py')!r});",
            ],
        )
        with client.setup_kernel(env=os.environ | ENVIRONMENT | {"CHAPTER_READS": str(log)}):
            for index, cell in enumerate(notebook.cells):
                if cell.cell_type == "code":
                    kernel = psutil.Process(client.km.provisioner.pid)
                    before = processor_seconds(kernel)
                    client.execute_cell(cell, index)
                    took["seconds"].append(processor_seconds(kernel) - before)
                    took["megabytes"] = max(took["megabytes"], megabytes(kernel))
        client.set_widgets_metadata()
        took["reads"] = {name: digest(ROOT / name) for name in sorted(set(log.read_text(encoding="utf-8").split("\n")))}
    took["reads"].pop("", None)
    notebook.metadata["execution"] = took
    path.parent.mkdir(parents=True, exist_ok=True)
    half_written = path.with_suffix(".part")  # whoever interrupts a build finds whole notebooks only
    nbformat.write(notebook, half_written)
    half_written.replace(path)


def processor_seconds(process: psutil.Process) -> float:
    """So far. Unlike the time on the clock it does not depend on what else the machine does."""
    times = process.cpu_times()
    return times.user + times.system


def megabytes(process: psutil.Process) -> float:
    """The peak so far where the system records it (Linux), else what is in use now."""
    status = Path(f"/proc/{process.pid}/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+) kB", status.read_text())[1]) / 1e3
    return process.memory_info().rss / 1e6
