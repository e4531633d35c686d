"""Break the kernels on purpose: each fault, planted in a copy of the library, must fail a test that passes without it.

The faults are mistakes that others have made in these operators, or that are easily made.
"""

import concurrent.futures
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lib import kernels

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
        'IN_ORDER = {"contract"}',
        'IN_ORDER = {"reassoc", "contract", "nsz"}',
        "test_the_product_in_the_cold",
    ),
    "λ is looked for beside 0": (
        "subsets.py",
        "best = _kth_largest(scores, capacity)",
        "best = 0 * _kth_largest(scores, capacity)",
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
}


def run(folder: Path, selection: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", selection, "test_subsets.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def plant(fault: str | None, folder: Path) -> subprocess.CompletedProcess:
    """A copy of the library (times of change, too, so that untouched kernels need no compiler), the fault, the test."""
    shutil.copytree(ROOT / "lib", folder / "lib")
    shutil.copy(ROOT / "tests" / "test_subsets.py", folder)
    if fault is None:
        return run(folder, "test_enumeration and (0-top-k or 0-knapsack)")
    file, right, wrong, selection = FAULTS[fault]
    source = (folder / "lib" / file).read_text()
    assert source.count(right) == 1, f"{right!r} is not once in {file}"
    (folder / "lib" / file).write_text(source.replace(right, wrong))
    return run(folder, selection)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All of them, two at a time, as most of the time is the compiler's."""
    kernels.compile_all()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = {fault: pool.submit(plant, fault, tmp_path_factory.mktemp("library")) for fault in (None, *FAULTS)}
    return {fault: future.result() for fault, future in futures.items()}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault, results):
    result = results[fault]
    assert result.returncode == 1, result.stdout  # 1: a test failed; other codes: nothing ran
    assert " failed" in result.stdout.splitlines()[-1]
    assert "nopython" not in result.stdout  # it failed, rather than not compile


def test_without_a_fault_the_copy_passes(results):
    assert results[None].returncode == 0, results[None].stdout
