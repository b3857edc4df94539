"""The arguments of samplers: what is refused, what they are called, and what survives a pickle."""

import copy
import pickle
import sys
import types

import numpy as np
import pytest

from tundish import (
    BatchSampler,
    ConfigError,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RandomSampler(10, "yes"), "replacement='yes'"),
        (lambda: RandomSampler(10, 1), "replacement=1"),
        (lambda: RandomSampler(10, True, 0), "num_samples=0"),
        (lambda: RandomSampler(10, num_samples=-1), "num_samples=-1"),
        (lambda: RandomSampler(10, num_samples=2.5), "num_samples=2.5"),
        (lambda: RandomSampler(10, num_samples=True), "num_samples=True"),
        (lambda: RandomSampler(10, seed=-1), "seed=-1"),
        (lambda: RandomSampler(10, seed=2**64), "seed=18446744073709551616"),
        (lambda: RandomSampler(10, seed=1.5), "seed=1.5"),
        (lambda: RandomSampler(10, order="fast"), "order='fast'"),
        (lambda: RandomSampler(10, order="burn"), "order='burn'"),
        (lambda: RandomSampler(-1), "data_source=-1"),
        (lambda: RandomSampler(True), "data_source=True"),
        (lambda: RandomSampler(iter([1])), "data_source=<list_iterator"),
        (lambda: RandomSampler(list), "data_source=<class 'list'>"),
        (lambda: SequentialSampler(2.5), "data_source=2.5"),
        (lambda: SubsetRandomSampler([1, -2]), "indices[1] is -2"),
        (lambda: SubsetRandomSampler([1, 2.5]), "indices[1] is 2.5"),
        (lambda: SubsetRandomSampler([1, "2"]), "indices[1] is '2'"),
        (lambda: SubsetRandomSampler([True]), "indices[0] is True"),
        (lambda: SubsetRandomSampler([2**63]), "indices[0] is 9223372036854775808"),
        (lambda: SubsetRandomSampler(np.array([True])), "mask of bools"),
        (lambda: SubsetRandomSampler(np.array([[1]])), "one dimension"),
        (lambda: SubsetRandomSampler(np.array([0.5])), "0.5"),
        (lambda: SubsetRandomSampler("12"), "indices='12'"),
        (lambda: SubsetRandomSampler(3), "indices=3"),
        (lambda: SubsetRandomSampler(range(-1, 3)), "indices[0] is -1"),
        (lambda: WeightedRandomSampler([[1.0]], 1), "one row"),
        (lambda: WeightedRandomSampler(3.0, 1), "one row"),
        (lambda: WeightedRandomSampler(["a"], 1), "weights="),
        (lambda: WeightedRandomSampler([], 1), "weights"),
        (lambda: WeightedRandomSampler([1.0, -1.0], 1), "-1 at place 1"),
        (lambda: WeightedRandomSampler([1.0, NAN], 1), "NaN at place 1"),
        (lambda: WeightedRandomSampler([1.0, float("inf")], 1), "inf at place 1"),
        (lambda: WeightedRandomSampler([0.0, 0.0], 1), "sum"),
        (lambda: WeightedRandomSampler([1.0], 0), "num_samples=0"),
        (lambda: WeightedRandomSampler([1.0], True), "num_samples=True"),
        (lambda: WeightedRandomSampler([1.0], 1, "yes"), "replacement='yes'"),
        (lambda: WeightedRandomSampler([1.0], 2, False), "num_samples=2"),
        (lambda: WeightedRandomSampler([1.0, 0.0], 2, False), "num_samples=2"),
        (lambda: DistributedSampler(10, 2, 2), "rank=2"),
        (lambda: DistributedSampler(10, 2, -1), "rank=-1"),
        (lambda: DistributedSampler(10, 0, 0), "num_replicas=0"),
        (lambda: DistributedSampler(10, 2, 0, 1), "shuffle=1"),
        (lambda: DistributedSampler(10, 2, 0, drop_last=1), "drop_last=1"),
        (lambda: DistributedSampler(10, 2, 0, seed=None), "seed=None"),
        (lambda: DistributedSampler(10, 2, 0, order="torch:default"), "order='torch:default'"),
        (lambda: DistributedSampler(10), "num_replicas=None"),
        (lambda: DistributedSampler(10, 2), "rank=None"),
        (lambda: BatchSampler(range(10), 0), "batch_size=0"),
        (lambda: BatchSampler(range(10), True), "batch_size=True"),
        (lambda: BatchSampler(range(10), 2.0), "batch_size=2.0"),
        (lambda: BatchSampler(range(10), 2, 1), "drop_last=1"),
        (lambda: BatchSampler(iter([1]), 2), "sampler=<list_iterator"),
        (lambda: BatchSampler(3, 2), "sampler=3"),
        (lambda: SequentialSampler(3).set_epoch(-1), "epoch=-1"),
        (lambda: SequentialSampler(3).set_epoch("1"), "epoch='1'"),
    ],
)
def test_arguments_are_refused_by_name_and_value(make, text):
    with pytest.raises(ConfigError) as caught:
        make()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda g: RandomSampler(10, False, None, g),
        lambda g: RandomSampler(10, generator=g),
        lambda g: SubsetRandomSampler([1], g),
        lambda g: WeightedRandomSampler([1.0], 1, True, g),
    ],
)
def test_a_generator_is_refused_with_the_way_out(make):
    with pytest.raises(ConfigError, match="generator=.*give seed="):
        make(object())
    make(None)


