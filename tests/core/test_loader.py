"""The DataLoader's arguments, lengths and orders."""

import json
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from helpers.datasets import MODES, Fail, Range, outcomes
from tundish import (
    ArrayDataset,
    ConfigError,
    DataLoader,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

TABLES = json.loads((Path(__file__).parent / "seed_tables.json").read_text())
FLAGS = [(shuffle, drop) for shuffle in (False, True) for drop in (False, True)]


def flat(batches):
    return [index for batch in batches for index in batch]


async def coroutine(samples):
    return samples


class Stream:
    def __iter__(self):
        return iter(range(5))

    def __len__(self):
        return 5


# -- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 2.0, True, np.bool_(True), 2**70, "4"])
def test_a_batch_size_that_is_none_is_refused_by_name_and_value(value):
    with pytest.raises(ConfigError, match="batch_size=") as caught:
        DataLoader(Range(3), batch_size=value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_workers", -1),
        ("num_workers", 1.5),
        ("num_workers", True),
        ("num_workers", 10**6),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.5),
        ("seed", "7"),
        ("prefetch", -1),
        ("prefetch", 1.0),
        ("shuffle", 1),
        ("items_in_parallel", 0),
        ("items_in_parallel", 10**6),
        ("worker_mode", "process"),
        ("worker_init_fn", 5),
        ("timeout", -1),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", "1"),
        ("timeout", True),
        ("on_error", "ignore"),
        ("order", "burn:workers=0"),
        ("order", "burn:workers=x"),
        ("drop_last", 1),
        ("in_order", "yes"),
        ("order", "fastest"),
        ("order", 3),
        ("collate_fn", 5),
        ("collate_fn", coroutine),
        ("sampler", iter([0, 1])),
        ("sampler", 5),
        ("batch_sampler", iter([[0, 1]])),
        ("pin_memory", True),
        ("prefetch_factor", 2),
        ("persistent_workers", True),
        ("multiprocessing_context", "spawn"),
        ("generator", 7),
        ("prefetch_depth", None),
    ],
)
def test_arguments_are_refused_by_name_and_value(name, value):
    with pytest.raises(ConfigError, match=f"{name}=") as caught:
        DataLoader(Range(3), **{name: value})
    assert repr(value) in str(caught.value)


def test_an_unknown_order_lists_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"'stable', 'torch', 'torch:default', 'torch:persistent'"
    ):
        DataLoader(Range(3), order="random")


def test_what_pytorch_takes_for_granted_is_taken():
    nothing = {"pin_memory": False, "pin_memory_device": "", "persistent_workers": False}
    others = dict.fromkeys(["generator", "prefetch_factor", "multiprocessing_context"])
    assert outcomes(iter(DataLoader(Range(3), 3, **nothing, **others))) == [[0, 1, 2]]


def test_an_argument_that_nobody_has_is_pythons_own_error():
    with pytest.raises(TypeError, match="'num_worker'; did you mean 'num_workers'"):
        DataLoader(Range(3), num_worker=2)
    with pytest.raises(TypeError, match="'colour'$"):
        DataLoader(Range(3), colour=2)


def test_ranks_are_an_epochs():
    with pytest.raises(ConfigError, match=r"rank=0 .*loader.epoch"):
        DataLoader(Range(3), rank=0, world_size=2)
    with pytest.raises(ConfigError, match="rank must be given with world_size=2"):
        DataLoader(Range(3)).epoch(0, world_size=2)


def test_a_class_is_no_dataset():
    with pytest.raises(ConfigError, match="is a class"):
        DataLoader(Range)


def test_weights_of_another_dataset_are_refused():
    loader = DataLoader(Range(3), sampler=WeightedRandomSampler([1.0] * 4, 2, seed=1))
    with pytest.raises(ConfigError, match="4 weights, but the dataset has 3 samples"):
        iter(loader)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"sampler": [0], "shuffle": True}, ["sampler", "shuffle"]),
        ({"batch_sampler": [[0]], "batch_size": 2}, ["batch_sampler", "batch_size"]),
        ({"batch_sampler": [[0]], "shuffle": True}, ["batch_sampler", "shuffle"]),
        ({"batch_sampler": [[0]], "sampler": [0]}, ["batch_sampler", "sampler"]),
        ({"batch_sampler": [[0]], "drop_last": True}, ["batch_sampler", "drop_last"]),
        ({"batch_size": None, "drop_last": True}, ["batch_size=None", "drop_last"]),
        ({"num_workers": 100, "items_in_parallel": 100}, ["num_workers", "items_in_parallel"]),
        ({"worker_mode": "native"}, ["worker_mode", "Range"]),
    ],
)
def test_arguments_that_contradict_each_other_are_refused_together(options, names):
    with pytest.raises(ConfigError) as caught:
        DataLoader(Range(3), **options)
    assert all(name in str(caught.value) for name in names)


