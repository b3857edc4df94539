"""Messages to bytes and back.

A message is a msgpack uint32 (the length of its head) and a msgpack array: `[kind, header]`, or
`[kind, header, pad, body, ...]` where the head ends with the header of the first body bin and the
pad puts the first body byte on a multiple of 64. See docs/protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np

from tundish_client.errors import ProtocolError

from .bodies import BodyPool
from .scan import check_claims

__all__ = ["ALIGNMENT", "Decoder", "Message", "encode_message", "frame"]

ALIGNMENT = 64
MAX_BIN = 2**31
MAX_BINS = 4096

_PRELUDE = 5
_BIN32 = 5
_SMALL = 16 * 1024
_ROOM = 1024  # least to receive into
_UINT32 = struct.Struct(">BI")
_UINT16 = struct.Struct(">BH")
# What msgpack raises for bytes that are not its own.
_MALFORMED = (ValueError, TypeError, ArithmeticError, RecursionError, msgpack.UnpackException)
_NOTHING = memoryview(b"")
_NATIVE_INTS = (np.integer, np.bool_)


class Message:
    """One message.

    Attributes:
        kind: Upper-case name, `"BATCH"`.
        header: The header map. Values are unresolved trees (see `values.resolve`).
        body: The body as an owned, writable, 64-byte aligned uint8 array, or None.
    """

    __slots__ = ("body", "header", "kind")

    def __init__(
        self,
        kind: str,
        header: dict[str, Any],
        body: np.ndarray[Any, np.dtype[np.uint8]] | None = None,
    ) -> None:
        self.kind = kind
        self.header = header
        self.body = body

    def __repr__(self) -> str:
        size = "" if self.body is None else f", body of {self.body.nbytes} bytes"
        return f"Message({self.kind}, {', '.join(map(str, self.header))}{size})"


def _plain(value: object) -> object:
    if isinstance(value, _NATIVE_INTS):
        return value.item()
    raise TypeError(f"a header cannot hold a {type(value).__name__}: {value!r:.80}")


def _array_header(n: int) -> bytes:
    return bytes((0x90 | n,)) if n < 16 else _UINT16.pack(0xDC, n)


def _map_header(n: int) -> bytes:
    return bytes((0x80 | n,)) if n < 16 else _UINT16.pack(0xDE, n)


def _start(kind: str, header: Mapping[str, Any], packed: Mapping[str, bytes] | None) -> bytes:
    """Packs kind and header map; entries of `packed` are spliced in as they are."""
    out = bytes(msgpack.packb(kind))
    if not packed:
        return out + bytes(msgpack.packb(header, default=_plain))
    plain = bytes(msgpack.packb(header, default=_plain))
    skip = 1 if len(header) < 16 else 3
    parts = [out, _map_header(len(header) + len(packed)), plain[skip:]]
    for key, raw in packed.items():
        parts += (msgpack.packb(key), raw)
    return b"".join(parts)


def _bin_sizes(nbytes: int, max_bin: int) -> list[int]:
    if max_bin < 1:
        raise ValueError(f"max_bin must be at least 1, got {max_bin}")
    full, rest = divmod(nbytes, max_bin)
    sizes = [max_bin] * full + ([rest] if rest or not full else [])
    if len(sizes) > MAX_BINS:
        raise ValueError(
            f"a body of {nbytes} bytes needs {len(sizes)} bins of {max_bin} bytes, "
            f"at most {MAX_BINS} are allowed"
        )
    return sizes


def encode_message(
    kind: str,
    header: Mapping[str, Any],
    *,
    packed: Mapping[str, bytes] | None = None,
    body_nbytes: int | None = None,
    max_bin: int = MAX_BIN,
) -> bytes:
    """Encodes the prelude and head of a message.

    Args:
        kind: Upper-case name of the message.
        header: Header entries that msgpack can pack (tuples become arrays).
        packed: Further entries whose values are msgpack already.
        body_nbytes: Size of the body that the caller sends next, None for no body. With more
            than one bin, the caller must also send the bin headers between them: use `frame`.
        max_bin: Largest bin, in bytes.

    Returns:
        The bytes before the body. With a body their length is a multiple of 64.

    Raises:
        TypeError: The header holds something msgpack has no form for.
        ValueError: The head is 4 GiB or longer, or the body needs too many bins.
    """
    if body_nbytes is None:
        head = b"\x92" + _start(kind, header, packed)
        return _UINT32.pack(0xCE, _fits(len(head))) + head
    sizes = _bin_sizes(body_nbytes, min(max_bin, 2**32 - 1))
    if len(sizes) > 1:
        header = {**header, "bins": sizes}
    start = _array_header(3 + len(sizes)) + _start(kind, header, packed)
    pad = -(_PRELUDE + len(start) + 2 + _BIN32) % ALIGNMENT
    head = start + bytes((0xC4, pad)) + bytes(pad) + _UINT32.pack(0xC6, sizes[0])
    return _UINT32.pack(0xCE, _fits(len(head))) + head


def _fits(length: int) -> int:
    if length >= 2**32:
        raise ValueError(f"a message head of {length} bytes is too long, the limit is 4 GiB")
    return length


def frame(
    kind: str,
    header: Mapping[str, Any],
    packed: Mapping[str, bytes] | None = None,
    body: memoryview | None = None,
    *,
    max_bin: int = MAX_BIN,
) -> list[bytes | memoryview]:
    """Encodes a whole message for `writelines` or `sendmsg`.

    Args:
        kind: Upper-case name of the message.
        header: Header entries that msgpack can pack.
        packed: Further entries whose values are msgpack already.
        body: The body, contiguous; it is not copied, so it must not change until it is sent.
        max_bin: Largest bin, in bytes; a longer body is sent as several.

    Returns:
        Buffers to be sent one after the other.
    """
    if body is None:
        return [encode_message(kind, header, packed=packed)]
    body = body.cast("B") if body.format != "B" or body.ndim != 1 else body
    head = encode_message(kind, header, packed=packed, body_nbytes=body.nbytes, max_bin=max_bin)
    sizes = _bin_sizes(body.nbytes, min(max_bin, 2**32 - 1))
    out: list[bytes | memoryview] = [head, body[: sizes[0]]]
    at = sizes[0]
    for size in sizes[1:]:
        out += (_UINT32.pack(0xC6, size), body[at : at + size])
        at += size
    return out


class Decoder:
    """Turns received bytes into messages; the caller receives straight into its buffers.

    Small messages arrive many at a time in one buffer of 16 KiB; the rest of a body is received
    into its final array. Not thread-safe.

    Attributes:
        failed: The first error, None while all is well. Once set, it stays.
    """

    def __init__(self, max_head: int, max_body: int) -> None:
        """Sets the limits, in bytes, on one head and on one body (all its bins together)."""
        self.failed: ProtocolError | None = None
        self._max_head = max_head
        self._max_body = max_body
        self._pool = BodyPool()
        self._small = memoryview(bytearray(_SMALL))
        self._start = 0
        self._end = 0
        self._message: Message | None = None  # the one whose body is under way
        self._bins: list[int] = []  # sizes of its bins that have not begun
        self._body = _NOTHING  # what is left of the current bin
        self._rest = _NOTHING  # what is left of the body after it

    def get_buffer(self, hint: int = -1) -> memoryview:
        """Lends the buffer to receive into next; valid until `buffer_updated` is called.

        Args:
            hint: Ignored; there for `asyncio.BufferedProtocol`.
        """
        del hint
        if self._body:
            return self._body
        if len(self._small) - self._end < _ROOM:
            self._make_room()
        return self._small[self._end :]

    def _make_room(self) -> None:
        """Moves what is unread to the front, or to a buffer twice as long if it is already there.

        The buffer grows with what has arrived, never with what a prelude claims.
        """
        held = self._end - self._start
        size = len(self._small)
        fresh = self._small
        if held > size // 2:
            fresh = memoryview(bytearray(2 * size))
        fresh[:held] = self._small[self._start : self._end]
        self._small, self._start, self._end = fresh, 0, held

    def buffer_updated(self, nbytes: int) -> list[Message]:
        """Takes note that `nbytes` were received into the buffer lent last.

        Returns:
            The messages that are complete now, in order.

        Raises:
            ProtocolError: The bytes are not a message. Messages that were complete before them
                are returned first: then `failed` is set, and the next call raises.
        """
        if self.failed is not None:
            raise self.failed
        out: list[Message] = []
        try:
            if self._body:
                self._body = self._body[nbytes:]
                self._finish(out)
            else:
                self._end += nbytes
            while not self._body and self._parse(out):
                pass
        except ProtocolError as error:
            self.failed = error
            self._message, self._body, self._rest = None, _NOTHING, _NOTHING
            if not out:
                raise
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._small) > 4 * _SMALL:
                self._small = memoryview(bytearray(_SMALL))
        return out

    def eof(self) -> None:
        """Takes note that the peer closed its side.

        Raises:
            ProtocolError: A message was under way, or the decoder had failed before.
        """
        if self.failed is not None:
            raise self.failed
        if self._message is not None or self._start != self._end:
            what = "a body" if self._message is not None else "a message head"
            self.failed = ProtocolError(f"the connection ended in the middle of {what}")
            raise self.failed

    def _finish(self, out: list[Message]) -> None:
        """Hands the message out if its last bin is complete."""
        if self._message is not None and not self._body and not self._bins:
            out.append(self._message)
            self._message, self._body, self._rest = None, _NOTHING, _NOTHING

    def _parse(self, out: list[Message]) -> bool:
        """Takes one step on the small buffer; False when more bytes are needed."""
        if self._message is not None:
            return self._next_bin(out)
        start, held = self._start, self._end - self._start
        if not held:
            return False
        if self._small[start] != 0xCE:
            raise ProtocolError(
                "expected a message (a msgpack uint32, first byte ce), "
                f"got {_shown(self._small[start : self._end])}"
            )
        if held < _PRELUDE:
            return False
        size = _UINT32.unpack_from(self._small, start)[1]
        if not 0 < size <= self._max_head:
            raise ProtocolError(
                f"a message head of {size} bytes is outside the limits of 1 and {self._max_head}"
            )
        if held < _PRELUDE + size:
            return False
        head = bytes(self._small[start + _PRELUDE : start + _PRELUDE + size])
        self._start = start + _PRELUDE + size
        self._read_head(head, out)
        return True

    def _read_head(self, head: bytes, out: list[Message]) -> None:
        kind, header, sizes = _decode_head(head, self._max_body)
        if sizes is None:
            out.append(Message(kind, header))
            return
        body = self._pool.take(sum(sizes))
        self._message = Message(kind, header, body)
        self._bins = sizes
        self._rest = body.data
        self._open_bin(out)

    def _next_bin(self, out: list[Message]) -> bool:
        """Reads the header of a further bin of the same body."""
        if self._end - self._start < _BIN32:
            return False
        tag, size = _UINT32.unpack_from(self._small, self._start)
        if tag != 0xC6 or size != self._bins[0]:
            seen = _shown(self._small[self._start : self._start + _BIN32])
            raise ProtocolError(f"expected a bin32 of {self._bins[0]} bytes, got {seen}")
        self._start += _BIN32
        self._open_bin(out)
        return True

    def _open_bin(self, out: list[Message]) -> None:
        """Starts on the next bin with what has arrived of it; its rest is received in place."""
        size = self._bins.pop(0)
        here = min(size, self._end - self._start)
        self._rest[:here] = self._small[self._start : self._start + here]
        self._start += here
        self._body = self._rest[here:size]
        self._rest = self._rest[size:]
        self._finish(out)


def _decode_head(head: bytes, max_body: int) -> tuple[str, dict[str, Any], list[int] | None]:
    """Reads kind, header and the sizes of the body's bins (None without a body)."""
    first = head[0]
    if first == 0x92:
        kind, header = _unpack_head(head)[:2]
        return kind, header, None
    if 0x94 <= first <= 0x9F:
        skip, bins = 1, (first & 0xF) - 3
    elif first == 0xDC and len(head) > 3:
        skip, bins = 3, _UINT16.unpack_from(head)[1] - 3
    else:
        raise ProtocolError(f"expected an array of 2, 4 or more elements, got {_shown(head)}")
    if not 0 < bins <= MAX_BINS or len(head) < skip + _BIN32 or head[-_BIN32] != 0xC6:
        raise ProtocolError(f"a head with a body must end with a bin32 header, got {_shown(head)}")
    # The body stands outside the head: read [kind, header, pad, nil] instead.
    kind, header, pad = _unpack_head(b"\x94" + head[skip:-_BIN32] + b"\xc0")[:3]
    if type(pad) is not bytes:
        raise ProtocolError(f"expected a bin as padding, got a {type(pad).__name__}")
    size = _UINT32.unpack_from(head, len(head) - _BIN32)[1]
    sizes = [size] if bins == 1 else _checked_bins(header.get("bins"), bins, size)
    if sum(sizes) > max_body:
        raise ProtocolError(f"a body of {sum(sizes)} bytes is over the limit of {max_body}")
    return kind, header, sizes


def _unpack_head(head: bytes) -> list[Any]:
    from .values import unpack

    try:
        check_claims(head)
        array: list[Any] = unpack(head)
    except _MALFORMED as error:
        raise ProtocolError(f"a message head is not msgpack ({error!r}): {_shown(head)}") from error
    if type(array[0]) is not str or type(array[1]) is not dict:
        raise ProtocolError(f"a message must be [kind, header, ...], got {_shown(head)}")
    return array


def _checked_bins(sizes: object, bins: int, first: int) -> list[int]:
    if (
        type(sizes) is not list
        or len(sizes) != bins
        or sizes[0] != first
        or not all(type(size) is int and 0 < size < 2**32 for size in sizes)
    ):
        raise ProtocolError(f"`bins` must hold the sizes of {bins} bins, got {sizes!r:.80}")
    return list(sizes)


def _shown(data: bytes | memoryview) -> str:
    """The first bytes of what was received, for an error message."""
    start = bytes(data[:24])
    text = f"{start.hex(' ')} ({start!r})"
    return text if len(data) <= 24 else f"{text} and {len(data) - 24} more bytes"
