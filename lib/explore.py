"""Figures with sliders: live beside a kernel, a self-contained player on a page without one."""

from __future__ import annotations

import base64
import contextlib
import gzip
import html
import io
import itertools
import json
import math
import numbers
import re
from collections.abc import Callable, Sequence

import ipywidgets
import matplotlib.pyplot as plt
from IPython.display import HTML, display
from matplotlib.figure import Figure

from lib import _validate
from lib.progress import static

#: A player may weigh this much, in bytes of HTML.
LARGEST_PLAYER = 400_000
#: CSS pixels per inch of a figure.
DPI = 96
#: How the names of parameters are written beside their sliders.
SYMBOLS = {"beta": "β", "dim": "d", "sigma": "σ", "gamma": "γ", "theta": "θ", "c0": "c₀", "horizon": "T", "depth": "L"}

_player_numbers = itertools.count(1)


def explore(draw: Callable[..., Figure], *, alt: str | Callable[..., str], **grid: Sequence) -> None:
    """Show ``draw(**params)`` with one slider for each parameter.

    With a kernel, the sliders are ipywidgets and every move calls ``draw`` again; numbers may leave the grid. While
    the book is built, ``draw`` is called once at every point of the grid and the page gets a player of the
    frames that needs no kernel, no network and no library. Both start at the middle of every list.

    Args:
        draw: a function of the parameters, by name, that returns a new matplotlib Figure. It must be pure (same
            parameters, same figure) and every figure must have the same size.
        alt: what is seen, as a sentence: a string, or a function of the parameters that returns one. It is the
            image's alternative text, and a caption that screen readers announce when it changes.
        grid: a non-empty list of values for each parameter: numbers in increasing order, or words.

    Raises:
        TypeError: ``draw`` does not return a Figure, ``alt`` not a sentence, values that are not numbers or words.
        ValueError: an empty or unordered list, values that look alike when written; frames of different sizes; a
            player above 400 kB.
        RuntimeError: ``draw`` or ``alt`` failed; the message gives the parameters.

    >>> import matplotlib.pyplot as plt
    >>> def draw(beta):
    ...     figure, ax = plt.subplots()
    ...     ax.plot([0, beta])
    ...     return figure
    >>> explore(draw, alt=lambda beta: f"A line that climbs to {beta}.", beta=[1, 2, 3])  # doctest: +ELLIPSIS
    VBox(...)
    """
    grid = {name: _checked(name, values) for name, values in grid.items()}
    if not grid:
        raise ValueError("grid must name at least one parameter, got none")
    display(HTML(_player(draw, alt, grid)) if static() else _controls(draw, alt, grid))


def _checked(name: str, values: Sequence) -> list:
    if not name.isidentifier():
        raise ValueError(f"grid must name parameters of draw, got {name!r}")
    if hasattr(values, "tolist"):  # NumPy, torch
        values = values.tolist()
    if not isinstance(values, (list, tuple, range)):
        raise TypeError(f"{name} must be a list of values, got {values!r}")
    values = [value.item() if hasattr(value, "item") else value for value in values]
    if not values:
        raise ValueError(f"{name} must be a non-empty list of values, got {values!r}")
    if _numeric(values):
        _validate.array(name, values, low=-_validate.LARGEST)
        values = [value if isinstance(value, numbers.Integral) else float(value) for value in values]
        if any(a >= b for a, b in itertools.pairwise(values)):
            raise ValueError(f"{name} must be numbers in increasing order, got {values!r}")
    elif not all(isinstance(value, str) for value in values):
        raise TypeError(f"{name} must hold numbers only or words only, got {values!r}")
    if len({_written(value) for value in values}) < len(values):
        raise ValueError(f"{name} must hold values that differ when written to six digits, got {values!r}")
    return values


def _numeric(values: list) -> bool:
    return all(isinstance(value, numbers.Real) and not isinstance(value, bool) for value in values)


