"""Shared memory on the client's side: segments, leases, and the side channel they return on.

Batches arrive as slots of segments (sealed memfds). Each segment is mapped once, MAP_PRIVATE and
writable: what the user writes stays with the user. Every batch gets one root array over its slot;
when the last view of it is gone, the pages that were written to are dropped and a release record
goes up the side channel, from whatever thread that happens on.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import threading
import weakref
from collections import deque
from itertools import islice
from typing import Any, Final

import numpy as np

from ._signals import interrupt_again, try_to_take
from .errors import ProtocolError
from .pages import PAGE, PageScanner, make_private, open_scanner

__all__ = ["Segments"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_RECORD: Final = struct.Struct("<IIIIQ")  # kind, segment, slot, 0, generation
_RELEASE: Final = 1
_DROPPED: Final = 2
_SEGMENT: Final = 3
_PACKET: Final = 64  # records in one packet
_ALIGNMENT: Final = 64
_SEND: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_RECEIVE: Final = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC


class _Segment:
    """One segment: its file, its mapping (None when only copies can be made) and its address."""

    __slots__ = ("address", "dropping", "fd", "mapping", "nbytes", "number")

    def __init__(self, number: int, fd: int, nbytes: int) -> None:
        self.number, self.fd, self.nbytes = number, fd, nbytes
        self.dropping = False
        self.address = 0
        self.mapping: mmap.mmap | None = None
        try:
            self.mapping = mmap.mmap(
                fd, nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
        except (OSError, ValueError):
            return
        self.address = np.frombuffer(self.mapping, np.uint8).ctypes.data

    def close(self) -> None:
        """Closes the file; the mapping goes with the last array over it."""
        self.mapping = None
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class _Lease(weakref.ref[Bytes]):
    """A slot lent to this client; dies with the root array over it."""

    __slots__ = ("generation", "nbytes", "offset", "segment", "slot")

    segment: _Segment
    slot: int
    generation: int
    offset: int
    nbytes: int


class Segments:
    """The segments of one connection and the leases on them.

    `lease`, `add` and `drop` belong to the thread that drives the connection. Leases come back on
    any thread, even in the middle of a garbage collection: nothing there waits for a lock.
    """

    def __init__(self, side: socket.socket, scanner: PageScanner | None = None) -> None:
        """Takes over the side channel.

        Args:
            side: The client's end of the SOCK_SEQPACKET pair.
            scanner: For tests; by default the best one that works here.
        """
        side.setblocking(False)
        self._side = side
        self._scanner = scanner or open_scanner()
        self._copying = self._scanner is None
        self._segments: dict[int, _Segment] = {}
        self._leases: dict[int, _Lease] = {}
        self._returns: deque[_Lease | bytes] = deque()
        self._turn = threading.Lock()  # held by who gives slots back; never waited for there
        self._closed = False
        self._checked = False
        _live.add(self)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    @property
    def copying(self) -> bool:
        """Whether batches are copied out, because private pages cannot be found or dropped."""
        return self._copying

    @property
    def lent(self) -> int:
        """Slots that arrays of the user still show."""
        return len(self._leases)

    @property
    def backlog(self) -> bool:
        """Whether records wait for room in the side channel."""
        return bool(self._returns) and not self._closed

    def fileno(self) -> int:
        """The side channel's file descriptor, -1 after `close`."""
        return self._side.fileno()

    # Segments

    def add(self, number: int, nbytes: int) -> None:
        """Takes in the segment whose file was sent on the side channel before.

        Raises:
            ProtocolError: The file did not come, or is not the one announced.
        """
        while number not in self._segments:
            try:
                data, fds, _, _ = socket.recv_fds(self._side, _RECORD.size, 4, _RECEIVE)
            except OSError as error:
                raise ProtocolError(f"the file of segment {number} did not arrive") from error
            if len(data) != _RECORD.size or len(fds) != 1:
                for fd in fds:
                    os.close(fd)
                raise ProtocolError(f"the side channel ended or sent {len(data)} bytes")
            kind, sent, *_ = _RECORD.unpack(data)
            if kind != _SEGMENT:
                os.close(fds[0])
                continue
            self._adopt(sent, fds[0])
        if self._segments[number].nbytes < nbytes:
            raise ProtocolError(
                f"segment {number} was announced with {nbytes} bytes, "
                f"its file has {self._segments[number].nbytes}"
            )

    def _adopt(self, number: int, fd: int) -> None:
        segment = _Segment(number, fd, os.fstat(fd).st_size)
        self._segments[number] = segment
        if segment.mapping is not None and not self._copying:
            # mlockall(MCL_FUTURE) makes private copies right away.
            self._restore(segment, 0, segment.nbytes)

    def drop(self, number: int) -> None:
        """Gives the segment up, now or when the last lease on it returns."""
        segment = self._segments.pop(number, None)
        if segment is not None:
            segment.dropping = True
            self._finish_drop(segment)
            self.flush()

    def _finish_drop(self, segment: _Segment) -> None:
        if segment.fd >= 0 and not any(
            lease.segment is segment for lease in list(self._leases.values())
        ):
            segment.close()
            self._returns.append(_RECORD.pack(_DROPPED, segment.number, 0, 0, 0))

    # Leases

    def lease(
        self, number: int, slot: int, generation: int, offset: int, nbytes: int, *, copy: bool
    ) -> Bytes:
        """Returns the root array of a batch: uint8[nbytes], writable, 64-byte aligned.

        Args:
            number: The segment.
            slot: The slot in it.
            generation: Which use of the slot this is.
            offset: Start of the slot in the segment, in bytes.
            nbytes: Size of the batch, in bytes.
            copy: Copy it out and return the slot at once.

        Raises:
            ProtocolError: No such segment, or the slot is not inside it.
        """
        segment = self._segments.get(number)
        if segment is None:
            raise ProtocolError(f"a batch in segment {number}, which was never announced")
        if offset < 0 or offset % PAGE or nbytes < 0 or offset + nbytes > segment.nbytes:
            raise ProtocolError(
                f"slot {slot} at {offset} with {nbytes} bytes is not a range of pages "
                f"of segment {number} ({segment.nbytes} bytes)"
            )
        mapping = segment.mapping
        if (
            copy
            or self._copying
            or not nbytes
            or mapping is None
            or not (self._checked or self._check(segment, offset))
        ):
            root = self._copy_out(segment, offset, nbytes)
            self.release(number, slot, generation)
            return root
        root = np.frombuffer(mapping, np.uint8, nbytes, offset)
        lease = _Lease(root, self._returned)
        lease.segment, lease.slot, lease.generation = segment, slot, generation
        lease.offset, lease.nbytes = offset, nbytes
        self._leases[id(lease)] = lease
        return root

    def recheck(self) -> None:
        """Bytes have arrived: look again whether mappings still follow their files."""
        self._checked = False

    def _check(self, segment: _Segment, offset: int) -> bool:
        """Whether free slots show what the file holds: mlockall makes all pages private at once."""
        self._checked = self._restore(segment, offset, PAGE)
        return self._checked

    def release(self, number: int, slot: int, generation: int) -> None:
        """Returns a slot that no array was made for."""
        if not self._closed:
            self._returns.append(_RECORD.pack(_RELEASE, number, slot, 0, generation))
            self.flush()

    def _copy_out(self, segment: _Segment, offset: int, nbytes: int) -> Bytes:
        raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
        root = raw[(skip := -raw.ctypes.data % _ALIGNMENT) : skip + nbytes]
        view, done = memoryview(root), 0
        while done < nbytes:
            n = os.preadv(segment.fd, [view[done:]], offset + done)
            if not n:
                raise ProtocolError(f"segment {segment.number} ends inside slot at {offset}")
            done += n
        return root

    def _returned(self, lease: _Lease) -> None:
        """Called by the garbage collector, on any thread, when a root array is gone."""
        try:
            if not self._closed:
                self._returns.append(lease)
                self._leases.pop(id(lease), None)
                self.flush()
        except KeyboardInterrupt:
            interrupt_again()

    # Giving back

    def flush(self) -> None:
        """Sends the records that wait, as far as the side channel has room. Never blocks."""
        while self._returns and not self._closed:
            taken: list[bool] = []
            try:
                if not try_to_take(self._turn, taken):
                    return  # whoever holds it looks again after letting go
                sent = self._give_back()
            finally:
                if True in taken:
                    self._turn.release()
            if not sent:
                return

    def _give_back(self) -> bool:
        """Sends one packet of records; False when there is no room for it now."""
        if self._closed or not (batch := self._first_returns()):
            return False
        packet = b"".join(
            [self._settle(item) if isinstance(item, _Lease) else item for item in batch]
        )
        try:
            self._side.send(packet, _SEND)
        except BlockingIOError:
            return False
        except OSError:
            # The server is gone: nobody uses the slots again, nobody needs the records.
            self._returns.clear()
            return False
        # Removed only now: an interrupt before this repeats records, which the server ignores.
        for item in batch:
            try:
                self._returns.popleft()
            except IndexError:
                return False  # another thread has closed this meanwhile
            if isinstance(item, _Lease) and item.segment.dropping:
                self._finish_drop(item.segment)
        return True

    def _first_returns(self) -> list[Any]:
        while True:
            try:
                return list(islice(self._returns, _PACKET))
            except RuntimeError:
                continue  # another thread, or the collector, gave something back meanwhile

    def _settle(self, lease: _Lease) -> bytes:
        """Drops the lease's private pages; returns its record."""
        segment = lease.segment
        if segment.mapping is not None and not segment.dropping and not self._copying:
            self._restore(segment, lease.offset, lease.nbytes)
        return _RECORD.pack(_RELEASE, segment.number, lease.slot, 0, lease.generation)

    def _restore(self, segment: _Segment, offset: int, nbytes: int) -> bool:
        """Lets a range follow the file again; on failure all further batches are copied."""
        scanner, mapping = self._scanner, segment.mapping
        if scanner is None or mapping is None:
            return False
        start = segment.address + offset
        end = start + -(-nbytes // PAGE) * PAGE
        try:
            for first, last in scanner.copies(start, end):
                mapping.madvise(mmap.MADV_DONTNEED, first - segment.address, last - first)
        except OSError:  # no pagemap any more, or locked pages
            self._copying = True
        return not self._copying

    # The end

    def make_private(self) -> None:
        """Makes all slots that arrays still show independent of the server."""
        if not self._leases:
            return
        taken: list[bool] = []
        try:
            try_to_take(self._turn, taken, 1.0)  # nobody gives a page back that we copy
            for lease in list(self._leases.values()):
                if lease.segment.mapping is not None:
                    make_private(lease.segment.mapping, lease.offset, lease.nbytes)
        finally:
            if True in taken:
                self._turn.release()
        self.flush()

    def close(self) -> None:
        """Ends all leases: arrays keep their contents, then the server may reuse the slots."""
        if self._closed:
            return
        self.make_private()
        self._shut()

    def abandon(self) -> None:
        """Closes the file descriptors in a forked child, without a word to the server."""
        self._shut()

    def _shut(self) -> None:
        self._closed = True
        self._leases.clear()
        self._returns.clear()
        for segment in list(self._segments.values()):
            segment.close()
        self._segments.clear()
        if self._scanner is not None:
            self._scanner.close()
        self._side.close()


_live: weakref.WeakSet[Segments] = weakref.WeakSet()


def _before_fork() -> None:
    # The parent will return its leases, and the server reuse the slots the child still shows.
    for segments in list(_live):
        with contextlib.suppress(Exception):
            segments.make_private()


def _in_child() -> None:
    for segments in list(_live):
        with contextlib.suppress(Exception):
            segments.abandon()


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
