"""One stream as the client sees it: its cells, its position, its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ..config import EpochOptions
from ..errors import ConfigError, ConnectionLost, ProtocolError, TundishError
from .info import BatchInfo, Position
from .quick import Plan
from .resolving import resolve

__all__ = ["Cell", "StreamState", "read_count", "read_indices"]

COUNTS = ("batches", "samples", "padded", "dropped", "skipped", "redelivered", "errors")


class Cell:
    """A batch or the error in its place, from its arrival until it is handed to the user."""

    __slots__ = (
        "batch", "body", "built", "error", "info", "nbytes", "samples", "skipped", "times",
        "tree", "value",
    )  # fmt: skip

    def __init__(self, batch: int, nbytes: int) -> None:
        self.batch = batch
        self.nbytes = nbytes
        self.error: Exception | None = None
        self.tree: Any = None
        self.samples: Any = None
        self.skipped: Sequence[int] = ()
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
            samples = samples.copy() if type(samples) is np.ndarray else None
        samples = [] if samples is None else samples
        self.info = BatchInfo(epoch, self.batch, samples, self.times, self.skipped)
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
        self.first = self.next_batch = options.start
        self.started = False
        self.total: int | None = None  # batches of the whole epoch, where the server knows
        self.exact = True  # whether `total` is certain
        self.in_order: bool | None = None  # until the server has said
        self.fingerprint: dict[str, Any] = {}
        self.announced = dict.fromkeys(COUNTS, 0)
        self.taken = dict.fromkeys(COUNTS, 0)  # what START could not tell, as far as handed out
        self.true: Mapping[str, int] | None = None  # END's
        self.info: BatchInfo | None = None
        self.cells: deque[Cell] = deque()
        self.handed: Cell | None = None
        self.reader: int | None = None  # the thread that is reading
        self.owed: tuple[int, int] | None = None  # batch and bytes to be acknowledged next
        self.received = self.received_errors = self.received_skipped = 0
        self.seen: set[int] = set()
        self.ended = False
        self.final = False  # the consumer has been told about the end
        self.closed = False
        self.failure: Exception | None = None

    @property
    def position(self) -> Position:
        """The next batch.

        Raises:
            TundishError: The feed delivers out of order; there is no position.
        """
        if self.in_order is False:
            raise TundishError(
                f"feed {self.feed!r} delivers batches as they are ready (in_order=False): "
                "there is no position to resume from"
            )
        return Position(self.options.epoch, self.next_batch)

    @property
    def over(self) -> bool:
        """Whether the server will send nothing more."""
        return self.ended or self.failure is not None

    @property
    def counts(self) -> Mapping[str, int]:
        """See `Stream.counts`."""
        if self.true is not None and (not self.cells or self.cells[-1] is self.handed):
            return self.true
        counts = {**self.announced, "skipped": self.taken["skipped"]}
        counts["errors"] = self.taken["errors"]
        if self.started and self.total is None:
            counts |= {name: self.taken[name] for name in ("batches", "samples")}
        return MappingProxyType(counts)

    # Called by the connection

    def start(self, header: dict[str, Any]) -> None:
        """Takes in START.

        Raises:
            ConfigError: The stream was to begin beyond the end of the epoch.
            ProtocolError: A field can't be what it is.
        """
        total = None if header["batches"] is None else read_count(header, "batches")
        first = read_count(header, "start") if "start" in header else self.options.start
        self.feed = str(header["feed"])
        self.fingerprint = dict(header.get("fingerprint") or {})
        self.in_order = header.get("in_order") is not False
        self.exact = total is not None and header.get("exact") is not False
        if first > self.options.start:
            raise ProtocolError(f"a stream from {self.options.start} on starts at {first}")
        if total is not None and self.exact and first > total:
            raise ConfigError(
                f"start={first} is beyond the end of epoch {self.options.epoch} "
                f"of feed {self.feed!r}, which has {total} batches"
            )
        self.first = self.next_batch = first
        self.total = total
        self.announced = {name: int(header.get(name) or 0) for name in COUNTS}
        self.announced["batches"] = self._due()
        self.started = True

    def _due(self) -> int:
        """The batches from the first to the end, as far as START could tell."""
        return 0 if self.total is None else max(0, self.total - self.first)

    def add(self, cell: Cell, *, failed: bool) -> None:
        """Takes in a cell.

        Raises:
            ProtocolError: It is out of place.
        """
        if not self.started:
            raise ProtocolError(f"batch {cell.batch} of stream {self.number} came before START")
        if self.in_order:
            if cell.batch != self.first + self.received:
                raise ProtocolError(
                    f"batch {cell.batch} of stream {self.number} came "
                    f"instead of batch {self.first + self.received}"
                )
        elif cell.batch < self.first or cell.batch in self.seen:
            raise ProtocolError(
                f"batch {cell.batch} of stream {self.number} came twice, or is before {self.first}"
            )
        else:
            self.seen.add(cell.batch)
        if self.exact and self.total is not None and cell.batch >= self.total:
            raise ProtocolError(
                f"batch {cell.batch} of stream {self.number} is not one of "
                f"{self.first} to {self.total - 1}"
            )
        self.received += 1
        self.received_errors += failed
        self.received_skipped += len(cell.skipped)
        self.cells.append(cell)

    def end(self, header: dict[str, Any]) -> None:
        """Takes in END and compares its counts with what came.

        Raises:
            ProtocolError: They differ.
        """
        counts = {name: int(header["counts"].get(name, 0)) for name in COUNTS}
        if not self.started:
            raise ProtocolError(f"END of stream {self.number} came before START")
        epoch = f"epoch {self.options.epoch} of feed {self.feed!r}"
        said = [("END", counts["batches"])] + ([("START", self._due())] if self.exact else [])
        for what, number in said:
            if number != self.received:
                raise ProtocolError(
                    f"{epoch} ended after {self.received} batches, but {what} says {number}"
                )
        for name, number, what in (
            ("errors", self.received_errors, "failed batches"),
            ("skipped", self.received_skipped, "skipped samples"),
        ):
            if counts[name] != number:
                raise ProtocolError(f"{epoch} had {number} {what}, but END says {counts[name]}")
        self.true = MappingProxyType(counts)
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
            failed = cell.error is not None
            cell.build(self.options.epoch)
            if failed or cell.skipped or self.total is None:
                self._note(cell, failed)
        return cell

    def _note(self, cell: Cell, failed: bool) -> None:
        """Counts what START could not know about a cell that is about to be handed out."""
        taken = self.taken
        taken["batches"] += 1
        taken["errors"] += failed
        taken["skipped"] += len(cell.skipped)
        if cell.info is not None and not failed:
            taken["samples"] += len(cell.info.indices)

    def is_started(self) -> bool | None:
        """Returns True once START has come, None before.

        Raises:
            Exception: The stream failed before it started.
        """
        if self.started:
            return True
        if self.failure is not None:
            raise self.failed()
        return None

    def length(self) -> int:
        """Returns the number of batches of the whole stream, which has started.

        Raises:
            TypeError: It is not known beforehand.
        """
        if self.total is None:
            raise TypeError(
                f"the length of epoch {self.options.epoch} of feed {self.feed!r} is not known "
                "before its end: its dataset or sampler has no __len__"
            )
        return self._due()

    def failed(self) -> Exception:
        """Returns the error to raise; a lost connection says where to resume."""
        failure = self.failure
        assert failure is not None
        if isinstance(failure, ConnectionLost):
            position = None if self.in_order is False else self.position
            lost = ConnectionLost(self._lost(failure), position)
            lost.__cause__ = failure.__cause__
            return lost
        return failure.with_traceback(None)

    def _lost(self, failure: ConnectionLost) -> str:
        if self.in_order is False:
            return f"{failure}; in_order=False: there is no position to resume from"
        epoch, batch = self.position
        return (
            f"{failure}; resume on a new client with epoch({epoch}, start={batch}), "
            "or with resume(stream.state_dict()), which also compares seed and plan"
        )

    def state(self) -> dict[str, Any]:
        """The position as plain data; see `Stream.state_dict`."""
        epoch, batch = self.position
        asked = self.options
        state: dict[str, Any] = {
            "feed": self.feed,
            "epoch": epoch,
            "batch": batch,
            "rank": asked.rank,
            "world_size": asked.world_size,
            "uneven": asked.uneven,
            "fingerprint": dict(self.fingerprint or asked.fingerprint or {}),
        }
        if asked.batch_size is not None:
            state["batch_size"] = asked.batch_size
        return state


def read_count(header: dict[str, Any], name: str) -> int:
    """Reads a number of 0 or more from a header.

    Raises:
        ProtocolError: It is something else.
    """
    value = header[name]
    if type(value) is not int or value < 0:
        raise ProtocolError(f"{name} must be a count, got {value!r:.80}")
    return value


def read_indices(header: dict[str, Any], name: str) -> list[int]:
    """Reads a list of sample indices from a header.

    Raises:
        ProtocolError: It is something else.
    """
    value = header[name]
    if type(value) is not list or not all(type(index) is int for index in value):
        raise ProtocolError(f"{name} must be a list of sample indices, got {value!r:.80}")
    return value
