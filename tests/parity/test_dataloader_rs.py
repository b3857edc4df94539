"""dataloader-rs 0.2.0, from its own wheel: the same options give the same batches."""

import threading
import time

import numpy as np
import pytest
from dataloader_rs import PyDataloader

from helpers.datasets import Gate
from helpers.timing import MS, wait_for
from parity.peers import SEEDS, SIZES, assert_same_passes, ours, passes
from parity.rs import Bulk, Items, theirs
from tundish import DataLoader

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Busy:
    """How many threads were in `item` at a time, at most."""

    def __init__(self):
        self.lock = threading.Lock()
        self.now = self.most = 0

    def item(self, index):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(3 * MS)
        with self.lock:
            self.now -= 1
        return index


# -- order -------------------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", SIZES)
def test_shuffle_with_a_seed(n, seed, workers):
    for batch_size in (1, 4, 64):
        for drop_last in (False, True) if batch_size <= n else (False,):
            same = {"shuffle": True, "seed": seed, "drop_last": drop_last, "num_workers": workers}
            expected = passes(theirs(Items(n), batch_size, **same), 4)
            loader = ours(Items(n), batch_size, order="dataloader-rs", **same)
            assert_same_passes(loader, expected)


@WORKERS
@pytest.mark.parametrize("n", [0, 1, 10, 33])
def test_without_shuffle(n, workers):
    for drop_last in (False, True) if n >= 4 else (False,):
        same = {"drop_last": drop_last, "num_workers": workers}
        assert_same_passes(ours(Items(n), 4, **same), passes(theirs(Items(n), 4, **same), 2))


def test_a_far_epoch_asked_for_directly():
    expected = passes(theirs(Items(50), 8, shuffle=True, seed=7), 101)[100]
    assert list(ours(Items(50), 8, shuffle=True, seed=7, order="dataloader-rs").epoch(100)) == (
        expected
    )


def test_a_large_epoch():
    same = {"shuffle": True, "seed": 2**63}
    loader = ours(range(300_000), 4096, order="dataloader-rs", **same)
    assert_same_passes(loader, passes(theirs(Items(300_000), 4096, **same), 2))


def test_a_pass_left_early_leaves_the_next_one_as_it_is_in_both():
    left = theirs(Items(10), 4, shuffle=True, seed=7)
    loader = ours(Items(10), 4, shuffle=True, seed=7, order="dataloader-rs")
    for each in (left, loader):
        next(iter(each))
    assert list(loader) == list(left)


def test_a_drawn_seed_gives_another_order_each_time_in_both():
    for make in (
        lambda: theirs(Items(100), 100, shuffle=True),
        lambda: ours(Items(100), 100, shuffle=True, order="dataloader-rs"),
    ):
        assert list(make()) != list(make())


# -- options -----------------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("sampler", [[3, 1, 2, 0, 1], (5,), range(0, 10, 3), []])
def test_a_sampler(sampler, workers):
    for drop_last in (False, True) if len(sampler) >= 2 else (False,):
        same = {"sampler": sampler, "drop_last": drop_last, "num_workers": workers}
        other, loader = theirs(Items(10), 2, **same), ours(Items(10), 2, **same)
        assert len(loader) == len(other)
        assert_same_passes(loader, passes(other, 2))


def test_a_sampler_is_read_anew_each_pass_in_both():
    class Changing:
        indices = range(1)

        def __iter__(self):
            return iter(self.indices)

    for make in (theirs, ours):
        sampler = Changing()
        loader = make(Items(10), 2, sampler=sampler)
        for indices, expected in (([0], [[0]]), ([3, 1, 2], [[3, 1], [2]]), ([], [])):
            sampler.indices = indices
            assert list(iter(loader)) == expected


@WORKERS
def test_items_in_parallel_gives_the_same_batches(workers):
    def cell(index):
        return threading.current_thread().name, index

    same = {"num_workers": workers, "items_in_parallel": 3}
    for make in (theirs, ours):
        found = list(make(Items(24, cell), 8, **same))
        assert [[index for _, index in batch] for batch in found] == [
            list(range(k, k + 8)) for k in (0, 8, 16)
        ]
        threads = {name for batch in found for name, _ in batch}
        assert 1 <= len(threads) <= 3 * max(1, workers)


