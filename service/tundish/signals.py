"""SIGINT and SIGTERM in the serving process."""

from __future__ import annotations

import asyncio
import signal

from tundish._core import watch_signals

__all__ = ["GRACE", "exit_code", "wait_for_signal"]

GRACE = 0.8
"""Seconds from the first signal to the end of the process, whatever the interpreter is doing."""


def exit_code(signum: int) -> int:
    """The exit status that belongs to a signal: 130 after SIGINT, 0 after SIGTERM."""
    return 128 + signal.SIGINT if signum == signal.SIGINT else 0


def wait_for_signal(loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
    """Takes over SIGINT and SIGTERM for the rest of the process's life.

    From the first of them on a Rust thread counts down `GRACE` seconds, then ends the process
    without the interpreter's help; at a second one it does so at once.

    Returns:
        A future of the first signal's number.
    """
    came: asyncio.Future[int] = loop.create_future()

    def note(signum: int) -> None:
        if not came.done():
            came.set_result(signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, note, signum)
    watch_signals(GRACE)
    return came
