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
tuple or list of k values           the list of its k columns (a namedtuple stays one)
dict                                a dict of its columns (a subclass stays one)
==================================  =====================================================

Mixed numeric types become what numpy promotes them to, unless that would change a value. Whatever
disagrees otherwise (shapes, lengths, keys, types) is an error that names the field and the samples;
nothing is ever dropped, cut or rounded.
"""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tundish_client._protocol.values import Deferred

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Values = Sequence[Any]
    Handler = Callable[[Values, bool], Any]

__all__ = ["collate", "default_collate"]

_WAY_OUT = "make the samples agree, or give the DataLoader a collate_fn"


def default_collate(samples: Iterable[Any]) -> Any:
    """Make one batch of samples by the rules in this module's table.

    Args:
        samples: at least one sample; all of the same structure.

    Returns:
        The batch. Its arrays are C-contiguous, writable and own their memory.

    Raises:
        ValueError: shapes, lengths or keys differ, or an int doesn't fit in int64.
        TypeError: types can't be mixed, or one can't be collated at all.

    Example:
        >>> default_collate([(1, "a"), (2, "b")])
        [array([1, 2]), ['a', 'b']]
    """
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
    except _Mismatch as problem:
        error = problem.report(indices)
        cause = problem.__cause__
    raise error from cause


class _Mismatch(Exception):
    """Something that can't be collated; collects the field's path while it unwinds."""

    def __init__(
        self, error: type[Exception], *facts: tuple[int, str], way_out: str = _WAY_OUT
    ) -> None:
        super().__init__(facts)
        self.error = error
        self.facts = facts
        self.way_out = way_out
        self.path: list[str] = []

    def report(self, indices: Values | None) -> Exception:
        """The error for the user, in terms of dataset indices where they are known."""
        field = "".join(reversed(self.path))
        found = ", ".join(f"{what} in {_sample_name(at, indices)}" for at, what in self.facts)
        return self.error(
            f"default_collate: field {field or '(the sample)'}: {found}; {self.way_out}"
        )


def _sample_name(position: int, indices: Values | None) -> str:
    return f"sample {position}" if indices is None else f"dataset[{indices[position]}]"


class _Stack(Deferred):
    """Arrays of one shape (at least one dimension), stacked when written."""

    __slots__ = ("_alike", "_arrays")

    def __init__(
        self, arrays: Values, dtype: np.dtype[Any], shape: tuple[int, ...], *, alike: bool
    ) -> None:
        self._arrays = arrays
        self._alike = alike
        self.dtype = dtype
        self.shape = shape

    def write(self, out: np.ndarray[Any, Any]) -> None:
        """Fill `out`, a C-contiguous array of this dtype and shape."""
        count, rows, *rest = self.shape
        # One concatenate along the first sample axis: np.stack would make a view per sample first.
        np.concatenate(self._arrays, out=out.reshape(count * rows, *rest))

    def materialize(self) -> np.ndarray[Any, Any]:
        """The array, writable and in memory of its own."""
        try:
            # Joining bytes takes a third of the time that concatenate takes for small arrays, but
            # it refuses what isn't contiguous, and can't convert.
            if self._alike:
                return np.ndarray(self.shape, self.dtype, bytearray().join(self._arrays))
        except (TypeError, ValueError):
            pass
        return super().materialize()


def _column(values: Values, defer: bool) -> Any:
    kind = type(values[0])
    if [type(value) for value in values].count(kind) != len(values):
        return _mixed(values, defer)
    return (_EXACT.get(kind) or _handler(values[0]))(values, defer)


def _child(values: Values, defer: bool, step: str) -> Any:
    try:
        return _column(values, defer)
    except _Mismatch as problem:
        problem.path.append(step)
        raise


# -- arrays and numbers -------------------------------------------------------------------------


def _arrays(arrays: Values, defer: bool) -> Any:
    count = len(arrays)
    dtype, shape = arrays[0].dtype, arrays[0].shape
    if [array.shape for array in arrays].count(shape) != count:
        _refuse_difference(arrays, lambda array: f"shape {array.shape}")
    alike = [array.dtype for array in arrays].count(dtype) == count and dtype.isnative
    if not alike or dtype.kind in "OV":  # isnative overlooks subarrays of structured types
        dtype = _common_dtype(arrays)
    if not shape:
        return np.array(arrays, dtype)
    stack = _Stack(arrays, dtype, (count, *shape), alike=alike)
    return stack if defer else stack.materialize()


def _common_dtype(arrays: Values) -> np.dtype[Any]:
    """The native dtype that holds every value of `arrays` unchanged."""
    for at, array in enumerate(arrays):
        if array.dtype.hasobject:
            raise _Mismatch(TypeError, (at, f"dtype {array.dtype} (Python objects)"))
    dtypes: set[np.dtype[Any]] = {array.dtype.newbyteorder("=") for array in arrays}
    if len(dtypes) == 1:
        return dtypes.pop()
    kinds = {dtype.kind for dtype in dtypes}
    own = all(dtype.type.__module__ == "numpy" for dtype in dtypes)
    if not own or not (kinds <= set("biufc") or kinds in ({"S"}, {"U"})):
        _refuse_difference(arrays, lambda array: f"dtype {array.dtype}", TypeError)
    target: np.dtype[Any] = np.result_type(*dtypes)
    for array in arrays:
        if not _exact(array, target):
            _refuse_difference(arrays, lambda array: f"dtype {array.dtype}", TypeError)
    return target


def _exact(array: np.ndarray[Any, Any], target: np.dtype[Any]) -> bool:
    """Whether the integers of `array` survive in a float `target` (numpy calls that cast safe)."""
    if array.dtype.kind not in "iu" or target.kind not in "fc":
        return True
    bits = np.finfo(target).nmant + 1
    if array.dtype.itemsize * 8 <= bits:
        return True
    size = np.where(array < 0, -array.astype(np.uint64), array.astype(np.uint64))
    lowest = np.maximum(size & (~size + np.uint64(1)), np.uint64(1))
    return bool(np.all(size // lowest < np.uint64(1) << np.uint64(min(bits, 63))))


def _subarrays(arrays: Values, defer: bool) -> Any:
    if isinstance(arrays[0], np.ma.MaskedArray):
        raise _Mismatch(TypeError, (0, "a masked array"), way_out="call .filled() in the dataset")
    return _arrays([np.asarray(array) for array in arrays], defer)


def _scalars(values: Values, defer: bool) -> Any:
    dtype = values[0].dtype
    if dtype.kind in "biufc":
        return np.array(values, dtype)
    return _arrays([np.asarray(value) for value in values], defer)


def _bools(values: Values, _defer: bool) -> Any:
    return np.array(values, np.bool_)


def _ints(values: Values, _defer: bool) -> Any:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        at = next(at for at, value in enumerate(values) if not -(2**63) <= value < 2**63)
        way_out = "int64 holds -2**63 to 2**63-1; return a numpy scalar such as np.uint64"
        raise _Mismatch(ValueError, (at, f"int {values[at]}"), way_out=way_out) from None


def _floats(values: Values, _defer: bool) -> Any:
    return np.array(values, np.float64)


def _complexes(values: Values, _defer: bool) -> Any:
    return np.array(values, np.complex128)


def _tensors(values: Values, defer: bool) -> Any:
    return _arrays([_tensor_array(value, at) for at, value in enumerate(values)], defer)


def _tensor_array(tensor: Any, at: int) -> np.ndarray[Any, Any]:
    try:
        array: np.ndarray[Any, Any] = tensor.detach().numpy()
    except (TypeError, RuntimeError) as error:
        what = f"{tensor.dtype} tensor on {tensor.device}"
        raise _Mismatch(
            TypeError, (at, what), way_out="return a CPU tensor that has .numpy()"
        ) from error
    return array


# -- text and containers ------------------------------------------------------------------------


def _text(values: Values, _defer: bool) -> Any:
    return list(values)


def _sequences(values: Values, defer: bool) -> Any:
    try:
        columns = list(zip(*values, strict=True))
    except ValueError:
        _refuse_difference(values, lambda value: f"length {len(value)}")
    return [_child(column, defer, f"[{k}]") for k, column in enumerate(columns)]


def _named_tuples(values: Values, defer: bool) -> Any:
    kind = type(values[0])
    columns = zip(kind._fields, zip(*values, strict=True), strict=True)
    return kind._make(_child(column, defer, f".{name}") for name, column in columns)


def _dicts(values: Values, defer: bool) -> Any:
    first = values[0]
    if [len(value) for value in values].count(len(first)) != len(values):
        _refuse_keys(values)
    try:
        columns = [(key, [value[key] for value in values]) for key in first]
    except KeyError:
        _refuse_keys(values)
    return {key: _child(column, defer, f"[{key!r}]") for key, column in columns}


def _dict_subclasses(values: Values, defer: bool) -> Any:
    plain = _dicts([dict(value) for value in values], defer)
    try:
        # A copy of the first sample keeps what the class carries besides its items.
        result = copy.copy(values[0])
        for key, column in plain.items():
            result[key] = column
    except Exception as error:
        what = f"a {type(values[0]).__qualname__} that can't be filled"
        raise _Mismatch(TypeError, (0, what), way_out="return a dict") from error
    return result


# -- choice and refusal -------------------------------------------------------------------------


def _handler(value: Any) -> Handler:
    """The handler of a value whose exact type isn't in the table."""
    for kinds, handler in _BY_CLASS:
        if isinstance(value, kinds):
            return handler
    if _is_tensor(value):
        return _tensors
    if isinstance(value, tuple):
        return _named_tuples if hasattr(value, "_fields") else _sequences
    return _unknown


