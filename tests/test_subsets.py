"""TopK and Knapsack against enumeration, closed forms, laws, other libraries and every edge we know of."""

import concurrent.futures
import copy
import itertools
import math
import os
import pickle
import shutil
import subprocess
import sys
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch.autograd import gradcheck, gradgradcheck

from lib import dp, kernels, subsets
from lib.smoothmax import REGULARIZERS
from lib.subsets import Knapsack, TopK, fenchel_young_loss

every_regularizer = pytest.mark.parametrize("regularizer", REGULARIZERS)


def scores(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem(seed, kind):
    """Scores (random, or integers with ties), and the arguments that make a TopK or a Knapsack of them."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 13))
    theta = rng.integers(-3, 4, n).astype(float) if seed % 2 else rng.normal(size=n) * 2
    gamma = float(rng.choice([0.3, 1.0, 2.5]))
    if kind == "top-k":
        k = int(rng.integers(0, n + 1))
        return theta, np.ones(n, int), k, gamma, True
    return theta, rng.integers(0, 7, n) * int(rng.integers(1, 3)), int(rng.integers(0, 4 * n)), gamma, False


def distribution(theta, weights, capacity, gamma, exactly, regularizer):
    theta = torch.as_tensor(theta, dtype=torch.float64)
    if exactly:
        return TopK(theta, capacity, gamma=gamma, regularizer=regularizer)
    return Knapsack(theta, torch.as_tensor(weights), capacity, gamma=gamma, regularizer=regularizer)


def law(theta, weights, capacity, gamma, exactly, regularizer):
    """All subsets that fit and their probabilities: Gibbs for Shannon, otherwise the coins of the readable table."""
    all_subsets = dp.enumerate_subsets(weights, capacity, exactly=exactly)
    if regularizer == "shannon":
        logits = all_subsets @ theta / gamma
        return all_subsets, special.softmax(logits)
    _, take = dp.forward(theta, weights, capacity, gamma=gamma, regularizer=REGULARIZERS[regularizer], exactly=exactly)
    probabilities = []
    for subset in all_subsets:
        p, budget = 1.0, capacity
        for i in reversed(range(len(theta))):
            p *= take[i, budget] if subset[i] else 1 - take[i, budget]
            budget -= weights[i] * subset[i]
        probabilities.append(p)
    return all_subsets, np.array(probabilities)


PROBLEMS = [(seed, kind) for seed in range(14) for kind in ("top-k", "knapsack")]


@every_regularizer
@pytest.mark.parametrize(("seed", "kind"), PROBLEMS)
def test_enumeration(seed, kind, regularizer):
    theta, weights, capacity, gamma, exactly = problem(seed, kind)
    choice = distribution(theta, weights, capacity, gamma, exactly, regularizer)
    fitting, p = law(theta, weights, capacity, gamma, exactly, regularizer)
    assert p.sum() == pytest.approx(1, abs=1e-12)

    if regularizer == "shannon":
        value = gamma * special.logsumexp(fitting @ theta / gamma)
    else:
        value = dp.forward(
            theta, weights, capacity, gamma=gamma, regularizer=REGULARIZERS[regularizer], exactly=exactly
        )[0][-1, -1]
    assert choice.value.item() == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(choice.mean, p @ fitting, atol=1e-9)
    np.testing.assert_allclose(choice.variance, (p @ fitting) * (1 - p @ fitting), atol=1e-9)
    np.testing.assert_allclose(choice.log_prob(torch.as_tensor(fitting)).exp(), p, atol=1e-9)
    assert choice.entropy().item() == pytest.approx(special.entr(p).sum(), abs=1e-9)
    assert choice.support_size() == (p > 0).sum()
    others = np.array([x for x in itertools.product([0, 1], repeat=len(theta)) if list(x) not in fitting.tolist()])
    if len(others):
        assert (choice.log_prob(torch.as_tensor(others)) == -torch.inf).all()
    assert (fitting @ theta).max() == pytest.approx(float(choice.mode.numpy() @ theta))
    assert choice.mode.tolist() in fitting.tolist()


@pytest.mark.parametrize(("seed", "kind"), PROBLEMS)
def test_shannons_vector_jacobian_product_is_the_covariance_over_gamma(seed, kind):
    theta, weights, capacity, gamma, exactly = problem(seed, kind)
    fitting, p = law(theta, weights, capacity, gamma, exactly, "shannon")
    centred = fitting - p @ fitting
    covariance = centred.T @ (p[:, None] * centred)
    jacobian = torch.autograd.functional.jacobian(
        lambda t: distribution(t, weights, capacity, gamma, exactly, "shannon").mean, torch.as_tensor(theta)
    )
    np.testing.assert_allclose(jacobian, covariance / gamma, atol=1e-9)
    if exactly:
        assert (jacobian - torch.diag(torch.diag(jacobian)) <= 1e-15).all()  # negatively associated


@every_regularizer
@pytest.mark.parametrize(("seed", "kind"), PROBLEMS[::2] + PROBLEMS[1::4])
def test_other_jacobians_are_those_of_the_readable_program(seed, kind, regularizer):
    theta, weights, capacity, gamma, exactly = problem(seed, kind)
    theta = theta + np.linspace(0, 0.03, len(theta))  # ties are corners of Tsallis and Gini
    jacobian = torch.autograd.functional.jacobian(
        lambda t: distribution(t, weights, capacity, gamma, exactly, regularizer).mean, torch.as_tensor(theta)
    )
    options = {"gamma": gamma, "regularizer": REGULARIZERS[regularizer], "exactly": exactly}
    readable = [dp.hessian_product(theta, weights, capacity, e, **options) for e in np.eye(len(theta))]
    np.testing.assert_allclose(jacobian, readable, atol=1e-9)


@every_regularizer
@pytest.mark.parametrize("kind", ["top-k", "knapsack"])
def test_samples_follow_the_law(kind, regularizer):
    """Chi-square over all subsets that are expected 5 times or more: 6 tests at level 1e-5, a false alarm in 17,000."""
    theta, weights, capacity = scores(6, seed=3).numpy(), np.array([2, 3, 1, 4, 2, 0]), 6
    exactly = kind == "top-k"
    arguments = (theta, np.ones(6, int), 3, 1.0, True) if exactly else (theta, weights, capacity, 1.0, False)
    choice = distribution(*arguments, regularizer)
    fitting, p = law(*arguments, regularizer)
    draws = choice.sample((20_000,), generator=torch.Generator().manual_seed(1)).numpy()
    counts = np.array([(draws == subset).all(axis=1).sum() for subset in fitting])
    assert counts.sum() == 20_000  # nothing else is drawn
    assert (counts[p == 0] == 0).all()
    often = p * 20_000 >= 5
    observed, expected = counts[often], p[often] * 20_000
    if not often.all():
        observed, expected = np.append(observed, counts[~often].sum()), np.append(expected, 20_000 * p[~often].sum())
        if expected[-1] < 1:
            assert observed[-1] <= 15
            observed, expected = observed[:-1], expected[:-1] * observed[:-1].sum() / expected[:-1].sum()
    assert stats.chisquare(observed, expected).pvalue > 1e-5


@every_regularizer
def test_sample_shapes_seeds_and_batches(regularizer):
    theta = scores(4, 1, 7)
    choice = TopK(theta, torch.tensor([1, 3]), regularizer=regularizer)
    draws = choice.sample((5, 2), generator=torch.Generator().manual_seed(0))
    assert draws.shape == (5, 2, 4, 2, 7)
    assert draws.dtype == theta.dtype
    assert (draws.sum(-1) == torch.tensor([1.0, 3.0])).all()
    again = choice.sample((5, 2), generator=torch.Generator().manual_seed(0))
    assert torch.equal(draws, again)
    assert not torch.equal(draws, choice.sample((5, 2), generator=torch.Generator().manual_seed(1)))
    assert choice.sample((0,)).shape == (0, 4, 2, 7)
    assert choice.sample((np.int64(5),)).shape == (5, 4, 2, 7)
    torch.manual_seed(0)  # without a generator: torch's own stream
    first = choice.sample()
    torch.manual_seed(0)
    assert torch.equal(first, choice.sample())
    many = choice.sample((200,), generator=torch.Generator().manual_seed(2))
    assert (many != many[0]).any()


@every_regularizer
def test_mean_of_samples_is_the_marginals_for_many_items(regularizer):
    """200 marginals at 5 standard errors: a false alarm in 8,000 for each of 6 tests."""
    theta, weights = scores(100, seed=1), torch.arange(100) % 9
    generator = torch.Generator().manual_seed(0)
    for choice in (TopK(theta, 30, regularizer=regularizer), Knapsack(theta, weights, 80, regularizer=regularizer)):
        draws, y = choice.sample((4000,), generator=generator), choice.mean
        assert ((draws.mean(0) - y).abs() <= 5 * (y * (1 - y) / 4000).sqrt() + 2e-3).all()


def test_straight_through_is_hard_forwards_and_soft_backwards():
    theta = scores(3, 8).requires_grad_()
    choice = TopK(theta, 2)
    hard = choice.straight_through((4,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(hard, choice.sample((4,), generator=torch.Generator().manual_seed(0)))
    upstream = scores(4, 3, 8, seed=5)
    (gradient,) = torch.autograd.grad((hard * upstream).sum(), theta)
    (expected,) = torch.autograd.grad((choice.mean * upstream.sum(0)).sum(), theta)
    torch.testing.assert_close(gradient, expected)


# ---- derivatives ----


@every_regularizer
@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 5), (3, 1, 5), (1, 1, 5), (2, 3, 5)])
def test_gradcheck(shape, regularizer):
    theta = scores(*shape, seed=2, scale=0.7).requires_grad_()
    weights = torch.tensor([2, 3, 1, 2, 4])
    subset = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0])
    for make in (
        lambda t: TopK(t, 2, gamma=1.3, regularizer=regularizer),
        lambda t: Knapsack(t, weights, 6, gamma=1.3, regularizer=regularizer),
    ):
        assert gradcheck(lambda t, make=make: make(t).value, theta)
        assert gradcheck(lambda t, make=make: make(t).mean, theta)
        assert gradcheck(lambda t, make=make: make(t).entropy(), theta)
        assert gradcheck(lambda t, make=make: make(t).log_prob(subset), theta)
        assert gradcheck(
            lambda t, make=make: make(t).log_prob(torch.stack([subset, subset]).view(2, *[1] * (t.ndim - 1), 5)), theta
        )
        assert gradgradcheck(lambda t, make=make: make(t).value, theta)
        assert gradcheck(lambda t, make=make: fenchel_young_loss(make(t), subset), theta)


@every_regularizer
def test_per_instance_arguments_equal_one_problem_at_a_time(regularizer):
    theta, k = scores(3, 4, 6), torch.tensor([0, 2, 5, 6])
    weights = torch.randint(0, 6, (3, 1, 6), generator=torch.Generator().manual_seed(0))
    capacity = torch.tensor([3, 0, 9, 40])
    v = scores(3, 4, 6, seed=9)
    for choice, alone in (
        (TopK, lambda a, b: (k[b].item(),)),
        (Knapsack, lambda a, b: (weights[a, 0], capacity[b].item())),
    ):
        leaf = theta.clone().requires_grad_()
        whole = choice(leaf, *((k,) if choice is TopK else (weights, capacity)), regularizer=regularizer)
        (gradient,) = torch.autograd.grad((whole.mean * v).sum(), leaf)
        for a, b in itertools.product(range(3), range(4)):
            one = theta[a, b].clone().requires_grad_()
            single = choice(one, *alone(a, b), regularizer=regularizer)
            torch.testing.assert_close(single.mean, whole.mean[a, b], rtol=0, atol=1e-15)
            torch.testing.assert_close(single.value, whole.value[a, b], rtol=1e-14, atol=1e-15)
            (expected,) = torch.autograd.grad((single.mean * v[a, b]).sum(), one)
            torch.testing.assert_close(gradient[a, b], expected, rtol=0, atol=1e-14)
            assert single.support_size() == whole.support_size()[a][b]


@every_regularizer
def test_layouts_and_empty_batches(regularizer):
    theta = scores(6, 4, 5)
    dense = TopK(theta.transpose(0, 1).contiguous(), 2, regularizer=regularizer)
    for same in (theta.transpose(0, 1), theta.transpose(0, 1)[:, ::1], theta.permute(2, 1, 0).permute(1, 2, 0)):
        assert torch.equal(TopK(same, 2, regularizer=regularizer).mean, dense.mean)
    leaf = scores(5).requires_grad_()
    expanded = TopK(leaf.expand(3, 5), 2, regularizer=regularizer)
    (gradient,) = torch.autograd.grad((expanded.mean * theta[0, 0]).sum(), leaf)
    (once,) = torch.autograd.grad((TopK(leaf, 2, regularizer=regularizer).mean * theta[0, 0]).sum(), leaf)
    torch.testing.assert_close(gradient, 3 * once)
    for shape in ((0, 5), (2, 0, 5), (0,), (3, 0)):
        empty = scores(*shape).requires_grad_()
        k = min(2, shape[-1])
        for choice in (
            TopK(empty, k, regularizer=regularizer),
            Knapsack(empty, torch.ones(shape[-1], dtype=torch.int64), 2, regularizer=regularizer),
        ):
            assert choice.mean.shape == choice.mode.shape == choice.sample().shape == shape
            assert choice.value.shape == choice.entropy().shape == shape[:-1]
            assert choice.log_prob(torch.zeros(shape)).shape == shape[:-1]
            choice.mean.sum().backward()
            choice.value.sum().backward()
            choice.support_size()
    assert TopK(scores(0), 0).value.item() == 0
    wide = TopK(theta, 2, regularizer=regularizer).expand((3, 6, 4))
    assert wide.mean.shape == (3, 6, 4, 5)


@every_regularizer
def test_second_derivatives_raise_where_they_are_not_known(regularizer):
    theta = scores(5).requires_grad_()
    choice = TopK(theta, 2, regularizer=regularizer)
    subset = torch.tensor([1, 1, 0, 0, 0])
    for output in (choice.mean[0], choice.entropy(), choice.log_prob(subset)):
        (first,) = torch.autograd.grad(output, theta, create_graph=True)
        with pytest.raises(RuntimeError, match="once differentiable"):
            torch.autograd.grad(first.sum() + theta.sum(), theta)  # not silently the gradient of the second term
    (first,) = torch.autograd.grad(choice.value, theta, create_graph=True)
    (second,) = torch.autograd.grad(first[0], theta, create_graph=True)
    with pytest.raises(RuntimeError, match="once differentiable"):
        torch.autograd.grad(second.sum(), theta)


@every_regularizer
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_upstream_gradient_that_is_not_finite_is_not_lost(bad, regularizer):
    """On all paths: the contour, the recursion on probabilities, its table (the second row), independent items."""
    theta = torch.tensor([[0.1, 0.5, -1.0, 2.0], [1e3, 1e3, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    weights, zeros, ones = torch.tensor([2, 3, 1, 4]), torch.zeros(4), torch.ones(4)
    for choice, subset in (
        (TopK(theta, 2, regularizer=regularizer), ones),  # never drawn
        (TopK(theta, 4, regularizer=regularizer), ones),  # no score counts
        (Knapsack(theta, weights, 4, regularizer=regularizer), zeros),
        (Knapsack(theta, weights, 4, regularizer=regularizer), ones),
        (Knapsack(theta, weights, 0, regularizer=regularizer), zeros),
        (Knapsack(theta, weights, 10, regularizer=regularizer), ones),
    ):
        outputs = [choice.mean, choice.value, choice.entropy(), choice.log_prob(subset), choice.straight_through()]
        for output in (*outputs, fenchel_young_loss(choice, choice.mode)):
            for row in (0, 1):
                upstream = torch.zeros_like(output)
                upstream[row].view(-1)[0] = bad  # one number of one instance
                (gradient,) = torch.autograd.grad(output, theta, upstream, retain_graph=True)
                assert not torch.isfinite(gradient[row]).any()
                assert (gradient[1 - row] == 0).all()


@every_regularizer
def test_an_upstream_gradient_that_overflows_is_not_lost(regularizer):
    theta, weights = scores(6, scale=0.3).requires_grad_(), torch.tensor([1, 2, 1, 2, 1, 3])
    direction = torch.tensor([1.0, -1.0, -1.0, 1.0, 1.0, -1.0], dtype=torch.float64)
    for make in (
        lambda gamma: TopK(theta, 3, gamma=gamma, regularizer=regularizer).mean,
        lambda gamma: Knapsack(theta, weights, 5, gamma=gamma, regularizer=regularizer).mean,
    ):
        (expected,) = torch.autograd.grad(make(0.4), theta, direction)
        (gradient,) = torch.autograd.grad(make(0.4), theta, 1.7e308 * direction)
        finite = torch.isfinite(gradient)
        torch.testing.assert_close(gradient[finite] / 1.7e308, expected[finite])


# ---- laws ----


@every_regularizer
@pytest.mark.parametrize("n", [5, 40, 300])
def test_laws_of_top_k(n, regularizer):
    theta, k, v = scores(n, seed=n, scale=2.0), n // 3, scores(n, seed=1)
    make = lambda t, k=k, gamma=1.0: TopK(t, k, gamma=gamma, regularizer=regularizer)  # noqa: E731
    y = make(theta).mean
    assert y.sum().item() == pytest.approx(k, abs=1e-11)
    assert ((y >= 0) & (y <= 1)).all()
    torch.testing.assert_close(make(theta + 7.5).mean, y, rtol=0, atol=1e-12)
    torch.testing.assert_close(make(theta + 7.5).value, make(theta).value + 7.5 * k)
    torch.testing.assert_close(make(3 * theta, gamma=3.0).mean, y, rtol=0, atol=1e-12)
    torch.testing.assert_close(make(-theta, k=n - k).mean, 1 - y, rtol=0, atol=1e-11)
    check_jacobian(make, theta, rows_sum_to_zero=True)
    (product,) = torch.autograd.grad((make(t := theta.clone().requires_grad_()).mean * v).sum(), t)
    assert product.sum().item() == pytest.approx(0, abs=1e-11)


@every_regularizer
@pytest.mark.parametrize("n", [5, 40, 200])
def test_laws_of_the_knapsack(n, regularizer):
    theta = scores(n, seed=n, scale=2.0)
    weights = torch.randint(0, 9, (n,), generator=torch.Generator().manual_seed(n))
    capacity = int(weights.sum()) // 3
    make = lambda t, gamma=1.0: Knapsack(t, weights, capacity, gamma=gamma, regularizer=regularizer)  # noqa: E731
    y = make(theta).mean
    assert (weights * y).sum() <= capacity
    assert ((y >= 0) & (y <= 1)).all()
    torch.testing.assert_close(make(3 * theta, gamma=3.0).mean, y, rtol=0, atol=1e-12)
    check_jacobian(make, theta, rows_sum_to_zero=False)
    # in other units
    scaled = Knapsack(theta, 12 * weights, 12 * capacity + 11, regularizer=regularizer)
    torch.testing.assert_close(scaled.mean, y, rtol=0, atol=1e-13)
    torch.testing.assert_close(scaled.value, make(theta).value, rtol=1e-13, atol=0)
    torch.testing.assert_close(scaled.entropy(), make(theta).entropy(), rtol=1e-9, atol=1e-10)
    subset = make(theta).sample(generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(scaled.log_prob(subset), make(theta).log_prob(subset), rtol=1e-10, atol=1e-10)


def check_jacobian(make, theta, rows_sum_to_zero):
    """Symmetric and positive semidefinite, and the derivative of the marginals along a line."""
    if len(theta) > 40:
        v = scores(len(theta), seed=3)
        leaf = theta.clone().requires_grad_()
        (product,) = torch.autograd.grad((make(leaf).mean * v).sum(), leaf)
        slope = (make(theta + 1e-5 * v).mean - make(theta - 1e-5 * v).mean) / 2e-5
        torch.testing.assert_close(product, slope, rtol=0, atol=1e-4)
        return
    jacobian = torch.autograd.functional.jacobian(lambda t: make(t).mean, theta)
    torch.testing.assert_close(jacobian, jacobian.T, rtol=0, atol=1e-12)
    assert torch.linalg.eigvalsh(jacobian).min() > -1e-12
    if rows_sum_to_zero:
        assert jacobian.sum(-1).abs().max() < 1e-12


def test_shannon_does_not_see_the_order():
    theta, weights = scores(30), torch.randint(0, 9, (30,), generator=torch.Generator().manual_seed(0))
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(TopK(theta[order], 9).mean, TopK(theta, 9).mean[order], rtol=0, atol=1e-14)
    y = Knapsack(theta, weights, 50).mean
    torch.testing.assert_close(Knapsack(theta[order], weights[order], 50).mean, y[order], rtol=0, atol=1e-14)


@every_regularizer
def test_one_item_is_the_smoothed_maximum(regularizer):
    """With room for it, and 0 for leaving it: the two implementations of each regulariser in the registry."""
    t = torch.linspace(-3, 3, 41, dtype=torch.float64).unsqueeze(-1).requires_grad_()
    choice = Knapsack(0.5 * t, [1], 1, gamma=0.5, regularizer=regularizer)
    exact, points = REGULARIZERS[regularizer], t.detach().squeeze().numpy()
    np.testing.assert_allclose(choice.value.detach(), 0.5 * exact.value(points), atol=1e-15)
    np.testing.assert_allclose(choice.mean.detach()[:, 0], exact.probability(points), atol=1e-15)
    np.testing.assert_allclose(torch.autograd.grad(choice.mean.sum(), t)[0][:, 0], exact.curvature(points), atol=1e-7)


def test_a_regulariser_without_kernels_is_an_error():
    assert set(kernels.CODES) == set(REGULARIZERS.values())
    for function in (kernels._row, kernels._curvature, kernels._log_chance):
        function = getattr(function, "py_func", function)
        with pytest.raises(ValueError, match="no kernel for this regulariser"):
            function(99, *[None] * (function.__code__.co_argcount - 1))


# ---- other libraries ----


def test_poisson_binomial():
    """The mass of k items, over Π (1 + e^θ), is P(S = k) for independent coins of logits θ."""
    theta = scores(50, scale=2.0)
    pmf = stats.poisson_binom(torch.sigmoid(theta).numpy()).pmf(np.arange(51))
    value = TopK(theta.expand(51, 50), torch.arange(51)).value
    np.testing.assert_allclose(value - torch.nn.functional.softplus(theta).sum(), np.log(pmf), atol=1e-9)


@pytest.mark.parametrize("kind", ["random", "strongly correlated"])
def test_mode_is_the_optimum_of_or_tools(kind):
    from ortools.algorithms.python import knapsack_solver

    rng = np.random.default_rng(0)
    for n in (10, 50, 100):
        weights = rng.integers(1, 100, n)
        values = rng.integers(1, 100, n) if kind == "random" else weights + 10
        capacity = int(weights.sum()) // 3
        solver = knapsack_solver.KnapsackSolver(
            knapsack_solver.SolverType.KNAPSACK_MULTIDIMENSION_BRANCH_AND_BOUND_SOLVER, "mode"
        )
        solver.init(values.tolist(), [weights.tolist()], [capacity])
        best = solver.solve()
        choice = Knapsack(torch.as_tensor(values, dtype=torch.float64), torch.as_tensor(weights), capacity)
        assert (choice.mode.numpy() @ weights) <= capacity
        assert choice.mode.numpy() @ values == best


# ---- limits and edges ----


@every_regularizer
def test_ends_of_top_k(regularizer):
    theta = scores(2, 6).requires_grad_()
    for k in (0, 6):
        choice = TopK(theta, k, regularizer=regularizer)
        assert (choice.mean == (k == 6)).all()
        assert (choice.entropy() == 0).all()
        assert choice.support_size() == [1, 1]
        torch.testing.assert_close(choice.value, theta.sum(-1) if k else torch.zeros(2, dtype=torch.float64))
        assert (choice.log_prob(choice.mode) == 0).all()
        assert torch.equal(choice.sample(), choice.mode)
        (gradient,) = torch.autograd.grad(choice.mean.sum(), theta)
        assert (gradient == 0).all()


@every_regularizer
def test_knapsack_without_room_and_with_room_for_all(regularizer):
    theta, weights = scores(5).requires_grad_(), torch.tensor([3, 1, 4, 1, 5])
    nothing = Knapsack(theta, weights, 0, regularizer=regularizer)
    assert (nothing.mean == 0).all()
    assert nothing.value == 0
    independent = torch.as_tensor(REGULARIZERS[regularizer].probability(theta.detach().numpy()))
    for capacity in (14, 15, 10**15):
        everything = Knapsack(theta, weights, capacity, regularizer=regularizer)
        torch.testing.assert_close(everything.mean, independent, rtol=1e-14, atol=1e-15)
        assert everything.entropy().item() == pytest.approx(
            special.entr([independent.numpy(), 1 - independent.numpy()]).sum()
        )
    free = Knapsack(theta, torch.tensor([0, 1, 0, 2, 3]), 2, regularizer=regularizer)
    torch.testing.assert_close(free.mean[[0, 2]], independent[[0, 2]], rtol=1e-14, atol=1e-15)


@every_regularizer
def test_an_item_that_never_fits_has_no_marginal_and_no_gradient(regularizer):
    theta = scores(4).requires_grad_()
    choice = Knapsack(theta, torch.tensor([2, 9, 1, 3]), 4, regularizer=regularizer)
    (of_mean,) = torch.autograd.grad((choice.mean * scores(4, seed=1)).sum(), theta)
    (of_value,) = torch.autograd.grad(choice.value, theta)
    assert choice.mean[1] == of_mean[1] == of_value[1] == choice.mode[1] == 0
    without = Knapsack(theta[[0, 2, 3]], torch.tensor([2, 1, 3]), 4, regularizer=regularizer)
    torch.testing.assert_close(choice.mean[[0, 2, 3]], without.mean, rtol=0, atol=1e-15)
    assert choice.support_size() == without.support_size()


@every_regularizer
def test_minus_infinity_is_a_mask(regularizer):
    theta = scores(3, 7)
    masked = theta.clone()
    masked[:, [1, 4]] = -torch.inf
    masked.requires_grad_()
    keep, weights = [0, 2, 3, 5, 6], torch.tensor([1, 2, 3, 1, 2, 2, 1])
    for whole, without in (
        (TopK(masked, 3, regularizer=regularizer), TopK(theta[:, keep], 3, regularizer=regularizer)),
        (
            Knapsack(masked, weights, 5, regularizer=regularizer),
            Knapsack(theta[:, keep], weights[keep], 5, regularizer=regularizer),
        ),
    ):
        torch.testing.assert_close(whole.mean[:, keep], without.mean, rtol=0, atol=1e-14)
        torch.testing.assert_close(whole.value, without.value)
        torch.testing.assert_close(whole.entropy(), without.entropy())
        assert whole.support_size() == without.support_size()
        assert (whole.mean[:, [1, 4]] == 0).all()
        assert (whole.mode[:, [1, 4]] == 0).all()
        assert (whole.sample((20,))[..., [1, 4]] == 0).all()
        subset = without.sample(generator=torch.Generator().manual_seed(0))
        padded = torch.zeros(3, 7, dtype=torch.float64)
        padded[:, keep] = subset
        torch.testing.assert_close(whole.log_prob(padded), without.log_prob(subset))
        assert (whole.log_prob(torch.eye(7)[1]) == -torch.inf).all()
        outputs = whole.value.sum() + whole.entropy().sum() + whole.log_prob(padded).sum() + (whole.mean**2).sum()
        (gradient,) = torch.autograd.grad(outputs + fenchel_young_loss(whole, padded).sum(), masked)
        assert torch.isfinite(gradient).all()
        assert (gradient[:, [1, 4]] == 0).all()
    full = TopK(masked, 5, regularizer=regularizer)
    assert (full.mean[:, keep] == 1).all()
    assert full.support_size() == [1, 1, 1]


def test_one_of_n_is_the_softmax():
    theta = scores(4, 50, scale=5.0).requires_grad_()
    for gamma in (0.01, 1.0, 100.0):
        torch.testing.assert_close(
            TopK(theta, 1, gamma=gamma).mean, (theta / gamma).softmax(-1), rtol=1e-10, atol=1e-15
        )
        value = gamma * (theta / gamma).logsumexp(-1)
        torch.testing.assert_close(TopK(theta, 1, gamma=gamma).value, value, rtol=1e-13, atol=0)


@every_regularizer
@pytest.mark.parametrize("gamma", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_extremes_stay_finite_and_lawful(gamma, scale, regularizer):
    theta = scores(2, 30, scale=scale).clamp(-scale, scale).requires_grad_()
    weights = torch.randint(0, 9, (30,), generator=torch.Generator().manual_seed(0))
    for choice in (
        TopK(theta, 11, gamma=gamma, regularizer=regularizer),
        Knapsack(theta, weights, 40, gamma=gamma, regularizer=regularizer),
    ):
        y, subset = choice.mean, choice.sample()
        (product,) = torch.autograd.grad((y * scores(2, 30, seed=1)).sum(), theta)
        assert torch.isfinite(product).all()
        assert torch.isfinite(choice.value).all()
        limit = math.comb(30, 11) if isinstance(choice, TopK) else 2**30
        assert (choice.entropy() >= -1e-9).all()
        assert (choice.entropy() <= math.log(limit) + 1e-6).all()
        assert torch.isfinite(choice.log_prob(subset)).all()
        assert (choice.log_prob(subset) <= 1e-9).all()
        if isinstance(choice, TopK):
            torch.testing.assert_close(y.sum(-1), torch.full((2,), 11.0, dtype=torch.float64), rtol=0, atol=1e-9)
        else:
            assert ((weights * y).sum(-1) <= 40 + 1e-9).all()
        if gamma / scale <= 1e-6:
            torch.testing.assert_close(y, choice.mode, rtol=0, atol=1e-9)
        if gamma / scale >= 1e6 and regularizer == "shannon" and isinstance(choice, TopK):
            torch.testing.assert_close(y, torch.full_like(y, 11 / 30), rtol=0, atol=1e-5)


@every_regularizer
def test_ties_and_near_ties(regularizer):
    equal = TopK(torch.full((9,), 2.5, dtype=torch.float64), 4, regularizer=regularizer)
    assert equal.mean.sum().item() == pytest.approx(4, abs=1e-13)
    assert equal.mode.tolist() == [1, 1, 1, 1, 0, 0, 0, 0, 0]
    if regularizer == "shannon":
        for gamma in (1e-6, 1.0, 1e6):
            choice = TopK(torch.full((9,), 2.5, dtype=torch.float64), 4, gamma=gamma)
            np.testing.assert_allclose(choice.mean, 4 / 9, atol=1e-14)
            assert choice.entropy().item() == pytest.approx(math.log(math.comb(9, 4)))
        # in the cold, an average over the tied optima
        theta = torch.tensor([3.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
        np.testing.assert_allclose(TopK(theta, 2, gamma=1e-3).mean, [1, 1 / 3, 1 / 3, 1 / 3, 0], atol=1e-14)
        weights = torch.tensor([1, 1, 1, 1, 1])
        np.testing.assert_allclose(
            Knapsack(theta, weights, 2, gamma=1e-3).mean, [1, 1 / 3, 1 / 3, 1 / 3, 0], atol=1e-14
        )
        # scores a few ulps apart are as good as equal
        near = 2.5 + 4e-16 * torch.arange(9, dtype=torch.float64)
        np.testing.assert_allclose(TopK(near, 4).mean, 4 / 9, atol=1e-14)


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 20, 51, 200])
def test_the_contour_has_no_node_on_the_pole(n):
    """Equal scores at k = n/2 put every p at ½, where a node at t = π would divide by 0. The Jacobian is known."""
    k = n // 2
    theta = torch.zeros(n, dtype=torch.float64, requires_grad=True)
    v = scores(n, seed=4)
    (product,) = torch.autograd.grad((TopK(theta, k).mean * v).sum(), theta)
    variance = k / n * (1 - k / n)
    expected = variance * n / (n - 1) * (v - v.mean())  # Var(x_i) and Cov(x_i, x_j) = -Var / (n - 1)
    torch.testing.assert_close(product, expected, rtol=0, atol=1e-13)


def test_the_cold_knapsack_is_right_where_the_linear_recursion_underflows():
    """Down to the temperatures at which Z passes 1e-250, then 1e-308, then 0: the log domain takes over in time."""
    rng = np.random.default_rng(0)
    theta, weights = rng.normal(size=24), rng.integers(1, 40, 24)
    tabled = []
    for gamma in np.geomspace(3e-2, 1e-5, 60):
        choice = Knapsack(torch.as_tensor(theta), torch.as_tensor(weights), 61, gamma=float(gamma))
        np.testing.assert_allclose(choice.mean, dp.marginals(theta, weights, 61, gamma=gamma), atol=1e-9)
        leaf = torch.as_tensor(theta).requires_grad_()
        v = np.cos(np.arange(24.0))
        (product,) = torch.autograd.grad(
            Knapsack(leaf, weights, 61, gamma=float(gamma)).mean @ torch.as_tensor(v), leaf
        )
        np.testing.assert_allclose(
            gamma * product, gamma * dp.hessian_product(theta, weights, 61, v, gamma=gamma), atol=1e-9
        )
        value = dp.forward(theta, weights, 61, gamma=gamma)[0][-1, -1]
        assert choice.value.item() == pytest.approx(value, abs=1e-11)
        tabled.append(bool(choice._problem.solution.tabled[0]))
    assert any(tabled)
    assert not all(tabled)


def test_the_product_in_the_cold_where_the_square_of_Z_underflows():
    for gamma in (2e-3, 1.5e-3, 1.2e-3, 1e-3, 9e-4, 6e-4, 1e-4):
        theta = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
        (product,) = torch.autograd.grad(Knapsack(theta, [2, 2, 3], 3, gamma=gamma).mean[0], theta)
        np.testing.assert_allclose(gamma * product, [0.25, -0.25, 0], atol=1e-9)


def test_log_probability_and_entropy_in_the_deep_cold():
    rng = np.random.default_rng(0)
    theta, weights = torch.tensor(rng.normal(size=20)), torch.tensor(rng.integers(1, 20, 20))
    for gamma in (1e-10, 1e-12, 1e-14, 1e-15):
        choice = Knapsack(theta, weights, 60, gamma=gamma)
        assert choice.log_prob(choice.mode) == choice.entropy() == 0
    for seed in range(50):
        assert TopK(scores(20, seed=seed), 7, gamma=0.003).entropy() >= 0


def exact_law(theta, weights, capacity, gamma):
    """All subsets that fit, their log-probabilities under Shannon's law, and its marginals, from 60 digits."""
    fitting = dp.enumerate_subsets(weights, capacity)
    with localcontext() as context:
        context.prec = 60
        logits = [sum(map(Decimal, theta[x == 1].tolist()), Decimal(0)) / Decimal(gamma) for x in fitting]
        mass = [(logit - max(logits)).exp() for logit in logits]
        log_prob = np.array([float(logit - max(logits) - sum(mass).ln()) for logit in logits])
        marginals = np.array([float(np.dot(mass, column) / sum(mass)) for column in fitting.T])
    return fitting, log_prob, marginals


@pytest.mark.parametrize(("size", "gamma"), [(1000, 0.3), (1000, 1.0), (1000, 0.01), (1, 1e-3), (1, 1e-4), (30, 0.05)])
def test_log_probability_and_loss_to_the_last_digits(size, gamma):
    """Where the table is used, too, most of whose chances are rounded to 0 or 1."""
    tabled = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 7))
        theta = size * rng.choice([0.0, 1.0], n) + rng.choice([1.0, size / 100]) * rng.normal(size=n)
        weights = rng.integers(1, 5, n)
        capacity = int(rng.integers(0, weights.sum()))
        fitting, log_prob, marginals = exact_law(theta, weights, capacity, gamma)
        leaf, target = torch.as_tensor(theta).requires_grad_(), torch.as_tensor(fitting)
        choice = Knapsack(leaf, weights, capacity, gamma=gamma)
        tabled += bool(choice._problem.solution.tabled[0])
        rounding = 4 * n * np.abs(theta).max() / gamma * 2.0**-52  # of a sum of scores
        got = choice.log_prob(target)
        np.testing.assert_allclose(got.detach(), log_prob, rtol=1e-14, atol=1e-14 + rounding)
        loss = fenchel_young_loss(choice, target)
        np.testing.assert_allclose(loss.detach(), -gamma * log_prob, rtol=1e-14, atol=gamma * (1e-14 + rounding))
        upstream = torch.as_tensor(rng.normal(size=len(fitting)))
        expected = upstream.numpy() @ (fitting - marginals)
        (of_log_prob,) = torch.autograd.grad(got, leaf, upstream)
        np.testing.assert_allclose(gamma * of_log_prob, expected, atol=1e-13 + 10 * rounding)
        (of_loss,) = torch.autograd.grad(loss, leaf, upstream)
        np.testing.assert_allclose(of_loss, -expected, atol=1e-13 + 10 * rounding)
    if (size, gamma) != (30, 0.05):
        assert tabled


