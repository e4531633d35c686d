r"""The smoothed maximum of two numbers, for three regularisers.

.. math::

    \max\nolimits_\Omega(a, b) = \max_{p \in [0, 1]}\; p\,a + (1 - p)\,b - \gamma\,\Omega(p)
    = b + \gamma\,M(t), \qquad t = \frac{a - b}{\gamma},

where :math:`\Omega` is convex, symmetric, 0 at both ends, and :math:`M(t) = \max_p pt - \Omega(p)`. The maximiser
:math:`P(t) = M'(t)` is the probability to take a. Each regulariser offers, for float64 arrays of any shape (±inf
allowed):

- ``value(t)``, :math:`M(t)`: 0 at -inf, asymptotic to t at +inf;
- ``probability(t)``, :math:`P(t)`: increasing from 0 to 1, with :math:`P(-t) = 1 - P(t)`;
- ``curvature(t)``, :math:`P'(t) \ge 0`.

Source: the binary case of the regularisers in Blondel, Martins and Niculae, *Learning with Fenchel-Young losses*
(arXiv 1901.02324).
"""

from __future__ import annotations

import numpy as np


class Shannon:
    r"""Shannon entropy, :math:`\Omega(p) = p\log p + (1 - p)\log(1 - p)`: M is the softplus, P the logistic function.

    >>> Shannon.probability(np.array([-np.inf, 0.0, np.log(3)]))
    array([0.  , 0.5 , 0.75])
    """

    @staticmethod
    def value(t: np.ndarray) -> np.ndarray:
        return np.logaddexp(0.0, t)

    @staticmethod
    def probability(t: np.ndarray) -> np.ndarray:
        small = np.exp(-np.abs(t))
        return np.where(np.asarray(t) < 0, small, 1.0) / (1.0 + small)

    @staticmethod
    def curvature(t: np.ndarray) -> np.ndarray:
        small = np.exp(-np.abs(t))
        return small / (1.0 + small) ** 2


class Tsallis:
    r"""Tsallis entropy with :math:`\alpha = 1.5`, :math:`\Omega(p) = \tfrac43(p^{1.5} + (1 - p)^{1.5} - 1)`.

    P is exactly 0 below -2 and exactly 1 above 2.

    >>> Tsallis.probability(np.array([-2.0, 0.0, 2.0]))
    array([0. , 0.5, 1. ])
    """

    @staticmethod
    def value(t: np.ndarray) -> np.ndarray:
        inside = np.clip(t, -2.0, 2.0)
        p = Tsallis.probability(inside)
        return p * inside - 4 / 3 * (p**1.5 + (1 - p) ** 1.5 - 1) + np.maximum(t, 2.0) - 2.0

    @staticmethod
    def probability(t: np.ndarray) -> np.ndarray:
        t = np.clip(t, -2.0, 2.0)
        return 0.5 + t / 4 * np.sqrt(2 - t**2 / 4)

    @staticmethod
    def curvature(t: np.ndarray) -> np.ndarray:
        t = np.clip(t, -2.0, 2.0)
        return (4 - t**2) / (8 * np.sqrt(2 - t**2 / 4))


class Gini:
    r"""Gini entropy, :math:`\Omega(p) = -p(1 - p)`: P is a clipped line, exactly 0 below -1 and exactly 1 above 1.

    >>> Gini.probability(np.array([-2.0, 0.0, 0.5]))
    array([0.  , 0.5 , 0.75])
    """

    @staticmethod
    def value(t: np.ndarray) -> np.ndarray:
        return (1 + np.clip(t, -1.0, 1.0)) ** 2 / 4 + np.maximum(t, 1.0) - 1.0

    @staticmethod
    def probability(t: np.ndarray) -> np.ndarray:
        return np.clip(0.5 + np.asarray(t) / 2, 0.0, 1.0)

    @staticmethod
    def curvature(t: np.ndarray) -> np.ndarray:
        return np.where(np.abs(t) < 1, 0.5, 0.0)


#: The regularisers by name. One more needs its rows in ``lib.kernels``, too, and a colour in ``lib.colours``.
REGULARIZERS = {"shannon": Shannon, "tsallis": Tsallis, "gini": Gini}
