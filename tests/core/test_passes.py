"""Reading an iterator of the user's: lazily, interrupted, cancelled, by several threads."""

import itertools
import linecache
import os
import signal
import sys
import threading
import time

import pytest

from helpers.reading import (
    Dies,
    Epochs,
    Long,
    Unsized,
    Yields,
    batches,
    cells,
    never,
    of_batches,
    of_sampler,
    of_stream,
)
from helpers.timing import MS, wait_for
from tundish import _core, passes, readings
from tundish.errors_of_batches import Cancelled

# -- how much is read -------------------------------------------------------------------------


def test_nothing_is_read_before_the_first_batch_and_no_more_than_it_needs():
    for make, size in ((of_sampler, 3), (of_stream, 3), (of_sampler, None)):
        given = Yields(*range(100))
        read = make(given, size).read_from(0)
        assert given.begun == 0
        for batch in range(4):
            read(batch, never)
            assert len(given.given) == (size or 1) * (batch + 1)
    given = Yields(*([k, k] for k in range(9)))
    read = of_batches(given).read_from(0)
    read(0, never)
    read(1, never)
    assert given.given == [[0, 0], [1, 1]]


def test_an_endless_sampler_can_be_read():
    class Endless:
        def __iter__(self):
            return itertools.cycle(range(7))

    assert cells(of_sampler(Endless(), 3), 1000, most=1) == [([4, 5, 6], None, 3000, 1)]
    ranks = [cells(of_stream(Endless(), 2, rank=r, world_size=2), most=1)[0][1] for r in range(2)]
    assert ranks == [[0, 2], [1, 3]]


def test_each_rank_reads_what_all_of_them_get():
    given = Yields(*range(100))
    of_sampler(given, 3, rank=1, world_size=4).read_from(0)(0, never)
    assert given.given == list(range(12))


def test_a_known_length_is_not_read_past_before_the_end():
    given = Long(4, 0, 1, 2, 3, 4, 5)
    read = of_sampler(given).read_from(0)
    read(1, never)
    assert given.given == [0, 1, 2, 3]


def test_a_batch_can_be_asked_for_again_but_none_before_it():
    read = of_sampler([0, 1, 2]).read_from(0)
    assert read(0, never) == read(0, never) == ([0, 1], None, 0, 1)
    assert read(1, never) == read(1, never) == ([2], None, 2, 1)
    with pytest.raises(RuntimeError, match="batch 0 was read before batch 1"):
        read(0, never)


# -- cancelling -------------------------------------------------------------------------------


def test_cancelled_is_looked_at_often_and_nothing_is_lost():
    class Asked:
        def __init__(self, answers):
            self.times, self.answers = 0, answers

        def __call__(self):
            self.times += 1
            return self.times > self.answers

    expected = list(range(5000))
    for answers in (0, 1, 2, 7, 12):
        read = of_sampler(Unsized(expected), 5000, samples=5000).read_from(0)
        with pytest.raises(Cancelled):
            read(0, Asked(answers))
        asked = Asked(1000)
        assert read(0, asked)[0] == expected
    read = of_sampler(Unsized(expected), 5000, samples=5000).read_from(0)
    asked = Asked(10**6)
    read(0, asked)
    assert asked.times >= 5000 // 256


def test_between_slow_values_cancelled_is_looked_at_each_time():
    class Slow:
        def __iter__(self):
            for k in itertools.count():
                if k >= 300:
                    time.sleep(3 * MS)
                    slow.append(k)
                yield k

    slow = []
    with pytest.raises(Cancelled):
        of_stream(Slow(), 10**6).read_from(0)(0, lambda: len(slow) > 300)
    assert len(slow) < 300 + 3 * 256


def test_skipping_can_be_cancelled():
    class Endless:
        def __iter__(self):
            return itertools.repeat(1)

    began = time.monotonic()
    with pytest.raises(Cancelled):
        of_sampler(Endless(), 10).read_from(10**12)(
            10**12, lambda: time.monotonic() > began + 20 * MS
        )


# -- interrupts -------------------------------------------------------------------------------


