"""``on_error="skip"``: samples that can't be loaded are left out, and told of."""

import asyncio
import logging
import os
import signal

import pytest

from helpers.datasets import MODES, Fail, Range, outcomes
from tundish import DataLoader

WORKERS = pytest.mark.parametrize("workers", [0, 4])
LANES = pytest.mark.parametrize("lanes", [1, 3])


class AsyncFail(Fail):
    async def __getitem__(self, index):
        await asyncio.sleep(0)
        return super().__getitem__(index)


class Together(Fail):
    """Has a batched fetch that fails with its first failing sample."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


KINDS = pytest.mark.parametrize("kind", [Fail, AsyncFail, Together])


def lines(caplog):
    """The texts of the warnings of tundish.loader."""
    records = [record for record in caplog.records if record.name == "tundish.loader"]
    assert {record.levelno for record in records} <= {logging.WARNING}
    return [record.getMessage() for record in records]


@pytest.mark.parametrize("mode", MODES)
@KINDS
@WORKERS
@LANES
def test_the_batch_is_shorter_and_keeps_its_place(kind, workers, lanes, mode, caplog):
    errors = {1: OSError(2, "No such"), 6: SystemExit(3)}
    loader = DataLoader(
        kind(9, errors), 3, num_workers=workers, items_in_parallel=lanes, on_error="skip"
    )
    epoch = loader.epoch(4)
    assert outcomes(epoch, mode) == [[0, 2], [3, 4, 5], [7, 8]]
    assert {name: epoch.counts[name] for name in ("batches", "samples", "skipped", "errors")} == {
        "batches": 3,
        "samples": 7,
        "skipped": 2,
        "errors": 0,
    }
    left_out = sorted(line for line in lines(caplog) if line.startswith("left out"))
    assert left_out == [
        "left out sample dataset[1], batch 0 of epoch 4: FileNotFoundError(2, 'No such')",
        "left out sample dataset[6], batch 2 of epoch 4: SystemExit(3)",
    ]


@KINDS
@WORKERS
def test_the_samples_of_a_batch_are_those_that_are_in_it(kind, workers):
    loader = DataLoader(
        kind(8, {2: KeyError(2)}), 4, True, num_workers=workers, seed=3, on_error="skip"
    )
    epoch, seen, skipped = loader.epoch(0), [], []
    for batch in epoch:
        assert epoch.info.indices == batch.tolist()
        seen += batch.tolist()
        skipped += epoch.info.skipped
    assert skipped == [2]
    assert sorted(seen) == [0, 1, 3, 4, 5, 6, 7]


@KINDS
@WORKERS
@LANES
def test_a_batch_of_which_nothing_is_left_is_an_error(kind, workers, lanes):
    first, second = OSError("first"), KeyError("second")
    loader = DataLoader(
        kind(6, {2: first, 3: second}),
        2,
        num_workers=workers,
        items_in_parallel=lanes,
        on_error="skip",
    )
    before, error, after = outcomes(iter(loader))
    assert (before, after) == ([0, 1], [4, 5])
    assert type(error) is ValueError
    assert "all samples of the batch were left out, dataset indices [2, 3]" in str(error)
    assert error.__cause__ is first
    assert error.__notes__ == ["tundish: in dataset[2], batch 1 of epoch 0"]


@WORKERS
def test_a_batched_fetch_that_fails_is_told_of(workers, caplog):
    loader = DataLoader(Together(4, {1: OSError("x")}), 2, num_workers=workers, on_error="skip")
    assert outcomes(iter(loader)) == [[0], [2, 3]]
    fetch, sample = lines(caplog)
    assert fetch.startswith("dataset.__getitems__([0, 1]), batch 0 of epoch 0 failed: OSError('x')")
    assert sample == "left out sample dataset[1], batch 0 of epoch 0: OSError('x')"


@WORKERS
def test_a_batched_fetch_of_a_wrong_count_is_made_up_for(workers):
    class Short(Range):
        def __getitems__(self, indices):
            return [*indices][1:]

    loader = DataLoader(Short(4), 2, num_workers=workers, on_error="skip")
    epoch = iter(loader)
    assert outcomes(epoch) == [[0, 1], [2, 3]]
    assert epoch.counts["skipped"] == 0


class Base:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise NotImplementedError


class OnlyTogether:
    def __len__(self):
        return 4


@WORKERS
@pytest.mark.parametrize("base", [Base, OnlyTogether])
def test_without_another_way_to_load_samples_the_batch_fails(base, workers):
    failure = OSError("no")

    class Failing(base):
        def __getitems__(self, indices):
            if 2 in indices:
                raise failure
            return indices

    loader = DataLoader(Failing(), 2, num_workers=workers, on_error="skip")
    assert outcomes(iter(loader)) == [[0, 1], failure]
    assert "dataset.__getitems__([2, 3]), batch 1" in failure.__notes__[0]


@WORKERS
@LANES
def test_errors_of_the_collate_fn_are_not_skipped(workers, lanes):
    def collate(samples):
        if 2 in samples:
            raise OSError("no")
        return samples

    loader = DataLoader(
        Fail(6, {3: KeyError(3)}),
        2,
        collate_fn=collate,
        num_workers=workers,
        items_in_parallel=lanes,
        on_error="skip",
    )
    first, error, last = outcomes(iter(loader))
    assert (first, last) == ([0, 1], [4, 5])
    assert type(error) is OSError
    assert "collate_fn, for dataset indices [2], batch 1" in error.__notes__[0]


@WORKERS
@LANES
def test_what_is_neither_an_exception_nor_control_fails_the_batch(workers, lanes):
    class Odd(BaseException):
        pass

    loader = DataLoader(
        Fail(4, {1: Odd()}),
        2,
        num_workers=workers,
        items_in_parallel=lanes,
        on_error="skip",
    )
    epoch = iter(loader)
    with pytest.raises(Odd):
        next(epoch)
    assert outcomes(epoch) == [[2, 3]]


@WORKERS
@LANES
def test_an_interrupt_of_the_user_is_not_skipped(workers, lanes):
    class Interrupting(Range):
        def __getitem__(self, index):
            if index == 2 and index not in self.asked:
                self.asked.append(index)
                os.kill(os.getpid(), signal.SIGINT)
            return index

    loader = DataLoader(
        Interrupting(6), 2, num_workers=workers, items_in_parallel=lanes, on_error="skip"
    )
    epoch, found, interrupts = iter(loader), [], 0
    while len(found) < 3:
        try:
            found.append(next(epoch).tolist())
        except KeyboardInterrupt:
            interrupts += 1
    assert (found, interrupts) == ([[0, 1], [2, 3], [4, 5]], 1)
    assert epoch.counts["skipped"] == 0


@WORKERS
def test_unbatched_samples_that_fail_are_errors_of_their_own(workers):
    failure = OSError("no")
    loader = DataLoader(Fail(3, {1: failure}), None, num_workers=workers, on_error="skip")
    first, error, last = outcomes(iter(loader))
    assert (first, last, type(error), error.__cause__) == (0, 2, ValueError, failure)


@WORKERS
def test_after_many_lines_there_is_one_for_every_thousand(workers, caplog):
    loader = DataLoader(
        Fail(4000, {k: OSError(k) for k in range(3500)}),
        1000,
        num_workers=workers,
        on_error="skip",
    )
    for number in (1, 2):
        assert [type(batch) for batch in outcomes(iter(loader))] == [ValueError] * 3 + [list]
        told = lines(caplog)
        assert len(told) == 103 * number  # anew in every run
    assert len([line for line in told if line.startswith("left out sample")]) == 200
    summaries = [line.split(" left out")[0] for line in told if "in this run" in line]
    text = "000 failures in this run so far; the latest:"
    assert sorted(summaries) == sorted([f"1{text}", f"2{text}", f"3{text}"] * 2)
    assert [line.endswith("on, one line for every 1000)") for line in told].count(True) == 2