@pytest.mark.parametrize("distance", [1e-1, 1e-3, 1e-6])
def test_tsallis_nearly_certain_coins_keep_their_digits(distance):
    """1 - P falls with the square of the distance from the end, below the last digit of P."""
    t = -2 + distance
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(t)
        root = (2 - exact * exact / 4).sqrt()
        chance = Decimal("0.5") + exact / 4 * root
        expected, slope = float(chance.ln()), float((4 - exact * exact) / (8 * root) / chance)
    for sign, subset in ((1, [1]), (-1, [0])):
        theta = torch.tensor([sign * t], dtype=torch.float64, requires_grad=True)
        log_prob = Knapsack(theta, [1], 1, regularizer="tsallis").log_prob(torch.tensor(subset))
        assert log_prob.item() == pytest.approx(expected, rel=1e-9)
        log_prob.backward()
        assert sign * theta.grad.item() == pytest.approx(slope, rel=1e-9)


def test_ties_far_from_zero_keep_their_digits():
    """λ is looked for beside the k-th score: beside 0 it would be rounded to a multiple of more than γ."""
    for size, n, k, gamma in ((1000.0, 200, 1, 1e-15), (1e12, 2000, 3, 1e-5), (1100.0, 10_000, 100, 1.1e-13)):
        choice = TopK(torch.full((n,), size, dtype=torch.float64), k, gamma=gamma)
        np.testing.assert_allclose(choice.mean, k / n, rtol=1e-12)
        assert choice.entropy().item() == pytest.approx(math.log(math.comb(n, k)))
        first = torch.arange(n) < k
        assert choice.log_prob(first).item() == pytest.approx(-math.log(math.comb(n, k)))
        assert choice.sample().sum() == k


