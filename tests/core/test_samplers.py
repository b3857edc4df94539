"""PyTorch's samplers: their arguments, their indices, and the plans that loaders make of them."""

import json
import threading
from pathlib import Path

import pytest

from helpers.datasets import Range, outcomes
from tundish import (
    BatchSampler,
    ConfigError,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    _core,
)

VECTORS = json.loads((Path(__file__).parent / "sampler_vectors.json").read_text())
WEIGHTS = [0.1, 0.9, 0.4, 0.7, 3.0, 0.6, 0.0]
ORDERS = (
    "torch",
    "torch:shared",
    "torch:persistent",
    "torch:default",
    "torch:default:persistent",
)

#: The samplers of the vectors, given seed and order.
MAKE = {
    "random": lambda **own: RandomSampler(10, **own),
    "fewer": lambda **own: RandomSampler(10, num_samples=4, **own),
    "more": lambda **own: RandomSampler(10, num_samples=25, **own),
    "replacement": lambda **own: RandomSampler(10, True, **own),
    "replacement, more": lambda **own: RandomSampler(Range(10), True, 70, **own),
    "subset": lambda **own: SubsetRandomSampler([5, 3, 900, 3, 0, 17, 42], **own),
    "weighted": lambda **own: WeightedRandomSampler(WEIGHTS, 12, **own),
    "weighted, one": lambda **own: WeightedRandomSampler(WEIGHTS, 1, **own),
    "weighted without replacement": lambda **own: WeightedRandomSampler(WEIGHTS, 5, False, **own),
}
OTHERS = {
    "sequential": lambda **_: SequentialSampler(Range(10)),
    "distributed": lambda **own: DistributedSampler(11, 3, 1, **{"seed": 7, **own}),
    "empty": lambda **own: RandomSampler(0, **own),
    "no indices": lambda **own: SubsetRandomSampler([], **own),
}
EACH = pytest.mark.parametrize("kind", [*MAKE, *OTHERS])


def make(kind, **own):
    return {**MAKE, **OTHERS}[kind](**own)


def planned(plan):
    return [plan.indices(batch) for batch in range(plan.batches)]


def flat(lists):
    return [index for indices in lists for index in indices]


# -- what they give ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row", VECTORS["samplers"], ids=lambda row: f"{row['sampler']}-{row['seed']}"
)
def test_orders_of_torch_are_torchs(row):
    own = {"seed": row["seed"], "order": "torch"}
    sampler = make(row["sampler"], **own)
    assert [list(sampler) for _ in range(4)] == row["own"]
    for order in ORDERS:
        loader = DataLoader(range(1000), 4, sampler=make(row["sampler"], **{**own, "order": order}))
        assert [flat(outcomes(loader.epoch(epoch))) for epoch in range(4)] == row[order]
        assert [flat(outcomes(iter(loader))) for _ in range(2)] == row[order][:2]


@pytest.mark.parametrize(
    "row", VECTORS["distributed"], ids=lambda row: f"{row['n']}-{row['world']}"
)
def test_the_share_of_each_rank_is_torchs(row):
    for rank, passes in enumerate(row["ranks"]):
        arguments = (row["n"], row["world"], rank, row["shuffle"], row["seed"], row["drop_last"])
        sampler = DistributedSampler(*arguments, order="torch")
        loader = DataLoader(range(row["n"]), 4, sampler=sampler)
        assert len(sampler) == len(passes[0])
        assert (sampler.num_samples, sampler.total_size) == (
            len(sampler),
            row["world"] * len(sampler),
        )
        for epoch, expected in zip(VECTORS["distributed_epochs"], passes, strict=True):
            sampler.set_epoch(epoch)
            assert sampler.epoch == epoch
            assert list(sampler) == flat(outcomes(loader.epoch(epoch))) == expected


@pytest.mark.parametrize(
    "row",
    [row for row in VECTORS["distributed"] if row["shuffle"]],
    ids=lambda row: f"{row['n']}-{row['world']}",
)
def test_torchs_order_over_ranks_is_a_distributed_samplers(row):
    loader = DataLoader(range(row["n"]), 4, True, seed=row["seed"], order="torch")
    uneven = "drop" if row["drop_last"] else "pad"
    for rank, passes in enumerate(row["ranks"]):
        shard = {"rank": rank, "world_size": row["world"], "uneven": uneven}
        for epoch, expected in zip(VECTORS["distributed_epochs"], passes, strict=True):
            assert flat(outcomes(loader.epoch(epoch, **shard))) == expected


def test_torchs_order_of_one_rank_is_not_that_of_several():
    loader = DataLoader(range(100), 4, True, seed=7, order="torch")
    state = lambda world: loader.epoch(0, rank=0, world_size=world).state_dict()
    order = lambda world: state(world)["fingerprint"]["order"]
    assert [order(world) for world in (1, 2, 4)] == [
        "torch/1",
        "torch:distributed/1",
        "torch:distributed/1",
    ]
    state = loader.epoch(0, start=2, rank=0, world_size=2).state_dict()
    with pytest.raises(ConfigError, match="torch:distributed/1.*torch/1"):
        loader.resume(state, rank=0, world_size=1)
    parts = [flat(outcomes(loader.resume(state, rank=rank, world_size=4))) for rank in range(4)]
    seen = [flat(outcomes(loader.epoch(0, rank=rank, world_size=2)))[:8] for rank in range(2)]
    assert sorted(flat(parts) + flat(seen)) == list(range(100))


