"""What the book's build does beyond Jupyter Book: pages that work without a kernel and without a network."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import execute
import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from sphinx.errors import ExtensionError

# MathJax from the package sphinx-mathjax-offline, but only the 1.6 MB of its 24 that pages load.
MATHJAX_PARTS = ["tex-chtml.js", "output/chtml/fonts"]


def hand_over_outputs(app, env, docnames):
    """Execute the chapters, and put them where myst-nb looks for outputs before it executes anything itself.

    For a single page (tools/build.py), only that chapter: the others stay with what they have.
    """
    page = os.environ.get("BOOK_PAGE")
    notebooks = [document for document in sorted(env.found_docs) if execute.is_notebook(document)]
    if failures := execute.execute(notebooks if page is None else {page} & set(notebooks)):
        raise ExtensionError("\n\n".join(f"{document} failed:\n{why}" for document, why in failures.items()))
    cache = get_cache(app.config.nb_execution_cache_path)
    cache.clear_cache()
    for document in notebooks:
        bundle = CacheBundleIn(execute.with_outputs(document), document)
        cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    if page is not None and page not in docnames:
        docnames.append(page)


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


def number_cells(app, exception):
    """The notebooks that pages offer for download have random ids for their cells: the same book has the same bytes."""
    if exception is None and app.builder.format == "html":
        for path in sorted((Path(app.outdir) / "_sources").rglob("*.ipynb")):
            notebook = nbformat.read(path, as_version=4)
            for number, cell in enumerate(notebook.cells, 1):
                cell.id = f"cell-{number}"
            nbformat.write(notebook, path)


def offer_assignments(app, exception):
    """The notebooks to practise with that chapters/coursework.md offers for download."""
    if exception is None and app.builder.format == "html" and "BOOK_PAGE" not in os.environ:
        target = Path(app.outdir) / "coursework"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
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
    app.connect("builder-inited", without_thebe)
    app.connect("env-before-read-docs", hand_over_outputs)
    app.connect("html-page-context", mend_ids)
    app.connect("build-finished", copy_mathjax)
    app.connect("build-finished", number_cells)
    app.connect("build-finished", offer_assignments)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
