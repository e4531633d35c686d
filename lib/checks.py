"""Compare a function of yours with one of the library's on fresh inputs."""

from __future__ import annotations

import copy
import inspect
import math
import numbers
import reprlib
import traceback
from collections.abc import Callable

import numpy as np
import torch

from lib import _validate

FAMILIAR = {f"{a}/{b}" if b > 1 else f"{a}": a / b for a in range(1, 11) for b in range(1, 11) if math.gcd(a, b) == 1}
FAMILIAR |= {"π": math.pi, "2π": 2 * math.pi, "4π": 4 * math.pi, "π/2": math.pi / 2, "1/π": 1 / math.pi}
FAMILIAR |= {"√2": 2**0.5, "1/√2": 0.5**0.5, "√π": math.pi**0.5, "e": math.e, "1/e": 1 / math.e, "ln 2": math.log(2)}


def compare(
    yours: Callable, ours: Callable, draw: Callable, *, trials: int = 20, rtol: float = 1e-6, seed: int | None = None
) -> None:
    r"""Check :math:`|f(z) - f^*(z)| \le \mathrm{rtol}\,\max |f^*|` at fresh inputs z, and print what differs: the
    arguments, the shape, the sign, a constant factor, a constant added, or the input where it is worst.

    Args:
        yours: f, the function to be checked. What it does wrong is printed, never raised.
        ours: f*, what it should be. Both return a number, an array, a tensor, or a tuple or list of these.
        draw: takes a ``np.random.Generator``, returns a dict of keyword arguments; each function gets its own copy.
        trials: number of inputs, >= 1.
        rtol: tolerance relative to the largest value of f*, > 0; absolute where f* is 0 everywhere. In each part at
            least 1.2e-5 for single precision (and bfloat16), 0.004 for half.
        seed: None for new inputs at every call, or an integer >= 0.

    Raises:
        ValueError, TypeError: an argument outside these ranges; and whatever ``ours`` or ``draw`` raises.

    Source: our own.

    >>> compare(lambda x: x, lambda x: 2 * x, lambda rng: {"x": rng.normal(size=3)}, seed=0)
    Your values are 1/2 (0.5) times the library's at every input.
    """
    for name, function in {"yours": yours, "ours": ours, "draw": draw}.items():
        if not callable(function):
            raise TypeError(f"{name} must be a function, got {function!r}")
    trials = _validate.integer("trials", trials, at_least=1)
    rtol = _validate.real("rtol", rtol, above=0)
    seed = None if seed is None else _validate.integer("seed, unless None,", seed, at_least=0)
    print(_verdict(yours, ours, draw, trials, rtol, np.random.default_rng(seed)))


def _verdict(yours, ours, draw, trials, rtol, rng) -> str:
    runs, changed = [], {}
    for _ in range(trials):
        inputs = draw(rng)
        if not isinstance(inputs, dict) or not all(isinstance(name, str) for name in inputs):
            raise TypeError(f"draw must return a dict whose keys are names of arguments (str), got {inputs!r}")
        at = "at " + ", ".join(f"{name}={_brief(value)}" for name, value in inputs.items())
        theirs, given = ours(**copy.deepcopy(inputs)), copy.deepcopy(inputs)
        if (right := _parts(theirs)) is None:
            raise TypeError(f"ours must return real numbers, got {_brief(theirs)}")
        try:
            inspect.signature(yours).bind(**given)
        except TypeError:
            wanted = f"the arguments ({', '.join(given)}), passed by name"
            return f"Your function must take {wanted};\nit takes {inspect.signature(yours)}."
        except ValueError:
            pass  # a built-in function that does not tell its arguments
        try:
            mine = yours(**given)
        except (Exception, SystemExit) as error:
            text = next(x for x in traceback.format_exception_only(error) if x[0] != " ")  # neither code nor notes
            return f"Your function raised {' '.join(text.split(None, 1)).splitlines()[0][:200]}\n{at}."
        if mine is None or mine is ...:
            return "Your function returned nothing yet.\nWrite its body, with a return, and run the cell again."
        left = _parts(mine)
        if left is None or any(a.dtype == bool and b.dtype != bool for a, b in zip(left, right, strict=False)):
            return f"Your function must return real numbers, not {_brief(mine)} ({type(mine).__name__}),\n{at}."
        if len(left) != len(right):
            kinds = [f"{len(parts)} ({type(value).__name__})" for parts, value in ((left, mine), (right, theirs))]
            return f"Your function returned another number of parts: {kinds[0]} instead of {kinds[1]},\n{at}."
        for k, (a, b) in enumerate(zip(left, right, strict=True)):
            if a.shape != b.shape:
                same = _turned(a, b).shape == b.shape and not _difference([(at, _turned(a, b), b)], rtol)
                hint = ": they are transposed" if same else ""
                return f"{_values(k, left)} have shape {a.shape}, the library's {b.shape}{hint},\n{at}."
        runs.append([(at, a.copy(), b.copy()) for a, b in zip(left, right, strict=True)])
        changed |= {name: True for name, value in inputs.items() if _bytes(value) != _bytes(given[name])}
    found = [_difference(part, rtol) for part in zip(*runs, strict=True)]
    wrong = (f"{_values(k, found)} {difference}" for k, difference in enumerate(found) if difference)
    message = next(wrong, f"Your function agrees with the library's on {trials} fresh input{'s' * (trials > 1)}.")
    if changed:
        message += f"\nCareful: it changes its argument {', '.join(changed)}; let it work on a copy."
    return message


