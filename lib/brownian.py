"""Brownian motion that two schemes can share: one seed, one path, as fine as anyone needs it."""

from __future__ import annotations

import math

import numpy as np
import torch

from lib import _validate


class BrownianPath:
    r"""A matrix Brownian motion :math:`W` on :math:`[0, T]`, :math:`W_{kl}(t) \sim N(0, t)`, known at every resolution.

    The path is drawn on a coarse grid and refined by midpoint displacement: an increment :math:`\Delta W` over a
    step :math:`h` splits into

    .. math::

        \tfrac12\Delta W + \tfrac12\sqrt{h}\,Z \quad\text{and}\quad \tfrac12\Delta W - \tfrac12\sqrt{h}\,Z,
        \qquad Z \sim N(0, 1),

    two independent :math:`N(0, h/2)`. Each level of refinement has its own random stream, so asking for a finer
    grid never changes a coarser one, in whatever order they are asked for. Increments are rounded to multiples of
    :math:`2^{-40}\sqrt T`, far below any statistical error; sums of them are then free of rounding, and a coarse
    increment **equals** the sum of the fine ones, bit for bit.

    Args:
        batch: leading dimensions, one independent path per ensemble member.
        d: the matrices are d × d.
        horizon: T > 0.
        steps: intervals of the coarsest grid.
        seed: an integer >= 0.
        tokens: None for *common noise*, one matrix shared by all tokens; N for *independent noise*, one
            matrix for each of N tokens.

    Raises:
        ValueError, TypeError: an argument outside these ranges.

    Source: Lévy's construction of Brownian motion; the lattice is our own addition.

    >>> path = BrownianPath(d=2, horizon=1.0, steps=4, seed=0)
    >>> coarse, fine = path.increments(4), path.increments(16)
    >>> bool((fine.reshape(4, 4, 2, 2).sum(dim=1) == coarse).all())
    True
    """

    def __init__(self, *batch: int, d: int, horizon: float, steps: int, seed: int, tokens: int | None = None):
        self.batch = tuple(_validate.integer("batch", size, at_least=0) for size in batch)
        self.d = _validate.integer("d", d, at_least=1)
        self.horizon = _validate.real("horizon", horizon, above=0)
        self.steps = _validate.integer("steps", steps, at_least=1)
        self.seed = _validate.integer("seed", seed, at_least=0)
        self.tokens = None if tokens is None else _validate.integer("tokens", tokens, at_least=1)

    def increments(self, steps: int) -> torch.Tensor:
        """The increments over ``steps`` equal intervals.

        Args:
            steps: the path's own number of steps times a power of two.

        Returns:
            float64 tensor (steps, ..., d, d) for common noise, (steps, ..., N, d, d) for independent noise;
            entries have variance horizon / steps.

        Raises:
            ValueError: ``steps`` is not reached by halving the coarsest intervals, or the increments would take
                more than 32 GiB.
        """
        steps = _validate.integer("steps", steps, at_least=1)
        levels = (steps // self.steps).bit_length() - 1
        if steps != self.steps << max(levels, 0):
            raise ValueError(f"steps must be {self.steps} times a power of two, got {steps}")
        per_step = self.batch + (() if self.tokens is None else (self.tokens,)) + (self.d, self.d)
        size = 8 * steps * math.prod(per_step)
        if size > 2**35:
            raise ValueError(
                f"steps must leave the increments below 32 GiB, got {steps}, which makes {size / 2**30:.3g}"
            )
        h = self.horizon / self.steps
        increments = self._round(math.sqrt(h) * self._normals(0, (self.steps, *per_step)))
        for level in range(1, levels + 1):
            shake = 0.5 * math.sqrt(h) * self._normals(level, increments.shape)
            first = self._round(0.5 * increments + shake)
            increments = torch.stack([first, increments - first], dim=1).flatten(0, 1)
            h /= 2
        return increments

    def _normals(self, level: int, shape) -> torch.Tensor:
        stream = int(np.random.SeedSequence(self.seed, spawn_key=(level,)).generate_state(1, np.uint64)[0] >> 1)
        return torch.randn(shape, generator=torch.Generator().manual_seed(stream), dtype=torch.float64)

    def _round(self, x: torch.Tensor) -> torch.Tensor:
        # A power of two near sqrt(T) times 2^-40: multiples of it below 2^13 sqrt(T) add without rounding.
        exponent = round(math.log2(self.horizon) / 2) - 40
        return torch.ldexp(torch.round(torch.ldexp(x, torch.tensor(-exponent))), torch.tensor(exponent))
