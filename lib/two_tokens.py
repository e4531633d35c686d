r"""Two tokens, solved: the diffusion of their cosine, the exponents at its two poles, and who wins.

For two tokens the whole system closes on one number, the cosine :math:`c = \langle x_1, x_2\rangle`. Attention enters
through

.. math::

    r(c) = \frac{1}{1 + \cosh(\beta(1 - c))}, \qquad s(c) = 1 - r(c):

:math:`r/2` is the product of the two attention weights, :math:`s` the sum of their squares. The closed forms take and
return NumPy arrays and broadcast; :func:`simulate` is torch.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from lib import _validate
from lib.progress import progress


def drift(c, *, beta, dim, sigma=1.0) -> np.ndarray:
    r"""The drift b of the cosine, :math:`dc = b(c)\,dt + g(c)\,dB`,

    .. math::

        b(c) = \sigma^2 (1 - c^2)\,[\,r(c)(d - 2) - s(c)\,c\,].

    Args:
        c: cosines in [-1, 1].
        beta: inverse temperature, finite and >= 0.
        dim: dimension d >= 2; the formula makes sense between integers too.
        sigma: standard deviation of the value matrices' entries, >= 0.

    Returns:
        Array of the broadcast shape, per unit of time.

    Raises:
        ValueError, TypeError: an argument outside these ranges.

    Source: our derivation (chapter "Watch two tokens choose").

    >>> float(drift(0.0, beta=0.0, dim=4))
    1.0
    """
    c, beta, dim, sigma = _arguments(c, beta, dim, sigma)
    r = _r(c, beta)
    return sigma**2 * (1 - c**2) * (r * (dim - 2) - (1 - r) * c)


def diffusion(c, *, beta, dim, sigma=1.0) -> np.ndarray:
    r"""The diffusion coefficient g of the cosine, :math:`dc = b(c)\,dt + g(c)\,dB`,

    .. math::

        g(c) = \sigma \sqrt{2 s(c)}\,(1 - c^2).

    The coefficient itself, not its square. It does not depend on the dimension, which is accepted so that the two
    functions take the same arguments.

    Args, Raises, Source: as for :func:`drift`.

    >>> float(diffusion(0.0, beta=0.0, dim=4))
    1.0
    """
    c, beta, dim, sigma = _arguments(c, beta, dim, sigma)
    return sigma * np.sqrt(2 * (1 - _r(c, beta))) * (1 - c**2)


def critical_beta(dim) -> np.ndarray:
    r"""The transition, :math:`\beta^*(d) = \tfrac12\operatorname{arcosh}(d - 2)`: antipodes attract iff β > β*(d).

    For d <= 3 it is 0; for d < 3 antipodes attract at β = 0 too.

    Args:
        dim: dimension d >= 2.

    Returns:
        Array of the shape of ``dim``.

    Raises:
        ValueError, TypeError: ``dim`` below 2, NaN or infinite.

    Source: the phase transition of Fedorov et al. (arXiv 2601.21942); this form of it is our derivation.

    >>> critical_beta([3, 4, 8, 64]).round(3)
    array([0.   , 0.658, 1.239, 2.41 ])
    """
    dim = _validate.array("dim", dim, low=2)
    return 0.5 * np.arccosh(np.maximum(dim - 2, 1))


def exponents(*, beta, dim, sigma=1.0) -> tuple[np.ndarray, np.ndarray]:
    r"""The long-run rates of :math:`\log(1 - c)` at the pole +1 and of :math:`\log(1 + c)` at the pole -1,

    .. math::

        \lambda_+ = -\sigma^2 (d - 1), \qquad
        \lambda_- = 2\sigma^2\,\frac{(d - 2) - \cosh 2\beta}{1 + \cosh 2\beta}.

    A pole attracts where its rate is negative: +1 always, -1 iff :math:`d - 2 < \cosh 2\beta`.

    Args:
        beta: inverse temperature, finite and >= 0.
        dim: dimension d >= 2.
        sigma: standard deviation of the value matrices' entries, >= 0.

    Returns:
        The two rates, per unit of time, each of the broadcast shape.

    Raises:
        ValueError, TypeError: an argument outside these ranges.

    Source: our derivation (chapter "Watch two tokens choose").

    >>> plus, minus = exponents(beta=0.0, dim=4)
    >>> float(plus), float(minus)
    (-3.0, 1.0)
    """
    c, beta, dim, sigma = _arguments(-1.0, beta, dim, sigma)
    r = _r(c, beta)
    return -(sigma**2) * (dim - 1), 2 * sigma**2 * (r * (dim - 2) - (1 - r))


def antipodal_probability(c0, *, beta, dim) -> np.ndarray:
    r"""The probability that two tokens end up antipodal, :math:`P(c_t \to -1 \mid c_0)`, from the scale function:

    .. math::

        P = \frac{\int_{u_0}^{\infty} S'(u)\,du}{\int_{-\infty}^{\infty} S'(u)\,du}, \qquad
        S'(u) = \operatorname{sech}(u)\,
        \exp\Bigl(-(d - 2)\int_0^u \frac{dv}{\cosh(\beta(1 - \tanh v))}\Bigr), \qquad u_0 = \operatorname{artanh} c_0.

    It is 0 when :math:`d - 2 \ge \cosh 2\beta`. The two poles themselves stay put: P(-1) = 1 and P(+1) = 0. The noise
    level only sets the clock and does not appear.

    Args:
        c0: starting cosines in [-1, 1].
        beta: inverse temperature, finite and >= 0.
        dim: dimension d >= 2.

    Returns:
        Array of the broadcast shape, in [0, 1]. For d <= 4096 and β <= 100 the relative error is below 1e-8, for
        tiny probabilities too (down to the smallest float), unless β is within a relative 1e-7 of the transition,
        where the absolute error is still below 1e-8.

    Raises:
        ValueError, TypeError: an argument outside these ranges.

    Source: our derivation (chapter "Watch two tokens choose").

    >>> antipodal_probability(0.0, beta=[0.5, 1.0, 2.0], dim=3).round(5)
    array([0.10746, 0.22242, 0.33637])
    """
    c0 = _validate.array("c0", c0, low=-1, high=1)
    beta = _validate.array("beta", beta, low=0)
    dim = _validate.array("dim", dim, low=2)
    c0, beta, dim = _validate.broadcast(c0=c0, beta=beta, dim=dim)
    probability = np.empty(c0.size)
    if not c0.size:
        return probability.reshape(c0.shape)
    pairs, pair_of = np.unique(np.stack([beta.ravel(), dim.ravel()]), axis=1, return_inverse=True)
    pair_of = pair_of.ravel()  # NumPy 2.0.0 gives it a second dimension
    order = np.argsort(pair_of, kind="stable")
    groups = np.split(order, np.searchsorted(pair_of[order], np.arange(1, pairs.shape[1])))
    for (b, d), members in zip(pairs.T, groups, strict=True):
        probability[members] = _scale_ratio(c0.ravel()[members], b, d)
    return probability.reshape(c0.shape)[()]


def simulate(
    c0: float | torch.Tensor,
    *,
    beta: float,
    dim: float,
    horizon: float,
    steps: int,
    sigma: float = 1.0,
    record: int | None = None,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    r"""Simulate the cosine through :math:`u = \operatorname{artanh} c`, which has no boundary and never blows up:

    .. math::

        du = \sigma^2\,[\,r(c)(d - 2) + s(c)\,c\,]\,dt + \sigma\sqrt{2 s(c)}\,dB, \qquad c = \tanh u.

    The scheme is Euler–Maruyama in u; the error of expectations is of order horizon / steps.

    Args:
        c0: starting cosines in [-1, 1], one path each: a tensor (...) in float32 or float64, or one number (float64).
        beta: inverse temperature, finite and >= 0.
        dim: dimension d >= 2.
        horizon: T >= 0, in units of time.
        steps: number of time steps, >= 1.
        sigma: standard deviation of the value matrices' entries, >= 0.
        record: None for the final cosines, or R, a divisor of ``steps``, for R + 1 evenly spaced ones.
        generator: source of randomness; the numbers are drawn on its device.

    Returns:
        Cosines (...), or (R + 1, ...) whose first entry is ``c0``. Paths that start at a pole stay there.

    Raises:
        ValueError, TypeError: an argument outside these ranges.

    Source: our derivation (chapter "Watch two tokens choose").

    >>> rng = torch.Generator().manual_seed(0)
    >>> c = simulate(torch.zeros(1000), beta=2.0, dim=3, horizon=5.0, steps=500, generator=rng)
    >>> c.shape, bool((c.abs() <= 1).all())
    (torch.Size([1000]), True)
    """
    c = torch.tensor(_validate.real("c0", c0), dtype=torch.float64) if not isinstance(c0, torch.Tensor) else c0
    _validate.floating("c0", c, trailing="(...)")
    outside = c.abs() > 1
    if outside.any():
        raise ValueError(f"c0 must be in [-1, 1], got {c[outside].flatten()[0].item()!r}")
    beta = _validate.real("beta", beta, at_least=0)
    dim = _validate.real("dim", dim, at_least=2)
    horizon = _validate.real("horizon", horizon, at_least=0)
    steps = _validate.integer("steps", steps, at_least=1)
    sigma = _validate.real("sigma", sigma, at_least=0)
    record = _validate.recording("steps", record, steps)
    _validate.generator(generator)
    h = horizon / steps
    device = c.device if generator is None else generator.device
    start, pole = c, c.abs() == 1
    u, states = torch.atanh(torch.where(pole, 0, c)), [c]
    for n in progress(range(steps), "time steps"):
        p = torch.sigmoid(beta * (1 - c))
        r = 2 * p * torch.sigmoid(beta * (c - 1))  # 2 p (1 - p), whose gradient does not overflow as that of cosh
        s = 1 - r
        dB = math.sqrt(h) * torch.randn(c.shape, generator=generator, device=device, dtype=c.dtype).to(c.device)
        u = u + sigma**2 * h * (r * (dim - 2) + s * c) + sigma * torch.sqrt(2 * s) * dB
        c = torch.where(pole, start, torch.tanh(u))
        if record and (n + 1) % (steps // record) == 0:
            states.append(c)
    if not torch.isfinite(u).all():
        raise ValueError(
            f"sigma, dim and horizon must leave the steps below the largest {c.dtype}, got {sigma}, {dim}, {horizon}"
        )
    return c if record is None else torch.stack(states)


def _arguments(c, beta, dim, sigma) -> tuple[np.ndarray, ...]:
    return _validate.broadcast(
        c=_validate.array("c", c, low=-1, high=1),
        beta=_validate.array("beta", beta, low=0),
        dim=_validate.array("dim", dim, low=2),
        sigma=_validate.array("sigma", sigma, low=0),
    )


def _sech(x: np.ndarray) -> np.ndarray:
    """1 / cosh without overflow."""
    e = np.exp(-np.abs(x))
    return 2 * e / (1 + e * e)


def _r(c, beta) -> np.ndarray:
    """1 / (1 + cosh(β(1 - c))) without overflow."""
    e = np.exp(-np.asarray(beta) * (1 - np.asarray(c)))
    return 2 * e / (1 + e) ** 2


# --- The scale function by Gauss–Legendre panels ------------------------------------------------------------------
# log S' is smooth on the scale of u, with slopes up to d - 1, so panels of a fixed 10-point rule are exact to rounding
# as long as neither their width nor the fall of log S' across them is large. Everything is kept as logarithms.

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(10)


def _integrals_to_the_right() -> np.ndarray:
    """B[k, j] = integral of the j-th Lagrange polynomial of the nodes from node k to 1."""
    legendre = np.polynomial.legendre.legvander(_NODES, _NODES.size)
    inner = (
        1
        - _NODES[:, None]
        + sum((legendre[:, [n - 1]] - legendre[:, [n + 1]]) * legendre[:, n] for n in range(1, _NODES.size))
    )
    return 0.5 * inner * _NODE_WEIGHTS


_TO_THE_RIGHT = _integrals_to_the_right()
# Beyond these the integrands are exponentials to within rounding; artanh of a float is inside.
_LEFT, _RIGHT = -24.0, 20.0


def _scale_ratio(c0: np.ndarray, beta: float, dim: float) -> np.ndarray:
    """P(antipodal | c0) for one (β, d)."""
    # 1 - (d - 2) / cosh 2β, without cancellation near d = 3, β = 0
    e = math.exp(-2 * beta)
    margin = (math.expm1(-2 * beta) ** 2 - 2 * e * (dim - 3)) / (1 + e * e)
    if (dim >= 3 and beta <= critical_beta(dim)) or margin <= 0:
        return np.where(c0 == -1, 1.0, 0.0)

    def attraction(u):
        return _sech(beta * (1 - np.tanh(u)))

    def panels(left, right):
        """Half widths, nodes and the attraction at the nodes."""
        half = 0.5 * (right - left)[:, None]
        u = right[:, None] + half * (_NODES - 1)
        return half, u, attraction(u)

    def log_integral(half, u, attraction_at_u, attraction_integral_at_right):
        """Log of the integral of S' over each panel, given that of the attraction from _LEFT to the panel's right."""
        to_u = attraction_integral_at_right[:, None] - half * (attraction_at_u @ _TO_THE_RIGHT.T)
        exponent = _log_sech(u) - (dim - 2) * to_u
        top = exponent.max(axis=1, keepdims=True)
        return top[:, 0] + np.log((half * np.exp(exponent - top)) @ _NODE_WEIGHTS)

    edges = _panel_edges(attraction, dim)
    half, u, attraction_at_u = panels(edges[:-1], edges[1:])
    attraction_integral = np.concatenate([[0.0], np.cumsum(half[:, 0] * (attraction_at_u @ _NODE_WEIGHTS))])
    beyond = _log_sech(_RIGHT) - (dim - 2) * attraction_integral[-1] - np.log(dim - 1)
    logs = log_integral(half, u, attraction_at_u, attraction_integral[1:])
    log_right_of = np.logaddexp.accumulate(np.concatenate([[beyond], logs[::-1]]))[::-1]
    total = np.logaddexp(log_right_of[0], _log_sech(_LEFT) - np.log(margin))

    inside = np.abs(c0) < 1
    u0 = np.arctanh(np.where(inside, c0, 0.0))
    panel = np.searchsorted(edges, u0, side="right")
    partial = log_integral(*panels(u0, edges[panel]), attraction_integral[panel])
    probability = np.exp(np.minimum(np.logaddexp(partial, log_right_of[panel]) - total, 0.0))
    return np.where(inside, probability, c0 == -1)


def _log_sech(u):
    return math.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u)))


def _panel_edges(attraction, dim: float) -> np.ndarray:
    """Panels at most 1/4 wide across which log S' falls by at most about 4, where S' is not negligible."""
    grid = np.linspace(_LEFT, _RIGHT, 1025)
    cell = grid[1] - grid[0]
    slope = -np.tanh(grid) - (dim - 2) * attraction(grid)
    rise = 0.5 * cell * (slope[1:] + slope[:-1])
    log_density = np.concatenate([[0.0], np.cumsum(rise)])
    matters = log_density[:-1] > log_density.max() - 800
    panels = 4 * cell + np.where(matters, np.minimum(np.abs(rise), 800) / 4, 0.0)
    count = np.concatenate([[0.0], np.cumsum(panels)])
    return np.interp(np.linspace(0, count[-1], math.ceil(count[-1]) + 1), count, grid)
