"""Checks at the public boundary. Each error names the argument, what was given and what is allowed."""

from __future__ import annotations

import numbers

import numpy as np
import torch

#: How far the norm of a token may be from 1.
NORM_TOLERANCE = 1e-4
#: No argument may be larger: far beyond any use, and far enough from overflow that no formula makes NaN of it.
LARGEST = 1e15


def real(name: str, value, *, at_least: float | None = None, above: float | None = None) -> float:
    """A finite real number, as a float."""
    if isinstance(value, torch.Tensor) and value.requires_grad:
        raise TypeError(f"{name} must be a plain number, as no gradient flows to it, got {value!r}")
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a real number, got {value!r}")
    allowed = "finite, at most 1e15 in size"
    if at_least is not None:
        allowed += f" and >= {at_least:g}"
    if above is not None:
        allowed += f" and > {above:g}"
    # written so that NaN fails, and integers too large for a float are compared as integers
    small = -LARGEST <= value <= LARGEST
    if not small or (at_least is not None and value < at_least) or (above is not None and value <= above):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
    return float(value)


def integer(name: str, value, *, at_least: int) -> int:
    """An integer, as an int; a float is not an integer, even a whole one."""
    value = _scalar(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer >= {at_least}, got {value!r}")
    if not at_least <= value <= LARGEST:
        raise ValueError(f"{name} must be an integer >= {at_least} (and at most 1e15), got {value!r}")
    return int(value)


def _scalar(value):
    """The number in an array or tensor without dimensions; anything else as it is."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value.item()
    if isinstance(value, torch.Tensor) and value.ndim == 0 and not value.is_meta:
        return value.item()
    return value


def choice(name: str, value, allowed) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def array(name: str, value, *, low: float, high: float = LARGEST) -> np.ndarray:
    """Finite real numbers in [low, high], as a float64 array."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must be an array without a mask, got {value!r}")
    try:
        given = np.asarray(value)
    except Exception as error:
        raise TypeError(f"{name} must be a real number or an array of them, got {value!r}") from error
    if given.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be a real number or an array of them, got {value!r}")
    given = given.astype(float)
    wrong = ~((given >= low) & (given <= high))
    if wrong.any():
        raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {given[wrong].flat[0]!r}")
    return given


def broadcast(**arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Arrays of one shape, as views."""
    try:
        return np.broadcast_arrays(*arrays.values())
    except ValueError:
        shapes = ", ".join(f"{name} {given.shape}" for name, given in arrays.items())
        raise ValueError(f"the shapes of the arguments must broadcast, got {shapes}") from None


def floating(name: str, x, *, trailing: str) -> torch.Tensor:
    """A finite float32 or float64 tensor with at least the trailing dimensions named, as in ``"(..., N, d)"``."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a torch tensor of shape {trailing}, got {type(x).__name__}")
    dense(name, x)
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be float32 or float64, got {x.dtype}")
    if x.ndim < trailing.count(","):
        raise ValueError(f"{name} must have shape {trailing}, got {tuple(x.shape)}")
    if not torch.isfinite(x).all():
        raise ValueError(f"{name} must be finite, got NaN or inf")
    return x


def dense(name: str, x: torch.Tensor) -> None:
    """A tensor whose numbers lie in the memory."""
    if x.layout is not torch.strided or x.is_nested or x.is_meta:
        raise TypeError(f"{name} must be a dense tensor with data, got {x.layout} on {x.device}")


def read(name: str, x: torch.Tensor) -> np.ndarray:
    """A tensor as a C-contiguous float64 array, for code outside torch, where nothing that watches torch can follow."""
    if torch.jit.is_tracing():
        raise RuntimeError(
            f"{name} cannot be traced: TopK and Knapsack are computed outside torch, and torch.jit.trace would keep "
            "the answer for these numbers; call them where nothing is traced"
        )
    try:
        return x.detach().to("cpu", torch.float64).contiguous().numpy()
    except RuntimeError as error:
        raise RuntimeError(
            f"{name} cannot be read in torch.func (vmap, grad, jacrev, ...) or in a batched gradient: TopK and "
            "Knapsack are computed outside torch; give the whole batch at once in place of vmap, and else use "
            "torch.autograd.grad, or torch.autograd.functional.jacobian without vectorize"
        ) from error