@pytest.mark.parametrize("option", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}])
def test_an_iterable_dataset_decides_its_own_order(option):
    with pytest.raises(ConfigError, match=f"{next(iter(option))}.*iterable dataset"):
        DataLoader(Stream(), **option)


def test_a_time_out_of_zero_is_none_as_in_pytorch():
    assert DataLoader(Range(3), timeout=0).timeout is None


def test_numpy_integers_are_integers():
    loader = DataLoader(Range(6), batch_size=np.int64(2), num_workers=np.int8(1), seed=np.uint64(5))
    assert (type(loader.batch_size), loader.num_workers, loader.seed) == (int, 1, 5)
    assert outcomes(iter(loader)) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("dataset", [5, None, object(), iter([1]), (n for n in range(3))])
def test_what_is_no_dataset_is_refused_at_construction(dataset):
    with pytest.raises(ConfigError, match="dataset="):
        DataLoader(dataset)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("epoch", {"epoch": -1}),
        ("epoch", {"epoch": 1.0}),
        ("start", {"epoch": 0, "start": 4}),
        ("start", {"epoch": 0, "start": -1}),
        ("rank", {"epoch": 0, "rank": 1}),
        ("world_size", {"epoch": 0, "world_size": 0}),
        ("uneven", {"epoch": 0, "uneven": "cut"}),
    ],
)
def test_arguments_of_an_epoch_are_refused_by_name(name, arguments):
    with pytest.raises(ConfigError, match=f"{name}="):
        DataLoader(Range(6), batch_size=2).epoch(**arguments)


def test_a_loader_is_fixed_once_made():
    loader = DataLoader(Range(3), batch_size=2)
    with pytest.raises(AttributeError, match="batch_size"):
        loader.batch_size = 0


def test_loaders_and_epochs_refuse_to_be_pickled_with_a_reason():
    loader = DataLoader(Range(3))
    with pytest.raises(TypeError, match="worker threads belong to this process"):
        pickle.dumps(loader)
    with pytest.raises(TypeError, match="keep its position"):
        pickle.dumps(iter(loader))


def test_a_drawn_seed_can_be_read_and_used_again():
    first, second = (DataLoader(Range(100), shuffle=True) for _ in range(2))
    assert first.seed != second.seed
    again = DataLoader(Range(100), shuffle=True, seed=first.seed)
    assert outcomes(iter(again)) == outcomes(iter(first)) != outcomes(iter(second))


# -- lengths ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4, 7])
def test_a_short_last_batch_is_the_same_for_any_number_of_workers(workers):
    loader = DataLoader(Range(34), batch_size=16, num_workers=workers)
    batches = outcomes(iter(loader))
    assert [len(batch) for batch in batches] == [16, 16, 2]
    assert flat(batches) == list(range(34))
    assert len(loader) == 3
    dropping = DataLoader(Range(34), batch_size=16, num_workers=workers, drop_last=True)
    assert [len(batch) for batch in outcomes(iter(dropping))] == [16, 16]
    assert len(dropping) == 2


@pytest.mark.parametrize(("shuffle", "drop_last"), FLAGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [0, 4])
def test_an_empty_dataset_has_no_batches_and_a_clean_end(shuffle, drop_last, mode, workers):
    loader = DataLoader(Range(0), 4, shuffle, drop_last=drop_last, num_workers=workers)
    assert len(loader) == 0
    assert outcomes(iter(loader), mode) == []


@pytest.mark.parametrize("workers", [0, 4])
def test_a_batch_larger_than_the_dataset_is_one_short_batch(workers):
    assert outcomes(iter(DataLoader(Range(3), 8, num_workers=workers))) == [[0, 1, 2]]


