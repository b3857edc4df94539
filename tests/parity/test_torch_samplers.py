"""torch's samplers and ours with the same arguments and seed: the same indices, pass for pass."""

import itertools

import pytest
import torch
from torch.utils import data as torch_data

import tundish
from parity.peers import SEEDS, assert_same_passes, generator, ours, passes, theirs

EACH_SEED = pytest.mark.parametrize("seed", SEEDS)

#: Who draws from which generator: the order's name, options of torch's sampler and of its loader.
SHARINGS = {
    "torch": lambda seed: (generator(seed), None, {}),
    "torch:shared": lambda seed: (g := generator(seed), g, {}),
    "torch:default": lambda seed: (None, None, {}),
    "torch:persistent": lambda seed: (
        g := generator(seed),
        g,
        {"num_workers": 2, "persistent_workers": True},
    ),
    "torch:default:persistent": lambda seed: (
        None,
        None,
        {"num_workers": 2, "persistent_workers": True},
    ),
}


def random(n, **options):
    """(torch's, ours), each a function of its own last argument: a generator, or seed and order."""
    return (
        lambda g: torch_data.RandomSampler(range(n), generator=g, **options),
        lambda **own: tundish.RandomSampler(range(n), **options, **own),
    )


def subset(indices):
    return (
        lambda g: torch_data.SubsetRandomSampler(indices, generator=g),
        lambda **own: tundish.SubsetRandomSampler(indices, **own),
    )


def weighted(weights, num_samples, replacement):
    return (
        lambda g: torch_data.WeightedRandomSampler(weights, num_samples, replacement, generator=g),
        lambda **own: tundish.WeightedRandomSampler(weights, num_samples, replacement, **own),
    )


def ramp(n):
    """Weights that differ, zero among them, of no particular sum."""
    return [(7 * k % 11) / 3 for k in range(n)]


SAMPLERS = {
    "random": random(10),
    "random, one": random(1),
    "random, 1000": random(1000),
    "random, fewer": random(10, num_samples=4),
    "random, more": random(10, num_samples=25),
    "random, twice": random(10, num_samples=20),
    "replacement": random(10, replacement=True),
    "replacement, fewer": random(1000, replacement=True, num_samples=31),
    "replacement, a block": random(10, replacement=True, num_samples=32),
    "replacement, more": random(10, replacement=True, num_samples=100),
    "replacement, large": random(2**28 + 1, replacement=True, num_samples=70),
    "subset": subset([5, 3, 900, 3, 0, 17, 42]),
    "subset, one": subset([3]),
    "subset, 1000": subset(list(range(1000, 3000, 2))),
    "weighted": weighted(ramp(10), 10, True),
    "weighted, more": weighted(ramp(10), 200, True),
    "weighted, one": weighted(ramp(10), 1, True),
    "weighted, 1000": weighted(ramp(1000), 1000, True),
    "weighted without replacement": weighted(ramp(23), 10, False),
    "weighted without replacement, all": weighted([0.1, 0.9, 0.4, 5, 3.0], 5, False),
    "weighted without replacement, 1000": weighted([k + 0.5 for k in range(1000)], 1000, False),
}
EACH_SAMPLER = pytest.mark.parametrize("name", SAMPLERS)


@EACH_SEED
@EACH_SAMPLER
def test_a_sampler_by_itself(name, seed):
    torchs, own = SAMPLERS[name]
    expected = passes(torchs(generator(seed)), 4)
    sampler = own(seed=seed, order="torch")
    assert len(sampler) == len(torchs(None)) == len(expected[0])
    assert passes(sampler, 4) == expected
    for epoch in (3, 0, 2):
        sampler.set_epoch(epoch)
        assert list(sampler) == expected[epoch]


