"""Datasets with ``async def __getitem__``: one event loop per loader, on a thread of its own.

A worker hands the awaitables of its batch to the loop, some at a time, and waits for their results
in slices, so that a cancelled run and a Ctrl-C get through whatever the loop is doing.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import inspect
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from tundish.randomness import here
from tundish.workers import Live

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tundish._core import Task
    from tundish.randomness import Place

    Outcome = tuple[Any, BaseException | None]

__all__ = ["Awaiting", "discard"]

# How long a worker waits before it looks whether its batch is still wanted.
_SLICE = 0.05
# A loop that hasn't answered a cancellation for so long is blocked by the code of a sample; batches
# that it hasn't begun go to a new loop.
_STUCK = 1.0
# What the tasks of a loop get to end in after they were cancelled, when the loop ends.
_PATIENCE = 1.0
# What all loops together get at interpreter exit. A loop that is blocked by then goes with the
# process.
_EXIT_GRACE = 0.25


class Awaiting:
    """One loader's event loop: begun at the first need, and anew after a fork or a close.

    The loop is asyncio's, or that of the event loop policy which the program has set. It runs on a
    daemon thread named ``tundish-loop``, so code that blocks it can't hold up the end of the
    process. It ends with ``close``, or when this object is freed.

    May be used from several threads at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        _all.add(self)

    def run(
        self,
        call: Callable[[int], Any],
        count: int,
        lanes: int,
        task: Task,
        *,
        stop: bool,
        at: Callable[[int], Place],
    ) -> list[Outcome | None]:
        """Await ``call(k)`` for each k below `count`, at most `lanes` of them at a time.

        Args:
            call: returns an awaitable, or any other value as it is; called on the loop.
            count: how many there are.
            lanes: how many are worked on at once.
            task: the batch that they are for. Once it is cancelled, so are they.
            stop: begin nothing new once one has failed, and cancel those with a higher k.
            at: where in the epoch k is. Each gets an asyncio task and a copy of the caller's
                context, in which that place is set.

        Returns:
            For each k the value and None, or None and the exception, of whatever kind; None for
            what wasn't begun or was given up.

        Raises:
            RuntimeError: this is called on the loop itself, which would wait for ever; or the loop
                was closed meanwhile.
        """
        while True:
            loop = self._running()
            # Not current_thread(), which makes an object that outlives the thread.
            if loop.thread.ident == threading.get_ident():
                raise RuntimeError(
                    "a coroutine of the dataset asked its own loader for a batch, but its loop "
                    "can't wait for itself; use another loader there"
                )
            work = _Work(loop.loop, call, count, lanes, stop=stop, at=at)
            if self._wait(loop, work, task):
                return work.take()

    def _wait(self, loop: _Loop, work: _Work, task: Task) -> bool:
        """Have `work` done; False if it has to be begun again, on another loop."""
        loop.submit(work.begin)
        try:
            while not work.wait(_SLICE):
                if task.step(work.first_running()):
                    break
                if not loop.thread.is_alive() and not work.wait(0):
                    raise RuntimeError("the loop that awaits this loader's samples was closed")
                if loop.is_stuck() and work.withdraw():
                    self._leave(loop)
                    return False
        finally:
            if not work.over:
                loop.cancel(work)
        return True

    def close(self) -> None:
        """End the loop and cancel its tasks; never waits. A later ``run`` begins a new one."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.end()

    def _running(self) -> _Loop:
        with self._lock:
            if self._loop is None:
                self._loop = _Loop()
            return self._loop

    def _leave(self, loop: _Loop) -> None:
        with self._lock:
            if self._loop is loop:
                self._loop = None

    def _forget(self) -> None:
        # The thread stayed in the parent, and what the selector watches is the parent's too.
        _leaked.append(self._loop)
        self._loop = None
        self._lock = threading.Lock()


def discard(values: Iterable[Any]) -> None:
    """Part with awaitables that nobody will await, without Python's complaint about it."""
    for value in values:
        created = inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == "CORO_CREATED"
        if created:
            value.close()


class _Loop:
    """A running loop and its thread, which end when this is freed."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._ending = threading.Event()
        self._unanswered: float | None = None
        self.loop = contextvars.Context().run(asyncio.new_event_loop)
        self.thread = threading.Thread(
            target=_run, args=(self.loop, self._ending), name="tundish-loop", daemon=True
        )
        try:
            self.thread.start()
        except BaseException:
            self.loop.close()
            raise

    def submit(self, callback: Callable[[], object]) -> None:
        """Have `callback` called on the loop, if it runs at all."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback)

    def cancel(self, work: _Work) -> None:
        """Give `work` up."""
        if self._unanswered is None:
            self._unanswered = time.monotonic()
        self.submit(functools.partial(self._cancel, work))

    def _cancel(self, work: _Work) -> None:
        self._unanswered = None
        work.cancel()

    def is_stuck(self) -> bool:
        """Whether it has been too long without answering a cancellation."""
        since = self._unanswered
        return since is not None and time.monotonic() - since > _STUCK

    def end(self) -> None:
        """Have the thread cancel all tasks and end."""
        if self._pid == os.getpid():
            self._ending.set()
            self.submit(self.loop.stop)

    def __del__(self) -> None:
        if hasattr(self, "thread"):
            self.end()


