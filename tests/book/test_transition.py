"""*The transition*: what students get, that its solution is right, and that every answer gets the marks it should."""

import copy
import re
import warnings

import assign
import grade
import nbformat
import numpy as np
import pytest
import torch
from assignment import HERE, Assignment
from grading import answer, answered, code, with_points
from nbclient import NotebookClient

from lib import two_tokens

MASTER = HERE / "transition.md"
ANSWERS = {
    "q1": "listen",
    "q2": "rates",
    "q3": "antipodal_probability",
    "q4": "simulate",
    "q5": "layer",
    "q7": "causal",
}


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """The assignment with the numbers of two seeds, by seed."""
    return {seed: assign.build(MASTER, seed, tmp_path_factory.mktemp("transition") / f"{seed}") for seed in (0, 1)}


@pytest.fixture(scope="module")
def assignment(builds):
    return Assignment.read(builds[0])


@pytest.fixture(scope="module")
def solution(builds):
    return nbformat.read(builds[0] / "solution.ipynb", as_version=4)


@pytest.fixture(scope="module")
def student(builds):
    return nbformat.read(builds[0] / "transition.ipynb", as_version=4)


# --- What is built ---


def test_half_of_the_points_are_marked_by_program(assignment):
    assert assignment.by_hand == {"q2_why": 4, "q6": 10, "q7_why": 10}
    assert assignment.possible == sum(assignment.by_hand.values()) == 24
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


def test_no_solution_and_no_hidden_check_is_in_the_file_for_students(student, solution, builds):
    text = (builds[0] / "transition.ipynb").read_text()
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


def test_every_answer_is_marked(assignment):
    answers = {name for cases in assignment.checks.values() for name in assign.answers_to(cases)}
    assert answers == {*ANSWERS.values(), "critical_beta"}


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
    variants = [assign.variant(MASTER, seed) for seed in range(200)]
    assert len({tuple(v.values()) for v in variants}) > 150
    for v in variants:
        edge = (np.arccosh(v["dim"] - 2) - v["alpha"]) / 2
        assert 0.2 < edge < v["beta"] - 0.4  # question 6 needs a β below β*, question 3 one well above
        assert np.cosh(v["other"]) > v["dim"] - 2 + 2  # the surprise of question 2


# --- Right answers ---


@pytest.mark.parametrize("seed", [0, 1])
def test_the_solution_has_full_marks_and_its_figures(builds, seed):
    assignment = Assignment.read(builds[seed])
    result = grade.grade(builds[seed] / "solution.ipynb", assignment, confined=grade.can_confine())
    assert result.notes == []
    assert result.total(assignment) == 24
    executed = nbformat.reads(result.executed, as_version=4)
    figures = [output for cell in code(executed) for output in cell.outputs if "image/png" in output.get("data", {})]
    assert len(figures) == 2


def run_as_students_do(notebook, folder):
    """The notebook in a folder, executed as JupyterLab does it: what each check prints, by question."""
    nbformat.write(notebook, folder / "transition.ipynb")
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    printed = {}
    for cell in code(notebook):
        if match := re.match(r'check\("(\w+)"', cell.source):
            assert {output.output_type for output in cell.outputs} == {"stream"}, cell.outputs
            printed[match[1]] = "".join(output.text for output in cell.outputs)  # a busy kernel sends it in parts
    return printed


def test_checks_say_how_many_passed_and_that_hidden_ones_remain(student, solution, tmp_path):
    notebook = answered(student, solution, [ANSWERS[question] for question in ("q1", "q2", "q4")])
    simulate = answer(notebook, "simulate")
    simulate.source = simulate.source.replace("return torch.tanh(u)", "return u")
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


def defined(answers):
    """What the sources of answers define."""
    space = {"np": np, "torch": torch, "two_tokens": two_tokens}
    for source in answers.values():
        exec(source, space)
    return space


@pytest.fixture(scope="module")
def functions(solution):
    return defined({question: answer(solution, function).source for question, function in ANSWERS.items()})


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


def failed(assignment, answers):
    """The checks that answers fail, by question: what the grader asks of each check, without a kernel around it."""
    space, found = defined(answers), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in a notebook
        for question, cases in assignment.checks.items():
            for case in cases:
                try:
                    case.body.call_func(space)
                except Exception as error:
                    found.setdefault(question, {})[case.name] = str(error)
    return found


def test_other_right_answers_pass_every_check(assignment):
    assert failed(assignment, OTHERS) == {}


def test_untouched_answers_pass_no_check_with_points(assignment, student):
    untouched = {question: answer(student, function).source for question, function in ANSWERS.items()}
    found = failed(assignment, untouched)
    for question in ANSWERS:
        assert with_points(assignment, question) <= found[question].keys()


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


def test_every_question_has_wrong_answers():
    for question in ANSWERS:
        assert len([title for title, (of, *_) in WRONG.items() if of == question]) >= 4, question


@pytest.mark.parametrize("title", WRONG)
def test_wrong_answers_lose_exactly_their_marks(title, assignment, solution):
    question, old, new, expected = WRONG[title]
    right = answer(solution, ANSWERS[question]).source
    assert old in right
    answers = {question: right.replace(old, new)}
    if question == "q2":  # its answers call that to question 1
        answers = {"q1": answer(solution, "listen").source} | answers
    only = copy.copy(assignment)
    only.checks = {question: [case for case in assignment.checks[question] if case.points]}
    assert failed(only, answers)[question].keys() == {f"test_{check}" for check in expected}
