"""The inside of `testing.ScriptedServer`: one connection."""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._protocol.acks import Ack
from ._protocol.asking import (
    Cancelled,
    EpochAsked,
    Event,
    FeedsAsked,
    HelloReceived,
    ServerStream,
    StatsAsked,
)
from ._protocol.frames import Message
from ._protocol.server import ServerConnection
from ._protocol.values import encode_value
from ._scripted_play import Encoded, Play

if TYPE_CHECKING:
    from ._scripted_arena import Arena
    from .testing import ScriptedServer

__all__ = ["ScriptedConnection"]

_RECORD = struct.Struct("<IIIIQ")
_SEGMENT = 1
_BOTH = selectors.EVENT_READ | selectors.EVENT_WRITE


class _Core(ServerConnection):
    """Keeps a record of what clients send."""

    def __init__(self, server: ScriptedServer) -> None:
        super().__init__()
        self._log = server.received
        self._server = server

    def _event(self, message: Message) -> Event | None:
        if message.kind == "PING" and not self._server.answers:
            return None
        return super()._event(message)

    def buffer_updated(self, nbytes: int) -> list[Message]:
        messages = super().buffer_updated(nbytes)
        self._log.extend((message.kind, _header(message)) for message in messages)
        return messages


def _header(message: Message) -> dict[str, Any]:
    """The header, also of an ACK that was read without making one."""
    if not isinstance(message, Ack):
        return message.header
    credit = {"batches": 1, "bytes": message.nbytes}
    return {"stream": message.stream, "batch": message.batch, "credits": credit}


