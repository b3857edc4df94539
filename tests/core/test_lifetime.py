"""What epochs and loaders leave: memory, threads, descriptors, forks, the interpreter's exit."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest

from helpers.datasets import Gate, Range, outcomes
from helpers.timing import MS, wait_for
from tundish import ArrayDataset, DataLoader

WORKERS = pytest.mark.parametrize("workers", [0, 4])


def worker_threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as comm:
                names.append(comm.read().strip())
        except OSError:
            continue  # ended meanwhile
    return sum(name.startswith("tundish") for name in names)


def script(source, timeout=10, **options):
    """Runs `source`; the finished process and its seconds."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )
    return done, time.monotonic() - begun


# -- slots -------------------------------------------------------------------------------------


@WORKERS
def test_dropping_batches_and_the_epoch_frees_all_slots(workers):
    loader = DataLoader(ArrayDataset(np.zeros((100, 4))), 2, num_workers=workers)
    epoch = iter(loader)
    kept = [next(epoch) for _ in range(5)]
    arena = loader._running._own_arena()
    assert arena.slots_lent >= 5
    del epoch
    wait_for(lambda: arena.slots_lent == 5, "the window's slots")
    view = kept[0][0][:1]
    del kept
    assert arena.slots_lent == 1
    del view
    assert (arena.slots_lent, arena.lent) == (0, 0)


@WORKERS
def test_slots_are_reused(workers):
    loader = DataLoader(ArrayDataset(np.zeros((1000, 4))), 2, num_workers=workers)
    for _ in range(3):
        for _ in loader:
            pass
    assert loader._running._own_arena().capacity <= 2 << 20


@WORKERS
def test_all_batches_of_an_epoch_may_be_kept(workers):
    array = np.arange(4000)
    loader = DataLoader(ArrayDataset(array), 2, num_workers=workers)
    batches = list(loader)
    assert np.array_equal(np.concatenate([batch for (batch,) in batches]), array)


@WORKERS
def test_more_than_the_arena_holds_may_be_kept(workers):
    rows = np.zeros((300, 1 << 18), np.uint8) + np.arange(300, dtype=np.uint8)[:, None] % 251
    loader = DataLoader(ArrayDataset(rows), 1, num_workers=workers)
    batches = list(loader)
    assert loader._running._own_arena().capacity <= loader._running._own_arena().limit < rows.nbytes
    assert all((batch == rows[k]).all() for k, (batch,) in enumerate(batches))


def test_descriptors_and_threads_stay_flat():
    loader = DataLoader(ArrayDataset(np.zeros((100, 4))), 2, num_workers=3)

    def round_trip():
        for _ in range(20):
            next(iter(loader))
            outcomes(iter(loader), "asyncio", most=2)
        gc.collect()
        return len(os.listdir("/proc/self/fd")), worker_threads()

    before = round_trip()
    assert round_trip() == before
    assert before[1] >= 3


# -- collection --------------------------------------------------------------------------------


@WORKERS
def test_a_dropped_loader_takes_its_threads_along(workers):
    before = worker_threads()
    loader = DataLoader(Range(10), 2, num_workers=workers)
    assert len(outcomes(iter(loader))) == 5
    del loader
    gc.collect()
    wait_for(lambda: worker_threads() <= before, "the workers to end")


@WORKERS
def test_cycles_through_loader_epoch_and_dataset_are_collected(workers):
    class Cyclic(Range):
        def collate(self, samples):
            return samples

    dataset = Cyclic(100)
    loader = DataLoader(dataset, 2, num_workers=workers, collate_fn=dataset.collate)
    dataset.loader, dataset.epoch = loader, iter(loader)
    assert next(dataset.epoch) == [0, 1]
    references = [weakref.ref(thing) for thing in (dataset, loader, dataset.epoch)]
    del dataset, loader
    for _ in range(50):
        gc.collect()
        if not any(reference() for reference in references):
            break
        time.sleep(2 * MS)
    assert not any(reference() for reference in references)


def test_an_epoch_keeps_its_loader():
    epoch = iter(DataLoader(Range(10), 2, num_workers=2))
    gc.collect()
    assert len(outcomes(epoch)) == 5


def test_a_closed_loader_may_be_used_again():
    loader = DataLoader(Range(10), 2, num_workers=2)
    before = worker_threads()
    assert len(outcomes(iter(loader))) == 5
    loader.close()
    loader.close()
    wait_for(lambda: worker_threads() <= before, "the workers to end")
    assert len(outcomes(iter(loader))) == 5


