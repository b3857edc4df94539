"""A value comes back equal and of the same type, or is refused by the name of its field."""

import dataclasses
import enum
import math
import struct
import sys
import threading
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.wire import MIB, round_trip, same
from tundish_client import register
from tundish_client._protocol.values import (
    Deferred,
    encode_inline,
    encode_value,
    resolve,
    unpack,
)

SCALARS = [
    -(2**63), 2**63, 2**64 - 1, 2**64, 2**70, -(2**63) - 1, -(2**70), 255, -256, 2**1000,
    True, False, 0, 1, -0.0, 0.0, 1.5, math.inf, -math.inf, 5e-324, None, "", b"", "日本", "a\0b",
    struct.unpack("d", struct.pack("Q", 0x7FF800000000BEEF))[0],
    struct.unpack("d", struct.pack("Q", 0xFFF4000000000001))[0],
]  # fmt: skip
CONTAINERS = [
    (1, 2), (), [], {}, {1: "x"}, {(1, 2): 3}, {None: 1}, {b"k": 1}, {1.5: 2}, {True: 1}, {-0.0: 1},
    {2**70: 1}, {np.float32(1.5): 1}, {np.int64(3): 1, "a": 2}, {(1, (2, None), "x"): [()]},
    [[1, [2, [3]]]], [(1,), [1], {"a": (1,)}], {"a": {"b": ({"c": [None]},)}},
    [1, "a", 2.5, None, True, b"x"], {"a" * 2000: "b" * 2000},
]  # fmt: skip
TEXTS = [
    ["a"] * 15, ["a"] * 16, ["", "é", "日本", "x"] * 10, [b"", b"a", b"\xff"] * 10, [""] * 16,
    [b""] * 20, "x" * 1023, "x" * 1024, "é" * 5000, b"\0" * 1024, b"\xff" * 100_000,
    ["s"] * 15 + [1], ("a",) * 20, (b"a",) * 20, ["a"] * 15 + [b"a"], ["x" * 2000] * 3,
    {("k",) * 20: 1}, {"x" * 2000: 1, 2: "y" * 1024},
]  # fmt: skip


@pytest.mark.parametrize("value", [*SCALARS, *CONTAINERS, *TEXTS], ids=lambda v: repr(v)[:30])
def test_plain_values(value):
    for wrapped in (value, {"a": value}, [value, value], (value,), [[value] * 20]):
        assert same(round_trip(wrapped), wrapped)


def test_numpy_texts_keep_the_zeros_at_their_end():
    for text in (np.str_("a\0"), np.str_("\0"), np.bytes_(b"a\0\0")):
        got = round_trip([text])[0]
        assert type(got) is type(text)
        assert got == text
        assert len(got) == len(text)


DTYPES = [
    "?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "g", "c8", "c16",
    "M8[ns]", "M8[D]", "M8[25s]", "m8[us]", "m8[W]", "M8", "m8", "S5", "U5",
    [("a", "f4"), ("b", "i8")],
    {"names": ["a", "b"], "formats": ["u1", ("f8", (2, 3))], "offsets": [1, 8], "itemsize": 64},
    [("in", [("x", "M8[s]"), ("y", "S3")]), ("z", "?")],
]  # fmt: skip


def sample_array(dtype, shape=(3, 4), seed=0):
    dtype = np.dtype(dtype)
    n = math.prod(shape) * dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8)
    if dtype.kind == "b":
        raw &= 1
    if dtype.kind == "U":
        raw.view("u4")[:] %= 0xD000
    if dtype.kind == "g" or dtype == np.longdouble:
        return np.arange(math.prod(shape), dtype=dtype).reshape(shape) / 3
    array = np.empty(shape, dtype)
    array.view(np.void).reshape(-1).view(np.uint8)[:] = raw if dtype.names is None else raw & 1
    return array


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_and_scalars_bit_exact(dtype):
    array = sample_array(dtype)
    got = round_trip({"x": array, "s": array[0, 1], "l": [array[0], array[1]]})
    assert got["x"].dtype == array.dtype
    assert got["x"].shape == array.shape
    assert type(got["s"]) is type(array[0, 1])
    if array.dtype.names is None and array.dtype.char != "g":  # its last 6 bytes mean nothing
        assert got["x"].tobytes() == array.tobytes()
        assert same(got["s"], array[0, 1])
    else:
        assert (got["x"] == array).all()
        assert got["s"] == array[0, 1]
        assert got["s"].dtype == array.dtype
    assert got["l"][1].shape == (4,)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_special_floats_keep_their_bits(kind):
    info = np.finfo(kind)
    nan = np.array([2 ** (info.bits - 1) - 3], f"u{info.bits // 8}").view(kind)
    array = np.concatenate([nan, np.array([info.max, info.tiny, -0.0, math.inf, -math.inf], kind)])
    assert same(round_trip(array), array)
    for scalar in array:
        assert same(round_trip(scalar), scalar)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu"])
