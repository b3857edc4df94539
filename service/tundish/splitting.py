"""A split epoch: every batch goes to exactly one of several streams, first come, first served."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tundish._core import End
from tundish.pace import Pace
from tundish.remainder import Remainder
from tundish_client._protocol.ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tundish import _core
    from tundish._core import Batch, Failure
    from tundish.delivery import Delivery
    from tundish.hub import Ask, Hub

    Cell = Batch | Failure

__all__ = ["Split"]

_log = logging.getLogger("tundish.server")


@dataclass(slots=True)
class _Lease:
    """A batch that a stream has and hasn't acknowledged yet."""

    member: Delivery
    cell: Cell
    since: float


class Split:
    """A run whose cells are shared out among its members.

    A cell belongs to the member it was sent to until that acknowledges it. What a member has not
    acknowledged when it is lost, or for `lease_timeout` seconds, goes to the others. The epoch has
    ended for all of them when every cell is acknowledged.

    If the first member comes back from another server, or from an earlier life of this one, others
    may be on their way, too, and know of further acknowledgements: nothing is given out for `wait`
    seconds.

    Attributes:
        ask: What is produced, and for whom.
        members: The streams among which it is split.
        acked: The batches that are acknowledged.
        redelivered: Cells that had to be given to somebody else.
        number: The run's number, no other of the server has it.
    """

    background = False

    def __init__(self, hub: Hub, ask: Ask, acked: Ranges, wait: float) -> None:
        self.ask = ask
        self.members: list[Delivery] = []
        self.redelivered = 0
        self._hub = hub
        self.acked = Ranges(acked.pairs())
        self._pace = Pace(len(self.acked))
        self._leases: dict[int, _Lease] = {}
        self._again: deque[Cell] = deque()
        self._returned: set[int] = set()
        self._end: End | None = None
        self._poked = self._held_back = False
        self.number = self._token = hub.pump.register(self._ready)
        try:
            self._remainder = Remainder(hub, ask, self.acked, self._token)
        except BaseException:
            hub.pump.unregister(self._token)
            raise
        self._waiting = hub.loop.call_later(wait, self._begin) if wait > 0 else None

    @property
    def run(self) -> _core.Run:
        """The run."""
        return self._remainder.run

    @property
    def produced(self) -> int:
        """Batches that were made."""
        return int(self._remainder.counters["produced"])

    @property
    def start(self) -> int:
        """The batch that was produced first."""
        return self._remainder.start

    def _begin(self) -> None:
        self._waiting = None
        self._remainder.renew()
        self._ready()

    # For members

    def take(self, member: Delivery) -> Cell | End | None:
        """A cell for `member`, which holds it from now on; the end when all are acknowledged."""
        cell = self._next(member)
        if cell is None:
            return self._end if self._is_done() else None
        if cell.batch in self._returned:
            member.redelivered += 1
        self._leases[cell.batch] = _Lease(member, cell, time.monotonic())
        return cell

    def _next(self, member: Delivery) -> Cell | None:
        if self._waiting is not None:
            return None
        if self._again:
            return self._again.popleft()
        if self._end is None:
            if self._hub.is_tight() and any(one.member is member for one in self._leases.values()):
                self._held_back = True  # one batch a member, until there is memory again
                return None
            cell = self._remainder.take()
            if not isinstance(cell, End):
                return cell
            self._end = cell
        return None

    def _is_done(self) -> bool:
        return self._end is not None and not self._leases and not self._again

    def join(self, known: Ranges) -> None:
        """A member that joins knows of cells that were acknowledged to another server."""
        before = len(self.acked)
        self.acked.merge(known)
        if len(self.acked) == before:
            return
        self._again = deque(cell for cell in self._again if cell.batch not in known)
        self._revoke([lease for batch, lease in self._leases.items() if batch in known])
        if self._is_done():
            self._poke()

    def acknowledged(self, member: Delivery, batches: Iterable[int]) -> None:
        """`member` has consumed these."""
        for batch in batches:
            lease = self._leases.get(batch)
            if lease is not None and lease.member is member:
                del self._leases[batch]
                self.acked.add(batch)
        for lease in self._leases.values():
            if lease.member is member:
                lease.since = time.monotonic()  # it is slow, not stopped
        if self._is_done() or self._held_back:
            self._held_back = False
            self._poke()

    def advanced(self, member: Delivery) -> None:
        """`member` has been sent a cell."""

    def leave(self, member: Delivery) -> None:
        """`member` is served no longer: what it holds goes to the others."""
        if member in self.members:
            self.members.remove(member)
        self._give_back([lease for lease in self._leases.values() if lease.member is member])
        if not self.members:
            self.close()

    def look(self, now: float, lease_timeout: float) -> None:
        """To be called now and then: takes note of the pace, and of who acknowledges nothing."""
        self._pace.mark(len(self.acked))
        for member in self.members:
            member.pace.mark(member.stream.sent)
        self._expire(now, lease_timeout)

    def _expire(self, now: float, lease_timeout: float) -> None:
        """Give to others what members hold that have not acknowledged anything for so long."""
        if len(self.members) < 2:
            return
        late = [lease for lease in self._leases.values() if now - lease.since > lease_timeout]
        for name in {lease.member.name for lease in late}:
            _log.warning(
                "%s has acknowledged nothing for %g s (lease_timeout): what it holds of split %r "
                "goes to the others",
                name,
                lease_timeout,
                self.ask.split,
            )
        self._give_back(late)
        self._tell(late)

    def _revoke(self, leases: list[_Lease]) -> None:
        """These cells are acknowledged by somebody else."""
        for lease in leases:
            del self._leases[lease.cell.batch]
        self._tell(leases)

    @staticmethod
    def _tell(leases: list[_Lease]) -> None:
        """Tell members which cells are theirs no longer."""
        batches: dict[Delivery, list[int]] = {}
        for lease in leases:
            batches.setdefault(lease.member, []).append(lease.cell.batch)
        for member, numbers in batches.items():
            member.revoke(numbers)

    def _give_back(self, leases: list[_Lease]) -> None:
        for lease in leases:
            del self._leases[lease.cell.batch]
            self._returned.add(lease.cell.batch)
            self._again.append(lease.cell)
            self.redelivered += 1
        if leases:
            self._again = deque(sorted(self._again, key=lambda cell: cell.batch))
            self._poke()

    def close(self) -> None:
        """Stop the run. Workers stop before the next sample."""
        self._hub.forget(self)
        self._hub.pump.unregister(self._token)
        if self._waiting is not None:
            self._waiting.cancel()
        self.run.cancel()
        self._leases.clear()
        self._again.clear()

    def drop_unneeded(self) -> None:
        """Nothing is held that nobody needs."""

    def waited_since(self) -> float | None:
        """Nobody waits for anybody."""
        return None

    # Waking

    def _ready(self) -> None:
        for member in list(self.members):
            member.move()

    def _poke(self) -> None:
        if not self._poked:
            self._poked = True
            self._hub.loop.call_soon(self._poke_now)

    def _poke_now(self) -> None:
        self._poked = False
        self._ready()

    def held_by(self, member: Delivery) -> int:
        """Cells that a member was sent and has not acknowledged."""
        return sum(lease.member is member for lease in self._leases.values())

    def stats(self) -> dict[str, Any]:
        """The run's counters, for STATS."""
        return {
            **self.ask.describe(),
            "run": self.number,
            "start": self.start,
            "position": len(self.acked),
            **self._remainder.counters,
            "streams": len(self.members),
            "held": len(self._leases) + len(self._again),
            "bytes": sum(
                getattr(cell, "nbytes", 0)
                for cell in (*self._again, *(lease.cell for lease in self._leases.values()))
            ),
            "rate": self._pace.rate(len(self.acked)),
            "background": False,
            "redelivered": self.redelivered,
            "waiting_for": [],
            "waiting": 0.0,
        }
