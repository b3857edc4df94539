"""A batch, or the error in its place, on its way to the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

from ..errors import ProtocolError
from .info import BatchInfo
from .quick import Plan
from .resolving import resolve

__all__ = ["Cell", "read_count", "read_indices"]


class Cell:
    """A batch or the error in its place, from its arrival until it is handed to the user."""

    __slots__ = (
        "batch", "body", "broken", "built", "error", "failed", "info", "nbytes", "revoked",
        "samples", "skipped", "times", "tree", "value",
    )  # fmt: skip

    def __init__(self, batch: int, nbytes: int) -> None:
        self.batch = batch
        self.nbytes = nbytes
        self.error: Exception | None = None  # until it is raised: its traceback holds the stream
        self.failed = False
        self.tree: Any = None
        self.samples: Any = None
        self.skipped: Sequence[int] = ()
        self.times: Sequence[int] = (0, 0)
        self.body: Any = None
        self.built = False
        self.broken = False  # it had no error before it was put together here
        self.revoked = False  # of a split epoch: given to somebody else meanwhile
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
            self.error, self.broken = error, True
            error.add_note(f"while batch {self.batch} of epoch {epoch} was put together")
            samples = samples.copy() if type(samples) is np.ndarray else None
        samples = [] if samples is None else samples
        self.info = BatchInfo(epoch, self.batch, samples, self.times, self.skipped)
        self.body = self.tree = self.samples = None
        self.failed = self.error is not None
        self.built = True

    def count(self) -> int:
        """The samples that the server counts in it: none in an error of its own."""
        if (self.failed or self.error is not None) and not self.broken:
            return 0
        if self.info is not None:
            return len(self.info._samples)
        samples = self.tree.samples if type(self.tree) is Plan else self.samples
        try:  # the reference to an array of int64 ends with its size in bytes
            return int(msgpack.unpackb(samples.data)[3]) // 8
        except Exception:
            return 0  # what is wrong with it will be the error of this batch


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
    """Reads a list of numbers of samples or batches from a header.

    Raises:
        ProtocolError: It is something else.
    """
    value = header[name]
    if type(value) is not list or not all(type(index) is int for index in value):
        raise ProtocolError(f"{name} must be a list of indices, got {value!r:.80}")
    return value
