"""Positions in a loader's epochs: taking them, and going on at one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tundish.arguments import integer
from tundish_client.errors import ConfigError
from tundish_client.resuming import resume_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tundish.epoch import Epoch
    from tundish.planning import Planning

__all__ = ["Place", "Positioned", "Shard", "compare"]

Shard = tuple[int, int, str, int | None]
"""rank, world_size, uneven, and a batch size that isn't the loader's."""

WHOLE: Shard = (0, 1, "pad", None)

# Batches of all ranks together are what a position counts.
_GLOBAL = ("batch_size", "world_size")


class Place:
    """Where an epoch stands: its number, and the batch that comes next."""

    __slots__ = ("batch", "epoch")

    def __init__(self, epoch: int, batch: int) -> None:
        self.epoch = epoch
        self.batch = batch


class Positioned:
    """The part of a DataLoader that takes positions and goes on at them."""

    seed: int
    _planning: Planning
    _seed_drawn: bool
    _in_order: bool
    _next_epoch: int = 0
    _place: Place | None = None
    _resumed: Place | None = None

    def epoch(self, epoch: int, start: int = 0, *shard: Any) -> Epoch:
        """Any epoch; see ``DataLoader``."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The position of the epoch that ``iter(loader)`` began last, as plain data.

        It counts batches that were handed out, not those prefetched. Keys: feed (None), epoch,
        batch (the next one), rank, world_size, uneven, fingerprint. ``epoch.state_dict()`` is the
        same for any epoch; both are O(1).

        Raises:
            ConfigError: with ``in_order=False``, where batches have no position.
        """
        return self._state(self._resumed or self._place or Place(self._next_epoch, 0), WHOLE)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next ``iter(loader)`` go on at a position; the epochs after it follow.

        A position at an epoch's end goes on with the next epoch.

        Args:
            state: from ``state_dict`` of a loader or a client's stream. The number of ranks may
                differ if the global batch size (batch_size times world_size) is the same.

        Raises:
            ConfigError: seed, number of samples, order or batch size differ (both values are
                named), or it is no such state. A loader whose seed was drawn takes on the state's.
        """
        asked = self._read(state, rank=0, world_size=1, uneven=None)
        own = self._planning.batch_size
        if asked.batch_size not in {None, own}:
            raise ConfigError(
                f"this position counts global batches of {asked.batch_size} samples, iter(loader) "
                f"makes batches of {own}; use loader.resume(state, rank=, world_size=)"
            )
        compare(asked.fingerprint, self._planning.fingerprint())
        self._next_epoch = asked.epoch
        self._resumed = Place(asked.epoch, asked.start)
        self._place = None

    def resume(
        self,
        state: Mapping[str, Any],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: str | None = None,
    ) -> Epoch:
        """The epoch of a state, from its batch on: for any rank of any number of ranks.

        Args:
            state: from ``state_dict`` of a loader, an epoch or a client's stream.
            rank: instead of the state's.
            world_size: instead of the state's; each rank's batches then have the global batch size
                divided by it.
            uneven: instead of the state's.

        Raises:
            ConfigError: as for ``load_state_dict``; the global batch size doesn't divide.
        """
        asked = self._read(state, rank=rank, world_size=world_size, uneven=uneven)
        ours = self._planning.fingerprint(asked.world_size, asked.batch_size)
        compare(asked.fingerprint, ours)
        shard = (asked.rank, asked.world_size, asked.uneven, asked.batch_size)
        batches = self._planning.plan(asked.epoch, *shard[:3], batch_size=asked.batch_size).batches
        # At its end an epoch may have one batch less on another number of ranks: the short ones.
        start = asked.start if batches is None else min(asked.start, batches)
        return self.epoch(asked.epoch, start, *shard)

    def _read(self, state: Mapping[str, Any], **shard: Any) -> Any:
        asked = resume_options(state, feed=None, prefetch=1, copy=False, **shard)
        seed = (asked.fingerprint or {}).get("seed")
        if self._seed_drawn and seed is not None:
            # This loader's own was drawn: it takes on that of the position.
            self._planning.seed = integer("seed", seed, 0, 2**64 - 1)
            object.__setattr__(self, "seed", self._planning.seed)
        return asked

    def _following(self) -> Place:
        """Where the next ``iter(loader)`` begins; the one after it follows."""
        resumed, self._resumed = self._resumed, None
        place = Place(self._next_epoch, 0)
        if resumed is not None:
            batches = self._planning.plan(resumed.epoch).batches
            ended = batches is not None and resumed.batch >= batches
            place = Place(resumed.epoch + 1, 0) if ended else resumed
        self._next_epoch = place.epoch + 1
        return place

    def _state(self, place: Place, shard: Shard) -> dict[str, Any]:
        if not self._in_order:
            raise ConfigError(
                "in_order=False hands out batches as they are ready: there is no position"
            )
        rank, world, uneven, batch_size = shard
        own = {} if batch_size is None else {"batch_size": batch_size}
        return {
            **own,
            "feed": None,
            "epoch": place.epoch,
            "batch": place.batch,
            "rank": rank,
            "world_size": world,
            "uneven": uneven,
            "fingerprint": self._planning.fingerprint(world, batch_size),
        }


def compare(theirs: Mapping[str, Any] | None, ours: Mapping[str, Any]) -> None:
    """Refuse a position that would mean another batch here.

    Raises:
        ConfigError: what differs, with both values.
    """
    if not theirs:
        return
    for key, value in theirs.items():
        if key in ours and key not in _GLOBAL and ours[key] != value:
            raise ConfigError(
                f"this position was taken with {key}={value!r}, but here {key}={ours[key]!r}: "
                "it would mean another batch"
            )
    size, world = (theirs.get(key, ours[key]) for key in _GLOBAL)
    own, ranks = (ours[key] for key in _GLOBAL)
    if (size, world) != (own, ranks):
        _compare_global((size, world), (own, ranks))


def _compare_global(theirs: tuple[Any, Any], ours: tuple[Any, Any]) -> None:
    (size, world), (own, ranks) = theirs, ours
    before = f"batch_size={size!r} and world_size={world!r}"
    now = f"batch_size={own!r} and world_size={ranks!r}"
    if not all(type(number) is int and number > 0 for number in (size, world, own)):
        raise ConfigError(
            f"this position was taken with {before}, it can't go on with {now}: it would mean "
            "another batch"
        )
    whole = size * world
    if whole != own * ranks:
        needed = "a world_size that divides it"
        if whole % ranks == 0:
            needed = f"batch_size={whole // ranks}"
        raise ConfigError(
            f"this position was taken with {before}, a global batch of {whole}, but here is {now}, "
            f"a global batch of {own * ranks}: it would mean another batch; {needed} would be "
            "needed"
        )
