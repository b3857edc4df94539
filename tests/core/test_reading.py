"""Samplers and iterable datasets of the user's: their batches, and whose error is what."""

import itertools
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.reading import (
    Dies,
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
from tundish import ConfigError, _core
from tundish.reading import Unread, check_sampler

UNEVEN = ("pad", "drop", "keep")


# -- indices ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, None])
@pytest.mark.parametrize(
    "value", [1, np.int64(1), np.uint8(1), np.array(1), np.array(1, np.int8)], ids=repr
)
def test_integers_of_any_kind_come_as_plain_ints(value, size):
    found = batches(of_sampler([0, value, 2, 3], size, samples=6))
    assert flat(found) == [0, 1, 2, 3]
    assert [type(index) for batch in found for index in batch] == [int] * 4


@pytest.mark.parametrize("size", [2, None])
@pytest.mark.parametrize("value", [-1, 6, 99, 2**70, -(2**70), np.int64(-1), np.array(6)], ids=repr)
def test_an_integer_outside_of_the_dataset_is_an_index_error_of_its_batch(value, size):
    found = batches(of_sampler([0, 1, 2, value, 4], size, samples=6))
    bad = 1 if size else 3
    assert type(found[bad]) is IndexError
    assert str(int(value)) in str(found[bad])
    assert "6 samples" in str(found[bad])
    assert "yield 3" in str(found[bad])
    assert found[bad].__notes__ == [f"tundish: in sampler list, batch {bad} of epoch 0"]
    del found[bad]
    assert found == ([[0, 1], [4]] if size else [[0], [1], [2], [4]])


@pytest.mark.parametrize("size", [2, None])
@pytest.mark.parametrize(
    "value", [1.0, "1", None, True, False, np.bool_(True), np.float32(1), b"1", 1j], ids=repr
)
def test_what_is_no_integer_is_a_type_error_of_its_batch(value, size):
    found = batches(of_sampler([0, 1, 2, value, 4], size, samples=6))
    bad = 1 if size else 3
    assert type(found[bad]) is TypeError
    assert repr(value) in str(found[bad])
    assert "yield 3" in str(found[bad])
    assert type(value).__name__ in str(found[bad])
    assert len(found) == (3 if size else 5)


def test_negative_indices_say_that_they_are_refused():
    (error,) = batches(of_sampler([-1], samples=6))
    assert "negative ones are refused" in str(error)


def test_an_empty_dataset_says_so():
    (error,) = batches(of_sampler([0], samples=0))
    assert "it is empty" in str(error)


def test_a_list_among_indices_says_what_it_would_be():
    (error,) = batches(of_sampler([[0, 1]]))
    assert isinstance(error, TypeError)
    assert "a list of indices is a batch_sampler's" in str(error)


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_anything_with_an_index_method_is_an_index():
    error = ValueError("no")
    assert batches(of_sampler([Index(3), 4, Index(error), 5])) == [[3, 4], error]


@pytest.mark.parametrize(
    "sampler",
    [[3, 1, 2], (3, 1, 2), np.array([3, 1, 2]), {3: "a", 1: "b", 2: "c"}, Yields(3, 1, 2)],
    ids=lambda sampler: type(sampler).__name__,
)
def test_any_iterable_is_a_sampler(sampler):
    plan = of_sampler(sampler)
    assert [batches(plan) for _ in range(2)] == [[[3, 1], [2]]] * 2


def test_a_range_and_a_class_with_getitem_are_samplers():
    class Old:
        def __getitem__(self, at):
            return [4, 2][at]

    assert batches(of_sampler(range(5, 0, -2))) == [[5, 3], [1]]
    assert batches(of_sampler(Old())) == [[4, 2]]


# -- what is refused at once ------------------------------------------------------------------


class Itself:
    def __iter__(self):
        """Nothing that begins anew."""
        return self

    def __next__(self):
        return 0


class Async:
    def __aiter__(self):
        return self


class Unlistable:
    __iter__ = None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (iter([1]), "one-shot"),
        ((k for k in range(3)), "one-shot"),
        (map(int, "12"), "one-shot"),
        (itertools.count(), "one-shot"),
        (Itself(), "one-shot"),
        ("12", "is a str"),
        (b"12", "is a bytes"),
        (3, "not iterable"),
        (None, "not iterable"),
        (np.array(3), "not iterable"),
        (Unlistable(), "not iterable"),
        (Async(), "only async-iterable"),
        (Yields, "is a class"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_iterated_over_once_per_epoch_is_refused_by_name(value, why):
    with pytest.raises(ConfigError, match="the_name=") as caught:
        check_sampler("the_name", value)
    assert why in str(caught.value)
    with pytest.raises(ConfigError, match="sampler="):
        of_sampler(value)


def test_an_object_that_is_its_own_iterator_is_a_sampler_if_it_can_begin_anew():
    class Resets(Itself):
        def __iter__(self):
            self.left = [2, 1]
            return self

        def __next__(self):
            if not self.left:
                raise StopIteration
            return self.left.pop()

    class Told(Resets):
        def __iter__(self):
            return self

        def set_epoch(self, epoch):
            super().__iter__()

    for sampler in (Resets(), Told()):
        plan = of_sampler(sampler)
        assert [batches(plan), batches(plan)] == [[[1, 2]], [[1, 2]]]


def test_the_share_of_a_rank_is_not_split_again():
    sampler = Yields(1)
    sampler.num_replicas = 3
    with pytest.raises(ConfigError, match="world_size=2.*Yields.*3 ranks"):
        of_sampler(sampler, rank=1, world_size=2)
    assert batches(of_sampler(sampler)) == [[1]]


# -- batches and ranks ------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    n=st.integers(0, 14),
    size=st.integers(1, 4),
    world=st.integers(1, 5),
    data=st.data(),
    uneven=st.sampled_from(UNEVEN),
    drop_last=st.booleans(),
    sized=st.booleans(),
)
def test_batches_are_those_that_a_plan_makes_of_the_same_order(
    n, size, world, data, uneven, drop_last, sized
):
    rank = data.draw(st.integers(0, world - 1))
    order = [(7 * k + 3) % 15 for k in range(n)]
    plan = _core.Plan(n, "sequential", 0, 0, size, drop_last, rank, world, uneven)
    expected = [[order[i] for i in plan.indices(b)] for b in range(plan.batches)]
    positions = [
        [(b * size + k) * world + rank for k in range(len(x))] for b, x in enumerate(expected)
    ]

    shard = {"rank": rank, "world_size": world, "uneven": uneven, "drop_last": drop_last}
    given = order if sized else Unsized(order)
    read = of_sampler(given, size, samples=15, **shard)
    if sized:
        assert (read.batches, read.samples) == (plan.batches, plan.samples)
        assert (read.padded, read.dropped) == (plan.padded, plan.dropped)
    else:
        assert (read.batches, read.samples, read.padded, read.dropped) == (None, None, 0, 0)
    found = cells(read)
    assert [indices for indices, *_ in found] == expected
    assert all(items is None for _, items, *_ in found)
    assert [[p + k * step for k in range(len(x))] for x, _, p, step in found] == positions
    assert (read.padded, read.dropped) == (plan.padded, plan.dropped)

    stream = cells(of_stream(given, size, **shard))
    assert [items for _, items, *_ in stream] == expected
    assert [[order[i] for i in indices] for indices, *_ in stream] == expected
    assert [tail[2:] for tail in stream] == [tail[2:] for tail in found]
    for start in range(len(expected) + 1):
        assert cells(of_sampler(given, size, samples=15, **shard), start) == found[start:]
        assert cells(of_stream(given, size, **shard), start) == stream[start:]


@pytest.mark.parametrize("uneven", UNEVEN)
def test_ranks_without_batches_are_those_of_batches_of_one(uneven):
    for n, world in itertools.product(range(8), range(1, 5)):
        for rank in range(world):
            shard = {"rank": rank, "world_size": world, "uneven": uneven}
            expected = cells(of_sampler(list(range(n)), 1, **shard))
            found = cells(of_sampler(list(range(n)), None, **shard))
            assert [(x, p) for x, _, p, _ in found] == [(x, p) for x, _, p, _ in expected]
            stream = cells(of_stream(list(range(n)), None, **shard))
            assert [x for _, x, *_ in stream] == [x for x, *_ in expected]


def test_a_start_behind_the_end_is_an_error_and_then_the_end():
    for plan in (of_sampler(Unsized([1, 2, 3])), of_stream(Unsized([1, 2, 3]))):
        (error,) = cells(plan, 7)
        assert isinstance(error, ConfigError)
        assert "start=7" in str(error)
        assert "2 batches" in str(error)
        assert cells(plan, 2) == []


# -- lists of indices -------------------------------------------------------------------------


def test_lists_without_batches_are_batches_with_positions_that_count_indices():
    groups = [0, [1, 2], np.array([3, 4, 5]), (6,), range(7, 9), 9]
    found = cells(of_sampler(groups, None))
    assert [x for x, *_ in found] == [[0], [1, 2], [3, 4, 5], [6], [7, 8], [9]]
    assert [p for _, _, p, _ in found] == [0, 1, 3, 6, 7, 9]
    assert [step for *_, step in found] == [1, 1, 1, 0, 1, 1]  # (6,) isn't 6
    assert {type(index) for x, *_ in found for index in x} == {int}
    for rank in range(2):
        share = cells(of_sampler(groups, None, rank=rank, world_size=2))
        assert share == found[rank::2]


def test_the_lists_of_a_batch_sampler_are_the_batches():
    given = [[0, 1], (2,), np.array([3, 4]), range(5, 8), iter([8, 9]), {10}, (k for k in [11, 12])]
    found = cells(of_batches(given))
    assert [x for x, *_ in found] == [[0, 1], [2], [3, 4], [5, 6, 7], [8, 9], [10], [11, 12]]
    assert [p for _, _, p, _ in found] == [0, 2, 3, 5, 8, 10, 11]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (3, TypeError, "3 (int) is no list of indices"),
        ("ab", TypeError, "'ab' (str) is no list"),
        (None, TypeError, "None"),
        ({1: 2}, TypeError, "is no list"),
        ([], ValueError, "empty"),
        (iter([]), ValueError, "empty"),
        ([1, 100], IndexError, "place 1: 100"),
        (iter([1, -2]), IndexError, "place 1: -2"),
        (np.array([True, False]), TypeError, "True"),
        (np.array([1.5]), TypeError, "1.5"),
        (np.array([[1], [2]]), TypeError, "place 0"),
        (Dies(OSError("no"), 1), OSError, "no"),
        (OSError("whole"), OSError, "whole"),
    ],
    ids=repr,
)
def test_a_bad_list_is_an_error_of_its_batch(value, kind, text):
    found = batches(of_batches(Yields([0], value, [2, 3])))
    assert [found[0], found[2]] == [[0], [2, 3]]
    assert type(found[1]) is kind
    assert text in str(found[1])
    assert len(found) == 3


