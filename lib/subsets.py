r"""Differentiable choice of a subset: k of n items, or what fits in a knapsack, as probability distributions.

.. math::

    \max_{x \in \{0, 1\}^n} \langle\theta, x\rangle \quad\text{subject to}\quad
    \textstyle\sum_i x_i = k \quad\text{or}\quad \langle w, x\rangle \le C

is solved by a dynamic program of binary maxima. :class:`TopK` and :class:`Knapsack` replace each maximum by a smoothed
one (:mod:`lib.smoothmax`): the value becomes differentiable in the scores, its gradient is the vector of marginals
:math:`\mathbb E\,x` of a distribution over the subsets that fit, and the probabilities to take met on the way are that
distribution's coins. With Shannon entropy it is the Gibbs law :math:`p(x) \propto e^{\langle\theta, x\rangle/\gamma}`.
Tsallis and Gini decide a comparison for good where its sides differ by :math:`2\gamma` or :math:`\gamma`: most subsets
then have probability exactly 0, and the result depends on the order of the items.

Learning from observed selections, with gradients through samples, and from rewards:

>>> theta = torch.zeros(5, requires_grad=True)
>>> choice = TopK(theta, 2, gamma=0.5)
>>> fenchel_young_loss(choice, torch.tensor([1, 1, 0, 0, 0])).backward()
>>> (choice.straight_through() * torch.arange(5.0)).sum().backward()
>>> chosen = choice.sample((100,))
>>> reward = chosen @ torch.arange(5.0)
>>> (-(reward - reward.mean()) * choice.log_prob(chosen)).mean().backward()

Source: the framework is that of Vivier-Ardisson et al., *Differentiable knapsack and top-k operators via dynamic
programming* (arXiv 2601.21775), as its abstract describes it; :mod:`lib.dp` has the recursions to read, and
``lib.kernels`` the fast ones that run here. The contour method for top-k is our derivation; Fourier methods for
sums of Bernoulli variables are in Hong, *On computing the distribution function for the Poisson binomial distribution*
(2013).

Everything is computed in float64 on the CPU and comes back in the type, and on the device, of the scores. As in any
sum, scores that are much larger than the temperature count only up to their last digit: two subsets of a knapsack whose
scores tie exactly may differ by some :math:`10^{-16}\,|\theta|/\gamma`. The transforms of torch.func and batched
gradients (``vectorize=True``) cannot look into these functions, and fail.
"""

from __future__ import annotations

import math

import numpy as np
import psutil
import torch
from torch.autograd import Function
from torch.distributions import Distribution, constraints

from lib import _validate, kernels

# Weights may not be larger, so that their sums stay exact.
HEAVIEST = 10**12

__all__ = ["Knapsack", "TopK", "fenchel_young_loss"]


class _Value(Function):
    """V(θ), whose gradient is the marginals: differentiable twice."""

    @staticmethod
    def forward(ctx, theta, problem):
        ctx.save_for_backward(theta)
        ctx.problem = problem
        return problem._batched(problem._solve().value + problem._shift)

    @staticmethod
    def backward(ctx, grad):
        (theta,) = ctx.saved_tensors
        return grad.unsqueeze(-1) * _Mean.apply(theta, ctx.problem), None


class _Mean(Function):
    """y(θ) = ∇V(θ): the Jacobian is symmetric, so that the vector-Jacobian product is the Hessian product."""

    @staticmethod
    def forward(ctx, theta, problem):
        ctx.save_for_backward(theta)
        ctx.problem = problem
        return problem._batched(problem._solve().marginals)

    @staticmethod
    def backward(ctx, grad):
        problem = ctx.problem

        def product(v):
            v = problem._flat(v)
            return problem._batched(kernels.hessian_product(*problem._arrays, v, problem._solve(), **problem._options))

        return _Last.apply(*ctx.saved_tensors, grad, product), None


class _Entropy(Function):
    @staticmethod
    def forward(ctx, theta, problem):
        entropy, gradient = kernels.entropy(*problem._arrays, problem._solve(), **problem._options)
        ctx.save_for_backward(theta, problem._batched(gradient))
        return problem._batched(entropy)

    @staticmethod
    def backward(ctx, grad):
        theta, gradient = ctx.saved_tensors
        return _Last.apply(theta, grad, lambda grad: grad.unsqueeze(-1) * gradient), None


