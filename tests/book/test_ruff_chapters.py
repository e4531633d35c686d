"""The code of the chapters, read rather than run: ruff finds nothing, and no build differs from the one before."""

import ast
import json
import re
import shutil
import symtable
from pathlib import Path

import jupytext
import matplotlib.pyplot as plt
import pytest
import ruff_chapters

ROOT = Path(__file__).parents[2]

CHAPTER = """# A chapter of two cells

```{code-cell} ipython3
:tags: [hide-input]

import numpy as np
from lib import dp
```

Text with $x = 1$ and   three blanks, which stay.

```python
import os   # not a cell: shown, never run
```

```{code-cell} ipython3
---
mystnb:
  image:
    alt: "import sys"
---
def value(theta):
    return dp.forward( theta, np.ones(2,int), 1 )[0]
print(undefined)
right = value([1.0, 2.0]); right;
```

```{code-cell} ipython3
pairs = [(a, b) for a, b in zip([1, 2, 3], [4, 5, 6], strict=True) if a + b > 6 - 1]
```

```{code-cell} ipython3
```
"""


@pytest.fixture
def chapter(tmp_path):
    """A chapter in a repository of its own, with our rules."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").touch()
    (tmp_path / "chapters").mkdir()
    chapter = tmp_path / "chapters" / "one.md"
    chapter.write_text(CHAPTER)
    return chapter


def around(text):
    """All that is not code of a cell."""
    ends = [0, *(end for cell in ruff_chapters.CELL.finditer(text) for end in cell.span("code")), len(text)]
    return [text[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True)]


def line_of(text, part):
    return text[: text.index(part)].count("\n") + 1


def test_findings_name_the_line_of_the_chapter(chapter, tmp_path):
    found = list(ruff_chapters.findings([chapter], tmp_path))
    expected = [("import numpy", "I001"), ("print(undefined", "F821"), ("right = ", "E702"), ("pairs", "E501")]
    expected += [("def value", "this cell is not formatted"), ("pairs", "this cell is not formatted")]
    for part, code in expected:
        start = f"chapters/one.md:{line_of(CHAPTER, part)}: {code}"
        assert [line for line in found if line.startswith(start)], (start, found)
    assert len(found) == len(expected)
    assert chapter.read_text() == CHAPTER


def test_fix_changes_code_and_nothing_else(chapter, tmp_path):
    left = list(ruff_chapters.findings([chapter], tmp_path, fix=True))
    text = chapter.read_text()
    assert left == [f"chapters/one.md:{line_of(text, 'print(undefined')}: F821 Undefined name `undefined`"]
    assert around(text) == around(CHAPTER)
    assert "return dp.forward(theta, np.ones(2, int), 1)[0]\n\n\nprint(undefined)\nright = value([1.0, 2.0])\n" in text
    assert list(ruff_chapters.findings([chapter], tmp_path, fix=True)) == left
    assert chapter.read_text() == text


def test_code_that_does_not_parse_is_found_and_kept(chapter, tmp_path):
    chapter.write_text(CHAPTER.replace("return dp.forward(", "return return dp.forward("))
    before = chapter.read_text()
    (found,) = [line for line in ruff_chapters.findings([chapter], tmp_path, fix=True) if "invalid-syntax" in line]
    assert found.startswith(f"chapters/one.md:{line_of(before, 'return return')}: ")
    assert "return return" in chapter.read_text()


def test_the_cells_are_those_that_jupytext_reads(notebook):
    path = ROOT / f"{notebook}.md"
    codes = [cell["code"].rstrip() for cell in ruff_chapters.CELL.finditer(path.read_text())]
    assert codes == [cell.source.rstrip() for cell in jupytext.read(path).cells if cell.cell_type == "code"]


# --- what a reader sees ---------------------------------------------------------------------------------------------


def code_cells(notebook):
    """Code and tags of each cell."""
    cells = [cell for cell in jupytext.read(ROOT / f"{notebook}.md").cells if cell.cell_type == "code"]
    assert cells
    return [(cell.source, cell.metadata.get("tags", [])) for cell in cells]


def test_code_that_is_not_folded_away_is_short(notebook):
    long = [code for code, tags in code_cells(notebook) if len(code.splitlines()) > 15 and not tags]
    assert long == []


def test_the_readers_own_function_is_checked_and_so_is_the_solution(notebook):
    codes = dict(code_cells(notebook))
    stubs = [code for code in codes if re.search(r"^checks\.compare\(my_\w+, [\w.]+, draw\)$", code, flags=re.M)]
    solutions = [code for code in codes if "checks.compare(solution, " in code and "checks.compare(slip, " in code]
    assert len(stubs) == len(solutions) >= 1
    assert all(codes[code] == [] for code in stubs)
    assert all(codes[code] == ["hide-cell"] for code in solutions)


def globals_of(table: symtable.SymbolTable) -> set[str]:
    """The names that a function, and what is defined in it, takes from the notebook."""
    inner = (globals_of(child) for child in table.get_children())
    return {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}.union(*inner)


def taken_twice(codes: list[str]) -> set[str]:
    """Names that a slider's functions use and several cells set: when the slider is moved, the last one counts."""
    cells, used, called = {}, {}, set()
    for index, code in enumerate(codes):
        table = symtable.symtable(code, "cell", "exec")
        for symbol in table.get_symbols():
            if symbol.is_assigned() or symbol.is_imported():
                cells.setdefault(symbol.get_name(), set()).add(index)
        used |= {child.get_name(): globals_of(child) for child in table.get_children()}
        calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
        for call in calls:
            if ast.unparse(call.func) == "explore":
                called |= {ast.unparse(part) for part in (*call.args, *(k.value for k in call.keywords))}
    called, reached = called & set(used), set()
    while called - reached:
        reached |= called
        called = set().union(*(used.get(name, ()) for name in reached))
    return {name for name in reached if len(cells.get(name, ())) > 1}


