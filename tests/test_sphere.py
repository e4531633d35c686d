"""Geometry of the sphere: exact lengths and angles, uniform tokens, refusals."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from lib import sphere

F64 = torch.float64


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("length", [1e-30, 1e-20, 1e-3, 1.0, 1e10, 1e30])
def test_normalize_keeps_the_direction_at_every_length_of_float32(length):
    direction = torch.tensor([2.0, -3.0, 6.0], dtype=F64) / 7
    unit = sphere.normalize((direction * length).float().expand(4, 3))
    assert unit.dtype == torch.float32
    torch.testing.assert_close(unit.double(), direction.expand(4, 3), atol=2e-7, rtol=0)


def test_normalize_is_idempotent_and_ignores_positive_factors():
    x = torch.randn(50, 3, 7, generator=rng(), dtype=F64)
    unit = sphere.normalize(x)
    torch.testing.assert_close(unit.square().sum(-1), torch.ones(50, 3, dtype=F64), atol=1e-15, rtol=0)
    torch.testing.assert_close(sphere.normalize(unit), unit, atol=4e-16, rtol=0)
    torch.testing.assert_close(sphere.normalize(1e-5 * x), unit, atol=4e-16, rtol=0)


def test_tangent_is_the_orthogonal_projection_onto_the_tangent_space():
    x = sphere.random_tokens(20, n=3, d=5, generator=rng(), dtype=F64)
    v, w = torch.randn(2, 20, 3, 5, generator=rng(1), dtype=F64)
    p = sphere.tangent(x, v)
    dot = lambda a, b: (a * b).sum(-1)  # noqa: E731
    torch.testing.assert_close(dot(x, p), torch.zeros(20, 3, dtype=F64), atol=1e-14, rtol=0)  # tangent
    torch.testing.assert_close(sphere.tangent(x, p), p, atol=1e-14, rtol=0)  # idempotent
    torch.testing.assert_close(dot(p, w), dot(v, sphere.tangent(x, w)), atol=1e-14, rtol=0)  # self-adjoint
    torch.testing.assert_close(v - p, dot(x, v)[..., None] * x, atol=1e-14, rtol=0)  # what is removed is radial


def test_gram_holds_the_cosines_of_the_angles():
    x = sphere.random_tokens(6, n=4, d=3, generator=rng(), dtype=F64)
    g = sphere.gram(x)
    for i in range(4):
        for j in range(4):
            torch.testing.assert_close(g[:, i, j], sphere.angle(x[:, i], x[:, j]).cos(), atol=1e-14, rtol=0)


@pytest.mark.parametrize("gap", [1e-12, 1e-8, 1e-4, 0.7])
@pytest.mark.parametrize("side", [1, -1])
def test_angle_is_exact_next_to_0_and_pi_where_arccos_is_not(gap, side):
    """Against mpmath with 50 digits, on the very floats that the function is given."""
    frame = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 2)))[0].T
    x, y = frame[0], side * (math.cos(gap) * frame[0] + math.sin(gap) * frame[1])
    with mpmath.workdps(50):
        a, b = mpmath.matrix(x.tolist()), mpmath.matrix(y.tolist())
        exact = float(mpmath.acos((a.T * b)[0] / mpmath.norm(a) / mpmath.norm(b)))
    angle = sphere.angle(torch.tensor(x), torch.tensor(y)).item()
    assert abs(angle - exact) < 1e-15 + 1e-4 * gap * (gap < 1e-10)  # at 1e-12 the floats x, y are not quite unit
    if gap <= 1e-8:
        assert abs(math.acos(np.clip(x @ y, -1, 1)) - exact) > 1e-3 * gap


def test_angle_is_additive_along_a_great_circle_and_at_most_pi():
    t = torch.linspace(0, math.pi, 9, dtype=F64)
    circle = torch.stack([t.cos(), t.sin(), 0 * t], dim=-1)
    torch.testing.assert_close(sphere.angle(circle[0], circle), t, atol=1e-15, rtol=0)
    torch.testing.assert_close(sphere.angle(circle[:-1], circle[1:]), t.diff(), atol=1e-15, rtol=0)
    x, y, z = sphere.random_tokens(1000, n=3, d=4, generator=rng(), dtype=F64).unbind(-2)
    assert (sphere.angle(x, z) <= sphere.angle(x, y) + sphere.angle(y, z) + 1e-14).all()
    torch.testing.assert_close(sphere.angle(x, y) + sphere.angle(-x, y), torch.full((1000,), math.pi, dtype=F64))


@pytest.mark.parametrize("d", [2, 3, 8, 50])
def test_random_tokens_are_independent_and_uniform(d):
    """A coordinate x of a uniform token has (1 + x)/2 ~ Beta((d-1)/2, (d-1)/2), in every direction, and so has the
    cosine of two independent tokens. Three Kolmogorov-Smirnov tests at 1e-4 for each d: false alarms 1.2e-3 in all;
    entries of the covariance at 5 standard errors: 8e-4 (1355 entries).
    """
    m = 20_000
    x, y = sphere.random_tokens(m, n=2, d=d, generator=rng(d), dtype=F64).unbind(-2)
    beta = stats.beta((d - 1) / 2, (d - 1) / 2)
    oblique = torch.ones(d, dtype=F64) / math.sqrt(d)
    for cosine in (x[:, -1], y @ oblique, (x * y).sum(-1)):
        assert stats.kstest((1 + cosine.numpy()) / 2, beta.cdf).pvalue > 1e-4
    # E x_k x_l = δ_kl / d, E x_k² x_l² = 1/(d(d+2)) for k ≠ l, E x_k⁴ = 3/(d(d+2))
    covariance = x.T @ x / m
    spread = (1 / (d * (d + 2)) * (1 + 2 * torch.eye(d, dtype=F64)) - torch.eye(d, dtype=F64) / d**2).sqrt()
    assert ((covariance - torch.eye(d, dtype=F64) / d).abs() < 5 * spread / math.sqrt(m)).all()


def test_random_tokens_follow_the_generator_and_the_type_asked_for():
    make = lambda seed, **kw: sphere.random_tokens(2, 3, n=4, d=5, generator=rng(seed), **kw)  # noqa: E731
    assert torch.equal(make(0), make(0))
    assert not torch.equal(make(0), make(1))
    assert make(0).shape == (2, 3, 4, 5)
    assert make(0).dtype == torch.get_default_dtype()
    assert make(0, dtype=F64).dtype == F64
    assert sphere.random_tokens(0, n=1, d=2).shape == (0, 1, 2)
    assert sphere.random_tokens(n=1, d=2).shape == (1, 2)


def test_gradients_are_exact():
    x = sphere.random_tokens(n=3, d=4, generator=rng(), dtype=F64).requires_grad_()
    v = torch.randn(3, 4, generator=rng(1), dtype=F64).requires_grad_()
    assert torch.autograd.gradcheck(sphere.normalize, (v,))
    assert torch.autograd.gradcheck(sphere.tangent, (x, v))
    assert torch.autograd.gradcheck(sphere.gram, (v,))
    assert torch.autograd.gradcheck(sphere.angle, (x, x.detach().roll(1, 0)))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("gap", [0.0, 1e-6, 0.7])
@pytest.mark.parametrize("side", [1, -1])
def test_angles_do_not_depend_on_norms_within_the_tolerance(dtype, gap, side):
    x = torch.tensor([1.0, 0.0], dtype=dtype)
    y = side * torch.tensor([math.cos(gap), math.sin(gap)], dtype=dtype)
    expected = gap if side == 1 else math.pi - gap
    for factor in (1.00005, 0.99991, 1.0):
        angle = sphere.angle(x, factor * y).item()
        slack = torch.finfo(dtype).eps * (gap + 1e-4 + (math.pi if side == -1 else 0))
        assert abs(angle - expected) <= slack, factor


def test_angles_far_below_the_root_of_the_smallest_float_are_exact():
    assert sphere.angle(E1, torch.tensor([1.0, 1e-30])).item() == pytest.approx(1e-30, rel=1e-6)


def test_tangent_vectors_are_orthogonal_whatever_norm_is_tolerated():
    x = torch.tensor([1.00009, 0.0], dtype=F64)
    assert (sphere.tangent(x, torch.tensor([5.0, 2.0], dtype=F64)) == torch.tensor([0.0, 2.0])).all()


def test_gradients_at_equal_and_opposite_vectors_are_zero_and_finite_for_tiny_ones():
    x = sphere.random_tokens(5, n=3, d=4, generator=rng(), dtype=F64).requires_grad_()
    for y in (x.detach(), -x.detach()):
        (gradient,) = torch.autograd.grad(sphere.angle(x, y).sum(), x)
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-15, rtol=0)
    tiny = torch.tensor([1e-39, 0.0], requires_grad=True)
    sphere.normalize(tiny)[0].backward()
    assert tiny.grad.tolist() == [0, 0]


E1 = torch.tensor([1.0, 0.0])
NAN = torch.tensor([math.nan, 0.0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sphere.normalize(torch.zeros(2, 3)), ValueError, "x .*zero vector"),
        (lambda: sphere.normalize(torch.tensor([[1.0, 0.0], [0.0, 0.0]])), ValueError, "x .*zero vector"),
        (lambda: sphere.normalize(NAN), ValueError, "x .*NaN"),
        (lambda: sphere.normalize(torch.tensor([math.inf, 1.0])), ValueError, "x .*inf"),
        (lambda: sphere.normalize(torch.tensor(2.0)), ValueError, r"x .*\(\)"),
        (lambda: sphere.normalize(torch.empty(3, 0)), ValueError, r"x .*\(3, 0\)"),
        (lambda: sphere.normalize(torch.tensor([1, 0])), TypeError, "x .*int64"),
        (lambda: sphere.normalize(np.array([1.0, 0.0])), TypeError, "x .*ndarray"),
        (lambda: sphere.normalize([1.0, 0.0]), TypeError, "x .*list"),
        (lambda: sphere.tangent(2 * E1, E1), ValueError, "x .*norm 2"),
        (lambda: sphere.tangent(NAN, E1), ValueError, "x .*NaN"),
        (lambda: sphere.tangent(E1, NAN), ValueError, "v .*NaN"),
        (lambda: sphere.tangent(E1, torch.tensor([1, 0])), TypeError, "v .*int64"),
        (lambda: sphere.tangent(E1, torch.ones(3)), ValueError, r"v .*\(3,\)"),
        (lambda: sphere.gram(E1), ValueError, r"x .*\(2,\)"),
        (lambda: sphere.gram(NAN[None]), ValueError, "x .*NaN"),
        (lambda: sphere.gram(np.eye(2)), TypeError, "x .*ndarray"),
        (lambda: sphere.angle(0.5 * E1, E1), ValueError, "x .*norm 0.5"),
        (lambda: sphere.angle(E1, 0 * E1), ValueError, "y .*norm 0"),
        (lambda: sphere.angle(E1, NAN), ValueError, "y .*NaN"),
        (lambda: sphere.angle(E1, torch.tensor([0.0, 1.0, 0.0])), ValueError, r"y .*\(3,\)"),
        (lambda: sphere.random_tokens(n=0, d=2), ValueError, "n .*0"),
        (lambda: sphere.random_tokens(n=2, d=1), ValueError, "d .*1"),
        (lambda: sphere.random_tokens(n=2.0, d=2), TypeError, "n .*2.0"),
        (lambda: sphere.random_tokens(n=True, d=2), TypeError, "n .*True"),
        (lambda: sphere.random_tokens(-1, n=2, d=2), ValueError, "batch .*-1"),
        (lambda: sphere.random_tokens(n=2, d=2, generator=0), TypeError, "generator .*0"),
        (lambda: sphere.random_tokens(n=2, d=2, dtype=torch.int64), TypeError, "dtype .*int64"),
        (lambda: sphere.random_tokens(n=2, d=2, dtype=torch.float16), TypeError, "dtype .*float16"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_vectors_of_different_dimension_are_refused():
    x = torch.tensor([1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match=r"y must fit x"):
        sphere.angle(x, torch.ones(1))
    with pytest.raises(ValueError, match=r"v must fit x"):
        sphere.tangent(x, torch.ones(1))


def test_inner_products_that_overflow_are_refused():
    with pytest.raises(ValueError, match="x must be small enough"):
        sphere.gram(torch.full((2, 3), 1e30))


@pytest.mark.parametrize("x", [torch.eye(2).to_sparse(), torch.eye(2, device="meta")], ids=["sparse", "meta"])
def test_tensors_without_dense_data_are_refused(x):
    with pytest.raises(TypeError, match="x must be a dense tensor with data"):
        sphere.gram(x)
