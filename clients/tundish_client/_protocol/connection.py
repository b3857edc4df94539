"""Both directions of one connection: what was received, what is to be sent, and the limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tundish_client.errors import ProtocolError

from .frames import Decoder, Message, frame

__all__ = ["CLIENT_LIMITS", "SERVER_LIMITS", "VERSIONS", "Connection", "Limits"]

VERSIONS = (1, 1)
"""The protocol versions spoken here: oldest and newest."""

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What one side accepts in one message.

    Attributes:
        head: Bytes of a head.
        body: Bytes of a body, all bins together.
    """

    head: int
    body: int

    def as_header(self) -> dict[str, int]:
        """The form in HELLO and WELCOME."""
        return {"head": self.head, "body": self.body}

    @classmethod
    def from_header(cls, value: object) -> Limits:
        """Reads what a peer announced.

        Raises:
            ProtocolError: `value` is not a map of two positive integers.
        """
        if type(value) is dict:
            head, body = value.get("head"), value.get("body")
            if type(head) is int and type(body) is int and head > 0 and body >= 0:
                return cls(head, body)
        raise ProtocolError(f"limits must be {{'head': bytes, 'body': bytes}}, got {value!r:.80}")


CLIENT_LIMITS = Limits(head=16 * MIB, body=16 * 1024 * MIB)
"""What a client accepts: batches of up to 16 GiB."""

SERVER_LIMITS = Limits(head=MIB, body=0)
"""What a server accepts: clients send control messages only."""


class Connection:
    """Bytes received to messages, messages to bytes to be sent. Not thread-safe.

    Receiving never raises: after bytes that the protocol forbids `failed` is set and stays set.

    Attributes:
        failed: Why this connection is of no further use, or None.
        peer_limits: What the peer accepts, once it has said so; `send` checks against it.
    """

    def __init__(self, limits: Limits = CLIENT_LIMITS) -> None:
        self.limits = limits
        self.failed: Exception | None = None
        self.peer_limits: Limits | None = None
        self._decoder = Decoder(limits.head, limits.body)
        self._out: list[bytes | memoryview] = []

    def get_buffer(self, hint: int = -1) -> memoryview:
        """Lends the buffer to receive into; call `buffer_updated` after that."""
        return self._decoder.get_buffer(hint)

    def buffer_updated(self, nbytes: int) -> list[Message]:
        """Takes note of `nbytes` received; returns the messages complete now.

        Look at `failed` afterwards: the messages before a violation are still returned.
        """
        if self.failed is not None:
            return []
        try:
            messages = self._decoder.buffer_updated(nbytes)
        except ProtocolError as error:
            self.failed = error
            return []
        self.failed = self._decoder.failed
        return messages

    def eof_received(self) -> None:
        """Takes note that the peer closed; `failed` is set if that cut a message."""
        try:
            self._decoder.eof()
        except ProtocolError as error:
            self.failed = self.failed or error

    def send(
        self,
        kind: str,
        header: Mapping[str, Any],
        packed: Mapping[str, bytes] | None = None,
        body: memoryview | None = None,
    ) -> None:
        """Queues a message; write what `data_to_send` returns afterwards.

        Args:
            kind: Upper-case name of the message.
            header: Header entries that msgpack can pack.
            packed: Further entries whose values are msgpack already.
            body: The body; not copied, so it must not change until it is sent.

        Raises:
            TypeError: The header holds something msgpack has no form for.
            ValueError: The message is over the peer's limits. Nothing is queued then.
        """
        buffers = frame(kind, header, packed, body)
        peer = self.peer_limits
        if peer is not None:
            if len(buffers[0]) - 5 > peer.head:
                raise ValueError(
                    f"the head of {kind} takes {len(buffers[0]) - 5} bytes, "
                    f"the peer accepts {peer.head}"
                )
            if body is not None and body.nbytes > peer.body:
                raise ValueError(
                    f"the body of {kind} takes {body.nbytes} bytes, the peer accepts {peer.body}"
                )
        self._out += buffers

    def data_to_send(self) -> list[bytes | memoryview]:
        """Returns the buffers to be written now, in order, and forgets them."""
        out, self._out = self._out, []
        return out
