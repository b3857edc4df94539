"""Aligned arrays for bodies, reused once nobody can see them any more.

Touching fresh memory costs about ten times as much as receiving into memory that was used before,
so the arrays of earlier batches are kept while they are of use.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tundish_client.errors import ProtocolError

__all__ = ["BodyPool"]

_ALIGNMENT = 64
_SMALLEST = 64 * 1024  # below this malloc is as fast
_KEEP = 8  # arrays watched, in use or idle
_IDLE = 2  # idle arrays kept


class BodyPool:
    """Hands out uint8 arrays that start on a multiple of 64. Not thread-safe.

    An array handed out holds its memory through a memoryview; every view made of it, by numpy,
    torch or a memoryview, keeps it alive. Its memory is used again only after the last is gone.
    """

    def __init__(self) -> None:
        self._raws: list[np.ndarray[Any, Any]] = []

    def take(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Returns a writable array of `nbytes` bytes with arbitrary contents.

        Raises:
            ProtocolError: The system has no memory for it.
        """
        raw = self._reuse(nbytes) if nbytes >= _SMALLEST else None
        if raw is None:
            try:
                raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
            except MemoryError as error:
                raise ProtocolError(f"no memory for a body of {nbytes} bytes") from error
            if nbytes >= _SMALLEST:
                self._raws.append(raw)
                del self._raws[:-_KEEP]
        skip = -raw.ctypes.data % _ALIGNMENT
        return np.frombuffer(raw.data[skip : skip + nbytes], np.uint8)

    def _reuse(self, nbytes: int) -> np.ndarray[Any, Any] | None:
        """Finds an idle array of a fitting size; forgets all but the idle ones used last."""
        found: np.ndarray[Any, Any] | None = None
        kept: list[np.ndarray[Any, Any]] = []
        idle = 0
        raws = self._raws  # the one used last at the end
        while raws:
            raw = raws.pop()
            if sys.getrefcount(raw) > 2:  # more than `raw` and the argument: in use
                kept.append(raw)
            elif found is None and nbytes <= raw.nbytes - _ALIGNMENT <= 2 * nbytes:
                found = raw
            elif idle < _IDLE:
                idle += 1
                kept.append(raw)
        kept.reverse()
        if found is not None:
            kept.append(found)
        self._raws = kept
        return found
