"""Streams: one consumer's reading of one epoch.

Iterators are classes, not generators: an error or a cancelled `anext` costs nothing, the next call
goes on with the next batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ._leaving import in_exception, left_by_break
from ._protocol.cells import Cell
from ._protocol.client import END
from ._protocol.info import BatchInfo, Position
from ._protocol.reading import StreamState
from ._signals import interrupt_again
from .errors import TundishError

if TYPE_CHECKING:
    from .aio import AsyncClient
    from .sync import Client

__all__ = ["AsyncStream", "Stream"]


class BaseStream:
    """What is known about a stream, the same for both clients."""

    def __init__(self, state: StreamState) -> None:
        self._state = state

    @property
    def position(self) -> Position:
        """Where the stream stands: `.epoch` and `.batch`, the batch that comes next.

        A position counts what was handed out, not what was received.

        Raises:
            TundishError: The epoch is split, or the feed delivers out of order.
        """
        return self._state.position

    @property
    def info(self) -> BatchInfo | None:
        """The batch handed out last: number, sample indices, skipped ones, times.

        None before the first.
        """
        return self._state.info

    @property
    def counts(self) -> Mapping[str, int]:
        """batches, samples, padded, dropped, skipped, redelivered, errors.

        From the start of the stream what the server announced; `skipped` and `errors` count what
        was handed out. Where the number of batches is not known beforehand, batches and samples
        count what was handed out, too. After the end all are what came true, from the first batch
        of this stream on, over all connections. `redelivered`, told at the end, counts the batches
        of a split epoch that another stream had had before, as far as the last server knows.
        """
        return self._state.counts

    @property
    def feed(self) -> str | None:
        """Name of the feed; None until the server has said which, if none was asked for."""
        return self._state.feed

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What the order depends on: seed, samples, order, batch size... Empty before the start."""
        return dict(self._state.fingerprint)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position as plain data for a checkpoint; JSON can hold it.

        Keys: feed, epoch, batch (the next one), rank, world_size, uneven, fingerprint, and
        batch_size if the stream has one of its own. Go on with `client.resume(state)`.

        Of a split epoch: feed, epoch, split, acked, fingerprint. `acked` are the batches that this
        stream has acknowledged, as [[first, last], ...]; the one in your hands is not among them
        before you ask for the next, or end the stream.

        Raises:
            TundishError: The feed delivers out of order; there is no position.
        """
        return self._state.state()

    def __bool__(self) -> bool:
        return True  # not len(): asking whether there is a stream must not wait for the server

    def __repr__(self) -> str:
        state = self._state
        where = f"epoch {state.options.epoch}"
        if state.split is not None:
            where += f", split {state.split!r}"
        elif state.in_order is not False:
            where += f", batch {state.next_batch}"
        return f"<{type(self).__name__} of feed {self.feed!r} at {where}>"


class Stream(BaseStream):
    """An epoch of a `Client`: iterate over it once.

    Only one thread at a time may read a stream; different streams of one client may be read in
    different threads. A failing batch raises its error, the next call goes on after it.

    In a split epoch a batch is acknowledged by the next `next()`, by leaving `with` without an
    exception, by `close()`, or by `break` or `return` out of a `for` over a stream that has no
    name, as in `for batch in client.epoch(0, split="g")`. One that has a name is still there after
    its loop, and the batch in your hands still unacknowledged. Dropped in any other way, by an
    exception above all, a stream gives the batch to the others; so it may when you leave a
    generator or a progress bar around it, which Python ends by an exception: use `with` there.
    """

    def __init__(self, client: Client, state: StreamState) -> None:
        super().__init__(state)
        self._client = client

    def __iter__(self) -> Iterator[Any]:
        return self if self._state.split is None else _Splitting(self)

    def __next__(self) -> Any:
        """Returns the next batch; waits for it.

        Raises:
            StopIteration: The epoch has ended, and all its batches have come.
            ConnectionLost: The server is gone; `.position` says where to resume.
            Exception: The error of this batch, or of the whole stream.
        """
        state = self._state
        if state.final:
            raise StopIteration
        cell = self._client._take(state)
        # From here to the return there is neither a call nor a jump backwards, so CPython runs no
        # signal handler: a Ctrl-C comes before the batch leaves the queue, or after it is returned.
        if cell is END:
            raise StopIteration
        state.info = cell.info
        state.next_batch = cell.batch + 1
        value = cell.value
        error = cell.error
        cell.value = cell.error = None
        state.handed = cell
        state.reader = None
        if error is not None:
            try:
                raise error
            finally:
                del error, cell  # the traceback holds this frame
        return value

    def __len__(self) -> int:
        """The batches of this stream, from `start` to the end; waits until the server has said.

        Raises:
            TypeError: It is not known before the end: a dataset or sampler without `__len__`.
        """
        return self._client._length(self._state)

    def close(self) -> None:
        """Ends the stream: the server stops working for it. Never waits.

        In a split epoch this acknowledges the batch in your hands, unless an exception is being
        handled where you call it.
        """
        self._client._close_stream(self._state, clean=not in_exception())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client._close_stream(self._state, clean=kind is None)

    def __del__(self) -> None:
        try:
            state = self._state
            if not (state.over or state.closed):
                state.clean = state.split is not None and left_by_break()
                self._client._forget(state)
        except KeyboardInterrupt:
            interrupt_again()
        except AttributeError:
            pass  # __init__ did not get far


class _Splitting:
    """The iterator of a split stream.

    A generator that delegates to an iterator with a `close` calls that however it ends; here it
    must not, because an exception acknowledges nothing.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._state, self._client = stream._state, stream._client

    def __iter__(self) -> Self:
        return self

    __next__ = Stream.__next__  # not a call of it, after which a Ctrl-C could come


