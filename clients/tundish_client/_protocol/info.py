"""What a consumer is told about a stream and its batches besides their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["BatchInfo", "BatchTimes", "Position"]


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

    __slots__ = ("_samples", "_skipped", "_times", "batch", "epoch")

    def __init__(
        self,
        epoch: int,
        batch: int,
        samples: Any,
        times: Sequence[int],
        skipped: Sequence[int] = (),
    ) -> None:
        self.epoch = epoch
        self.batch = batch
        self._times = times
        self._samples = samples
        self._skipped = skipped

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

    @property
    def skipped(self) -> list[int]:
        """The sample indices that `on_error="skip"` left out of the batch; mostly none."""
        return list(self._skipped)

    def __repr__(self) -> str:
        skipped = f", skipped={self.skipped}" if self._skipped else ""
        indices = self.indices
        return f"BatchInfo(epoch={self.epoch}, batch={self.batch}, indices={indices}{skipped})"
