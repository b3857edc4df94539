"""Datasets whose samples are awaited."""

import asyncio
import threading

from helpers.datasets import Range
from helpers.timing import MS


class Async(Range):
    """Item i is the int i, after a turn of the loop."""

    async def __getitem__(self, index: int) -> int:
        await asyncio.sleep(0)
        return super().__getitem__(index)


class Waiting(Range):
    """Items wait until they are let go, or cancelled, and note what happened."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.running: set[int] = set()
        self.most = 0
        self.cancelled: list[int] = []
        self.let_go = False

    async def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        self.running.add(index)
        self.most = max(self.most, len(self.running))
        try:
            while not self.let_go:
                await asyncio.sleep(1 * MS)
        except asyncio.CancelledError:
            self.cancelled.append(index)
            raise
        finally:
            self.running.discard(index)
        return index


def loops() -> "list[threading.Thread]":
    """The threads of loaders' loops."""
    return [thread for thread in threading.enumerate() if thread.name == "tundish-loop"]
