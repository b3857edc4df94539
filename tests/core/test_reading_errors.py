"""Samplers and iterable datasets of the user's that fail, end too soon, or never."""

import itertools

import pytest

from helpers.reading import (
    Dies,
    Epochs,
    Long,
    Unsized,
    Yields,
    batches,
    cells,
    flat,
    of_batches,
    of_sampler,
    of_stream,
)
from tundish import ConfigError, DataLoader

UNEVEN = ("pad", "drop", "keep")

# -- lengths ----------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
def test_fewer_values_than_len_said_are_an_error_behind_the_batches(drop_last):
    plan = of_sampler(Long(9, 0, 1, 2), drop_last=drop_last)
    assert plan.batches == 4 if drop_last else 5
    *found, error = batches(plan)
    assert found == ([[0, 1]] if drop_last else [[0, 1], [2]])
    assert type(error) is ValueError
    assert "9" in str(error)
    assert "3" in str(error)


@pytest.mark.parametrize("n", [4, 5])
def test_more_values_than_len_said_are_an_error_behind_the_batches(n):
    for read in (of_sampler, of_stream):
        given = Long(n, *range(8))
        *found, error = batches(read(given))
        assert flat(found) == list(range(n))
        assert type(error) is ValueError
        assert f"len() of {given and ('sampler' if read is of_sampler else 'dataset')}" in str(
            error
        )
        assert f"more than {n}" in str(error)
        assert len(given.given) == n + 1


def test_lies_of_a_batch_sampler_and_of_ranks_are_told_too():
    *found, error = batches(of_batches(Long(3, [1], [2])))
    assert (found, type(error)) == ([[1], [2]], ValueError)
    for rank in range(2):
        *found, error = batches(of_sampler(Long(6, 0, 1, 2, 3), rank=rank, world_size=2))
        assert (found, type(error)) == ([[rank, rank + 2]], ValueError)


def test_an_error_before_explains_a_short_epoch():
    error = OSError("gone")
    assert batches(of_sampler(Long(9, 0, 1, error))) == [[0, 1], error]


@pytest.mark.parametrize(
    ("length", "kind"),
    [(-1, ValueError), (2.5, TypeError), (OSError("no"), OSError), (True, TypeError)],
)
def test_a_length_that_is_none_is_an_error_at_once(length, kind):
    with pytest.raises(kind):
        of_sampler(Long(length, 1))


@pytest.mark.parametrize("error", [TypeError("unknown"), NotImplementedError()])
def test_a_length_that_nobody_knows_is_none(error):
    plan = of_stream(Long(error, 1, 2, 3))
    assert (plan.batches, plan.samples) == (None, None)
    assert batches(plan) == [[1, 2], [3]]


def test_nothing_is_no_batches_and_a_clean_end():
    for nothing in ([], Unsized([]), Long(0)):
        for drop_last, size in itertools.product([False, True], [1, 2]):
            assert cells(of_sampler(nothing, size, drop_last=drop_last)) == []
            assert cells(of_stream(nothing, size, drop_last=drop_last)) == []
        assert cells(of_sampler(nothing, None)) == cells(of_batches(nothing)) == []


def test_the_length_is_read_once_per_epoch():
    class Changes(list):
        asked = 0

        def __len__(self):
            self.asked += 1
            return 4 if self.asked == 1 else 9

    given = Changes([1, 2, 3, 4])
    plan = of_sampler(given)
    assert (batches(plan), given.asked) == ([[1, 2], [3, 4]], 1)


# -- errors of the iterator -------------------------------------------------------------------


def test_an_error_keeps_its_type_and_takes_one_place_of_its_batch():
    error = KeyError("k")
    given = Yields(0, error, 2, 3, 4)
    assert batches(of_sampler(given)) == [error, [2, 3], [4]]
    assert error.__notes__ == ["tundish: in sampler Yields, yield 1, batch 0 of epoch 0"]
    assert batches(of_sampler(given, epoch=3), 1) == [[2, 3], [4]]


