"""What belongs to one worker: its dataset, its number, its initialisation."""

import asyncio
import copy
import gc
import logging
import pickle
import threading
import weakref

import pytest

from helpers.datasets import Range, outcomes
from helpers.forked import told
from helpers.timing import MS, wait_for
from tundish import (
    ConfigError,
    DataLoader,
    DatasetFactory,
    IterableDataset,
    MapDataset,
    Subset,
    get_worker_info,
    per_worker,
)

WORKERS = pytest.mark.parametrize("workers", [0, 4])
RECORDS, RECORD = 4000, 4096


class Records:
    """Numbered records of a file that is sought and read, as datasets for processes do."""

    def __init__(self, path):
        self.file = open(path, "rb", buffering=0)

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        self.file.seek(index * RECORD)
        return int.from_bytes(self.file.read(RECORD)[-8:], "little")

    def close(self):
        self.file.close()


class Owned(Range):
    """Notes which thread made it and which threads use it."""

    made = []

    def __init__(self, n=16):
        super().__init__(n)
        self.owner = threading.get_ident()
        self.closed_by = None
        self.made.append(self)

    def __len__(self):
        assert threading.get_ident() == self.owner
        return self.n

    def __getitem__(self, index):
        assert threading.get_ident() == self.owner
        assert self.closed_by is None
        self.asked.append(index)
        return index

    def close(self):
        self.closed_by = threading.get_ident()


@pytest.fixture
def made():
    """The instances of Owned that this test makes."""
    Owned.made = []
    yield Owned.made
    Owned.made = []


def owners(made):
    return [dataset.owner for dataset in made]


