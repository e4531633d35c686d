"""The built pages: nothing broken, missing or fetched from elsewhere, and sliders that work for everybody."""

import functools
import itertools
import posixpath
import re
import statistics
import threading
from collections import Counter
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlsplit

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from bs4 import BeautifulSoup
from execute import documents, is_notebook
from PIL import Image
from playwright.sync_api import expect

PAGES = [*documents(), "genindex", "search"]
LARGEST_PAGE = 3_000_000
LARGEST_PLAYER = 400_000
UNFOLD = """() => {
    document.querySelectorAll("details").forEach(details => { details.open = true; });
    document.querySelectorAll(".toggle-button-hidden").forEach(button => button.click());
}"""
REDRAW_SECONDS = 0.3
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
AXE_EXCEPT = {
    "region": "no rule of WCAG: the theme shows the book's name in the side bar beside its landmark, not in it",
}
# What axe would judge thousands of times over: a typeset formula is up to a thousand elements without a role, and one
# letter in a box of its size stands for them; of each colour of code, one piece in each kind of cell is kept.
ONE_OF_A_KIND = """() => {
    document.querySelectorAll("mjx-container").forEach(formula => {
        const box = formula.getBoundingClientRect();
        formula.replaceChildren("x");
        formula.style = `display: inline-block; width: ${box.width}px; height: ${box.height}px`;
    });
    const seen = new Set();
    document.querySelectorAll(".highlight span[class]").forEach(piece => {
        const kind = `${piece.className} in ${piece.closest(".highlight").parentElement.className}`;
        if (seen.has(kind)) piece.replaceWith(...piece.childNodes);
        seen.add(kind);
    });
}"""
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
    markup = re.compile(r"```.*|:::.*|\{[a-z:-]+\}`.*|\*\*.*|\$.*|\]\(.*")
    found = [
        (name, text)
        for name, soup in parsed.items()
        for article in soup("article")
        for text in article.find_all(string=markup)
        # in a function's signature, * and ** are Python
        if not text.find_parent(["pre", "code", "script", "style"]) and not text.find_parent(class_=["math", "sig"])
    ]
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
    idents = {name: {tag["id"] for tag in soup(id=True)} for name, soup in parsed.items()}
    for name, soup in parsed.items():
        for tag in [*soup(href=True), *soup(src=True)]:
            target = urlsplit(tag.get("href") or tag.get("src") or "")
            if target.scheme or target.netloc:
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(target.path) or "."))
            path = path if target.path else name
            if not (book / path).is_file():
                broken.append((name, target.geturl(), "no such file"))
            elif target.fragment and unquote(target.fragment) not in idents[path]:
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

    def open_page(address, viewport=DESK, unfold=True, **options):
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
        if unfold:
            page.evaluate(UNFOLD)
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


@pytest.mark.parametrize("name", [f"{name}.html" for name in PAGES] + ["search.html?q=noise"])
def test_a_whole_page_is_accessible_in_both_themes(name, book, visit):
    """By the rules of WCAG 2.2 AA and axe's own, about all that is on the page."""
    page, _ = visit(f"{book.as_uri()}/{name}", color_scheme="light")
    if "?q=" in name:
        expect(page.locator(".search-summary")).to_contain_text("finished")
    page.evaluate(ONE_OF_A_KIND)
    page.add_style_tag(content="* { transition: none !important; }")  # no colours between two themes
    options = {
        "runOnly": AXE_TAGS,
        "resultTypes": ["violations"],
        "rules": {rule: {"enabled": False} for rule in AXE_EXCEPT},
    }
    for mode in ("light", "dark"):
        page.emulate_media(color_scheme=mode)
        expect(page.locator("html")).to_have_attribute("data-theme", mode)
        results = Axe().run(page, options=options)
        assert results.violations_count == 0, f"{mode}: {results.generate_report()}"


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


# --- what a search marks --------------------------------------------------------------------------------------------

SYNTHETIC = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>A page</title>
<script>
  const toggleHintShow = "Show", toggleHintHide = "Hide", toggleOpenOnPrint = "false", togglebuttonSelector = ".toggle";