def test_vectors_that_torch_itself_wrote():
    for row in VECTORS["checked"]["torch_weighted"]:
        arguments = (row["weights"], row["num_samples"], row["replacement"])
        sampler = WeightedRandomSampler(*arguments, seed=row["seed"], order="torch")
        assert [list(sampler) for _ in row["draws"]] == row["draws"]
    for row in VECTORS["checked"]["torch_replacement"]:
        own = {"num_samples": row["num_samples"], "seed": row["seed"], "order": "torch"}
        sampler = RandomSampler(row["n"], True, **own)
        assert [list(sampler) for _ in row["draws"]] == row["draws"]
    for row in VECTORS["checked"]["torch_distributed"]:
        for rank, passes in enumerate(row["rank_epochs"]):
            sampler = DistributedSampler(
                row["n"], row["world"], rank, True, row["seed"], row["drop_last"], order="torch"
            )
            assert [list(sampler) for _ in passes] == passes


def test_a_stable_permutation_is_that_of_a_shuffled_loader():
    for n in (1, 10, 1000):
        loader = DataLoader(Range(n), 10, True, seed=7)
        sampler = RandomSampler(n, seed=7)
        for _ in range(3):
            assert list(sampler) == flat(outcomes(iter(loader)))
    ranks = [DistributedSampler(10, 2, rank, seed=7) for rank in range(2)]
    for epoch in range(3):
        shares = [list(sampler) for sampler in ranks]
        loader = DataLoader(Range(10), 3, True, seed=7)
        own = [flat(outcomes(loader.epoch(epoch, rank=rank, world_size=2))) for rank in range(2)]
        assert shares == own


def test_what_is_drawn_is_what_was_asked_for():
    assert list(SequentialSampler(Range(4))) == list(SequentialSampler(4)) == [0, 1, 2, 3]
    random = RandomSampler(100, seed=1)
    first, second = list(random), list(random)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    repeated = list(RandomSampler(10, True, 1000, seed=1))
    assert set(repeated) == set(range(10))
    subset = SubsetRandomSampler([7, 7, 3], seed=1)
    assert sorted(subset) == [3, 7, 7]
    weighted = list(WeightedRandomSampler([1, 0, 3], 4000, seed=1))
    assert 0.7 < weighted.count(2) / 4000 < 0.8
    assert weighted.count(1) == 0
    assert sorted(WeightedRandomSampler([1, 0, 3], 2, False, seed=1)) == [0, 2]


