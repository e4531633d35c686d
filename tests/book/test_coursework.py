"""The programs for coursework, with a master of three small questions: what they build, refuse, and mark."""

import copy
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import assign
import assignment as assignments
import grade
import nbformat
import pytest
from assignment import Assignment
from grading import answer, answered, code, insert, lost, with_points

TINY = Path(__file__).with_name("tiny.md")

# elsewhere than on Linux the marks can be tested all the same
CONFINED = grade.can_confine()
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Landlock is part of Linux; elsewhere make grade stops")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return assign.build(TINY, 0, tmp_path_factory.mktemp("tiny") / "0")


@pytest.fixture(scope="module")
def assignment(build):
    return Assignment.read(build)


@pytest.fixture(scope="module")
def solution(build):
    return nbformat.read(build / "solution.ipynb", as_version=4)


@pytest.fixture(scope="module")
def student(build):
    return nbformat.read(build / "tiny.ipynb", as_version=4)


@pytest.fixture
def submit(student, solution, assignment, tmp_path):
    """A function that grades a student's notebook with the solution's answers, but changed."""

    def submit(change):
        notebook = answered(student, solution, ["times", "length"])
        change(notebook)
        path = tmp_path / "someone.ipynb"
        nbformat.write(notebook, path)
        return grade.grade(path, assignment, confined=CONFINED)

    return submit


@pytest.fixture
def masters(monkeypatch, tmp_path):
    """A folder of masters instead of the book's: a function that fills it."""
    folder = tmp_path / "masters"
    folder.mkdir()
    monkeypatch.setattr(assignments, "HERE", folder)

    def masters(**texts):
        for name, text in texts.items():
            (folder / f"{name}.md").write_text(text)
        return folder

    return masters


def call(main, monkeypatch, *arguments):
    """Call a program with arguments: its exit status."""
    monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
    try:
        main()
    except SystemExit as end:
        return end.code
    return 0


# --- What is built ---


def test_a_seed_chooses_the_numbers_of_text_solution_and_checks(build, tmp_path):
    factors = {seed: assign.variant(TINY, seed)["factor"] for seed in range(40)}
    assert set(factors.values()) == {2, 3, 5, 7, 11}
    other = next(seed for seed, factor in factors.items() if factor != factors[0])
    for seed, folder in [(0, build), (other, assign.build(TINY, other, tmp_path / "other"))]:
        notebook = nbformat.read(folder / "solution.ipynb", as_version=4)
        assert f"Your factor is {factors[seed]}, and" in "".join(cell.source for cell in notebook.cells)
        assert f"return {factors[seed]} * x" in answer(notebook, "times").source
        assert f"times(1) is {factors[seed]}" in notebook.metadata["otter"]["tests"]["q1"]
        assert notebook.metadata["otter"]["assignment_name"] == f"tiny-{seed}"


def test_notebooks_are_the_same_to_the_byte_when_built_again(build, tmp_path):
    again = assign.build(TINY, 0, tmp_path / "again")
    for file in ("tiny.ipynb", "solution.ipynb", "rubric.md"):
        assert (again / file).read_bytes() == (build / file).read_bytes()
    ids = [cell.id for cell in nbformat.read(again / "tiny.ipynb", as_version=4).cells]
    assert len(ids) == len(set(ids))


def test_no_solution_and_no_hidden_check_is_in_the_file_for_students(build):
    """What is hidden in the master, written out."""
    secrets = ["this line is a part", "by Pythagoras", "test_values", "test_errors", "test_pythagoras",
               "no ValueError for", "Rubric", "what a prime number is", "Model answer", "SOLUTION",
               "import numpy"]  # fmt: skip
    for file, there in [("tiny.ipynb", False), ("solution.ipynb", True)]:
        text = (build / file).read_text()
        assert [secret for secret in secrets if (secret in text) != there] == []
    assert "test_zero" in (build / "tiny.ipynb").read_text()


def test_students_see_how_many_hidden_checks_remain(student):
    calls = [cell.source for cell in code(student) if cell.source.startswith("check(")]
    assert calls == ['check("q1", hidden=2)', 'check("q2", hidden=1)']


def test_points_and_rubric_are_those_of_the_master(build, assignment):
    assert assignment.points == {
        "q1": {"test_zero": 0, "test_values": 2, "test_errors": 1},
        "q2": {"test_axis": 0, "test_pythagoras": 1},
    }
    assert assignment.possible == 4
    assert assignment.rubrics["q3"][2] == ("(Says that 1 is prime)", "-1")
    assert assignment.by_hand == {"q3": 2}
    assert "## q3, 2 points" in (build / "rubric.md").read_text()