def test_batches_of_a_batch_sampler_cannot_be_split():
    with pytest.raises(ConfigError, match="world_size=2 .rank=1. .*batch_sampler"):
        of_batches([[1]], rank=1, world_size=2)


def test_a_batch_sampler_has_as_many_batches_as_it_says():
    plan = of_batches([[1, 2], [3]])
    assert (plan.batches, plan.samples, plan.padded, plan.dropped) == (2, None, 0, 0)
    assert of_batches(Unsized([[1]])).batches is None
    assert plan.order == "batch_sampler:list"
    assert of_sampler(Yields(1)).order == "sampler:helpers.reading.Yields"


# -- iterable datasets ------------------------------------------------------------------------


def test_samples_come_with_their_places_as_indices():
    assert cells(of_stream(Yields("a", "b", "c"))) == [
        ([0, 1], ["a", "b"], 0, 1),
        ([2], ["c"], 2, 1),
    ]
    assert cells(of_stream(Yields("a", [1, 2]), None)) == [
        ([0], ["a"], 0, 1),
        ([1], [[1, 2]], 1, 1),
    ]


def test_padding_repeats_samples_from_the_front():
    found = [cells(of_stream(list("abcde"), 2, rank=r, world_size=3)) for r in range(3)]
    assert [x for _, x, *_ in found[0]] == [["a", "d"]]
    assert [x for _, x, *_ in found[2]] == [["c", "a"]]
    assert found[2] == [([2, 0], ["c", "a"], 2, 3)]


