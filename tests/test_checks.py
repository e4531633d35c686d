"""Each diagnosis of `lib.checks`, from functions with a known fault; and what must not be taken for another fault."""

import math
import re
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from lib import checks, two_tokens

AGREES = "Your function agrees with the library's on 20 fresh inputs.\n"
F32 = torch.float32


def cosines(rng):
    return {"c": rng.uniform(-1, 1, 5), "beta": rng.uniform(0, 3), "dim": int(rng.integers(2, 17))}


def vector(rng):
    return {"x": rng.normal(size=3)}


def number(rng):
    return {"x": rng.normal()}


def matrix(rng):
    return {"x": rng.normal(size=(4, 4))}


@pytest.fixture
def said(capsys):
    """What compare prints; and that it is never longer than a few short lines, and never just "wrong"."""

    def said(yours, ours, draw=vector, *, seed=0, width=100, **options):
        assert checks.compare(yours, ours, draw, seed=seed, **options) is None
        message = capsys.readouterr().out
        assert len(message.splitlines()) <= 4
        assert all(len(line) <= width for line in message.splitlines())
        assert "wrong" not in message
        return message

    return said


def b(c, beta, dim):
    """The drift, written again."""
    r = 1 / (1 + np.cosh(beta * (1 - c)))
    return (1 - c**2) * (r * (dim - 2) - (1 - r) * c)


@pytest.mark.parametrize(
    ("yours", "ours", "draw"),
    [
        (b, two_tokens.drift, cosines),
        (lambda x: x.tolist()[0], lambda x: x[0], vector),  # a float and a NumPy scalar
        (lambda x: np.asarray(x), lambda x: x, number),  # without dimensions, and a float
        (lambda x: torch.tensor(x, requires_grad=True), lambda x: x, vector),
        (lambda x: [x, 2 * x], lambda x: (torch.tensor(x), 2 * x), vector),
        (lambda x: 3, lambda x: 3.0, number),
        (lambda x: x > 0, lambda x: x > 0, vector),
        (lambda x: 0 * x + 1e-9, lambda x: 0 * x, vector),
        (lambda x: x[:0], lambda x: x[:0], vector),
        (lambda x: np.log(np.maximum(x, 0)), lambda x: np.where(x > 0, np.log(abs(x)), -np.inf), vector),
        (lambda x: x * np.nan, lambda x: x * np.nan, vector),
        (lambda **given: given["x"], lambda x: x, vector),
    ],
)
def test_what_agrees_is_said_to_agree(said, yours, ours, draw):
    with np.errstate(divide="ignore"):
        assert said(yours, ours, draw) == AGREES


def test_an_array_that_is_filled_anew_at_every_call_is_no_fault(said):
    kept = np.empty(3)
    assert said(lambda x: np.copyto(kept, x) or kept, lambda x: x) == AGREES


def test_single_precision_is_held_to_single_precision(said):
    def wave(x):
        return np.sin(x) + 2

    def by(size):
        return lambda x: (wave(x.astype(np.float32)) * np.float32(1 + size)).astype(np.float32)

    assert said(by(0), wave) == said(by(4e-6), wave) == AGREES
    assert said(lambda x: torch.tensor(x, dtype=F32).sin() + 2, wave) == AGREES
    assert said(lambda x: by(0)(x).astype(float) * (1 + 1e-5), wave) != AGREES
    assert said(by(1e-4), wave) != AGREES


def test_half_precision_is_held_to_a_few_of_its_digits(said):
    half = lambda x: x.astype(np.float16)  # noqa: E731
    assert said(half, lambda x: x) == said(lambda x: torch.tensor(x).half(), lambda x: x) == AGREES
    assert said(lambda x: half(x * 1.05), lambda x: x).startswith("Your values are 1.05")
    assert said(lambda x: half(x * 1.01), lambda x: x) != AGREES


