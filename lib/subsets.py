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
sum, scores that are much larger than the temperature count only up to their last digit: the chances of two subsets of
a knapsack whose scores tie exactly may differ, relatively, by some :math:`10^{-16}\,|\theta|/\gamma`. The transforms of
torch.func, batched gradients (``vectorize=True``) and ``torch.jit.trace`` cannot look into these functions; they are
refused. Where an upstream gradient is not finite, no entry of that element's gradient is (NaN or infinite).

A distribution is that of the scores it was given: it does not follow a later change of ``theta`` in place, as by an
optimiser. Where ``theta`` requires a gradient such a change is an error: make the distribution inside the loop.
"""

from __future__ import annotations

import math
import numbers

import numpy as np
import psutil
import torch
from torch.autograd import Function
from torch.distributions import Distribution, constraints

from lib import _validate, kernels
from lib.smoothmax import REGULARIZERS

# Weights may not be larger, so that their sums stay exact.
HEAVIEST = 10**12

__all__ = ["Knapsack", "TopK", "fenchel_young_loss"]


class _Value(Function):
    """V(θ), whose gradient is the marginals: differentiable twice."""

    @staticmethod
    def forward(ctx, theta, choice):
        ctx.save_for_backward(theta)
        ctx.choice = choice
        return choice._batched(choice._problem.value)

    @staticmethod
    def backward(ctx, grad):
        (theta,) = ctx.saved_tensors
        return grad.unsqueeze(-1) * _Mean.apply(theta, ctx.choice), None


class _Mean(Function):
    """y(θ) = ∇V(θ): the Jacobian is symmetric, so that the vector-Jacobian product is the Hessian product."""

    @staticmethod
    def forward(ctx, theta, choice):
        ctx.save_for_backward(theta)
        ctx.choice = choice
        return choice._batched(choice._problem.marginals)

    @staticmethod
    def backward(ctx, grad):
        choice = ctx.choice

        def product(v):
            problem = choice._problem
            v = _validate.read("the upstream gradient", v).reshape(problem.theta.shape)
            product = problem.hessian_product(v)
            product[~np.isfinite(v).all(axis=-1)] = np.nan  # also where no score counts: a loss of NaN must be seen
            return choice._batched(product)

        return _Last.apply(*ctx.saved_tensors, grad, product), None


class _Entropy(Function):
    @staticmethod
    def forward(ctx, theta, choice):
        entropy, gradient = choice._problem.entropy()
        ctx.save_for_backward(theta, choice._batched(gradient))
        return choice._batched(entropy)

    @staticmethod
    def backward(ctx, grad):
        theta, gradient = ctx.saved_tensors
        return _Last.apply(theta, grad, lambda grad: grad.unsqueeze(-1) * gradient), None


class _LogProb(Function):
    @staticmethod
    def forward(ctx, theta, choice, subsets):
        """Subsets (S, B, n) in int8; returns (S, B)."""
        log_prob = choice._problem.log_prob(subsets)
        ctx.save_for_backward(theta)
        ctx.choice, ctx.subsets, ctx.possible = choice, subsets, log_prob > -np.inf
        return choice._tensor(log_prob)

    @staticmethod
    def backward(ctx, grad):
        choice, subsets, possible = ctx.choice, ctx.subsets, ctx.possible

        def gradient(grad):
            upstream = _validate.read("the upstream gradient", grad)
            finite = np.isfinite(upstream)
            gradient = choice._problem.log_prob_gradient(subsets, np.where(possible & finite, upstream, 0.0))
            gradient[~finite.all(axis=0)] = np.nan
            return choice._batched(gradient)

        return _Last.apply(*ctx.saved_tensors, grad, gradient), None, None


class _FenchelYoung(Function):
    @staticmethod
    def forward(ctx, theta, choice, subsets):
        """Subsets (S, B, n) in int8; returns (S, B), from float64 and rounded once."""
        ctx.save_for_backward(theta)
        ctx.choice, ctx.subsets = choice, subsets
        return choice._tensor(choice._problem.loss(subsets))

    @staticmethod
    def backward(ctx, grad):
        (theta,) = ctx.saved_tensors
        target = ctx.choice._tensor(ctx.subsets).reshape(len(ctx.subsets), *theta.shape)
        difference = _Mean.apply(theta, ctx.choice) - target
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
    """What :class:`TopK` and :class:`Knapsack` share, and a distribution over subsets of another structure would.

    Such a class gives ``__init__`` a problem (see ``lib.kernels``), and has ``expand`` and ``_require_fit``.
    """

    arg_constraints = {}  # noqa: RUF012  (torch's own convention)
    support = constraints.independent(constraints.boolean, 1)
    has_rsample = False

    def __init__(self, theta, problem, batch):
        n = theta.shape[-1]
        self.theta = theta if theta.shape[:-1] == batch else theta.expand(*batch, n)
        self.gamma, self.regularizer = problem.gamma, problem.regularizer
        self._given, self._version = problem, _version(theta)
        super().__init__(batch, torch.Size([n]), validate_args=False)

    @property
    def _problem(self):
        """The problem of the scores as they were given, which they must still be for a gradient to be theirs."""
        if self.theta.requires_grad and _version(self.theta) != self._version:
            raise RuntimeError(
                f"theta was changed in place (by an optimiser's step, say) after this {type(self).__name__} was made; "
                "make a new one from it, as inside a training loop, or give theta.clone()"
            )
        return self._given

    def __getstate__(self):
        return self.__dict__ | {"_version": self._version - _version(self.theta)}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._version += _version(self.theta)  # a copy counts its changes anew, from those that there were

    def _expand_into(self, new, batch):
        """Make ``new`` this distribution for a batch that it broadcasts to."""
        rows = torch.arange(len(self._given.theta)).reshape(self.batch_shape).expand(batch).flatten().numpy()
        _Subsets.__init__(new, self.theta.expand(*batch, *self.event_shape), self._problem.take(rows), batch)
        return new

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.theta.device, self.theta.dtype)

    def _batched(self, array: np.ndarray) -> torch.Tensor:
        """(B, ...) as a tensor of the batch's shape, on the device and in the type of the scores."""
        return self._tensor(array).reshape(self.batch_shape + array.shape[1:])

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

        A draw of Shannon's top-k throws n coins until k show heads, on average some 2.5 s times, s the standard
        deviation of their number; other draws share one table.
        """
        _validate.generator(generator)
        sizes = sample_shape if isinstance(sample_shape, (tuple, list)) else [None]
        if any(not isinstance(size, numbers.Integral) or size < 0 for size in sizes):
            raise TypeError(f"sample_shape must be a torch.Size or a tuple of integers >= 0, got {sample_shape!r}")
        sample_shape = torch.Size(int(size) for size in sizes)
        device = "cpu" if generator is None else generator.device
        size = (math.prod(sample_shape), self.batch_shape.numel())
        seeds = torch.randint(-(2**63), 2**63 - 1, size, generator=generator, device=device)
        seeds = seeds.cpu().numpy().view(np.uint64)
        return self._tensor(self._problem.sample(seeds)).reshape(self._extended_shape(sample_shape))

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
            return self.expand(batch, self.__new__(type(self)))._of_subsets(function, subsets)
        size = (math.prod(shape[: len(shape) - len(batch)]), batch.numel())
        subsets = subsets.expand(*shape, -1).to("cpu", torch.int8).reshape(*size, *self.event_shape)
        return function.apply(self.theta, self, subsets.contiguous().numpy()).reshape(shape)

    def _zeros_and_ones(self, name: str, value) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a torch tensor of 0 and 1, got {type(value).__name__}")
        _validate.dense(name, value)
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
        given = _validate.read(name, value)
        wrong = (given != 0) & (given != 1)
        if wrong.any():
            raise ValueError(f"{name} must hold only 0 and 1, got {given[wrong][0]}")
        return value.detach()

    @property
    def mode(self) -> torch.Tensor:
        """A best subset, as 0 and 1 (..., n), from the hard dynamic program; the first of equal scores for top-k."""
        return self._batched(self._problem.mode())

    def entropy(self) -> torch.Tensor:
        """The entropy of the distribution over subsets, in nats (...). Differentiable once."""
        return _Entropy.apply(self.theta, self)

    def support_size(self):
        """How many subsets have a positive probability: an exact int, or nested lists of them for a batch.

        With Shannon these are all the subsets that fit; Tsallis and Gini leave many out.
        """
        sizes = np.array(self._problem.support_size(), object)  # not int64: they may be larger
        return sizes.reshape(self.batch_shape).tolist()

    def __repr__(self):
        shape = tuple(self.batch_shape + self.event_shape)
        return f"{type(self).__name__}(theta of shape {shape}, gamma={self.gamma:g}, regularizer={self.regularizer!r})"


class TopK(_Subsets):
    r"""A distribution over the subsets of exactly k of n items with scores θ.

    .. math::

        V_0(0) = 0, \quad V_0(c \ne 0) = -\infty, \qquad
        V_i(c) = \max\nolimits_\Omega\bigl(V_{i-1}(c - 1) + \theta_i,\, V_{i-1}(c)\bigr), \\
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
        k = np.array(np.broadcast_to(k, batch))
        self.k = torch.from_numpy(k)
        problem = kernels.ExactlyK(_flat(scores, batch, n), _flat(k, batch), gamma=gamma, regularizer=regularizer)
        _check_memory("k", n, problem.budget())
        super().__init__(theta, problem, batch)

    def expand(self, batch_shape, _instance=None):
        new, batch = self._get_checked_instance(TopK, _instance), torch.Size(batch_shape)
        new.k = self.k.expand(batch)
        return self._expand_into(new, batch)

    def _require_fit(self, target):
        total = target.sum(dim=-1)
        _refuse(total != self.k, "target must choose k = {} items, got {}", self.k, total)


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
        weights, capacity = np.array(np.broadcast_to(weights, (*batch, n))), np.array(np.broadcast_to(capacity, batch))
        self.weights, self.capacity = torch.from_numpy(weights), torch.from_numpy(capacity)
        arrays = _flat(scores, batch, n), _flat(weights, batch, n), _flat(capacity, batch)
        problem = kernels.AtMost(*arrays, gamma=gamma, regularizer=regularizer)
        _check_memory("capacity", n, problem.budget())
        super().__init__(theta, problem, batch)

    def expand(self, batch_shape, _instance=None):
        new, batch = self._get_checked_instance(Knapsack, _instance), torch.Size(batch_shape)
        new.weights, new.capacity = self.weights.expand(*batch, *self.event_shape), self.capacity.expand(batch)
        return self._expand_into(new, batch)

    def _require_fit(self, target):
        total = (self.weights * target).sum(dim=-1)
        _refuse(total > self.capacity, "target must weigh at most the capacity {}, got {}", self.capacity, total)


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
    chosen = target.cpu() != 0
    distribution._require_fit(chosen)
    masked = torch.from_numpy(distribution._problem.theta == -np.inf)
    if (chosen & masked.reshape(distribution.batch_shape + distribution.event_shape)).any():
        raise ValueError("target must not choose an item whose score is -inf")
    return distribution._of_subsets(_FenchelYoung, target)


def _refuse(wrong: torch.Tensor, message: str, *values: torch.Tensor) -> None:
    """ValueError with the first of the values that are wrong, if any are."""
    if wrong.any():
        raise ValueError(message.format(*(value.expand(wrong.shape)[wrong][0].item() for value in values)))


def _version(tensor: torch.Tensor) -> int:
    """How often the tensor was changed in place; torch does not count for inference tensors."""
    return 0 if tensor.is_inference() else tensor._version


def _flat(array: np.ndarray, batch: torch.Size, *event: int) -> np.ndarray:
    """The array for the whole batch, as (B, ...): a copy in C order, which is what the kernels are compiled for."""
    return np.array(np.broadcast_to(array, (*batch, *event)).reshape(batch.numel(), *event), order="C")


def _checked(theta, gamma, regularizer):
    """The scores as an array, and gamma, which may not be so small that scores over gamma overflow."""
    scores = _validate.scores("theta", theta)
    gamma = _validate.real("gamma", gamma, at_least=1e-15)
    return scores, gamma, _validate.choice("regularizer", regularizer, REGULARIZERS)


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
