"""Random numbers that belong to a sample: the same whoever loads it, and when."""

import asyncio
import concurrent.futures
import itertools
import signal

import numpy as np
import pytest

from helpers.datasets import MODES, Range, outcomes
from tundish import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    MapDataset,
    RandomSampler,
    Subset,
    WindowsDataset,
    get_worker_info,
    sample_rng,
)
from tundish.randomness import place

TAG = int.from_bytes(b"sample 1", "little")
WORDS = 1 << 64
WAYS = [(0, 1), (1, 1), (4, 1), (0, 3), (4, 3)]
WORKERS = pytest.mark.parametrize("workers", [0, 4])


class Noisy(Range):
    """Item i is (i, two random numbers)."""

    def __getitem__(self, index):
        first = sample_rng().random()
        return index, first, sample_rng().random()


class NoisyTogether(Noisy):
    def __getitems__(self, indices):
        numbers = [(sample_rng(k).random(), sample_rng(k).random()) for k in range(len(indices))]
        return [(index, *pair) for index, pair in zip(indices, numbers, strict=True)]


class NoisyAsync(Range):
    async def __getitem__(self, index):
        first = sample_rng().random()
        await asyncio.sleep(0)
        return index, first, sample_rng().random()


class NoisyList(Noisy):
    """A batched fetch that returns coroutines, which know their places."""

    def __getitems__(self, indices):
        return [self.later(index, k) for k, index in enumerate(indices)]

    async def later(self, index, k):
        first = sample_rng(k).random()
        await asyncio.sleep(0)
        assert sample_rng() is sample_rng(k)
        return index, first, sample_rng().random()


class NoisyAsyncTogether(NoisyAsync):
    async def __getitems__(self, indices):
        await asyncio.sleep(0)
        return NoisyTogether.__getitems__(self, indices)


def rows(loader, *args, **kwargs):
    """The rows (index, number, number) of an epoch, in order."""
    return [row for b in loader.epoch(*args, **kwargs) for row in np.stack(b, 1).tolist()]


# -- the numbers -------------------------------------------------------------------------------


def philox(key, counter):
    """One block of Philox4x64-10, as in the paper (Salmon et al., 2011)."""
    low, high = key
    words = list(counter)
    for _ in range(10):
        one, two = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [
            two // WORDS ^ words[1] ^ low,
            two % WORDS,
            one // WORDS ^ words[3] ^ high,
            one % WORDS,
        ]
        low, high = (low + 0x9E3779B97F4A7C15) % WORDS, (high + 0xBB67AE8584CAA73B) % WORDS
    return words


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (7, 3), (2**64 - 1, 2**63 - 1)])
def test_the_numbers_are_the_documented_ones(seed, epoch):
    loader = DataLoader(
        MapDataset(Range(6), lambda _: sample_rng().bit_generator.random_raw(9)), 4, seed=seed
    )
    got = np.concatenate([*loader.epoch(epoch)])
    for position, numbers in enumerate(got.tolist()):
        blocks = [philox((seed, TAG), (block, position, epoch, 0)) for block in (1, 2, 3)]
        assert numbers == [*itertools.chain(*blocks)][:9]


def test_the_numbers_are_frozen():
    loader = DataLoader(
        MapDataset(Range(3), lambda _: sample_rng().bit_generator.random_raw(2)), 3, seed=7
    )
    (got,) = loader.epoch(1)
    assert got.tolist() == [
        [9978797344622341944, 9923732164667015986],
        [5453722601499542012, 15067268228584013205],
        [16841833706885139621, 8433865630017458629],
    ]


def test_what_is_spawned_is_as_repeatable():
    def children(_):
        rng = sample_rng()
        return [child.random() for child in [*rng.spawn(2), *rng.spawn(1)]]

    loader = DataLoader(MapDataset(Range(2), children), 2, seed=3)
    got = np.stack(next(loader.epoch(5)), 1)
    for position in range(2):
        words = np.array([3, 5, position, TAG], "<u8").view("<u4")
        seeds = np.random.SeedSequence(words).spawn(3)
        expected = [np.random.Generator(np.random.Philox(seed)).random() for seed in seeds]
        assert got[position].tolist() == expected
    assert len({*got.ravel().tolist()}) == 6