def elsewhere(call):
    """What `call` returns in a thread of its own, which then ends."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


# -- a dataset for every thread ------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "lanes"), [(0, 1), (4, 1), (2, 2), (0, 4)])
def test_threads_do_not_share_a_file_position(tmp_path, workers, lanes):
    path = tmp_path / "records"
    path.write_bytes(b"".join(k.to_bytes(8, "little").rjust(RECORD) for k in range(RECORDS)))
    loader = DataLoader(
        DatasetFactory(lambda: Records(path)),
        50,
        num_workers=workers,
        items_in_parallel=lanes,
    )
    assert [number for batch in loader for number in batch.tolist()] == [*range(RECORDS)]
    loader.close()
    gc.collect()


@pytest.mark.parametrize(("workers", "lanes", "most"), [(0, 1, 1), (3, 1, 4), (2, 3, 7), (0, 3, 4)])
def test_every_thread_uses_the_dataset_that_it_made(made, workers, lanes, most):
    loader = DataLoader(DatasetFactory(Owned), 2, num_workers=workers, items_in_parallel=lanes)
    for _ in range(3):
        assert outcomes(iter(loader)) == [[k, k + 1] for k in range(0, 16, 2)]
    assert len({*owners(made)}) == len(made) <= most
    assert made[0].owner == threading.get_ident()


def test_the_length_is_that_of_the_asking_threads_dataset(made):
    factory = DatasetFactory(lambda: Owned(5))
    assert (len(factory), len(factory), len(made)) == (5, 5, 1)
    assert (elsewhere(lambda: len(factory)), len(made)) == (5, 2)
    assert made[1].closed_by == made[1].owner


@WORKERS
def test_a_batched_fetch_of_the_dataset_is_used(workers):
    class Together(Range):
        def __getitems__(self, indices):
            return [-index for index in indices]

    loader = DataLoader(DatasetFactory(lambda: Together(4)), 2, num_workers=workers)
    assert outcomes(iter(loader)) == [[0, -1], [-2, -3]]


@WORKERS
@pytest.mark.parametrize("lanes", [1, 2])
def test_coroutines_of_the_dataset_are_awaited(workers, lanes):
    class Async(Range):
        async def __getitem__(self, index):
            await asyncio.sleep(0)
            return index

    loader = DataLoader(
        DatasetFactory(lambda: Async(4)), 2, num_workers=workers, items_in_parallel=lanes
    )
    assert outcomes(iter(loader)) == [[0, 1], [2, 3]]


@WORKERS
def test_views_may_be_made_of_a_factory(made, workers):
    view = MapDataset(Subset(DatasetFactory(Owned), [3, 1, 2]), lambda sample: 10 * sample)
    assert outcomes(iter(DataLoader(view, 2, num_workers=workers))) == [[30, 10], [20]]
    assert len({*owners(made)}) == len(made)


def flaky(failures, dataset):
    """A function that raises `failures`, one after the other, and then returns `dataset`."""

    def function():
        if failures:
            raise failures.pop(0)
        return dataset

    return function


@WORKERS
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_dataset_that_can_not_be_made_is_the_error_of_its_batch(workers, lanes, policy):
    first = OSError(2, "No such", "/x/y")
    failures = []
    function = flaky(failures, Range(6))
    loader = DataLoader(
        DatasetFactory(function),
        6,
        num_workers=min(workers, 1),
        items_in_parallel=lanes,
        on_error=policy,
    )
    # The length is asked for by another thread, so those that load have no dataset yet.
    epochs = elsewhere(lambda: [loader.epoch(0), loader.epoch(1)])
    failures.append(first)
    assert [outcomes(epoch) for epoch in epochs] == [[first], [[0, 1, 2, 3, 4, 5]]]
    (note,) = first.__notes__
    assert note == "tundish: in DatasetFactory(flaky.<locals>.function), batch 0 of epoch 0"


@WORKERS
def test_what_would_end_the_process_is_an_error_too(workers):
    failures = []
    loader = DataLoader(DatasetFactory(flaky(failures, Range(4))), 2, num_workers=workers)
    epoch = elsewhere(loader.__iter__)
    failures += [SystemExit(3)] * 2
    found = outcomes(epoch)
    assert [type(error) for error in found] == [RuntimeError] * 2
    assert "raised SystemExit(3)" in str(found[0])


def test_an_error_of_the_function_comes_from_the_length_too():
    loader = DataLoader(DatasetFactory(flaky([OSError("gone")], Range(2))))
    with pytest.raises(OSError, match="gone"):
        len(loader)
    assert len(loader) == 2


@pytest.mark.parametrize("value", [None, 3, iter([1])])
def test_a_function_must_return_a_dataset(value):
    with pytest.raises(TypeError, match=rf"returned {type(value).__name__}, which has no __getit"):
        len(DatasetFactory(lambda: value))


async def later():
    return Range(3)


@pytest.mark.parametrize("function", [None, [1, 2], later])
def test_what_can_not_be_called_for_a_dataset_is_refused(function):
    with pytest.raises(ConfigError, match=r"function=.* must be callable without arguments"):
        DatasetFactory(function)


def test_a_factory_can_be_pickled_copied_and_printed(made):
    factory = DatasetFactory(Owned)
    assert len(factory) == 16
    for other in (pickle.loads(pickle.dumps(factory)), copy.deepcopy(factory)):
        assert (len(other), other[3]) == (16, 3)
    assert len(made) == 3
    assert repr(factory) == "DatasetFactory(Owned)"


# -- its end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "free"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_dataset_is_closed_by_its_thread_when_the_loader_ends(made, how, lanes):
    loader = DataLoader(DatasetFactory(Owned), 2, num_workers=2, items_in_parallel=lanes)
    assert len(outcomes(iter(loader))) == 8
    own, *theirs = made
    assert theirs
    assert [dataset.closed_by for dataset in made] == [None] * len(made)
    factory = weakref.ref(loader.dataset)
    if how == "close":
        loader.close()
    else:
        del loader
        gc.collect()
    wait_for(lambda: all(dataset.closed_by for dataset in theirs), "the workers to close theirs")
    assert [dataset.closed_by for dataset in theirs] == owners(theirs)
    if how == "close":
        assert own.closed_by is None
        del loader
        gc.collect()
    wait_for(lambda: factory() is None, "the last worker to let go of the factory")
    if own.closed_by is None:  # it was the last: this thread learns of it at its next dataset
        assert len(DatasetFactory(lambda: Range(3))) == 3
    assert own.closed_by == own.owner


def test_a_dataset_is_closed_by_the_thread_that_frees_the_factory(made):
    factory = DatasetFactory(Owned)
    assert len(factory) == 16
    del factory
    assert [dataset.closed_by for dataset in made] == [threading.get_ident()]


def test_a_dataset_of_a_factory_freed_elsewhere_is_closed_at_the_next_one(made):
    factories = [DatasetFactory(Owned)]
    assert len(factories[0]) == 16
    thread = threading.Thread(target=factories.clear)
    thread.start()
    thread.join()
    assert made[0].closed_by is None  # not by a thread that isn't its own
    assert len(DatasetFactory(lambda: Range(3))) == 3
    assert made[0].closed_by == made[0].owner


def test_a_factory_can_be_freed_while_a_thread_makes_its_place(monkeypatch):
    """A collection of garbage can run there, in any allocation."""
    factory = DatasetFactory(Owned)
    monkeypatch.setattr(per_worker, "_here", threading.local())
    del factory  # an exception would be an unraisable one, which fails the test
    gc.collect()


def test_a_dataset_is_freed_with_its_thread():
    alive = []

    def function():
        dataset = Range(4)
        alive.append(weakref.ref(dataset))
        return dataset

    loader = DataLoader(DatasetFactory(function), 2, num_workers=2)
    assert len(outcomes(iter(loader))) == 2
    loader.close()
    wait_for(lambda: sum(reference() is not None for reference in alive) == 1, "theirs to go")


def test_a_close_that_fails_is_logged(caplog):
    class Failing(Range):
        def close(self):
            raise OSError("already gone")

    factory = DatasetFactory(lambda: Failing(2))
    assert len(factory) == 2
    with caplog.at_level(logging.WARNING, "tundish.loader"):
        del factory
        gc.collect()
    (record,) = caplog.records
    assert record.name == "tundish.loader"
    assert "close()" in record.getMessage()
    assert "already gone" in str(record.exc_info[1])


def test_a_close_that_has_to_be_awaited_is_not_called():
    class Async(Range):
        async def close(self):
            raise AssertionError

    factory = DatasetFactory(lambda: Async(2))
    assert len(factory) == 2
    del factory  # a coroutine that nobody awaits would be a warning, which is an error here
    gc.collect()


def test_a_forked_child_makes_its_own_and_leaves_the_parents_alone(made):
    factories = [DatasetFactory(Owned)]
    assert factories[0][1] == 1

    def child():
        epoch = iter(DataLoader(factories[0], 8, num_workers=2))
        found = outcomes(epoch), factories[0][2]
        del epoch
        factories.clear()
        gc.collect()
        return found, made[0].asked, made[0].closed_by

    assert told(child) == str(((([[*range(8)], [*range(8, 16)]]), 2), [1], None))
    assert (made[0].asked, len(made)) == ([1], 1)


def test_a_forked_child_does_not_close_what_it_never_asked_for(made):
    factories = [DatasetFactory(Owned)]
    assert factories[0][1] == 1

    def child():
        factories.clear()
        gc.collect()
        return made[0].closed_by

    assert told(child) == "None"
    factories.clear()
    assert made[0].closed_by == made[0].owner


# -- numbers of workers --------------------------------------------------------------------------


class Told(Range):
    """Item i is the description of the worker that loads it."""

    def __getitem__(self, index):
        info = get_worker_info()
        return None if info is None else (info.id, info.num_workers, info.seed, info.dataset)


class AsyncTold(Told):
    async def __getitem__(self, index):
        await asyncio.sleep(0)
        return super().__getitem__(index)


@pytest.mark.parametrize("kind", [Told, AsyncTold])
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_sample_is_told_its_worker(kind, lanes):
    dataset = kind(40)
    loader = DataLoader(dataset, 2, num_workers=3, seed=5, collate_fn=list, items_in_parallel=lanes)
    seen = {told for batch in loader for told in batch}
    assert seen <= {(number, 3, 5 + number, dataset) for number in range(3)}


def test_seeds_of_workers_stay_in_range():
    loader = DataLoader(Told(40), 2, num_workers=2, seed=2**64 - 1, collate_fn=list)
    assert {told[2] for batch in loader for told in batch} <= {2**64 - 1, 0}


def test_the_collate_fn_is_told_its_worker_too():
    barrier = threading.Barrier(3)

    def collate(samples):
        barrier.wait(5000 * MS)
        return get_worker_info().id

    loader = DataLoader(Range(3), num_workers=3, collate_fn=collate)
    assert sorted(loader) == [0, 1, 2]


def test_outside_of_workers_there_is_none():
    assert get_worker_info() is None
    loader = DataLoader(Told(4), 2, collate_fn=list)
    assert [*loader] == [[None, None]] * 2


async def test_one_worker_stands_in_for_none_under_async_for():
    dataset = Told(4)
    loader = DataLoader(dataset, 2, seed=5, collate_fn=list)
    assert [batch async for batch in loader] == [[(0, 1, 5, dataset)] * 2] * 2


def test_an_iterable_dataset_is_not_to_be_split_by_workers():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from [get_worker_info() is None] * 3

    loader = DataLoader(Stream(), 2, num_workers=2)
    assert outcomes(iter(loader)) == [[True, True], [True]]


def test_a_worker_is_told_its_own_dataset(made):
    def collate(samples):
        return get_worker_info().dataset

    loader = DataLoader(DatasetFactory(Owned), 2, num_workers=2, collate_fn=collate)
    assert {id(dataset) for dataset in loader} <= {id(dataset) for dataset in made[1:]}


def test_the_description_of_a_worker_is_short():
    loader = DataLoader(
        Range(1), num_workers=1, seed=5, collate_fn=lambda _: repr(get_worker_info())
    )
    assert [*loader] == ["WorkerInfo(id=0, num_workers=1, seed=5)"]


# -- worker_init_fn ------------------------------------------------------------------------------


def test_every_worker_is_initialised_once_before_its_first_batch():
    barrier = threading.Barrier(3)
    calls, local = [], threading.local()

    def initialise(number):
        assert get_worker_info().id == number
        calls.append(number)
        local.number = number

    def collate(samples):
        barrier.wait(5000 * MS)
        assert local.number == get_worker_info().id
        return local.number

    loader = DataLoader(Range(3), num_workers=3, worker_init_fn=initialise, collate_fn=collate)
    for _ in range(3):
        assert sorted(loader) == [0, 1, 2]
    assert sorted(calls) == [0, 1, 2]
    loader.close()  # the next epoch has new workers
    assert sorted(loader) == [0, 1, 2]
    assert sorted(calls) == [0, 0, 1, 1, 2, 2]


def test_the_consumers_own_thread_is_not_initialised():
    calls = []
    loader = DataLoader(Range(4), 2, worker_init_fn=calls.append)
    assert outcomes(iter(loader)) == [[0, 1], [2, 3]]
    assert calls == []


@pytest.mark.parametrize("error", [OSError("no device"), SystemExit(3)])
def test_a_failing_initialisation_is_the_error_of_its_batch_and_tried_again(error):
    failures = [error]

    def initialise(number):
        if failures:
            raise failures.pop()

    loader = DataLoader(Range(4), 2, num_workers=1, worker_init_fn=initialise)
    failed, *rest = outcomes(iter(loader))
    assert rest == [[2, 3]]
    assert failed is error or failed.__cause__ is error
    assert failed.__notes__ == ["tundish: in worker_init_fn(0), batch 0 of epoch 0"]
