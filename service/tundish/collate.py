"""Samples to batches: the default collate.

The rules are PyTorch's, on numpy arrays, and the same for every batch size (1 included):

==================================  =====================================================
samples                             batch
==================================  =====================================================
arrays, CPU tensors of one shape    one array with a new first axis, native byte order
numpy scalars                       one array of their dtype
``int``, ``float``, ``complex``     int64, float64, complex128
``bool``                            bool
``str``, ``bytes``                  the list of them
``bytearray``, ``memoryview``       the list of them as ``bytes``
tuple of k values                   the list of its k columns (a namedtuple stays one)
list or other sequence              a sequence of its columns, of the same class if possible
dict or other mapping               a mapping of its columns, of the same class if possible
dataclass                           an object of it with columns as fields
==================================  =====================================================

Mixed numeric types become what numpy promotes them to, unless that would change a value. Whatever
disagrees otherwise (shapes, lengths, keys, types) is an error that names the field and the samples;
nothing is ever dropped, cut or rounded. docs/collate.md has the whole table, and what PyTorch does
differently.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tundish.collate_arrays import (
    arrays,
    as_array,
    bools,
    complexes,
    floats,
    ints,
    is_tensor,
    scalars,
    subarrays,
    tensors,
)
from tundish.collate_convert import convert
from tundish.collate_errors import (
    WAY_OUT,
    Mismatch,
    advice,
    class_name,
    refuse_difference,
    refuse_keys,
    refuse_presence,
    refuse_type,
)
from tundish.collate_rebuild import build_dataclass, like_mapping, like_sequence
from tundish_client._protocol.registry import is_namedtuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Values = Sequence[Any]
    Handler = Callable[[Values, bool], Any]

__all__ = ["collate", "convert", "default_collate"]


def default_collate(samples: Iterable[Any]) -> Any:
    """Make one batch of samples by the rules in this module's table.

    Args:
        samples: at least one sample; all of the same structure.

    Returns:
        The batch. Its arrays are C-contiguous, writable and own their memory.

    Raises:
        ValueError: shapes, lengths or keys differ, or an int doesn't fit in int64.
        TypeError: types can't be mixed, or one can't be collated at all.

    It may be called from several threads at once.

    Example:
        >>> default_collate([(1, "a"), (2, "b")])
        [array([1, 2]), ['a', 'b']]
    """
    if isinstance(samples, (str, bytes, Mapping)):
        raise TypeError(
            f"default_collate: takes a list of samples, got a {class_name(samples)}; "
            "for a batch of one sample give [sample]"
        )
    return collate(list(samples))


def collate(samples: Values, indices: Values | None = None, *, defer: bool = False) -> Any:
    """Like :func:`default_collate`, for the workers.

    Args:
        samples: the samples, in batch order.
        indices: their dataset indices, for the text of errors.
        defer: leave stacked arrays as ``Deferred``, to be written once, straight into a slot.
    """
    if not samples:
        raise ValueError("default_collate: a batch needs at least one sample, got none")
    try:
        return _column(samples, defer)
    except Mismatch as problem:
        error = problem.report(indices)
        cause = problem.__cause__
    except RecursionError:
        error = ValueError(
            "default_collate: a sample is nested too deeply, or contains itself; return a flat one"
        )
        cause = None
    raise error from cause


def _column(values: Values, defer: bool) -> Any:
    kind = type(values[0])
    if [type(value) for value in values].count(kind) != len(values):
        return _mixed(values, defer)
    return (_EXACT.get(kind) or _handler(values[0]))(values, defer)


def _child(values: Values, defer: bool, step: str) -> Any:
    try:
        return _column(values, defer)
    except Mismatch as problem:
        problem.path.append(step)
        raise


# -- text ---------------------------------------------------------------------------------------


def _text(values: Values, _defer: bool) -> Any:
    return list(values)


def _buffers(values: Values, _defer: bool) -> Any:
    """Buffers of bytes: copies, because a buffer may be filled anew for the next sample."""
    for at, value in enumerate(values):
        if isinstance(value, memoryview) and (value.ndim != 1 or value.format not in "Bbc"):
            what = f"a memoryview of format {value.format!r}, {value.ndim}-dimensional"
            raise Mismatch(TypeError, (at, what), way_out="return numpy.asarray(...)")
    return [bytes(value) for value in values]


# -- containers ---------------------------------------------------------------------------------


def _sequences(values: Values, defer: bool) -> Any:
    try:
        columns = list(zip(*values, strict=True))
    except ValueError:
        way_out = "make them equally long, or give the DataLoader a collate_fn that pads"
        refuse_difference(values, lambda value: f"length {len(value)}", way_out=way_out)
    return [_child(column, defer, f"[{k}]") for k, column in enumerate(columns)]


def _other_sequences(values: Values, defer: bool) -> Any:
    return like_sequence(values[0], _sequences([list(value) for value in values], defer))


def _named_tuples(values: Values, defer: bool) -> Any:
    kind = type(values[0])
    columns = zip(kind._fields, zip(*values, strict=True), strict=True)
    return kind._make(_child(column, defer, f".{name}") for name, column in columns)


def _dicts(values: Values, defer: bool) -> Any:
    first = values[0]
    if [len(value) for value in values].count(len(first)) != len(values):
        refuse_keys(values)
    try:
        columns = [(key, [value[key] for value in values]) for key in first]
    except KeyError:
        refuse_keys(values)
    return {key: _child(column, defer, f"[{key!r}]") for key, column in columns}


def _mappings(values: Values, defer: bool) -> Any:
    # By keys() and [], as for any mapping: dict(value) would pass over a __getitem__ of a subclass,
    # and value[key] alone would put the key into a defaultdict that lacks it.
    plain = [{key: value[key] for key in list(value.keys())} for value in values]
    return like_mapping(values[0], _dicts(plain, defer))


def _dataclasses(values: Values, defer: bool) -> Any:
    kind = type(values[0])
    names = [field.name for field in dataclasses.fields(kind)]
    for at, value in enumerate(values):
        _refuse_attributes(value, names, at)
    columns = {}
    for name in names:
        column = [getattr(value, name, _UNSET) for value in values]
        unset = [at for at, item in enumerate(column) if item is _UNSET]
        if not unset:
            columns[name] = _child(column, defer, f".{name}")
        elif len(unset) < len(column):
            has = next(at for at, item in enumerate(column) if item is not _UNSET)
            refuse_presence(has, unset[0], "field", f".{name}")
    try:
        return build_dataclass(kind, columns)
    except (TypeError, AttributeError) as error:
        way_out = "it can't be made without its __init__; return a dict"
        raise Mismatch(TypeError, (0, f"a {class_name(values[0])}"), way_out=way_out) from error


_UNSET = object()


def _refuse_attributes(value: Any, names: list[str], at: int) -> None:
    """An attribute that is no field would be lost. What can be computed again may be."""
    kind = type(value)
    for name in getattr(value, "__dict__", ()):
        if name in names or name.startswith("__"):
            continue
        if not isinstance(getattr(kind, name, None), functools.cached_property):
            what = f"attribute {name!r} of a {class_name(value)} that is no field of it"
            raise Mismatch(TypeError, (at, what), way_out="declare it as one, or return a dict")


# -- choice -------------------------------------------------------------------------------------


def _handler(value: Any) -> Handler:
    """The handler of a value whose exact type isn't in the table."""
    if is_tensor(value):
        return tensors
    if is_namedtuple(type(value)):
        return _named_tuples
    for kinds, handler in _BY_CLASS:
        if isinstance(value, kinds):
            return handler
    if dataclasses.is_dataclass(type(value)):
        return _dataclasses
    return refuse_type


