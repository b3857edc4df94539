"""The closed list of element types, as they are named on the wire.

`"<f4"`, `"|b1"`, `"<M8[ns]"`, `"|S5"`, `"<U5"`: numpy's own names, always little endian.
`"bfloat16"`, `"float8_e5m2"` ...: the names of ml_dtypes, if that is installed.
`["struct", itemsize, [[name, dtype, offset, shape], ...]]`: structured types.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

__all__ = ["SMALL_FLOATS", "Dtype", "dtype_from_wire", "dtype_to_wire", "native"]

Dtype = np.dtype[Any]

SMALL_FLOATS = (
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
"""The types of ml_dtypes that may be sent."""

_KINDS = "biufcMmSU"
_WIRE = re.compile(
    r"\|b1|[|<][iu]1|<[iu][248]|<f(?:2|4|8|12|16)|<c(?:8|16|24|32)"
    r"|<[Mm]8(?:\[[0-9]{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?|\|S[1-9][0-9]{0,8}|<U[1-9][0-9]{0,8}"
)
_MAX_FIELDS = 1024
_MAX_NESTING = 8

# Both directions are looked up for every array; dtypes are few.
_to_wire: dict[Dtype, Any] = {}
_from_wire: dict[str, Dtype] = {}
_CACHED = 512


def native(dtype: Dtype) -> Dtype:
    """The same type in the byte order of this machine."""
    # Not only where `isnative` says no: it overlooks subarrays in structures.
    if dtype.isnative and dtype.names is None:
        return dtype
    return dtype.newbyteorder("=")


def dtype_to_wire(dtype: Dtype) -> Any:
    """Names a dtype; its byte order is left out (data are always sent little endian).

    Raises:
        TypeError: The dtype is not on the list.
    """
    try:
        return _to_wire[dtype]
    except KeyError:
        pass
    wire = _name(native(dtype))
    if len(_to_wire) >= _CACHED:
        _to_wire.clear()
    _to_wire[dtype] = wire
    return wire


def _name(dtype: Dtype) -> Any:
    if dtype.type.__module__.partition(".")[0] == "ml_dtypes":
        if dtype.name in SMALL_FLOATS:
            return str(dtype.name)
    elif dtype.names is not None:
        return _struct_name(dtype)
    elif dtype.kind in _KINDS and _WIRE.fullmatch(dtype.str):
        return dtype.str
    raise TypeError(f"dtype {dtype} cannot be sent{_way_out(dtype)}")


def _way_out(dtype: Dtype) -> str:
    if dtype.kind == "O":
        return " (an array of Python objects; make it a list, or give it a numeric dtype)"
    if dtype.kind == "T":
        return " (use a list of str, or a dtype like '<U16')"
    if dtype.itemsize == 0:
        return " (its elements have no bytes)"
    return ""


def _struct_name(dtype: Dtype) -> list[Any]:
    fields = []
    entries: Any = dtype.fields or {}
    if dtype.itemsize == 0 or len(entries) > _MAX_FIELDS:
        raise TypeError(f"dtype {dtype} cannot be sent (no bytes, or too many fields)")
    for name in dtype.names or ():
        entry = entries[name]
        if len(entry) > 2:
            raise TypeError(f"dtype {dtype} cannot be sent (field {name!r} has a title)")
        base, shape = entry[0].subdtype or (entry[0], ())
        fields.append([name, _name(base), entry[1], list(shape)])
    return ["struct", dtype.itemsize, fields]


def dtype_from_wire(wire: Any) -> Dtype:
    """Finds the dtype for a name from the wire.

    Raises:
        TypeError: The name is not on the list, or this process lacks the type.
    """
    if type(wire) is str:
        found = _from_wire.get(wire)
        if found is None:
            found = _named(wire)
            if len(_from_wire) >= _CACHED:
                _from_wire.clear()
            _from_wire[wire] = found
        return found
    return _struct(wire, 0)


def _named(wire: str) -> Dtype:
    if wire in SMALL_FLOATS:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(f"dtype {wire} needs the package ml_dtypes, not installed") from None
        try:
            small: Dtype = np.dtype(getattr(ml_dtypes, wire))
        except AttributeError:
            raise TypeError(f"dtype {wire} is unknown to this version of ml_dtypes") from None
        return small
    if _WIRE.fullmatch(wire) is None:
        raise TypeError(f"dtype {wire!r:.40} is not one that may be sent")
    return np.dtype(wire)


def _struct(wire: Any, nesting: int) -> Dtype:
    """Builds a structured dtype, after checking that all fields lie within its size."""
    if not _is_struct(wire) or nesting > _MAX_NESTING:
        raise TypeError(f"dtype {wire!r:.80} is not one that may be sent")
    _, itemsize, fields = wire
    names, formats, offsets = [], [], []
    for name, base, offset, shape in fields:
        dtype = dtype_from_wire(base) if type(base) is str else _struct(base, nesting + 1)
        size = dtype.itemsize
        for n in shape:
            size *= n
        if offset < 0 or offset + size > itemsize:
            raise TypeError(f"dtype {wire!r:.80} has a field {name!r} outside of it")
        names.append(name)
        formats.append((dtype, tuple(shape)) if shape else dtype)
        offsets.append(offset)
    try:
        return np.dtype(
            {"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize}
        )
    except ValueError as error:
        raise TypeError(f"dtype {wire!r:.80} is not one that may be sent ({error})") from None


def _is_struct(wire: Any) -> bool:
    return (
        type(wire) is list
        and len(wire) == 3
        and wire[0] == "struct"
        and type(wire[1]) is int
        and 0 < wire[1] < 2**31
        and type(wire[2]) is list
        and len(wire[2]) <= _MAX_FIELDS
        and all(map(_is_field, wire[2]))
    )


def _is_field(field: Any) -> bool:
    return (
        type(field) is list
        and len(field) == 4
        and type(field[0]) is str
        and type(field[2]) is int
        and type(field[3]) is list
        and len(field[3]) <= 32
        and all(type(n) is int and 0 <= n < 2**31 for n in field[3])
    )