class ScriptedConnection:
    """One client; lives in the server's thread."""

    def __init__(
        self, server: ScriptedServer, sock: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        sock.setblocking(False)
        self.closed = False
        self._server = server
        self._sock = sock
        self._selector = selector
        self._core = _Core(server)
        self._plays: dict[int, Play] = {}
        self._out: list[memoryview] = []
        self._cut: int | None = None
        self._side: socket.socket | None = None
        self._to_pass: socket.socket | None = None  # goes with the first byte of WELCOME
        self._announced = False
        selector.register(sock, selectors.EVENT_READ, self._on_events)

    @property
    def streams(self) -> list[int]:
        """Numbers of the open streams."""
        return list(self._core.streams)

    def timeout(self) -> float:
        """Seconds until a silence ends, for the selector."""
        now = time.monotonic()
        # Also one that has just ended, and was not over when the script was played last.
        ends = [max(0.0, p.silent_until - now) for p in self._plays.values() if p.silent_until]
        return min([3600.0, *ends])

    def shut(self) -> None:
        """Closes the connection without a word."""
        if not self.closed:
            self.closed = True
            for sock in (self._sock, self._side):
                if sock is not None:
                    self._selector.unregister(sock)
                    sock.close()
            if self._to_pass is not None:
                self._to_pass.close()
            self._plays.clear()
            self._core.streams.clear()

    # Receiving

    def _on_events(self, events: int) -> None:
        if self.closed:
            return
        if events & selectors.EVENT_READ:
            try:
                n = self._sock.recv_into(self._core.get_buffer())
            except BlockingIOError:
                return
            except OSError:
                n = 0
            if not n:
                self.shut()
                return
            for event in self._core.receive(n):
                self._on_event(event)
        self.go_on()

    def _on_event(self, event: object) -> None:
        if isinstance(event, HelloReceived):
            self._hello(event)
        elif isinstance(event, EpochAsked):
            self._epoch(event.stream)
        elif isinstance(event, Cancelled):
            self._plays.pop(event.stream.number, None)
        elif not self._server.answers:
            pass
        elif isinstance(event, FeedsAsked):
            self._core.send("FEEDS", {"request": event.request, "feeds": [self._describe()]})
        elif isinstance(event, StatsAsked):
            stats = {"streams": [{"stream": number} for number in self._plays]}
            self._core.send("STATS", {"request": event.request, "stats": stats})

    def _hello(self, event: HelloReceived) -> None:
        if not self._server.welcome:
            return
        shared = self._server.arena is not None and event.shared_memory
        if shared:
            self._side, self._to_pass = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._side.setblocking(False)
            self._selector.register(self._side, selectors.EVENT_READ, self._on_records)
        self._core.welcome(
            {"name": "scripted", "pid": os.getpid()}, "scripted", shared_memory=shared
        )

    def _on_records(self, _events: int) -> None:
        arena, side = self._server.arena, self._side
        while arena is not None and side is not None and not self.closed:
            try:
                data = side.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:  # a reset says no more than an end
                data = b""
            if not data:
                self._drop_side(side)
                break
            for kind, segment, slot, _, generation in _RECORD.iter_unpack(data):
                if kind == 1:
                    self._server.released.append((segment, slot, generation))
                    arena.free.append(slot)
                else:
                    self._server.dropped.append(segment)
        self.go_on()

    def _drop_side(self, side: socket.socket) -> None:
        self._selector.unregister(side)
        side.close()
        self._side = None

    def _describe(self) -> dict[str, Any]:
        from .testing import is_value

        cells = [i for i in self._server.script if is_value(i) or isinstance(i, BaseException)]
        entry = {
            "feed": self._server.feed, "samples": len(cells), "batches": len(cells),
            "batch_size": 1, "order": "sequential", "seed": 0, "shuffle": False,
            "drop_last": False, "num_workers": 0, "fingerprint": self._fingerprint(len(cells)),
        }  # fmt: skip
        said = self._server.announce
        return {**entry, **{name: said[name] for name in entry if name in said}}

    def _fingerprint(self, samples: int) -> dict[str, Any]:
        return {
            "seed": 0, "samples": samples, "order": "sequential", "batch_size": 1,
            "drop_last": False, "world_size": 1,
        }  # fmt: skip

    def _epoch(self, stream: ServerStream) -> None:
        if stream.feed not in (None, self._server.feed):
            self._core.stream_error(stream, ValueError(f"no feed {stream.feed!r}"))
            return
        self._plays[stream.number] = play = Play(stream, self._server.script)
        cells = play.cells
        self._core.start_stream(
            stream,
            {
                "feed": self._server.feed, "batches": cells, "samples": cells, "padded": 0,
                "dropped": 0, "fingerprint": self._fingerprint(cells), **self._server.announce,
            },
        )  # fmt: skip

    # Playing

    def go_on(self) -> None:
        """Plays all scripts as far as credits and silences allow, and sends what that gave."""
        if self.closed:
            return
        for number in list(self._plays):
            while number in self._plays and self._step(self._plays[number]):
                self._send()
                if self.closed:
                    return
        self._send()

    def _step(self, play: Play) -> bool:
        """Plays one item; False when nothing may be sent now."""
        from . import testing

        if time.monotonic() < play.silent_until:
            return False
        play.silent_until = 0.0
        if play.at == len(play.items):
            if not play.acknowledged:
                return False
            self._end(play, None)
            return True
        number, item = play.items[play.at]
        cell = isinstance(item, BaseException) or testing.is_value(item)
        if cell and not play.stream.ready:
            return False
        play.advance(number, cell=cell)
        if getattr(item, "once", False):
            if id(item) in self._server.played:
                return True
            self._server.played.add(id(item))
        if isinstance(item, BaseException):
            self._core.batch_error(play.stream, number, item, [number])
        elif cell:
            self._batch(play, number, item)
        elif isinstance(item, testing.End):
            self._end(play, item.counts)
        else:
            self._act(play, item)
        return True

    def _act(self, play: Play, item: Any) -> None:
        from . import testing

        if isinstance(item, testing.Silence):
            seconds = float("inf") if item.seconds is None else item.seconds
            play.silent_until = time.monotonic() + seconds
        elif isinstance(item, testing.Cut):
            self._send()
            self._cut = item.after
        elif isinstance(item, testing.Fail):
            self._plays.pop(play.stream.number)
            self._core.stream_error(play.stream, item.error)
        elif isinstance(item, testing.Revoke):
            play.held.difference_update(item.batches)
            self._core.revoke(play.stream, item.batches)
        elif isinstance(item, testing.Raw):
            self._send()
            self._out.append(memoryview(item.data))
        else:
            if isinstance(item, testing.Goaway):
                self.goaway(item.reason, item.back_in)
            self._send()
            self.shut()

    def _end(self, play: Play, counts: dict[str, int] | None) -> None:
        stream = play.stream
        self._plays.pop(stream.number)
        true = {
            "batches": stream.sent, "samples": play.samples, "padded": 0, "dropped": 0,
            "skipped": stream.skipped, "redelivered": 0, "errors": stream.errors,
        }  # fmt: skip
        self._core.end_stream(stream, {**true, **(counts or {})})

    def _batch(self, play: Play, number: int, item: Any) -> None:
        from . import testing

        samples: Sequence[int] = (number,)
        skipped: Sequence[int] = ()
        if isinstance(item, testing.Batch):
            item, samples, skipped = item.value, item.samples, item.skipped
        encoded = encode_value(item)
        now = time.monotonic_ns()
        nbytes = encoded.nbytes + 8 * len(samples)
        batch = Encoded(number, encoded.packed, encoded.nbytes, nbytes, (now, now))
        play.samples += len(samples)
        arena = self._server.arena
        lend = arena is not None and self._side is not None and play.stream.shared_memory
        slot = None
        if lend and arena is not None and arena.free and self._announce(arena):
            slot = arena.free.pop()
        if arena is None or slot is None:
            body = np.zeros(nbytes, np.uint8)
        else:
            body = arena.bytes_of(slot, nbytes)
            arena.generation += 1
            batch.segment, batch.slot, batch.generation = _SEGMENT, slot, arena.generation
            batch.offset = slot * arena.slot_bytes
        encoded.write_into(body)
        body[encoded.nbytes :] = np.array(samples, "<i8").view(np.uint8)
        if slot is None:
            self._core.send_batch(play.stream, batch, memoryview(body), len(samples), skipped)
        else:
            self._core.lend_batch(play.stream, batch, len(samples), skipped)

    def _announce(self, arena: Arena) -> bool:
        """Has the client map the segment, if it has not; False when it has hung up."""
        if not self._announced and self._side is not None:
            try:
                socket.send_fds(self._side, [_RECORD.pack(3, _SEGMENT, 0, 0, 0)], [arena.fd])
            except OSError:
                self._drop_side(self._side)
                return False
            self._announced = True
            self._core.send("SEGMENT", {"segment": _SEGMENT, "bytes": arena.nbytes})
        return True

    def goaway(self, reason: str, back_in: float | None) -> None:
        """Announces that the server leaves."""
        self._core.goaway(reason, back_in)

    def drop_segment(self) -> None:
        """Asks the client to unmap the segment; it is announced again when needed."""
        if self._announced:
            self._announced = False
            self._core.send("SEGMENT_DROP", {"segment": _SEGMENT})

    # Sending

    def _send(self) -> None:
        """Sends as far as the socket has room; asks the selector for the rest."""
        self._out += [memoryview(data).cast("B") for data in self._core.data_to_send()]
        while self._out and not self.closed:
            data = self._out[0]
            if self._cut is not None:
                data = data[: self._cut]
            try:
                sent = self._send_some(data) if data else 0
            except BlockingIOError:
                break
            except OSError:  # it is gone; what it had sent is still there to be read
                self._out.clear()
                break
            if self._cut is not None:
                self._cut -= sent
                if self._cut <= 0:
                    self.shut()
                    return
            self._out[0] = self._out[0][sent:]
            if not self._out[0]:
                del self._out[0]
        if not self.closed:
            events = _BOTH if self._out else selectors.EVENT_READ
            self._selector.modify(self._sock, events, self._on_events)
            if self._core.failed is not None and not self._out:
                self.shut()

    def _send_some(self, data: memoryview) -> int:
        if self._to_pass is None:
            return self._sock.send(data)
        sent = socket.send_fds(self._sock, [data], [self._to_pass.fileno()])
        self._to_pass.close()
        self._to_pass = None
        return sent
