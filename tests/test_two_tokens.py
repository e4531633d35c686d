"""Two tokens: the closed forms against tables, mpmath and each other; the simulation against the closed forms."""

import math

import mpmath
import numpy as np
import pytest
import torch

from lib.two_tokens import antipodal_probability, critical_beta, diffusion, drift, exponents, simulate

F64 = torch.float64
BELOW_ONE = np.nextafter(1.0, 0.0)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


# --- Who wins ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "beta", "c0", "gold"),
    [
        (3, 0.5, 0.0, 0.10746),
        (3, 1.0, 0.0, 0.22242),
        (3, 2.0, 0.0, 0.33637),
        (4, 1.0, 0.0, 0.08443),
        (5, 1.0, 0.0, 0.02123),
        (6, 1.5, 0.0, 0.07094),
        (8, 1.5, 0.0, 0.02558),
        (16, 2.0, 0.0, 0.01530),
        (64, 3.0, 0.0, 0.00865),
        (8, 1.5, -0.5, 0.11217),
        (64, 2.5, 0.0, 2.33e-4),
    ],
)
def test_antipodal_probability_has_its_known_values(dim, beta, c0, gold):
    assert antipodal_probability(c0, beta=beta, dim=dim) == pytest.approx(gold, abs=2e-5 if gold > 1e-3 else 1e-6)


def reference(c0, beta, dim):
    """P(antipodal | c0) by nested mpmath quadratures of the scale density, scaled to be 1 at u0, out from u0."""
    with mpmath.workdps(20):
        c0, beta, dim = mpmath.mpf(c0), mpmath.mpf(beta), mpmath.mpf(dim)

        def quad(f, a, b):
            return mpmath.quad(f, [a, b], method="gauss-legendre", maxdegree=2)

        def pull(v):
            return mpmath.sech(beta * (1 - mpmath.tanh(v)))

        def half_line(side):
            total, level, u = mpmath.mpf(0), mpmath.mpf(0), mpmath.atanh(c0)
            while level > -45 and u > -25:
                width = side * mpmath.mpf(0.5)
                while (
                    1 + (dim - 2) * max(pull(u), pull(u + width)) > 2 / abs(width)
                    or beta * abs(mpmath.tanh(u + width) - mpmath.tanh(u)) > 2
                ):
                    width /= 2

                def log_density(w, u=u, level=level):
                    return level + mpmath.log(mpmath.cosh(u) / mpmath.cosh(w)) - (dim - 2) * quad(pull, u, w)

                total += abs(quad(lambda w: mpmath.exp(log_density(w)), u, u + width))
                level, u = log_density(u + width), u + width
            # further left the density is an exponential, of rate 1 - (d - 2) / cosh 2 beta
            return total + (mpmath.exp(level) / (1 - (dim - 2) * mpmath.sech(2 * beta)) if side < 0 else 0)

        right = half_line(1)
        return float(right / (right + half_line(-1)))


def draws():
    random = np.random.default_rng(20)
    for _ in range(8):
        dim = float(np.exp(random.uniform(math.log(2), math.log(200))))
        beta = float(critical_beta(dim)) + random.exponential(0.7)
        yield dim, beta, random.uniform(-0.95, 0.95)


@pytest.mark.parametrize(
    ("dim", "beta", "c0"),
    [
        *draws(),
        (8, 1.0001 * math.acosh(6) / 2, 0.3),  # just above the transition
        (4096, 1.01 * math.acosh(4094) / 2, 0.2),  # 4e-24
        (4096, 100.0, 0.3),
        (4096, 100.0, 0.97),  # 5e-28
        (3, 1.0, -1 + 1e-12),
        (8, 1.5, 1 - 1e-12),  # 1e-44
        (2, 30.0, BELOW_ONE),
        (3, 2.0, BELOW_ONE),
    ],
)
def test_antipodal_probability_agrees_with_mpmath_to_8_digits_however_small_it_is(dim, beta, c0):
    assert antipodal_probability(c0, beta=beta, dim=dim) == pytest.approx(reference(c0, beta, dim), rel=1e-8, abs=0)


CS = np.array([-1.0, -BELOW_ONE, -0.999, -0.5, 0.0, 0.1, 0.7, 0.9999, BELOW_ONE, 1.0])


