"""The assignment: what students get, and that every answer, good or bad, gets the marks that it should."""

import copy
import csv
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import assign
import grade
import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient

from lib import two_tokens

NAME = "transition"
ANSWERS = {
    "q1": "listen",
    "q2": "rates",
    "q3": "antipodal_probability",
    "q4": "simulate",
    "q5": "layer",
    "q7": "causal",
}


@pytest.fixture(scope="session")
def builds(tmp_path_factory):
    """The assignment with the numbers of two seeds, by seed."""
    return {seed: assign.build(NAME, seed, tmp_path_factory.mktemp(NAME) / f"{seed}") for seed in (0, 1)}


@pytest.fixture(scope="session")
def assignment(builds):
    return grade.Assignment.read(builds[0])


@pytest.fixture(scope="session")
def solution(builds):
    return nbformat.read(builds[0] / "solution.ipynb", as_version=4)


@pytest.fixture(scope="session")
def student(builds):
    return nbformat.read(builds[0] / f"{NAME}.ipynb", as_version=4)


# elsewhere than on Linux the marks can be tested all the same
CONFINED = grade.can_confine()
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Landlock is part of Linux; elsewhere make grade stops")


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def answer(notebook, question):
    """The cell of a question's answer."""
    (cell,) = [cell for cell in code(notebook) if f"def {ANSWERS[question]}(" in cell.source]
    return cell


def names(source):
    return set(re.findall(r"^(?:def )?(\w+)(?:\(| =)", source, re.MULTILINE))


@pytest.fixture
def submit(student, solution, assignment, tmp_path):
    """A function that grades a student's notebook with the solution's answers to the program questions, but changed."""

    def submit(change):
        notebook = copy.deepcopy(student)
        for question in ANSWERS:
            answer(notebook, question).source = answer(solution, question).source
        change(notebook)
        path = tmp_path / "someone.ipynb"
        nbformat.write(notebook, path)
        return grade.grade(path, assignment, confined=CONFINED)

    return submit


def lost(result, assignment):
    """The checks with points that failed."""
    return {
        check
        for question, checks in assignment.points.items()
        for check, points in checks.items()
        if points and not result.passed.get(question, {}).get(check)
    }


# --- What is built ---


def test_half_of_the_points_are_marked_by_program(assignment):
    by_hand = {
        question: sum(int(points) for _, points in rows if points.isdigit())
        for question, rows in assignment.rubrics.items()
    }
    assert by_hand == {"q2_why": 4, "q6": 10, "q7_why": 10}
    assert assignment.possible == sum(by_hand.values()) == 24
    assert {question: sum(checks.values()) for question, checks in assignment.points.items()} == {
        "q1": 3, "q2": 4, "q3": 5, "q4": 4, "q5": 4, "q7": 4,
    }  # fmt: skip


def test_the_points_in_the_text_are_those_of_the_checks(student, assignment):
    text = "\n".join(cell.source for cell in student.cells)
    rows = re.findall(r"^\| (\d) \| .* \| ?(\d*) \| ?(\d*) \|$", text, re.MULTILINE)
    by_program = {f"q{number}": int(points) for number, points, _ in rows if points}
    assert by_program == {question: sum(checks.values()) for question, checks in assignment.points.items()}
    assert sum(int(points) for _, _, points in rows if points) == 24
    assert "48 points: 24 for code" in text


def test_public_checks_carry_no_points_and_every_question_has_some(assignment, student):
    for question, checks in assignment.points.items():
        public = re.findall(r"def (test_\w+)", student.metadata["otter"]["tests"][question])
        assert public
        assert {check for check, points in checks.items() if not points} == set(public), question


def test_students_see_how_many_hidden_checks_remain(student, assignment):
    for question, checks in assignment.points.items():
        hidden = sum(1 for points in checks.values() if points)
        assert [cell.source for cell in code(student)].count(f'check("{question}", hidden={hidden})') == 1


