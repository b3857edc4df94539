"""The default collate: one rule set for every batch size, and loud disagreements."""

import datetime as dt
import decimal
import enum
import fractions
import pathlib
import uuid
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

from helpers.datasets import MODES, outcomes
from tundish import DataLoader, default_collate

WORKERS = pytest.mark.parametrize("workers", [0, 4])
SIZES = pytest.mark.parametrize("size", [1, 2, 40])
NUMERIC = "?bBhHiIlLqQefdgFD"


def same(got, expected):
    assert type(got) is type(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()
    assert got.flags.c_contiguous


# -- arrays and numbers ------------------------------------------------------------------------


@SIZES
@pytest.mark.parametrize("code", NUMERIC)
@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 3), (0,), (3, 0, 2)])
def test_arrays_are_stacked_with_their_dtype(size, code, shape):
    rows = [np.full(shape, k % 2, np.dtype(code)) for k in range(size)]
    batch = default_collate(rows)
    same(batch, np.stack(rows))
    assert batch.flags.writeable


@pytest.mark.parametrize("dtype", ["M8[ns]", "m8[s]", "S5", "U5", "bfloat16", "float8_e5m2"])
def test_dtypes_without_a_buffer_format_are_stacked_too(dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rows = [np.array([k, k + 1]).astype(dtype) for k in range(3)]
    same(default_collate(rows), np.stack(rows))


def test_arrays_of_any_length_of_str_are_stacked():
    batch = default_collate([np.array(["a", "日本" * 20], "T"), np.array(["b", ""], "T")])
    assert batch.dtype == np.dtype("T")
    assert batch.tolist() == [["a", "日本" * 20], ["b", ""]]


@pytest.mark.parametrize(
    "row",
    [
        np.rec.array([(1, 2.5)], names="a,b"),
        np.zeros(2).view(type("Sub", (np.ndarray,), {})),
    ],
    ids=["recarray", "subclass"],
)
def test_subclasses_of_ndarray_become_plain_arrays(row):
    batch = default_collate([row, row])
    assert type(batch) is np.ndarray
    assert batch.dtype.type in (np.void, row.dtype.type)
    assert batch.shape == (2, *row.shape)
    assert batch[1].tolist() == row.tolist()


def test_records_become_a_structured_array():
    record = np.rec.array([(1, 2.5)], names="a,b")[0]
    batch = default_collate([record, record])
    assert batch.dtype.type is np.void
    assert batch.tolist() == [(1, 2.5)] * 2


def test_structured_arrays_are_stacked():
    dtype = np.dtype([("a", "u1"), ("b", "<f8")], align=True)
    rows = [np.array([(k, 0.5), (k, 1.5)], dtype) for k in range(3)]
    assert np.array_equal(default_collate(rows), np.stack(rows))
    assert default_collate([row[0] for row in rows])["b"].tolist() == [0.5] * 3
    for zero in (row[0] for row in rows), (row[0, ...] for row in rows):
        (batch,) = default_collate([(value,) for value in zero])
        assert batch["a"].tolist() == [0, 1, 2]


def test_big_endian_subarrays_of_a_structure_keep_their_values():
    # numpy calls this dtype native, although its subarray isn't.
    rows = [np.array([(k, (0.5, k))], [("a", "u1"), ("b", ">f8", (2,))]) for k in range(3)]
    for batch in (default_collate(rows), default_collate([row[0] for row in rows])[:, None]):
        assert batch.dtype == np.dtype([("a", "u1"), ("b", "<f8", (2,))])
        assert batch["b"].tolist() == [[[0.5, k]] for k in range(3)]


@pytest.mark.parametrize(
    "change",
    [
        np.asfortranarray,
        lambda a: a[::-1],
        lambda a: a[:, ::2],
        lambda a: a.T,
        lambda a: np.broadcast_to(a[:1], (4, 6)),
        lambda a: a.astype(">f4"),
    ],
)
def test_any_layout_arrives_contiguous_and_native(change):
    rows = [change(np.arange(24, dtype="f4").reshape(4, 6) + k) for k in range(3)]
    same(default_collate(rows), np.stack(rows).astype("<f4"))


@SIZES
@pytest.mark.parametrize("code", NUMERIC)
def test_numpy_scalars_keep_their_dtype(size, code):
    scalars = [np.dtype(code).type(1)] * size
    same(default_collate(scalars), np.ones(size, code))


class Colour(enum.IntEnum):
    RED = 3


@SIZES
@pytest.mark.parametrize(
    ("value", "dtype"),
    [(5, "i8"), (-(2**63), "i8"), (0.5, "f8"), (True, "?"), (2j, "c16"), (Colour.RED, "i8")],
)
def test_python_numbers_have_one_dtype_each(size, value, dtype):
    same(default_collate([value] * size), np.full(size, value, dtype))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**70])