@pytest.mark.parametrize("low", [np.float16, np.float32])
def test_the_precision_of_one_part_is_no_excuse_for_another(said, low):
    size = 1e3 * float(np.finfo(low).eps) ** 2  # far within the tolerance of part 1
    pair = lambda x: (x, x)  # noqa: E731
    for yours in (lambda x: (x.astype(low), x * (1 + size)), lambda x: (x * (1 + size), x.astype(low))):
        assert said(yours, pair, rtol=1e-12).startswith("In part ")
    assert said(lambda x: (x.astype(low), x * 1.05), pair) == (
        "In part 2 of 2, your values are 1.05 times the library's at every input.\n"
    )


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (2, "2"),
        (0.5, "1/2 (0.5)"),
        (4, "4"),
        (0.25, "1/4 (0.25)"),
        (-2, "-2"),
        (-2 / 3, "-2/3 (-0.6667)"),
        (math.pi, "π (3.142)"),
        (-1 / math.pi, "-1/π (-0.3183)"),
        (2**0.5, "√2 (1.414)"),
        (1.23456, "1.235"),
        (1e-9, "1e-09"),
    ],
)
def test_a_factor_is_named(said, factor, text):
    expected = f"Your values are {text} times the library's at every input.\n"
    assert said(lambda c, beta, dim: factor * b(c, beta, dim), two_tokens.drift, cosines) == expected


def test_a_factor_is_told_where_some_values_are_0_but_none_if_all_of_yours_are(said):
    message = said(lambda x: 3 * np.maximum(x, 0), lambda x: np.maximum(x, 0))
    assert message == "Your values are 3 times the library's at every input.\n"
    assert said(lambda x: 0 * x, lambda x: x).startswith(
        "Your values agree with the library's on 0 of 20 fresh inputs.\n"
    )


def test_the_opposite_sign_is_named_with_zeros_and_for_a_constant_too(said):
    expected = "Your values have the opposite sign of the library's at every input.\n"
    assert said(lambda c, beta, dim: -b(c, beta, dim), two_tokens.drift, cosines) == expected
    assert said(lambda x: -np.maximum(x, 0), lambda x: np.maximum(x, 0)) == expected
    assert said(lambda x: -2.0, lambda x: 2.0) == expected


@pytest.mark.parametrize(
    ("summand", "text"),
    [(1, "plus 1"), (-0.5, "minus 1/2 (0.5)"), (0.12345, "plus 0.1235"), (-math.pi, "minus π (3.142)")],
)
def test_a_summand_is_named(said, summand, text):
    expected = f"Your values are the library's {text} at every input.\n"
    assert said(lambda x: np.exp(x) + summand, lambda x: np.exp(x), number) == expected


def test_a_summand_that_is_not_known_to_three_digits_is_shown_as_values(said):
    steps = lambda x: 1e6 * x + 1.5 + 1.2 * (x > 0)  # noqa: E731
    assert "Furthest off: " in said(steps, lambda x: 1e6 * x)
    assert "minus" not in said(lambda x: -steps(-x), lambda x: 1e6 * x)
    assert " plus 5000 at " in said(lambda x: 1e6 * x + 5e3, lambda x: 1e6 * x)


def test_a_factor_and_a_summand_together_are_neither(said):
    message = said(lambda x: 2 * np.exp(x) + 1, lambda x: np.exp(x), number)
    assert message.startswith("Your values agree with the library's on 0 of 20 fresh inputs.\nFurthest off: ")


@pytest.mark.parametrize("yours", [3.0, 0.0])
def test_from_a_constant_neither_factor_nor_summand_is_told(said, yours):
    message = said(lambda x: yours, lambda x: 2.0)
    assert f"on 0 of 20 fresh inputs.\nFurthest off: {yours:g} instead of 2,\nat x=[" in message


def test_with_a_reference_of_zeros_the_value_itself_is_shown(said):
    assert "\nFurthest off: 0.5 instead of 0,\nat x=[" in said(lambda x: 0.5, lambda x: 0.0)
    assert "on 0 of 20 fresh inputs." in said(lambda x: x, lambda x: 0 * x)


def test_a_factor_too_close_to_1_to_be_told_in_four_digits_is_shown_as_values(said):
    message = said(lambda x: x * (1 + 1e-5), lambda x: x)
    yours, ours = re.search(r"Furthest off: (\S+) instead of (\S+) in", message).groups()
    assert float(yours) / float(ours) == pytest.approx(1 + 1e-5, rel=1e-4)


