"""The arguments, attributes and iterators of torch's DataLoader: the same in both."""

import pickle
import threading

import pytest
import torch
from torch.utils import data as torch_data

import tundish
from helpers.datasets import Range, Slow
from helpers.timing import MS
from parity.peers import PROCESSES, flat, generator, ours, passes, theirs
from parity.samples import Counted, Informed, Noisy, Noted, of_the_sample, of_torch

BOTH = pytest.mark.parametrize("make", [theirs, ours], ids=["torch", "tundish"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("n", "batch_size"), [(10, 4), (34, 16), (5, 8), (12, 3)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_same_batches_for_any_number_of_workers(n, batch_size, shuffle, workers):
    same = {"shuffle": shuffle, "num_workers": workers}
    other = theirs(Range(n), batch_size, generator=generator(7), **same)
    mine = ours(Range(n), batch_size, seed=7, order="torch", **same)
    assert passes(mine, 3) == passes(other, 3)
    assert len(mine) == len(other)


@BOTH
def test_out_of_order_gives_every_batch_once(make):
    loader = make(Slow(24, {0: 300 * MS}), 2, num_workers=2, in_order=False)
    for _ in range(2):
        found = list(loader)
        assert sorted(found) == [[k, k + 1] for k in range(0, 24, 2)]
        # A process may need longer to start than the slow sample takes.
        assert found[0] != [0, 1] or make is theirs


@BOTH
def test_worker_init_is_called_once_for_each_worker_with_its_number(make):
    calls = PROCESSES.SimpleQueue()
    loader = make(Slow(40, 10 * MS), 2, num_workers=2, worker_init_fn=Noted(calls))
    assert flat(loader) == list(range(40))
    found = []
    while not calls.empty():
        found.append(calls.get())
    assert sorted(worker for _, worker in found) == [0, 1]
    assert len({pid for pid, _ in found}) == (2 if make is theirs else 1)


def test_workers_live_on_between_epochs_as_persistent_ones_do():
    calls = []
    loader = ours(Slow(40, 10 * MS), 2, num_workers=2, worker_init_fn=calls.append)
    passes(loader, 3)
    assert sorted(calls) == [0, 1]


@pytest.mark.parametrize(
    ("make", "ask"),
    [(theirs, torch_data.get_worker_info), (ours, tundish.get_worker_info)],
    ids=["torch", "tundish"],
)
def test_worker_info_inside_and_outside_of_workers(make, ask):
    assert ask() is None
    found = flat(make(Informed(ask), 2, num_workers=2))
    assert {(worker, count, own) for worker, count, _, own in found} == {
        (0, 2, True),
        (1, 2, True),
    }
    assert len({(worker, seed) for worker, _, seed, _ in found}) == 2
    assert flat(make(Informed(ask), 2)) == [None] * 40


def test_workers_use_the_one_dataset_here_and_copies_there():
    mine, other = Range(20), Range(20)
    assert flat(ours(mine, 2, num_workers=2)) == flat(theirs(other, 2, num_workers=2))
    assert sorted(mine.asked) == list(range(20))
    assert other.asked == []


def test_noise_depends_on_the_number_of_workers_there_and_not_here():
    def drawn(make, draw, workers, **seed):
        torch.manual_seed(7)
        return flat(make(Noisy(12, draw), 3, num_workers=workers, **seed))

    assert drawn(theirs, of_torch, 0) != drawn(theirs, of_torch, 2)
    expected = drawn(ours, of_the_sample, 0, seed=7)
    assert len({value % 1 for value in expected}) == 12
    assert drawn(ours, of_the_sample, 2, seed=7) == expected


@BOTH
def test_collate_gets_the_list_of_samples(make):
    seen = []

    def collate(samples):
        seen.append(samples)
        return len(samples)

    assert list(make(Range(5), 2, collate_fn=collate)) == [2, 2, 1]
    assert seen == [[0, 1], [2, 3], [4]]


@BOTH
def test_the_arguments_are_attributes(make):
    dataset, sampler = Range(10), [1, 2, 3]

    def init(worker):
        pass

    given = {
        "batch_size": 2,
        "sampler": sampler,
        "num_workers": 1,
        "collate_fn": list,
        "drop_last": True,
        "timeout": 5.0,
        "worker_init_fn": init,
        "in_order": False,
    }
    loader = make(dataset, **given)
    assert loader.dataset is dataset
    assert {name: getattr(loader, name) for name in given} == given
    batches = [[1], [2]]
    loader = make(dataset, batch_sampler=batches)
    assert loader.batch_sampler is batches
    assert loader.batch_size is None


@pytest.mark.parametrize("name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset"])
def test_arguments_are_fixed_in_both(name):
    with pytest.raises(ValueError, match=name):
        setattr(theirs(Range(3)), name, 2)
    with pytest.raises(AttributeError, match=name):
        setattr(ours(Range(3)), name, 2)


def test_an_argument_in_each_of_torchs_places():
    places = (Range(10), 4, True)
    other = torch_data.DataLoader(*places, collate_fn=list, generator=generator(7))
    mine = tundish.DataLoader(*places, collate_fn=list, seed=7, order="torch")
    assert list(mine) == list(other)
    places = (Range(10), 2, None, [3, 1, 2])
    mine = tundish.DataLoader(*places, collate_fn=list)
    assert list(mine) == list(torch_data.DataLoader(*places, collate_fn=list)) == [[3, 1], [2]]
    places = (Range(10), 1, None, None, [[3, 1], [2]])
    mine = tundish.DataLoader(*places, collate_fn=list)
    assert list(mine) == list(torch_data.DataLoader(*places, collate_fn=list)) == [[3, 1], [2]]


# -- iterators ---------------------------------------------------------------------------------


@BOTH
def test_iterators_are_independent(make):
    loader = make(Range(4), 2)
    first, second = iter(loader), iter(loader)
    assert [next(first), next(second), next(first), next(second)] == [
        [0, 1],
        [0, 1],
        [2, 3],
        [2, 3],
    ]


@BOTH
def test_an_iterator_is_one_pass_and_has_its_length(make):
    iterator = iter(make(Range(5), 2))
    assert iter(iterator) is iterator
    assert len(iterator) == 3
    assert list(iterator) == [[0, 1], [2, 3], [4]]
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


@BOTH
def test_iterators_are_not_pickled(make):
    with pytest.raises((TypeError, NotImplementedError)):
        pickle.dumps(iter(make(Range(5), 2)))


def test_no_more_than_the_window_is_made_ahead():
    # torch: prefetch_factor * num_workers batches are asked for. Ours: num_workers + prefetch.
    counted = PROCESSES.Value("i", 0)
    for make, options, window in (
        (theirs, {"prefetch_factor": 3}, 6),
        (ours, {"prefetch": 4}, 6),
    ):
        counted.value = 0
        iterator = iter(make(Counted(1000, counted), 1, num_workers=2, **options))
        next(iterator)
        threading.Event().wait(200 * MS)
        assert counted.value <= window + 1
        del iterator


def test_a_subclass_keeps_its_own_attributes():
    class Own(tundish.DataLoader):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self._name = "own"

    assert [batch.tolist() for batch in Own([1, 2, 3], 2)] == [[1, 2], [3]]
    assert Own([1], 1)._name == "own"


def test_torch_takes_our_arrays_without_a_copy_or_a_warning():
    batch = next(iter(tundish.DataLoader([torch.arange(3.0)] * 4, 4)))
    tensor = torch.from_numpy(batch)
    tensor[0, 0] = 5
    assert batch[0, 0] == 5