@pytest.mark.parametrize("beta", [0.0, 0.3, 2.0, 50.0, 1e6])
def test_in_the_plane_the_probability_is_the_angle_over_pi(beta):
    np.testing.assert_allclose(antipodal_probability(CS, beta=beta, dim=2), np.arccos(CS) / np.pi, rtol=1e-9)


@pytest.mark.parametrize("dim", [3, 8, 200])
@pytest.mark.parametrize("beta", [1e4, 1e6, 1e8, 1e12])
def test_at_large_beta_the_probability_tends_to_the_angle_over_pi(dim, beta):
    """Attention acts only within 1 - c = O(log d / beta) of the pole +1, where the angle is O(sqrt(log d / beta))."""
    gap = np.abs(antipodal_probability(CS, beta=beta, dim=dim) - np.arccos(CS) / np.pi)
    assert gap.max() < math.sqrt(math.log(dim) / beta)


@pytest.mark.parametrize("dim", [3, 4, 8, 64, 4096, 5.5])
def test_no_antipodes_up_to_the_critical_beta_and_some_beyond(dim):
    star = float(critical_beta(dim))
    inside = CS[1:-1]
    for beta in (0.0, 0.5 * star, star):
        assert (antipodal_probability(inside, beta=beta, dim=dim) == 0).all()
    assert (antipodal_probability(inside[:4], beta=star + 0.01, dim=dim) > 0).all()


@pytest.mark.parametrize("dim", [2, 3, 8, 4096])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.5, 5.0, 100.0])
def test_the_probability_runs_from_1_to_0_and_never_rises(dim, beta):
    c = np.concatenate(
        [[-1.0], -1 + np.logspace(-15, -1, 60), np.linspace(-0.9, 0.9, 101), 1 - np.logspace(-1, -15, 60), [1.0]]
    )
    p = antipodal_probability(c, beta=beta, dim=dim)
    assert p[0] == 1
    assert p[-1] == 0
    assert ((p >= 0) & (p <= 1)).all()
    assert (np.diff(p) <= 1e-13 * p[:-1]).all()
    middle = antipodal_probability(np.linspace(-0.9, 0.9, 101), beta=beta, dim=dim)
    if middle[-1] > 0:
        assert (np.diff(middle) < 0).all()


def test_arrays_broadcast_like_a_loop_over_scalars():
    c0, beta, dim = np.linspace(-1, 1, 5)[:, None, None], np.array([0.0, 1.0, 3.0])[:, None], np.array([2, 3, 8, 64])
    together = antipodal_probability(c0, beta=beta, dim=dim)
    assert together.shape == (5, 3, 4)
    for i, j, k in np.ndindex(together.shape):
        one = antipodal_probability(c0[i, 0, 0], beta=beta[j, 0], dim=dim[k])
        assert np.ndim(one) == 0
        assert together[i, j, k] == pytest.approx(one, rel=1e-12, abs=0)
    for function in (drift, diffusion):
        values = function(c0, beta=beta, dim=dim, sigma=0.7)
        assert values.shape == (5, 3, 4)
        assert values[1, 2, 3] == function(-0.5, beta=3.0, dim=64, sigma=0.7)
    for rate in exponents(beta=beta, dim=dim, sigma=[[[1.0]], [[2.0]]]):
        assert rate.shape == (2, 3, 4)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_no_cosines_have_no_probabilities(shape):
    assert antipodal_probability(np.empty(shape), beta=1.0, dim=4).shape == shape
    assert drift(np.empty(shape), beta=1.0, dim=4).shape == shape


