"""Tokens in motion: laws of one layer, limits, orders of convergence, symmetries, clusters, refusals."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, sparse, special, stats

from lib import sphere, tokens, two_tokens
from lib.attention import WEIGHTS, attend, interaction_energy
from lib.brownian import BrownianPath
from lib.sphere import angle, random_tokens
from lib.tokens import NOISES, clusters, flow, layers, sde

F32, F64 = torch.float32, torch.float64


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def pair(c, d, *batch, dtype=F64):
    """Two tokens of cosine c in dimension d."""
    x = torch.zeros(*batch, 2, d, dtype=dtype)
    x[..., 0, 0] = 1
    x[..., 1, 0] = c
    x[..., 1, 1] = math.sqrt(1 - c * c)
    return x


def cosine(x, i=0, j=1):
    return (x[..., i, :] * x[..., j, :]).sum(-1)


def rotation(d, seed=0):
    return torch.linalg.qr(torch.randn(d, d, generator=rng(seed), dtype=F64))[0]


def assert_mean(sample, expected, errors=4.0, slack=0.0):
    """The mean of independent draws, within so many standard errors (and slack, for a stated bias)."""
    sample = torch.as_tensor(sample).double().flatten()
    error = sample.std().item() / math.sqrt(sample.numel())
    assert abs(sample.mean().item() - expected) < errors * error + slack, (sample.mean().item(), expected, error)


def close(a, b, atol):
    torch.testing.assert_close(a, b, atol=atol, rtol=0)


# --- One layer --------------------------------------------------------------------------------------------------


def one_step(scheme, x0, *, h, members, sigma=1.0, seed=0, **options):
    """Many draws of one step, and the noise V of each."""
    path = BrownianPath(members, d=x0.shape[-1], horizon=h, steps=1, seed=seed)
    steps = {layers: "depth", sde: "steps"}[scheme]
    x1 = scheme(x0.expand(members, *x0.shape), **{steps: 1}, horizon=h, sigma=sigma, noise=path, **options)
    return x1, sigma * path.increments(1)[0]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("scheme", [layers, sde])
@pytest.mark.parametrize("kappa", [0.0, 0.8])
def test_cosines_drift_and_spread_by_the_pair_law(scheme, weights, kappa):
    """One step for five tokens in dimension 6, all ten pairs, against

    drift σ²[⟨a_i,a_j⟩(d-2+c²) - ½(d-1)c(|a_i|²+|a_j|²)] + κ(⟨a_i,x_j⟩ + ⟨a_j,x_i⟩ - c⟨a_i,x_i⟩ - c⟨a_j,x_j⟩),
    variance rate σ²(1-c²)[|a_i|²+|a_j|²-2c⟨a_i,a_j⟩].

    The part of the change that is linear in the noise has mean zero and is subtracted; what is left has mean and
    spread O(h), bias O(h²). 4.5 standard errors, 16 x 20 comparisons: false alarms 2e-3.
    """
    n, d, h, beta, sigma = 5, 6, 1e-6, 1.2, 1.3
    x0 = random_tokens(n=n, d=d, generator=rng(4), dtype=F64)
    x1, noise = one_step(scheme, x0, h=h, members=20_000, sigma=sigma, beta=beta, drift=kappa, weights=weights, seed=8)
    attention = {
        "softmax": lambda logits: special.softmax(logits, axis=1),
        "unnormalized": lambda logits: np.exp(logits) / n,
        "uniform": lambda logits: np.full((n, n), 1 / n),
        "identity": lambda logits: np.eye(n),
    }[weights]
    x = x0.numpy()
    a = attention(beta * x @ x.T) @ x
    kicks = noise.numpy() @ a.T  # (members, d, n)
    for i in range(n):
        for j in range(i):
            c, aij, aii, ajj = x[i] @ x[j], a[i] @ a[j], a[i] @ a[i], a[j] @ a[j]
            drift = sigma**2 * (aij * (d - 2 + c**2) - 0.5 * (d - 1) * c * (aii + ajj))
            drift += kappa * (a[i] @ x[j] + a[j] @ x[i] - c * (a[i] @ x[i]) - c * (a[j] @ x[j]))
            change = cosine(x1, i, j).numpy() - c
            linear = (x[j] - c * x[i]) @ kicks[:, :, i].T + (x[i] - c * x[j]) @ kicks[:, :, j].T
            assert_mean((change - linear) / h, drift, errors=4.5)
            assert_mean(change**2 / h, sigma**2 * (1 - c**2) * (aii + ajj - 2 * c * aij), errors=4.5)


@pytest.mark.parametrize(("dim", "beta", "c"), [(2, 0.7, 0.3), (3, 2.0, -0.5), (8, 1.5, 0.0), (16, 1.0, 0.6)])
def test_two_tokens_drift_and_spread_by_their_closed_forms(dim, beta, c):
    """As above, for layers. 4 standard errors, eight comparisons: false alarms 5e-4."""
    x0, h = pair(c, dim), 1e-6
    x1, noise = one_step(layers, x0, h=h, members=10_000, sigma=0.6, beta=beta, seed=dim)
    p = special.expit(beta * (1 - c))
    kicks = noise @ (p * x0 + (1 - p) * x0.flip(0)).T
    linear = kicks[:, :, 0] @ (x0[1] - c * x0[0]) + kicks[:, :, 1] @ (x0[0] - c * x0[1])
    change = cosine(x1) - c
    assert_mean((change - linear) / h, two_tokens.drift(c, beta=beta, dim=dim, sigma=0.6))
    assert_mean(change**2 / h, two_tokens.diffusion(c, beta=beta, dim=dim, sigma=0.6) ** 2)


@pytest.mark.parametrize("scheme", [layers, sde])
def test_a_path_multiplies_tokens_from_the_left_and_each_member_or_token_by_its_own_matrix(scheme):
    """The tangent part of one small step is P_x W x: W in full for common noise, W_i for independent noise."""
    x0 = random_tokens(7, n=3, d=4, generator=rng(), dtype=F64)
    step = {layers: {"depth": 2}, sde: {"steps": 2}}[scheme]
    for tokens_, shape in ((None, (7, 1, 4, 4)), (3, (7, 3, 4, 4))):
        path = BrownianPath(7, d=4, horizon=1e-12, steps=1, seed=3, tokens=tokens_)
        x = scheme(x0, **step, record=2, beta=0.0, horizon=1e-12, weights="identity", noise=path)
        for k, w in enumerate(path.increments(2)):
            moved = (w.reshape(shape) @ x[k].unsqueeze(-1)).squeeze(-1)
            moved = moved - (moved * x[k]).sum(-1, keepdim=True) * x[k]
            close((x[k + 1] - x[k]) * 1e6, moved * 1e6, atol=3e-5)


def mean_cosine_after_one_layer(d, s):
    """E⟨x, y/|y|⟩ for y = x + √s g, g ~ N(0, I): the mean of a projected normal law, in closed form."""
    constant = math.exp(special.gammaln((d + 1) / 2) - special.gammaln(d / 2 + 1)) / math.sqrt(2 * s)
    return constant * special.hyp1f1(0.5, d / 2 + 1, -1 / (2 * s))


def mean_cosine_after_one_euler_step(d, s):
    """E(1 + χ²_{d-1} s/(1-q)²)^{-1/2}, q = ½(d-1)s: the noise is tangent and the Itô term shrinks the token by q."""
    reach = s / (1 - (d - 1) * s / 2) ** 2
    density = stats.chi2(d - 1).pdf
    return integrate.quad(lambda v: 2 * v * density(v * v) / math.sqrt(1 + reach * v * v), 0, math.inf)[0]


ONE_STEP = {layers: mean_cosine_after_one_layer, sde: mean_cosine_after_one_euler_step}


@pytest.mark.parametrize("d", [2, 3, 4, 8, 64])
def test_the_one_step_means_have_their_expansions(d):
    """Exact flow: 1 - (d-1)s/2 + (d-1)²s²/8; layers and Euler steps are off by -+(d-1)(4-d)s²/4, nothing at d = 4."""
    s = 0.01 / d
    exact = math.exp(-(d - 1) * s / 2)
    off = (d - 1) * (d - 4) * s**2 / 4
    assert mean_cosine_after_one_layer(d, s) == pytest.approx(exact + off, abs=(d * s) ** 3)
    assert mean_cosine_after_one_layer(d, s) == pytest.approx(
        1 - (d - 1) * s / 2 + 3 * (d - 1) * (d - 3) * s**2 / 8, abs=(d * s) ** 3
    )
    assert mean_cosine_after_one_euler_step(d, s) == pytest.approx(exact - off, abs=(d * s) ** 3)


@pytest.mark.parametrize("scheme", [layers, sde])
@pytest.mark.parametrize("d", [2, 3, 4, 8, 64])
def test_one_token_turns_in_one_step_by_the_exact_mean(scheme, d):
    """4 standard errors, ten comparisons: false alarms 6e-4."""
    x0 = random_tokens(n=1, d=d, generator=rng(d)).expand(200_000 if d < 64 else 40_000, 1, d)
    step = {layers: {"depth": 1}, sde: {"steps": 1}}[scheme]
    x1 = scheme(x0, **step, beta=1.0, horizon=0.2 / d, sigma=1.5, generator=rng())
    assert_mean((x0 * x1).sum(-1), ONE_STEP[scheme](d, 1.5**2 * 0.2 / d))


@pytest.mark.parametrize("scheme", [layers, sde])
@pytest.mark.parametrize("d", [3, 4, 8])
def test_one_token_forgets_its_start_at_the_rate_of_brownian_motion_on_the_sphere(scheme, d):
    """E⟨x_T, x_0⟩ = e^{-σ²(d-1)T/2}, up to the relative bias ±(d-1)(d-4)σ⁴hT/4 of the scheme; and exactly the L-th
    power of one step's mean, by symmetry. 4 standard errors, twelve comparisons: false alarms 8e-4.
    """
    sigma, horizon, steps = 0.8, 0.6, 40
    s = sigma**2 * horizon / steps
    x0 = random_tokens(60_000, n=1, d=d, generator=rng(d))
    run = {layers: {"depth": steps}, sde: {"steps": steps}}[scheme]
    x = scheme(x0, **run, beta=1.0, horizon=horizon, sigma=sigma, generator=rng(1))
    limit = math.exp(-(d - 1) * sigma**2 * horizon / 2)
    bias = {layers: 1, sde: -1}[scheme] * (d - 1) * (d - 4) * s * sigma**2 * horizon / 4 * limit
    assert_mean((x0 * x).sum(-1), limit + bias, slack=(d * s) ** 2 * limit)
    assert_mean((x0 * x).sum(-1), ONE_STEP[scheme](d, s) ** steps)


# --- The noise --------------------------------------------------------------------------------------------------


def entries(noise, basis, members=20_000, depth=1, sigma=1.7):
    """⟨q_j, V q_i⟩ for j ≠ i, seen in the motion of the basis vectors q_i; (depth, members, d(d-1))."""
    d, h = len(basis), 1e-10
    run = {"depth": depth, "beta": 0.0, "horizon": depth * h, "sigma": sigma, "weights": "identity", "record": depth}
    x = layers(basis.expand(members, d, d), noise=noise, **run, generator=rng(12))
    moves = (x.diff(dim=0) / math.sqrt(h)) @ basis.T
    return moves[..., ~torch.eye(d, dtype=torch.bool)]


@pytest.mark.parametrize("noise", NOISES)
def test_entries_have_their_law_whatever_the_seed(noise):
    """Kolmogorov-Smirnov at 1e-5 for six entries and two noises: false alarms 1e-4; signs are checked exactly."""
    v = entries(noise, torch.eye(3, dtype=F64))[0] / 1.7
    if noise == "rademacher":
        close(v.abs(), torch.ones_like(v), atol=1e-3)
    else:
        law = {"gaussian": stats.norm(), "uniform": stats.uniform(-math.sqrt(3), 2 * math.sqrt(3))}[noise]
        assert min(stats.kstest(column.numpy(), law.cdf).pvalue for column in v.T) > 1e-5


@pytest.mark.parametrize("noise", NOISES)
def test_entries_are_centred_independent_and_of_variance_sigma_squared(noise):
    """Along a turned basis, so that diagonal entries count, in two successive layers: all first and second moments
    of 24 numbers. 5 standard errors, 324 comparisons a noise: false alarms 6e-4.
    """
    v = entries(noise, rotation(4), depth=2).movedim(1, 0).flatten(1) / 1.7
    members, k = v.shape
    assert k == 24
    assert (v.mean(0).abs() < 5 / math.sqrt(members)).all()
    products = v.unsqueeze(2) * v.unsqueeze(1)
    wrong = (products.mean(0) - torch.eye(k, dtype=F64)).abs()
    assert (wrong < 5 * products.std(0) / math.sqrt(members)).all()


@pytest.mark.parametrize(("noise", "d"), [*((noise, 3) for noise in NOISES), ("gaussian", 64), ("uniform", 64)])
def test_all_tokens_of_a_member_share_their_matrices(noise, d):
    """A product of linear maps keeps three coplanar tokens coplanar; separate matrices would not."""
    e1, e2 = torch.eye(d, dtype=F64)[:2]
    x0 = torch.stack([e1, e2, (e1 + e2) / math.sqrt(2)]).expand(20, 3, d)
    x = layers(x0, depth=10, beta=0.0, horizon=0.1, weights="identity", noise=noise, generator=rng())
    assert torch.linalg.svdvals(x)[:, 2].max() < 1e-13
    assert (angle(x, x0) > 1e-3).all()


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("d", [3, 64])
def test_members_of_an_ensemble_have_their_own_noise_and_seeds_decide_it(noise, d):
    x0 = pair(0.2, d, 2, 3)
    run = lambda seed: layers(x0, depth=3, beta=1.0, horizon=0.1, noise=noise, generator=rng(seed))  # noqa: E731
    assert torch.equal(run(0), run(0))
    assert not torch.isclose(run(0), run(1)).all(-1).any()
    members = run(0)[..., 0, :].flatten(0, -2)
    assert torch.pdist(members).min() > 1e-3


@pytest.mark.parametrize("weights", ["softmax", "identity"])
def test_the_block_and_the_matrix_have_the_same_law(weights, monkeypatch):
    """Three tokens in dimension 24, five layers: coordinates, random projections and cosines of 5,000 members in
    each way. Two-sample Kolmogorov-Smirnov at 1e-5, 2 x 12 comparisons: false alarms 3e-4.
    """
    members, d = 5_000, 24
    x0 = random_tokens(n=3, d=d, generator=rng(2)).expand(members, 3, d)
    run = {"depth": 5, "beta": 2.0, "horizon": 0.5, "sigma": 1.2, "weights": weights}
    assert tokens._block_pays(members, 3, d, x0.dtype)
    block = layers(x0, **run, generator=rng(0))
    monkeypatch.setattr(tokens, "_block_pays", lambda *_: False)
    matrix = layers(x0, **run, generator=rng(0))
    assert not torch.isclose(block, matrix).all(-1).any()  # two ways indeed
    directions = torch.randn(5, 3, d, generator=rng(3))

    def features(x):
        yield from x[:, :, 0].T
        yield x[:, 2, -1]
        yield from (x.flatten(1) @ directions.flatten(1).T).T
        yield from (cosine(x, i, j) for i, j in ((0, 1), (0, 2), (1, 2)))

    pvalues = [stats.ks_2samp(u, v).pvalue for u, v in zip(features(block), features(matrix), strict=True)]
    assert len(pvalues) == 12
    assert min(pvalues) > 1e-5


@pytest.mark.parametrize("block", [True, False])
def test_the_kicks_have_the_gram_matrix_of_what_is_read_as_covariance(block, monkeypatch):
    """Seen in the 60 coordinates orthogonal to all tokens. 5 standard errors, 2 x 10 comparisons: false alarms 1e-5."""
    monkeypatch.setattr(tokens, "_block_pays", lambda *_: block)
    d, h, sigma = 64, 1e-10, 1.4
    x0 = torch.zeros(4, d, dtype=F64)
    x0[:, :4] = random_tokens(n=4, d=4, generator=rng(1), dtype=F64)
    x0[3] = -x0[0]  # a singular Gram matrix
    x1 = layers(x0.expand(500, 4, d), depth=1, beta=1.0, horizon=h, sigma=sigma, generator=rng())
    kicks = (x1[..., 4:] / math.sqrt(h)).movedim(1, 0).flatten(1)
    a = attend(x0, beta=1.0)
    for i in range(4):
        for j in range(i + 1):
            assert_mean(kicks[i] * kicks[j], sigma**2 * (a[i] @ a[j]).item(), errors=5)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_many_tokens_that_have_merged_go_on_as_one(dtype):
    """Eight tokens merge at the rate 63/2, to a distance far below rounding: their kicks stay finite and common."""
    x0 = random_tokens(256, n=8, d=64, generator=rng(), dtype=dtype)
    assert tokens._block_pays(256, 8, 64, dtype)
    x = layers(x0, depth=400, beta=1.0, horizon=4.0, generator=rng(1))
    assert (x.norm(dim=-1) - 1).abs().max() < 1e-5
    assert (x - x[:, :1]).norm(dim=-1).max() < 1e-4
    turned = (x[:, 0] * x0[:, 0]).sum(-1)
    assert turned.abs().mean() < 0.5  # they have moved, together


# --- Gradients --------------------------------------------------------------------------------------------------

STARTS = {
    "distinct": random_tokens(3, d=4, n=3, generator=rng(40), dtype=F64),
    "merged": random_tokens(3, d=4, n=1, generator=rng(41), dtype=F64).expand(3, 3, 4),
    "merged, then another": random_tokens(3, d=4, n=2, generator=rng(42), dtype=F64)[:, [0, 0, 1]],
    "antipodal": random_tokens(3, d=4, n=1, generator=rng(43), dtype=F64) * torch.tensor([[1.0], [-1], [1]]),
}


def in_dimension(x, d):
    """The same tokens among d coordinates, or, for d = 2, tokens of the same kind with N > d."""
    return sphere.normalize(x[..., :2]) if d == 2 else torch.nn.functional.pad(x, (0, d - 4))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("d", [2, 5])
def test_gradients_on_a_path_are_finite_differences(start, d, weights):
    """And of the flow, which has no noise."""
    x0 = in_dimension(STARTS[start], d).clone().requires_grad_()
    path = BrownianPath(3, d=d, horizon=0.02, steps=2, seed=1)
    options = {"beta": 1.5, "horizon": 0.02, "weights": weights, "drift": 0.5}
    assert torch.autograd.gradcheck(lambda x: layers(x, depth=2, noise=path, **options), (x0,))
    assert torch.autograd.gradcheck(lambda x: sde(x, steps=2, noise=path, **options), (x0,))
    assert torch.autograd.gradcheck(lambda x: flow(x, steps=2, **options), (x0,))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("block", [True, False])
def test_gradients_of_one_layer_are_finite_differences_for_the_block_too(start, weights, block, monkeypatch):
    """Central differences see a corner of the block's root as gradient 0, as it is set there."""
    monkeypatch.setattr(tokens, "_block_pays", lambda *_: block)
    x0 = in_dimension(STARTS[start], 6).clone().requires_grad_()
    options = {"depth": 1, "beta": 1.5, "horizon": 0.1, "weights": weights}
    assert torch.autograd.gradcheck(lambda x: layers(x, generator=rng(3), **options), (x0,), atol=1e-4)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("dtype", [F32, F64])