def test_no_solution_and_no_hidden_check_is_in_the_file_for_students(student, solution, builds):
    text = (builds[0] / f"{NAME}.ipynb").read_text()
    shown = {line.strip() for cell in student.cells for line in cell.source.splitlines()}
    for cell in solution.cells:
        if "SOLUTION" in cell.source or "**Rubric**" in cell.source or cell.source.startswith("**Model"):
            answers = re.findall(r"# BEGIN SOLUTION\n(.*?)# END SOLUTION", cell.source, re.DOTALL) or [cell.source]
            secret = {line.strip() for line in "\n".join(answers).splitlines() if len(line.strip()) > 25}
            assert secret
            assert not (secret & shown), secret & shown
    hidden = [
        check
        for test in solution.metadata["otter"]["tests"].values()
        for check in re.findall(r"hidden=True\)\s*def (test_\w+)", test)
    ]
    assert len(hidden) > 15
    assert not [check for check in hidden if check in text]
    assert "SOLUTION" not in text
    assert not any(cell.get("outputs") for cell in student.cells)


def test_names_are_unique_per_question(solution):
    """A name that two questions define is graded at its later value."""
    defined = [name for question in ANSWERS for name in names(answer(solution, question).source)]
    assert len(defined) == len(set(defined))
    assert {"listen", "rates", "critical_beta", "antipodal_probability", "simulate", "layer", "causal"} == set(defined)
    tests = [
        check for test in solution.metadata["otter"]["tests"].values() for check in re.findall(r"def (test_\w+)", test)
    ]
    assert len(tests) == len(set(tests))
    assert not set(tests) & set(defined)


def test_two_seeds_give_different_numbers_in_text_and_checks(builds):
    def of(seed):
        notebook = nbformat.read(builds[seed] / "solution.ipynb", as_version=4)
        (numbers,) = [cell.source for cell in code(notebook) if cell.source.startswith("DIM, ALPHA, BETA, ANGLE")]
        return (
            numbers.splitlines()[0],
            notebook.metadata["otter"]["tests"],
            notebook.metadata["otter"]["assignment_name"],
        )

    (numbers, tests, name), (others, other_tests, other_name) = of(0), of(1)
    assert numbers != others
    assert (name, other_name) == ("transition-0", "transition-1")
    for question in ("q1", "q2", "q3", "q4", "q5", "q7"):
        assert tests[question] != other_tests[question]


def test_many_seeds_give_many_variants_all_on_the_right_side_of_the_transition():
    master = (assign.HERE / f"{NAME}.md").read_text()
    variants = [assign.variant(master, seed) for seed in range(200)]
    assert len({tuple(v.values()) for v in variants}) > 150
    for v in variants:
        edge = (np.arccosh(v["dim"] - 2) - v["alpha"]) / 2
        assert 0.2 < edge < v["beta"] - 0.4  # question 6 needs a β below β*, question 3 one well above
        assert np.cosh(v["other"]) > v["dim"] - 2 + 2  # the surprise of question 2


# --- Right answers ---


@pytest.fixture(scope="module")
def of_solution(builds):
    return {
        seed: grade.grade(folder / "solution.ipynb", grade.Assignment.read(folder), confined=CONFINED)
        for seed, folder in builds.items()
    }


@pytest.mark.parametrize("seed", [0, 1])
def test_the_solution_has_full_marks_with_either_seed(of_solution, builds, seed):
    result = of_solution[seed]
    assert result.notes == []
    assert result.total(grade.Assignment.read(builds[seed])) == 24


def test_the_executed_solution_has_its_figures(of_solution):
    executed = nbformat.reads(of_solution[0].executed, as_version=4)
    figures = [output for cell in code(executed) for output in cell.outputs if "image/png" in output.get("data", {})]
    assert len(figures) == 2


def test_an_answer_for_another_seed_does_not_fit(builds):
    result = grade.grade(builds[1] / "solution.ipynb", grade.Assignment.read(builds[0]))
    assert result.notes == ["not graded: it belongs to transition-1, not to transition-0"]


def test_an_untouched_notebook_has_no_marks_and_no_errors(builds, assignment):
    result = grade.grade(builds[0] / f"{NAME}.ipynb", assignment, confined=CONFINED)
    assert result.total(assignment) == 0
    assert result.notes == []
    executed = nbformat.reads(result.executed, as_version=4)
    assert not [output for cell in code(executed) for output in cell.outputs if output.output_type == "error"]


