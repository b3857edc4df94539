"""From a state, as a checkpoint keeps it, to the stream that goes on there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from .config import EpochOptions, check_int, check_ranges
from .errors import ConfigError

__all__ = ["resume_any", "resume_options"]

_PLAN = ("feed", "epoch", "fingerprint", "batch_size")
_OF_A_POSITION = (*_PLAN, "batch", "rank", "world_size", "uneven")
_OF_A_SPLIT = (*_PLAN, "split", "acked")
_COUNTED_IN = frozenset(("seed", "samples", "order", "drop_last"))


def resume_any(
    state: Mapping[str, Any],
    *,
    feed: str | None,
    rank: int | None,
    world_size: int | None,
    uneven: str | None,
    group: str | None,
    group_size: int | None,
    on_lag: str,
    prefetch: int | None,
    copy: bool,
) -> EpochOptions:
    """Returns what a stream of a client has to ask for to go on at `state`; see `Client.resume`.

    Raises:
        ConfigError: The state is none, or doesn't go with the other arguments.
    """
    shared: dict[str, Any] = {"group": group, "group_size": group_size, "on_lag": on_lag}
    shard: dict[str, Any] = {"rank": rank, "world_size": world_size, "uneven": uneven}
    if not isinstance(state, Mapping) or state.get("split") is None:
        options = resume_options(state, feed=feed, **shard, prefetch=prefetch, copy=copy)
        return replace(options, **shared)
    epoch = _number(state, "epoch")
    if "acked" not in state:
        _misses(state, "acked")
    _check_keys(state, _OF_A_SPLIT)
    given = {name: value for name, value in shard.items() if value is not None}
    return EpochOptions(
        epoch=epoch,
        feed=state.get("feed") if feed is None else feed,
        split=state["split"],
        acked=check_ranges("state['acked']", state["acked"]),
        batch_size=state.get("batch_size"),
        fingerprint=_fingerprint(state) or None,
        prefetch=prefetch,
        copy=copy,
        **given,
        **shared,
    )


def resume_options(
    state: Mapping[str, Any],
    *,
    feed: str | None,
    rank: int | None,
    world_size: int | None,
    uneven: str | None,
    prefetch: int | None,
    copy: bool,
) -> EpochOptions:
    """The same for a position, also of an epoch in-process.

    Raises:
        ConfigError: The state is none, or doesn't go with the other arguments.
    """
    if not isinstance(state, Mapping):
        raise ConfigError(f"state must be what state_dict() returned, got {state!r:.100}")
    if state.get("split") is not None:
        raise ConfigError(
            f"state is of a stream with split={state['split']!r:.100}, which has no position: "
            "only client.resume(state) goes on with it"
        )
    epoch, batch = (_number(state, name) for name in ("epoch", "batch"))
    _check_keys(state, _OF_A_POSITION)
    fingerprint = _fingerprint(state)
    whole = fingerprint.get("world_size", 1)
    held = check_int("state['world_size']", state.get("world_size", whole), 1)
    world = held if world_size is None else check_int("world_size", world_size, 1)
    return EpochOptions(
        epoch=epoch,
        feed=state.get("feed") if feed is None else feed,
        start=batch,
        rank=_rank(state, rank, held, world),
        world_size=world,
        uneven=state.get("uneven", "pad") if uneven is None else uneven,
        batch_size=_batch_size(state, fingerprint, held, world),
        fingerprint=fingerprint or None,
        prefetch=prefetch,
        copy=copy,
    )


def _check_keys(state: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuses a key that nobody would heed.

    Raises:
        ConfigError: There is one; the message names it.
    """
    for name, value in state.items():
        if name in known:
            continue
        way_out = "leave it out"
        if name in _COUNTED_IN:
            way_out += (
                f": the {name} that a position was counted in stands in state['fingerprint'], and "
                "that of a feed is its own"
            )
        elif name == "batch":
            way_out += (
                ": a split has no position, its streams get what is not in acked; for another "
                "epoch give acked=[]"
            )
        raise ConfigError(
            f"state[{name!r}]={value!r:.100} is nothing that state_dict() returned, which has "
            f"{', '.join(known)}: {way_out}"
        )


def _misses(state: Mapping[str, Any], name: str) -> NoReturn:
    least = "epoch and batch" if state.get("split") is None else "epoch and acked"
    raise ConfigError(
        f"state must be what state_dict() returned, with {least}; {name!r} is missing "
        f"in {dict(state)!r:.200}"
    )


def _number(state: Mapping[str, Any], name: str) -> int:
    if name not in state:
        _misses(state, name)
    return check_int(f"state[{name!r}]", state[name], 0)


def _fingerprint(state: Mapping[str, Any]) -> dict[str, Any]:
    fingerprint = state.get("fingerprint")
    # Empty is that of a stream which had not begun when its state was taken.
    if not isinstance(fingerprint, Mapping):
        raise ConfigError(
            f"state['fingerprint'] must be the dict that state_dict() gave, got "
            f"{fingerprint!r:.100}; without it nothing tells whether the position means the same "
            f"batch here: use epoch(e, start=batch) if you know that it does"
        )
    check_int("state['rank']", state.get("rank", 0), 0)
    for name, value in fingerprint.items():
        plain = value is None or isinstance(value, bool | str | float)
        if not plain and not (isinstance(value, int) and -(2**63) <= value < 2**64):
            raise ConfigError(
                f"state['fingerprint'][{name!r}] is {value!r:.100}, which no state_dict() returned"
            )
    return dict(fingerprint)


def _rank(state: Mapping[str, Any], rank: int | None, held: int, world: int) -> int:
    """The rank asked for; that of the state is another shard where the world differs."""
    if rank is not None:
        return rank
    kept = check_int("state['rank']", state.get("rank", 0), 0)
    if world == held and (held == 1 or "rank" in state):
        return kept
    if world == 1:
        return 0
    if "rank" not in state:
        raise ConfigError(
            f"rank must be given with world_size={world}: this state is of one of {held} ranks, "
            "and does not say which"
        )
    raise ConfigError(
        f"rank must be given with world_size={world}: this state is of rank {kept} of {held}"
    )


def _batch_size(
    state: Mapping[str, Any], fingerprint: Mapping[str, Any], held: int, world: int
) -> int | None:
    """The batch size to ask for; None leaves it to the feed, which the server compares.

    Batch i of every rank together is global batch i, so a position holds on another number of
    ranks if their batches together are as large as before.
    """
    own = state.get("batch_size")
    size = fingerprint.get("batch_size", own)  # its own, where it has not begun
    if own is not None:
        check_int("state['batch_size']", own, 1)
    before = check_int("state['fingerprint']['world_size']", fingerprint.get("world_size", held), 1)
    if before != held and (own is None or size is None or own * held != size * before):
        raise ConfigError(
            f"state['world_size']={held}, but state['fingerprint']['world_size']={before}: that "
            "is no state of one stream; to go on with another number of ranks, leave the state as "
            "it is and give world_size"
        )
    if world == before:
        return own
    if size is None:
        raise ConfigError(
            f"world_size={world} needs a batch size to divide, and this state has none: resume "
            f"with world_size={before}, as it began"
        )
    whole = check_int("state['fingerprint']['batch_size']", size, 1) * before
    if whole % world:
        raise ConfigError(
            f"world_size={world} does not divide the global batch of {whole} samples ({size} on "
            f"each of {before} ranks) that this position counts: resume with a world_size that does"
        )
    return whole // world
