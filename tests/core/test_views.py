"""Views: samples by index, the batched fetch, random numbers of a sample, arguments."""

import pickle
import random

import numpy as np
import pytest

from helpers.views import NEW, TENS, Batched, OnlyBatched, Rows, double
from tundish import ArrayDataset, ConfigError, DataLoader
from tundish.views import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    MapDataset,
    SampledDataset,
    StackDataset,
    Subset,
    WindowsDataset,
    is_async,
)

# -- samples by index --------------------------------------------------------------------------


@NEW
@pytest.mark.parametrize("kind", [Rows, Batched, OnlyBatched])
def test_a_view_is_a_sequence_of_its_samples(view, samples, kind):
    dataset = view(kind)
    assert len(dataset) == len(samples)
    assert [dataset[index] for index in range(len(dataset))] == samples
    assert list(dataset) == samples
    assert dataset[-1] == samples[-1]
    assert dataset[-len(samples)] == samples[0]
    assert dataset[np.int64(1)] == dataset[np.array(1)] == samples[1]
    assert not is_async(dataset)
    assert repr(dataset).startswith(f"<{type(dataset).__name__} of ")
    assert repr(dataset).endswith(f": {len(samples)} samples>")


@NEW
def test_indices_outside_are_refused_by_name(view, samples):
    dataset = view(Rows)
    n = len(samples)
    for index in (n, -n - 1, 10**30):
        with pytest.raises(
            IndexError, match=rf"{type(dataset).__name__}: index {index} .* {n} samples"
        ):
            dataset[index]
    for index in (True, np.True_, 1.0, np.float32(1), None, "1", [1], slice(2)):
        with pytest.raises(TypeError, match=r"must be an integer"):
            dataset[index]


def test_what_looks_like_an_end_is_an_error_of_an_iteration():
    def fail(error):
        def function(sample):
            raise error

        return MapDataset([1, 2], function)

    for error in (IndexError("gone"), StopIteration("gone")):
        with pytest.raises((IndexError, RuntimeError)):
            list(fail(error))
        with pytest.raises(type(error), match="gone"):
            fail(error)[0]
        batched = MapDataset(Batched([1, 2]), fail(error).function)
        with pytest.raises(type(error), match="gone"):
            batched.__getitems__([0, 1])


# -- the batched fetch -------------------------------------------------------------------------


@NEW
def test_a_view_has_a_batched_fetch_only_if_its_datasets_have_one(view, samples):
    assert hasattr(view(Batched), "__getitems__")
    assert not hasattr(view(Rows), "__getitems__")
    assert getattr(view(Rows), "__getitems__", None) is None


def test_a_part_without_a_batched_fetch_is_enough_to_have_none():
    class Without(Batched):
        __getitems__ = None

    for other in (Rows("ab"), Without("ab")):
        assert not hasattr(ConcatDataset([Batched("ab"), other]), "__getitems__")
        assert not hasattr(StackDataset(Batched("ab"), other), "__getitems__")


@NEW
def test_a_batched_fetch_gives_the_same_samples(view, samples):
    dataset = view(Batched)
    draw = random.Random(5)
    for length in (1, 2, 30):
        chosen = [draw.randrange(len(samples)) for _ in range(length)]
        assert dataset.__getitems__(chosen) == [samples[index] for index in chosen]
    assert dataset.__getitems__((-1, np.int32(0))) == [samples[-1], samples[0]]
    assert dataset.__getitems__([]) == []
    for wrong in (len(samples), -len(samples) - 1):
        with pytest.raises(IndexError, match=f"index {wrong} is out of range"):
            dataset.__getitems__([0, wrong])


def test_each_dataset_below_is_asked_once():
    rows = Batched(TENS)
    assert Subset(rows, [5, 3, 1]).__getitems__([2, 0, 0]) == [10, 50, 50]
    assert rows.asked == [[1, 5, 5]]

    rows, more = Batched(TENS), Batched("abc")
    both = ConcatDataset([rows, Batched("unasked"), more])
    assert both.__getitems__([14, 2, 13, 0]) == ["b", 20, "a", 0]
    assert [part.asked for part in both.datasets] == [[[2, 0]], [], [[1, 0]]]

    rows, more = Batched(TENS), Batched("abcdef")
    assert StackDataset(rows, more).__getitems__([3, 3]) == [(30, "d"), (30, "d")]
    assert rows.asked == more.asked == [[3, 3]]

    rows = Batched(TENS)
    assert MapDataset(rows, double).__getitems__([1, 0]) == [20, 0]
    assert rows.asked == [[1, 0]]

    rows = Batched(TENS)
    assert WindowsDataset(rows, 3).__getitems__([3, 1, 3]) == [
        [30, 40, 50],
        [10, 20, 30],
        [30, 40, 50],
    ]
    assert rows.asked == [[3, 4, 5, 1, 2]]


