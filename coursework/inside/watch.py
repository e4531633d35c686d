"""Inside a submission's kernel: says what is running, ends what runs too long, and writes down what passed.

Everything here is found by absolute paths and kept in this module, so that the notebook may change its folder, its
names and its environment as it likes.
"""

import contextlib
import functools
import json
import os
import signal
from pathlib import Path

import otter
from IPython import get_ipython
from otter import test_files

FOLDER = Path(os.environ["SUBMISSION_FOLDER"])
ORDERS = json.loads((FOLDER / "orders.json").read_text())
running = "the start", 0
marks = {}  # of each check that has run: whether it passed, and what it said


def begin(entry: str, seconds: float, left: float | None = None) -> None:
    """Write down that a cell or a check begins, or goes on for what is left of its time; raise an error at its end."""

    def too_long(signum, frame):
        raise TimeoutError(f"it ran for more than {seconds:g} seconds")

    global running
    running = entry, seconds
    signal.signal(signal.SIGALRM, too_long)
    # again every second, for code that catches the error
    signal.setitimer(signal.ITIMER_REAL, seconds if left is None else left, 1)
    with contextlib.suppress(OSError):  # whoever spoils the journal is not heard, but marked all the same
        write("journal", entry)


def write(name: str, text: str) -> None:
    """Write a file for the grader. What has become a link or a pipe is an error, and nothing to wait for."""
    file = os.open(FOLDER / name, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(file, "w", encoding="utf-8") as stream:
        stream.write(text)


def finish() -> None:
    """Run the checks that the notebook did not call, and the canary; hand over the marks."""
    begin("the end", 0)
    for path in sorted((FOLDER / "tests").glob("*.py")):
        test = test_files.create_test_file(str(path), None)
        if path.stem == "canary" or not all(case.name in marks for case in test.test_cases):
            test.run(get_ipython().user_ns)
    write("marks.json", json.dumps(marks))


def text(error: BaseException) -> str:
    """An error in words, even if it has none to say."""
    try:
        said = str(error)[:2000]
        return said if type(error) is AssertionError else f"{type(error).__name__}: {said}"
    except Exception:
        return type(error).__name__


def do_not_leave():
    raise RuntimeError("exit() would end the notebook")


get_ipython().ask_exit = do_not_leave
get_ipython().system = get_ipython().system_raw  # the other one needs a terminal, which is outside

# The notebook's own calls of `check` are what marks it, where they stand: they find the hidden checks, too, whatever
# the folder is then and the file is called, and leave no log.
otter.Notebook.init_grading_mode(str(FOLDER / "tests"))
otter.Notebook._resolve_nb_path = lambda *arguments, **options: None
otter.Notebook._log_event = lambda *arguments, **options: None


class test_case(test_files.test_case):
    """Otter's check, with the name of its function, within its time, and left out if it was stopped before."""

    def __call__(self, check):
        self.name = check.__name__
        entry = f"the check {self.name}"

        @functools.wraps(check)
        def watched(**answers):
            marks[self.name] = False, f"stopped: {ORDERS['stopped'].get(entry)}"
            if entry in ORDERS["stopped"]:
                raise AssertionError(marks[self.name][1])
            around, left = running, signal.getitimer(signal.ITIMER_REAL)[0]  # of the cell that calls this check
            begin(entry, ORDERS["check_seconds"])
            try:
                for name, answer in answers.items():
                    if answer is None:
                        raise NameError(f"{name} is not there: its cell was deleted, or did not run")
                check(**answers)
                marks[self.name] = True, ""
            except BaseException as error:  # sys.exit() and the like, too, which would end all the other checks
                marks[self.name] = False, text(error)
                raise AssertionError(marks[self.name][1]) from None
            finally:
                begin(*around, left)

        return super().__call__(watched)
