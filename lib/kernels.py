r"""The fast kernels: what :mod:`lib.dp` does, for batches, compiled by Numba. :mod:`lib.subsets` is their user interface.

All functions take float64 scores (B, n), int64 weights (B, n) and capacities (B,), C-contiguous, checked by the
caller: capacities >= 0, scores < +inf, and -inf for an item that must not or cannot be chosen (w > C). ``exactly`` asks for a total
weight of exactly the capacity; the weights must then be 1 (top-k). Three algorithms, one a section below:

- **contour** (Shannon, top-k): no table; time O(n) for every k.
- **linear** (Shannon, knapsack): the recursion on probabilities instead of their logarithms, two multiplications a cell.
- **table** (every regulariser and problem): the recursion of :mod:`lib.dp`, cell by cell.

Rows of a table are kept at every :math:`\sqrt n`-th item and computed again in between, so that the memory is
:math:`O(\sqrt n\,C)` and what is read stays in the cache.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import event, types
from numba.extending import intrinsic

from lib import progress

#: Sums may be reordered and multiplications fused; NaN and inf keep their meaning.
FAST = {"reassoc", "contract", "nsz"}

#: The regularisers' codes in compiled code; HARD is the maximum itself.
SHANNON, TSALLIS, GINI, HARD = 0, 1, 2, 3
CODES = {"shannon": SHANNON, "tsallis": TSALLIS, "gini": GINI}


def _kernel(function):
    # nogil, and no parallel loops: kernels run in several Python threads at once, which Numba's own threads do not allow.
    # error_model: Python's check for division by zero would keep loops from being vectorised.
    return numba.njit(function, cache=True, nogil=True, error_model="numpy", fastmath=FAST)


class _SayWhileCompiling(event.Listener):
    """One line the first time that a kernel is compiled, so that nobody wonders what takes so long."""

    said = False

    def on_start(self, event):
        ours = event.data["dispatcher"].py_func.__module__ == __name__
        if ours and not self.said and not progress.static():
            self.said = True
            print("Compiling the kernels of lib: some seconds, once on this machine ...", file=sys.stderr, flush=True)

    def on_end(self, event):
        pass


event.register("numba:compile", _SayWhileCompiling())


class Solution(NamedTuple):
    r"""A batch of solved problems.

    With :math:`\eta_i = (\theta_i - \lambda w_i)/\gamma`, Shannon's value is
    :math:`V = \lambda C + \sum_{\eta_i > 0} (\theta_i - \lambda w_i) + \gamma L`, where L is small even if V/γ is huge.
    """

    value: np.ndarray  # (B,) smoothed maximum
    marginals: np.ndarray  # (B, n)
    tilt: np.ndarray  # (B,) λ >= 0 for a knapsack; 0 where the table was used
    excess: np.ndarray  # (B,) L, of Shannon only
    tabled: np.ndarray  # (B,) whether the table was used


def marginals(theta, weights, capacity, *, gamma, regularizer, exactly) -> Solution:
    """The smoothed maximum and the marginals, from the same sweeps."""
    batch, n = theta.shape
    out = Solution(np.empty(batch), np.zeros((batch, n)), np.zeros(batch), np.zeros(batch), np.ones(batch, np.bool_))
    _marginals(theta, weights, capacity, gamma, CODES[regularizer], exactly, *out)
    return out


def hessian_product(theta, weights, capacity, v, solution, *, gamma, regularizer, exactly) -> np.ndarray:
    """The Hessian of the smoothed maximum times v (B, n)."""
    product = np.zeros_like(theta)
    _hessian_product(
        theta, weights, capacity, gamma, CODES[regularizer], exactly, v,
        solution.marginals, solution.tilt, solution.tabled, product,
    )  # fmt: skip
    return product


def entropy(theta, weights, capacity, solution, *, gamma, regularizer, exactly):
    """The entropy of the law of the subsets, in nats (B,), and its gradient (B, n)."""
    if regularizer == "shannon":
        y, tilt = solution.marginals, solution.tilt
        mismatch = _mismatch(_margin(theta, weights, tilt, gamma), y)
        total = solution.excess + mismatch.sum(axis=-1) + tilt / gamma * (capacity - (weights * y).sum(axis=-1))
        direction = np.where(theta == -np.inf, 0.0, theta)
        options = {"gamma": gamma, "regularizer": regularizer, "exactly": exactly}
        return total, hessian_product(theta, weights, capacity, direction, solution, **options) / -gamma
    total, gradient = np.empty(len(theta)), np.zeros_like(theta)
    _entropy(theta, weights, capacity, gamma, CODES[regularizer], exactly, total, gradient)
    return total, gradient


def log_prob(theta, weights, capacity, subsets, solution, *, gamma, regularizer, exactly) -> np.ndarray:
    """The log-probability (S, B) of subsets (S, B, n), 0/1 in int8; -inf for what the law cannot draw."""
    if regularizer == "shannon":
        slack = capacity - (weights * subsets.astype(np.int64)).sum(axis=-1)
        fits = slack == 0 if exactly else slack >= 0
        mismatch = _mismatch(_margin(theta, weights, solution.tilt, gamma), subsets)
        log = -solution.excess - mismatch.sum(axis=-1) - solution.tilt / gamma * slack
        return np.where(fits, log, -np.inf)
    out = np.zeros(subsets.shape[:-1])
    _log_prob(theta, weights, capacity, gamma, CODES[regularizer], exactly, subsets, out)
    return out


def log_prob_gradient(theta, weights, capacity, subsets, upstream, solution, *, gamma, regularizer, exactly):
    """The sum over S of upstream (S, B) times the gradient of the log-probability of subsets (S, B, n): (B, n)."""
    if regularizer == "shannon":
        return (upstream[..., None] * (subsets - solution.marginals)).sum(axis=0) / gamma
    gradient = np.zeros_like(theta)
    _log_prob_gradient(theta, weights, capacity, gamma, CODES[regularizer], exactly, subsets, upstream, gradient)
    return gradient


def sample(theta, weights, capacity, seeds, solution, *, gamma, regularizer, exactly) -> np.ndarray:
    """Subsets (S, B, n), 0/1 in int8, one for each of the seeds (S, B), uint64."""
    subsets = np.zeros((*seeds.shape, theta.shape[1]), np.int8)
    code = CODES[regularizer]
    _sample(theta, weights, capacity, gamma, code, exactly, solution.tilt, solution.tabled, seeds, subsets)
    return subsets


def mode(theta, weights, capacity) -> np.ndarray:
    """The best subset of each knapsack (B, n), 0/1 in int8: the table for the maximum itself, walked back."""
    batch = len(theta)
    seeds, subsets = np.zeros((1, batch), np.uint64), np.zeros((1, *theta.shape), np.int8)
    _sample(theta, weights, capacity, 1.0, HARD, False, np.zeros(batch), np.ones(batch, np.bool_), seeds, subsets)
    return subsets[0]


def workspace(n: int, capacity: int) -> int:
    """Bytes that a knapsack of n items may need at once."""
    stride = math.isqrt(max(n - 1, 0)) + 1
    return 8 * (capacity + 1) * (4 * stride + 12)


def _margin(theta, weights, tilt, gamma):
    return (theta - tilt[:, None] * weights) / gamma


def _mismatch(margin, chosen):
    """Σ|η| over what differs from taking the items of positive margin, as terms; a mask's -inf times 0 is 0."""
    differs = np.where(margin > 0, 1.0 - chosen, chosen)
    return np.where(differs == 0, 0.0, np.abs(margin)) * differs


