"""Run one submission, unable to write outside its folder: run.py FOLDER [--unconfined]."""

import json
import resource
import sys
from pathlib import Path

OUTPUT = 2**20  # bytes, of a cell


def confine(folder: Path) -> None:
    """From here on, this process and all that it starts can write below `folder` only. Linux's Landlock enforces it."""
    from landlock import FSAccess, Ruleset, landlock_abi_version

    writing = FSAccess.all() & ~(FSAccess.EXECUTE | FSAccess.READ_FILE | FSAccess.READ_DIR | FSAccess.IOCTL_DEV)
    rules = Ruleset(writing)
    rules.allow(folder)
    rules.allow("/dev/null", rules=writing & FSAccess.all_file())
    rules.apply()
    if landlock_abi_version() >= 6:
        keep_signals_inside()


def keep_signals_inside() -> None:
    """No signals to processes other than its own: the package does not know this part of Landlock yet."""
    import ctypes

    from landlock import plumbing

    class Attributes(plumbing.RulesetAttr):
        _fields_ = (("handled_access_net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))

    attributes = Attributes(0, 0, 2)  # LANDLOCK_SCOPE_SIGNAL
    rules = plumbing.get_create_ruleset()(ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    plumbing.get_restrict_self()(rules, 0)


def main(folder: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(folder / "prepared.ipynb", as_version=4)
    resources = {"metadata": {"path": str(folder / "work")}}
    NotebookClient(notebook, timeout=None, allow_errors=True, resources=resources).execute()
    for cell in notebook.cells:
        if len(json.dumps(cell.get("outputs", []))) > OUTPUT:
            cell.outputs = [nbformat.v4.new_output("stream", text="(more than a megabyte of output was left out)")]
    nbformat.write(notebook, folder / "executed.ipynb")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))  # bytes, of each file
    if "--unconfined" not in sys.argv:
        confine(folder)
    if "--probe" not in sys.argv:
        main(folder)