class _LogProb(Function):
    @staticmethod
    def forward(ctx, theta, problem, subsets):
        """Subsets (S, B, n) in int8; returns (S, B)."""
        log_prob = kernels.log_prob(*problem._arrays, subsets, problem._solve(), **problem._options)
        ctx.save_for_backward(theta)
        ctx.problem, ctx.subsets, ctx.possible = problem, subsets, log_prob > -np.inf
        return problem._tensor(log_prob)

    @staticmethod
    def backward(ctx, grad):
        problem, subsets, possible = ctx.problem, ctx.subsets, ctx.possible

        def gradient(grad):
            upstream = np.where(possible, grad.detach().cpu().double().numpy(), 0.0)
            arguments = (*problem._arrays, subsets, upstream, problem._solve())
            return problem._batched(kernels.log_prob_gradient(*arguments, **problem._options))

        return _Last.apply(*ctx.saved_tensors, grad, gradient), None, None


class _FenchelYoung(Function):
    @staticmethod
    def forward(ctx, theta, problem, subsets):
        """Subsets (S, B, n) in int8; returns (S, B), from float64 and rounded once."""
        if problem.regularizer == "shannon":
            log_prob = kernels.log_prob(*problem._arrays, subsets, problem._solve(), **problem._options)
            loss = -problem.gamma * log_prob
        else:
            scores = np.where(subsets, problem._arrays[0], 0.0).sum(axis=-1)
            loss = np.maximum(problem._solve().value - scores, 0.0)
        ctx.save_for_backward(theta)
        ctx.problem, ctx.subsets = problem, subsets
        return problem._tensor(loss)

    @staticmethod
    def backward(ctx, grad):
        (theta,) = ctx.saved_tensors
        target = ctx.problem._tensor(ctx.subsets).reshape(len(ctx.subsets), *theta.shape)
        difference = _Mean.apply(theta, ctx.problem) - target
        grad = grad.reshape(len(ctx.subsets), *theta.shape[:-1], 1)
        return (grad * difference).sum(dim=0), None, None


class _Last(Function):
    """A derivative that cannot be differentiated again: that is an error, where it could silently be 0.

    torch's once_differentiable notices only an upstream gradient that depends on the scores.
    """

    @staticmethod
    def forward(ctx, theta, grad, derivative):
        return derivative(grad)

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError(
            "mean, entropy and log_prob of TopK and Knapsack are once differentiable, and value is twice: "
            "no higher derivative is known"
        )


