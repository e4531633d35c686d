"""The peer to beat: smoothed dynamic programs in the log domain, full tables, Numba with libm's exp and log1p.

This is how the operators are usually written: one table of values, one of probabilities, every cell a logaddexp. It is
compiled with the same options as the library's kernels, so that the ratio measures the method and not the compiler.
"""

import math

import numba
import numpy as np

compiled = numba.njit(cache=True, error_model="numpy", nogil=True)


@compiled
def forward(theta, weights, capacity, gamma, exactly):
    n = len(theta)
    value = np.full((n + 1, capacity + 1), -np.inf)
    take = np.zeros((n, capacity + 1))
    if exactly:
        value[0, 0] = 0.0
    else:
        value[0] = 0.0
    for i in range(n):
        w = weights[i]
        for c in range(capacity + 1):
            skipped = value[i, c]
            taken = value[i, c - w] + theta[i] if c >= w else -np.inf
            if taken == -np.inf:
                value[i + 1, c] = skipped
            elif skipped == -np.inf:
                value[i + 1, c] = taken
                take[i, c] = 1.0
            else:
                t = (taken - skipped) / gamma
                value[i + 1, c] = max(taken, skipped) + gamma * math.log1p(math.exp(-abs(t)))
                take[i, c] = 1.0 / (1.0 + math.exp(-t))
    return value, take


@compiled
def marginals(take, weights):
    n, width = take.shape
    y = np.zeros(n)
    reach = np.zeros(width)
    reach[-1] = 1.0
    for i in range(n - 1, -1, -1):
        w = weights[i]
        for c in range(width):
            taken = reach[c] * take[i, c]
            y[i] += taken
            reach[c] -= taken
            if c >= w:
                reach[c - w] += taken
    return y


@compiled
def hessian_product(take, weights, gamma, v):
    n, width = take.shape
    value_dot, before = np.zeros(width), np.zeros(width)
    take_dot = np.zeros((n, width))
    for i in range(n):
        w = weights[i]
        before[:] = value_dot
        for c in range(w, width):
            p = take[i, c]
            change = before[c - w] + v[i] - before[c]
            take_dot[i, c] = p * (1.0 - p) * change / gamma
            value_dot[c] = before[c] + p * change
    product = np.zeros(n)
    reach, reach_dot = np.zeros(width), np.zeros(width)
    reach[-1] = 1.0
    for i in range(n - 1, -1, -1):
        w = weights[i]
        for c in range(width):
            taken = reach[c] * take[i, c]
            taken_dot = reach_dot[c] * take[i, c] + reach[c] * take_dot[i, c]
            product[i] += taken_dot
            reach[c] -= taken
            reach_dot[c] -= taken_dot
            if c >= w:
                reach[c - w] += taken
                reach_dot[c - w] += taken_dot
    return product


@compiled
def marginals_and_product(theta, weights, capacity, v, gamma, exactly):
    """One instance: value, marginals and vector-Jacobian product."""
    value, take = forward(theta, weights, capacity, gamma, exactly)
    return value[-1, -1], marginals(take, weights), hessian_product(take, weights, gamma, v)