def test_the_worst_input_is_shown_with_both_values(said):
    """Against the inputs drawn again by the same seed."""
    rng = np.random.default_rng(7)
    drawn = [rng.normal() for _ in range(20)]
    message = said(lambda x: abs(x), lambda x: x, number, seed=7)
    good, lowest = sum(x > 0 for x in drawn), min(drawn)
    assert 0 < good < 20
    assert message == (
        f"Your values agree with the library's on {good} of 20 fresh inputs.\n"
        f"Furthest off: {-lowest:.4g} instead of {lowest:.4g},\nat x={lowest:.4g}.\n"
    )


def test_a_forgotten_factor_that_varies_names_the_entry_and_the_input(said):
    message = said(lambda c, beta, dim: b(c, beta, dim) / (1 - c**2), two_tokens.drift, cosines)
    found = re.search(
        r"on 0 of 20 .*\nFurthest off: (\S+) instead of (\S+) in entry \[(\d)\],\n"
        r"at c=\[(.+)\], beta=(\S+), dim=(\d+)\.\n",
        message,
    )
    mine, theirs, entry, c, beta, dim = found.groups()
    at = float(c.split(", ")[int(entry)])
    assert float(theirs) == pytest.approx(float(two_tokens.drift(at, beta=float(beta), dim=int(dim))), rel=5e-3)
    assert float(theirs) / float(mine) == pytest.approx(1 - at**2, rel=5e-3)


def test_shapes_are_named(said):
    assert said(lambda x: x[:1], lambda x: x[0]).startswith("Your values have shape (1,), the library's (),\nat x=[")
    assert "have shape (), the library's (3,),\n" in said(lambda x: x.sum(), lambda x: x)


@pytest.mark.parametrize("turn", [lambda x: x.T, lambda x: torch.tensor(x).mT])
def test_a_transposed_matrix_is_recognised_square_or_not(said, turn):
    assert said(turn, lambda x: x, matrix) == "Your values are transposed: swap the last two axes.\n"
    message = said(turn, lambda x: x, lambda rng: {"x": rng.normal(size=(2, 3))})
    assert message.startswith("Your values have shape (3, 2), the library's (2, 3): they are transposed,\nat x=[[")
    assert "transposed" not in said(lambda x: turn(x) + 1, lambda x: x, lambda rng: {"x": rng.normal(size=(2, 3))})
    assert "transposed" not in said(
        lambda x: x.T.reshape(2, 3), lambda x: x, lambda rng: {"x": rng.normal(size=(2, 3))}
    )


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_transposed_is_judged_relative_to_the_scale(said, size):
    table = lambda x: size * (np.arange(6.0).reshape(2, 3) + x[0])  # noqa: E731
    flat = lambda x: np.full((2, 3), size * x[0])  # noqa: E731
    assert "transposed" in said(lambda x: table(x).T * (1 + 1e-8), table)
    assert "transposed" not in said(lambda x: table(x).T * (1 + 1e-4), table)
    assert "transposed" not in said(lambda x: np.full((3, 2), 7 * size), flat)


def test_the_part_that_differs_is_named(said):
    pair = lambda x: (x, x**2)  # noqa: E731
    assert said(lambda x: (x, -(x**2)), pair).startswith("In part 2 of 2, your values have the opposite sign")
    assert said(lambda x: (2 * x, -(x**2)), pair).startswith("In part 1 of 2, your values are 2 times")
    assert said(lambda x: [x, x[:2]], pair).startswith("In part 2 of 2, your values have shape (2,)")
    assert "another number of parts: 1 (ndarray) instead of 2 (tuple),\nat x=" in said(lambda x: x, pair)
    assert "another number of parts: 3 (list) instead of 1 (ndarray),\n" in said(lambda x: x.tolist(), lambda x: x)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_not_finite_is_shown_where_it_is(said, value):
    message = said(lambda x: np.where(x > 1, float(value), x), lambda x: x)
    assert re.search(rf"on \d+ of 20 fresh inputs.\nFurthest off: {value} instead of [\d.]+ in entry \[\d\],", message)
    message = said(lambda x: x, lambda x: np.where(x > 1, float(value), x))
    assert re.search(rf"Furthest off: [\d.]+ instead of {value} in", message)


@pytest.mark.parametrize("nothing", [None, ...])
def test_a_stub_returns_nothing_yet(said, nothing):
    message = said(lambda x: nothing, lambda x: x)
    assert message == "Your function returned nothing yet.\nWrite its body, with a return, and run the cell again.\n"