class _Subsets(Distribution):
    """What :class:`TopK` and :class:`Knapsack` share."""

    arg_constraints = {}  # noqa: RUF012  (torch's own convention)
    support = constraints.independent(constraints.boolean, 1)
    has_rsample = False

    def __init__(self, theta, scores, weights, capacity, batch, *, gamma, regularizer, exactly):
        # scores (the data of theta), weights and capacity: arrays that broadcast to the batch, checked
        n = theta.shape[-1]
        self.theta = theta if theta.shape[:-1] == batch else theta.expand(*batch, n)
        self.gamma, self.regularizer = gamma, regularizer
        self._options = {"gamma": gamma, "regularizer": regularizer, "exactly": exactly}
        size = math.prod(batch)
        # copies, so that the answers stay those of the arguments that were given
        scores = np.array(np.broadcast_to(scores, (*batch, n)).reshape(size, n))
        weights = np.array(np.broadcast_to(weights, (*batch, n)).reshape(size, n))
        capacity = np.array(np.broadcast_to(capacity, batch).reshape(size))
        if exactly:
            best = _kth_largest(scores, capacity)
            scores -= best[:, None]
            self._shift = best * capacity
        else:
            # an item that is heavier than the budget is as good as masked, and what is left may have a larger unit
            scores[weights > capacity[:, None]] = -np.inf
            weights, capacity = _reduced(scores, weights, capacity)
            self._shift = np.zeros(size)
        self._arrays = scores, weights, capacity
        self._solution = None
        super().__init__(batch, torch.Size([n]), validate_args=False)

    def _solve(self) -> kernels.Solution:
        if self._solution is None:
            self._solution = kernels.marginals(*self._arrays, **self._options)
        return self._solution

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.theta.device, self.theta.dtype)

    def _batched(self, array: np.ndarray) -> torch.Tensor:
        """(B, ...) as a tensor of the batch's shape, on the device and in the type of the scores."""
        return self._tensor(array).reshape(self.batch_shape + array.shape[1:])

    def _flat(self, tensor: torch.Tensor) -> np.ndarray:
        """A tensor (..., n) as (B, n) in float64."""
        return np.ascontiguousarray(tensor.detach().cpu().double().numpy()).reshape(self._arrays[0].shape)

    @property
    def value(self) -> torch.Tensor:
        r"""The smoothed maximum (...), never below the hard one. Its gradient is the marginals."""
        return _Value.apply(self.theta, self)

    @property
    def mean(self) -> torch.Tensor:
        """The marginals (..., n), which are the probabilities of the items to be chosen. Differentiable once."""
        return _Mean.apply(self.theta, self)

    @property
    def variance(self) -> torch.Tensor:
        mean = self.mean
        return mean * (1 - mean)

    def sample(self, sample_shape=(), *, generator: torch.Generator | None = None) -> torch.Tensor:
        """Independent exact draws (sample_shape, ..., n) of 0 and 1, in the type of the scores.

        A draw of Shannon's top-k throws n coins about 2.5 times the standard deviation of their sum; other draws share
        one table.
        """
        _validate.generator(generator)
        if not isinstance(sample_shape, (tuple, list)) or any(not isinstance(s, int) or s < 0 for s in sample_shape):
            raise TypeError(f"sample_shape must be a torch.Size or a tuple of integers >= 0, got {sample_shape!r}")
        sample_shape = torch.Size(sample_shape)
        device = "cpu" if generator is None else generator.device
        size = (math.prod(sample_shape), len(self._arrays[0]))
        seeds = torch.randint(-(2**63), 2**63 - 1, size, generator=generator, device=device)
        seeds = seeds.cpu().numpy().view(np.uint64)
        drawn = kernels.sample(*self._arrays, seeds, self._solve(), **self._options)
        return self._tensor(drawn).reshape(self._extended_shape(sample_shape))

    def straight_through(self, sample_shape=(), *, generator: torch.Generator | None = None) -> torch.Tensor:
        """A draw whose gradient is declared to be that of the marginals (biased, of low variance)."""
        mean = self.mean
        return self.sample(sample_shape, generator=generator) + (mean - mean.detach())

    def log_prob(self, value) -> torch.Tensor:
        """The log-probability of subsets (..., n) of 0 and 1, which may have samples in front of the batch.

        It is -inf, with gradient 0, for what is never drawn. Differentiable once.
        """
        return self._of_subsets(_LogProb, self._zeros_and_ones("value", value))

    def _of_subsets(self, function, subsets) -> torch.Tensor:
        """A Function of subsets (..., n) whose shape broadcasts with the batch."""
        shape = torch.broadcast_shapes(subsets.shape[:-1], self.batch_shape)
        batch = shape[len(shape) - len(self.batch_shape) :]
        if batch != self.batch_shape:
            return self.expand(batch)._of_subsets(function, subsets)
        number = math.prod(shape[: len(shape) - len(batch)])
        subsets = subsets.expand(*shape, -1).to("cpu", torch.int8).reshape(number, *self._arrays[0].shape)
        return function.apply(self.theta, self, subsets.contiguous().numpy()).reshape(shape)

    def _zeros_and_ones(self, name: str, value) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a torch tensor of 0 and 1, got {type(value).__name__}")
        if value.layout is not torch.strided or value.is_nested or value.is_meta:
            raise TypeError(f"{name} must be a dense tensor with data, got {value.layout} on {value.device}")
        shape = self.batch_shape + self.event_shape
        try:
            torch.broadcast_shapes(value.shape, shape)
            fits = value.ndim > 0 and value.shape[-1] == shape[-1]
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"{name} must fit the shape {tuple(shape)}, with samples in front at will, got {tuple(value.shape)}: "
                "it holds 0 or 1 for every item, not places of items"
            )
        value = value.detach()
        wrong = (value != 0) & (value != 1)
        if wrong.any():
            raise ValueError(f"{name} must hold only 0 and 1, got {value[wrong][0].item()}")
        return value

    def entropy(self) -> torch.Tensor:
        """The entropy of the distribution over subsets, in nats (...). Differentiable once."""
        return _Entropy.apply(self.theta, self)

    def support_size(self):
        """How many subsets have a positive probability: an exact int, or nested lists of them for a batch.

        With Shannon these are all the subsets that fit; Tsallis and Gini leave many out.
        """
        sizes = np.empty(len(self._arrays[0]), object)
        for b in range(len(sizes)):
            theta, weights, capacity = (array[b] for array in self._arrays)
            if self.regularizer == "shannon":
                sizes[b] = self._number(weights[theta > -np.inf].tolist(), int(capacity))
            else:
                sizes[b] = kernels.support_size(theta, weights, int(capacity), **self._options)
        return sizes.reshape(self.batch_shape).tolist()

    def __repr__(self):
        shape = tuple(self.batch_shape + self.event_shape)
        return f"{type(self).__name__}(theta of shape {shape}, gamma={self.gamma:g}, regularizer={self.regularizer!r})"


