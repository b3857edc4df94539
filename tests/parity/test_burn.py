"""burn 0.22: what it was seen to do, by the tables in tests/core/seed_tables.json, and ours.

burn is a Rust crate; its order has a port in the engine, tested there against its references.
"""

import json

import pytest

import tundish
from helpers.datasets import Fail, Range, outcomes
from parity.peers import TESTS, assert_same_passes, flat, ours, passes

TABLES = json.loads((TESTS / "core" / "seed_tables.json").read_text())
SHUFFLED = TABLES["shuffle"]["burn"]["epochs"]
STRETCHES = TABLES["workers"]["burn"]["per_worker_order_seed_7"]
WORKERS = pytest.mark.parametrize("workers", [0, 2])


@WORKERS
def test_shuffle_without_workers(workers):
    loader = ours(range(10), 4, shuffle=True, seed=7, order="burn", num_workers=workers)
    assert_same_passes(loader, SHUFFLED)


@WORKERS
def test_shuffle_with_two_workers(workers):
    # burn's workers hand out batches as they are done; ours stand in the sequence of its workers.
    loader = ours(range(10), 4, shuffle=True, seed=7, order="burn:workers=2", num_workers=workers)
    expected = [
        [batch for stretch in STRETCHES for batch in stretch["epochs"][epoch]] for epoch in range(3)
    ]
    assert_same_passes(loader, expected)
    for observed in TABLES["workers"]["burn"]["shuffle_true_observed"]:
        assert [sorted(each) for each in observed["epochs"]] == [sorted(each) for each in expected]


def test_without_shuffle_the_order_is_the_datasets():
    expected = TABLES["sequential"]["ids"]
    for order in ("burn", "burn:workers=2"):
        assert_same_passes(ours(range(10), 4, order=order), [expected] * 2)
    for observed in TABLES["workers"]["burn"]["shuffle_false_observed"]:
        assert [sorted(each) for each in observed["epochs"]] == [expected] * 3


def test_ours_meets_anew_what_burns_workers_never_part():
    loader = ours(range(10), 4, shuffle=True, seed=7)
    assert len({frozenset(loader_epoch[-1]) for loader_epoch in passes(loader, 20)}) > 5
    stuck = ours(range(10), 4, shuffle=True, seed=7, order="burn:workers=2")
    assert {frozenset(epoch[-1]) for epoch in passes(stuck, 20)} == {frozenset({3, 4})}


def test_a_partial_dataset_is_a_subset():
    part = tundish.Subset(range(10), range(8))
    assert list(ours(part, 4)) == TABLES["partial_dataset"]["sequential"]
    loader = ours(part, 4, shuffle=True, seed=7, order="burn")
    assert list(loader.epoch(0)) == TABLES["partial_dataset"]["burn_shuffle_7"]


def test_drop_last_which_burn_lacks_drops_other_samples_each_epoch():
    loader = ours(range(10), 4, shuffle=True, seed=7, order="burn", drop_last=True)
    assert passes(loader, 3) == [epoch[:-1] for epoch in SHUFFLED]


def test_a_selection_dataset_is_a_subset_and_takes_torchs_order():
    table = TABLES["selection_dataset"]
    assert list(ours(tundish.Subset(range(10), table["indices"]), 4)) == table["batches"]
    with pytest.raises(IndexError, match="10"):
        tundish.Subset(range(10), [3, 10])


def test_split_is_even_with_the_rest_last_and_split_batches_cuts_between_batches():
    assert [list(part) for part in tundish.split(range(10), 3)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8, 9],
    ]
    chunks = TABLES["workers"]["burn"]["split_chunks"]
    parts = tundish.split_batches(range(10), chunks["workers"], 4)
    assert [list(part) for part in parts] == [
        list(range(*chunks[f"worker_{k}"]["range"])) for k in range(2)
    ]


def test_a_shuffled_dataset_has_one_other_order():
    once = tundish.shuffled(range(10), seed=7, order="burn")
    assert sorted(once) == list(range(10))
    assert list(once) != list(range(10))
    assert list(once) == list(tundish.shuffled(range(10), seed=7, order="burn"))


def test_composed_mapped_and_windowed_datasets():
    composed = tundish.ConcatDataset([[1, 2], [3], []])
    assert list(composed) == [1, 2, 3]
    assert list(tundish.MapDataset(composed, lambda item: item * 10)) == [10, 20, 30]
    for n, size in ((5, 3), (3, 3), (2, 3), (0, 1)):
        windows = tundish.WindowsDataset(range(n), size)
        assert len(windows) == max(n - size + 1, 0)
        assert [list(window) for window in windows] == [
            list(range(k, k + size)) for k in range(len(windows))
        ]
    with pytest.raises(tundish.ConfigError, match="size"):
        tundish.WindowsDataset(range(3), 0)


def test_a_sampled_dataset_is_a_function_of_its_index_unlike_burns():
    sampled = tundish.SampledDataset(range(10), 25, seed=7)
    assert len(sampled) == 25
    assert [sampled[i] for i in range(25)] == [sampled[i] for i in range(25)]
    assert set(sampled) <= set(range(10))
    without = tundish.SampledDataset(range(10), 25, replacement=False, seed=7)
    assert all(list(without).count(k) in {2, 3} for k in range(10))


def test_views_pass_the_batched_fetch_on_where_burns_do_not():
    class Table(Range):
        def __getitems__(self, indices):
            self.asked.append(list(indices))
            return list(indices)

    table = Table(10)
    dataset = tundish.MapDataset(tundish.shuffled(table, seed=7), str)
    assert sorted(flat(ours(dataset, 5))) == [str(k) for k in range(10)]
    assert [len(asked) for asked in table.asked] == [5, 5]


@WORKERS
def test_an_error_is_its_batchs_and_the_others_come_where_burn_repeats_or_loses_them(workers):
    seen = TABLES["flaky"]["burn"]
    assert seen["0_terminates"] is False
    dataset = Fail(10, {5: OSError("cannot read sample 5")})
    before, error, after = outcomes(iter(ours(dataset, 4, num_workers=workers)))
    assert (before, after) == ([0, 1, 2, 3], [8, 9])
    assert type(error) is OSError
    assert error.args == ("cannot read sample 5",)


@WORKERS
def test_progress_counts_samples(workers):
    loader = ours(range(10), 4, num_workers=workers)
    assert len(loader.dataset) == 10  # num_items(): samples, where len(loader) is batches
    epoch = loader.epoch(0)
    found = []
    for _ in epoch:
        found.append((epoch.position.batch, len(epoch), epoch.counts["samples"]))
    assert found == [(1, 3, 10), (2, 3, 10), (3, 3, 10)]


def test_a_stretch_of_a_loader_is_a_start_or_a_subset():
    loader = ours(range(10), 4, shuffle=True, seed=7, order="burn")
    assert list(loader.epoch(1, start=2)) == SHUFFLED[1][2:]  # the same order, not another one
