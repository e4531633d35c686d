"""The Brownian path: bit-exact refinement, and the law of Brownian motion at every level."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from lib.brownian import BrownianPath


def halves(increments, factor):
    """(steps * factor, ...) -> (steps, factor, ...)."""
    return increments.unflatten(0, (-1, factor))


@pytest.mark.parametrize("horizon", [1e-6, 1.0, 3.7, 1e4])
@pytest.mark.parametrize("steps", [1, 3, 16])
@pytest.mark.parametrize("tokens", [None, 2])
def test_coarse_increments_are_sums_of_fine_ones_bit_for_bit(horizon, steps, tokens):
    path = BrownianPath(4, d=3, horizon=horizon, steps=steps, seed=5, tokens=tokens)
    grids = [path.increments(steps * 2**level) for level in (0, 1, 2, 5, 9)]
    for coarse in range(5):
        for fine in range(coarse, 5):
            factor = len(grids[fine]) // len(grids[coarse])
            assert torch.equal(halves(grids[fine], factor).sum(dim=1), grids[coarse])


def test_the_order_of_the_questions_and_other_randomness_do_not_matter():
    make = lambda: BrownianPath(3, d=2, horizon=1.0, steps=2, seed=1)  # noqa: E731
    first, second = make(), make()
    down = {steps: first.increments(steps) for steps in (64, 2, 16, 16)}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    up = {steps: second.increments(steps) for steps in (2, 16, 64)}
    assert all(torch.equal(down[steps], up[steps]) for steps in up)
    assert torch.equal(torch.get_rng_state(), state)  # and the path leaves other streams alone


def test_seeds_make_different_paths():
    make = lambda seed: BrownianPath(d=4, horizon=1.0, steps=2, seed=seed)  # noqa: E731
    for steps in (2, 8):
        same, other = make(3).increments(steps), make(4).increments(steps)
        assert torch.equal(make(3).increments(steps), same)
        assert not torch.isclose(same, other).any()


def test_common_noise_has_one_matrix_and_independent_noise_one_for_each_token():
    assert BrownianPath(d=3, horizon=1.0, steps=2, seed=0).increments(4).shape == (4, 3, 3)
    assert BrownianPath(5, 6, d=3, horizon=1.0, steps=2, seed=0).increments(4).shape == (4, 5, 6, 3, 3)
    assert BrownianPath(5, d=3, horizon=1.0, steps=2, seed=0, tokens=7).increments(4).shape == (4, 5, 7, 3, 3)
    assert BrownianPath(0, d=3, horizon=1.0, steps=2, seed=0).increments(4).shape == (4, 0, 3, 3)
    assert BrownianPath(d=3, horizon=1.0, steps=2, seed=0).increments(2).dtype == torch.float64


@pytest.mark.parametrize("horizon", [1e-6, 2.0, 1e4])
@pytest.mark.parametrize("level", [0, 1, 4])
def test_increments_are_normal_with_the_variance_of_their_time(horizon, level):
    """Kolmogorov-Smirnov at 1e-4 and the variance within 4.5 standard errors, nine grids: false alarms 1e-3."""
    steps = 4 * 2**level
    z = BrownianPath(64, d=6, horizon=horizon, steps=4, seed=7).increments(steps).flatten() / math.sqrt(horizon / steps)
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-4
    assert abs(z.square().mean().item() - 1) < 4.5 * math.sqrt(2 / z.numel())


def test_increments_are_independent_across_time_members_tokens_and_entries():
    """All 32 x 31 / 2 correlations between the coordinates of (time, member, token, entry), from 20,000 copies of
    that block, within 5 standard errors: false alarms 496 x 6e-7 = 3e-4.
    """
    copies = 20_000
    path = BrownianPath(copies, 2, d=2, horizon=1.0, steps=1, seed=11, tokens=2)
    z = path.increments(2).movedim(1, 0).reshape(copies, 32) * math.sqrt(2)
    correlation = (z.T @ z) / copies
    assert (correlation - torch.diag(correlation.diag())).abs().max() < 5 / math.sqrt(copies)


def test_a_bridge_is_independent_of_the_increment_it_splits():
    """Difference against sum of neighbouring increments, at four levels; 4.5 standard errors: false alarms 3e-5."""
    path = BrownianPath(500, d=4, horizon=1.0, steps=1, seed=2)
    for level in range(1, 5):
        a, b = halves(path.increments(2**level), 2).movedim(1, 0)
        product = ((a + b) * (a - b)).flatten() * 2**level / 2
        assert abs(product.mean().item()) < 4.5 / math.sqrt(product.numel())


def test_the_quadratic_variation_tends_to_the_time():
    """The sum of n squared increments is T (1 ± sqrt(2/n)); 4.5 standard errors, three grids: false alarms 2e-5."""
    path = BrownianPath(d=3, horizon=2.5, steps=1, seed=4)
    for steps in (64, 1024, 16384):
        variation = path.increments(steps).square().sum(dim=0).mean().item()
        assert abs(variation / 2.5 - 1) < 4.5 * math.sqrt(2 / (9 * steps))


GOOD = {"d": 2, "horizon": 1.0, "steps": 3, "seed": 0}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"d": 0}, ValueError, "d .*0"),
        ({"d": 2.0}, TypeError, "d .*2.0"),
        ({"horizon": 0.0}, ValueError, "horizon .*0.0"),
        ({"horizon": -1.0}, ValueError, "horizon .*-1.0"),
        ({"horizon": math.nan}, ValueError, "horizon .*nan"),
        ({"horizon": math.inf}, ValueError, "horizon .*inf"),
        ({"horizon": "1"}, TypeError, "horizon .*'1'"),
        ({"steps": 0}, ValueError, "steps .*0"),
        ({"steps": 2.5}, TypeError, "steps .*2.5"),
        ({"seed": -1}, ValueError, "seed .*-1"),
        ({"seed": None}, TypeError, "seed .*None"),
        ({"seed": torch.Generator()}, TypeError, "seed .*Generator"),
        ({"tokens": 0}, ValueError, "tokens .*0"),
        ({"tokens": True}, TypeError, "tokens .*True"),
    ],
)
def test_bad_input_is_refused_by_name(change, error, message):
    with pytest.raises(error, match=message):
        BrownianPath(**(GOOD | change))


@pytest.mark.parametrize(("batch", "error"), [(-1, ValueError), (2.0, TypeError), ((2, 3), TypeError)])
def test_a_bad_batch_is_refused_by_name(batch, error):
    with pytest.raises(error, match="batch"):
        BrownianPath(batch, **GOOD)


@pytest.mark.parametrize(
    ("steps", "error"),
    [(1, ValueError), (2, ValueError), (4, ValueError), (9, ValueError), (0, ValueError), (6.0, TypeError)],
)
def test_only_halvings_of_the_coarsest_grid_can_be_asked_for(steps, error):
    path = BrownianPath(**GOOD)
    assert len(path.increments(np.int64(12))) == 12
    with pytest.raises(error, match=f"steps .*{steps}"):
        path.increments(steps)


def test_seeds_and_levels_never_share_numbers():
    """The second seed, 2^32, would be the first one's level 1 if the two were only strung together."""
    path = BrownianPath(d=3, horizon=1.0, steps=1, seed=0)
    coarse, fine = path.increments(1), path.increments(2)
    level_1 = 2 * fine[0] - coarse[0]
    level_0 = BrownianPath(d=3, horizon=1.0, steps=1, seed=2**32).increments(1)[0]
    assert not torch.isclose(level_0, level_1, atol=1e-6).any()


def test_a_path_too_fine_for_memory_is_refused():
    with pytest.raises(ValueError, match=r"steps must leave the increments below 32 GiB"):
        BrownianPath(d=1, horizon=1.0, steps=1, seed=3).increments(2**49)
