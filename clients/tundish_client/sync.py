"""The blocking client."""

from __future__ import annotations

import contextlib
import os
import select
import socket as sockets
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ._base import BaseClient, Opening, choose_feed
from ._protocol.reading import StreamState
from .config import ClientOptions, EpochOptions
from .errors import ConnectionLost, TundishError
from .streams import Stream

__all__ = ["Client"]

_SEND = sockets.MSG_DONTWAIT | sockets.MSG_NOSIGNAL
_SLICE = 0.05  # seconds after which a waiting thread looks whether the reader's place is free


class Client(BaseClient):
    """A connection to a Tundish server.

    It may be used from several threads. Ctrl-C comes through at once and loses nothing: after
    catching KeyboardInterrupt, the next call goes on where the interrupted one was.

    Args:
        socket: Path of the server's socket; by default `$TUNDISH_SOCKET`, else
            `$XDG_RUNTIME_DIR/tundish/tundish.sock`, else `/tmp/tundish-<uid>/tundish.sock`.
        connect_timeout: Seconds to wait for a server that is not there yet, or does not answer;
            10 by default (`$TUNDISH_CONNECT_TIMEOUT`).
        shared_memory: Take batches in shared memory; yes by default (`$TUNDISH_SHARED_MEMORY`).

    Raises:
        ConfigError: An argument is wrong; the message names it.
        ConnectTimeout: No server came, or it did not answer in time.
        ConnectError: What listens there is not a Tundish server, or one of another version.

    Example:
        >>> with Client() as client:  # doctest: +SKIP
        ...     for batch in client.epoch(0):
        ...         train(batch)
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        connect_timeout: float | None = None,
        shared_memory: bool | None = None,
    ) -> None:
        super().__init__(
            ClientOptions(
                socket=socket, connect_timeout=connect_timeout, shared_memory=shared_memory
            )
        )
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._reader: int | None = None  # the thread that may receive
        self._received: list[int] = []  # counts that the core has not been told yet
        self._unsent = b""
        self._dropped: deque[StreamState] = deque()
        self._closers: list[Callable[[], None]] = []
        opening = Opening(self._options)
        self._sock = _open(opening)
        self._core = opening.core
        self._segments = opening.segments

    # What users call

    def epoch(
        self,
        epoch: int,
        *,
        feed: str | None = None,
        start: int = 0,
        rank: int = 0,
        world_size: int = 1,
        uneven: str = "pad",
        prefetch: int = 2,
        copy: bool = False,
    ) -> Stream:
        """Asks for an epoch and returns the stream of its batches.

        Args:
            epoch: Which epoch, from 0; the order depends on it and on the feed's seed only.
            feed: Name of the feed; may be left out when the server has one.
            start: The first batch wanted.
            rank: This consumer's shard, below `world_size`.
            world_size: Number of shards.
            uneven: "pad", "drop" or "keep": what to do if the shards are not of one size.
            prefetch: Batches the server may send ahead, at least 1.
            copy: Hand out arrays in memory of their own instead of views of shared memory.

        Raises:
            ConfigError: An argument is wrong; the message names it. What only the server can know
                (no such feed, a start beyond the end) is raised by the stream.
            ConnectionLost: The server is gone.
        """
        options = EpochOptions(
            epoch=epoch, feed=feed, start=start, rank=rank, world_size=world_size,
            uneven=uneven, prefetch=prefetch, copy=copy,
        )  # fmt: skip
        state = StreamState(options)
        self._update(self._core.open_stream, state)
        return Stream(self, state)

    def feeds(self) -> list[dict[str, Any]]:
        """Returns what the server offers: one dict per feed (feed, samples, batches, seed...)."""
        return list(self._request("FEEDS")["feeds"])

    def info(self, feed: str | None = None) -> dict[str, Any]:
        """Returns the entry of one feed in `feeds()`; the name may be left out if there is one.

        Raises:
            ConfigError: There is no such feed; the message names those there are.
        """
        return choose_feed(self.feeds(), feed)

    def stats(self) -> dict[str, Any]:
        """Returns the server's counters: streams, runs, feeds, memory, slots."""
        return dict(self._request("STATS")["stats"])

    def ping(self) -> float:
        """Asks the server for a sign of life; returns the seconds it took."""
        began = time.perf_counter()
        self._request("PING")
        return time.perf_counter() - began

    def close(self) -> None:
        """Closes the connection. Arrays that are still held stay as they are. Never waits."""
        if self._closed or self._forked:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(sockets.SHUT_RDWR)  # wakes a reader in another thread
        # A signal handler may be on top of the very thread that holds the lock.
        held = self._lock.acquire(timeout=1.0)
        try:
            self._core.lose(ConnectionLost("the client was closed"))
            if self._segments is not None:
                self._segments.close()
            if self._reader in (None, threading.get_ident()):
                self._sock.close()  # else the reader does, once it is out of its call
        finally:
            if held:
                self._lock.release()
        for closer in self._closers:
            closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    # What streams call

    def _take(self, state: StreamState) -> Any:
        try:
            return self._until(self._claim, state)
        except BaseException:
            state.reader = None
            raise

    def _claim(self, state: StreamState) -> Any:
        me = threading.get_ident()
        if state.reader not in (None, me):
            raise TundishError("another thread is reading this stream: give each its own")
        state.reader = me
        return self._core.take(state)

    def _length(self, state: StreamState) -> int:
        length = state.length()
        return int(self._until(state.length) if length is None else length)

    def _close_stream(self, state: StreamState) -> None:
        if not (state.closed or self._closed or self._forked):
            self._update(self._core.cancel, state)

    def _forget(self, state: StreamState) -> None:
        """Cancels a stream that was garbage collected: on any thread, without waiting."""
        if self._closed or self._forked:
            return
        self._dropped.append(state)
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                self._cancel_dropped()
                self._flush()
            finally:
                self._lock.release()

    def _cancel_dropped(self) -> None:
        while self._dropped:
            self._core.cancel(self._dropped.popleft())

    # Waiting

    def _request(self, kind: str) -> dict[str, Any]:
        reply = self._update(self._core.request, kind)
        header: dict[str, Any] = self._until(reply.take)
        return header

    def _update(self, change: Callable[..., Any], *args: Any) -> Any:
        """Changes the core, under the lock, and sends what that led to."""
        with self._lock:
            self._check_usable()
            return self._guarded(change, args)

    def _guarded(self, change: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return change(*args)
        except Exception:
            raise  # the user is to see it
        except BaseException as error:
            self._interrupted(error)
            raise
        finally:
            self._flush()

    def _until(self, ready: Callable[..., Any], *args: Any) -> Any:
        """Returns what `ready` returns once that is not None; receives until then."""
        me = threading.get_ident()
        try:
            while True:
                with self._changed:
                    result = self._step(ready, args)
                    if result is not None:
                        return result
                    if self._reader not in (None, me):
                        self._wait_for_reader()
                        continue
                    self._reader = me
                    view = self._core.get_buffer()
                if not self._dropped:
                    self._receive(view)
        finally:
            if self._reader == me:
                self._reader = None
                if self._closed:
                    self._sock.close()

    def _step(self, ready: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """One look, under the lock: tells the core what has come, asks, sends what that led to."""
        self._check_usable()
        if self._received or self._dropped:
            try:
                self._absorb()
            except BaseException as error:
                self._interrupted(error)
                raise
        return self._guarded(ready, args)

    def _absorb(self) -> None:
        self._cancel_dropped()
        for n in self._received:
            if n:
                self._core.receive(n)
            else:
                self._core.eof_received()
        self._received.clear()
        self._core.changed.clear()
        if self._waiting:
            self._changed.notify_all()

    def _interrupted(self, error: BaseException) -> None:
        """A signal handler raised in the middle of an update: the core may be inconsistent."""
        lost = ConnectionLost(f"the client was interrupted in an update by {type(error).__name__}")
        self._core.lose(lost)

    def _wait_for_reader(self) -> None:
        self._waiting += 1
        try:
            self._changed.wait(_SLICE)
        finally:
            self._waiting -= 1

    def _receive(self, view: memoryview) -> None:
        """Waits for bytes; a signal may raise here at any time, and costs nothing."""
        segments = self._segments
        if self._unsent or (segments is not None and segments.backlog):
            self._wait_for_room(view)
            return
        try:
            # No bytecode stands between the system call and the note of its result.
            self._received.extend(map(self._sock.recv_into, (view,)))
        except OSError:
            self._received.append(0)

    def _wait_for_room(self, view: memoryview) -> None:
        """Waits until what is to be sent, or what is to be received, can move."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        segments = self._segments
        if segments is not None and segments.backlog:
            poll.register(segments, select.POLLOUT)
        for fd, events in poll.poll():
            if fd == self._sock.fileno() and events & ~select.POLLOUT:
                self._received.extend(map(self._sock.recv_into, (view,)))
        if segments is not None:
            segments.flush()

    def _flush(self) -> None:
        """Sends what the core has to say, as far as there is room."""
        try:
            if out := self._core.data_to_send():
                self._unsent += b"".join(out)
            if self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent, _SEND) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""  # the server is gone; what it had sent is still there to be read
        except BaseException as error:
            self._interrupted(error)
            raise

    def _abandon(self) -> None:
        os.close(self._sock.detach())


def _open(opening: Opening) -> sockets.socket:
    try:
        while (sock := opening.attempt()) is None:
            time.sleep(opening.pause())
        try:
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            while not (poll.poll(opening.patience() * 1000) and opening.receive(sock)):
                pass
            sock.setblocking(True)
        except BaseException:
            sock.close()
            raise
    except BaseException:
        opening.abandon()
        raise
    return sock
