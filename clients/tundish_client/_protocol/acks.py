"""ACK in a fixed layout, written and read without msgpack: it is sent for every batch.

An ACK of another layout is as good, and takes the ordinary way.
"""

from __future__ import annotations

import struct

from .frames import Decoder, Message

__all__ = ["Ack", "AckDecoder", "ack_message"]

_PRELUDE = 5
_START = b"\x92\xa3ACK\x83\xa6stream\xcf"
_BATCH = b"\xa5batch\xcf"
_CREDITS = b"\xa7credits\x82\xa7batches\x01\xa5bytes\xcf"
_FIELDS = f"{len(_START)}sQ{len(_BATCH)}sQ{len(_CREDITS)}sQ"
_MESSAGE = struct.Struct(f">BI{_FIELDS}")
_HEAD = struct.Struct(f">{_FIELDS}")
_MOST = 2**63


def ack_message(stream: int, batch: int, nbytes: int) -> bytes:
    """Encodes the ACK of a batch that gives one batch and `nbytes` of credit back."""
    size = _HEAD.size
    return _MESSAGE.pack(0xCE, size, _START, stream, _BATCH, batch, _CREDITS, nbytes)


class Ack(Message):
    """An ACK that gives one batch of credit back.

    Attributes:
        stream: Number of the stream.
        batch: The last batch consumed.
        nbytes: Bytes of credit.
    """

    __slots__ = ("batch", "nbytes", "stream")

    def __init__(self, stream: int, batch: int, nbytes: int) -> None:
        self.kind = "ACK"
        self.body = None
        self.stream, self.batch, self.nbytes = stream, batch, nbytes
        self.header = {}


class AckDecoder(Decoder):
    """A decoder that knows the fixed layout."""

    def _read_head(self, head: bytes, out: list[Message]) -> None:
        if len(head) == _HEAD.size and head.startswith(_START):
            _, stream, first, batch, second, nbytes = _HEAD.unpack(head)
            known = first == _BATCH and second == _CREDITS
            if known and stream < _MOST and batch < _MOST and nbytes < _MOST:
                out.append(Ack(stream, batch, nbytes))
                return
        super()._read_head(head, out)
