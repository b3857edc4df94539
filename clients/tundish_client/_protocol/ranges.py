"""Sets of batch numbers as ranges, in which many numbers are few."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgpack

__all__ = ["Ranges"]


def _first(pair: Sequence[int]) -> int:
    return pair[0]


class Ranges:
    """A set of integers, kept as sorted ranges [first, last] that don't touch each other.

    Example:
        >>> numbers = Ranges([[0, 3]])
        >>> numbers.add(5)
        >>> numbers.add(4)
        >>> numbers.discard(1)
        >>> numbers.pairs()
        [[0, 0], [2, 5]]
    """

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Iterable[Sequence[int]] = ()) -> None:
        self._pairs: list[list[int]] = []
        for first, last in sorted(pairs, key=_first):
            if self._pairs and first <= self._pairs[-1][1] + 1:
                self._pairs[-1][1] = max(last, self._pairs[-1][1])
            else:
                self._pairs.append([first, last])

    def pairs(self) -> list[list[int]]:
        """The ranges, [[first, last], ...]: a copy."""
        return [list(pair) for pair in self._pairs]

    def largest(self, room: int) -> Ranges:
        """Returns the largest of these ranges, as many as take `room` bytes in a message."""
        kept = []
        for pair in sorted(self._pairs, key=lambda pair: pair[0] - pair[1]):
            room -= len(msgpack.packb(pair))
            if room < 0:
                break
            kept.append(pair)
        return Ranges(kept)

    @property
    def last(self) -> int:
        """The largest number, -1 if there is none."""
        return self._pairs[-1][1] if self._pairs else -1

    def after(self, number: int) -> int:
        """The first number from `number` on that is not in the set."""
        at = bisect_right(self._pairs, number, key=_first)
        return max(number, self._pairs[at - 1][1] + 1) if at else number

    def merge(self, other: Ranges) -> None:
        """Puts all numbers of another set in."""
        self._pairs = Ranges([*self._pairs, *other._pairs])._pairs

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._pairs, number, key=_first)
        return at > 0 and number <= self._pairs[at - 1][1]

    def __len__(self) -> int:
        """How many numbers there are."""
        return sum(last - first + 1 for first, last in self._pairs)

    def add(self, number: int) -> None:
        """Puts a number in, if it is not there."""
        pairs = self._pairs
        at = bisect_right(pairs, number, key=_first)
        if at and number <= pairs[at - 1][1]:
            return
        follows = at > 0 and pairs[at - 1][1] == number - 1
        precedes = at < len(pairs) and pairs[at][0] == number + 1
        if follows and precedes:
            pairs[at - 1][1] = pairs.pop(at)[1]
        elif follows:
            pairs[at - 1][1] = number
        elif precedes:
            pairs[at][0] = number
        else:
            pairs.insert(at, [number, number])

    def discard(self, number: int) -> None:
        """Takes a number out, if it is there."""
        pairs = self._pairs
        at = bisect_right(pairs, number, key=_first) - 1
        if at < 0 or number > pairs[at][1]:
            return
        first, last = pairs[at]
        pairs[at : at + 1] = [
            pair for pair in ([first, number - 1], [number + 1, last]) if pair[0] <= pair[1]
        ]