# ---- one batch: which algorithm ----


@_kernel
def _marginals(theta, weights, capacity, gamma, code, exactly, value, y, tilt, excess, tabled):
    for b in range(len(theta)):
        if code == SHANNON:
            if exactly:
                tabled[b] = False
                tilt[b], excess[b] = _contour_marginals(theta[b], capacity[b], gamma, y[b])
            else:
                fine, tilt[b], excess[b] = _linear_marginals(theta[b], weights[b], capacity[b], gamma, y[b])
                tabled[b] = not fine
        if tabled[b]:
            value[b] = _table_marginals(theta[b], weights[b], capacity[b], gamma, code, exactly, y[b])
            if code == SHANNON:
                tilt[b], excess[b] = 0.0, value[b] / gamma
                for i in range(len(theta[b])):
                    excess[b] -= max(theta[b, i], 0.0) / gamma
        else:
            value[b] = tilt[b] * capacity[b] + gamma * excess[b]
            for i in range(len(theta[b])):
                value[b] += max(theta[b, i] - tilt[b] * weights[b, i], 0.0)


@_kernel
def _hessian_product(theta, weights, capacity, gamma, code, exactly, v, y, tilt, tabled, product):
    for b in range(len(theta)):
        if tabled[b]:
            _table_gradient(theta[b], weights[b], capacity[b], gamma, code, exactly, False, v[b], product[b])
        elif exactly:
            _contour_product(theta[b], capacity[b], gamma, tilt[b], v[b], y[b], product[b])
        else:
            _linear_product(theta[b], weights[b], capacity[b], gamma, tilt[b], v[b], product[b])


@_kernel
def _entropy(theta, weights, capacity, gamma, code, exactly, total, gradient):
    for b in range(len(theta)):
        total[b] = _table_gradient(
            theta[b], weights[b], capacity[b], gamma, code, exactly, True, theta[b], gradient[b]
        )


@_kernel
def _log_prob(theta, weights, capacity, gamma, code, exactly, subsets, out):
    for b in range(len(theta)):
        _table_log_prob(theta[b], weights[b], capacity[b], gamma, code, exactly, subsets[:, b], out[:, b])


@_kernel
def _log_prob_gradient(theta, weights, capacity, gamma, code, exactly, subsets, upstream, gradient):
    for b in range(len(theta)):
        _table_log_prob_gradient(
            theta[b], weights[b], capacity[b], gamma, code, exactly, subsets[:, b], upstream[:, b], gradient[b]
        )


@_kernel
def _sample(theta, weights, capacity, gamma, code, exactly, tilt, tabled, seeds, subsets):
    for b in range(len(theta)):
        if tabled[b]:
            _table_sample(theta[b], weights[b], capacity[b], gamma, code, exactly, seeds[:, b], subsets[:, b])
        elif exactly:
            _contour_sample(theta[b], capacity[b], gamma, tilt[b], seeds[:, b], subsets[:, b])
        else:
            _linear_sample(theta[b], weights[b], capacity[b], gamma, tilt[b], seeds[:, b], subsets[:, b])


# ---- arithmetic ----


@intrinsic
def _bits(context, x):
    """The bits of a float64 as an int64."""
    return types.int64(types.float64), lambda _, builder, signature, args: builder.bitcast(args[0], ir.IntType(64))


@intrinsic
def _float(context, bits):
    """The float64 that has these bits."""
    return types.float64(types.int64), lambda _, builder, signature, args: builder.bitcast(args[0], ir.DoubleType())


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _exp(x):
    """exp(x) for x <= 0, within 3 ulp, 0 below -708: unlike libm's, a loop over it is vectorised."""
    high = max(x, -708.0)
    shifted = high * 1.4426950408889634 + 6755399441055744.0  # 1.5 * 2^52: the last bits are the nearest integer
    n = shifted - 6755399441055744.0
    r = (high - n * 0.6931471803691238) - n * 1.9082149292705877e-10  # high - n log 2, |r| <= log(2) / 2
    r2 = r * r
    r4 = r2 * r2
    y = (1 + r) + r2 * (1 / 2 + r / 6)
    y += r4 * ((1 / 24 + r / 120) + r2 * (1 / 720 + r / 5040))
    y += r4 * r4 * ((1 / 40320 + r / 362880) + r2 * (1 / 3628800 + r / 39916800) + r4 * (1 / 479001600 + r / 6227020800))
    power = _float((_bits(shifted) + 1023) << 52)
    return y * power if x >= -708.0 else 0.0


@_kernel
def _log1p(x):
    """log(1 + x) for 0 <= x <= 1, within a few ulp, by 2 artanh(x / (2 + x))."""
    s = x / (2.0 + x)
    z = s * s
    series = 1 / 33
    for odd in (31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1):
        series = series * z + 1 / odd
    return 2.0 * s * series


