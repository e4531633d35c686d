"""What tests need to look at pages: a Chromium, and what drives it. Where it is, how to get it; by Python alone."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS = ("Google Chrome.app/Contents/MacOS/Google Chrome", "Chromium.app/Contents/MacOS/Chromium")
MISSING = """\
The tests look at the pages in a Chromium browser, and there is none here that starts (or, on Linux, no libatomic,
which Playwright needs to drive it). Install both, then call again:
    Debian, as root:  apt-get install chromium libatomic1
    Fedora, as root:  dnf install chromium libatomic
    macOS:            brew install --cask chromium
    anywhere:         .venv/bin/python -m playwright install --with-deps chromium"""


def find() -> str | None:
    """The path of a Chromium that starts: the system's, or Playwright's."""
    candidates = [path for name in NAMES if (path := shutil.which(name))]
    candidates += [str(Path("/Applications", name)) for name in APPLICATIONS]
    candidates += playwrights()
    return next((path for path in candidates if starts(path)), None)


def can_be_driven() -> bool:
    """Whether Playwright starts: the Node.js that comes with it is linked to a library that few systems lack."""
    try:
        return sys.platform != "linux" or bool(ctypes.CDLL("libatomic.so.1"))
    except OSError:
        return False


def playwrights() -> list[str]:
    """Where Playwright would have put its own, if this Python has Playwright."""
    ask = "from playwright.sync_api import sync_playwright as s\nwith s() as p: print(p.chromium.executable_path)"
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    return asked.stdout.split("\n")[:1] if asked.returncode == 0 else []


def starts(path: str) -> bool:
    """Whether it is a browser with all its libraries, and not a stand-in that tells how to get one."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def install_by_apt(*packages: str) -> None:
    """With Debian's packages, which takes root."""
    if is_root() and shutil.which("apt-get"):
        print(f"Installing {', '.join(packages)} with apt-get ...", flush=True)
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], stdout=subprocess.DEVNULL)
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL)


def install_by_playwright(python: str) -> None:
    """With what Playwright downloads, and as root with the libraries that it needs."""
    print("Downloading a Chromium with Playwright ...", flush=True)
    command = [python, "-m", "playwright", "install", *["--with-deps"] * is_root(), "chromium"]
    try:
        subprocess.run(command, capture_output=True, timeout=600)
    except subprocess.SubprocessError as error:
        print(error, file=sys.stderr)