def test_one_subset_keeps_its_value_at_every_temperature():
    for gamma in (1e-15, 1.0, 1e6, 1e15):
        for theta in ([0.3, 0.4], [-math.inf, 0.4, 0.3]):
            choice = TopK(torch.tensor(theta, dtype=torch.float64), 2, gamma=gamma)
            assert choice.value.item() == pytest.approx(0.7, abs=1e-15)


@every_regularizer
def test_what_cannot_be_chosen_and_common_units_cost_nothing(regularizer):
    huge = 10**12
    theta = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
    heavy = Knapsack(theta, [huge, 3, 5], 10**11, regularizer=regularizer)
    assert heavy.mean[0] == 0
    torch.testing.assert_close(heavy.mean[1:], Knapsack(theta[1:], [3, 5], 8, regularizer=regularizer).mean)
    masked = torch.tensor([-math.inf, 1.0, -1.0], dtype=torch.float64)
    torch.testing.assert_close(Knapsack(masked, [10**11 - 1, 3, 5], 10**11, regularizer=regularizer).mean, heavy.mean)
    same = Knapsack(torch.zeros(3), [huge] * 3, 2 * huge, regularizer=regularizer)
    torch.testing.assert_close(same.mean, Knapsack(torch.zeros(3), [1, 1, 1], 2, regularizer=regularizer).mean)
    assert same.support_size() == 7
    many = Knapsack(torch.zeros(1000), torch.full((1000,), huge), 3 * huge, regularizer=regularizer)
    assert many.sample().sum() <= 3


