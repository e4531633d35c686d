"""What the tests of the book share: the list of pages, a fresh copy of the repository, the built book, a browser."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import browser as browsers
import execute
import pytest
from filelock import FileLock
from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM_FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # nothing but this machine has an address
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
]


def pytest_generate_tests(metafunc):
    """A test that takes `document` runs for every page of the book; one that takes `notebook`, for executed ones."""
    documents = execute.documents()
    if "document" in metafunc.fixturenames:
        metafunc.parametrize("document", documents)
    if "notebook" in metafunc.fixturenames:
        metafunc.parametrize("notebook", [document for document in documents if execute.is_notebook(document)])


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment for programs that a test starts: theirs finds the installed packages and nothing else."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def copy_repository():
    """A function that copies the repository to a folder: no outputs, no caches, nothing built."""

    def copy(target: Path) -> Path:
        ignored = [line.strip("/").split("/")[-1] for line in (ROOT / ".gitignore").read_text().split()]
        return shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(".git", *ignored), dirs_exist_ok=True)

    return copy


@pytest.fixture(scope="session")
def build_book(environment):
    """A function that builds the book in a folder; returns what was printed, or fails."""

    def build(folder: Path, *arguments: str) -> str:
        command = [sys.executable, "tools/build.py", *arguments]
        made = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if made.returncode:
            pytest.fail(f"{' '.join(command)} exited with {made.returncode}:\n{made.stdout[-6000:]}", pytrace=False)
        return made.stdout

    return build


@pytest.fixture(scope="session")
def book(tmp_path_factory, build_book) -> Path:
    """The folder of the built pages: `make book`, once for all the processes of a run."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    with FileLock(shared / "book.lock"):
        if not (shared / "book.built").exists():
            build_book(ROOT)
            (shared / "book.built").touch()
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium that starts."""
    return browsers.find() or pytest.fail(browsers.MISSING, pytrace=False)


@pytest.fixture(scope="module")
def browser(chromium):
    sandbox = ["--no-sandbox"] if browsers.is_root() else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS + sandbox)
        expect.set_options(timeout=30_000)
        yield browser
        browser.close()