def _unknown(values: Values, _defer: bool) -> NoReturn:
    kind = type(values[0])
    raise _Mismatch(
        TypeError, (0, f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
    )


def _mixed(values: Values, defer: bool) -> Any:
    """Values of several types: numbers promote, texts stay as they are, all else is refused."""
    handlers = {_EXACT.get(type(value)) or _handler(value) for value in values}
    if handlers <= _NUMERIC:
        return _arrays([_as_array(value, at, defer) for at, value in enumerate(values)], defer)
    if handlers == {_text} and len({isinstance(value, str) for value in values}) == 1:
        return list(values)
    return _refuse_difference(values, lambda value: type(value).__qualname__, TypeError)


def _as_array(value: Any, at: int, defer: bool) -> Any:
    handler = _EXACT.get(type(value)) or _handler(value)
    if handler is _arrays:
        return value
    if handler is _tensors:
        return _tensor_array(value, at)
    if handler is _subarrays:
        return handler([value], False)[0]
    try:
        return handler([value], defer)[0:1].reshape(())
    except _Mismatch as problem:
        problem.facts = tuple((at, what) for _, what in problem.facts)
        raise


def _is_tensor(value: Any) -> bool:
    # torch is never imported here: a tensor can't exist before its module does.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def _refuse_difference(
    values: Values, describe: Callable[[Any], str], error: type[Exception] = ValueError
) -> NoReturn:
    """Name the first sample and the first one that differs from it."""
    first = describe(values[0])
    for at, value in enumerate(values):
        if (other := describe(value)) != first:
            raise _Mismatch(error, (0, first), (at, other))
    raise _Mismatch(error, (0, first))