def run_as_students_do(notebook, folder):
    """The notebook in a folder, executed as JupyterLab does it: what each check prints, by question."""
    nbformat.write(notebook, folder / f"{NAME}.ipynb")
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    printed = {}
    for cell in code(notebook):
        if match := re.match(r'check\("(\w+)"', cell.source):
            assert [output.output_type for output in cell.outputs] == ["stream"], cell.outputs
            printed[match[1]] = cell.outputs[0].text
    return printed


def test_checks_say_how_many_passed_and_that_hidden_ones_remain(student, solution, tmp_path):
    notebook = copy.deepcopy(student)
    for question in ("q1", "q2"):
        answer(notebook, question).source = answer(solution, question).source
    answer(notebook, "q4").source = answer(solution, "q4").source.replace("return torch.tanh(u)", "return u")
    printed = run_as_students_do(notebook, tmp_path)
    assert printed["q1"] == (
        "q1: 3 of 3 public checks passed.\n2 hidden checks remain; they call your functions with other inputs.\n"
    )
    assert printed["q2"].startswith("q2: 2 of 2 public checks passed.\n4 hidden")
    assert printed["q4"].startswith(
        "q4: 0 of 2 public checks passed.\nThe first that failed says: cosines must be in [-1, 1]\n4"
    )
    for question in ("q3", "q5", "q7"):
        assert re.fullmatch(
            rf"{question}: 0 of \d public checks passed\.\nThe first that failed says: .+\n\d hidden checks remain.*\n",
            printed[question],
        ), printed[question]


# --- The solution, against other truths: what it says of causal attention and of a self-bias ---


@pytest.fixture(scope="module")
def functions(builds):
    notebook = nbformat.read(builds[0] / "solution.ipynb", as_version=4)
    space = {"np": np, "torch": torch}
    for question in ANSWERS:
        exec(answer(notebook, question).source, space)
    return space


def one_layer(mask, c, beta, alpha, dim, h, count):
    """The changes of the cosine in one layer, for many pairs."""
    rng = torch.Generator().manual_seed(3)
    x = torch.zeros(count, 2, dim, dtype=torch.float64)
    x[:, 0, 0], x[:, 1, 0], x[:, 1, 1] = 1, c, (1 - c * c) ** 0.5
    V = torch.randn(count, dim, dim, dtype=torch.float64, generator=rng)
    logits = beta * x @ x.mT + alpha * torch.eye(2, dtype=x.dtype)
    y = x + h**0.5 * torch.softmax(logits.masked_fill(mask, -torch.inf), -1) @ x @ V.mT
    y = y / y.norm(dim=-1, keepdim=True)
    return ((y[:, 0] * y[:, 1]).sum(-1) - c).numpy()


@pytest.mark.parametrize("c", [-0.9, 0.2, 0.8])
def test_the_coefficients_are_those_of_layers(functions, c):
    """Mean and variance over 200,000 layers; 4.5 standard errors (false alarms below 1e-4) and a bias of order h."""
    beta, alpha, dim, h, count = 0.8, -0.4, 6, 1e-3, 200_000
    later = torch.ones(2, 2).triu(1).bool()
    r, s = functions["listen"](c, beta, alpha)
    symmetric = (1 - c * c) * (r * (dim - 2) - s * c), 2 * s * (1 - c * c) ** 2
    for mask, (b, g2) in [(later, functions["causal"](c, beta, dim, alpha)), (torch.zeros(2, 2).bool(), symmetric)]:
        change = one_layer(mask, c, beta, alpha, dim, h, count)
        assert abs(change.mean() / h - b) < 4.5 * change.std() / h / count**0.5 + 20 * h
        assert abs(change.var() / h / g2 - 1) < 4.5 * (2 / count) ** 0.5 + 30 * h


def test_the_rate_at_plus_one_under_causal_attention(functions):
    """The rubric's formula is the limit of b/(c - 1) - g²/2(1-c)² at c = 1."""
    for beta, alpha, dim in [(0.5, 0.3, 4), (2.0, -1.0, 9)]:
        p, eta = 1 / (1 + np.exp(-alpha)), 1e-6
        b, g2 = functions["causal"](1 - eta, beta, dim, alpha)
        assert -b / eta - g2 / (2 * eta**2) == pytest.approx(-((dim - 1) * (1 - p**2) + 2 * p**2), rel=1e-4)