@pytest.mark.parametrize(
    ("yours", "ours"),
    [
        (lambda x: 2**64, lambda x: 2.0**64),
        (lambda x: [2**64, Fraction(1, 2)], lambda x: (2.0**64, 0.5)),
        (lambda x: np.array([[2**70, Fraction(1, 4)]]), lambda x: np.array([[2.0**70, 0.25]])),
        (lambda x: torch.tensor(x).round().bfloat16().requires_grad_(), lambda x: x.round()),
        (lambda x: x.round(), lambda x: torch.tensor(x).round().bfloat16()),
    ],
)
def test_every_kind_of_real_number_is_accepted(said, yours, ours):
    assert said(yours, ours) == AGREES
    assert "must return" not in said(lambda x: x.sum() + 0.5, yours)


@pytest.mark.parametrize("large", [10**400, 10**5000, Fraction(10**5000, 3)], ids=["400", "5000", "fraction"])
def test_a_number_without_a_finite_float_is_said_to_have_none(said, large):
    text = "a number too large for a finite float"
    for value, shown in ((large, text), ((1, -large), f"(1, {text})"), ([large], f"[{text}]")):
        expected = f"Your function must return real numbers, not {shown} ({type(value).__name__}),\nat x="
        assert said(lambda x, value=value: value, lambda x: x).startswith(expected)
    assert f"\nat x={text}." in said(lambda x: 1, lambda x: 2, lambda rng: {"x": large})
    with pytest.raises(TypeError, match=f"ours must return real numbers, got {text}"):
        checks.compare(lambda x: x, lambda x: large, vector)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("abc", "'abc' (str)"),
        (1 + 2j, "(1+2j) (complex)"),
        (np.ones(1, complex), "array([1.+0.j]) (ndarray)"),
        ({"x": 1}, "{'x': 1} (dict)"),
        (True, "True (bool)"),
        (np.array([True, False]), "[ True, False] (ndarray)"),
        ((1.0, None), "(1.0, None) (tuple)"),
        (([[1], [1, 2]],), "([[1], [1, 2]],) (tuple)"),
        (np.array([1, None]), "array([1, None], dtype=object) (ndarray)"),
        (np.array(["1"], object), "array(['1'], dtype=object) (ndarray)"),
    ],
)
def test_what_is_not_a_number_is_shown(said, value, shown):
    expected = f"Your function must return real numbers, not {shown},\nat x="
    assert said(lambda x: value, lambda x: x).startswith(expected)


def test_an_exception_is_shown_with_its_input(said):
    def fails(c, beta, dim):
        return b(c, beta, dim) / 0 if dim == 2 else 1 // 0

    pattern = (
        r"Your function raised ZeroDivisionError: .*by zero\n"
        r"at c=\[(-?0\.\d+(e-\d+)?(, )?){5}\], beta=[\d.]+, dim=\d+\.\n"
    )
    assert re.fullmatch(pattern, said(fails, two_tokens.drift, cosines))
    assert "raised TypeError: " in said(lambda x: len(3), lambda x: x)


def noted():
    error = ValueError("the message")
    error.add_note("the note")
    raise error


class Mute(Exception):
    def __str__(self):
        raise RuntimeError


def mute():
    raise Mute


def lines():
    raise ValueError("\n  first\nsecond\n" + "third\n" * 50)


@pytest.mark.parametrize(
    ("fail", "shown"),
    [
        (noted, "ValueError: the message"),
        (lines, "ValueError: first"),
        (mute, r"\S*Mute: .*failed.*"),
        (lambda: eval("1 +"), "SyntaxError: invalid syntax"),
        (lambda: [][0], "IndexError: list index out of range"),
        (lambda: next(iter([])), "StopIteration"),
        (lambda: sys.exit(), "SystemExit"),
        (lambda: sys.exit("no input"), "SystemExit: no input"),
    ],
)
def test_of_an_exception_the_type_and_the_first_line_are_shown(said, fail, shown):
    assert re.fullmatch(rf"Your function raised {shown}\nat x=.*\.\n", said(lambda x: fail(), lambda x: x))


def test_a_long_message_of_an_exception_is_cut(said):
    message = said(lambda x: int("9" * 3000 + "."), lambda x: x, width=230)
    assert message.startswith("Your function raised ValueError: invalid literal for int() with base 10: '999")


