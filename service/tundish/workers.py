"""Worker threads of the loaders in this process, and what fork and exit do to them."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from tundish import _core

if TYPE_CHECKING:
    from tundish.epoch import Epoch

__all__ = ["Workers", "live_epochs"]

# Seconds that all pools together get at interpreter exit. A worker that is stuck in user code by
# then is left behind: the engine parks it, and it goes with the process.
_EXIT_GRACE = 0.05

live_epochs: weakref.WeakSet[Epoch] = weakref.WeakSet()
"""Epochs that may have a run."""

_all: weakref.WeakSet[Workers] = weakref.WeakSet()
_leaked: list[Any] = []
_exiting = threading.Event()


class Workers:
    """One loader's pool of threads: made at the first need, and anew after a fork or a close.

    Args:
        count: number of threads, at least 1.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: _core.Pool | None = None
        self._lock = threading.Lock()
        _all.add(self)

    def pool(self) -> _core.Pool:
        """The running pool."""
        with self._lock:
            if self._pool is None:
                if _exiting.is_set():
                    raise RuntimeError("the interpreter is exiting: workers can't start any more")
                self._pool = _core.Pool(self._count, "tundish")
            return self._pool

    def close(self, timeout: float) -> bool:
        """Stop the threads; whether all had ended within `timeout` seconds."""
        with self._lock:
            pool, self._pool = self._pool, None
        return pool is None or pool.close(timeout)

    def _forget(self) -> None:
        # The threads exist in the parent only, and may have held any lock while the fork happened:
        # the pool is neither used nor freed here.
        _leaked.append(self._pool)
        self._pool = None
        self._lock = threading.Lock()


def _forget_all() -> None:
    _leaked.extend(epoch._forget() for epoch in list(live_epochs))
    for workers in list(_all):
        workers._forget()


def _close_all() -> None:
    _exiting.set()
    for epoch in list(live_epochs):
        epoch.close()
    deadline = time.monotonic() + _EXIT_GRACE
    for workers in list(_all):
        workers.close(max(0.0, deadline - time.monotonic()))


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_close_all)