def _refuse_keys(values: Values) -> NoReturn:
    """Name the first key that one sample has and another lacks."""
    for at, value in enumerate(values):
        for key in [*values[0], *value]:
            if (key in values[0]) != (key in value):
                has, lacks = (0, at) if key in values[0] else (at, 0)
                problem = _Mismatch(ValueError, (has, "key present"), (lacks, "key missing"))
                problem.path.append(f"[{key!r}]")
                raise problem from None
    raise _Mismatch(ValueError, (0, "keys that compare unequal to themselves"))


_EXACT: dict[type, Handler] = {
    np.ndarray: _arrays,
    bool: _bools,
    int: _ints,
    float: _floats,
    complex: _complexes,
    str: _text,
    bytes: _text,
    tuple: _sequences,
    list: _sequences,
    dict: _dicts,
    **{
        kind: _scalars
        for kind in set(np.sctypeDict.values())
        if issubclass(kind, (np.number, np.bool_))
    },
}

_BY_CLASS: tuple[tuple[Any, Handler], ...] = (
    (np.ndarray, _subarrays),
    ((str, bytes), _text),
    (np.generic, _scalars),
    (int, _ints),
    (float, _floats),
    (complex, _complexes),
    (list, _sequences),
    (dict, _dict_subclasses),
)

_NUMERIC = {_arrays, _subarrays, _tensors, _scalars, _bools, _ints, _floats, _complexes}
