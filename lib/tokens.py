"""Tokens that move on the sphere: a deep random transformer, its diffusion limit and its deterministic flow."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from lib import _validate
from lib.attention import check_weights, read
from lib.brownian import BrownianPath
from lib.progress import progress
from lib.sphere import project

#: The laws of the value matrices' entries that :func:`layers` knows, each of mean 0 and variance 1 (times sigma²):
#: samples of a shape, with the options of torch's samplers (generator, device, dtype).
NOISES = {
    "gaussian": torch.randn,
    "uniform": lambda shape, **options: math.sqrt(12) * (torch.rand(shape, **options) - 0.5),
    "rademacher": lambda shape, **options: torch.randint(2, shape, **options).mul_(2).sub_(1),
}


def layers(
    x0: torch.Tensor,
    *,
    depth: int,
    beta: float,
    horizon: float,
    sigma: float = 1.0,
    noise: str | BrownianPath = "gaussian",
    drift: float = 0.0,
    weights: str = "softmax",
    record: int | None = None,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    r"""Run tokens through a deep random transformer. With :math:`h = T/L`, each of its :math:`L` layers does

    .. math::

        x_i \leftarrow \frac{y_i}{|y_i|}, \qquad
        y_i = x_i + \sqrt h\,V a_i + h\,\kappa\,a_i, \qquad a_i = \sum_j A_{ij} x_j,

    where :math:`V` is a fresh :math:`d \times d` matrix with independent centred entries of variance
    :math:`\sigma^2`, *the same for every token*, and :math:`\kappa` is the weight of a value matrix that is not
    random, :math:`\kappa I` at scale :math:`1/L`.

    Args:
        x0: tokens (..., N, d) of unit norm, float32 or float64. Leading dimensions are members of an ensemble,
            each with its own matrices.
        depth: L >= 1, the number of layers.
        beta: inverse temperature of the attention, finite and >= 0.
        horizon: T >= 0; the clock of the diffusion limit. Only :math:`\sigma^2 T` matters when :math:`\kappa = 0`.
        sigma: standard deviation of the entries of V, >= 0. Xavier initialisation is :math:`1/\sqrt d`.
        noise: law of the entries: "gaussian", "uniform" or "rademacher" (a random sign); or a
            :class:`~lib.brownian.BrownianPath` whose increments replace :math:`\sqrt h\,V/\sigma`.
        drift: :math:`\kappa`, any finite number.
        weights: kind of attention, see :func:`lib.attention.attend`.
        record: None for the final tokens, or R, a divisor of ``depth``, for R + 1 evenly spaced states.
        generator: source of randomness; the numbers are drawn on its device.

    Returns:
        (..., N, d), or (R + 1, ..., N, d) whose first entry is ``x0``.

    Raises:
        ValueError, TypeError: an argument outside these ranges; a token whose update has no direction (zero, or
            beyond the largest float).

    Source: our version of the model in the abstract of Fedorov et al., *Clustering in deep stochastic transformers*
    (arXiv 2601.21942); softmax attention with fixed queries and keys is our choice. Gaussian matrices act on few
    vectors, so where N is small against d the N × d block :math:`(V a_i)_i`, whose columns are independent
    N(0, σ² Gram(a)), is sampled instead: the same law (our derivation). Gradients through the block have the mean of
    those through the matrix (so those of expectations are right), not their spread; on a path they are the matrix's.

    >>> from lib.sphere import random_tokens
    >>> rng = torch.Generator().manual_seed(0)
    >>> x = layers(random_tokens(4, n=2, d=8, generator=rng), depth=100, beta=1.0, horizon=1.0, generator=rng)
    >>> x.shape
    torch.Size([4, 2, 8])
    """
    beta, horizon, drift, record = _validated(x0, "depth", depth, beta, horizon, drift, weights, record)
    sigma = _validate.real("sigma", sigma, at_least=0)
    if not isinstance(noise, BrownianPath):
        _validate.choice("noise", noise, NOISES)
    kick = _kicks(x0, depth, horizon, noise, generator)
    h = horizon / depth

    def layer(step: int, x: torch.Tensor) -> torch.Tensor:
        a = read(x, beta, weights)
        return x + sigma * kick(step, a) + h * drift * a

    return _iterate(layer, x0, depth, record, "layers")


def sde(
    x0: torch.Tensor,
    *,
    steps: int,
    beta: float,
    horizon: float,
    sigma: float = 1.0,
    noise: BrownianPath | None = None,
    drift: float = 0.0,
    weights: str = "softmax",
    record: int | None = None,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    r"""Simulate the diffusion limit of :func:`layers` as the depth goes to infinity. In the sense of Itô,

    .. math::

        dx_i = P_{x_i}\bigl(\sigma\,dW\,a_i + \kappa\,a_i\,dt\bigr) - \tfrac12\sigma^2(d-1)|a_i|^2 x_i\,dt,
        \qquad P_x = I - x x^\top,

    with one matrix Brownian motion :math:`W` for all tokens. The scheme is Euler–Maruyama followed by a projection
    back onto the sphere: strong order ½ (one matrix noise does not commute), weak order 1.

    Args:
        x0: tokens (..., N, d) of unit norm; leading dimensions are ensemble members, each with its own path.
        steps: number of time steps, >= 1.
        beta, horizon, sigma, drift, weights, generator: as for :func:`layers`.
        noise: None for fresh noise, or a :class:`~lib.brownian.BrownianPath` to share it with another scheme.
        record: None, or R, a divisor of ``steps``.

    Returns:
        (..., N, d), or (R + 1, ..., N, d) whose first entry is ``x0``.

    Raises:
        ValueError, TypeError: as for :func:`layers`; too few steps for the Itô term.

    Source: the limit that Fedorov et al. (arXiv 2601.21942) prove; this form of it is our derivation.

    >>> from lib.sphere import random_tokens
    >>> x0 = random_tokens(n=3, d=4, generator=torch.Generator().manual_seed(0))
    >>> path = BrownianPath(d=4, horizon=1.0, steps=64, seed=1)
    >>> sde(x0, steps=64, beta=1.0, horizon=1.0, noise=path, record=4).shape
    torch.Size([5, 3, 4])
    """
    beta, horizon, drift, record = _validated(x0, "steps", steps, beta, horizon, drift, weights, record)
    sigma = _validate.real("sigma", sigma, at_least=0)
    if noise is not None and not isinstance(noise, BrownianPath):
        raise TypeError(f"noise must be a BrownianPath or None, got {noise!r}")
    kick = _kicks(x0, steps, horizon, "gaussian" if noise is None else noise, generator)
    h = horizon / steps
    ito = 0.5 * sigma**2 * (x0.shape[-1] - 1) * h

    def euler_maruyama(step: int, x: torch.Tensor) -> torch.Tensor:
        a = read(x, beta, weights)
        shrink = ito * (a * a).sum(dim=-1, keepdim=True)
        if (shrink >= 1).any():  # the token would be turned round
            raise ValueError(f"steps must be large enough that sigma² (d - 1) |a|² horizon / steps < 2, got {steps}")
        return x + project(x, sigma * kick(step, a) + h * drift * a) - shrink * x

    return _iterate(euler_maruyama, x0, steps, record, "time steps")


def flow(
    x0: torch.Tensor,
    *,
    steps: int,
    beta: float,
    horizon: float,
    drift: float = 1.0,
    weights: str = "softmax",
    record: int | None = None,
) -> torch.Tensor:
    r"""Solve the deterministic attention flow :math:`\dot x_i = \kappa\,P_{x_i} a_i` on the sphere.

    It is the limit of :func:`layers` with ``sigma=0``: value matrices :math:`\kappa I` at scale :math:`1/L`. The
    scheme is the classical Runge–Kutta method of order 4, then a projection back onto the sphere.

    Args:
        x0: tokens (..., N, d) of unit norm.
        steps: number of time steps, >= 1.
        beta, horizon, weights: as for :func:`layers`.
        drift: :math:`\kappa`; 1 attracts, -1 repels.
        record: None, or R, a divisor of ``steps``.

    Returns:
        (..., N, d), or (R + 1, ..., N, d) whose first entry is ``x0``.

    Raises:
        ValueError, TypeError: as for :func:`layers`.

    Source: Geshkovski et al., *A mathematical perspective on transformers* (arXiv 2312.10794).

    >>> x0 = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> flow(x0, steps=100, beta=1.0, horizon=20.0)
    tensor([[0.7071, 0.7071],
            [0.7071, 0.7071]])
    """
    beta, horizon, drift, record = _validated(x0, "steps", steps, beta, horizon, drift, weights, record)
    h = horizon / steps

    def velocity(x: torch.Tensor) -> torch.Tensor:
        return drift * project(x, read(x, beta, weights))

    def runge_kutta(step: int, x: torch.Tensor) -> torch.Tensor:
        k1 = velocity(x)
        k2 = velocity(x + 0.5 * h * k1)
        k3 = velocity(x + 0.5 * h * k2)
        k4 = velocity(x + h * k3)
        return x + (h / 6) * (k1 + 2 * k2 + 2 * k3 + k4)

    return _iterate(runge_kutta, x0, steps, record, "time steps")


def clusters(x: torch.Tensor, *, tol: float) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Group tokens that lie on one line through the origin, and say on which side of it each one is.

    Tokens i and j are linked when the angle between :math:`x_i` and :math:`x_j`, or between :math:`x_i` and
    :math:`-x_j`, is at most ``tol``; a camp is a connected set of linked tokens. (A chain of links all the way from
    a token to its antipode leaves the signs undetermined; the shortest chain to the camp's first token then counts.)

    Args:
        x: tokens (..., N, d) of unit norm.
        tol: angle in radians, strictly between 0 and π/4 (so that a link has one sign).

    Returns:
        ``labels`` (..., N), integers 0, 1, ... in the order in which the camps first appear; and ``signs``
        (..., N), +1 for tokens on the side of their camp's first token, -1 for those opposite. One cluster has
        labels 0 and signs +1; an antipodal formation has labels 0 and both signs.

    Raises:
        ValueError, TypeError: tokens off the sphere, NaN or infinite; ``tol`` outside (0, π/4).

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]])
    >>> clusters(x, tol=0.1)
    (tensor([0, 1, 0, 0]), tensor([ 1,  1, -1,  1]))
    """
    x = _validate.tokens("x", x)
    tol = _validate.real("tol", tol, above=0)
    if tol >= math.pi / 4:
        raise ValueError(f"tol must be an angle below pi/4, got {tol!r}")
    n = x.shape[-2]
    exact = "donot_use_mm_for_euclid_dist"  # small distances of unit vectors would drown in the others' rounding
    apart, together = torch.cdist(x, x, compute_mode=exact), torch.cdist(x, -x, compute_mode=exact)
    chord = 2 * math.sin(tol / 2)
    link_signs = (apart <= chord).int() - (together <= chord).int()

    # Every token takes the smallest index reachable by links, and the product of the signs on the way there.
    first = torch.arange(n, device=x.device).expand(x.shape[:-1])
    signs = torch.ones_like(first)
    for _ in range(n):
        reachable = torch.where(link_signs != 0, first.unsqueeze(-2), n)
        smallest, via = reachable.min(dim=-1)
        via_signs = link_signs.gather(-1, via.unsqueeze(-1)).squeeze(-1) * signs.gather(-1, via)
        signs = torch.where(smallest < first, via_signs, signs)
        if torch.equal(smallest, first):
            break
        first = smallest
    opens = first == torch.arange(n, device=x.device)
    labels = (opens.cumsum(dim=-1) - 1).gather(-1, first)
    return labels, signs


