"""What `tundish serve TARGET` finds, and how it says what it did not find."""

import sys
import textwrap

import pytest

from tundish.targets import explain, load_target
from tundish_client import ConfigError

LOADER = """
    from tundish import DataLoader
    train = DataLoader([1, 2, 3], batch_size=2)
"""
TWO = (
    LOADER
    + """
    both = {"a": train, "b": DataLoader([4])}
    def make():
        return both
    def single():
        return train
    number = 5
    class Config:
        loader = train
"""
)


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(source, name="feeds_under_test.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return str(path)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("attribute", "feeds"),
    [
        (":train", ["train"]),
        (":both", ["a", "b"]),
        (":make", ["a", "b"]),
        (":single", ["single"]),
        (":Config.loader", ["loader"]),
    ],
)
def test_an_attribute_of_a_file(write, attribute, feeds):
    assert list(load_target(write(TWO) + attribute)) == feeds


def test_the_only_loader_of_a_file(write):
    assert list(load_target(write(LOADER))) == ["train"]


def test_a_relative_file(write):
    write(LOADER)
    assert list(load_target("feeds_under_test.py:train")) == ["train"]


def test_a_module(write):
    write("", "package_under_test/__init__.py")
    write(LOADER, "package_under_test/feeds.py")
    assert list(load_target("package_under_test.feeds:train")) == ["train"]


def test_a_file_imports_its_neighbours(write):
    write("SIZE = 2", "neighbour_under_test.py")
    path = write(
        "from neighbour_under_test import SIZE\nfrom tundish import DataLoader\n"
        "train = DataLoader([1], batch_size=SIZE)"
    )
    assert load_target(path)["train"].batch_size == 2


def test_a_file_named_like_a_module_does_not_replace_it(write):
    import json

    path = write(LOADER, "json.py")
    assert list(load_target(path)) == ["train"]
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("missing.py", "'missing.py' does not exist"),
        (".py:x", "'.py' does not exist"),
        ("no_such_module_here:x", "no module 'no_such_module_here'"),
        ("feeds_under_test", "name one of train, both"),
        ("feeds_under_test.py:nope", "no attribute 'nope'; it has the loaders train, both"),
        ("feeds_under_test.py:number", "must be a DataLoader"),
        ("feeds_under_test.sub:x", "no module 'feeds_under_test.sub'"),
        (":train", "must be file.py:attribute"),
        ("", "must be file.py:attribute"),
    ],
)
def test_what_is_not_there_is_said(write, target, says):
    write(TWO)
    with pytest.raises(ConfigError) as caught:
        load_target(target)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_loaders(write):
    with pytest.raises(ConfigError, match="no DataLoader"):
        load_target(write("x = 1"))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_an_error_of_its_code_passes_and_is_explained(write, source, says):
    path = write("\n" + source)
    with pytest.raises((ImportError, ArithmeticError, SyntaxError)) as caught:
        load_target(path)
    assert not isinstance(caught.value, ConfigError)
    line = explain(caught.value)
    assert says in line
    assert f"{path}, line 2" in line
    assert "\n" not in line