def test_gradients_through_the_block_stay_bounded(weights, start, dtype, monkeypatch):
    """Those through the matrix are of order 1 here; 1 / remainder would be 1e7 or 1e15."""
    monkeypatch.setattr(tokens, "_block_pays", lambda *_: True)
    x0 = in_dimension(STARTS[start], 64).to(dtype)[:1].expand(100, 3, 64).clone().requires_grad_()
    layers(x0, depth=5, beta=1.0, weights=weights, horizon=0.5, generator=rng(1))[..., 0].sum().backward()
    assert (x0.grad.abs() < 100).all()  # false for NaN


def test_tokens_that_read_nothing_have_gradients(monkeypatch):
    """Opposite tokens of equal weights: a = 0, and so is the whole block."""
    monkeypatch.setattr(tokens, "_block_pays", lambda *_: True)
    x0 = pair(-1.0, 8, 10).requires_grad_()
    x = layers(x0, depth=2, beta=1.0, weights="uniform", horizon=0.5, generator=rng())
    close(x, x0, atol=0)
    x[..., 1].sum().backward()
    close(x0.grad[..., 1], torch.ones(10, 2, dtype=F64), atol=1e-15)


@pytest.mark.parametrize("start", STARTS)
def test_gradients_through_block_and_matrix_have_the_same_mean(start, monkeypatch):
    """A quadratic in all tokens after two layers, whose gradient in law is known to both. 5 standard errors of the
    difference, 18 entries a start: false alarms 5e-5 in all.
    """
    members, d = 20_000, 6
    x0 = in_dimension(STARTS[start], d)[0]
    target = torch.randn(3 * d, 3 * d, generator=rng(5), dtype=F64)
    gradients = []
    for block in (True, False):
        monkeypatch.setattr(tokens, "_block_pays", lambda *_, block=block: block)
        x = x0.expand(members, 3, d).clone().requires_grad_()
        y = layers(x, depth=2, beta=1.0, horizon=0.4, generator=rng(6 + block)).flatten(1)
        gradients.append(torch.autograd.grad(((y @ target) * y).sum(), x)[0])
    block, matrix = gradients
    error = ((block.var(0) + matrix.var(0)) / members).sqrt()
    assert ((block.mean(0) - matrix.mean(0)).abs() < 5 * error).all()


