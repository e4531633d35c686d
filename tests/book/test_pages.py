"""The built pages: nothing broken, missing or fetched from elsewhere, and sliders that work for everybody."""

import functools
import itertools
import posixpath
import re
import statistics
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup
from conftest import documents, is_notebook
from PIL import Image
from playwright.sync_api import expect

PAGES = [*documents(), "genindex", "search"]
LARGEST_PAGE = 3_000_000
LARGEST_PLAYER = 400_000
REDRAW_SECONDS = 0.3
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
# Elements that make a browser fetch what they point to; a plain link does not.
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


@pytest.fixture(scope="module")
def parsed(book):
    """Each page, parsed: {path relative to the book: soup}."""
    paths = (path for path in book.rglob("*.html") if "_static" not in path.parts)
    return {path.relative_to(book).as_posix(): BeautifulSoup(path.read_text(), "html.parser") for path in paths}


# --- what is written ------------------------------------------------------------------------------------------------


def test_every_page_of_the_contents_was_built(parsed):
    assert {f"{page}.html" for page in [*PAGES, "index"]} <= set(parsed)


def test_no_cell_left_an_error_or_a_warning(parsed):
    selector = ".cell_output .traceback, .cell_output .stderr, .system-message, .problematic"
    found = [(name, tag.text[:300]) for name, soup in parsed.items() for tag in soup.select(selector)]
    found += [
        (name, output.text[:300])
        for name, soup in parsed.items()
        for output in soup.select(".cell_output")
        if re.search(r"Traceback \(most recent|Error:|Warning:", output.text)
    ]
    assert not found


def test_every_cell_output_shows_something(parsed):
    empty = [
        (name, str(output)[:300])
        for name, soup in parsed.items()
        for output in soup.select(".cell_output, .cell_output > .output, article figure")
        if not output.text.strip() and not output.find("img")
    ]
    assert not empty


def test_no_markup_is_left_as_text(parsed):
    """A misspelt role or directive would be shown as it was typed."""
    found = []
    for name, soup in parsed.items():
        for text in soup.select_one("article").find_all(string=True) if soup.select_one("article") else ():
            # in a function's signature, * and ** are Python
            if not text.find_parent(["pre", "code", "script", "style"]) and not text.find_parent(
                class_=["math", "sig"]
            ):
                found += [(name, hit) for hit in re.findall(r"```.*|:::.*|\{[a-z:-]+\}`.*|\*\*.*|\$.*|\]\(.*", text)]
    assert not found


def test_every_image_is_there_and_is_not_blank(parsed, book):
    for name, soup in parsed.items():
        for image in soup("img"):
            if not image["src"].startswith("data:"):
                path = (book / name).parent / urlsplit(image["src"]).path
                assert path.is_file(), f"{name}: {image['src']}"
                if path.suffix == ".png":
                    with Image.open(path) as opened:
                        extrema = opened.convert("RGB").getextrema()
                    assert any(low < high for low, high in extrema), f"{name}: {image['src']} is blank"


def test_every_figure_says_what_is_seen(parsed):
    figures = [(name, image.get("alt", "")) for name, soup in parsed.items() for image in soup.select("article img")]
    assert figures
    poor = [
        (name, alt)
        for name, alt in figures
        if len(alt) < 20 or " " not in alt.strip() or re.search(r"\.(png|svg|jpe?g)$", alt)
    ]
    assert not poor


def test_internal_links_and_fragments_resolve(parsed, book):
    broken = []
    for name, soup in parsed.items():
        for tag in soup.select("[href], [src]"):
            target = urlsplit(tag.get("href") or tag.get("src") or "")
            if target.scheme or target.netloc:
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(target.path) or "."))
            path = path if target.path else name
            if not (book / path).is_file():
                broken.append((name, target.geturl(), "no such file"))
            elif target.fragment and not parsed[path].find(id=unquote(target.fragment)):
                broken.append((name, target.geturl(), "no such place in the page"))
    assert not broken


def test_no_two_elements_of_a_page_share_an_id(parsed):
    for name, soup in parsed.items():
        idents = sorted(tag["id"] for tag in soup(id=True))
        assert [a for a, b in itertools.pairwise(idents) if a == b] == [], name


