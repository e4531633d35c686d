"""The bookkeeping: the packages and their lock, one place for the repository's address, no traces of a machine."""

import importlib.metadata
import itertools
import re
import subprocess
import sys
import tomllib

import pytest
import setup
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

PLATFORMS = [
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"},
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64", "os_name": "posix"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64", "os_name": "posix"},
]
PYTHONS = ["3.11", "3.12", "3.13"]
TARGETS = [
    {**platform, "python_version": python, "python_full_version": f"{python}.6"}
    for platform, python in itertools.product(PLATFORMS, PYTHONS)
]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory, copy_repository):
    """Text files by name."""
    copy, texts = copy_repository(tmp_path_factory.mktemp("tracked")), {}
    for path in copy.rglob("*"):
        if path.is_file() and b"\0" not in (data := path.read_bytes()):
            texts[path.relative_to(copy).as_posix()] = data.decode("utf-8")
    assert len(texts) > 50
    return texts


@pytest.fixture(scope="module")
def listed(root):
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wanted(listed):
    """What is asked for, of the library and of the book."""
    return [
        Requirement(line)
        for line in [*listed["project"]["dependencies"], *itertools.chain(*listed["dependency-groups"].values())]
    ]


@pytest.fixture(scope="module")
def pins():
    return [Requirement(line) for line in setup.lines() if not line.startswith("--")]


@pytest.fixture(scope="module")
def conda(root):
    """The conda part and the pip part of Binder's environment."""
    *names, pip = yaml.safe_load((root / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    return names, pip["pip"]


def version(pin):
    (only,) = pin.specifier
    return Version(only.version)


def installed_on(target, pins):
    """Name and version of what the lock installs there; each only once."""
    found = [(canonicalize_name(pin.name), version(pin)) for pin in pins if holds(pin, target)]
    assert len(found) == len(dict(found))
    return dict(found)


def holds(requirement, target):
    return requirement.marker is None or requirement.marker.evaluate({"extra": "", **target})


def test_conda_holds_only_python_and_pip_and_binder_installs_the_lock(conda):
    names, pip = conda
    assert sorted(re.split(r"[=<> ]", line)[0] for line in names) == ["pip", "python"]
    assert pip == ["-r requirements.lock"]


def test_every_pin_is_exact(pins):
    assert len(pins) > 150
    for pin in pins:
        assert [s.operator for s in pin.specifier] == ["=="], pin
        assert "*" not in str(pin.specifier), pin


def test_pip_looks_nowhere_but_on_pypi_and_the_cpu_index_of_torch():
    options = [line for line in setup.lines() if line.startswith("--")]
    assert options == ["--extra-index-url https://download.pytorch.org/whl/cpu"]


@pytest.mark.parametrize(
    "target", TARGETS, ids=lambda t: "-".join([t["sys_platform"], t["platform_machine"], t["python_version"]])
)
def test_the_lock_holds_what_is_asked_for_everywhere_and_no_cuda(target, wanted, pins):
    """PyPI's own torch for Linux brings CUDA, several GB."""
    locked = installed_on(target, pins)
    for requirement in wanted:
        if holds(requirement, target):
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)], prereleases=True)
    assert locked["torch"].local == ("cpu" if target["sys_platform"] == "linux" else None)
    assert not [name for name in locked if re.match("cuda|nvidia|triton", name)]


def test_the_lock_is_all_that_is_installed(pins):
    """Every package of this environment is there in its locked version, and none lacks what it needs."""
    here = {
        canonicalize_name(found.metadata["Name"]): Version(found.version)
        for found in importlib.metadata.distributions()
    }
    locked = {canonicalize_name(pin.name): version(pin) for pin in pins if pin.marker is None or pin.marker.evaluate()}
    for name in ("pip", "noise-and-choice"):
        here.pop(name)
    locked.pop("pip", None)
    assert here == locked
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    excluded = re.compile(r"torch .* requires (cuda|nvidia|triton)")
    assert [line for line in check.stdout.splitlines() if "requires" in line and not excluded.match(line)] == []


def test_python_is_the_same_everywhere(listed, conda):
    allowed = SpecifierSet(listed["project"]["requires-python"])
    assert [f"3.{minor}" for minor in range(8, 20) if f"3.{minor}.5" in allowed] == PYTHONS
    (python,) = [line.split("=", 1)[1].lstrip("=") for line in conda[0] if line.startswith("python=")]
    assert python in allowed


def test_the_address_of_the_repository_is_written_once(tracked, root):
    """Whoever moves the book edits _config.yml and nothing else."""
    url = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["repository"]["url"].rstrip("/")
    address = url.removesuffix(".git").split("://", 1)[1].lower()
    assert re.fullmatch(r"[\w.-]+/[\w.-]+/[\w.-]+", address)
    found = [name for name, text in tracked.items() if name != "_config.yml" and address in text.lower()]
    assert found == []


def test_no_file_tells_of_the_machine_it_was_written_on(tracked):
    # of anybody's machine: homes and temporary folders; inside a longer path or an address they are none
    needles = [r"/(?:home|Users)/\w+/", r"/roo[t]/", r"/tmp/\w", r"[A-Z]:\\\\?Users\b"]
    pattern = re.compile("|".join(rf"(?<![\w.$<{{}}-]){needle}" for needle in needles))
    found = [f"{name}: {hit}" for name, text in tracked.items() for hit in pattern.findall(text)]
    assert found == []