class Interrupts:
    """Sends SIGINT to this very thread at the n-th line that runs in the modules that read.

    Not at ``with``, nor at a ``try`` behind it: Python runs no handlers between taking a lock, or
    leaving the block, and the step that gives it back. Nor between a plain assignment and the call
    behind it, on which ``extend`` relies.
    """

    FILES = (passes.__file__, readings.__file__)

    def __init__(self, line):
        self.left = line
        self.done = False

    def __enter__(self):
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def trace(self, frame, event, arg):
        return self.trace_lines if frame.f_code.co_filename in self.FILES else None

    def trace_lines(self, frame, event, arg):
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if (
            event == "line"
            and not self.done
            and not line.lstrip().startswith(("with ", "try:", "values.extend("))
        ):
            self.left -= 1
            if self.left == 0:
                self.done = True
                signal.raise_signal(signal.SIGINT)
        return self.trace_lines


def read_through(plan, line):
    """`cells`, interrupted once; (what came, whether there was an interrupt)."""
    read = plan.read_from(0)
    found, batch = [], 0
    with Interrupts(line) as interrupts:
        while True:
            try:
                portion = read(batch, never)
            except KeyboardInterrupt:
                sys.settrace(interrupts.trace)
                continue
            except Exception as error:
                portion = error
            if portion is None:
                return found, interrupts.done
            found.append(portion)
            batch += 1