def test_an_int_beyond_int64_is_refused_with_its_value(value):
    with pytest.raises(ValueError, match=rf"{value} in sample 1; .*np.uint64"):
        default_collate([1, value])


def test_negative_zero_and_nan_payloads_survive():
    bits = np.array([0x8000000000000000, 0x7FF8000000000123], np.uint64)
    same(default_collate(list(bits.view(np.float64))).view(np.uint64), bits)


# -- promotion ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([np.uint8(255), np.float32(0.5)], np.array([255, 0.5], "f4")),
        ([np.int64(1), np.float64(0.5)], np.array([1, 0.5])),
        ([True, 2], np.array([1, 2])),
        ([1, 2.5], np.array([1, 2.5])),
        ([np.int64(2**60), 0.5], np.array([2**60, 0.5])),
        ([np.uint8(1), np.int8(-1)], np.array([1, -1], "i2")),
        ([np.array(3, "i2"), 4], np.array([3, 4])),
        ([np.float64(1.5), np.float32(2)], np.array([1.5, 2])),
        ([np.array([1, 2], "f8"), np.array([1, 2], "f4")], np.array([[1.0, 2], [1, 2]])),
        ([np.array([1, 2], "f4"), np.array([1, 2], "f8")], np.array([[1.0, 2], [1, 2]])),
        ([np.array(["a"]), np.array(["bcd"])], np.array([["a"], ["bcd"]])),
    ],
)
def test_mixed_numbers_promote_where_no_value_changes(values, expected):
    same(default_collate(values), expected)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([2**53 + 1, 0.5], ("int64", "float64")),
        ([np.int64(-(2**63) + 1), np.uint64(1)], ("int64", "uint64")),
        ([np.uint64(2**64 - 1), np.int64(-1)], ("uint64", "int64")),
        ([np.array([2**53 + 1]), np.array([1.0])], ("int64", "float64")),
        ([np.datetime64("2020", "s"), np.datetime64("2020", "ns")], ("[s]", "[ns]")),
        ([np.array([b"a"]), np.array(["a"])], ("S1", "U1")),
        ([np.array([ml_dtypes.bfloat16(1)]), np.array([1.0])], ("bfloat16", "float64")),
    ],
)
def test_promotion_that_would_change_a_value_names_both_dtypes(values, names):
    with pytest.raises(TypeError) as caught:
        default_collate(values)
    assert all(name in str(caught.value) for name in names)


# -- text and containers -----------------------------------------------------------------------


@SIZES
@pytest.mark.parametrize("value", ["", "日本", b"abc", b"", np.str_("x"), np.bytes_(b"y")])
def test_texts_stay_a_list(size, value):
    batch = default_collate([value] * size)
    assert batch == [value] * size
    assert type(batch) is list


@SIZES
def test_mutable_buffers_become_bytes_of_their_own(size):
    buffer = bytearray(b"ab")
    rows = [buffer, memoryview(buffer)[::-1]]
    batches = [default_collate([row] * size) for row in rows]
    buffer[:] = b"xx"
    assert batches == [[b"ab"] * size, [b"ba"] * size]
    assert {type(item) for batch in batches for item in batch} == {bytes}


class Name(enum.StrEnum):
    ANN = "ann"


