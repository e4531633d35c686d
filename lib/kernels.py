r"""The fast kernels: what :mod:`lib.dp` does, for batches, compiled by Numba. :mod:`lib.subsets` is their interface.

The last section has the problems that it asks, :class:`ExactlyK` and :class:`AtMost`. The compiled functions above take
float64 scores (B, n), int64 weights (B, n) and capacities (B,), C-contiguous: scores < +inf, -inf for an item that must
not or cannot be chosen, 0 <= capacities <= the sum of the other items' weights. ``exactly`` asks for a total weight of
exactly the capacity; then the weights must be 1 (top-k), and the scores shifted so that the k-th largest is 0, which
saves the digits of their differences. Three algorithms, one a section:

- **contour** (Shannon, top-k): no table; time O(n) for every k.
- **linear** (Shannon, knapsack): the recursion on probabilities instead of logarithms, two multiplications a cell.
- **table** (every regulariser and problem): the recursion of :mod:`lib.dp`, cell by cell.

Rows of a table are kept at every :math:`\sqrt n`-th item and computed again in between, so that the memory is
:math:`O(\sqrt n\,C)` and what is read stays in the cache.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
from typing import NamedTuple

import numba
import numpy as np
from numba.core import event
from numba.core.caching import FunctionCache

from lib import progress
from lib.smoothmax import REGULARIZERS, Gini, Shannon, Tsallis

#: Sums may be reordered, multiplications fused, divisions by constants multiplied; NaN and inf keep their meaning.
FAST = {"reassoc", "contract", "nsz", "arcp"}
#: For code in which a reordered product would underflow, or that needs its roundings.
IN_ORDER = {"contract", "arcp"}

#: The regularisers in compiled code; HARD is the maximum itself. (Numbers, not places in REGULARIZERS: Numba's cache
#: does not notice a change in another file, which is also why all kernels are in this one.)
SHANNON, TSALLIS, GINI, HARD = 0, 1, 2, 3
CODES = {Shannon: SHANNON, Tsallis: TSALLIS, Gini: GINI}


class _Cache(FunctionCache):
    """Numba's cache, which a file that was cut short (by a full disk, or a copy that was stopped) does not break."""

    def load_overload(self, *arguments):
        try:
            return super().load_overload(*arguments)
        except Exception:  # whatever unpickling such a file may raise
            self.flush()
            return None


#: Whether compiled kernels can be kept: Numba finds a folder that may be written to.
_KEPT = True


def _kernel(function, flags=FAST):
    global _KEPT
    # nogil, and no parallel loops: kernels run in several Python threads at once, which Numba's own threads cannot.
    # error_model: Python's check for division by zero would keep loops from being vectorised.
    kernel = numba.njit(function, nogil=True, error_model="numpy", fastmath=flags)
    if not numba.config.DISABLE_JIT:
        try:
            kernel._cache = _Cache(function)  # what cache=True does with Numba's own
        except RuntimeError:  # "no locator available"
            _KEPT = False
    return kernel


def _kernel_in_order(function):
    return _kernel(function, IN_ORDER)


class _SayWhileCompiling(event.Listener):
    """One line the first time that a process compiles a kernel, so that nobody wonders what takes so long."""

    said = False

    def on_start(self, event):
        ours = event.data["dispatcher"].py_func.__module__ == __name__
        if ours and not self.said and not progress.static():
            self.said = True
            what_then = (
                "then they are kept"
                if _KEPT
                else "and again in every process, as no folder for them can be written to; NUMBA_CACHE_DIR names one"
            )
            message = f"Compiling the kernels of lib for their first use: up to a minute, {what_then} ..."
            print(message, file=sys.stderr, flush=True)

    def on_end(self, event):
        pass


event.register("numba:compile", _SayWhileCompiling())


# ---- arithmetic ----

#: No cell holds less, other than 0: processors are a hundred times slower with denormal numbers.
TINY = 1e-300


@_kernel_in_order
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
    y += (
        r4 * r4 * ((1 / 40320 + r / 362880) + r2 * (1 / 3628800 + r / 39916800) + r4 * (1 / 479001600 + r / 6227020800))
    )
    power = np.int64((np.float64(shifted).view(np.int64) + 1023) << 52).view(np.float64)  # 2^n, from its bits
    return y * power if x >= -708.0 else 0.0


@_kernel
def _log1p(x):
    """log(1 + x) for 0 <= x <= 1, within a few ulp: 2 artanh(s) = 2 (s + s^3/3 + ...) with s = x / (2 + x) <= 1/3."""
    s = x / (2.0 + x)
    z = s * s
    z2 = z * z
    z4 = z2 * z2
    z8 = z4 * z4
    y = (1 + z / 3) + z2 * (1 / 5 + z / 7) + z4 * ((1 / 9 + z / 11) + z2 * (1 / 13 + z / 15))
    y += z8 * ((1 / 17 + z / 19) + z2 * (1 / 21 + z / 23) + z4 * ((1 / 25 + z / 27) + z2 * (1 / 29 + z / 31)))
    return 2.0 * s * (y + z8 * z8 / 33)


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
def _unmasked(theta):
    return np.nonzero(theta > -np.inf)[0]


@_kernel
def _chances(theta, weights, tilt, gamma, p, q):
    """Fill p = σ((θ - λw)/γ) and q = 1 - p, both to full relative precision; return the mean and variance of Σ w x."""
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
def _gibbs_value(theta, weights, capacity, gamma, tilt, excess):
    """V, arranged so that λ counts only as far as the items of positive margin differ from the capacity."""
    total, slack = gamma * excess, capacity
    for i in range(len(theta)):
        if theta[i] - tilt * weights[i] > 0:
            total += theta[i]
            slack -= weights[i]
    return total + tilt * slack


@_kernel
def _gibbs_log_prob_batch(theta, weights, capacity, gamma, exactly, subsets, tilt, excess, tabled, out):
    """-L - Σ|η| over what differs from taking the items of positive margin - λ/γ (capacity that is left)."""
    for b in range(len(theta)):
        for s in range(0 if tabled[b] else len(subsets)):
            slack, total, possible = capacity[b], excess[b], True
            for i in range(len(theta[b])):
                eta, chosen = (theta[b, i] - tilt[b] * weights[b, i]) / gamma, subsets[s, b, i] != 0
                slack -= weights[b, i] * chosen
                if chosen != (eta > 0):
                    possible &= eta > -np.inf
                    total += abs(eta)
            possible &= slack == 0 if exactly else slack >= 0
            out[s, b] = min(-total - tilt[b] / gamma * slack, 0.0) if possible else -np.inf


@_kernel
def _total_excess(p, q):
    """Σ log(1 + e^-|η|), from max(p, q) = 1/(1 + e^-|η|): one logarithm for many factors."""
    total = 0.0
    for start in range(0, len(p), 256):
        product = 1.0
        for i in range(start, min(start + 256, len(p))):
            product *= max(p[i], q[i])
        total -= math.log(product)
    return total


