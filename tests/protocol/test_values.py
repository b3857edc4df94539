"""A value comes back equal and of the same type, or is refused by the name of its field."""

import collections
import dataclasses
import datetime as dt
import enum
import math
import pathlib
import struct
import sys
import threading
import types
from typing import NamedTuple

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.wire import MIB, round_trip
from tundish_client import register
from tundish_client._protocol.registry import build_object
from tundish_client._protocol.resolving import Ref
from tundish_client._protocol.values import (
    Deferred,
    encode_inline,
    encode_value,
    resolve,
    unpack,
)
from tundish_client.errors import ProtocolError


def same(a, b):
    """Equal in value and in type, with the bits of floats and arrays."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k, m) and same(a[k], b[m]) for k, m in zip(a, b, strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


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


def test_an_unknown_class_is_named_with_the_way_out():
    Unknown = collections.namedtuple("Unknown", "a b")
    with pytest.raises(TypeError, match=r"Unknown.*register\(Unknown\)"):
        round_trip({"x": Unknown(1, 2)})


def test_a_class_that_differs_is_named():
    where = (Point.__module__, Point.__qualname__)
    with pytest.raises(TypeError, match="is a dataclass in the server, but a namedtuple"):
        build_object("dataclass", *where, {"x": 1})
    with pytest.raises(TypeError, match="x, y"):
        build_object("namedtuple", *where, [1, 2, 3])
    with pytest.raises(TypeError, match="cannot build"):
        build_object("enum", Color.__module__, "Color", "GREEN")
    with pytest.raises(TypeError, match="derived, extra"):
        build_object("dataclass", Item.__module__, "Item", {"nope": 1})
    with pytest.raises(TypeError, match="namedtuples, dataclasses and Enums"):
        register(int)


class Text(str):
    __slots__ = ()


class Small(np.float64):
    pass


REFUSED = {
    "set": ({1}, "a set"),
    "frozenset": (frozenset((1,)), "a frozenset"),
    "path": (pathlib.PurePosixPath("/x"), r"pathlib.PurePosixPath.*str\(path\)"),
    "datetime": (dt.datetime(2026, 1, 1), "datetime.datetime.*isoformat"),
    "zoned": (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "datetime.datetime"),
    "date": (dt.date(2026, 1, 1), "datetime.date"),
    "object array": (np.array([None, 1]), "dtype object"),
    "object field": (np.zeros(1, [("a", "O")]), "object"),
    "raw void": (np.zeros(2, "V5"), "V5"),
    "no bytes": (np.zeros(2, [("a", "S0")]), "cannot be sent"),
    "masked": (np.ma.masked_array([1, 2], [0, 1]), "MaskedArray.*mask"),
    "matrix": (np.zeros((2, 2)).view(type("Sub", (np.ndarray,), {})), "numpy.asarray"),
    "recarray": (np.rec.array([(1, 2)], names="a,b"), "numpy.asarray"),
    "record": (np.rec.array([(1, 2)], names="a,b")[0], "numpy.record"),
    "str subclass": (Text("x"), r"Text.*str\(\.\.\.\)"),
    "scalar subclass": (Small(1), "Small"),
    "int subclass": (type("Int", (int,), {})(3), r"int\(\.\.\.\)"),
    "OrderedDict": (collections.OrderedDict(a=1), r"OrderedDict.*dict\(\.\.\.\)"),
    "defaultdict": (collections.defaultdict(int), "defaultdict"),
    "list subclass": (type("L", (list,), {})(), r"list\(\.\.\.\)"),
    "bytearray": (bytearray(b"x"), r"bytes\(\.\.\.\)"),
    "complex": (1j, "complex128"),
    "object": (object(), "an object"),
    "function": (len, "builtin_function"),
    "lock": (threading.Lock(), "lock"),
    "type": (int, "a type"),
    "range": (range(3), "a range"),
    "generator": ((i for i in ()), "a generator"),
    "namespace": (types.SimpleNamespace(a=1), "SimpleNamespace"),
    "surrogate": ("\ud800", "UTF-8"),
    "timestamp": (msgpack.Timestamp(1), "Timestamp"),
    "Enum class": (Color, "EnumType|EnumMeta"),
    "dataclass class": (Item, "a type"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_path_and_type(name):
    value, says = REFUSED[name]
    with pytest.raises(TypeError, match=says) as caught:
        encode_value(value)
    assert str(caught.value).startswith("value ")
    for wrapped, path in [
        ({"x": [1, value]}, r"value\['x'\]\[1\] "),
        ((1, {"y": Point(1, value)}), r"value\[1\]\['y'\]\.y "),
        ([Item("n", [value])], r"value\[0\]\.data\[0\] "),
        ([0] * 30 + [value], r"value\[30\] "),
    ]:
        with pytest.raises(TypeError, match=path):
            encode_value(wrapped)
    # The encoder is as good as new.
    assert same(round_trip({"a": [1, (2,)]}), {"a": [1, (2,)]})


def test_keys_are_refused_by_path():
    with pytest.raises(TypeError, match=r"the key frozenset\(.*\) of value\['a'\]"):
        encode_value({"a": {frozenset((1,)): 1}})
    with pytest.raises(TypeError, match="UTF-8"):
        encode_value({"a": {"\ud800": 1}})


def test_cycles_are_refused():
    cyclic = [1]
    cyclic.append({"again": cyclic})
    with pytest.raises(TypeError, match=r"value\[1\]\['again'\] is a list that contains itself"):
        encode_value(cyclic)
    table = {}
    table["t"] = (table,)
    with pytest.raises(TypeError, match="contains itself"):
        encode_value(table)


def test_the_depth_limit():
    def nest(n, wrap):
        value = 1
        for _ in range(n):
            value = wrap(value)
        return value

    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {(1,): v}):
        deepest = 63 if type(wrap(1)) is dict and "a" not in wrap(1) else 64
        assert same(round_trip(nest(deepest, wrap)), nest(deepest, wrap))
        with pytest.raises(TypeError, match="nested deeper than 64 levels"):
            encode_value(nest(66, wrap))
        with pytest.raises(TypeError, match="nested deeper than 64 levels"):
            encode_value(nest(100_000, wrap))


def test_shared_parts_are_no_cycle():
    part = [np.arange(3)]
    got = round_trip([part, part, {"a": part}])
    assert all(same(p, part) for p in (got[0], got[1], got[2]["a"]))


def test_torch_tensors_are_refused_with_the_way_out(monkeypatch):
    class Tensor:
        pass

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor))
    with pytest.raises(TypeError, match=r"value\['x'\].*Tensor.*numpy\(\).*from_numpy"):
        encode_value({"x": Tensor()})


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


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 10_000), st.integers(1, 255), st.booleans())
def test_a_damaged_value_is_refused_or_another_value(at, change, in_body):
    encoded = encode_value(
        {"x": np.arange(6.0), "s": ["é"] * 20, "l": "y" * 1100, (1, 2): (2**70, np.int8(1))}
    )
    body = np.zeros(encoded.nbytes, np.uint8)
    encoded.write_into(body)
    packed = bytearray(encoded.packed)
    if in_body:
        body[at % len(body)] ^= change
    else:
        packed[at % len(packed)] ^= change
    try:
        tree = unpack(bytes(packed))
    except (ValueError, TypeError, ArithmeticError):
        return
    try:
        resolve(tree, body)
    except (ProtocolError, TypeError):
        pass


def ext(code, *payload):
    return unpack(msgpack.packb(msgpack.ExtType(code, msgpack.packb(payload))))


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (ext(1, "<f8", [2], 64, 16), "bytes 64 to 80 has a body of 64 bytes"),
        (ext(1, "<f8", [2], 0, 17), "claims 17 bytes"),
        (ext(1, "<f8", [9], 0, 72), "bytes 0 to 72"),
        (ext(1, "<f8", [2**62, 2**62], 0, 8), "claims"),
        (ext(1, "<f8", [2**62, 0], 0, 0), "shape|array"),
        (ext(1, "<f8", [-1], 0, 8), "shape"),
        (ext(1, "<f8", [True], 0, 8), "shape"),
        (ext(1, "<f8", 1, 0, 8), "shape"),
        (ext(1, "<f8", [1], -64, 8), "shape"),
        (ext(1, "<f8", [1], 8, 8), "multiple of 64"),
        (ext(1, "<f8", [1] * 65, 0, 8), "shape"),
        (ext(1, "<f8", [1], 0), "4 elements"),
        (ext(2), None),
        (Ref(1, b"\xc1"), "not msgpack"),
        (Ref(2, b"\xc1"), "not msgpack"),
        (Ref(2, b"\xc0"), "array"),
        (Ref(99, b""), "extension type 99"),
        (ext(4, "<f8", b"1234567"), "7 bytes"),
        (ext(4, "<f8", "x"), "bytes"),
        (ext(4, "str", b"\xff"), "UTF-8"),
        (ext(5, "str", 2**61, 0, 0, 0), "body of 64 bytes"),
        (ext(5, "str", 1, 0, 0, 9), "offsets"),
        (ext(5, "list", 1, 0, 0, 0), "column"),
        (ext(5, "str", 1, 4, 0, 0), "column"),
        (ext(5, "str", 1.5, 0, 0, 0), "column"),
        (ext(6, "enum", 1, 2, 3), "class"),
        (ext(7, "str", 0, 65), "body of 64 bytes"),
        (ext(7, "blob", 0, 1), "long str"),
        (msgpack.Timestamp(1), "not allowed"),
        ({ext(2, [1]): 1}, "key"),
    ],
    ids=str,
)
def test_false_references_are_protocol_errors(tree, says):
    body = np.zeros(64, np.uint8)
    if says is None:
        assert resolve(tree, body) == ()
        return
    with pytest.raises(ProtocolError, match=says):
        resolve(tree, body)
    with pytest.raises(ProtocolError):
        resolve(tree, None)


@pytest.mark.parametrize(
    "wire",
    [
        "|O", "O8", "<V5", "f4", ">f4", "<f3", "<i4,<f4", "|S0", "<U-1", "<M8[xx]", "",
        "float32", None, 7, [], ["struct", 0, []], ["struct", 4, [["a", "<f8", 0, []]]],
        ["struct", 8, [["a", "<f8", 1, []]]], ["struct", 8, [["a", "<f8", 0, [2]]]],
        ["struct", 8, [["a", "|O", 0, []]]],
        ["struct", 8, [["a", "<f4", 0, []], ["a", "<f4", 4, []]]], ["struct", 8, [["a", "<f8", 0]]],
        ["struct", 8, [["a", "<f8", -8, []]]],
    ],
    ids=str,
)  # fmt: skip
def test_dtypes_outside_the_list_are_refused(wire):
    with pytest.raises(TypeError, match="dtype"):
        resolve(ext(1, wire, [1], 0, 8), np.zeros(64, np.uint8))


def test_zero_size_references_need_no_body():
    assert resolve(ext(1, "<f4", [0, 3], 0, 0)).shape == (0, 3)
    assert resolve(ext(1, "<f4", [0, 3], 64, 0), np.zeros(64, np.uint8)).shape == (0, 3)


def test_a_deep_tree_from_a_peer_is_a_protocol_error():
    tree = unpack(b"\x91" * 500 + b"\xc0")
    with pytest.raises(ProtocolError, match="deeper"):
        resolve(tree)
    packed = b"\xc0"
    for _ in range(200):
        packed = msgpack.packb(msgpack.ExtType(2, b"\x91" + packed))
    with pytest.raises(ProtocolError, match="deeper"):
        resolve(unpack(packed))


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