def test_the_block_holds_where_squares_of_what_is_read_overflow(monkeypatch):
    """One token reads e^80 times itself; σ makes the kick about as long as the token, and orthogonal to it."""
    d, members = 64, 100
    x0 = random_tokens(members, n=1, d=d, generator=rng(1))
    monkeypatch.setattr(tokens, "_block_pays", lambda *_: True)
    run = {"depth": 1, "beta": 80.0, "weights": "unnormalized", "horizon": 1.0, "sigma": math.exp(-80) / math.sqrt(d)}
    x = layers(x0, **run, generator=rng(2))
    assert abs((x * x0).sum(-1).mean() - math.sqrt(0.5)) < 0.05  # 1 / |x + g/√d|, g of length √d


# --- Norms within the tolerance ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "steps"), [(layers, "depth"), (sde, "steps"), (flow, "steps")])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_norms_within_the_tolerance_do_not_matter(scheme, steps, weights):
    x0 = random_tokens(5, n=3, d=4, generator=rng(44), dtype=F64)
    longer = x0 * torch.tensor([[1.00009], [0.99991], [1.00003]])
    source = {} if scheme is flow else {"noise": BrownianPath(5, d=4, horizon=0.02, steps=2, seed=0)}
    options = {steps: 2, "beta": 1.5, "horizon": 0.02, "weights": weights} | source
    close(scheme(longer, **options), scheme(x0, **options), atol=1e-11)


