"""Time lib.tokens and lib.two_tokens against plain code and torchsde, side by side in one run, on one thread.

python benchmarks/tokens.py
"""

import importlib.util
import statistics
import subprocess
import sys
import time

import torch

from lib import progress, sphere, tokens, two_tokens

torch.set_num_threads(1)


def times(*functions, repeat=5):
    """Medians of each function, called in turn so that all see the same machine; the first round is not counted."""
    taken = [[] for _ in functions]
    for _ in range(repeat + 1):
        for function, seconds in zip(functions, taken, strict=True):
            start = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds[1:]) for seconds in taken]


def layers(batch, n, d, dtype, *, plain, depth=20):
    generator = torch.Generator().manual_seed(0)
    x = sphere.random_tokens(batch, n=n, d=d, generator=generator, dtype=dtype)

    def run():
        ours = tokens._block_pays
        try:
            if plain:
                tokens._block_pays = lambda *_: False
            tokens.layers(x, depth=depth, beta=1.0, horizon=0.1, generator=generator)
        finally:
            tokens._block_pays = ours

    return run


def block_against_matrix():
    print("\nOne layer with Gaussian noise: the d x d matrix's time over ours\n")
    print("| d | N | batch | float64 | float32 | block (float64) |\n| --- | --- | --- | --- | --- | --- |")
    cases = [(d, n, b) for d in (16, 64, 256) for n in (2, 8, 32) for b in (1, 16, 256, 1024)]
    for d, n, batch in progress.progress([c for c in cases if c[0] ** 2 * c[2] < 5e6 and c[1] < c[0]], unit="case"):
        ratios = []
        for dtype in (torch.float64, torch.float32):
            plain, ours = times(layers(batch, n, d, dtype, plain=True), layers(batch, n, d, dtype, plain=False))
            ratios.append(f"{plain / ours:.1f} x")
        used = "yes" if tokens._block_pays(batch, n, d, torch.float64) else "no"
        print(f"| {d} | {n} | {batch} | {ratios[0]} | {ratios[1]} | {used} |", flush=True)


def against_torchsde(paths=65_536, steps=100):
    print("\nTwo tokens as a diffusion, 65,536 paths, 100 steps: torchsde's time over ours\n")
    if importlib.util.find_spec("torchsde") is None:
        print("torchsde is not installed")
        return
    import torchsde

    beta, dim, horizon = 1.0, 8, 1.0

    class Pair(torch.nn.Module):
        """The same equation, in the same coordinate u = artanh c: du = [r (d - 2) + s c] dt + sqrt(2 s) dB."""

        noise_type, sde_type = "diagonal", "ito"

        def r_and_c(self, u):
            c = torch.tanh(u)
            return 1 / (1 + torch.cosh(beta * (1 - c))), c

        def f(self, t, u):
            r, c = self.r_and_c(u)
            return r * (dim - 2) + (1 - r) * c

        def g(self, t, u):
            return (2 * (1 - self.r_and_c(u)[0])).sqrt()

    start, time_axis = torch.zeros(paths), torch.tensor([0.0, horizon])

    def theirs():
        with torch.no_grad():
            torchsde.sdeint(Pair(), start[:, None], time_axis, dt=horizon / steps, method="euler")

    def ours():
        generator = torch.Generator().manual_seed(0)
        two_tokens.simulate(start, beta=beta, dim=dim, horizon=horizon, steps=steps, generator=generator)

    slow, fast = times(theirs, ours, repeat=3)
    print(
        f"ours {1e3 * fast:.0f} ms, torchsde (Euler-Maruyama, the same step) {1e3 * slow:.0f} ms: {slow / fast:.1f} x"
    )


def memory():
    print("\nPeak memory beyond the start, nothing recorded, N = 8, d = 64, batch 256\n")
    for depth in (10, 100, 1000):
        code = f"""
import re, sys, torch
from lib import sphere, tokens
peak = lambda: int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024
x = sphere.random_tokens(256, n=8, d=64, generator=torch.Generator().manual_seed(0))
tokens.layers(x[:2], depth=2, beta=1.0, horizon=1.0)
before = peak()
tokens.layers(x, depth={depth}, beta=1.0, horizon=1.0)
print(f"depth {depth}: {{peak() - before:.1f}} MiB")
"""
        print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout, end="")


if __name__ == "__main__":
    block_against_matrix()
    against_torchsde()
    memory()
