"""Binder would build what the book was built with. repo2docker is asked; that needs no Docker."""

import json
import re
import stat
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def dockerfile(tmp_path_factory, copy_repository, environment):
    """What repo2docker says that it would do with a clone."""
    clone = copy_repository(tmp_path_factory.mktemp("clone"))
    command = [
        sys.executable,
        "-m",
        "repo2docker",
        "--no-build",
        "--debug",
        "--user-id",
        "1000",
        "--user-name",
        "jovyan",
        ".",
    ]
    asked = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=120)
    assert asked.returncode == 0, asked.stderr
    return asked.stdout + asked.stderr


def test_the_environment_is_conda_with_the_pinned_python(dockerfile, root):
    python = re.search(r"- python=(3\.\d+)$", (root / "environment.yml").read_text(), re.MULTILINE)[1]
    assert f"Building conda environment for python={python}\n" in dockerfile
    assert 'env update -p ${NB_PYTHON_PREFIX} --file "environment.yml"' in dockerfile
    assert "repo2docker/buildpacks/conda/environment" in dockerfile.replace("-2f", "/")


def test_post_build_is_run(dockerfile):
    assert "RUN ./postBuild\n" in dockerfile


def test_nothing_hides_the_environment_at_the_root(root):
    for name in ("binder", ".binder"):
        assert not (root / name).exists()
    for name in ("Dockerfile", "apt.txt", "runtime.txt", "requirements.txt"):
        assert not (root / name).exists(), f"{name} would change what Binder builds"


def test_post_build_can_be_executed(root):
    path = root / "postBuild"
    assert path.read_bytes().startswith(b"#!/")
    assert path.stat().st_mode & stat.S_IXUSR


def test_post_build_installs_lib_and_the_settings_of_jupyterlab(root, tmp_path, copy_repository, environment):
    """Run as Binder does, with stand-ins for pip and for the prefix."""
    clone = copy_repository(tmp_path / "clone")
    stand_in = tmp_path / "bin" / "python"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f'#!/bin/sh\ncase "$1" in -c) echo {tmp_path}/prefix;; *) echo "$@" >> {tmp_path}/calls;; esac\n'
    )
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}:{environment['PATH']}"
    subprocess.run([clone / "postBuild"], cwd="/", env=environment | {"PATH": path}, check=True, timeout=60)
    assert "editable_mode=compat --editable ." in (tmp_path / "calls").read_text()
    installed = tmp_path / "prefix" / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    assert installed.read_text() == (root / "share/jupyter/lab/settings/overrides.json").read_text()


def test_chapters_open_as_notebooks_and_the_news_are_off(root):
    settings = json.loads((root / "share/jupyter/lab/settings/overrides.json").read_text())
    viewers = settings["@jupyterlab/docmanager-extension:plugin"]["defaultViewers"]
    assert viewers["markdown"] == "Jupytext Notebook"
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
