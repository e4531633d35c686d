r"""The smoothed dynamic program, written to be read: NumPy, float64, one problem at a time.

Choose a subset of n items with scores :math:`\theta_i` and integer weights :math:`w_i`, of total weight at most C
(a knapsack), or exactly C (with unit weights: top-k). :math:`V_i(c)` is the smoothed value of the best choice among
the first i items within a budget c:

.. math::

    V_i(c) = \max\nolimits_\Omega\bigl(V_{i-1}(c - w_i) + \theta_i,\; V_{i-1}(c)\bigr), \qquad
    V_0(c) = 0 \text{ for } c \ge 0 \text{ (or only for } c = 0\text{)}, \text{ else } -\infty .

All functions take the items in the order in which the program sees them; with Shannon entropy the order does not
matter. Source: the framework of Vivier-Ardisson et al., *Differentiable knapsack and top-k operators via dynamic
programming* (arXiv 2601.21775), as its abstract describes it; these recursions are our derivation.
"""

from __future__ import annotations

import itertools

import numpy as np

from lib.smoothmax import Shannon


def forward(theta, weights, capacity, *, gamma=1.0, regularizer=Shannon, exactly=False):
    r"""The table :math:`V_i(c)`, row by row, and the probabilities :math:`P_i(c)` to take item i.

    Args:
        theta: scores (n,).
        weights: non-negative integers (n,).
        capacity: C, an integer >= 0.
        gamma: temperature, > 0.
        regularizer: :class:`~lib.smoothmax.Shannon`, ``Tsallis`` or ``Gini``.
        exactly: whether the total weight must be C, rather than at most C.

    Returns:
        ``value`` (n + 1, C + 1), -inf where no subset fits, and ``take`` (n, C + 1), 0 there.

    >>> value, take = forward([1.0, 2.0], [1, 1], 1, exactly=True)
    >>> round(float(value[-1, 1]), 6)  # log(e^1 + e^2)
    2.313262
    """
    n = len(theta)
    value = np.full((n + 1, capacity + 1), -np.inf)
    value[0, 0 if exactly else slice(None)] = 0.0
    take = np.zeros((n, capacity + 1))
    for i in range(n):
        skipped, taken, t = _branches(value[i], theta[i], weights[i], gamma)
        take[i] = regularizer.probability(t)
        skipped_fits = skipped > -np.inf
        value[i + 1] = taken
        value[i + 1, skipped_fits] = skipped[skipped_fits] + gamma * regularizer.value(t[skipped_fits])
    return value, take


def _branches(value, theta, weight, gamma):
    """Both arguments of the maximum for one item, and their difference t over gamma."""
    skipped, taken = value, _right(value, weight, -np.inf) + theta
    with np.errstate(invalid="ignore"):  # -inf minus -inf
        return skipped, taken, np.where(taken == -np.inf, -np.inf, (taken - skipped) / gamma)


def _right(row, by, fill=0.0):
    """row[c - by]"""
    return np.concatenate([np.full(min(by, len(row)), fill), row[: max(len(row) - by, 0)]])


def _left(row, by):
    """row[c + by]"""
    return np.concatenate([row[by:], np.zeros(min(by, len(row)))])


def marginals(theta, weights, capacity, *, gamma=1.0, regularizer=Shannon, exactly=False):
    r"""The probability of each item to be chosen, :math:`y = \nabla_\theta V_n(C)`, by a backward sweep:

    .. math::

        Q_n(C) = 1, \qquad y_i = \sum_c Q_i(c) P_i(c), \qquad
        Q_{i-1}(c) \mathrel{+}= Q_i(c)(1 - P_i(c)), \quad Q_{i-1}(c - w_i) \mathrel{+}= Q_i(c) P_i(c).

    Args: as for :func:`forward`.

    Returns:
        y (n,), in [0, 1].

    >>> marginals([0.0, 0.0, 0.0], [1, 1, 1], 2, exactly=True).round(6)
    array([0.666667, 0.666667, 0.666667])
    """
    _, take = forward(theta, weights, capacity, gamma=gamma, regularizer=regularizer, exactly=exactly)
    n = len(take)
    y = np.empty(n)
    reach = np.zeros(capacity + 1)
    reach[capacity] = 1.0
    for i in reversed(range(n)):
        taken = reach * take[i]
        y[i] = taken.sum()
        reach = reach - taken + _left(taken, weights[i])
    return y


