"""Which pages of a private mapping are copies of this process, and giving those up.

A page of a MAP_PRIVATE mapping follows the file until something writes to it; from then on it is a
copy and shows what the file held at that moment, for ever. Before a slot is used again its copies
must be dropped, and only those: dropping all pages costs far more in page faults than looking.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import Final

import numpy as np

__all__ = ["PAGE", "PageScanner", "make_private", "open_scanner"]

PAGE: Final = mmap.PAGESIZE

# <linux/fs.h>: _IOWR('f', 16, struct pm_scan_arg); there since Linux 6.7.
_PAGEMAP_SCAN: Final = (3 << 30) | (96 << 16) | (ord("f") << 8) | 16
_IS_FILE: Final = 1 << 2
_IS_HERE: Final = (1 << 3) | (1 << 4)  # present or swapped out
_REGIONS: Final = 64
_SCAN_ARGUMENT: Final = struct.Struct("<12Q")
_SET_RANGE: Final = struct.Struct("<3Q").pack_into  # start, end, walk_end at byte 16

# Documentation/admin-guide/mm/pagemap.rst: one 64-bit entry a page.
_ENTRY_FILE: Final = np.uint64(1 << 61)
_ENTRY_HERE: Final = np.uint64(3 << 62)

_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14; not named in Python's mmap


class PageScanner:
    """Finds the pages that are private copies. Not thread-safe; one per process and user.

    Args:
        ioctl: Ask with the PAGEMAP_SCAN ioctl, else by reading the entries of all pages.
    """

    def __init__(self, *, ioctl: bool) -> None:
        self._fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        self._found = np.zeros((_REGIONS, 3), np.uint64)
        self._argument = bytearray(
            _SCAN_ARGUMENT.pack(
                _SCAN_ARGUMENT.size, 0, 0, 0, 0, self._found.ctypes.data, _REGIONS, 0,
                _IS_FILE, _IS_FILE, _IS_HERE, _IS_FILE | _IS_HERE,
            )
        )  # fmt: skip
        self.copies = self._scan if ioctl else self._read

    def close(self) -> None:
        """Closes the file descriptor; harmless when done twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _scan(self, start: int, end: int) -> list[tuple[int, int]]:
        """Returns the address ranges within [start, end) that are private copies.

        Raises:
            OSError: The kernel refuses.
        """
        out: list[tuple[int, int]] = []
        argument = self._argument
        while True:
            _SET_RANGE(argument, 16, start, end, 0)
            n = fcntl.ioctl(self._fd, _PAGEMAP_SCAN, argument)
            if not n:
                return out
            out += [(int(a), int(b)) for a, b, _ in self._found[:n].tolist()]
            start = _SCAN_ARGUMENT.unpack(argument)[4]
            if start >= end:
                return out

    def _read(self, start: int, end: int) -> list[tuple[int, int]]:
        """The same as `_scan` for kernels without the ioctl."""
        first = start // PAGE
        entries = np.zeros(-(-end // PAGE) - first, np.uint64)
        if os.preadv(self._fd, [memoryview(entries).cast("B")], first * 8) != entries.nbytes:
            raise OSError("a short read of /proc/self/pagemap")
        private = ((entries & _ENTRY_FILE) == 0) & ((entries & _ENTRY_HERE) != 0)
        edges = np.flatnonzero(np.diff(private, prepend=False, append=False))
        return [
            ((first + int(a)) * PAGE, (first + int(b)) * PAGE)
            for a, b in edges.reshape(-1, 2).tolist()
        ]


def open_scanner() -> PageScanner | None:
    """Returns a scanner that was seen to work on this system, or None."""
    for ioctl in (True, False):
        try:
            scanner = PageScanner(ioctl=ioctl)
        except OSError:
            return None
        try:
            if _tells_the_truth(scanner):
                return scanner
        except OSError:
            pass
        scanner.close()
    return None


def _tells_the_truth(scanner: PageScanner) -> bool:
    """Tries the scanner on three pages: read, written, untouched (some sandboxes fake /proc)."""
    fd = os.memfd_create("tundish-probe", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, 3 * PAGE)
        with mmap.mmap(
            fd, 3 * PAGE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        ) as probe:
            view = np.frombuffer(probe, np.uint8)
            start = view.ctypes.data
            view[PAGE] = view[0] + 1
            del view
            copies = scanner.copies(start, start + 3 * PAGE)
            probe.madvise(mmap.MADV_DONTNEED, PAGE, PAGE)
            return copies == [(start + PAGE, start + 2 * PAGE)] and probe[PAGE] == 0
    finally:
        os.close(fd)


def make_private(mapping: mmap.mmap, offset: int, nbytes: int) -> None:
    """Makes a range of a private mapping independent of its file, now.

    Args:
        mapping: Mapped MAP_PRIVATE and writable.
        offset: Start in bytes, a multiple of the page size.
        nbytes: Length in bytes.
    """
    length = min(-(-nbytes // PAGE) * PAGE, len(mapping) - offset)
    try:
        mapping.madvise(_MADV_POPULATE_WRITE, offset, length)
    except OSError:
        # Before Linux 5.14: a write of what is there already has the same effect.
        pages = np.frombuffer(mapping, np.uint8, length, offset)[::PAGE]
        pages[:] = pages.copy()
