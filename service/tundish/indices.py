"""Indices of views: checked once, and held as numpy holds them, 8 bytes each.

A view's indices are a numpy array of int64, a ``range`` (which takes no memory at all) or
``DrawnIndices`` (which compute themselves block by block).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from tundish import _core

__all__ = ["DrawnIndices", "Indices", "drawn", "index_table", "place", "places", "table", "take"]

Array = np.ndarray[Any, np.dtype[np.int64]]

# Small enough to be read at once, large enough that the calls don't count.
_BLOCK = 1 << 16


# -- an index into a view ------------------------------------------------------------------------


def place(index: Any, length: int, owner: Any) -> int:
    """`index` into `owner`, as an int from 0 to `length` - 1; negative ones count from the end.

    Raises:
        TypeError: it isn't an integer; a bool isn't one, and neither is a float.
        IndexError: it is outside; the text names it and the length.
    """
    if type(index) is int and 0 <= index < length:
        return index
    name = type(owner).__name__
    if not is_integer(index):
        raise TypeError(f"{name}: index {index!r} must be an integer, not {type(index).__name__}")
    at = operator.index(index)
    if not -length <= at < length:
        raise IndexError(f"{name}: index {at} is out of range, it has {length} samples")
    return at + length if at < 0 else at


def places(indices: Sequence[Any], length: int, owner: Any) -> list[int]:
    """:func:`place` for many."""
    found = list(indices)
    if set(map(type, found)) == {int} and min(found) >= 0 and max(found) < length:
        return found
    return [place(index, length, owner) for index in found]


def is_integer(value: Any) -> bool:
    """Whether `value` may be an index: any integer, also numpy's and tensors', but no bool."""
    if isinstance(value, (bool, np.bool_)) or str(getattr(value, "dtype", "")).endswith("bool"):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


# -- the indices of a view -----------------------------------------------------------------------


def index_table(indices: Any, length: int, name: str) -> Array | range:
    """The user's `indices` into `length` samples, checked, as a read-only copy; no negative ones.

    Raises:
        TypeError: not a sequence of integers; the text names the first that isn't one.
        IndexError: an index is out of range; the text names the first.
    """
    if isinstance(indices, range):
        if all(0 <= end < length for end in (*indices[:1], *indices[-1:])):
            return indices
        found = np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    elif hasattr(indices, "__array__"):
        found = _of_array(np.asarray(indices), name)
    else:
        found = _of_iterable(indices, name)
    negative = found < 0
    if negative.any():
        found[negative] += length
    _refuse_outside(found, negative, length, name)
    found.flags.writeable = False
    return found


def _refuse_outside(found: Array, negative: Any, length: int, name: str) -> None:
    # As unsigned numbers what is still negative is larger than any length.
    outside = found.view(np.uint64) >= length
    if outside.any():
        first = int(outside.argmax())
        value = int(found[first]) - (length if negative[first] else 0)
        raise IndexError(
            f"{name}: indices[{first}] is {value}, out of range for a dataset of {length} samples"
        )


def _of_array(given: np.ndarray[Any, Any], name: str) -> Array:
    if given.ndim != 1:
        raise TypeError(f"{name}: indices must have one dimension, got shape {given.shape}")
    if given.dtype.kind == "b":
        raise TypeError(
            f"{name}: indices must be integers, got a mask of bools; numpy.flatnonzero(mask) gives "
            "the indices"
        )
    if given.dtype.kind == "O":
        return _of_iterable(given.tolist(), name)
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"{name}: indices[0] is {given[0]!r}, which is not an integer")
    if given.dtype == np.uint64 and given.size and given.max() >= 2**63:
        first = int((given >= 2**63).argmax())
        raise IndexError(f"{name}: indices[{first}] is {given[first]}, out of range")
    return given.astype(np.int64)


def _of_iterable(given: Any, name: str) -> Array:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"{name}: indices={given!r} must be a sequence of integers")
    blocks: list[Array] = []
    source = iter(given)
    while block := list(islice(source, _BLOCK)):
        blocks.append(_block(block, len(blocks) * _BLOCK, name))
    return np.concatenate(blocks) if blocks else np.empty(0, np.int64)


def _block(values: list[Any], first: int, name: str) -> Array:
    if set(map(type, values)) != {int}:
        for at, value in enumerate(values):
            if not is_integer(value):
                raise TypeError(
                    f"{name}: indices[{first + at}] is {value!r}, which is not an integer"
                )
        values = list(map(operator.index, values))
    try:
        return np.array(values, np.int64)
    except OverflowError:
        at = next(at for at, value in enumerate(values) if not -(2**63) <= value < 2**63)
        raise IndexError(f"{name}: indices[{first + at}] is {values[at]}, out of range") from None


class DrawnIndices:
    """The samples of epoch 0 of an order, computed where they are asked for.

    Args:
        samples: samples to draw from.
        order: a name that ``_core.Plan`` knows.
        seed: of the order.
        draws: (number, replacement) of a ``_core.Sampling.random``; None for a permutation.

    Two threads that need a block at the same time both compute it, and get the same. Pickles are a
    few numbers.
    """

    def __init__(
        self, samples: int, order: str, seed: int, draws: tuple[int, bool] | None = None
    ) -> None:
        self._recipe = (samples, order, seed, draws)
        self._length = samples if draws is None else draws[0]
        self._plan: _core.Plan | None = None
        # The system hands out this memory page by page, when it is first written.
        self._table: Array = np.empty(self._length, np.int64)
        self._ready = bytearray(-(-self._length // _BLOCK))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, at: int) -> int:
        return int(self._computed(at // _BLOCK)[at])

    def __reduce__(self) -> tuple[Any, ...]:
        return DrawnIndices, self._recipe

    def table(self) -> Array:
        """All of them, at once."""
        for number in range(len(self._ready)):
            self._computed(number)
        whole = self._table.view()
        whole.flags.writeable = False
        return whole

    def _computed(self, number: int) -> Array:
        """The table, in which block `number` at least has been computed."""
        if not self._ready[number]:
            plan = self._plan = self._plan or self._new_plan()
            self._table[number * _BLOCK : (number + 1) * _BLOCK] = plan.indices(number)
            self._ready[number] = 1
            if all(self._ready):
                self._plan = None  # it may hold a table of its own
        return self._table

    def _new_plan(self) -> _core.Plan:
        samples, order, seed, draws = self._recipe
        if draws is None:
            return _core.Plan(samples, order, seed, 0, _BLOCK, False)
        sampling = _core.Sampling.random(samples, *draws)
        return _core.Plan(samples, order, seed, 0, _BLOCK, False, sampling=sampling)


Indices = Array | range | DrawnIndices


def drawn(
    samples: int, order: str, seed: int, draws: tuple[int, bool] | None = None
) -> Array | DrawnIndices:
    """The indices that ``DrawnIndices`` of these arguments stand for.

    Only "stable" can begin anywhere; the others have to be drawn from the front, so that is done
    here and now.
    """
    indices = DrawnIndices(samples, order, seed, draws)
    return indices if order == "stable" else indices.table()


def table(indices: Indices) -> Array:
    """`indices` as a read-only array."""
    if isinstance(indices, np.ndarray):
        indices.flags.writeable = False  # a pickle forgets it
        return indices
    if isinstance(indices, DrawnIndices):
        return indices.table()
    whole = np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    whole.flags.writeable = False
    return whole


def take(indices: Indices, chosen: list[int]) -> list[int]:
    """The indices at the places `chosen`."""
    if isinstance(indices, np.ndarray):
        found: list[int] = indices[chosen].tolist()
        return found
    return [indices[at] for at in chosen]
