"""What several tests share: the list of pages, a fresh copy of the repository, the built book, a browser."""

import contextlib
import os
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Error, expect, sync_playwright

ROOT = Path(__file__).parents[1]
TIMES = pytest.StashKey[list[str]]()

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
NO_BROWSER = """this test did NOT run: it needs a Chromium browser, and none was found or could be downloaded.
Install one and run the tests again.  Debian, Ubuntu: apt-get install chromium
                                      elsewhere: .venv/bin/python -m playwright install chromium"""


def documents() -> list[str]:
    """The pages of the book, as _toc.yml names them (no suffix)."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    return [toc["root"], *(chapter["file"] for part in toc["parts"] for chapter in part["chapters"])]


def is_notebook(document: str) -> bool:
    return "kernelspec:" in (ROOT / f"{document}.md").read_text()


def pytest_generate_tests(metafunc):
    """A test that takes `document` runs for every page of the book; one that takes `notebook`, for executed ones."""
    if "document" in metafunc.fixturenames:
        metafunc.parametrize("document", documents())
    if "notebook" in metafunc.fixturenames:
        metafunc.parametrize("notebook", [document for document in documents() if is_notebook(document)])


def pytest_configure(config):
    config.stash[TIMES] = []


def pytest_terminal_summary(terminalreporter, config):
    if config.stash[TIMES]:
        terminalreporter.section("chapters, executed")
        terminalreporter.write_line(f"{'chapter':40} {'cells':>5} {'slowest':>9} {'total':>9} {'memory':>9}")
        for line in config.stash[TIMES]:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment for programs that a test starts: theirs finds the installed packages and nothing else."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def kernel_environment() -> dict[str, str]:
    """What the book's build sets for its kernels."""
    spec = spec_from_file_location("book_extension", ROOT / "_ext" / "book.py")
    extension = module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension.KERNEL_ENVIRONMENT


@pytest.fixture(scope="session")
def copy_repository():
    """A function that copies what git has or would add to a folder: no outputs, no caches, nothing built."""

    def copy(target: Path) -> Path:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target / name)
        return target

    return copy


@pytest.fixture(scope="session")
def book(tmp_path_factory, copy_repository, environment) -> Path:
    """The folder of the built pages, from a plain `jupyter-book build` of a fresh copy."""
    source = copy_repository(tmp_path_factory.mktemp("book"))
    build = subprocess.run(
        ["jupyter-book", "build", ".", "-W", "-n", "--keep-going"],
        cwd=source,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if build.returncode:
        pytest.fail(f"jupyter-book exited with {build.returncode}:\n{build.stdout[-6000:]}", pytrace=False)
    return source / "_build" / "html"


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium: the system's, Playwright's, or a downloaded one."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if path := shutil.which(name):
            return path
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    if not Path(path).exists():
        command = [sys.executable, "-m", "playwright", "install", "chromium"]
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            subprocess.run(command, timeout=300, capture_output=True)
    if not Path(path).exists():
        pytest.fail(NO_BROWSER, pytrace=False)
    return path


@pytest.fixture(scope="module")
def browser(chromium):
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS + sandbox)
        except Error as error:
            pytest.fail(f"{chromium} does not start.\n{error}\n{NO_BROWSER}", pytrace=False)
        expect.set_options(timeout=30_000)
        yield browser
        browser.close()
