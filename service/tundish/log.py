"""Logging of the command line; a program that embeds a server configures its own."""

from __future__ import annotations

import logging
import sys

__all__ = ["configure"]


def configure(level: str) -> None:
    """Sends the log of `tundish` to stderr.

    Args:
        level: "debug", "info", "warning" or "error".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("tundish")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
    # A client that takes its end of a pipe along must not fill the log with tracebacks.
    logging.raiseExceptions = False
