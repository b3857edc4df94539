"""The link of an asyncio client: one transport at a time, whose loop it belongs to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket as sockets
from typing import cast

from ._opening import Opening, Recovery
from ._protocol.client import ClientConnection, Reply
from ._protocol.reading import StreamState
from .config import ClientOptions
from .errors import ConnectError, ConnectionLost, TundishError
from .shm import Segments

__all__ = ["LoopLink", "open_link"]

_TURNS = 2  # of the loop: one polls the files, the next sees what came
_LAST_TURNS = 4  # more, where a read failed
_SEND = sockets.MSG_DONTWAIT | sockets.MSG_NOSIGNAL


class LoopLink(asyncio.BufferedProtocol):
    """Between a transport and a connection, and their successors; wakes who waits for a change.

    When the server goes away with something open, or is missed later, a task looks for it.
    """

    def __init__(self, options: ClientOptions, opening: Opening) -> None:
        self.core: ClientConnection = opening.core
        self.segments: Segments | None = opening.segments
        self.sock = opening.detach()
        self.loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self.loop.create_future()
        self._options = options
        self._transport: asyncio.Transport | None = None
        self._waiters: dict[StreamState | Reply, asyncio.Future[None]] = {}
        self._recovery = Recovery(options.path, options.patience)
        self._search: asyncio.Task[None] | None = None
        self._opening: Opening | None = None  # of the search
        self._found = False
        self._heard = 0  # how often something has come
        self._leaving: list[StreamState] = []

    async def connect(self) -> None:
        """Makes a transport of the socket."""
        try:
            await self.loop.create_unix_connection(lambda: self, sock=self.sock)
        except BaseException:
            with contextlib.suppress(OSError):  # uvloop has closed it already
                self.sock.close()
            self._is_gone()  # a transport that was not made may never say so
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not a subclass
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.core.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._heard += 1
        self.core.receive(nbytes)
        self.flush()

    def eof_received(self) -> None:
        self._heard += 1
        self.core.eof_received()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.core.eof_received()  # a reset says no more than an end: what had come was read
        self._transport = None
        self.flush()
        self._is_gone()
        self.recover()

    def _is_gone(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    def flush(self) -> None:
        """Sends what the core has to say, and wakes those it concerns. In the loop's thread."""
        core = self.core
        transport = self._transport  # None before the connection is made, and after it is lost
        if transport is not None and (out := core.data_to_send()):
            self._write(transport, b"".join(out))
        if self.segments is not None and self.segments.backlog:
            self.segments.flush()
        if core.changed:
            for what in core.changed:
                waiter = self._waiters.get(what)
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
            core.changed.clear()

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Sends past the transport, which would throw away what it has not read on EPIPE."""
        if not transport.get_write_buffer_size():
            try:
                data = data[self.sock.send(data, _SEND) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the server is gone; what it had sent is still there to be read
        if data:
            transport.write(data)

    async def look(self) -> None:
        """Takes in what has come, without waiting."""
        heard = -1
        while heard != self._heard:
            heard = self._heard
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            for _ in range(_LAST_TURNS):
                if self._is_closing():
                    await asyncio.sleep(0)

    async def change(self, what: StreamState | Reply) -> None:
        """Waits until something has happened to a stream or reply. Cancelling it is harmless."""
        if what in self._waiters:
            raise TundishError("another task is reading this stream: give each its own")
        self.recover()
        waiter = self._waiters[what] = self.loop.create_future()
        try:
            await waiter
        finally:
            del self._waiters[what]

    def forget(self, state: StreamState) -> None:
        """Cancels a stream, now."""
        self.core.cancel(state)
        self.flush()

    def _is_closing(self) -> bool:
        """Whether the loop knows that the connection is lost, and has not said so yet."""
        return self._transport is not None and self._transport.is_closing()

    def leave(self, state: StreamState) -> None:
        """Cancels a stream in a moment: where the server is gone, another one has to be told."""
        self._leaving.append(state)
        self._leave_after(_TURNS, self._heard)

    def _leave_after(self, turns: int, heard: int) -> None:
        """As `look`, but without a task: streams are dropped anywhere."""
        if turns <= 0 and heard != self._heard:
            turns, heard = _TURNS, self._heard
        if turns > 0 or (turns > -_LAST_TURNS and self._is_closing()):
            self.loop.call_soon(self._leave_after, turns - 1, heard)
        else:
            self._leave()

    def _leave(self) -> None:
        while self._leaving:
            self.forget(self._leaving.pop(0))

    def shut(self) -> None:
        """Closes the connection; does not wait."""
        self._leave()
        self.core.recovers = False
        self.core.lose(ConnectionLost("the client was closed"))
        if self._search is not None and not self._found:
            self._search.cancel()  # else it is about to make a transport
        if self.segments is not None:
            self.segments.close()
        self.flush()
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> None:
        """Waits for the turn of the loop in which the files are closed."""
        if self._search is not None:
            await asyncio.wait((self._search,))
        await asyncio.shield(self.gone)

    def abandon(self) -> None:
        """Closes the inherited file descriptor in a forked child."""
        os.close(self.sock.detach())

    # Recovering

    def recover(self) -> None:
        """Begins to look for a server that went away, if anything waits for it."""
        core = self.core
        if core.recovering and core.busy and self._search is None and self._transport is None:
            self._search = self.loop.create_task(self._look_for_server())

    async def _look_for_server(self) -> None:
        try:
            patience = self._recovery.after(self.core)
            opening = self._opening = Opening(self._options, patience)
            await _open(opening)
            self._found = True
            self._adopt(opening)
            await self.connect()
            self._recovery.succeeded()
            if self._transport is not None and not self.core.recovers:  # it was shut meanwhile
                self._transport.abort()
        except ConnectError as error:
            self._give_up(error)
        except Exception as error:  # nobody may wait for ever, whatever it is
            self._give_up(ConnectError(f"reconnecting failed: {error!r}"))
        finally:
            self._search, self._found = None, False
            if self._opening is not None:
                self._opening.abandon()
                self._opening = None
        self.recover()  # if it was lost again already

    def _adopt(self, opening: Opening) -> None:
        old, segments = self.core, self.segments
        self.core, self.segments = opening.core, opening.segments
        self.sock = opening.detach()
        self._opening = None
        self.gone = self.loop.create_future()
        self.core.adopt(old)
        if segments is not None:
            segments.close()

    def _give_up(self, error: ConnectError) -> None:
        self._recovery.failed()
        if self.core.failed is None:
            self.core.lose(error)
        else:
            self.core.give_up(error)
        self.flush()


async def open_link(options: ClientOptions) -> LoopLink:
    """Connects.

    Raises:
        ConnectError: See `AsyncClient`.
    """
    opening = Opening(options)
    try:
        await _open(opening)
        link = LoopLink(options, opening)
        await link.connect()
    finally:
        opening.abandon()
    return link


async def _open(opening: Opening) -> None:
    while not opening.go_on():
        sock, seconds = opening.wait()
        if sock is None:
            await asyncio.sleep(seconds)
        else:
            await _readable(sock, seconds)


async def _readable(sock: sockets.socket, seconds: float) -> None:
    """Waits until the socket is readable, or the time is over."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    fd = sock.fileno()
    loop.add_reader(fd, ready.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await ready.wait()
    finally:
        loop.remove_reader(fd)
