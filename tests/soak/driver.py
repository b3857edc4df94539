"""Runs rounds against one service."""

import heapq
import itertools
import time
from typing import Any

from helpers.digests import digests
from helpers.nursery import Consumer, Nursery
from helpers.serving import Service
from helpers.sharing import Watch, loaders, with_datasets
from helpers.timing import MS, wait_for
from soak.check import complaints
from soak.plan import BATCHES, FEEDS, Event, Round, plan
from tundish_client import TundishError

LEASE_TIMEOUT = 600 * MS
JOIN_TIMEOUT = 1500 * MS

OPTIONS = {
    "TUNDISH_SHARE_WINDOW": str(256 * 1024),
    "TUNDISH_SHARE_LINGER": str(50 * MS),
    "TUNDISH_MEMORY_LIMIT": "32MiB",
    "TUNDISH_LEASE_QUOTA": "16",
    "TUNDISH_LEASE_TIMEOUT": str(LEASE_TIMEOUT),
    "TUNDISH_JOIN_TIMEOUT": str(JOIN_TIMEOUT),
}


class RoundFailed(AssertionError):
    """A round did not go as it must; its text says how, and how to repeat it."""


class Soak:
    """A service and the consumers that come and go.

    Args:
        crashes: how likely the server is killed in a round.
    """

    def __init__(self, crashes: float = 0.2) -> None:
        self._crashes = crashes
        self._ours = loaders(FEEDS)
        self._nursery = Nursery()
        self._service = Service(with_datasets(FEEDS), "feeds", env=OPTIONS)
        self._read: dict[tuple[Any, ...], dict[int, str]] = {}
        self._settle()
        self._held = self._watch.held()  # of the first server, which nobody has used yet

    def close(self) -> None:
        self._watch.close()
        self._nursery.close()
        self._service.cleanup()

    def __enter__(self) -> "Soak":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _settle(self) -> None:
        """Has all workers of a server begin, and waits until nobody reads."""
        self._watch = Watch(self._service)
        for feed in self._ours:
            assert sum(1 for _ in self._watch.client.epoch(0, feed=feed)) == BATCHES
        self._watch.wait_until_idle()

    def expected(self, epoch: int, job: dict[str, Any]) -> dict[int, str]:
        """The digests of all batches of an epoch that a consumer asks for, from its front."""
        feed = "python" if job["feed"] == "any" else job["feed"]
        shard = {key: job[key] for key in ("rank", "world_size", "uneven") if key in job}
        key = (feed, epoch, *shard.values())
        if key not in self._read:
            self._read = {} if len(self._read) > 100 else self._read
            self._read[key] = digests(self._ours[feed].epoch(epoch, **shard))
        return self._read[key]

    def round(self, seed: int) -> Round:
        """Runs the round of a seed.

        Raises:
            RoundFailed: It did not go as it must.
        """
        going = plan(seed, crashes=self._crashes, long_stop=2 * LEASE_TIMEOUT)
        consumers: dict[int, Consumer] = {}
        try:
            self._run(going, consumers)
            for consumer in consumers.values():
                consumer.done(20000 * MS)
            expected = [self.expected(going.epoch, role.job) for role in going.roles]
            found = complaints(going, consumers, expected)
            found += self._left_behind()
        except (AssertionError, OSError, TundishError) as error:
            found = [f"{type(error).__name__}: {error}"]
        if found:
            raise RoundFailed(self._report(going, consumers, found))
        return going

    def _run(self, going: Round, consumers: dict[int, Consumer]) -> None:
        events = list(going.events)
        heapq.heapify(events)
        begun = time.monotonic()
        while events:
            event = heapq.heappop(events)
            time.sleep(max(0.0, event.at - (time.monotonic() - begun)))
            self._happen(going, event, consumers)
            if event.what == "stop":
                again = time.monotonic() - begun + event.seconds
                heapq.heappush(events, Event(again, "go on", event.who))

    def _happen(self, going: Round, event: Event, consumers: dict[int, Consumer]) -> None:
        if event.what == "crash":
            going.crashed = time.monotonic()
            self._crash()
        elif event.what == "start":
            job = going.roles[event.who].job
            start = self._nursery.start
            consumers[event.who] = start(self._service.socket, going.epoch, **job)
        else:
            consumer = consumers[event.who]
            {"kill": consumer.kill, "stop": consumer.stop, "go on": consumer.go_on}[event.what]()

    def _crash(self) -> None:
        self._watch.close()
        self._service.process.kill()
        self._service.process.wait()
        self._service.restart()
        self._settle_later = True

    _settle_later = False

    def _left_behind(self) -> list[str]:
        """What the server still has although nobody reads any more."""
        if self._service.process.poll() is not None:
            return [f"the server ended with {self._service.process.returncode}"]
        if self._settle_later:
            self._settle_later = False
            self._settle()
        found = []
        try:
            self._watch.wait_until_idle()
            wait_for(lambda: self._watch.held() <= self._held, "descriptors and threads")
        except AssertionError as error:
            stats = self._watch.stats()
            held = {
                key: stats[key] for key in ("connections", "streams", "runs", "slots", "memory")
            }
            found.append(f"{error}: {held}; {self._watch.held()}, before {self._held}")
        if "Traceback" in self._service.output:
            found.append("the server's log has a traceback")
        return found

    def _report(self, going: Round, consumers: dict[int, Consumer], found: list[str]) -> str:
        lines = [*found, str(going)]
        for who, consumer in sorted(consumers.items()):
            lines.append(f"  consumer {who} had {_ranges(consumer.batches)}, {consumer.ended}")
        lines += ["the server's log ends with", *self._service.output.splitlines()[-30:]]
        lines.append(f"again: make soak SEED={going.seed} ROUNDS=1 STALL=0")
        return "\n".join(lines)


def _ranges(numbers: list[int]) -> str:
    """Numbers in their order, those that follow each other as first-last."""
    parts = []
    for _, group in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}")
    return " ".join(parts) or "nothing"
