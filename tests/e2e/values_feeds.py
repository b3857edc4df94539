"""What tests/e2e/test_values.py serves and imports: values, and what must become of them."""

import collections
import dataclasses
import datetime as dt
import enum
import math
import pathlib
import struct
from typing import NamedTuple

import ml_dtypes
import numpy as np

from tundish import DataLoader
from tundish_client import register

FOLDER = pathlib.Path(__file__).parent


@register
class Pair(NamedTuple):
    x: object
    y: object


@register
@dataclasses.dataclass
class Item:
    name: str
    number: int = 3


@register
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: object
    y: object = dataclasses.field(init=False, default=2.5)


@register
class Color(enum.Enum):
    RED = 1


@register
class Level(enum.IntEnum):
    HIGH = 7


@register
class Bits(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class Stranger:
    x: int


def nan(bits):
    return struct.unpack("d", struct.pack("Q", bits))[0]


# -- B32: values that travel as they are
PLAIN = [
    -(2**63),
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    2**70,
    -(2**70),
    True,
    False,
    1,
    0,
    -0.0,
    0.0,
    nan(0x7FF800000000BEEF),
    nan(0xFFF4000000000001),
    math.inf,
    -math.inf,
    5e-324,
    None,
    "",
    b"",
    "日本",
    "a\0b",
    b"\xff\0",
    "é" * 3000,
    b"x" * 3000,
    (1, 2),
    (),
    [],
    {},
    [()],
    ((), [{}]),
    {1: "x"},
    {(1, 2): 3},
    {None: 1},
    {1: 1, "1": 2, b"1": 3},
    {(1, (2, None)): [(1,)]},
    {2**70: 1},
    {-1.5: 1, True: 2},
    [1, "a", None, 2.5, True],
    ["a"] * 40,
    [b"a", b""] * 20,
    ("x",) * 20,
    np.float32(1.5),
    np.float64(-0.0),
    np.int64(3),
    np.uint64(2**64 - 1),
    np.bool_(True),
    np.complex64(1 - 2j),
    np.str_("é"),
    np.bytes_(b"b"),
    np.datetime64("NaT"),
    np.datetime64("2026-01-01", "ns"),
    np.timedelta64(5, "25s"),
    ml_dtypes.bfloat16(1.5),
    Pair(1, (2, "a")),
    Item("n"),
    Frozen((1, 2)),
    Color.RED,
    Level.HIGH,
    Bits.A | Bits.B,
    {Pair(1, 2): Color.RED},
    [Item("a", 1), Item("b", 2)],
    {Frozen(1): Level.HIGH},
]

# -- B32: values that don't
REFUSED = {
    "set": {1},
    "frozenset": frozenset((1,)),
    "PosixPath": pathlib.Path("/x"),
    "datetime": dt.datetime(2026, 1, 1),
    "datetime.datetime": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "complex": 1j,
    "OrderedDict": collections.OrderedDict(a=1),
    "bytearray": bytearray(b"x"),
    "range": range(3),
    "object": object(),
    "dtype object": np.array([None]),
    "MaskedArray": np.ma.masked_array([1], [0]),
    "UTF-8": "\ud800",
}

# -- B33: layouts
BASE = np.arange(24.0).reshape(2, 3, 4)
for name, array in (("c", BASE), ("fortran", np.asfortranarray(BASE[0]))):
    if not (FOLDER / f"{name}.npy").exists():  # it may be mapped by the service already
        np.save(FOLDER / f"{name}.npy", array)
READ_ONLY = np.arange(5)
READ_ONLY.flags.writeable = False
LAYOUTS = {
    "fortran": np.asfortranarray(BASE[0, :2]),
    "reversed": np.arange(10)[::-1],
    "negative stride on a length of 1": np.zeros((1, 10, 20))[::-1],
    "every second": BASE[0][:, ::2],
    "transposed": BASE.T,
    "broadcast": np.broadcast_to(np.float32(1.5), (3, 4)),
    "0-d": np.array(3.5),
    "0": np.empty((0,)),
    "0 by 4": np.empty((0, 4), "u1"),
    "3 by 0 by 2": np.empty((3, 0, 2), "i2"),
    "read only": READ_ONLY,
    "mapped": np.load(FOLDER / "c.npy", mmap_mode="r"),
    "mapped, Fortran": np.load(FOLDER / "fortran.npy", mmap_mode="r"),
    "loaded, Fortran": np.load(FOLDER / "fortran.npy"),
    "big endian": np.arange(6, dtype=">i2").reshape(2, 3),
    "33 MB": np.arange(33 * 2**18, dtype=np.float32),
}


# -- B34: dtypes, each with its extremes
def extremes(code):
    dtype = np.dtype(code)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([info.min, info.max, 0, 1], dtype)
    if dtype.kind == "c":
        return np.array([complex(-0.0, math.inf), complex(1, -0.0), complex(math.nan, 5)], code)
    if dtype.kind == "f":
        info = np.finfo(dtype)
        size = dtype.itemsize
        odd = np.array([2 ** (info.bits - 1) - 3], f"u{size}").view(f"f{size}")
        rest = np.array([info.max, info.min, info.tiny, -0.0, 0.0, math.inf], f"f{size}")
        return np.concatenate([odd, rest, -rest]).astype(dtype)
    return np.array([True, False])


CODES = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]
CODES += [">f4", ">i2", ">u8", ">c8"]
DTYPES = {code: extremes(code) for code in CODES}
for small in ("bfloat16", "float8_e5m2", "float8_e4m3fn"):
    DTYPES[small] = np.arange(256, dtype="u1").view(getattr(ml_dtypes, small))
