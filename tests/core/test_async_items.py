"""Datasets with ``async def __getitem__``: awaited on one loop of the loader, some at a time."""

import asyncio
import gc
import threading
import time
import warnings

import pytest

from helpers.async_items import Async, Waiting, loops
from helpers.datasets import MODES, Range, outcomes
from helpers.timing import MS, wait_for
from tundish import ConcatDataset, DataLoader, MapDataset, Subset, _core

WORKERS = pytest.mark.parametrize("workers", [0, 4])
BOTH = pytest.mark.parametrize("lanes", [1, 3])


# -- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@WORKERS
@BOTH
def test_coroutines_are_awaited(workers, lanes, mode):
    loader = DataLoader(Async(7), 3, num_workers=workers, items_in_parallel=lanes)
    for _ in range(2):
        assert outcomes(iter(loader), mode) == [[0, 1, 2], [3, 4, 5], [6]]


class AsyncTogether(Async):
    async def __getitems__(self, indices):
        self.asked.append(list(indices))
        await asyncio.sleep(0)
        return [-index for index in indices]


class Made(Async):
    """A plain method that returns coroutines of another."""

    def __getitem__(self, index):
        return super().__getitem__(index)


class ListOfMade(Async):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Futures(Range):
    """Returns something awaitable that isn't a coroutine."""

    class Later:
        def __init__(self, index):
            self.index = index

        def __await__(self):
            yield from asyncio.sleep(0).__await__()
            return self.index

    def __getitem__(self, index):
        return self.Later(index)


@WORKERS
@BOTH
@pytest.mark.parametrize("kind", [Made, ListOfMade, Futures])
def test_whatever_can_be_awaited_is(kind, workers, lanes):
    loader = DataLoader(kind(5), 2, num_workers=workers, items_in_parallel=lanes)
    assert outcomes(iter(loader)) == [[0, 1], [2, 3], [4]]


@WORKERS
def test_a_batched_fetch_is_awaited(workers):
    dataset = AsyncTogether(5)
    loader = DataLoader(dataset, 2, num_workers=workers)
    assert outcomes(iter(loader)) == [[0, -1], [-2, -3], [-4]]
    assert sorted(dataset.asked) == [[0, 1], [2, 3], [4]]


@WORKERS
def test_lanes_ask_for_one_sample_each(workers):
    loader = DataLoader(AsyncTogether(5), 2, num_workers=workers, items_in_parallel=2)
    assert outcomes(iter(loader)) == [[0, 1], [2, 3], [4]]


@WORKERS
@BOTH
def test_views_of_async_datasets_are_awaited(workers, lanes):
    view = MapDataset(ConcatDataset([Subset(Async(9), [8, 7]), [5], Async(2)]), lambda x: x * 10)
    loader = DataLoader(view, 3, num_workers=workers, items_in_parallel=lanes)
    assert outcomes(iter(loader)) == [[80, 70, 50], [0, 10]]


@WORKERS
@pytest.mark.parametrize("index", [[1], [[1, 2]]])
def test_unbatched_samples_are_awaited(workers, index):
    class Any(Range):
        async def __getitem__(self, index):
            await asyncio.sleep(0)
            return index

    loader = DataLoader(Any(4), None, sampler=index, num_workers=workers)
    assert outcomes(iter(loader)) == index


@WORKERS
def test_a_wrong_count_of_an_async_fetch_is_told(workers):
    class Short(Async):
        async def __getitems__(self, indices):
            return [*indices][1:]

    (error,) = outcomes(iter(DataLoader(Short(2), 2, num_workers=workers)))
    assert "__getitems__ returned 1 samples, expected 2" in str(error)


# -- how many at a time --------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_so_many_at_a_time_as_there_are_lanes_in_each_batch(workers, lanes):
    dataset = Waiting(5)
    loader = DataLoader(dataset, 5, num_workers=workers, items_in_parallel=lanes)

    def release():
        wait_for(lambda: len(dataset.running) == min(lanes, 5), "the first samples")
        time.sleep(5 * MS)
        dataset.let_go = True

    releasing = threading.Thread(target=release)
    releasing.start()
    assert outcomes(iter(loader)) == [[0, 1, 2, 3, 4]]
    releasing.join()
    assert dataset.most == min(lanes, 5)
    assert dataset.asked == [0, 1, 2, 3, 4]


def test_one_loop_serves_all_workers_and_epochs():
    seen = set()

    class Seen(Range):
        async def __getitem__(self, index):
            seen.add((asyncio.get_running_loop(), threading.current_thread()))
            await asyncio.sleep(0)
            return index

    before = loops()
    loader = DataLoader(Seen(20), 2, num_workers=3, items_in_parallel=2)
    assert [thread for thread in loops() if thread not in before] == []
    for _ in range(2):
        assert len(outcomes(iter(loader))) == 10
    ((loop, thread),) = seen
    assert (thread.name, thread.daemon) == ("tundish-loop", True)
    assert thread in loops()
    assert isinstance(loop, asyncio.SelectorEventLoop)


# -- errors --------------------------------------------------------------------------------------

CONTROL = [
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError("mine"),
    GeneratorExit(),
    StopAsyncIteration(),
]


class Fail(Range):
    def __init__(self, n, errors):
        super().__init__(n)
        self.errors = errors

    async def __getitem__(self, index):
        await asyncio.sleep(0)
        if index in self.errors:
            raise self.errors[index]
        return index


