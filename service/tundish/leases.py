"""Slots lent to one client, and the side channel on which they come back.

A lease is the `Batch` object itself: as long as it is in the table its slot isn't reused. It leaves
the table when the client returns the slot, or when the side channel has hung up everywhere, which
the kernel tells when no process holds the client's end any more. That the main socket is gone says
nothing about who still looks at the slots: until then they are quarantined.

While batches flow, a message about every batch comes on the main socket, and returned slots are
collected then: being woken for each return as well would cost more than sending a batch does. When
nothing has flowed for a moment, each return wakes the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import struct
from collections.abc import Callable

from tundish._core import Arena, Batch
from tundish_client.errors import ProtocolError

__all__ = ["Leases", "Lending", "Retiring"]

_log = logging.getLogger("tundish.server")

_RECORD = struct.Struct("<IIIIQ")
_RELEASE = 1
_DROPPED = 2
_SEGMENT = 3
_PACKET = 64 * 1024 // _RECORD.size * _RECORD.size
_PACKETS = 256
_FLOWING = 0.005  # seconds after which nothing flows any more
_FEW = 4  # slots; fewer small ones are not worth a look
_SMALL = 64 * 1024
_END = select.EPOLLHUP | select.EPOLLRDHUP
_SEND = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

Slot = tuple[int, int, int]


class Lending:
    """How much of the arena's memory may be lent to clients, over all of them.

    Up to a quarter of the limit goes to whoever comes first. Of what is left, another eighth is
    divided evenly: a client that keeps its batches takes nothing from the others, and enough
    remains to make batches in. A slot that several clients hold counts once.
    """

    def __init__(self, limit: int) -> None:
        self.clients = 0
        self._limit = limit
        self._nbytes = 0
        self._holders: dict[Slot, int] = {}

    def allows(self, slot: Slot, nbytes: int, own: int) -> bool:
        """Whether a client that holds `own` bytes may have this slot too."""
        return (
            self._nbytes + nbytes <= self._limit // 4
            or slot in self._holders
            or not self._holders
            or own + nbytes <= self._limit // 8 // max(1, self.clients)
        )

    def lend(self, slot: Slot, nbytes: int) -> None:
        """A client has it."""
        holders = self._holders.get(slot, 0)
        self._holders[slot] = holders + 1
        if not holders:
            self._nbytes += nbytes

    def take_back(self, slot: Slot, nbytes: int) -> None:
        """A client has it no longer."""
        holders = self._holders.pop(slot) - 1
        if holders:
            self._holders[slot] = holders
        else:
            self._nbytes -= nbytes


class Leases:
    """The leases of one client. Lives on the loop's thread.

    Attributes:
        client_end: The end of the channel that goes to the client; close it once sent.
        over: Whether the channel has hung up everywhere: nobody looks at any slot any more.
        failed: How the client broke the rules, if it did.
        usable: Whether batches may be lent. False once the channel hung up, and in quarantine.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        arena: Arena,
        *,
        quota: int,
        lending: Lending,
        on_change: Callable[[Leases], None],
        on_drop: Callable[[Leases, int], None],
    ) -> None:
        """Opens the side channel.

        Args:
            loop: The running loop.
            arena: Where the slots are.
            quota: Slots this client may hold at a time.
            lending: What it shares with the other clients.
            on_change: Called when the channel has hung up, and when the client broke its rules.
            on_drop: Called with a segment that the client has unmapped.
        """
        self._loop = loop
        self._arena = arena
        self._quota = quota
        self._lending = lending
        self._on_change = on_change
        self._on_drop = on_drop
        self._lent: dict[Slot, tuple[Batch, int]] = {}
        self._nbytes = 0
        self._segments: set[int] = set()
        self._side, self.client_end = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
        )
        self._watch = select.epoll()
        self._watch.register(self._side, select.EPOLLIN | _END)
        self._timer: asyncio.TimerHandle | None = None
        self._flowed = False
        self._bulky = False
        self.over = False
        self.usable = True
        self.failed: ProtocolError | None = None
        loop.add_reader(self._watch.fileno(), self._readable)

    def __len__(self) -> int:
        return len(self._lent)

    @property
    def segments(self) -> frozenset[int]:
        """Segments that the client has."""
        return frozenset(self._segments)

    def of_stream(self, stream: int) -> int:
        """How many slots hold batches of this stream."""
        return sum(1 for _, number in self._lent.values() if number == stream)

    def room(self, slot: Slot, nbytes: int) -> bool:
        """Whether another slot, this one, may be lent.

        A slot is lent to a client once, whichever of its streams are sent it: arrays of two
        streams would be the same memory.
        """
        return (
            self.usable
            and slot not in self._lent
            and len(self._lent) < self._quota
            and self._lending.allows(slot, nbytes, self._nbytes)
        )

    def knows(self, segment: int) -> bool:
        """Whether the client has this segment."""
        return segment in self._segments

    def introduce(self, segment: int) -> int | None:
        """Sends a segment's file on the side channel.

        Returns:
            The segment's bytes, to be announced by SEGMENT before its first batch; None when the
            channel has no room now: send this batch inline.
        """
        record = _RECORD.pack(_SEGMENT, segment, 0, 0, 0)
        try:
            fd, nbytes = self._arena.segment_fd(segment), self._arena.segment_bytes(segment)
            socket.send_fds(self._side, [record], [fd], _SEND)
        except (OSError, KeyError):
            return None
        self._segments.add(segment)
        return nbytes

    def lend(self, batch: Batch, slot: Slot, stream: int) -> None:
        """Keeps `batch`, which a stream was sent, until its slot is returned."""
        nbytes = batch.nbytes
        self._lent[slot] = (batch, stream)
        self._nbytes += nbytes
        self._lending.lend(slot, nbytes)
        self._bulky = nbytes > _SMALL

    def take_back(self, slot: Slot) -> None:
        """Takes a slot back; an unknown or repeated return does nothing."""
        lent = self._lent.pop(slot, None)
        if lent is not None:
            nbytes = lent[0].nbytes
            self._nbytes -= nbytes
            self._lending.take_back(slot, nbytes)

    def __del__(self) -> None:
        # A loop that was closed never tells us of a hang-up; the sockets still have to go.
        for name in ("_side", "client_end", "_watch"):
            sock = getattr(self, name, None)  # there may have been no descriptor for it
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.close()

    def flow(self) -> None:
        """Collects returned slots; to be called when the client has said something else."""
        self._flowed = True
        if self._timer is None and not self.over:
            self._watch.modify(self._side, _END)
            self._timer = self._loop.call_later(_FLOWING, self._still)
        if self._bulky or len(self._lent) > _FEW:
            self._readable()

    def _still(self) -> None:
        self._timer = None
        if self.over:
            return
        if self._flowed:
            self._flowed = False
            self._timer = self._loop.call_later(_FLOWING, self._still)
        else:
            self._watch.modify(self._side, select.EPOLLIN | _END)

    def quarantine(self) -> None:
        """The main socket is gone: lend no more, wait for the side channel to hang up."""
        self.usable = False
        self.client_end.close()

    def close(self) -> None:
        """Ends the channel, whoever may still look at the slots: for a server that ends."""
        self.usable = False
        self._unwatch()
        for slot in list(self._lent):
            self.take_back(slot)
        self._segments.clear()

    def _unwatch(self) -> None:
        if not self.over:
            self.over = True
            self._loop.remove_reader(self._watch.fileno())
            self._watch.close()
            self._side.close()
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(OSError):
            self.client_end.close()

    def _readable(self) -> None:
        if self.over:
            return
        for _ in range(_PACKETS):
            try:
                packet = self._side.recv(_PACKET)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if packet:
                self._records(packet)
            elif self._hung_up():
                self.close()
                self._on_change(self)
                return

    def _hung_up(self) -> bool:
        # An empty packet reads like the end; only the kernel's word counts.
        poll = select.poll()
        poll.register(self._side, select.POLLIN)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))

    def _records(self, packet: bytes) -> None:
        whole = len(packet) - len(packet) % _RECORD.size
        for kind, segment, slot, _, generation in _RECORD.iter_unpack(packet[:whole]):
            if kind == _RELEASE:
                self.take_back((segment, slot, generation))
            elif kind == _DROPPED:
                self._segments.discard(segment)
                self._on_drop(self, segment)
            else:
                whole = -1
                break
        if whole != len(packet) and self.failed is None:
            self.failed = ProtocolError(f"the side channel got a malformed record: {packet[:24]!r}")
            self._on_change(self)


class Retiring:
    """Segments on their way out: gone when every client has unmapped them.

    Attributes:
        waiting: Segment to the leases whose client still has it mapped.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.waiting: dict[int, set[Leases]] = {}

    def look(self, holders: dict[Leases, Callable[[int], None]]) -> None:
        """Starts on newly retired segments.

        Args:
            holders: All leases, with what asks their client to unmap a segment.
        """
        for segment in self._arena.retired():
            if segment in self.waiting:
                continue
            having = {leases for leases in holders if leases.knows(segment)}
            self.waiting[segment] = having
            for leases in having:
                holders[leases](segment)
            self._settle(segment)

    def dropped(self, leases: Leases, segment: int) -> None:
        """A client has unmapped a segment."""
        having = self.waiting.get(segment)
        if having is not None:
            having.discard(leases)
            self._settle(segment)

    def gone(self, leases: Leases) -> None:
        """A client has hung up: it has nothing mapped any more."""
        for segment in list(self.waiting):
            self.dropped(leases, segment)

    def _settle(self, segment: int) -> None:
        if not self.waiting[segment]:
            del self.waiting[segment]
            if not self._arena.drop_segment(segment):
                _log.debug("segment %d is still in use, kept", segment)