class TopK(_Subsets):
    r"""A distribution over the subsets of exactly k of n items with scores θ.

    .. math::

        V_0(0) = 0, \quad V_i(c) = \max\nolimits_\Omega\bigl(V_{i-1}(c - 1) + \theta_i,\, V_{i-1}(c)\bigr), \qquad
        \texttt{value} = V_n(k), \quad \texttt{mean} = \nabla_\theta V_n(k) = \mathbb E\,x .

    With Shannon entropy, V is :math:`\gamma\log\sum_{|S| = k} e^{\theta(S)/\gamma}`, and k = 1 is the softmax. The time
    is O(n), whatever k; with Tsallis and Gini it is O(n k), and the result depends on the order of the items.

    Args:
        theta: scores (..., n), a tensor of float16, bfloat16, float32 or float64; -inf for an item that must not be
            chosen.
        k: how many to choose, an integer in [0, n], or integers (tensor, array or list) that broadcast with the batch
            (...): for 3 rows of scores, a k of shape (3,), not (3, 1).
        gamma: temperature, in units of the scores: towards 0 the k best, towards infinity (Shannon) all alike.
        regularizer: "shannon", "tsallis" (α = 1.5) or "gini".

    The attributes ``theta``, ``k``, ``gamma`` and ``regularizer`` hold the arguments, broadcast to the batch.

    Raises:
        TypeError: scores, k or regularizer of the wrong type.
        ValueError: values or shapes that are not allowed, or fewer than k items that are not masked.

    Source: see :mod:`lib.subsets`; Shannon's is the conditional Bernoulli law.

    >>> choice = TopK(torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64), 2)
    >>> choice.mean
    tensor([0.7553, 0.9100, 0.3348], dtype=torch.float64)
    >>> choice.mode, choice.support_size()
    (tensor([1., 1., 0.], dtype=torch.float64), 3)
    """

    def __init__(self, theta, k, *, gamma: float = 1.0, regularizer: str = "shannon"):
        scores, gamma, regularizer = _checked(theta, gamma, regularizer)
        n = theta.shape[-1]
        k = _validate.integers("k", k, low=0, high=n, shape="the batch")
        batch = _common(theta=theta.shape[:-1], k=k.shape)
        free = np.count_nonzero(scores > -np.inf, axis=-1)
        if np.any(free < k):
            free, wanted = (array[free < k].flat[0] for array in np.broadcast_arrays(free, k))
            raise ValueError(f"theta must leave k = {wanted} items that are not -inf, got {free}")
        if regularizer != "shannon":
            _check_memory("k", n, int(k.max(initial=0)))
        self.k = torch.from_numpy(np.array(np.broadcast_to(k, batch)))
        ones = np.ones(1, np.int64)
        super().__init__(theta, scores, ones, k, batch, gamma=gamma, regularizer=regularizer, exactly=True)

    def expand(self, batch_shape, _instance=None):
        batch = torch.Size(batch_shape)
        theta, k = self.theta.expand(*batch, self.event_shape[0]), self.k.expand(batch)
        return TopK(theta, k, gamma=self.gamma, regularizer=self.regularizer)

    @property
    def mode(self) -> torch.Tensor:
        """The k best items, as 0 and 1 (..., n); of equal scores the first."""
        rank = np.argsort(np.argsort(-self._arrays[0], axis=-1, stable=True), axis=-1)
        return self._batched((rank < self._arrays[2][:, None]).astype(np.int8))

    @staticmethod
    def _number(weights, k) -> int:
        return math.comb(len(weights), k)