@SIZES
def test_a_str_of_a_class_of_its_own_stays_as_it_is(size):
    batch = default_collate([Name.ANN] * size)
    assert batch == [Name.ANN] * size
    assert type(batch[0]) is Name
    assert default_collate([Name.ANN, "bob"]) == [Name.ANN, "bob"]


@pytest.mark.parametrize("kind", [list, tuple])
def test_sequences_become_a_list_of_columns_for_every_batch_size(kind):
    assert default_collate([kind("ab"), kind("cd")]) == [["a", "c"], ["b", "d"]]
    assert default_collate([kind("ab")]) == [["a"], ["b"]]
    assert default_collate([kind(()), kind(())]) == []


class Pair(NamedTuple):
    left: object
    right: object


def test_a_namedtuple_stays_one():
    batch = default_collate([Pair(1, "a"), Pair(2, "b")])
    assert type(batch) is Pair
    same(batch.left, np.array([1, 2]))
    assert batch.right == ["a", "b"]


def test_dicts_keep_their_keys_and_their_order():
    batch = default_collate([{"b": 1, 2: {"c": "x"}}, {2: {"c": "y"}, "b": 3}])
    assert list(batch) == ["b", 2]
    same(batch["b"], np.array([1, 3]))
    assert batch[2] == {"c": ["x", "y"]}
    assert default_collate([{}, {}]) == {}


def test_nesting_of_any_kind():
    sample = ({"image": np.zeros((2, 2), "u1"), "boxes": [1, (2.5, "n")]}, Pair(True, b"k"))
    batch = default_collate([sample] * 3)
    assert batch[0]["image"].shape == (3, 2, 2)
    assert batch[0]["boxes"][1][1] == ["n"] * 3
    assert batch[1].left.dtype == bool


# -- disagreements -----------------------------------------------------------------------------

DISAGREEMENTS = [
    ([{"x": 1}, {"x": 2, "y": 3}], ValueError, ["['y']", "key present", "key missing"]),
    ([{"x": 1, "y": 3}, {"x": 2}], ValueError, ["['y']", "key present", "key missing"]),
    ([{"x": 1}, {"y": 2}], ValueError, ["['x']", "key present", "key missing"]),
    ([[1, 2], [3]], ValueError, ["length 2", "length 1"]),
    ([1, None], TypeError, ["int", "NoneType"]),
    ([None, None], TypeError, ["NoneType"]),
    ([np.zeros((3, 4)), np.zeros((1, 4))], ValueError, ["shape (3, 4)", "shape (1, 4)"]),
    ([np.zeros(3), np.zeros((3, 1))], ValueError, ["shape (3,)", "shape (3, 1)"]),
    ([np.zeros(2), np.float64(1)], ValueError, ["shape (2,)", "shape ()"]),
    (["ab", 3], TypeError, ["str", "int"]),
    (["ab", b"ab"], TypeError, ["str", "bytes"]),
    ([{"x": 1}, [1]], TypeError, ["dict", "list"]),
    ([(1, 2), [1, 2]], TypeError, ["tuple", "list"]),
    ([{"a": [1, {1}]}] * 2, TypeError, ["['a'][1]", "set"]),
    ([{"a": [1, 2]}, {"a": [1, "2"]}], TypeError, ["['a'][1]", "int", "str"]),
    ([Pair(1, np.zeros(2)), Pair(1, np.zeros(3))], ValueError, [".right", "(2,)", "(3,)"]),
    ([np.array([object()])] * 2, TypeError, ["dtype object"]),
    ([np.ma.masked_array([1], [1])] * 2, TypeError, ["masked", ".filled()"]),
    ([{"a": 1}, {"a": None}], TypeError, ["['a']", "NoneType", "leave the key out"]),
    ([np.float32(1), decimal.Decimal(1)], TypeError, ["float32", "decimal.Decimal"]),
    ([b"ab", bytearray(b"ab")], TypeError, ["bytes", "bytearray"]),
]


@pytest.mark.parametrize(("samples", "error", "words"), DISAGREEMENTS)
def test_a_disagreement_names_field_samples_and_what_differs(samples, error, words):
    with pytest.raises(error) as caught:
        default_collate(samples)
    for word in [*words, "sample 0"]:
        assert word in str(caught.value), str(caught.value)


