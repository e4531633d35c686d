"""The sliders: what a page without a kernel is given, what a kernel shows, and every refusal."""

import base64
import contextlib
import gzip
import json
import os

import ipywidgets
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from bs4 import BeautifulSoup
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from lib import explore as module
from lib.explore import explore

SENTENCE = "A line from the origin to a height that the slider gives."


def line(**params):
    figure, ax = plt.subplots(figsize=(3, 2))
    ax.plot([0, sum(value for value in params.values() if not isinstance(value, str))])
    ax.set_title(" ".join(map(str, params.values())))
    return figure


def sentence(**params):
    return f"A line drawn at {', '.join(f'{name} = {value}' for name, value in params.items())}."


@pytest.fixture
def shown(monkeypatch):
    """A function that calls explore and returns what it displays."""

    def show(*args, **kwargs):
        seen = []
        monkeypatch.setattr(module, "display", seen.append)
        assert explore(*args, **kwargs) is None
        assert len(seen) == 1
        return seen[0]

    return show


@pytest.fixture
def static(monkeypatch):
    monkeypatch.setenv("EXPLORE_STATIC", "1")


@pytest.fixture
def live(monkeypatch):
    monkeypatch.delenv("EXPLORE_STATIC", raising=False)


@pytest.fixture(params=["static", "live"])
def either(request):
    request.getfixturevalue(request.param)


def unpacked(player):
    """The parsed player and its data, decoded the way its script does it."""
    soup = BeautifulSoup(player, "html.parser")
    packed = soup.find("script", type="text/plain").string
    return soup, json.loads(gzip.decompress(base64.b64decode(packed, validate=True)))


def caption(soup):
    """The text that screen readers announce when it changes."""
    return soup.select_one("[role=status], [aria-live=polite]").text


