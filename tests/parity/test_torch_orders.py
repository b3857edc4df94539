"""The orders of a shuffling torch DataLoader, drawn by torch in the same run."""

import itertools

import pytest
import torch

from helpers.datasets import Range
from parity.peers import SEEDS, SIZES, assert_same_passes, flat, generator, ours, passes, theirs

EACH_SEED = pytest.mark.parametrize("seed", SEEDS)
EACH_SIZE = pytest.mark.parametrize("n", SIZES)


def cuts(n):
    """Batch sizes with `drop_last` off and, where a batch is left, on."""
    return [
        (batch_size, drop_last)
        for batch_size, drop_last in itertools.product((1, 3, 4, 64), (False, True))
        if batch_size <= n or not drop_last
    ]


@EACH_SEED
@EACH_SIZE
def test_shuffle_with_a_generator(n, seed):
    for batch_size, drop_last in cuts(n):
        cut = {"batch_size": batch_size, "drop_last": drop_last}
        expected = passes(theirs(range(n), shuffle=True, generator=generator(seed), **cut), 4)
        assert_same_passes(ours(range(n), shuffle=True, seed=seed, order="torch", **cut), expected)


@EACH_SEED
@EACH_SIZE
def test_shuffle_by_the_default_generator(n, seed):
    for batch_size, drop_last in cuts(n):
        cut = {"batch_size": batch_size, "drop_last": drop_last}
        torch.manual_seed(seed)
        expected = passes(theirs(range(n), shuffle=True, **cut), 4)
        loader = ours(range(n), shuffle=True, seed=seed, order="torch:default", **cut)
        assert_same_passes(loader, expected)


@EACH_SEED
@EACH_SIZE
@pytest.mark.parametrize("order", ["torch", "torch:default", "torch:persistent"])
def test_without_shuffle_the_order_is_the_datasets(n, seed, order):
    for batch_size, drop_last in cuts(n):
        cut = {"batch_size": batch_size, "drop_last": drop_last}
        expected = passes(theirs(range(n), generator=generator(seed), **cut), 2)
        assert_same_passes(ours(range(n), seed=seed, order=order, **cut), expected)


@pytest.mark.parametrize(
    ("persistent", "drawn", "order"),
    [
        (False, False, "torch"),
        (True, False, "torch:persistent"),
        (False, True, "torch:default"),
        (True, True, "torch:default:persistent"),
    ],
)
@pytest.mark.parametrize(("n", "batch_size"), [(10, 4), (33, 4), (100, 7)])
def test_shuffle_with_worker_processes(n, batch_size, persistent, drawn, order):
    for seed in (0, 7, 2**64 - 1):
        torch.manual_seed(seed)
        options = {} if drawn else {"generator": generator(seed)}
        options |= {"num_workers": 2, "persistent_workers": persistent}
        expected = passes(theirs(range(n), batch_size, shuffle=True, **options), 4)
        for workers in (0, 2):
            mine = {"shuffle": True, "seed": seed, "order": order, "num_workers": workers}
            assert_same_passes(ours(range(n), batch_size, **mine), expected)


def test_persistent_workers_change_the_order_from_the_second_pass_on():
    plain, persistent = (
        passes(ours(range(10), 4, shuffle=True, seed=7, order=order), 3)
        for order in ("torch", "torch:persistent")
    )
    assert plain[0] == persistent[0]
    assert plain[1] != persistent[1]


@EACH_SEED
@EACH_SIZE
def test_batch_size_none_gives_the_samples(n, seed):
    expected = passes(theirs(range(n), None, shuffle=True, generator=generator(seed)), 3)
    assert_same_passes(ours(range(n), None, shuffle=True, seed=seed, order="torch"), expected)


@EACH_SEED
def test_a_far_epoch_asked_for_directly(seed):
    loader = theirs(range(50), 8, shuffle=True, generator=generator(seed))
    expected = passes(loader, 101)[100]
    assert list(ours(range(50), 8, shuffle=True, seed=seed, order="torch").epoch(100)) == expected


def test_a_large_epoch():
    n = 300_000
    expected = passes(theirs(range(n), 4096, shuffle=True, generator=generator(7)), 2)
    assert_same_passes(ours(range(n), 4096, shuffle=True, seed=7, order="torch"), expected)


@pytest.mark.parametrize("left_after", [1, 2])
def test_a_pass_left_early_does_not_change_the_next_one_as_it_does_in_torch(left_after):
    whole = passes(theirs(range(10), 4, shuffle=True, generator=generator(7)), 2)
    left = theirs(range(10), 4, shuffle=True, generator=generator(7))
    loader = ours(range(10), 4, shuffle=True, seed=7, order="torch")
    for each in (left, loader):
        list(itertools.islice(each, left_after))
    assert list(left) != whole[1]
    assert list(loader) == whole[1]


@EACH_SEED
def test_torch_heeds_the_low_32_bits_of_a_seed_and_so_do_its_orders(seed):
    n = 40
    low = flat(ours(range(n), 4, shuffle=True, seed=seed % 2**32, order="torch"))
    assert flat(ours(range(n), 4, shuffle=True, seed=seed, order="torch")) == low
    assert flat(theirs(range(n), 4, shuffle=True, generator=generator(seed))) == low


@pytest.mark.filterwarnings("ignore:drop_last=True leaves no batch:UserWarning")
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("n", "batch_size"), [(0, 4), (3, 8), (8, 8), (9, 8)])
def test_few_samples(n, batch_size, drop_last):
    cut = {"batch_size": batch_size, "drop_last": drop_last}
    loader = theirs(range(n), **cut)
    assert list(ours(range(n), **cut)) == list(loader)
    assert len(ours(range(n), **cut)) == len(loader)


def test_an_empty_dataset_may_be_shuffled_unlike_in_torch():
    with pytest.raises(ValueError, match="num_samples should be a positive integer"):
        theirs(range(0), shuffle=True)
    assert list(ours(range(0), shuffle=True, seed=7, order="torch")) == []


def test_indices_reach_the_dataset_as_plain_ints():
    mine, other = Range(10), Range(10)
    list(ours(mine, 4, shuffle=True, seed=7, order="torch"))
    list(theirs(other, 4, shuffle=True, generator=generator(7)))
    assert mine.asked == other.asked
    assert {type(index) for index in mine.asked} == {int}