def test_views_of_views_pass_one_fetch_down():
    rows = Batched(range(100))
    dataset = MapDataset(Subset(Subset(rows, range(50, 100)), [9, 8, 7]), double)
    assert dataset.__getitems__([2, 0]) == [114, 118]
    assert rows.asked == [[57, 59]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_uses_the_batched_fetch(workers):
    rows = Batched(range(40))
    dataset = ConcatDataset([Subset(rows, range(20)), Subset(rows, range(20, 40))])
    batches = list(DataLoader(dataset, 8, num_workers=workers))
    assert np.concatenate(batches).tolist() == list(range(40))
    assert sorted(map(len, rows.asked)) == [4, 4, 8, 8, 8, 8]


def test_a_subclass_that_changes_single_samples_is_not_passed_by():
    class Marked(Subset):
        def __getitem__(self, index):
            return ("marked", super().__getitem__(index))

    class Both(Marked):
        def __getitems__(self, indices):
            return [("marked", sample) for sample in super().__getitems__(indices)]

    class Untouched(Subset):
        pass

    marked = Marked(Batched("abc"), [2, 1])
    assert not hasattr(marked, "__getitems__")
    assert marked[0] == ("marked", "c")
    assert Untouched(Batched("abc"), [2]).__getitems__([0]) == ["c"]
    both = Both(Batched("abc"), [2, 1])
    assert both.__getitems__([0]) == [both[0]] == [("marked", "c")]


@pytest.mark.parametrize("kind", ["short", "long", "endless", "none", "text"])
@pytest.mark.parametrize(
    ("view", "label"),
    [
        (lambda bad: Subset(bad, [0, 1, 2]), "Subset of Bad"),
        (lambda bad: ConcatDataset([Batched("a"), bad]), r"ConcatDataset: dataset 1 \(Bad\)"),
        (lambda bad: StackDataset(Batched("abc"), bad), r"StackDataset: dataset 1 \(Bad\)"),
        (
            lambda bad: StackDataset(good=Batched("abc"), b=bad),
            r"StackDataset: dataset 'b' \(Bad\)",
        ),
        (lambda bad: MapDataset(bad, double), "MapDataset of Bad"),
    ],
    ids=["subset", "concat", "tuples", "dicts", "map"],
)
def test_a_batched_fetch_that_returns_another_number_is_refused(view, label, kind):
    class Bad(Batched):
        def __getitems__(self, indices):
            return {
                "short": ["x"],
                "long": ["x"] * 5,
                "endless": iter(int, 1),
                "none": None,
                "text": "xx",
            }[kind]

    dataset = view(Bad("abc"))
    found = {"short": "1 samples", "long": "5 samples", "endless": "at least 3 samples"}
    text = found.get(kind, "None" if kind == "none" else "a str")
    with pytest.raises(
        (ValueError, TypeError), match=rf"^{label}: __getitems__ returned {text}.* 2 "
    ):
        dataset.__getitems__([1, 2])


# -- the sample's own random numbers -----------------------------------------------------------


def _jitter(sample):
    from tundish.randomness import sample_rng

    return sample + sample_rng().random()


class NoisyRows(Rows):
    def __getitem__(self, index):
        return _jitter(super().__getitem__(index))


class NoisyBatched(NoisyRows):
    def __getitems__(self, indices):
        from tundish.randomness import sample_rng

        return [self.samples[i] + sample_rng(k).random() for k, i in enumerate(indices)]


@pytest.mark.parametrize(
    "view",
    [
        lambda kind, plain: MapDataset(plain(TENS), _jitter),
        lambda kind, plain: ConcatDataset([kind(TENS), MapDataset(plain(TENS), _jitter)]),
        lambda kind, plain: Subset(ConcatDataset([kind(TENS), kind(TENS)]), [11, 3, 4, 5, 0, 0, 9]),
        lambda kind, plain: StackDataset(kind(TENS), kind(TENS)),
    ],
    ids=["map", "concat", "subset", "stack"],
)
def test_random_numbers_do_not_depend_on_the_batched_fetch(view):
    def batches(*kinds, **options):
        loader = DataLoader(view(*kinds), 4, True, seed=3, **options)
        return [np.array(batch).tolist() for batch in loader]

    expected = batches(NoisyRows, Rows)
    assert batches(NoisyBatched, Batched) == expected
    assert batches(NoisyBatched, Batched, num_workers=2) == expected
    assert len({value for batch in expected for value in np.ravel(batch)}) >= 6


def test_windows_share_what_was_drawn_for_the_first_of_them():
    def batches(kind, batch_size):
        return list(DataLoader(WindowsDataset(kind(TENS), 2), batch_size, collate_fn=list, seed=3))

    assert batches(NoisyBatched, 1) == batches(NoisyRows, 1)
    (first, second), *_ = batches(NoisyBatched, 2)
    assert first == batches(NoisyRows, 2)[0][0]
    assert second[0] == first[1]


# -- arguments ---------------------------------------------------------------------------------


def test_lengths_and_numbers_of_datasets_are_checked():
    with pytest.raises(ConfigError, match="at least one dataset"):
        ConcatDataset([])
    with pytest.raises(ConfigError, match="got none"):
        StackDataset()
    with pytest.raises(ConfigError, match="got 1 unnamed and y"):
        StackDataset(Rows("ab"), y=Rows("ab"))
    with pytest.raises(
        ConfigError, match="dataset 'y' has 3 samples, but dataset 'x' has 2; all need the same"
    ):
        StackDataset(x=Rows("ab"), y=Rows("abc"))
    with pytest.raises(ConfigError, match="function=3 must be callable"):
        MapDataset(Rows("ab"), 3)
    for size, step, text in [(0, 1, "size=0"), (True, 1, "size=True"), (1, 0, "step=0")]:
        with pytest.raises(ConfigError, match=text):
            WindowsDataset(Rows("ab"), size, step)


@pytest.mark.parametrize(
    ("n", "size", "step", "length"),
    [
        (5, 3, 1, 3),
        (5, 5, 1, 1),
        (5, 6, 1, 0),
        (5, 6, 9, 0),
        (0, 4, 3, 0),
        (9, 2, 4, 2),
        (10, 2, 4, 3),
    ],
)
def test_there_are_only_whole_windows(n, size, step, length):
    windows = WindowsDataset(Rows(range(n)), size, step)
    assert len(windows) == length
    assert list(windows) == [list(range(at * step, at * step + size)) for at in range(length)]


def test_windows_are_collated_as_lists_are():
    windows = WindowsDataset(ArrayDataset(x=np.arange(6)), 3)
    (batch,) = DataLoader(windows, 4)
    assert [part["x"].tolist() for part in batch] == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]