@_kernel
def _uniform(state):
    """The next state of a splitmix64 stream, and its number in [0, 1)."""
    state += np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return state, (z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@_kernel
def _chances(theta, weights, tilt, gamma, p, q):
    """p = σ((θ - λw)/γ) and q = 1 - p, both to full relative precision; the mean and the variance of Σ w x."""
    mean, variance = 0.0, 0.0
    for i in range(len(theta)):
        eta = (theta[i] - tilt * weights[i]) / gamma
        e = _exp(-abs(eta))
        large = 1.0 / (1.0 + e)
        small = e * large
        p[i] = large if eta > 0 else small
        q[i] = small if eta > 0 else large
        mean += weights[i] * p[i]
        variance += weights[i] * weights[i] * (large * small)
    return mean, variance


@_kernel
def _tilt(theta, weights, capacity, gamma, low, high, p, q):
    """λ in [low, high] so that Σ w p is the capacity, within a tenth of its standard deviation; p and q are filled.

    Every λ gives right answers: a good one makes the capacity a likely total, so that nothing is lost to rounding.
    """
    tilt = 0.5 * low + 0.5 * high
    for _ in range(200):
        mean, variance = _chances(theta, weights, tilt, gamma, p, q)
        gap = mean - capacity
        if abs(gap) <= 0.1 * math.sqrt(variance) + 0.01:
            break
        if gap > 0:
            low = tilt
        else:
            high = tilt
        newton = tilt + gamma * gap / variance
        tilt = newton if low < newton < high else 0.5 * low + 0.5 * high
    return tilt


@_kernel
def _total_excess(theta, weights, tilt, gamma):
    """Σ log(1 + e^-|η|)"""
    total = 0.0
    for i in range(len(theta)):
        total += _log1p(_exp(-abs(theta[i] - tilt * weights[i]) / gamma))
    return total


# ---- contour: Shannon, exactly k ----
#
# Let S be a sum of independent Bernoulli(p_i), with the tilt chosen so that its mean is k, and φ(t) = Π (q_i + p_i e^it).
# By the trapezoid rule on the unit circle, P(S = k) = (1/M) Σ_m e^(-ik t_m) φ(t_m), t_m = 2πm/M, which errs by
# P(S = k ± M) + ...; and y_i = p_i P(S without i = k - 1) / P(S = k) = Σ_m Re[W_m σ(η_i + i t_m)], where W_m has the
# common factors. M must be odd: an even one has a node at t = π, where q + p e^it = 0 for p = ½.


@_kernel
def _contour_start(theta, k):
    """The items that are not masked, and the k-th and (k+1)-th largest scores, if there are."""
    count = 0
    for i in range(len(theta)):
        count += theta[i] > -np.inf
    items = np.empty(count, np.int64)
    count = 0
    for i in range(len(theta)):
        if theta[i] > -np.inf:
            items[count] = i
            count += 1
    return items


@_kernel
def _contour_nodes(p, q, k):
    """cos t, sin t and the weights W of the nodes, as real and imaginary parts, and log P(S = k)."""
    n = len(p)
    variance = 0.0
    for i in range(n):
        variance += p[i] * q[i]
    # beyond this many steps from the mean, Bernstein's inequality leaves less than e^-39
    reach = int(13 + math.sqrt(169 + 78 * variance))
    total = min(reach, n) // 2 * 2 + 3
    cosine, sine = np.empty(total // 2 + 1), np.empty(total // 2 + 1)
    count = 0
    for m in range(total // 2 + 1):
        cosine[m], sine[m] = math.cos(2 * math.pi * m / total), math.sin(2 * math.pi * m / total)
        if variance * (1 - cosine[m]) > 39:  # |φ| <= e^(-variance (1 - cos t))
            break
        count += 1
    cosine, sine = cosine[:count], sine[:count]
    real, imaginary = np.ones(count), np.zeros(count)
    for i in range(0, n - 1, 2):  # two factors at a time: fewer loads
        p0, q0, p1, q1 = p[i], q[i], p[i + 1], q[i + 1]
        for m in range(count):
            a, b = q0 + p0 * cosine[m], p0 * sine[m]
            c, d = q1 + p1 * cosine[m], p1 * sine[m]
            e, f = a * c - b * d, a * d + b * c
            r = real[m]
            real[m] = r * e - imaginary[m] * f
            imaginary[m] = r * f + imaginary[m] * e
    if n % 2:
        for m in range(count):
            a, b = q[n - 1] + p[n - 1] * cosine[m], p[n - 1] * sine[m]
            r = real[m]
            real[m] = r * a - imaginary[m] * b
            imaginary[m] = r * b + imaginary[m] * a
    probability = 0.0
    for m in range(count):
        angle = 2 * math.pi * ((k * m) % total) / total
        c, s = math.cos(angle), math.sin(angle)
        r = real[m]
        real[m] = r * c + imaginary[m] * s
        imaginary[m] = imaginary[m] * c - r * s
        if m:  # the nodes t and -t together
            real[m] *= 2
            imaginary[m] *= 2
        probability += real[m]
    for m in range(count):
        real[m] /= probability
        imaginary[m] /= probability
    return cosine, sine, real, imaginary, math.log(probability / total)


@_kernel
def _contour_marginals(theta, k, gamma, y):
    """Fills y; returns the tilt and the excess."""
    items = _unmasked(theta)
    n = len(items)
    if n == 0:
        return 0.0, 0.0
    scores = theta[items]
    if k == 0 or k == n:  # one subset: a tilt that all items are under, or above
        y[items] = 1.0 if k else 0.0
        return (scores.min() - gamma if k else scores.max() + gamma), 0.0
    ones, p, q = np.ones(n), np.empty(n), np.empty(n)
    middle = np.partition(scores, (n - k - 1, n - k))
    low, high = middle[n - k - 1], middle[n - k]
    # σ(log k) = k/(k+1): with λ so far below the (k+1)-th score, k + 1 items alone have mean k
    tilt = _tilt(scores, ones, k, gamma, low - gamma * math.log(k), high + gamma * math.log(n - k), p, q)
    cosine, sine, real, imaginary, log_probability = _contour_nodes(p, q, k)
    for i in range(n):
        # the smaller of y and 1 - y is the one to sum: it comes out to full relative precision
        small, large = min(p[i], q[i]), max(p[i], q[i])
        sign = 1.0 if p[i] <= q[i] else -1.0
        total = 0.0
        for m in range(len(cosine)):
            total += (real[m] * (small + large * cosine[m]) - sign * imaginary[m] * large * sine[m]) / (
                1 - 2 * small * large * (1 - cosine[m])
            )
        minor = min(max(small * total, 0.0), 1.0)
        y[items[i]] = minor if sign > 0 else 1.0 - minor
    return tilt, log_probability + _total_excess(scores, ones, tilt, gamma)


@_kernel
def _contour_product(theta, k, gamma, tilt, v, y, product):
    r"""Cov(x, v·x) / γ, from d log φ = Σ_j σ(η_j + it) dη_j and σ' = σ(1 - σ).

    All is centred: A_m is Σ v_j (σ_jm - p_j), so that little cancels.
    """
    items = _unmasked(theta)
    n = len(items)
    if k == 0 or k == n:
        return
    scores, ones, p, q = theta[items], np.ones(n), np.empty(n), np.empty(n)
    _, variance = _chances(scores, ones, tilt, gamma, p, q)
    cosine, sine, real, imaginary, _ = _contour_nodes(p, q, k)
    centre = 0.0
    if variance > 0:
        for i in range(n):
            centre += p[i] * q[i] / variance * v[items[i]]
    count = len(cosine)
    a, b = np.zeros(count), np.zeros(count)  # A, real and imaginary parts
    for i in range(n):
        pq, skew = p[i] * q[i], p[i] - q[i]
        share = pq * (v[items[i]] - centre)
        for m in range(count):
            scaled = share / (1 - 2 * pq * (1 - cosine[m]))
            a[m] += scaled * skew * (1 - cosine[m])
            b[m] += scaled * sine[m]
    mean = 0.0
    for m in range(count):
        a[m], b[m] = real[m] * a[m] - imaginary[m] * b[m], real[m] * b[m] + imaginary[m] * a[m]  # W A
        mean += a[m]
    for i in range(n):
        pq, skew, direction = p[i] * q[i], p[i] - q[i], v[items[i]] - centre
        total = 0.0
        for m in range(count):
            inverse = 1 / (1 - 2 * pq * (1 - cosine[m]))
            first = a[m] * skew * (1 - cosine[m]) - b[m] * sine[m]
            second = real[m] * 0.5 * (1 + cosine[m] - skew * skew * (1 - cosine[m])) + imaginary[m] * skew * sine[m]
            total += inverse * (first + direction * inverse * second)
        product[items[i]] = (pq * total + (p[i] - y[items[i]]) * mean) / gamma


@_kernel
def _contour_sample(theta, k, gamma, tilt, seeds, subsets):
    """Independent coins of chance p, thrown again until k show: accepted with P(S = k), about 0.4 / sd."""
    items = _unmasked(theta)
    n = len(items)
    scores, p, q = theta[items], np.empty(n), np.empty(n)
    _chances(scores, np.ones(n), tilt, gamma, p, q)
    if k == 0 or k == n:
        p[:] = 1.0 if k else 0.0
    for s in range(len(seeds)):
        state = seeds[s]
        chosen = -1
        while chosen != k:
            chosen = 0
            for i in range(n):
                state, u = _uniform(state)
                take = u < p[i]
                subsets[s, items[i]] = take
                chosen += take
                if chosen > k:
                    break


@_kernel
def _unmasked(theta):
    return np.nonzero(theta > -np.inf)[0]


# ---- linear: Shannon, knapsack ----
#
# G_i(c) = q_i G_{i-1}(c) + p_i G_{i-1}(c - w_i), G_0(c) = e^(-λc/γ), is e^(V_i(c)/γ) up to factors known in advance.
# Its adjoint Q_{i-1}(c) = q_i Q_i(c) + p_i Q_i(c + w_i), Q_n(C) = 1, gives y_i = p_i Σ_c Q_i(c) G_{i-1}(c - w_i) / Z,
# Z = G_n(C). All terms are positive. λ makes Z as large as it can be; as long as it is far above the smallest float64,
# what underflowed could not have mattered. The order of the items is free: the heaviest come first, since row i is
# needed only from C - (the weight of all later items) on.

#: Cells hold at least this: denormal numbers would be a hundred times slower.
TINY = 1e-300
#: Below this Z, what underflowed might matter.
SAFE = 1e-250


@_kernel
def _divided(theta, weights, capacity):
    """The items that are not masked; their weights and the capacity over the common divisor, which is last."""
    items = _unmasked(theta)
    divisor, total = 0, 0
    for i in items:
        total += weights[i]
        a, b = divisor, weights[i]
        while b:
            a, b = b, a % b
        divisor = a
    divisor = max(divisor, 1)
    return items, weights[items] // divisor, min(capacity, total) // divisor, divisor


@_kernel
def _stride(n):
    """Items in a block."""
    return int(math.ceil(math.sqrt(n)))


@_kernel
def _linear_start(theta, weights, capacity, gamma, tilt):
    """The items that matter, heaviest first, and all that the recursion needs; a tilt of NaN asks for the best one."""
    items, w, reduced, divisor = _divided(theta, weights, capacity)
    order = np.argsort(-w)
    items, w = items[order], w[order]
    scores, n, total = theta[items], len(items), w.sum()
    p, q = np.empty(n), np.empty(n)
    if not math.isnan(tilt):
        tilt *= divisor
        _chances(scores, w, tilt, gamma, p, q)
    else:
        tilt = 0.0
        mean, _ = _chances(scores, w, tilt, gamma, p, q)
        if mean > reduced and total > reduced:
            logit, high = math.log(reduced / (total - reduced)), 0.0
            for i in range(n):
                if w[i]:  # with this λ every p is at most reduced / total
                    high = max(high, (scores[i] - gamma * logit) / w[i])
            tilt = _tilt(scores, w, reduced, gamma, 0.0, high, p, q)
    first = np.empty(n + 1, np.int64)
    first[n] = reduced
    for i in range(n - 1, -1, -1):
        first[i] = max(first[i + 1] - w[i], 0)
    return items, scores, w, reduced, divisor, first, tilt, p, q


@_kernel
def _linear_step(old, new, first, w, p, q):
    """One item: from G before it to G after it, from cell `first` on."""
    for c in range(first, min(w, len(old))):
        new[c] = q * old[c] + TINY
    start = max(first, w)
    if start < len(old):
        stay, come, out = old[start:], old[start - w :], new[start:]
        for j in range(len(out)):
            out[j] = q * stay[j] + (p * come[j] + TINY)


@_kernel
def _linear_step_back(old, new, first, w, p, q):
    """One item: from Q after it to Q before it."""
    end = max(len(old) - w, first)
    stay, come, out = old[first:end], old[first + w :], new[first:end]
    for j in range(len(out)):
        out[j] = q * stay[j] + (p * come[j] + TINY)
    for c in range(end, len(old)):
        new[c] = q * old[c] + TINY


@_kernel
def _linear_step_dot(old, new, old_dot, new_dot, first, w, p, q, v):
    """The derivative of a step in the direction v (x - p): the chances p change by p q v."""
    for c in range(first, min(w, len(old))):
        new[c] = q * old[c] + TINY
        new_dot[c] = q * (old_dot[c] - p * v * old[c])
    start = max(first, w)
    if start < len(old):
        stay, come, out = old[start:], old[start - w :], new[start:]
        stay_dot, come_dot, out_dot = old_dot[start:], old_dot[start - w :], new_dot[start:]
        for j in range(len(out)):
            out[j] = q * stay[j] + (p * come[j] + TINY)
            out_dot[j] = q * (stay_dot[j] - p * v * stay[j]) + p * (come_dot[j] + q * v * come[j])


@_kernel
def _linear_step_back_dot(old, new, old_dot, new_dot, first, w, p, q, v):
    end = max(len(old) - w, first)
    stay, come, out = old[first:end], old[first + w :], new[first:end]
    stay_dot, come_dot, out_dot = old_dot[first:end], old_dot[first + w :], new_dot[first:end]
    for j in range(len(out)):
        out[j] = q * stay[j] + (p * come[j] + TINY)
        out_dot[j] = q * (stay_dot[j] - p * v * stay[j]) + p * (come_dot[j] + q * v * come[j])
    for c in range(end, len(old)):
        new[c] = q * old[c] + TINY
        new_dot[c] = q * (old_dot[c] - p * v * old[c])


@_kernel
def _overlap(reach, row, first, shift):
    """Σ_c reach(c) row(c - shift)"""
    start, total = max(first, shift), 0.0
    if start < len(reach):
        a, b = reach[start:], row[start - shift :]
        for j in range(len(a)):
            total += a[j] * b[j]
    return total


@_kernel
def _linear_fill(rows, start, stop, w, p, q, first):
    """G before item start is in rows[0]: fill in G after each item of the block."""
    for i in range(start, stop):
        _linear_step(rows[i - start], rows[i - start + 1], first[i + 1], w[i], p[i], q[i])


@_kernel
def _linear_sweep(w, p, q, decay, reduced, first, kept, rows):
    """G before the first item of every block in kept; the last block in rows."""
    n, stride = len(w), len(rows) - 1
    for c in range(first[0], reduced + 1):
        kept[0, c] = _exp(-decay * c) + TINY
    for block in range(len(kept)):
        rows[0] = kept[block]
        _linear_fill(rows, block * stride, min((block + 1) * stride, n), w, p, q, first)
        if block + 1 < len(kept):
            kept[block + 1] = rows[stride]


@_kernel
def _linear_marginals(theta, weights, capacity, gamma, y):
    """Fills y; returns whether Z was safe, the tilt and the excess."""
    items, scores, w, reduced, divisor, first, tilt, p, q = _linear_start(theta, weights, capacity, gamma, np.nan)
    n, excess = len(items), _total_excess(scores, w, tilt, gamma)
    if w.sum() <= reduced:  # independent items
        y[items] = p
        return True, 0.0, excess
    stride = _stride(n)
    kept, rows = np.empty(((n + stride - 1) // stride, reduced + 1)), np.empty((stride + 1, reduced + 1))
    _linear_sweep(w, p, q, tilt / gamma, reduced, first, kept, rows)
    mass = rows[n - (len(kept) - 1) * stride, reduced]
    if not mass > SAFE:
        return False, 0.0, 0.0
    reach, before = np.zeros(reduced + 1), np.zeros(reduced + 1)
    reach[reduced] = 1.0
    for block in range(len(kept) - 1, -1, -1):
        start, stop = block * stride, min((block + 1) * stride, n)
        if stop < n:
            rows[0] = kept[block]
            _linear_fill(rows, start, stop, w, p, q, first)
        for i in range(stop - 1, start - 1, -1):
            take = p[i] <= q[i]  # the smaller of y and 1 - y is the one to sum
            minor = min(p[i], q[i]) / mass * _overlap(reach, rows[i - start], first[i + 1], w[i] if take else 0)
            minor = min(minor, 1.0)
            y[items[i]] = minor if take else 1.0 - minor
            _linear_step_back(reach, before, first[i], w[i], p[i], q[i])
            reach, before = before, reach
    # in the caller's units, whose capacity may exceed a multiple of the divisor
    excess += math.log(mass) - tilt / gamma * (capacity / divisor - reduced)
    return True, tilt / divisor, excess


@_kernel
def _linear_product(theta, weights, capacity, gamma, tilt, v, product):
    """Cov(x, v·x) / γ, by the derivatives of both sweeps in the direction v."""
    items, _, w, reduced, _, first, tilt, p, q = _linear_start(theta, weights, capacity, gamma, tilt)
    n, v = len(items), v[items]
    if w.sum() <= reduced:
        product[items] = p * q * v / gamma
        return
    stride = _stride(n)
    blocks = (n + stride - 1) // stride
    kept, kept_dot = np.empty((blocks, reduced + 1)), np.empty((blocks, reduced + 1))
    rows, rows_dot = np.empty((stride + 1, reduced + 1)), np.empty((stride + 1, reduced + 1))
    for c in range(first[0], reduced + 1):
        kept[0, c], kept_dot[0, c] = _exp(-tilt / gamma * c) + TINY, 0.0
    for block in range(blocks):
        rows[0], rows_dot[0] = kept[block], kept_dot[block]
        _linear_fill_dot(rows, rows_dot, block * stride, min((block + 1) * stride, n), w, p, q, v, first)
        if block + 1 < blocks:
            kept[block + 1], kept_dot[block + 1] = rows[stride], rows_dot[stride]
    last = n - (blocks - 1) * stride
    mass = rows[last, reduced]
    mean = rows_dot[last, reduced] / mass
    reach, before = np.zeros(reduced + 1), np.zeros(reduced + 1)
    reach_dot, before_dot = np.zeros(reduced + 1), np.zeros(reduced + 1)
    reach[reduced] = 1.0
    for block in range(blocks - 1, -1, -1):
        start, stop = block * stride, min((block + 1) * stride, n)
        if stop < n:
            rows[0], rows_dot[0] = kept[block], kept_dot[block]
            _linear_fill_dot(rows, rows_dot, start, stop, w, p, q, v, first)
        for i in range(stop - 1, start - 1, -1):
            # E[x r] - y E[r] with r = Σ v (x - p), or the same with 1 - x for x: whichever has the smaller mass
            take = p[i] <= q[i]
            shift, lead = (w[i], q[i] * v[i]) if take else (0, -p[i] * v[i])
            row, row_dot, f = rows[i - start], rows_dot[i - start], first[i + 1]
            minor = _overlap(reach, row, f, shift)
            moment = _overlap(reach_dot, row, f, shift) + _overlap(reach, row_dot, f, shift) + lead * minor
            change = min(p[i], q[i]) / mass * (moment - minor * mean) / gamma
            product[items[i]] = change if take else -change
            _linear_step_back_dot(reach, before, reach_dot, before_dot, first[i], w[i], p[i], q[i], v[i])
            reach, before, reach_dot, before_dot = before, reach, before_dot, reach_dot


@_kernel
def _linear_fill_dot(rows, rows_dot, start, stop, w, p, q, v, first):
    for i in range(start, stop):
        j = i - start
        _linear_step_dot(rows[j], rows[j + 1], rows_dot[j], rows_dot[j + 1], first[i + 1], w[i], p[i], q[i], v[i])


@_kernel
def _linear_sample(theta, weights, capacity, gamma, tilt, seeds, subsets):
    """Walk the rows back: take item i with chance p G(c - w) / (q G(c) + p G(c - w))."""
    items, _, w, reduced, _, first, tilt, p, q = _linear_start(theta, weights, capacity, gamma, tilt)
    n = len(items)
    budget = np.full(len(seeds), reduced)
    state = seeds.copy()
    if w.sum() <= reduced:
        for s in range(len(seeds)):
            for i in range(n):
                state[s], u = _uniform(state[s])
                subsets[s, items[i]] = u < p[i]
        return
    stride = _stride(n)
    kept, rows = np.empty(((n + stride - 1) // stride, reduced + 1)), np.empty((stride + 1, reduced + 1))
    _linear_sweep(w, p, q, tilt / gamma, reduced, first, kept, rows)
    for block in range(len(kept) - 1, -1, -1):
        start, stop = block * stride, min((block + 1) * stride, n)
        if stop < n:
            rows[0] = kept[block]
            _linear_fill(rows, start, stop, w, p, q, first)
        for s in range(len(seeds)):
            for i in range(stop - 1, start - 1, -1):
                c, row = budget[s], rows[i - start]
                state[s], u = _uniform(state[s])
                if c >= w[i]:
                    taken = p[i] * row[c - w[i]]
                    if u * (q[i] * row[c] + taken) < taken:
                        subsets[s, items[i]] = 1
                        budget[s] = c - w[i]


# ---- table: every regulariser, at most or exactly ----
#
# Row i has the cells first[i] .. last[i]: those from which the last row's one cell can be reached, and that some subset
# of the first i items reaches. So no cell is infinite. What is stored of a row is P, the chance to take.


@_kernel
def _table_start(theta, weights, capacity, exactly):
    if exactly:
        items = _unmasked(theta)
        n = len(items)
        w, reduced = np.ones(n, np.int64), capacity
    else:
        items, w, reduced, _ = _divided(theta, weights, capacity)
        n = len(items)
    first, last = np.empty(n + 1, np.int64), np.full(n + 1, reduced)
    first[n] = reduced
    for i in range(n - 1, -1, -1):
        first[i] = max(first[i + 1] - w[i], 0)
        if exactly:
            last[i] = min(i, reduced)
    return items, theta[items], w, reduced, first, last


@_kernel
def _table_step(code, old, new, take, first, last, old_last, w, theta, gamma):
    """One item: from V before it to V after it, and P."""
    for c in range(first, min(w, last + 1)):
        new[c], take[c] = old[c], 0.0
    start, stop = max(first, w), min(last, old_last) + 1
    if start < stop:
        stay, come, out, chance = old[start:stop], old[start - w : stop - w], new[start:stop], take[start:stop]
        if code == SHANNON:
            for j in range(len(out)):
                taken = come[j] + theta
                t = (taken - stay[j]) / gamma
                e = _exp(-abs(t))
                large = 1.0 / (1.0 + e)
                chance[j] = large if t > 0 else e * large
                out[j] = max(taken, stay[j]) + gamma * _log1p(e)
        elif code == TSALLIS:
            for j in range(len(out)):
                taken = come[j] + theta
                t = min(max((taken - stay[j]) / gamma, -2.0), 2.0)
                root = math.sqrt(2.0 - 0.25 * t * t)
                p = 0.5 + 0.25 * t * root
                inside = stay[j] + gamma * (p * t - 2 / 3 * root * (3.0 - root * root) + 4 / 3)
                chance[j] = min(max(p, 0.0), 1.0)
                out[j] = stay[j] if t == -2.0 else taken if t == 2.0 else inside
        elif code == GINI:
            for j in range(len(out)):
                taken = come[j] + theta
                p = min(max(0.5 + 0.5 * ((taken - stay[j]) / gamma), 0.0), 1.0)
                chance[j] = p
                out[j] = taken if p == 1.0 else stay[j] + gamma * p * p
        else:
            for j in range(len(out)):
                taken = come[j] + theta
                chance[j] = 1.0 if taken > stay[j] else 0.0
                out[j] = max(taken, stay[j])
    if last > old_last:  # exactly: only taking all items reaches this cell
        new[last], take[last] = old[last - w] + theta, 1.0


@_kernel
def _curvature(code, p):
    """P' as a function of P."""
    if code == SHANNON:
        return p * (1.0 - p)
    if code == TSALLIS:
        return math.sqrt(p * (1.0 - p)) / (math.sqrt(p) + math.sqrt(1.0 - p))
    return 0.5 if 0.0 < p < 1.0 else 0.0


@_kernel
def _table_fill(code, rows, take, start, stop, scores, w, gamma, first, last):
    """V before item start is in rows[0]: fill in V after each item of the block, and P."""
    for i in range(start, stop):
        j = i - start
        _table_step(
            code, rows[j], rows[j + 1], take[j], first[i + 1], last[i + 1], last[i], w[i], scores[i], gamma
        )


@_kernel
def _table_sweep(code, scores, w, reduced, gamma, first, last, kept, rows, take):
    """V before the first item of every block in kept; the last block in rows and take; returns the value."""
    n, stride = len(w), len(take)
    kept[0] = 0.0
    stop = 0
    for block in range(len(kept)):
        start, stop = block * stride, min((block + 1) * stride, n)
        rows[0] = kept[block]
        _table_fill(code, rows, take, start, stop, scores, w, gamma, first, last)
        if block + 1 < len(kept):
            kept[block + 1] = rows[stride]
    return rows[n - (len(kept) - 1) * stride, reduced]


@_kernel
def _table_space(n, reduced):
    stride = max(_stride(n), 1)
    width = reduced + 1
    blocks = max((n + stride - 1) // stride, 1)
    return np.empty((blocks, width)), np.empty((stride + 1, width)), np.empty((stride, width))


@_kernel
def _flow_back(reach, taken, before, first, last, new_last, w):
    """Q before an item: what did not take it stays, what took it comes from c + w."""
    end = min(max(new_last + 1 - w, first), last + 1)
    stay, out, out_of, come = reach[first:end], taken[first:end], before[first:end], taken[first + w :]
    for j in range(len(out_of)):
        out_of[j] = stay[j] - out[j] + come[j]
    for c in range(end, last + 1):
        before[c] = reach[c] - taken[c]


@_kernel
def _table_marginals(theta, weights, capacity, gamma, code, exactly, y):
    """Fills y; returns the value."""
    items, scores, w, reduced, first, last = _table_start(theta, weights, capacity, exactly)
    n = len(items)
    kept, rows, take = _table_space(n, reduced)
    value = _table_sweep(code, scores, w, reduced, gamma, first, last, kept, rows, take)
    reach, before, taken = np.zeros(reduced + 1), np.zeros(reduced + 1), np.zeros(reduced + 1)
    reach[reduced] = 1.0
    for block in range(len(kept) - 1, -1, -1):
        start, stop = block * len(take), min((block + 1) * len(take), n)
        if stop < n:
            rows[0] = kept[block]
            _table_fill(code, rows, take, start, stop, scores, w, gamma, first, last)
        for i in range(stop - 1, start - 1, -1):
            total = 0.0
            chance = take[i - start]
            for c in range(first[i + 1], last[i + 1] + 1):
                taken[c] = reach[c] * chance[c]
                total += taken[c]
            y[items[i]] = min(total, 1.0)
            _flow_back(reach, taken, before, first[i], last[i], last[i + 1], w[i])
            reach, before = before, reach
    return value


@_kernel
def _table_fill_dot(code, of_entropy, dot_rows, take, take_dot, start, stop, v, w, gamma, first, last):
    r"""The expectation E of a sum over the walk, forward, and the derivative X of the chances by it.

    Of v·x, with E_i = P (E_{i-1}(c - w) + v_i) + (1 - P) E_{i-1}(c), E is the derivative of V in the direction v and X
    that of P; of the entropy, each item adds the entropy of its coin, and X says how the total depends on the chances.
    """
    for i in range(start, stop):
        old, new, chance, x = dot_rows[i - start], dot_rows[i - start + 1], take[i - start], take_dot[i - start]
        a, stop_both = first[i + 1], min(last[i + 1], last[i]) + 1
        for c in range(a, min(w[i], last[i + 1] + 1)):
            new[c], x[c] = old[c], 0.0
        a = max(a, w[i])
        if of_entropy:
            for c in range(a, stop_both):
                p = chance[c]
                change = old[c - w[i]] - old[c]
                if 0.0 < p < 1.0:
                    new[c] = old[c] + p * change - p * math.log(p) - (1.0 - p) * math.log(1.0 - p)
                    x[c] = _curvature(code, p) * (change + math.log((1.0 - p) / p)) / gamma
                else:
                    new[c], x[c] = old[c] + p * change, 0.0
        else:
            for c in range(a, stop_both):
                change = old[c - w[i]] + v[i] - old[c]
                new[c] = old[c] + chance[c] * change
                x[c] = _curvature(code, chance[c]) * change / gamma
        if last[i + 1] > last[i]:
            c = last[i + 1]
            new[c], x[c] = old[c - w[i]] + (0.0 if of_entropy else v[i]), 0.0


@_kernel
def _table_gradient(theta, weights, capacity, gamma, code, exactly, of_entropy, v, gradient):
    """Fills the gradient of E[v·x] (the Hessian times v) or of the entropy, which it returns."""
    items, scores, w, reduced, first, last = _table_start(theta, weights, capacity, exactly)
    n, v = len(items), v[items]
    kept, rows, take = _table_space(n, reduced)
    kept_dot, rows_dot, take_dot = _table_space(n, reduced)
    stride = len(take)
    kept[0], kept_dot[0] = 0.0, 0.0
    for block in range(len(kept)):
        start, stop = block * stride, min((block + 1) * stride, n)
        rows[0], rows_dot[0] = kept[block], kept_dot[block]
        _table_fill(code, rows, take, start, stop, scores, w, gamma, first, last)
        _table_fill_dot(code, of_entropy, rows_dot, take, take_dot, start, stop, v, w, gamma, first, last)
        if block + 1 < len(kept):
            kept[block + 1], kept_dot[block + 1] = rows[stride], rows_dot[stride]
    total = rows_dot[n - (len(kept) - 1) * stride, reduced]
    reach, before, taken = np.zeros(reduced + 1), np.zeros(reduced + 1), np.zeros(reduced + 1)
    reach_dot, before_dot, taken_dot = np.zeros(reduced + 1), np.zeros(reduced + 1), np.zeros(reduced + 1)
    reach[reduced] = 1.0
    for block in range(len(kept) - 1, -1, -1):
        start, stop = block * stride, min((block + 1) * stride, n)
        if stop < n:
            rows[0], rows_dot[0] = kept[block], kept_dot[block]
            _table_fill(code, rows, take, start, stop, scores, w, gamma, first, last)
            _table_fill_dot(code, of_entropy, rows_dot, take, take_dot, start, stop, v, w, gamma, first, last)
        for i in range(stop - 1, start - 1, -1):
            chance, x, flow = take[i - start], take_dot[i - start], 0.0
            for c in range(first[i + 1], last[i + 1] + 1):
                taken[c] = reach[c] * chance[c]
                taken_dot[c] = reach_dot[c] * chance[c] + reach[c] * x[c]
                flow += taken_dot[c]
            gradient[items[i]] = flow
            _flow_back(reach, taken, before, first[i], last[i], last[i + 1], w[i])
            _flow_back(reach_dot, taken_dot, before_dot, first[i], last[i], last[i + 1], w[i])
            reach, before, reach_dot, before_dot = before, reach, before_dot, reach_dot
    return total


@_kernel
def _table_sample(theta, weights, capacity, gamma, code, exactly, seeds, subsets):
    """Walk the table back: take item i with chance P_i(c)."""
    items, scores, w, reduced, first, last = _table_start(theta, weights, capacity, exactly)
    n = len(items)
    kept, rows, take = _table_space(n, reduced)
    _table_sweep(code, scores, w, reduced, gamma, first, last, kept, rows, take)
    budget = np.full(len(seeds), reduced)
    state = seeds.copy()
    for block in range(len(kept) - 1, -1, -1):
        start, stop = block * len(take), min((block + 1) * len(take), n)
        if stop < n:
            rows[0] = kept[block]
            _table_fill(code, rows, take, start, stop, scores, w, gamma, first, last)
        for s in range(len(seeds)):
            for i in range(stop - 1, start - 1, -1):
                state[s], u = _uniform(state[s])
                if u < take[i - start, budget[s]]:
                    subsets[s, items[i]] = 1
                    budget[s] -= w[i]


@_kernel
def _can_be_drawn(items, w, reduced, exactly, subset):
    """Whether the subset fits and has no item that cannot be chosen."""
    total, chosen = 0, 0
    for i in range(len(items)):
        total += w[i] * subset[items[i]]
        chosen += subset[items[i]]
    return chosen == subset.sum() and (total == reduced if exactly else total <= reduced)


@_kernel
def _table_log_prob(theta, weights, capacity, gamma, code, exactly, subsets, out):
    """The log of the chances along the walk that draws each subset."""
    items, scores, w, reduced, first, last = _table_start(theta, weights, capacity, exactly)
    n = len(items)
    kept, rows, take = _table_space(n, reduced)
    _table_sweep(code, scores, w, reduced, gamma, first, last, kept, rows, take)
    budget = np.full(len(subsets), reduced)
    for s in range(len(subsets)):
        out[s] = 0.0 if _can_be_drawn(items, w, reduced, exactly, subsets[s]) else -np.inf
    for block in range(len(kept) - 1, -1, -1):
        start, stop = block * len(take), min((block + 1) * len(take), n)
        if stop < n:
            rows[0] = kept[block]
            _table_fill(code, rows, take, start, stop, scores, w, gamma, first, last)
        for s in range(len(subsets)):
            if out[s] > -np.inf:
                for i in range(stop - 1, start - 1, -1):
                    p = take[i - start, budget[s]]
                    chosen = subsets[s, items[i]]
                    out[s] += math.log(p if chosen else 1.0 - p)
                    budget[s] -= w[i] * chosen


@_kernel
def _table_log_prob_gradient(theta, weights, capacity, gamma, code, exactly, subsets, upstream, gradient):
    """Each walk adds, at each of its cells, d log P = P'/P dt or -P'/(1 - P) dt to one backward sweep.

    Upstream must be 0 for what cannot be drawn.
    """
    items, scores, w, reduced, first, last = _table_start(theta, weights, capacity, exactly)
    n = len(items)
    kept, rows, take = _table_space(n, reduced)
    _table_sweep(code, scores, w, reduced, gamma, first, last, kept, rows, take)
    reach, before, taken = np.zeros(reduced + 1), np.zeros(reduced + 1), np.zeros(reduced + 1)
    budget = np.full(len(subsets), reduced)
    for block in range(len(kept) - 1, -1, -1):
        start, stop = block * len(take), min((block + 1) * len(take), n)
        if stop < n:
            rows[0] = kept[block]
            _table_fill(code, rows, take, start, stop, scores, w, gamma, first, last)
        for i in range(stop - 1, start - 1, -1):
            chance, flow = take[i - start], 0.0
            for c in range(first[i + 1], last[i + 1] + 1):
                taken[c] = reach[c] * chance[c]
            for s in range(len(subsets)):
                if upstream[s] != 0:
                    chosen = subsets[s, items[i]]
                    p = chance[budget[s]]
                    slope = _curvature(code, p) / gamma
                    if slope > 0:
                        taken[budget[s]] += upstream[s] * slope * (1.0 / p if chosen else -1.0 / (1.0 - p))
                    budget[s] -= w[i] * chosen
            for c in range(first[i + 1], last[i + 1] + 1):
                flow += taken[c]
            gradient[items[i]] = flow
            _flow_back(reach, taken, before, first[i], last[i], last[i + 1], w[i])
            reach, before = before, reach
