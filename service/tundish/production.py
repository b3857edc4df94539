"""One production of an epoch, and the cells of it that streams may still want."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from tundish._core import Batch, End, Failure
from tundish.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Collection

    from tundish.delivery import Delivery
    from tundish.hub import Ask, Hub

    Cell = Batch | Failure

__all__ = ["Production"]

_log = logging.getLogger("tundish.server")

_PAGE = 4096

_REMINDER = 1.0
"""Seconds a group waits for one of its streams before the log says so, and again each time."""

_BRIEFLY = 0.1
"""Seconds for which the others wait for a laggard before it goes on by itself: a production of its
own is a second preparation, and two trainers of one speed are never quite of one speed."""

_PART = 0.05
"""Of the time that passes, what is added to the seconds they may wait, up to `_BRIEFLY` again."""

_LEAST = 0.02
"""Seconds that there must be of them before the others begin to wait."""


class Production:
    """A run whose cells go to several streams: each of them gets every cell, at its own pace.

    Cells are counted by positions: batch numbers, or for ``in_order=False`` arrivals. Those from
    `low` to `high` are held: whatever a member still needs, and before that as much as the share
    window has room for, so that others may join. A member for which there is no room any more falls
    behind: it gets the rest from a production of its own, or the others wait for it.

    Args:
        hub: Who has it.
        ask: What is produced.
        start: The first position.
        had: Batches that its first member has already, where positions are arrivals.
        background: Whether it uses only capacity that others leave idle.

    Attributes:
        ask: What is produced, and for whom.
        members: The streams that are served.
        low, high: Positions of the first cell that is held and of the next to come.
        nbytes: Bytes that the cells which are held take.
        run: The run.
        number: Its number, no other run of the server has it.
        pace: How fast it hands out cells.
        idle_since: When its last stream left it (`time.monotonic`), if it is idle.
    """

    def __init__(
        self,
        hub: Hub,
        ask: Ask,
        start: int,
        *,
        had: Collection[int] = (),
        background: bool = False,
    ) -> None:
        self.ask = ask
        self.members: list[Delivery] = []
        self.start = self.low = self.high = start
        self.nbytes = 0
        self.background = background
        now = self.idle_since = time.monotonic()
        self.pace = Pace(start)
        self._hub = hub
        self._cells: deque[Cell] = deque()
        self._end: End | None = None
        self._failed = False
        self._skips = ask.loader.on_error == "skip"
        self._had = frozenset(had)
        self._poked = False
        self._waiting_since: float | None = None
        self._waiting_for: list[Delivery] = []
        self._counted = now
        self._patience = _BRIEFLY
        self._patient_since = now
        self._timer: asyncio.TimerHandle | None = None
        self._said = 0.0
        self.number = self._token = hub.pump.register(self._ready)
        try:
            first = start if ask.loader.in_order else _first_missing(self._had)
            self.run = ask.open(hub, first, self._token, background=background)
        except BaseException:
            hub.pump.unregister(self._token)
            raise

    @property
    def produced(self) -> int:
        """Batches that were made."""
        return int(self.run.stats()["produced"])

    @property
    def is_complete(self) -> bool:
        """Whether all that is left of it is held, and would be the same if made again."""
        over = self._end is not None or self.high == self.ask.batches
        return over and self.low < self.high and self.ask.repeatable and not self._failed

    # For members

    def covers(self, position: int) -> bool:
        """Whether a stream may join that wants this position next."""
        if not self.ask.loader.in_order and position > 0:
            return False  # what arrived before that elsewhere are other batches than here
        return self.low <= position <= self.high

    def take(self, member: Delivery) -> Cell | End | None:
        """The cell that `member` wants next, or the end; None while it isn't there."""
        at = member.next
        if at < self.high:
            return self._cells[at - self.low]
        if self._end is not None:
            return self._end
        if self._held_up():
            return None
        cell = self.run.take()
        while self._had and isinstance(cell, (Batch, Failure)) and cell.batch in self._had:
            cell = self.run.take()
        if cell is None:
            return None
        if isinstance(cell, End):
            self._end = cell
        else:
            if type(cell) is Failure or (self._skips and cell.skipped):
                self._failed = True
            self._cells.append(cell)
            self.high += 1
            self.nbytes += _cost(cell)
            if self._hub.idle:
                self._hub.settle()
        if len(self.members) > 1:
            self._poke()
        return cell

    def advanced(self, member: Delivery) -> None:
        """`member` has been sent a cell."""
        if self.nbytes > self._hub.share_window:
            self._make_room()
        if self._hub.is_tight() and member.next == self.high:
            self._hub.relieve()
        if self._waiting_since is not None and not self._held_up():
            self._poke()

    def leave(self, member: Delivery) -> None:
        """`member` is served no longer."""
        if member in self.members:
            self.members.remove(member)
        if not self.members:
            if not self._hub.linger(self):
                self.close()
        elif self._waiting_since is not None:
            self._poke()

    def close(self) -> None:
        """Stop the run. Workers stop before the next sample."""
        self._hub.forget(self)
        self._hub.pump.unregister(self._token)
        if self._timer is not None:
            self._timer.cancel()
        self.run.cancel()
        self._cells.clear()
        self.nbytes = 0

    # Room

    def _make_room(self) -> None:
        """Let go of the oldest cells until the rest fits the window."""
        while self.nbytes > self._hub.share_window and self.high - self.low > 1:
            behind = [member for member in self.members if member.next == self.low]
            if any(self._waits_for(member) for member in behind):
                return
            for member in behind:
                self._hub.detach(member)
            if not self._cells:
                return  # that was the last member, and this is closed
            self._drop_oldest()

    def drop_unneeded(self) -> None:
        """Let go of the cells that are held for streams that may still join."""
        needed = min((member.next for member in self.members), default=self.high)
        while self.low < needed:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        cell = self._cells.popleft()
        self.low += 1
        self.nbytes -= _cost(cell)

    def _held_up(self) -> bool:
        """Whether nothing more is taken from the run, because of a member that is waited for."""
        full = self.nbytes > self._hub.share_window
        if not full and self._waiting_since is None:
            return False
        now = time.monotonic()
        late = self.late() if full else []
        for member in self._waiting_for:
            member.held_up += now - self._counted
        self._counted, self._waiting_for = now, late
        if not late:
            if self._waiting_since is not None:
                self._patience = max(0.0, self._patience_left(now))
                self._waiting_since, self._patient_since = None, now
            return False
        if self._waiting_since is None:
            self._patience = self._patience_left(now)
            self._waiting_since = self._patient_since = self._said = now
        if self._timer is None and not all(member.waited_for for member in late):
            left = max(0.001, self._patience_left(now))
            self._timer = self._hub.loop.call_later(left, self._look)
        return True

    def _look(self) -> None:
        self._timer = None
        self._poke_now()

    def late(self) -> list[Delivery]:
        """The members that the others wait for, when the window is full."""
        return [
            member
            for member in self.members
            if member.next == self.low < self.high and self._waits_for(member)
        ]

    def _waits_for(self, member: Delivery) -> bool:
        """Whether the others wait for `member` rather than that it gets the rest by itself."""
        least = _LEAST if self._waiting_since is None else 0.0
        return member.waited_for or self._patience_left(time.monotonic()) > least

    def _patience_left(self, now: float) -> float:
        """Seconds for which the others may still wait for those that lag."""
        passed = now - self._patient_since
        if self._waiting_since is not None:
            return self._patience - passed
        return min(_BRIEFLY, self._patience + _PART * passed)

    def waited_since(self) -> float | None:
        """When the group began to wait (`time.monotonic`), or None."""
        if self._waiting_since is not None and self._held_up():
            return self._waiting_since
        return None

    def remind(self, now: float) -> None:
        """Say in the log who is waited for, once a second at most."""
        since = self.waited_since()
        if since is None or now - self._said < _REMINDER:
            return
        self._said = now
        for member in self.late():
            _log.warning(
                "feed %r, epoch %d: the group waits for %s at batch %d, for %.1f s",
                self.ask.feed,
                self.ask.epoch,
                member.name,
                member.next,
                now - since,
            )

    def look(self, now: float) -> None:
        """To be called now and then: takes note of its streams' pace, and of who is waited for."""
        self.pace.mark(self.high)
        for member in self.members:
            member.pace.mark(member.stream.sent)
        self.remind(now)

    # Waking

    def _ready(self) -> None:
        """The run has something to take."""
        for member in list(self.members):
            if member.next == self.high:
                member.move()

    def _poke(self) -> None:
        """Let the other members see what there is now, after this one's turn."""
        if not self._poked:
            self._poked = True
            self._hub.loop.call_soon(self._poke_now)

    def _poke_now(self) -> None:
        self._poked = False
        for member in list(self.members):
            member.move()

    def stats(self) -> dict[str, Any]:
        """The run's counters, for STATS."""
        since = self.waited_since()
        return {
            **self.ask.describe(),
            "run": self.number,
            "start": self.start,
            "position": self.high,
            **self.run.stats(),
            "streams": len(self.members),
            "held": self.high - self.low,
            "bytes": self.nbytes,
            "rate": self.pace.rate(self.high),
            "background": self.background,
            "waiting_for": [] if since is None else [member.name for member in self.late()],
            "waiting": 0.0 if since is None else time.monotonic() - since,
        }


def _cost(cell: Cell) -> int:
    """Bytes that a cell takes as long as it is held: slots are whole pages."""
    nbytes = cell.nbytes if type(cell) is Batch else 0
    return max(1, -(-nbytes // _PAGE)) * _PAGE


def _first_missing(batches: Collection[int]) -> int:
    return next(batch for batch in itertools.count() if batch not in batches)