# -- whose they are ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Noisy, NoisyTogether, NoisyAsync, NoisyAsyncTogether, NoisyList])
@pytest.mark.parametrize(("workers", "lanes"), WAYS)
def test_they_depend_on_seed_epoch_and_position_only(kind, workers, lanes):
    expected = rows(DataLoader(Noisy(23), 23, True, seed=5), 2)
    assert len({number for _, *pair in expected for number in pair}) == 46
    options = {"num_workers": workers, "items_in_parallel": lanes, "seed": 5}
    loader = DataLoader(kind(23), 4, True, **options)
    assert rows(loader, 2) == expected
    assert rows(loader, 2, start=3) == expected[12:]
    assert rows(DataLoader(kind(23), 5, True, in_order=True, **options), 2) == expected
    other = {(index, first) for index, first, _ in rows(loader, 3)}
    assert not other & {(index, first) for index, first, _ in expected}
    assert rows(DataLoader(kind(23), 4, True, **(options | {"seed": 6})), 2) != expected


@pytest.mark.parametrize("mode", MODES)
def test_they_are_the_same_under_for_and_async_for(mode):
    found = outcomes(DataLoader(NoisyAsync(6), 2, seed=5).epoch(1), mode)
    expected = rows(DataLoader(Noisy(6), 6, seed=5), 1)
    assert [row for batch in found for row in np.stack(batch, 1).tolist()] == expected


def test_ranks_share_the_numbers_of_their_global_batches():
    expected = rows(DataLoader(Noisy(24), 6, True, seed=5), 0)
    loader = DataLoader(Noisy(24), 2, True, seed=5)
    shares = [rows(loader, 0, rank=rank, world_size=3) for rank in range(3)]
    assert [row for group in zip(*shares, strict=True) for row in group] == expected


@WORKERS
def test_a_sample_drawn_twice_is_augmented_twice(workers):
    sampler = RandomSampler(Range(2), replacement=True, num_samples=40, seed=1)
    drawn = rows(DataLoader(Noisy(2), 8, sampler=sampler, seed=2, num_workers=workers), 0)
    assert {index for index, *_ in drawn} == {0.0, 1.0}
    assert len({first for _, first, _ in drawn}) == 40


@WORKERS
def test_one_generator_per_sample_through_to_the_collate_fn(workers):
    class Keeping(Range):
        def __getitem__(self, index):
            assert sample_rng() is sample_rng()
            return sample_rng()

    def collate(samples):
        assert [sample_rng(k) is sample for k, sample in enumerate(samples)] == [True] * 3
        return len({*map(id, samples)})

    loader = DataLoader(Keeping(6), 3, collate_fn=collate, num_workers=workers)
    assert [*loader] == [3, 3]


@WORKERS
@pytest.mark.parametrize("lanes", [1, 3])
def test_the_collate_fn_goes_on_where_the_sample_stopped(workers, lanes):
    def collate(samples):
        return [(*sample, sample_rng(k).random()) for k, sample in enumerate(samples)]

    loader = DataLoader(
        Noisy(6), 3, seed=5, collate_fn=collate, num_workers=workers, items_in_parallel=lanes
    )
    for position, row in enumerate(itertools.chain(*loader.epoch(4))):
        rng = np.random.Generator(np.random.Philox(key=5 + TAG * WORDS, counter=0))
        state = rng.bit_generator.state
        state["state"]["counter"] = np.array([0, position, 4, 0], np.uint64)
        rng.bit_generator.state = state
        assert row == (position, rng.random(), rng.random(), rng.random())


@pytest.mark.parametrize("lanes", [1, 3])
@WORKERS
def test_without_the_samples_left_out_each_keeps_its_own_numbers(workers, lanes):
    class Broken(Noisy):
        def __getitem__(self, index):
            if index in {0, 4}:
                sample_rng().random()
                raise OSError(index)
            return super().__getitem__(index)

    def collate(samples):
        return [(*sample, sample_rng(k).random()) for k, sample in enumerate(samples)]

    options = {"seed": 5, "collate_fn": collate, "num_workers": workers}
    whole = [row for batch in DataLoader(Noisy(6), 3, **options) for row in batch]
    loader = DataLoader(Broken(6), 3, on_error="skip", items_in_parallel=lanes, **options)
    assert [row for batch in loader for row in batch] == [whole[k] for k in (1, 2, 3, 5)]