</script>
<link rel="stylesheet" href="{static}/togglebutton.css">
<script src="{static}/togglebutton.js"></script><script src="{static}/language_data.js"></script>
<script src="{static}/search.js"></script><script defer src="{static}/mathjax/tex-chtml.js"></script></head>
<body><article class="bd-article"><h1>Itô <em>processes</em></h1>
<p>An Itô\u0302, ITÔ, Ito\u0302; σ and Σ, no sigma; a process, reprocessed; it is the token. &lt;b&gt;bold&lt;/b&gt;</p>
<p>Formula: <span class="math">\\(\\text{{Itô process}} + σ\\)</span> <script type="text/plain">Itô process</script></p>
<div style="height: 3000px"></div>
<details id="shut"><summary>An answer</summary><p>hidden</p></details>
<details id="titled"><summary>A fold on gauges</summary><p>nothing</p></details>
<div class="admonition toggle"><p class="admonition-title">Another</p><p>concealed</p></div>
</article></body></html>"""


@pytest.fixture
def synthetic(book, tmp_path, visit):
    """A function that opens a page of known text, as the search for some words would, and returns it and its marks."""
    target = tmp_path / "page.html"
    target.write_text(SYNTHETIC.format(static=f"{book.as_uri()}/_static"))

    def opened(words):
        page, troubles = visit(f"{target.as_uri()}?found={quote(words)}", unfold=False)
        expect(page.locator(".search-marks")).to_be_visible()
        return page, page.locator("mark").all_text_contents(), troubles

    return opened


@pytest.mark.parametrize(
    ("words", "marks"),
    [
        ("Itô", ["Itô", "Itô\u0302", "ITÔ", "Ito\u0302"]),
        ("ito\u0302", ["Itô", "Itô\u0302", "ITÔ", "Ito\u0302"]),
        ("σ", ["σ", "Σ"]),
        ("processes", ["processes", "process"]),
        ("process", ["processes", "process", "reprocessed"]),
        ("tokens, and the Itô", ["Itô", "Itô\u0302", "ITÔ", "Ito\u0302", "token"]),
        ("<b>bold</b>", ["b", "bold", "b"]),
        ("the 3", []),
        ("absent", []),
    ],
)
def test_a_search_marks_the_words_it_looked_for(words, marks, synthetic):
    page, seen, troubles = synthetic(words)
    assert seen == marks
    said = page.locator(".search-marks [role=status]").text_content()
    assert words in said
    assert (str(len(marks)) if marks else "no match") in said
    assert page.locator(".math mark, script mark").count() == 0
    assert page.locator(".math mjx-container").count() == 1
    assert page.locator("mjx-merror").count() == 0
    assert troubles == []


@pytest.mark.parametrize("key", ["Escape", "Enter"])
@pytest.mark.parametrize(("word", "opens"), [("hidden", "#shut p"), ("concealed", ".toggle p:last-child")])
def test_what_a_search_finds_in_a_fold_is_shown_and_can_be_put_away_by_keyboard(word, opens, key, synthetic):
    page, seen, _ = synthetic(word)
    assert seen == [word]
    expect(page.locator("mark")).to_be_in_viewport()
    expect(page.locator(opens)).to_be_visible()
    assert page.locator("#titled[open]").count() == 0
    if key == "Enter":
        page.locator(".search-marks button").focus()
    page.keyboard.press(key)
    assert page.locator("mark, .search-marks").count() == 0
    expect(page.locator(opens)).to_be_hidden()
    assert "found" not in page.url
    assert page.locator(opens).text_content() == word


def test_a_title_of_a_fold_needs_no_opening(synthetic):
    page, seen, _ = synthetic("gauges")
    assert seen == ["gauges"]
    assert page.locator("#titled[open]").count() == 0


def test_every_result_of_a_search_leads_to_marks(origin, parsed, visit):
    """The words are the two most frequent long ones of the first page; each page found is opened by its link."""
    text = parsed[f"{documents()[0]}.html"].select_one("article").text.lower()
    words = [word for word, _ in Counter(re.findall(r"\b[a-z]{6,}\b", text)).most_common(2)]
    page, troubles = visit(f"{origin}/search.html?q={'+'.join(words)}")
    expect(page.locator(".search-summary")).to_contain_text("finished")
    links = page.locator("#search-results li > a").evaluate_all("links => links.map(link => link.href)")
    pages = {urlsplit(link).path: link for link in links}
    assert pages
    # typesetting, which the tests above await on a page of known text, would take most of the time
    page.route("**/mathjax/**", lambda route: route.fulfill(body="", content_type="text/javascript"))
    for link in pages.values():
        page.goto(link)
        expect(page.locator(".search-marks")).to_be_visible()
        seen = page.locator("article mark")
        assert seen.count() >= 1, link
        assert page.locator(".math mark, script mark").count() == 0, link
        page.keyboard.press("Escape")
        expect(seen).to_have_count(0)
    assert troubles == []
