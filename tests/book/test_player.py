"""A player in a browser: that it works, and what it says where it cannot."""

import base64
import gzip
import json
import re

import matplotlib.pyplot as plt
import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import expect

from lib import explore as module
from lib.explore import explore


def sentence(beta):
    return f"A line drawn from the origin at beta = {beta}."


@pytest.fixture
def player(monkeypatch):
    """What the build writes on a page for one slider with three values."""

    def draw(beta):
        figure, ax = plt.subplots(figsize=(3, 2))
        ax.plot([0, beta])
        return figure

    seen = []
    monkeypatch.setenv("EXPLORE_STATIC", "1")
    monkeypatch.setattr(module, "display", seen.append)
    explore(draw, alt=sentence, beta=[1, 2, 3])
    return seen[0].data


@pytest.fixture
def opened(player, browser, tmp_path):
    """A function that opens a page with one player, spoilt by a change of its data or its browser."""
    contexts = []

    def open_page(spoil=None, packed=None, before="", **options):
        soup = BeautifulSoup(player, "html.parser")
        original = soup.find("script", type="text/plain").string
        if spoil:
            data = json.loads(gzip.decompress(base64.b64decode(original)))
            spoil(data)
            packed = base64.b64encode(gzip.compress(json.dumps(data).encode())).decode()
        content = player if packed is None else player.replace(original, packed)
        target = tmp_path / "player.html"
        target.write_text(f'<!DOCTYPE html><meta charset="utf-8"><title>A player</title>{content}')
        contexts.append(browser.new_context(**options))
        contexts[-1].add_init_script(before)
        page = contexts[-1].new_page()
        page.goto(target.as_uri())
        return page, soup

    yield open_page
    for context in contexts:
        context.close()


def assert_put_back(page, soup):
    """What the page showed before any script ran, and no slider that could be moved."""
    assert page.locator("img").get_attribute("src") == soup.img["src"]
    assert (
        page.locator("img").get_attribute("alt")
        == page.locator("[role=status]").text_content()
        == soup.select_one("[role=status]").text
    )
    assert page.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    assert page.locator("output").all_text_contents() == [output.text for output in soup("output")]
    assert page.locator("input").input_value() == soup.input["value"]
    assert page.locator("input").get_attribute("aria-valuetext") == soup.input["aria-valuetext"]
    assert page.locator("input:enabled").count() == 0


def no_frames(data):
    data["frames"] = None


def no_first_frame(data):
    data["frames"][0] = None


def spoilt_first_frame(data):
    data["frames"][0] = [0]


def spoilt_middle_frame(data):
    data["frames"][1] = [0]


@pytest.mark.parametrize(
    "fault",
    [
        {"before": "delete window.DecompressionStream"},
        {"packed": ""},
        {"packed": "not base64"},
        {"packed": base64.b64encode(b"not gzip").decode()},
        {"packed": base64.b64encode(gzip.compress(b"not JSON")).decode()},
        {"packed": base64.b64encode(gzip.compress(b"{}" * 1000)[:-12]).decode()},
        {"spoil": no_frames},
        {"spoil": spoilt_middle_frame},
    ],
)
def test_a_player_that_cannot_start_says_so_and_keeps_its_picture(fault, opened):
    page, soup = opened(**fault)
    expect(page.locator("[role=alert]")).to_contain_text("The sliders do not work here")
    expect(page.locator("[role=alert]")).to_be_visible()
    assert_put_back(page, soup)


@pytest.mark.parametrize("spoil", [no_first_frame, spoilt_first_frame])
def test_a_player_that_fails_later_says_so_and_is_put_back(spoil, opened):
    page, soup = opened(spoil)
    page.locator("input").press("ArrowRight")
    expect(page.locator("img")).to_have_attribute("alt", sentence(beta=3))
    expect(page.locator("[role=alert]")).to_be_hidden()
    page.locator("input").press("Home")
    expect(page.locator("[role=alert]")).to_contain_text("The sliders do not work here")
    assert_put_back(page, soup)


def test_without_javascript_a_player_says_what_it_needs(opened):
    page, soup = opened(java_script_enabled=False)
    expect(page.locator("[role=alert]")).to_have_text(re.compile("^The sliders need JavaScript"))
    expect(page.locator("[role=alert]")).to_be_visible()
    assert page.locator("img").get_attribute("src") == soup.img["src"]


def test_a_player_that_works_says_nothing_of_it(opened):
    page, _ = opened()
    expect(page.locator("input")).to_be_enabled()
    page.locator("input").press("End")
    expect(page.locator("img")).to_have_attribute("alt", sentence(beta=3))
    expect(page.locator("[role=alert]")).to_be_hidden()