def picture(data, frame):
    return "\n".join(data["lines"][index] for index in data["frames"][frame])


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(
    ("grid", "error", "message"),
    [
        ({}, ValueError, "at least one parameter, got none"),
        ({"beta": []}, ValueError, r"beta must be a non-empty list.*got \[\]"),
        ({"beta": np.array([])}, ValueError, r"beta must be a non-empty list.*got \[\]"),
        ({"beta": [1, 3, 2]}, ValueError, r"beta .*increasing order, got \[1, 3, 2\]"),
        ({"beta": [1, 1]}, ValueError, r"beta .*increasing order, got \[1, 1\]"),
        ({"beta": [1.0, float("nan")]}, ValueError, "beta must be in.*nan"),
        ({"beta": [1.0, float("inf")]}, ValueError, "beta must be in.*inf"),
        ({"beta": "123"}, TypeError, "beta must be a list of values, got '123'"),
        ({"beta": [1, "two"]}, TypeError, "beta must hold numbers only or words only.*'two'"),
        ({"beta": [True, False]}, TypeError, "beta must hold numbers only or words only.*True"),
        ({"beta": [None]}, TypeError, "beta must hold numbers only or words only.*None"),
        ({"dim": [1, 2], "beta": [2, 1]}, ValueError, "beta .*increasing order"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(grid, error, message):
    with pytest.raises(error, match=message):
        explore(line, alt=SENTENCE, **grid)


@pytest.mark.usefixtures("static")
@pytest.mark.parametrize("returned", [None, "figure", 3, plt])
def test_a_draw_that_returns_no_figure_is_refused(returned):
    with pytest.raises(TypeError, match="draw must return a matplotlib Figure, got"):
        explore(lambda beta: returned, alt=SENTENCE, beta=[1, 2])


@pytest.mark.usefixtures("static")
@pytest.mark.parametrize("alt", ["", "too short", None, 7, lambda beta: "too short", lambda beta: None])
def test_an_alternative_text_that_says_nothing_is_refused(alt):
    with pytest.raises(TypeError, match="sentence of at least 20 characters, got"):
        explore(line, alt=alt, beta=[1, 2])


@pytest.mark.usefixtures("static")
def test_frames_of_different_sizes_are_refused():
    def draw(beta):
        return plt.figure(figsize=(3, 2 if beta < 3 else 2.5))

    with pytest.raises(ValueError, match=r"figures of one size, got .*288, 192.*288, 240"):
        explore(draw, alt=SENTENCE, beta=[1, 2, 3])


@pytest.mark.usefixtures("static")
def test_a_player_that_is_too_heavy_is_refused(monkeypatch):
    monkeypatch.setattr(module, "LARGEST_PLAYER", 5_000)
    with pytest.raises(ValueError, match=r"at most 5,000 bytes, got [\d,]+ for 3 frames"):
        explore(line, alt=SENTENCE, beta=[1, 2, 3])


@pytest.mark.usefixtures("static")
@pytest.mark.parametrize("culprit", ["draw", "alt"])
@pytest.mark.parametrize("where", [(1, "a"), (2, "b"), (3, "a")])
def test_an_error_anywhere_on_the_grid_names_the_parameters_and_the_error(culprit, where):
    def fails_there(function):
        def wrapped(beta, kind):
            if (beta, kind) == where:
                raise ArithmeticError("it was too much")
            return function(beta=beta, kind=kind)

        return wrapped

    draw, alt = (fails_there(f) if name == culprit else f for name, f in (("draw", line), ("alt", sentence)))
    message = rf"beta={where[0]}, kind='{where[1]}': ArithmeticError: it was too much"
    with pytest.raises(RuntimeError, match=message) as raised:
        explore(draw, alt=alt, beta=[1, 2, 3], kind=["a", "b"])
    assert isinstance(raised.value.__cause__, ArithmeticError)


def test_an_error_on_the_grid_stops_a_notebook_that_the_book_executes(monkeypatch, tmp_path):
    monkeypatch.setenv("EXPLORE_STATIC", "1")
    source = """
import matplotlib.pyplot as plt
from lib.explore import explore

def draw(beta):
    if beta == 3:
        raise ZeroDivisionError("at three")
    return plt.figure()

explore(draw, alt="An empty figure, whatever the slider says.", beta=[1, 2, 3])
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    client = NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    with pytest.raises(CellExecutionError, match="explore failed at beta=3: ZeroDivisionError: at three"):
        client.execute()


# --- without a kernel -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("static")
def test_the_frames_of_a_player_are_the_pictures_of_the_grid_in_order(shown):
    grid = {"beta": [0.5, 1.0, 2.0], "kind": ["plain", "fancy"], "dim": [2, 3]}
    _, data = unpacked(shown(line, alt=sentence, **grid).data)
    points = [(beta, kind, dim) for beta in grid["beta"] for kind in grid["kind"] for dim in grid["dim"]]
    assert data["values"] == [["0.5", "1", "2"], ["plain", "fancy"], ["2", "3"]]
    assert len(data["frames"]) == len(data["texts"]) == len(points)
    for frame, params in enumerate(dict(zip(grid, point, strict=True)) for point in points):
        svg, size, text = module._frame(line, sentence, params)
        assert picture(data, frame) == svg
        assert data["texts"][frame] == text
        assert size == (288, 192)
    assert len({picture(data, frame) for frame in range(len(points))}) == len(points)


@pytest.mark.usefixtures("static")
def test_a_player_shows_its_middle_before_any_script_runs(shown):
    grid = {"beta": [0.5, 1.0, 2.0], "dim": [2, 3]}
    soup, data = unpacked(shown(line, alt=sentence, **grid).data)
    middle = 1 * 2 + 1
    image = soup.img
    start = base64.b64decode(image["src"].removeprefix("data:image/svg+xml;base64,")).decode()
    assert start == picture(data, middle)
    assert image["alt"] == caption(soup) == data["texts"][middle] == sentence(beta=1.0, dim=3)
    assert (image["width"], image["height"]) == ("288", "192")
    assert [(slider["value"], slider["min"], slider["max"]) for slider in soup("input")] == [
        ("1", "0", "2"),
        ("1", "0", "1"),
    ]
    assert [output.text for output in soup("output")] == [slider["aria-valuetext"] for slider in soup("input")]


@pytest.mark.usefixtures("static")
def test_every_slider_of_a_player_has_a_label_and_ids_are_unique_among_players(shown):
    players = [shown(line, alt=sentence, beta=[1, 2], a_long_name=[1, 2]).data for _ in range(2)]
    soup = BeautifulSoup("".join(players), "html.parser")
    idents = [tag["id"] for tag in soup(id=True)]
    assert len(idents) == len(set(idents))
    labels = {label["for"]: label.text for label in soup("label")}
    assert [labels[slider["id"]] for slider in soup("input")] == ["β", "a long name"] * 2
    assert all(" ".join(output["for"]) in labels for output in soup("output"))


@pytest.mark.usefixtures("static")
def test_hostile_text_stays_text(shown):
    hostile = """</script></figcaption><b onclick='x()'>"bold" & 'brave'</b><!-- {beta} -->"""
    soup, data = unpacked(shown(line, alt=lambda **_: hostile, kind=["<i>&amp;", '"><script>']).data)
    assert soup.b is None
    assert soup.i is None
    assert len(soup("script")) == 2
    assert soup.img["alt"] == caption(soup) == hostile
    assert data["texts"] == [hostile] * 2
    assert data["values"] == [["<i>&amp;", '"><script>']]
    assert soup.output.text == soup.input["aria-valuetext"] == '"><script>'


@pytest.mark.usefixtures("static")
def test_two_calls_give_the_same_frames(shown):
    first, second = (unpacked(shown(line, alt=sentence, beta=[1, 2]).data)[1] for _ in range(2))
    assert first == second


@pytest.mark.usefixtures("static")
def test_a_player_needs_nothing_from_elsewhere(shown):
    player = shown(line, alt=sentence, beta=[1, 2]).data
    soup, _ = unpacked(player)
    assert not soup(["link", "iframe", "object"])
    assert [script.get("src") for script in soup("script")] == [None, None]
    assert "import" not in player.replace("important", "")
    assert "fetch" not in player


@pytest.mark.usefixtures("static")
def test_values_may_come_from_numpy(shown):
    kinds = []

    def draw(beta, dim):
        kinds.append((type(beta), type(dim)))
        return line(beta=beta, dim=dim)

    _, data = unpacked(shown(draw, alt=sentence, beta=np.linspace(-1, 1, 3), dim=list(np.array([2, 3]))).data)
    assert data["values"] == [["−1", "0", "1"], ["2", "3"]]
    assert set(kinds) == {(float, int)}


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("fault", ["none", "raise", "nothing", "two", "mathtext"])
def test_no_figure_is_left_open_and_none_of_the_readers_is_closed(fault, shown):
    def draw(beta):
        figure = line(beta=beta)
        if fault == "raise":
            raise ValueError("on purpose")
        if fault == "two":
            plt.figure()
        if fault == "mathtext":
            figure.text(0, 0, r"$\nonsense{$")
        return None if fault == "nothing" else figure

    readers = plt.figure()
    before = plt.get_fignums()
    with contextlib.suppress(RuntimeError, TypeError):
        shown(draw, alt=SENTENCE, beta=[1, 2])
    assert plt.get_fignums() == before
    plt.close(readers)


# --- with a kernel --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("live")
def test_live_sliders_start_in_the_middle_and_fit_their_values(shown):
    box = shown(line, alt=sentence, beta=[0.0, 0.5, 2.0], dim=[2, 3, 8], kind=["plain", "fancy", "odd"])
    beta, dim, kind, picture = box.children
    assert isinstance(beta, ipywidgets.FloatSlider)
    assert (beta.min, beta.max, beta.value, beta.description) == (0.0, 2.0, 0.5, "β")
    assert 0 < beta.step <= 0.5 / 4
    assert isinstance(dim, ipywidgets.IntSlider)
    assert (dim.min, dim.max, dim.step, dim.value, dim.description) == (2, 8, 1, 3, "d")
    assert isinstance(kind, ipywidgets.SelectionSlider)
    assert (kind.options, kind.value) == (("plain", "fancy", "odd"), "fancy")
    assert BeautifulSoup(picture.value, "html.parser").img["alt"] == sentence(beta=0.5, dim=3, kind="fancy")


@pytest.mark.usefixtures("live")
@pytest.mark.parametrize("values", [[2.0], [-1e-3, 1e-3], [0.0, 1e6], [3], ["only"]])
def test_live_sliders_exist_for_any_grid(shown, values):
    slider, _ = shown(line, alt=sentence, beta=values).children
    assert slider.value == values[len(values) // 2]


@pytest.mark.usefixtures("live")
def test_a_live_slider_leaves_the_grid_and_the_picture_follows(shown):
    slider, picture = shown(line, alt=sentence, beta=[0.0, 1.0, 2.0]).children
    seen = [BeautifulSoup(picture.value, "html.parser")]
    for value in (1.3, 0.2):
        slider.value = value
        seen.append(BeautifulSoup(picture.value, "html.parser"))
        assert seen[-1].img["alt"] == seen[-1].find(role="status").text == sentence(beta=value)
    assert len({soup.img["src"] for soup in seen}) == 3


@pytest.mark.usefixtures("live")
def test_an_error_while_live_is_shown_and_the_sliders_survive(shown):
    def draw(beta):
        if beta > 1.5:
            raise ArithmeticError("<too> much")
        return line(beta=beta)

    slider, picture = shown(draw, alt=sentence, beta=[0.0, 1.0, 2.0]).children
    good = picture.value
    slider.value = 1.7
    alert = BeautifulSoup(picture.value, "html.parser").find(role="alert")
    assert "explore failed at beta=1.7: ArithmeticError: <too> much" in alert.text
    assert "<img" not in picture.value
    slider.value = 1.0
    assert picture.value == good


@pytest.mark.usefixtures("live")
def test_hostile_text_stays_text_while_live(shown):
    hostile = """</p><b>"bold" & 'brave'</b> and more of it"""
    _, picture = shown(line, alt=hostile, beta=[1, 2]).children
    soup = BeautifulSoup(picture.value, "html.parser")
    assert soup.b is None
    assert soup.img["alt"] == soup.find(role="status").text == hostile


def test_only_the_value_one_of_the_variable_asks_for_players(shown, monkeypatch):
    for value in ("", "0"):
        monkeypatch.setenv("EXPLORE_STATIC", value)
        assert isinstance(shown(line, alt=SENTENCE, beta=[1, 2]), ipywidgets.VBox)
    monkeypatch.setenv("EXPLORE_STATIC", "1")
    assert os.environ["EXPLORE_STATIC"] == "1"
    assert "<figure" in shown(line, alt=SENTENCE, beta=[1, 2]).data


@pytest.mark.parametrize("values", [["x", "x"], [1.0000001, 1.0000002], {1, 2}, 3, None, b"ab"])
def test_values_that_cannot_be_told_apart_or_ordered_are_refused(values):
    with pytest.raises((TypeError, ValueError), match="a must"):
        explore(lambda a: plt.figure(), alt="A sentence that is long enough.", a=values)


def test_a_name_that_is_no_parameter_is_refused():
    with pytest.raises(ValueError, match="grid must name parameters of draw"):
        explore(lambda **_: plt.figure(), alt="A sentence that is long enough.", **{'x"y': [1, 2]})