@WORKERS
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("samples", "error", "words"), DISAGREEMENTS)
def test_in_a_loader_it_names_dataset_indices_and_the_epoch_goes_on(
    workers, mode, samples, error, words
):
    dataset = [0, 1, *samples, 4, 5]
    found = outcomes(iter(DataLoader(dataset, 2, num_workers=workers)), mode)
    assert [found[0], found[2]] == [[0, 1], [4, 5]]
    assert type(found[1]) is error
    for word in [*words, "dataset[2]"]:
        assert word in str(found[1])
    assert "dataset indices [2, 3], batch 1 of epoch 0" in found[1].__notes__[0]


def test_the_sample_that_differs_is_named_wherever_it_is():
    with pytest.raises(ValueError, match=r"shape \(2,\) in sample 0, shape \(3,\) in sample 7"):
        default_collate([np.zeros(2)] * 7 + [np.zeros(3)])


UNKNOWN = {
    "None": (None, "NoneType in sample 0; return a value, or leave the key out"),
    "set": ({1}, r"set in .*sorted"),
    "frozenset": (frozenset((1,)), r"frozenset in .*sorted"),
    "path": (pathlib.PurePosixPath("/x"), r"pathlib.*PurePosixPath in .*str\("),
    "datetime": (dt.datetime(2026, 1, 1), r"datetime.datetime in .*numpy.datetime64.*timestamp"),
    "zoned": (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), r"datetime.datetime in .*timestamp"),
    "date": (dt.date(2026, 1, 1), r"datetime.date in .*datetime64"),
    "time": (dt.time(1), r"datetime.time in .*isoformat"),
    "timedelta": (dt.timedelta(1), r"datetime.timedelta in .*timedelta64.*total_seconds"),
    "decimal": (decimal.Decimal("0.1"), r"decimal.Decimal in .*float\(...\).*str\(...\)"),
    "fraction": (fractions.Fraction(1, 3), r"fractions.Fraction in .*float"),
    "uuid": (uuid.UUID(int=1), r"uuid.UUID in .*str\("),
    "enum": (enum.Enum("Plain", "A").A, r"Plain in .*\.value or \.name.*IntEnum"),
    "flag": (enum.Flag("Bits", "A").A, r"Bits in .*\.value"),
    "iterator": (iter([1]), r"list_iterator in .*list\("),
    "keys": ({}.keys(), r"dict_keys in .*list\("),
    "object": (object(), r"object in .*collate_fn"),
    "class": (int, r"type type in .*collate_fn"),
    "masked": (np.ma.masked_array([1], [0]), r"a masked array in .*filled"),
    "objects": (np.array([None]), "dtype object"),
    "object field": (np.zeros(1, [("a", "O")]), "object"),
    "buffer": (memoryview(np.zeros(2)), r"memoryview of format 'd'.*numpy.asarray"),
    "image": (type("Image", (), {"__array_interface__": {}})(), r"Image in .*numpy.asarray"),
}


@SIZES
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_type_without_a_rule_is_refused_with_the_way_out(name, size):
    value, says = UNKNOWN[name]
    with pytest.raises(TypeError, match=says):
        default_collate([value] * size)
    with pytest.raises(TypeError, match=rf"field \['a'\]\[1\]: .*{says}"):
        default_collate([{"a": (0, value)}] * size)


def test_one_masked_array_among_plain_ones_is_refused_where_it_is():
    with pytest.raises(TypeError, match="a masked array in sample 1; .*filled"):
        default_collate([np.zeros(2), np.ma.masked_array([1.0, 2], [0, 1])])


@pytest.mark.parametrize("sample", [{"x": 1}, "ab", b"ab"])
def test_a_sample_in_place_of_the_list_of_samples_is_refused(sample):
    with pytest.raises(TypeError, match=rf"list of samples, got a {type(sample).__name__}"):
        default_collate(sample)


def test_a_sample_that_contains_itself_is_refused():
    sample = []
    sample.append({"again": sample})
    with pytest.raises(ValueError, match="contains itself"):
        default_collate([sample])


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        default_collate([])