@EACH_SEED
@EACH_SAMPLER
@pytest.mark.parametrize("order", ["torch", "torch:shared", "torch:default"])
def test_a_sampler_in_a_loader(name, seed, order):
    torchs, own = SAMPLERS[name]
    for batch_size, drop_last in ((1, False), (4, False), (3, True)):
        torch.manual_seed(seed)
        mine, shared, options = SHARINGS[order](seed)
        cut = {"batch_size": batch_size, "drop_last": drop_last}
        sampler = torchs(mine)
        if drop_last and len(sampler) < batch_size:
            continue
        loader = theirs(range(2**29), sampler=sampler, generator=shared, **cut, **options)
        expected = passes(loader, 3)
        loader = ours(range(2**29), sampler=own(seed=seed, order=order), **cut)
        assert len(loader) == len(expected[0])
        assert_same_passes(loader, expected)


@pytest.mark.parametrize("order", ["torch:persistent", "torch:default:persistent"])
@pytest.mark.parametrize(
    "name",
    ["random", "random, more", "replacement, more", "subset", "weighted, more"],
)
def test_a_sampler_in_a_loader_with_persistent_workers(name, order):
    torchs, own = SAMPLERS[name]
    for seed in (7, 2**64 - 1):
        torch.manual_seed(seed)
        mine, shared, options = SHARINGS[order](seed)
        loader = theirs(range(1000), 4, sampler=torchs(mine), generator=shared, **options)
        expected = passes(loader, 3)
        for workers in (0, 2):
            loader = ours(range(1000), 4, sampler=own(seed=seed, order=order), num_workers=workers)
            assert_same_passes(loader, expected)


@pytest.mark.parametrize("workers", [0, 2])
@EACH_SEED
def test_batches_of_a_batch_sampler(seed, workers):
    for batch_size, drop_last in ((1, False), (4, False), (4, True)):
        batches = torch_data.BatchSampler(
            torch_data.RandomSampler(range(30), generator=generator(seed)), batch_size, drop_last
        )
        expected = passes(theirs(range(30), batch_sampler=batches), 3)
        own, other = (
            tundish.BatchSampler(
                tundish.RandomSampler(range(30), seed=seed, order="torch"), batch_size, drop_last
            )
            for _ in range(2)
        )
        assert len(own) == len(batches)
        loader = ours(range(30), batch_sampler=own, num_workers=workers)
        assert_same_passes(loader, expected)
        assert passes(other, 3) == expected


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 17, 33, 100])
def test_the_shares_of_a_distributed_sampler(n, shuffle, drop_last):
    for world, seed in itertools.product((1, 2, 3, 4, 7), (0, 7, 2**32 + 7, 2**63)):
        for rank in range(world):
            arguments = (range(n), world, rank, shuffle, seed, drop_last)
            sampler = torch_data.DistributedSampler(*arguments)
            own = tundish.DistributedSampler(*arguments, order="torch")
            assert len(own) == len(sampler)
            expected = []
            for epoch in (0, 1, 5):
                sampler.set_epoch(epoch)
                own.set_epoch(epoch)
                expected.append(list(sampler))
                assert list(own) == expected[-1]
            loader = ours(range(n), 4, sampler=own)
            got = [[i for batch in loader.epoch(epoch) for i in batch] for epoch in (0, 1, 5)]
            assert got == expected


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("n", "world"), [(5, 2), (17, 4), (16, 4), (33, 7)])
def test_the_ranks_of_an_epoch_are_a_distributed_samplers(n, world, drop_last):
    # No sampler at all: rank and world_size are arguments of the epoch, which can't be forgotten.
    loader = ours(range(n), 2)
    for rank in range(world):
        sampler = torch_data.DistributedSampler(range(n), world, rank, False, 0, drop_last)
        expected = list(theirs(range(n), 2, sampler=sampler))
        uneven = "drop" if drop_last else "pad"
        assert list(loader.epoch(3, rank=rank, world_size=world, uneven=uneven)) == expected


def test_a_distributed_loader_that_forgets_set_epoch_repeats_itself_there_and_not_here():
    sampler = torch_data.DistributedSampler(range(100), 2, 0)
    assert list(sampler) == list(sampler)
    own = tundish.DistributedSampler(range(100), 2, 0, order="torch")
    first, second = passes(own, 2)
    assert first == list(sampler)
    assert second != first
    sampler.set_epoch(1)
    assert second == list(sampler)


