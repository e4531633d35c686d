"""Compile requirements.lock from pyproject.toml: every package, for every Python and system that the book supports.

Versions stay as they are unless the list asks for others. `--upgrade` takes the newest that the list allows.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = """\
# Compiled from pyproject.toml by `make lock`: edit that, not this.
# PyPI's torch for Linux is a CUDA build of several GB; "+cpu" can only come from the CPU index.
--extra-index-url https://download.pytorch.org/whl/cpu
"""
TORCH = """\
torch=={0}+cpu ; sys_platform == 'linux'
torch=={0} ; sys_platform != 'linux'
"""


def main() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / LOCK.name
        if LOCK.exists():  # uv keeps the versions that it finds in its output file
            known = LOCK.read_text(encoding="utf-8").replace(HEADER, "")
            compiled.write_text(
                re.sub(r"^torch==(\S+)\+cpu .*\n.*\n", r"torch==\1\n", known, flags=re.M), encoding="utf-8"
            )
        command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--universal", "--quiet"]
        command += ["--python-version", "3.11", "--no-header", "--output-file", str(compiled), *sys.argv[1:]]
        for group in groups:
            command += ["--group", group]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        text = re.sub(r"^torch==(\S+)\n", lambda pin: TORCH.format(pin[1]), compiled.read_text("utf-8"), flags=re.M)
    LOCK.write_text(HEADER + text, encoding="utf-8")


if __name__ == "__main__":
    main()
