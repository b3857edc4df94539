"""The asyncio client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket as sockets
import time
from types import TracebackType
from typing import Any, Self, cast

from ._base import BaseClient, Opening, choose_feed
from ._protocol.client import ClientConnection, Reply
from ._protocol.reading import StreamState
from .config import ClientOptions, EpochOptions
from .errors import ConnectionLost, TundishError
from .shm import Segments
from .streams import AsyncStream

__all__ = ["AsyncClient"]

_SEND = sockets.MSG_DONTWAIT | sockets.MSG_NOSIGNAL


class _Link(asyncio.BufferedProtocol):
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


class AsyncClient(BaseClient):
    """A connection to a Tundish server for asyncio, also with uvloop and under anyio.

    It connects on `async with` or at the first request, and belongs to the loop it was first used
    in. The arguments are those of `Client`. Cancelling a call is safe at any time.

    Example:
        >>> async def main():
        ...     async with AsyncClient() as client:
        ...         async for batch in client.epoch(0):
        ...             train(batch)
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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None
        self._link: _Link | None = None

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
    ) -> AsyncStream:
        """Like `Client.epoch`; the server is asked when the stream is first used."""
        options = EpochOptions(
            epoch=epoch, feed=feed, start=start, rank=rank, world_size=world_size,
            uneven=uneven, prefetch=prefetch, copy=copy,
        )  # fmt: skip
        self._check_usable()
        return AsyncStream(self, StreamState(options))

    async def feeds(self) -> list[dict[str, Any]]:
        """Returns what the server offers: one dict per feed (feed, samples, batches, seed...)."""
        return list((await self._request("FEEDS"))["feeds"])

    async def info(self, feed: str | None = None) -> dict[str, Any]:
        """Returns the entry of one feed in `feeds()`; the name may be left out if there is one.

        Raises:
            ConfigError: There is no such feed; the message names those there are.
        """
        return choose_feed(await self.feeds(), feed)

    async def stats(self) -> dict[str, Any]:
        """Returns the server's counters: streams, runs, feeds, memory, slots."""
        return dict((await self._request("STATS"))["stats"])

    async def ping(self) -> float:
        """Asks the server for a sign of life; returns the seconds it took."""
        await self._connected()
        began = time.perf_counter()
        await self._request("PING")
        return time.perf_counter() - began

    async def aclose(self) -> None:
        """Closes the connection. Arrays that are still held stay as they are.

        Never waits for the server.
        """
        if self._closed or self._forked:
            return
        self._closed = True
        if self._link is not None:
            self._check_loop()
            self._link.shut()
            await asyncio.shield(self._link.gone)  # a turn of the loop, so that the file is closed

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        link = getattr(self, "_link", None)
        if link is not None and not self._closed and not self._forked:
            try:
                link.loop.call_soon_threadsafe(link.shut)
            except RuntimeError:  # the loop is closed
                if link.segments is not None:
                    link.segments.close()

    # What streams call

    async def _take(self, state: StreamState) -> Any:
        link = await self._started(state)
        while (cell := self._look(link, link.core.take, state)) is None:
            await link.change(state)
            self._check_usable()
        return cell

    async def _start(self, state: StreamState) -> None:
        link = await self._started(state)
        while state.length() is None:
            await link.change(state)
            self._check_usable()

    async def _started(self, state: StreamState) -> _Link:
        """Returns the link, with the stream asked for."""
        link = await self._connected()
        if not state.number and not state.closed:
            self._look(link, link.core.open_stream, state)
        return link

    @staticmethod
    def _look(link: _Link, question: Any, what: StreamState) -> Any:
        try:
            return question(what)
        finally:
            link.flush()

    def _close_stream(self, state: StreamState) -> None:
        if state.closed or self._closed or self._forked:
            return
        if self._link is None:
            state.close()
            return
        self._check_loop()
        self._link.forget(state)

    def _forget(self, state: StreamState) -> None:
        """Cancels a stream that was garbage collected, on whatever thread."""
        link = self._link
        if link is not None and not self._closed and not self._forked:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                link.loop.call_soon_threadsafe(link.forget, state)

    # Connecting and asking

    async def _request(self, kind: str) -> dict[str, Any]:
        link = await self._connected()
        reply = link.core.request(kind)
        link.flush()
        while (header := reply.take()) is None:
            await link.change(reply)
            self._check_usable()
        return header

    def _check_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise TundishError(
                "this AsyncClient belongs to another event loop, the one it was first used in: "
                "open one client per event loop"
            )
        return loop

    async def _connected(self) -> _Link:
        """Returns the link; connects if that has not been done."""
        self._check_usable()
        loop = self._check_loop()
        if self._link is not None:
            return self._link
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._link is None:
                self._link = await _open(loop, Opening(self._options))
        if self._closed:
            self._link.shut()
        self._check_usable()
        return self._link

    def _abandon(self) -> None:
        if self._link is not None:
            os.close(self._link.sock.detach())


async def _open(loop: asyncio.AbstractEventLoop, opening: Opening) -> _Link:
    try:
        while (sock := opening.attempt()) is None:  # noqa: ASYNC110 - nothing tells of a new file
            await asyncio.sleep(opening.pause())
        try:
            while not (await _readable(loop, sock, opening.patience()) and opening.receive(sock)):
                pass
            link = _Link(opening, sock)
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