def _validated(
    x0: torch.Tensor, name: str, steps: int, beta: float, horizon: float, drift: float, weights: str, record: int | None
) -> tuple[float, float, float, int | None]:
    """Check what the three dynamics have in common; ``name`` is what the number of steps is called."""
    _validate.tokens("x0", x0)
    _validate.integer(name, steps, at_least=1)
    beta = check_weights(beta, weights, x0.dtype)
    horizon = _validate.real("horizon", horizon, at_least=0)
    return beta, horizon, _validate.real("drift", drift), _validate.recording(name, record, steps)


def _iterate(
    step: Callable[[int, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    steps: int,
    record: int | None,
    unit: str,
) -> torch.Tensor:
    """Apply ``step`` and retract to the sphere, ``steps`` times."""
    states, x = [x], _retract(x)
    for n in progress(range(steps), unit):
        x = _retract(step(n, x))
        if record and (n + 1) % (steps // record) == 0:
            states.append(x)
    if not torch.isfinite(x).all():
        raise ValueError(
            f"a token has no direction left: its update is zero or beyond the largest {x.dtype}; take smaller steps "
            "(a smaller horizon, sigma or drift, or more of them)"
        )
    return x if record is None else torch.stack(states)


def _retract(x: torch.Tensor) -> torch.Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / norm.masked_fill(norm == math.inf, math.nan)  # not 0, which later layers would fill up again


def _kicks(
    x0: torch.Tensor, steps: int, horizon: float, noise: str | BrownianPath, generator: torch.Generator | None
) -> Callable[[int, torch.Tensor], torch.Tensor]:
    """The function (step, a) -> ΔW a, one ΔW a step and ensemble member, entries of variance horizon / steps."""
    _validate.generator(generator)
    if isinstance(noise, BrownianPath):
        return _path_kicks(x0, steps, horizon, noise, generator)
    scale = math.sqrt(horizon / steps)
    device = x0.device if generator is None else generator.device
    n, d = x0.shape[-2:]

    def draw(shape: tuple[int, ...]) -> torch.Tensor:
        return NOISES[noise](shape, generator=generator, device=device, dtype=x0.dtype).to(x0.device)

    if noise == "gaussian" and _block_pays(x0.shape[:-2].numel(), n, d, x0.dtype):
        return lambda step, a: scale * (_root_of_gram(a) @ draw(a.shape))
    return lambda step, a: scale * (a @ draw((*a.shape[:-2], d, d)).mT)


def _block_pays(batch: int, n: int, d: int, dtype: torch.dtype) -> bool:
    """Whether to sample the N × d block instead of the d × d matrix: not if its N-step factorisation costs more.

    What is saved are batch · d (d - N) normal numbers, which are cheaper in float32. Measured in benchmarks/tokens.py.
    """
    return 8 * n <= d and batch * d * (d - n) >= n * (8_000 if dtype == torch.float64 else 30_000)


def _root_of_gram(a: torch.Tensor) -> torch.Tensor:
    """R (..., N, N) with R Rᵀ = Gram(a), by the modified Gram–Schmidt method.

    Working on the vectors rather than on their Gram matrix keeps the differences between nearly equal tokens
    accurate. Each step takes the direction of the first vector of which at least half as much is left as of any other.
    Were it a small remainder, the large ones would depend on its direction, and gradients grow like 1 / remainder; so
    they stay bounded where tokens merge. Remainders within rounding count as zero. There the root has a corner, and
    its gradient leaves them out: that of the Gram matrix, hence of every expectation, is right all the same.
    """
    largest = a.detach().abs().amax(dim=(-2, -1), keepdim=True)  # divided out, as squares may overflow
    rest = a = a / largest.masked_fill(largest == 0, 1)
    negligible = 10 * torch.finfo(a.dtype).eps * torch.linalg.vector_norm(a.detach(), dim=-1)
    columns = []
    for _ in range(a.shape[-2]):
        left = torch.linalg.vector_norm(rest.detach(), dim=-1)
        left = left.masked_fill(left <= negligible, 0)
        most = left.amax(dim=-1, keepdim=True)
        first = (left >= 0.5 * most).int().argmax(dim=-1, keepdim=True)
        row = rest.take_along_dim(first.unsqueeze(-1), dim=-2)
        # An infinite pivot makes the direction and its gradient zero; masking row / 0 instead would make it NaN.
        pivot = torch.linalg.vector_norm(row, dim=-1, keepdim=True).masked_fill(most.unsqueeze(-1) == 0, math.inf)
        direction = row / pivot
        along = rest @ direction.mT
        columns.append(along)
        rest = rest - along * direction
    return largest * torch.cat(columns, dim=-1)


def _path_kicks(x0, steps, horizon, path, generator) -> Callable[[int, torch.Tensor], torch.Tensor]:
    if generator is not None:
        raise ValueError("generator must be None when noise is a BrownianPath: the path has its own seed")
    if horizon != path.horizon:
        raise ValueError(f"horizon must be that of the path, {path.horizon!r}, got {horizon!r}")
    *batch, n, d = x0.shape
    if path.d != d or path.batch != tuple(batch) or path.tokens not in (None, n):
        raise ValueError(
            f"noise must fit tokens of shape {tuple(x0.shape)}, got a path with batch {path.batch}, d = {path.d} "
            f"and tokens = {path.tokens}"
        )
    increments = path.increments(steps).to(dtype=x0.dtype, device=x0.device)
    if path.tokens is None:
        return lambda step, a: a @ increments[step].mT
    return lambda step, a: (increments[step] @ a.unsqueeze(-1)).squeeze(-1)
