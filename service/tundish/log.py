"""Logging of the command line; a program that embeds a server configures its own."""

from __future__ import annotations

import logging
import select
import sys
from typing import TextIO

__all__ = ["configure", "one_line"]

_LONGEST = 2048
"""Characters of a line; a pipe with room for any has room for it."""


def one_line(error: BaseException) -> str:
    """An error as it stands in a line of the log."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class _Handler(logging.StreamHandler[TextIO]):
    """Writes lines without waiting: those that a full pipe has no room for are counted instead.

    A server whose stderr nobody reads must not stop at it.
    """

    lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the line if there is room."""
        if not self._has_room():
            self.lost += 1
            return
        if self.lost:
            lost, self.lost = self.lost, 0
            self.stream.write(f"({lost} lines were lost: nobody read this)\n")
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """The line, cut where it is too long."""
        text = super().format(record)
        return text if len(text) <= _LONGEST or record.exc_info else f"{text[:_LONGEST]}..."

    def _has_room(self) -> bool:
        poll = select.poll()
        try:
            poll.register(self.stream, select.POLLOUT)
            events = poll.poll(0)
        except (OSError, ValueError):  # nothing that could be asked
            return True
        return bool(events)


def configure(level: str) -> None:
    """Sends the log of `tundish` to stderr.

    Args:
        level: "debug", "info", "warning" or "error".
    """
    handler = _Handler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("tundish")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
    # A client that takes its end of a pipe along must not fill the log with tracebacks.
    logging.raiseExceptions = False
