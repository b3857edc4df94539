"""What torch does with errors and wrong arguments, and what ours does: the better thing."""

import time

import pytest

from helpers.datasets import Range, Slow, outcomes
from helpers.timing import MS
from parity.peers import ours, theirs
from parity.samples import ERRORS, Bulk, Fail, TwoArguments, no_device, stop_at_2
from tundish import ConfigError

WORKERS = pytest.mark.parametrize("workers", [0, 2])


def of_ours(dataset, workers, **options):
    return outcomes(iter(ours(dataset, 2, num_workers=workers, **options)))


def of_theirs(dataset, workers, **options):
    return outcomes(iter(theirs(dataset, 2, num_workers=workers, **options)))


# -- exceptions --------------------------------------------------------------------------------

#: Torch's worker processes keep the type of these, others become a RuntimeError.
KEPT = {"OSError", "FileNotFoundError", "KeyError"}
EACH_ERROR = pytest.mark.parametrize(
    "name", sorted(ERRORS.keys() - {"StopIteration", "SystemExit"})
)


@WORKERS
@EACH_ERROR
def test_ours_keeps_type_attributes_and_cause(name, workers):
    make, attributes = ERRORS[name]
    before, error, after = of_ours(Fail(name), workers)
    assert (before, after) == ([0, 1], [4, 5])
    assert type(error) is type(make())
    assert {key: getattr(error, key) for key in attributes} == attributes
    assert str(error.__cause__) == "root"
    assert any("dataset[2]" in note for note in error.__notes__)


@EACH_ERROR
def test_torchs_workers_lose_what_takes_more_than_one_argument(name):
    make, attributes = ERRORS[name]
    before, error, after = of_theirs(Fail(name), 1)
    assert (before, after) == ([0, 1], [4, 5])
    assert type(error) is (type(make()) if name in KEPT else RuntimeError)
    assert error.__cause__ is None
    assert all(getattr(error, key, None) != value for key, value in attributes.items())


@WORKERS
@pytest.mark.parametrize("part", ["dataset", "collate_fn"])
def test_stop_iteration_is_a_silent_end_there_and_an_error_here(part, workers):
    if part == "dataset":
        dataset, collate_fn = Fail("StopIteration"), list
    else:
        dataset, collate_fn = Range(6), stop_at_2
    # With workers torch takes 5 s for each of them to end after this.
    there = min(workers, 1) if part == "dataset" else 0
    assert list(theirs(dataset, 2, num_workers=there, collate_fn=collate_fn)) == [[0, 1]]
    before, error, after = of_ours(dataset, workers, collate_fn=collate_fn)
    assert (before, after) == ([0, 1], [4, 5])
    assert type(error) is RuntimeError
    assert "StopIteration" in str(error)


@WORKERS
def test_system_exit_of_a_sample_leaves_the_trainer_running_here(workers):
    dataset = Fail("SystemExit")
    with pytest.raises(SystemExit):
        of_theirs(dataset, 0)
    before, error, after = of_ours(dataset, workers)
    assert (before, after) == ([0, 1], [4, 5])
    assert isinstance(error, Exception)
    assert "SystemExit(3)" in str(error)


@WORKERS
@pytest.mark.parametrize("fetched", [0, 1, 3])
def test_a_batched_fetch_of_the_wrong_count_is_a_wrong_batch_there_and_an_error_here(
    fetched, workers
):
    dataset = Bulk(fetched)
    assert of_theirs(dataset, workers) == [[7] * fetched] * 3
    found = of_ours(dataset, workers)
    assert [type(cell) for cell in found] == [ValueError] * 3
    assert str(fetched) in str(found[0])
    assert "2" in str(found[0])


@WORKERS
@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_any_iterable_of_the_right_count_will_do_in_both(kind, workers):
    expected = [[0, 1], [2, 3], [4, 5]]
    assert of_theirs(Bulk(kind=kind), 0) == of_ours(Bulk(kind=kind), workers) == expected


@WORKERS
def test_an_index_error_before_the_end_is_an_error_of_its_batch_in_both(workers):
    class Short(Range):
        def __getitem__(self, index):
            return [0, 1, 2][index]

    for found in (of_theirs(Short(6), 0), of_ours(Short(6), workers)):
        assert found[0] == [0, 1]
        assert [type(cell) for cell in found[1:]] == [IndexError, IndexError]