@EACH
def test_iterating_and_every_way_of_planning_agree(kind):
    sampler = make(kind)
    for epoch in (0, 1, 5):
        sampler.set_epoch(epoch)
        expected = list(sampler)
        assert len(expected) == len(sampler)
        for size in (1, 3, 100):
            assert flat(planned(sampler._plan(epoch, size, False, 0, 1, "pad"))) == expected
        cut = planned(sampler._plan(epoch, 3, True, 0, 1, "pad"))
        assert flat(cut) == expected[: len(expected) // 3 * 3]
        # A seed that the sampler drew gives way to the loader's.
        loader = DataLoader(range(1000), 3, sampler=sampler, seed=sampler._seed or 0)
        assert len(loader) == -(-len(expected) // 3)
        assert flat(outcomes(loader.epoch(epoch))) == expected
        tail = outcomes(loader.epoch(epoch, start=min(1, len(loader))))
        assert flat(tail) == expected[3:]


@EACH
def test_indices_are_plain_ints_from_blocks_that_are_computed_when_needed(kind):
    assert {type(index) for index in make(kind)} <= {int}


def test_a_long_epoch_begins_at_once_and_comes_block_by_block():
    indices = iter(RandomSampler(2**40, seed=7))
    first = [next(indices) for _ in range(10_000)]
    assert len(set(first)) == 10_000
    assert len(RandomSampler(2**40)) == 2**40
    sampler = RandomSampler(9000, seed=7)
    assert sorted(sampler) == list(range(9000))


@EACH
def test_passes_of_one_sampler_are_separate(kind):
    sampler, other = make(kind, seed=7), make(kind, seed=7)
    passes = [iter(sampler) for _ in range(3)]
    assert iter(passes[0]) is passes[0]
    together = [[next(one, None) for one in passes] for _ in range(len(sampler))]
    expected = [list(other) for _ in range(3)]
    assert [list(column) for column in zip(*together, strict=True)] == (
        expected if together else []
    )
    for one in passes:
        assert [next(one, None), next(one, None)] == [None, None]


def test_threads_that_begin_passes_at_once_get_an_epoch_each():
    sampler = RandomSampler(50, seed=7)
    expected = {tuple(RandomSampler(50, seed=7)._plan(epoch, 50).indices(0)) for epoch in range(40)}
    barrier, found = threading.Barrier(4), []

    def work():
        barrier.wait(10)
        found.extend(tuple(sampler) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert set(found) == expected


def test_the_length_of_a_data_source_is_the_present_one():
    source = [0] * 3
    samplers = RandomSampler(source), SequentialSampler(source), DistributedSampler(source, 2, 0)
    assert [len(sampler) for sampler in samplers] == [3, 3, 2]
    source.extend([0] * 4)
    assert [len(sampler) for sampler in samplers] == [7, 7, 4]
    assert sorted(samplers[0]) == sorted(samplers[1]) == list(range(7))
    assert len(list(samplers[2])) == 4


# -- ranks and loaders ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("uneven", ["pad", "drop", "keep"])
def test_ranks_share_what_a_sampler_gives(kind, uneven):
    sampler = make(kind, seed=7)
    whole = sampler._plan(3, 1000).indices(0)
    for world in (2, 3):
        for rank in range(world):
            places = _core.Plan(len(whole), "sequential", 0, 3, 2, False, rank, world, uneven)
            plan = sampler._plan(3, 2, False, rank, world, uneven)
            assert planned(plan) == [[whole[i] for i in places] for places in planned(places)]
            assert (plan.padded, plan.dropped) == (places.padded, places.dropped)


def test_a_distributed_sampler_is_not_split_again():
    sampler = DistributedSampler(10, 2, 1)
    loader = DataLoader(Range(10), 2, sampler=sampler)
    with pytest.raises(ConfigError, match="world_size=4.*rank 1 of 2 already"):
        loader.epoch(0, rank=0, world_size=4)
    with pytest.raises(ConfigError, match="uneven='keep'"):
        loader.epoch(0, uneven="keep")
    assert len(loader) == 3


def test_a_batch_sampler_makes_lists():
    batches = BatchSampler(SequentialSampler(7), 3)
    assert list(batches) == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(batches) == 3
    assert (batches.batch_size, batches.drop_last) == (3, False)
    assert list(BatchSampler(range(7), 3, True)) == [[0, 1, 2], [3, 4, 5]]
    assert len(BatchSampler(range(7), 3, drop_last=True)) == 2
    assert list(BatchSampler([], 3)) == []
    with pytest.raises(TypeError):
        len(BatchSampler(Unsized(), 2))


class Unsized:
    def __iter__(self):
        return iter([4, 5, 6])


def test_a_batch_sampler_in_a_loader_is_its_sampler_with_a_batch_size():
    for drop_last in (False, True):
        inner = RandomSampler(10, seed=7)
        loader = DataLoader(Range(10), batch_sampler=BatchSampler(inner, 4, drop_last))
        plain = DataLoader(Range(10), 4, sampler=inner, drop_last=drop_last)
        assert [outcomes(loader.epoch(e)) for e in range(3)] == [
            outcomes(plain.epoch(e)) for e in range(3)
        ]
        assert len(loader) == len(plain)
        assert isinstance(loader._plan(0), _core.Plan)
    loader = DataLoader(Range(10), batch_sampler=BatchSampler(Unsized(), 2))
    assert outcomes(iter(loader)) == [[4, 5], [6]]


def test_a_batch_sampler_tells_its_sampler_the_epoch():
    inner = RandomSampler(10, seed=7)
    batches = BatchSampler(inner, 100)
    batches.set_epoch(4)
    assert next(iter(batches)) == RandomSampler(10, seed=7)._plan(4, 10).indices(0)
    BatchSampler([1, 2], 1).set_epoch(4)


class Reversed(RandomSampler):
    def __iter__(self):
        return iter(list(super().__iter__())[::-1])


class Renamed(RandomSampler):
    pass


class Rebatched(BatchSampler):
    def __len__(self):
        return 2

    def __iter__(self):
        return iter([[1, 2], [3]])


def test_what_a_subclass_says_itself_is_heeded():
    forward = RandomSampler(10, seed=7)
    loader = DataLoader(Range(10), 10, sampler=Reversed(10, seed=7))
    for epoch in range(3):
        assert outcomes(loader.epoch(epoch)) == [forward._plan(epoch, 10).indices(0)[::-1]]
    assert not isinstance(loader._plan(0), _core.Plan)
    assert isinstance(DataLoader(Range(10), sampler=Renamed(10))._plan(0), _core.Plan)
    loader = DataLoader(Range(10), batch_sampler=Rebatched(forward, 4))
    assert outcomes(loader.epoch(0)) == [[1, 2], [3]]


def test_a_sampler_of_the_users_needs_no_more_than_iter():
    class Evens(Sampler[int]):
        def __init__(self, source):
            super().__init__(source)
            self.source = source

        def __iter__(self):
            return iter(range(0, len(self.source), 2))

    assert outcomes(iter(DataLoader(Range(5), 2, sampler=Evens(Range(5))))) == [[0, 2], [4]]
    with pytest.raises(NotImplementedError, match="Sampler needs an __iter__"):
        iter(Sampler())
