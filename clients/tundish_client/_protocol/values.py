"""Values of a batch to bytes, and back.

`encode_value` makes the msgpack of `header["value"]` and knows how to write the arrays into a body;
`unpack` and `resolve` are the way back. A value comes back equal and of the same type, or is
refused with a TypeError that names the field. See docs/protocol.md for the extension types.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import msgpack
import numpy as np

from .dtypes import Dtype, dtype_to_wire, native
from .refusals import explain
from .registry import describe_object
from .resolving import Ref, resolve

__all__ = [
    "Deferred",
    "Encoded",
    "encode_inline",
    "encode_samples",
    "encode_value",
    "resolve",
    "unpack",
    "unpack_raw",
]

MAX_DEPTH = 64
"""Levels of containers in a value."""

COLUMN = 16
"""A list of at least so many str (or bytes) becomes a column in the body."""

LARGE = 1024
"""A str or bytes of at least so many characters or bytes goes to the body."""

_ARRAY, _TUPLE, _INT, _SCALAR, _COLUMN, _OBJECT, _LARGE = range(1, 8)

ExtType = msgpack.ExtType
Body = np.ndarray[Any, np.dtype[np.uint8]]


class Deferred:
    """An array that has not been built yet: collate makes these, the body is where they are built.

    Subclasses set `dtype` (in native byte order) and `shape`, and override `write`.
    """

    __slots__ = ("dtype", "shape")

    dtype: Dtype
    shape: tuple[int, ...]

    def write(self, out: np.ndarray[Any, Any]) -> None:
        """Writes the elements into `out`, a C-contiguous array of `dtype` and `shape`."""
        raise NotImplementedError(f"{type(self).__name__} must override write()")

    def materialize(self) -> np.ndarray[Any, Any]:
        """Returns the array, in memory of its own."""
        out = np.empty(self.shape, self.dtype)
        self.write(out)
        return out


class Encoded:
    """An encoded value whose arrays still have to be written.

    Attributes:
        packed: The msgpack of the value; array references are offsets into the body.
        nbytes: Size of the body, a multiple of 64 (0 without arrays).
    """

    __slots__ = ("_parts", "nbytes", "packed")

    def __init__(self, packed: bytes, nbytes: int, parts: list[tuple[int, Any]]) -> None:
        self.packed = packed
        self.nbytes = nbytes
        self._parts = parts

    def write_into(self, body: Body) -> None:
        """Writes all arrays into a body, one copy each; gaps between them become zero.

        Args:
            body: Contiguous uint8 array of at least `nbytes` bytes, 64-byte aligned.

        Raises:
            ValueError: `body` is too small.
        """
        if len(body) < self.nbytes:
            raise ValueError(f"the body holds {len(body)} bytes, {self.nbytes} are needed")
        for offset, part in self._parts:
            if type(part) is bytes:
                end = offset + len(part)
                body[offset:end] = np.frombuffer(part, np.uint8)
            else:
                dtype = native(part.dtype)
                out = np.ndarray(part.shape, dtype, body, offset)
                end = offset + out.nbytes
                if isinstance(part, Deferred):
                    part.write(out)
                else:
                    if dtype.names is not None:
                        body[offset:end] = 0  # copyto leaves the holes of a structure alone
                    np.copyto(out, part)
            if end & 63:
                body[end : (end + 63) & -64] = 0


def unpack(packed: bytes) -> Any:
    """Reads msgpack into a tree for `resolve`; extension types stay as they are.

    Raises:
        ValueError: The bytes are not one msgpack value.
    """
    return msgpack.unpackb(packed, strict_map_key=False, ext_hook=Ref)


def unpack_raw(packed: bytes) -> Any:
    """Reads msgpack into a tree that msgpack packs again to the same bytes.

    Raises:
        ValueError: The bytes are not one msgpack value.
    """
    return msgpack.unpackb(packed, strict_map_key=False)


class _Encoder:
    """Turns one value at a time into msgpack and parts of a body. One per thread."""

    def __init__(self) -> None:
        self.inline = False
        self.nbytes = 0
        self.parts: list[tuple[int, Any]] = []
        # strict_types: a subclass of int or str must not pass for its base.
        packer = msgpack.Packer(strict_types=True, default=_wide_int, buf_size=16 * 1024)
        self.pack: Callable[[Any], bytes] = packer.pack

    def reset(self, inline: bool) -> None:
        self.inline = inline
        self.nbytes = 0
        self.parts = []

    def lower(self, value: Any, depth: int) -> Any:
        """Returns a value that msgpack packs as it is: itself, or with extension types inside."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        handler = _LOWER.get(kind)
        if handler is not None:
            return handler(self, value, depth)
        if isinstance(value, Deferred):
            return self.array(value, depth)
        if isinstance(value, np.generic):
            return ExtType(_SCALAR, self.scalar(value))
        described = describe_object(value)
        if described is None:
            _refuse(value)
        _deeper(depth)
        *names, payload = described
        return ExtType(_OBJECT, self.pack([*names, self.lower(payload, depth)]))

    def array(self, value: Any, _depth: int) -> Any:
        """References an array; it is written into the body later."""
        if self.inline:
            _refuse(value)
        shape = value.shape
        key = (value.dtype, shape, self.nbytes)
        found = _refs.get(key)
        if found is None:
            found = self.new_ref(key)
        self.parts.append((self.nbytes, value))
        self.nbytes += found[1]
        return found[0]

    def new_ref(self, key: tuple[Dtype, tuple[int, ...], int]) -> tuple[Any, int]:
        dtype, shape, offset = key
        nbytes = dtype.itemsize
        for n in shape:
            nbytes *= n
        payload = self.pack([dtype_to_wire(dtype), list(shape), offset, nbytes])
        found = (ExtType(_ARRAY, payload), (nbytes + 63) & -64)
        if len(_refs) >= _REFS:
            _refs.clear()
        _refs[key] = found
        return found

    def text(self, value: Any, _depth: int) -> Any:
        if len(value) < LARGE or self.inline:
            return value
        kind, data = ("bytes", value) if type(value) is bytes else ("str", value.encode())
        return ExtType(_LARGE, self.pack([kind, self.put(data), len(data)]))

    def put(self, data: bytes) -> int:
        offset = self.nbytes
        self.parts.append((offset, data))
        self.nbytes = (offset + len(data) + 63) & -64
        return offset

    def sequence(self, value: list[Any], depth: int) -> Any:
        kinds = set(map(type, value))
        if kinds <= _PLAIN:
            return value
        if len(kinds) == 1 and len(value) >= COLUMN and kinds <= _TEXT and not self.inline:
            return self.column(value)
        _deeper(depth)
        lower = self.lower
        return [lower(item, depth + 1) for item in value]

    def column(self, value: list[Any]) -> Any:
        if type(value[0]) is bytes:
            kind, data, parts = "bytes", b"".join(value), value
        else:
            kind, text = "str", "".join(value)
            data = text.encode()
            parts = value if len(data) == len(text) else [item.encode() for item in value]
        offsets = np.zeros(len(value) + 1, "<i8")
        np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
        where = self.put(offsets.tobytes())
        payload = [kind, len(value), where, self.put(data), len(data)]
        return ExtType(_COLUMN, self.pack(payload))

    def pair(self, value: tuple[Any, ...], depth: int) -> Any:
        _deeper(depth)
        return ExtType(_TUPLE, self.pack(self.sequence(list(value), depth)))

    def mapping(self, value: dict[Any, Any], depth: int) -> Any:
        _deeper(depth)
        lower = self.lower
        for key in value:
            if type(key) is not str:
                return {lower(k, depth + 1): lower(v, depth + 1) for k, v in value.items()}
        return {k: lower(v, depth + 1) for k, v in value.items()}

    def scalar(self, value: Any) -> bytes:
        """Packs [dtype, bytes]; the length of a numpy str or bytes is that of its data."""
        if type(value) is np.str_:
            return self.pack(["str", value.encode()])  # str() would cut zeros at the end
        if type(value) is np.bytes_:
            return self.pack(["bytes", bytes(value)])
        array = np.asarray(value)
        if type(value) is not array.dtype.type or type(value) is np.record:
            _refuse(value)
        if array.dtype.names is not None:
            # As in a body: the holes of a structure carry no data.
            clean = np.zeros((), native(array.dtype))
            np.copyto(clean, array)
            array = clean
        return self.pack([dtype_to_wire(array.dtype), array.tobytes()])


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _deeper(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise TypeError(f"nested deeper than {MAX_DEPTH} levels")


def _wide_int(value: object) -> Any:
    """Msgpack asks here for what it cannot pack: integers beyond 64 bits, and nothing else."""
    if type(value) is not int:
        _refuse(value)
    return ExtType(_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


_PLAIN = frozenset((int, float, bool, type(None)))
_TEXT = frozenset((str, bytes))
_LOWER: dict[type, Callable[[_Encoder, Any, int], Any]] = {
    np.ndarray: _Encoder.array,
    np.memmap: _Encoder.array,
    str: _Encoder.text,
    bytes: _Encoder.text,
    list: _Encoder.sequence,
    tuple: _Encoder.pair,
    dict: _Encoder.mapping,
}

# (dtype, shape, offset) -> (reference, aligned size): the same for every batch of a feed.
_refs: dict[tuple[Dtype, tuple[int, ...], int], tuple[Any, int]] = {}
_REFS = 4096

_local = threading.local()


def _encode(value: Any, inline: bool) -> Encoded:
    try:
        encoder: _Encoder = _local.encoder
    except AttributeError:
        encoder = _local.encoder = _Encoder()
    encoder.reset(inline)
    try:
        packed = encoder.pack(encoder.lower(value, 0))
        return Encoded(packed, encoder.nbytes, encoder.parts)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        _local.encoder = _Encoder()  # the packer may hold half a value
        raise TypeError(explain(value, error)) from error
    finally:
        encoder.parts = []  # the arrays belong to the result alone


def encode_value(value: Any) -> Encoded:
    """Encodes the value of a batch.

    Args:
        value: Any nesting, up to 64 levels, of dict, list, tuple, str, bytes, int, float, bool,
            None, numpy arrays and scalars, `Deferred`, namedtuples, dataclasses and Enums.

    Returns:
        The packed value, and the arrays ready to be written into a body of `nbytes` bytes. It
        refers to the arrays of `value`: write them before they change.

    Raises:
        TypeError: Something in it would not come back equal and of the same type; the message
            names the field and the type.
    """
    return _encode(value, inline=False)


def encode_inline(value: Any) -> bytes:
    """Encodes a value that needs no body; arrays are refused.

    Raises:
        TypeError: As for `encode_value`, and for arrays.
    """
    return _encode(value, inline=True).packed


def encode_samples(nbytes: int, n: int) -> bytes:
    """Packs the reference to the int64[n] of sample indices that stands at `nbytes` in the body."""
    return bytes(msgpack.packb(ExtType(_ARRAY, msgpack.packb(["<i8", [n], nbytes, 8 * n]))))
