"""Parts and shuffles: PyTorch's and burn's own results, and ours, which stay as they are."""

import os
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from helpers.views import Batched, Rows
from tundish import ArrayDataset, ConfigError, DataLoader, _core
from tundish.splits import random_split, shuffled, split, split_batches
from tundish.views import IterableDataset, Subset

# What torch 2.13's random_split gives with Generator().manual_seed(seed).
TORCH = [
    (10, [0.5, 0.3, 0.2], 7, [[5, 0, 3, 4, 1], [7, 9, 6], [8, 2]]),
    (10, [3, 7], 2**32 + 7, [[5, 0, 3], [4, 1, 7, 9, 6, 8, 2]]),
    (11, [0.5, 0.25, 0.25], 0, [[10, 0, 4, 3, 5, 8], [2, 1, 9], [7, 6]]),
    (7, [0.4, 0.3, 0.3], 2**63 - 1, [[2, 1, 3], [6, 4], [5, 0]]),
    (4, [0, 4], 9, [[], [2, 0, 1, 3]]),
]


def indices(parts):
    return [part.indices.tolist() for part in parts]


# -- random_split ------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "lengths", "seed", "expected"), TORCH)
def test_random_split_in_torchs_order_gives_torchs_parts(n, lengths, seed, expected):
    parts = random_split(Rows(range(n)), lengths, seed=seed, order="torch")
    assert indices(parts) == expected
    assert [list(part) for part in parts] == expected


def test_random_split_is_frozen():
    parts = random_split(Rows(range(12)), [0.5, 0.25, 0.25], seed=7)
    order = _core.Plan(12, "stable", 7, 0, 12, False).indices(0)
    assert indices(parts) == [order[:6], order[6:9], order[9:]]
    assert order == FROZEN


FROZEN = [11, 10, 0, 8, 1, 5, 6, 4, 7, 9, 3, 2]


@pytest.mark.parametrize("order", ["stable", "torch"])
@pytest.mark.parametrize("lengths", [[70, 20, 10], [0.7, 0.2, 0.1], [0.333, 0.333, 0.334], [1]])
def test_parts_hold_every_sample_once(order, lengths):
    parts = random_split(Rows(range(100)), lengths, seed=1, order=order)
    assert len(parts) == len(lengths)
    assert sorted(chain(*indices(parts))) == list(range(100))
    assert all(type(part) is Subset for part in parts)


@pytest.mark.parametrize(
    ("n", "fractions", "sizes"),
    [
        (10, [1 / 3, 1 / 3, 1 / 3], [4, 3, 3]),
        (11, [1 / 3, 1 / 3, 1 / 3], [4, 4, 3]),
        (5, [0.5, 0.5], [3, 2]),
        (10, [0.1] * 10, [1] * 10),
        (6, (np.float32(0.5), np.float32(0.5)), [3, 3]),
        (8, [1, 0.0], [8, 0]),
    ],
)
@pytest.mark.filterwarnings("ignore:random_split")
def test_what_fractions_leave_goes_round_robin(n, fractions, sizes):
    assert [len(part) for part in random_split(Rows(range(n)), fractions, seed=0)] == sizes


def test_a_part_emptied_by_rounding_is_warned_of():
    with pytest.warns(
        UserWarning, match=r"part 1 is empty: lengths\[1\]=0\.1 of 3 samples"
    ) as found:
        parts = random_split(Rows(range(3)), [0.9, 0.1], seed=1, order="torch")
    assert indices(parts) == [[1, 2, 0], []]
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        random_split(Rows(range(3)), [3, 0], seed=1)  # that was the user's wish