def test_without_a_bias_it_is_the_chapter(functions):
    c = np.linspace(-0.95, 0.95, 9)
    ours = functions["antipodal_probability"](c, 1.7, 5, 0.0)
    assert np.allclose(ours, two_tokens.antipodal_probability(c, beta=1.7, dim=5), atol=5e-4)
    assert functions["critical_beta"](7, 0.0) == pytest.approx(float(two_tokens.critical_beta(7)))
    assert np.allclose(functions["rates"](1.1, 6, 0.0), two_tokens.exponents(beta=1.1, dim=6))


# --- Other right answers than the solution's ---

OTHERS = {
    "q1": """
def listen(c, beta, alpha):
    for name, value in [("c", c), ("beta", beta), ("alpha", alpha)]:
        if not np.isfinite(value).all():
            raise ValueError(f"{name} is not finite")
    if np.max(np.abs(c)) > 1:
        raise ValueError("c is no cosine")
    if np.min(beta) < 0:
        raise ValueError("beta is negative")
    p = 1 / (1 + np.exp(-np.asarray(beta) * (1 - np.asarray(c)) - np.asarray(alpha)))
    return [2 * p * (1 - p), p**2 + (1 - p) ** 2]
""",
    "q2": """
def rates(beta, dim, alpha):
    cosh = np.cosh(np.array([alpha, 2 * beta + alpha]))
    return -2 * (dim - 2 + cosh[0]) / (1 + cosh[0]), 2 * (dim - 2 - cosh[1]) / (1 + cosh[1])


def critical_beta(dim, alpha):
    from scipy.optimize import brentq

    if dim == 2 or np.cosh(max(alpha, 0)) >= dim - 2:
        return np.float64(0.0) if dim == 2 or alpha > 0 else np.array(-alpha / 2)
    return brentq(lambda beta: np.cosh(2 * beta + alpha) - (dim - 2), max(0.0, -alpha / 2), 50.0)
""",
    "q3": """
def antipodal_probability(c0, beta, dim, alpha):
    from scipy.interpolate import CubicSpline

    c0 = np.asarray(c0, dtype=float)
    if (np.abs(c0) > 1).any() or np.isnan(c0).any():
        raise ValueError("c0 must be in [-1, 1]")
    if np.cosh(2 * beta + alpha) <= dim - 2:
        return (c0 == -1) * 1.0
    v = np.linspace(-16, 16, 4001)
    spline = CubicSpline(v, 1 / np.cosh(beta * (1 - np.tanh(v)) + alpha)).antiderivative()
    S = CubicSpline(v, np.exp(-(dim - 2) * (spline(v) - spline(0))) / np.cosh(v)).antiderivative()
    u0 = np.arctanh(np.clip(c0, -1 + 1e-13, 1 - 1e-13)).clip(-16, 16)
    return (S(16) - S(u0)) / (S(16) - S(-16))
""",
    "q4": """
def simulate(c0, beta, dim, alpha, horizon, steps, generator):
    noise = torch.randn(steps, *c0.shape, generator=generator, dtype=torch.float64) * (horizon / steps) ** 0.5
    u = torch.arctanh(c0.clone())
    for dB in noise:
        s = 1 - 1 / (1 + torch.cosh(beta * (1 - torch.tanh(u)) + alpha))
        u += ((1 - s) * (dim - 2) + s * torch.tanh(u)) * horizon / steps + (2 * s) ** 0.5 * dB
    return u.tanh()
""",
    "q5": """
def layer(x, V, beta, alpha, h):
    x = x.clone()
    logits = beta * torch.einsum("...id,...jd->...ij", x, x)
    logits.diagonal(dim1=-2, dim2=-1).add_(alpha)
    x += h**0.5 * torch.einsum("...de,...ij,...je->...id", V, logits.softmax(-1), x)
    return torch.nn.functional.normalize(x, dim=-1)
""",
    "q7": """
def causal(c, beta, dim, alpha):
    q = 1 / (1 + np.exp(beta * (1 - c) + alpha))
    along, across = q + (1 - q) * c, (1 - q) * np.sqrt(1 - c**2)
    squares = 1 + along**2 + across**2
    drift = along * (dim - 2 + c**2) - (dim - 1) * c * squares / 2
    return np.array([drift, (1 - c**2) * (squares - 2 * c * along)])
""",
}