class Knapsack(_Subsets):
    r"""A distribution over the subsets of n items, with scores θ and integer weights w, of total weight at most C.

    .. math::

        V_0(c) = 0, \quad V_i(c) = \max\nolimits_\Omega\bigl(V_{i-1}(c - w_i) + \theta_i,\, V_{i-1}(c)\bigr), \qquad
        \texttt{value} = V_n(C), \quad \texttt{mean} = \nabla_\theta V_n(C) = \mathbb E\,x .

    With Shannon entropy, V is :math:`\gamma\log\sum_{w(S) \le C} e^{\theta(S)/\gamma}`, and without a binding capacity
    the items are independent. The time is O(n C), the memory O(√n C). With Tsallis and Gini the result depends on the
    order of the items.

    Args:
        theta: scores (..., n), a tensor of float16, bfloat16, float32 or float64; -inf for an item that must not be
            chosen.
        weights: integers >= 0 (tensor, array or list), (n,) or (..., n).
        capacity: C, an integer >= 0, or integers that broadcast with the batch (...): for 3 rows of scores, a capacity
            of shape (3,), not (3, 1).
        gamma: temperature, in units of the scores: towards 0 the best subset, towards infinity (Shannon) all alike.
        regularizer: "shannon", "tsallis" (α = 1.5) or "gini".

    The attributes ``theta``, ``weights``, ``capacity``, ``gamma`` and ``regularizer`` hold the arguments, broadcast to
    the batch.

    Raises:
        TypeError: scores, weights, capacity or regularizer of the wrong type.
        ValueError: values or shapes that are not allowed, or a table that does not fit in the memory.

    Source: see :mod:`lib.subsets`.

    >>> choice = Knapsack(torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64), torch.tensor([2, 3, 1]), 4)
    >>> choice.mean
    tensor([0.2447, 0.6652, 0.5000], dtype=torch.float64)
    >>> choice.mode, choice.support_size()
    (tensor([0., 1., 0.], dtype=torch.float64), 6)
    """

    def __init__(self, theta, weights, capacity, *, gamma: float = 1.0, regularizer: str = "shannon"):
        scores, gamma, regularizer = _checked(theta, gamma, regularizer)
        n = theta.shape[-1]
        hint = "; scale and round them, as in torch.round(100 * weights).long(), and the capacity alike (truncating "
        hint += "would change the problem)"
        weights = _validate.integers("weights", weights, low=0, high=HEAVIEST, shape="(n,) or (..., n)", hint=hint)
        capacity = _validate.integers("capacity", capacity, low=0, high=int(_validate.LARGEST), shape="the batch")
        if weights.ndim == 0 or weights.shape[-1] != n:
            raise ValueError(f"weights must have one for each of the n = {n} scores, got shape {weights.shape}")
        batch = _common(theta=theta.shape[:-1], weights=weights.shape[:-1], capacity=capacity.shape)
        if n * int(weights.max(initial=0)) > 2**62:
            raise ValueError(f"weights must not add up to more than 2^62, got {n} of up to {weights.max()}")
        self.weights = torch.from_numpy(np.array(np.broadcast_to(weights, (*batch, n))))
        self.capacity = torch.from_numpy(np.array(np.broadcast_to(capacity, batch)))
        super().__init__(theta, scores, weights, capacity, batch, gamma=gamma, regularizer=regularizer, exactly=False)
        scores, weights, cells = self._arrays
        if regularizer == "shannon":  # independent items need no table
            cells = np.where(np.where(scores > -np.inf, weights, 0).sum(axis=-1) <= cells, 0, cells)
        _check_memory("capacity", n, int(cells.max(initial=0)))

    def expand(self, batch_shape, _instance=None):
        batch, n = torch.Size(batch_shape), self.event_shape[0]
        theta, weights, capacity = (
            self.theta.expand(*batch, n),
            self.weights.expand(*batch, n),
            self.capacity.expand(batch),
        )
        return Knapsack(theta, weights, capacity, gamma=self.gamma, regularizer=self.regularizer)

    @property
    def mode(self) -> torch.Tensor:
        """A best subset, as 0 and 1 (..., n), from the hard dynamic program."""
        return self._batched(kernels.mode(*self._arrays))

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


