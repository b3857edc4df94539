"""Positions of a loader in process: taken at any batch, counting what was handed out."""

import itertools
import json
import time

import numpy as np
import pytest

from helpers.datasets import Range
from tundish import ArrayDataset, ConfigError, DataLoader, RandomSampler

WORKERS = pytest.mark.parametrize("workers", [0, 4])


def shuffled(n=100, batch_size=4, **options):
    return DataLoader(Range(n), batch_size, shuffle=True, **{"seed": 7, **options})


def saved(source):
    """The position as it comes back from a checkpoint."""
    return json.loads(json.dumps(source.state_dict()))


def rows(batches):
    return [batch.tolist() for batch in batches]


@WORKERS
@pytest.mark.parametrize("order", ["stable", "torch", "burn", "dataloader-rs"])
def test_a_position_goes_on_where_the_consumer_was(workers, order):
    loader = shuffled(num_workers=workers, order=order, prefetch=16)
    whole = rows(loader.epoch(1))
    assert [list(loader), loader.state_dict()["batch"]][1] == 25
    stream = iter(loader)
    seen = [next(stream).tolist() for _ in range(3)]
    time.sleep(0.05)  # what is prefetched meanwhile doesn't count
    state = saved(loader)
    assert (state["epoch"], state["batch"]) == (1, 3)

    other = shuffled(num_workers=3 - workers % 3, order=order)
    other.load_state_dict(state)
    assert saved(other) == state, "nothing was read yet"
    stream = iter(other)
    seen += [next(stream).tolist() for _ in range(4)]
    third = shuffled(order=order)  # twice in one epoch
    third.load_state_dict(saved(other))
    seen += rows(third)
    assert seen == whole
    assert rows(third) == rows(loader.epoch(2)), "and the next epoch follows"


def test_a_position_at_the_end_goes_on_with_the_next_epoch():
    loader = shuffled(10, 4)
    stream = iter(loader)
    for _ in range(3):
        next(stream)
    before_the_end_is_told = saved(loader)
    assert next(stream, None) is None
    assert saved(loader) == before_the_end_is_told
    assert (before_the_end_is_told["epoch"], before_the_end_is_told["batch"]) == (0, 3)
    other = shuffled(10, 4)
    other.load_state_dict(before_the_end_is_told)
    assert rows(other) == rows(loader.epoch(1))
    assert rows(loader.resume(before_the_end_is_told)) == []


def test_a_position_before_the_first_batch_is_the_epochs_start():
    loader = shuffled(10, 4)
    assert (saved(loader)["epoch"], saved(loader)["batch"]) == (0, 0)
    loader.set_epoch(5)
    assert (saved(loader)["epoch"], saved(loader)["batch"]) == (5, 0)
    other = shuffled(10, 4)
    other.load_state_dict(saved(loader))
    assert rows(other) == rows(loader.epoch(5))


def test_set_epoch_keeps_a_position_in_that_very_epoch():
    loader = shuffled()
    stream = loader.epoch(3)
    next(stream)
    state, rest = saved(stream), rows(stream)
    for epoch, expected in ((3, rest), (4, rows(loader.epoch(4)))):
        other = shuffled()
        other.load_state_dict(state)
        other.set_epoch(epoch)
        assert rows(other) == expected


def test_an_epoch_has_a_position_of_its_own():
    loader = shuffled()
    one, two = loader.epoch(3), loader.epoch(8, start=20)
    next(one)
    next(two)
    assert rows(loader.resume(saved(two))) == rows(loader.epoch(8, start=21))
    assert rows(loader.resume(saved(one))) == rows(loader.epoch(3, start=1))


def test_a_batch_size_of_its_own_is_part_of_the_position():
    loader = shuffled()
    stream = loader.epoch(3, batch_size=25)
    next(stream)
    state = saved(stream)
    assert state["batch_size"] == 25
    assert rows(shuffled().resume(state)) == rows(stream)


def test_an_error_counts_as_a_batch():
    class Bad(Range):
        def __getitem__(self, index):
            return 1 // (index - 2)

    stream = DataLoader(Bad(6), 2).epoch(0)
    next(stream)
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert stream.state_dict()["batch"] == 2