@pytest.mark.parametrize(("dim", "beta"), [(2, 1.0), (3, 0.5), (4, 1.0), (8, 1.5), (16, 2.0), (64, 3.0)])
def test_the_probability_is_harmonic_for_the_diffusion(dim, beta):
    """½ g² h'' + b h' = 0, by five-point differences: it stays a martingale along every path."""
    c = np.linspace(-0.9, 0.9, 37)
    step = 0.05 * (1 - c**2) / dim  # short against the scale of h
    h = antipodal_probability(c + step * np.arange(-2, 3)[:, None], beta=beta, dim=dim)
    slope = (h[0] - 8 * h[1] + 8 * h[3] - h[4]) / (12 * step)
    bend = (-h[0] + 16 * h[1] - 30 * h[2] + 16 * h[3] - h[4]) / (12 * step**2)
    moved = drift(c, beta=beta, dim=dim) * slope
    spread = 0.5 * diffusion(c, beta=beta, dim=dim) ** 2 * bend
    assert (np.abs(moved + spread) < 1e-5 * (np.abs(moved) + np.abs(spread)) + 1e-8 * h[2]).all()


# --- The transition ---------------------------------------------------------------------------------------------


def test_critical_beta_has_its_known_values():
    table = {2: 0, 2.5: 0, 3: 0, 4: 0.658, 5: 0.881, 8: 1.239, 16: 1.665, 64: 2.410, 512: 3.464}
    np.testing.assert_allclose(critical_beta(list(table)), list(table.values()), atol=5e-4)
    assert critical_beta(8).shape == ()


@pytest.mark.parametrize("dim", [4, 5, 8, 64, 512])
def test_the_exponent_at_antipodes_changes_sign_at_the_critical_beta(dim):
    star = critical_beta(dim)
    rates = exponents(beta=star + np.array([-1e-6, 0.0, 1e-6]), dim=dim)[1]
    assert rates[0] > 0 > rates[2]
    assert abs(rates[1]) < 1e-12


@pytest.mark.parametrize("dim", [2, 3, 8, 64])
@pytest.mark.parametrize("beta", [0.0, 0.8, 2.0, 100.0])
@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_exponents_are_the_drifts_of_the_logarithms_at_the_poles(dim, beta, sigma):
    """Itô: d log(1 -+ c) has drift -+b/(1 -+ c) - ½ g²/(1 -+ c)²; its limit is taken to first order in 1 -+ c."""
    gap = 1e-9
    at = {"beta": beta, "dim": dim, "sigma": sigma}
    rates = [0.0, 0.0]
    for k, pole in enumerate((1.0, -1.0)):
        c = pole * (1 - gap)
        gap_c = 1 - abs(c)
        rates[k] = -pole * drift(c, **at) / gap_c - 0.5 * (diffusion(c, **at) / gap_c) ** 2
    np.testing.assert_allclose(rates, exponents(**at), rtol=1e-6, atol=1e-6)


def test_drift_and_diffusion_vanish_at_the_poles_and_scale_with_the_clock():
    c = np.linspace(-1, 1, 9)
    b, g = drift(c, beta=1.2, dim=6), diffusion(c, beta=1.2, dim=6)
    assert b[0] == b[-1] == g[0] == g[-1] == 0
    assert (g[1:-1] > 0).all()
    np.testing.assert_allclose(drift(c, beta=1.2, dim=6, sigma=3.0), 9 * b)
    np.testing.assert_allclose(diffusion(c, beta=1.2, dim=6, sigma=3.0), 3 * g)


def test_without_attention_the_drift_is_logistic():
    """β = 0: u = (1 + c)/2 has drift σ² u (1 - u)(d - 1 - 2u)."""
    u = np.linspace(0, 1, 11)
    np.testing.assert_allclose(drift(2 * u - 1, beta=0.0, dim=9) / 2, u * (1 - u) * (8 - 2 * u), atol=1e-14)


# --- Simulation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "beta", "c0", "horizon", "steps"),
    [
        (2, 0.7, 0.2, 1.0, 100),
        (3, 1.0, 0.0, 1.0, 200),
        (5, 1.0, 0.3, 0.5, 200),
        (8, 1.5, -0.5, 0.5, 400),
        (16, 2.0, -0.7, 0.3, 400),
        (64, 3.0, 0.0, 0.05, 400),
    ],
)
def test_the_simulated_chances_are_the_exact_ones(dim, beta, c0, horizon, steps):
    """The mean of P(antipodal | c_T), a martingale, within 4 standard errors, six cases: false alarms 4e-4."""
    start = torch.full((20_000,), c0, dtype=F64)
    c = simulate(start, beta=beta, dim=dim, horizon=horizon, steps=steps, generator=rng(dim))
    h = antipodal_probability(c.numpy(), beta=beta, dim=dim)
    assert h.std() > 0.1 * h.mean()  # the paths have moved
    assert abs(h.mean() - antipodal_probability(c0, beta=beta, dim=dim)) < 4 * h.std() / math.sqrt(h.size)