def test_camps_do_not_depend_on_norms_within_the_tolerance():
    x = torch.tensor([[1.0, 0.0], [1.00009, 0.0], [-0.99991, 0.0]], dtype=F64)
    labels, signs = clusters(x, tol=1e-9)
    assert labels.tolist() == [0, 0, 0]
    assert signs.tolist() == [1, 1, -1]


# --- Who ends where ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "noise", "dim", "beta", "c0", "horizon", "members"),
    [
        (layers, "gaussian", 3, 1.0, 0.0, 1.0, 20_000),
        (layers, "uniform", 3, 2.0, 0.3, 1.0, 20_000),
        (layers, "rademacher", 4, 1.0, 0.0, 0.5, 20_000),
        (layers, "gaussian", 5, 1.0, 0.0, 0.5, 20_000),
        (layers, "gaussian", 8, 1.5, -0.5, 0.4, 10_000),
        (layers, "gaussian", 16, 2.0, -0.7, 0.2, 10_000),
        (layers, "gaussian", 64, 3.0, 0.0, 0.05, 4_000),
        (sde, None, 3, 1.0, 0.0, 1.0, 20_000),
        (sde, None, 8, 1.5, -0.5, 0.4, 10_000),
    ],
)
def test_two_tokens_become_antipodal_with_the_exact_probability(scheme, noise, dim, beta, c0, horizon, members):
    """The mean of P(antipodal | c_T), a martingale, after 100 steps; its O(h) bias is 1 % of P in dimension
    8 at h = 0.005 (measured with 300,000 members), less than a standard error here, and smaller in the other cases.
    4 standard errors, nine cases: false alarms 1e-3.
    """
    x0 = pair(c0, dim, members, dtype=F32)
    run = {"depth": 100, "noise": noise} if scheme is layers else {"steps": 100}
    c = cosine(scheme(x0, **run, beta=beta, horizon=horizon, generator=rng(1)))
    h = two_tokens.antipodal_probability(c.double().clamp(-1, 1).numpy(), beta=beta, dim=dim)
    assert h.std() > 0.5 * h.mean()  # they have moved far
    assert_mean(h, two_tokens.antipodal_probability(c0, beta=beta, dim=dim))


@pytest.mark.parametrize(
    ("weights", "dim", "c0"), [("softmax", 3, 0.0), ("identity", 2, 0.5), ("identity", 3, 0.5), ("identity", 6, -0.5)]
)
def test_the_share_of_antipodal_pairs_after_a_long_time_is_the_exact_one(weights, dim, c0):
    """Without attention it is arccos(c0)/π in every dimension. 4 standard errors, four cases: false alarms 3e-4."""
    x0 = pair(c0, dim, 4000, dtype=F32)
    c = cosine(layers(x0, depth=1200, beta=2.0, horizon=12.0, weights=weights, generator=rng(5)))
    exact = math.acos(c0) / math.pi
    if weights == "softmax":
        exact = float(two_tokens.antipodal_probability(c0, beta=2.0, dim=dim))
    assert_mean(c < 0, exact)
    assert ((1 - c.abs()) < 0.01).double().mean() > 0.9


@pytest.mark.parametrize("dim", [2, 3, 8, 64])
def test_without_attention_the_angle_between_two_tokens_is_a_martingale(dim):
    """4 standard errors, four cases: false alarms 3e-4."""
    c0 = 0.3
    x = layers(pair(c0, dim, 5_000), depth=20, beta=1.0, horizon=0.2, weights="identity", generator=rng(dim))
    assert_mean(angle(*x.unbind(-2)), math.acos(c0))


def test_all_noises_and_the_sde_have_the_same_limit():
    """First and second moments of the cosines of four tokens in dimension 4, h = 0.01. 4 standard errors of the
    difference from Gaussian layers, six comparisons: false alarms 4e-4; the O(h) biases are far below.
    """
    x0 = random_tokens(n=4, d=4, generator=rng(5)).expand(10_000, 4, 4)
    options = {"beta": 1.5, "horizon": 0.5}
    runs = [layers(x0, depth=50, noise=noise, generator=rng(k), **options) for k, noise in enumerate(NOISES)]
    runs.append(sde(x0, steps=50, generator=rng(3), **options))
    pairs = [x @ x.mT for x in runs]
    for power in (1, 2):
        means = [(g**power).mean(dim=(1, 2)).double() for g in pairs]
        for other in means[1:]:
            error = math.hypot(means[0].std().item(), other.std().item()) / math.sqrt(len(other))
            assert abs(means[0].mean() - other.mean()) < 4 * error


# --- Orders of convergence --------------------------------------------------------------------------------------


