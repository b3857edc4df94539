"""ArrayDataset: the engine's own gather gives what rows through Python give."""

import hashlib
import pickle

import ml_dtypes
import numpy as np
import pytest

from tundish import ArrayDataset, ConfigError, DataLoader

WORKERS = pytest.mark.parametrize("workers", [0, 4])
BASE = np.arange(240, dtype="f4").reshape(10, 4, 6)
LAYOUTS = {
    "c": BASE,
    "fortran": np.asfortranarray(BASE),
    "reversed": BASE[::-1],
    "steps": BASE[:, ::2, ::-1],
    "transposed": BASE.transpose(0, 2, 1),
    "broadcast": np.broadcast_to(BASE[:1], (10, 4, 6)),
    "flat": BASE.reshape(10, 24)[:, 3],
    "readonly": np.frombuffer(BASE.tobytes(), "f4").reshape(10, 24),
    "empty rows": np.zeros((10, 0, 3)),
    "big-endian": BASE.astype(">f4"),
}
DTYPES = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]
ODD_DTYPES = ["M8[ns]", "m8[s]", "S5", "U3", "bfloat16", "float8_e5m2", "g"]


def equal(got, expected):
    assert type(got) is type(expected)
    if isinstance(got, dict):
        assert list(got) == list(expected)
        got, expected = list(got.values()), list(expected.values())
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()
        assert one.flags.c_contiguous
        assert one.flags.writeable


def native(array):
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def check(dataset, workers):
    loader = DataLoader(dataset, 4, True, seed=3, num_workers=workers)
    plan = loader._plan(0)
    for number, batch in enumerate(loader.epoch(0)):
        rows = [native(field[plan.indices(number)]) for field in dataset._fields]
        equal(batch, rows if dataset._names is None else dict(zip(dataset._names, rows)))
    assert number == 2


@WORKERS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_is_gathered(workers, layout):
    check(ArrayDataset(LAYOUTS[layout]), workers)
    check(ArrayDataset(x=LAYOUTS[layout], y=np.arange(10)), workers)


