"""Make `.venv` what it should be: `make` calls this before anything else, with any Python from 3.11 to 3.13.

It installs again when the contents of what it installs from have changed, not the times of its files. With `--browser`
it first sees to a browser, before anything that takes minutes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import browser

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
# What a pip of this call installs from, and what postBuild does: each is done again when its digest is another.
SETTINGS = "share/jupyter/lab/settings/overrides.json"
PACKAGES, BOOK = VENV / "packages.sha256", VENV / "book.sha256"


def main() -> None:
    if "--browser" in sys.argv:
        see_to_a_browser()
    packages = digest(LOCK, more=f"{sys.version_info[:2]}")
    if recorded(PACKAGES) != packages or not PYTHON.exists():
        make_venv()
        print("Installing about 200 packages into .venv (a few minutes) ...", flush=True)
        # the lock is complete, and nothing else may come; torch comes first, alone, as only it is to ask its index
        first = [line for line in lines() if line.startswith(("--", "torch=="))]
        pip(*first, options=["--no-deps", "--retries", "1"])
        pip(*(line for line in lines() if line not in first), options=["--no-deps"])
        PACKAGES.write_text(packages)
    # the folder too, which is where `import lib` leads to
    files = [ROOT / name for name in ("pyproject.toml", "postBuild", SETTINGS)]
    book = digest(*files, *sorted((ROOT / "coursework").glob("*.md")), more=f"{packages} {ROOT}")
    if recorded(BOOK) != book:
        subprocess.run([ROOT / "postBuild"], env=environment(), check=True)
        BOOK.write_text(book)


def see_to_a_browser() -> None:
    """Find or install one, or stop. Playwright's takes an environment: where there is none yet, one for it alone."""
    for package, is_there in [("libatomic1", browser.can_be_driven), ("chromium", browser.find)]:
        if not is_there():
            browser.install_by_apt(package)
    if not browser.can_be_driven():
        sys.exit(browser.MISSING)
    if browser.find():
        return
    if not PYTHON.exists():
        make_venv()
        pip(*(line for line in lines() if line.startswith("playwright==")), options=[])
    browser.install_by_playwright(str(PYTHON))
    found = "import browser, sys; sys.exit(not browser.find())"
    if subprocess.run([PYTHON, "-c", found], cwd=ROOT / "tools", env=environment()).returncode:
        sys.exit(browser.MISSING)


def make_venv() -> None:
    if not importlib.util.find_spec("ensurepip"):  # Debian has it in a package of its own
        browser.install_by_apt(f"python3.{sys.version_info.minor}-venv")
        importlib.invalidate_caches()
    if not importlib.util.find_spec("ensurepip"):
        sys.exit(f"{sys.executable} cannot make virtual environments. Debian, as root: apt-get install python3-venv")
    shutil.rmtree(VENV, ignore_errors=True)
    # not the Python of an environment, which may be this very one
    subprocess.run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", VENV], check=True)


def lines() -> list[str]:
    """The options and pins of the lock."""
    text = LOCK.read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def pip(*pins: str, options: list[str]) -> None:
    command = [PYTHON, "-m", "pip", "install", "--quiet", *options, "--requirement", "/dev/stdin"]
    subprocess.run(command, input="\n".join(pins), text=True, env=environment(), check=True)


def environment() -> dict[str, str]:
    """The virtual environment first on PATH, and no stray PYTHONPATH or user site in it."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return kept | {"PYTHONNOUSERSITE": "1", "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"}


def digest(*paths: Path, more: str) -> str:
    return hashlib.sha256(b"\0".join([*(path.read_bytes() for path in paths), more.encode()])).hexdigest()


def recorded(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as failed:  # what it said of it stands above
        sys.exit(f"The set-up stopped: {' '.join(map(str, failed.cmd[:4]))} ... exited with {failed.returncode}.")