def order(errors, ratio=2):
    """The slope of log error against log h, for steps shrinking by a constant ratio."""
    return -np.polyfit(np.arange(len(errors)) * math.log(ratio), np.log(errors), 1)[0]


@pytest.fixture(scope="module")
def shared_noise():
    """500 members, two tokens in dimension 3, the same paths on grids of 16, 32, ..., 512 steps."""
    path = BrownianPath(500, d=3, horizon=1.0, steps=16, seed=21)
    x0 = random_tokens(500, n=2, d=3, generator=rng(6), dtype=F64)
    grids = [16 * 2**k for k in range(6)]
    common = {"beta": 1.0, "horizon": 1.0, "noise": path}
    return [(sde(x0, steps=n, **common), layers(x0, depth=n, **common)) for n in grids]


def rms(x):
    return x.square().sum(dim=(-2, -1)).mean().sqrt().item()


def test_the_sde_converges_strongly_at_order_one_half(shared_noise):
    """Distances between consecutive grids scale as √h. Each is known to 3 % and the next power of h is small on these
    grids, so the slope is good to 0.05; order 1 (commutative noise) or 0 (noise not shared) would be far off.
    """
    solutions = [euler for euler, _ in shared_noise]
    distances = [rms(fine - coarse) for coarse, fine in itertools.pairwise(solutions)]
    assert abs(order(distances) - 0.5) < 0.1


def test_layers_on_the_same_path_converge_to_the_sde_at_order_one_half(shared_noise):
    """Each layer differs from the Euler step by O(h) of mean O(h²); tolerance as above."""
    distances = [rms(euler - layered) for euler, layered in shared_noise]
    assert abs(order(distances) - 0.5) < 0.1


def test_the_sde_converges_weakly_at_order_one():
    """Means of ⟨x_T, x_0⟩ for one token in dimension 8 on shared paths: consecutive grids differ by O(h). Standard
    errors of 6 % at most on the differences make 0.1 on the slope, and 0.15 is allowed for the next power of h.
    """
    members, horizon = 10_000, 0.25
    path = BrownianPath(members, d=8, horizon=horizon, steps=4, seed=31)
    x0 = random_tokens(members, n=1, d=8, generator=rng(7), dtype=F64)
    ends = [sde(x0, steps=n, beta=0.0, horizon=horizon, noise=path) for n in (4, 8, 16, 32)]
    means = [(x0 * x).sum(-1).mean().item() for x in ends]
    gaps = np.abs(np.diff(means))
    assert abs(order(gaps) - 1) < 0.25
    assert abs(means[-1] - math.exp(-7 * horizon / 2)) < 0.05


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kappa", [1.0, -0.7])
def test_without_noise_layers_and_sde_converge_to_the_flow_at_order_one_and_the_flow_at_four(weights, kappa):
    """Smooth problems on fine grids: slopes within 0.1 (order 1) and 0.3 (order 4) of their limits."""
    x0 = random_tokens(3, n=4, d=3, generator=rng(8), dtype=F64)
    options = {"beta": 1.0, "horizon": 1.0, "drift": kappa, "weights": weights}
    exact = flow(x0, steps=1000, **options)
    if weights == "identity":
        close(exact, x0, atol=1e-14)  # a token does not turn towards itself
        return
    depths = [50, 100, 200, 400]
    for scheme, steps in ((layers, "depth"), (sde, "steps")):
        errors = [rms(scheme(x0, **{steps: n}, sigma=0.0, **options) - exact) for n in depths]
        assert errors[-1] < 0.01
        assert abs(order(errors) - 1) < 0.1
    assert abs(order([rms(flow(x0, steps=n, **options) - exact) for n in (4, 8, 16, 32)]) - 4) < 0.3


# --- The deterministic flow -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "d", "beta", "rho"), [(2, 2, 1.0, -0.6), (3, 5, 2.0, 0.1), (6, 6, 0.0, -0.1), (5, 8, 4.0, 0.3)]
)
def test_equiangular_tokens_follow_their_own_equation(n, d, beta, rho):
    """ρ' = 2 e^{βρ} (1-ρ) ((n-1)ρ + 1) / (e^β + (n-1) e^{βρ}), solved by SciPy."""
    gram = np.full((n, n), rho) + (1 - rho) * np.eye(n)
    x0 = torch.zeros(n, d, dtype=F64)
    x0[:, :n] = torch.from_numpy(np.linalg.cholesky(gram))
    x = flow(x0, steps=400, beta=beta, horizon=4.0, record=4)

    def velocity(t, r):
        pull = np.exp(beta * r)
        return 2 * pull * (1 - r) * ((n - 1) * r + 1) / (np.exp(beta) + (n - 1) * pull)

    solution = integrate.solve_ivp(velocity, (0, 4), [rho], t_eval=range(5), rtol=1e-11, atol=1e-12).y[0]
    cosines = (x @ x.mT)[:, ~torch.eye(n, dtype=torch.bool)]
    close(cosines, torch.from_numpy(solution)[:, None].expand_as(cosines), atol=1e-8)


@pytest.mark.parametrize(("n", "d", "beta"), [(3, 3, 0.0), (8, 3, 1.0), (6, 10, 2.0)])
def test_the_flow_gathers_random_tokens_into_one_cluster(n, d, beta):
    x = flow(random_tokens(50, n=n, d=d, generator=rng(9), dtype=F64), steps=1000, beta=beta, horizon=100.0)
    labels, signs = clusters(x, tol=1e-3)
    assert (labels == 0).all()
    assert (signs == 1).all()


def test_a_reversed_flow_goes_back_to_the_start():
    x0 = random_tokens(5, n=4, d=3, generator=rng(10), dtype=F64)
    there = flow(x0, steps=200, beta=1.0, horizon=1.0, drift=0.9)
    close(flow(there, steps=200, beta=1.0, horizon=1.0, drift=-0.9), x0, atol=1e-9)
    assert rms(there - x0) > 0.1


@pytest.mark.parametrize("beta", [0.5, 2.0])
def test_the_unnormalized_flow_climbs_the_energy_at_the_rate_of_its_speed(beta):
    """dE/dt = Σ_i |x_i'|²/N along the flow, and E never falls."""
    x = flow(random_tokens(10, n=5, d=3, generator=rng(11), dtype=F64), steps=2000, beta=beta, horizon=2.0,
             weights="unnormalized", record=2000)  # fmt: skip
    energy = interaction_energy(x, beta=beta)
    assert (energy.diff(dim=0) >= 0).all()
    dt = 1e-3
    speed = ((x[2:] - x[:-2]) / (2 * dt)).square().sum(dim=(-2, -1)) / 5
    climb = (energy[2:] - energy[:-2]) / (2 * dt)
    torch.testing.assert_close(climb, speed, rtol=1e-4, atol=1e-6)


# --- Symmetries and invariants ----------------------------------------------------------------------------------


class Turned(BrownianPath):
    """The path R W Rᵀ."""

    def __init__(self, path, turn):
        self.__dict__.update(vars(path))
        self.turn = turn

    def increments(self, steps):
        return self.turn @ super().increments(steps) @ self.turn.T


