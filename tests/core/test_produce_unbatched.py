"""``batch_size=None``: each index is a batch of its own."""

import numpy as np
import pytest

from helpers.datasets import MODES, Fail, Range, outcomes
from tundish import ArrayDataset, DataLoader, IterableDataset, sample_rng

WORKERS = pytest.mark.parametrize("workers", [0, 4])


class Rows(Range):
    def __getitem__(self, index):
        return {"x": np.full(3, index), "name": f"n{index}", "pair": (index, [index])}


@pytest.mark.parametrize("mode", MODES)
@WORKERS
def test_samples_are_handed_out_as_they_are(workers, mode):
    found = outcomes(iter(DataLoader(Rows(3), None, num_workers=workers)), mode)
    assert found == [{"x": [k, k, k], "name": f"n{k}", "pair": (k, [k])} for k in range(3)]


@WORKERS
@pytest.mark.parametrize("lanes", [1, 3])
def test_the_collate_fn_gets_a_sample(workers, lanes):
    loader = DataLoader(
        Rows(3),
        None,
        True,
        seed=3,
        collate_fn=lambda row: row["name"],
        num_workers=workers,
        items_in_parallel=lanes,
    )
    assert sorted(outcomes(iter(loader))) == ["n0", "n1", "n2"]


@WORKERS
def test_a_list_of_indices_is_one_call_of_the_dataset(workers):
    class Bulk(Range):
        def __getitem__(self, index):
            self.asked.append(index)
            return np.array(index) * 10

    dataset = Bulk(6)
    loader = DataLoader(dataset, None, sampler=[[0, 2], [5, 1, 3], 4], num_workers=workers)
    epoch = iter(loader)
    assert outcomes(epoch) == [[0, 20], [50, 10, 30], 40]
    assert sorted(map(str, dataset.asked)) == ["4", "[0, 2]", "[5, 1, 3]"]
    assert epoch.counts["samples"] == 6


@WORKERS
def test_errors_name_the_index_or_the_list_of_them(workers):
    failure = OSError("no")
    loader = DataLoader(Fail(3, {1: failure}), None, num_workers=workers)
    assert outcomes(iter(loader)) == [0, failure, 2]
    assert failure.__notes__ == ["tundish: in dataset[1], batch 1 of epoch 0"]
    loader = DataLoader([0, 1, 2], None, sampler=[[0, 1]], num_workers=workers)
    (error,) = outcomes(iter(loader))
    assert type(error) is TypeError
    assert error.__notes__ == ["tundish: in dataset[[0, 1]], batch 0 of epoch 0"]


@WORKERS
def test_errors_of_the_collate_fn_belong_to_their_sample(workers):
    loader = DataLoader(Range(2), None, collate_fn=lambda k: 1 // k, num_workers=workers)
    error, good = outcomes(iter(loader))
    assert (type(error), good) == (ZeroDivisionError, 1)
    assert "collate_fn, for dataset indices [0], batch 0" in error.__notes__[0]


@WORKERS
def test_samples_of_an_iterable_dataset_come_one_by_one(workers):
    class Stream(IterableDataset):
        def __iter__(self):
            yield from ("a", {"b": 1})

    loader = DataLoader(Stream(), None, num_workers=workers)
    assert outcomes(iter(loader)) == ["a", {"b": 1}]
    loader = DataLoader(Stream(), None, collate_fn=len, num_workers=workers)
    assert outcomes(iter(loader)) == [1, 1]


@WORKERS
def test_a_sample_has_its_random_numbers(workers):
    class Noisy(Range):
        def __getitem__(self, index):
            if type(index) is list:
                return [sample_rng(k).random() for k in range(len(index))]
            return [sample_rng().random()]

    def collate(numbers):
        assert sample_rng(0) is sample_rng(0)
        return numbers

    batched = DataLoader(Noisy(4), 4, seed=5, collate_fn=lambda rows: [r for (r,) in rows])
    (expected,) = batched
    loader = DataLoader(Noisy(4), None, seed=5, collate_fn=collate, num_workers=workers)
    assert [number for (number,) in loader] == expected
    bulk = DataLoader(
        Noisy(4), None, sampler=[[0, 1], [2, 3]], seed=5, collate_fn=collate, num_workers=workers
    )
    first, second = bulk
    assert len({*first, *second}) == 4
    assert first == expected[:2]


@WORKERS
def test_rows_of_arrays_are_handed_out(workers):
    loader = DataLoader(ArrayDataset(x=np.arange(4)), None, num_workers=workers)
    assert outcomes(iter(loader)) == [{"x": k} for k in range(4)]