class Stream(IterableDataset):
    def __iter__(self):
        return iter("abc")


class Unsized:
    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    "view",
    [
        lambda dataset: Subset(dataset, [0]),
        lambda dataset: SampledDataset(dataset, 1),
        lambda dataset: ConcatDataset([Rows("a"), dataset]),
        lambda dataset: StackDataset(Rows("a"), dataset),
        lambda dataset: MapDataset(dataset, double),
        lambda dataset: WindowsDataset(dataset, 1),
    ],
    ids=["subset", "sampled", "concat", "stack", "map", "windows"],
)
def test_what_is_not_map_style_is_refused_by_name(view):
    with pytest.raises(ConfigError, match="is a Stream, an iterable dataset without indices; .+"):
        view(Stream())
    with pytest.raises(ConfigError, match="is a Unsized without __len__"):
        view(Unsized())
    with pytest.raises(ConfigError, match="is a set without __getitem__"):
        view({1})


def test_addition_concatenates():
    class Letters(Dataset[str], Rows):
        pass

    both = Letters("ab") + Rows("cd")
    assert type(both) is ConcatDataset
    assert list(both + Letters("e")) == list("abcde")
    assert both.cumulative_sizes == [2, 4]


@NEW
def test_views_are_plain_values(view, samples):
    dataset = view(Batched)
    dataset.__getitems__([0])
    copy = pickle.loads(pickle.dumps(dataset))
    assert list(copy) == samples
    assert copy.__getitems__([1]) == samples[1:2]
