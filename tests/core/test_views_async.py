"""Views of datasets whose samples have to be awaited."""

import inspect

import numpy as np
import pytest

from helpers.views import (
    NEW,
    TENS,
    AsyncBatched,
    AsyncRows,
    Batched,
    OnlyAsyncBatched,
    Rows,
    double_later,
)
from tundish import DataLoader
from tundish.views import ConcatDataset, MapDataset, StackDataset, Subset, is_async

ASYNC_KINDS = pytest.mark.parametrize("kind", [AsyncRows, AsyncBatched, OnlyAsyncBatched])


@NEW
@ASYNC_KINDS
async def test_samples_of_async_datasets_are_awaited(view, samples, kind):
    dataset = view(kind)
    assert is_async(dataset)
    assert is_async(dataset, "__getitem__")
    assert [await dataset[index] for index in range(-1, len(samples))] == [samples[-1], *samples]
    with pytest.raises(IndexError):
        dataset[len(samples)]


@NEW
async def test_a_batched_fetch_of_async_datasets_is_awaited(view, samples):
    assert not hasattr(view(AsyncRows), "__getitems__")
    assert not is_async(view(AsyncRows), "__getitems__")
    dataset = view(AsyncBatched)
    assert is_async(dataset, "__getitems__")
    assert inspect.iscoroutinefunction(dataset.__getitems__)
    assert await dataset.__getitems__([1, 0, 1]) == [samples[1], samples[0], samples[1]]


async def test_async_datasets_and_others_mix():
    concat = ConcatDataset([AsyncBatched("ab"), Batched("cd")])
    assert [await concat[index] for index in range(4)] == list("abcd")
    assert await concat.__getitems__([3, 0]) == ["d", "a"]
    stack = StackDataset(AsyncRows("ab"), Rows("cd"))
    assert await stack[1] == ("b", "d")


@pytest.mark.parametrize("kind", [Batched, AsyncBatched])
async def test_a_function_may_be_async(kind):
    class Doubling:
        async def __call__(self, sample):
            return await double_later(sample)

    for function in (double_later, Doubling()):
        dataset = MapDataset(kind(TENS), function)
        assert is_async(dataset)
        assert await dataset[2] == 40
        assert await dataset.__getitems__([1, 2]) == [20, 40]


async def test_counts_of_async_batched_fetches_are_checked():
    class Bad(AsyncBatched):
        async def __getitems__(self, indices):
            return ["x"]

    with pytest.raises(ValueError, match=r"Subset of Bad: __getitems__ returned 1 samples for 2"):
        await Subset(Bad("abc"), [0, 1]).__getitems__([0, 1])


@ASYNC_KINDS
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_awaits_the_samples_of_views(kind, workers):
    dataset = ConcatDataset([Subset(kind(range(9)), range(8, -1, -1)), Rows([9])])
    loader = DataLoader(dataset, 4, num_workers=workers, items_in_parallel=2)
    assert np.concatenate(list(loader)).tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 0, 9]


def test_an_override_says_by_itself_whether_it_is_awaited():
    class Later(Subset):
        async def __getitem__(self, index):
            return super().__getitem__(index)

    assert is_async(Later(Rows("ab"), [0]), "__getitem__")
