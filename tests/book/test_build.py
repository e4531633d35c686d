"""Building: what is executed again and what is not, the same bytes from the same sources, and what is printed."""

import hashlib
import re
import shutil
from pathlib import Path

import pytest

HEADER = """\
---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {display_name: Python 3 (ipykernel), language: python, name: python3}
---

"""
FIRST = """\
# Print a constant

A word about it.

```{code-cell} ipython3
import matplotlib.pyplot as plt

from lib import _validate
from lib.explore import explore

plt.style.use("lib.book")
print("tolerance:", _validate.NORM_TOLERANCE)
```

```{code-cell} ipython3
:tags: [hide-input]

def draw(slope):
    figure, ax = plt.subplots()
    ax.plot([0, slope])
    return figure

explore(draw, alt=lambda slope: f"A line that climbs to {slope}.", slope=[1, 2])
```

```{code-cell} ipython3
---
mystnb:
  image:
    alt: "A line that climbs from one to two."
---
plt.plot([1, 2])
plt.show()
```
"""
SECOND = """\
# Read a file

```{code-cell} ipython3
from pathlib import Path

print("it says", Path("data.txt").read_text())
```
"""
CONTENTS = """\
format: jb-book
root: chapters/first
parts:
  - caption: Two chapters
    chapters:
      - file: chapters/second
      - file: chapters/coursework
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory, copy_repository, root):
    """The repository with a book of two short chapters, and the page that offers notebooks."""
    copy = copy_repository(tmp_path_factory.mktemp("small") / "book")
    shutil.copytree(root / "lib" / "__pycache__", copy / "lib" / "__pycache__", dirs_exist_ok=True)  # compiled kernels
    (copy / "chapters" / "first.md").write_text(HEADER + FIRST)
    (copy / "chapters" / "second.md").write_text(HEADER + SECOND)
    (copy / "chapters" / "data.txt").write_text("yes")
    coursework = copy / "chapters" / "coursework.md"
    # no links to chapters that this book lacks
    coursework.write_text(re.sub(r"\[\]\(tokens/[\w-]+\.md\)", "a chapter", coursework.read_text()))
    (copy / "_toc.yml").write_text(CONTENTS)
    return copy


def contents(folder: Path) -> dict[str, str]:
    """A digest of every file of the built book."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / "_build" / "html").rglob("*"))
        if path.is_file()
    }


def executed(folder: Path) -> dict[str, int]:
    """When each chapter was executed."""
    return {path.stem: path.stat().st_mtime_ns for path in (folder / "_build" / "executed").rglob("*.ipynb")}


def replace(path: Path, old: str, new: str) -> None:
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))


def page(folder: Path, name: str) -> str:
    return (folder / "_build" / "html" / "chapters" / f"{name}.html").read_text()


def test_what_is_executed_again(small, build_book):
    """One book, through its life: built, built again, edited here and there, and built from nothing once more."""
    printed = build_book(small)
    new, when = contents(small), executed(small)
    assert "tolerance: 0.0001" in page(small, "first")
    assert "it says yes" in page(small, "second")
    assert re.search(r"^chapters/first +\d+\.\d s +\d+ MB +\d+ kB$", printed, re.MULTILINE)
    assert printed.strip().splitlines()[-1] == f"Open in a browser: {small / '_build/html/index.html'}"

    build_book(small)
    assert executed(small) == when
    assert contents(small) == new

    replace(small / "chapters" / "first.md", "A word about it.", "Two words about it.")
    build_book(small)
    assert "Two words" in page(small, "first")
    assert executed(small) == when

    replace(small / "chapters" / "first.md", '"tolerance:"', '"the tolerance:"')
    build_book(small)
    assert "the tolerance: 0.0001" in page(small, "first")
    assert executed(small)["second"] == when["second"]
    when = executed(small)

    (small / "chapters" / "data.txt").write_text("no")
    build_book(small)
    assert "it says no" in page(small, "second")
    assert executed(small)["first"] == when["first"]

    replace(small / "lib" / "_validate.py", "NORM_TOLERANCE = 1e-4", "NORM_TOLERANCE = 2e-4")
    build_book(small)
    assert "the tolerance: 0.0002" in page(small, "first")

    replace(small / "lib" / "_validate.py", "NORM_TOLERANCE = 2e-4", "NORM_TOLERANCE = 1e-4")
    (small / "chapters" / "data.txt").write_text("yes")
    (small / "chapters" / "first.md").write_text(HEADER + FIRST)
    shutil.rmtree(small / "_build")
    build_book(small)
    assert contents(small) == new


def test_one_page(small, build_book):
    shutil.rmtree(small / "_build")
    printed = build_book(small, "--page", "second")
    assert set(executed(small)) == {"second"}
    made = small / "_build" / "page" / "html" / "chapters" / "second.html"
    assert "it says" in made.read_text()
    assert printed.strip().splitlines()[-1] == f"Open in a browser: {made}"


def test_a_chapter_that_fails_is_named_with_its_error(small, build_book):
    broken = small / "chapters" / "second.md"
    broken.write_text(broken.read_text().replace("data.txt", "nowhere.txt"))
    with pytest.raises(pytest.fail.Exception, match=r"(?s)chapters/second failed:.*FileNotFoundError.*nowhere\.txt"):
        build_book(small)
    broken.write_text(HEADER + SECOND)


def test_an_unknown_page_is_refused_with_the_list(small, build_book):
    with pytest.raises(pytest.fail.Exception, match="CHAPTER must be one of first, second, coursework, got 'third'"):
        build_book(small, "--page", "third")
