"""Iterating: ends, errors in their place, time-outs, positions, and what a dropped epoch leaves."""

import asyncio
import threading
import time

import numpy as np
import pytest

from helpers.datasets import MODES, Fail, Gate, Range, Slow, outcomes, plain
from helpers.timing import MS, wait_for
from tundish import ArrayDataset, ConfigError, DataLoader, Position, TundishError

WORKERS = pytest.mark.parametrize("workers", [0, 4])
EVERY_MODE = pytest.mark.parametrize("mode", MODES)
IN_ORDER = pytest.mark.parametrize("in_order", [True, False])


# -- errors take their own place ---------------------------------------------------------------


@WORKERS
@EVERY_MODE
@IN_ORDER
def test_after_a_failing_batch_the_epoch_goes_on(workers, mode, in_order):
    dataset = Fail(6, {3: OSError("bad 3")})
    epoch = iter(DataLoader(dataset, 2, num_workers=workers, in_order=in_order))
    found = outcomes(epoch, mode, most=10)
    if not in_order:
        found.sort(key=lambda cell: 2 if isinstance(cell, OSError) else cell[0])
    assert [found[0], found[2]] == [[0, 1], [4, 5]]
    assert type(found[1]) is OSError
    assert str(found[1]) == "bad 3"
    assert len(found) == 3
    counts = {"batches": 3, "samples": 4, "padded": 0, "dropped": 0}
    assert epoch.counts == counts | {"skipped": 0, "redelivered": 0, "errors": 1}


@WORKERS
@EVERY_MODE
def test_every_batch_failing_is_every_batch_erring(workers, mode):
    dataset = Fail(6, {index: OSError(index) for index in range(6)})
    found = outcomes(iter(DataLoader(dataset, 2, num_workers=workers)), mode, most=10)
    assert [error.args for error in found] == [(0,), (2,), (4,)]


@WORKERS
def test_an_exception_object_that_is_raised_again_keeps_one_note(workers):
    error = OSError("the same")
    loader = DataLoader(Fail(6, dict.fromkeys(range(6), error)), 2, num_workers=workers)
    for _ in range(3):
        assert outcomes(iter(loader)) == [error] * 3
    assert len(error.__notes__) == 1


# -- the end -----------------------------------------------------------------------------------


@WORKERS
@EVERY_MODE
def test_an_epoch_that_has_ended_keeps_saying_so(workers, mode):
    epoch = iter(DataLoader(Range(4), 2, num_workers=workers))
    assert len(outcomes(epoch, mode)) == 2
    assert outcomes(epoch, mode) == []
    epoch.close()
    assert outcomes(epoch, mode) == []


@WORKERS
@EVERY_MODE
def test_a_closed_epoch_says_where_it_stood(workers, mode):
    epoch = iter(DataLoader(Range(10), 2, num_workers=workers))
    next(epoch)
    epoch.close()
    found = outcomes(epoch, mode, most=2)
    assert all(type(error) is TundishError for error in found)
    assert "closed at batch 1 of 5" in str(found[0])
    epoch.close()


@WORKERS
def test_with_closes(workers):
    with iter(DataLoader(Range(10), 2, num_workers=workers)) as epoch:
        next(epoch)
    with pytest.raises(TundishError, match="closed"):
        next(epoch)


async def test_async_with_closes():
    async with DataLoader(Range(10), 2).epoch(0) as epoch:
        await anext(epoch)
    with pytest.raises(TundishError, match="closed"):
        await anext(epoch)


# -- position and info -------------------------------------------------------------------------


@WORKERS
@EVERY_MODE
def test_position_counts_batches_handed_out(workers, mode):
    loader = DataLoader(Range(100), 1, True, seed=1, num_workers=workers, prefetch=16)
    whole = outcomes(loader.epoch(4), mode)
    epoch = loader.epoch(4)
    assert epoch.position == Position(4, 0)
    first = outcomes(epoch, mode, most=3)
    assert epoch.position == Position(4, 3)
    assert first + outcomes(loader.epoch(*epoch.position), mode) == whole


@WORKERS
def test_a_failed_batch_moves_the_position(workers):
    epoch = iter(DataLoader(Fail(6, {2: OSError()}), 2, num_workers=workers))
    outcomes(epoch, most=2)
    assert epoch.position == Position(0, 2)


@WORKERS
@pytest.mark.parametrize("native", [False, True])
def test_info_is_of_the_batch_handed_out_last(workers, native):
    dataset = ArrayDataset(np.arange(10)) if native else Range(10)
    loader = DataLoader(dataset, 4, True, seed=1, num_workers=workers)
    epoch = loader.epoch(2)
    assert epoch.info is None
    for number, batch in enumerate(epoch):
        info = epoch.info
        assert (info.epoch, info.batch) == (2, number)
        assert info.indices == plain(batch[0] if native else batch)
        assert 0 < info.times.claimed_ns <= info.times.ready_ns