DTYPES["M8[ns]"] = np.array(["NaT", "2026-01-01", "1677-09-22"], "M8[ns]")
DTYPES["m8[D]"] = np.array(["NaT", -5, 2**62], "m8[D]")
DTYPES["S5"] = np.array([b"", b"abcde", b"a\0b"], "S5")
DTYPES["U3"] = np.array(["", "日本", "a\0b"], "U3")
DTYPES["structure"] = np.array(
    [(255, (-0.0, 1.5)), (0, (math.inf, 5e-324))],
    np.dtype([("a", "u1"), ("b", ">f8", (2,))], align=True),
)

# -- B34 and B39: two samples that differ, and what must be said of those that may not
f4, u1, i8, f8 = np.float32, np.uint8, np.int64, np.float64
MIXED = [
    ([u1(255), f4(0.5)], np.array([255, 0.5], "f4")),
    ([i8(1), f8(0.5)], np.array([1, 0.5])),
    ([True, 2], np.array([1, 2])),
    ([f4(0.1), f4(0.2)], np.array([0.1, 0.2], "f4")),
    ([i8(2**53 + 1), f8(0.5)], ["int64", "float64"]),
    ([{"x": 1}, {"x": 2, "y": 3}], ["['y']", "missing in dataset[", "present in dataset["]),
    ([{"x": 1, "y": 3}, {"x": 2}], ["['y']", "missing in dataset[", "present in dataset["]),
    ([[1, 2], [3]], ["length 2", "length 1"]),
    ([1, None], ["int", "NoneType"]),
    ([{"x": (0, None)}, {"x": (0, None)}], ["['x'][1]", "NoneType", "leave the key out"]),
    ([np.zeros((3, 4)), np.zeros((1, 4))], ["shape (3, 4)", "shape (1, 4)"]),
    (["ab", 3], ["str", "int"]),
    ([b"abc", b"AB"], [b"abc", b"AB"]),
    ([["a", "b"], ["c", "d"]], [["a", "c"], ["b", "d"]]),
    ([{}, {}], {}),
    ([Frozen(1), Frozen(2)], Frozen(np.array([1, 2]))),
    ([Pair(1, "a"), Pair(2, "b")], Pair(np.array([1, 2]), ["a", "b"])),
]
object.__setattr__(MIXED[-2][1], "y", np.array([2.5, 2.5]))

FIELDS = {
    "plain": [{"a": value} for value in PLAIN],
    "refused": [{"a": [0, value]} for value in REFUSED.values()],
    "stranger": [{"a": 1}, {"a": Stranger(1)}, {"a": 2}],
    "layouts": [{"a": array} for array in LAYOUTS.values()],
    "dtypes": [{"a": array, "s": array[0]} for array in DTYPES.values()],
}
PAIRS = {
    "layouts": [{"a": array} for array in LAYOUTS.values() for _ in range(2)],
    "dtypes": [sample for sample in FIELDS["dtypes"] for _ in range(2)],
    "mixed": [sample for samples, _ in MIXED for sample in samples],
}


# -- B37
class Big:
    sizes = (99, 101, 160)

    def __len__(self):
        return len(self.sizes) + 1

    def __getitem__(self, k):
        if k == len(self.sizes):
            return [str(n) for n in range(100_000)]
        return np.full(self.sizes[k] << 17, k)


feeds = {"big": DataLoader(Big(), collate_fn=list)}
for workers in (0, 4):
    for name, samples in FIELDS.items():
        feeds[f"{name} listed {workers}"] = DataLoader(
            samples, 1, collate_fn=list, num_workers=workers
        )
        feeds[f"{name} {workers}"] = DataLoader(samples, 1, num_workers=workers)
    for name, samples in PAIRS.items():
        feeds[f"{name} in pairs {workers}"] = DataLoader(samples, 2, num_workers=workers)
