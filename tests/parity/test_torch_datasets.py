"""torch's datasets, samplers and batch samplers as they are, in both loaders."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils import data as torch_data
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

import tundish
from parity.peers import flat, generator, ours, passes, theirs
from parity.samples import Numbers, Sized
from parity.values import assert_same

WORKERS = pytest.mark.parametrize("workers", [0, 2])
EACH_CUT = pytest.mark.parametrize(
    ("batch_size", "drop_last"), [(1, False), (3, False), (3, True), (None, False)]
)


class Items(torch_data.Dataset):
    """A dataset of a user's, with the dicts of tensors that users return."""

    def __len__(self):
        return 11

    def __getitem__(self, index):
        return {"x": torch.full((2, 3), index), "name": f"s{index}", "y": index / 2}


def tensors(n):
    return torch_data.TensorDataset(torch.arange(n * 6.0).reshape(n, 2, 3), torch.arange(n) % 3)


MAPS = {
    "of a user": Items(),
    "TensorDataset": tensors(11),
    "TensorDataset of one": torch_data.TensorDataset(torch.arange(7, dtype=torch.int16)),
    "Subset": torch_data.Subset(tensors(30), [3, 1, 4, 1, 5, 9, 2, 6]),
    "Subset of a Subset": torch_data.Subset(torch_data.Subset(Items(), [9, 3, 1, 4]), [2, 0]),
    "ConcatDataset": torch_data.ConcatDataset([tensors(3), tensors(5), tensors(1)]),
    "ConcatDataset by +": tensors(3) + tensors(2),
    "StackDataset of places": torch_data.StackDataset(tensors(5), torch.arange(5), list("abcde")),
    "StackDataset of names": torch_data.StackDataset(x=tensors(5), i=range(5)),
    "random_split": torch_data.random_split(Items(), [7, 4], generator=generator(7))[0],
    "a list": [(k, float(k)) for k in range(8)],
    "a dict": {k: k * k for k in range(8)},
    "a tensor": torch.arange(12.0).reshape(6, 2),
    "MapDataPipe": SequenceWrapper(range(7)),
    "an array": np.arange(12.0).reshape(6, 2),
}

STREAMS = {
    "IterableDataset": Numbers(0, 11),
    "IterableDataset with a length": Sized(0, 11),
    "IterableDataset of full batches": Numbers(0, 9),
    "IterableDataset of nothing": Numbers(0, 0),
    "ChainDataset": torch_data.ChainDataset([Numbers(0, 4), Numbers(10, 0), Numbers(20, 5)]),
    "IterDataPipe": IterableWrapper(range(7)).map(str),
    "ChainDataset by +": Numbers(0, 4) + Numbers(10, 3),
}


def assert_same_batches(mine, other, *, unbatched=False):
    mine, other = list(mine), list(other)
    assert len(mine) == len(other)
    for left, right in zip(mine, other, strict=True):
        assert_same(left, right, unbatched=unbatched)


@WORKERS
@EACH_CUT
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.filterwarnings("ignore:drop_last=True leaves no batch:UserWarning")
def test_a_map_style_dataset(name, batch_size, drop_last, workers):
    cut = {"batch_size": batch_size, "drop_last": drop_last}
    for options in ({}, {"shuffle": True}):
        other = torch_data.DataLoader(MAPS[name], **cut, **options, generator=generator(7))
        mine = tundish.DataLoader(
            MAPS[name], **cut, **options, seed=7, order="torch", num_workers=workers
        )
        assert len(mine) == len(other)
        for _ in range(2):
            assert_same_batches(mine, other, unbatched=batch_size is None)


@WORKERS
@EACH_CUT
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.filterwarnings("ignore:drop_last=True leaves no batch:UserWarning")
def test_an_iterable_dataset(name, batch_size, drop_last, workers):
    cut = {"batch_size": batch_size, "drop_last": drop_last}
    other = torch_data.DataLoader(STREAMS[name], **cut)
    mine = tundish.DataLoader(STREAMS[name], **cut, num_workers=workers)
    for _ in range(2):
        assert_same_batches(mine, other)
    try:
        length = len(other)
    except TypeError:
        with pytest.raises(TypeError):
            len(mine)
    else:
        assert len(mine) == length


@pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning")
def test_workers_repeat_an_iterable_dataset_there_and_not_here():
    other = flat(theirs(Sized(0, 5), 2, num_workers=2))
    assert sorted(other) == sorted([*range(5), *range(5)])
    assert list(ours(Sized(0, 5), 2, num_workers=2)) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}])
def test_an_order_for_an_iterable_dataset_is_refused_by_both(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        theirs(Numbers(0, 5), **options)
    with pytest.raises(tundish.ConfigError, match=next(iter(options))):
        ours(Numbers(0, 5), **options)


# -- views: ours beside torch's ----------------------------------------------------------------


def test_our_views_have_the_same_samples():
    a, b = [("a", k) for k in range(4)], [("b", k) for k in range(3)]
    indices = [2, 0, 2, 1]
    pairs = [
        (tundish.Subset(a, indices), torch_data.Subset(a, indices)),
        (tundish.ConcatDataset([a, b, a]), torch_data.ConcatDataset([a, b, a])),
        (tundish.StackDataset(a, range(4)), torch_data.StackDataset(a, range(4))),
        (tundish.StackDataset(x=a, y=range(4)), torch_data.StackDataset(x=a, y=range(4))),
        (
            tundish.Subset(tundish.ConcatDataset([a, b]), [6, 0, 4]),
            torch_data.Subset(torch_data.ConcatDataset([a, b]), [6, 0, 4]),
        ),
    ]
    for mine, other in pairs:
        assert len(mine) == len(other)
        assert [mine[i] for i in range(len(mine))] == [other[i] for i in range(len(other))]


def test_our_chain_has_the_same_samples():
    parts = [Numbers(0, 4), Numbers(10, 0), Numbers(20, 5)]
    assert list(tundish.ChainDataset(parts)) == list(torch_data.ChainDataset(parts))


def test_our_views_take_torchs_and_torchs_take_ours():
    mixed = [
        tundish.Subset(torch_data.ConcatDataset([tensors(3), tensors(5)]), [7, 0, 4]),
        torch_data.Subset(tundish.ConcatDataset([tensors(3), tensors(5)]), [7, 0, 4]),
    ]
    for dataset in mixed:
        assert_same_batches(tundish.DataLoader(dataset, 2), torch_data.DataLoader(dataset, 2))


def test_datasets_of_one_length_only_in_a_stack():
    for module in (torch_data, tundish):
        with pytest.raises(ValueError):
            module.StackDataset([1, 2], [1])
        with pytest.raises(ValueError):
            module.StackDataset()


@pytest.mark.parametrize("module", [torch_data, tundish])
def test_a_negative_index_counts_from_the_end_in_both(module):
    both = module.ConcatDataset([[1, 2], [3]])
    assert (both[-1], both[-3]) == (3, 1)
    for index in (3, -4):
        with pytest.raises((IndexError, ValueError)):
            both[index]


# -- samplers of torch's, and anything else that yields indices ---------------------------------


class Backwards(torch_data.Sampler):
    """A sampler of a user's."""

    def __len__(self):
        return 20

    def __iter__(self):
        return iter(range(19, -1, -1))


GIVEN = {
    "of a user": Backwards,
    "SequentialSampler": lambda: torch_data.SequentialSampler(range(20)),
    "RandomSampler": lambda: torch_data.RandomSampler(range(20), generator=generator(7)),
    "with replacement": lambda: torch_data.RandomSampler(range(20), True, 33, generator(7)),
    "SubsetRandomSampler": lambda: torch_data.SubsetRandomSampler([5, 3, 19], generator(7)),
    "WeightedRandomSampler": lambda: torch_data.WeightedRandomSampler(
        [1.0, 0.0, 3.0], 12, generator=generator(7)
    ),
    "DistributedSampler": lambda: torch_data.DistributedSampler(range(20), 3, 1),
    "list": lambda: [3, 1, 4, 1, 5],
    "tuple": lambda: (3, 1, 4),
    "array": lambda: np.array([3, 1, 4]),
    "tensor": lambda: torch.tensor([3, 1, 4]),
    "range": lambda: range(19, 0, -3),
}


@WORKERS
@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize(("batch_size", "drop_last"), [(1, False), (2, True), (4, False)])
def test_a_sampler_as_it_is(name, batch_size, drop_last, workers):
    cut = {"batch_size": batch_size, "drop_last": drop_last}
    sampler, other = GIVEN[name](), GIVEN[name]()
    expected = []
    for epoch in range(3):
        if hasattr(other, "set_epoch"):
            other.set_epoch(epoch)  # which ours does by itself
        expected.append(list(theirs(range(20), sampler=other, **cut)))
    mine = ours(range(20), sampler=sampler, num_workers=workers, **cut)
    assert len(mine) == len(expected[0])
    assert passes(mine, 3) == [
        [[int(index) for index in batch] for batch in each] for each in expected
    ]


@pytest.mark.parametrize("name", GIVEN)
def test_a_sampler_without_batching(name):
    other = list(theirs(range(20), None, sampler=GIVEN[name]()))
    assert list(ours(range(20), None, sampler=GIVEN[name]())) == [int(index) for index in other]


def test_bulk_indices_of_a_sampler_without_batching():
    def make():
        return torch_data.BatchSampler(torch_data.SequentialSampler(range(7)), 3, drop_last=False)

    class Rows:
        def __len__(self):
            return 7

        def __getitem__(self, indices):
            return [index * 10 for index in indices]

        def __getitems__(self, indices):
            return [index * 10 for index in indices]

    expected = [[0, 10, 20], [30, 40, 50], [60]]
    assert list(theirs(Rows(), None, sampler=make())) == expected
    assert [list(batch) for batch in ours(Rows(), None, sampler=make())] == expected


@WORKERS
def test_a_batch_sampler_as_it_is(workers):
    def make():
        random = torch_data.RandomSampler(range(20), generator=generator(7))
        return torch_data.BatchSampler(random, 6, drop_last=False)

    mine = ours(range(20), batch_sampler=make(), num_workers=workers)
    other = theirs(range(20), batch_sampler=make())
    assert len(mine) == len(other) == 4
    assert passes(mine, 3) == passes(other, 3)


@WORKERS
@pytest.mark.parametrize("given", [[[3, 1], [4], [1, 5, 9]], [(0,), (1, 2)], [np.array([1, 2])]])
def test_batches_of_any_size(given, workers):
    expected = list(theirs(range(20), batch_sampler=given))
    mine = ours(range(20), batch_sampler=given, num_workers=workers)
    assert len(mine) == len(given)
    assert passes(mine, 2) == [expected, expected]


def test_lengths_come_from_the_sampler_in_both():
    for module in (torch_data, tundish):
        loader = module.DataLoader(range(100), 4, sampler=[1] * 10)
        assert len(loader) == 3
        assert len(module.DataLoader(range(100), 4, sampler=[1] * 10, drop_last=True)) == 2
        assert len(module.DataLoader(range(100), batch_sampler=[[1], [2]])) == 2
        assert len(module.DataLoader(range(100), None, sampler=[1] * 10)) == 10


@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
def test_a_sampler_without_a_length_can_be_read_and_not_counted_in_both(kind):
    class Endless:
        def __iter__(self):
            return (
                iter(itertools.count()) if kind == "sampler" else ([k] for k in itertools.count())
            )

    for make in (theirs, ours):
        loader = make(range(10**6), **{kind: Endless()})
        assert list(itertools.islice(loader, 3)) == [[0], [1], [2]]
        with pytest.raises(TypeError):
            len(loader)


def test_keys_that_are_no_indices_need_a_dataset_of_their_own_here():
    data = {"a": 1, "b": 2}
    assert list(theirs(data, sampler=["b", "a"])) == [[2], [1]]
    with pytest.raises(TypeError, match="'b'"):
        next(iter(ours(data, sampler=["b", "a"])))
    keys = list(data)
    assert list(ours(tundish.MapDataset(keys, data.__getitem__), sampler=[1, 0])) == [[2], [1]]
