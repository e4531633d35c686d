"""The bookkeeping: pins against ranges, one place for the address of the repository, no traces of a machine."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tracked():
    """Tracked text files by name."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    texts = {}
    for name in filter(None, names.split("\0")):
        data = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""
        if b"\0" not in data:
            texts[name] = data.decode("utf-8")
    assert len(texts) > 10
    return texts


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def environment():
    """The conda part and the pip part of the pinned environment."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    (pip,) = [entry["pip"] for entry in listed if isinstance(entry, dict)]
    return [entry for entry in listed if isinstance(entry, str)], pip


@pytest.fixture(scope="module")
def pins(environment):
    return [Requirement(line) for line in environment[1] if not line.startswith("--")]


def version(pin):
    (only,) = pin.specifier
    return Version(only.version)


def test_conda_holds_only_python_and_pip(environment):
    assert sorted(re.split(r"[=<> ]", line)[0] for line in environment[0]) == ["pip", "python"]


def test_every_pin_is_exact_and_each_package_has_one_on_every_platform(pins):
    for pin in pins:
        assert [s.operator for s in pin.specifier] == ["=="], pin
        assert "*" not in str(pin.specifier), pin
    for platform in ("linux", "darwin", "win32"):
        names = [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate({"sys_platform": platform})]
        assert len(names) == len(set(names)), platform
        assert "torch" in names


def test_pip_looks_nowhere_but_on_pypi_and_the_cpu_index_of_torch(environment):
    options = [line for line in environment[1] if line.startswith("--")]
    assert options == ["--extra-index-url https://download.pytorch.org/whl/cpu"]


def test_torch_for_linux_is_the_cpu_build(pins):
    """PyPI's own build for Linux brings CUDA, several GB."""
    for pin in pins:
        if pin.name == "torch":
            linux = pin.marker is None or pin.marker.evaluate({"sys_platform": "linux"})
            assert version(pin).local == ("cpu" if linux else None)


def test_every_range_of_the_package_holds_the_pin(project, pins):
    for line in project["dependencies"]:
        wanted = Requirement(line)
        found = [pin for pin in pins if pin.name.lower() == wanted.name.lower()]
        assert found, f"{wanted.name} is not pinned"
        for pin in found:
            assert wanted.specifier.contains(version(pin), prereleases=True), (line, str(pin))


def test_python_is_the_same_everywhere(project, environment):
    allowed = SpecifierSet(project["requires-python"])
    assert [minor for minor in range(8, 20) if f"3.{minor}.5" in allowed] == [11, 12, 13]
    (conda,) = [line.split("=", 1)[1].lstrip("=") for line in environment[0] if line.startswith("python=")]
    assert conda in allowed


def test_the_address_of_the_repository_is_written_once(tracked):
    """Whoever moves the book edits _config.yml and nothing else."""
    url = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"].rstrip("/")
    address = url.removesuffix(".git").split("://", 1)[1].lower()
    assert re.fullmatch(r"[\w.-]+/[\w.-]+/[\w.-]+", address)
    found = [name for name, text in tracked.items() if name != "_config.yml" and address in text.lower()]
    assert found == []


def test_the_root_environment_is_the_one_binder_reads(tracked):
    """A binder/ folder (or .binder/) would make the root's environment.yml ignored."""
    for folder in ("binder", ".binder"):
        assert not (ROOT / folder).exists()
        assert not any(name.startswith(folder + "/") for name in tracked)


def test_no_file_tells_of_the_machine_it_was_written_on(tracked):
    needles = ["/" + folder + "/" for folder in ("work", "root")] + ["../" + "shared"]
    # the same folder inside a longer path or an address is no path of a machine
    pattern = re.compile("|".join(rf"(?<![\w.-]){re.escape(needle)}" for needle in needles))
    found = [f"{name}: {hit}" for name, text in tracked.items() for hit in pattern.findall(text)]
    assert found == []
