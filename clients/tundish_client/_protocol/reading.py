"""One stream as the client sees it: its cells, its position, its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..config import EpochOptions
from ..errors import ConfigError, ConnectionLost, ProtocolError, TundishError
from .quick import Plan
from .resolving import resolve

__all__ = ["BatchInfo", "BatchTimes", "Cell", "Position", "StreamState"]

COUNTS = ("batches", "samples", "padded", "dropped", "skipped", "redelivered", "errors")


class Position(NamedTuple):
    """Where a stream stands: two integers are all that resuming needs.

    Attributes:
        epoch: The epoch.
        batch: The batch that comes next.
    """

    epoch: int
    batch: int


class BatchTimes(NamedTuple):
    """When a batch was made, in nanoseconds of the server's monotonic clock (CLOCK_MONOTONIC).

    Attributes:
        claimed_ns: A worker took it on.
        ready_ns: It was complete.
    """

    claimed_ns: int
    ready_ns: int


class BatchInfo:
    """What is known about a batch besides its value.

    Attributes:
        epoch: The epoch.
        batch: Its number in the epoch (of this rank).
    """

    __slots__ = ("_samples", "_times", "batch", "epoch")

    def __init__(self, epoch: int, batch: int, samples: Any, times: Sequence[int]) -> None:
        self.epoch = epoch
        self.batch = batch
        self._times = times
        self._samples = samples

    @property
    def times(self) -> BatchTimes:
        """When it was made."""
        return BatchTimes(*self._times)

    @property
    def indices(self) -> list[int]:
        """The sample indices of the batch, in its order."""
        if type(self._samples) is not list:
            self._samples = self._samples.tolist()
        return list(self._samples)

    def __repr__(self) -> str:
        return f"BatchInfo(epoch={self.epoch}, batch={self.batch}, indices={self.indices})"


class Cell:
    """A batch or the error in its place, from its arrival until it is handed to the user."""

    __slots__ = (
        "batch", "body", "built", "error", "info", "nbytes", "samples", "times",
        "tree", "value",
    )  # fmt: skip

    def __init__(self, batch: int, nbytes: int) -> None:
        self.batch = batch
        self.nbytes = nbytes
        self.error: Exception | None = None
        self.tree: Any = None
        self.samples: Any = None
        self.times: Sequence[int] = (0, 0)
        self.body: Any = None
        self.built = False
        self.value: Any = None
        self.info: BatchInfo | None = None

    def build(self, epoch: int) -> None:
        """Makes the value; what stands in its way becomes the error of this batch alone."""
        samples: Any = self.samples
        try:
            if self.error is not None:
                pass
            elif type(self.tree) is Plan:
                samples, self.value = self.tree.build(self.body)
            else:
                samples = resolve(samples, self.body)
                self.value = resolve(self.tree, self.body)
            if type(samples) is np.ndarray:
                samples = samples.copy()  # `info` must not hold the slot
        except Exception as error:
            self.error = error
            error.add_note(f"while batch {self.batch} of epoch {epoch} was put together")
        self.info = BatchInfo(epoch, self.batch, [] if samples is None else samples, self.times)
        self.body = self.tree = self.samples = None
        self.built = True


class StreamState:
    """The state of one stream; its connection fills it, `take` empties it.

    `take` returns a cell but leaves it at the head of the queue until the next call: the caller
    hands it to the user with plain assignments only (see `streams`), so that a signal never falls
    between the queue and the user.
    """

    def __init__(self, options: EpochOptions) -> None:
        self.number = 0  # until it is asked for
        self.options = options
        self.feed = options.feed
        self.next_batch = options.start
        self.total: int | None = None
        self.in_order: bool | None = None
        self.fingerprint: dict[str, Any] = {}
        self.counts: Mapping[str, int] = MappingProxyType(dict.fromkeys(COUNTS, 0))
        self.info: BatchInfo | None = None
        self.cells: deque[Cell] = deque()
        self.handed: Cell | None = None
        self.reader: int | None = None  # the thread that is reading
        self.owed: tuple[int, int] | None = None  # batch and bytes to be acknowledged next
        self.received = 0
        self.received_errors = 0
        self.seen: set[int] = set()
        self.ended = False
        self.final = False  # the consumer has been told about the end
        self.closed = False
        self.failure: Exception | None = None

    @property
    def position(self) -> Position:
        """The next batch."""
        return Position(self.options.epoch, self.next_batch)

    @property
    def over(self) -> bool:
        """Whether the server will send nothing more."""
        return self.ended or self.failure is not None

    # Called by the connection

    def start(self, header: dict[str, Any]) -> None:
        """Takes in START."""
        total, first = _count(header, "batches"), self.options.start
        self.feed = str(header["feed"])
        self.fingerprint = dict(header.get("fingerprint") or {})
        self.in_order = header.get("in_order")
        if first > total:
            raise ConfigError(
                f"start={first} is beyond the end of epoch {self.options.epoch} "
                f"of feed {self.feed!r}, which has {total} batches"
            )
        self.total = total
        counts = {name: int(header.get(name, 0)) for name in COUNTS}
        counts["batches"] = total - first
        self.counts = MappingProxyType(counts)

    def add(self, cell: Cell, *, failed: bool) -> None:
        """Takes in a cell.

        Raises:
            ProtocolError: It is out of place.
        """
        if self.total is None:
            raise ProtocolError(f"batch {cell.batch} of stream {self.number} came before START")
        if self.in_order and cell.batch != self.options.start + self.received:
            raise ProtocolError(
                f"batch {cell.batch} of stream {self.number} came "
                f"instead of batch {self.options.start + self.received}"
            )
        if not self.options.start <= cell.batch < self.total or cell.batch in self.seen:
            raise ProtocolError(
                f"batch {cell.batch} of stream {self.number} came twice, or is not one of "
                f"{self.options.start} to {self.total - 1}"
            )
        if not self.in_order:
            self.seen.add(cell.batch)
        self.received += 1
        self.received_errors += failed
        self.cells.append(cell)

    def end(self, header: dict[str, Any]) -> None:
        """Takes in END and compares its counts with what came.

        Raises:
            ProtocolError: They differ.
        """
        counts = {name: int(header["counts"].get(name, 0)) for name in COUNTS}
        if self.total is None:
            raise ProtocolError(f"END of stream {self.number} came before START")
        due = self.total - self.options.start
        for what, number in (("END", counts["batches"]), ("START", due)):
            if number != self.received:
                raise ProtocolError(
                    f"epoch {self.options.epoch} of feed {self.feed!r} ended after "
                    f"{self.received} batches, but {what} says {number}"
                )
        if counts["errors"] != self.received_errors:
            raise ProtocolError(
                f"epoch {self.options.epoch} of feed {self.feed!r} had {self.received_errors} "
                f"failed batches, but END says {counts['errors']}"
            )
        self.counts = MappingProxyType(counts)
        self.ended = True
        self.seen.clear()

    def fail(self, error: Exception) -> None:
        """Ends the stream with an error, after the cells that came before it."""
        if not self.over:
            self.failure = error

    def close(self) -> None:
        """Drops what the user has not been given."""
        self.closed = True
        self.handed = None
        self.cells.clear()

    # Called for the user

    def settle(self) -> None:
        """Forgets the cell that was handed over last; it is consumed now."""
        handed = self.handed
        if handed is not None:
            if self.cells and self.cells[0] is handed:
                self.cells.popleft()
            self.owed = (handed.batch, handed.nbytes)
            self.handed = None

    def head(self) -> Cell | None:
        """Returns the next cell, built; None when there is none yet, or never.

        Raises:
            Exception: The stream has failed.
        """
        if self.closed and not self.final:
            raise TundishError("this stream is closed: ask the client for a new one")
        if not self.cells:
            if self.failure is not None:
                raise self.failed()
            return None
        cell = self.cells[0]
        if not cell.built:
            cell.build(self.options.epoch)
        return cell

    def length(self) -> int | None:
        """Returns the number of batches of the whole stream, None before START.

        Raises:
            Exception: The stream failed before it started.
        """
        if self.total is not None:
            return self.total - self.options.start
        if self.failure is not None:
            raise self.failed()
        return None

    def failed(self) -> Exception:
        """Returns the error to raise; a lost connection says where to resume."""
        failure = self.failure
        assert failure is not None
        if isinstance(failure, ConnectionLost):
            lost = ConnectionLost(self._lost(failure), self.position)
            lost.__cause__ = failure.__cause__
            return lost
        return failure.with_traceback(None)

    def _lost(self, failure: ConnectionLost) -> str:
        epoch, batch = self.position
        return f"{failure}; resume on a new client with epoch({epoch}, start={batch})"

    def state(self) -> dict[str, Any]:
        """The position as plain data; see `Stream.state_dict`."""
        if self.in_order is False:
            raise TundishError(
                f"feed {self.feed!r} delivers batches as they are ready (in_order=False): "
                "there is no position to resume from"
            )
        asked = self.options
        return {
            "feed": self.feed,
            "epoch": asked.epoch,
            "batch": self.next_batch,
            "rank": asked.rank,
            "world_size": asked.world_size,
            "uneven": asked.uneven,
            "fingerprint": dict(self.fingerprint),
        }


def _count(header: dict[str, Any], name: str) -> int:
    value = header[name]
    if type(value) is not int or value < 0:
        raise ProtocolError(f"{name} must be a count, got {value!r:.80}")
    return value