def test_other_right_answers_have_full_marks(submit, assignment):
    def change(notebook):
        for question, source in OTHERS.items():
            answer(notebook, question).source = source

    result = submit(change)
    assert lost(result, assignment) == set(), result.messages
    assert all(all(passed.values()) for passed in result.passed.values()), result.messages  # the public ones too


# --- Wrong answers: each loses exactly these checks ---

WRONG = {
    "the bias has the wrong sign": ("q1", "+ np.asarray(alpha)", "- np.asarray(alpha)", {"weights_by_softmax"}),
    "half of r": ("q1", "r = 2 * e", "r = e", {"weights_by_softmax"}),
    "no errors": ("q1", "if not np.all", "if False and np.all", {"errors"}),
    "the chapter's weights": ("q1", " + np.asarray(alpha)", "", {"weights_by_softmax"}),
    "plus has the wrong sign": ("q2", "plus = -2", "plus = 2", {"rate_plus"}),
    "half the rate": ("q2", "minus = 2 *", "minus =", {"rate_minus"}),
    "no case distinction": ("q2", "return max(0.0, (float(np.arccosh(dim - 2)) - alpha) / 2)",
                            "return (float(np.arccosh(dim - 2)) - alpha) / 2", {"transition_in_special_cases"}),
    "the public value": ("q2", "if dim < 3:", "return 1.2389\n    if dim < 3:",
                         {"transition_with_a_bias", "transition_in_special_cases"}),
    "the wrong end": ("q3", "1 - np.interp", "np.interp", {"values_with_a_bias", "laws", "poles_and_errors"}),
    "half the exponent": ("q3", "- (dim - 2) * np.cumsum", "- 0.5 * (dim - 2) * np.cumsum", {"values_with_a_bias"}),
    "the library's function": ("q3", "    c0 = np.asarray(c0, dtype=float)",
                               "    return two_tokens.antipodal_probability(c0, beta=beta, dim=dim)",
                               {"values_with_a_bias", "no_attraction"}),
    "no test for attraction": ("q3", "if dim - 2 >= np.cosh(2 * beta + alpha):", "if False:", {"no_attraction"}),
    "drift has the wrong sign": ("q4", "u + h *", "u - h *", {"drift", "martingale"}),
    "half the variance": ("q4", "torch.sqrt(2 * s)", "torch.sqrt(s)", {"noise", "martingale"}),
    "unseeded": ("q4", "generator=generator, ", "", {"seed"}),
    "no bias": ("q4", " + alpha)", ")", {"drift", "noise", "martingale"}),
    "frozen at the start": ("q4", "c = torch.tanh(u)", "c = c0", {"martingale"}),
    "transposed": ("q5", "V.mT", "V", {"values"}),
    "h for its root": ("q5", "h**0.5", "h", {"values"}),
    "minus": ("q5", "x + h", "x - h", {"values"}),
    "not normalised": ("q5", "y / y.norm(dim=-1, keepdim=True)", "y", {"values", "sphere_after_large_steps"}),
    "the mask is transposed": ("q7", "q + p * c, 1 +", "p + q * c, 1 +", {"drift_of_vectors", "variance", "poles"}),
    "no half": ("q7", "0.5 * (dim - 1)", "(dim - 1)", {"drift_of_vectors", "poles"}),
    "plus for minus": ("q7", "squares - 2 * c", "squares + 2 * c", {"variance"}),
    "symmetric attention": ("q7", "inner, squares = q + p * c, 1 + p**2 + q**2 + 2 * p * q * c",
                            "inner, squares = 2 * p * q + (p**2 + q**2) * c, 2 * (p**2 + q**2 + 2 * p * q * c)",
                            {"drift_of_vectors", "variance", "poles"}),
}  # fmt: skip
# One notebook can have one wrong answer to each question: the checks of a question do not use the answers to others,
# but for the names that an answer itself uses.
BY_QUESTION = {question: [title for title in WRONG if WRONG[title][0] == question] for question in ANSWERS}
ROUNDS = list(itertools.zip_longest(*BY_QUESTION.values()))


def test_every_question_has_wrong_answers():
    assert all(len(titles) >= 3 for titles in BY_QUESTION.values())


