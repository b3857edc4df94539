"""torch's default_collate and default_convert beside ours, on the same samples."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate as torch_collate
from torch.utils.data import default_convert as torch_convert

from parity.values import assert_same
from tundish import DataLoader, default_collate


class Point(NamedTuple):
    x: Any
    y: Any


class Colour(enum.IntEnum):
    RED = 3


class Shape(enum.Enum):
    ROUND = 1


class OwnDict(dict):
    pass


class OwnList(list):
    pass


@dataclasses.dataclass
class Pair:
    a: int


NUMBERS = [np.dtype(code) for code in "?bBhHiIlLefdFD"]

SAME = {
    "float tensors": [torch.arange(3.0), torch.ones(3)],
    "int tensors": [torch.arange(6).reshape(2, 3), torch.ones((2, 3), dtype=torch.int64)],
    "0-d tensors": [torch.tensor(1), torch.tensor(2)],
    "bfloat16 tensors": [torch.arange(3, dtype=torch.bfloat16)] * 2,
    "half and single": [torch.ones(2, dtype=torch.float16), torch.ones(2)],
    "strided tensors": [torch.arange(6).reshape(2, 3).T, torch.arange(6).reshape(3, 2)],
    "leaf tensors": [torch.ones(2, requires_grad=True)] * 2,
    "0-d arrays": [np.array(1), np.array(2)],
    "no samples in an array": [np.ones((0, 3)), np.ones((0, 3))],
    "f4 and f8": [np.ones(2, "f4"), np.ones(2, "f8")],
    "Fortran order": [np.asfortranarray(np.arange(6.0).reshape(2, 3))] * 2,
    "uint64": [np.array([2**64 - 1], "u8")] * 2,
    "float": [1.5, -0.0, float("nan"), float("inf")],
    "int": [1, -(2**63), 2**63 - 1],
    "bool": [True, False],
    "IntEnum": [Colour.RED, Colour.RED],
    "bool then int": [True, 2],
    "float then int": [2.5, 1],
    "f8 and f4 scalars": [np.float64(1.5), np.float32(0.5)],
    "u1 and f4 scalars": [np.uint8(255), np.float32(0.5)],
    "i1 and u1 scalars": [np.int8(-1), np.uint8(255)],
    "numpy and int": [np.int32(1), 2],
    "int and tensor": [1, torch.tensor(2)],
    "one sample": [5],
    "str": ["a", "b"],
    "bytes": [b"a", b"b"],
    "numpy str": [np.str_("a"), np.str_("b")],
    "tuples": [(1, "a"), (2, "b")],
    "lists": [[1, "a"], [2, "b"]],
    "nested": [((1, 2), [3.0], {"k": (4, b"c")}), ((4, 5), [6.0], {"k": (7, b"d")})],
    "namedtuples": [Point(1, "a"), Point(2, "b")],
    "nested namedtuples": [Point((1, 2), Point(3, 4)), Point((5, 6), Point(7, 8))],
    "ranges": [range(3), range(3, 6)],
    "deques": [collections.deque([1, 2]), collections.deque([3, 4])],
    "list subclass": [OwnList([1, 2]), OwnList([3, 4])],
    "empty tuples": [(), ()],
    "empty lists": [[], []],
    "empty dicts": [{}, {}],
    "dicts": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}],
    "keys in another sequence": [{"a": 1, "b": 2}, {"b": 4, "a": 3}],
    "int keys": [{1: 2, (3, 4): 5}, {1: 3, (3, 4): 6}],
    "OrderedDict": [collections.OrderedDict(a=1), collections.OrderedDict(a=2)],
    "defaultdict": [collections.defaultdict(int, a=1), collections.defaultdict(int, a=2)],
    "mappingproxy": [types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 2})],
    "dict subclass": [OwnDict(a=1), OwnDict(a=2)],
    "UserDict": [collections.UserDict(a=1), collections.UserDict(a=2)],
    "a sample of images": [{"image": np.full((3, 4, 4), k, "u1"), "label": k} for k in range(5)],
}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
@pytest.mark.parametrize("name", SAME)
def test_the_same_batch(name):
    samples = SAME[name]
    assert_same(default_collate(samples), torch_collate(samples))


@pytest.mark.parametrize("size", [1, 2, 40])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_the_same_array_of_every_dtype(dtype, size):
    for shape in [(), (3,), (2, 1, 3), (0,), (3, 0, 2)]:
        samples = [np.full(shape, k % 2, dtype) for k in range(size)]
        assert_same(default_collate(samples), torch_collate(samples))
    scalars = [dtype.type(k % 2) for k in range(size)]
    if dtype == np.uint64:  # torch has no way to take such a scalar
        with pytest.raises(TypeError):
            torch_collate(scalars)
        scalars = [np.array(scalar) for scalar in scalars]
    assert_same(default_collate(scalars), torch_collate(scalars))


@pytest.mark.parametrize("name", SAME)
def test_the_same_batches_of_a_loader(name):
    if any(isinstance(sample, torch.Tensor) for sample in SAME[name]):
        samples = [{"t": sample} for sample in SAME[name]]
    else:
        samples = SAME[name]
    theirs = list(torch.utils.data.DataLoader(samples, 2))
    ours = list(DataLoader(samples, 2))
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert_same(mine, other)


# -- where torch is silently wrong: what it gives, what ours does -------------------------------


def test_keys_that_later_samples_add_are_dropped_there_and_an_error_here():
    samples = [{"a": 1}, {"a": 2, "b": 3}]
    assert list(torch_collate(samples)) == ["a"]
    with pytest.raises(ValueError, match=r"\['b'\].*sample 1.*missing in sample 0"):
        default_collate(samples)


def test_a_string_first_lets_anything_pass_there_and_is_an_error_here():
    samples = ["a", 1]
    assert torch_collate(samples) == ["a", 1]
    with pytest.raises(TypeError, match="str in sample 0, type int in sample 1"):
        default_collate(samples)


def test_an_int_before_a_float_makes_float32_there_and_float64_here():
    assert torch_collate([1, 2.1]).dtype == torch.float32
    assert_same(default_collate([1, 2.1]), torch_collate([1.0, 2.1]))


@pytest.mark.parametrize("kind", [np.int64, lambda value: np.array([value])])
def test_int64_beside_float32_is_rounded_there_and_exact_here(kind):
    small = np.float32(0.5) if kind is np.int64 else np.array([0.5], "f4")
    samples = [kind(2**40 + 1), small]
    assert torch_collate(samples).flatten()[0] == 2**40
    assert default_collate(samples).flatten().tolist() == [2**40 + 1, 0.5]


def test_a_large_int_beside_a_float_is_rounded_there_and_an_error_here():
    samples = [2**53 + 1, 0.5]
    assert torch_collate(samples)[0] == 2**53
    with pytest.raises(TypeError, match="int64 in sample 0, dtype float64 in sample 1"):
        default_collate(samples)


def test_counters_are_added_up_there_and_kept_here():
    samples = [collections.Counter(a=1), collections.Counter(a=2)]
    assert torch_collate(samples)["a"].tolist() == [2, 3]  # each had one more than it has
    assert default_collate(samples)["a"].tolist() == [1, 2]


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_byte_buffers_are_torn_into_numbers_there_and_bytes_here(kind):
    samples = [kind(b"ab"), kind(b"cd")]
    assert [column.tolist() for column in torch_collate(samples)] == [[97, 99], [98, 100]]
    assert default_collate(samples) == [b"ab", b"cd"]


@pytest.mark.parametrize(
    "samples",
    [[(1, 2), [3, 4]], [np.ones(2), [1.0, 1.0]], [[1.0, 1.0], np.ones(2)]],
    ids=["tuple and list", "array and list", "list and array"],
)
def test_containers_that_differ_take_the_firsts_there_and_are_an_error_here(samples):
    torch_collate(samples)
    with pytest.raises(TypeError, match="in sample 0, .* in sample 1"):
        default_collate(samples)


# -- what both refuse, and what only torch refuses ---------------------------------------------


@pytest.mark.parametrize(
    "samples",
    [
        [np.ones(2), np.ones(3)],
        [torch.ones(2), torch.ones(3)],
        [(1, 2), (3,)],
        [(3,), (1, 2)],
        [{"a": [1, 2]}, {"a": [1]}],
        [{"a": 1, "b": 2}, {"a": 1}],
        [1, "a"],
        [1, None],
        [2**63, 1],
        [None, None],
        [(1, None), (2, None)],
        [{1}, {2}],
        [decimal.Decimal(1)],
        [dt.date(2026, 1, 2)],
        [Shape.ROUND],
        [np.array([{}], object)],
        [torch.eye(2).to_sparse()],
        [],
    ],
    ids=repr,
)
def test_what_neither_can_collate(samples):
    with pytest.raises((RuntimeError, TypeError, ValueError, KeyError, IndexError)):
        torch_collate(samples)
    with pytest.raises((TypeError, ValueError), match="default_collate: "):
        default_collate(samples)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([1j, 2j], np.array([1j, 2j])),
        ([np.array(["a"]), np.array(["bc"])], np.array([["a"], ["bc"]])),
        ([np.datetime64(1, "s")] * 2, np.array([1, 1], "M8[s]")),
        ([np.array([1], "M8[s]")] * 2, np.array([[1], [1]], "M8[s]")),
        ([np.zeros(2, [("a", "i4")])] * 2, np.zeros((2, 2), [("a", "i4")])),
        ([np.arange(2, dtype=">f4")] * 2, np.array([[0, 1], [0, 1]], "f4")),
        ([np.arange(3)[::-1]] * 2, np.array([[2, 1, 0]] * 2)),
        ([torch.ones(2), np.ones(2, "f4")], np.ones((2, 2), "f4")),
        ([torch.tensor(1), 2], np.array([1, 2])),
        ([np.uint64(1), np.uint64(2**64 - 1)], np.array([1, 2**64 - 1], "u8")),
    ],
    ids=repr,
)
def test_what_only_ours_collates(samples, expected):
    with pytest.raises((TypeError, ValueError)):
        torch_collate(samples)
    batch = default_collate(samples)
    assert (batch.dtype, batch.shape) == (expected.dtype, expected.shape)
    assert batch.tobytes() == expected.tobytes()


def test_a_dataclass_is_collated_by_ours_only():
    with pytest.raises(TypeError, match="found <class"):
        torch_collate([Pair(1), Pair(2)])
    batch = default_collate([Pair(1), Pair(2)])
    assert type(batch) is Pair
    assert batch.a.tolist() == [1, 2]


# -- batch_size=None ---------------------------------------------------------------------------

CONVERTED = {
    "array": np.arange(3.0),
    "0-d array": np.array(5),
    "tensor": torch.arange(3),
    "numpy scalar": np.float32(1.5),
    "int": 7,
    "str": "a",
    "none": None,
    "tuple": (1, np.ones(2), "a"),
    "list": [1, np.ones(2)],
    "namedtuple": Point(np.ones(2), "a"),
    "dict": {"a": np.ones(2), "b": [np.zeros(1), "x"]},
    "OrderedDict": collections.OrderedDict(a=np.ones(2)),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_the_same_sample_without_batching(name):
    sample = CONVERTED[name]
    (theirs,) = torch.utils.data.DataLoader([sample], None)
    (ours,) = DataLoader([sample], None)
    assert type(ours) is (np.ndarray if isinstance(sample, torch.Tensor) else type(sample))
    assert_same(ours, theirs, unbatched=True)
    assert_same(ours, torch_convert(sample), unbatched=True)
