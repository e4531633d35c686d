"""Time lib.subsets against naive code and against other libraries, side by side in one run, on one thread.

    python benchmarks/subsets.py            # some minutes; README.md has a dated table
    python benchmarks/subsets.py --quick    # the small cases only

"Marginals + VJP" is one step of training: the marginals of float64 scores, and a vector-Jacobian product.
"""

import argparse
import functools
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time

import log_domain
import numba
import numpy as np
import torch

from lib import kernels, progress
from lib.subsets import Knapsack, TopK

torch.set_num_threads(1)
RNG = np.random.default_rng(0)


def median_time(function, *arguments, seconds=1.0):
    """The median over as many calls as fit in the time, at least three, after one that is not counted."""
    function(*arguments)
    times = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < 1000):
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def case(n, budget, batch, exactly):
    theta, v = RNG.normal(size=(batch, n)), RNG.normal(size=(batch, n))
    weights = np.ones((batch, n), int) if exactly else RNG.integers(1, 4 * budget // n + 2, (batch, n))
    return theta, weights, np.full(batch, budget), v


# ---- the contenders: each returns the product ----


def problem_of(theta, weights, budget, exactly, regularizer="shannon", gamma=1.0):
    if exactly:
        return kernels.ExactlyK(theta, budget, gamma=gamma, regularizer=regularizer)
    return kernels.AtMost(theta, weights, budget, gamma=gamma, regularizer=regularizer)


def kernel(theta, weights, budget, v, exactly, regularizer="shannon"):
    return problem_of(theta, weights, budget, exactly, regularizer).hessian_product(v)


def layer(theta, weights, budget, v, exactly, regularizer="shannon"):
    theta = torch.from_numpy(theta).requires_grad_()
    if exactly:
        choice = TopK(theta, torch.from_numpy(budget), regularizer=regularizer)
    else:
        choice = Knapsack(theta, torch.from_numpy(weights), torch.from_numpy(budget), regularizer=regularizer)
    return torch.autograd.grad(choice.mean, theta, torch.from_numpy(v))[0].numpy()


def log_domain_numba(theta, weights, budget, v, exactly):
    return np.array(
        [
            log_domain.marginals_and_product(theta[b], weights[b], budget[b], v[b], 1.0, exactly)[2]
            for b in range(len(theta))
        ]
    )


def naive(theta, weights, budget, v, exactly):
    """Automatic differentiation, twice, through the recursion with logsumexp (the weights of the first instance)."""
    theta = torch.from_numpy(theta).requires_grad_()
    capacity, shared = int(budget[0]), weights[0]
    row = torch.zeros(len(theta), 1 if exactly else capacity + 1, dtype=theta.dtype)
    for i in range(theta.shape[1]):
        w, score = int(shared[i]), theta[:, i, None]
        if exactly:
            both = torch.stack([row[:, 1:], row[:, :-1] + score]).logsumexp(0)
            row = torch.cat([row[:, :1], both, row[:, -1:] + score], dim=1)[:, : capacity + 1]
        elif w <= capacity:
            both = torch.stack([row[:, w:], row[:, : capacity + 1 - w] + score]).logsumexp(0)
            row = torch.cat([row[:, :w], both], dim=1)
    (y,) = torch.autograd.grad(row[:, -1].sum(), theta, create_graph=True)
    return torch.autograd.grad(y, theta, torch.from_numpy(v))[0].numpy()


def torch_struct_chain(theta, weights, budget, v, exactly):
    """Top-k as a linear-chain CRF whose state is the count, so of n (k + 1)^2 potentials."""
    from torch_struct import LinearChainCRF

    theta, k = torch.from_numpy(theta).requires_grad_(), int(budget[0])
    count = torch.arange(k + 1)
    stays, comes = count[:, None] == count, count[:, None] == count + 1  # [new, old]
    potentials = torch.where(stays, 0.0, -1e9) * torch.ones_like(theta)[..., None, None]
    potentials = torch.where(comes, theta[..., None, None], potentials)
    start = torch.where(count == 0, 0.0, -1e9)
    end = torch.where(count == k, 0.0, -1e9)
    first = potentials[:, :1] + start  # the count before the first item is 0
    last = potentials[:, -1:] + end[:, None]
    value = LinearChainCRF(torch.cat([first, potentials[:, 1:-1], last], dim=1)).partition
    (y,) = torch.autograd.grad(value.sum(), theta, create_graph=True)
    return torch.autograd.grad(y, theta, torch.from_numpy(v))[0].numpy()


def entmax_budget(theta, weights, budget, v, exactly):
    """Another operator: the Euclidean projection on {0 <= y <= 1, Σ y = k}."""
    from entmax import budget_bisect

    theta = torch.from_numpy(theta).requires_grad_()
    y = budget_bisect(theta, budget=float(budget[0]), dim=-1)
    return torch.autograd.grad(y, theta, torch.from_numpy(v))[0].numpy()


def pyepo_perturbed(theta, weights, budget, v, exactly):
    """Another operator: the Fenchel–Young gradient of ten Gaussian perturbations, ten integer programs."""
    from pyepo.func import perturbedFenchelYoung
    from pyepo.model.ort import knapsackModel

    model = knapsackModel(weights[:1], budget[:1])
    theta = torch.from_numpy(theta).requires_grad_()
    loss = perturbedFenchelYoung(model, n_samples=10, reduction="sum")(theta, torch.zeros_like(theta))
    return torch.autograd.grad(loss, theta)[0].numpy()


# ---- the tables ----


def say(*cells, widths=(34, 11, 11, 11, 11, 11)):
    print("| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)) + " |", flush=True)


def against_naive_code(cases, exactly, title):
    print(f"\n{title}: marginals + VJP, ours in ms, the others as multiples of it\n")
    say("case", "ours", "as layer", "naive", "log-domain")
    say(*["---"] * 5)
    for n, budget, batch in progress.progress(cases, unit="case"):
        problem = case(n, budget, batch, exactly)
        problem[1][:] = problem[1][0]
        ours = median_time(kernel, *problem, exactly)
        expected = kernel(*problem, exactly)
        row = [f"n = {n}, {'k' if exactly else 'C'} = {budget}, B = {batch}", f"{1e3 * ours:.3f} ms"]
        for contender in (layer, naive, log_domain_numba):
            if contender is naive and n * budget * batch > 4e7:  # its graph would not fit in memory
                row.append("-")
                continue
            np.testing.assert_allclose(contender(*problem, exactly), expected, atol=1e-8)
            row.append(f"{median_time(contender, *problem, exactly) / ours:.1f} x")
        say(*row)


def sparse(cases):
    print("\nOther regularisers: marginals + VJP, ns per cell n C, and the log-domain program's time as a multiple\n")
    say("case", "gini", "", "tsallis", "")
    say(*["---"] * 5)
    for n, budget, exactly in progress.progress(cases, unit="case"):
        problem = case(n, budget, 1, exactly)
        slow = median_time(log_domain_numba, *problem, exactly)
        row = [f"n = {n}, {'k' if exactly else 'C'} = {budget}"]
        for regularizer in ("gini", "tsallis"):
            ours = median_time(kernel, *problem, exactly, regularizer)
            row += [f"{1e9 * ours / (n * budget):.1f} ns", f"{slow / ours:.1f} x"]
        say(*row)


def cold(cases):
    """Low temperatures, down to those of the table, and the entropy, which for a knapsack always takes the table."""
    print("\nBy temperature: marginals, VJP and entropy with its gradient, in ms\n")
    say("Shannon", "gamma", "table", "marginals", "VJP", "entropy")
    say(*["---"] * 6)
    for n, budget, exactly in progress.progress(cases, unit="case"):
        theta, weights, budgets, v = case(n, budget, 1, exactly)
        for gamma in (1.0, 1e-2, 1e-5):
            build = functools.partial(problem_of, theta, weights, budgets, exactly, gamma=gamma)
            solved = build()
            times = [median_time(lambda build=build: build().marginals)]
            times += [median_time(solved.hessian_product, v), median_time(solved.entropy)]
            name = f"n = {n}, {'k' if exactly else 'C'} = {budget}"
            say(name, f"{gamma:g}", str(solved.solution.tabled.any()), *(f"{1e3 * seconds:.1f}" for seconds in times))


def growth():
    print("\nGrowth of the cost: marginals + VJP\n")
    say("top-k", "k = 10", "k = n/2", "per item")
    say(*["---"] * 4)
    for n in (10**3, 10**4, 10**5, 10**6):
        few, half = (median_time(kernel, *case(n, k, 1, True), True) for k in (10, n // 2))
        say(f"n = {n}", f"{1e3 * few:.2f} ms", f"{1e3 * half:.2f} ms", f"{1e9 * half / n:.0f} ns")
    print()
    say("knapsack", "time", "per cell")
    say(*["---"] * 3)
    for n, capacity in ((200, 1000), (200, 10_000), (1000, 10_000), (1000, 100_000)):
        problem = case(n, capacity, 1, False)
        seconds = median_time(kernel, *problem, False)
        say(f"n = {n}, C = {capacity}", f"{1e3 * seconds:.1f} ms", f"{1e9 * seconds / (n * capacity):.2f} ns")


@numba.njit(fastmath=True)
def triad(a, b, out, repeat):
    for r in range(repeat):
        for i in range(len(a)):
            out[i] = a[i] + (0.5 + r) * b[i]


def roofline():
    """Loads and stores of 8 bytes per cell, counted in the source, against what a triad does in the same cache."""
    width, n = 4000, 1000
    a, b, out = RNG.normal(size=(3, width))
    access = median_time(triad, a, b, out, 1000) / (3 * 1000 * width)
    problem = case(n, width, 1, False)
    theta, weights, budget, v = problem
    solved = problem_of(theta, weights, budget, False)
    first = median_time(lambda: problem_of(theta, weights, budget, False).marginals) / (n * width)
    second = median_time(solved.hessian_product, v) / (n * width)
    # what a row needs: cells from C - (the weight of later items) on; the heaviest items come first
    later = np.concatenate([np.cumsum(np.sort(weights[0]))[::-1][1:], [0]])
    share = np.clip((later + 1) / (width + 1), 0, 1).mean()
    print(f"\nRoofline (n = {n}, C = {width}): {100 * share:.0f} % of the cells are needed;")
    print(f"one load or store of 8 bytes in a row of this width: {1e9 * access:.3f} ns ({8e-9 / access:.0f} GB/s)\n")
    say("Shannon knapsack", "ns per cell", "accesses", "at best")
    say(*["---"] * 4)
    # forward twice (2 loads, 1 store), backward once (2, 1), one inner product (2); the same with derivatives
    for name, seconds, accesses in (("marginals", first, 3 + 3 + 3 + 2), ("VJP", second, 6 + 6 + 6 + 3 * 2)):
        say(name, f"{1e9 * seconds:.2f}", str(accesses), f"{1e9 * accesses * share * access:.2f}")


def memory():
    """Peak memory of a new process beyond what it had before the call."""
    print()
    say("Shannon knapsack", "peak", "per cell n C")
    say(*["---"] * 3)
    for n, capacity in ((200, 100_000), (1000, 20_000), (5000, 20_000)):
        code = f"""
import re, sys
sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
import subsets
small, large = subsets.case(20, 100, 1, False), subsets.case({n}, {capacity}, 1, False)
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
subsets.kernel(*small, False)
before = peak()
subsets.kernel(*large, False)
print(peak() - before)
"""
        peak = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        say(f"n = {n}, C = {capacity}", f"{peak / 2**20:.1f} MiB", f"{peak / (n * capacity):.2f} bytes")


def compiling():
    with tempfile.TemporaryDirectory() as cache:
        for label in ("first call of TopK(...).mean, nothing compiled", "the same in a new process"):
            code = "import time, torch; from lib.subsets import TopK; t = time.time(); TopK(torch.zeros(9), 2).mean; "
            code += "print(time.time() - t)"
            environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
            run = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
            )
            print(f"{label}: {float(run.stdout):.2f} s")
        start = time.time()
        code = "from lib import kernels; kernels.compile_all()"
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        print(f"all other kernels: {time.time() - start:.0f} s")


def peers():
    print("\nOther libraries, and how many times longer they take than ours as a torch layer\n")
    say("case", "ours", "theirs", "ratio", widths=(60, 11, 11, 11))
    say(*["---"] * 4, widths=(60, 11, 11, 11))

    def compare(name, module, ours, theirs):
        if importlib.util.find_spec(module) is None:
            say(f"{name}: not installed", widths=(60,))
            return
        a, b = median_time(ours), median_time(theirs)
        say(name, f"{1e3 * a:.3f} ms", f"{1e3 * b:.3f} ms", f"{b / a:.1f} x", widths=(60, 11, 11, 11))

    small, large = case(100, 10, 1, True), case(1000, 100, 1, True)
    if importlib.util.find_spec("torch_struct"):
        np.testing.assert_allclose(torch_struct_chain(*small, True), layer(*small, True), atol=1e-7)
    compare("torch-struct, linear chain of counts, n = 100, k = 10", "torch_struct",
            lambda: layer(*small, True), lambda: torch_struct_chain(*small, True))  # fmt: skip
    for label, problem in (("n = 100, k = 10", small), ("n = 1000, k = 100", large)):
        compare(f"entmax, budget_bisect (another operator), {label}", "entmax",
                lambda p=problem: layer(*p, True), lambda p=problem: entmax_budget(*p, True))  # fmt: skip
    knapsack = case(50, 1000, 32, False)
    knapsack[1][:] = knapsack[1][0]
    compare("PyEPO, perturbed Fenchel-Young, 10 samples, n = 50, B = 32", "pyepo",
            lambda: layer(*knapsack, False), lambda: pyepo_perturbed(*knapsack, False))  # fmt: skip
    for kind in ("random", "strongly correlated"):
        weights = RNG.integers(1, 100, 100)
        values = RNG.integers(1, 100, 100) if kind == "random" else weights + 10
        compare(f"OR-tools, branch and bound, mode of {kind}, n = 100", "ortools",
                lambda w=weights, v=values: our_mode(w, v), lambda w=weights, v=values: or_tools(w, v))  # fmt: skip


def our_mode(weights, values):
    return Knapsack(torch.from_numpy(values).double(), torch.from_numpy(weights), int(weights.sum()) // 3).mode


def or_tools(weights, values):
    from ortools.algorithms.python import knapsack_solver

    kind = knapsack_solver.SolverType.KNAPSACK_MULTIDIMENSION_BRANCH_AND_BOUND_SOLVER
    solver = knapsack_solver.KnapsackSolver(kind, "mode")
    solver.init(values.tolist(), [weights.tolist()], [int(weights.sum()) // 3])
    return solver.solve()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small cases only")
    quick = parser.parse_args().quick
    kernels.compile_all()
    top_k = [(100, 10, 1), (1000, 100, 1), (1000, 500, 1)] + ([] if quick else [(1000, 100, 32), (5000, 2500, 1)])
    against_naive_code(top_k, True, "Shannon top-k")
    knapsacks = [(n, 1000, batch) for n in (50, 200, 1000) for batch in (1, 32)]
    against_naive_code(knapsacks[:3] if quick else [*knapsacks, (1000, 5000, 1)], False, "Shannon knapsack")
    small = [(50, 1000, False), (200, 1000, False), (1000, 500, True)]
    cold([(200, 1000, False), (1000, 100, True)] + ([] if quick else [(1000, 5000, False), (200_000, 1000, True)]))
    sparse(small if quick else [*small, (1000, 1000, False), (1000, 5000, False)])
    if not quick:
        growth()
        roofline()
        memory()
        compiling()
    peers()


if __name__ == "__main__":
    main()