@pytest.mark.parametrize(("dim", "beta", "c0"), [(2, 1.0, 0.5), (3, 2.0, 0.0), (4, 2.0, -0.3)])
def test_the_share_of_paths_at_the_antipodes_is_the_exact_one(dim, beta, c0):
    """Counts after a long time, within 4 standard errors, three cases: false alarms 2e-4."""
    c = simulate(torch.full((5_000,), c0), beta=beta, dim=dim, horizon=25.0, steps=2500, generator=rng(1))
    p = float(antipodal_probability(c0, beta=beta, dim=dim))
    assert abs((c < 0).double().mean().item() - p) < 4 * math.sqrt(p * (1 - p) / len(c))
    assert ((1 - c.abs()) < 0.01).double().mean() > 0.97


@pytest.mark.parametrize(
    ("pole", "dim", "beta", "sigma"),
    [(1, 4, 1.0, 1.0), (1, 8, 0.0, 0.5), (-1, 3, 2.0, 1.0), (-1, 8, 2.0, 1.0), (-1, 8, 0.5, 0.7), (-1, 64, 3.0, 0.4)],
)
def test_the_measured_rates_at_the_poles_are_the_exponents(pole, dim, beta, sigma):
    """The mean of log(1 -+ c) between two times next to the pole, 4 standard errors, six cases: false alarms 4e-4."""
    start = torch.full((20_000,), pole * (1 - 1e-8), dtype=F64)
    options = {"beta": beta, "dim": dim, "sigma": sigma}
    c = simulate(start, **options, horizon=1.0, steps=100, generator=rng(3))
    growth = torch.log((1 - c.abs()) / 1e-8)
    rate = exponents(**options)[0 if pole > 0 else 1]
    assert abs(growth.mean().item() - rate) < 4 * growth.std().item() / math.sqrt(len(c))


def test_sigma_is_only_a_clock():
    start = torch.linspace(-0.99, 0.99, 200, dtype=F64)
    slow = simulate(start, beta=1.5, dim=8, horizon=4.0, steps=400, record=4, generator=rng())
    fast = simulate(start, beta=1.5, dim=8, horizon=1.0, steps=400, sigma=2.0, record=4, generator=rng())
    torch.testing.assert_close(fast, slow, atol=1e-12, rtol=0)