def test_without_a_binding_capacity_nothing_is_tabulated():
    weights = torch.randint(1, 10**5, (1000,), generator=torch.Generator().manual_seed(0))
    theta = scores(1000)
    choice = Knapsack(theta, weights, 10**15)
    assert torch.equal(choice.mode, (theta > 0).double())
    assert choice.support_size() == 2**1000
    assert Knapsack(torch.zeros(3), [10**9, 10**9 - 1, 5], 10**15).support_size() == 8


def test_changing_theta_afterwards_changes_nothing():
    theta = torch.tensor([1.0, 0.0, 0.0, -1.0], dtype=torch.float64)
    choice = TopK(theta, 2)
    before, target = choice.mean.clone(), torch.tensor([1, 1, 0, 0])
    loss = fenchel_young_loss(choice, target)
    wide, log_prob = choice.expand((2,)), choice.log_prob(target)
    theta[0], theta[3] = -50, 50
    assert choice.mode.tolist() == [1, 1, 0, 0]
    assert torch.equal(choice.mean, before)
    assert fenchel_young_loss(choice, target) == loss
    # one law, whichever way it is asked
    for same in (wide, choice.expand((2,)), copy.deepcopy(choice).expand((2,))):
        assert torch.equal(same.mean, before.expand(2, 4))
        assert torch.equal(same.log_prob(target), log_prob.expand(2))
    assert torch.equal(choice.log_prob(target.expand(2, 4)), log_prob.expand(2))
    assert torch.equal(fenchel_young_loss(choice, target.expand(2, 4)), loss.expand(2))