@pytest.mark.parametrize("weights", WEIGHTS)
def test_turning_the_tokens_and_the_noise_turns_the_solution(weights):
    x0 = random_tokens(5, n=4, d=3, generator=rng(13), dtype=F64)
    turn = rotation(3, seed=1)
    path = BrownianPath(5, d=3, horizon=1.0, steps=50, seed=2)
    options = {"beta": 1.5, "horizon": 1.0, "weights": weights, "drift": 0.5}
    for scheme, steps in ((layers, "depth"), (sde, "steps")):
        straight = scheme(x0, **{steps: 50}, noise=path, **options)
        turned = scheme(x0 @ turn.T, **{steps: 50}, noise=Turned(path, turn), **options)
        close(turned, straight @ turn.T, atol=1e-11)
    close(flow(x0 @ turn.T, steps=50, **options), flow(x0, steps=50, **options) @ turn.T, atol=1e-11)


def test_the_law_of_gaussian_layers_does_not_depend_on_the_axes():
    """Cosines and turned-back coordinates from a turned start, 4,000 members; Kolmogorov-Smirnov at 1e-5, twelve
    comparisons: false alarms 1e-4.
    """
    for d in (3, 24):
        x0 = random_tokens(n=2, d=d, generator=rng(14))
        turn = rotation(d, seed=2).float()
        samples = []
        for seed, frame in enumerate((torch.eye(d), turn)):
            start = (x0 @ frame.T).expand(4000, 2, d)
            x = layers(start, depth=10, beta=1.0, horizon=0.5, generator=rng(seed)) @ frame
            samples.append([cosine(x), *x[:, 0, :3].T, x[:, 1, 0], x[:, 1, 2]])
        for u, v in zip(*samples, strict=True):
            assert stats.ks_2samp(u, v).pvalue > 1e-5


@pytest.mark.parametrize("weights", WEIGHTS)
def test_permuting_the_tokens_permutes_the_solution(weights):
    x0 = random_tokens(5, n=4, d=3, generator=rng(15), dtype=F64)
    shuffle = torch.tensor([2, 0, 3, 1])
    path = BrownianPath(5, d=3, horizon=1.0, steps=50, seed=3)
    options = {"beta": 1.5, "horizon": 1.0, "weights": weights}
    for scheme, steps in ((layers, "depth"), (sde, "steps")):
        run = lambda x, scheme=scheme, steps=steps: scheme(x, **{steps: 50}, noise=path, **options)  # noqa: E731
        close(run(x0[:, shuffle]), run(x0)[:, shuffle], atol=1e-11)
    close(flow(x0[:, shuffle], steps=50, **options), flow(x0, steps=50, **options)[:, shuffle], atol=1e-12)


def test_only_sigma_squared_times_the_horizon_matters():
    x0 = random_tokens(5, n=3, d=4, generator=rng(16), dtype=F64)
    for scheme, steps in ((layers, "depth"), (sde, "steps")):
        slow = scheme(x0, **{steps: 30}, beta=1.0, horizon=0.9, sigma=1.0, generator=rng())
        fast = scheme(x0, **{steps: 30}, beta=1.0, horizon=0.1, sigma=3.0, generator=rng())
        close(fast, slow, atol=1e-13)


@pytest.mark.parametrize("d", [3, 64])
def test_twenty_thousand_float32_layers_keep_unit_norms_and_equal_tokens(d):
    """For the matrix (d = 3) and for the block (d = 64) of the noise."""
    x0 = torch.stack([pair(1.0, d), pair(0.0, d)]).float()
    x = layers(x0, depth=20_000, beta=1.0, horizon=100.0, record=20, generator=rng())
    assert x.dtype == F32
    close(x.norm(dim=-1), torch.ones(21, 2, 2), atol=3e-7)
    assert (angle(x[:, 0, 0], x[:, 0, 1]) < 1e-5).all()
    assert (angle(x[1:], x[:-1]) > 0.01).all()  # and they did move


@pytest.mark.parametrize(("scheme", "steps"), [(layers, "depth"), (sde, "steps")])
@pytest.mark.parametrize("d", [4, 8, 100])
def test_equal_camps_stay_antipodal_and_equal_tokens_equal(scheme, steps, d):
    """Four against four, for a while: where antipodes repel or fluctuate (rates up to 2(d-2)/(1 + cosh 2β) and noise),
    rounding grows, but 200 layers over T = 0.5 leave many digits.
    """
    side = torch.tensor([1, -1, 1, 1, -1, -1, 1, -1], dtype=F64)
    x0 = (side[:, None] * torch.eye(d, dtype=F64)[0]).expand(10, 8, d)
    x = scheme(x0, **{steps: 200}, beta=2.0, horizon=0.5, generator=rng())
    close(x, side[:, None] * x[:, :1], atol=1e-9)
    assert (angle(x, x0) > 0.01).all()


def test_independent_noise_parts_equal_tokens():
    x0 = pair(1.0, 3, 10)
    path = BrownianPath(10, d=3, horizon=0.1, steps=10, seed=0, tokens=2)
    assert (angle(*layers(x0, depth=10, beta=1.0, horizon=0.1, noise=path).unbind(-2)) > 0.01).all()


# --- Records, shapes, types -------------------------------------------------------------------------------------

SCHEMES = [(layers, "depth"), (sde, "steps"), (flow, "steps")]


@pytest.mark.parametrize(("scheme", "steps"), SCHEMES)
def test_what_is_recorded(scheme, steps):
    x0 = random_tokens(2, n=3, d=4, generator=rng(17), dtype=F64)

    def run(record=None):
        source = {} if scheme is flow else {"generator": rng()}
        return scheme(x0, **{steps: 12}, beta=1.0, horizon=1.0, record=record, **source)

    final, fine, coarse, ends = run(), run(12), run(3), run(1)
    assert final.shape == (2, 3, 4)
    assert fine.shape == (13, 2, 3, 4)
    assert torch.equal(fine[0], x0)
    assert torch.equal(fine[-1], final)  # bit for bit, from the same seed
    assert torch.equal(coarse, fine[::4])
    assert torch.equal(ends, fine[::12])


@pytest.mark.parametrize(("scheme", "steps"), SCHEMES)
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("batch", [(), (0,), (1,), (2, 1, 3)])
@pytest.mark.parametrize(("n", "d"), [(1, 2), (3, 4), (2, 40)])
def test_shapes_and_types_are_kept_and_a_zero_horizon_leaves_the_tokens(scheme, steps, dtype, batch, n, d):
    x0 = random_tokens(*batch, n=n, d=d, generator=rng(), dtype=dtype)
    given = x0.clone()
    for horizon in (0.0, 0.5):
        x = scheme(x0, **{steps: 20}, beta=1.0, horizon=horizon)
        assert (x.shape, x.dtype) == (x0.shape, dtype)
        assert torch.equal(x0, given)  # the input is not written on
        if horizon == 0:
            close(x, x0, atol=2 * torch.finfo(dtype).eps)
        elif n > 1 and x0.numel():
            assert not torch.isclose(x, x0).all()


