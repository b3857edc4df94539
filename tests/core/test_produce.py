"""What user code raises or returns, and whose error that is."""

import asyncio
import gc
import itertools
import os
import signal
import weakref

import numpy as np
import pytest

from helpers.datasets import MODES, Fail, Range, outcomes
from helpers.timing import MS, wait_for
from tundish import ConfigError, DataLoader, _core, default_collate
from tundish_client._protocol.values import resolve, unpack

WORKERS = pytest.mark.parametrize("workers", [0, 4])
CONTROL = [
    StopIteration("x"),
    StopAsyncIteration(),
    GeneratorExit(),
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
]


class Two(Exception):
    def __init__(self, a, *, code):
        super().__init__(a)
        self.a, self.code = a, code


# -- exceptions --------------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("error", [OSError(2, "No such", "/x/y"), KeyError("k"), Two(1, code=2)])
def test_an_exception_arrives_as_itself_with_a_note_of_its_place(workers, error):
    loader = DataLoader(Fail(6, {3: error}), 2, num_workers=workers)
    found = outcomes(loader.epoch(5))
    assert found[1] is error
    assert error.__notes__ == ["tundish: in dataset[3], batch 1 of epoch 5"]
    assert error.__traceback__ is not None


@WORKERS
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", CONTROL, ids=lambda error: type(error).__name__)
def test_what_would_end_a_loop_or_a_process_is_a_runtime_error_of_its_batch(workers, mode, error):
    found = outcomes(iter(DataLoader(Fail(8, {5: error}), 2, num_workers=workers)), mode)
    assert [found[0], found[1], found[3]] == [[0, 1], [2, 3], [6, 7]]
    assert type(found[2]) is RuntimeError
    assert f"dataset[5] raised {error!r}" in str(found[2])
    assert found[2].__cause__ is error
    assert len(found) == 4


@WORKERS
@pytest.mark.parametrize("error", [ValueError("no"), *CONTROL], ids=lambda e: type(e).__name__)
def test_errors_of_the_collate_fn_name_the_indices(workers, error):
    def collate(samples):
        if 2 in samples:
            raise error
        return samples

    loader = DataLoader(Range(6), 2, collate_fn=collate, num_workers=workers)
    found = outcomes(iter(loader))
    assert [found[0], found[2]] == [[0, 1], [4, 5]]
    assert isinstance(found[1], (ValueError, RuntimeError))
    assert "collate_fn, for dataset indices [2, 3], batch 1 of epoch 0" in found[1].__notes__[0]


@WORKERS
def test_an_exception_that_refuses_notes_is_kept(workers):
    class Frozen(Exception):
        def add_note(self, note):
            raise ValueError(note)

    error = Frozen("as it is")
    assert outcomes(iter(DataLoader(Fail(2, {0: error}), num_workers=workers)))[0] is error


@WORKERS
def test_an_exception_that_can_not_be_printed_is_kept(workers):
    class Silent(SystemExit):
        def __repr__(self):
            raise ValueError

    found = outcomes(iter(DataLoader(Fail(2, {0: Silent()}), num_workers=workers)))
    assert "Silent(...)" in str(found[0])


def test_deep_recursion_in_a_worker_is_an_error_of_its_batch():
    class Deep(Range):
        def __getitem__(self, index):
            return self[index] if index == 2 else index

    found = outcomes(iter(DataLoader(Deep(6), 2, num_workers=2)))
    assert [found[0], found[2]] == [[0, 1], [4, 5]]
    assert type(found[1]) is RecursionError


# -- what errors leave behind --------------------------------------------------------------------


class Weighty:
    """A sample that can be watched."""


class Watched(Range):
    """Items 2 and 3 fail; whatever was loaded or raised is watched."""

    def __init__(self, n, watched):
        super().__init__(n)
        self.watched = watched

    def watch(self, thing):
        self.watched.append(weakref.ref(thing))
        return thing

    def __getitem__(self, index):
        if index in {2, 3}:
            raise self.watch(Two(index, code=index))
        return self.watch(Weighty())


