"""Who gets what from which production: sharing, falling behind, and meeting again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tundish import _core
from tundish.gathering import Gathering
from tundish.pace import EVERY
from tundish.production import Production
from tundish.splitting import Split
from tundish_client._protocol.ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tundish.config import ServeConfig
    from tundish.delivery import Delivery
    from tundish.loader import DataLoader
    from tundish.planning import AnyPlan
    from tundish.pump import Pump

__all__ = ["Ask", "Hub"]

_log = logging.getLogger("tundish.server")

_RETURN = 1.0
"""Seconds that a stream whose split epoch began elsewhere waits for others to come back."""

_YOUNG = 0.5
"""Seconds of its life in which a server expects that somebody comes back."""


@dataclass(frozen=True)
class Ask:
    """What streams must have in common to share a production."""

    feed: str
    epoch: int
    rank: int
    world_size: int
    uneven: str
    batch_size: int | None
    seed: int | None
    batches: int | None
    samples: int | None
    group: str | None
    split: str | None
    loader: DataLoader = field(compare=False)
    plan: AnyPlan = field(compare=False)

    @property
    def repeatable(self) -> bool:
        """Whether each of its runs has the same cell at the same position."""
        return self.loader.in_order and isinstance(self.plan, _core.Plan)

    def open(self, hub: Hub, start: int, token: int, *, background: bool) -> _core.Run:
        """A run of this from batch `start` on, which wakes `token`."""
        return self.loader._open(
            self.epoch,
            plan=self.plan,
            start=start,
            arena=hub.arena,
            waker=hub.pump.waker,
            token=token,
            seed=self.seed,
            background=background,
        )

    def describe(self) -> dict[str, Any]:
        """For STATS."""
        return {
            "feed": self.feed,
            "epoch": self.epoch,
            "rank": self.rank,
            "world_size": self.world_size,
            "group": self.group,
            "split": self.split,
        }


class Hub:
    """The productions of one server. Lives on its loop's thread.

    Attributes:
        loop, pump, arena: The server's.
        share_window: Bytes of cells that a production may hold for streams that lag or still join.
            An even part of a quarter of the memory limit at most, of those that are read now.
        idle: Productions that are over and have no streams, kept for those that come late; the one
            that was left first stands first.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pump: Pump, arena: _core.Arena, config: ServeConfig
    ) -> None:
        self.loop = loop
        self.pump = pump
        self.arena = arena
        self._share_window = config.share_window
        self.share_window = min(self._share_window, arena.limit // 4)
        self._linger = config.share_linger
        self._join_timeout = config.join_timeout
        self._lease_timeout = config.lease_timeout
        self._tight = arena.limit - arena.limit // 8
        self._productions: dict[Ask, list[Production]] = {}
        self._splits: dict[Ask, Split] = {}
        self._past: dict[Ask, tuple[float, Ranges]] = {}
        self._opened = time.monotonic()
        self._gatherings: dict[Ask, Gathering] = {}
        self._produced: Counter[str] = Counter()
        self.idle: list[Production] = []
        self._look: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    def __iter__(self) -> Iterator[Production | Split]:
        """The productions that are going on."""
        shared = [one for same in self._productions.values() for one in same]
        return iter([*shared, *self._splits.values()])

    # Joining and leaving

    def join(self, member: Delivery) -> None:
        """Give `member` a production, now or when its group is complete, and begin its stream.

        Raises:
            ConfigError: Its group has another size.
        """
        ask = member.ask
        gathering = self._gatherings.get(ask)
        going_on = any(one.members for one in self._productions.get(ask, ()))
        if member.stream.group_size is None or going_on or ask in self._splits:
            # One that comes back, say: its group had begun, so it begins for those that wait, too.
            self._begin([*(gathering.dissolve() if gathering else ()), member])
        elif gathering is not None:
            member.gathering = gathering
            gathering.add(member)
        else:
            # Known before it may be complete at once.
            self._gatherings[ask] = Gathering(
                member, self._join_timeout, self._begin, lambda: self._gatherings.pop(ask, None)
            )
            member.gathering = self._gatherings.get(ask)

    def _begin(self, members: list[Delivery]) -> None:
        """Serve all of them from now on; the last one is being opened, its session waits for it."""
        *others, last = members
        for member in others:
            try:
                self._serve(member)
            except Exception as error:  # nobody else would tell it
                member.fail(error)
                member.flush()
            else:
                self.loop.call_soon(member.move)
        self._serve(last)

    def _serve(self, member: Delivery) -> None:
        member.gathering = None
        if member.ask.split is None:
            self._share(member)
        else:
            self._split(member)
        member.begin()

    def _split(self, member: Delivery) -> None:
        ask, acked = member.ask, member.stream.done
        split = self._splits.get(ask)
        if split is None:
            split = self._splits[ask] = self._resplit(member)
        else:
            split.join(acked)
        member.production = split
        split.members.append(member)
        self._watch()

    def _resplit(self, member: Delivery) -> Split:
        """A split that begins, or goes on: here, or after it began at another server."""
        now = time.monotonic()
        until, past = self._past.pop(member.ask, (0.0, Ranges()))
        acked = Ranges(member.stream.done.pairs())
        if member.stream.fingerprint is None:
            # Where the server has just begun, others may come back who have a part of it already.
            return Split(self, member.ask, acked, _YOUNG - (now - self._opened))
        if now < until:
            acked.merge(past)  # it was away when the others were through
        return Split(self, member.ask, acked, _RETURN)

    def _share(self, member: Delivery, *, background: bool = False) -> None:
        """Give `member` a production that has what it wants next: one that is there, or its own."""
        production = self._covering(member)
        if production is None:
            production = Production(
                self, member.ask, member.next, had=member.had, background=background
            )
            self._productions.setdefault(member.ask, []).append(production)
            self._divide()
        elif production in self.idle:
            self._wake(production)
        member.production = production
        production.members.append(member)
        self._watch()

    def _covering(self, member: Delivery) -> Production | None:
        """The production that serves the most streams of those that `member` may join."""
        found = [
            production
            for production in self._productions.get(member.ask, ())
            if production is not member.production and production.covers(member.next)
        ]
        return max(found, key=lambda production: len(production.members), default=None)

    def detach(self, member: Delivery) -> None:
        """Have `member` served by a production of its own; the others go on without it."""
        before = member.production
        assert isinstance(before, Production)
        member.detached += 1
        _log.info(
            "%s fell behind at batch %d of feed %r, epoch %d: it gets the rest by itself",
            member.name,
            member.next,
            member.ask.feed,
            member.ask.epoch,
        )
        before.members.remove(member)
        self._share(member, background=bool(before.members))
        if not before.members:
            before.close()
        self.loop.call_soon(member.move)

    def advanced(self, member: Delivery) -> None:
        """`member` has been sent a cell: does it meet another production?"""
        before = member.production
        if not isinstance(before, Production):
            return
        if member.ask.repeatable and len(self._productions.get(member.ask, ())) > 1:
            other = self._covering(member)
            if other is not None and self._is_better(other, before):
                if other in self.idle:
                    self._wake(other)
                other.members.append(member)
                member.production = other
                before.leave(member)
                return
        before.advanced(member)

    @staticmethod
    def _is_better(other: Production, own: Production) -> bool:
        """Whether a stream that both cover had better be with the other."""
        # One that is over costs nothing any more.
        return (other.is_complete, not other.background, len(other.members), -other.start) >= (
            own.is_complete,
            not own.background,
            len(own.members),
            -own.start,
        )

    def forget(self, production: Production | Split) -> None:
        """It is closed."""
        self._produced[production.ask.feed] += production.produced
        if production in self.idle:
            self.idle.remove(production)
        if isinstance(production, Split):
            self._splits.pop(production.ask, None)
            now = time.monotonic()
            self._past = {ask: past for ask, past in self._past.items() if past[0] > now}
            self._past[production.ask] = now + self._lease_timeout, production.acked
            return
        same = self._productions.get(production.ask, [])
        if production in same:
            same.remove(production)
        if not same:
            self._productions.pop(production.ask, None)
        self._divide()

    # Memory

    def _divide(self) -> None:
        """Give each production that is read its part of what all may hold."""
        reading = sum(map(len, self._productions.values())) - len(self.idle)
        self.share_window = min(self._share_window, self.arena.limit // 4 // max(1, reading))

    def is_tight(self) -> bool:
        """Whether little memory is left."""
        return self.arena.busy > self._tight

    def relieve(self) -> None:
        """Let go of what is held only for streams that may still join."""
        for idle in [*self.idle]:
            idle.close()
        for production in self:
            production.drop_unneeded()

    # Late comers

    def linger(self, production: Production) -> bool:
        """Keep what its last stream has left, for others that come late; False if that is no use.

        A trainer is often a moment behind another, and an epoch may be short. It is kept as long as
        streams of the feed are open and `share_linger` seconds more, if it has no failed batch,
        which a stream that comes may want to try again, and nobody needs the memory.
        """
        same = self._productions.get(production.ask, ())
        if not (self._linger and production.is_complete) or any(
            other.is_complete and other.low <= production.low
            for other in same
            if other is not production
        ):
            return False
        production.idle_since = time.monotonic()
        self.idle.append(production)
        self._divide()
        self.settle()
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self._linger, self._sweep)
        return production in self.idle

    def _wake(self, production: Production) -> None:
        self.idle.remove(production)
        self._divide()

    def settle(self) -> None:
        """Close idle productions as long as all hold more than a quarter of the memory limit."""
        held = sum(one.nbytes for same in self._productions.values() for one in same)
        while self.idle and held > self.arena.limit // 4:
            held -= self.idle[0].nbytes
            self.idle[0].close()

    def _sweep(self) -> None:
        self._sweeper = None
        past = time.monotonic() - self._linger
        reading = {one.ask.feed for one in self if one.members}
        reading |= {ask.feed for ask in self._gatherings}
        for production in [*self.idle]:
            if production.idle_since <= past and production.ask.feed not in reading:
                production.close()
        if self.idle:
            self._sweeper = self.loop.call_later(self._linger, self._sweep)

    # Looking around

    def _watch(self) -> None:
        """Look at the productions now and then, as long as there are any."""
        if self._look is None:
            self._look = self.loop.call_later(self._every(), self._look_around)

    def _every(self) -> float:
        return min(EVERY, self._lease_timeout / 4) if self._splits else EVERY

    def _look_around(self) -> None:
        self._look = None
        now = time.monotonic()
        for split in list(self._splits.values()):
            split.look(now, self._lease_timeout)
        for same in list(self._productions.values()):
            for production in same:
                production.look(now)
        if self.idle or any(production.members for production in self):
            self._watch()

    def close(self) -> None:
        """Stop everything."""
        if self._look is not None:
            self._look.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for production in self:
            production.close()

    def produced(self, feed: str) -> int:
        """Batches of a feed that were made, in all runs there ever were."""
        going_on = sum(one.produced for one in self if one.ask.feed == feed)
        return self._produced[feed] + going_on

    def stats(self) -> list[dict[str, Any]]:
        """The runs, for STATS."""
        return [production.stats() for production in self]