class AsyncStream(BaseStream):
    """An epoch of an `AsyncClient`: iterate over it once, with `async for`.

    Cancelling an `anext` (a timeout, for example) loses nothing: the next call returns the batch it
    would have returned. What acknowledges a batch of a split epoch is written at `Stream`; for
    `async for` all of it holds, too.
    """

    def __init__(self, client: AsyncClient, state: StreamState) -> None:
        super().__init__(state)
        self._client = client

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Returns the next batch; waits for it.

        Raises:
            StopAsyncIteration: The epoch has ended, and all its batches have come.
            ConnectionLost: The server is gone; `.position` says where to resume.
            Exception: The error of this batch, or of the whole stream.
        """
        state = self._state
        if state.final:
            raise StopAsyncIteration
        cell: Cell | Any = await self._client._take(state)
        if cell is END:
            raise StopAsyncIteration
        state.info = cell.info
        state.next_batch = cell.batch + 1
        value = cell.value
        error = cell.error
        cell.value = cell.error = None
        state.handed = cell
        if error is not None:
            try:
                raise error
            finally:
                del error, cell  # the traceback holds this frame
        return value

    def __len__(self) -> int:
        """The batches of this stream, from `start` to the end.

        Raises:
            TundishError: The stream has not started: enter it with `async with`, or read a batch.
            TypeError: It is not known before the end: a dataset or sampler without `__len__`.
        """
        if not self._state.is_started():
            raise TundishError(
                "the length is known when the stream has started: enter it with `async with`, "
                "or read a batch first"
            )
        return self._state.length()

    async def aclose(self) -> None:
        """Ends the stream: the server stops working for it. Never waits.

        In a split epoch this acknowledges the batch in your hands, unless an exception is being
        handled where you call it.
        """
        await self._client._close_stream(self._state, clean=not in_exception())

    async def __aenter__(self) -> Self:
        await self._client._start(self._state)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client._close_stream(self._state, clean=kind is None)

    def __del__(self) -> None:
        try:
            state = self._state
            if not (state.over or state.closed):
                state.clean = state.split is not None and left_by_break()
                self._client._forget(state)
        except KeyboardInterrupt:
            interrupt_again()
        except AttributeError:
            pass  # __init__ did not get far
