"""The asyncio client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from ._base import BaseClient, choose_feed
from ._looping import LoopLink, open_link
from ._protocol.reading import StreamState
from .config import ClientOptions, EpochOptions
from .errors import ConnectionLost, TundishError
from .resuming import resume_any
from .streams import AsyncStream

__all__ = ["AsyncClient"]


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
        reconnect_timeout: float | None = None,
        shared_memory: bool | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            ClientOptions(
                socket=socket,
                connect_timeout=connect_timeout,
                reconnect_timeout=reconnect_timeout,
                shared_memory=shared_memory,
                name=name,
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None
        self._link: LoopLink | None = None
        self._unasked: deque[StreamState] = deque()  # streams that the server hasn't heard of

    # What users call

    def epoch(
        self,
        epoch: int,
        start: int = 0,
        *,
        feed: str | None = None,
        rank: int | None = None,
        world_size: int = 1,
        uneven: str = "pad",
        batch_size: int | None = None,
        group: str | None = None,
        group_size: int | None = None,
        split: str | None = None,
        on_lag: str = "detach",
        prefetch: int | None = None,
        copy: bool = False,
    ) -> AsyncStream:
        """Like `Client.epoch`; needs no `await`.

        The server is asked at once, in the thread of the client's loop and when that is connected;
        else as soon as it is, and before anything else that the client is used for.
        """
        options = EpochOptions(
            epoch=epoch, start=start, feed=feed, rank=rank, world_size=world_size,
            uneven=uneven, batch_size=batch_size, group=group, group_size=group_size,
            split=split, on_lag=on_lag, prefetch=prefetch, copy=copy,
        )  # fmt: skip
        return self._stream(options)

    def resume(
        self,
        state: Mapping[str, Any],
        *,
        feed: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: str | None = None,
        group: str | None = None,
        group_size: int | None = None,
        on_lag: str = "detach",
        prefetch: int | None = None,
        copy: bool = False,
    ) -> AsyncStream:
        """Like `Client.resume`; the server is asked when it is for `epoch`."""
        options = resume_any(
            state, feed=feed, rank=rank, world_size=world_size, uneven=uneven,
            group=group, group_size=group_size, on_lag=on_lag, prefetch=prefetch, copy=copy,
        )  # fmt: skip
        return self._stream(options)

    def _stream(self, options: EpochOptions) -> AsyncStream:
        self._life.check()
        state = StreamState(options)
        stream = AsyncStream(self, state)
        self._unasked.append(state)
        link = self._link
        if link is None:
            pass  # it is asked for once there is a connection
        elif asyncio._get_running_loop() is link.loop:
            self._ask(link, state)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                link.loop.call_soon_threadsafe(self._ask, link)
        return stream

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
        if self._life.over:
            return
        self._life.closed = True
        if self._link is not None:
            self._check_loop()
            self._link.shut()
            await self._link.closed()

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
        if link is not None and not self._life.over:
            try:
                link.loop.call_soon_threadsafe(link.shut)
            except RuntimeError:  # the loop is closed
                if link.segments is not None:
                    link.segments.close()

    # What streams call

    async def _take(self, state: StreamState) -> Any:
        link = await self._connected()
        if state.split is not None:
            # A batch at hand may be another stream's by now, or the server gone.
            await link.look()
        while (cell := self._look(link, link.core.take, state)) is None:
            await link.change(state)
            self._life.check()
        return cell

    async def _start(self, state: StreamState) -> None:
        link = await self._connected()
        while not state.is_started():
            await link.change(state)
            self._life.check()

    @staticmethod
    def _look(link: LoopLink, question: Any, what: StreamState) -> Any:
        try:
            return question(what)
        finally:
            link.flush()

    async def _close_stream(self, state: StreamState, *, clean: bool) -> None:
        if state.closed or self._life.over:
            return
        state.clean = clean
        link = self._link
        if link is None:
            state.close()
            self._never_ask(state)
            return
        self._check_loop()
        try:
            if state.split is not None and link.core.recovers:
                await link.look()  # where the server is gone, another one has to be told
        finally:
            link.forget(state)

    def _forget(self, state: StreamState) -> None:
        """Cancels a stream that was garbage collected, on whatever thread."""
        if not state.number:
            state.closed = True  # before looking for the link, which looks at this once it is there
            self._never_ask(state)
        link = self._link
        if link is None or self._life.over:
            return
        cancel = link.leave if link.core.recovers else link.forget
        if state.clean and asyncio._get_running_loop() is link.loop:
            # By break, so that nothing is going on; the client may be closed before the next turn.
            cancel(state)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            link.loop.call_soon_threadsafe(cancel, state)

    # Connecting and asking

    def _ask(self, link: LoopLink, mine: StreamState | None = None) -> None:
        """Asks for the streams that nobody was asked for yet. In the loop's thread.

        Raises:
            ConnectionLost: The server is gone for good, and `mine` is one of them; the others say
                so themselves.
        """
        if not self._unasked:
            return
        try:
            while self._unasked:
                state = self._unasked.popleft()
                if state.closed:
                    continue
                try:
                    link.core.open_stream(state)
                except ConnectionLost:
                    if state is mine:
                        raise
        finally:
            link.flush()
            link.recover()

    def _never_ask(self, state: StreamState) -> None:
        with contextlib.suppress(ValueError, IndexError):  # another thread is asking just now
            self._unasked.remove(state)

    async def _request(self, kind: str) -> dict[str, Any]:
        link = await self._connected()
        reply = link.core.request(kind)
        link.flush()
        while (header := reply.take()) is None:
            await link.change(reply)
            self._life.check()
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

    async def _connected(self) -> LoopLink:
        """Returns the link; connects if that has not been done."""
        self._life.check()
        self._check_loop()
        if self._link is None:
            if self._opening is None:
                self._opening = asyncio.Lock()
            async with self._opening:
                if self._link is None:
                    self._link = await open_link(self._options)
            if self._life.closed:
                self._link.shut()
            self._life.check()
        self._ask(self._link)
        return self._link

    def _abandon(self) -> None:
        if self._link is not None:
            self._link.abandon()