HEADER = "---\nkernelspec:"
REFUSED = [
    (HEADER, "kernelspec:", "bad.md: it must begin with a header between two lines ---, with kernelspec and variants"),
    ("variants:\n", "variations:\n", "bad.md: it must begin with a header"),
    ("[2, 3, 5, 7, 11]", "[2, 3", "bad.md: its header is not YAML"),
    ("  factor: [2, 3, 5, 7, 11]", "  [2, 3]", "bad.md: variants must be lists by name, got [2, 3]"),
    ("[2, 3, 5, 7, 11]", "7", "bad.md: factor under variants must be a list that is not empty, got 7"),
    ("[2, 3, 5, 7, 11]", "[]", "bad.md: factor under variants must be a list that is not empty, got []"),
    ("{{ factor }} x.", "{{ faktor }} x.", "bad.md: Jinja cannot fill it in: 'faktor' is undefined"),
    ("{{ factor }} x.", "{{ factor x.", "bad.md, line 46: Jinja cannot fill it in: expected token"),
    ("{{ factor }} x.", "{{ math.sqrt(-1) }} x.", "bad.md: Jinja cannot fill it in: math domain error"),
    ("name: {{ name }}", "name: tiny", "bad.md: the name under ASSIGNMENT CONFIG must be {{ name }}, got 'tiny'"),
    ('{% include "check.py" %}', "grader = 1", 'bad.md: there must be a cell with {% include "check.py" %}'),
    ("ok_format: false", "ok_format: true", "bad.md: there must be ok_format: false under tests"),
    ("# BEGIN SOLUTION\n```", "```", "bad.md: Otter Assign cannot read it"),
    ("name: q2", "name: q1", "bad.md: the name of a question must be one word that no other one has, got 'q1'"),
    ("name: q2\n", "name: [\n", "bad.md: what is under # BEGIN QUESTION must be lines name: value, got 'name: ["),
    ("name: q2\n", "", "bad.md: the name of a question must be one word that no other one has, got None"),
    ("test_axis", "test_zero", "bad.md: the name of each check must be its own, and test_zero occurs twice"),
    ("def test_axis(length)", "def test_axis(times)",
     "bad.md: the name of each answer must be its own, and times occurs twice"),
    ("points: 1\ncheck_cell", "points: one\ncheck_cell",
     "bad.md, question q2: points must be an integer >= 1, got 'one'"),
    ('hidden: true\npoints: 1\n""" # END TEST CONFIG\ndef test_pyth', 'points: 1\n""" # END TEST CONFIG\ndef test_pyth',
     "bad.md, question q2: there must be a hidden check"),
    ("def test_errors(times)", "def errors(times)",
     "bad.md, question q1: the name of the check errors must begin with test_"),
    ("def test_axis(length)", "def test_axis()", "bad.md, question q2: the check test_axis must take an answer"),
    ("name: q1\npoints: 3", "name: q1\npoints: 4",
     "bad.md, question q1: the public check test_zero must have no points"),
    ('check("q2")', 'check("q7")', 'bad.md, question q2: there must be one cell with check("q2"), got 0'),
    ("**Rubric** (q3, 2 points)", "**Rubric** (q3, two points)",
     "bad.md, question q3: there must be **Rubric** (q3, 2 points)"),
    ("prime number is | 1 |", "prime number is | 1.5 |",
     "bad.md, question q3: a row of the rubric must be a criterion and an integer, got Says what a prime"),
    ("prime number is | 1 |", "prime number is | 2 |", "bad.md, question q3: it has 2 points, and its rubric has 3"),
    ("manual: true\n", "", "bad.md, question q3: there must be a public check"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_a_master_that_breaks_its_contract_is_refused(old, new, message, tmp_path):
    text = TINY.read_text()
    assert old in text
    (tmp_path / "bad.md").write_text(text.replace(old, new, 1))
    with pytest.raises(assign.Refused) as refused:
        assign.build(tmp_path / "bad.md", 0, tmp_path / "build")
    assert str(refused.value).startswith(message)


# --- The programs ---


def test_from_the_master_to_the_table(masters, monkeypatch, tmp_path, capsys):
    """Where there is one master, it needs no name."""
    folder = masters(tiny=TINY.read_text())
    assert call(assign.main, monkeypatch, "--seed", 3) == 0
    built = folder / "build" / "tiny-3"
    assert {path.name for path in built.iterdir()} == {"tiny.ipynb", "solution.ipynb", "rubric.md", "autograder.zip"}
    assert "It has 4 of 4 points" in capsys.readouterr().out
    (tmp_path / "course").mkdir()
    (tmp_path / "course" / "ada.ipynb").write_bytes((built / "solution.ipynb").read_bytes())
    unconfined = [] if CONFINED else ["--unconfined"]
    assert call(grade.main, monkeypatch, tmp_path / "course", "--seed", 3, "--name", "tiny", *unconfined) == 0
    with (tmp_path / "course-grades" / "grades.csv").open(encoding="utf-8-sig") as file:
        (row,) = csv.DictReader(file)
    assert row == {
        "submission": "ada.ipynb", "q1": "3", "q2": "1", "by program": "4", "of": "4",
        "q3 (by hand, of 2)": "", "notes": "",
    }  # fmt: skip


def test_a_solution_without_full_marks_is_not_built(masters, monkeypatch, capsys):
    folder = masters(tiny=TINY.read_text().replace("return math.hypot(x, y)", "return math.hypott(x, y)"))
    assert call(assign.main, monkeypatch) == 1
    assert (
        "The solution has 3 of 4: test_axis: AttributeError: module 'math' has no attribute 'hypott'"
        in capsys.readouterr().err
    )
    assert not (folder / "build").exists()


def test_a_solution_that_fails_a_check_without_points_is_not_built(masters, monkeypatch, capsys):
    """Students would be told that a right answer is wrong."""
    masters(tiny=TINY.read_text().replace("assert times(0) == 0", "assert times(0) == 1"))
    assert call(assign.main, monkeypatch) == 1
    assert "The solution has 4 of 4: test_zero: times(0) is 0, yours is 0" in capsys.readouterr().err


@pytest.mark.parametrize("main", [assign.main, lambda: grade.main()], ids=["assign", "grade"])
def test_the_name_is_one_of_the_masters(main, masters, monkeypatch, capsys):
    masters(tiny=TINY.read_text(), second=TINY.read_text())
    folder = [] if main is assign.main else ["."]
    assert call(main, monkeypatch, *folder) == 2
    assert "--name must be one of second, tiny" in capsys.readouterr().err
    assert call(main, monkeypatch, *folder, "--name", "third") == 2
    assert re.search("invalid choice: 'third' .*second.*tiny", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (assign.main, ["--seed", "-1"], "--seed must be an integer >= 0, got -1"),
        (grade.main, ["nowhere"], "nowhere is not a folder"),
        (grade.main, [".", "--unconfined"], "make coursework NAME=tiny SEED=0 builds it"),
        (grade.main, [".", "--seed", "x"], "invalid int value"),
    ],
)
def test_wrong_arguments_are_named(main, arguments, message, masters, monkeypatch, capsys):
    masters(tiny=TINY.read_text())
    assert call(main, monkeypatch, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("program", ["assign.py", "grade.py"])
def test_the_programs_start_from_anywhere(program, tmp_path, environment):
    command = [sys.executable, str(Path(assign.__file__).with_name(program)), "--name", "none"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "invalid choice: 'none'" in done.stderr


def test_practice_writes_the_notebooks_that_are_not_there(masters, monkeypatch, student, tmp_path):
    masters(tiny=TINY.read_text(), second=TINY.read_text(), third=TINY.read_text())
    target = tmp_path / "practice"
    target.mkdir()
    (target / "second.ipynb").write_text("hours of work")
    assert call(assign.main, monkeypatch, "--practice", target) == 0
    assert sorted(path.name for path in target.iterdir()) == ["second.ipynb", "third.ipynb", "tiny.ipynb"]
    assert nbformat.read(target / "tiny.ipynb", as_version=4) == student
    assert (target / "second.ipynb").read_text() == "hours of work"


# --- Answers, right and wrong ---


def test_a_question_is_marked_where_its_check_is_called(submit, assignment):
    """With what is defined by then, in however many cells; what comes later is for later questions."""

    def change(notebook):
        whole = answer(notebook, "times").source
        answer(notebook, "times").source = "# below"
        insert(notebook, "times = None", "length")
        index = next(i for i, cell in enumerate(notebook.cells) if cell.source.startswith('check("q1"'))
        notebook.cells[index].source = f"{whole}\n\n{notebook.cells[index].source}\nprint(times(1))"
        answer(notebook, "length").source = "def length(x, y):\n    return x + y - (x == 3)"

    result = submit(change)
    assert result.notes == []
    assert lost(result, assignment) == {"test_pythagoras"}
    assert result.messages["q2"]["test_pythagoras"] == "the length of (3, 4) is 5, yours is 6"
    printed = [output.text for cell in code(nbformat.reads(result.executed, as_version=4)) for output in cell.outputs]
    assert printed[0].startswith("q1: 1 of 1 public checks passed.\n2 hidden checks remain; they call")
    assert printed[1].startswith("q2: 1 of 1 public checks passed.\n1 hidden checks remain")  # and not what it hides


def test_an_answer_for_another_seed_does_not_fit(assignment, solution, tmp_path):
    solution = copy.deepcopy(solution)
    solution.metadata["otter"]["assignment_name"] = "tiny-1"
    nbformat.write(solution, tmp_path / "a.ipynb")
    result = grade.grade(tmp_path / "a.ipynb", assignment)
    assert result.notes == ["not graded: it belongs to tiny-1, not to tiny-0"]


# --- Submissions that are odd, but honest ---

ODD = {
    "folders": [
        "%cd ..",
        "import os\nos.makedirs('figures')\nos.chdir('figures')",
        "open('a.txt', 'w').write('relative')\nassert open('a.txt').read() == 'relative'",
        "import shutil, tempfile\nos.chdir(tempfile.mkdtemp())\nshutil.rmtree(os.getcwd())",
    ],
    "names": [
        "%reset -f",
        "import math, otter\ngrader = otter.Notebook('tiny (1).ipynb')",
        "def check(question, hidden=0):\n    print(grader.check(question).test_case_results)",
        "open = list = str = sum = results = pickle = json = 3",
    ],
    "magics and settings": [
        "%load_ext autoreload\n%autoreload 2",
        "%matplotlib inline",
        "import matplotlib\nmatplotlib.use('svg')\nimport matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()",
        "%%writefile journal\nnotes",
        "%%writefile marks.json\n[]",
        "%%writefile helper.py\nY = 3",
        "import helper\nassert helper.Y == 3",
        "%%time\n1 + 1",
        "!true",
        "import os, sys\nos.environ.update(HOME='/nowhere', TMPDIR='/nowhere', PATH='', PYTHONPATH='/nowhere')",
        "del os.environ['SUBMISSION_FOLDER']\nsys.path.clear()\nsys.argv[:] = ['x']\nos.umask(0o777)",
        "import warnings, locale\nimport numpy as np\nwarnings.simplefilter('error')\nnp.seterr(all='raise')",
        "locale.setlocale(locale.LC_ALL, 'C')\nimport random\nrandom.seed(0)",
        "import gc, logging, signal\ngc.disable()\nlogging.disable()\nlogging.shutdown()\nsignal.alarm(0)",
        "import io\nsys.stdout = io.StringIO()",
    ],
}


@pytest.mark.parametrize("kind", ODD)
def test_what_a_notebook_changes_around_itself_costs_no_marks(submit, assignment, kind):
    def change(notebook):
        for source in ODD[kind]:
            insert(notebook, source, "times")
        # and once more inside an answer, while a check runs
        here = "    import os\n    os.chdir('/')\n    return math.hypot"
        answer(notebook, "length").source = answer(notebook, "length").source.replace("    return math.hypot", here)

    result = submit(change)
    assert lost(result, assignment) == set(), result.messages
    expected = {"names": {"check"}}.get(kind, set())  # the remark tells the truth, and costs nothing
    assert {re.search("replaces (.+?);", note)[1] for note in result.notes} == expected, result.notes


def test_long_work_much_output_and_strange_metadata_cost_no_marks(submit, assignment, monkeypatch):
    monkeypatch.setattr(grade, "CHECK_SECONDS", 6)
    monkeypatch.setattr(grade, "GRACE_SECONDS", 2)

    def change(notebook):
        insert(notebook, "check('q1')\n__import__('time').sleep(10)", "length")  # work after a check in its cell
        insert(notebook, "for i in range(60):\n    print('x' * 1_000_000)", "length")
        for cell, metadata in zip(
            notebook.cells, ["x", None, [], {"tests": 3}, {"tests": [1, "../x"]}] * 10, strict=False
        ):
            cell.metadata["otter"] = metadata

    result = submit(change)
    assert result.notes == []
    assert lost(result, assignment) == set()
    assert "more than a megabyte of output was left out" in result.executed


def test_deleted_and_replaced_cells_cost_only_their_own_marks(submit, assignment):
    def change(notebook):
        answer(notebook, "times").source = "def times(x):\n    return 0"
        yes = "grader = 1\ncheck = lambda question, hidden: print('passed')"
        insert(notebook, yes, "times")
        notebook.metadata["otter"]["tests"] = {}
        notebook.cells.remove(answer(notebook, "length"))

    result = submit(change)
    assert lost(result, assignment) == with_points(assignment, "q1", "q2")
    assert result.passed["q1"]["test_zero"]  # by the original check, for what it is worth
    assert result.notes[0] == "q2: length is not there: its cell was deleted, or did not run"
    assert sum("replaces" in note for note in result.notes) == 2
    assert len(result.notes) == 3


# --- Submissions that are broken, or up to no good ---


@pytest.fixture
def short(monkeypatch):
    """Limits that are soon over, and still ten times what a right answer takes."""
    monkeypatch.setattr(grade, "CELL_SECONDS", 8)
    monkeypatch.setattr(grade, "CHECK_SECONDS", 6)
    monkeypatch.setattr(grade, "GRACE_SECONDS", 3)


def test_what_runs_for_ever_costs_only_its_own_marks(submit, assignment, short):
    def change(notebook):
        insert(notebook, "while True:\n    pass", "times")
        insert(notebook, "__import__('time').sleep(1e6)", "times")
        loop = "    while True:\n        try:\n            x = x\n        except Exception:\n            pass"
        answer(notebook, "length").source = f"def length(x, y):\n{loop}"

    result = submit(change)
    assert lost(result, assignment) == with_points(assignment, "q2")
    cells = [
        note
        for note in result.notes
        if re.fullmatch(r"cell \d+ raised TimeoutError: it ran for more than 8 seconds", note)
    ]
    assert len(cells) == 2
    assert "q2: it ran for more than 6 seconds" in result.notes


def test_what_does_not_heed_errors_is_ended_and_left_out(submit, assignment, short):
    def change(notebook):
        loop = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
        insert(notebook, loop, "times")

    result = submit(change)
    assert lost(result, assignment) == set()
    assert any(re.fullmatch(r"cell \d+ was stopped: it ran for more than 8 seconds", note) for note in result.notes)


def test_crashes_cost_only_their_own_marks(submit, assignment):
    """Two that bring Python down, two that do not, and one inside an answer."""

    def change(notebook):
        for source in ("import os\nos._exit(3)", "import ctypes\nctypes.string_at(0)", "exit()", "raise SystemExit"):
            insert(notebook, source, "times")
        answer(notebook, "length").source = "def length(x, y):\n    import sys\n    sys.exit()"

    result = submit(change)
    assert lost(result, assignment) == with_points(assignment, "q2")
    assert sum("was stopped: it ended the program that ran it" in note for note in result.notes) == 2


def test_too_much_memory(submit, assignment, monkeypatch):
    monkeypatch.setattr(grade, "MEMORY", 2**30)
    result = submit(
        lambda notebook: insert(notebook, "big = []\nwhile True:\n    big.append(bytearray(2**24))", "times")
    )
    assert lost(result, assignment) == set()
    assert any("was stopped: it used more than 1 GiB of memory" in note for note in result.notes)


@pytest.mark.parametrize(
    "tampering",
    [
        "import otter.test_files as t\nt.test_case.call_func = lambda self, env: None",
        "import numpy as np, torch\nnp.allclose = np.isclose = torch.allclose = lambda *a, **k: True",
    ],
)
def test_tampered_checks_are_noticed(submit, assignment, tampering):
    result = submit(lambda notebook: insert(notebook, tampering, "times"))
    assert result.total(assignment) == 0
    assert "tampered" in result.notes[0]


@on_linux
def test_nothing_is_written_outside_and_nothing_goes_on_running(submit, assignment, tmp_path):
    assert CONFINED, "this Linux has no Landlock, so that nothing can be said of what it would confine"
    mark, stamp = f"mark-of-{os.getpid()}", str(70_000_000 + os.getpid())
    places = [tmp_path / mark, Path.home() / mark, Path("/tmp") / mark, assign.HERE / mark, Path("/var/tmp") / mark]
    victim = tmp_path / "victim"
    victim.write_text("here")

    def change(notebook):
        tries = "\n".join(
            f"try:\n    {line}\nexcept Exception as error:\n    pass"
            for place in places
            for line in (
                f"open({str(place)!r}, 'w').write('x')",
                f"__import__('os').system('touch {place}')",
                f"__import__('numpy').save({str(place)!r}, [1])",
                f"__import__('os').mkdir({str(place)!r})",
            )
        )
        insert(
            notebook,
            f"{tries}\n__import__('os').system('rm -f {victim}')\n__import__('os').system('echo no > {victim}')",
            "times",
        )
        insert(notebook, "open('inside', 'w').write('this is allowed')\nassert open('inside').read()", "times")
        insert(notebook, f"import subprocess\nsubprocess.Popen(['sleep', {stamp!r}], start_new_session=True)", "times")

    result = submit(change)
    assert stamp not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [place for place in places if place.exists()]
    assert victim.read_text() == "here"
    assert result.notes == []
    assert lost(result, assignment) == set()


@on_linux
def test_no_signals_to_others_and_no_forged_remarks(submit, assignment):
    from landlock import landlock_abi_version

    assert CONFINED, "this Linux has no Landlock, so that nothing can be said of what it would confine"

    def change(notebook):
        tells = "import os, psutil, signal\nos.kill(psutil.Process(os.getppid()).ppid(), signal.SIGCONT)"
        insert(notebook, tells, "times")
        forged = r"cell 9\n\n**By program: 4 of 4 points.**\n\x1b]0;owned\x07"
        write = f"open(os.environ['SUBMISSION_FOLDER'] + '/journal', 'w').write('{forged}')"
        insert(notebook, f"import os, time\ntime.sleep(1)\n{write}\nos._exit(1)", "times")
        dumb = "class Dumb(Exception):\n    def __str__(self):\n        raise self"
        answer(notebook, "length").source = f"{dumb}\ndef length(*a):\n    raise Dumb"

    result = submit(change)
    assert lost(result, assignment) == with_points(assignment, "q2")
    assert result.messages["q2"]["test_pythagoras"] == "Dumb"
    assert sum("was stopped: it ended the program" in note for note in result.notes) == 1
    refused = [note for note in result.notes if "PermissionError" in note]
    assert len(refused) == (landlock_abi_version() >= 6), result.notes
    assert not [note for note in result.notes if "4 of 4" in note or "\x1b" in note]


UNREADABLE = "not graded: its processes left something that is no result (OSError: marks.json is not a plain file)"


@pytest.mark.parametrize(
    ("mischief", "notes", "points"),
    [
        (
            "os.remove(F + '/journal'); os.mkfifo(F + '/journal')\nfor i in range(1500): os.mkdir('d'), os.chdir('d')",
            [],
            4,
        ),
        (
            "for name, do in [('journal', lambda path: os.symlink('/dev/zero', path)), ('marks.json', os.mkfifo)]:\n"
            "    os.remove(f'{F}/{name}')\n    do(f'{F}/{name}')",
            [UNREADABLE],
            0,
        ),
    ],
)
def test_mischief_with_the_files_of_the_grader_ends(
    submit, assignment, mischief, notes, points, monkeypatch, tmp_path_factory
):
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    source = f"import os\nF = os.environ['SUBMISSION_FOLDER']\n{mischief}"
    result = submit(lambda notebook: insert(notebook, source, "times"))
    assert result.notes == notes
    assert result.total(assignment) == points
    assert list(scratch.iterdir()) == []


# --- A folder of them ---


def test_a_notebook_of_an_older_format_or_with_a_mark_in_front_is_read(build, assignment, tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_bytes(b"\xef\xbb\xbf" + (build / "tiny.ipynb").read_bytes())
    assert len(grade.read(path, assignment).cells) > 10
    cell = {"cell_type": "code", "input": "1", "language": "python", "outputs": [], "metadata": {}, "collapsed": False}
    old = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": [cell], "metadata": {}}]}
    path.write_text(json.dumps(old))
    assert [cell.source for cell in grade.read(path, assignment).cells] == ["1"]


@pytest.fixture(scope="module")
def folder(build, assignment, tmp_path_factory):
    """A folder graded with the program, as make does it."""
    place = tmp_path_factory.mktemp("course") / "handed in"
    (place / "ada_12").mkdir(parents=True)
    (place / "ada_12" / "tiny.ipynb").write_text((build / "tiny.ipynb").read_text())
    (place / "bob.ipynb").write_text("not JSON")
    (place / "cem.ipynb").write_text('{"a": 1}')
    (place / "dan.pdf").write_bytes(b"%PDF")
    (place / "=eve.ipynb").write_bytes(b"\xff\xfe\x00")
    os.mkfifo(place / "fay.ipynb")
    (place / "gus.ipynb").symlink_to("/dev/zero")
    (place / "hal.ipynb").write_text("")
    (place / ("i" * 247 + ".ipynb")).write_text("{}")
    surrogate = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("SOURCE")])
    (place / "jo.ipynb").write_text(nbformat.writes(surrogate).replace("SOURCE", r"\ud800"))
    with open(os.fsencode(place) + b"/M\xfcller.pdf", "wb"):
        pass  # a name that is not UTF-8, as from an old archive
    (place / ".hidden").write_text("")
    grade.grade_folder(place, assignment, place.with_name("grades"), confined=CONFINED)
    return place.with_name("grades")


def test_every_file_has_a_line(folder):
    with (folder / "grades.csv").open(encoding="utf-8-sig") as file:
        rows = {row["submission"]: row for row in csv.DictReader(file)}
    stems = ["'=eve", "ada_12/tiny", "bob", "cem", "fay", "gus", "hal", "jo"]
    assert set(rows) == {
        *(f"{stem}.ipynb" for stem in stems),
        "dan.pdf",
        "M�ller.pdf",
        "i" * 200,
    }
    assert {row["by program"] for row in rows.values()} == {"0"}
    assert rows["ada_12/tiny.ipynb"]["notes"] == ""
    assert "not in .ipynb" in rows["dan.pdf"]["notes"]
    for name in ("bob.ipynb", "cem.ipynb", "'=eve.ipynb", "hal.ipynb", "jo.ipynb"):
        assert "it is not a notebook, whatever its name" in rows[name]["notes"], name
    for name in ("fay.ipynb", "gus.ipynb"):
        assert "a link or a special file" in rows[name]["notes"], name


def test_every_submission_has_a_report_with_room_for_marks_by_hand(folder):
    text = (folder / "reports" / "ada_12" / "tiny.ipynb.md").read_text(encoding="utf-8")
    assert "**By program: 0 of 4 points.**" in text
    assert "- [ ] values (2 points): `" in text
    assert "**q3**\n\n| criterion | points | given |" in text
    executed = nbformat.read(folder / "executed" / "ada_12" / "tiny.ipynb", as_version=4)
    outputs = [output for cell in code(executed) for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream"}  # an untouched notebook runs without errors
    assert any("Type your answer here" in cell.source for cell in executed.cells)  # the written answers are there, too
    assert (folder / "reports" / "dan.pdf.md").exists()


def test_results_are_never_overwritten(assignment, tmp_path):
    """They may hold marks that a person gave."""
    place = tmp_path / "course"
    place.mkdir()
    (place / "a.pdf").write_text("")
    grade.grade_folder(place, assignment, tmp_path / "course-grades")
    (tmp_path / "course-grades" / "reports" / "a.pdf.md").write_text("marks by hand")
    grade.grade_folder(place, assignment, tmp_path / "course-grades")
    assert "marks by hand" not in (tmp_path / "course-grades" / "reports" / "a.pdf.md").read_text()
    (former,) = tmp_path.glob("course-grades-until-*")
    assert (former / "reports" / "a.pdf.md").read_text() == "marks by hand"


def test_the_wrong_seed_is_noticed_before_anything_is_written(solution, assignment, tmp_path):
    solution = copy.deepcopy(solution)
    solution.metadata["otter"]["assignment_name"] = "tiny-1"
    place = tmp_path / "course"
    place.mkdir()
    nbformat.write(solution, place / "a.ipynb")
    (place / "b.pdf").write_text("")
    with pytest.raises(SystemExit, match="belongs to tiny-1, not to tiny-0"):
        grade.grade_folder(place, assignment, tmp_path / "grades")
    assert not (tmp_path / "grades").exists()


def test_a_file_whose_folder_may_not_be_entered_stops_nobody(assignment, tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)  # root may enter every folder
    assert str(grade.refusal(tmp_path / "a.ipynb", assignment)) == "it cannot be opened (Permission denied)"
