"""Datasets that tell what they were asked for, and a view of each kind."""

import asyncio

import pytest

from tundish.views import (
    ConcatDataset,
    MapDataset,
    SampledDataset,
    StackDataset,
    Subset,
    WindowsDataset,
)


class Rows:
    """Samples by index; ``asked`` tells which were asked for, one list for a batched fetch."""

    def __init__(self, samples):
        self.samples = list(samples)
        self.asked = []

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        assert type(index) is int and index >= 0
        self.asked.append(index)
        return self.samples[index]


class Batched(Rows):
    def __getitems__(self, indices):
        assert type(indices) is list and set(map(type, indices)) <= {int}
        self.asked.append(indices)
        return [self.samples[index] for index in indices]


class AsyncRows(Rows):
    async def __getitem__(self, index):
        await asyncio.sleep(0)
        return super().__getitem__(index)


class AsyncBatched(AsyncRows):
    async def __getitems__(self, indices):
        await asyncio.sleep(0)
        return Batched.__getitems__(self, indices)


class OnlyBatched:
    def __init__(self, samples):
        self.samples = list(samples)

    def __len__(self):
        return len(self.samples)

    def __getitems__(self, indices):
        return [self.samples[index] for index in indices]


class OnlyAsyncBatched(OnlyBatched):
    async def __getitems__(self, indices):
        return super().__getitems__(indices)


def double(sample):
    return sample * 2


async def double_later(sample):
    await asyncio.sleep(0)
    return sample * 2


TENS = [0, 10, 20, 30, 40, 50]
# A view of datasets of some kind, and its samples.
VIEWS = {
    "subset": (lambda kind: Subset(kind(TENS), [4, -1, 0, 0]), [40, 50, 0, 0]),
    "slice": (lambda kind: Subset(kind(TENS), range(5, -1, -2)), [50, 30, 10]),
    "concat": (lambda kind: ConcatDataset([kind("ab"), kind(""), kind("c")]), ["a", "b", "c"]),
    "tuples": (lambda kind: StackDataset(kind("ab"), kind([5, 6])), [("a", 5), ("b", 6)]),
    "dicts": (
        lambda kind: StackDataset(x=kind("ab"), y=kind([5, 6])),
        [{"x": "a", "y": 5}, {"x": "b", "y": 6}],
    ),
    "map": (lambda kind: MapDataset(kind(TENS), double), [0, 20, 40, 60, 80, 100]),
    "windows": (
        lambda kind: WindowsDataset(kind(TENS), 3),
        [[0, 10, 20], [10, 20, 30], [20, 30, 40], [30, 40, 50]],
    ),
    "apart": (lambda kind: WindowsDataset(kind(TENS), 2, 3), [[0, 10], [30, 40]]),
    "sampled": (lambda kind: SampledDataset(kind([7]), 3), [7, 7, 7]),
    "nested": (
        lambda kind: Subset(
            WindowsDataset(
                MapDataset(ConcatDataset([kind(TENS), Subset(kind(TENS), [2, 1])]), double), 2
            ),
            [0, 5, -1],
        ),
        [[0, 20], [100, 40], [40, 20]],
    ),
}
NEW = pytest.mark.parametrize(("view", "samples"), VIEWS.values(), ids=VIEWS)