def test_ranks_come_from_the_process_group_in_both():
    for module, error in ((torch_data, ValueError), (tundish, tundish.ConfigError)):
        with pytest.raises(error, match="initiali"):
            module.DistributedSampler(range(10))
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        expected = list(torch_data.DistributedSampler(range(10), seed=7))
        assert list(tundish.DistributedSampler(range(10), seed=7, order="torch")) == expected
    finally:
        torch.distributed.destroy_process_group()


def test_a_generator_is_a_seed_and_an_order_here():
    with pytest.raises(tundish.ConfigError, match="seed="):
        tundish.RandomSampler(range(10), generator=generator(7))
    expected = list(torch_data.RandomSampler(range(10), generator=generator(7)))
    assert list(tundish.RandomSampler(range(10), seed=7, order="torch")) == expected


@pytest.mark.parametrize("lengths", [[7, 3], [10], [0, 10], [5, 5], [0.5, 0.5], [0.3, 0.3, 0.4]])
@EACH_SEED
def test_random_split(lengths, seed):
    dataset = list(range(100, 110))
    expected = torch_data.random_split(dataset, lengths, generator=generator(seed))
    parts = tundish.random_split(dataset, lengths, seed=seed, order="torch")
    assert [[part[i] for i in range(len(part))] for part in parts] == [
        list(part) for part in expected
    ]


@pytest.mark.filterwarnings(
    "ignore:Length of split at index 1 is 0:UserWarning",
    "ignore:random_split. part 1 is empty:UserWarning",
)
@pytest.mark.parametrize("lengths", [[1 / 3, 1 / 3, 1 / 3], [0.1, 0.2, 0.7], [0.99, 0.01]])
@pytest.mark.parametrize("n", [10, 11, 1000])
def test_the_lengths_of_fractions(n, lengths):
    expected = torch_data.random_split(range(n), lengths, generator=generator(7))
    parts = tundish.random_split(range(n), lengths, seed=7, order="torch")
    assert [len(part) for part in parts] == [len(part) for part in expected]


@pytest.mark.parametrize("lengths", [[7, 4], [0.5, 0.6], [1.5, -0.5]])
def test_lengths_that_neither_takes(lengths):
    with pytest.raises(ValueError):
        torch_data.random_split(range(10), lengths)
    with pytest.raises(tundish.ConfigError, match="lengths"):
        tundish.random_split(range(10), lengths)


def test_a_negative_length_counts_from_the_end_there_and_is_an_error_here():
    assert [len(part) for part in torch_data.random_split(range(10), [-1, 11])] == [9, 1]
    with pytest.raises(tundish.ConfigError, match="lengths"):
        tundish.random_split(range(10), [-1, 11])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("RandomSampler", (range(10), True, 0)),
        ("RandomSampler", (range(10), False, -1)),
        ("RandomSampler", (range(10), "yes")),
        ("RandomSampler", (range(10), False, 2.5)),
        ("WeightedRandomSampler", ([1.0], 0)),
        ("WeightedRandomSampler", ([1.0], True)),
        ("WeightedRandomSampler", ([[1.0]], 1)),
        ("WeightedRandomSampler", ([1.0], 1, "yes")),
        ("BatchSampler", (range(10), 0, False)),
        ("BatchSampler", (range(10), True, False)),
        ("BatchSampler", (range(10), 2, 1)),
        ("DistributedSampler", (range(10), 2, 2)),
        ("DistributedSampler", (range(10), 2, -1)),
    ],
)
def test_arguments_that_neither_takes(name, arguments):
    with pytest.raises((ValueError, TypeError)):
        getattr(torch_data, name)(*arguments)
    with pytest.raises(tundish.ConfigError):
        getattr(tundish, name)(*arguments)


def test_weights_that_cannot_be_drawn_are_refused_at_once_here_and_late_there():
    for weights, num_samples, replacement in [
        ([0.0, 0.0], 1, True),
        ([1.0, -1.0], 1, True),
        ([1.0, float("nan")], 1, True),
        ([1.0], 2, False),
    ]:
        late = torch_data.WeightedRandomSampler(weights, num_samples, replacement)
        with pytest.raises(RuntimeError):
            list(late)
        with pytest.raises(tundish.ConfigError):
            tundish.WeightedRandomSampler(weights, num_samples, replacement)
