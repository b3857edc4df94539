"""A small arena of slots for `testing.ScriptedServer`."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

__all__ = ["Arena"]

_PAGE = mmap.PAGESIZE


class Arena:
    """One segment of equal slots, written through a shared mapping; the slot freed last first."""

    def __init__(self, largest: int, slots: int) -> None:
        self.slot_bytes = -(-max(largest, 1) // _PAGE) * _PAGE
        self.nbytes = self.slot_bytes * slots
        self.fd = os.memfd_create("tundish-scripted", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.nbytes)
        self._map = mmap.mmap(self.fd, self.nbytes)
        self.free = list(range(slots))[::-1]
        self.generation = 0

    def bytes_of(self, slot: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The slot's memory, uint8[nbytes]."""
        return np.frombuffer(self._map, np.uint8, nbytes, slot * self.slot_bytes)

    def close(self) -> None:
        """Unmaps and closes."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._map.close()
            os.close(fd)