def test_small_floats(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(256, dtype=np.uint8).view(np.dtype(getattr(ml_dtypes, name)))
    assert same(round_trip(array), array)
    assert same(round_trip(array[2:4].reshape(1, 2)), array[2:4].reshape(1, 2))
    assert same(round_trip(array[7]), array[7])


def test_a_small_float_without_ml_dtypes_is_the_batchs_error(monkeypatch):
    from tundish_client._protocol import dtypes

    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setattr(dtypes, "_from_wire", {})
    with pytest.raises(TypeError, match="bfloat16 needs the package ml_dtypes"):
        dtypes.dtype_from_wire("bfloat16")


BASE = np.arange(24.0).reshape(2, 3, 4)
LAYOUTS = {
    "fortran": np.asfortranarray(BASE[0]),
    "reversed": BASE[:, ::-1],
    "negative stride on a length of 1": np.zeros((1, 10, 20))[::-1],
    "every other column": BASE[:, :, ::2],
    "transposed": BASE.T,
    "broadcast": np.broadcast_to(np.float32(3), (5, 4)),
    "broadcast row": np.broadcast_to(np.arange(4), (5, 4)),
    "0-d": np.array(3.5),
    "empty": np.empty((0,)),
    "empty rows": np.empty((0, 4), "u1"),
    "empty middle": np.empty((3, 0, 2), "i2"),
    "big endian float": np.arange(5, dtype=">f4"),
    "big endian int": np.arange(6, dtype=">i2").reshape(2, 3).T,
    "big endian date": np.arange(5).astype(">M8[s]"),
    "big endian str": np.array(["a", "日本"], ">U3"),
    "big endian structure": np.array([(1, 2.5), (3, 4.5)], [("a", ">i4"), ("b", ">f8")]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    array = LAYOUTS[name]
    read_only = array.view()
    read_only.flags.writeable = False
    got = round_trip({"x": array, "y": [read_only]})
    for copy in (got["x"], got["y"][0]):
        assert np.array_equal(copy, array)
        assert copy.shape == array.shape
        assert copy.dtype == array.dtype.newbyteorder("=")
        assert copy.flags.c_contiguous
        assert all(stride >= 0 for stride in copy.strides)
        assert copy.flags.writeable
        assert copy.ctypes.data % min(64, copy.dtype.itemsize & -copy.dtype.itemsize) == 0


def test_memmaps_arrive_as_arrays(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(BASE[0]))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert type(mapped) is np.memmap
    got = round_trip(mapped)
    assert type(got) is np.ndarray
    assert np.array_equal(got, mapped)


def test_holes_of_structures_and_gaps_carry_nothing():
    dtype = np.dtype({"names": ["a"], "formats": ["u1"], "offsets": [3], "itemsize": 7})
    array = np.zeros(3, dtype)
    array.view("u1")[:] = 0xEE
    encoded = encode_value([array, np.ones(3, "u1"), "é" * 1000])
    body = np.full(encoded.nbytes, 0xEE, np.uint8)
    encoded.write_into(body)
    assert bytes(body[:64]) == (b"\0\0\0\xee\0\0\0" * 3).ljust(64, b"\0")
    assert bytes(body[64:128]) == b"\1\1\1".ljust(64, b"\0")
    assert len(body) % 64 == 0
    assert not body[128 + 2000 :].any()


class Counted(Deferred):
    __slots__ = ("calls",)

    def __init__(self):
        self.dtype, self.shape, self.calls = np.dtype("f4"), (2, 3), 0

    def write(self, out):
        self.calls += 1
        assert out.flags.c_contiguous
        out[...] = 7


def test_deferred_arrays_are_written_once_in_place():
    value = Counted()
    assert same(round_trip({"x": value})["x"], np.full((2, 3), 7, "f4"))
    assert value.calls == 1
    assert same(value.materialize(), np.full((2, 3), 7, "f4"))


@register
class Point(NamedTuple):
    x: object
    y: object


@register
@dataclasses.dataclass
class Item:
    name: str
    data: object
    extra: list = dataclasses.field(default_factory=list)
    derived: int = dataclasses.field(init=False, default=0)


@register
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: object = None


@register
class Color(enum.Enum):
    RED = 1
    BLUE = "b"


@register
class Level(enum.IntEnum):
    LOW = 1


@register
class Bits(enum.Flag):
    A = 1
    B = 2


@pytest.mark.parametrize(
    "value",
    [
        Point(1, (2, [3])), Frozen(1, (2,)), Color.RED, Color.BLUE, Level.LOW, Bits.A | Bits.B,
        Bits(0),
        {Point(1, 2): Color.RED, Frozen(1): Level.LOW}, [Point("a", "b")] * 20, (Point(1, 2),),
        Item("n", {"k": (1, 2)}), Item("n", Item("m", None, ["z"] * 20)),
    ],
    ids=lambda v: repr(v)[:40],
)  # fmt: skip
def test_registered_classes(value):
    assert same(round_trip(value), value)
    assert same(round_trip({"a": [value]}), {"a": [value]})


def test_registered_classes_hold_arrays():
    item = Item("n", np.arange(4), ["x" * 2000])
    item.derived = 9
    got = round_trip([item, Point(np.arange(3), None)])
    assert same(got[0].data, item.data)
    assert (got[0].name, got[0].extra, got[0].derived) == ("n", ["x" * 2000], 9)
    assert same(got[1].x, np.arange(3))


def test_shared_parts_are_no_cycle():
    part = [np.arange(3)]
    got = round_trip([part, part, {"a": part}])
    assert all(same(p, part) for p in (got[0], got[1], got[2]["a"]))


def test_views_keep_the_body_alive():
    got = round_trip({"x": np.arange(1000), "y": np.arange(5.0)})
    x = got["x"]
    del got
    junk = [bytearray(b"\xff" * 9000) for _ in range(50)]
    assert same(x, np.arange(1000))
    assert x.base is not None
    del junk


def test_a_hundred_thousand_strings_make_a_small_head():
    value = [f"sample {i}" for i in range(100_000)]
    encoded = encode_value({"names": value})
    assert len(encoded.packed) < 100
    assert round_trip({"names": value}) == {"names": value}


def test_large_arrays():
    array = np.random.default_rng(0).integers(0, 256, 33 * MIB, dtype=np.uint8)
    assert np.array_equal(round_trip(array), array)


KEYS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
LEAVES = KEYS | st.sampled_from([np.float32(1.5), np.int8(-1), np.bool_(True), np.str_("é")])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS | st.tuples(KEYS, KEYS), inner)
        | st.lists(st.text(), min_size=16)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=30,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200)
@given(VALUES)
def test_any_value(value):
    assert same(round_trip(value), value)


def test_write_into_checks_the_size():
    encoded = encode_value(np.arange(100))
    with pytest.raises(ValueError, match="832 are needed"):
        encoded.write_into(np.zeros(831, np.uint8))


def test_inline_values_have_no_body():
    value = {"a": ["x"] * 40, "b": "y" * 5000, "c": (2**70, np.float32(1))}
    assert same(resolve(unpack(encode_inline(value))), value)
    with pytest.raises(TypeError, match="value"):
        encode_inline({"a": np.arange(3)})


def test_encoding_holds_no_array_afterwards():
    array = np.arange(10)
    before = sys.getrefcount(array)
    encode_value({"x": array})
    assert sys.getrefcount(array) == before


def test_threads_encode_side_by_side():
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            value = {"x": rng.random((3, int(rng.integers(1, 9)))), "t": (seed, [2**70] * 3)}
            if not same(round_trip(value), value):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_big_endian_fields_of_a_structured_scalar_keep_their_values():
    scalar = np.array([(1, 2.5, (3, 4))], [("a", ">i2"), ("b", ">f8"), ("c", ">u4", (2,))])[0]
    got = round_trip({"s": scalar})["s"]
    assert got.dtype == np.dtype([("a", "<i2"), ("b", "<f8"), ("c", "<u4", (2,))])
    assert (got["a"], got["b"], got["c"].tolist()) == (1, 2.5, [3, 4])


def test_big_endian_subarrays_of_a_structure_keep_their_values():
    # numpy calls this dtype native, although its subarray isn't.
    array = np.zeros(3, [("a", "u1"), ("b", ">f8", (2,))])
    array["b"] = 5
    encoded = encode_value({"s": array})
    body = np.zeros(encoded.nbytes, np.uint8)
    encoded.write_into(body)
    got = resolve(unpack(encoded.packed), body)["s"]
    assert got.dtype == np.dtype([("a", "u1"), ("b", "<f8", (2,))])
    assert np.array_equal(got["b"], array["b"])
