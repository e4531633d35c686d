"""The set-up: when it installs again, and that a browser is seen to before anything that takes minutes."""

import os
import shutil
import subprocess
import sys

import browser
import pytest
import setup


@pytest.fixture
def calls(tmp_path, copy_repository, monkeypatch):
    """A copy of the repository with stand-ins for all that takes long; returns what was called."""
    folder, calls = copy_repository(tmp_path / "clone"), []
    for name, path in {
        "ROOT": ".", "VENV": ".venv", "LOCK": "requirements.lock", "PYTHON": ".venv/bin/python",
        "PACKAGES": ".venv/packages.sha256", "BOOK": ".venv/book.sha256",
    }.items():  # fmt: skip
        monkeypatch.setattr(setup, name, folder / path)

    def make_venv():
        calls.append("venv")
        (folder / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
        (folder / ".venv" / "bin" / "python").touch()

    monkeypatch.setattr(setup, "make_venv", make_venv)
    monkeypatch.setattr(setup, "pip", lambda *lines, options: calls.append(f"pip {len(lines)}"))
    monkeypatch.setattr(setup.subprocess, "run", lambda command, **_: calls.append(command[0].name))
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    return calls


def set_up(calls):
    """What a call does now."""
    calls.clear()
    setup.main()
    return [call.split()[0] for call in calls]


def test_it_installs_again_if_contents_change_and_not_if_times_do(calls):
    everything = ["venv", "pip", "pip", "postBuild"]
    assert set_up(calls) == everything
    assert set_up(calls) == []
    for name in ("requirements.lock", "pyproject.toml", "postBuild", setup.SETTINGS):
        os.utime(setup.ROOT / name, (2e9, 2e9))
    assert set_up(calls) == []
    for name, again in [
        ("requirements.lock", everything), ("pyproject.toml", ["postBuild"]), ("postBuild", ["postBuild"]),
        (setup.SETTINGS, ["postBuild"]), ("coursework/transition.md", ["postBuild"]),
    ]:  # fmt: skip
        path = setup.ROOT / name
        before = path.read_bytes()
        path.write_bytes(before + b"\n")
        assert set_up(calls) == again, name
        assert set_up(calls) == [], name
        path.write_bytes(before)
        assert set_up(calls) == again, name


def test_an_environment_whose_python_is_gone_is_made_again(calls):
    set_up(calls)
    setup.PYTHON.unlink()
    assert set_up(calls)[0] == "venv"


def test_an_environment_beside_another_clone_needs_no_packages_again(calls, copy_repository, tmp_path, monkeypatch):
    set_up(calls)
    other = copy_repository(tmp_path / "other")
    shutil.copytree(setup.VENV, other / ".venv")
    monkeypatch.setattr(setup, "ROOT", other)
    assert set_up(calls) == ["postBuild"]


def test_what_failed_is_tried_again(calls, monkeypatch):
    def fail(*lines, options):
        raise subprocess.CalledProcessError(1, "pip")

    with monkeypatch.context() as patch:
        patch.setattr(setup, "pip", fail)
        with pytest.raises(subprocess.CalledProcessError):
            setup.main()
    assert set_up(calls)[:2] == ["venv", "pip"]


def test_every_line_of_the_lock_is_installed(calls, monkeypatch):
    seen = []
    monkeypatch.setattr(setup, "pip", lambda *lines, options: seen.extend(lines))
    setup.main()
    assert sorted(seen) == sorted(setup.lines())
    assert sum(line.startswith("torch==") for line in seen) == 2


@pytest.fixture
def installers(monkeypatch, calls):
    """No browser, and stand-ins for what installs one."""
    monkeypatch.setattr(sys, "argv", ["setup.py", "--browser"])
    monkeypatch.setattr(browser, "find", lambda: None)
    monkeypatch.setattr(browser, "can_be_driven", lambda: True)
    monkeypatch.setattr(browser, "install_by_apt", lambda *names: calls.append("apt"))
    monkeypatch.setattr(browser, "install_by_playwright", lambda python: calls.append("playwright"))
    return monkeypatch


def test_a_browser_that_is_there_is_taken(installers, calls):
    installers.setattr(browser, "find", lambda: "/usr/bin/chromium")
    assert set_up(calls)[0] == "venv"
    assert "apt" not in calls


def test_a_browser_from_apt_comes_before_everything(installers, calls):
    installers.setattr(browser, "find", lambda: "chromium" if "apt" in calls else None)
    assert set_up(calls)[:2] == ["apt", "venv"]
    assert "playwright" not in calls


def test_else_playwrights_comes_before_all_other_packages(installers, calls):
    class Found:
        returncode = 0

    installers.setattr(setup.subprocess, "run", lambda command, **_: calls.append(command[0].name) or Found)
    assert set_up(calls)[:5] == ["apt", "venv", "pip", "playwright", "python"]
    assert calls[2] == "pip 1"  # Playwright, with what it needs
    assert calls[6:8] == ["pip 3", f"pip {len(setup.lines()) - 3}"]  # torch and its index; all the others


def test_without_a_browser_there_is_one_message_and_nothing_else(installers, calls):
    class Failed:
        returncode = 1

    installers.setattr(setup.subprocess, "run", lambda command, **_: Failed)
    with pytest.raises(SystemExit, match="none here that starts"):
        setup.main()
    assert calls == ["apt", "venv", "pip 1", "playwright"]


def test_a_browser_that_cannot_be_driven_is_not_enough(installers, calls):
    installers.setattr(browser, "find", lambda: "/usr/bin/chromium")
    installers.setattr(browser, "can_be_driven", lambda: False)
    with pytest.raises(SystemExit, match="no libatomic"):
        setup.main()
    assert calls == ["apt"]
    installers.setattr(browser, "can_be_driven", lambda: calls.count("apt") > 1)
    setup.main()
    assert calls[:3] == ["apt", "apt", "venv"]


def test_a_program_that_only_tells_how_to_get_a_browser_is_none(tmp_path, monkeypatch):
    stand_in = tmp_path / "chromium"
    stand_in.write_text("#!/bin/sh\necho 'Command requires the chromium snap'\nexit 1\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(browser, "playwrights", list)
    monkeypatch.setattr(browser, "APPLICATIONS", ())
    assert browser.find() is None
    stand_in.write_text("#!/bin/sh\necho Chromium 1\n")
    assert browser.find() == str(stand_in)