def _frame(draw: Callable, alt: str | Callable, params: dict) -> tuple[str, tuple[int, int], str]:
    """One picture (SVG), its size in pixels and its alternative text."""
    open_before = set(plt.get_fignums())
    try:
        with _errors_located(params):
            figure = draw(**params)
            text = alt(**params) if callable(alt) else alt
        if not isinstance(figure, Figure):
            raise TypeError(f"draw must return a matplotlib Figure, got {figure!r}")
        if not isinstance(text, str) or len(text) < 20:
            raise TypeError(f"alt must be (or return) a sentence of at least 20 characters, got {text!r}")
        width, height = (round(DPI * inches) for inches in figure.get_size_inches())
        svg = io.StringIO()
        # a fixed salt and no date: the same figure gives the same text
        with _errors_located(params), plt.rc_context({"svg.hashsalt": "explore", "svg.fonttype": "path"}):
            figure.savefig(svg, format="svg", dpi=DPI, bbox_inches=None, metadata={"Date": None})
    finally:
        for number in set(plt.get_fignums()) - open_before:
            plt.close(number)
    return _hundredths(svg.getvalue()), (width, height), text


@contextlib.contextmanager
def _errors_located(params: dict):
    """Turn an exception into one that says at which parameters it happened."""
    try:
        yield
    except Exception as error:
        where = ", ".join(f"{name}={value!r}" for name, value in params.items())
        raise RuntimeError(f"explore failed at {where}: {type(error).__name__}: {error}") from error


def _hundredths(svg: str) -> str:
    """Round the coordinates of the paths to a hundredth of a point: half the size, nothing to see."""
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)


def _image(svg: str, size: tuple[int, int], text: str) -> str:
    url = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    return (
        f'<img src="{url}" alt="{html.escape(text)}" width="{size[0]}" height="{size[1]}" '
        'style="max-width:100%;height:auto;background:#fff">'
    )


def _label(name: str) -> str:
    return SYMBOLS.get(name, name.replace("_", " "))


# --- with a kernel --------------------------------------------------------------------------------------------------


def _controls(draw: Callable, alt: str | Callable, grid: dict[str, list]) -> ipywidgets.VBox:
    sliders = {name: _slider(name, values) for name, values in grid.items()}
    picture = ipywidgets.HTML()

    def redraw(_=None):
        params = {name: slider.value for name, slider in sliders.items()}
        try:
            svg, size, text = _frame(draw, alt, params)
        except Exception as error:  # an exception in a callback would vanish; the reader must see it
            picture.value = f'<p role="alert"><strong>{html.escape(str(error))}</strong></p>'
        else:
            picture.value = f'{_image(svg, size, text)}<p role="status">{html.escape(text)}</p>'

    for slider in sliders.values():
        slider.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*sliders.values(), picture])