@np.errstate(invalid="ignore", over="ignore")
def _difference(runs, rtol) -> str | None:
    """What is wrong with one part of the values, given (at, yours, ours) for every run; None if nothing is."""
    # single and half precision cannot agree to more digits than they have
    precisions = [np.finfo(x.dtype).eps for _, *pair in runs for x in pair if x.dtype.kind == "f"]
    rtol = max(rtol, min(100 * float(max(precisions, default=0)), 0.004))
    runs = [(at, a.astype(float), b.astype(float)) for at, a, b in runs]
    for _, a, b in runs:
        alike = (a == b) | (np.isnan(a) & np.isnan(b))
        a[alike & ~np.isfinite(b)] = b[alike & ~np.isfinite(b)] = 0
    m, o = (np.concatenate([run[side].ravel() for run in runs]) for side in (1, 2))
    scale = np.abs(o[np.isfinite(o)]).max(initial=0) or 1.0  # where all is 0 the tolerance is absolute

    def close(x, y, size=1.0):
        return np.abs(x - y).max(initial=0) <= rtol * scale * size

    if close(m, o):
        return None
    if close(np.concatenate([_turned(a, b).ravel() for _, a, b in runs]), o):
        return "are transposed: swap the last two axes."
    if close(-m, o):
        return "have the opposite sign of the library's at every input."
    if np.ptp(o) > rtol * scale:  # from a constant, a factor cannot be told from a summand
        top = np.abs(o).argmax()
        factor, summand = m[top] / o[top], (m - o).mean()
        if factor and abs(abs(factor) - 1) > 1e-3 and close(m, factor * o, abs(factor)):
            return f"are {_number(factor, rtol)} times the library's at every input."
        if abs(summand) > 1e3 * rtol * scale and close(m - o, summand):
            sign = "plus" if summand > 0 else "minus"
            return f"are the library's {sign} {_number(abs(summand), rtol)} at every input."
    errors = [np.nan_to_num(np.abs(a - b), nan=np.inf) for _, a, b in runs]
    worst = np.argmax([error.max(initial=0) for error in errors])
    agree = sum(error.max(initial=0) <= rtol * scale for error in errors)
    index = np.unravel_index(errors[worst].argmax(), errors[worst].shape)
    at, x, y = runs[worst][0], runs[worst][1][index], runs[worst][2][index]
    digits = next(n for n in range(4, 18) if f"{x:.{n}g}" != f"{y:.{n}g}")
    entry = f" in entry {[int(i) for i in index]}" if index else ""
    return (
        f"agree with the library's on {agree} of {len(runs)} fresh inputs.\n"
        f"Furthest off: {x:.{digits}g} instead of {y:.{digits}g}{entry},\n{at}."
    )


def _parts(value) -> list[np.ndarray] | None:
    """The numbers in a value, an array for each part; None if there is anything but real numbers."""
    try:
        parts = value if isinstance(value, (tuple, list)) else [value]
        parts = [x.float() if getattr(x, "dtype", None) is torch.bfloat16 else x for x in parts]  # NumPy has none
        arrays = [np.asarray(x.detach().cpu() if isinstance(x, torch.Tensor) else x) for x in parts]
        python = [x.dtype == object and all(isinstance(y, numbers.Real) for y in x.flat) for x in arrays]  # like 2**64
        arrays = [x.astype(float) if real else x for x, real in zip(arrays, python, strict=True)]
    except Exception:  # ragged lists, tensors without data, integers beyond 1.8e308
        return None
    return arrays if all(x.dtype.kind in "biuf" for x in arrays) else None


def _bytes(value) -> list:
    """Equal for equal arrays, NaN or not."""
    return [(x.shape, x.tobytes()) for x in _parts(value) or []]


def _turned(a, b) -> np.ndarray:
    """The transpose, if that has the shape of b."""
    return a.swapaxes(-1, -2) if a.ndim > 1 and a.swapaxes(-1, -2).shape == b.shape else a


def _values(k, parts) -> str:
    return "Your values" if len(parts) == 1 else f"In part {k + 1} of {len(parts)}, your values"


class _Short(reprlib.Repr):
    def repr1(self, x, level):
        large = isinstance(x, numbers.Real) and _parts(x) is None  # Python may refuse to print all its digits
        return "a number too large for a finite float" if large else super().repr1(x, level)


def _brief(value) -> str:
    """A value on one line, shortened."""
    if isinstance(value, (tuple, list)) or (arrays := _parts(value)) is None:
        return " ".join(_Short().repr(value).split())
    formats = {"float_kind": "{:.4g}".format, "int_kind": str}
    return " ".join(np.array2string(arrays[0], formatter=formats, separator=", ", threshold=6, edgeitems=1).split())


def _number(x, rtol) -> str:
    """To four digits, after its name if it has one."""
    text = f"{x:.4g}"
    names = ["-" * bool(x < 0) + name for name, y in FAMILIAR.items() if math.isclose(abs(x), y, rel_tol=rtol)]
    return f"{names[0]} ({text})" if names and names[0] != text else text
