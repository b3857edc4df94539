"""``on_error="skip"``: samples that can't be loaded are left out, and each is told of."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from tundish.errors_of_batches import place_of, settle, shown, some

if TYPE_CHECKING:
    from tundish._core import Task

__all__ = ["Skips"]

_log = logging.getLogger("tundish.loader")

# Lines about single samples in one run; after them one for every so many.
_LINES = 100
_EVERY = 1000


class Skips:
    """What one run has left out so far. Used by all its workers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told = 0

    def leave_out(self, failed: dict[int, BaseException], indices: list[int], task: Task) -> None:
        """Leave the samples at the places `failed` out of `task`'s batch.

        Raises:
            ValueError: nothing is left of the batch; from the first error.
        """
        for k, error in failed.items():
            where = place_of(f"dataset[{indices[k]}]", task)
            self._tell(f"left out sample {where}: {shown(error)}")
        if len(failed) == len(indices):
            settle(_nothing_left(failed[0], indices), f"dataset[{indices[0]}]", task)
        task.keep([k for k in range(len(indices)) if k not in failed])

    def tell_of_fetch(self, error: BaseException, indices: list[int], task: Task) -> None:
        """Tell that a batched fetch failed, and that its samples are loaded one by one."""
        where = place_of(f"dataset.__getitems__({some(indices)})", task)
        self._tell(f"{where} failed: {shown(error)}; its samples are loaded one by one")

    def _tell(self, text: str) -> None:
        with self._lock:
            self._told += 1
            number = self._told
        if number < _LINES:
            _log.warning("%s", text)
        elif number == _LINES:
            _log.warning("%s (from here on, one line for every %d)", text, _EVERY)
        elif number % _EVERY == 0:
            _log.warning("%d failures in this run so far; the latest: %s", number, text)


def _nothing_left(first: BaseException, indices: list[int]) -> ValueError:
    error = ValueError(
        f"all samples of the batch were left out, dataset indices {some(indices)}, the first "
        f"because of {shown(first)}; on_error='skip' has nothing left to hand out"
    )
    error.__cause__ = first
    return error