def test_closing_does_not_wait_for_a_stuck_worker():
    dataset = Gate(10)
    loader = DataLoader(dataset, 2, num_workers=2)
    epoch = iter(loader)
    threading.Thread(target=lambda: outcomes(epoch, most=1), daemon=True).start()
    wait_for(lambda: dataset.asked, "a worker to be stuck")
    begun = time.monotonic()
    loader.close()
    assert time.monotonic() - begun < 100 * MS
    dataset.opened.set()


def test_epochs_may_be_read_from_other_threads():
    loader = DataLoader(Range(200), 2, True, seed=1, num_workers=2)
    expected = outcomes(loader.epoch(0))
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(outcomes(loader.epoch(0)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_one_epoch_read_by_several_threads_gives_each_batch_once():
    epoch = iter(DataLoader(Range(400), 2, num_workers=2))
    found = []
    threads = [threading.Thread(target=lambda: found.extend(outcomes(epoch))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [[index, index + 1] for index in range(0, 400, 2)]


# -- fork and exit -----------------------------------------------------------------------------


@pytest.mark.parametrize("native", [0, 1])
@WORKERS
def test_in_a_forked_child_the_loader_works_and_old_epochs_say_why_not(workers, native):
    done, _ = script(f"""
        import os, sys, warnings
        import numpy as np
        from tundish import ArrayDataset, DataLoader
        warnings.simplefilter("ignore")
        data = ArrayDataset(np.arange(10)) if {native} else list(range(10))
        loader = DataLoader(data, 2, True, seed=1, num_workers={workers})
        epoch = iter(loader)
        first = next(epoch)
        pid = os.fork()
        if pid == 0:
            try:
                next(epoch)
            except Exception as error:
                print(type(error).__name__, error, flush=True)
            mine = list(loader.epoch(0))
            print(len(mine), flush=True)
            del epoch, loader, first
            sys.exit(7)
        again = list(loader.epoch(0))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        print(len(list(epoch)))
    """)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "before a fork" in lines[0]
    assert lines[1:] == ["5", "4"]


STUCK = {
    "sleeping": "time.sleep(60)",
    "computing": "while True: pass",
    "stubborn": "exec('while 1:\\n try:\\n  while 1: pass\\n except BaseException: pass')",
}


@pytest.mark.parametrize("kind", STUCK)
@pytest.mark.parametrize("code", [0, 3])
def test_the_interpreter_exits_at_once_with_stuck_workers(kind, code):
    done, seconds = script(f"""
        import sys, time
        from tundish import DataLoader

        class Stuck:
            def __len__(self):
                return 100

            def __getitem__(self, index):
                if index < 2:
                    return index
                {STUCK[kind]}

        epoch = iter(DataLoader(Stuck(), 2, num_workers=4))
        print(next(epoch))
        sys.exit({code})
    """)
    assert (done.returncode, done.stderr) == (code, "")
    assert seconds < 2500 * MS


def test_the_interpreter_exits_cleanly_with_live_loaders_and_batches():
    done, _ = script("""
        import numpy as np
        from tundish import ArrayDataset, DataLoader
        loaders = [DataLoader(ArrayDataset(np.zeros((99, 9))), 2, num_workers=n) for n in range(4)]
        epochs = [iter(loader) for loader in loaders]
        batches = [next(epoch) for epoch in epochs]
        print(len(batches))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")


def test_a_forked_child_has_memory_of_its_own(tmp_path):
    done, _ = script("""
        import os, sys, warnings
        import numpy as np
        from tundish import ArrayDataset, DataLoader
        warnings.simplefilter("ignore")
        loader = DataLoader(ArrayDataset(np.arange(64)), 2, num_workers=2)
        list(loader)
        child = os.fork() == 0
        kept = []
        for (batch,) in loader.epoch(0):
            batch += 1000 * child
            kept.append(batch)
        if not child:
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        assert np.array_equal(np.concatenate(kept), np.arange(64) + 1000 * child)
    """)
    assert (done.returncode, done.stderr) == (0, "")


@WORKERS
def test_the_error_of_a_batch_is_freed_when_its_handler_is_done(workers):
    class Own(Exception):
        pass

    class Failing(Range):
        def __getitem__(self, index):
            raise Own(index)

    stream = DataLoader(Failing(6), 2, num_workers=workers).epoch(0)
    errors = []
    for _ in range(3):
        try:
            next(stream)
        except Own as error:
            errors.append(weakref.ref(error))
    assert len(errors) == 3
    gc.collect()
    # A worker that has just handed over its error may be the last to let go of it.
    wait_for(lambda: not any(reference() for reference in errors), "the errors to be freed")
