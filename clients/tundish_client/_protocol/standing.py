"""What a stream tells of itself: where it stands, what it has counted, where to go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..config import EpochOptions
from ..errors import ConnectionLost, TundishError
from .cells import Cell
from .info import BatchInfo, Position
from .ranges import Ranges

__all__ = ["COUNTS", "Standing"]

COUNTS = ("batches", "samples", "padded", "dropped", "skipped", "redelivered", "errors")
# Of batches that the server did not fail, but that could not be put together here.
_BROKEN = ("broken", "broken samples")


class Standing:
    """The part of a stream's state that its user may ask for.

    Attributes:
        number: The client's number for it, 0 until it is asked for.
        options: What was asked for.
        feed: Name of the feed, once the server has said it.
        first, next_batch: The first batch of the stream, and the next one.
        total: Batches of the whole epoch; None where the server doesn't know, and for a split.
        exact: Whether `total` is certain.
        in_order: Whether batches come in order; None until the server has said.
        acked: The batches of a split epoch that this stream has acknowledged.
        taken: What START could not tell, as far as consumed.
        true: END's counts.
        cells: What has come and was not consumed yet.
        handed: The cell in the user's hands.
        failure: Why the stream is over, if it failed.
        lasting: Whether its client is still of use then.
    """

    def __init__(self, options: EpochOptions) -> None:
        self.number = 0
        self.options = options
        self.feed = options.feed
        self.first = self.next_batch = options.start
        self.started = False
        self.total: int | None = None
        self.exact = True
        self.in_order: bool | None = None
        self.fingerprint: dict[str, Any] = {}
        self.acked = Ranges(options.acked)
        self.announced = dict.fromkeys(COUNTS, 0)
        self.taken = dict.fromkeys((*COUNTS, *_BROKEN), 0)
        self.true: Mapping[str, int] | None = None
        self.info: BatchInfo | None = None
        self.cells: deque[Cell] = deque()
        self.handed: Cell | None = None
        self.failure: Exception | None = None
        self.lasting = False

    @property
    def split(self) -> str | None:
        """The streams among which the epoch is split."""
        return self.options.split

    @property
    def position(self) -> Position:
        """The next batch.

        Raises:
            TundishError: The epoch is split, or the feed delivers out of order.
        """
        if self.split is not None:
            raise TundishError(
                f"split={self.split!r:.100} gives this stream any batches of the epoch: there is "
                "no position; state_dict() holds those it has acknowledged, for resume()"
            )
        if self.in_order is False:
            raise TundishError(
                f"feed {self.feed!r} delivers batches as they are ready (in_order=False): "
                "there is no position to resume from"
            )
        return Position(self.options.epoch, self.next_batch)

    @property
    def counts(self) -> Mapping[str, int]:
        """See `Stream.counts`."""
        taken = dict(self.taken)
        if self.handed is not None:
            self._note(taken, self.handed)
        true = self.true
        if self.cells and self.cells[-1] is not self.handed:
            true = None
        if true is not None and self.split is None:
            # END says what was sent.
            broken, samples = (taken[name] for name in _BROKEN)
            more = {"errors": true["errors"] + broken, "samples": true["samples"] - samples}
            return MappingProxyType({**true, **more})
        names = ["skipped", "errors"]
        if self.started and self.total is None:
            # Of a split also after the end: without what was revoked, or dropped in a loss.
            names += ["batches", "samples"]
        counts = {name: taken[name] for name in names}
        return MappingProxyType({**(true or self.announced), **counts})

    def _note(self, taken: dict[str, int], cell: Cell) -> None:
        """Counts what START could not know about a cell that was handed out."""
        if not cell.failed and not cell.skipped and self.total is not None:
            return
        taken["batches"] += 1
        taken["errors"] += cell.failed
        taken["skipped"] += len(cell.skipped)
        if cell.broken:
            taken["broken"] += 1
            taken["broken samples"] += cell.count()
        else:
            taken["samples"] += cell.count()

    def _due(self) -> int:
        """The batches from the first to the end, as far as START could tell."""
        return 0 if self.total is None else max(0, self.total - self.first)

    def length(self) -> int:
        """Returns the number of batches of the whole stream, which has started.

        Raises:
            TypeError: It is not known beforehand.
        """
        if self.total is not None:
            return self._due()
        reason = "its dataset or sampler has no __len__"
        if self.split is not None:
            reason = f"split={self.split!r:.100} shares the epoch out as its streams ask"
        raise TypeError(
            f"the length of epoch {self.options.epoch} of feed {self.feed!r} is not known "
            f"before its end: {reason}"
        )

    def failed(self) -> Exception:
        """Returns the error to raise; a lost connection says where to resume."""
        failure = self.failure
        assert failure is not None
        if isinstance(failure, ConnectionLost):
            ordered = self.split is None and self.in_order is not False
            lost = ConnectionLost(self._lost(failure), self.position if ordered else None)
            lost.__cause__ = failure.__cause__
            return lost
        return failure.with_traceback(None)

    def _lost(self, failure: ConnectionLost) -> str:
        where = "on this client when the server is back," if self.lasting else "on a new client"
        if self.split is not None:
            return (
                f"{failure}; join split={self.split!r:.100} again {where} with "
                "resume(stream.state_dict()), which says what this stream has acknowledged"
            )
        if self.in_order is False:
            return f"{failure}; in_order=False: there is no position to resume from"
        asked = self.options
        shard = ("rank", "world_size") if asked.world_size > 1 else ()
        given = [(name, getattr(asked, name)) for name in ("feed", *shard, "uneven", "batch_size")]
        more = "".join(
            f"{name}={value!r}, " for name, value in given if value is not None and value != "pad"
        )
        return (
            f"{failure}; resume {where} with epoch({asked.epoch}, {more}"
            f"start={self.next_batch}), or with resume(stream.state_dict()), which also compares "
            "seed and plan"
        )

    def state(self) -> dict[str, Any]:
        """The position as plain data; see `Stream.state_dict`."""
        asked = self.options
        state: dict[str, Any] = {"feed": self.feed, "epoch": asked.epoch}
        if self.split is not None:
            state |= {"split": self.split, "acked": self.acked.pairs()}
        else:
            state["batch"] = self.position.batch
            state |= {name: getattr(asked, name) for name in ("rank", "world_size", "uneven")}
        state["fingerprint"] = dict(self.fingerprint or asked.fingerprint or {})
        if asked.batch_size is not None:
            state["batch_size"] = asked.batch_size
        return state
