"""How fast something goes of late."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["EVERY", "Pace"]

EVERY = 0.5
"""Seconds between two marks."""

_MARKS = 11
"""Marks that are kept: of the last five seconds."""


class Pace:
    """A count's rate over the last five seconds, or since it began, if that is less.

    It knows what the count was at its marks only, which somebody has to make now and then.

    Args:
        count: What it is now.
        clock: Seconds.

    Example:
        >>> seconds = iter([0.0, 0.5, 2.0])
        >>> pace = Pace(0, lambda: next(seconds))
        >>> pace.mark(10), pace.rate(30)
        (None, 15.0)
    """

    def __init__(self, count: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks = deque([(clock(), count)], _MARKS)

    def mark(self, count: int) -> None:
        """Take note of the count; more often than `EVERY` seconds it does nothing."""
        now = self._clock()
        if now - self._marks[-1][0] >= 0.9 * EVERY:  # timers may come a little early
            self._marks.append((now, count))

    def rate(self, count: int) -> float:
        """Counts per second."""
        since, before = self._marks[0]
        return (count - before) / max(1e-9, self._clock() - since)