def unit(name: str, x, *, trailing: str = "(..., d)") -> torch.Tensor:
    """Unit vectors, within NORM_TOLERANCE; divided by their norms, so that what is tolerated is in no answer."""
    floating(name, x, trailing=trailing)
    norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    if norms.numel():
        flat = norms.detach().flatten()
        worst = flat[(flat - 1).abs().argmax()].item()
        if abs(worst - 1) > NORM_TOLERANCE:
            raise ValueError(
                f"{name} must be unit vectors (norm 1 within {NORM_TOLERANCE:g}), got one of norm {worst:.6g}; "
                "lib.sphere.normalize projects onto the sphere"
            )
    return x / norms


def broadcasting(name: str, y: torch.Tensor, other: str, x: torch.Tensor) -> None:
    """Two shapes (..., d) that fit together, with the same d."""
    try:
        torch.broadcast_shapes(x.shape, y.shape)
        fit = x.shape[-1] == y.shape[-1]
    except RuntimeError:
        fit = False
    if not fit:
        raise ValueError(f"{name} must fit {other} of shape {tuple(x.shape)}, got {tuple(y.shape)}")


def tokens(name: str, x) -> torch.Tensor:
    """Tokens (..., N, d) on the unit sphere, N >= 1 and d >= 2; what is returned is as from :func:`unit`."""
    floating(name, x, trailing="(..., N, d)")
    if x.shape[-2] < 1 or x.shape[-1] < 2:
        raise ValueError(f"{name} must have shape (..., N, d) with N >= 1 and d >= 2, got {tuple(x.shape)}")
    return unit(name, x, trailing="(..., N, d)")


def generator(value) -> torch.Generator | None:
    """None (torch's own stream) or a torch.Generator."""
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {value!r}")
    return value


def recording(name: str, record, total: int) -> int | None:
    """How many states to record: None, or a divisor of the number of steps, so that the times are evenly spaced."""
    if record is None:
        return None
    record = integer("record", record, at_least=1)
    if total % record:
        raise ValueError(f"record must divide {name} = {total}, got {record}")
    return record


def scores(name: str, theta) -> np.ndarray:
    """Scores (..., n) of any floating-point type, no NaN, -inf for an item that must not be chosen; as float64."""
    if not isinstance(theta, torch.Tensor):
        raise TypeError(
            f"{name} must be a torch tensor of shape (..., n), got {type(theta).__name__}; see torch.as_tensor"
        )
    dense(name, theta)
    if theta.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(f"{name} must be of a floating-point type (float16 to float64), got {theta.dtype}")
    if theta.ndim < 1:
        raise ValueError(f"{name} must have shape (..., n), got a single number")
    given = read(name, theta)
    fine = (np.abs(given) <= LARGEST) | (given == -np.inf)  # not NaN
    if not fine.all():
        allowed = "in [-1e15, 1e15], or -inf for an item that must not be chosen"
        raise ValueError(f"{name} must be {allowed}, got {given[~fine][0]}")
    return given


def _plain(value):
    """A tensor as an array, of float64 if it is floating point; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    return (value.double() if value.is_floating_point() else value).numpy()


def integers(name: str, value, *, low: int, high: int, shape: str, hint: str = "") -> np.ndarray:
    """Integers in [low, high] as an int64 array, from a tensor, an array, a list or one number."""
    try:
        given = np.asarray(_plain(value))
    except Exception as error:
        raise TypeError(f"{name} must be integers of shape {shape}, got {value!r}") from error
    if given.dtype.kind not in "iu" and given.size:
        what = repr(given.item()) if given.size == 1 else f"an array of shape {given.shape}"
        raise TypeError(f"{name} must be integers of shape {shape}, got {what} of type {given.dtype}{hint}")
    wrong = (given < low) | (given > high)
    if wrong.any():
        raise ValueError(f"{name} must be in [{low}, {high:.15g}], got {given[wrong][0]}")
    return given.astype(np.int64)
