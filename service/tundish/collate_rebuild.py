"""Containers like those of the samples, with other contents.

A class is kept where an object of it can be made without guessing, and is a plain dict, list or
tuple otherwise. No object that belongs to a sample is ever changed.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import MutableMapping, MutableSequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["build_dataclass", "like_dataclass", "like_mapping", "like_sequence", "like_tuple"]


def like_mapping(example: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the class of `example` that holds `items`, or `items` itself.

    A mutable mapping that knows how to be copied is copied first, so that what it carries besides
    its items comes along (a defaultdict's factory); else the class is called with `items`.
    """
    if type(example) is dict:
        return items
    if isinstance(example, MutableMapping) and _copies(type(example)):
        built = _attempt(lambda: _filled(example, items.items()))
        # Not whether it holds the very objects: a class may convert what is put into it.
        if _alike(built, example, items) and all(key in built for key in items):
            return built
    built = _attempt(lambda: type(example)(items))  # type: ignore[call-arg]
    return built if _alike(built, example, items) and _holds(built, items.items()) else items


def like_sequence(example: Sequence[Any], items: list[Any]) -> Any:
    """A sequence of the class of `example` that holds `items`, or `items` itself."""
    if type(example) is list:
        return items
    if isinstance(example, MutableSequence) and _copies(type(example)):
        built = _attempt(lambda: _filled(example, enumerate(items)))
        if _alike(built, example, items):
            return built
    built = _attempt(lambda: type(example)(items))  # type: ignore[call-arg]
    return built if _alike(built, example, items) and _holds(built, enumerate(items)) else items


def like_tuple(example: tuple[Any, ...], items: list[Any]) -> Any:
    """A tuple of the class of `example` that holds `items`; a plain one if that can't be made."""
    kind = type(example)
    built: Any
    try:
        built = tuple.__new__(kind, items)
    except TypeError:  # a structure in C, such as os.stat_result
        built = _attempt(lambda: kind(items))
        return built if _alike(built, example, items) else tuple(items)
    if hasattr(example, "__dict__"):
        vars(built).update(vars(example))
    return built


def build_dataclass(kind: type, values: dict[str, Any]) -> Any:
    """An object of a dataclass with these fields, made without its ``__init__``.

    Raises:
        TypeError: the class needs another way, as exceptions do.
        AttributeError: a field can't be set.
    """
    built: Any = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(built, name, value)
    return built


def like_dataclass(example: Any, changes: dict[str, Any]) -> Any:
    """A copy of a dataclass object in which some fields are others."""
    values = dict(getattr(example, "__dict__", ()))
    for field in dataclasses.fields(example):
        if hasattr(example, field.name):
            values[field.name] = getattr(example, field.name)
    return build_dataclass(type(example), values | changes)


def _copies(kind: type) -> bool:
    """Whether copy.copy gives an object with contents of its own.

    Without a ``__copy__`` it only copies references: writing to such a copy would change the sample
    that it was made from.
    """
    return issubclass(kind, (dict, list)) or hasattr(kind, "__copy__")


def _attempt(make: Callable[[], Any]) -> Any:
    """What `make` returns; None where the class has other ideas of how it is made."""
    try:
        return make()
    except Exception:
        return None


def _filled(example: Any, items: Iterable[tuple[Any, Any]]) -> Any:
    built = copy.copy(example)
    for key, item in items:
        built[key] = item
    return built


def _alike(built: Any, example: Any, items: Any) -> bool:
    return type(built) is type(example) and len(built) == len(items)


def _holds(built: Any, items: Iterable[tuple[Any, Any]]) -> bool:
    """Whether the very objects are in there, and not something made of them."""
    return bool(_attempt(lambda: all(built[key] is item for key, item in items)))