@WORKERS
def test_a_batch_that_is_loaded_one_by_one_after_all_draws_the_same_numbers(workers):
    class Failing(Noisy):
        def __getitems__(self, indices):
            assert all(0 <= sample_rng(k).random() < 1 for k in range(len(indices)))
            raise OSError

    loader = DataLoader(Failing(4), 2, seed=5, num_workers=workers, on_error="skip")
    assert rows(loader, 0) == rows(DataLoader(Noisy(4), 4, seed=5), 0)


def test_a_batch_that_was_interrupted_draws_the_same_numbers_again():
    class Interrupted(Noisy):
        def __getitem__(self, index):
            row = super().__getitem__(index)
            if index == 3 and index not in self.asked:
                self.asked.append(index)
                signal.raise_signal(signal.SIGINT)
            return row

    loader = DataLoader(Interrupted(4), 2, seed=5)
    epoch, found = loader.epoch(0), []
    found.append(next(epoch))
    with pytest.raises(KeyboardInterrupt):
        next(epoch)
    found.append(next(epoch))
    got = [row for batch in found for row in np.stack(batch, 1).tolist()]
    assert got == rows(DataLoader(Noisy(4), 4, seed=5), 0)


def test_a_loader_inside_a_sample_has_numbers_of_its_own():
    inner = DataLoader(Noisy(2), 2, seed=9)

    class Outer(Range):
        def __getitem__(self, index):
            before = sample_rng()
            inside = rows(inner, 0)
            assert sample_rng() is before
            return index, before.random(), inside[0][1]

    got = rows(DataLoader(Outer(4), 2, seed=5), 0)
    alone = rows(DataLoader(Noisy(4), 2, seed=5), 0)
    assert [first for _, first, _ in got] == [first for _, first, _ in alone]
    assert {number for *_, number in got} == {rows(inner, 0)[0][1]}


@WORKERS
def test_a_thread_with_a_copy_of_the_context_has_the_samples_generator(workers):
    class Threads(Range):
        async def __getitem__(self, index):
            rng = sample_rng()
            assert await asyncio.to_thread(sample_rng) is rng
            assert await asyncio.create_task(self.later()) is rng
            return index

        async def later(self):
            await asyncio.sleep(0)
            return sample_rng()

    assert outcomes(iter(DataLoader(Threads(4), 2, num_workers=workers))) == [[0, 1], [2, 3]]


# -- views ---------------------------------------------------------------------------------------


class Together(Range):
    """Draws in the batched fetch, which must agree with drawing one by one."""

    def __getitem__(self, index):
        return index, sample_rng().random()

    def __getitems__(self, indices):
        return [(index, sample_rng(k).random()) for k, index in enumerate(indices)]


class OneByOne(Together):
    __getitems__ = None


def noisy_map(dataset):
    return MapDataset(dataset, lambda sample: (*sample, sample_rng().random()))


@pytest.mark.parametrize(
    "view",
    [
        noisy_map,
        lambda ds: Subset(noisy_map(ds), [*range(11, -1, -1)]),
        lambda ds: noisy_map(ConcatDataset([Subset(ds, [5, 3, 1]), ds])),
        lambda ds: MapDataset(WindowsDataset(ds, 1), lambda window: (*window[0], 0)),
    ],
)
@pytest.mark.parametrize(("workers", "lanes"), WAYS)
def test_views_draw_the_same_with_and_without_a_batched_fetch(view, workers, lanes):
    expected = rows(DataLoader(view(OneByOne(12)), 5, True, seed=5), 1)
    assert len({first for _, first, _ in expected}) == len(expected) >= 12
    options = {"num_workers": workers, "items_in_parallel": lanes, "seed": 5}
    assert rows(DataLoader(view(Together(12)), 5, True, **options), 1) == expected


# -- refusals ------------------------------------------------------------------------------------


def refusal(loader, *, cause=False):
    (error,) = [found for found in outcomes(iter(loader)) if isinstance(found, Exception)]
    return error.__cause__ if cause else error


