"""Geometry of the unit sphere S^{d-1}, where every token lives."""

from __future__ import annotations

import torch

from lib import _validate


def normalize(x: torch.Tensor) -> torch.Tensor:
    r"""Project onto the sphere, :math:`x \mapsto x / |x|`.

    Args:
        x: vectors (..., d), float32 or float64, of any finite length but zero. The largest entry is divided out
            first, so that very long and very short vectors neither overflow nor vanish.

    Returns:
        Unit vectors, same shape and type.

    Raises:
        ValueError: a vector is zero, NaN or infinite.

    >>> normalize(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
    _validate.floating("x", x, trailing="(..., d)")
    if x.shape[-1] < 1:
        raise ValueError(f"x must have shape (..., d) with d >= 1, got {tuple(x.shape)}")
    largest = x.detach().abs().amax(dim=-1, keepdim=True)  # a constant: no direction depends on it
    if (largest == 0).any():
        raise ValueError("x must have no zero vector: it has no direction")
    x = x / largest
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def tangent(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    r"""Remove the radial part, :math:`P_x v = v - \langle x, v\rangle x`.

    Args:
        x: unit vectors (..., d).
        v: any vectors (..., d); the two shapes broadcast.

    Returns:
        The part of ``v`` that moves ``x`` along the sphere; :math:`\langle x, P_x v\rangle = 0`.

    Raises:
        ValueError: a vector in ``x`` is not of unit norm, or an entry is NaN or infinite.

    >>> tangent(torch.tensor([1.0, 0.0]), torch.tensor([5.0, 2.0]))
    tensor([0., 2.])
    """
    x = _validate.unit("x", x)
    _validate.floating("v", v, trailing="(..., d)")
    _validate.broadcasting("v", v, "x", x)
    return project(x, v)


def project(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """:func:`tangent` without its checks, for the inner loops of the library."""
    return v - (x * v).sum(dim=-1, keepdim=True) * x


def gram(x: torch.Tensor) -> torch.Tensor:
    r"""All inner products, :math:`G_{ij} = \langle x_i, x_j\rangle`.

    Args:
        x: vectors (..., N, d).

    Returns:
        Symmetric matrices (..., N, N); for tokens on the sphere the entries are cosines.

    Raises:
        ValueError: an entry is NaN or infinite, or so large that an inner product overflows.

    >>> gram(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    tensor([[ 1.,  0., -1.],
            [ 0.,  1.,  0.],
            [-1.,  0.,  1.]])
    """
    _validate.floating("x", x, trailing="(..., N, d)")
    products = x @ x.mT
    if not torch.isfinite(products).all():
        raise ValueError(f"x must be small enough for its inner products, got entries up to {x.abs().max().item():g}")
    return products


def angle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    r"""The angle between unit vectors, :math:`2\,\mathrm{atan2}(|x - y|, |x + y|)`, in radians.

    Unlike :math:`\arccos\langle x, y\rangle`, which loses half the digits near 0 and near :math:`\pi`, this form
    (Kahan's) is accurate for every pair. Norms are not trusted to be 1: the parts of :math:`x - y` and
    :math:`x + y` that come from :math:`|x| \ne |y|` are taken away, and both are then as long as for unit vectors,
    up to a common factor:

    .. math::

        (x - y) - k\,(x + y) \quad\text{and}\quad (x + y) - k\,(x - y), \qquad
        k = \frac{|x| - |y|}{|x| + |y|} = \frac{\langle x - y, x + y\rangle}{(|x| + |y|)^2}.

    Args:
        x, y: unit vectors (..., d); the two shapes broadcast.

    Returns:
        Angles (...) in :math:`[0, \pi]`. Their gradient is 0 for equal and for opposite vectors, where there is none.

    Raises:
        ValueError: a vector is not of unit norm, or an entry is NaN or infinite.

    >>> x = torch.tensor([1.0, 0.0])
    >>> angle(x, torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
    tensor([0.0000, 1.5708, 3.1416])
    """
    _validate.unit("x", x)
    _validate.unit("y", y)
    _validate.broadcasting("y", y, "x", x)
    apart, together = x - y, x + y
    lengths = torch.linalg.vector_norm(x, dim=-1) + torch.linalg.vector_norm(y, dim=-1)
    k = ((apart * together).sum(dim=-1) / lengths**2).unsqueeze(-1)
    return 2 * torch.atan2(_length(apart - k * together), _length(together - k * apart))


def _length(x: torch.Tensor) -> torch.Tensor:
    """|x|, with all its digits for short vectors too."""
    largest = x.detach().abs().amax(dim=-1)
    largest = largest.masked_fill(largest == 0, 1)
    return largest * torch.linalg.vector_norm(x / largest.unsqueeze(-1), dim=-1)


def random_tokens(
    *batch: int, n: int, d: int, generator: torch.Generator | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    r"""Independent tokens, each uniform on the sphere: :math:`x_i = g_i/|g_i|` with :math:`g_i \sim N(0, I_d)`.

    Args:
        batch: leading dimensions, one per independent family of tokens.
        n: number of tokens, at least 1.
        d: dimension, at least 2.
        generator: source of randomness; the tokens are made on its device.
        dtype: torch.float32 or torch.float64; by default torch's own default.

    Returns:
        Unit vectors (\*batch, n, d).

    Raises:
        ValueError: ``n`` < 1, ``d`` < 2 or a negative batch size.

    >>> x = random_tokens(5, n=3, d=8, generator=torch.Generator().manual_seed(0))
    >>> x.shape
    torch.Size([5, 3, 8])
    """
    shape = [_validate.integer("batch", size, at_least=0) for size in batch]
    shape += [_validate.integer("n", n, at_least=1), _validate.integer("d", d, at_least=2)]
    _validate.generator(generator)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype must be torch.float32 or torch.float64, got {dtype!r}")
    device = None if generator is None else generator.device
    return normalize(torch.randn(shape, generator=generator, device=device, dtype=dtype))