@WORKERS
@BOTH
def test_an_exception_arrives_as_itself_with_a_note_of_its_place(workers, lanes):
    error = OSError(2, "No such", "/x/y")
    loader = DataLoader(Fail(6, {3: error}), 2, num_workers=workers, items_in_parallel=lanes)
    assert outcomes(loader.epoch(5)) == [[0, 1], error, [4, 5]]
    assert error.__notes__ == ["tundish: in dataset[3], batch 1 of epoch 5"]
    assert error.__traceback__ is not None


@WORKERS
@BOTH
@pytest.mark.parametrize("error", CONTROL, ids=lambda error: type(error).__name__)
def test_what_would_end_a_loop_or_a_process_is_a_runtime_error_of_its_batch(error, workers, lanes):
    loader = DataLoader(Fail(6, {3: error}), 2, num_workers=workers, items_in_parallel=lanes)
    for _ in range(2):
        first, failed, last = outcomes(iter(loader))
        assert (first, last) == ([0, 1], [4, 5])
        assert type(failed) is RuntimeError
        assert f"dataset[3] raised {error!r}" in str(failed)
        assert failed.__cause__ is error


@WORKERS
def test_stop_iteration_is_what_python_makes_of_it(workers):
    loader = DataLoader(Fail(2, {1: StopIteration(1)}), 2, num_workers=workers)
    (error,) = outcomes(iter(loader))
    assert type(error) is RuntimeError
    assert "StopIteration" in str(error)


@WORKERS
def test_the_first_error_by_place_wins(workers):
    class Late(Range):
        async def __getitem__(self, index):
            # The later, the sooner.
            await asyncio.sleep((4 - index) * 5 * MS)
            if index:
                raise KeyError(index)
            return index

    loader = DataLoader(Late(4), 4, num_workers=workers, items_in_parallel=4)
    (error,) = outcomes(iter(loader))
    assert (type(error), error.args) == (KeyError, (1,))


@WORKERS
def test_after_an_error_nothing_more_is_begun_and_the_rest_is_cancelled(workers):
    class Mixed(Waiting):
        async def __getitem__(self, index):
            if index == 1:
                wait = asyncio.sleep(5 * MS)
                await wait
                raise OSError("no")
            if index == 0:
                await asyncio.sleep(15 * MS)
                return index
            return await super().__getitem__(index)

    dataset = Mixed(8)
    loader = DataLoader(dataset, 8, num_workers=workers, items_in_parallel=3)
    (error,) = outcomes(iter(loader))
    assert str(error) == "no"
    wait_for(lambda: dataset.cancelled == [2], "the sample beside it to be cancelled")
    assert dataset.asked == [2]


class Unawaited(Async):
    """Fails at sample 3, before or after the coroutines of all samples are made."""

    def __getitem__(self, index):
        if index == 3:
            raise OSError("no")
        return super().__getitem__(index)


class UnawaitedList(Async):
    async def later(self, index):
        await asyncio.sleep(0)
        if index == 1:
            raise OSError("no")
        return index

    def __getitems__(self, indices):
        return [self.later(index) for index in indices]


@pytest.mark.parametrize(("kind", "lanes"), [(Unawaited, 1), (Unawaited, 2), (UnawaitedList, 1)])
def test_coroutines_that_nobody_awaits_leave_no_warning_behind(kind, lanes):
    loader = DataLoader(kind(4), 4, items_in_parallel=lanes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        arena, waker = _core.Arena(1 << 20), _core.Waker()
        run = loader._open(0, plan=loader._plan(0), arena=arena, waker=waker, token=1)
        assert str(run.next().error) == "no"
        del run
        gc.collect()
    assert caught == []


@WORKERS
def test_an_interrupt_that_nobody_raised_is_an_error_of_its_batch_too(workers):
    class Future(Range):
        async def __getitem__(self, index):
            future = asyncio.get_running_loop().create_future()
            future.set_exception(KeyboardInterrupt("mine"))
            await future

    (error,) = outcomes(iter(DataLoader(Future(1), num_workers=workers)))
    assert "dataset[0] raised KeyboardInterrupt('mine')" in str(error)


@WORKERS
def test_the_loop_survives_what_a_task_of_the_users_raises_through_it(workers, caplog):
    class Tasks(Range):
        async def __getitem__(self, index):
            async def leave():
                raise SystemExit(index)

            if index == 1:
                await asyncio.create_task(leave())
            return index

    loader = DataLoader(Tasks(4), 1, num_workers=workers)
    found = outcomes(iter(loader))
    assert [found[0], found[2], found[3]] == [[0], [2], [3]]
    assert "dataset[1] raised SystemExit(1)" in str(found[1])
    assert "a task made by a dataset ended the loop" in caplog.text


@WORKERS
def test_the_loop_survives_being_stopped(workers):
    class Stopping(Async):
        async def __getitem__(self, index):
            asyncio.get_running_loop().stop()
            return await super().__getitem__(index)

    loader = DataLoader(Stopping(4), 2, num_workers=workers)
    assert outcomes(iter(loader)) == [[0, 1], [2, 3]]


@WORKERS
def test_a_task_that_was_cancelled_before_it_began_is_an_error_of_its_batch(workers):
    class Cancelling(Range):
        async def __getitem__(self, index):
            if index == 0:
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
            return index

    loader = DataLoader(Cancelling(2), 2, num_workers=workers, items_in_parallel=2)
    (error,) = outcomes(iter(loader))
    assert "dataset[1] raised CancelledError()" in str(error)


def test_a_loader_that_asks_itself_is_refused():
    class Own(Range):
        async def __getitem__(self, index):
            return next(loader.epoch(1)) if index == 0 else index

    loader = DataLoader(Own(2), 1)
    error, second = outcomes(loader.epoch(0))
    assert "asked its own loader" in str(error)
    assert second == [1]
