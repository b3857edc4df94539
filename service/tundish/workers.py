"""Worker threads of the loaders in this process, and what fork and exit do to them."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tundish import _core

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tundish.epoch import Epoch

__all__ = ["Live", "Workers", "live_epochs", "share_interpreter"]

T = TypeVar("T")

# Seconds that all pools together get at interpreter exit. A worker that is stuck in user code by
# then is left behind: the engine parks it, and it goes with the process.
_EXIT_GRACE = 0.05


# Seconds for which a thread that computes in Python may keep the interpreter from others.
_SWITCH_INTERVAL = 0.0005


def share_interpreter() -> None:
    """Lets other threads of this process have the interpreter soon while samples are computed.

    With Python's own 5 ms the training loop, the event loop and a Ctrl-C each wait that long, every
    time they want the interpreter back from a worker that computes. A shorter interval of the
    user's is left alone.
    """
    if sys.getswitchinterval() > _SWITCH_INTERVAL:
        sys.setswitchinterval(_SWITCH_INTERVAL)


class Live(Generic[T]):
    """Objects that may still be alive, held weakly.

    Unlike a WeakSet it runs no Python code when one of them is freed: a Ctrl-C that arrives inside
    such code is printed and lost, and an epoch is freed as often as a loop ends.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}
        self._tidy_at = 64

    def add(self, thing: T) -> None:
        """Adds `thing`."""
        references = self._references
        references[id(thing)] = weakref.ref(thing)
        if len(references) >= self._tidy_at:
            for key, reference in list(references.items()):
                if reference() is None and references.get(key) is reference:
                    references.pop(key, None)
            self._tidy_at = max(64, 2 * len(references))

    def __iter__(self) -> Iterator[T]:
        """Those that are alive now."""
        found = [reference() for reference in list(self._references.values())]
        return iter([thing for thing in found if thing is not None])


live_epochs: Live[Epoch] = Live()
"""Epochs that may have a run."""

_all: Live[Workers] = Live()
_leaked: list[Any] = []
_exiting = threading.Event()


class Workers:
    """One loader's threads and memory: made at the first need, and anew after a fork or a close.

    Args:
        count: number of threads, at least 1.
        lanes: number of threads that load samples side by side, for all workers together.

    Attributes:
        awaiting: the loop on which coroutines of the dataset are awaited.
    """

    def __init__(self, count: int, lanes: int = 1) -> None:
        # Not at the top: it needs this module.
        from tundish.awaiting import Awaiting

        self._count = count
        self._lanes = lanes
        self.awaiting = Awaiting()
        self._pool: _core.Pool | None = None
        self._lane_pool: _core.Pool | None = None
        self._arena: _core.Arena | None = None
        self._lock = threading.Lock()
        _all.add(self)

    def pool(self) -> _core.Pool:
        """The running pool."""
        with self._lock:
            if self._pool is None:
                self._pool = _new_pool(self._count, "tundish")
            return self._pool

    def lanes(self) -> _core.Lanes:
        """The running threads that load the samples of a batch side by side."""
        with self._lock:
            if self._lane_pool is None:
                self._lane_pool = _new_pool(self._lanes, "tundish-lane")
            return _core.Lanes(self._lane_pool)

    def arena(self, limit: int) -> _core.Arena:
        """The memory of batches that stay in this process, of `limit` bytes if made now."""
        with self._lock:
            if self._arena is None:
                self._arena = _core.Arena(limit, lenient=True)
            return self._arena

    def close(self, timeout: float) -> bool:
        """Stop the threads; whether all had ended within `timeout` seconds."""
        with self._lock:
            pools = [pool for pool in (self._pool, self._lane_pool) if pool is not None]
            self._pool = self._lane_pool = None
        self.awaiting.close()
        deadline = time.monotonic() + timeout
        ended = [pool.close(max(0.0, deadline - time.monotonic())) for pool in pools]
        return all(ended)

    def _forget(self) -> None:
        # The threads exist in the parent only, and may have held any lock while the fork happened:
        # the pool is neither used nor freed here. The arena's pages are the parent's too.
        _leaked.append((self._pool, self._lane_pool, self._arena))
        self._pool = self._lane_pool = self._arena = None
        self._lock = threading.Lock()


def _new_pool(count: int, name: str) -> _core.Pool:
    if _exiting.is_set():
        raise RuntimeError("the interpreter is exiting: workers can't start any more")
    return _core.Pool(count, name)


def _forget_all() -> None:
    _leaked.extend(epoch._forget() for epoch in live_epochs)
    for workers in _all:
        workers._forget()


def _close_all() -> None:
    _exiting.set()
    for epoch in live_epochs:
        epoch.close()
    deadline = time.monotonic() + _EXIT_GRACE
    for workers in _all:
        workers.close(max(0.0, deadline - time.monotonic()))


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_close_all)