GIVEN = {
    "sampler": lambda: of_sampler([5, 4, 3, 2, 1], 2),
    "unsized": lambda: of_sampler(Unsized([5, 4, 3, 2]), 2),
    "generator": lambda: of_sampler(Epochs(4), 3),
    "rank": lambda: of_sampler(list(range(7)), 1, rank=2, world_size=3),
    "stream": lambda: of_stream(list("abcdefg"), 1, rank=2, world_size=3),
    "bulk": lambda: of_sampler([0, [1, 2], 3], None),
    "lists": lambda: of_batches([[0, 1], (2,)]),
    "iterators": lambda: of_batches(Unsized([Unsized([0, 1]), Unsized([2])])),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_an_interrupt_at_any_line_loses_nothing(kind):
    expected = cells(GIVEN[kind]())
    for line in itertools.count(1):
        found, interrupted = read_through(GIVEN[kind](), line)
        assert found == expected, line
        if not interrupted:
            break
    assert line > 50


@pytest.mark.parametrize("values", [0, 3, 4])
def test_after_an_interrupt_at_any_line_an_error_is_not_a_clean_end(values):
    error = OSError("no")
    expected = batches(of_sampler(Dies(error, *range(values)), 2))
    for line in itertools.count(1):
        found, interrupted = read_through(of_sampler(Dies(error, *range(values)), 2), line)
        seen = [cell if isinstance(cell, Exception) else cell[0] for cell in found]
        assert isinstance(seen[-1], (OSError, RuntimeError)), line
        assert [x for x in seen if not isinstance(x, Exception)][: values // 2] == expected[:-1]
        if not interrupted:
            assert seen == expected
            break


class Interrupting:
    """An iterator that gets a Ctrl-C while it works on value `at`, and goes on with it."""

    def __init__(self, at, count):
        self.at, self.count = at, count

    def __iter__(self):
        self.next = 0
        return self

    def __next__(self):
        if self.next == self.at:
            self.at = None
            signal.raise_signal(signal.SIGINT)
        if self.next == self.count:
            raise StopIteration
        self.next += 1
        return self.next - 1


@pytest.mark.parametrize("at", range(1, 5))
def test_an_iterator_that_outlives_an_interrupt_is_read_on(at):
    read = of_sampler(Interrupting(at, 5), 3).read_from(0)
    found = []
    for batch in range(3):
        try:
            found.append(read(batch, never))
        except KeyboardInterrupt:
            found.append(read(batch, never))
    assert found == [([0, 1, 2], None, 0, 1), ([3, 4], None, 3, 1), None]


class DiesOfInterrupt:
    def __init__(self, at):
        self.at = at

    def __iter__(self):
        for k in range(6):
            if k == self.at:
                self.at = None
                signal.raise_signal(signal.SIGINT)
            yield k


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("at", range(1, 6))
def test_an_iterator_that_an_interrupt_ended_is_not_at_a_clean_end(at, drop_last):
    read = of_sampler(DiesOfInterrupt(at), 2, drop_last=drop_last, epoch=3).read_from(0)
    found = []
    with pytest.raises(RuntimeError, match="interrupt came out of it.*epoch 3 isn't complete"):
        while True:
            try:
                found.append(read(len(found), never)[0])
            except KeyboardInterrupt:
                pass
    values = [index for batch in found for index in batch]
    assert values == list(range(at - at % 2 if drop_last else at))
    assert read(len(found) + 1, never) is None


def test_an_interrupt_before_the_first_value_begins_anew():
    read = of_sampler(DiesOfInterrupt(0), 4).read_from(0)
    with pytest.raises(KeyboardInterrupt):
        read(0, never)
    assert [read(b, never)[0] for b in range(2)] == [[0, 1, 2, 3], [4, 5]]
    assert read(2, never) is None


def test_an_interrupt_that_ended_a_list_of_indices_is_an_error_of_its_batch():
    read = of_batches(Unsized([DiesOfInterrupt(3), [7]])).read_from(0)
    with pytest.raises(KeyboardInterrupt):
        read(0, never)
    with pytest.raises(RuntimeError, match="yield 0: ended because an interrupt came out"):
        read(0, never)
    assert read(1, never)[0] == [7]


# -- with the engine --------------------------------------------------------------------------


def run_of(plan, *, start=0, workers=0):
    pool = _core.Pool(workers, "test") if workers else None
    source = _core.CallSource(lambda indices, task: (indices, task.items, task.position(0)))
    return _core.Run(source, plan.reader(start), start=start, pool=pool, window=4)


def outcomes(run):
    found = []
    while not isinstance(cell := run.next(), _core.End):
        found.append(cell.error if isinstance(cell, _core.Failure) else cell.object)
    return found, cell


@pytest.mark.parametrize("workers", [0, 3])
def test_the_engine_reads_every_batch_once(workers):
    for make, items in ((of_sampler, False), (of_stream, True)):
        found, end = outcomes(
            run_of(
                make(list(range(101)), 10, samples=101)
                if not items
                else make(list(range(101)), 10),
                workers=workers,
            )
        )
        lists = [list(range(b, min(b + 10, 101))) for b in range(0, 101, 10)]
        assert found == [(x, x if items else None, x[0]) for x in lists]
        assert (end.batches, end.errors, end.samples) == (11, 0, 101)
        found, end = outcomes(run_of(make(list(range(10)), 4), start=2, workers=workers))
        assert found == [([8, 9], [8, 9] if items else None, 8)]


@pytest.mark.parametrize("workers", [0, 3])
def test_errors_of_reading_are_failures_of_their_batches(workers):
    error = OSError("no")
    found, end = outcomes(
        run_of(of_sampler(Yields(0, error, 2, 99, 4, 1), samples=6), workers=workers)
    )
    assert found[0] is error
    assert type(found[1]) is IndexError
    assert found[2:] == [([4, 1], None, 4)]
    assert (end.batches, end.errors) == (3, 2)
    found, end = outcomes(run_of(of_sampler(Long(9, 0, 1)), workers=workers))
    assert found[0] == ([0, 1], None, 0)
    assert type(found[1]) is ValueError


def test_a_cancelled_run_stops_reading():
    class Endless:
        def __iter__(self):
            for _ in itertools.count():
                read.append(1)
                yield 0

    read = []
    run = run_of(of_sampler(Endless(), 10**9), workers=1)
    wait_for(lambda: len(read) > 1000, "values")
    run.cancel()
    wait_for(lambda: (n := len(read), time.sleep(10 * MS))[0] == len(read) == n, "the end of it")


def test_an_interrupt_in_the_consumers_thread_comes_out_and_nothing_is_lost():
    run = run_of(of_sampler(Interrupting(4, 6), 3))
    assert run.next().object[0] == [0, 1, 2]
    with pytest.raises(KeyboardInterrupt):
        run.next()
    assert run.next().object[0] == [3, 4, 5]
    assert isinstance(run.next(), _core.End)


def test_a_child_can_read_although_a_lock_was_held_at_the_fork():
    class Forks(Epochs):
        def __iter__(self):
            if self.epoch == 0:
                held.set()
                done.wait(10)
            return super().__iter__()

    held, done = threading.Event(), threading.Event()
    sampler = Forks(2)
    thread = threading.Thread(target=of_sampler(sampler).read_from(0), args=(0, never))
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        sampler.epoch = 1
        found = batches(of_sampler(sampler, epoch=1))
        os._exit(0 if found == [[1, 1]] else 3)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        thread.join(10)
