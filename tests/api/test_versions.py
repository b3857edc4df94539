"""One version, in every file that states it."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _version_in(path: str) -> str:
    found = re.search(r'__version__ = "([^"]+)"', (ROOT / path).read_text())
    assert found, f"{path} states no version"
    return found.group(1)


def _cargo() -> str:
    cargo = tomllib.loads((ROOT / "rustcore/Cargo.toml").read_text())
    return cargo["workspace"]["package"]["version"]


@pytest.mark.parametrize(
    "path", ["service/tundish/_version.py", "clients/tundish_client/_version.py"]
)
def test_python_files_state_the_version_of_the_rust_workspace(path):
    assert _version_in(path) == _cargo()


def test_the_service_requires_the_client_of_its_own_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"tundish-client=={_cargo()}" in project["dependencies"]


@pytest.mark.parametrize("name", ["tundish", "tundish-client"])
def test_installed_distributions_have_the_version(name):
    assert importlib.metadata.version(name) == _cargo()


def test_the_changelog_has_an_entry_for_the_version():
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert _cargo() in headings


def test_the_packages_tell_their_version():
    import tundish
    import tundish_client

    assert tundish.__version__ == tundish_client.__version__ == _cargo()
