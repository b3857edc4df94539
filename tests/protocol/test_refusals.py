"""What cannot be sent, or cannot be true, is refused by name, and nothing else suffers."""

import collections
import dataclasses
import datetime as dt
import enum
import pathlib
import sys
import threading
import types
from typing import NamedTuple

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.wire import round_trip, same
from tundish_client import register
from tundish_client._protocol.registry import build_object
from tundish_client._protocol.resolving import Ref
from tundish_client._protocol.values import encode_value, resolve, unpack
from tundish_client.errors import ProtocolError


@register
class Point(NamedTuple):
    x: object
    y: object


@register
@dataclasses.dataclass
class Item:
    name: str
    data: object
    derived: int = dataclasses.field(init=False, default=0)


@register
class Color(enum.Enum):
    RED = 1


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
    with pytest.raises(TypeError, match="data, derived, name"):
        build_object("dataclass", Item.__module__, "Item", {"nope": 1})
    for other in (int, Table, Failure):
        with pytest.raises(TypeError, match="namedtuples, dataclasses and Enums"):
            register(other)


class Text(str):
    __slots__ = ()


class Small(np.float64):
    pass


@dataclasses.dataclass
class Table(dict):
    x: int = 0


@dataclasses.dataclass
class Failure(Exception):
    x: int = 0


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
    "dict dataclass": (Table(3), r"Table.*dict\(\.\.\.\)"),
    "exception dataclass": (Failure(3), "Failure"),
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


def test_a_key_without_a_text_is_still_a_type_error():
    class Key:
        def __repr__(self):
            raise RuntimeError("no text")

    with pytest.raises(TypeError, match="value of type dict cannot be sent: Key"):
        encode_value({Key(): 1})


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


def test_torch_tensors_are_refused_with_the_way_out(monkeypatch):
    class Tensor:
        pass

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor))
    with pytest.raises(TypeError, match=r"value\['x'\].*Tensor.*numpy\(\).*from_numpy"):
        encode_value({"x": Tensor()})


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
