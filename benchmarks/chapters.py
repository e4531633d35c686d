"""Measure the times that chapters show, and write them to timings.json beside this file, with the machine they are of.

python benchmarks/chapters.py

A page must not change from one build to the next, so that no chapter measures a time: it reads them from that file.
"""

import datetime
import json
import os
import platform
import re
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from lib import dp
from lib.progress import progress
from lib.subsets import TopK

SEED = 2026
REPEATS = 25
PACKAGES = ("numpy", "numba", "torch")
#: The top-k problems of chapters/selection/backward.md, as (n, k).
PROBLEMS = {
    "n": [(n, n // 2) for n in (100, 300, 1000, 2000, 10_000)],
    "k": [(2000, k) for k in (3, 30, 300, 1000)],
}


def contenders(n: int, k: int) -> dict:
    """Functions that compute the marginals of one problem, by name."""
    theta = np.random.default_rng(SEED).standard_normal(n)
    scores = torch.tensor(theta)
    functions = {
        "contour, Shannon": lambda: TopK(scores, k).mean,
        "compiled table, Gini": lambda: TopK(scores, k, regularizer="gini").mean,
    }
    if n <= 2000:  # minutes beyond
        functions["readable table"] = lambda: dp.marginals(theta, np.ones(n, int), k, exactly=True)
    return functions


def times(functions: dict, repeats: int) -> dict:
    """Quartiles in milliseconds; called in turn, so that all see the same machine, and once before, uncounted."""
    taken = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: [float(f"{q:.3g}") for q in np.quantile(ms[1:], [0.25, 0.5, 0.75])] for name, ms in taken.items()}


def machine() -> dict:
    """What the times depend on."""
    today, info = datetime.date.today(), Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return {
        "date": f"{today.day} {today:%B %Y}",
        "processor": named[1] if named else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": {"Python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    }


def main() -> None:
    torch.set_num_threads(1)
    cases = [(axis, case) for axis, problems in PROBLEMS.items() for case in problems]
    rows = [
        {"axis": axis, "n": n, "k": k, "milliseconds": times(contenders(n, k), REPEATS)}
        for axis, (n, k) in progress(cases, unit="problems")
    ]
    results = {"machine": machine(), "repeats": REPEATS, "top-k": rows}
    path = Path(__file__).with_name("timings.json")
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    print(f"{path.name}: {len(rows)} problems, measured on {results['machine']['processor']}")


if __name__ == "__main__":
    main()