def test_several_errors_of_a_batch_are_told_of():
    first, second = OSError("a"), OSError("b")
    assert batches(of_sampler(Yields(first, second, 1))) == [first, [1]]
    assert any("the first of 2" in note and "OSError('b')" in note for note in first.__notes__)


def test_a_generator_that_dies_ends_the_epoch_with_its_error():
    for error in (OSError("no"), ValueError("x")):
        assert batches(of_sampler(Dies(error, 0, 1, 2))) == [[0, 1], error]
        assert batches(of_sampler(Dies(error, 0, 1, 2, 3))) == [[0, 1], [2, 3], error]
        assert batches(of_sampler(Dies(error, 0, 1), drop_last=True)) == [[0, 1], error]
        assert batches(of_sampler(Dies(error, 0, 1, 2, 3), 3, drop_last=True)) == [[0, 1, 2], error]


def test_every_rank_is_told_of_an_error_that_ended_the_epoch():
    error = OSError("no")
    for values, uneven in itertools.product(range(9), UNEVEN):
        for rank in range(3):
            shard = {"rank": rank, "world_size": 3, "uneven": uneven}
            found = batches(of_sampler(Dies(error, *range(values)), **shard))
            assert found.count(error) == 1, (values, uneven, rank)
            assert found[-1] is error


def test_an_error_in_another_ranks_place_is_not_ours():
    error = OSError("no")
    given = Yields(0, 1, 2, error, 4, 5, 6, 7)
    assert batches(of_sampler(given, rank=0, world_size=2)) == [[0, 2], [4, 6]]
    assert batches(of_sampler(given, rank=1, world_size=2)) == [error, [5, 7]]


@pytest.mark.parametrize("where", ["__iter__", "set_epoch"])
def test_an_epoch_that_cannot_be_begun_is_one_error_and_the_end(where):
    error = OSError("no")

    def fail(*_):
        raise error

    given = type("Broken", (Epochs,), {where: fail})(3)
    for read in (of_sampler, of_stream):
        assert batches(read(given, epoch=4)) == [error]
        assert (
            f"iter() of {'sampler' if read is of_sampler else 'dataset'} Broken"
            in error.__notes__[0]
        )
        assert "batch 0 of epoch 4" in error.__notes__[0]


def test_what_would_end_a_loop_is_a_runtime_error_of_its_batch():
    for error in (SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopAsyncIteration()):
        found = batches(of_sampler(Yields(0, 1, error, 3, 4)))
        assert [found[0], found[2]] == [[0, 1], [4]]
        assert type(found[1]) is RuntimeError
        assert found[1].__cause__ is error


def test_an_iterator_that_only_raises_is_given_up():
    class Raises:
        def __iter__(self):
            return self

        def __next__(self):
            raise OSError("closed")

        def set_epoch(self, epoch):
            pass

    *found, last = batches(of_sampler(Raises(), 10), most=200)
    assert [type(cell) for cell in found] == [OSError] * 100
    assert type(last) is RuntimeError
    assert "1000 errors in a row" in str(last)


def test_a_start_behind_what_broke_says_what_broke():
    class Breaks:
        def __iter__(self):
            yield from range(9)
            raise OSError("the shard is torn")

    class Lies(Breaks):
        def __len__(self):
            return 40

        def __iter__(self):
            return iter(range(9))

    for dataset, kind, text in (
        (Breaks(), OSError, "OSError: the shard is torn"),
        (Lies(), ValueError, "ValueError: len.. of dataset Lies is 40, but it ended after 9"),
    ):
        epoch = DataLoader(dataset, 2, num_workers=1).epoch(0, start=8)
        with pytest.raises(ConfigError, match=f"start=8 .* gave 5 batches, and then {text}") as e:
            next(epoch)
        assert type(e.value.__cause__) is kind
