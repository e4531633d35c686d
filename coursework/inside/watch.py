"""Inside a submission's kernel: says what is running, and ends what runs too long."""

import contextlib
import functools
import json
import os
import signal
from pathlib import Path

import otter.test_files
from IPython import get_ipython

FOLDER = Path(os.environ["SUBMISSION_FOLDER"])
ORDERS = json.loads((FOLDER / "orders.json").read_text())
running = "the start", 0


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
        (FOLDER / "journal").write_text(entry)


def text(error: BaseException) -> str:
    """An error in words, even if it has none to say."""
    try:
        return f"{type(error).__name__}: {error} "  # the blank, as Otter strips quotes at the end
    except Exception:
        return f"{type(error).__name__} "


class Failed(Exception):
    """A check failed."""


def do_not_leave():
    raise RuntimeError("exit() would end the notebook")


if shell := get_ipython():  # not where the results are unpickled
    shell.ask_exit = do_not_leave
    shell.system = shell.system_raw  # the other one needs a terminal, which is outside


class test_case(otter.test_files.test_case):
    """Otter's check, with the name of its function, within its time, and left out if it was stopped before."""

    def __call__(self, check):
        self.name = check.__name__
        entry = f"the check {self.name}"

        @functools.wraps(check)
        def watched(**answers):
            if entry in ORDERS["stopped"]:
                raise RuntimeError(f"stopped: {ORDERS['stopped'][entry]}")
            for name, answer in answers.items():
                if answer is None:
                    raise NameError(f"{name} is not there: its cell was deleted, or did not run")
            around, left = running, signal.getitimer(signal.ITIMER_REAL)[0]  # of the cell that calls this check
            begin(entry, ORDERS["check_seconds"])
            try:
                check(**answers)
            except BaseException as error:  # sys.exit() and the like, too, which would end all the other checks
                raise Failed(text(error)) from None
            finally:
                begin(*around, left)

        return super().__call__(watched)