def test_a_batch_that_takes_too_long_names_its_sample_here_and_the_next_one_follows():
    def slow():
        return Slow(6, {2: 1500 * MS})

    error = next(c for c in of_theirs(slow(), 1, timeout=0.2) if isinstance(c, Exception))
    assert "timed out after 0.2 seconds" in str(error)
    before, error, after = of_ours(slow(), 2, timeout=400 * MS)
    assert (before, after) == ([0, 1], [4, 5])
    assert type(error) is TimeoutError
    assert "sample 2" in str(error)


def test_an_error_of_the_collate_function_is_its_batches_in_both():
    def collate(samples):
        if 2 in samples:
            raise TwoArguments(1, "b")
        return samples

    for found in (
        of_theirs(Range(6), 0, collate_fn=collate),
        *(of_ours(Range(6), workers, collate_fn=collate) for workers in (0, 2)),
    ):
        assert (found[0], found[2]) == ([0, 1], [4, 5])
        assert (type(found[1]), found[1].a, found[1].b) == (TwoArguments, 1, "b")


def test_worker_init_errors_come_to_the_consumer_in_both():
    for found in (
        of_theirs(Range(2), 1, worker_init_fn=no_device),
        of_ours(Range(2), 1, worker_init_fn=no_device),
    ):
        assert isinstance(found[0], OSError)
        assert "no device for worker 0" in str(found[0])


# -- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": -1},
        {"batch_size": 1.5},
        {"batch_size": True},
        {"num_workers": -1},
        {"timeout": -1},
        {"drop_last": 1},
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "shuffle": True},
        {"batch_sampler": [[1]], "sampler": [1]},
        {"batch_sampler": [[1]], "drop_last": True},
        {"batch_size": None, "drop_last": True},
    ],
    ids=repr,
)
def test_what_both_refuse(options):
    with pytest.raises(ValueError):
        theirs(range(6), **options)
    with pytest.raises(ConfigError) as refused:
        ours(range(6), **options)
    assert all(name in str(refused.value) for name in options)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1.5},
        {"collate_fn": 5},
        {"worker_init_fn": 5},
        {"shuffle": 1},
        {"in_order": 1},
        {"sampler": 3},
        {"batch_sampler": 3},
        {"sampler": iter([1])},
    ],
    ids=repr,
)
def test_what_torch_finds_out_later_or_never_is_refused_at_once(options):
    theirs(range(6), **options)
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        ours(range(6), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"pin_memory": True},
        {"pin_memory_device": "cuda"},
        {"multiprocessing_context": "fork"},
        {"generator": object()},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
    ],
    ids=repr,
)
def test_an_argument_without_a_counterpart_is_refused_by_name_with_the_way_out(options):
    (name,) = options
    with pytest.raises(ConfigError, match=name) as refused:
        ours(range(6), **options)
    assert len(str(refused.value)) > len(name) + 20


@pytest.mark.parametrize("options", [{"timeout": 0}, {"shuffle": None}], ids=repr)
def test_torchs_defaults_of_our_arguments_are_taken(options):
    assert list(ours(range(3), 2, **options)) == list(theirs(range(3), 2, **options))


def test_a_one_shot_sampler_is_silently_empty_the_second_time_there():
    loader = theirs(range(6), sampler=iter([3, 1]))
    assert [list(loader), list(loader)] == [[[3], [1]], []]


@pytest.mark.parametrize("value", [-1, 6, 99, 1.0, "1", None, True])
def test_a_bad_index_is_an_error_that_names_it_whatever_torch_does(value):
    data = list(range(6))
    if value is True or value == -1:  # used as they are: the last sample, and sample 1
        assert list(theirs(data, sampler=[value])) == [[data[value]]]
    else:
        with pytest.raises((IndexError, TypeError)):
            list(theirs(data, sampler=[value]))
    found = outcomes(iter(ours(data, 2, sampler=[0, 1, value, 3, 4, 5])))
    assert (found[0], found[2]) == ([0, 1], [4, 5])
    assert isinstance(found[1], IndexError if type(value) is int else TypeError)
    assert repr(value) in str(found[1])


def test_two_epochs_end_without_waiting_for_workers_here():
    began = time.monotonic()
    loader = ours(Slow(4, {3: 2000 * MS}), 1, num_workers=2)
    for _ in range(2):
        iterator = iter(loader)
        assert next(iterator) == [0]
        del iterator
    assert time.monotonic() - began < 1000 * MS