def test_samples_cannot_be_drawn_from_nothing_except_none():
    assert list(RandomSampler([])) == list(RandomSampler([], True)) == []
    assert len(RandomSampler([])) == 0
    with pytest.raises(ConfigError, match="num_samples=3 can't be drawn"):
        list(RandomSampler([], num_samples=3))


def test_numpy_values_are_values():
    sampler = RandomSampler(np.int64(5), np.bool_(True), np.int8(3), seed=np.uint64(7))
    assert (sampler.num_samples, sampler.seed, len(sampler)) == (3, 7, 3)
    assert type(sampler.seed) is int
    assert sorted(SubsetRandomSampler(np.array([3, 1], np.uint8), seed=0)) == [1, 3]
    assert sorted(SubsetRandomSampler((np.int16(k) for k in (3, 1)), seed=0)) == [1, 3]
    assert set(WeightedRandomSampler(np.array([1, 0], np.float16), 5)) == {0}


def test_a_seed_is_drawn_and_told():
    first, second = RandomSampler(1000), RandomSampler(1000)
    assert first.seed != second.seed
    assert 0 <= first.seed < 2**64
    assert list(RandomSampler(1000, seed=first.seed)) == list(first)
    assert SequentialSampler(3).seed is None
    assert DistributedSampler(3, 1, 0).seed == 0


def test_what_is_drawn_from_is_copied_and_cannot_be_written_to():
    indices, weights = np.array([4, 5, 6]), np.array([1.0, 2.0])
    subset, weighted = SubsetRandomSampler(indices), WeightedRandomSampler(weights, 2)
    indices[:] = 0
    weights[:] = 0
    assert subset.indices.tolist() == [4, 5, 6]
    assert weighted.weights.tolist() == [1.0, 2.0]
    for array in (subset.indices, weighted.weights, pickle.loads(pickle.dumps(subset)).indices):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        weighted.weights = [1.0]


