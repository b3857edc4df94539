"""Samplers that behave badly in one way each, and a way to read plans without an engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from tundish.reading import ReadPlan, read_batch_sampler, read_sampler, read_stream


def cells(plan: ReadPlan, start: int = 0, *, most: int = 100) -> list[Any]:
    """Every batch's portion, or its error; the end, which is asked for twice, is left out."""
    read = plan.read_from(start)
    found: list[Any] = []
    for batch in itertools.count(start):
        if len(found) >= most:
            return found
        try:
            portion = read(batch, never)
        except Exception as error:
            found.append(error)
            continue
        if portion is None:
            assert read(batch + 1, never) is None
            return found
        found.append(portion)
    raise AssertionError


def batches(plan: ReadPlan, start: int = 0, *, most: int = 100) -> list[Any]:
    """The indices, or the samples if there are any, of every batch, or its error."""
    return [
        cell if isinstance(cell, Exception) else (cell[0] if cell[1] is None else cell[1])
        for cell in cells(plan, start, most=most)
    ]


def never() -> bool:
    """Nobody cancels."""
    return False


def of_sampler(sampler: Any, batch_size: int | None = 2, **options: Any) -> ReadPlan:
    """`read_sampler` with the usual values."""
    usual = {"epoch": 0, "drop_last": False, "samples": 100}
    return read_sampler(sampler, batch_size=batch_size, **{**usual, **options})


def of_stream(dataset: Any, batch_size: int | None = 2, **options: Any) -> ReadPlan:
    """`read_stream` with the usual values."""
    return read_stream(
        dataset, batch_size=batch_size, **{"epoch": 0, "drop_last": False, **options}
    )


def of_batches(batch_sampler: Any, **options: Any) -> ReadPlan:
    """`read_batch_sampler` with the usual values."""
    return read_batch_sampler(batch_sampler, **{"epoch": 0, "samples": 100, **options})


def flat(lists: list[list[Any]]) -> list[Any]:
    """All values of all lists."""
    return [value for values in lists for value in values]


class Unsized:
    """The values of a list, without its length."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)


class Yields:
    """Gives `values`; raises those that are exceptions, and goes on behind them."""

    def __init__(self, *values: Any) -> None:
        self.values = values
        self.given: list[Any] = []
        self.begun = 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        return _Giving(iter(self.values), self.given)


class _Giving:
    def __init__(self, values: Iterator[Any], given: list[Any]) -> None:
        self.values, self.given = values, given

    def __iter__(self) -> _Giving:
        return self

    def __next__(self) -> Any:
        value = next(self.values)
        self.given.append(value)
        if isinstance(value, BaseException):
            raise value
        return value


class Long(Yields):
    """`Yields` that claims a length."""

    def __init__(self, length: Any, *values: Any) -> None:
        super().__init__(*values)
        self.length = length

    def __len__(self) -> Any:
        if isinstance(self.length, Exception):
            raise self.length
        return self.length


class Dies:
    """A generator that raises `error` behind `values`, after which it is over."""

    def __init__(self, error: BaseException, *values: Any) -> None:
        self.error, self.values = error, values

    def __iter__(self) -> Iterator[Any]:
        yield from self.values
        raise self.error


class Epochs:
    """A sampler that gives its epoch's number `count` times, looking at it late."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        epoch = self.epoch
        for _ in range(self.count):
            yield epoch
