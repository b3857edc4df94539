"""The link of an asyncio client: one transport, whose loop it belongs to."""

from __future__ import annotations

import asyncio
import socket as sockets
from typing import cast

from ._base import Opening
from ._protocol.client import ClientConnection, Reply
from ._protocol.reading import StreamState
from .errors import ConnectionLost, TundishError
from .shm import Segments

__all__ = ["LoopLink", "open_link"]

_SEND = sockets.MSG_DONTWAIT | sockets.MSG_NOSIGNAL


class LoopLink(asyncio.BufferedProtocol):
    """Between one transport and one connection; wakes those who wait for what has changed."""

    def __init__(self, opening: Opening, sock: sockets.socket) -> None:
        self.core: ClientConnection = opening.core
        self.segments: Segments | None = opening.segments
        self.sock = sock
        self.loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self.loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._waiters: dict[StreamState | Reply, asyncio.Future[None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not a subclass
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.core.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.core.receive(nbytes)
        self.flush()

    def eof_received(self) -> None:
        self.core.eof_received()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.core.eof_received()  # a reset says no more than an end: what had come was read
        self._transport = None
        self.flush()
        if not self.gone.done():
            self.gone.set_result(None)

    def flush(self) -> None:
        """Sends what the core has to say, and wakes those it concerns. In the loop's thread."""
        core = self.core
        if out := core.data_to_send():
            self._write(b"".join(out))
        if self.segments is not None and self.segments.backlog:
            self.segments.flush()
        if core.changed:
            for what in core.changed:
                waiter = self._waiters.get(what)
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
            core.changed.clear()

    def _write(self, data: bytes) -> None:
        """Sends past the transport, which would throw away what it has not read on EPIPE."""
        transport = self._transport
        if transport is None:
            return
        if not transport.get_write_buffer_size():
            try:
                data = data[self.sock.send(data, _SEND) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the server is gone; what it had sent is still there to be read
        if data:
            transport.write(data)

    async def change(self, what: StreamState | Reply) -> None:
        """Waits until something has happened to a stream or reply. Cancelling it is harmless."""
        if what in self._waiters:
            raise TundishError("another task is reading this stream: give each its own")
        waiter = self._waiters[what] = self.loop.create_future()
        try:
            await waiter
        finally:
            del self._waiters[what]

    def forget(self, state: StreamState) -> None:
        """Cancels a stream that was garbage collected."""
        self.core.cancel(state)
        self.flush()

    def shut(self) -> None:
        """Closes the connection; does not wait."""
        self.core.lose(ConnectionLost("the client was closed"))
        if self.segments is not None:
            self.segments.close()
        self.flush()
        if self._transport is not None:
            self._transport.abort()


async def open_link(loop: asyncio.AbstractEventLoop, opening: Opening) -> LoopLink:
    try:
        while (sock := opening.attempt()) is None:  # noqa: ASYNC110 - nothing tells of a new file
            await asyncio.sleep(opening.pause())
        try:
            while not (await _readable(loop, sock, opening.patience()) and opening.receive(sock)):
                pass
            link = LoopLink(opening, sock)
            await loop.create_unix_connection(lambda: link, sock=sock)
        except BaseException:
            sock.close()
            raise
    except BaseException:
        opening.abandon()
        raise
    return link


async def _readable(loop: asyncio.AbstractEventLoop, sock: sockets.socket, timeout: float) -> bool:
    """Waits until the socket is readable, or the time is over (False)."""
    ready = asyncio.Event()
    fd = sock.fileno()
    loop.add_reader(fd, ready.set)
    try:
        async with asyncio.timeout(timeout):
            await ready.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
    return True