def test_len_counts_from_start():
    loader = DataLoader(Range(10), 2)
    assert [len(loader.epoch(0, start=start)) for start in (0, 3, 5)] == [5, 2, 0]


@EVERY_MODE
def test_an_epoch_from_its_end_is_empty(mode):
    assert outcomes(DataLoader(Range(10), 2).epoch(0, start=5), mode) == []


def test_out_of_order_has_no_positions_and_says_so():
    loader = DataLoader(Range(10), 2, in_order=False, num_workers=2)
    with pytest.raises(ConfigError, match="in_order"):
        _ = loader.epoch(0).position
    with pytest.raises(ConfigError, match=r"start=3.*in_order"):
        loader.epoch(0, start=3)


# -- workers and windows -----------------------------------------------------------------------


@EVERY_MODE
def test_out_of_order_does_not_wait_for_a_slow_batch(mode):
    loader = DataLoader(Slow(32, {0: 300 * MS}), 1, num_workers=4, prefetch=4, in_order=False)
    found = outcomes(iter(loader), mode)
    assert sorted(found) == [[index] for index in range(32)]
    assert found[0] != [0]


def test_in_order_waits_for_a_slow_batch():
    loader = DataLoader(Slow(32, {0: 100 * MS}), 1, num_workers=4, prefetch=4)
    assert outcomes(iter(loader)) == [[index] for index in range(32)]


@pytest.mark.parametrize("in_order", [True, False])
def test_work_in_flight_never_exceeds_workers_and_prefetch(in_order):
    dataset = Gate(100)
    loader = DataLoader(dataset, 1, num_workers=3, prefetch=4, in_order=in_order)
    epoch = iter(loader)
    taken = threading.Thread(target=lambda: next(epoch))
    taken.start()
    wait_for(lambda: len(dataset.asked) == 3, "all workers to begin")
    dataset.opened.set()
    taken.join()
    wait_for(lambda: len(dataset.asked) == 8, "the window to fill")
    time.sleep(50 * MS)
    assert len(dataset.asked) == 8
    epoch.close()


@WORKERS
@EVERY_MODE
def test_two_epochs_at_once_share_the_workers(workers, mode):
    loader = DataLoader(Range(20), 2, True, seed=1, num_workers=workers)
    one, two = loader.epoch(0), loader.epoch(0)
    mixed = [next(epoch).tolist() for _ in range(10) for epoch in (one, two)]
    assert mixed[::2] == mixed[1::2] == outcomes(loader.epoch(0), mode)


def test_without_workers_samples_are_read_in_the_callers_thread():
    threads = set()

    class Where(Range):
        def __getitem__(self, index):
            threads.add(threading.get_ident())
            return index

    outcomes(iter(DataLoader(Where(10), 2)))
    assert threads == {threading.get_ident()}
    threads.clear()
    outcomes(iter(DataLoader(Where(10), 2)), "asyncio")
    assert threads.isdisjoint({threading.get_ident()})


@WORKERS
def test_the_objects_of_an_uncollated_batch_are_the_datasets_own(workers):
    things = [object() for _ in range(6)]
    loader = DataLoader(things, 2, collate_fn=list, num_workers=workers)
    assert [thing for batch in loader for thing in batch] == things


# -- async -------------------------------------------------------------------------------------


@WORKERS
async def test_a_time_out_on_one_step_neither_ends_the_epoch_nor_eats_a_batch(workers):
    epoch = iter(DataLoader(Slow(6, {2: 300 * MS}), 1, num_workers=workers))
    found, timeouts = [], 0
    while True:
        try:
            found.append((await asyncio.wait_for(anext(epoch), 50 * MS)).tolist())
        except TimeoutError:
            timeouts += 1
        except StopAsyncIteration:
            break
    assert found == [[index] for index in range(6)]
    assert timeouts >= 2


@WORKERS
async def test_cancelling_at_any_moment_loses_nothing(workers):
    loader = DataLoader(Slow(60, 1 * MS), 1, num_workers=workers, prefetch=1)
    epoch, found = iter(loader), []
    for wait in range(10_000):
        step = asyncio.ensure_future(anext(epoch))
        await asyncio.sleep((wait % 7) * 0.2 * MS)
        step.cancel()
        try:
            found.append((await step).tolist())
        except asyncio.CancelledError:
            continue
        except StopAsyncIteration:
            break
    assert found == [[index] for index in range(60)]


@WORKERS
async def test_the_loop_turns_while_a_sample_is_slow(workers):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(2 * MS)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    async for _ in DataLoader(Slow(1, 200 * MS), num_workers=workers):
        pass
    assert ticks >= 20
    ticking.cancel()