def test_a_member_alone_moves_as_in_the_batch():
    """The flow has no noise, so leading dimensions are only bookkeeping."""
    x0 = random_tokens(2, 3, n=4, d=3, generator=rng(18), dtype=F64)
    together = flow(x0, steps=20, beta=2.0, horizon=1.0)
    for k in np.ndindex(2, 3):
        close(flow(x0[k], steps=20, beta=2.0, horizon=1.0), together[k], atol=1e-14)


# --- Clusters ---------------------------------------------------------------------------------------------------


def on_circle(*angles):
    t = torch.tensor(angles, dtype=F64)
    return torch.stack([t.cos(), t.sin()], dim=-1)


@pytest.mark.parametrize(
    ("angles", "labels", "signs"),
    [
        ((0.3,), (0,), (1,)),
        ((0, 0.01, -0.01), (0, 0, 0), (1, 1, 1)),
        ((0, math.pi, 0.02, math.pi - 0.02), (0, 0, 0, 0), (1, -1, 1, -1)),
        ((0, 1, math.pi, 1 + math.pi, 2), (0, 1, 0, 1, 2), (1, 1, -1, -1, 1)),
        ((2, 1, 0, 1, 2), (0, 1, 2, 1, 0), (1, 1, 1, 1, 1)),
        ((0.4, 0.0, 0.3, 0.1, 0.2), (0, 0, 0, 0, 0), (1, 1, 1, 1, 1)),  # a chain
        ((0.2, 0.1 + math.pi, 0.0, 1.5), (0, 0, 0, 1), (1, -1, 1, 1)),  # a chain through an antipode
        ((0.0, math.pi + 0.1, 0.2, math.pi + 0.3), (0, 0, 0, 0), (1, -1, 1, -1)),
    ],
)
def test_camps_and_sides_are_found(angles, labels, signs):
    found = clusters(on_circle(*angles), tol=0.11)
    assert found[0].tolist() == list(labels)
    assert found[1].tolist() == list(signs)


def test_camps_are_the_connected_components_of_the_lines():
    """Against SciPy's graph search, labels renumbered in order of appearance."""
    x = random_tokens(30, n=40, d=3, generator=rng(19), dtype=F64)
    x = torch.where(torch.rand(30, 40, 1, generator=rng(20)) < 0.5, x, x.roll(1, dims=1))  # some equal tokens
    labels, _ = clusters(x, tol=0.15)
    counts = set()
    for points, found in zip(x, labels, strict=True):
        linked = (points @ points.T).abs() >= math.cos(0.15)
        components = sparse.csgraph.connected_components(linked.numpy())[1].tolist()
        appearance = list(dict.fromkeys(components))
        assert found.tolist() == [appearance.index(label) for label in components]
        counts.add(len(appearance))
    assert len(counts) > 5  # from few camps to many


def test_reordering_turning_and_mirroring_tokens_change_camps_only_by_name():
    centres = random_tokens(20, n=3, d=4, generator=rng(21), dtype=F64)
    side = torch.tensor([1, -1, 1, 1, 1, -1, 1], dtype=F64)
    camp = torch.tensor([0, 0, 1, 2, 1, 2, 0])
    x = side[:, None] * centres[:, camp]
    x = x[(centres @ centres.mT).abs().triu(1).amax(dim=(1, 2)) < 0.9]  # camps well apart
    assert len(x) > 10
    labels, signs = clusters(x, tol=0.2)
    assert (labels == camp).all()
    assert (signs == torch.tensor([1, -1, 1, 1, 1, -1, 1])).all()
    turned = clusters(x @ rotation(4).T, tol=0.2)
    assert torch.equal(turned[0], labels)
    assert torch.equal(turned[1], signs)
    mirrored = clusters(-x, tol=0.2)
    assert torch.equal(mirrored[1], signs)  # sides are named from the first token of a camp
    order = torch.tensor([1, 6, 5, 4, 3, 2, 0])
    shuffled = clusters(x[:, order], tol=0.2)
    assert (shuffled[0] == torch.tensor([0, 0, 1, 2, 1, 2, 0])).all()
    assert (shuffled[1] == torch.tensor([1, -1, 1, 1, -1, 1, -1])).all()


def test_batches_are_clustered_member_by_member():
    x = random_tokens(2, 3, n=8, d=2, generator=rng(22))
    labels, signs = clusters(x, tol=0.3)
    assert labels.shape == signs.shape == (2, 3, 8)
    for k in np.ndindex(2, 3):
        alone = clusters(x[k], tol=0.3)
        assert torch.equal(alone[0], labels[k])
        assert torch.equal(alone[1], signs[k])
    assert clusters(x[:, :0], tol=0.3)[0].shape == (2, 0, 8)


@pytest.mark.parametrize("tol", [1e-6, 0.01, 0.785])
def test_a_link_ends_at_the_tolerance(tol):
    for turn in (0.0, math.pi):
        close_by = clusters(on_circle(0.0, turn + 0.999 * tol), tol=tol)
        assert close_by[0].tolist() == [0, 0]
        assert close_by[1].tolist() == [1, -1 if turn else 1]
        assert clusters(on_circle(0.0, turn + 1.001 * tol), tol=tol)[0].tolist() == [0, 1]
    assert clusters(on_circle(1.0, 1.0), tol=1e-300)[0].tolist() == [0, 0]


# --- Refusals ---------------------------------------------------------------------------------------------------


def test_an_update_without_direction_is_refused():
    """(1, 0) + V(½, ½) is zero when the signs in V are (-1, -1, 1, -1) or (-1, -1, -1, 1): one member in eight."""
    x0 = torch.eye(2).expand(500, 2, 2)
    with pytest.raises(ValueError, match="direction"):
        layers(x0, depth=1, beta=0.0, horizon=1.0, noise="rademacher", generator=rng())


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("weights", ["uniform", "identity"])
def test_an_update_beyond_the_largest_float_is_refused(depth, weights):
    """|V a| is about 1e22, whose square is no float32: no token may come back as zero, now or a layer later."""
    x0 = pair(0.5, 4, 3, dtype=F32)
    with pytest.raises(ValueError, match="direction"):
        layers(x0, depth=depth, beta=0.0, sigma=1e15, horizon=1e15, weights=weights, generator=rng())
    with pytest.raises(ValueError, match="direction"):
        layers(x0, depth=depth, beta=80.0, horizon=depth, drift=1.0, sigma=0.0, weights="unnormalized")


def test_a_token_lost_on_the_way_is_not_replaced_by_another():
    """Nine equal tokens read 0.9 e^60, the tenth 0.1 e^60. At this scale the square of the former alone overflows in
    float32: were they set to zero, the next layer would fill them with the tenth.
    """
    x0 = torch.eye(2)[[0] * 9 + [1]]
    options = {"beta": 60.0, "sigma": 0.0, "drift": 1.0, "weights": "unnormalized"}
    with pytest.raises(ValueError, match="direction"):
        layers(x0, depth=2, horizon=1e-6, **options)
    close(layers(x0, depth=2, horizon=1e-8, **options), x0, atol=1e-6)


