"""The client's side of a connection: every decision, no input or output.

A driver sends `data_to_send()`, receives into `get_buffer()`, reports with `receive(n)` or
`lose(reason)`, and asks `take` and `Reply` for what the user wants. `changed` names the streams and
replies for which something happened since the driver looked last.

When the server goes away, see `Keeping`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from ..config import DEFAULT_NAME, SMALL
from ..errors import ConnectError, ConnectionLost, ProtocolError, TundishError
from .acks import ack_message
from .cells import Cell, read_count, read_indices
from .connection import CLIENT_LIMITS, VERSIONS, Limits
from .frames import Message
from .keeping import Keeping
from .quick import QuickDecoder
from .reading import StreamState
from .replies import Reply
from .wire_errors import decode_exception

__all__ = ["END", "ClientConnection", "Reply", "SharedMemory"]

END: Final = object()
"""What `take` returns when the stream has ended."""

_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, OSError)


class SharedMemory(Protocol):
    """What the connection needs of `shm.Segments`."""

    def add(self, number: int, nbytes: int) -> None: ...
    def drop(self, number: int) -> None: ...
    def lease(
        self, number: int, slot: int, generation: int, offset: int, nbytes: int, *, copy: bool
    ) -> np.ndarray[Any, np.dtype[np.uint8]]: ...
    def release(self, number: int, slot: int, generation: int) -> None: ...
    def make_private(self) -> None: ...
    def recheck(self) -> None: ...


class ClientConnection(Keeping):
    """The state of one connection of a client. Not thread-safe.

    Attributes:
        server: Name and pid of the server, from WELCOME.
        instance: The server's instance, a str that no other server process has.
        wants_shared_memory: Before WELCOME: ask for it. After: the server offers it.
        segments: Where slots are found; the driver sets it when it got the side channel.
        goaway: The reason the server gave for leaving, if it did.
        back_in: Seconds after which it said to be back.
    """

    def __init__(
        self,
        *,
        shared_memory: bool = True,
        limits: Limits = CLIENT_LIMITS,
        recovers: bool = False,
        name: str = DEFAULT_NAME,
    ) -> None:
        super().__init__(limits, recovers=recovers)
        self._decoder = QuickDecoder(limits.head, limits.body)
        self.server: dict[str, Any] = {}
        self.instance = ""
        self.wants_shared_memory = shared_memory
        self.segments: SharedMemory | None = None
        self.goaway: str | None = None
        self.back_in = 0.0
        self._handlers: dict[str, Callable[[Message], None]] = {
            "BATCH": self._batch,
            "START": self._start,
            "END": self._end,
            "ERROR": self._error,
            "SEGMENT": self._segment,
            "SEGMENT_DROP": self._segment_drop,
            "FEEDS": self._reply,
            "STATS": self._reply,
            "PONG": self._pong,
            "GOAWAY": self._goaway,
            "REVOKE": self._revoke,
        }
        self.send(
            "HELLO",
            {
                "version": list(VERSIONS),
                "features": [],
                "client": {"name": name, "pid": os.getpid()},
                "shared_memory": shared_memory,
                "limits": limits.as_header(),
            },
        )

    @property
    def shares_memory(self) -> bool:
        """Whether batches may come in shared memory."""
        return self.segments is not None

    # Receiving

    def receive(self, nbytes: int) -> None:
        """Takes in `nbytes` received into the buffer lent last. Never raises; see `failed`."""
        if self.segments is not None:
            self.segments.recheck()
        for message in self.buffer_updated(nbytes):
            try:
                self._handle(message)
            except TundishError as error:
                self.lose(error)
            except _MALFORMED as error:
                malformed = ProtocolError(f"a {message.kind} message is malformed: {error!r}")
                malformed.__cause__ = error
                self.lose(malformed)
        if self.failed is not None:
            self.lose(self.failed)

    def eof_received(self) -> None:
        """Takes note that the server closed its side."""
        self.gone = self.gone or (self.opened and self.failed is None)
        super().eof_received()
        self.silently = self.silently or (self.gone and self.failed is None and not self.goaway)
        self.lose(self.failed or ConnectionLost(self._why_closed()))

    def _why_closed(self) -> str:
        if not self.opened:
            return "the peer closed the connection without a WELCOME"
        if self.goaway is not None:
            return f"the server left: {self.goaway}"
        return "the server is gone (killed, or ended)"

    def _handle(self, message: Message) -> None:
        if not self.opened:
            self._welcome(message)
            return
        handler = self._handlers.get(message.kind)
        if handler is not None:  # kinds of later versions are ignored
            handler(message)

    def _welcome(self, message: Message) -> None:
        header = message.header
        if message.kind == "ERROR":
            error = decode_exception(header)
            raise ConnectError(f"the server refused this client: {error}") from error
        if message.kind == "GOAWAY":  # it is being stopped just now
            self._goaway(message)
            return
        if message.kind != "WELCOME":
            raise ProtocolError(f"expected WELCOME, got {message.kind:.40}")
        version = header["version"]
        oldest, newest = VERSIONS
        if type(version) is not int or not oldest <= version <= newest:
            raise ConnectError(
                f"the server speaks protocol version {version!r}, this client speaks "
                f"{oldest} to {newest}: install the same release of tundish on both sides"
            )
        if header.get("limits") is not None:
            self.peer_limits = Limits.from_header(header["limits"])
        self.server = dict(header.get("server") or {})
        self.instance = str(header.get("instance", ""))
        self.wants_shared_memory = self.wants_shared_memory and bool(header.get("shared_memory"))
        self.opened = True

    def _start(self, message: Message) -> None:
        stream = self.streams.get(message.header["stream"])
        if stream is None:
            return
        try:
            stream.start(message.header)
        except TundishError as error:
            stream.fail(error)
            del self.streams[stream.number]
            self.send("CANCEL", {"stream": stream.number})
        self.changed.append(stream)

    def _batch(self, message: Message) -> None:
        header = message.header
        stream = self.streams.get(header["stream"])
        body = self._slot(header, stream) if "segment" in header else message.body
        if stream is None:
            return
        cell = Cell(read_count(header, "batch"), int(header.get("nbytes", 0)))
        cell.tree, cell.samples, cell.body = header["value"], header.get("samples"), body
        cell.times = _times(header)
        if "skipped" in header:
            cell.skipped = read_indices(header, "skipped")
        stream.add(cell, failed=False)
        self.progressed = True
        self.changed.append(stream)

    def _slot(self, header: dict[str, Any], stream: StreamState | None) -> Any:
        """Returns the root array over the batch's slot; a cancelled stream's goes back."""
        if self.segments is None:
            raise ProtocolError("a batch in shared memory on a connection without it")
        where = header["segment"], header["slot"], header["generation"]
        if stream is None:
            return self.segments.release(*where)
        return self.segments.lease(
            *where, header["offset"], header["nbytes"], copy=stream.options.copy
        )

    def _error(self, message: Message) -> None:
        header = message.header
        error = decode_exception(header)
        self.progressed = True
        if "request" in header:
            reply = self._replies.pop(header["request"], None)
            if reply is not None:
                reply.settle({}, error)
                self.changed.append(reply)
        elif "stream" not in header:
            ended = ConnectionLost(f"the server ended the connection: {error}")
            ended.__cause__ = error
            raise ended
        elif (stream := self.streams.get(header["stream"])) is not None:
            if header.get("batch") is None:
                stream.fail(error)
                del self.streams[stream.number]
            else:
                cell = Cell(read_count(header, "batch"), int(header.get("nbytes", 0)))
                cell.error, cell.samples = error, header.get("samples")
                stream.add(cell, failed=True)
            self.changed.append(stream)

    def _end(self, message: Message) -> None:
        stream = self.streams.get(message.header["stream"])
        if stream is not None:
            try:
                stream.end(message.header)
            except ProtocolError as error:
                stream.fail(error)
            del self.streams[stream.number]
            self.progressed = True
            self.changed.append(stream)

    def _segment(self, message: Message) -> None:
        if self.segments is not None:
            self.segments.add(message.header["segment"], message.header["bytes"])

    def _segment_drop(self, message: Message) -> None:
        if self.segments is not None:
            self.segments.drop(message.header["segment"])

    def _reply(self, message: Message) -> None:
        reply = self._replies.pop(message.header["request"], None)
        if reply is not None:
            reply.settle(message.header)
            self.progressed = True
            self.changed.append(reply)

    def _pong(self, message: Message) -> None:
        message.header["request"] = message.header["token"]
        self._reply(message)

    def _goaway(self, message: Message) -> None:
        self.goaway = str(message.header.get("reason", "no reason given"))
        back_in = message.header.get("back_in")
        if back_in is not None:
            self.back_in = max(0.0, float(back_in))
            self.goaway += f" (back in {back_in} s)"
        if self.segments is not None:
            self.segments.make_private()

    def _revoke(self, message: Message) -> None:
        stream = self.streams.get(message.header["stream"])
        if stream is not None and stream.split is not None:
            batches, nbytes = stream.revoke(read_indices(message.header, "batches"))
            if batches:
                credit = {"batches": batches, "bytes": nbytes}
                self.send("CREDIT", {"stream": stream.number, "credits": credit})

    # Asking

    def take(self, stream: StreamState) -> Any:
        """Returns the stream's next cell, END, or None when it has to be waited for.

        Acknowledges the batch before it and gives its credit back, in one message; those of small
        batches go together. The cell stays at the head of the queue until `stream.handed` is set
        to it.

        Raises:
            Exception: The stream has failed; the cell's own error is left in `cell.error`.
        """
        stream.settle()
        if stream.owed is not None:
            if self._reports(stream):
                self._acknowledge(stream, *stream.owed)
            stream.owed = None
        cell = stream.head()
        if cell is not None:
            return cell
        if stream.ended:
            stream.final = True
            return END
        if not stream.asked and self.failed is None:
            self._ask(stream)
        return None

    def _acknowledge(self, stream: StreamState, batch: int, nbytes: int) -> None:
        """Queues the ACK, of small batches that go by quickly for several of them together.

        Where the user left it to us, small ones make the window wider, and larger ones as it was.
        """
        if not stream.adapts:
            self._out.append(ack_message(stream.number, batch, nbytes))
            return
        if not 0 < nbytes <= SMALL:  # an error has 0, and what is no array isn't counted
            self._out += stream.pay()
            if stream.narrow():
                credit = {"batches": 0, "bytes": nbytes}
                self.send("ACK", {"stream": stream.number, "batch": batch, "credits": credit})
            else:
                self._out.append(ack_message(stream.number, batch, nbytes))
            return
        if more := stream.widen():
            credit = {"batches": more, "bytes": 0}
            self.send("CREDIT", {"stream": stream.number, "credits": credit})
        if stream.owe(ack_message(stream.number, batch, nbytes), time.monotonic()):
            self._out += stream.pay()

    def _reports(self, stream: StreamState) -> bool:
        """Whether the server wants to know: after END and before EPOCH it does not."""
        return self.failed is None and stream.asked and not stream.over and not stream.closed


def _times(header: dict[str, Any]) -> Sequence[int]:
    times: Sequence[int] = header.get("times", (0, 0))
    if len(times) != 2:
        raise ProtocolError(f"times must be two integers, got {times!r:.80}")
    return times