def _run(loop: asyncio.AbstractEventLoop, ending: threading.Event) -> None:
    """The whole life of a loop's thread."""
    asyncio.set_event_loop(loop)
    try:
        _turn(loop, ending.is_set)
        winding_up = loop.create_task(_wind_up())
        winding_up.add_done_callback(lambda _: loop.stop())
        _turn(loop, winding_up.done)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _turn(loop: asyncio.AbstractEventLoop, done: Callable[[], bool]) -> None:
    """Run `loop` until `done`, whatever user code does to it."""
    while not done():
        try:
            loop.run_forever()
        except BaseException as error:
            # SystemExit and KeyboardInterrupt of tasks that user code made get out here. Who awaits
            # such a task gets them too; the loop is needed further on.
            what = {"message": "a task made by a dataset ended the loop", "exception": error}
            loop.call_exception_handler(what)


async def _wind_up() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_PATIENCE)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.get_running_loop().shutdown_asyncgens(), _PATIENCE)


class _Work:
    """The calls of one batch. All but `wait`, `take` and `withdraw` runs on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[int], Any],
        count: int,
        lanes: int,
        *,
        stop: bool,
        at: Callable[[int], Place],
    ) -> None:
        self._loop = loop
        self._call = call
        self._lanes = lanes
        self._stop = stop
        self._at = at
        self._context = contextvars.copy_context()
        self._outcomes: list[Outcome | None] = [None] * count
        self._running: dict[int, asyncio.Task[None]] = {}
        self._next = 0
        #: Those from here on are not needed.
        self._end = count
        self.over = False
        self._mine = threading.Lock()  # held by whoever began or withdrew it
        # A plain lock: an interrupted wait for an Event could leave it locked for the loop.
        self._latch = threading.Lock()
        self._latch.acquire()

    # -- for the worker -------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Whether it is over, `seconds` from now at the latest."""
        return self.over or self._latch.acquire(timeout=seconds)

    def first_running(self) -> int:
        """The first of those that are being awaited."""
        return min(tuple(self._running), default=0)

    def withdraw(self) -> bool:
        """Take it back, if it hasn't begun."""
        return self._mine.acquire(blocking=False)

    def take(self) -> list[Outcome | None]:
        """The outcomes so far."""
        # Not kept here as well: a traceback in them leads back to this object.
        outcomes, self._outcomes = self._outcomes, [None] * len(self._outcomes)
        return outcomes

    # -- on the loop ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the first ones."""
        if self._mine.acquire(blocking=False):
            self._go_on()

    def cancel(self) -> None:
        """Start nothing more, and cancel what runs."""
        self._cut(0)
        self._go_on()

    def _go_on(self) -> None:
        while self._next < self._end and len(self._running) < self._lanes:
            if _exiting.is_set():
                self._end = self._next  # nobody will see what became of it
                break
            k = self._next
            self._next += 1
            context = self._context.copy()
            context.run(here.set, self._at(k))
            task = self._loop.create_task(self._one(k), context=context)
            # One that goes with the process is no fault of the user's to be told of.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            self._running[k] = task
            task.add_done_callback(functools.partial(self._ended, k))
        needed = self._next < self._end or any(k < self._end for k in self._running)
        if not needed and not self.over:
            self.over = True
            self._latch.release()

    async def _one(self, k: int) -> None:
        try:
            value = self._call(k)
            self._outcomes[k] = (await value if inspect.isawaitable(value) else value, None)
        except BaseException as error:
            self._outcomes[k] = (None, error)

    def _ended(self, k: int, task: asyncio.Task[None]) -> None:
        del self._running[k]
        if task.cancelled():  # before it began
            self._outcomes[k] = (None, asyncio.CancelledError())
        outcome = self._outcomes[k]
        if self._stop and (outcome is None or outcome[1] is not None):
            self._cut(k)
        self._go_on()

    def _cut(self, end: int) -> None:
        """Need nothing from `end` on any more."""
        self._end = min(self._end, end)
        for k, task in self._running.items():
            if k > end or end == 0:
                task.cancel()


_exiting = threading.Event()
_all: Live[Awaiting] = Live()
_leaked: list[Any] = []


def _forget_all() -> None:
    for awaiting in _all:
        awaiting._forget()


def _close_all() -> None:
    _exiting.set()
    loops = [awaiting._loop for awaiting in _all if awaiting._loop is not None]
    for loop in loops:
        loop.end()
    deadline = time.monotonic() + _EXIT_GRACE
    for loop in loops:
        loop.thread.join(max(0.0, deadline - time.monotonic()))
        if loop.thread.is_alive():
            # They go with the process, which is no fault of theirs to be told of.
            with contextlib.suppress(Exception):
                for task in asyncio.all_tasks(loop.loop):
                    task._log_destroy_pending = False  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_close_all)