def _mixed(values: Values, defer: bool) -> Any:
    """Values of several types: numbers promote, texts stay as they are, all else is refused."""
    handlers = [_EXACT.get(type(value)) or _handler(value) for value in values]
    different = set(handlers)
    if different <= _NUMERIC:
        pairs = enumerate(zip(values, handlers, strict=True))
        return arrays([as_array(value, handler, at) for at, (value, handler) in pairs], defer)
    if different == {_text} and len({isinstance(value, str) for value in values}) == 1:
        return list(values)
    way_out = advice(None) if any(value is None for value in values) else WAY_OUT
    return refuse_difference(values, lambda value: f"type {class_name(value)}", TypeError, way_out)


_EXACT: dict[type, Handler] = {
    np.ndarray: arrays,
    bool: bools,
    int: ints,
    float: floats,
    complex: complexes,
    str: _text,
    bytes: _text,
    tuple: _sequences,
    list: _sequences,
    dict: _dicts,
    **{
        kind: scalars
        for kind in set(np.sctypeDict.values())
        if issubclass(kind, (np.number, np.bool_))
    },
}

# In this order: an IntEnum is an int, an object of a dataclass may be a mapping too.
_BY_CLASS: tuple[tuple[Any, Handler], ...] = (
    (np.ndarray, subarrays),
    ((str, bytes), _text),
    ((bytearray, memoryview), _buffers),
    (np.generic, scalars),
    (int, ints),
    (float, floats),
    (complex, complexes),
    (enum.Enum, refuse_type),
    (tuple, _sequences),
    (Mapping, _mappings),
    (Sequence, _other_sequences),
)

_NUMERIC = {arrays, subarrays, tensors, scalars, bools, ints, floats, complexes}
