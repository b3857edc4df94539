"""Samples that are awaited: cancelling them, and how a loader's loop ends."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

from helpers.async_items import Async, Waiting, loops
from helpers.datasets import Range, outcomes
from helpers.forked import told
from helpers.sigint import READY, interrupt
from helpers.timing import MS, until, wait_for
from tundish import DataLoader, awaiting

WORKERS = pytest.mark.parametrize("workers", [0, 4])
BOTH = pytest.mark.parametrize("lanes", [1, 3])


# -- cancelling ----------------------------------------------------------------------------------


async def begin(epoch, dataset):
    """Have the first samples of `epoch` awaited, and its consumer's wait cancelled."""
    waiting = asyncio.ensure_future(anext(epoch))
    await until(lambda: len(dataset.running) >= 2, "the first samples")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@WORKERS
@pytest.mark.parametrize("how", ["close", "drop", "loader"])
def test_cancelling_an_epoch_cancels_its_tasks(workers, how):
    dataset = Waiting(8)
    loader = DataLoader(dataset, 4, num_workers=workers, items_in_parallel=2)
    epoch = iter(loader)
    asyncio.run(begin(epoch, dataset))
    if how == "close":
        epoch.close()
    elif how == "loader":
        loader.close()
    del epoch
    wait_for(lambda: not dataset.running, "the tasks to be cancelled")
    assert set(dataset.cancelled) == set(dataset.asked) >= {0, 1}


def test_an_interrupt_cancels_the_tasks_of_the_batch_and_loses_none():
    dataset = Waiting(4)
    epoch = iter(DataLoader(dataset, 4, items_in_parallel=2))
    timer = threading.Timer(50 * MS, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        next(epoch)
    timer.join()
    wait_for(lambda: not dataset.running, "the tasks to be cancelled")
    assert dataset.cancelled == [0, 1]
    dataset.let_go = True
    assert outcomes(epoch) == [[0, 1, 2, 3]]


BLOCKED = """
    import asyncio, sys, time
    from tundish import DataLoader

    class Dataset:
        def __len__(self):
            return 4

        async def __getitem__(self, index):
            print("READY")
            {wait}

    loader = DataLoader(Dataset(), 2, num_workers=int(sys.argv[1]))
    try:
        next(iter(loader))
    except KeyboardInterrupt:
        print("INTERRUPTED")
"""


@WORKERS
@pytest.mark.parametrize("wait", ["await asyncio.sleep(60)", "time.sleep(60)"])
def test_ctrl_c_comes_through_whatever_the_loop_does(workers, wait, tmp_path):
    assert READY in BLOCKED
    outcome = interrupt(BLOCKED.format(wait=wait), str(workers), folder=tmp_path)
    assert outcome.returncode == 0, outcome.output
    assert outcome.interrupted_after < 100 * MS
    assert outcome.exited_after < 1000 * MS


@pytest.mark.parametrize("wait", ["await asyncio.sleep(60)", "time.sleep(60)", "while True: pass"])
def test_a_process_ends_although_its_loop_is_busy(wait, tmp_path):
    script = f"""
        import asyncio, threading, time
        from tundish import DataLoader

        began = threading.Event()

        class Dataset:
            def __len__(self):
                return 4

            async def __getitem__(self, index):
                began.set()
                {wait}

        epoch = iter(DataLoader(Dataset(), 2, num_workers=2))

        async def begin():
            try:
                await asyncio.wait_for(anext(epoch), 0.05)
            except TimeoutError:
                pass

        asyncio.run(begin())
        assert began.is_set()
        print(time.monotonic())
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=10000 * MS,
    )
    left = time.monotonic() - float(process.stdout)
    assert (process.returncode, process.stderr) == (0, "")
    assert left < 1000 * MS


def test_a_batch_that_takes_too_long_is_cancelled():
    dataset = Waiting(2)
    loader = DataLoader(dataset, 2, num_workers=1, items_in_parallel=2, timeout=100 * MS)
    (error,) = outcomes(iter(loader))
    assert type(error) is TimeoutError
    assert "sample 0 was being loaded" in str(error)
    wait_for(lambda: not dataset.running, "the tasks to be cancelled")
    assert dataset.cancelled == [0, 1]


def test_batches_after_one_that_blocked_the_loop_have_another(monkeypatch):
    class Blocking(Range):
        def __init__(self, n):
            super().__init__(n)
            self.opened = threading.Event()

        async def __getitem__(self, index):
            if index == 0:
                self.opened.wait(10000 * MS)
            return index

    monkeypatch.setattr(awaiting, "_STUCK", 20 * MS)
    dataset = Blocking(6)
    loader = DataLoader(dataset, 2, num_workers=1, prefetch=0, timeout=500 * MS)
    found = outcomes(iter(loader))
    dataset.opened.set()
    assert type(found[0]) is TimeoutError
    assert found[1:] == [[2, 3], [4, 5]]


# -- the end of a loop ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "free"])
def test_the_loop_ends_with_its_loader(how):
    class Cleaning(Async):
        def __init__(self, n):
            super().__init__(n)
            self.ended = []

        async def stay(self):
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0)
                self.ended.append(threading.current_thread().name)

        async def __getitem__(self, index):
            self.task = asyncio.create_task(self.stay())
            return await super().__getitem__(index)

    dataset = Cleaning(1)
    loader = DataLoader(dataset)
    before = {*loops()}
    assert outcomes(iter(loader)) == [[0]]
    (thread,) = {*loops()} - before
    if how == "close":
        loader.close()
    else:
        del loader
        gc.collect()
    thread.join(5000 * MS)
    assert not thread.is_alive()
    assert dataset.ended == ["tundish-loop"]
    if how == "close":
        assert outcomes(iter(loader)) == [[0]]
        loader.close()


def test_a_loader_is_freed_although_its_loop_ran():
    dataset = Async(4)
    gone = weakref.ref(dataset)
    loader = DataLoader(dataset, 2, num_workers=2)
    assert len(outcomes(iter(loader))) == 2
    del dataset, loader
    wait_for(lambda: gc.collect() is not None and gone() is None, "the dataset to be freed")


def test_a_forked_child_has_a_loop_of_its_own():
    loader = DataLoader(Async(4), 2, num_workers=2, items_in_parallel=2)
    assert outcomes(iter(loader)) == [[0, 1], [2, 3]]
    assert told(lambda: outcomes(iter(loader))) == "[[0, 1], [2, 3]]"
    assert outcomes(iter(loader)) == [[0, 1], [2, 3]]
