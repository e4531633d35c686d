"""Grade one submission with `otter run`, unable to write outside its folder: run.py FOLDER NOTEBOOK [--unconfined]."""

import json
import resource
import sys
from pathlib import Path


def confine(folder: Path) -> None:
    """From here on, this process and all that it starts can write below `folder` only. Linux's Landlock enforces it."""
    from landlock import FSAccess, Ruleset

    writing = FSAccess.all() & ~(FSAccess.EXECUTE | FSAccess.READ_FILE | FSAccess.READ_DIR | FSAccess.IOCTL_DEV)
    rules = Ruleset(writing)
    rules.allow(folder)
    rules.allow("/dev/null", rules=writing & FSAccess.all_file())
    rules.apply()


def main(folder: Path, notebook: str) -> None:
    import nbformat
    from otter.run import main as otter_run

    results = otter_run(
        str(folder / notebook), autograder=str(folder / "autograder.zip"), output_dir=None, no_logo=True
    )
    if results.catastrophic_error:
        raise results.catastrophic_error
    marks = {
        question: {result.test_case.name: [result.passed, result.message] for result in test.test_case_results}
        for question, test in results.results.items()
    }
    nbformat.write(results.notebook, folder / "executed.ipynb")
    (folder / "marks.json").write_text(json.dumps(marks))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))  # bytes, of each file
    if "--unconfined" not in sys.argv:
        confine(folder)
    if "--probe" not in sys.argv:
        main(folder, sys.argv[2])