async def test_the_loop_turns_while_batches_are_always_ready():
    longest, last = 0.0, time.monotonic()

    async def tick():
        nonlocal longest, last
        while True:
            await asyncio.sleep(0)
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    ticking = asyncio.ensure_future(tick())
    array = np.zeros(40_000)
    async for _ in DataLoader(ArrayDataset(array), 4, num_workers=2):
        pass
    ticking.cancel()
    assert longest < 100 * MS


@WORKERS
async def test_a_second_task_waiting_for_the_same_epoch_is_told(workers):
    epoch = iter(DataLoader(Slow(3, 100 * MS), num_workers=workers))
    first = asyncio.ensure_future(anext(epoch))
    await asyncio.sleep(10 * MS)
    with pytest.raises(RuntimeError, match="another task waits"):
        await anext(epoch)
    assert (await first).tolist() == [0]


@WORKERS
async def test_closing_wakes_who_waits(workers):
    dataset = Gate(3)
    epoch = iter(DataLoader(dataset, num_workers=workers))
    waiting = asyncio.ensure_future(anext(epoch))
    await asyncio.sleep(10 * MS)
    await epoch.aclose()
    with pytest.raises(TundishError, match="closed"):
        await waiting
    dataset.opened.set()


@WORKERS
def test_one_epoch_may_change_from_for_to_async_and_between_loops(workers):
    epoch = iter(DataLoader(Range(12), 2, num_workers=workers))
    found = [cell for mode in ("for", *MODES, *MODES) for cell in outcomes(epoch, mode, most=1)]
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def test_out_of_order_a_change_of_loops_is_refused():
    epoch = iter(DataLoader(Range(12), 2, num_workers=2, in_order=False))
    outcomes(epoch, "asyncio", most=1)
    assert "no position to go on from" in str(outcomes(epoch, "uvloop", most=1)[0])


# -- dropping ----------------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("way", ["drop", "close", "loader"])
def test_leaving_an_epoch_stops_its_work(workers, way):
    dataset = Range(10_000)
    loader = DataLoader(dataset, 2, num_workers=workers)
    epoch = iter(loader)
    next(epoch)
    if way == "drop":
        del epoch
    else:
        (epoch if way == "close" else loader).close()
    time.sleep(20 * MS)
    asked = len(dataset.asked)
    time.sleep(20 * MS)
    assert len(dataset.asked) == asked <= 2 * (1 + workers + 2)
    assert next(iter(loader)).tolist() == [0, 1]


async def test_leaving_an_async_loop_stops_its_work():
    dataset = Range(10_000)
    loader = DataLoader(dataset, 2)
    for _ in range(20):
        async for _ in loader:
            break
    await asyncio.sleep(20 * MS)
    asked = len(dataset.asked)
    await asyncio.sleep(20 * MS)
    assert len(dataset.asked) == asked <= 20 * 2 * 4
    assert [batch.tolist() async for batch in DataLoader(Range(4), 2)] == [[0, 1], [2, 3]]


def test_cancelled_workers_stop_before_the_next_sample():
    dataset = Gate(100)
    epoch = iter(DataLoader(dataset, 50, num_workers=1))
    reading = threading.Thread(target=lambda: outcomes(epoch, most=1))
    reading.start()
    wait_for(lambda: dataset.asked == [0], "the first sample")
    epoch.close()
    dataset.opened.set()
    reading.join()
    time.sleep(20 * MS)
    assert dataset.asked == [0]


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_error_the_info_is_that_of_the_failed_batch(workers):
    stream = DataLoader(Fail(6, {0: OSError("0"), 5: OSError("5")}), 2, num_workers=workers).epoch(
        4
    )
    for batch, failed in enumerate((True, False, True)):
        if failed:
            with pytest.raises(OSError):
                next(stream)
        else:
            next(stream)
        assert (stream.info.epoch, stream.info.batch) == (4, batch)
        assert stream.info.indices == [2 * batch, 2 * batch + 1]


def test_counts_are_the_plans_until_the_end_and_then_what_was_handed_out():
    stream = DataLoader(Fail(9, {3: OSError("3")}), 2).epoch(0, start=1)
    assert (stream.counts["batches"], stream.counts["samples"], stream.counts["errors"]) == (
        4,
        7,
        0,
    )
    with pytest.raises(OSError):
        next(stream)
    assert (stream.counts["batches"], stream.counts["samples"], stream.counts["errors"]) == (
        4,
        7,
        1,
    )
    assert [batch.tolist() for batch in stream] == [[4, 5], [6, 7], [8]]
    assert (stream.counts["batches"], stream.counts["samples"], stream.counts["errors"]) == (
        4,
        5,
        1,
    )