@pytest.mark.parametrize("stop", [{"sigma": 0.0, "horizon": 3.0}, {"sigma": 1.0, "horizon": 0.0}])
def test_without_noise_or_time_nothing_moves(stop):
    start = torch.linspace(-1, 1, 41, dtype=F64)
    torch.testing.assert_close(simulate(start, beta=1.0, dim=5, steps=10, **stop), start, atol=1e-15, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_poles_stay_and_extreme_parameters_give_numbers(dtype):
    start = torch.tensor([-1.0, 1.0, 0.0, -0.999999, 0.999999], dtype=dtype)
    for dim in (2, 4096):
        for beta in (0.0, 100.0):
            c = simulate(start, beta=beta, dim=dim, horizon=10.0, steps=100, record=100, generator=rng())
            assert c.dtype == dtype
            assert (c.abs() <= 1).all()  # false for NaN
            assert (c[:, 0] == -1).all()
            assert (c[:, 1] == 1).all()


def test_what_is_recorded():
    start = torch.rand(3, 4, generator=rng(5), dtype=F64)
    run = lambda **options: simulate(start, beta=1.0, dim=4, horizon=1.0, steps=12, generator=rng(), **options)  # noqa: E731
    final, fine, coarse = run(), run(record=12), run(record=3)
    assert final.shape == (3, 4)
    assert fine.shape == (13, 3, 4)
    assert torch.equal(fine[0], start)
    assert torch.equal(fine[-1], final)  # bit for bit, from the same seed
    assert torch.equal(coarse, fine[::4])
    assert simulate(0.5, beta=1.0, dim=4, horizon=1.0, steps=2).shape == ()
    assert simulate(torch.empty(0), beta=1.0, dim=4, horizon=1.0, steps=2).shape == (0,)


def test_paths_are_independent_of_one_another():
    """Correlations among 8 paths over 10,000 steps of u; 5 standard errors, 28 pairs: false alarms 2e-5."""
    c = simulate(torch.zeros(8, dtype=F64), beta=1.0, dim=2, horizon=0.1, steps=10_000, record=10_000, generator=rng(9))
    moves = torch.atanh(c).diff(dim=0)
    assert (torch.corrcoef(moves.T).fill_diagonal_(0).abs() < 0.05).all()


# --- Refusals ---------------------------------------------------------------------------------------------------

SIMULATION = {"c0": torch.zeros(2), "beta": 1.0, "dim": 3, "horizon": 1.0, "steps": 6}


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (drift, {"c": 0.0, "beta": 1.0, "dim": 3, "sigma": 1.0}),
        (diffusion, {"c": 0.0, "beta": 1.0, "dim": 3, "sigma": 1.0}),
        (exponents, {"beta": 1.0, "dim": 3, "sigma": 1.0}),
        (critical_beta, {"dim": 3}),
        (antipodal_probability, {"c0": 0.0, "beta": 1.0, "dim": 3}),
        (simulate, SIMULATION),
    ],
)
def test_bad_numbers_are_refused_by_name(function, arguments):
    bad = {
        "c": [-1.5, 1.0000001, math.nan, math.inf],
        "c0": [-1.5, 1.0000001, math.nan, math.inf],
        "beta": [-0.25, math.nan, math.inf],
        "dim": [1.5, -3, math.nan, math.inf],
        "sigma": [-0.25, math.nan, math.inf],
        "horizon": [-0.25, math.nan, math.inf],
    }
    for name in arguments.keys() & bad.keys():
        for value in bad[name]:
            with pytest.raises(ValueError, match=f"{name} must .*{value}"):
                function(**(arguments | {name: value}))
            if function is not simulate:
                with pytest.raises(ValueError, match=f"{name} must .*{value}"):
                    function(**(arguments | {name: [2 if name == "dim" else 0.5, value]}))
        for value in ("half", 1j, None):
            with pytest.raises(TypeError, match=f"{name} must .*{value}"):
                function(**(arguments | {name: value}))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"c0": torch.tensor([0.0, 2.0])}, ValueError, "c0 .*2.0"),
        ({"c0": torch.tensor([0.0, math.nan])}, ValueError, "c0 .*NaN"),
        ({"c0": torch.tensor([0, 1])}, TypeError, "c0 .*int64"),
        ({"c0": np.zeros(2)}, TypeError, "c0 .*0"),
        ({"beta": np.ones(2)}, TypeError, "beta .*1"),
        ({"steps": 0}, ValueError, "steps .*0"),
        ({"steps": 6.0}, TypeError, "steps .*6.0"),
        ({"record": 4}, ValueError, "record .*4"),
        ({"record": 0}, ValueError, "record .*0"),
        ({"record": 2.0}, TypeError, "record .*2.0"),
        ({"generator": 3}, TypeError, "generator .*3"),
        ({"generator": np.random.default_rng()}, TypeError, "generator .*Generator"),
    ],
)
def test_bad_simulations_are_refused_by_name(change, error, message):
    with pytest.raises(error, match=message):
        simulate(**(SIMULATION | change))


def test_shapes_that_do_not_broadcast_are_named():
    for closed_form in (drift, diffusion):
        with pytest.raises(ValueError, match=r"c \(2,\), beta \(3,\)"):
            closed_form([0.0, 0.1], beta=[1.0, 2.0, 3.0], dim=4)
    with pytest.raises(ValueError, match=r"c0 \(2,\), beta \(3,\)"):
        antipodal_probability([0.0, 0.1], beta=[1.0, 2.0, 3.0], dim=4)


def test_results_are_new_arrays_that_can_be_written_to():
    c = np.zeros((2, 1))
    results = [drift(c, beta=1.0, dim=[3, 4]), diffusion(c, beta=1.0, dim=[3, 4]), *exponents(beta=[1.0, 2.0], dim=4)]
    for result in results:
        result[:] = 7.0
    assert (c == 0).all()