def test_what_a_slider_calls_uses_no_name_that_another_cell_takes(notebook):
    assert taken_twice([code for code, _ in code_cells(notebook)]) == set()


def test_a_name_taken_twice_is_recognised():
    cells = ["def size(): return n", "n = 3\ndef draw(x): return size() + x\nexplore(draw, x=[1])", "n = 4", "m = n"]
    assert taken_twice(cells) == {"n"}
    assert taken_twice([cells[0], cells[1], cells[3]]) == set()


def test_the_colours_of_the_style_are_written_nowhere_else():
    with plt.style.context("lib.book"):
        cycle = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    colours = [colour for colour in cycle if colour != "#000000"]
    assert len(colours) == 6
    files = [*(ROOT / "chapters").rglob("*.md"), *(ROOT / "lib").glob("*.py")]
    found = [(file.name, c) for file in files for c in colours if c.lower() in file.read_text().lower()]
    assert found == []


# --- what would make two builds differ ------------------------------------------------------------------------------

CLOCKS = {"time", "timeit", "datetime", "random", "secrets", "uuid"}
#: Calls that draw from torch's own generator unless they are given one.
DRAWS = r"torch\.(rand|randn|randint|randperm|normal|bernoulli|multinomial|poisson|rand\w*_like|nn\.init\.\w+_)"
DRAWS += r"|.*\.(sample|normal_|uniform_|bernoulli_|exponential_|random_)"
DRAWS += r"|tokens\.layers|tokens\.sde|two_tokens\.simulate|(sphere\.)?random_tokens"


def differs(code: str) -> list[str]:
    """The parts of a cell whose results are not the same every time."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return [line for line in code.splitlines() if line.lstrip().startswith(("%", "!"))] or [code]
    found = []
    for node in ast.walk(tree):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        found += [ast.unparse(node) for module in modules if module.split(".")[0] in CLOCKS]
        if isinstance(node, ast.Call) and _unseeded(node):
            found.append(ast.unparse(node))
    return found


def _unseeded(call: ast.Call) -> bool:
    name, given = ast.unparse(call.func), {keyword.arg for keyword in call.keywords}  # None stands for **
    if name.split(".")[-1] in ("default_rng", "SeedSequence"):
        return not (call.args or given)
    if re.fullmatch(r"(np|numpy)\.random\.\w+", name):
        return True
    if re.fullmatch(DRAWS, name):
        return not given & {"generator", "noise", "rng", None}
    if name.endswith("checks.compare"):  # a stub returns before its inputs count
        return "seed" not in given and not ast.unparse(call.args[0]).startswith("my_")
    return name.endswith(".seed")  # of a generator: from the clock


@pytest.mark.parametrize(
    "code",
    [
        "import time",
        "from time import perf_counter",
        "import os, timeit",
        "import datetime as dt",
        "%time f(1)",
        "x = 1\n%timeit x",
        "rng = np.random.default_rng()",
        "x = np.random.normal(size=3)",
        "np.random.seed(0)",
        "x = torch.randn(3, dtype=torch.float64)",
        "x = torch.rand(3) + torch.rand(3, generator=g)",
        "torch.nn.init.xavier_normal_(w)",
        "w.uniform_(0, 1)",
        "x = law.sample((3,))",
        "y = tokens.layers(x, depth=1, beta=0.0, horizon=1.0)",
        "x = random_tokens(5, n=2, d=3)",
        "g = torch.Generator()\ng.seed()",
        "checks.compare(solution, f, draw)",
    ],
)
def test_what_differs_from_run_to_run_is_recognised(code):
    assert differs(code)


@pytest.mark.parametrize(
    "code",
    [
        "rng = np.random.default_rng(SEED)",
        "x = rng.normal(size=3) + rng.random()",
        "x = torch.randn(3, generator=torch.Generator().manual_seed(0))",
        "y = tokens.layers(x, depth=1, beta=0.0, horizon=1.0, noise=path)",
        "y = tokens.layers(x, depth=1, **options)",
        "x = dp.sample(theta, weights, 3, rng=rng)",
        "ax.set(xlabel='time')",
        "checks.compare(my_drift, two_tokens.drift, draw)",
        "checks.compare(slip, two_tokens.drift, draw, seed=SEED)",
    ],
)
def test_what_is_the_same_every_time_is_left_alone(code):
    assert differs(code) == []


def test_no_chapter_asks_a_clock_or_draws_without_a_seed(notebook):
    assert [part for code, _ in code_cells(notebook) for part in differs(code)] == []


def test_the_measured_times_say_when_and_where_and_show_what_the_chapter_says():
    measured = json.loads((ROOT / "benchmarks" / "timings.json").read_text())
    machine = measured["machine"]
    assert re.fullmatch(r"\d{1,2} [A-Z][a-z]+ 20\d\d", machine["date"])
    assert machine["processor"]
    assert machine["cores"] >= machine["threads"] == 1
    assert {"Python", "numpy", "numba", "torch"} == set(machine["versions"])
    medians = {(row["axis"], row["n"], row["k"]): row["milliseconds"] for row in measured["top-k"]}
    for quartiles in (q for row in medians.values() for q in row.values()):
        assert 0 < quartiles[0] <= quartiles[1] <= quartiles[2]
    few, many = ({name: q[1] for name, q in medians["k", 2000, k].items()} for k in (3, 1000))
    assert many["readable table"] > many["compiled table, Gini"] > many["contour, Shannon"]
    assert many["contour, Shannon"] < 3 * few["contour, Shannon"]
    assert many["compiled table, Gini"] > 3 * few["compiled table, Gini"]
