"""``Epoch``: one pass over a loader's batches, under ``for`` or ``async for``."""

from __future__ import annotations

import asyncio
import threading
from itertools import starmap
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from tundish import _core
from tundish.positions import Place, Shard
from tundish.produce import Produce, WeakProduce
from tundish.registration import Registration
from tundish.running import Wake, supply
from tundish.workers import live_epochs
from tundish_client import BatchInfo, BatchTimes, ConfigError, Position, TundishError
from tundish_client._protocol.values import resolve, unpack

if TYPE_CHECKING:
    from types import TracebackType

    from tundish.loader import DataLoader
    from tundish.planning import AnyPlan

    Cell = _core.Batch | _core.Failure | _core.End

__all__ = ["Epoch"]

# Seconds of ready batches that `async for` hands out before it lets the loop turn.
_BURST = 0.002
_ONCE = ((),)


class Epoch:
    """An iterator over the batches of one epoch. Made by ``DataLoader.epoch``.

    An error of a batch is raised in its place; the next call goes on with the next batch. The same
    holds after a KeyboardInterrupt, a time-out or a cancelled ``anext``, which lose no batch. Once
    at its end it says so at every call; after ``close`` every call is an error. Dropping the
    iterator, or leaving its ``with`` block, cancels the work.

    ``for`` waits in the calling thread; ``async for`` never blocks the loop. Threads that share an
    epoch get each batch once between them; ``position`` and ``info`` are then of little use.
    """

    def __init__(self, loader: DataLoader, plan: AnyPlan, place: Place, shard: Shard) -> None:
        self.loader = loader
        self._plan = plan
        self._epoch = place.epoch
        self._start = place.batch
        self._place = place
        self._shard = shard
        self._skips = loader.on_error == "skip"
        self._size = shard[3] or loader._planning.batch_size
        self._cells = self._errors = self._samples = self._skipped = 0
        self._last: _core.Batch | BatchInfo | None = None
        self._run: _core.Run | None = None
        self._produce: Produce | None = None
        self._over: str | None = None
        # Between the engine and the consumer's hands, in the thread that signals interrupt.
        self._held: list[Cell] = []
        self._main = threading.main_thread().ident
        self._lock = threading.Lock()
        self._tree: tuple[bytes, Any] = (b"", None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._registration: Registration | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._turned = 0.0
        live_epochs.add(self)

    # -- what it is -----------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of batches from the epoch's `start` to its end.

        Raises:
            TypeError: it shows only when the epoch has been read to its end.
        """
        if self._plan.batches is None:
            raise TypeError(
                f"the length of epoch {self._epoch} isn't known: what it is read from has no "
                "__len__"
            )
        return max(0, self._plan.batches - self._start)

    def __bool__(self) -> bool:
        return True  # not len(), which may be unknown

    @property
    def position(self) -> Position:
        """The epoch and the batch that comes next; ``loader.epoch(*position)`` resumes there.

        Raises:
            ConfigError: with ``in_order=False``, where batches have no position.
        """
        if not self.loader.in_order:
            raise ConfigError(
                "in_order=False hands out batches as they are ready: there is no position"
            )
        return Position(self._epoch, self._place.batch)

    def state_dict(self) -> dict[str, Any]:
        """The position as plain data; ``loader.resume(state)`` goes on there.

        Raises:
            ConfigError: with ``in_order=False``, where batches have no position.
        """
        return self.loader._state(self._place, self._shard)

    @property
    def info(self) -> BatchInfo | None:
        """Number, samples and times of the batch handed out last; None before the first.

        After an error it is that of the batch that failed, whose times are 0.
        """
        last = self._last
        if isinstance(last, _core.Batch):
            last = self._last = self._describe(last)
        return last

    @property
    def counts(self) -> dict[str, int]:
        """batches, samples, padded, dropped, skipped, redelivered, errors; as of a client's stream.

        Until the end, `batches` and `samples` are what there is from `start` on by the plan (what
        was handed out so far, where no plan knows); after it, what was handed out. `errors` of the
        batches failed so far and had no samples, `skipped` samples were left out of others by
        ``on_error="skip"``.
        """
        batches, samples = self._cells, self._samples
        if self._over != "at its end" and isinstance(self._plan, _core.Plan):
            batches = len(self)
            samples = max(0, self._plan.samples - self._start * (self._size or 1))
        return {
            "batches": batches,
            "samples": samples,
            "padded": self._plan.padded or 0,
            "dropped": self._plan.dropped or 0,
            "skipped": self._skipped,
            "redelivered": 0,
            "errors": self._errors,
        }

    def __repr__(self) -> str:
        state = self._over or f"next batch {self._place.batch} of {self._total}"
        return f"<Epoch {self._epoch}: {state}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "an Epoch can't be pickled or copied; keep its position, and ask a loader for "
            "epoch(*position) where it goes on"
        )

    @property
    def _total(self) -> int | str:
        return "an unknown number" if self._plan.batches is None else self._plan.batches

    # -- for ------------------------------------------------------------------------------------

    def __iter__(self) -> Epoch:
        """The epoch itself."""
        return self

    def __next__(self) -> Any:
        """The next batch; waits for it in this thread, where signals are looked at."""
        held = self._held if get_ident() == self._main else []
        if not held:
            run = self._run or self._begin()
            # A signal handler may raise between any two steps of Python, so the cell goes from the
            # engine into the list within one step, and leaves it in one step once it is decoded.
            held.extend(starmap(run.next, _ONCE))
        return self._hand_over(held, StopIteration)

    def _begin(self) -> _core.Run:
        with self._lock:  # of several threads, one begins the run
            if self._run is not None:
                return self._run
            self._check_open(StopIteration)
            return self._open(pooled=self.loader._running.pooled)

    # -- async for ------------------------------------------------------------------------------

    def __aiter__(self) -> Epoch:
        """The epoch itself."""
        return self

    async def __anext__(self) -> Any:
        """The next batch. Cancelling the wait loses nothing: the batch comes at the next call."""
        held = self._held if get_ident() == self._main else []
        if not held:
            await self._fill(held)
        return self._hand_over(held, StopAsyncIteration)

    async def _fill(self, held: list[Cell]) -> None:
        loop = asyncio.get_running_loop()
        if self._waiter is not None:
            raise RuntimeError(
                "another task waits for this epoch's next batch already; "
                "give each task an epoch of its own"
            )
        if loop.time() - self._turned > _BURST:
            await asyncio.sleep(0)
            self._turned = loop.time()
        while not held:
            run = self._run
            if run is None or self._loop is not loop:
                run = self._begin_async(loop)
            cell = run.take()
            if cell is not None:
                held.append(cell)
                return
            await self._wait(loop)

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waiter = loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._turned = loop.time()

    def _begin_async(self, loop: asyncio.AbstractEventLoop) -> _core.Run:
        """Open a run that wakes `loop`; one that was begun otherwise is given up for it."""
        self._check_open(StopAsyncIteration)
        if self._run is not None and not self.loader.in_order:
            raise RuntimeError(
                "this epoch was begun under `for` or on another loop, and in_order=False has no "
                "position to go on from here"
            )
        self._stop()
        registration = Registration(loop, self)
        self._loop = loop
        self._registration = registration
        return self._open(pooled=True, wake=Wake(registration.waker, registration.token))

    def _open(self, *, pooled: bool, wake: Wake | None = None) -> _core.Run:
        running = self.loader._running
        source: _core.ArraySource | _core.CallSource | None = running.source()
        # The engine gets weak references, since the collector can't look into it: a dataset
        # that leads back to this epoch is then a cycle of Python objects only.
        if source is None:
            self._produce = running.produce(self.loader.seed, inline=not pooled)
            source = _core.CallSource(WeakProduce(self._produce))
        start = self._place.batch
        run = self._run = running.open(
            source,
            supply(self._plan, start, weak=True),
            epoch=self._epoch,
            start=start,
            pooled=pooled,
            wake=wake,
            samples=self.loader._planning.limit(),
        )
        return run

    def _on_ready(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- both -----------------------------------------------------------------------------------

    def _hand_over(self, held: list[Cell], stop: type[Exception]) -> Any:
        """Give the held cell to the consumer: a batch, its error, or the end."""
        cell = held[0]
        if isinstance(cell, _core.End):
            self._finish()
            raise stop
        if isinstance(cell, _core.Failure):
            info = BatchInfo(self._epoch, cell.batch, cell.samples, BatchTimes(0, 0))
            error = cell.error
            self._settle(held, cell.batch, 0, failed=True, last=info)
            del cell  # it holds the error, whose traceback will hold this frame
            _raise(error)
        skipped = len(cell.skipped) if self._skips else 0
        packed = cell.packed
        if packed is None:
            self._settle(held, cell.batch, cell.count, skipped, last=cell)
            return cell.object  # taken once: what comes after it can't fail
        value = self._decode(cell, packed)
        self._settle(held, cell.batch, cell.count, skipped, last=self._describe(cell))
        return value

    def _finish(self) -> None:
        """The run has ended: is that all that the plan has?"""
        exact = isinstance(self._plan, _core.Plan)
        if exact and self._cells != len(self):
            self._end("ended early")
            raise RuntimeError(
                f"epoch {self._epoch} ended after {self._cells} of {len(self)} batches: its "
                "workers are stuck in samples that exceeded the timeout"
            )
        self._end("at its end", cancel=False)

    def _settle(
        self,
        held: list[Cell],
        batch: int,
        samples: int,
        skipped: int = 0,
        *,
        failed: bool = False,
        last: _core.Batch | BatchInfo | None = None,
    ) -> None:
        """Count a cell as handed out. Nothing is called in here, so nothing can come between."""
        self._cells += 1
        self._samples += samples
        self._skipped += skipped
        self._errors += failed
        if last is not None:
            self._last = last
        if self._place.batch <= batch:
            self._place.batch = batch + 1
        del held[0]

    def _decode(self, batch: _core.Batch, packed: bytes) -> Any:
        if packed != self._tree[0]:
            # All full batches of arrays look alike, so this happens once or twice in an epoch.
            self._tree = (packed, unpack(packed))
        return resolve(self._tree[1], np.frombuffer(memoryview(batch), np.uint8))

    def _describe(self, batch: _core.Batch) -> BatchInfo:
        return BatchInfo(
            self._epoch, batch.batch, batch.samples, BatchTimes(*batch.times), batch.skipped
        )

    def _check_open(self, stop: type[Exception]) -> None:
        if self._over == "at its end":
            raise stop
        if self._over is not None:
            raise TundishError(
                f"epoch {self._epoch} {self._over} at batch {self._place.batch} of {self._total}; "
                f"ask the loader for epoch({self._epoch}, start={self._place.batch})"
            )

    def _end(self, why: str, *, cancel: bool = True) -> None:
        self._over = self._over or why
        self._held = []
        # At the end other threads may be about to be told of it by the same run.
        self._stop(cancel=cancel)
        if not isinstance(self._plan, _core.Plan):
            self._plan.release()

    def _stop(self, *, cancel: bool = True) -> None:
        run, self._run = self._run, None
        registration, self._registration = self._registration, None
        self._loop = None
        if run is not None and cancel:
            run.cancel()
        if registration is not None:
            registration.release()

    def close(self) -> None:
        """Cancel what is being worked on; never waits. Does nothing at the end or twice."""
        self._end("was closed")
        waiter = self._waiter
        if waiter is not None:
            waiter.get_loop().call_soon_threadsafe(self._on_ready)

    async def aclose(self) -> None:
        """Like ``close``, for async code."""
        self.close()

    def __enter__(self) -> Self:
        """The epoch itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    async def __aenter__(self) -> Self:
        """The epoch itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _forget(self) -> Any:
        """Part with a run whose threads stayed in the parent of a fork, to be kept for ever."""
        mine = (self._run, self._held, self._registration)
        if self._run is not None:
            self._over = "was begun before a fork, in the parent process, and stood"
        self._run, self._held = None, []
        self._loop = self._registration = self._waiter = None
        return mine


def _raise(error: BaseException) -> NoReturn:
    try:
        raise error
    finally:
        del error  # the traceback holds this frame
