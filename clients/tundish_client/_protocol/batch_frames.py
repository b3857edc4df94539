"""The head of a BATCH message, built for speed: it is on the path of every batch.

Everything of fixed size is packed by one `struct` call, with integers in their nine-byte msgpack
form; the value and the reference to the sample indices are msgpack already and are spliced in.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from .frames import ALIGNMENT
from .values import encode_samples

__all__ = ["LENT_FIELDS", "LENT_NAMES", "PLACE", "inline_head", "lent_head"]

_PRELUDE = 5
_BIN32 = 5
_REFS = 1024
_KEYS = ("stream", "batch", "times", "", "nbytes")
PLACE = ("segment", "slot", "generation", "offset")
"""Where a batch lies in shared memory."""

# (offset, count) -> packed entry: the same for nearly every batch of a feed.
_refs: dict[tuple[int, int], bytes] = {}


def _key(name: str) -> bytes:
    # "times" opens an array of two; its second integer has no key of its own.
    text = bytes(msgpack.packb(name)) if name else b""
    return text + (b"\x92" if name == "times" else b"") + b"\xcf"


def _layout(keys: tuple[str, ...], elements: int) -> tuple[struct.Struct, list[bytes]]:
    """The struct of prelude and fixed fields, and the constant bytes before each integer."""
    entries = len([key for key in keys if key]) + 2  # samples and value follow
    chunks = [_key(key) for key in keys]
    chunks[0] = bytes((0x90 | elements,)) + b"\xa5BATCH" + bytes((0x80 | entries,)) + chunks[0]
    fields = "".join(f"{len(chunk)}sQ" for chunk in chunks)
    return struct.Struct(f">BI{fields}"), chunks


_LENT, _lent = _layout(_KEYS + PLACE, 2)
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8 = _lent
LENT_FIELDS = (struct.Struct(">" + _LENT.format[3:]), tuple(_lent))
"""Layout of a lent batch's head, without the prelude: constants and integers in turn."""
LENT_NAMES = _KEYS + PLACE
"""What the integers are; that without a name is the second of `times`."""
_INLINE, _inline = _layout(_KEYS, 4)
_I0, _I1, _I2, _I3, _I4 = _inline
_VALUE = b"\xa5value"
_BIN_HEAD = struct.Struct(">BI")


def _samples(offset: int, count: int) -> bytes:
    key = (offset, count)
    found = _refs.get(key)
    if found is None:
        if len(_refs) >= _REFS:
            _refs.clear()
        found = _refs[key] = b"\xa7samples" + encode_samples(offset, count) + _VALUE
    return found


def lent_head(stream: int, batch: Any, samples: int) -> bytes:
    """The message of a batch that stays in shared memory.

    Args:
        stream: Number of the stream.
        batch: Has `batch`, `times` (two integers), `nbytes`, `segment`, `slot`, `generation`,
            `offset`, `packed` (the value as msgpack) and `samples_offset`.
        samples: How many samples it has.
    """
    claimed, ready = batch.times
    value = batch.packed
    entry = _samples(batch.samples_offset, samples)
    # fmt: off
    fixed = _LENT.pack(
        0xCE, _LENT.size - _PRELUDE + len(entry) + len(value),
        _L0, stream, _L1, batch.batch, _L2, claimed, _L3, ready, _L4, batch.nbytes,
        _L5, batch.segment, _L6, batch.slot, _L7, batch.generation, _L8, batch.offset,
    )
    # fmt: on
    return b"".join((fixed, entry, value))


def inline_head(stream: int, batch: Any, samples: int) -> bytes:
    """Prelude and head of a batch whose body, one bin, follows; a multiple of 64 bytes long.

    Arguments as for `lent_head`; the place in shared memory is not read.
    """
    claimed, ready = batch.times
    value = batch.packed
    entry = _samples(batch.samples_offset, samples)
    start = _INLINE.size + len(entry) + len(value)
    pad = -(start + 2 + _BIN32) % ALIGNMENT
    # fmt: off
    fixed = _INLINE.pack(
        0xCE, start - _PRELUDE + 2 + pad + _BIN32,
        _I0, stream, _I1, batch.batch, _I2, claimed, _I3, ready, _I4, batch.nbytes,
    )
    # fmt: on
    tail = bytes((0xC4, pad)) + bytes(pad) + _BIN_HEAD.pack(0xC6, batch.nbytes)
    return b"".join((fixed, entry, value, tail))
