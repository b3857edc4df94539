"""One iterator of the user's, and several epochs, threads and processes that read from it."""

import gc
import threading
import time
import weakref

import pytest

from helpers.reading import (
    Epochs,
    batches,
    never,
    of_batches,
    of_sampler,
    of_stream,
)
from helpers.timing import MS
from tundish import _core
from tundish.errors_of_batches import Cancelled

# -- threads ----------------------------------------------------------------------------------


def test_two_epochs_of_one_sampler_at_once_get_their_own_numbers():
    sampler = Epochs(50)
    plans = [of_sampler(sampler, 10, epoch=epoch) for epoch in range(8)]
    reads = [plan.read_from(0) for plan in plans]
    barrier = threading.Barrier(8)
    found = {}

    def work(epoch):
        barrier.wait(10)
        for batch in range(5):
            found[epoch, batch] = reads[epoch](batch, never)[0]

    threads = [threading.Thread(target=work, args=(epoch,)) for epoch in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == {(e, b): [e] * 10 for e in range(8) for b in range(5)}


def test_the_sampler_within_is_told_the_epoch():
    class Around:
        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            return iter([[index] for index in self.sampler])

    assert batches(of_batches(Around(Epochs(2)), epoch=5)) == [[5], [5]]
    assert batches(of_batches(Around(Around(Epochs(1))), epoch=6)) != [[6]]  # lists in lists


def test_a_wait_for_an_iter_that_hangs_can_be_cancelled():
    class Hangs(Epochs):
        def __iter__(self):
            entered.set()
            opened.wait(10)
            return super().__iter__()

    entered, opened = threading.Event(), threading.Event()
    sampler = Hangs(2)
    first = of_sampler(sampler).read_from(0)
    thread = threading.Thread(target=first, args=(0, never))
    thread.start()
    entered.wait(10)
    began = time.monotonic()
    with pytest.raises(Cancelled):
        of_sampler(sampler, epoch=1).read_from(0)(0, lambda: time.monotonic() > began + 20 * MS)
    # A second call for the same reading waits too, and may be cancelled as well.
    with pytest.raises(Cancelled):
        first(0, lambda: time.monotonic() > began + 40 * MS)
    opened.set()
    thread.join(10)
    assert first(0, never)[0] == [0, 0]


class Restarts:
    """Is its own iterator, and begins anew at iter()."""

    def __iter__(self):
        self.left = iter(range(6))
        return self

    def __next__(self):
        return next(self.left)


def test_two_epochs_of_one_iterator_are_not_mixed():
    sampler = Restarts()
    first, second = (of_sampler(sampler, 2, epoch=epoch).read_from(0) for epoch in range(2))
    assert first(0, never)[0] == [0, 1]
    assert second(0, never)[0] == [0, 1]
    with pytest.raises(
        RuntimeError, match="another epoch uses too.*epoch 0 can't be read on from batch 1"
    ):
        first(1, never)
    assert first(2, never) is None
    assert [second(b, never)[0] for b in (1, 2)] == [[2, 3], [4, 5]]
    assert second(3, never) is None


def test_a_generator_that_is_over_is_no_epoch():
    class Once:
        def __init__(self):
            self.generator = (k for k in range(3))

        def __iter__(self):
            return self.generator

    plan = of_sampler(Once())
    assert batches(plan) == [[0, 1], [2]]
    (error,) = batches(plan)
    assert isinstance(error, RuntimeError)
    assert "over already" in str(error)


def test_a_sampler_that_reads_its_own_epoch_is_told_so():
    class Reads:
        def __iter__(self):
            yield read(1, never)

    read = of_sampler(Reads()).read_from(0)
    with pytest.raises(RuntimeError, match="sampler Reads asked for a batch of the epoch"):
        read(0, never)


def test_readings_go_with_their_plan_if_the_engine_holds_them_weakly():
    class Sampler(list):
        pass

    sampler = Sampler([1, 2])
    gone = weakref.ref(sampler)
    plan = of_sampler(sampler)
    reader = plan.reader(0, weak=True)
    del sampler
    gc.disable()
    try:
        assert gone() is not None
        del plan
        assert gone() is None
    finally:
        gc.enable()
    run = _core.Run(_core.CallSource(lambda indices, task: indices), reader)
    with pytest.raises(Cancelled):
        raise run.next().error


def test_an_error_does_not_keep_what_was_read_alive():
    class Value:
        pass

    kept = []

    class Fails:
        def __iter__(self):
            return map(self.make, range(4))

        def make(self, k):
            if k == 1:
                raise OSError("no")
            kept.append(weakref.ref(value := Value()))
            return value

    read = of_stream(Fails()).read_from(0)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(OSError):
            read(0, never)
        read(1, never)
        assert kept[0]() is None
    finally:
        gc.enable()