USES = [
    lambda choice: choice.value,
    lambda choice: choice.mean,
    lambda choice: choice.variance,
    lambda choice: choice.mode,
    lambda choice: choice.entropy(),
    lambda choice: choice.support_size(),
    lambda choice: choice.sample(),
    lambda choice: choice.straight_through(),
    lambda choice: choice.expand((2,)),
    lambda choice: choice.log_prob(torch.tensor([1, 1, 0, 0])),
    lambda choice: choice.log_prob(torch.tensor([1, 1, 0, 0]).expand(2, 4)),
    lambda choice: fenchel_young_loss(choice, torch.tensor([1, 1, 0, 0])),
]


@pytest.mark.parametrize("use", USES)
def test_an_optimisers_step_after_construction_is_an_error(use):
    """A distribution made outside the training loop would never move."""
    theta = torch.tensor([1.0, 0.0, 0.0, -1.0], requires_grad=True)
    optimizer = torch.optim.SGD([theta], lr=0.1)
    for make in (lambda: TopK(theta, 2), lambda: Knapsack(theta, [1, 1, 1, 1], 2), lambda: TopK(theta, 2).expand((2,))):
        choice = make()
        use(choice)
        theta.grad = torch.ones(4)
        optimizer.step()
        with pytest.raises(RuntimeError, match=r"theta was changed in place .* make a new one"):
            use(choice)