@WORKERS
@pytest.mark.parametrize("name", DTYPES + ODD_DTYPES)
def test_any_dtype_is_gathered_bit_for_bit(workers, name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    random = np.random.default_rng(0)
    if dtype.kind in "SU":
        array = np.array([f"é{k}"[k % 2 :] if dtype.kind == "U" else f"b{k}" for k in range(10)])
        array = array.astype(dtype)
    else:
        array = random.integers(0, 256, (10, 3 * dtype.itemsize), np.uint8)
        array = array.clip(0, 1).view("?") if name == "?" else array.view(dtype)
    check(ArrayDataset(array), workers)
    check(ArrayDataset(array[::-1]), workers)


@WORKERS
def test_structured_rows_are_gathered(workers):
    array = np.zeros(10, [("a", "u1"), ("b", ">f8", 2)])
    array["b"] = np.arange(20).reshape(10, 2)
    check(ArrayDataset(s=array), workers)


@WORKERS
@pytest.mark.parametrize("dtype", ["<i4", ">i4", ">U2", ">M8[s]"])
def test_memmaps_stay_mapped(workers, dtype, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.asfortranarray(np.arange(30).reshape(10, 3).astype("i8").astype(dtype)))
    mapped = np.load(path, mmap_mode="r")
    dataset = ArrayDataset(x=mapped)
    assert dataset[0]["x"].base is not None
    check(dataset, workers)


def test_digests_are_equal_for_any_number_of_workers():
    random = np.random.default_rng(1)
    dataset = ArrayDataset(x=random.random((999, 7), np.float32), y=random.integers(0, 9, 999))

    class ThroughPython(ArrayDataset):
        def __getitem__(self, index):
            return super().__getitem__(index)

    python = ThroughPython(x=dataset._fields[0], y=dataset._fields[1])
    digests = set()
    for source in (dataset, python):
        for workers in range(5):
            digest = hashlib.sha256()
            for batch in DataLoader(source, 32, True, seed=5, num_workers=workers):
                digest.update(batch["x"].tobytes() + batch["y"].tobytes())
            digests.add(digest.hexdigest())
    assert len(digests) == 1


# -- samples -----------------------------------------------------------------------------------


def test_samples_are_tuples_or_dicts_of_rows():
    unnamed = ArrayDataset(np.arange(6).reshape(3, 2), np.array([5, 6, 7]))
    assert len(unnamed) == 3
    row, label = unnamed[np.int64(1)]
    assert (row.tolist(), label) == ([2, 3], 6)
    assert unnamed[-1][1] == 7
    assert ArrayDataset(x=np.arange(3))[True] == {"x": 1}
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            unnamed[wrong]
    with pytest.raises(TypeError):
        unnamed[1.0]


@WORKERS
def test_batches_are_lists_or_dicts_of_columns(workers):
    unnamed = DataLoader(ArrayDataset(np.arange(4), np.arange(4) * 2), 4, num_workers=workers)
    assert [column.tolist() for column in next(iter(unnamed))] == [[0, 1, 2, 3], [0, 2, 4, 6]]
    named = DataLoader(ArrayDataset(a=np.arange(4)), 4, num_workers=workers)
    assert next(iter(named))["a"].tolist() == [0, 1, 2, 3]


@WORKERS
def test_a_collate_fn_gets_the_samples(workers):
    loader = DataLoader(ArrayDataset(a=np.arange(4)), 2, collate_fn=list, num_workers=workers)
    assert list(loader) == [[{"a": 0}, {"a": 1}], [{"a": 2}, {"a": 3}]]


@WORKERS
def test_a_subclass_that_changes_samples_is_heeded(workers):
    class Doubled(ArrayDataset):
        def __getitem__(self, index):
            return super().__getitem__(index)[0] * 2

    class Batched(ArrayDataset):
        def __getitems__(self, indices):
            return [-index for index in indices]

    assert [b.tolist() for b in DataLoader(Doubled(np.arange(3)), 3, num_workers=workers)] == [
        [0, 2, 4]
    ]
    assert [b.tolist() for b in DataLoader(Batched(np.arange(3)), 3, num_workers=workers)] == [
        [0, -1, -2]
    ]


@WORKERS
def test_batches_are_the_users_own(workers):
    source = np.zeros((40, 3))
    loader = DataLoader(ArrayDataset(source), 2, num_workers=workers)
    kept = []
    for number, (batch,) in enumerate(loader):
        batch += number
        kept.append(batch)
    assert not source.any()
    assert all((batch == number).all() for number, batch in enumerate(kept))


def test_an_array_dataset_can_be_pickled():
    again = pickle.loads(pickle.dumps(ArrayDataset(x=np.arange(3))))
    assert again[1] == {"x": 1}
    assert repr(again) == "ArrayDataset(x=int64[3])"


# -- refusals ----------------------------------------------------------------------------------


def test_no_arrays_or_both_kinds_are_refused():
    with pytest.raises(ConfigError, match="at least one"):
        ArrayDataset()
    with pytest.raises(ConfigError, match="not both"):
        ArrayDataset(np.zeros(3), x=np.zeros(3))


def test_different_lengths_are_named_with_their_field():
    with pytest.raises(ConfigError, match="field 'y' has 4 samples, but field 'x' has 3"):
        ArrayDataset(x=np.zeros(3), y=np.zeros(4))
    with pytest.raises(ConfigError, match="field '1' has 4 samples, but field '0' has 3"):
        ArrayDataset(np.zeros(3), np.zeros(4))


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (np.array([object()]), "Python objects"),
        (np.zeros(1, [("a", "O")]), "Python objects"),
        ([1, 2], "list"),
        (np.ma.masked_array([1], [1]), "MaskedArray"),
        (np.float64(1), "float64"),
    ],
)
def test_what_is_no_array_of_values_is_refused_by_field(field, words):
    with pytest.raises(TypeError, match="field 'x'") as caught:
        ArrayDataset(x=field)
    assert words in str(caught.value)


def test_an_array_without_a_first_axis_is_refused():
    with pytest.raises(ConfigError, match="field 'x' has no first dimension"):
        ArrayDataset(x=np.array(1.0))