def test_pages_and_players_are_light(parsed, book):
    for name, soup in parsed.items():
        sources = {image["src"] for image in soup("img") if not image["src"].startswith("data:")}
        images = sum(((book / name).parent / urlsplit(source).path).stat().st_size for source in sources)
        assert (book / name).stat().st_size + images <= LARGEST_PAGE, name
        for player in soup.select("figure.explore"):
            assert len(str(player).encode()) <= LARGEST_PLAYER, f"{name}: {player['id']}"


def test_nothing_is_fetched_from_another_host(parsed, book):
    for name, soup in parsed.items():
        for element, attribute in FETCHED.items():
            for tag in soup(element):
                address = urlsplit(tag.get(attribute, ""))
                assert not address.netloc, f"{name}: {tag}"
        for style in [*soup("style"), *soup(style=True)]:
            assert not re.search(r"url\(\W?(https?:)?//|@import", style.get("style") or style.text), f"{name}: {style}"
    for path in (book / "_static").rglob("*.css"):
        assert not re.search(r"url\(\W?(https?:)?//", path.read_text()), path


def test_the_launch_button_opens_the_chapter_in_jupyterlab_on_binder(notebook, parsed, root):
    repository = yaml.safe_load((root / "_config.yml").read_text())["repository"]
    name = "/".join(urlsplit(repository["url"]).path.strip("/").split("/")[:2])
    soup = parsed[f"{notebook}.html"]
    launch = [link["href"] for link in soup.select(".dropdown-launch-buttons a")]
    address = f"https://mybinder.org/v2/gh/{name}/{repository['branch']}?urlpath=lab/tree/{notebook}.md"
    assert launch == [address]


def test_pages_without_code_have_no_launch_button_and_no_page_has_another_service(parsed):
    for name, soup in parsed.items():
        if not (name.removesuffix(".html") in documents() and is_notebook(name.removesuffix(".html"))):
            assert not soup.select(".dropdown-launch-buttons"), name
        assert not soup.select("[href*=colab], .btn-launch-thebe, script[type='text/x-thebe-config']"), name
        assert "widgets/html-manager" not in str(soup), f"{name} needs a library of ipywidgets"


# --- what a browser shows -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(book):
    class Quiet(SimpleHTTPRequestHandler):
        def do_GET(self):
            # browsers ask every host for this one, whatever its pages say
            if self.path == "/favicon.ico":
                self.send_response(204)
                self.end_headers()
            else:
                super().do_GET()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=book)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture(params=["file", "http"])
def origin(request, book):
    """The book as files on disk, and behind a web server."""
    return book.as_uri() if request.param == "file" else request.getfixturevalue("server")


@pytest.fixture
def visit(browser):
    """A function that opens a page and waits until it is complete; whatever goes wrong is in its second result."""
    contexts = []

    def open_page(address, viewport=DESK, **options):
        contexts.append(browser.new_context(viewport=viewport, **options))
        page, troubles = contexts[-1].new_page(), []
        page.set_default_timeout(30_000)
        home = urlsplit(address).netloc

        def request(request):
            target = urlsplit(request.url)
            if target.scheme != "data" and (target.scheme, target.netloc) != (urlsplit(address).scheme, home):
                troubles.append(f"asks another host: {request.url}")

        def response(response):
            if response.status >= 400:
                troubles.append(f"{response.status} for {response.url}")

        page.on("request", request)
        page.on("response", response)
        page.on("requestfailed", lambda request: troubles.append(f"{request.failure}: {request.url[:200]}"))
        page.on("console", lambda line: troubles.append(f"console: {line.text}") if line.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(f"exception: {error}"))
        page.goto(address)
        page.evaluate("document.fonts.ready")
        if page.locator(".math").count():
            page.wait_for_function("window.MathJax?.startup?.promise")
            page.evaluate("MathJax.startup.promise")
        ready = "image => image.src.startsWith('data:image/svg+xml,')"
        page.wait_for_function(f"Array.from(document.querySelectorAll('.explore img')).every({ready})")
        # answers and hidden cells count as much as what is open
        page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
        return page, troubles

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_completely_from_here_alone_and_its_mathematics_is_typeset(name, origin, visit):
    page, troubles = visit(f"{origin}/{name}.html")
    broken = "Array.from(document.images).filter(image => !image.naturalWidth).map(image => image.src)"
    assert page.evaluate(broken) == []
    assert page.locator(".math:not(:has(mjx-container))").all_text_contents() == []
    assert page.locator("mjx-merror, [data-mjx-error], mjx-mtext[style*=red]").all_text_contents() == []
    assert troubles == []