def fenchel_young_loss(distribution: TopK | Knapsack, target: torch.Tensor) -> torch.Tensor:
    r"""The Fenchel–Young loss of scores θ for a subset y* that fits, one for each element of the batch.

    .. math::

        L(\theta; y^*) = V(\theta) - \langle\theta, y^*\rangle \ge 0, \qquad \nabla_\theta L = y(\theta) - y^* .

    With Shannon entropy it is :math:`-\gamma\log p(y^*)`.

    Args:
        distribution: a :class:`TopK` or :class:`Knapsack` of batch (...).
        target: 0 and 1 (..., n), subsets that fit and have no masked item; several in front of the batch are allowed.

    Returns:
        The loss (...), in units of the scores. Differentiable twice.

    Raises:
        TypeError, ValueError: no such distribution or target.

    Source: Blondel, Martins and Niculae, *Learning with Fenchel-Young losses* (arXiv 1901.02324).

    >>> choice = TopK(torch.tensor([0.0, 0.0], dtype=torch.float64), 1)
    >>> fenchel_young_loss(choice, torch.tensor([1, 0]))  # log 2
    tensor(0.6931, dtype=torch.float64)
    """
    if not isinstance(distribution, _Subsets):
        raise TypeError(f"distribution must be a TopK or a Knapsack, got {type(distribution).__name__}")
    target = distribution._zeros_and_ones("target", target)
    chosen = target != 0
    if isinstance(distribution, TopK):
        total, limit, allowed = chosen.sum(dim=-1).cpu(), distribution.k, "choose k = {} items"
        wrong = total != limit
    else:
        total, limit = (distribution.weights * chosen.cpu()).sum(dim=-1), distribution.capacity
        wrong, allowed = total > limit, "weigh at most the capacity {}"
    if wrong.any():
        total, limit = (tensor.expand(wrong.shape)[wrong][0].item() for tensor in (total, limit))
        raise ValueError(f"target must {allowed.format(limit)}, got {total}")
    if (chosen & (distribution.theta == -torch.inf)).any():
        raise ValueError("target must not choose an item whose score is -inf")
    return distribution._of_subsets(_FenchelYoung, target)


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


def _checked(theta, gamma, regularizer):
    """The scores as an array, and gamma, which may not be so small that scores over gamma overflow."""
    scores = _validate.scores("theta", theta)
    gamma = _validate.real("gamma", gamma, at_least=1e-15)
    return scores, gamma, _validate.choice("regularizer", regularizer, kernels.CODES)


def _common(**shapes) -> torch.Size:
    """The batch that all shapes broadcast to."""
    try:
        return torch.Size(np.broadcast_shapes(*shapes.values()))
    except ValueError:
        given = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"the batch shapes (without n) must broadcast, got {given}") from None


def _check_memory(name: str, n: int, capacity: int) -> None:
    need = kernels.workspace(n, capacity)
    if need < 2**26:  # not worth a look
        return
    free = psutil.virtual_memory().available
    if need > free:
        raise ValueError(
            f"{name} is too large: {n} items and a budget of {capacity} need {need / 2**30:.1f} GiB of working memory, "
            f"and {free / 2**30:.1f} GiB are free; divide weights and capacity by a common unit and round"
        )
