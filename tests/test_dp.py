"""The readable dynamic program against enumeration, finite differences and golden numbers."""

import itertools

import numpy as np
import pytest

from lib import dp, smoothmax
from lib.smoothmax import Gini, Shannon, Tsallis

REGULARIZERS = list(smoothmax.REGULARIZERS.values())


def problem(seed, n=7):
    """Scores with ties, weights with 0 and one that never fits, a capacity."""
    rng = np.random.default_rng(seed)
    theta = rng.integers(-2, 3, n) if seed % 2 else rng.normal(size=n)
    weights = rng.integers(0, 5, n)
    return theta.astype(float), np.where(np.arange(n) == 2, 12, weights), 9, float(rng.uniform(0.3, 2))


CASES = [(*problem(seed), exactly) for seed in range(6) for exactly in (False, True)]
IDS = [f"{seed}-{'exactly' if exactly else 'at most'}" for seed in range(6) for exactly in (False, True)]


@pytest.mark.parametrize(("theta", "weights", "capacity", "gamma", "exactly"), CASES, ids=IDS)
def test_shannon_is_the_gibbs_law_on_the_subsets_that_fit(theta, weights, capacity, gamma, exactly):
    subsets = dp.enumerate_subsets(weights, capacity, exactly=exactly)
    scores = subsets @ theta / gamma
    law = np.exp(scores - scores.max())
    log_partition = gamma * (np.log(law.sum()) + scores.max())
    law /= law.sum()
    mean = law @ subsets
    covariance = (subsets - mean).T @ (law[:, None] * (subsets - mean))

    options = {"gamma": gamma, "exactly": exactly}
    value, _ = dp.forward(theta, weights, capacity, **options)
    assert value[-1, -1] == pytest.approx(log_partition, abs=1e-12)
    np.testing.assert_allclose(dp.marginals(theta, weights, capacity, **options), mean, atol=1e-13)
    product = [dp.hessian_product(theta, weights, capacity, e, **options) for e in np.eye(len(theta))]
    np.testing.assert_allclose(product, covariance / gamma, atol=1e-12)


@pytest.mark.parametrize("regularizer", REGULARIZERS)
@pytest.mark.parametrize(("theta", "weights", "capacity", "gamma", "exactly"), CASES, ids=IDS)
def test_marginals_are_the_gradient_and_their_jacobian_is_the_hessian(
    theta, weights, capacity, gamma, exactly, regularizer
):
    theta = theta + np.linspace(0, 0.05, len(theta))  # away from the corners that ties make
    options = {"gamma": gamma, "exactly": exactly, "regularizer": regularizer}
    step = 1e-6 * np.eye(len(theta))

    def slope(f):
        return np.array([(f(theta + e) - f(theta - e)) / 2e-6 for e in step])

    gradient = slope(lambda theta: dp.forward(theta, weights, capacity, **options)[0][-1, -1])
    np.testing.assert_allclose(dp.marginals(theta, weights, capacity, **options), gradient, atol=2e-8)
    jacobian = slope(lambda theta: dp.marginals(theta, weights, capacity, **options))
    product = np.array([dp.hessian_product(theta, weights, capacity, e, **options) for e in np.eye(len(theta))])
    np.testing.assert_allclose(product, jacobian, atol=1e-6)
    np.testing.assert_allclose(product, product.T, atol=1e-12)
    assert np.linalg.eigvalsh(product).min() > -1e-10


@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_the_mean_of_the_samples_is_the_marginals(regularizer):
    """Six marginals, 4 standard errors: a false alarm in 2,600 for each regulariser."""
    theta, weights, capacity, gamma = problem(4, n=6)
    rng = np.random.default_rng(0)
    options = {"gamma": gamma, "regularizer": regularizer}
    draws = np.array([dp.sample(theta, weights, capacity, rng=rng, **options) for _ in range(4000)])
    assert (draws @ weights <= capacity).all()
    y = dp.marginals(theta, weights, capacity, **options)
    assert (np.abs(draws.mean(axis=0) - y) <= 4 * np.sqrt(y * (1 - y) / 4000) + 1e-12).all()


GOLDEN = [
    (Shannon, [0.286195, 0.349560, 0.258960], [0.258960, 0.349560, 0.286195]),
    (Gini, [0.292, 0.438, 0.270], [0.220797, 0.429270, 0.338312]),
    (Tsallis, [0.268123, 0.392662, 0.284579], [0.227015, 0.387129, 0.329689]),
]


@pytest.mark.parametrize(("regularizer", "forwards", "backwards"), GOLDEN)
def test_only_shannon_does_not_see_the_order(regularizer, forwards, backwards):
    theta = np.array([1.0, 1.2, 0.9])
    y = dp.marginals(theta, [1, 1, 1], 1, regularizer=regularizer)
    reverse = dp.marginals(theta[::-1], [1, 1, 1], 1, regularizer=regularizer)
    np.testing.assert_allclose(y, forwards, atol=1e-6)
    np.testing.assert_allclose(reverse, backwards, atol=1e-6)


@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_cold_limit_is_the_hard_optimum(regularizer):
    theta, weights, capacity, _ = problem(2)
    subsets = dp.enumerate_subsets(weights, capacity)
    y = dp.marginals(theta, weights, capacity, gamma=1e-3, regularizer=regularizer)
    np.testing.assert_allclose(y, subsets[np.argmax(subsets @ theta)], atol=1e-9)


@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_top_k_chooses_exactly_k_and_nothing_or_everything_at_the_ends(regularizer):
    theta = np.random.default_rng(5).normal(size=6)
    for k in range(7):
        y = dp.marginals(theta, np.ones(6, int), k, regularizer=regularizer, exactly=True)
        assert y.sum() == pytest.approx(k, abs=1e-13)
    assert dp.marginals([], [], 0, regularizer=regularizer, exactly=True).shape == (0,)


def test_enumeration_holds_what_fits_and_nothing_else():
    weights = [2, 0, 3, 7]
    for exactly in (False, True):
        by_hand = {
            chosen
            for chosen in itertools.product([0, 1], repeat=4)
            if (sum(w * x for w, x in zip(weights, chosen, strict=True)) - 5 == 0)
            or (not exactly and sum(w * x for w, x in zip(weights, chosen, strict=True)) < 5)
        }
        rows = dp.enumerate_subsets(weights, 5, exactly=exactly)
        assert len(rows) == len(by_hand)
        assert {tuple(row) for row in rows.tolist()} == by_hand
