"""What happens in one round: a pure function of its seed."""

import random
from dataclasses import dataclass, field
from typing import Any

BATCHES = 60
"""Batches in an epoch of each feed."""

SAMPLES = 4 * BATCHES - 1

FEEDS = f"""
    options = {{"batch_size": 4, "shuffle": True, "seed": 11}}
    feeds = {{
        "python": DataLoader(Counted({SAMPLES}, 3000, 0.001), num_workers=3, **options),
        "native": DataLoader(
            ArrayDataset(
                i=np.arange({SAMPLES}), x=np.arange({SAMPLES} * 700).reshape({SAMPLES}, 700)
            ),
            num_workers=2,
            **options,
        ),
        "any": DataLoader(
            Counted({SAMPLES}, 3000, 0.001), num_workers=3, in_order=False, **options
        ),
        "stream": DataLoader(Streamed({SAMPLES}, 3000, 0.001), 4, num_workers=2),
    }}
"""

KINDS = ("shared", "shared", "group", "wait", "split", "split", "ranks", "stream", "any")


@dataclass
class Role:
    """One consumer of a round.

    Attributes:
        cast: with whom it reads; an index of `Round.casts`.
        job: what it is told (see `helpers.nursery`).
        fates: what is done to it: "kill", "stop".
    """

    cast: int
    job: dict[str, Any]
    fates: set[str] = field(default_factory=set)


@dataclass
class Cast:
    """Consumers of one epoch of one feed.

    Attributes:
        kind: one of `KINDS`.
        feed: the feed.
    """

    kind: str
    feed: str


@dataclass(order=True)
class Event:
    """Something that happens `at` so many seconds after the round's begin.

    Attributes:
        what: "start", "kill", "stop" or "go on" of a consumer; "crash" of the server.
        who: the consumer, an index of `Round.roles`.
        seconds: how long a "stop" lasts.
    """

    at: float
    what: str
    who: int = -1
    seconds: float = 0.0


@dataclass
class Round:
    """One round.

    Attributes:
        seed: what it was made of.
        epoch: the epoch that is read.
        casts, roles, events: what happens.
        crashes: whether the server is killed.
        crashed: when that was (`time.monotonic`).
    """

    seed: int
    epoch: int
    casts: list[Cast]
    roles: list[Role]
    events: list[Event]
    crashes: bool
    crashed: float | None = None

    def __str__(self) -> str:
        lines = [f"round {self.seed}, epoch {self.epoch}"]
        lines += [f"  cast {k}: {cast.kind} of {cast.feed}" for k, cast in enumerate(self.casts)]
        lines += [f"  consumer {k}: {role}" for k, role in enumerate(self.roles)]
        lines += [f"  {event}" for event in self.events]
        return "\n".join(lines)


def plan(seed: int, *, crashes: float, long_stop: float) -> Round:
    """The round of a seed.

    Args:
        seed: the seed.
        crashes: how likely the server is killed.
        long_stop: seconds for which a consumer is stopped where it is to lose its leases.
    """
    draw = random.Random(seed)
    casts: list[Cast] = []
    roles: list[Role] = []
    for number in range(draw.randint(1, 3)):
        kind = draw.choice(KINDS)
        feed = kind if kind in {"stream", "any"} else draw.choice(("python", "python", "native"))
        casts.append(Cast(kind, feed))
        jobs = _jobs(draw, kind, f"{kind}-{seed}-{number}")
        roles += [Role(number, {"feed": feed, **job}) for job in jobs]
    events = [event for who in range(len(roles)) for event in _life(draw, roles, who, long_stop)]
    crash = draw.random() < crashes
    if crash:
        events.append(Event(draw.uniform(0.02, 0.4), "crash"))
    return Round(seed, seed % 1000, casts, roles, sorted(events), crash)


def _jobs(draw: random.Random, kind: str, name: str) -> list[dict[str, Any]]:
    """What each consumer of a cast asks for."""
    n = draw.randint(1, 4)
    if kind == "ranks":
        world, uneven = draw.randint(2, 4), draw.choice(("pad", "drop", "keep"))
        return [{"rank": k, "world_size": world, "uneven": uneven} for k in range(world)]
    if kind == "split":
        return [{"split": name} for _ in range(max(2, n))]
    if kind in {"group", "wait"}:
        group = {"group": name, "group_size": n, "on_lag": "wait" if kind == "wait" else "detach"}
        return [dict(group) for _ in range(n)]
    starts = kind == "shared"
    return [
        {"start": draw.randint(1, BATCHES) if starts and draw.random() < 0.2 else 0}
        for _ in range(n)
    ]


def _life(draw: random.Random, roles: list[Role], who: int, long_stop: float) -> list[Event]:
    """How one consumer behaves, and what is done to it."""
    role = roles[who]
    job = role.job
    job |= {
        "asynchronous": draw.random() < 0.5,
        "client": {"shared_memory": draw.random() < 0.7, "reconnect_timeout": 30},
        "pause": draw.choice((0.0, 0.0, 0.001, 0.004)),
        "prefetch": draw.choice((1, 2, 2, 4, 16)),
        "hold": draw.random() < 0.2,
    }
    chance = draw.random()
    if chance < 0.15:
        job["leave"] = draw.randint(1, 30)
    elif chance < 0.25:
        job["fail"] = draw.randint(1, 30)
    elif chance < 0.35:
        job["pauses"] = {str(draw.randint(1, 40)): draw.uniform(0.05, 0.3)}
    begin = draw.choice((0.0, 0.0, draw.uniform(0.0, 0.2)))
    events = [Event(begin, "start", who)]
    at = begin + draw.uniform(0.0, 0.3)
    chance = draw.random()
    if chance < 0.25:
        role.fates.add("kill")
        events.append(Event(at, "kill", who))
    elif chance < 0.5:
        role.fates.add("stop")
        seconds = long_stop if draw.random() < 0.2 else draw.uniform(0.02, 0.3)
        events.append(Event(at, "stop", who, seconds))
    return events
