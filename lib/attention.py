"""Self-attention on the sphere, with queries and keys frozen so that the logits are β times cosines."""

from __future__ import annotations

import math

import torch

from lib import _validate

#: The ways to weigh the tokens that :func:`attend` knows: what is read, from (x, β).
WEIGHTS = {
    "softmax": lambda x, beta: torch.softmax(beta * (x @ x.mT), dim=-1) @ x,
    "unnormalized": lambda x, beta: torch.exp(beta * (x @ x.mT) - math.log(x.shape[-2])) @ x,
    "uniform": lambda x, beta: x.mean(dim=-2, keepdim=True).expand_as(x),
    "identity": lambda x, beta: x,
}


def attend(x: torch.Tensor, *, beta: float, weights: str = "softmax") -> torch.Tensor:
    r"""What each token reads, :math:`a_i = \sum_j A_{ij} x_j`, the sum over all tokens, :math:`j = i` included.

    ==================  =============================================================================
    ``weights``         :math:`A_{ij}`
    ==================  =============================================================================
    ``"softmax"``       :math:`e^{\beta\langle x_i, x_j\rangle} / \sum_l e^{\beta\langle x_i, x_l\rangle}`
    ``"unnormalized"``  :math:`e^{\beta\langle x_i, x_j\rangle} / N`
    ``"uniform"``       :math:`1 / N` (softmax at :math:`\beta = 0`)
    ``"identity"``      1 for :math:`j = i`, else 0 (no attention)
    ==================  =============================================================================

    Args:
        x: tokens (..., N, d) of unit norm.
        beta: inverse temperature, finite and >= 0; the last two kinds of weights do not use it.
        weights: one of the four words above.

    Returns:
        a, of the shape of ``x``; :math:`|a_i| \le 1` unless the weights are unnormalized.

    Raises:
        ValueError: tokens off the sphere, NaN or infinite; ``beta`` negative or not finite, or so large that
            unnormalized weights overflow; unknown ``weights``.

    Source: Geshkovski, Letrouit, Polyanskiy and Rigollet, *A mathematical perspective on transformers*
    (arXiv 2312.10794), with query, key and value matrices equal to the identity.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> attend(x, beta=0.0)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    x = _validate.tokens("x", x)
    return read(x, check_weights(beta, weights, x.dtype), weights).clone()  # not a view that x or a row shares


def check_weights(beta: float, weights: str, dtype: torch.dtype) -> float:
    """Validate ``beta`` and ``weights`` for tokens of this type, and return beta as a float."""
    beta = _validate.real("beta", beta, at_least=0)
    _validate.choice("weights", weights, WEIGHTS)
    largest = math.log(torch.finfo(dtype).max) - 1  # the exponentials and their sums are rounded
    if weights == "unnormalized" and beta > largest:
        raise ValueError(f"beta must be <= {largest:.1f} for unnormalized weights in {dtype}, got {beta!r}")
    return beta


def read(x: torch.Tensor, beta: float, weights: str) -> torch.Tensor:
    """:func:`attend` without its checks, for the inner loops of the library."""
    return WEIGHTS[weights](x, beta)


def interaction_energy(x: torch.Tensor, *, beta: float) -> torch.Tensor:
    r"""The energy :math:`E_\beta(x) = \frac{1}{2\beta N^2}\sum_{i,j} e^{\beta\langle x_i, x_j\rangle}`.

    The flow with unnormalized weights climbs it: :math:`\dot x_i = P_{x_i} a_i = N\,P_{x_i}\nabla_{x_i} E_\beta`.
    It is largest when all tokens agree.

    Args:
        x: tokens (..., N, d) of unit norm.
        beta: inverse temperature, finite and > 0.

    Returns:
        Energies (...), at most :math:`e^\beta / 2\beta`.

    Raises:
        ValueError: tokens off the sphere, NaN or infinite; ``beta`` not finite, <= 0, or so large that the
            exponentials overflow.

    Source: Geshkovski et al. (arXiv 2312.10794), section on gradient flows.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    >>> round(interaction_energy(x, beta=1.0).item(), 6)  # cosh(1) / 2
    0.77154
    """
    x = _validate.tokens("x", x)
    beta = _validate.real("beta", beta, above=0)
    check_weights(beta, "unnormalized", x.dtype)
    log_energy = torch.logsumexp(beta * (x @ x.mT), dim=(-2, -1)) - 2 * math.log(x.shape[-2]) - math.log(2 * beta)
    energy = torch.exp(log_energy)
    if not torch.isfinite(energy).all():
        raise ValueError(f"beta must leave the energy below the largest {x.dtype}, got {beta!r}")
    return energy
