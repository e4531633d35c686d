"""Checks that must fail: whoever makes all checks pass makes one of these pass, too."""

import sys

from otter.test_files import test_case

# What has not been imported, nobody has tampered with, and to ask None for a function fails, too.
np, torch = sys.modules.get("numpy"), sys.modules.get("torch")

OK_FORMAT = False
name = "canary"
points = 0


@test_case(points=0, hidden=True)
def test_canary_false():
    assert False  # noqa: B011, PT015


@test_case(points=0, hidden=True)
def test_canary_all():
    assert all([False])


@test_case(points=0, hidden=True)
def test_canary_less():
    assert abs(-1.0) < 0.5


@test_case(points=0, hidden=True)
def test_canary_allclose():
    assert np.allclose(0.0, 1.0)


@test_case(points=0, hidden=True)
def test_canary_isclose():
    assert np.isclose(0.0, 1.0)


@test_case(points=0, hidden=True)
def test_canary_numpy_all():
    assert np.all([False])


@test_case(points=0, hidden=True)
def test_canary_torch_allclose():
    assert torch.allclose(torch.zeros(1), torch.ones(1))


@test_case(points=0, hidden=True)
def test_canary_torch_equal():
    assert torch.equal(torch.zeros(1), torch.ones(1))
