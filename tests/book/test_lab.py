"""A chapter opened in JupyterLab, the way the launch button on its page does it: as a notebook that runs and moves."""

import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from urllib.error import URLError
from urllib.parse import parse_qs, urlsplit

import jupytext
import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import expect

CHAPTER = "chapters/tokens/two-tokens"
SECONDS_TO_RUN = 120
# what an output with a traceback or a warning is made of
TROUBLE = "[data-mime-type='application/vnd.jupyter.error'], [data-mime-type='application/vnd.jupyter.stderr']"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def lab(tmp_path_factory, copy_repository, environment):
    """The address of a JupyterLab that was just installed: no settings but those of the environment. And its token."""
    work = tmp_path_factory.mktemp("lab")
    clone = copy_repository(work / "clone")
    port, token = free_port(), secrets.token_hex(16)
    clean = {
        "JUPYTER_CONFIG_DIR": f"{work}/config",
        "JUPYTER_DATA_DIR": f"{work}/data",
        "JUPYTER_RUNTIME_DIR": f"{work}/runtime",
        "JUPYTERLAB_SETTINGS_DIR": f"{work}/settings",
        "JUPYTERLAB_WORKSPACES_DIR": f"{work}/workspaces",
        "JUPYTER_PREFER_ENV_PATH": "1",
        "OMP_NUM_THREADS": "1",  # many threads on few cores that others use too would wait for each other
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    command += [f"--ServerApp.port={port}", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={clone}"]
    log = work / "log"
    with log.open("w") as output:
        server = subprocess.Popen(command, cwd=clone, env=environment | clean, stdout=output, stderr=output)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(address, server, log)
        yield address, token
    finally:
        server.terminate()
        try:
            server.wait(20)  # it stops its kernels first
        except subprocess.TimeoutExpired:
            server.kill()


def wait_for(address, server, log):
    for _ in range(120):
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"{address}/api", timeout=5).close()
            return
        except (URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-3000:]}", pytrace=False)


@pytest.fixture(scope="module")
def launched(lab, book, browser):
    """The chapter in JupyterLab, at the path that its launch button names."""
    soup = BeautifulSoup((book / f"{CHAPTER}.html").read_text(), "html.parser")
    button = soup.select_one(".dropdown-launch-buttons a[href^='https://mybinder.org/']")
    (path,) = parse_qs(urlsplit(button["href"]).query)["urlpath"]
    address, token = lab
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(60_000)
    page.goto(f"{address}/{path}?token={token}")
    page.wait_for_selector(".jp-Notebook, .jp-FileEditor, .jp-MarkdownViewer, .jp-Dialog")
    yield page
    page.close()


def test_a_chapter_opens_as_a_notebook_and_nothing_is_in_the_way(launched):
    expect(launched.locator(".jp-Notebook .jp-CodeCell").first).to_be_visible()
    expect(launched.locator(".jp-FileEditor, .jp-MarkdownViewer")).to_have_count(0)
    launched.wait_for_timeout(5000)  # pop-ups take their time
    expect(launched.locator(".jp-Dialog, .jp-toast-button, .Toastify__toast")).to_have_count(0)


@pytest.fixture(scope="module")
def executed(launched, root):
    """The same with its cells executed up to the first with sliders, when all cells are there and the kernel is.

    (The whole of every chapter is executed when the book is built.)
    """
    cells = [cell for cell in jupytext.read(root / f"{CHAPTER}.md").cells if cell.cell_type == "code"]
    last = next(index for index, cell in enumerate(cells) if "\nexplore(" in cell.source)
    expect(launched.locator(".jp-CodeCell")).to_have_count(len(cells))
    expect(launched.locator("#jp-main-statusbar")).to_contain_text("| Idle")
    launched.wait_for_timeout(5000)
    expect(launched.locator("#jp-main-statusbar")).to_contain_text("| Idle")
    prompts = launched.locator(".jp-CodeCell .jp-InputPrompt")
    prompts.nth(last).click()
    launched.get_by_role("menuitem", name="Run", exact=True).click()
    launched.get_by_role("menuitem", name="Run All Above Selected Cell", exact=True).click()
    launched.keyboard.press("Control+Enter")
    launched.wait_for_function(
        """([trouble, last]) => document.querySelector(trouble) ||
            Array.from(document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")).slice(0, last + 1)
                .every(prompt => /[0-9]/.test(prompt.textContent))""",
        arg=[TROUBLE, last],
        timeout=1000 * SECONDS_TO_RUN,
    )
    return launched


def test_a_chapter_runs_without_an_error_or_a_warning(executed):
    assert executed.locator(TROUBLE).all_text_contents() == []


def test_directives_and_roles_are_rendered(executed):
    cells = executed.locator(".jp-MarkdownCell .myst")
    assert cells.count() > 0
    expect(executed.locator(".myst-admonition").first).to_be_attached()
    expect(executed.locator(".myst-proof").first).to_be_attached()
    text = "\n".join(cells.all_text_contents())
    assert re.findall(r"```.*|:::.*|\{[a-z:]+\}`.*", text) == []
    assert executed.locator(".myst-admonition details[open]").count() == 0, "an answer is open"


def test_a_slider_moved_by_keyboard_recomputes_the_picture(executed):
    outputs = executed.locator(".jp-OutputArea-output:has([role=slider]):has([role=status])")
    assert outputs.count() > 0
    for output in outputs.all():
        output.scroll_into_view_if_needed()
        before = output.locator("img").get_attribute("src"), output.locator("img").get_attribute("alt")
        output.get_by_role("slider").first.press("ArrowRight")
        expect(output.locator("img")).not_to_have_attribute("src", before[0])
        expect(output.locator("img")).not_to_have_attribute("alt", before[1])
        expect(output.locator("[role=alert]")).to_have_count(0)
        assert output.locator("[role=status]").text_content() == output.locator("img").get_attribute("alt")
        assert output.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