# ---- contour: Shannon, exactly k ----
#
# Let S be a sum of independent Bernoulli(p_i), tilted so that its mean is about k, and φ(t) = Π (q_i + p_i e^it). By
# the trapezoid rule on the unit circle, P(S = k) = (1/M) Σ_m e^(-ik t_m) φ(t_m) with t_m = 2πm/M, where the error is
# P(S = k ± M) + ..., and y_i = p_i P(S without i = k - 1) / P(S = k) = Σ_m Re[W_m σ(η_i + i t_m)], where W_m has the
# common factors. M must be odd: an even one has a node at t = π, where q + p e^it = 0 for p = ½.


@_kernel
def _characteristic(p, q, cosine, sine, real, imaginary):
    """Multiply by all the factors q + p e^it, four at a time to spare loads and stores."""
    n = len(p)
    for i in range(0, n - 3, 4):
        p0, p1, p2, p3, q0, q1, q2, q3 = p[i], p[i + 1], p[i + 2], p[i + 3], q[i], q[i + 1], q[i + 2], q[i + 3]
        for m in range(len(real)):
            c, s = cosine[m], sine[m]
            a, b = q0 + p0 * c, p0 * s
            d, e = q1 + p1 * c, p1 * s
            a, b = a * d - b * e, a * e + b * d
            d, e = q2 + p2 * c, p2 * s
            f, g = q3 + p3 * c, p3 * s
            d, e = d * f - e * g, d * g + e * f
            a, b = a * d - b * e, a * e + b * d
            r, t = real[m], imaginary[m]
            real[m] = r * a - t * b
            imaginary[m] = r * b + t * a
    for i in range(n - n % 4, n):
        for m in range(len(real)):
            a, b = q[i] + p[i] * cosine[m], p[i] * sine[m]
            r, t = real[m], imaginary[m]
            real[m] = r * a - t * b
            imaginary[m] = r * b + t * a


#: -log of the probability that the contour leaves out: e^-39 is below the rounding of a float64.
LEFT_OUT = 39


