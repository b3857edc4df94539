"""One stream being served: from its run's cells to messages, as far as credits allow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tundish._core import Batch, Failure, Plan
from tundish.arguments import integer
from tundish.hub import Ask
from tundish.pace import Pace
from tundish.positions import compare
from tundish.production import Production
from tundish.splitting import Split
from tundish_client._protocol.asking import ServerStream
from tundish_client.errors import ConfigError

if TYPE_CHECKING:
    from tundish.gathering import Gathering
    from tundish.loader import DataLoader
    from tundish.session import Session

__all__ = ["Delivery"]

BURST = 32
"""Cells sent before other streams get their turn."""

_FOR_LOADER, _FOR_CONSUMER, _OPENING = 0, 1, 2


class Delivery:
    """A stream, and what of its production has been sent to it.

    Attributes:
        stream: The stream as the protocol sees it: credits, counts, position.
        ask: What it shares with streams that ask for the same.
        production: Who makes its batches; may change when it falls behind or meets another.
        next: The position of the next cell to be sent.
        had: Batches that were sent, where they come as they are ready.
        waited_for: Whether streams of the same production wait for this one when it lags.
        detached: How often it has fallen behind so far that it went on by itself.
        held_up: Seconds for which others of its production have waited for it.
        pace: How fast cells are sent.
        over: Nothing more will be sent.
        total: Cells from `start` to the end of the epoch, None where that is not known.
        waits: Seconds the consumer waited for the loader, and the loader for the consumer.
    """

    def __init__(
        self, session: Session, stream: ServerStream, feed: str, loader: DataLoader
    ) -> None:
        """Joins a production, or begins one, and sends START.

        Raises:
            ConfigError: The epoch can't be served as asked.
            BaseException: What `len(dataset)` raised.
        """
        self.stream = stream
        self.feed = feed
        self._session = session
        self._loader = loader
        seed = _adopted_seed(stream.fingerprint, loader)
        size = stream.batch_size
        self._fingerprint = loader._fingerprint(stream.world_size, size, seed)
        compare(stream.fingerprint, self._fingerprint)
        shard = (stream.rank, stream.world_size, stream.uneven)
        plan = loader._plan(stream.epoch, *shard, batch_size=size, seed=seed)
        self._exact = isinstance(plan, Plan)
        _settle_start(stream, plan.batches if self._exact else None, loader, self._fingerprint)
        self.total = None if plan.batches is None else max(0, plan.batches - stream.start)
        # A len() may promise what it can't keep, and of a split epoch others have their part.
        if stream.split is not None:
            self._exact = False
        self._due = self.total if self._exact else None
        self._skips = loader.on_error == "skip"
        self._plan = plan
        self.over = False
        self._again = False
        self.waits = [0.0, 0.0, 0.0]
        self._waiting = _OPENING
        self._since = time.perf_counter()
        self.pace = Pace()
        self.next = stream.start
        self.had: set[int] = set()
        self.detached = 0
        self.held_up = 0.0
        # What is read from the front can't be read again from the middle.
        self.waited_for = stream.on_lag == "wait" or not isinstance(plan, Plan)
        self.redelivered = 0
        self.production: Production | Split | None = None
        self.gathering: Gathering | None = None
        self.ask = Ask(
            feed, stream.epoch, *shard, size, seed, plan.batches, plan.samples, stream.group,
            stream.split, loader, plan,
        )  # fmt: skip
        self._begun = False
        session.server.hub.join(self)

    @property
    def name(self) -> str:
        """The consumer, for logs."""
        return f"{self._session.name}, stream {self._session.number}.{self.stream.number}"

    def begin(self) -> None:
        """Its production is there: sends START."""
        self._begun = True
        # Waiting for its group is no waiting for the loader.
        self._since, self.pace = time.perf_counter(), Pace()
        plan = self._plan
        header = {
            "feed": self.feed,
            "batches": plan.batches,
            "samples": plan.samples,
            "padded": plan.padded,
            "dropped": plan.dropped,
            "fingerprint": self._fingerprint,
        }
        if not self._loader.in_order or self.stream.split is not None:
            header["in_order"] = False
        if not self._exact:
            header["exact"] = False
        self._session.conn.start_stream(self.stream, header)
        self._session.began(self)

    def move(self) -> None:
        """Sends what is ready, as far as credits and the socket allow, and writes it out."""
        session = self._session
        try:
            self._fill()
        except Exception as error:
            session.broken(error)
            return
        session.flush()

    def _fill(self) -> None:
        """Queues messages; the caller writes them."""
        stream, session = self.stream, self._session
        self._heed_acks()
        if not self._begun:
            return
        waiting = _FOR_CONSUMER
        for _ in range(BURST):
            if self.over:
                return
            if stream.sent == self._due:
                self._end()
                return
            if not stream.ready or session.congested:
                break
            production = self.production
            cell = None if production is None else production.take(self)
            if cell is None:
                waiting = _FOR_LOADER
                break
            self._send(cell)
        else:
            self._turn()
        self._wait(waiting)

    def _heed_acks(self) -> None:
        """Tells a split production what has been consumed."""
        acks = self.stream.acks
        if acks:
            batches, acks[:] = list(acks), []
            if isinstance(self.production, Split):
                self.production.acknowledged(self, batches)

    def _turn(self) -> None:
        """Goes on after the others had their turn."""
        if not self._again:
            self._again = True
            self._session.loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._again = False
        self.move()

    def _send(self, cell: Any) -> None:
        conn, stream = self._session.conn, self.stream
        if type(cell) is Batch:
            samples = cell.count
            skipped = cell.skipped if self._skips else ()
            try:
                self._session.send_batch(stream, cell, samples, skipped)
            except ValueError as error:  # over the client's limits
                conn.batch_error(stream, cell.batch, error, cell.samples)
        elif type(cell) is Failure:
            conn.batch_error(stream, cell.batch, cell.error, cell.samples)
        else:
            self._run_ended()
            return
        self.next += 1
        if not self._loader.in_order:
            self.had.add(cell.batch)
        self._session.server.hub.advanced(self)

    def _run_ended(self) -> None:
        sent = self.stream.sent
        if self._due in {None, sent}:
            self._end()
        else:
            self.fail(RuntimeError(f"the run ended after {sent} of {self._due} batches"))

    def _end(self) -> None:
        stream, plan = self.stream, self._plan
        self.close("ended")
        self._session.conn.end_stream(
            stream,
            {
                "batches": stream.sent,
                "samples": stream.samples,
                "padded": plan.padded,
                "dropped": plan.dropped,
                "skipped": stream.skipped,
                "redelivered": self.redelivered,
                "errors": stream.errors,
            },
        )

    def revoke(self, batches: list[int]) -> None:
        """Tells the client that these batches of a split epoch are somebody else's now."""
        self._session.conn.revoke(self.stream, batches)
        self._session.flush()

    def flush(self) -> None:
        """Writes out what was queued for it."""
        self._session.flush()

    def fail(self, error: BaseException) -> None:
        """Ends the stream with an error."""
        self.close(f"failed with {type(error).__name__}: {error}")
        self._session.conn.stream_error(self.stream, error)

    def close(self, how: str = "was given up") -> None:
        """Leaves the production, which stops with its last stream; `how` is for the log."""
        if not self.over:
            self._heed_acks()
            self._session.ended(self, how)
            self.over = True
            if self.gathering is not None:
                self.gathering.leave(self)
            self._session.deliveries.pop(self.stream.number, None)
            production, self.production = self.production, None
            if production is not None:
                production.leave(self)

    def _wait(self, waiting: int) -> None:
        if waiting != self._waiting:
            now = time.perf_counter()
            self.waits[self._waiting] += now - self._since
            self._since, self._waiting = now, waiting

    def stats(self) -> dict[str, Any]:
        """This stream's counters, for STATS."""
        now = time.perf_counter()
        waits = list(self.waits)
        waits[self._waiting] += now - self._since
        stream, production = self.stream, self.production
        ready = production.high - self.next if isinstance(production, Production) else 0
        return {
            "stream": stream.number,
            "run": None if production is None else production.number,
            "feed": self.feed,
            "epoch": stream.epoch,
            "start": stream.start,
            "rank": stream.rank,
            "world_size": stream.world_size,
            "group": stream.group,
            "group_size": stream.group_size,
            "joined": None if self.gathering is None else len(self.gathering.members),
            "split": stream.split,
            "on_lag": stream.on_lag,
            "total": self.total,
            "position": self.next,
            "delivered": stream.sent,
            "samples": stream.samples,
            "acked": stream.acked,
            "errors": stream.errors,
            "skipped": stream.skipped,
            "redelivered": self.redelivered,
            "bytes": stream.sent_bytes,
            "rate": self.pace.rate(stream.sent),
            "lag": production.held_by(self)
            if isinstance(production, Split)
            else max(0, stream.start + stream.sent - (stream.acked + 1)),
            "behind": ready,
            "detached": self.detached,
            "waited_for": self.held_up,
            "slots": self._session.slots_of(stream),
            "credits": {"batches": stream.batches, "bytes": stream.bytes},
            "consumer_wait": waits[_FOR_LOADER] + waits[_OPENING] if self._begun else 0.0,
            "loader_wait": waits[_FOR_CONSUMER],
        }