class Thing:
    pass


def test_a_rank_keeps_no_samples_of_others():
    things = []

    class Things:
        def __iter__(self):
            return map(self.make, range(40))

        def make(self, _):
            things.append(weakref.ref(thing := Thing()))
            return thing

    read = of_stream(Things(), 4, rank=1, world_size=4).read_from(0)
    _, kept, *_ = read(1, lambda: False)
    alive = [k for k, thing in enumerate(things) if thing() is not None]
    # Its own of this batch, and what it may need for padding.
    assert alive == [0, 17, 21, 25, 29]
    assert len(kept) == 4


def test_skipped_errors_stand_among_the_samples():
    error = OSError("bad")
    given = Yields("a", error, "c", "d")
    ((indices, items, *_), second) = cells(of_stream(given, skip_errors=True))
    assert indices == [0, 1]
    assert items[0] == "a"
    assert isinstance(items[1], Unread)
    assert items[1].error is error
    assert error.__notes__ == ["tundish: in dataset Yields, yield 1, batch 0 of epoch 0"]
    assert second[1] == ["c", "d"]
    assert batches(of_stream(given)) == [error, ["c", "d"]]


@pytest.mark.parametrize("values", range(5))
def test_a_stream_that_dies_is_not_skipped(values):
    error = OSError("gone")
    found = batches(of_stream(Dies(error, *range(values)), skip_errors=True))
    assert found[-1] is error
    assert flat(found[:-1])[:values] == list(range(values))


def test_the_last_sample_of_a_known_length_may_be_skipped():
    *_, last = batches(of_stream(Long(3, 0, 1, OSError("bad")), skip_errors=True))
    assert isinstance(last[0], Unread)
