"""A server that follows a script, for tests of code that reads from Tundish.

It runs in a thread, speaks the real protocol over a real Unix socket, and needs no dataset::

    from tundish_client import Client
    from tundish_client.testing import ScriptedServer

    with ScriptedServer([{"x": x0}, OSError("a bad file"), {"x": x2}]) as server:
        with Client(server.path) as client:
            stream = client.epoch(0)
            next(stream)

Every value of the script is a batch, every exception the error in place of one; END follows by
itself. Every stream of a split epoch gets all that it has not acknowledged, and END when there is
nothing left of it. The steps below do what servers and networks do on bad days. Those that end the
connection do so every time they are reached; with `once` they let a client pass that comes back.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from ._protocol.values import encode_value
from ._scripted import ScriptedConnection
from ._scripted_arena import Arena

__all__ = [
    "Batch", "Close", "Cut", "End", "Fail", "Goaway", "Raw", "Revoke", "ScriptedServer", "Silence",
]  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """A batch with sample indices of its own; by default batch i has the one index i.

    Attributes:
        value: What the consumer gets.
        samples: The indices of its samples.
        skipped: Indices that `on_error="skip"` left out of it.
        number: Its number, for feeds out of order and splits; by default its place in the script.
    """

    value: Any
    samples: Sequence[int]
    skipped: Sequence[int] = ()
    number: int | None = None


@dataclass(frozen=True)
class Silence:
    """Sends nothing more on this stream for so many seconds; None: for ever."""

    seconds: float | None = None


@dataclass(frozen=True)
class Cut:
    """Sends the first bytes of the next message, then closes the connection."""

    after: int = 0
    once: bool = False


@dataclass(frozen=True)
class Close:
    """Closes the connection without a word."""

    once: bool = False


@dataclass(frozen=True)
class Goaway:
    """Announces that the server leaves, and closes the connection."""

    reason: str = "shutting down"
    back_in: float | None = None
    once: bool = False


@dataclass(frozen=True)
class Fail:
    """Ends the stream with an error."""

    error: BaseException


@dataclass(frozen=True)
class Raw:
    """Sends bytes that need not be a message."""

    data: bytes


@dataclass(frozen=True)
class Revoke:
    """Says that these batches of a split epoch belong to others now."""

    batches: Sequence[int]


@dataclass(frozen=True)
class End:
    """Ends the stream with these counts instead of the true ones."""

    counts: dict[str, int] = field(default_factory=dict)


class ScriptedServer:
    """Serves a script to every stream that asks.

    Args:
        script: Values, exceptions and steps, in order.
        path: Path of the socket; by default one in a temporary folder.
        shared_memory: Lend batches in slots of a memfd, as far as there are free ones.
        slots: How many slots there are.
        feed: Name of the one feed.
        welcome: False: accept connections and say nothing.
        announce: Fields of START (and of FEEDS) that say something else than the script, as
            `{"batches": None, "samples": None}` for an epoch of unknown length,
            `{"exact": False}`, `{"in_order": False}`, or another `"fingerprint"`.

    Attributes:
        path: Path of the socket.
        answers: Whether requests (FEEDS, STATS, PING) are answered; may be changed at any time.
        received: Kind and header of all messages received, in order.
        released: (segment, slot, generation) of all release records received.
        dropped: Segments that a client has unmapped.
    """

    def __init__(
        self,
        script: Sequence[Any] = (),
        *,
        path: str | None = None,
        shared_memory: bool = False,
        slots: int = 4,
        feed: str = "scripted",
        welcome: bool = True,
        announce: Mapping[str, Any] | None = None,
    ) -> None:
        self.script = list(script)
        self.feed = feed
        self.welcome = welcome
        self.announce = dict(announce or {})
        self.answers = True
        self.played: set[int] = set()  # steps that were to be played once
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.released: list[tuple[int, int, int]] = []
        self.dropped: list[int] = []
        self._folder = tempfile.mkdtemp(prefix="tundish-") if path is None else None
        self.path = path if path is not None else f"{self._folder}/s"
        sizes = [_size(item) for item in self.script if is_value(item)]
        self.arena = Arena(max(sizes, default=1), slots) if shared_memory else None
        self._wanted: list[Callable[[], None]] = []
        self._connections: set[ScriptedConnection] = set()
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = socket.socketpair()
        self._running = False
        self._thread = threading.Thread(target=self._run, name="tundish-scripted", daemon=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    # For tests

    def start(self) -> Self:
        """Listens, and starts the thread."""
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._running = True
        self._thread.start()
        return self

    def stop(self) -> None:
        """Closes all connections and ends the thread; harmless when done twice."""
        if self._running:
            self._running = False
            self._wake_in.send(b"x")
            self._thread.join()
        for sock in (self._listener, self._wake_in, self._wake_out):
            sock.close()
        self._selector.close()
        if self.arena is not None:
            self.arena.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        if self._folder is not None:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(self._folder)

    @property
    def open_streams(self) -> int:
        """Streams that were asked for and have neither ended nor been cancelled."""
        return sum(len(connection.streams) for connection in list(self._connections))

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        """Headers of the messages of one kind received so far."""
        return [header for got, header in list(self.received) if got == kind]

    def wait_for(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        """Waits until a condition on this server holds.

        Raises:
            TimeoutError: It does not within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the condition did not come true within {timeout:g} s")
            time.sleep(0.001)

    def close_connections(self) -> None:
        """Closes all connections without a word."""
        self._call(lambda connection: connection.shut())

    def goaway(self, reason: str = "shutting down", back_in: float | None = None) -> None:
        """Announces that the server leaves; the connections stay open."""
        self._call(lambda connection: connection.goaway(reason, back_in))

    def drop_segment(self) -> None:
        """Asks all clients to unmap the segment."""
        self._call(lambda connection: connection.drop_segment())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # The thread

    def _call(self, action: Callable[[ScriptedConnection], None]) -> None:
        """Does something to all connections, in the server's thread, and waits for it."""
        done = threading.Event()

        def act() -> None:
            for connection in list(self._connections):
                action(connection)
            done.set()

        self._wanted.append(act)
        self._wake_in.send(b"x")
        done.wait()

    def _run(self) -> None:
        while self._running:
            timeouts = [connection.timeout() for connection in self._connections]
            for key, events in self._selector.select(min(timeouts, default=None)):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wake_out:
                    self._wake_out.recv(4096)
                else:
                    key.data(events)
            while self._wanted:
                self._wanted.pop(0)()
            for connection in list(self._connections):
                connection.go_on()
                if connection.closed:
                    self._connections.discard(connection)
        for connection in self._connections:
            connection.shut()
        self._connections.clear()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            sock, _ = self._listener.accept()
            self._connections.add(ScriptedConnection(self, sock, self._selector))


_STEPS = (Silence, Cut, Close, Goaway, Fail, Raw, Revoke, End)


def is_value(item: object) -> bool:
    """Whether an item of a script is a batch."""
    return not isinstance(item, (*_STEPS, BaseException))


def _size(item: Any) -> int:
    value, samples = (item.value, item.samples) if isinstance(item, Batch) else (item, (0,))
    return encode_value(value).nbytes + 8 * len(samples)