@_kernel
def _contour_nodes(p, q, k):
    """The cosines, sines and weights W of the nodes t, W as real and imaginary parts, and log P(S = k)."""
    n = len(p)
    variance = 0.0
    for i in range(n):
        variance += p[i] * q[i]
    # Bernstein's inequality: P(|S - mean| >= r) <= 2 exp(-r^2 / (2 (variance + r/3))), e^-LEFT_OUT beyond this r
    reach = int(LEFT_OUT / 3 + math.sqrt((LEFT_OUT / 3) ** 2 + 2 * LEFT_OUT * variance))
    total = (min(reach, n) + 1) | 1
    cosine, sine = np.empty(total // 2 + 1), np.empty(total // 2 + 1)
    count = 0
    for m in range(total // 2 + 1):
        cosine[m], sine[m] = math.cos(2 * math.pi * m / total), math.sin(2 * math.pi * m / total)
        if variance * (1 - cosine[m]) > LEFT_OUT:  # |φ| <= e^(-variance (1 - cos t))
            break
        count += 1
    cosine, sine = cosine[:count], sine[:count]
    real, imaginary = np.ones(count), np.zeros(count)
    _characteristic(p, q, cosine, sine, real, imaginary)
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
def _minors(p, q, cosine, sine, real, imaginary, out):
    """The smaller of y and 1 - y by the tilted chances: the one to sum, as its error is relative to that chance."""
    for i in range(len(p)):
        small, large = min(p[i], q[i]), max(p[i], q[i])
        sign = 1.0 if p[i] <= q[i] else -1.0
        twice, turn, total = 2 * small * large, sign * large, 0.0
        for m in range(len(real)):
            top = real[m] * (small + large * cosine[m]) - turn * imaginary[m] * sine[m]
            total += top / (1 - twice * (1 - cosine[m]))
        out[i] = small * total


@_kernel
def _contour_marginals(theta, k, gamma, y):
    """Fills y; returns the tilt and the excess."""
    items = _unmasked(theta)
    n = len(items)
    if k == 0 or k == n:  # one subset: a tilt that all items are under, or above
        y[items] = 1.0 if k else 0.0
        return (-1.0 if k else 1.0), 0.0
    scores, p, q = theta[items], np.empty(n), np.empty(n)
    low, least = -np.inf, 0
    for i in range(n):  # the (k+1)-th largest score; the k-th is 0
        least += scores[i] >= 0
        if scores[i] < 0:
            low = max(low, scores[i])
    low = 0.0 if least > k else low
    # σ(log k) = k/(k+1): with λ so far below the (k+1)-th score, k + 1 items alone have mean k
    tilt = _tilt(scores, np.ones(n), k, gamma, low - gamma * math.log(k), gamma * math.log(n - k), p, q)
    cosine, sine, real, imaginary, log_probability = _contour_nodes(p, q, k)
    minors = np.empty(n)
    _minors(p, q, cosine, sine, real, imaginary, minors)
    for i in range(n):
        minor = min(max(minors[i], 0.0), 1.0)
        y[items[i]] = minor if p[i] <= q[i] else 1.0 - minor
    return tilt, log_probability + _total_excess(p, q)


@_kernel
def _contour_marginals_batch(theta, weights, capacity, gamma, value, y, tilt, excess, tabled):
    for b in range(len(theta)):
        tilt[b], excess[b] = _contour_marginals(theta[b], capacity[b], gamma, y[b])
        value[b] = _gibbs_value(theta[b], weights[b], capacity[b], gamma, tilt[b], excess[b])
        tabled[b] = False


@_kernel
def _characteristic_dot(p, q, v, cosine, sine, a, b):
    """Add up A = Σ v (σ(η + it) - p), two items at a time."""
    for i in range(0, len(p) - 1, 2):
        x, y = p[i] * q[i], p[i + 1] * q[i + 1]
        f, g, skew, askew = x * v[i], y * v[i + 1], p[i] - q[i], p[i + 1] - q[i + 1]
        for m in range(len(a)):
            c = 1 - cosine[m]
            s, t = f / (1 - 2 * x * c), g / (1 - 2 * y * c)
            a[m] += (s * skew + t * askew) * c
            b[m] += (s + t) * sine[m]
    if len(p) % 2:
        i = len(p) - 1
        x = p[i] * q[i]
        for m in range(len(a)):
            s = x * v[i] / (1 - 2 * x * (1 - cosine[m]))
            a[m] += s * (p[i] - q[i]) * (1 - cosine[m])
            b[m] += s * sine[m]


@_kernel
def _covariances(p, q, v, cosine, sine, real, imaginary, a, b, out):
    """Σ_m Re[WA (σ - p) + v W σ (1 - σ)], item by item."""
    for i in range(len(p)):
        pq, skew, direction, total = p[i] * q[i], p[i] - q[i], v[i], 0.0
        for m in range(len(cosine)):
            c, s = cosine[m], sine[m]
            inverse = 1 / (1 - 2 * pq * (1 - c))
            first = a[m] * skew * (1 - c) - b[m] * s
            second = real[m] * 0.5 * (1 + c - skew * skew * (1 - c)) + imaginary[m] * skew * s
            total += inverse * (first + direction * inverse * second)
        out[i] = pq * total


@_kernel
def _contour_product(theta, k, gamma, tilt, v, y, product):
    r"""Cov(x, v·x) / γ, from d log φ = Σ_j σ(η_j + it) dη_j and σ' = σ(1 - σ).

    All is centred: A_m is Σ v_j (σ_jm - p_j), so that little cancels.
    """
    items = _unmasked(theta)
    n = len(items)
    if k == 0 or k == n:
        return
    scores, p, q = theta[items], np.empty(n), np.empty(n)
    _, variance = _chances(scores, np.ones(n), tilt, gamma, p, q)
    cosine, sine, real, imaginary, _ = _contour_nodes(p, q, k)
    centre = 0.0
    if variance > 0:
        for i in range(n):
            centre += p[i] * q[i] / variance * v[items[i]]
    a, b = np.zeros(len(cosine)), np.zeros(len(cosine))  # A, real and imaginary parts
    direction = v[items] - centre
    _characteristic_dot(p, q, direction, cosine, sine, a, b)
    mean = 0.0
    for m in range(len(cosine)):
        a[m], b[m] = real[m] * a[m] - imaginary[m] * b[m], real[m] * b[m] + imaginary[m] * a[m]  # W A
        mean += a[m]
    covariance = np.empty(n)
    _covariances(p, q, direction, cosine, sine, real, imaginary, a, b, covariance)
    for i in range(n):
        product[items[i]] = (covariance[i] + (p[i] - y[items[i]]) * mean) / gamma


@_kernel
def _contour_product_batch(theta, capacity, gamma, tilt, v, y, product):
    for b in range(len(theta)):
        _contour_product(theta[b], capacity[b], gamma, tilt[b], v[b], y[b], product[b])


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
def _contour_sample_batch(theta, capacity, gamma, tilt, seeds, subsets):
    for b in range(len(theta)):
        _contour_sample(theta[b], capacity[b], gamma, tilt[b], seeds[:, b], subsets[:, b])


# ---- linear: Shannon, knapsack ----
#
# G_i(c) = q_i G_{i-1}(c) + p_i G_{i-1}(c - w_i), G_0(c) = e^(-λc/γ), is e^(V_i(c)/γ) up to factors known in advance.
# Its adjoint Q_{i-1}(c) = q_i Q_i(c) + p_i Q_i(c + w_i), Q_n(C) = 1, gives y_i = p_i Σ_c Q_i(c) G_{i-1}(c - w_i) / Z,
# Z = G_n(C). All terms are positive. λ makes Z as large as it can be; as long as it is far above the smallest float64,
# what underflowed could not have mattered. The order of the items is free: the heaviest come first, since row i is
# needed only from C - (the weight of all later items) on.

#: Below this Z, what underflowed might matter.
SAFE = 1e-250


@_kernel
def _stride(n):
    """Items in a block."""
    return math.ceil(math.sqrt(n))


@_kernel
def _linear_start(theta, weights, capacity, gamma, tilt):
    """The items that can be chosen, heaviest first, and what the recursion needs; a tilt of NaN asks for the best."""
    items = _unmasked(theta)
    items = items[np.argsort(-weights[items])]
    w, scores, n = weights[items], theta[items], len(items)
    p, q = np.empty(n), np.empty(n)
    if math.isnan(tilt):
        tilt, total = 0.0, w.sum()
        mean, _ = _chances(scores, w, tilt, gamma, p, q)
        if mean > capacity and total > capacity:
            logit, high = math.log(capacity / (total - capacity)), 0.0
            for i in range(n):
                if w[i]:  # with this λ every p is at most capacity / total
                    high = max(high, (scores[i] - gamma * logit) / w[i])
            tilt = _tilt(scores, w, capacity, gamma, 0.0, high, p, q)
    else:
        _chances(scores, w, tilt, gamma, p, q)
    first = np.empty(n + 1, np.int64)
    first[n] = capacity
    for i in range(n - 1, -1, -1):
        first[i] = max(first[i + 1] - w[i], 0)
    return items, w, first, tilt, p, q


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
def _linear_sweep(w, p, q, decay, capacity, first, kept, rows):
    """G before the first item of every block in kept; the last block in rows."""
    n, stride = len(w), len(rows) - 1
    for c in range(first[0], capacity + 1):
        kept[0, c] = _exp(-decay * c) + TINY
    for block in range(len(kept)):
        rows[0] = kept[block]
        _linear_fill(rows, block * stride, min((block + 1) * stride, n), w, p, q, first)
        if block + 1 < len(kept):
            kept[block + 1] = rows[stride]


@_kernel
def _linear_recall(block, kept, rows, w, p, q, first):
    """The range of a block; its rows are computed again, unless it is the last, whose are still there."""
    stride = len(rows) - 1
    start, stop = block * stride, min((block + 1) * stride, len(w))
    if block + 1 < len(kept):
        rows[0] = kept[block]
        _linear_fill(rows, start, stop, w, p, q, first)
    return start, stop


@_kernel_in_order
def _linear_marginals(theta, weights, capacity, gamma, y):
    """Fills y; returns whether Z was safe, the tilt and the excess."""
    items, w, first, tilt, p, q = _linear_start(theta, weights, capacity, gamma, np.nan)
    n, excess = len(items), _total_excess(p, q)
    if w.sum() <= capacity:  # independent items
        y[items] = p
        return True, 0.0, excess
    stride = _stride(n)
    kept, rows = np.empty(((n + stride - 1) // stride, capacity + 1)), np.empty((stride + 1, capacity + 1))
    _linear_sweep(w, p, q, tilt / gamma, capacity, first, kept, rows)
    mass = rows[n - (len(kept) - 1) * stride, capacity]
    if not mass > SAFE:
        return False, 0.0, 0.0
    reach, before = np.zeros(capacity + 1), np.zeros(capacity + 1)
    reach[capacity] = 1.0
    for block in range(len(kept) - 1, -1, -1):
        start, stop = _linear_recall(block, kept, rows, w, p, q, first)
        for i in range(stop - 1, start - 1, -1):
            take = p[i] <= q[i]  # the smaller of y and 1 - y is the one to sum
            minor = min(p[i], q[i]) / mass * _overlap(reach, rows[i - start], first[i + 1], w[i] if take else 0)
            minor = min(minor, 1.0)
            y[items[i]] = minor if take else 1.0 - minor
            _linear_step_back(reach, before, first[i], w[i], p[i], q[i])
            reach, before = before, reach
    return True, tilt, excess + math.log(mass)


@_kernel
def _linear_marginals_batch(theta, weights, capacity, gamma, value, y, tilt, excess, tabled):
    for b in range(len(theta)):
        safe, tilt[b], excess[b] = _linear_marginals(theta[b], weights[b], capacity[b], gamma, y[b])
        value[b] = _gibbs_value(theta[b], weights[b], capacity[b], gamma, tilt[b], excess[b])
        tabled[b] = not safe


@_kernel_in_order  # minor * (… / mass) must not become (minor * …) / mass, which underflows
def _linear_product(theta, weights, capacity, gamma, tilt, v, product):
    """Cov(x, v·x) / γ, by the derivatives of both sweeps in the direction v."""
    items, w, first, tilt, p, q = _linear_start(theta, weights, capacity, gamma, tilt)
    n, v = len(items), v[items]
    if w.sum() <= capacity:
        product[items] = p * q * v / gamma
        return
    stride = _stride(n)
    blocks = (n + stride - 1) // stride
    kept, kept_dot = np.empty((blocks, capacity + 1)), np.empty((blocks, capacity + 1))
    rows, rows_dot = np.empty((stride + 1, capacity + 1)), np.empty((stride + 1, capacity + 1))
    for c in range(first[0], capacity + 1):
        kept[0, c], kept_dot[0, c] = _exp(-tilt / gamma * c) + TINY, 0.0
    for block in range(blocks):
        rows[0], rows_dot[0] = kept[block], kept_dot[block]
        _linear_fill_dot(rows, rows_dot, block * stride, min((block + 1) * stride, n), w, p, q, v, first)
        if block + 1 < blocks:
            kept[block + 1], kept_dot[block + 1] = rows[stride], rows_dot[stride]
    last = n - (blocks - 1) * stride
    mass = rows[last, capacity]
    mean = rows_dot[last, capacity] / mass
    reach, before = np.zeros(capacity + 1), np.zeros(capacity + 1)
    reach_dot, before_dot = np.zeros(capacity + 1), np.zeros(capacity + 1)
    reach[capacity] = 1.0
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
def _linear_product_batch(theta, weights, capacity, gamma, tilt, v, tabled, product):
    for b in range(len(theta)):
        if not tabled[b]:
            _linear_product(theta[b], weights[b], capacity[b], gamma, tilt[b], v[b], product[b])


@_kernel
def _linear_fill_dot(rows, rows_dot, start, stop, w, p, q, v, first):
    for i in range(start, stop):
        j = i - start
        _linear_step_dot(rows[j], rows[j + 1], rows_dot[j], rows_dot[j + 1], first[i + 1], w[i], p[i], q[i], v[i])


@_kernel
def _linear_sample(theta, weights, capacity, gamma, tilt, seeds, subsets):
    """Walk the rows back: take item i with chance p G(c - w) / (q G(c) + p G(c - w))."""
    items, w, first, tilt, p, q = _linear_start(theta, weights, capacity, gamma, tilt)
    n = len(items)
    budget = np.full(len(seeds), capacity)
    state = seeds.copy()
    if w.sum() <= capacity:
        for s in range(len(seeds)):
            for i in range(n):
                state[s], u = _uniform(state[s])
                subsets[s, items[i]] = u < p[i]
        return
    stride = _stride(n)
    kept, rows = np.empty(((n + stride - 1) // stride, capacity + 1)), np.empty((stride + 1, capacity + 1))
    _linear_sweep(w, p, q, tilt / gamma, capacity, first, kept, rows)
    for block in range(len(kept) - 1, -1, -1):
        start, stop = _linear_recall(block, kept, rows, w, p, q, first)
        for s in range(len(seeds)):
            for i in range(stop - 1, start - 1, -1):
                c, row = budget[s], rows[i - start]
                state[s], u = _uniform(state[s])
                if c >= w[i]:
                    taken = p[i] * row[c - w[i]]
                    if u * (q[i] * row[c] + taken) < taken:
                        subsets[s, items[i]] = 1
                        budget[s] = c - w[i]


@_kernel
def _linear_sample_batch(theta, weights, capacity, gamma, tilt, seeds, tabled, subsets):
    for b in range(len(theta)):
        if not tabled[b]:
            _linear_sample(theta[b], weights[b], capacity[b], gamma, tilt[b], seeds[:, b], subsets[:, b])


# ---- table: every regulariser, at most or exactly ----
#
# The table holds V/γ. Row i has the cells first[i] .. last[i]: those from which the one cell of the last row is reached
# and, where the total must be exact, that some subset of the first i items reaches. So no cell is infinite.

#: A table of so many cells is kept whole, rather than computed twice.
SMALL = 1 << 16


@_kernel
def _table_start(theta, weights, capacity, gamma, exactly):
    """The items that matter, their scores over γ (the table holds V/γ), and the cells of each row."""
    items = _unmasked(theta)
    w, n = weights[items], len(items)
    first, last = np.empty(n + 1, np.int64), np.full(n + 1, capacity)
    first[n] = capacity
    for i in range(n - 1, -1, -1):
        first[i] = max(first[i + 1] - w[i], 0)
        if exactly:
            last[i] = min(i, capacity)
    return items, theta[items] / gamma, w, first, last


# Each regulariser has a row of the table (V/γ and the chance P to take the item), the curvature P' as a function of P
# and Q = 1 - P, and log P(t), which is right even where P or 1 - P is rounded to 0.


@_kernel
def _shannon_row(stay, come, score, out, chance):
    for j in range(len(out)):
        s, taken = stay[j], come[j] + score
        e = _exp(-abs(taken - s))
        large = 1.0 / (1.0 + e)
        chance[j] = large if taken > s else e * large
        out[j] = (taken if taken > s else s) + _log1p(e)


@_kernel
def _shannon_curvature(p, q):
    return p * q


@_kernel
def _shannon_log_chance(t):
    return min(t, 0.0) - _log1p(_exp(-abs(t)))


@_kernel
def _tsallis_row(stay, come, score, out, chance):
    for j in range(len(out)):
        s, taken = stay[j], come[j] + score
        difference = taken - s
        t = difference if difference > -2.0 else -2.0
        t = t if t < 2.0 else 2.0
        root = math.sqrt(2.0 - 0.25 * t * t)
        p = 0.5 + 0.25 * t * root
        value = s + (p * t - 2 / 3 * root * (3.0 - root * root) + 4 / 3)
        value = value if difference > -2.0 else s
        out[j] = value if difference < 2.0 else taken
        p = p if difference > -2.0 else 0.0
        chance[j] = p if difference < 2.0 else 1.0


@_kernel
def _tsallis_curvature(p, q):
    a, b = math.sqrt(p), math.sqrt(q)
    return a * b / (a + b)


@_kernel
def _tsallis_log_chance(t):
    h = min(abs(0.5 * t), 1.0)
    root = (1.0 - h) * (1.0 + h) / (math.sqrt(2.0 - h * h) + h)  # of the smaller of P and 1 - P
    if t < 0:
        return 2.0 * math.log(root) if root > 0 else -np.inf
    return math.log1p(-root * root)


@_kernel
def _gini_row(stay, come, score, out, chance):
    for j in range(len(out)):
        s, taken = stay[j], come[j] + score
        p = 0.5 + 0.5 * (taken - s)
        p = p if p > 0.0 else 0.0
        out[j] = s + p * p if p < 1.0 else taken
        chance[j] = p if p < 1.0 else 1.0


@_kernel
def _gini_curvature(p, q):
    return 0.5 if p * q > 0.0 else 0.0


@_kernel
def _gini_log_chance(t):
    p = 0.5 + 0.5 * t
    return math.log(min(p, 1.0)) if p > 0 else -np.inf


@_kernel
def _hard_row(stay, come, score, out, chance):
    for j in range(len(out)):
        s, taken = stay[j], come[j] + score
        chance[j] = 1.0 if taken > s else 0.0
        out[j] = taken if taken > s else s


@_kernel
def _row(code, stay, come, score, out, chance):
    if code == SHANNON:
        _shannon_row(stay, come, score, out, chance)
    elif code == TSALLIS:
        _tsallis_row(stay, come, score, out, chance)
    elif code == GINI:
        _gini_row(stay, come, score, out, chance)
    elif code == HARD:
        _hard_row(stay, come, score, out, chance)
    else:
        raise ValueError("no kernel for this regulariser")


@_kernel
def _curvature(code, p, q):
    if code == SHANNON:
        return _shannon_curvature(p, q)
    if code == TSALLIS:
        return _tsallis_curvature(p, q)
    if code == GINI:
        return _gini_curvature(p, q)
    raise ValueError("no kernel for this regulariser")


@_kernel
def _log_chance(code, t):
    if code == SHANNON:
        return _shannon_log_chance(t)
    if code == TSALLIS:
        return _tsallis_log_chance(t)
    if code == GINI:
        return _gini_log_chance(t)
    raise ValueError("no kernel for this regulariser")


@_kernel
def _table_fill(code, rows, take, start, stop, scores, w, first, last):
    """V before item start is in rows[0]: fill in V after each item of the block, and the chances P to take them."""
    for i in range(start, stop):
        old, new, chance = rows[i - start], rows[i - start + 1], take[i - start]
        a, b, end = first[i + 1], last[i + 1] + 1, min(last[i], last[i + 1]) + 1
        for c in range(a, min(w[i], b)):
            new[c], chance[c] = old[c], 0.0
        a = max(a, w[i])
        if a < end:
            stay, come, out, p = old[a:end], old[a - w[i] : end - w[i]], new[a:end], chance[a:end]
            _row(code, stay, come, scores[i], out, p)
        if end < b:  # exactly: only taking every item reaches this cell
            new[end], chance[end] = old[end - w[i]] + scores[i], 1.0


@_kernel
def _table_sweep(code, scores, w, capacity, first, last, kept, rows, take):
    """V before the first item of every block in kept; the last block in rows and take; returns the value."""
    n, stride = len(w), len(take)
    kept[0] = 0.0
    for block in range(len(kept)):
        start, stop = block * stride, min((block + 1) * stride, n)
        rows[0] = kept[block]
        _table_fill(code, rows, take, start, stop, scores, w, first, last)
        if block + 1 < len(kept):
            kept[block + 1] = rows[stride]
    return rows[n - (len(kept) - 1) * stride, capacity]


@_kernel
def _table_recall(code, block, kept, rows, take, scores, w, first, last):
    """The range of a block; its rows and chances are computed again, unless it is the last, whose are still there."""
    start, stop = block * len(take), min((block + 1) * len(take), len(w))
    if block + 1 < len(kept):
        rows[0] = kept[block]
        _table_fill(code, rows, take, start, stop, scores, w, first, last)
    return start, stop


@_kernel
def _table_space(n, capacity):
    width = capacity + 1
    stride = max(_stride(n), min(n, SMALL // width), 1)
    blocks = max((n + stride - 1) // stride, 1)
    return np.empty((blocks, width)), np.empty((stride + 1, width)), np.empty((stride, width))


@_kernel
def _flushed(x):
    return 0.0 if abs(x) <= TINY else x  # NaN stays


@_kernel
def _flow(reach, chance, taken):
    """What takes the item, cell by cell, and in all."""
    total = 0.0
    for j in range(len(taken)):
        taken[j] = _flushed(reach[j] * chance[j])
        total += taken[j]
    return total


@_kernel
def _flow_dot(reach, reach_dot, chance, x, taken_dot):
    total = 0.0
    for j in range(len(taken_dot)):
        taken_dot[j] = _flushed(reach_dot[j] * chance[j] + reach[j] * x[j])
        total += taken_dot[j]
    return total


@_kernel
def _flow_back(reach, taken, before, first, last, new_last, w):
    """Q before an item: what did not take it stays, what took it comes from c + w."""
    end = min(max(new_last + 1 - w, first), last + 1)
    _stay_and_come(reach[first:end], taken[first:end], taken[first + w :], before[first:end])
    for c in range(end, last + 1):
        before[c] = reach[c] - taken[c]


@_kernel
def _stay_and_come(reach, taken, come, out):
    for j in range(len(out)):
        out[j] = _flushed(reach[j] - taken[j] + come[j])


@_kernel
def _table_marginals(theta, weights, capacity, gamma, code, exactly, y):
    """Fills y; returns the value."""
    items, scores, w, first, last = _table_start(theta, weights, capacity, gamma, exactly)
    n = len(items)
    kept, rows, take = _table_space(n, capacity)
    value = gamma * _table_sweep(code, scores, w, capacity, first, last, kept, rows, take)
    reach, before, taken = np.zeros(capacity + 1), np.zeros(capacity + 1), np.zeros(capacity + 1)
    reach[capacity] = 1.0
    for block in range(len(kept) - 1, -1, -1):
        start, stop = _table_recall(code, block, kept, rows, take, scores, w, first, last)
        for i in range(stop - 1, start - 1, -1):
            a, b = first[i + 1], last[i + 1] + 1
            y[items[i]] = min(_flow(reach[a:b], take[i - start, a:b], taken[a:b]), 1.0)
            _flow_back(reach, taken, before, first[i], last[i], last[i + 1], w[i])
            reach, before = before, reach
    return value


@_kernel
def _table_marginals_batch(theta, weights, capacity, gamma, code, exactly, tabled, value, y):
    for b in range(len(theta)):
        if tabled[b]:
            value[b] = _table_marginals(theta[b], weights[b], capacity[b], gamma, code, exactly, y[b])


@_kernel
def _expected_row(stay, come, v, chance, out):
    for j in range(len(out)):
        out[j] = stay[j] + chance[j] * (come[j] + v - stay[j])


@_kernel
def _expected_entropy_row(stay, come, chance, out):
    for j in range(len(out)):
        p = chance[j]
        coin = -p * math.log(p) - (1.0 - p) * math.log(1.0 - p) if 0.0 < p < 1.0 else 0.0
        out[j] = stay[j] + p * (come[j] - stay[j]) + coin


@_kernel
def _expected_fill(of_entropy, rows, take, start, stop, v, w, first, last):
    r"""The expectation E of a sum over the walk from each cell, for the items of a block: rows[0] is given.

    Of v·x: E_i(c) = P (E_{i-1}(c - w) + v_i) + (1 - P) E_{i-1}(c), which is the derivative of V in the direction v. Or
    of the entropies of the coins, P for heads: together, the entropy of the subset.
    """
    for i in range(start, stop):
        old, new, chance = rows[i - start], rows[i - start + 1], take[i - start]
        a, b, end = first[i + 1], last[i + 1] + 1, min(last[i], last[i + 1]) + 1
        for c in range(a, min(w[i], b)):
            new[c] = old[c]
        a = max(a, w[i])
        if a < end:
            stay, come, out, p = old[a:end], old[a - w[i] : end - w[i]], new[a:end], chance[a:end]
            if of_entropy:
                _expected_entropy_row(stay, come, p, out)
            else:
                _expected_row(stay, come, v[i], p, out)
        if end < b:
            new[end] = old[end - w[i]] + (0.0 if of_entropy else v[i])


@_kernel
def _slope_row(code, of_entropy, stay, come, v, chance, gamma, out):
    """X = dE/dP · P'/γ: how the expectation depends on what is taken here, per unit of the score."""
    for j in range(len(out)):
        out[j] = (come[j] + (0.0 if of_entropy else v) - stay[j]) / gamma
    if of_entropy:
        for j in range(len(out)):
            p = chance[j]
            out[j] += math.log((1.0 - p) / p) / gamma if 0.0 < p < 1.0 else 0.0
    for j in range(len(out)):
        out[j] *= _curvature(code, chance[j], 1.0 - chance[j])


@_kernel
def _table_gradient(theta, weights, capacity, gamma, code, exactly, of_entropy, v, gradient):
    """Fills the gradient of E[v·x] (the Hessian times v) or of the entropy, which it returns."""
    items, scores, w, first, last = _table_start(theta, weights, capacity, gamma, exactly)
    n, v = len(items), v[items]
    kept, rows, take = _table_space(n, capacity)
    kept_mean, mean = np.zeros_like(kept), np.empty_like(rows)
    stride = len(take)
    kept[0] = 0.0
    for block in range(len(kept)):
        start, stop = block * stride, min((block + 1) * stride, n)
        rows[0], mean[0] = kept[block], kept_mean[block]
        _table_fill(code, rows, take, start, stop, scores, w, first, last)
        _expected_fill(of_entropy, mean, take, start, stop, v, w, first, last)
        if block + 1 < len(kept):
            kept[block + 1], kept_mean[block + 1] = rows[stride], mean[stride]
    total = mean[n - (len(kept) - 1) * stride, capacity]
    reach, before, taken = np.zeros(capacity + 1), np.zeros(capacity + 1), np.zeros(capacity + 1)
    reach_dot, before_dot, taken_dot = np.zeros(capacity + 1), np.zeros(capacity + 1), np.zeros(capacity + 1)
    slope = np.empty(capacity + 1)
    reach[capacity] = 1.0
    for block in range(len(kept) - 1, -1, -1):
        start, stop = block * stride, min((block + 1) * stride, n)
        if stop < n:
            rows[0], mean[0] = kept[block], kept_mean[block]
            _table_fill(code, rows, take, start, stop, scores, w, first, last)
            _expected_fill(of_entropy, mean, take, start, stop, v, w, first, last)
        for i in range(stop - 1, start - 1, -1):
            a, b, end = first[i + 1], last[i + 1] + 1, min(last[i], last[i + 1]) + 1
            chance, old = take[i - start], mean[i - start]
            slope[a:b] = 0.0
            both = max(a, w[i])
            if both < end:
                stay, come = old[both:end], old[both - w[i] : end - w[i]]
                _slope_row(code, of_entropy, stay, come, v[i], chance[both:end], gamma, slope[both:end])
            _flow(reach[a:b], chance[a:b], taken[a:b])
            gradient[items[i]] = _flow_dot(reach[a:b], reach_dot[a:b], chance[a:b], slope[a:b], taken_dot[a:b])
            _flow_back(reach, taken, before, first[i], last[i], last[i + 1], w[i])
            _flow_back(reach_dot, taken_dot, before_dot, first[i], last[i], last[i + 1], w[i])
            reach, before, reach_dot, before_dot = before, reach, before_dot, reach_dot
    return total


@_kernel
def _table_gradient_batch(theta, weights, capacity, gamma, code, exactly, of_entropy, v, tabled, total, gradient):
    for b in range(len(theta)):
        if tabled[b]:
            total[b] = _table_gradient(
                theta[b], weights[b], capacity[b], gamma, code, exactly, of_entropy, v[b], gradient[b]
            )


@_kernel
def _table_sample(theta, weights, capacity, gamma, code, exactly, seeds, subsets):
    """Walk the table back: take item i with chance P_i(c)."""
    items, scores, w, first, last = _table_start(theta, weights, capacity, gamma, exactly)
    n = len(items)
    kept, rows, take = _table_space(n, capacity)
    _table_sweep(code, scores, w, capacity, first, last, kept, rows, take)
    budget = np.full(len(seeds), capacity)
    state = seeds.copy()
    for block in range(len(kept) - 1, -1, -1):
        start, stop = _table_recall(code, block, kept, rows, take, scores, w, first, last)
        for s in range(len(seeds)):
            for i in range(stop - 1, start - 1, -1):
                state[s], u = _uniform(state[s])
                if u < take[i - start, budget[s]]:
                    subsets[s, items[i]] = 1
                    budget[s] -= w[i]


@_kernel
def _table_sample_batch(theta, weights, capacity, gamma, code, exactly, seeds, tabled, subsets):
    for b in range(len(theta)):
        if tabled[b]:
            _table_sample(theta[b], weights[b], capacity[b], gamma, code, exactly, seeds[:, b], subsets[:, b])


@_kernel
def _can_be_drawn(items, w, capacity, exactly, subset):
    """Whether the subset fits and has no item that cannot be chosen."""
    total, chosen = 0, 0
    for i in range(len(items)):
        total += w[i] * subset[items[i]]
        chosen += subset[items[i]]
    return chosen == subset.sum() and (total == capacity if exactly else total <= capacity)


@_kernel
def _step(row, w, last, score, c):
    """t, by how much taking an item is better than leaving it (V before it is in row); ±inf where there is no choice.

    The chances of both follow from t to full relative precision; the table has them rounded.
    """
    if c < w:
        return -np.inf
    return row[c - w] + score - row[c] if c <= last else np.inf


@_kernel
def _table_log_prob(theta, weights, capacity, gamma, code, exactly, subsets, out):
    """The log of the chances along the walk that draws each subset."""
    items, scores, w, first, last = _table_start(theta, weights, capacity, gamma, exactly)
    n = len(items)
    kept, rows, take = _table_space(n, capacity)
    _table_sweep(code, scores, w, capacity, first, last, kept, rows, take)
    budget = np.full(len(subsets), capacity)
    for s in range(len(subsets)):
        out[s] = 0.0 if _can_be_drawn(items, w, capacity, exactly, subsets[s]) else -np.inf
    for block in range(len(kept) - 1, -1, -1):
        start, stop = _table_recall(code, block, kept, rows, take, scores, w, first, last)
        for s in range(len(subsets)):
            if out[s] > -np.inf:
                for i in range(stop - 1, start - 1, -1):
                    t, chosen = _step(rows[i - start], w[i], last[i], scores[i], budget[s]), subsets[s, items[i]]
                    out[s] += _log_chance(code, t if chosen else -t)
                    budget[s] -= w[i] * chosen


@_kernel
def _table_log_prob_batch(theta, weights, capacity, gamma, code, exactly, subsets, tabled, out):
    for b in range(len(theta)):
        if tabled[b]:
            _table_log_prob(theta[b], weights[b], capacity[b], gamma, code, exactly, subsets[:, b], out[:, b])


@_kernel
def _table_log_prob_gradient(theta, weights, capacity, gamma, code, exactly, subsets, upstream, gradient):
    """Each walk adds, at each of its cells, d log P = P'/P dt or -P'/(1 - P) dt to one backward sweep.

    Upstream must be 0 for what cannot be drawn.
    """
    items, scores, w, first, last = _table_start(theta, weights, capacity, gamma, exactly)
    n = len(items)
    kept, rows, take = _table_space(n, capacity)
    _table_sweep(code, scores, w, capacity, first, last, kept, rows, take)
    reach, before, taken = np.zeros(capacity + 1), np.zeros(capacity + 1), np.zeros(capacity + 1)
    budget = np.full(len(subsets), capacity)
    for block in range(len(kept) - 1, -1, -1):
        start, stop = _table_recall(code, block, kept, rows, take, scores, w, first, last)
        for i in range(stop - 1, start - 1, -1):
            chance, flow = take[i - start], 0.0
            for c in range(first[i + 1], last[i + 1] + 1):
                taken[c] = reach[c] * chance[c]
            for s in range(len(subsets)):
                if upstream[s] != 0:
                    t, chosen = _step(rows[i - start], w[i], last[i], scores[i], budget[s]), subsets[s, items[i]]
                    p, q = math.exp(_log_chance(code, t)), math.exp(_log_chance(code, -t))
                    slope = _curvature(code, p, q) / gamma
                    if slope > 0:
                        taken[budget[s]] += upstream[s] * slope * (1.0 / p if chosen else -1.0 / q)
                    budget[s] -= w[i] * chosen
            for c in range(first[i + 1], last[i + 1] + 1):
                flow += taken[c]
            gradient[items[i]] = flow
            _flow_back(reach, taken, before, first[i], last[i], last[i + 1], w[i])
            reach, before = before, reach


@_kernel
def _table_log_prob_gradient_batch(theta, weights, capacity, gamma, code, exactly, subsets, upstream, gradient):
    for b in range(len(theta)):
        _table_log_prob_gradient(
            theta[b], weights[b], capacity[b], gamma, code, exactly, subsets[:, b], upstream[:, b], gradient[b]
        )


# ---- problems ----


class Solution(NamedTuple):
    r"""A batch of solved problems.

    With :math:`\eta_i = (\theta_i - \lambda w_i)/\gamma`, Shannon's value is
    :math:`V = \lambda C + \sum_{\eta_i > 0} (\theta_i - \lambda w_i) + \gamma L`, where L is small even if V/γ is huge,
    unless the table was used: then λ and L are not set.
    """

    value: np.ndarray  # (B,) smoothed maximum
    marginals: np.ndarray  # (B, n)
    tilt: np.ndarray  # (B,) λ, the Lagrange multiplier of the capacity
    excess: np.ndarray  # (B,) L
    tabled: np.ndarray  # (B,) whether the table was used


class Problem:
    """A batch of problems under a smoothed maximum, in NumPy: what :class:`ExactlyK` and :class:`AtMost` share.

    ``theta`` (B, n), -inf for what cannot be chosen, ``gamma``, ``regularizer`` and the members without an underscore
    are all that :mod:`lib.subsets` uses: a problem of another structure has to offer these. Subsets are 0/1 in int8.
    """

    exactly: bool

    def __init__(self, theta, weights, capacity, shift, *, gamma, regularizer):
        self.theta, self.weights, self.capacity = theta, weights, capacity
        self.shift = shift  # (B,) what to add to the value
        self.gamma, self.regularizer, self._code = gamma, regularizer, CODES[REGULARIZERS[regularizer]]

    @property
    def value(self) -> np.ndarray:
        """The smoothed maximum (B,)."""
        return self.solution.value + self.shift

    @property
    def marginals(self) -> np.ndarray:
        """(B, n), from the same sweeps."""
        return self.solution.marginals

    def hessian_product(self, v) -> np.ndarray:
        """The Hessian of the smoothed maximum times v (B, n)."""
        product, tabled = np.zeros_like(self.theta), self.solution.tabled
        if not tabled.all():
            self._multiply_fast(v, product)
        if tabled.any():
            self._table_gradient(False, v, tabled, np.empty(len(v)), product)
        return product

    def entropy(self):
        """The entropy of the law of the subsets, in nats (B,), and its gradient (B, n)."""
        size = len(self.theta)
        total, gradient, tabled = np.zeros(size), np.zeros_like(self.theta), np.ones(size, np.bool_)
        if self.regularizer == "shannon":
            # H = V/γ - <θ, y>/γ would lose all digits in the cold, but for top-k and independent items it is a sum of
            # small terms; elsewhere the chain rule over the table's coins has only positive ones
            tabled = np.zeros(size, np.bool_) if self.exactly else ~self._fits_whole()
            solution = self.solution
            margin = (self.theta - solution.tilt[:, None] * self.weights) / self.gamma
            total = np.maximum(solution.excess + _mismatch(margin, solution.marginals).sum(axis=-1), 0.0)
            gradient = self.hessian_product(np.where(self.theta == -np.inf, 0.0, self.theta)) / -self.gamma
        if tabled.any():
            self._table_gradient(True, self.theta, tabled, total, gradient)
        return total, gradient

    def log_prob(self, subsets) -> np.ndarray:
        """The log-probability (S, B) of subsets (S, B, n); -inf for what the law cannot draw."""
        out, (_, _, tilt, excess, tabled) = np.zeros(subsets.shape[:-1]), self.solution
        if not tabled.all():
            arrays = self.theta, self.weights, self.capacity
            _gibbs_log_prob_batch(*arrays, self.gamma, self.exactly, subsets, tilt, excess, tabled, out)
        if tabled.any():
            _table_log_prob_batch(*self._table, subsets, tabled, out)
        return out

    def log_prob_gradient(self, subsets, upstream) -> np.ndarray:
        """The sum over S of upstream (S, B) times the gradient of the log-probability of subsets (S, B, n): (B, n)."""
        if self.regularizer == "shannon":
            return (upstream[..., None] * (subsets - self.marginals)).sum(axis=0) / self.gamma
        gradient = np.zeros_like(self.theta)
        _table_log_prob_gradient_batch(*self._table, subsets, upstream, gradient)
        return gradient

    def loss(self, subsets) -> np.ndarray:
        """V - <θ, x> (S, B) for subsets (S, B, n) that fit, from the scores as they were shifted."""
        if self.regularizer == "shannon":
            return -self.gamma * self.log_prob(subsets)
        return np.maximum(self.solution.value - np.where(subsets, self.theta, 0.0).sum(axis=-1), 0.0)

    def sample(self, seeds) -> np.ndarray:
        """Subsets (S, B, n), one for each of the seeds (S, B), uint64."""
        subsets, tabled = np.zeros((*seeds.shape, self.theta.shape[1]), np.int8), self.solution.tabled
        if not tabled.all():
            self._draw_fast(seeds, subsets)
        if tabled.any():
            _table_sample_batch(*self._table, seeds, tabled, subsets)
        return subsets

    def support_size(self) -> list[int]:
        """How many subsets each law can draw."""
        if self.regularizer == "shannon":
            return [self._number(w[t > -np.inf].tolist(), int(c)) for t, w, c in self._each()]
        return [self._count(*problem) for problem in self._each()]

    def take(self, rows) -> Problem:
        """The problems of some rows of the batch, as often as they are named."""
        taken = copy.copy(self)
        taken.theta, taken.weights, taken.capacity = self.theta[rows], self.weights[rows], self.capacity[rows]
        taken.shift = self.shift[rows]
        taken.__dict__.pop("solution", None)
        return taken

    @functools.cached_property
    def solution(self) -> Solution:
        value, tilt, excess = np.zeros((3, len(self.theta)))
        out = Solution(value, np.zeros_like(self.theta), tilt, excess, np.ones(len(self.theta), np.bool_))
        if self.regularizer == "shannon":
            self._solve_fast(out)
        if out.tabled.any():
            _table_marginals_batch(*self._table, out.tabled, out.value, out.marginals)
        return out

    @property
    def _table(self):
        return self.theta, self.weights, self.capacity, self.gamma, self._code, self.exactly

    def _table_gradient(self, of_entropy, v, tabled, total, gradient):
        _table_gradient_batch(*self._table, of_entropy, v, tabled, total, gradient)

    def _each(self):
        return zip(self.theta, self.weights, self.capacity, strict=True)

    def _count(self, theta, weights, capacity) -> int:
        """The subsets of one problem, counted over its coins that can fall on either side."""
        capacity = int(capacity)
        _, scores, w, first, last = _table_start(theta, weights, capacity, self.gamma, self.exactly)
        rows, take = np.zeros((2, capacity + 1)), np.zeros((1, capacity + 1))
        counts = np.full(capacity + 1, int(not self.exactly), object)
        counts[0] = 1
        for i in range(len(w)):
            _table_fill(self._code, rows, take, 0, 1, scores[i:], w[i:], first[i:], last[i:])
            rows[0] = rows[1]
            taken = np.concatenate([np.zeros(min(w[i], capacity + 1), object), counts[: max(capacity + 1 - w[i], 0)]])
            counts = np.where(take[0] < 1, counts, 0) + np.where(take[0] > 0, taken, 0)
        return int(counts[capacity])


class ExactlyK(Problem):
    """k items of scores theta (B, n)."""

    exactly = True

    def __init__(self, theta, k, **options):
        best = _kth_largest(theta, k)
        super().__init__(theta - best[:, None], np.ones(theta.shape, np.int64), k, best * k, **options)

    def mode(self) -> np.ndarray:
        """The best subset of each problem (B, n): of equal scores the first."""
        rank = np.argsort(np.argsort(-self.theta, axis=-1, stable=True), axis=-1)
        return (rank < self.capacity[:, None]).astype(np.int8)

    def budget(self) -> int:
        """The largest capacity for which a table may be needed."""
        return 0 if self.regularizer == "shannon" else int(self.capacity.max(initial=0))

    def _solve_fast(self, out):
        _contour_marginals_batch(self.theta, self.weights, self.capacity, self.gamma, *out)

    def _multiply_fast(self, v, product):
        solution = self.solution
        _contour_product_batch(self.theta, self.capacity, self.gamma, solution.tilt, v, solution.marginals, product)

    def _draw_fast(self, seeds, subsets):
        _contour_sample_batch(self.theta, self.capacity, self.gamma, self.solution.tilt, seeds, subsets)

    @staticmethod
    def _number(weights, k) -> int:
        return math.comb(len(weights), k)


class AtMost(Problem):
    """Items of scores theta and weights (B, n) within a capacity (B,)."""

    exactly = False

    def __init__(self, theta, weights, capacity, **options):
        # an item that is heavier than the budget is as good as masked, and what is left may have a larger unit
        theta = np.where(weights > capacity[:, None], -np.inf, theta)
        super().__init__(theta, *_reduced(theta, weights, capacity), np.zeros(len(theta)), **options)

    def mode(self) -> np.ndarray:
        """The best subset of each problem (B, n): the table for the maximum itself, walked back."""
        seeds, best = np.zeros((1, len(self.theta)), np.uint64), (self.theta > 0).astype(np.int8)[None]
        tabled = ~self._fits_whole()
        best[:, tabled] = 0
        _table_sample_batch(self.theta, self.weights, self.capacity, 1.0, HARD, False, seeds, tabled, best)
        return best[0]

    def budget(self) -> int:
        """The largest capacity for which a table may be needed."""
        tabled = np.ones(len(self.theta), np.bool_) if self.regularizer != "shannon" else ~self._fits_whole()
        return int(self.capacity[tabled].max(initial=0))

    def _fits_whole(self):
        """Whether all items that can be chosen fit together (B,)."""
        return self.weights.sum(axis=-1) <= self.capacity

    def _solve_fast(self, out):
        _linear_marginals_batch(self.theta, self.weights, self.capacity, self.gamma, *out)

    def _multiply_fast(self, v, product):
        arrays, solution = (self.theta, self.weights, self.capacity), self.solution
        _linear_product_batch(*arrays, self.gamma, solution.tilt, v, solution.tabled, product)

    def _draw_fast(self, seeds, subsets):
        arrays, solution = (self.theta, self.weights, self.capacity), self.solution
        _linear_sample_batch(*arrays, self.gamma, solution.tilt, seeds, solution.tabled, subsets)

    @staticmethod
    def _number(weights, capacity) -> int:
        if sum(weights) <= capacity:
            return 2 ** len(weights)
        # Π (1 + z^w) as one integer, z = 2^bits: the sum of the coefficients is at most 2^n < z - 1
        bits = len(weights) + 2
        window = (1 << bits * (capacity + 1)) - 1
        product = 1
        for weight in weights:
            product += (product << bits * weight) & window
        return product % ((1 << bits) - 1)  # z = 1 modulo z - 1


def _mismatch(margin, chosen):
    """Σ|η| over what differs from taking the items of positive margin, as terms; a mask's -inf times 0 is 0."""
    differs = np.where(margin > 0, 1.0 - chosen, chosen)
    return np.where(differs == 0, 0.0, np.abs(margin)) * differs


def _kth_largest(scores, k):
    """The k-th largest score of each row, or the largest if k is 0; 0 where there is none."""
    size, n = scores.shape
    if n == 0:
        return np.zeros(size)
    place = np.minimum(n - k, n - 1)
    if size and (place == place[0]).all():
        best = np.partition(scores, place[0], axis=-1)[:, place[0]]
    else:
        best = np.take_along_axis(np.sort(scores, axis=-1), place[:, None], axis=-1)[:, 0]
    return np.where(best == -np.inf, 0.0, best)


def _reduced(scores, weights, capacity):
    """Weights and capacity in units of the common divisor of what can be chosen, and no capacity beyond their sum."""
    weights = np.where(scores > -np.inf, weights, 0)
    unit = np.maximum(np.gcd.reduce(weights, axis=-1), 1)
    return weights // unit[:, None], np.minimum(capacity, weights.sum(axis=-1)) // unit


def workspace(n: int, capacity: int) -> int:
    """Bytes that a knapsack of n items may need at once."""
    stride = max(math.isqrt(n) + 1, min(n, SMALL // (capacity + 1)))
    return 8 * (capacity + 1) * (5 * stride + 12)


def compile_all() -> None:
    """Compile every kernel now, rather than when it is first called."""
    theta, ones, one = np.zeros((1, 2)), np.ones((1, 2), np.int64), np.ones(1, np.int64)
    seeds, subsets = np.zeros((1, 1), np.uint64), np.array([[[0, 1]]], np.int8)
    for regularizer in ("shannon", "gini"):  # the fast kernels, and the table
        options = {"gamma": 1.0, "regularizer": regularizer}
        for problem in (ExactlyK(theta, one, **options), AtMost(theta, ones, one, **options)):
            problem.hessian_product(np.ones((1, 2)))
            problem.entropy()
            problem.log_prob(subsets)
            problem.log_prob_gradient(subsets, np.ones((1, 1)))
            problem.sample(seeds)
            problem.mode()
            problem.support_size()
