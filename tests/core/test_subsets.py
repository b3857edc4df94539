"""Subsets and sampled datasets: their indices, and what is read without Python."""

import gc
import pickle
import tracemalloc

import numpy as np
import pytest

from helpers.views import TENS, Rows, double
from tundish import ArrayDataset, ConfigError, DataLoader
from tundish.datasets import is_native
from tundish.splits import shuffled
from tundish.views import ConcatDataset, MapDataset, SampledDataset, Subset

# -- subsets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "indices",
    [
        [3, 0, -1],
        (3, 0, -1),
        iter([3, 0, -1]),
        np.array([3, 0, -1]),
        np.array([3, 0, 5], np.uint8),
        [np.int32(3), 0, np.array(-1)],
        np.array([3, 0, -1], object),
        range(3, 9, -3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_indices_may_come_in_any_form(indices):
    expected = [] if isinstance(indices, range) else [3, 0, 5]
    subset = Subset(Rows(TENS), indices)
    assert subset.indices.dtype == np.int64
    assert subset.indices.tolist() == expected
    assert list(subset) == [TENS[index] for index in expected]


def test_negative_ranges_count_from_the_end():
    assert Subset(Rows(TENS), range(-3, 0)).indices.tolist() == [3, 4, 5]
    assert Subset(Rows(TENS), range(1, 4)).indices.tolist() == [1, 2, 3]


def test_indices_are_the_subsets_own():
    given = np.array([1, 2])
    subset = Subset(Rows(TENS), given)
    given[:] = 0
    assert list(subset) == [10, 20]
    with pytest.raises(ValueError, match="read-only"):
        subset.indices[0] = 9
    with pytest.raises(ValueError, match="read-only"):
        pickle.loads(pickle.dumps(subset)).indices[0] = 9
    with pytest.raises(AttributeError):
        subset.indices = [0]


@pytest.mark.parametrize(
    ("indices", "error", "text"),
    [
        ([0, 6, 7], IndexError, r"indices\[1\] is 6, out of range for a dataset of 6 samples"),
        (np.array([0, 5, -7, 99]), IndexError, r"indices\[2\] is -7, out of range"),
        (range(4, 9), IndexError, r"indices\[2\] is 6, out of range"),
        ([1] * 70_000 + [9], IndexError, r"indices\[70000\] is 9, out of range"),
        ([1, 2**70], IndexError, r"indices\[1\] is 1180591620717411303424, out of range"),
        (np.array([1, 2**63], np.uint64), IndexError, r"indices\[1\] is 9223372036854775808"),
        ([0, True], TypeError, r"indices\[1\] is True, which is not an integer"),
        ([0] * 70_000 + [1.0], TypeError, r"indices\[70000\] is 1\.0, which is not an integer"),
        (["a"], TypeError, r"indices\[0\] is 'a', which is not an integer"),
        ([None], TypeError, r"indices\[0\] is None"),
        (np.array([True, False] * 3), TypeError, r"mask of bools; numpy\.flatnonzero"),
        (np.array([0.0]), TypeError, r"indices\[0\] is .*0\.0"),
        (np.array([[0]]), TypeError, r"one dimension, got shape \(1, 1\)"),
        (np.array([0, None]), TypeError, r"indices\[1\] is None"),
        ("01", TypeError, r"indices='01' must be a sequence of integers"),
        (3, TypeError, r"indices=3 must be a sequence of integers"),
    ],
)
def test_the_first_bad_index_is_named(indices, error, text):
    with pytest.raises(error, match=f"^Subset: .*{text}"):
        Subset(Rows(TENS), indices)


class Ten(Rows):
    """Ten million samples that take no memory."""

    def __init__(self):
        pass

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        return index


def _megabytes(make):
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return made, held / 1e6, peak / 1e6


def test_ten_million_indices_take_eight_bytes_each():
    order = np.arange(10_000_000)[::-1]
    subset, held, peak = _megabytes(lambda: Subset(Ten(), order))
    assert subset[3] == 9_999_996
    assert held < 81
    assert peak < 110
    subset, held, _ = _megabytes(lambda: Subset(Ten(), range(9_999_999, -1, -1)))
    assert subset[3] == 9_999_996
    assert held < 0.1


def test_a_list_of_indices_is_read_in_blocks():
    order = list(range(1_000_000))
    _, held, peak = _megabytes(lambda: Subset(Ten(), order))
    assert held < 8.1
    assert peak < 20


# -- sampled -----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["stable", "torch"])
def test_sampled_is_a_pure_function_of_seed_and_index(order):
    dataset = SampledDataset(Rows(range(100)), 1000, seed=5, order=order)
    again = SampledDataset(Rows(range(100)), 1000, seed=5, order=order)
    backwards = [again[index] for index in range(999, -1, -1)]
    assert backwards[::-1] == list(dataset) == list(dataset)
    assert dataset.indices.tolist() == list(dataset)
    assert list(dataset) != list(SampledDataset(Rows(range(100)), 1000, seed=6, order=order))
    assert len(set(dataset)) > 90


@pytest.mark.parametrize("order", ["stable", "torch"])
@pytest.mark.parametrize("number", [4, 10, 25])
def test_without_replacement_no_sample_comes_twice_more_often(order, number):
    dataset = SampledDataset(Rows(range(10)), number, replacement=False, seed=2, order=order)
    counts = np.bincount(dataset.indices, minlength=10)
    assert counts.sum() == number
    assert counts.max() - counts.min() <= 1


def test_sampled_in_torchs_order_is_what_its_random_sampler_draws():
    once = SampledDataset(Rows(range(10)), 13, False, seed=7, order="torch")
    assert list(once) == [5, 0, 3, 4, 1, 7, 9, 6, 8, 2, 1, 8, 9]
    again = SampledDataset(Rows(range(10)), 40, seed=0, order="torch")
    assert list(again)[:10] == [4, 9, 3, 0, 3, 9, 7, 3, 7, 3]
    assert list(again)[30:] == [1, 2, 3, 0, 5, 5, 2, 9, 1, 8]


def test_arguments_of_sampled_are_checked():
    assert list(SampledDataset(Rows([]), 0)) == []
    for arguments, text in [
        ({"num_samples": -1}, "num_samples=-1"),
        ({"num_samples": 2.0}, r"num_samples=2\.0"),
        ({"num_samples": 3, "replacement": 1}, "replacement=1"),
        ({"num_samples": 3, "seed": -1}, "seed=-1"),
        ({"num_samples": 3, "order": "burn"}, "order='burn'"),
    ]:
        with pytest.raises(ConfigError, match=text):
            SampledDataset(Rows("ab"), **arguments)
    with pytest.raises(ConfigError, match="the dataset is empty"):
        SampledDataset(Rows([]), 1)


# -- arrays below ------------------------------------------------------------------------------


ARRAYS = {"x": np.arange(60, dtype="f4").reshape(20, 3), "y": np.arange(20)}
STRUCTURED = {"s": np.array([(k, k / 2) for k in range(20)], "i4,>f8")}
NATIVE = {
    "subset": lambda arrays: Subset(arrays, [3, 0, -1, 7, 7]),
    "range": lambda arrays: Subset(arrays, range(15, 3, -2)),
    "nested": lambda arrays: Subset(Subset(shuffled(arrays, seed=1), range(3, 14)), [5, 0, 0, 10]),
    "sampled": lambda arrays: SampledDataset(arrays, 50, seed=3),
    "shuffled": lambda arrays: shuffled(arrays, seed=9),
}


class ThroughPython(ArrayDataset):
    def __getitem__(self, index):
        return super().__getitem__(index)


def assert_same(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert list(one) == list(other)
        for field in one:
            assert one[field].dtype == other[field].dtype
            assert one[field].tobytes() == other[field].tobytes()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fields", [ARRAYS, STRUCTURED], ids=["plain", "structured"])
@pytest.mark.parametrize("name", NATIVE)
def test_selections_of_arrays_are_gathered_without_python(name, fields, workers, monkeypatch):
    native, python = NATIVE[name](ArrayDataset(**fields)), NATIVE[name](ThroughPython(**fields))
    assert is_native(native)
    assert not is_native(python)
    options = {"batch_size": 3, "shuffle": True, "seed": 2, "num_workers": workers}
    expected = list(DataLoader(python, **options))
    assert sum(len(next(iter(batch.values()))) for batch in expected) == len(native)

    def refuse(self, index):
        raise AssertionError("a row was read by Python")

    with monkeypatch.context() as patch:
        patch.setattr(ArrayDataset, "__getitem__", refuse)
        assert_same(DataLoader(native, **options), expected)
        copy = pickle.loads(pickle.dumps(native))
        assert_same(DataLoader(copy, **options), expected)


def test_a_source_is_made_once_and_kept_out_of_pickles():
    subset = Subset(ArrayDataset(**ARRAYS), [1, 2])
    assert subset._native_source() is subset._native_source()
    assert pickle.loads(pickle.dumps(subset))._source is None


def test_what_a_subclass_overrides_is_heeded():
    class Marked(Subset):
        def __getitem__(self, index):
            return {"marked": super().__getitem__(index)["y"]}

    class Shorter(Subset):
        def __len__(self):
            return 2

    class Together(Subset):
        def __getitems__(self, indices):
            return [{"marked": index} for index in indices]

    arrays = ArrayDataset(**ARRAYS)
    for kind in (Marked, Shorter, Together):
        assert not is_native(kind(arrays, [4, 5, 6]))
        assert not is_native(Subset(kind(arrays, [4, 5, 6]), [0, 1]))
    for view in (MapDataset(arrays, double), ConcatDataset([arrays]), [1]):
        assert not is_native(view)
    (batch,) = DataLoader(Marked(arrays, [4, 6]), 2)
    assert batch["marked"].tolist() == [4, 6]
    assert [len(batch["y"]) for batch in DataLoader(Shorter(arrays, [4, 5, 6]), 2)] == [2]


def test_a_batch_of_a_subset_is_counted_by_its_own_length():
    loader = DataLoader(Subset(ArrayDataset(**ARRAYS), [1, 2, 3]), 2)
    assert len(loader) == 2
    assert [batch["y"].tolist() for batch in loader] == [[1, 2], [3]]