@pytest.mark.parametrize(
    ("lengths", "text"),
    [
        ([3, 8], r"sum to 11, but the dataset has 10 samples"),
        ([], r"sum to 0, but the dataset has 10 samples"),
        ([0.5, 0.4], r"sum to 0\.9; fractions must sum to 1"),
        ([0.5, 0.6], r"sum to 1\.1; fractions must sum to 1"),
        ([5, 5.0], r"sum to 10\.0; fractions must sum to 1"),
        ([-1, 11], r"lengths\[0\]=-1 must not be negative"),
        ([1.5, -0.5], r"lengths\[1\]=-0\.5 must not be negative"),
        ([float("nan"), 1], r"lengths\[0\]=nan"),
        ([True, 9], r"lengths\[0\]=True must be an integer or a fraction"),
        (["5", 5], r"lengths\[0\]='5' must be an integer or a fraction"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths, text):
    with pytest.raises(ConfigError, match=text):
        random_split(Rows(range(10)), lengths)


def test_other_arguments_of_random_split_are_checked():
    with pytest.raises(ConfigError, match=r"generator=.* pass seed=, and order='torch'"):
        random_split(Rows(range(4)), [2, 2], object())
    with pytest.raises(ConfigError, match="order='burn' is unknown; known are 'stable', 'torch'"):
        random_split(Rows(range(4)), [2, 2], order="burn")
    with pytest.raises(ConfigError, match="seed=-1"):
        random_split(Rows(range(4)), [2, 2], seed=-1)
    with pytest.raises(ConfigError, match="is a Stream, an iterable dataset"):
        random_split(type("Stream", (IterableDataset,), {})(), [2, 2])


def test_a_seed_is_drawn_where_none_is_given():
    drawn = {tuple(random_split(Rows(range(30)), [30])[0].indices) for _ in range(4)}
    assert len(drawn) == 4


# -- shuffled ----------------------------------------------------------------------------------


def test_shuffled_holds_all_samples_in_one_other_order():
    dataset = shuffled(Rows(range(12)), seed=7)
    assert list(dataset) == FROZEN
    assert [dataset[index] for index in (11, 0, -1)] == [FROZEN[11], FROZEN[0], FROZEN[11]]
    assert dataset.indices.tolist() == FROZEN
    assert list(shuffled(Rows(range(12)), seed=8)) != FROZEN
    assert list(shuffled(Rows([]), seed=1)) == []


def test_shuffled_in_torchs_order_is_its_randperm():
    expected = [3, 4, 0, 5, 7, 9, 11, 6, 8, 1, 10, 2]
    assert list(shuffled(Rows(range(12)), seed=7, order="torch")) == expected


@pytest.mark.parametrize(
    ("seed", "n", "expected"),
    [(7, 10, [5, 2, 7, 3, 1, 6, 8, 9, 4, 0]), (7, 8, [5, 2, 7, 3, 1, 6, 4, 0])],
)
def test_shuffled_in_burns_order_is_its_shuffled_dataset(seed, n, expected):
    assert list(shuffled(Rows(range(n)), seed=seed, order="burn")) == expected


def test_shuffled_passes_the_batched_fetch_on():
    rows = Batched(range(12))
    assert shuffled(rows, seed=7).__getitems__([0, 2]) == [FROZEN[0], FROZEN[2]]
    assert rows.asked == [[FROZEN[0], FROZEN[2]]]


def _resident_megabytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Hundred(Rows):
    """A hundred million samples that take no memory."""

    def __init__(self):
        pass

    def __len__(self):
        return 100_000_000

    def __getitem__(self, index):
        return index


def test_a_large_shuffle_is_computed_where_it_is_read():
    before = _resident_megabytes()
    dataset = shuffled(Hundred(), seed=3)
    plan = _core.Plan(100_000_000, "stable", 3, 0, 1, False)
    for index in (0, 99_999_999, 12_345_678):
        assert dataset[index] == plan.indices(index)[0]
    assert _resident_megabytes() - before < 40
    assert len(pickle.dumps(dataset)) < 500
    assert pickle.loads(pickle.dumps(dataset))[5] == dataset[5]


def test_threads_that_read_at_once_read_the_same():
    dataset = shuffled(Rows(range(400_000)), seed=3)
    step = 9973  # touches all blocks, over and over
    at = [index * step % 400_000 for index in range(2000)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(dataset.__getitem__, at))
    assert found == dataset.indices[at].tolist()
    assert np.bincount(dataset.indices).tolist() == [1] * 400_000


def test_shuffled_arrays_are_gathered_in_that_order():
    dataset = shuffled(ArrayDataset(x=np.arange(12) * 10), seed=7)
    (batch,) = DataLoader(dataset, 12)
    assert batch["x"].tolist() == [index * 10 for index in FROZEN]


# -- split, split_batches ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "n", "sizes"),
    [
        (10, 3, [3, 3, 4]),
        (10, 1, [10]),
        (10, 10, [1] * 10),
        (3, 5, [0, 0, 0, 0, 3]),
        (0, 2, [0, 0]),
    ],
)
def test_split_gives_the_rest_to_the_last(samples, n, sizes):
    parts = split(Rows(range(samples)), n)
    assert [len(part) for part in parts] == sizes
    assert list(chain(*parts)) == list(range(samples))


# (samples, parts, batch size) and the bounds that burn's split_chunks gives, by its port.
CHUNKS = {
    (10, 2, 4): [(0, 8), (8, 10)],
    (10, 3, 4): [(0, 4), (4, 8), (8, 10)],
    (10, 4, 4): [(0, 4), (4, 8), (8, 10)],
    (17, 3, 2): [(0, 6), (6, 12), (12, 17)],
    (20, 3, 2): [(0, 8), (8, 14), (14, 20)],
    (5, 2, 100): [(0, 5)],
    (0, 3, 4): [],
}


@pytest.mark.parametrize(("samples", "n", "batch_size"), CHUNKS)
def test_split_batches_cuts_between_batches(samples, n, batch_size):
    parts = split_batches(Rows(range(samples)), n, batch_size)
    expected = CHUNKS[samples, n, batch_size]
    assert [list(part) for part in parts] == [list(range(*bounds)) for bounds in expected]


def test_stretches_take_no_memory_and_stay_native():
    parts = split(Hundred(), 7)
    assert sum(map(len, parts)) == 100_000_000
    assert parts[6][-1] == 99_999_999
    assert len(pickle.dumps(parts)) < 1000
    last = split(ArrayDataset(x=np.arange(10)), 3)[2]
    assert last._is_native()
    assert [batch["x"].tolist() for batch in DataLoader(last, 3)] == [[6, 7, 8], [9]]


def test_arguments_of_splits_are_checked():
    for call, text in [
        (lambda: split(Rows("ab"), 0), "n=0"),
        (lambda: split(Rows("ab"), 1.0), r"n=1\.0"),
        (lambda: split_batches(Rows("ab"), 0, 1), "n=0"),
        (lambda: split_batches(Rows("ab"), 1, 0), "batch_size=0"),
        (lambda: shuffled(Rows("ab"), seed=2**64), "seed=18446744073709551616"),
        (lambda: shuffled(Rows("ab"), seed=1, order="dice"), "order='dice' is unknown"),
        (lambda: split({1}, 1), "split: dataset is a set without __getitem__"),
    ]:
        with pytest.raises(ConfigError, match=text):
            call()
