"""``items_in_parallel``: samples of one batch side by side, on threads."""

import asyncio
import threading
import time

import pytest

from helpers.datasets import MODES, Fail, Range, outcomes
from helpers.sigint import interrupt
from helpers.timing import MS, wait_for
from tundish import DataLoader

WORKERS = pytest.mark.parametrize("workers", [0, 4])


class Meeting(Range):
    """Four items each wait for one another."""

    def __init__(self, n):
        super().__init__(n)
        self.barriers = [threading.Barrier(4) for _ in range(0, n, 4)]

    def __getitem__(self, index):
        self.asked.append((index, threading.get_ident()))
        self.barriers[index // 4].wait(5000 * MS)
        return index


@pytest.mark.parametrize("mode", MODES)
@WORKERS
def test_samples_of_a_batch_are_loaded_at_once_and_in_their_places(workers, mode):
    dataset = Meeting(8)
    loader = DataLoader(dataset, 4, num_workers=workers, items_in_parallel=4)
    assert outcomes(iter(loader), mode) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len({thread for index, thread in dataset.asked if index < 4}) == 4
    assert threading.get_ident() not in {thread for _, thread in dataset.asked}


@WORKERS
def test_never_more_of_a_batch_than_there_are_lanes(workers):
    lock, now, most = threading.Lock(), [], []

    class Counting(Range):
        def __getitem__(self, index):
            with lock:
                now.append(index // 8)
                most.append(now.count(index // 8))
            threading.Event().wait(2 * MS)
            with lock:
                now.remove(index // 8)
            return index

    loader = DataLoader(Counting(32), 8, num_workers=workers, items_in_parallel=3)
    assert outcomes(iter(loader)) == [[*range(at, at + 8)] for at in range(0, 32, 8)]
    assert max(most) == 3


@WORKERS
def test_a_batched_fetch_is_not_used(workers):
    class Both(Range):
        def __getitems__(self, indices):
            raise AssertionError

    loader = DataLoader(Both(5), 2, num_workers=workers, items_in_parallel=2)
    assert outcomes(iter(loader)) == [[0, 1], [2, 3], [4]]


@WORKERS
def test_a_batched_fetch_is_used_where_there_is_no_other(workers):
    class Only:
        def __len__(self):
            return 5

        def __getitems__(self, indices):
            return [-index for index in indices]

    loader = DataLoader(Only(), 2, num_workers=workers, items_in_parallel=2)
    assert outcomes(iter(loader)) == [[0, -1], [-2, -3], [-4]]


@WORKERS
@pytest.mark.parametrize(
    "error",
    [KeyError("k"), StopIteration(1), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_that_of_its_batch(error, workers):
    loader = DataLoader(Fail(6, {3: error}), 2, num_workers=workers, items_in_parallel=2)
    for _ in range(2):
        first, failed, last = outcomes(iter(loader))
        assert (first, last) == ([0, 1], [4, 5])
        assert failed is error or (type(failed) is RuntimeError and failed.__cause__ is error)
        assert failed.__notes__ == ["tundish: in dataset[3], batch 1 of epoch 0"] or (
            "in dataset[3], batch 1 of epoch 1" in failed.__notes__[0]
        )


@WORKERS
def test_the_first_error_by_place_wins_and_nothing_more_is_begun(workers):
    class Later(Range):
        def __init__(self, n):
            super().__init__(n)
            self.began = threading.Event()
            self.failed = threading.Event()

        def __getitem__(self, index):
            self.asked.append(index)
            if index == 1:
                self.began.set()
                self.failed.wait(5000 * MS)
                raise KeyError(index)
            if index == 2:
                self.began.wait(5000 * MS)
                self.failed.set()
                raise OSError(index)
            if index > 2:
                # Later than the errors are known of, on a busy machine too.
                self.failed.wait(5000 * MS)
                time.sleep(5 * MS)
            return index

    dataset = Later(50)
    loader = DataLoader(dataset, 50, num_workers=workers, items_in_parallel=3)
    (error,) = outcomes(iter(loader))
    assert (type(error), error.args) == (KeyError, (1,))
    assert len(dataset.asked) < 50


@WORKERS
def test_dropping_the_epoch_stops_the_lanes(workers):
    opened = threading.Event()

    class Waiting(Range):
        def __getitem__(self, index):
            self.asked.append(index)
            opened.wait(5000 * MS)
            return index

    dataset = Waiting(50)
    loader = DataLoader(dataset, 50, num_workers=workers, items_in_parallel=2)
    epoch = iter(loader)

    async def begin():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(epoch), 20 * MS)
        epoch.close()

    asyncio.run(begin())
    wait_for(lambda: len(dataset.asked) == 2, "both lanes to be busy")
    threading.Event().wait(60 * MS)
    opened.set()
    threading.Event().wait(10 * MS)
    assert sorted(dataset.asked) == [0, 1]


@WORKERS
def test_ctrl_c_comes_through(workers, tmp_path):
    script = """
        import sys, time
        from tundish import DataLoader

        class Dataset:
            def __len__(self):
                return 8

            def __getitem__(self, index):
                if index == 0:
                    print("READY")
                time.sleep(60)

        loader = DataLoader(Dataset(), 4, num_workers=int(sys.argv[1]), items_in_parallel=4)
        try:
            next(iter(loader))
        except KeyboardInterrupt:
            print("INTERRUPTED")
    """
    outcome = interrupt(script, str(workers), folder=tmp_path)
    assert outcome.returncode == 0, outcome.output
    assert outcome.interrupted_after < 100 * MS
    assert outcome.exited_after < 1000 * MS


def test_an_interrupted_batch_comes_at_the_next_call():
    import os
    import signal

    class Interrupting(Range):
        def __getitem__(self, index):
            self.asked.append(index)
            if index == 1 and self.asked.count(1) == 1:
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(20 * MS)
            return index

    epoch = iter(DataLoader(Interrupting(4), 4, items_in_parallel=2))
    with pytest.raises(KeyboardInterrupt):
        next(epoch)
    assert outcomes(epoch) == [[0, 1, 2, 3]]
