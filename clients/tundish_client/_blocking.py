"""The link of a blocking client: one socket, any number of threads, and signals at any moment.

A short lock guards the core; one thread at a time is the reader and waits in the socket, without
the lock. A signal handler may raise anywhere: in a wait it costs nothing, because the system call's
result is noted without a bytecode between. An update of the core holds Ctrl-C back until it is
done; what another signal's handler raises there fails the connection, with the position to resume
from.

When the server goes away, the reader looks for it instead of waiting in the socket, one step at a
time: whoever is the reader then takes the next step.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket as sockets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ._base import Life
from ._opening import Opening, Patience, Recovery
from ._protocol.reading import StreamState
from ._signals import try_to_take, uninterrupted
from .config import ClientOptions
from .errors import ConnectError, ConnectionLost, TundishError

__all__ = ["BlockingLink"]

_SEND = sockets.MSG_DONTWAIT | sockets.MSG_NOSIGNAL
_RECEIVE = sockets.MSG_DONTWAIT
_SLICE = 0.05  # seconds after which a waiting thread looks around


class BlockingLink:
    """Drives a `ClientConnection` over a blocking socket, and its successors. Thread-safe."""

    def __init__(self, options: ClientOptions, life: Life) -> None:
        """Connects.

        Raises:
            ConnectError: See `Client`.
        """
        self.life = life
        self._lock = threading.Lock()
        self._waiters: list[threading.Lock] = []  # one for each thread that waits, held till then
        self._reader: int | None = None  # the thread that may receive
        self._received: list[int] = []  # counts that the core has not been told yet
        self._unsent = b""
        self._dropped: deque[StreamState] = deque()
        self._options = options
        self._recovery = Recovery(options.path, options.patience)
        self._patience: Patience | None = None
        self._opening: Opening | None = None  # of the connection after the present one
        opening = _open(options)
        self.sock = opening.detach()
        self.sock.setblocking(True)
        self.core = opening.core
        self.segments = opening.segments

    # What the client calls

    def take(self, state: StreamState) -> Any:
        """Returns the stream's next cell or END; waits for it. See `ClientConnection.take`."""
        self.life.check()
        try:
            if state.split is not None:
                # A batch at hand may be another stream's by now, or the server gone.
                while self._look():
                    pass
            return self.until(self._claim, state)
        except BaseException:
            if state.reader == threading.get_ident():
                state.reader = None
            raise

    def _claim(self, state: StreamState) -> Any:
        me = threading.get_ident()
        if state.reader not in (None, me):
            raise TundishError("another thread is reading this stream: give each its own")
        state.reader = me
        return self.core.take(state)

    def request(self, kind: str) -> dict[str, Any]:
        """Sends a request and returns its answer; waits for it."""
        reply = self.update("request", kind)
        header: dict[str, Any] = self.until(reply.take)
        return header

    def update(self, change: str, *args: Any) -> Any:
        """Has the core do something, under the lock, and sends what that led to.

        Args:
            change: Name of the method: only under the lock is it known whose.
            args: Its arguments.
        """
        self.life.check()  # in a forked child nobody may let go of the lock
        with self._lock:
            self.life.check()
            result = uninterrupted(self._guarded, getattr(self.core, change), args)
        self.cancel_dropped()
        return result

    def cancel(self, state: StreamState) -> None:
        """Ends a stream; another thread that waits for it is told."""
        if state.split is not None and self.core.recovers:
            while self._look():  # where the server is gone, another one has to be told
                pass
        self.update("cancel", state)
        if state.reader not in (None, threading.get_ident()):
            # It may wait in the socket: the answer wakes it.
            self.update("send", "PING", {"token": 0})

    def forget(self, state: StreamState) -> None:
        """Cancels a stream that was garbage collected: on any thread, without waiting."""
        self._dropped.append(state)
        self.cancel_dropped()

    def cancel_dropped(self) -> None:
        """Cancels what was garbage collected, if no other thread is about to do that."""
        while self._dropped and not self.life.over:
            taken: list[bool] = []
            try:
                if not try_to_take(self._lock, taken):
                    return
                uninterrupted(self._guarded, self._cancel_now, ())
            finally:
                if True in taken:
                    self._lock.release()

    def _cancel_now(self) -> None:
        while self.core.recovers and self._take_in():  # as in `cancel`
            self._absorb_received()
        self._absorb()

    def shut(self) -> None:
        """Closes the connection. Never waits for the server."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(sockets.SHUT_RDWR)  # wakes a reader in another thread
        taken: list[bool] = []
        try:
            # A signal handler may be on top of the very thread that holds the lock.
            try_to_take(self._lock, taken, 1.0)
            self.core.recovers = False
            self.core.lose(ConnectionLost("the client was closed"))
            if self.segments is not None:
                self.segments.close()
            if self._reader in (None, threading.get_ident()):
                self._hang_up()  # else the reader does, once it is out of its call
            if True in taken:
                self._wake()
        finally:
            if True in taken:
                self._lock.release()

    def _hang_up(self) -> None:
        self.sock.close()
        if self._opening is not None:
            self._opening.abandon()

    def abandon(self) -> None:
        """Closes the inherited file descriptor in a forked child."""
        os.close(self.sock.detach())

    # Waiting

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

    def until(self, ready: Callable[..., Any], *args: Any) -> Any:
        """Returns what `ready` returns once that is not None; receives until then."""
        self.life.check()
        me = threading.get_ident()
        try:
            while True:
                with self._lock:
                    result = uninterrupted(self._step, ready, args)
                    if result is not None:
                        return result
                    waiter, view = self._prepare(me)
                if waiter is not None:
                    self._wait_for(waiter, _SLICE)
                elif view is None:
                    self._recover()
                elif not self._dropped:
                    self._receive(view)
        finally:
            if self._reader == me:
                self._reader = None
                if self.life.closed:
                    self._hang_up()
                elif self._waiters:
                    with self._lock:
                        self._wake()

    def _step(self, ready: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """One look, under the lock: tells the core what has come, asks, sends what that led to."""
        self.life.check()
        if self._received or self._dropped:
            try:
                self._absorb()
            except BaseException as error:
                self._interrupted(error)
                raise
        return self._guarded(ready, args)

    def _absorb(self) -> None:
        self._absorb_received()
        while self._dropped:
            self.core.cancel(self._dropped.popleft())
        self.core.changed.clear()
        self._wake()

    def _absorb_received(self) -> None:
        for n in self._received:
            if n:
                self.core.receive(n)
            else:
                self.core.eof_received()
        self._received.clear()

    def _interrupted(self, error: BaseException) -> None:
        """A signal handler raised in the middle of an update: the core may be inconsistent."""
        lost = ConnectionLost(f"the client was interrupted in an update by {type(error).__name__}")
        self.core.lose(lost)

    def _prepare(self, me: int) -> tuple[threading.Lock | None, memoryview | None]:
        """Under the lock: what to wait for, or as the reader where to receive.

        Neither, if it is for the reader to look for a server.
        """
        if self._reader not in (None, me):
            return self._waiter(), None
        if self._received:  # noted just now by a reader that a signal took away
            return threading.Lock(), None  # which is free: look again at once
        self._reader = me
        return None, None if self.core.recovering else self.core.get_buffer()

    def _waiter(self) -> threading.Lock:
        """Something to wait for, made under the lock."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        return waiter

    def _wait_for(self, waiter: threading.Lock, seconds: float) -> None:
        """Waits without the lock until `_wake`; a signal may raise here, and costs nothing."""
        try:
            waiter.acquire(timeout=seconds)
        finally:
            with contextlib.suppress(ValueError):  # it was woken
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        """Has all threads look again; under the lock."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.release()

    def _look(self) -> bool:
        """Takes in what has come, without waiting; returns whether that was anything."""
        self.life.check()
        with self._lock:
            if not self._take_in():
                return False
            uninterrupted(self._step, _nothing, ())
            return True

    def _take_in(self) -> bool:
        """The same under the lock, and without acting on it."""
        if self._reader is not None or self._received or self.core.failed is not None:
            return False
        view = self.core.get_buffer()
        try:
            self._received.extend(map(self.sock.recv_into, (view,), (0,), (_RECEIVE,)))
        except BlockingIOError:
            return False
        except OSError:
            self._received.append(0)
        return True

    def _receive(self, view: memoryview) -> None:
        """Waits for bytes; a signal may raise here at any time, and costs nothing."""
        segments = self.segments
        try:
            if self._unsent or (segments is not None and segments.backlog):
                self._wait_for_room(view)
                return
            # No bytecode stands between the system call and the note of its result.
            self._received.extend(map(self.sock.recv_into, (view,)))
        except (OSError, ValueError):  # the latter of poll: it was closed in another thread
            self._received.append(0)

    def _wait_for_room(self, view: memoryview) -> None:
        """Waits until what is to be sent, or what is to be received, can move."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        segments = self.segments
        if segments is not None and segments.backlog:
            poll.register(segments, select.POLLOUT)
        for fd, events in poll.poll():
            if fd == self.sock.fileno() and events & ~select.POLLOUT:
                self._received.extend(map(self.sock.recv_into, (view,)))
        if segments is not None:
            segments.flush()

    def _flush(self) -> None:
        """Sends what the core has to say, as far as there is room."""
        try:
            if out := self.core.data_to_send():
                self._unsent += b"".join(out)
            if self._unsent:
                self._unsent = self._unsent[self.sock.send(self._unsent, _SEND) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""  # the server is gone; what it had sent is still there to be read
        except BaseException as error:
            self._interrupted(error)
            raise

    # Recovering

    def _recover(self) -> None:
        """One step towards another connection; a signal may raise here, and costs nothing."""
        try:
            opening = uninterrupted(self._step_on)
            if opening is not None:
                sock, seconds = opening.wait()
                if sock is None:
                    with self._lock:
                        waiter = self._waiter()
                    self._wait_for(waiter, min(seconds, _SLICE))
                else:
                    _wait(sock, min(seconds, _SLICE))
        except ConnectError as error:
            with self._lock:
                uninterrupted(self._give_up, error)

    def _step_on(self) -> Opening | None:
        """Returns the opening if it has to be waited for; None once there is a connection."""
        if self._patience is None:
            self._patience = self._recovery.after(self.core)
        if self._opening is None:
            self._opening = Opening(self._options, self._patience)
        try:
            if not self._opening.go_on():
                return self._opening
        except BaseException:
            self._drop_opening()
            raise
        with self._lock:
            self._adopt(self._opening)
        return None

    def _drop_opening(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.abandon()

    def _give_up(self, error: Exception) -> None:
        self._drop_opening()
        self._patience = None
        self._recovery.failed()
        self.core.give_up(error)
        self.core.changed.clear()
        self._wake()

    def _adopt(self, opening: Opening) -> None:
        """Goes on with the new connection, under the lock."""
        if self.life.over:
            return
        old, segments = self.core, self.segments
        self.sock.close()
        self.sock = opening.detach()
        self.core, self.segments = opening.core, opening.segments
        self._opening = self._patience = None
        self._unsent = b""
        try:
            self.sock.setblocking(True)
            self.core.adopt(old)
            if segments is not None:
                segments.close()
        except BaseException as error:  # of a signal's handler
            old.recovers = self.core.recovers = False
            old.lose(error if isinstance(error, Exception) else ConnectionLost(repr(error)))
            self._interrupted(error)
            raise
        self._flush()
        self._recovery.succeeded()
        self._wake()


def _nothing() -> None:
    """What is asked for by one who only looks."""


def _open(options: ClientOptions) -> Opening:
    opening = Opening(options)
    try:
        while not opening.go_on():
            _wait(*opening.wait())
    except BaseException:
        opening.abandon()
        raise
    return opening


def _wait(sock: sockets.socket | None, seconds: float) -> None:
    """Waits until the socket is readable, or just waits."""
    if sock is None:
        time.sleep(seconds)
        return
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.poll(seconds * 1000)