def test_outside_of_samples_it_says_where_it_works():
    for args in ((), (0,)):
        with pytest.raises(RuntimeError, match=r"no sample is being loaded: it works inside a"):
            sample_rng(*args)


@WORKERS
@pytest.mark.parametrize("lanes", [1, 2])
def test_inside_a_sample_a_place_is_refused(workers, lanes):
    dataset = MapDataset(Range(1), lambda _: sample_rng(0))
    loader = DataLoader(dataset, num_workers=workers, items_in_parallel=lanes)
    error = refusal(loader)
    assert type(error) is RuntimeError
    assert "sample_rng(0) was called where one sample is loaded" in str(error)


@WORKERS
def test_inside_a_batched_fetch_and_a_collate_fn_a_place_is_needed(workers):
    class Fetch(Range):
        def __getitems__(self, indices):
            return [sample_rng() for _ in indices]

    for loader in (
        DataLoader(Fetch(2), 2, num_workers=workers),
        DataLoader(Range(2), 2, collate_fn=lambda _: sample_rng(), num_workers=workers),
    ):
        error = refusal(loader)
        assert type(error) is RuntimeError
        assert "sample_rng() was called while several samples are being loaded" in str(error)


@WORKERS
def test_after_one_sample_of_a_batched_fetch_a_place_is_needed_again(workers):
    class Fetch(Range):
        def __getitems__(self, indices):
            with place(1):
                assert sample_rng() is sample_rng(1)
            return [sample_rng() for _ in indices]

    error = refusal(DataLoader(Fetch(2), 2, num_workers=workers))
    assert "while several samples are being loaded" in str(error)


@WORKERS
@pytest.mark.parametrize(("k", "kind"), [(2, IndexError), (-1, IndexError), ("0", TypeError)])
def test_a_place_that_is_not_in_the_batch_is_refused(workers, k, kind):
    loader = DataLoader(Range(2), 2, collate_fn=lambda _: sample_rng(k), num_workers=workers)
    error = refusal(loader)
    assert type(error) is kind
    if kind is IndexError:
        assert f"sample_rng({k}): there are 2 samples here, numbered from 0" in str(error)


def test_numpys_integers_are_places():
    loader = DataLoader(Range(2), 2, collate_fn=lambda _: sample_rng(np.int64(1)) is sample_rng(1))
    assert [*loader] == [True]


@WORKERS
def test_only_the_collate_fn_of_an_iterable_dataset_has_samples(workers):
    class Stream(IterableDataset):
        def __init__(self, *, draws):
            self.draws = draws

        def __iter__(self):
            for number in range(4):
                yield sample_rng().random() if self.draws else number

    def collate(samples):
        return [(sample, sample_rng(k).random(), 0.0) for k, sample in enumerate(samples)]

    loader = DataLoader(Stream(draws=True), 2, num_workers=workers)
    error = refusal(loader)
    assert type(error) is RuntimeError
    assert "the code of an iterable dataset" in str(error)
    loader = DataLoader(Stream(draws=False), 3, seed=5, collate_fn=collate, num_workers=workers)
    got = [row for batch in loader for row in batch]
    expected = rows(DataLoader(Noisy(4), 4, seed=5), 0)
    assert got == [(index, first, 0.0) for index, first, _ in expected]


@WORKERS
def test_the_code_of_a_sampler_has_no_sample(workers):
    class Drawing:
        def __iter__(self):
            yield int(sample_rng().integers(4))

    error = refusal(DataLoader(Range(4), sampler=Drawing(), num_workers=workers))
    assert type(error) is RuntimeError
    assert "no sample is being loaded" in str(error)


def test_a_thread_of_the_users_own_has_no_sample():
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        dataset = MapDataset(Range(1), lambda _: threads.submit(sample_rng).result())
        assert "no sample is being loaded" in str(refusal(DataLoader(dataset)))


def test_after_a_batch_there_is_no_sample_any_more():
    loader = DataLoader(Noisy(4), 2, seed=5)
    for _ in loader:
        with pytest.raises(RuntimeError, match="no sample is being loaded"):
            sample_rng()
        assert get_worker_info() is None
