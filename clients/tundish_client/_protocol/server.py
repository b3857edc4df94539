"""The server's side of a connection: handshake, streams, credits, and what may be sent next.

The driver receives into `get_buffer()`, hands the count to `receive`, acts on the events it gets,
and writes what `data_to_send()` returns. Everything a client says is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tundish_client.config import MAX_NAME
from tundish_client.errors import ConfigError, ConnectError, ProtocolError

from .acks import Ack, AckDecoder
from .asking import (
    Cancelled,
    EpochAsked,
    Event,
    FeedsAsked,
    Granted,
    HelloReceived,
    Released,
    ServerStream,
    StatsAsked,
    read_credits,
    read_integer,
)
from .batch_frames import PLACE, inline_head, lent_head
from .connection import SERVER_LIMITS, VERSIONS, Connection, Limits
from .frames import MAX_BIN, Message
from .values import encode_samples
from .wire_errors import encode_exception, encode_refusal

__all__ = [
    "MAX_STREAMS",
    "Cancelled",
    "EpochAsked",
    "Event",
    "FeedsAsked",
    "Granted",
    "HelloReceived",
    "Released",
    "ServerConnection",
    "ServerStream",
    "StatsAsked",
]

MAX_STREAMS = 1024
"""Streams one connection may have open at a time."""


class ServerConnection(Connection):
    """One client's connection.

    Attributes:
        version: The protocol version agreed on, None before HELLO.
        streams: The open streams by number.
    """

    def __init__(self, limits: Limits = SERVER_LIMITS) -> None:
        super().__init__(limits)
        self._decoder = AckDecoder(limits.head, limits.body)
        self.version: int | None = None
        self.streams: dict[int, ServerStream] = {}
        self._shared_memory = False

    # Receiving

    def receive(self, nbytes: int) -> list[Event]:
        """Takes note of `nbytes` received; returns what they mean.

        Look at `failed` afterwards: when it is set, an ERROR that says why is queued; write
        `data_to_send()`, then close. The events before the violation are still returned.
        """
        events: list[Event] = []
        messages = self.buffer_updated(nbytes)
        for message in messages:
            try:
                event = self._event(message)
            except (ProtocolError, ConnectError) as error:
                self.failed = error
                break
            if event is not None:
                events.append(event)
        if self.failed is not None:
            self.connection_error(self.failed)
        return events

    def _event(self, message: Message) -> Event | None:
        if type(message) is Ack and self.version is not None:
            return self._quick_ack(message)
        handler = _HANDLERS.get(message.kind)
        if handler is None:
            raise ProtocolError(f"a client may not send {message.kind!r:.40}")
        if self.version is None and handler is not ServerConnection._hello:
            raise ProtocolError(f"the first message must be HELLO, got {message.kind}")
        event: Event | None = handler(self, message.header)
        return event

    def _hello(self, header: dict[str, Any]) -> Event:
        if self.version is not None:
            raise ProtocolError("HELLO was sent twice")
        offered = header.get("version")
        if (
            type(offered) is not list
            or len(offered) != 2
            or not all(type(version) is int for version in offered)
        ):
            raise ProtocolError(f"HELLO must have version=[oldest, newest], got {offered!r:.80}")
        oldest, newest = VERSIONS
        version = min(offered[1], newest)
        if version < max(offered[0], oldest):
            raise ConnectError(
                f"protocol version mismatch: the client speaks {_range(*offered)}, "
                f"this server speaks {_range(oldest, newest)}"
            )
        self.peer_limits = Limits.from_header(header.get("limits"))
        self.version = version
        client = header.get("client")
        client = client if type(client) is dict else {}
        name, pid = client.get("name"), client.get("pid")
        return HelloReceived(
            name[:MAX_NAME] if type(name) is str else "?",
            pid if type(pid) is int else 0,
            header.get("shared_memory") is True,
        )

    def _feeds(self, header: dict[str, Any]) -> Event:
        return FeedsAsked(read_integer(header, "request", 0))

    def _stats(self, header: dict[str, Any]) -> Event:
        return StatsAsked(read_integer(header, "request", 0))

    def _ping(self, header: dict[str, Any]) -> None:
        token = header.get("token")
        if type(token) not in {int, str, type(None)}:
            raise ProtocolError(f"token must be an integer or a str, got {token!r:.80}")
        self.send("PONG", {"token": token})

    def _epoch(self, header: dict[str, Any]) -> Event | None:
        stream = ServerStream(header, self._shared_memory)
        if stream.number in self.streams:
            raise ProtocolError(f"stream {stream.number} is open already")
        if len(self.streams) >= MAX_STREAMS:
            self.stream_error(
                stream,
                ConfigError(
                    f"this client has {MAX_STREAMS} streams open, the most there may be on one "
                    "connection: close some, read them to their end, or open another client"
                ),
            )
            return None
        self.streams[stream.number] = stream
        return EpochAsked(stream)

    def _quick_ack(self, message: Ack) -> Event | None:
        stream = self.streams.get(message.stream)
        if stream is None:
            return None
        stream.ack(message.batch)
        stream.grant(1, message.nbytes)
        return Granted(stream)

    def _ack(self, header: dict[str, Any]) -> Event | None:
        stream = self.streams.get(read_integer(header, "stream", 1))
        if stream is None:
            return None
        stream.ack(read_integer(header, "batch", 0))
        if "credits" in header:
            return self._grant(stream, header)
        return Granted(stream) if stream.acks else None

    def _credit(self, header: dict[str, Any]) -> Event | None:
        # A stream that ended or was cancelled meanwhile has no use for credits.
        stream = self.streams.get(read_integer(header, "stream", 1))
        return None if stream is None else self._grant(stream, header)

    @staticmethod
    def _grant(stream: ServerStream, header: dict[str, Any]) -> Event:
        stream.grant(*read_credits(header))
        return Granted(stream)

    def _cancel(self, header: dict[str, Any]) -> Event | None:
        stream = self.streams.pop(read_integer(header, "stream", 1), None)
        if stream is not None and header.get("batch") is not None:
            stream.ack(read_integer(header, "batch", 0))
        return None if stream is None else Cancelled(stream)

    def _release(self, header: dict[str, Any]) -> Event:
        return Released(
            read_integer(header, "segment", 0),
            read_integer(header, "slot", 0),
            read_integer(header, "generation", 0),
        )

    # Sending

    def welcome(self, server: Mapping[str, Any], instance: str, *, shared_memory: bool) -> None:
        """Answers HELLO. With `shared_memory` the side channel must go with the first byte."""
        self._shared_memory = shared_memory
        self.send(
            "WELCOME",
            {
                "version": self.version,
                "features": [],
                "server": server,
                "instance": instance,
                "limits": self.limits.as_header(),
                "shared_memory": shared_memory,
            },
        )

    def start_stream(self, stream: ServerStream, header: Mapping[str, Any]) -> None:
        """Answers EPOCH with START; `header` has the fields besides stream, epoch and start.

        `stream.start` may have been lowered since EPOCH, to the end of the epoch.
        """
        fields = {"stream": stream.number, "epoch": stream.epoch, "start": stream.start}
        self.send("START", {**fields, **header})

    def lend_batch(
        self, stream: ServerStream, batch: Any, samples: int, skipped: Sequence[int] = ()
    ) -> None:
        """Sends a batch that stays where it is, in shared memory.

        Args:
            stream: Whose it is; it is charged.
            batch: A `tundish._core.Batch` in a slot (see `batch_frames.lent_head`).
            samples: How many samples it has.
            skipped: Sample indices that were left out of it.

        Raises:
            ValueError: The head is over the client's limits; nothing was sent or charged.
        """
        if skipped:
            self._send_slowly(stream, batch, None, samples, skipped)
        else:
            head = lent_head(stream.number, batch, samples)
            self._check("head", len(head), _limit(self.peer_limits).head)
            self._out.append(head)
        stream.charge(batch.nbytes, samples)

    def send_batch(
        self,
        stream: ServerStream,
        batch: Any,
        body: memoryview,
        samples: int,
        skipped: Sequence[int] = (),
    ) -> None:
        """Sends a batch with its bytes.

        Args:
            stream: Whose it is; it is charged.
            batch: A `tundish._core.Batch`.
            body: Its bytes, uint8; they must not change until they are written.
            samples: How many samples it has.
            skipped: Sample indices that were left out of it.

        Raises:
            ValueError: Head or body are over the client's limits; nothing was sent or charged.
        """
        limits = _limit(self.peer_limits)
        nbytes = batch.nbytes
        self._check("body", nbytes, limits.body)
        if nbytes <= MAX_BIN and not skipped:
            head = inline_head(stream.number, batch, samples)
            self._check("head", len(head), limits.head)
            self._out += (head, body)
        else:
            self._send_slowly(stream, batch, body, samples, skipped)
        stream.charge(nbytes, samples)

    def _send_slowly(
        self,
        stream: ServerStream,
        batch: Any,
        body: memoryview | None,
        samples: int,
        skipped: Sequence[int],
    ) -> None:
        """The rare cases: several bins, or samples that were left out."""
        header: dict[str, Any] = {
            "stream": stream.number,
            "batch": batch.batch,
            "times": batch.times,
            "nbytes": batch.nbytes,
        }
        if skipped:
            header["skipped"] = list(skipped)
        if body is None:
            header |= {name: getattr(batch, name) for name in PLACE}
        samples_ref = encode_samples(batch.samples_offset, samples)
        self.send("BATCH", header, {"samples": samples_ref, "value": batch.packed}, body)
        stream.skipped += len(skipped)

    @staticmethod
    def _check(what: str, nbytes: int, limit: int) -> None:
        if nbytes > limit:
            raise ValueError(
                f"the {what} of this batch takes {nbytes} bytes, the client accepts {limit}; "
                "make batches smaller"
            )

    def batch_error(
        self, stream: ServerStream, batch: int, error: BaseException, samples: Sequence[int] = ()
    ) -> None:
        """Sends the error that takes the place of a batch; the stream goes on."""
        header = {**encode_exception(error), "stream": stream.number, "batch": batch}
        if samples:
            header["samples"] = [int(sample) for sample in samples[:MAX_STREAMS]]
        self.send("ERROR", header)
        stream.charge(0)
        stream.errors += 1

    def revoke(self, stream: ServerStream, batches: Sequence[int]) -> None:
        """Says that batches of a split epoch, sent before, belong to other streams now."""
        self.send("REVOKE", {"stream": stream.number, "batches": list(batches)})

    def stream_error(self, stream: ServerStream, error: BaseException) -> None:
        """Ends a stream with an error."""
        self.streams.pop(stream.number, None)
        self.send("ERROR", {**encode_refusal(error), "stream": stream.number})

    def end_stream(self, stream: ServerStream, counts: Mapping[str, int]) -> None:
        """Ends a stream that has been sent to its last batch."""
        self.streams.pop(stream.number, None)
        self.send("END", {"stream": stream.number, "counts": counts})

    def request_error(self, request: int, error: BaseException) -> None:
        """Answers a request with an error."""
        self.send("ERROR", {**encode_refusal(error), "request": request})

    def connection_error(self, error: BaseException) -> None:
        """Says why the connection is over; close it when that is written."""
        self.send("ERROR", encode_refusal(error))

    def goaway(self, reason: str, back_in: float | None = None) -> None:
        """Says that this server is about to close, and when to come back (seconds)."""
        self.send("GOAWAY", {"reason": reason, "back_in": back_in})


_HANDLERS: dict[str, Any] = {
    "HELLO": ServerConnection._hello,
    "FEEDS": ServerConnection._feeds,
    "STATS": ServerConnection._stats,
    "PING": ServerConnection._ping,
    "EPOCH": ServerConnection._epoch,
    "ACK": ServerConnection._ack,
    "CREDIT": ServerConnection._credit,
    "CANCEL": ServerConnection._cancel,
    "RELEASE": ServerConnection._release,
}


def _limit(limits: Limits | None) -> Limits:
    if limits is None:
        raise ProtocolError("no HELLO was received yet")
    return limits


def _range(oldest: int, newest: int) -> str:
    return f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}"
