"""dataloader-rs 0.2.0: what its errors, refusals and iterators do, and what ours do."""

import time

import pytest

from helpers.datasets import Gate, outcomes
from helpers.timing import MS, wait_for
from parity.peers import epochs, ours, passes
from parity.rs import Bulk, Items, theirs
from tundish import ConfigError, DataLoader

WORKERS = pytest.mark.parametrize("workers", [0, 2])
#: Values that no count can have, and kinds that are no int.
NO_COUNT = [0, -1, 2**64, 1.5, "a"]


def failing(at, error):
    def item(index):
        if index == at:
            raise error
        return index

    return item


def shown(found):
    return [repr(cell) for cell in found]


# -- errors ------------------------------------------------------------------------------------


class TwoArguments(Exception):
    def __init__(self, code, *, path):
        super().__init__(code, path)
        self.code = code
        self.path = path


@WORKERS
@pytest.mark.parametrize(
    "error",
    [
        OSError("bad 3"),
        FileNotFoundError(2, "No such", "/x/y"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        KeyError("k"),
        IndexError("3"),
        TwoArguments(5, path="/x"),
    ],
)
def test_an_error_is_its_batches_and_the_rest_follows_in_both(error, workers):
    dataset = Items(6, failing(3, error))
    for make in (theirs, ours):
        found = outcomes(iter(make(dataset, 2, num_workers=workers)))
        assert shown(found) == ["[0, 1]", repr(error), "[4, 5]"]
        assert type(found[1]) is type(error)
        assert (
            vars(found[1]).items()
            >= {key: value for key, value in vars(error).items() if key != "__notes__"}.items()
        )


@WORKERS
def test_only_ours_says_which_sample_failed(workers):
    def item(index):
        if index == 3:
            raise OSError("bad")
        return index

    (theirs_error,) = (
        c
        for c in outcomes(iter(theirs(Items(6, item), 2, num_workers=workers)))
        if isinstance(c, OSError)
    )
    (our_error,) = (
        c
        for c in outcomes(iter(ours(Items(6, item), 2, num_workers=workers)))
        if isinstance(c, OSError)
    )
    assert not getattr(theirs_error, "__notes__", [])
    assert any("dataset[3]" in note for note in our_error.__notes__)


@WORKERS
@pytest.mark.parametrize("fetched", [0, 1, 3])
def test_a_batched_fetch_of_the_wrong_count_is_an_error_in_both(fetched, workers):
    dataset = Bulk(4, lambda indices: [7] * fetched)
    for make, kind in ((theirs, ValueError), (ours, ValueError)):
        found = outcomes(iter(make(dataset, 2, num_workers=workers)))
        assert [type(cell) for cell in found] == [kind, kind]
        assert str(fetched) in str(found[0])
        assert "2" in str(found[0])


@WORKERS
@pytest.mark.parametrize("part", ["dataset", "collate_fn"])
def test_stop_iteration_ends_their_epoch_silently_and_is_an_error_in_ours(part, workers):
    item = failing(4, StopIteration("enough"))
    if part == "dataset":
        dataset, collate_fn = Items(10, item), list
    else:
        dataset, collate_fn = Items(10), lambda samples: [item(sample) for sample in samples]
    same = {"num_workers": workers, "collate_fn": collate_fn}
    assert list(theirs(dataset, 2, **same)) == [[0, 1], [2, 3]]
    found = outcomes(iter(ours(dataset, 2, **same)))
    assert [cell for cell in found if not isinstance(cell, Exception)] == [
        [0, 1],
        [2, 3],
        [6, 7],
        [8, 9],
    ]
    assert type(found[2]) is RuntimeError
    assert "StopIteration" in str(found[2])


def test_a_one_shot_sampler_is_empty_the_second_time_there_and_refused_here():
    other = theirs(Items(4), 2, sampler=iter([3, 1, 2]))
    assert passes(other, 2) == [[[3, 1], [2]], []]
    with pytest.raises(ConfigError, match="sampler"):
        ours(Items(4), 2, sampler=iter([3, 1, 2]))


@pytest.mark.parametrize("value", [99, -1, 2**70, 1.5, "a", None])
def test_a_bad_index_is_an_error_that_names_it_in_ours_whatever_it_does_there(value):
    dataset = list(range(10))
    found = outcomes(iter(ours(dataset, 2, sampler=[0, 1, value, 3, 4, 5])))
    assert [cell for cell in found if not isinstance(cell, Exception)] == [[0, 1], [4, 5]]
    assert isinstance(found[1], (IndexError, TypeError))
    assert repr(value) in str(found[1])
    if value == 99:  # theirs gives it to the dataset
        assert list(theirs(Items(10), 2, sampler=[0, value])) == [[0, 99]]
    else:  # theirs ends the epoch before it began
        with pytest.raises((OverflowError, TypeError)):
            iter(theirs(Items(10), 2, sampler=[0, value]))


@pytest.mark.parametrize("raised", ["__iter__", "yield"])
def test_an_error_of_the_sampler_is_kept_by_both(raised):
    class Broken:
        def __iter__(self):
            if raised == "__iter__":
                raise OSError("no indices")
            return self.indices()

        def indices(self):
            yield 0
            raise OSError("no indices")

    with pytest.raises(OSError, match="no indices"):
        list(theirs(Items(4), 1, sampler=Broken()))
    with pytest.raises(OSError, match="no indices"):
        list(ours(Items(4), 1, sampler=Broken()))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        *[({"batch_size": value}, (ValueError, OverflowError, TypeError)) for value in NO_COUNT],
        ({"num_workers": -1}, OverflowError),
        ({"items_in_parallel": 0}, ValueError),
        ({"shuffle": 1}, TypeError),
        ({"drop_last": 1}, TypeError),
        ({"shuffle": True, "seed": -1}, OverflowError),
        ({"shuffle": True, "seed": 2**64}, OverflowError),
        ({"shuffle": True, "sampler": [1]}, ValueError),
        ({"sampler": 3}, TypeError),
        ({"batch_sampler": [[1]], "timeout": 1}, TypeError),
        ({"pin_memory": True}, TypeError),
    ],
)
def test_what_they_refuse_we_refuse_by_name(options, error):
    arguments = {"batch_size": 2} | options
    with pytest.raises(error):
        theirs(Items(4), **arguments)
    if "batch_sampler" in options:
        return  # an argument of ours
    with pytest.raises(ConfigError, match=next(reversed(options))):
        ours(Items(4), **arguments)