@pytest.fixture(scope="module", params=range(len(ROUNDS)))
def marked(request, student, solution, assignment, tmp_path_factory):
    """Wrong answers, a round of them in one notebook."""
    notebook = copy.deepcopy(student)
    for question in ANSWERS:
        answer(notebook, question).source = answer(solution, question).source
    # the rates of question 2 are to be judged with the right weights, whatever stands in question 1
    right = answer(solution, "q1").source.replace("def listen(", "def right_listen(")
    answer(notebook, "q2").source = right + "\n\n" + answer(notebook, "q2").source.replace("listen(", "right_listen(")
    for title in filter(None, ROUNDS[request.param]):
        question, old, new, _ = WRONG[title]
        cell = answer(notebook, question)
        assert old in cell.source, (title, old)
        cell.source = cell.source.replace(old, new)
    path = tmp_path_factory.mktemp("wrong") / "someone.ipynb"
    nbformat.write(notebook, path)
    return request.param, grade.grade(path, assignment, confined=CONFINED)


def test_wrong_answers_lose_exactly_their_marks(marked, assignment):
    turn, result = marked
    expected = {f"test_{check}" for title in filter(None, ROUNDS[turn]) for check in WRONG[title][3]}
    assert lost(result, assignment) == expected, result.messages


# --- Submissions that are broken, or up to no good ---


@pytest.fixture
def short(monkeypatch):
    """Limits that are soon over, and still ten times what a right answer takes."""
    monkeypatch.setattr(grade, "CELL_SECONDS", 8)
    monkeypatch.setattr(grade, "CHECK_SECONDS", 6)
    monkeypatch.setattr(grade, "GRACE_SECONDS", 3)


def insert(notebook, source, before="q3"):
    index = notebook.cells.index(answer(notebook, before))
    notebook.cells.insert(index, nbformat.v4.new_code_cell(source))


def test_what_runs_for_ever_costs_only_its_own_marks(submit, assignment, short):
    def change(notebook):
        insert(notebook, "while True:\n    pass")
        insert(notebook, "__import__('time').sleep(1e6)")
        loop = "    while True:\n        try:\n            c = c\n        except Exception:\n            pass"
        answer(notebook, "q7").source = f"def causal(c, beta, dim, alpha):\n{loop}"

    result = submit(change)
    assert lost(result, assignment) == {check for check, points in assignment.points["q7"].items() if points}
    cells = [
        note
        for note in result.notes
        if re.fullmatch(r"cell \d+ raised TimeoutError: it ran for more than 8 seconds", note)
    ]
    assert len(cells) == 2
    assert result.notes[0] == "q7: it ran for more than 6 seconds"


def test_what_does_not_heed_errors_is_ended_and_left_out(submit, assignment, short):
    def change(notebook):
        insert(
            notebook,
            "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
        )

    result = submit(change)
    assert lost(result, assignment) == set()
    assert any(re.fullmatch(r"cell \d+ was stopped: it ran for more than 8 seconds", note) for note in result.notes)


def test_crashes_cost_only_their_own_marks(submit, assignment):
    """Two that bring Python down, two that do not, and one inside an answer."""

    def change(notebook):
        for source in ("import os\nos._exit(3)", "import ctypes\nctypes.string_at(0)", "exit()", "raise SystemExit"):
            insert(notebook, source)
        answer(notebook, "q5").source = "def layer(x, V, beta, alpha, h):\n    import sys\n    sys.exit()"

    result = submit(change)
    assert lost(result, assignment) == {check for check, points in assignment.points["q5"].items() if points}
    assert sum("was stopped: it ended the program that ran it" in note for note in result.notes) == 2


def test_too_much_memory(submit, assignment, monkeypatch):
    monkeypatch.setattr(grade, "MEMORY", 2 * 2**30)
    result = submit(lambda notebook: insert(notebook, "big = []\nwhile True:\n    big.append(bytearray(2**24))"))
    assert lost(result, assignment) == set()
    assert any("was stopped: it used more than 2 GiB of memory" in note for note in result.notes)


def test_a_deleted_cell_costs_only_its_own_marks(submit, assignment):
    def change(notebook):
        notebook.cells.remove(answer(notebook, "q4"))

    result = submit(change)
    assert lost(result, assignment) == {check for check, points in assignment.points["q4"].items() if points}
    assert result.notes == ["q4: simulate is not there: its cell was deleted, or did not run"]


