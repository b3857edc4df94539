"""Lines of the log, and where they go on the command line.

A program that embeds a server configures its own logging.
"""

from __future__ import annotations

import logging
import select
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tundish.delivery import Delivery

__all__ = ["configure", "one_line", "tell_begin", "tell_end"]

_log = logging.getLogger("tundish.server")

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


def tell_begin(delivery: Delivery) -> None:
    """The line of a stream that begins."""
    stream = delivery.stream
    _log.info(
        "%s: epoch %d of feed %r begins at batch %d of %s",
        delivery.name,
        stream.epoch,
        delivery.feed,
        stream.start,
        "an unknown number" if delivery.total is None else stream.start + delivery.total,
    )


def tell_end(delivery: Delivery, counters: Mapping[str, Any], how: str) -> None:
    """The line of a stream that is over, with its counters."""
    _log.info(
        "%s: epoch %d of feed %r %s after %d batches, %d samples, %d errors, %d bytes; it "
        "waited %.3g s for the loader",
        delivery.name,
        delivery.stream.epoch,
        delivery.feed,
        how,
        counters["delivered"] - counters["errors"],
        counters["samples"],
        counters["errors"],
        counters["bytes"],
        counters["consumer_wait"],
    )