def test_copies_have_scores_of_their_own():
    theta = torch.tensor([1.0, 0.0, 0.0, -1.0], requires_grad=True)
    with torch.no_grad():
        theta += 1
    choice = TopK(theta, 2)
    for copied in (copy.deepcopy(choice), pickle.loads(pickle.dumps(choice))):
        with torch.no_grad():
            theta += 1
        copied.value.backward()
        torch.testing.assert_close(copied.theta.grad, copied.mean.detach())


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_distribution_whose_scores_were_changed_is_refused_too(duplicate):
    theta = torch.zeros(3, requires_grad=True)
    choice = TopK(theta, 1)
    fresh = duplicate(choice)
    assert fresh.mean.sum().item() == pytest.approx(1)
    with torch.no_grad():
        theta[0] = 5.0
    with pytest.raises(RuntimeError, match="theta was changed in place"):
        _ = duplicate(choice).mean


def test_gradients_of_expanded_distributions_add_up():
    theta, target = scores(4).requires_grad_(), torch.tensor([1, 1, 0, 0])
    for choice in (TopK(theta, 2), Knapsack(theta, [1, 2, 1, 1], 3)):
        (once,) = torch.autograd.grad(choice.log_prob(target), theta)
        for twice in (choice.log_prob(target.expand(2, 4)), choice.expand((2,)).log_prob(target)):
            torch.testing.assert_close(torch.autograd.grad(twice.sum(), theta)[0], 2 * once)
        (once,) = torch.autograd.grad(choice.value, theta)
        torch.testing.assert_close(torch.autograd.grad(choice.expand((3, 2)).value.sum(), theta)[0], 6 * once)


@pytest.mark.parametrize("regularizer", ["shannon"])
@pytest.mark.parametrize("gamma", [1e-4, 1e-2, 1.0, 100.0])
def test_float32_is_right_to_1e_5(gamma, regularizer):
    theta = scores(1000, seed=7).float()
    weights = torch.randint(1, 20, (1000,), generator=torch.Generator().manual_seed(0))
    for make in (lambda t: TopK(t, 100, gamma=gamma), lambda t: Knapsack(t, weights, 800, gamma=gamma)):
        y = make(theta).mean
        assert y.dtype == torch.float32
        torch.testing.assert_close(y.double(), make(theta.double()).mean, rtol=0, atol=1e-5)
    assert TopK(theta, 100, gamma=gamma).mean.sum().item() == pytest.approx(100, abs=1e-3)


@every_regularizer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_come_back_as_they_were(dtype, regularizer):
    theta = scores(3, 8).to(dtype).requires_grad_()
    exact = TopK(theta.detach().double(), 3, regularizer=regularizer)
    choice = TopK(theta, 3, regularizer=regularizer)
    for name in ("mean", "value", "mode", "variance"):
        assert getattr(choice, name).dtype == dtype
    assert choice.entropy().dtype == choice.sample().dtype == choice.log_prob(choice.mode).dtype == dtype
    torch.testing.assert_close(choice.mean, exact.mean.to(dtype))  # computed in float64, rounded once
    (gradient,) = torch.autograd.grad(choice.mean[0, 0], theta)
    assert gradient.dtype == dtype


def test_a_million_items():
    theta = scores(1_000_000)
    for k in (3, 100_000):
        y = TopK(theta, k).mean
        assert y.sum().item() == pytest.approx(k, rel=1e-12)
    draw = TopK(theta, 1000).sample(generator=torch.Generator().manual_seed(0))
    assert draw.sum() == 1000


def test_support_of_a_large_knapsack_is_counted_exactly():
    assert Knapsack(torch.zeros(80), torch.ones(80, dtype=torch.int64), 40).support_size() == sum(
        math.comb(80, j) for j in range(41)
    )
    assert TopK(torch.zeros(200), 100).support_size() == math.comb(200, 100)


def test_nearly_certain_choices_keep_their_precision():
    """Errors are far below 1e-16 for marginals far below 1, and relative for log-probabilities."""
    theta = torch.tensor([50.0, 0.0, 0.0, -40.0], dtype=torch.float64)
    y = TopK(theta, 1).mean
    np.testing.assert_allclose(y, special.softmax(theta.numpy()), rtol=1e-12, atol=1e-26)
    cold = TopK(theta, 1, gamma=1e-8)
    assert cold.log_prob(torch.tensor([0, 0, 0, 1])).item() == pytest.approx(-9e9, rel=1e-14)
    assert cold.entropy().item() == 0


# ---- the Fenchel–Young loss ----


@every_regularizer
def test_fenchel_young_loss(regularizer):
    theta, weights = scores(20, 6).requires_grad_(), torch.tensor([2, 1, 3, 2, 4, 1])
    for choice in (TopK(theta, 2, regularizer=regularizer), Knapsack(theta, weights, 6, regularizer=regularizer)):
        target = choice.sample(generator=torch.Generator().manual_seed(0))
        loss = fenchel_young_loss(choice, target)
        assert loss.shape == (20,)
        assert (loss >= -1e-12).all()
        (gradient,) = torch.autograd.grad(loss.sum(), theta)
        torch.testing.assert_close(gradient, choice.mean - target)
        if regularizer == "shannon":
            torch.testing.assert_close(loss, -choice.log_prob(target))
    several = fenchel_young_loss(choice, torch.stack([target, torch.zeros(20, 6)]))
    assert several.shape == (2, 20)
    torch.testing.assert_close(several[0], loss)
    (gradient,) = torch.autograd.grad(several.sum(), theta)
    torch.testing.assert_close(gradient, 2 * choice.mean - target)
    certain = TopK(torch.tensor([9.0, -9.0]), 1, regularizer="gini")
    assert fenchel_young_loss(certain, torch.tensor([1, 0])) == 0