def _adopted_seed(theirs: dict[str, Any] | None, loader: DataLoader) -> int | None:
    """The seed that a returning client brings to a feed that drew its own; None elsewhere."""
    if not theirs or "seed" not in theirs or not loader._seed_drawn:
        return None
    seed = integer("seed", theirs["seed"], 0, 2**64 - 1)
    return None if seed == loader.seed else seed  # so that it may share with those that bring none


def _settle_start(
    stream: ServerStream, batches: int | None, loader: DataLoader, fingerprint: dict[str, Any]
) -> None:
    """Refuses a start that is none; `batches` is None where the end is not certain."""
    if stream.start and not loader.in_order:
        raise ConfigError(
            f"start={stream.start} needs a feed with in_order=True: batches as they are ready have "
            "no position to resume from"
        )
    if batches is not None and stream.done.last >= batches:
        raise ConfigError(
            f"acked reaches batch {stream.done.last}, but the epoch has {batches} batches: it is "
            "of another feed, or of other options"
        )
    if batches is None or stream.start <= batches:
        return
    theirs = stream.fingerprint or {}
    world = fingerprint["world_size"]
    if stream.start == batches + 1 and theirs.get("world_size", world) != world:
        # The epoch was at its end on another number of ranks, where a short last batch had more
        # of its samples padded or kept.
        stream.start = batches
        stream.acked = batches - 1
        return
    raise ConfigError(f"start={stream.start} is beyond the epoch's end, it has {batches} batches")
