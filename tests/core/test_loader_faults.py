"""Faults that were found by trying to break a DataLoader."""

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

from helpers.datasets import Range, outcomes
from helpers.timing import MS, wait_for
from tundish import ConfigError, DataLoader, DatasetFactory, StackDataset, WindowsDataset

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Broken:
    """An iterator that fails once, in the place of item 6, and goes on."""

    def __iter__(self):
        return self.Items()

    class Items:
        def __init__(self):
            self.next = -1

        def __iter__(self):
            return self

        def __next__(self):
            self.next += 1
            if self.next == 6:
                raise OSError("disk gone")
            if self.next == 9:
                raise StopIteration
            return self.next


@WORKERS
def test_what_an_iterable_fails_to_read_is_left_out_and_counted(workers, caplog):
    epoch = DataLoader(Broken(), 4, num_workers=workers, on_error="skip").epoch(0)
    assert outcomes(epoch) == [[0, 1, 2, 3], [4, 5, 7], [8]]
    assert (epoch.counts["samples"], epoch.counts["skipped"], epoch.counts["errors"]) == (8, 1, 0)
    assert "disk gone" in caplog.text
    epoch = DataLoader(Broken(), 4, num_workers=workers, on_error="skip", collate_fn=list).epoch(0)
    assert outcomes(epoch) == [[0, 1, 2, 3], [4, 5, 7], [8]]


@WORKERS
def test_a_sample_that_an_iterable_fails_to_read_is_an_error_where_nothing_is_batched(workers):
    cells = outcomes(DataLoader(Broken(), None, num_workers=workers, on_error="skip").epoch(0))
    assert [cell for cell in cells if not isinstance(cell, Exception)] == [0, 1, 2, 3, 4, 5, 7, 8]
    assert type(cells[6]) is ValueError
    assert type(cells[6].__cause__) is OSError


class Awaited(Range):
    async def __getitem__(self, index):
        await asyncio.sleep(0)
        return index


@WORKERS
@pytest.mark.parametrize(
    ("view", "samples"),
    [
        (lambda ds: WindowsDataset(ds, 2), [[0, 1], [1, 2], [2, 3]]),
        (lambda ds: StackDataset(ds, ds), [(0, 0), (1, 1), (2, 2), (3, 3)]),
    ],
)
def test_views_await_what_a_factory_makes(workers, view, samples):
    dataset = view(DatasetFactory(lambda: Awaited(4)))
    loader = DataLoader(dataset, 4, num_workers=workers, collate_fn=list)
    assert [plain for batch in loader for plain in batch] == samples


class Trainer:
    """Knows its loader, which knows it."""

    def __init__(self, how):
        options = {"worker_init_fn": self.method} if how == "worker_init_fn" else {}
        dataset = self.Knowing(self) if how == "async" else Range(4)
        self.loader = DataLoader(dataset, 2, num_workers=2, **options)
        for _ in self.loader:
            pass

    def method(self, _worker):
        pass

    class Knowing(Awaited):
        def __init__(self, trainer):
            super().__init__(4)
            self.trainer = trainer


@pytest.mark.parametrize("how", ["worker_init_fn", "async"])
def test_a_loader_in_a_cycle_is_collected_with_its_threads(how):
    before = threading.active_count()
    trainers = [weakref.ref(Trainer(how)) for _ in range(3)]

    def gone():
        gc.collect()
        alive = [trainer() for trainer in trainers if trainer() is not None]
        return not alive and threading.active_count() <= before

    wait_for(gone, "the trainers and their threads to go")


def test_a_sample_that_asks_its_own_loader_is_told():
    class Own(Range):
        def __getitem__(self, index):
            return next(self.loader.epoch(1)) if index == 2 else index

    dataset = Own(4)
    dataset.loader = DataLoader(dataset, 2, num_workers=1)
    first, error = outcomes(dataset.loader.epoch(0))
    assert first == [0, 1]
    assert type(error) is RuntimeError
    assert "its own loader" in str(error)


@pytest.mark.parametrize("fingerprint", [None, [], "x"])
def test_a_position_without_its_fingerprint_is_refused(fingerprint):
    loader = DataLoader(Range(4), 2, seed=1)
    state = loader.state_dict() | {"fingerprint": fingerprint}
    for go_on in (loader.load_state_dict, loader.resume):
        with pytest.raises(ConfigError, match="fingerprint"):
            go_on(state)
    with pytest.raises(ConfigError, match="rank"):
        loader.load_state_dict(loader.state_dict() | {"rank": "first"})


def test_closing_an_epoch_closes_the_generator_it_reads():
    closed = []

    class Stream:
        def __iter__(self):
            try:
                yield from range(100)
            finally:
                closed.append(True)

    epoch = DataLoader(Stream(), 2).epoch(0)
    next(epoch)
    epoch.close()
    wait_for(lambda: closed == [True], "the generator's end", 1000 * MS)


def test_the_process_ends_without_a_word_about_samples_in_flight():
    source = """
        import asyncio
        from tundish import DataLoader

        class Waits:
            def __len__(self):
                return 8

            async def __getitem__(self, index):
                await asyncio.sleep(0 if index < 2 else 100)
                return index

        epoch = DataLoader(Waits(), 2, num_workers=2).epoch(0)
        print(next(epoch))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0 1]\n", "")
