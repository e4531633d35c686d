"""What the book's build does beyond Jupyter Book: pages that work without a kernel and without a network."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

# The kernels that execute the chapters inherit this: players instead of live widgets, no progress bars (lib.progress).
KERNEL_ENVIRONMENT = {"EXPLORE_STATIC": "1"}

# MathJax from the package sphinx-mathjax-offline, but only the 1.6 MB of its 24 that pages load.
MATHJAX_PARTS = ["tex-chtml.js", "output/chtml/fonts"]


def copy_mathjax(app, exception):
    if exception is None and app.builder.format == "html":
        package = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent
        for part in MATHJAX_PARTS:
            source = package / "static" / "mathjax" / part
            target = Path(app.outdir) / "_static" / "mathjax" / part
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copy(source, target)


def offer_assignment(app, exception):
    """The notebook that chapters/coursework.md offers for download."""
    if exception is None and app.builder.format == "html":
        target = Path(app.outdir) / "coursework" / "transition.ipynb"
        target.parent.mkdir(exist_ok=True)
        target.unlink(missing_ok=True)
        program = Path(app.srcdir) / "coursework" / "assign.py"
        subprocess.run([sys.executable, program, "--practice", target], check=True)


def without_thebe(app):
    """Jupyter Book always loads sphinx-thebe, which adds an address of a CDN to every page, twice: an error."""
    for listeners in app.events.listeners.values():
        for listener in list(listeners):
            if listener.handler.__module__ == "sphinx_thebe" and "static" not in listener.handler.__name__:
                app.disconnect(listener.id)


def mend_ids(app, pagename, templatename, context, doctree):
    """sphinx-proof gives the contents of all theorems of a page one id, and all proofs; an id may occur once."""
    if "body" in context:
        context["body"] = context["body"].replace(' id="proof-content"', "").replace(' id="proof"', "")


def setup(app):
    os.environ.update(KERNEL_ENVIRONMENT)
    app.connect("builder-inited", without_thebe)
    app.connect("html-page-context", mend_ids)
    app.connect("build-finished", copy_mathjax)
    app.connect("build-finished", offer_assignment)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