@pytest.mark.parametrize("options", [{"batch_size": True}, {"batch_size": 2, "collate_fn": 5}])
def test_what_they_accept_by_accident_we_refuse(options):
    theirs(Items(4), **options)
    with pytest.raises(ConfigError, match=next(reversed(options))):
        DataLoader(Items(4), **options)


def test_prefetch_depth_is_prefetch_here():
    theirs(Items(4), 2, prefetch_depth=3)
    with pytest.raises(ConfigError, match="prefetch_depth=3.*use prefetch="):
        ours(Items(4), 2, prefetch_depth=3)
    assert ours(Items(4), 2, prefetch=3).prefetch == 3


def test_a_seed_without_shuffle_is_refused_there_and_harmless_here():
    with pytest.raises(ValueError, match="shuffle"):
        theirs(Items(4), 2, seed=7)
    assert list(ours(Items(4), 2, seed=7)) == [[0, 1], [2, 3]]


def test_any_dataset_will_do_here_where_theirs_must_be_a_subclass():
    with pytest.raises(TypeError, match="PyDataset"):
        theirs([1, 2, 3], 2)
    assert list(ours([1, 2, 3], 2)) == [[1, 2], [3]]


def test_the_error_of_len_comes_from_iter_in_both():
    class NoLength(Items):
        def __len__(self):
            raise OSError("no length")

    for make in (theirs, ours):
        loader = make(NoLength(4), 2)
        with pytest.raises(OSError, match="no length"):
            iter(loader)


# -- iterators ---------------------------------------------------------------------------------


@WORKERS
def test_an_iterator_that_ended_keeps_saying_so_in_both(workers):
    for make in (theirs, ours):
        iterator = iter(make(Items(4), 2, num_workers=workers))
        assert list(iterator) == [[0, 1], [2, 3]]
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(iterator)


@WORKERS
def test_iterators_of_one_loader_are_independent_in_both(workers):
    for make in (theirs, ours):
        loader = make(Items(4), 2, num_workers=workers)
        first, second = iter(loader), iter(loader)
        assert [next(first), next(second), next(first), next(second)] == [
            [0, 1],
            [0, 1],
            [2, 3],
            [2, 3],
        ]


def test_dropping_an_iterator_does_not_wait_in_either():
    for make in (theirs, ours):
        dataset = Gate(10, closed_from=2)
        loader = make(Items(10, dataset.__getitem__), 1, num_workers=2)
        iterator = iter(loader)
        assert next(iterator) == [0]
        wait_for(lambda: len(dataset.asked) >= 3, "a worker to be stuck")
        began = time.monotonic()
        del iterator
        assert time.monotonic() - began < 1000 * MS
        dataset.opened.set()
        assert next(iter(loader)) == [0]


def test_only_ours_asks_for_any_epoch_from_any_batch():
    loader = ours(Items(10), 3, shuffle=True, seed=7, order="dataloader-rs")
    whole = passes(theirs(Items(10), 3, shuffle=True, seed=7), 3)
    assert list(epochs(loader, [2])) == [whole[2]]
    assert list(loader.epoch(2, start=2)) == whole[2][2:]
    assert not hasattr(theirs(Items(10), 3), "set_epoch")