class WatchedAsync(Watched):
    async def __getitem__(self, index):
        await asyncio.sleep(0)
        return super().__getitem__(index)


class WatchedTogether(Watched):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [Watched, WatchedAsync, WatchedTogether])
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize(
    ("policy", "size", "failures"), [("raise", 4, 1), ("skip", 4, 0), ("skip", 1, 2)]
)
def test_errors_free_what_they_saw_without_the_garbage_collector(
    kind, lanes, policy, size, failures
):
    watched = []
    loader = DataLoader(
        kind(8, watched), size, collate_fn=len, items_in_parallel=lanes, on_error=policy
    )
    gc.collect()
    gc.disable()
    try:
        cells = encoded(loader, 8 // size)
        assert [type(cell) for cell in cells].count(_core.Failure) == failures
        assert len(watched) >= 7
        del cells
        wait_for(lambda: not any(reference() for reference in watched), "everything to be freed")
    finally:
        gc.enable()


# -- real signals ------------------------------------------------------------------------------


class Signals(Range):
    """Item 2 sends this process a signal the first time it is read."""

    def __init__(self, n, number):
        super().__init__(n)
        self.number = number

    def __getitem__(self, index):
        if index == 2 and index not in self.asked:
            self.asked.append(index)
            os.kill(os.getpid(), self.number)
        return index


@WORKERS
def test_an_interrupt_of_the_user_is_not_the_batchs_error(workers):
    epoch = iter(DataLoader(Signals(6, signal.SIGINT), 2, num_workers=workers))
    found, interrupts = [], 0
    while len(found) < 3:
        try:
            found.append(next(epoch).tolist())
        except KeyboardInterrupt:
            interrupts += 1
    assert found == [[0, 1], [2, 3], [4, 5]]
    assert interrupts == 1
    with pytest.raises(StopIteration):
        next(epoch)


@WORKERS
def test_interrupts_between_any_two_steps_lose_no_batch(workers):
    loader, armed, interrupts = DataLoader(Range(1000), 1, num_workers=workers), [], 0

    def handler(number, frame):
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    gc.collect()  # what is raised while garbage is collected can't reach anybody
    previous = signal.signal(signal.SIGALRM, handler)
    try:
        while interrupts < 20:
            epoch, found = iter(loader), []
            signal.setitimer(signal.ITIMER_REAL, 0.1 * MS, 0.3 * MS)
            while len(found) < 1000:
                try:
                    armed.append(True)
                    # From `next` into the list in one step, as in a `for` to its name.
                    found.extend(itertools.islice(epoch, 1))
                    armed.clear()
                except KeyboardInterrupt:
                    interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert [int(batch[0]) for batch in found] == list(range(1000))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_what_a_signal_handler_raises_passes_through_as_it_is():
    def handler(number, frame):
        raise SystemExit(143)

    previous = signal.signal(signal.SIGTERM, handler)
    try:
        epoch = iter(DataLoader(Signals(6, signal.SIGTERM), 2))
        next(epoch)
        with pytest.raises(SystemExit) as caught:
            next(epoch)
        assert caught.value.code == 143
    finally:
        signal.signal(signal.SIGTERM, previous)


# -- batched fetch -----------------------------------------------------------------------------


class Together(Range):
    """Answers all indices of a batch at once, by `answer(indices)`."""

    def __init__(self, n, answer):
        super().__init__(n)
        self.answer = answer

    def __getitems__(self, indices):
        assert type(indices) is list
        assert all(type(index) is int for index in indices)
        self.asked.append(list(indices))
        return self.answer(indices)


@WORKERS
@pytest.mark.parametrize(
    "answer", [list, tuple, iter, np.array, lambda ix: (i for i in ix)], ids=str
)
def test_any_sequence_or_iterator_of_the_right_length_will_do(workers, answer):
    dataset = Together(5, answer)
    assert outcomes(iter(DataLoader(dataset, 2, num_workers=workers))) == [[0, 1], [2, 3], [4]]
    assert sorted(dataset.asked) == [[0, 1], [2, 3], [4]]


@WORKERS
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda ix: ix[:-1], "returned 1 samples, expected 2"),
        (lambda ix: [*ix, 9], "returned at least 3 samples, expected 2"),
        (lambda ix: iter(ix[1:]), "returned 1 samples, expected 2"),
        (lambda ix: itertools.count(), "returned at least 3 samples, expected 2"),
        (lambda ix: None, "returned None instead of 2 samples"),
        (lambda ix: "ab", "returned a str instead of 2 samples"),
        (lambda ix: {0: 1, 2: 3}, "returned a dict instead of 2 samples"),
    ],
)
def test_a_wrong_count_is_an_error_of_that_batch_with_both_counts(workers, answer, words):
    dataset = Together(6, lambda ix: answer(ix) if 2 in ix else ix)
    found = outcomes(iter(DataLoader(dataset, 2, num_workers=workers)))
    assert [found[0], found[2]] == [[0, 1], [4, 5]]
    assert isinstance(found[1], (TypeError, ValueError))
    assert words in str(found[1])
    assert "the first of which is 2" in str(found[1])