@every_regularizer
def test_the_loss_is_rounded_once(regularizer):
    """Large scores in float32 and float16, whose value and score would each be rounded, or overflow."""
    theta = torch.arange(1000.0) + 1e4
    for dtype in (torch.float32, torch.float16):
        exact = TopK(theta.to(dtype).double(), 300, regularizer=regularizer)
        loss = fenchel_young_loss(TopK(theta.to(dtype), 300, regularizer=regularizer), exact.mode)
        torch.testing.assert_close(loss.double(), fenchel_young_loss(exact, exact.mode), rtol=1e-3, atol=1e-6)
        assert loss >= 0


# ---- errors ----

THETA = torch.zeros(4)
W = torch.ones(4, dtype=torch.int64)
HEAVY = 10**12
ERRORS = [
    (lambda: TopK(THETA, 5), ValueError, r"k must be in \[0, 4\], got 5"),
    (lambda: TopK(THETA, -1), ValueError, r"k must be in \[0, 4\], got -1"),
    (lambda: TopK(THETA, 2.0), TypeError, r"k must be integers of shape the batch, got 2.0 of type float64"),
    (lambda: TopK(THETA, True), TypeError, "k must be integers"),
    (lambda: TopK(THETA, "two"), TypeError, "k must be integers.*'two'"),
    (lambda: TopK(THETA, torch.tensor([1, 5])), ValueError, r"k must be in \[0, 4\], got 5"),
    (lambda: TopK(torch.zeros(3, 4), torch.tensor([1, 2])), ValueError, r"theta \(3,\), k \(2,\)"),
    (lambda: TopK(torch.tensor([0.0, -torch.inf]), 2), ValueError, "theta must leave k = 2 items .*not -inf, got 1"),
    (lambda: TopK(torch.tensor([0.0, torch.nan]), 1), ValueError, "theta must be in .*got nan"),
    (lambda: TopK(torch.tensor([0.0, torch.inf]), 1), ValueError, "theta must be in .*got inf"),
    (lambda: TopK(torch.tensor([0.0, 1e16]), 1), ValueError, "theta must be in .*got 1"),
    (lambda: TopK(torch.zeros(4, dtype=torch.int64), 1), TypeError, "theta must be of a floating-point type.*int64"),
    (lambda: TopK(torch.zeros(4, dtype=torch.complex64), 1), TypeError, "theta must be of a floating-point type"),
    (lambda: TopK(np.zeros(4), 1), TypeError, "theta must be a torch tensor .*ndarray"),
    (lambda: TopK(torch.tensor(0.0), 0), ValueError, r"theta must have shape \(..., n\)"),
    (lambda: TopK(torch.zeros(4, device="meta"), 1), TypeError, "theta must be a dense tensor with data"),
    (lambda: TopK(THETA, 1, gamma=0), ValueError, "gamma must be finite.*got 0"),
    (lambda: TopK(THETA, 1, gamma=-1.0), ValueError, "gamma must be finite.*got -1.0"),
    (lambda: TopK(THETA, 1, gamma=math.inf), ValueError, "gamma must be finite.*got inf"),
    (lambda: TopK(THETA, 1, gamma=math.nan), ValueError, "gamma must be finite.*got nan"),
    (lambda: TopK(THETA, 1, gamma="1"), TypeError, "gamma must be a real number, got '1'"),
    (lambda: TopK(THETA, 1, regularizer="renyi"), ValueError, "regularizer must be one of 'shannon', 'tsallis', 'g"),
    (lambda: TopK(THETA, 1, regularizer=None), TypeError, "regularizer must be one of"),
    (lambda: Knapsack(THETA, [1, 2, 3, 0.5], 3), TypeError, r"weights must be integers.*scale and round.*truncating"),
    (lambda: Knapsack(THETA, W.float(), 3), TypeError, "weights must be integers.*scale and round"),
    (lambda: Knapsack(THETA, -W, 3), ValueError, "weights must be in .*got -1"),
    (lambda: Knapsack(THETA, W[:3], 3), ValueError, r"weights must have one for each of the n = 4 .*\(3,\)"),
    (lambda: Knapsack(THETA, 1, 3), ValueError, r"weights must have one for each .*\(\)"),
    (lambda: Knapsack(THETA, W, -2), ValueError, "capacity must be in .*got -2"),
    (lambda: Knapsack(THETA, W, 2.5), TypeError, "capacity must be integers of shape .* got 2.5 of type float64"),
    (lambda: Knapsack(torch.zeros(3, 4), torch.ones(2, 4, dtype=torch.int64), 1), ValueError, r"weights \(2,\)"),
    (lambda: Knapsack(THETA, W * 10**13, 1), ValueError, "weights must be in .*got 10000000000000"),
    (
        lambda: Knapsack(THETA, torch.tensor([10**12, 10**12 - 1, 1, 1]), 10**12),
        ValueError,
        r"capacity is too large: 4 items and a budget of 1000000000000 need \d+.\d GiB .* GiB are free",
    ),
    (lambda: TopK(THETA, 2).log_prob(torch.full((4,), 0.5)), ValueError, "value must hold only 0 and 1, got 0.5"),
    (lambda: TopK(THETA, 2).log_prob(torch.zeros(3)), ValueError, r"value must fit the shape \(4,\), .* got \(3,\)"),
    (lambda: TopK(THETA, 2).log_prob(torch.tensor(1.0)), ValueError, "value must fit the shape"),
    (lambda: TopK(THETA, 2).log_prob([1, 1, 0, 0]), TypeError, "value must be a torch tensor of 0 and 1, got list"),
    (lambda: TopK(THETA, 2).sample(generator=3), TypeError, "generator must be a torch.Generator or None, got 3"),
    (lambda: fenchel_young_loss(TopK(THETA, 2), torch.eye(4)[0]), ValueError, "target must choose k = 2.*got 1"),
    (lambda: fenchel_young_loss(Knapsack(THETA, W, 2), W), ValueError, "target must weigh at most the capacity 2, got"),
    (lambda: fenchel_young_loss(TopK(THETA, 2), torch.full((4,), 0.5)), ValueError, "target must hold only 0 and 1"),
    (lambda: TopK(THETA, 2).log_prob(torch.zeros(4, device="meta")), TypeError, "value must be a dense tensor"),
    (lambda: TopK(THETA, 2).sample((2.0,)), TypeError, r"sample_shape must be .* got \(2.0,\)"),
    (lambda: TopK(THETA, 2).sample(5), TypeError, "sample_shape must be a torch.Size or a tuple .* got 5"),
    (lambda: TopK(THETA, 2).sample((-1,)), TypeError, r"sample_shape must be .* got \(-1,\)"),
    (lambda: TopK(THETA, 1, gamma=torch.tensor(1.0, requires_grad=True)), TypeError, "gamma must be a plain number"),
    (lambda: Knapsack(THETA, [0.5, 1, 1, 1], 1), TypeError, r"got an array of shape \(4,\) of type float64; scale"),
    (lambda: Knapsack(THETA, W.bfloat16(), 1), TypeError, r"got an array of shape \(4,\) of type float64; scale"),
    (
        lambda: Knapsack(torch.zeros(1).expand(5_000_000), torch.tensor([HEAVY]).expand(5_000_000), HEAVY),
        ValueError,
        r"weights must not add up to more than 2\^62, got 5000000 of up to 1000000000000",
    ),
    (lambda: fenchel_young_loss(THETA, W), TypeError, "distribution must be a TopK or a Knapsack, got"),
    (
        lambda: fenchel_young_loss(TopK(torch.tensor([0.0, -torch.inf, 0.0]), 1), torch.tensor([0, 1, 0])),
        ValueError,
        "target must not choose an item whose score is -inf",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), ERRORS, ids=[str(i) for i in range(len(ERRORS))])