def test_overwritten_checks_change_nothing(submit, assignment):
    def change(notebook):
        answer(notebook, "q1").source = "def listen(c, beta, alpha):\n    return 1, 1"
        insert(
            notebook,
            "class Yes:\n    def check(self, name):\n        return 'passed'\ngrader = Yes()\ncheck = print",
            "q1",
        )
        notebook.metadata["otter"]["tests"] = {}

    result = submit(change)
    # question 2 calls the function of question 1
    assert lost(result, assignment) == {"test_weights_by_softmax", "test_errors", "test_rate_plus", "test_rate_minus"}
    assert sum("replaces" in note for note in result.notes) == 2


@pytest.mark.parametrize(
    "tampering",
    [
        "import otter.test_files as t\nt.test_case.call_func = lambda self, env: None",
        "np.allclose = np.isclose = torch.allclose = lambda *a, **k: True",
    ],
)
def test_tampered_checks_are_noticed(submit, assignment, tampering):
    result = submit(lambda notebook: insert(notebook, tampering, "q1"))
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
                f"torch.save(torch.zeros(1), {str(place)!r})",
                f"__import__('os').mkdir({str(place)!r})",
            )
        )
        insert(
            notebook,
            f"{tries}\n__import__('os').system('rm -f {victim}')\n__import__('os').system('echo no > {victim}')",
        )
        insert(notebook, "open('inside', 'w').write('this is allowed')\nassert open('inside').read()")
        insert(notebook, f"import subprocess\nsubprocess.Popen(['sleep', {stamp!r}], start_new_session=True)")

    result = submit(change)
    assert stamp not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [place for place in places if place.exists()]
    assert victim.read_text() == "here"
    assert result.notes == []
    assert lost(result, assignment) == set()


def test_odd_but_honest_notebooks_keep_their_marks(submit, assignment, monkeypatch):
    """Work after a check in its cell, much output, shell commands, metadata of no sense."""
    monkeypatch.setattr(grade, "CHECK_SECONDS", 6)
    monkeypatch.setattr(grade, "GRACE_SECONDS", 2)

    def change(notebook):
        insert(notebook, "check('q1')\n__import__('time').sleep(10)")
        insert(notebook, "for i in range(60):\n    print('x' * 1_000_000)")
        insert(notebook, "!true\n%time 1 + 1\n%reset_selective -f nothing")
        for cell, metadata in zip(
            notebook.cells, ["x", None, [], {"tests": 3}, {"tests": [1, "../x"]}] * 10, strict=False
        ):
            cell.metadata["otter"] = metadata

    result = submit(change)
    assert result.notes == []
    assert lost(result, assignment) == set()
    assert "more than a megabyte of output was left out" in result.executed


@on_linux
def test_no_signals_to_others_and_no_forged_remarks(submit, assignment):
    from landlock import landlock_abi_version

    assert CONFINED, "this Linux has no Landlock, so that nothing can be said of what it would confine"

    def change(notebook):
        tells = "import os, psutil, signal\nos.kill(psutil.Process(os.getppid()).ppid(), signal.SIGCONT)"
        insert(notebook, tells)
        forged = r"cell 9\n\n**By program: 24 of 24 points.**\n\x1b]0;owned\x07"
        write = f"open(os.environ['SUBMISSION_FOLDER'] + '/journal', 'w').write('{forged}')"
        insert(notebook, f"import os, time\ntime.sleep(1)\n{write}\nos._exit(1)")
        answer(
            notebook, "q5"
        ).source = "class Dumb(Exception):\n    def __str__(self):\n        raise self\ndef layer(*a):\n    raise Dumb"

    result = submit(change)
    assert lost(result, assignment) == {check for check, points in assignment.points["q5"].items() if points}
    assert result.messages["q5"]["test_values"] == "Dumb"
    assert sum("was stopped: it ended the program" in note for note in result.notes) == 1
    refused = [note for note in result.notes if "PermissionError" in note]
    assert len(refused) == (landlock_abi_version() >= 6), result.notes
    assert not [note for note in result.notes if "24" in note or "\x1b" in note]


