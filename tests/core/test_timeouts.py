"""Batches that take too long: a TimeoutError in their place, and everything goes on."""

import itertools
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from helpers.datasets import MODES, Range, outcomes
from helpers.timing import MS
from tundish import DataLoader


class Stuck(Range):
    """Item `stuck` waits for the event."""

    def __init__(self, n, stuck, released):
        super().__init__(n)
        self.stuck, self.released = stuck, released

    def __getitem__(self, index):
        if index == self.stuck:
            self.released.wait(30)
        return index


@pytest.fixture
def released():
    """Lets stuck items go, at the test's end at the latest."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("mode", MODES)
def test_b42_a_stuck_item_is_a_time_out_that_names_it_and_the_others_arrive(
    mode, workers, released
):
    loader = DataLoader(
        Stuck(10, 3, released), 2, num_workers=workers, timeout=150 * MS, prefetch=4
    )
    began = time.monotonic()
    first, error, *rest = outcomes(loader.epoch(0), mode)
    assert time.monotonic() - began < 1500 * MS
    assert first == [0, 1]
    assert type(error) is TimeoutError
    assert "batch 1" in str(error)
    assert f"timeout={150 * MS:g}" in str(error)
    assert "sample 3" in str(error)
    assert rest == [[4, 5], [6, 7], [8, 9]]
    # The workers that were replaced don't come back to disturb the next epoch.
    released.set()
    assert outcomes(loader.epoch(1), mode) == [[k, k + 1] for k in range(0, 10, 2)]


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stuck_lane_is_replaced_too(workers, lanes, released):
    loader = DataLoader(
        Stuck(40, 5, released),
        4,
        num_workers=workers,
        items_in_parallel=lanes,
        timeout=150 * MS,
    )
    for _ in range(2 * lanes):  # more often than there are lanes to lose
        cells = outcomes(iter(loader))
        assert [type(cell) for cell in cells].count(TimeoutError) == 1
        assert "sample 5" in str(cells[1])
        rest = itertools.chain(*cells[:1], *cells[2:])
        assert list(rest) == [k for k in range(40) if not 4 <= k < 8]


def test_a_time_out_during_collation_names_the_batch(released):
    def collate(samples):
        if samples[0] == 2:
            released.wait(30)
        return samples

    loader = DataLoader(Range(6), 2, num_workers=1, collate_fn=collate, timeout=150 * MS)
    first, error, last = outcomes(iter(loader))
    assert (first, last) == ([0, 1], [4, 5])
    assert type(error) is TimeoutError
    assert "batch 1" in str(error)


def test_a_batch_within_its_time_is_no_error():
    loader = DataLoader(Range(6), 2, num_workers=2, timeout=10_000 * MS)
    assert outcomes(iter(loader)) == [[0, 1], [2, 3], [4, 5]]
    fast = DataLoader(Range(2000), 1, timeout=5000 * MS)
    assert outcomes(iter(fast), most=3000) == [[k] for k in range(2000)]


def test_an_iterable_that_hangs_ends_its_epoch_with_the_error(released):
    class Stream:
        def __iter__(self):
            yield from range(3)
            released.wait(30)
            yield 3

    loader = DataLoader(Stream(), 2, num_workers=2, timeout=150 * MS)
    first, error = outcomes(iter(loader))
    assert first == [0, 1]
    assert type(error) is TimeoutError
    assert "batch 1" in str(error)


def test_the_process_ends_although_a_thread_is_stuck():
    source = """
        import threading, time
        from tundish import DataLoader

        class Stuck:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                if index == 1:
                    threading.Event().wait()
                return index

        loader = DataLoader(Stuck(), num_workers=1, timeout=0.1)
        found = []
        stream = iter(loader)
        while True:
            try:
                found.append(int(next(stream)[0]))
            except TimeoutError:
                found.append(None)
            except StopIteration:
                break
        print(found, time.time())
    """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    ended = time.time()
    assert (done.returncode, done.stderr) == (0, "")
    found, _, printed = done.stdout.strip().rpartition(" ")
    assert found == "[0, None, 2, 3]"
    assert ended - float(printed) < 2000 * MS