def test_errors_name_the_argument_the_value_and_what_is_allowed(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda f, t: torch.func.vmap(f)(t), "theta"),
        (lambda f, t: torch.func.grad(lambda t: f(t)[0])(t[0]), "theta"),
        (lambda f, t: torch.func.jacrev(f)(t[0]), "theta"),
        (lambda f, t: torch.autograd.functional.jacobian(f, t[0], vectorize=True), "the upstream gradient"),
        (lambda f, t: torch.func.vmap(lambda s: TopK(t[0], 1).log_prob(s))(torch.eye(4)), "value"),
    ],
)
def test_transforms_of_torch_func_are_refused(call, name):
    for f in (lambda t: TopK(t, 2).mean, lambda t: Knapsack(t, W, 2).mean):
        with pytest.raises(RuntimeError, match=rf"^{name} cannot be read in torch.func .* use torch.autograd.grad"):
            call(f, scores(3, 4))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace. is deprecated:DeprecationWarning")
def test_tracing_is_refused():
    for f in (lambda t: TopK(t, 2).mean, lambda t: Knapsack(t, W, 2).mean):
        with pytest.raises(RuntimeError, match=r"theta cannot be traced: .* torch\.jit\.trace would keep the answer"):
            torch.jit.trace(f, THETA)


class Same(TopK):
    """A subclass without a constructor of its own."""


class Pair(TopK):
    """A subclass with one."""

    def __init__(self, theta):
        super().__init__(theta, 2)


class Light(Knapsack):
    def __init__(self, theta):
        super().__init__(theta, [1] * theta.shape[-1], 2)


def test_expand_follows_torchs_convention():
    theta, subset = scores(4), torch.tensor([1, 1, 0, 0])
    wide = Same(theta, 2).expand((3,))
    assert type(wide) is Same
    assert torch.equal(wide.mean, TopK(theta, 2).mean.expand(3, 4))
    for choice in (Pair(theta), Light(theta)):
        with pytest.raises(NotImplementedError, match="must also define a custom"):
            choice.expand((3,))
        instance = object.__new__(type(choice))
        assert choice.expand((3,), _instance=instance) is instance
        assert torch.equal(instance.mean, choice.mean.expand(3, 4))
        assert torch.equal(choice.log_prob(subset.expand(3, 4)), choice.log_prob(subset).expand(3))


# ---- the machine ----


def test_several_threads_at_once():
    theta = scores(40, 64)
    weights = torch.arange(64) % 7

    def work(i):
        leaf = theta[i].clone().requires_grad_()
        outputs = []
        for regularizer in REGULARIZERS:
            for choice in (
                TopK(leaf, 9, regularizer=regularizer),
                Knapsack(leaf, weights, 50, regularizer=regularizer),
            ):
                (gradient,) = torch.autograd.grad((choice.mean * theta[0]).sum(), leaf)
                outputs += [choice.mean.detach(), gradient, choice.entropy().detach()]
        return outputs

    alone = [work(i) for i in range(40)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, range(40)))
    for a, b in zip(alone, together, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_compilation_is_announced_once_and_kept(tmp_path):
    """With an empty cache the first call says what it is doing; the second process finds the compiled kernel."""
    code = "import torch; from lib.subsets import TopK; print(TopK(torch.zeros(4), 2).mean.sum().item())"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    environment.pop("EXPLORE_STATIC", None)
    first, second = (
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert first.stdout == second.stdout == "2.0\n"
    assert first.stderr.count("Compiling the kernels of lib") == 1
    assert second.stderr == ""


def python(code, cwd=None, **environment):
    environment = {**os.environ, **environment}
    environment.pop("EXPLORE_STATIC", None)
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True)


ONE_KERNEL = "import numpy as np; from lib import kernels; print(kernels._uniform(np.uint64(1))[1])"


def test_nothing_needs_to_be_written(tmp_path):
    """Where no folder can be made (here, below a file; the user root may write everywhere) nothing is kept."""
    shutil.copytree(Path(kernels.__file__).parent, tmp_path / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    blocked = tmp_path / "lib" / "__pycache__"
    blocked.touch()
    folders = {name: str(blocked / "below") for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "LOCALAPPDATA")}
    run = python(ONE_KERNEL, cwd=tmp_path, **folders)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 1
    assert len(run.stderr.splitlines()) == 1
    assert "no folder for them can be written to; NUMBA_CACHE_DIR names one" in run.stderr


def test_a_broken_cache_is_made_again(tmp_path):
    first = python(ONE_KERNEL, NUMBA_CACHE_DIR=str(tmp_path))
    for kind in ("nbi", "nbc"):
        (file,) = tmp_path.rglob(f"*.{kind}")
        whole = file.stat().st_size
        os.truncate(file, whole // 2)
        again = python(ONE_KERNEL, NUMBA_CACHE_DIR=str(tmp_path))
        assert again.returncode == 0, again.stderr
        assert again.stdout == first.stdout
        assert file.stat().st_size > whole // 2  # written anew


def test_nothing_is_left_to_compile_after_compile_all():
    """Whatever the layout and the type of the arguments, the kernels see one."""
    code = """
import torch
from numba.core.dispatcher import Dispatcher
from lib import kernels
from lib.smoothmax import REGULARIZERS
from lib.subsets import Knapsack, TopK, fenchel_young_loss

def compiled():
    return {name: list(f.overloads) for name, f in vars(kernels).items() if isinstance(f, Dispatcher) and f.overloads}

kernels.compile_all()
before = compiled()
base = torch.randn(6, 5, dtype=torch.float64)
for theta in (base.T[:, :4], base[::2, ::2][:2], base[0, :4].expand(2, 4), base[:2, :4].float(), base[:0, :4], base[0]):
    theta, n = theta.detach().requires_grad_(), theta.shape[-1]
    weights = torch.arange(2 * n).reshape(n, 2).T if theta.shape[:-1] == (2,) else torch.arange(2 * n)[::2].int()
    for regularizer in REGULARIZERS:
        for choice in (TopK(theta, 2, regularizer=regularizer), Knapsack(theta, weights, 4, regularizer=regularizer)):
            v = torch.ones(2 * n, dtype=theta.dtype)[::2].expand_as(theta)
            torch.autograd.grad(choice.mean, theta, v)
            outputs = choice.entropy().sum() + choice.value.sum()
            subsets = choice.sample((3,)).transpose(0, -1).contiguous().transpose(0, -1)
            outputs = outputs + choice.log_prob(subsets).sum() + fenchel_young_loss(choice, choice.mode).sum()
            outputs.backward()
            choice.expand((3, *choice.batch_shape)).support_size()
after = compiled()
assert after == before, [name for name in after if after[name] != before.get(name)]
"""
    run = python(code)
    assert run.returncode == 0, run.stderr


def test_arithmetic_of_the_kernels():
    x = -np.random.default_rng(0).uniform(0, 708, 20_000)
    np.testing.assert_allclose([kernels._exp(t) for t in x], np.exp(x), rtol=7e-16)
    assert [kernels._exp(t) for t in (0.0, -np.inf, -709.0)] == [1, 0, 0]
    y = np.concatenate([np.random.default_rng(0).uniform(0, 1, 20_000), 10.0 ** -np.arange(1, 300), [0, 1]])
    np.testing.assert_allclose([kernels._log1p(t) for t in y], np.log1p(y), rtol=1e-15)


def test_uniform_numbers_are_uniform_and_streams_are_independent():
    """Kolmogorov–Smirnov and a correlation at 1e-4 each: a false alarm in 3,000."""
    first, second, state, other = [], [], np.uint64(1), np.uint64(2)
    for _ in range(10_000):
        state, u = kernels._uniform(np.uint64(state))
        other, v = kernels._uniform(np.uint64(other))
        first.append(u)
        second.append(v)
    assert stats.kstest(first, "uniform").pvalue > 1e-4
    assert stats.kstest(second, "uniform").pvalue > 1e-4
    assert stats.pearsonr(first, second).pvalue > 1e-4
    assert 0 <= min(first) <= max(first) < 1


def test_it_is_a_torch_distribution():
    choice = TopK(scores(3, 4), 2)
    assert isinstance(choice, torch.distributions.Distribution)
    assert (choice.batch_shape, choice.event_shape) == ((3,), (4,))
    assert not choice.has_rsample
    assert choice.support.check(choice.sample()).all()
    torch.testing.assert_close(choice.stddev, choice.variance.sqrt())
    assert repr(choice) == "TopK(theta of shape (3, 4), gamma=1, regularizer='shannon')"
    assert subsets.Knapsack(THETA, W, 2).log_prob(torch.zeros(5, 1, 4)).shape == (5, 1)