X = torch.eye(3)
BAD_TOKENS = [
    (1.01 * X, ValueError, "norm 1.01"),
    (0 * X, ValueError, "norm 0"),
    (X[0], ValueError, r"\(3,\)"),
    (torch.ones(3, 1), ValueError, r"\(3, 1\)"),
    (torch.empty(0, 3), ValueError, r"\(0, 3\)"),
    (X.clone().fill_diagonal_(math.nan), ValueError, "NaN"),
    (X.clone().fill_diagonal_(math.inf), ValueError, "inf"),
    (X.long(), TypeError, "int64"),
    (X.half(), TypeError, "float16"),
    (np.eye(3), TypeError, "ndarray"),
    (None, TypeError, "NoneType"),
]
BAD_OPTIONS = [
    ("steps", 0, ValueError, "0"),
    ("steps", -3, ValueError, "-3"),
    ("steps", 6.0, TypeError, "6.0"),
    ("steps", True, TypeError, "True"),
    ("steps", None, TypeError, "None"),
    ("beta", -0.5, ValueError, "-0.5"),
    ("beta", math.nan, ValueError, "nan"),
    ("beta", math.inf, ValueError, "inf"),
    ("beta", "hot", TypeError, "'hot'"),
    ("horizon", -1.0, ValueError, "-1.0"),
    ("horizon", math.nan, ValueError, "nan"),
    ("horizon", math.inf, ValueError, "inf"),
    ("horizon", None, TypeError, "None"),
    ("drift", math.nan, ValueError, "nan"),
    ("drift", -math.inf, ValueError, "-inf"),
    ("drift", "up", TypeError, "'up'"),
    ("weights", "sigmoid", ValueError, "'sigmoid'"),
    ("weights", 3, TypeError, "3"),
    ("record", 4, ValueError, "4"),
    ("record", 0, ValueError, "0"),
    ("record", 2.0, TypeError, "2.0"),
    ("sigma", -1.0, ValueError, "-1.0"),
    ("sigma", math.nan, ValueError, "nan"),
    ("sigma", math.inf, ValueError, "inf"),
    ("sigma", X, TypeError, "tensor"),
    ("generator", 0, TypeError, "0"),
    ("generator", np.random.default_rng(), TypeError, "Generator"),
    ("noise", 1.0, TypeError, "1.0"),
]


@pytest.mark.parametrize(("scheme", "steps"), SCHEMES)
@pytest.mark.parametrize(("x0", "error", "got"), BAD_TOKENS)
def test_bad_tokens_are_refused_by_name(scheme, steps, x0, error, got):
    with pytest.raises(error, match=f"x0 must .*{got}"):
        scheme(x0, **{steps: 6}, beta=1.0, horizon=1.0)


@pytest.mark.parametrize(("scheme", "steps"), SCHEMES)
@pytest.mark.parametrize(("name", "value", "error", "got"), BAD_OPTIONS)
def test_bad_options_are_refused_by_name(scheme, steps, name, value, error, got):
    if scheme is flow and name in ("sigma", "generator", "noise"):
        error, got = TypeError, ""  # it has none
    name = steps if name == "steps" else name
    with pytest.raises(error, match=f"{name}.*{got}"):
        scheme(X, **({steps: 6, "beta": 1.0, "horizon": 1.0} | {name: value}))


@pytest.mark.parametrize("noise", ["levy", "Gaussian", ""])
def test_unknown_noises_are_refused(noise):
    with pytest.raises(ValueError, match=f"noise must be one of .*rademacher.*'{noise}'"):
        layers(X, depth=1, beta=1.0, horizon=1.0, noise=noise)
    with pytest.raises(TypeError, match=f"noise must be .*'{noise}'"):
        sde(X, steps=1, beta=1.0, horizon=1.0, noise=noise)


@pytest.mark.parametrize(("scheme", "steps"), SCHEMES[:2])
@pytest.mark.parametrize(
    ("batch", "path", "options", "message"),
    [
        ((), {}, {"horizon": 2.0}, "horizon .*2.0"),
        ((), {}, {"steps": 9}, "steps .*9"),
        ((), {}, {"generator": torch.Generator()}, "generator must be None"),
        ((), {"d": 2}, {}, r"noise must fit .*\(3, 3\).*d = 2"),
        ((), {"tokens": 2}, {}, "noise must fit .*tokens = 2"),
        ((5,), {}, {}, r"noise must fit .*batch \(5,\)"),
    ],
)
def test_paths_that_do_not_fit_are_refused(scheme, steps, batch, path, options, message):
    path = BrownianPath(*batch, **({"d": 3, "horizon": 1.0, "steps": 6, "seed": 0} | path))
    options = {"steps": 6, "horizon": 1.0, "beta": 1.0} | options
    options[steps] = options.pop("steps")
    with pytest.raises(ValueError, match=message):
        scheme(X, **options, noise=path)


@pytest.mark.parametrize(("x", "error", "got"), BAD_TOKENS)
def test_bad_tokens_are_not_clustered(x, error, got):
    with pytest.raises(error, match=f"x must .*{got}"):
        clusters(x, tol=0.1)


@pytest.mark.parametrize(
    ("tol", "error"),
    [(0.0, ValueError), (-0.1, ValueError), (math.nan, ValueError), (0.7853981634, ValueError), ("0.1", TypeError)],
)
def test_bad_tolerances_are_refused_by_name(tol, error):
    with pytest.raises(error, match=f"tol must .*{tol}"):
        clusters(X, tol=tol)


def test_an_ito_term_that_would_turn_tokens_round_is_refused():
    x0 = random_tokens(4, n=2, d=64, generator=rng())
    with pytest.raises(ValueError, match=r"steps must be large enough.*got 20"):
        sde(x0, steps=20, beta=2.0, horizon=2.0)
    sde(x0, steps=200, beta=2.0, horizon=2.0)


@pytest.mark.parametrize("name", ["beta", "horizon", "sigma", "drift"])
@pytest.mark.parametrize("value", [1e16, 10**400], ids=["1e16", "10^400"])
def test_numbers_beyond_any_use_are_refused_by_name(name, value):
    options = {"depth": 1, "beta": 1.0, "horizon": 1.0, name: value}
    with pytest.raises(ValueError, match=f"{name} must be"):
        layers(pair(0.5, 3), **options)


def test_clusters_of_many_tokens_in_a_high_dimension_need_little_memory():
    """Differences of all pairs of vectors would take 16 GB."""
    x = random_tokens(n=1000, d=4096, generator=rng())
    labels, signs = clusters(torch.cat([x[:500], -x[:500]]), tol=0.1)
    assert torch.equal(labels, torch.arange(500).repeat(2))
    assert torch.equal(
        signs, torch.ones(500, dtype=torch.long).repeat(2) * torch.tensor([1, -1]).repeat_interleave(500)
    )