@pytest.mark.parametrize(
    ("other", "both"),
    [
        ({"seed": 8}, ("seed=7", "seed=8")),
        ({"n": 101}, ("samples=100", "samples=101")),
        ({"order": "torch"}, ("stable/1", "torch/1")),
        ({"drop_last": True}, ("drop_last=False", "drop_last=True")),
        ({"batch_size": 5}, ("batch_size=4", "batch_size=5")),
    ],
)
def test_a_position_that_would_mean_another_batch_is_refused_with_both_values(other, both):
    state = saved(shuffled().epoch(0))
    for go_on in (shuffled(**other).load_state_dict, shuffled(**other).resume):
        with pytest.raises(ConfigError) as caught:
            go_on(state)
        assert all(value in str(caught.value) for value in both)


@pytest.mark.parametrize("state", [{}, {"epoch": 1}, {"epoch": -1, "batch": 0}, [], "x"])
def test_what_is_no_position_is_refused(state):
    with pytest.raises(ConfigError, match="state"):
        shuffled().load_state_dict(state)


@WORKERS
def test_another_number_of_ranks_with_the_same_global_batch_goes_on(workers):
    loader = DataLoader(Range(96), 4, shuffle=True, seed=7, num_workers=workers)
    streams = [loader.epoch(0, rank=rank, world_size=4) for rank in range(4)]
    seen = [row for _ in range(2) for stream in streams for row in next(stream).tolist()]
    state = saved(streams[2])
    assert (state["rank"], state["world_size"], state["batch"]) == (2, 4, 2)
    on_two = [loader.resume(state, rank=rank, world_size=2) for rank in range(2)]
    assert [len(batch) for batch in on_two[0]] == [8] * 4
    on_two[0] = loader.resume(state, rank=0, world_size=2)
    seen += [row for stream in on_two for batch in stream for row in batch.tolist()]
    assert sorted(seen) == list(range(96))
    # Back to one: the same loader with the whole batch.
    whole = DataLoader(Range(96), 16, shuffle=True, seed=7)
    whole.load_state_dict(state)
    assert sorted(itertools.chain(*rows(whole))) == sorted(set(range(96)) - set(seen[:32]))
    with pytest.raises(ConfigError, match="world_size=3 does not divide.*16"):
        loader.resume(state, rank=0, world_size=3)
    with pytest.raises(ConfigError, match="loader.resume"):
        loader.load_state_dict(state)


def test_a_drawn_seed_is_taken_on_with_the_position():
    first = DataLoader(Range(50), 5, shuffle=True)
    stream = iter(first)
    next(stream)
    second = DataLoader(Range(50), 5, shuffle=True)
    assert second.seed != first.seed
    second.load_state_dict(saved(first))
    assert second.seed == first.seed
    assert rows(second) == rows(stream)


def test_a_samplers_drawn_seed_is_the_loaders():
    first = DataLoader(Range(50), 5, sampler=RandomSampler(50))
    again = DataLoader(Range(50), 5, sampler=RandomSampler(50), seed=first.seed)
    assert rows(again.epoch(3)) == rows(first.epoch(3))
    stream = iter(first)
    next(stream)
    second = DataLoader(Range(50), 5, sampler=RandomSampler(50))
    second.load_state_dict(saved(first))
    assert rows(second) == rows(stream)
    given = DataLoader(Range(50), 5, sampler=RandomSampler(50, seed=1), seed=first.seed)
    with pytest.raises(ConfigError, match=r"order=.*seed=1"):
        given.load_state_dict(saved(first))


def test_an_order_without_a_seed_goes_on_without_one():
    stream = DataLoader(Range(6), 2).epoch(0)
    next(stream)
    other = DataLoader(Range(6), 2)
    other.load_state_dict(saved(stream))
    assert rows(other) == [[2, 3], [4, 5]]


def test_batches_as_they_are_ready_have_no_position():
    loader = shuffled(in_order=False)
    with pytest.raises(ConfigError, match="in_order=False"):
        loader.state_dict()
    with pytest.raises(ConfigError, match="in_order=False"):
        loader.epoch(0).state_dict()


def test_taking_a_position_costs_the_same_anywhere():
    loader = DataLoader(ArrayDataset(np.broadcast_to(np.int8(1), 1 << 40)), 1, shuffle=True, seed=1)

    def seconds(start):
        stream = loader.epoch(0, start=start)
        next(stream)
        best = 1.0
        for _ in range(20):
            began = time.perf_counter()
            state = stream.state_dict()
            best = min(best, time.perf_counter() - began)
        assert state["batch"] == start + 1
        began = time.perf_counter()
        next(loader.resume(state))
        return best, time.perf_counter() - began

    near, far = seconds(0), seconds(10**12)
    assert far[0] < 20 * near[0] + 0.001
    assert far[1] < 0.5