def test_below_three_dimensions_antipodes_attract_even_without_attention():
    # At beta = 0 the scale density is sech(u) exp(-(d - 2) u), with the beta-function ratio as its tail.
    d = 2.5
    total = mpmath.quad(lambda u: mpmath.sech(u) * mpmath.exp(-(d - 2) * u), [-mpmath.inf, 0, mpmath.inf])
    above = mpmath.quad(lambda u: mpmath.sech(u) * mpmath.exp(-(d - 2) * u), [0, mpmath.inf])
    assert antipodal_probability(0.0, beta=0.0, dim=d) == pytest.approx(float(above / total), rel=1e-8)


@pytest.mark.parametrize("beta", [1e-3, 1e-5, 1e-7])
def test_weak_attention_in_three_dimensions_keeps_its_digits(beta):
    """As beta -> 0 in d = 3 the mass of S' is in its left tail, exp(u (1 - 1 / cosh 2 beta)), and grows like 1 / beta²:
    P is proportional to beta² up to a relative O(beta).
    """
    p, q = antipodal_probability(0.0, beta=[beta, beta / 2], dim=3)
    assert p / q == pytest.approx(4, rel=5 * beta)


def test_poles_stay_and_have_gradients():
    c0 = torch.tensor([-1.0, 0.5, 1.0], requires_grad=True)
    c = simulate(c0, beta=1.0, dim=3, horizon=1.0, steps=10, generator=torch.Generator().manual_seed(0))
    assert (c[0].item(), c[2].item()) == (-1.0, 1.0)
    c.sum().backward()
    assert torch.isfinite(c0.grad).all()


@pytest.mark.parametrize("beta", [0.0, 1.0, 50.0, 400.0, 1e4, 1e15])
def test_gradients_are_finite_differences_for_every_beta(beta):
    """The cosh in r overflows at 89 in single and at 710 in double precision."""
    start = torch.tensor([0.0, -0.9, 0.7, -0.999], dtype=F64, requires_grad=True)
    run = lambda c0, steps: simulate(c0, beta=beta, dim=4, horizon=0.1, steps=steps, generator=rng())  # noqa: E731
    assert torch.autograd.gradcheck(lambda c0: run(c0, 3), (start,))
    single = start.detach().float().requires_grad_()
    for c0 in (start, single):
        (gradient,) = torch.autograd.grad(run(c0, 100).sum(), c0)
        assert torch.isfinite(gradient).all()


def test_without_attention_one_step_has_its_gradient_in_closed_form():
    """β = ∞ away from the pole: r = 0, du = c h + sqrt(2) dB, so dc/dc0 = (1 - c²)(1/(1 - c0²) + h)."""
    c0 = torch.tensor([0.0, -0.9], requires_grad=True)
    c = simulate(c0, beta=1e3, dim=4, horizon=0.1, steps=1, generator=rng())
    (gradient,) = torch.autograd.grad(c.sum(), c0)
    c, c0 = c.detach(), c0.detach()
    torch.testing.assert_close(gradient, (1 - c**2) * (1 / (1 - c0**2) + 0.1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["beta", "dim", "sigma", "horizon"])
def test_numbers_beyond_any_use_are_refused_by_name(name):
    options = {"beta": 1.0, "dim": 3, "sigma": 1.0, "horizon": 1.0, name: 1e16}
    with pytest.raises(ValueError, match=f"{name} must be"):
        simulate(torch.tensor([-1.0, 0.0]), steps=1, **options)


def test_steps_beyond_the_largest_float_are_refused():
    """The drift at c = 0 in d = 2 is 0, times sigma² h = 1e45, which is no float32: NaN, not an answer."""
    with pytest.raises(ValueError, match="steps below the largest"):
        simulate(torch.zeros(1), beta=1.0, dim=2, sigma=1e15, horizon=1e15, steps=1)


def test_masked_arrays_are_refused():
    with pytest.raises(TypeError, match="c0 must be an array without a mask"):
        antipodal_probability(np.ma.array([0.0, 0.1], mask=[True, False]), beta=1.0, dim=3)