def sample(theta, weights, capacity, *, gamma=1.0, regularizer=Shannon, exactly=False, rng):
    r"""Draw one subset by walking the table back: at item i with budget c, take it with probability :math:`P_i(c)`.

    The mean of the sample is :func:`marginals`, for every regulariser.

    Args: as for :func:`forward`, and ``rng``, a :class:`numpy.random.Generator`.

    Returns:
        0/1 integers (n,), always a subset that fits.

    >>> sample([0.0, 5.0, 1.0], [1, 1, 1], 2, exactly=True, rng=np.random.default_rng(0)).sum()
    np.int64(2)
    """
    _, take = forward(theta, weights, capacity, gamma=gamma, regularizer=regularizer, exactly=exactly)
    chosen, budget = np.zeros(len(take), int), capacity
    for i in reversed(range(len(take))):
        if rng.random() < take[i, budget]:
            chosen[i] = 1
            budget -= weights[i]
    return chosen


def hessian_product(theta, weights, capacity, v, *, gamma=1.0, regularizer=Shannon, exactly=False):
    r"""The product :math:`\nabla^2 V_n(C)\,v`, by differentiating both sweeps in the direction v.

    The Jacobian of the marginals is this Hessian, hence symmetric: the product is the vector-Jacobian product too.
    With :math:`\dot V` for the derivative of V along v,

    .. math::

        \dot V_i(c) = P_i(c)\,(\dot V_{i-1}(c - w_i) + v_i) + (1 - P_i(c))\,\dot V_{i-1}(c), \qquad
        \dot P_i(c) = \tfrac1\gamma P'\bigl(\dot V_{i-1}(c - w_i) + v_i - \dot V_{i-1}(c)\bigr).

    Args: as for :func:`forward`, and the direction ``v`` (n,).

    Returns:
        The product (n,).

    >>> H = [hessian_product([0.0, 1.0], [1, 1], 1, e, exactly=True) for e in np.eye(2)]
    >>> np.round(H, 6)
    array([[ 0.196612, -0.196612],
           [-0.196612,  0.196612]])
    """
    value, take = forward(theta, weights, capacity, gamma=gamma, regularizer=regularizer, exactly=exactly)
    n = len(take)
    value_dot, take_dot = np.zeros(capacity + 1), np.zeros_like(take)
    for i in range(n):
        _, _, t = _branches(value[i], theta[i], weights[i], gamma)
        change = _right(value_dot, weights[i]) + v[i] - value_dot
        take_dot[i] = regularizer.curvature(t) * change / gamma
        value_dot = value_dot + take[i] * change
    product = np.empty(n)
    reach, reach_dot = np.zeros(capacity + 1), np.zeros(capacity + 1)
    reach[capacity] = 1.0
    for i in reversed(range(n)):
        taken, taken_dot = reach * take[i], reach_dot * take[i] + reach * take_dot[i]
        product[i] = taken_dot.sum()
        reach = reach - taken + _left(taken, weights[i])
        reach_dot = reach_dot - taken_dot + _left(taken_dot, weights[i])
    return product


def enumerate_subsets(weights, capacity, *, exactly=False):
    r"""All subsets that fit, as rows of 0/1: :math:`\{x \in \{0, 1\}^n : \langle w, x\rangle \le C\}`, or = C.

    Args:
        weights: non-negative integers (n,); there are up to 2^n rows.
        capacity, exactly: as for :func:`forward`.

    Returns:
        Integers (number of subsets, n).

    >>> enumerate_subsets([1, 1, 1], 2, exactly=True)
    array([[0, 1, 1],
           [1, 0, 1],
           [1, 1, 0]])
    """
    subsets = np.array(list(itertools.product([0, 1], repeat=len(weights))), int).reshape(-1, len(weights))
    total = subsets @ np.asarray(weights, int)
    return subsets[total == capacity if exactly else total <= capacity]
