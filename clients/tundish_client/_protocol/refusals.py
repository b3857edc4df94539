"""Says which part of a value cannot be sent, and why.

Encoding is fast and knows no field names. When it fails, the value is walked again, slowly.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .dtypes import dtype_to_wire
from .registry import describe_object

__all__ = ["explain"]

_SCALARS = (int, float, bool, str, bytes, type(None))
_CONTAINERS = (dict, list, tuple)
_MAX_DEPTH = 64


def explain(value: Any, error: BaseException) -> str:
    """Names the first field of `value` that cannot be sent, its type, and the way out."""
    try:
        found = _Search().visit(value, "value", 0)
    except Exception:  # a __repr__ or a property of the user's
        found = None
    return found or f"value of type {type(value).__name__} cannot be sent: {error}"


class _Search:
    def __init__(self) -> None:
        self.above: list[int] = []

    def visit(self, value: Any, path: str, depth: int) -> str | None:
        """Returns the reason why something in here cannot be sent, None if all can."""
        kind = type(value)
        if kind in _CONTAINERS or describe_object(value) is not None:
            return self._nested(value, path, depth)
        if kind is str:
            return _surrogate(value, path)
        if kind in _SCALARS:
            return None
        if kind in (np.ndarray, np.memmap) or isinstance(value, np.generic):
            return _dtype(value, path)
        if isinstance(value, _deferred()):
            return _dtype(value, path)
        return f"{path} is {_a(kind)}, which cannot be sent{_way_out(value)}"

    def _nested(self, value: Any, path: str, depth: int) -> str | None:
        if id(value) in self.above:
            return f"{path} is {_a(type(value))} that contains itself; a value must be a tree"
        if depth >= _MAX_DEPTH:
            return f"{path} is nested deeper than {_MAX_DEPTH} levels"
        self.above.append(id(value))
        try:
            return self._items(value, path, depth + 1)
        finally:
            self.above.pop()

    def _items(self, value: Any, path: str, depth: int) -> str | None:
        for key, item, place in _children(value):
            found = None
            if key is not None:
                found = self.visit(key, f"the key {key!r:.60} of {path}", depth)
            found = found or self.visit(item, path + place, depth)
            if found:
                return found
        return None


def _deferred() -> type:
    from .values import Deferred  # which imports this module

    return Deferred


def _children(value: Any) -> list[tuple[Any, Any, str]]:
    """Lists (key to check, item, how to write it behind the path)."""
    if type(value) is dict:
        return [(key, item, f"[{key!r:.60}]") for key, item in value.items()]
    if type(value) in (list, tuple):
        return [(None, item, f"[{i}]") for i, item in enumerate(value)]
    described = describe_object(value)
    payload = described[3] if described else None
    if type(payload) is list:
        return [(None, item, f".{value._fields[i]}") for i, item in enumerate(payload)]
    if type(payload) is dict:
        return [(None, item, f".{name}") for name, item in payload.items()]
    return []


def _surrogate(value: str, path: str) -> str | None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"{path} is a str that UTF-8 has no bytes for ({error.reason}): {value!r:.60}"
    return None


def _dtype(value: Any, path: str) -> str | None:
    if type(value) is np.str_:
        return _surrogate(value, path)
    if type(value) is np.bytes_:
        return None
    if isinstance(value, np.generic) and type(value) is not np.asarray(value).dtype.type:
        return f"{path} is {_a(type(value))}, a subclass that would lose its type"
    if type(value) is np.record:
        return f"{path} is a numpy.record, which would come back as a numpy.void"
    dtype = getattr(value, "dtype", None)
    try:
        dtype_to_wire(np.asarray(value).dtype if dtype is None else dtype)
    except TypeError as error:
        return f"{path} is {_a(type(value))} that cannot be sent: {error}"
    return None


def _a(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else _name(kind)
    return f"{'an' if name[:1] in 'aeiou' else 'a'} {name}"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _way_out(value: Any) -> str:
    for base, advice in _ADVICE:
        if isinstance(value, base):
            return f" ({advice})"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return " (let collate_fn return .numpy(); torch.from_numpy makes it a tensor again)"
    module = type(value).__module__
    if module.startswith("datetime"):
        return " (send .isoformat(), .timestamp() or a numpy.datetime64)"
    if module.startswith("pathlib"):
        return " (send str(path))"
    return " (let collate_fn turn it into arrays, numbers, str, bytes, lists, tuples or dicts)"


_ADVICE: tuple[tuple[Any, str], ...] = (
    (np.ma.MaskedArray, "send .data and .mask"),
    (np.ndarray, "a subclass of ndarray would lose its type; use numpy.asarray"),
    ((set, frozenset), "send sorted(...), a list"),
    (bool, "use bool"),
    (int, "a subclass of int would lose its type; use int(...)"),
    (float, "a subclass of float would lose its type; use float(...)"),
    (str, "a subclass of str would lose its type; use str(...)"),
    (dict, "a subclass of dict would lose its type; use dict(...)"),
    (list, "a subclass of list would lose its type; use list(...)"),
    (tuple, "a subclass of tuple would lose its type; use tuple(...)"),
    ((bytearray, memoryview), "use bytes(...)"),
    (complex, "use numpy.complex128(...)"),
)
