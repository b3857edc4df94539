"""Keeping a Ctrl-C that lands in a finalizer."""

from __future__ import annotations

import _thread
import time

__all__ = ["interrupt_again"]


def _later() -> None:
    time.sleep(0.002)
    _thread.interrupt_main()


def interrupt_again() -> None:
    """Raises KeyboardInterrupt in the main thread a moment later.

    Python swallows what a finalizer raises; a Ctrl-C must not be lost that way.
    """
    _thread.start_new_thread(_later, ())