def _slider(name: str, values: list) -> ipywidgets.Widget:
    common = {
        "description": _label(name),
        "value": values[len(values) // 2],
        "continuous_update": False,
        "layout": ipywidgets.Layout(width="min(28rem, 100%)"),
    }
    if not _numeric(values):
        return ipywidgets.SelectionSlider(options=values, **common)
    if all(isinstance(value, numbers.Integral) for value in values):
        return ipywidgets.IntSlider(min=values[0], max=values[-1], **common)
    gap = min((b - a for a, b in itertools.pairwise(values)), default=1.0)
    step = 10.0 ** math.floor(math.log10(gap / 4))
    return ipywidgets.FloatSlider(min=values[0], max=values[-1], step=step, readout_format=".3g", **common)


# --- without a kernel -----------------------------------------------------------------------------------------------

_STYLE = """
.explore{margin:1rem 0}
.explore-controls{display:grid;gap:.2rem .8rem;align-items:center;margin-bottom:.4rem}
.explore-controls label{margin:0}
.explore-controls input{width:100%;min-height:24px}
.explore-controls output{font-variant-numeric:tabular-nums}
.explore figcaption{display:grid;margin-top:.3rem;color:inherit;text-align:left;font:inherit}
.explore figcaption>div{grid-area:1/1}
.explore-room{visibility:hidden}
.explore [role=alert]:empty{display:none}
"""

# Frames are lists of indices into the distinct lines of all pictures, with the last slider running fastest. A player
# comes with a sentence for readers without scripts; whatever fails, it is put back, says so and is disabled. (It is not
# before, as browsers restore only sliders that can be moved.)
_SCRIPT = """
(async function () {
  const root = document.getElementById("ID");
  const inputs = Array.from(root.querySelectorAll("input"));
  const outputs = Array.from(root.querySelectorAll("output"));
  const image = root.querySelector("img");
  const caption = root.querySelector("[role=status]");
  const notice = root.querySelector("[role=alert]");
  function put(src, text, values) {
    values.forEach(function (value, i) {
      outputs[i].textContent = value;
      inputs[i].setAttribute("aria-valuetext", value);
    });
    image.src = src;
    if (caption.textContent !== text) image.alt = caption.textContent = text;
  }
  const start = [image.src, image.alt, outputs.map(function (output) { return output.textContent; })];
  function fail(error) {
    console.error(error);
    inputs.forEach(function (input) {
      input.disabled = true;
      input.value = input.defaultValue;
    });
    put(...start);
    notice.textContent =
      "The sliders do not work here, so the picture stays as it is. An up-to-date browser may help. (" + error + ")";
  }
  notice.textContent = "";
  try {
    const packed = root.querySelector("script[type='text/plain']").textContent;
    const bytes = Uint8Array.from(atob(packed), function (letter) { return letter.charCodeAt(0); });
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const data = await new Response(stream).json();
    function show() {
      let frame = 0;
      const values = inputs.map(function (input, i) {
        frame = frame * data.values[i].length + Number(input.value);
        return data.values[i][input.value];
      });
      const svg = data.frames[frame].map(function (line) { return data.lines[line]; }).join("\\n");
      put("data:image/svg+xml," + encodeURIComponent(svg), data.texts[frame], values);
    }
    function update() {
      try { show(); } catch (error) { fail(error); }
    }
    show();
    inputs.forEach(function (input) { input.addEventListener("input", update); });
    image.addEventListener("error", function () { fail("a picture is spoilt"); }, { once: true });
    // Browsers restore the sliders of a page that is reloaded or left and come back to; the picture must follow them.
    window.addEventListener("pageshow", update);
  } catch (error) {
    fail(error);
  }
})();
"""


def _player(draw: Callable, alt: str | Callable, grid: dict[str, list]) -> str:
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    frames = [_frame(draw, alt, params) for params in points]
    sizes = {size for _, size, _ in frames}
    if len(sizes) > 1:
        raise ValueError(f"draw must return figures of one size, got {sorted(sizes)} pixels")
    ident = f"explore-{next(_player_numbers)}"
    start = 0
    rows = []
    for name, values in grid.items():
        middle = len(values) // 2
        start = start * len(values) + middle
        rows.append(
            f'<label for="{ident}-{name}">{html.escape(_label(name))}</label>'
            f'<input type="range" id="{ident}-{name}" name="{name}" min="0" max="{len(values) - 1}" step="1" '
            f'value="{middle}" aria-valuetext="{html.escape(_written(values[middle]))}" '
            # JupyterLab would take the arrow keys away from the slider
            'data-lm-suppress-shortcuts="true">'
            f'<output for="{ident}-{name}">{html.escape(_written(values[middle]))}</output>'
        )
    # the widest value is given its place, so that nothing jumps when another one takes it
    widest = max(len(_written(value)) for values in grid.values() for value in values)
    columns = f"grid-template-columns:max-content minmax(6rem,22rem) {widest + 1}ch"
    # and the longest text, unseen, keeps the room that any text may need (a word more, for other line breaks)
    longest = max((text for _, _, text in frames), key=len) + " and more"
    lines: dict[str, int] = {}
    data = {
        "values": [[_written(value) for value in values] for values in grid.values()],
        "frames": [[lines.setdefault(line, len(lines)) for line in svg.split("\n")] for svg, _, _ in frames],
        "lines": list(lines),
        "texts": [text for _, _, text in frames],
    }
    packed = base64.b64encode(gzip.compress(json.dumps(data).encode(), mtime=0)).decode()
    player = (
        f'<figure class="explore" id="{ident}"><style>{_STYLE}</style>'
        f'<div class="explore-controls" style="{columns}">{"".join(rows)}</div>'
        '<p role="alert">The sliders need JavaScript; without it the picture stays as it is.</p>'
        f"{_image(*frames[start])}"
        f'<figcaption><div class="explore-room" aria-hidden="true">{html.escape(longest)}</div>'
        f'<div role="status">{html.escape(frames[start][2])}</div></figcaption>'
        f'<script type="text/plain">{packed}</script>'
        f"<script>{_SCRIPT.replace('ID', ident, 1)}</script></figure>"
    )
    if len(player.encode()) > LARGEST_PLAYER:
        raise ValueError(
            f"the player must weigh at most {LARGEST_PLAYER:,} bytes, got {len(player):,} for {len(frames)} frames; "
            "use fewer values or a simpler figure"
        )
    return player


def _written(value) -> str:
    return value if isinstance(value, str) else f"{value:.6g}".replace("-", "−")
