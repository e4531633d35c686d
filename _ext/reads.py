"""Runs first in the kernel of a chapter that is executed: writes down which of the book's files it opens."""

import importlib.util
import os
import sys
from pathlib import Path


def watch(root: Path, log: str) -> None:
    seen, file = set(), open(log, "a", encoding="utf-8")  # noqa: SIM115  (it is needed as long as the kernel is)
    elsewhere = tuple(str(root / name) + os.sep for name in ("lib", "_build", ".venv", ".git"))

    def hook(event: str, arguments: tuple) -> None:
        if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if path in seen or not path.startswith(str(root) + os.sep) or path.startswith(elsewhere):
            return
        # who is asked for plugins; where source code is looked for that has no file
        if ".egg-info" in path or "<" in path:
            return
        if os.path.basename(os.path.dirname(path)) == "__pycache__":  # of a module, whose source is what counts
            if not path.endswith(".pyc"):
                return
            path = importlib.util.source_from_cache(path)
        seen.add(path)
        file.write(os.path.relpath(path, root) + "\n")
        file.flush()

    sys.addaudithook(hook)


watch(Path(__file__).resolve().parent.parent, os.environ["CHAPTER_READS"])
