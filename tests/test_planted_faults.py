"""Break the kernels on purpose: each fault, planted in a copy of the library, must fail a test that passes without it.

The faults are mistakes that others have made in these operators, or that are easily made. The kernels run uncompiled,
so that a fault costs seconds; only those of the compiler are compiled.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FAULTS = {
    "the knapsack's backward pass goes to c + w": (
        "kernels.py",
        "stay, come, out = old[first:end], old[first + w :], new[first:end]\n    for",
        "stay, come, out = old[first:end], old[max(first - w, 0) :], new[first:end]\n    for",
        "test_enumeration and shannon",
    ),
    "the table's backward pass goes to c + w": (
        "kernels.py",
        "_stay_and_come(reach[first:end], taken[first:end], taken[first + w :], before[first:end])",
        "_stay_and_come(reach[first:end], taken[first:end], taken[max(first - w, 0) :], before[first:end])",
        "test_enumeration and gini",
    ),
    "an even number of nodes": (
        "kernels.py",
        "total = (min(reach, n) + 1) | 1",
        "total = (min(reach, n) + 2) // 2 * 2",
        "test_the_contour_has_no_node_on_the_pole",
    ),
    "any positive Z is thought safe": (
        "kernels.py",
        "SAFE = 1e-250",
        "SAFE = 0.0",
        "test_the_cold_knapsack",
    ),
    "top-k's product without 1/γ": (
        "kernels.py",
        "product[items[i]] = (covariance[i] + (p[i] - y[items[i]]) * mean) / gamma",
        "product[items[i]] = covariance[i] + (p[i] - y[items[i]]) * mean",
        "test_gradcheck and shannon",
    ),
    "the knapsack's product without 1/γ": (
        "kernels.py",
        "change = min(p[i], q[i]) / mass * (moment - minor * mean) / gamma",
        "change = min(p[i], q[i]) / mass * (moment - minor * mean)",
        "test_shannons_vector_jacobian_product",
    ),
    "the table's product without 1/γ": (
        "kernels.py",
        "out[j] = (come[j] + (0.0 if of_entropy else v) - stay[j]) / gamma",
        "out[j] = come[j] + (0.0 if of_entropy else v) - stay[j]",
        "test_other_jacobians and gini",
    ),
    "the compiler may reorder products that then underflow": (
        "kernels.py",
        'IN_ORDER = {"contract", "arcp"}',
        'IN_ORDER = {"reassoc", "contract", "nsz", "arcp"}',
        "test_the_product_in_the_cold",
    ),
    "an array keeps the order of its memory": (
        "_validate.py",
        ".contiguous().numpy()",
        ".numpy()",
        "test_nothing_is_left_to_compile",
    ),
    "λ is looked for beside 0": (
        "kernels.py",
        "best = _kth_largest(theta, k)",
        "best = 0 * _kth_largest(theta, k)",
        "test_ties_far_from_zero",
    ),
    "a sampler of another law: the coins before the count is right": (
        "kernels.py",
        "while chosen != k:",
        "while chosen < k:",
        "test_sample_shapes_seeds_and_batches and shannon",
    ),
    "one seed for every draw": (
        "subsets.py",
        "seeds = seeds.cpu().numpy().view(np.uint64)",
        "seeds = np.full_like(seeds.numpy(), 7).view(np.uint64)",
        "test_samples_follow_the_law and shannon",
    ),
    "a second derivative that is silently 0": (
        "subsets.py",
        "        return _Last.apply(*ctx.saved_tensors, grad, product), None",
        "        return product(grad), None",
        "test_second_derivatives",
    ),
    "a small number is flushed to 0, and NaN with it": (
        "kernels.py",
        "return 0.0 if abs(x) <= TINY else x",
        "return x if abs(x) > TINY else 0.0",
        "test_an_upstream_gradient_that_overflows and gini",
    ),
    "an upstream NaN counts only where a score does": (
        "subsets.py",
        "product[~np.isfinite(v).all(axis=-1)] = np.nan",
        "pass",
        "test_an_upstream_gradient_that_is_not_finite and shannon",
    ),
    "an upstream NaN is left out with what is never drawn": (
        "subsets.py",
        "gradient[~finite.all(axis=0)] = np.nan",
        "pass",
        "test_an_upstream_gradient_that_is_not_finite and shannon",
    ),
    "the logarithm of a rounded chance": (
        "kernels.py",
        "out[s] += _log_chance(code, t if chosen else -t)",
        "out[s] += _log_chance(code, t) if chosen else np.log(1.0 - np.exp(_log_chance(code, t)))",
        "test_log_probability_and_loss",
    ),
    "an optimiser's step is not noticed": (
        "subsets.py",
        "if self.theta.requires_grad and _version(self.theta) != self._version:",
        "if False:",
        "test_an_optimisers_step",
    ),
    "an unknown regulariser falls through": (
        "kernels.py",
        "    if code == GINI:\n        return _gini_curvature(p, q)\n    raise ValueError(",
        "    return 0.5\n    raise ValueError(",
        "test_a_regulariser_without_kernels",
    ),
    "expand forgets that it is called on a subclass": (
        "subsets.py",
        "new, batch = self._get_checked_instance(TopK, _instance), torch.Size(batch_shape)",
        "new, batch = object.__new__(TopK), torch.Size(batch_shape)",
        "test_expand_follows",
    ),
}
#: Faults in what the compiler does, or is given.
COMPILED = {
    "the compiler may reorder products that then underflow",
    "an array keeps the order of its memory",
}


#: How a test says that an answer is wrong.
WRONG = r"AssertionError|assert |torch\.autograd\.gradcheck\.GradcheckError|Failed: DID NOT RAISE"


def run(folder: Path, selection: str, *, compiled: bool = False) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_DISABLE_JIT": str(int(not compiled))}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", selection, "test_subsets.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def copied(folder: Path) -> None:
    """The library (times of change, too, so that untouched kernels need no compiler) and its test."""
    shutil.copytree(ROOT / "lib", folder / "lib")
    shutil.copy(ROOT / "tests" / "test_subsets.py", folder)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault, tmp_path):
    copied(tmp_path)
    file, right, wrong, selection = FAULTS[fault]
    source = (tmp_path / "lib" / file).read_text()
    assert source.count(right) == 1, f"{right!r} is not once in {file}"
    (tmp_path / "lib" / file).write_text(source.replace(right, wrong))
    result = run(tmp_path, selection, compiled=fault in COMPILED)
    assert result.returncode == 1, result.stdout  # 1: a test failed; other codes: nothing ran
    assert " failed" in result.stdout.splitlines()[-1]
    # it failed by a wrong answer, rather than by a name that does not exist or code that does not compile
    assert re.search(rf"^E +({WRONG})", result.stdout, re.MULTILINE), result.stdout


def test_without_a_fault_the_copy_passes(tmp_path):
    copied(tmp_path)
    result = run(tmp_path, "test_enumeration and (0-top-k or 0-knapsack) or not_lost or test_expand")
    assert result.returncode == 0, result.stdout
