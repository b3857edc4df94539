"""What to serve: `feeds.py:train` or `package.module:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from tundish.loader import DataLoader
from tundish.server import name_feeds
from tundish_client.errors import ConfigError

__all__ = ["load_target"]


def load_target(target: str) -> dict[str, DataLoader]:
    """Imports a target and returns its feeds.

    Args:
        target: `file.py:attribute` or `package.module:attribute`. The attribute is a DataLoader, a
            dict of them, or a function returning either; without it the only such object of the
            module is taken.

    Returns:
        The feeds by name; a single loader is called like its attribute.

    Raises:
        ConfigError: There is no such file, module or attribute, or it is something else.
        Exception: What the target's own code raised.
    """
    where, _, attribute = target.partition(":")
    if not where:
        raise ConfigError(
            f"target {target!r} must be file.py:attribute or package.module:attribute"
        )
    module = _from_file(where) if _is_path(where) else _from_name(where)
    attribute = attribute or _only(module, target)
    found = _attribute(module, attribute, target)
    try:
        return name_feeds(found, attribute.rpartition(".")[2])
    except ConfigError as error:
        raise ConfigError(f"target {target!r}: {error}") from error


def _is_path(where: str) -> bool:
    return where.endswith(".py") or os.sep in where


def _from_file(path: str) -> ModuleType:
    """Imports a file as Python would run it: with its folder first on the path."""
    full = os.path.abspath(path)
    if not os.path.isfile(full):
        what = "is not a file" if os.path.lexists(full) else "does not exist"
        raise ConfigError(f"target file {path!r} {what}")
    sys.path.insert(0, os.path.dirname(full))
    stem = os.path.splitext(os.path.basename(full))[0]
    # A name that is taken, `random.py` say, must not replace the module others have.
    name = stem if stem.isidentifier() and not _taken(stem, full) else f"tundish_target_{stem}"
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise ConfigError(f"target file {path!r} must be Python source, named *.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _taken(name: str, path: str) -> bool:
    if name in sys.modules:
        return True
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None and os.path.abspath(spec.origin) != path


def _from_name(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"target {name!r} must be file.py:attribute or package.module:attribute")
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f" (a file? write {name}.py)" if os.path.isfile(f"{name}.py") else ""
            raise ConfigError(f"there is no module {error.name!r}{hint}") from error
        raise


def _attribute(module: ModuleType, path: str, target: str) -> Any:
    found: Any = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            names = _feeds_of(module)
            there = f"; it has the loaders {', '.join(names)}" if names else ""
            raise ConfigError(f"target {target!r}: no attribute {name!r}{there}") from error
    return found


def _only(module: ModuleType, target: str) -> str:
    names = _feeds_of(module)
    if len(names) == 1:
        return names[0]
    if not names:
        raise ConfigError(f"target {target!r}: no DataLoader and no dict of them is defined there")
    raise ConfigError(
        f"target {target!r}: several loaders are defined there, name one of {', '.join(names)}, "
        f"as in {target.rstrip(':')}:{names[0]}"
    )


def _feeds_of(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if name[0] != "_" and _offers(value)]


def _offers(value: Any) -> bool:
    if isinstance(value, DataLoader):
        return True
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(loader, DataLoader) for loader in value.values())
    )


def explain(error: BaseException) -> str:
    """One line about an error of the target's code: what, and where in the user's files."""
    text = " ".join(str(error).split())
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<frozen")]
    inside = os.path.dirname(os.path.abspath(__file__))
    theirs = [frame for frame in own if not frame.filename.startswith(inside)]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{what} ({error.filename}, line {error.lineno})"
    if theirs:
        return f"{what} ({theirs[-1].filename}, line {theirs[-1].lineno})"
    return what
