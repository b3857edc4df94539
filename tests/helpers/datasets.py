"""Datasets that behave badly in one way each, and ways to read an epoch."""

import asyncio
import threading
import time
from typing import Any

import numpy as np
import uvloop

from tundish import ArrayDataset, DataLoader

#: How an epoch is read: under `for`, and under `async for` on both loops.
MODES = ("for", "asyncio", "uvloop")


class Range:
    """Item i is the int i."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return index


class Fail(Range):
    """Item k raises ``errors[k]``."""

    def __init__(self, n: int, errors: dict[int, BaseException]) -> None:
        super().__init__(n)
        self.errors = errors

    def __getitem__(self, index: int) -> Any:
        if index in self.errors:
            raise self.errors[index]
        return super().__getitem__(index)


class Slow(Range):
    """Item k sleeps ``seconds[k]``; all items do with a plain number."""

    def __init__(self, n: int, seconds: dict[int, float] | float) -> None:
        super().__init__(n)
        self.seconds = seconds

    def __getitem__(self, index: int) -> Any:
        seconds = self.seconds
        time.sleep(seconds.get(index, 0) if isinstance(seconds, dict) else seconds)
        return super().__getitem__(index)


class Gate(Range):
    """Items from `closed_from` on wait until the gate opens."""

    def __init__(self, n: int, closed_from: int = 0) -> None:
        super().__init__(n)
        self.closed_from = closed_from
        self.opened = threading.Event()

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        if index >= self.closed_from:
            self.opened.wait(10)
        return index


def outcomes(epoch: Any, mode: str = "for", *, most: int = 1000) -> list[Any]:
    """Every batch and every error of `epoch`, to its clean end, which is asked for twice.

    Arrays come as lists. At most `most` cells are read.
    """
    if mode == "for":
        return _outcomes(epoch, most)
    return (asyncio if mode == "asyncio" else uvloop).run(_aoutcomes(epoch, most))


def _outcomes(epoch: Any, most: int) -> list[Any]:
    found: list[Any] = []
    ends = 0
    while ends < 2 and len(found) < most:
        try:
            found.append(plain(next(epoch)))
        except StopIteration:
            ends += 1
        except Exception as error:
            found.append(error)
    return found


async def _aoutcomes(epoch: Any, most: int) -> list[Any]:
    found: list[Any] = []
    ends = 0
    while ends < 2 and len(found) < most:
        try:
            found.append(plain(await anext(epoch)))
        except StopAsyncIteration:
            ends += 1
        except Exception as error:
            found.append(error)
    return found


def plain(value: Any) -> Any:
    """`value` with arrays as lists."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def arrays(n: int = 100, batch_size: int = 10, **options: Any) -> DataLoader:
    """A loader of {"x": 0, 1, 2 ...}, read by the engine."""
    return DataLoader(ArrayDataset(x=np.arange(n)), batch_size=batch_size, **options)