@pytest.mark.parametrize("name", PAGES)
def test_nothing_sticks_out_on_a_phone(name, book, visit):
    page, _ = visit(f"{book.as_uri()}/{name}.html", PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    parts = page.locator(".explore :is(label, input, output, img, figcaption)")
    sides = "parts => parts.map(part => [part.getBoundingClientRect().left, part.getBoundingClientRect().right])"
    assert [side for side in parts.evaluate_all(sides) if side[0] < 0 or side[1] > PHONE["width"]] == []


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_outputs_are_accessible(notebook, mode, book, visit):
    page, _ = visit(f"{book.as_uri()}/{notebook}.html", color_scheme=mode)
    assert page.locator("html").get_attribute("data-theme") == mode
    results = Axe().run(page, context={"include": [[".cell_output"]]})
    assert results.violations_count == 0, results.generate_report()


def state(player):
    """What is seen and said; waits for the picture."""
    return player.evaluate(
        """async player => {
            const image = player.querySelector("img"), start = performance.now();
            await image.decode();
            const box = image.getBoundingClientRect();
            return {
                seconds: (performance.now() - start) / 1000, width: image.naturalWidth,
                src: image.src, alt: image.alt, caption: player.querySelector("[role=status], [aria-live]").textContent,
                values: Array.from(player.querySelectorAll("output"), output => output.textContent),
                box: [box.width, box.height], height: player.getBoundingClientRect().height,
            };
        }"""
    )


def walk(page, slider, player):
    """The states of a player as one of its sliders goes from its first value to its last, by keyboard, and back."""
    slider.focus()
    start, last = int(slider.input_value()), int(slider.get_attribute("max"))
    page.keyboard.press("Home")
    states = [state(player)]
    for _ in range(last):
        page.keyboard.press("ArrowRight")
        states.append(state(player))
    page.keyboard.press("Home")
    assert state(player)["src"] == states[0]["src"]
    page.keyboard.press("End")
    assert state(player)["src"] == states[-1]["src"]
    for index in reversed(range(start, last)):
        page.keyboard.press("ArrowLeft")
        assert state(player)["src"] == states[index]["src"]
    return states


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_every_slider_moves_the_picture_and_its_description_and_nothing_else(notebook, viewport, book, visit, root):
    page, troubles = visit(f"{book.as_uri()}/{notebook}.html", viewport)
    players = page.locator("figure.explore")
    assert players.count() == (root / f"{notebook}.md").read_text().count("\nexplore(")
    jumps = []
    for player in players.all():
        assert player.locator("[role=status], [aria-live=polite]").count() == 1
        for position, slider in enumerate(player.locator("input[type=range]").all()):
            label = player.locator(f"label[for='{slider.get_attribute('id')}']")
            assert label.is_visible()
            assert label.text_content().strip()
            assert player.locator("output").nth(position).is_visible()
            states = walk(page, slider, player)
            for part in ("src", "alt", "caption"):
                assert len({seen[part] for seen in states}) == len(states), f"{label.text_content()}: {part} stays"
            assert len({seen["values"][position] for seen in states}) == len(states)
            assert all(seen["alt"] == seen["caption"] and len(seen["alt"]) >= 20 for seen in states)
            assert all(seen["width"] > 0 for seen in states)
            assert statistics.median(seen["seconds"] for seen in states) <= REDRAW_SECONDS
            assert len({tuple(seen["box"]) for seen in states}) == 1, "the picture changes its size"
            heights = [seen["height"] for seen in states]
            jumps.append((player.get_attribute("id"), label.text_content(), max(heights) - min(heights)))
    assert troubles == []
    assert [jump for jump in jumps if jump[-1] >= 1] == [], "what is below a player moves, by so many pixels"


def test_a_page_that_is_come_back_to_shows_what_its_sliders_say(notebook, server, visit):
    """Browsers put sliders back where they were left."""
    page, _ = visit(f"{server}/{notebook}.html")
    sliders = page.locator(".explore input:first-of-type")
    for slider in sliders.all():
        slider.press("End")
    left = [state(player) for player in page.locator(".explore").all()]
    page.goto(f"{server}/search.html")
    page.go_back()
    for slider, player, before in zip(sliders.all(), page.locator(".explore").all(), left, strict=True):
        assert slider.input_value() == slider.get_attribute("max")
        expect(player.locator("img")).to_have_attribute("alt", before["alt"])
        now = state(player)
        assert (now["src"], now["values"]) == (before["src"], before["values"])
