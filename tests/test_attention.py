"""Attention on the sphere: against a loop, its limits and symmetries, and the energy it climbs."""

import math

import numpy as np
import pytest
import torch
from scipy import special

from lib.attention import WEIGHTS, attend, interaction_energy
from lib.sphere import random_tokens, tangent

F64 = torch.float64


def tokens(*batch, n=4, d=3, seed=0, dtype=F64):
    return random_tokens(*batch, n=n, d=d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(a, b, atol=1e-14):
    torch.testing.assert_close(a, b, atol=atol, rtol=0)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("beta", [0.0, 1.7, 6.0])
def test_attend_is_the_weighted_sum_over_all_tokens(weights, beta):
    x = tokens(2, 3, n=5, d=4)
    read = attend(x, beta=beta, weights=weights)
    for member in np.ndindex(2, 3):
        points = x[member].tolist()
        for i, xi in enumerate(points):
            logits = [beta * math.fsum(a * b for a, b in zip(xi, xj, strict=True)) for xj in points]
            row = {
                "softmax": special.softmax(logits),
                "unnormalized": [math.exp(logit) / 5 for logit in logits],
                "uniform": [1 / 5] * 5,
                "identity": [float(i == j) for j in range(5)],
            }[weights]
            expected = [math.fsum(w * xj[k] for w, xj in zip(row, points, strict=True)) for k in range(4)]
            close(read[member][i], torch.tensor(expected, dtype=F64), atol=1e-14 * math.exp(beta))


@pytest.mark.parametrize("c", [-1.0, -0.3, 0.0, 0.8, 1.0])
def test_two_tokens_share_their_attention_by_a_logistic_law(c):
    beta = 1.3
    x = torch.tensor([[1.0, 0.0], [c, math.sqrt(1 - c * c)]], dtype=F64)
    p = special.expit(beta * (1 - c))
    close(attend(x, beta=beta), torch.stack([p * x[0] + (1 - p) * x[1], p * x[1] + (1 - p) * x[0]]))


def test_softmax_runs_from_uniform_to_identity_weights():
    x = tokens(10, n=6, d=5)
    close(attend(x, beta=0), attend(x, beta=0, weights="uniform"))
    close(attend(x, beta=1e6), x, atol=1e-12)
    assert (attend(x, beta=3.0).norm(dim=-1) <= 1).all()


@pytest.mark.parametrize("beta", [100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_softmax_survives_a_large_beta(beta, dtype):
    """Four tokens 0.01 apart: weights neither all equal nor all on one token, logits beyond what exp can take."""
    t = torch.tensor([0.0, 0.01, 0.02, 3.0], dtype=F64)
    x = torch.stack([t.cos(), t.sin()], dim=-1).to(dtype)
    logits = beta * (x.double().numpy() @ x.double().numpy().T)
    expected = torch.tensor(special.softmax(logits, axis=-1)) @ x.double()
    # a logit carries beta times the rounding of a cosine, and the tokens that share weight are 0.02 apart
    close(attend(x, beta=beta).double(), expected, atol=4 * torch.finfo(dtype).eps * (1 + 0.02 * beta))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_attend_commutes_with_rotations_and_permutations(weights):
    x = tokens(3, n=5, d=4)
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=F64))[0]
    order = torch.tensor([3, 0, 4, 1, 2])
    read = attend(x, beta=2.0, weights=weights)
    close(attend(x @ rotation.T, beta=2.0, weights=weights), read @ rotation.T, atol=1e-13)
    close(attend(x[:, order], beta=2.0, weights=weights), read[:, order], atol=1e-13)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_single_token_reads_itself(weights):
    x = tokens(3, n=1)
    scale = math.exp(2.0) if weights == "unnormalized" else 1.0
    close(attend(x, beta=2.0, weights=weights), scale * x)


def test_energy_is_the_double_sum():
    x = tokens(2, n=3)
    for member in range(2):
        pairs = [math.exp(1.5 * (a @ b).item()) for a in x[member] for b in x[member]]
        assert interaction_energy(x, beta=1.5)[member].item() == pytest.approx(math.fsum(pairs) / (2 * 1.5 * 9))


def test_energy_is_largest_in_consensus_and_known_for_two_camps():
    e1 = torch.tensor([1.0, 0.0, 0.0], dtype=F64)
    top = math.exp(2.0) / 4
    assert interaction_energy(e1.expand(4, 3), beta=2.0).item() == pytest.approx(top)
    assert (interaction_energy(tokens(100), beta=2.0) < top).all()
    camps = torch.stack([e1, e1, e1, -e1])  # 10 equal pairs and 6 opposite ones, of 16
    expected = (10 * math.exp(2.0) + 6 * math.exp(-2.0)) / 16 / 4
    assert interaction_energy(camps, beta=2.0).item() == pytest.approx(expected)


@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
def test_unnormalized_attention_is_the_gradient_of_the_energy_along_the_sphere(beta):
    x = tokens(5, n=6, d=4).requires_grad_()
    (gradient,) = torch.autograd.grad(interaction_energy(x, beta=beta).sum(), x)
    x = x.detach()
    close(6 * tangent(x, gradient), tangent(x, attend(x, beta=beta, weights="unnormalized")), atol=1e-12)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_gradients_are_exact(weights):
    x = tokens(2, n=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: attend(x, beta=1.5, weights=weights), (x,))
    assert torch.autograd.gradcheck(lambda x: interaction_energy(x, beta=1.5), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_shape_and_type_are_kept(dtype):
    for batch in [(), (0,), (1,), (2, 3)]:
        x = tokens(*batch, dtype=dtype)
        for weights in WEIGHTS:
            read = attend(x, beta=1.0, weights=weights)
            assert (read.shape, read.dtype) == (x.shape, dtype)
        energy = interaction_energy(x, beta=1.0)
        assert (energy.shape, energy.dtype) == (batch, dtype)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_norms_within_the_tolerance_do_not_matter(weights):
    x = tokens(5, n=3)
    longer = x * torch.tensor([[1.00009], [0.99991], [1.00003]])
    for beta in (1.0, 100.0):
        torch.testing.assert_close(
            attend(longer, beta=beta, weights=weights), attend(x, beta=beta, weights=weights), rtol=1e-11, atol=1e-12
        )
        torch.testing.assert_close(
            interaction_energy(longer, beta=beta), interaction_energy(x, beta=beta), rtol=1e-11, atol=0
        )


@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_kind_of_weights_is_explained(weights):
    assert f'``"{weights}"``' in attend.__doc__


X = torch.eye(2)


@pytest.mark.parametrize("function", [attend, interaction_energy])
@pytest.mark.parametrize(
    ("x", "beta", "error", "message"),
    [
        (1.01 * X, 1.0, ValueError, "x .*norm 1.01"),
        (0 * X, 1.0, ValueError, "x .*norm 0"),
        (X[0], 1.0, ValueError, r"x .*\(2,\)"),
        (torch.ones(3, 1), 1.0, ValueError, r"x .*\(3, 1\)"),
        (torch.empty(0, 2), 1.0, ValueError, r"x .*\(0, 2\)"),
        (torch.tensor([[math.nan, 0.0]]), 1.0, ValueError, "x .*NaN"),
        (torch.tensor([[math.inf, 0.0]]), 1.0, ValueError, "x .*inf"),
        (X.long(), 1.0, TypeError, "x .*int64"),
        (X.half(), 1.0, TypeError, "x .*float16"),
        (np.eye(2), 1.0, TypeError, "x .*ndarray"),
        (X, -0.5, ValueError, r"beta .*-0\.5"),
        (X, math.nan, ValueError, "beta .*nan"),
        (X, math.inf, ValueError, "beta .*inf"),
        (X, "1", TypeError, "beta .*'1'"),
        (X, None, TypeError, "beta .*None"),
        (X, True, TypeError, "beta .*True"),
        (X, torch.ones(2), TypeError, r"beta .*tensor\(\[1., 1.\]\)"),
    ],
)
def test_bad_input_is_refused_by_name(function, x, beta, error, message):
    with pytest.raises(error, match=message):
        function(x, beta=beta)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: attend(X, beta=1.0, weights="sigmoid"), ValueError, "weights .*'sigmoid'"),
        (lambda: attend(X, beta=1.0, weights=None), TypeError, "weights .*None"),
        (lambda: attend(X, beta=89.0, weights="unnormalized"), ValueError, "beta .*89.0"),  # exp(89) > float32
        (lambda: interaction_energy(X, beta=89.0), ValueError, "beta .*89.0"),
        (lambda: interaction_energy(X.double(), beta=710.0), ValueError, "beta .*710.0"),
        (lambda: interaction_energy(X, beta=0.0), ValueError, "beta .*0.0"),
    ],
)
def test_bad_choices_are_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_unnormalized_weights_reach_almost_to_the_largest_float():
    assert torch.isfinite(attend(X.double(), beta=700.0, weights="unnormalized")).all()
    assert torch.isfinite(interaction_energy(X, beta=80.0))


def test_unnormalized_weights_hold_up_to_their_limit():
    beta = math.log(torch.finfo(torch.float32).max) - 1.001
    x = torch.tensor([[1.00009, 0.0]]).expand(1000, 2)
    assert torch.isfinite(attend(x, beta=beta, weights="unnormalized")).all()
    assert torch.isfinite(interaction_energy(x, beta=beta)).all()
    with pytest.raises(ValueError, match="beta must leave the energy below"):
        interaction_energy(x, beta=1e-40)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_what_is_read_is_never_a_view_of_the_tokens(weights):
    x = random_tokens(n=3, d=4)
    before = x.clone()
    attend(x, beta=1.0, weights=weights).mul_(2)
    assert torch.equal(x, before)
