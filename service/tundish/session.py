"""One client's connection: the protocol on a socket, its streams and its leases."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tundish._core import Batch
from tundish.delivery import Delivery
from tundish.leases import Leases
from tundish.log import one_line, tell_begin, tell_end
from tundish.outbox import Outbox
from tundish.pump import Pump
from tundish_client._protocol.asking import (
    Cancelled,
    EpochAsked,
    Event,
    FeedsAsked,
    Granted,
    HelloReceived,
    Released,
    ServerStream,
    StatsAsked,
)
from tundish_client._protocol.server import ServerConnection

if TYPE_CHECKING:
    from tundish.server import Server

__all__ = ["Session"]

HELLO_TIMEOUT = 10.0
"""Seconds a client has for its HELLO; after it, it may be silent for as long as it likes."""

_AGAIN = 0.1
"""Seconds after which a connection that has said something is looked at again.

Where a peer is gone that has left bytes unread, uvloop says so once and never again, also if there
is more to be read before the end.
"""

_REST = 256
"""Buffers that are still read when a client is gone; its socket held no more."""

MAX_WAITING = 4096
"""Buffers that may wait to be written before no more requests are read."""

MAX_ANSWERS = 2**20
"""Bytes that may wait so, besides those of batches."""

_log = logging.getLogger("tundish.server")


class Session:
    """Drives one `ServerConnection`. Lives on the loop's thread; nothing in it waits.

    The socket is read and written here rather than by a transport: file descriptors ride on
    messages, bodies are written from where they lie, and the side channel is watched the same way.

    Attributes:
        conn: The protocol.
        deliveries: Streams being served, by their number.
        leases: Slots the client holds, None before HELLO and without shared memory.
        name: The client, for logs.
        number: Counts the connections of a server.
    """

    def __init__(self, server: Server, sock: socket.socket, pid: int, number: int) -> None:
        self.server = server
        self.number = number
        self.loop: asyncio.AbstractEventLoop = server.loop
        self.pump: Pump = server.pump
        self.arena = server.arena
        self.conn = ServerConnection()
        self.deliveries: dict[int, Delivery] = {}
        self.leases: Leases | None = None
        self.name = f"pid {pid}"
        self.client = {"name": "?", "pid": pid}
        self._sock = sock
        self._outbox = Outbox(self.loop, sock, self._room, self._lost)
        self._reading = False
        self._closed = False
        self._deadline = self.loop.call_later(HELLO_TIMEOUT, self._silent)
        self._again: asyncio.TimerHandle | None = None
        self._read(True)

    @property
    def congested(self) -> bool:
        """Whether bytes wait for the client to read."""
        return self._outbox.nbytes > 0 or self._outbox.closed

    @property
    def queued(self) -> int:
        """Bytes that wait so, besides those of batches, which the arena counts."""
        return self._outbox.own

    # In

    def _read(self, wanted: bool) -> None:
        if wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self.loop.add_reader(self._sock.fileno(), self._readable)
        else:
            self.loop.remove_reader(self._sock.fileno())

    def _readable(self) -> None:
        conn = self.conn
        try:
            n = self._sock.recv_into(conn.get_buffer(), 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(error)
            return
        if not n:
            self._ended()
            return
        if self._again is None:
            self._again = self.loop.call_later(_AGAIN, self._read_again)
        try:
            if self.leases is not None:
                self.leases.flow()
            for event in conn.receive(n):
                if self._closed:
                    return
                self._handle(event)
        except Exception as error:
            self.broken(error)
            return
        self.flush()
        if conn.failed is not None:
            self.close(f"closed: {conn.failed}")

    def _read_again(self) -> None:
        self._again = None
        if self._reading:
            self._readable()

    def _ended(self) -> None:
        self.conn.eof_received()
        if self.conn.failed is not None:
            self.close(f"closed: {self.conn.failed}")
        elif self.deliveries:
            self.close(f"left with {len(self.deliveries)} open streams")
        else:
            self.close(None)

    def _handle(self, event: Event) -> None:
        if type(event) is Granted:
            delivery = self.deliveries.get(event.stream.number)
            if delivery is not None:
                delivery._fill()
        elif type(event) is EpochAsked:
            self._open(event.stream)
        elif type(event) is Cancelled:
            self._cancel(event.stream)
        elif type(event) is Released:
            if self.leases is not None:
                self.leases.take_back((event.segment, event.slot, event.generation))
        else:
            self._handle_rare(event)

    def _handle_rare(self, event: Event) -> None:
        if type(event) is HelloReceived:
            self._welcome(event)
        elif type(event) is FeedsAsked:
            self._answer("FEEDS", event.request, self.server.describe)
        elif type(event) is StatsAsked:
            self._answer("STATS", event.request, self.server.stats)

    def _cancel(self, stream: ServerStream) -> None:
        delivery = self.deliveries.get(stream.number)
        if delivery is not None:
            delivery.close()

    def _answer(self, kind: str, request: int, content: Callable[[], object]) -> None:
        """Requests about the server as a whole."""
        try:
            answer = content()
        except BaseException as error:  # what `len(dataset)` may raise
            self.conn.request_error(request, error)
            return
        self.conn.send(kind, {"request": request, kind.lower(): answer})

    def _welcome(self, hello: HelloReceived) -> None:
        self._deadline.cancel()
        self.name = f"{hello.name!r} (pid {self.client['pid']})"
        self.client["name"] = hello.name
        if hello.shared_memory and self.server.lease_quota > 0:
            self.leases = self._lend()
        identity, shared = {"name": "tundish", "pid": os.getpid()}, self.leases is not None
        self.conn.welcome(identity, self.server.instance, shared_memory=shared)
        if self.leases is not None:
            end = self.leases.client_end
            self._outbox.write_with_fd(self.conn.data_to_send(), end.fileno())
            end.close()
        _log.info("%s connected", self.name)

    def _lend(self) -> Leases | None:
        """A side channel, None if there are no descriptors for it: then batches go inline."""
        try:
            return Leases(
                self.loop,
                self.arena,
                quota=self.server.lease_quota,
                lending=self.server.lending,
                on_change=self._side_changed,
                on_drop=self.server.retiring.dropped,
            )
        except OSError as error:
            why = error.strerror
            _log.warning("%s gets its batches inline: %s (see ulimit -n)", self.name, why)
            return None

    def _side_changed(self, leases: Leases) -> None:
        if leases.over:
            self.server.leases_over(leases)
        if leases.failed is not None and not self._closed:
            self.close(f"closed: {leases.failed}")

    def _silent(self) -> None:
        self.close(f"closed: no HELLO within {HELLO_TIMEOUT:g} s")

    # Streams

    def _open(self, stream: ServerStream) -> None:
        try:
            feed, loader = self.server.feed(stream.feed)
            delivery = Delivery(self, stream, feed, loader)
        except BaseException as error:  # user code: SystemExit must not end the server
            number = f"{self.number}.{stream.number}"
            _log.info("%s, stream %s: refused, %s", self.name, number, one_line(error))
            self.conn.stream_error(stream, error)
            return
        self.deliveries[stream.number] = delivery
        delivery._fill()

    def began(self, delivery: Delivery) -> None:
        """A stream begins: its START is queued."""
        tell_begin(delivery)

    def ended(self, delivery: Delivery, how: str) -> None:
        """A stream is over, however that came."""
        counters = delivery.stats()
        self.server.totals.add(delivery.feed, counters)
        self.server.rest_later()
        tell_end(delivery, counters, how)

    def slots_of(self, stream: ServerStream) -> int:
        """How many slots with batches of a stream the client holds."""
        return 0 if self.leases is None else self.leases.of_stream(stream.number)

    def send_batch(
        self, stream: ServerStream, batch: Batch, samples: int, skipped: Sequence[int] = ()
    ) -> None:
        """Lends a batch to the client if that is possible, else sends its bytes.

        Raises:
            ValueError: The batch is over the client's limits; nothing was sent.
        """
        leases, segment = self.leases, batch.segment
        if segment is None or self.arena.retiring:  # is there something to be given back?
            self.server.retire_segments()
        if segment is not None and leases is not None and stream.shared_memory:
            slot = (segment, batch.slot or 0, batch.generation or 0)
            if leases.room(slot, batch.nbytes) and (
                leases.knows(segment) or self._introduce(leases, segment)
            ):
                self.conn.lend_batch(stream, batch, samples, skipped)
                leases.lend(batch, slot, stream.number)
                return
        self.conn.send_batch(stream, batch, memoryview(batch), samples, skipped)
        self.flush()  # so that `congested` speaks of these bytes too

    def _introduce(self, leases: Leases, segment: int) -> bool:
        nbytes = leases.introduce(segment)
        if nbytes is None:
            return False
        self.conn.send("SEGMENT", {"segment": segment, "bytes": nbytes})
        return True

    def retire(self, segment: int) -> None:
        """Asks the client to unmap a segment."""
        if not self._closed:
            self.conn.send("SEGMENT_DROP", {"segment": segment})
            self.flush()

    # Out

    def flush(self) -> None:
        """Writes what the protocol has queued."""
        if self._closed:
            return
        try:
            self._outbox.write(self.conn.data_to_send())
        except OSError as error:
            self._lost(error)
            return
        outbox = self._outbox
        if len(outbox) > MAX_WAITING or (outbox.nbytes > MAX_ANSWERS and outbox.own > MAX_ANSWERS):
            self._read(False)

    def _room(self) -> None:
        """Nothing waits to be written any more."""
        self._read(True)
        for delivery in list(self.deliveries.values()):
            if not self.congested:
                delivery.move()

    # The end

    def goodbye(self, reason: str) -> None:
        """Says GOAWAY and closes, without waiting for the client."""
        if self._closed:
            return
        try:
            self.conn.goaway(reason)
            self.flush()
        except Exception as error:
            _log.debug("%s: no GOAWAY: %s", self.name, error)
        self.close(None)

    def _lost(self, error: OSError) -> None:
        """The client is gone: closes, after the events at hand and what it said before it went."""
        self._outbox.close()
        self._read(False)
        self.loop.call_soon(self._let_go, error)

    def _let_go(self, error: OSError) -> None:
        if self._closed:
            return
        try:
            self._read_rest()
        except Exception as unforeseen:
            _log.debug("%s", self.name, exc_info=unforeseen)
        self.close(f"lost: {error.strerror}")

    def _read_rest(self) -> None:
        """Takes in what lies in the socket: who acknowledged a batch there keeps it."""
        for _ in range(_REST):
            try:
                n = self._sock.recv_into(self.conn.get_buffer(), 0, socket.MSG_DONTWAIT)
            except OSError:
                return
            if not n:
                return
            for event in self.conn.receive(n):
                if type(event) is Granted or type(event) is Cancelled:
                    self._handle(event)

    def broken(self, error: Exception) -> None:
        """Closes this connection, and only this one, after something unforeseen."""
        if not self._closed:
            _log.debug("%s", self.name, exc_info=error)
            self.close(f"closed: {type(error).__name__}: {error}")

    def close(self, reason: str | None) -> None:
        """Ends the connection: runs are cancelled, leases wait for the side channel's end.

        Args:
            reason: For the log, one line; None when all is as it should be.
        """
        if self._closed:
            return
        self._closed = True
        self._deadline.cancel()
        if self._again is not None:
            self._again.cancel()
        self._read(False)
        self._outbox.close()
        for delivery in list(self.deliveries.values()):
            delivery.close("was cut off")
        self.conn.streams.clear()
        self._sock.close()
        if self.leases is not None:
            self.leases.quarantine()
        if reason is None:
            # Who said nothing at all was only looking whether we listen.
            _log.log(logging.INFO if self.conn.version else logging.DEBUG, "%s left", self.name)
        else:
            _log.warning("%s %s", self.name, reason)
        self.server.session_over(self)
