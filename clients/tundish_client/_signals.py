"""Signals at moments where an exception of their handler would do harm.

A handler may raise after any call. A lock is therefore taken with ``with``, which notes at once
that it is held, or with `try_to_take`; not with a `threading.Condition`, whose methods are Python's
own.
"""

from __future__ import annotations

# What `signal` wraps, whose enums would cost 20 us a batch.
import _signal  # type: ignore[import-not-found]
import _thread
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

__all__ = ["interrupt_again", "try_to_take", "uninterrupted"]

T = TypeVar("T")

_MAIN = threading.main_thread().ident
_SIGINT: int = _signal.SIGINT
_getsignal: Callable[[int], Any] = _signal.getsignal
_set_handler: Callable[[int, Any], Any] = _signal.signal


def uninterrupted(change: Callable[..., T], *args: Any) -> T:
    """Returns ``change(*args)``; a Ctrl-C meanwhile is delivered right after.

    For short, non-blocking changes of state that an exception in the middle would leave half
    done. SIGINT's handler is put back in any case; handlers of other signals are not held back.
    """
    if threading.get_ident() != _MAIN:
        return change(*args)  # Python runs signal handlers in the main thread only
    previous = _getsignal(_SIGINT)
    if not callable(previous):
        return change(*args)  # the default action, ignored, or not Python's to exchange
    held: list[tuple[int, FrameType | None]] = []
    try:
        _set_handler(_SIGINT, lambda number, frame: held.append((number, frame)))
        return change(*args)
    finally:
        try:
            _set_handler(_SIGINT, previous)
        finally:
            # It looks for other signals first, whose handlers may raise: then nothing was put back.
            if _getsignal(_SIGINT) is not previous:
                _set_handler(_SIGINT, previous)
            if held:
                previous(*held[0])


def try_to_take(lock: threading.Lock, taken: list[bool], seconds: float = 0.0) -> bool:
    """Takes a lock if it is to be had within so many seconds.

    Args:
        lock: The lock.
        taken: Gets a True at once when it is taken: what is called next may raise already, so the
            caller lets go of the lock in a ``finally``, if this list says so.
        seconds: How long to wait.
    """
    # No bytecode stands between taking the lock and the note of it.
    taken.extend(map(lock.acquire, (seconds > 0,), (seconds or -1,)))
    return taken[-1]


def _later() -> None:
    time.sleep(0.002)
    _thread.interrupt_main()


def interrupt_again() -> None:
    """Raises KeyboardInterrupt in the main thread a moment later.

    Python swallows what a finalizer raises; a Ctrl-C must not be lost that way.
    """
    _thread.start_new_thread(_later, ())