@pytest.mark.parametrize(
    "mischief",
    [
        "os.remove(F + '/journal'); os.mkfifo(F + '/journal')",
        "for i in range(1500): os.mkdir('d'), os.chdir('d')",
        "os.remove(F + '/journal'); os.symlink('/dev/zero', F + '/journal'); os.mkfifo(F + '/marks.json')",
    ],
)
def test_mischief_with_the_files_of_the_grader_ends(submit, assignment, mischief, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(grade, "TOTAL_SECONDS", 25)
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    began = time.monotonic()
    result = submit(lambda notebook: insert(notebook, f"import os\nF = os.environ['SUBMISSION_FOLDER']\n{mischief}"))
    assert time.monotonic() - began < 120
    assert list(scratch.iterdir()) == []
    assert result.notes or result.total(assignment) == 24  # it is said why, or nothing was lost


# --- A folder of them ---


def test_a_notebook_of_an_older_format_or_with_a_mark_in_front_is_read(builds, assignment, tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_bytes(b"\xef\xbb\xbf" + (builds[0] / f"{NAME}.ipynb").read_bytes())
    assert len(grade.read(path, assignment).cells) > 20
    cell = {"cell_type": "code", "input": "1", "language": "python", "outputs": [], "metadata": {}, "collapsed": False}
    old = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": [cell], "metadata": {}}]}
    path.write_text(json.dumps(old))
    assert [cell.source for cell in grade.read(path, assignment).cells] == ["1"]


@pytest.fixture(scope="module")
def folder(builds, assignment, tmp_path_factory):
    """A folder graded with the program, as make does it."""
    place = tmp_path_factory.mktemp("course") / "handed in"
    (place / "ada_12").mkdir(parents=True)
    (place / "ada_12" / "transition.ipynb").write_text((builds[0] / f"{NAME}.ipynb").read_text())
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
    stems = ["'=eve", "ada_12/transition", "bob", "cem", "fay", "gus", "hal", "jo"]
    assert set(rows) == {
        *(f"{stem}.ipynb" for stem in stems),
        "dan.pdf",
        "M�ller.pdf",
        "i" * 200,
    }
    assert {row["by program"] for row in rows.values()} == {"0"}
    assert rows["ada_12/transition.ipynb"]["notes"] == ""
    assert "not in .ipynb" in rows["dan.pdf"]["notes"]
    for name in ("bob.ipynb", "cem.ipynb", "'=eve.ipynb", "hal.ipynb", "jo.ipynb"):
        assert "it is not a notebook, whatever its name" in rows[name]["notes"], name
    for name in ("fay.ipynb", "gus.ipynb"):
        assert "a link or a special file" in rows[name]["notes"], name


def test_every_submission_has_a_report_with_room_for_marks_by_hand(folder):
    text = (folder / "reports" / "ada_12" / "transition.ipynb.md").read_text(encoding="utf-8")
    assert "**By program: 0 of 24 points.**" in text
    assert "- [ ] weights by softmax (2 points): `" in text
    assert "**q7_why**\n\n| criterion | points | given |" in text
    executed = nbformat.read(folder / "executed" / "ada_12" / "transition.ipynb", as_version=4)
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


def test_the_wrong_seed_is_noticed_before_anything_is_written(builds, assignment, tmp_path):
    place = tmp_path / "course"
    place.mkdir()
    (place / "a.ipynb").write_text((builds[1] / f"{NAME}.ipynb").read_text())
    (place / "b.pdf").write_text("")
    with pytest.raises(SystemExit, match="belongs to transition-1, not to transition-0"):
        grade.grade_folder(place, assignment, tmp_path / "grades")
    assert not (tmp_path / "grades").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is not a folder"),
        (["."], "there is no"),
        ([".", "--seed", "x"], "invalid int value"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, tmp_path, environment):
    program = [sys.executable, str(assign.HERE / "grade.py"), "--seed", "987654"]
    done = subprocess.run(program + arguments, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_whose_folder_may_not_be_entered_stops_nobody(assignment, tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)  # root may enter every folder
    assert str(grade.refusal(tmp_path / "a.ipynb", assignment)) == "it cannot be opened (Permission denied)"


def test_practice_gives_the_numbers_of_seed_0_and_leaves_work_alone(student, tmp_path):
    target = tmp_path / "transition.ipynb"
    assign.practice(NAME, target)
    written = nbformat.read(target, as_version=4)
    assert [cell.source for cell in written.cells] == [cell.source for cell in student.cells]
    target.write_text("hours of work")
    assign.practice(NAME, target)
    assert target.read_text() == "hours of work"