@WORKERS
@pytest.mark.parametrize("fetch", [list, tuple, iter, np.array])
def test_a_batched_fetch_is_used_by_both(fetch, workers):
    mine, other = Bulk(10, fetch), Bulk(10, fetch)
    assert list(ours(mine, 4, num_workers=workers)) == list(theirs(other, 4, num_workers=workers))
    assert sorted(mine.asked) == sorted(other.asked) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("lanes", [2, 4])
def test_a_batched_fetch_is_not_used_by_either_for_items_in_parallel(lanes):
    for make in (theirs, ours):
        dataset = Bulk(10)
        assert list(make(dataset, 5, items_in_parallel=lanes)) == [
            [0, 1, 2, 3, 4],
            [5, 6, 7, 8, 9],
        ]
        assert dataset.asked == []


@WORKERS
def test_collate_runs_on_the_worker_in_both(workers):
    def where(samples):
        return samples, threading.current_thread() is threading.main_thread()

    same = {"collate_fn": where, "num_workers": workers}
    expected = [([0, 1], workers == 0), ([2, 3], workers == 0)]
    assert list(theirs(Items(4), 2, **same)) == list(ours(Items(4), 2, **same)) == expected


def test_without_collate_a_batch_is_a_list_there_and_an_array_here():
    assert list(theirs(Items(3), 2)) == [[0, 1], [2]]
    assert [batch.tolist() for batch in DataLoader(Items(3), 2)] == [[0, 1], [2]]
    assert list(DataLoader(Items(3), 2, collate_fn=list)) == [[0, 1], [2]]


@WORKERS
def test_lengths(workers):
    for n, batch_size, drop_last in [(10, 4, False), (10, 4, True), (8, 4, True), (0, 4, False)]:
        same = {"drop_last": drop_last, "num_workers": workers}
        assert len(ours(Items(n), batch_size, **same)) == len(theirs(Items(n), batch_size, **same))
    iterator, epoch = iter(theirs(Items(10), 4)), iter(ours(Items(10), 4))
    assert len(iterator) == len(epoch) == 3
    next(iterator), next(epoch)
    # Theirs counts down; ours is the epoch's length, and `position` says how far it is.
    assert (len(iterator), len(epoch), epoch.position.batch) == (2, 3, 1)


@WORKERS
def test_at_most_workers_and_prefetch_batches_are_ahead_in_both(workers):
    same = {"num_workers": 2}
    for make, ahead in ((theirs, {"prefetch_depth": 3}), (ours, {"prefetch": 3})):
        dataset = Gate(100, closed_from=1)
        loader = make(Items(100, dataset.__getitem__), 1, **same, **ahead)
        iterator = iter(loader)
        assert next(iterator) == [0]
        wait_for(lambda: len(dataset.asked) >= 3, "both workers to be busy")
        dataset.opened.set()
        wait_for(lambda: len(dataset.asked) >= 6, "the window to be full")
        assert len(dataset.asked) <= 7


@WORKERS
def test_no_more_samples_at_once_than_workers_have_lanes(workers):
    for make in (theirs, ours):
        busy = Busy()
        loader = make(Items(48, busy.item), 8, num_workers=workers, items_in_parallel=3)
        assert [len(batch) for batch in loader] == [8] * 6
        assert 2 <= busy.most <= 3 * max(1, workers)


def test_more_workers_than_batches():
    same = {"num_workers": 7}
    assert list(ours(Items(3), 2, **same)) == list(theirs(Items(3), 2, **same)) == [[0, 1], [2]]


def test_arguments_stand_in_torchs_places_here_and_in_others_there():
    other = PyDataloader(Items(4), 2, True)  # a prefetch_depth of True
    assert list(other) == [[0, 1], [2, 3]]
    mine = DataLoader(Items(4), 2, True, seed=7, order="dataloader-rs", collate_fn=list)
    assert list(mine) == list(theirs(Items(4), 2, shuffle=True, seed=7))


def test_a_loader_has_attributes_here_and_none_there():
    assert [name for name in dir(theirs(Items(4), 2)) if not name.startswith("_")] == []
    assert ours(Items(4), 2).batch_size == 2