SAMPLERS = [
    SequentialSampler(9),
    RandomSampler(range(9), True, 40, seed=7),
    SubsetRandomSampler([3, 1, 2], seed=7, order="torch"),
    WeightedRandomSampler([0.5, 1.5], 9, seed=7),
    DistributedSampler(range(9), 2, 1, seed=7),
    BatchSampler(RandomSampler(9, seed=7), 2),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_samplers_are_plain_values(sampler):
    sampler = copy.deepcopy(sampler)
    sampler.set_epoch(3)
    next(iter(sampler))
    expected = list(copy.deepcopy(sampler))  # of epoch 4, which comes next
    for twin in (pickle.loads(pickle.dumps(sampler)), copy.copy(sampler), copy.deepcopy(sampler)):
        assert repr(twin) == repr(sampler)
        assert len(twin) == len(sampler)
        assert list(twin) == expected
        sampler.set_epoch(4)  # a shallow copy of a BatchSampler shares its sampler


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        (SAMPLERS[0], "SequentialSampler(9)"),
        (
            SAMPLERS[1],
            "RandomSampler(range(0, 9), replacement=True, num_samples=40, seed=7, order='stable')",
        ),
        (SAMPLERS[2], "<SubsetRandomSampler of 3 indices, seed=7, order='torch'>"),
        (
            SAMPLERS[3],
            (
                "<WeightedRandomSampler of 2 weights, num_samples=9, replacement=True, seed=7, "
                "order='stable'>"
            ),
        ),
        (
            SAMPLERS[4],
            (
                "DistributedSampler(range(0, 9), num_replicas=2, rank=1, shuffle=True, seed=7, "
                "drop_last=False, order='stable')"
            ),
        ),
        (
            SAMPLERS[5],
            (
                "BatchSampler(RandomSampler(9, replacement=False, seed=7, order='stable'), 2, "
                "drop_last=False)"
            ),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_reprs_say_what_a_sampler_is(sampler, text):
    assert repr(sampler) == text


def test_identities_tell_apart_what_gives_other_indices():
    makes = [
        lambda **own: SequentialSampler(9),
        lambda **own: SequentialSampler(8),
        lambda **own: RandomSampler(9, **own),
        lambda **own: RandomSampler(8, **own),
        lambda **own: RandomSampler(9, True, **own),
        lambda **own: RandomSampler(9, num_samples=4, **own),
        lambda **own: RandomSampler(9, **{**own, "order": "torch"}),
        lambda **own: SubsetRandomSampler([1, 2], **own),
        lambda **own: SubsetRandomSampler([2, 1], **own),
        lambda **own: WeightedRandomSampler([1, 2], 2, **own),
        lambda **own: WeightedRandomSampler([1, 2], 2, False, **own),
        lambda **own: WeightedRandomSampler([1, 3], 2, **own),
        lambda **own: DistributedSampler(9, 2, 0, **own),
        lambda **own: DistributedSampler(9, 3, 0, **own),
        lambda **own: DistributedSampler(9, 2, 0, drop_last=True, **own),
        lambda **own: DistributedSampler(9, 2, 0, False, **own),
    ]
    found = [make(seed=7)._identity for make in makes]
    assert len(set(found)) == len(found)
    assert [make(seed=8)._identity for make in makes] == found
    assert found[4] == "RandomSampler(samples=9, num_samples=9, replacement=True)/stable/1"
    assert found[6].endswith("/torch/1")
    ranks = {DistributedSampler(9, 2, rank)._identity for rank in range(2)}
    assert len(ranks) == 1, "a state of one rank is every rank's"


class Distributed(types.ModuleType):
    """What a DistributedSampler asks torch.distributed."""

    available = initialized = True

    def is_available(self):
        return self.available

    def is_initialized(self):
        return self.initialized

    def get_world_size(self):
        return 4

    def get_rank(self):
        return 3


def test_ranks_come_from_torch_where_it_knows_them(monkeypatch):
    module = Distributed("torch.distributed")
    monkeypatch.setitem(sys.modules, "torch.distributed", module)
    sampler = DistributedSampler(10, shuffle=False)
    assert (sampler.num_replicas, sampler.rank) == (4, 3)
    assert list(sampler) == [3, 7, 1]
    assert DistributedSampler(10, rank=1).rank == 1
    with pytest.raises(ConfigError, match="rank=3"):
        DistributedSampler(10, 2)
    for name in ("initialized", "available"):
        setattr(module, name, False)
        with pytest.raises(ConfigError, match="torch.distributed to be initialised.*num_replicas="):
            DistributedSampler(10)
