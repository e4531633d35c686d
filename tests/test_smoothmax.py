"""The smoothed maximum of two numbers against its definition as an optimisation problem."""

import numpy as np
import pytest
from scipy import special

from lib import smoothmax
from lib.smoothmax import Gini, Shannon, Tsallis

OMEGA = {
    Shannon: lambda p: -special.entr(p) - special.entr(1 - p),
    Tsallis: lambda p: 4 / 3 * (p**1.5 + (1 - p) ** 1.5 - 1),
    Gini: lambda p: 0.5 * (p**2 + (1 - p) ** 2 - 1),
}
REGULARIZERS = list(smoothmax.REGULARIZERS.values())
T = np.linspace(-3, 3, 41)


@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_value_and_probability_solve_the_maximisation(regularizer):
    p = np.linspace(0, 1, 400_001)
    omega = OMEGA[regularizer](p)
    for t in T:
        best = np.argmax(p * t - omega)
        assert regularizer.value(t) == pytest.approx(p[best] * t - omega[best], abs=1e-10)
        assert regularizer.probability(t) == pytest.approx(p[best], abs=1e-5)


@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_probability_and_curvature_are_the_derivatives(regularizer):
    t, h = T + 0.0123, 1e-5  # away from the corners of the clipped ones
    slope = (regularizer.value(t + h) - regularizer.value(t - h)) / (2 * h)
    np.testing.assert_allclose(regularizer.probability(t), slope, atol=1e-9)
    slope = (regularizer.probability(t + h) - regularizer.probability(t - h)) / (2 * h)
    np.testing.assert_allclose(regularizer.curvature(t), slope, atol=1e-8)


@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_taking_and_leaving_are_symmetric(regularizer):
    np.testing.assert_allclose(regularizer.probability(T) + regularizer.probability(-T), 1, atol=1e-15)
    np.testing.assert_allclose(regularizer.value(T) - regularizer.value(-T), T, atol=1e-14)


@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_ends(regularizer):
    t = np.array([-np.inf, -800.0, 800.0, np.inf])
    assert regularizer.probability(t).tolist() == [0, np.exp(-800), 1, 1]
    assert regularizer.value(t).tolist() == [0, np.exp(-800), 800, np.inf]
    assert regularizer.curvature(t).tolist() == [0, 0, 0, 0]