@pytest.mark.parametrize("workers", [0, 4])
def test_dropping_the_only_batch_warns_with_both_numbers(workers):
    loader = DataLoader(Range(3), 8, drop_last=True, num_workers=workers)
    with pytest.warns(UserWarning, match=r"\b3 samples.*\b8\b"):
        epoch = loader.epoch(0)
    assert outcomes(epoch) == []


class Lengths(Range):
    """Answers the next of some lengths at each call."""

    def __init__(self, *answers):
        super().__init__(1000)
        self.answers = list(answers)

    def __len__(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("workers", [0, 4])
def test_the_length_is_read_once_per_epoch(workers):
    loader = DataLoader(Lengths(10, 4), 2, num_workers=workers)
    assert flat(outcomes(iter(loader))) == list(range(10))
    assert flat(outcomes(iter(loader))) == list(range(4))


@pytest.mark.parametrize(
    ("answer", "error"),
    [(OSError("gone"), OSError), (-1, ValueError), (2.5, TypeError), (2**70, OverflowError)],
)
def test_a_length_that_is_none_is_an_error_at_the_start_of_the_epoch(answer, error):
    loader = DataLoader(Lengths(answer), 2)
    with pytest.raises(error) as caught:
        loader.epoch(0)
    assert any("len(dataset)" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [0, 4])
def test_items_that_are_missing_behind_the_length_are_index_errors(workers, mode):
    errors = {index: IndexError(f"no {index}") for index in range(3, 6)}
    found = outcomes(iter(DataLoader(Fail(6, errors), 2, num_workers=workers)), mode)
    assert found[0] == [0, 1]
    assert [str(error) for error in found[1:]] == ["no 3", "no 4"]
    assert all(type(error) is IndexError for error in found[1:])


# -- orders -----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sequential_table(workers):
    table = TABLES["sequential"]
    loader = DataLoader(Range(10), table["batch_size"], num_workers=workers)
    assert outcomes(iter(loader)) == table["ids"]
    assert len(loader) == table["len_batches"]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_drop_last_tables(workers):
    table = TABLES["drop_last"]
    size = table["batch_size"]
    loader = DataLoader(Range(10), size, drop_last=True, num_workers=workers)
    assert outcomes(iter(loader)) == table["sequential"]
    options = {"seed": 7, "order": "torch", "drop_last": True, "num_workers": workers}
    loader = DataLoader(Range(10), size, True, **options)
    epochs = [outcomes(iter(loader)) for _ in range(3)]
    assert epochs == table["torch_shuffle_generator_seed_7"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_torch_shuffle_table(workers, mode):
    table = TABLES["shuffle"]
    options = {"seed": table["seed"], "order": "torch", "num_workers": workers}
    loader = DataLoader(Range(10), table["batch_size"], True, **options)
    assert [outcomes(iter(loader), mode) for _ in range(3)] == table["torch"]["epochs"]
    assert outcomes(loader.epoch(1, start=1), mode) == table["torch"]["epochs"][1][1:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ["stable", "torch", "torch:default", "torch:persistent"])
def test_without_shuffle_the_order_is_sequential_whatever_its_name(order, workers):
    loader = DataLoader(Range(10), 4, order=order, num_workers=workers)
    assert outcomes(iter(loader)) == TABLES["workers"]["torch"]["shuffle_false"][0]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_flaky_table(workers):
    table = TABLES["flaky"]["dataloader_rs_0.2.0_measured"][str(workers)]
    dataset = Fail(10, {5: OSError("cannot read sample 5")})
    found = outcomes(iter(DataLoader(dataset, 4, num_workers=workers)))
    for cell, expected in zip(found, table, strict=False):
        if "ok" in expected:
            assert cell == expected["ok"]
        else:
            assert type(cell).__name__ == expected["error"]
            assert str(cell) == expected["message"]
    assert len(found) == len(table) - 1


def test_an_epoch_is_a_pure_function_of_seed_and_number():
    def order(epoch, **options):
        options = {"batch_size": 50, "seed": 7, **options}
        return flat(outcomes(DataLoader(Range(1000), shuffle=True, **options).epoch(epoch)))

    loader = DataLoader(Range(1000), 50, True, seed=7)
    epochs = [flat(outcomes(iter(loader))) for _ in range(4)]
    assert [loader.epoch(e).position.epoch for e in (2, 0, 3)] == [2, 0, 3]
    for epoch in (2, 0, 3):
        assert flat(outcomes(loader.epoch(epoch))) == epochs[epoch]
    for workers in (0, 1, 4):
        assert order(3, num_workers=workers) == epochs[3]
    assert order(3, batch_size=4) == epochs[3]
    assert all(sorted(epoch) == list(range(1000)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    for batch, _ in zip(loader.epoch(1), range(3), strict=False):
        assert len(batch) == 50
    assert flat(outcomes(loader.epoch(2))) == epochs[2]


def test_a_fresh_process_gives_the_same_epoch():
    source = (
        "from tundish import DataLoader\n"
        "loader = DataLoader(list(range(1000)), 50, True, seed=7)\n"
        "print([int(i) for batch in loader.epoch(3) for i in batch])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", source], check=True, capture_output=True, text=True
    ).stdout
    loader = DataLoader(Range(1000), 50, True, seed=7)
    assert json.loads(shown) == flat(outcomes(loader.epoch(3)))


def test_every_pair_of_samples_meets_in_a_fair_share_of_epochs():
    loader = DataLoader(Range(10), 4, True, seed=7, num_workers=2)
    together = np.zeros((10, 10), int)
    for _ in range(200):
        for batch in loader:
            together[np.ix_(batch, batch)] += 1
    shares = together[~np.eye(10, dtype=bool)] / 200
    assert 0.15 < shares.min() < 0.289 < shares.max() < 0.45


def test_iter_counts_epochs_and_set_epoch_moves_the_count():
    loader = DataLoader(Range(10), 4, True, seed=7)
    assert [iter(loader).position.epoch for _ in range(3)] == [0, 1, 2]
    loader.set_epoch(7)
    assert [iter(loader).position.epoch for _ in range(2)] == [7, 8]


@pytest.mark.parametrize("uneven", ["pad", "drop", "keep"])
def test_ranks_share_one_epoch(uneven):
    loader = DataLoader(Range(10), 2, True, seed=3)
    ranks = [loader.epoch(0, rank=rank, world_size=3, uneven=uneven) for rank in range(3)]
    dropped, padded = (sum(epoch.counts[k] for epoch in ranks) for k in ("dropped", "padded"))
    seen = flat(flat(outcomes(epoch)) for epoch in ranks)
    assert len(set(seen)) == 10 - dropped
    assert len(seen) == 10 - dropped + padded
    assert (padded > 0, dropped > 0) == (uneven == "pad", uneven == "drop")


@pytest.mark.parametrize("shuffle", [False, True])
def test_no_warning_without_reason(shuffle):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcomes(iter(DataLoader(Range(10), 4, shuffle, drop_last=True)))


# -- what the service asks for ----------------------------------------------------------------


def test_the_description_of_a_feed():
    loader = DataLoader(ArrayDataset(x=np.zeros((10, 2))), 4, True, seed=5, num_workers=3)
    entry = loader._describe()
    assert entry["fingerprint"] == loader._fingerprint(1)
    assert {key: entry[key] for key in ("samples", "batches", "batch_size", "num_workers")} == {
        "samples": 10,
        "batches": 3,
        "batch_size": 4,
        "num_workers": 3,
    }
    assert loader._fingerprint(2)["world_size"] == 2
    assert loader._plan(0, 0, 1, "pad").batches == 3


def test_a_huge_shuffled_dataset_starts_at_once_and_needs_no_index_list():
    class Huge(Range):
        def __getitem__(self, index):
            return index

    loader = DataLoader(Huge(200_000_000), 32, True, seed=1)
    assert len(next(iter(loader))) == 32
    assert len(next(loader.epoch(5, start=len(loader) - 1))) == 200_000_000 % 32 or 32


@pytest.mark.parametrize("dataset", [Range(6), ArrayDataset(np.arange(6))])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_index_of_a_planned_sampler_that_is_none_is_an_index_error(dataset, workers):
    loader = DataLoader(
        dataset, 2, sampler=SubsetRandomSampler([99, 1], seed=1), num_workers=workers
    )
    (error,) = outcomes(iter(loader))
    assert type(error) is IndexError
    assert "99" in str(error)
    assert "6 samples" in str(error)
