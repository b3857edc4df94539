"""From unpacked msgpack and a body to the value."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from tundish_client.errors import ProtocolError

from .dtypes import Dtype, dtype_from_wire
from .registry import build_object

__all__ = ["SURROGATES", "Ref", "resolve"]

MAX_DEPTH = 140  # twice what encoders allow themselves: a tuple is an extension and an array
SURROGATES = 8
"""The extension type of a str that UTF-8 has no bytes for; errors have them, batches don't."""

_CACHED = 4096

Body = np.ndarray[Any, np.dtype[np.uint8]]


class Ref:
    """An extension value as it was received; hashable, so that it can be a key."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data

    def __eq__(self, other: object) -> bool:
        return type(other) is Ref and (self.code, self.data) == (other.code, other.data)

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"Ref({self.code}, {self.data[:40]!r})"


def resolve(tree: Any, body: Body | None = None) -> Any:
    """Builds the value of an unpacked tree.

    Args:
        tree: What `unpack` returned, or an entry of a message's header.
        body: The bytes that references point into: the message's body, or the slot. None if there
            is none.

    Returns:
        The value. Its arrays are views of `body`, which they keep alive; str and bytes are copies.

    Raises:
        ProtocolError: The tree or its references are not what the protocol allows.
        TypeError: The value holds a class that was not registered, or a dtype unknown here.
    """
    return _resolve(tree, body, 0)


def _resolve(tree: Any, body: Body | None, depth: int) -> Any:
    kind = type(tree)
    if kind is Ref:
        if tree.code == 1:
            return _array(tree.data, body)
        if depth > MAX_DEPTH:
            raise ProtocolError(f"a value is nested deeper than {MAX_DEPTH} levels")
        return _extension(tree, body, depth + 1)
    if kind is dict:
        if depth > MAX_DEPTH:
            raise ProtocolError(f"a value is nested deeper than {MAX_DEPTH} levels")
        return _dict(tree, body, depth + 1)
    if kind is list:
        if depth > MAX_DEPTH:
            raise ProtocolError(f"a value is nested deeper than {MAX_DEPTH} levels")
        if _NESTED.isdisjoint(map(type, tree)):
            return tree
        return [_resolve(item, body, depth + 1) for item in tree]
    if kind in _PLAIN:
        return tree
    raise ProtocolError(f"a value holds an extension type that is not allowed: {tree!r:.80}")


_PLAIN = frozenset((str, int, float, bool, bytes, type(None)))
_NESTED = frozenset((Ref, dict, list, msgpack.Timestamp))


def _dict(tree: dict[Any, Any], body: Body | None, depth: int) -> dict[Any, Any]:
    out = {}
    for key, item in tree.items():
        kind = type(item)
        if kind is Ref and item.code == 1:
            value = _array(item.data, body)
        else:
            value = item if kind in _PLAIN else _resolve(item, body, depth)
        if type(key) is str:
            out[key] = value
            continue
        built = _resolve(key, body, depth)
        try:
            out[built] = value
        except TypeError as error:
            raise ProtocolError(f"a map has a key that cannot be one: {key!r:.80}") from error
    return out


# Payload of an array reference -> (shape, dtype, offset, end). A feed's batches have the same few.
_arrays: dict[bytes, tuple[tuple[int, ...], Dtype, int, int]] = {}


def _array(data: bytes, body: Body | None) -> np.ndarray[Any, Any]:
    found = _arrays.get(data)
    if found is None:
        found = _parse_array(data)
    shape, dtype, offset, end = found
    if body is None or end > len(body):
        have = "no body" if body is None else f"a body of {len(body)} bytes"
        if offset == end:
            return np.empty(shape, dtype)
        raise ProtocolError(f"an array reference to bytes {offset} to {end} has {have}")
    return np.ndarray(shape, dtype, body, offset)


def _parse_array(data: bytes) -> tuple[tuple[int, ...], Dtype, int, int]:
    wire, shape, offset, nbytes = _fields(data, "an array reference", 4)
    dtype = dtype_from_wire(wire)
    if type(shape) is not list or len(shape) > 64 or not _counts(offset, nbytes, *shape):
        raise ProtocolError(f"an array reference has shape {shape!r:.80}, {offset!r}, {nbytes!r}")
    size = dtype.itemsize
    for n in shape:
        size *= n
    if size != nbytes:
        raise ProtocolError(
            f"an array reference claims {nbytes} bytes, but {shape} of {dtype} takes {size}"
        )
    if offset % 64:
        raise ProtocolError(f"an array reference starts at {offset}, not at a multiple of 64")
    if size == 0:
        _zero_size(shape, dtype)
    found = (tuple(shape), dtype, offset, offset + nbytes)
    if len(data) <= 1024:
        if len(_arrays) >= _CACHED:
            _arrays.clear()
        _arrays[data] = found
    return found


def _zero_size(shape: list[int], dtype: Dtype) -> None:
    """Numpy refuses shapes whose nonzero lengths multiply beyond its range."""
    try:
        np.empty(tuple(shape), dtype)
    except (ValueError, MemoryError) as error:
        raise ProtocolError(f"an array reference has shape {shape}: {error}") from error


def _counts(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < 2**63 for value in values)


def _fields(data: bytes, what: str, n: int) -> list[Any]:
    try:
        fields = msgpack.unpackb(data, strict_map_key=False, ext_hook=Ref)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"{what} is not msgpack: {error!r}") from error
    if type(fields) is not list or (n >= 0 and len(fields) != n):
        raise ProtocolError(f"{what} must be an array of {n} elements, got {fields!r:.80}")
    return fields


def _extension(ref: Ref, body: Body | None, depth: int) -> Any:
    handler = _EXTENSIONS.get(ref.code)
    if handler is None:
        raise ProtocolError(f"a value holds an unknown extension type {ref.code}")
    return handler(ref.data, body, depth)


def _tuple(data: bytes, body: Body | None, depth: int) -> tuple[Any, ...]:
    try:
        tree = msgpack.unpackb(data, strict_map_key=False, ext_hook=Ref)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"a tuple is not msgpack: {error!r}") from error
    items = _resolve(tree, body, depth)
    if type(items) is not list:
        raise ProtocolError(f"a tuple must hold an array, got {tree!r:.80}")
    return tuple(items)


def _int(data: bytes, _body: Body | None, _depth: int) -> int:
    return int.from_bytes(data, "big", signed=True)


def _scalar(data: bytes, _body: Body | None, _depth: int) -> Any:
    wire, raw = _fields(data, "a scalar", 2)
    if type(raw) is not bytes:
        raise ProtocolError(f"a scalar must hold bytes, got {raw!r:.80}")
    if wire == "str":
        return np.str_(_text(raw))
    if wire == "bytes":
        return np.bytes_(raw)
    dtype = dtype_from_wire(wire)
    if len(raw) != dtype.itemsize:
        raise ProtocolError(f"a scalar of {dtype} has {len(raw)} bytes")
    # A copy that may be written: structured scalars are views of their memory.
    return np.ndarray((1,), dtype, bytearray(raw))[0]


def _column(data: bytes, body: Body | None, _depth: int) -> list[Any]:
    kind, count, where, start, nbytes = _fields(data, "a column", 5)
    if not _counts(count, where, start, nbytes) or kind not in ("str", "bytes") or where % 8:
        raise ProtocolError(f"a column cannot be {[kind, count, where, start, nbytes]!r:.120}")
    raw = _region(body, where, 8 * (count + 1))
    offsets = raw.view("<i8")
    if offsets[0] != 0 or offsets[-1] != nbytes or (np.diff(offsets) < 0).any():
        raise ProtocolError("the offsets of a column must rise from 0 to the size of its data")
    chunk = _region(body, start, nbytes).tobytes()
    ends = offsets.tolist()
    if kind == "bytes":
        return [chunk[a:b] for a, b in itertools.pairwise(ends)]
    text = _text(chunk)
    if len(text) == nbytes:
        return [text[a:b] for a, b in itertools.pairwise(ends)]
    return [_text(chunk[a:b]) for a, b in itertools.pairwise(ends)]


def _object(data: bytes, body: Body | None, depth: int) -> object:
    kind, module, qualname, payload = _fields(data, "an object", 4)
    if type(module) is not str or type(qualname) is not str:
        raise ProtocolError(f"an object must name its class, got {module!r:.40}, {qualname!r:.40}")
    return build_object(kind, module, qualname, _resolve(payload, body, depth))


def _large(data: bytes, body: Body | None, _depth: int) -> str | bytes:
    kind, start, nbytes = _fields(data, "a long str", 3)
    if not _counts(start, nbytes) or kind not in ("str", "bytes"):
        raise ProtocolError(f"a long str cannot be {[kind, start, nbytes]!r:.120}")
    chunk = _region(body, start, nbytes).tobytes()
    return chunk if kind == "bytes" else _text(chunk)


def _surrogates(data: bytes, _body: Body | None, _depth: int) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a str is neither UTF-8 nor lone surrogates: {error}") from error


def _region(body: Body | None, start: int, nbytes: int) -> Body:
    have = 0 if body is None else len(body)
    if start + nbytes > have:
        raise ProtocolError(
            f"a reference to bytes {start} to {start + nbytes} has a body of {have} bytes"
        )
    return np.empty(0, np.uint8) if body is None else body[start : start + nbytes]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a str is not UTF-8: {error}") from error


_EXTENSIONS: dict[int, Callable[[bytes, Body | None, int], Any]] = {
    2: _tuple,
    3: _int,
    4: _scalar,
    5: _column,
    6: _object,
    7: _large,
    SURROGATES: _surrogates,
}