@WORKERS
def test_an_error_inside_a_batched_fetch_names_the_indices(workers):
    def answer(indices):
        yield indices[0]
        raise OSError("half way")

    found = outcomes(iter(DataLoader(Together(100, answer), 20, num_workers=workers)))
    note = "dataset.__getitems__([0, 1, 2, 3, 4, 5, 6, 7, ...] (20 in all)), batch 0"
    assert note in found[0].__notes__[0]


def test_indices_may_be_changed_by_the_dataset():
    dataset = Together(6, lambda ix: [ix.pop() for _ in range(2)])
    epoch = iter(DataLoader(dataset, 2))
    assert outcomes(epoch, most=1) == [[1, 0]]
    assert epoch.info.indices == [0, 1]


@WORKERS
def test_indices_are_plain_ints(workers):
    class Strict(Range):
        def __getitem__(self, index):
            assert type(index) is int
            return index

    loader = DataLoader(Strict(10), 4, True, num_workers=workers)
    assert len(outcomes(iter(loader))) == 3


# -- encoding, as the service does it ----------------------------------------------------------


def encoded(loader, count):
    arena, waker = _core.Arena(1 << 26), _core.Waker()
    run = loader._open(0, plan=loader._plan(0), arena=arena, waker=waker, token=1)
    cells = [run.next() for _ in range(count)]
    assert isinstance(run.next(), _core.End)
    return cells


def value(cell):
    return resolve(unpack(cell.packed), np.frombuffer(memoryview(cell), np.uint8))


@pytest.mark.parametrize("collate_fn", [None, default_collate, list])
def test_an_encoded_batch_is_the_batch(collate_fn):
    class Rows(Range):
        def __getitem__(self, index):
            return {"x": np.full((3, 2), index, ">f4"), "y": index, "name": f"n{index}"}

    loader = DataLoader(Rows(7), 3, collate_fn=collate_fn)
    for cell, batch in zip(encoded(loader, 3), loader, strict=True):
        got = value(cell)
        if collate_fn is list:
            assert [row["name"] for row in got] == [row["name"] for row in batch]
            continue
        assert got["x"].dtype == batch["x"].dtype == np.dtype("<f4")
        assert np.array_equal(got["x"], batch["x"])
        assert np.array_equal(got["y"], batch["y"])
        assert got["name"] == batch["name"]
        tail = np.frombuffer(memoryview(cell)[cell.samples_offset :], np.int64)
        assert tail.tolist() == cell.samples == batch["y"].tolist()


def test_a_value_that_can_not_be_sent_is_an_error_of_its_batch():
    loader = DataLoader(Range(4), 2, collate_fn=lambda s: {"bad": {1}} if 0 in s else s)
    first, second = encoded(loader, 2)
    assert type(first.error) is TypeError
    assert "bad" in str(first.error)
    assert "batch 0 of epoch 0" in first.error.__notes__[0]
    assert value(second) == [2, 3]


def test_the_service_path_checks_its_arguments_too():
    with pytest.raises(ConfigError, match="rank="):
        DataLoader(Range(4))._plan(0, 2, 2, "pad")