def test_an_interrupt_is_no_fault_of_the_function():
    def interrupted(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checks.compare(interrupted, lambda x: x, vector)


def test_wrong_arguments_are_named(said):
    message = said(lambda cos, beta: 0, two_tokens.drift, cosines)
    assert message == "Your function must take the arguments (c, beta, dim), passed by name;\nit takes (cos, beta).\n"
    for yours in (math.sin, lambda x, /: x):
        assert said(yours, lambda x: x).endswith(" must take the arguments (x), passed by name;\nit takes (x, /).\n")
    assert "raised TypeError: " in said(torch.sin, lambda x: x)  # does not tell its arguments


def test_a_changed_argument_is_named_and_the_library_gets_its_own_copy(said):
    def doubles(x, y):
        x *= 2
        return x + y

    array = lambda rng: {"x": rng.normal(size=3), "y": rng.normal(size=3)}  # noqa: E731
    tensor = lambda rng: {name: torch.tensor(value) for name, value in array(rng).items()}  # noqa: E731
    careful = "Careful: it changes its argument x; let it work on a copy.\n"
    for draw in (array, tensor):
        assert said(doubles, lambda x, y: 2 * x + y, draw) == AGREES + careful
        assert said(doubles, lambda x, y: x + y / 2, draw).endswith(
            " 2 times the library's at every input.\n" + careful
        )
        assert said(lambda x, y: 2 * x + y, doubles, draw) == AGREES


def test_inputs_are_fresh_without_a_seed_and_the_same_with_one():
    def inputs(**options):
        seen = []
        draw = lambda rng: seen.append(rng.normal()) or {"x": seen[-1]}  # noqa: E731
        checks.compare(lambda x: x, lambda x: x, draw, **options)
        return seen

    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert len(set(inputs())) == 20
    assert not set(inputs()) & set(inputs())
    assert inputs(seed=3) == inputs(seed=3) != inputs(seed=4)
    assert len(inputs(trials=3)) == 3
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_long_inputs_are_shortened_and_one_input_is_singular(said):
    assert said(lambda x: x, lambda x: x, trials=1) == "Your function agrees with the library's on 1 fresh input.\n"
    message = said(
        lambda x, **_: x[0], lambda x, **_: x, lambda rng: {"x": torch.arange(4000.0).view(-1, 2), "k": "a", "n": 12345}
    )
    assert message.endswith("\nat x=[[0, 1], ..., [3998, 3999]], k='a', n=12345.\n")


def test_an_error_of_the_chapter_is_raised():
    with pytest.raises(ZeroDivisionError):
        checks.compare(lambda x: x, lambda x: 1 // 0, vector)
    with pytest.raises(ZeroDivisionError):
        checks.compare(lambda x: x, lambda x: x, lambda rng: 1 // 0)
    with pytest.raises(TypeError, match="ours must return real numbers, got None"):
        checks.compare(lambda x: x, lambda x: None, vector)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"yours": 3}, TypeError, "yours must be a function, got 3"),
        ({"ours": None}, TypeError, "ours must be a function, got None"),
        ({"draw": {"x": 1}}, TypeError, "draw must be a function, got {'x': 1}"),
        ({"draw": lambda rng: 5}, TypeError, "draw must return a dict .*, got 5"),
        ({"draw": lambda rng: {1: 5}}, TypeError, "draw must return a dict .* names .*, got {1: 5}"),
        ({"trials": 0}, ValueError, "trials must be an integer >= 1 .*got 0"),
        ({"trials": 2.0}, TypeError, "trials must be an integer >= 1, got 2.0"),
        ({"rtol": 0}, ValueError, "rtol must be .*> 0, got 0"),
        ({"rtol": math.nan}, ValueError, "rtol must be .*got nan"),
        ({"rtol": "1"}, TypeError, "rtol must be a real number, got '1'"),
        ({"seed": -1}, ValueError, "seed, unless None, must be an integer >= 0 .*got -1"),
        ({"seed": 0.5}, TypeError, "seed, unless None, must be an integer >= 0, got 0.5"),
    ],
)
def test_bad_arguments_are_refused_by_name(change, error, message):
    arguments = {"yours": lambda x: x, "ours": lambda x: x, "draw": vector} | change
    with pytest.raises(error, match=message):
        checks.compare(**arguments)
