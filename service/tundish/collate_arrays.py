"""The default collate of arrays, numbers and tensors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tundish.collate_errors import Mismatch, class_name, refuse_difference
from tundish_client._protocol.dtypes import SMALL_FLOATS
from tundish_client._protocol.values import Deferred

if TYPE_CHECKING:
    from collections.abc import Sequence

    Values = Sequence[Any]
    Array = np.ndarray[Any, Any]

__all__ = [
    "arrays",
    "as_array",
    "bools",
    "complexes",
    "floats",
    "ints",
    "is_tensor",
    "scalars",
    "subarrays",
    "tensor_array",
    "tensors",
]


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

    def write(self, out: Array) -> None:
        """Fill `out`, a C-contiguous array of this dtype and shape."""
        count, rows, *rest = self.shape
        # One concatenate along the first sample axis: np.stack would make a view per sample first.
        np.concatenate(self._arrays, out=out.reshape(count * rows, *rest))

    def materialize(self) -> Array:
        """The array, writable and in memory of its own."""
        try:
            # Joining bytes takes a third of the time that concatenate takes for small arrays, but
            # it refuses what isn't contiguous, and can't convert.
            if self._alike:
                return np.ndarray(self.shape, self.dtype, bytearray().join(self._arrays))
        except (TypeError, ValueError):
            pass
        return super().materialize()


# -- arrays -------------------------------------------------------------------------------------


def arrays(values: Values, defer: bool) -> Any:
    """Stack arrays of one shape."""
    count = len(values)
    dtype, shape = values[0].dtype, values[0].shape
    if [value.shape for value in values].count(shape) != count:
        refuse_difference(values, lambda value: f"shape {value.shape}")
    alike = [value.dtype for value in values].count(dtype) == count and dtype.isnative
    if not alike or dtype.kind in "OVT":  # isnative overlooks subarrays of structured types
        own, dtype = dtype, _common_dtype(values)
        alike = alike and dtype == own and dtype.kind != "T"  # the bytes of a T are pointers
    if not shape:
        return np.array(list(values), dtype)  # a tuple would be one element of a structure
    stack = _Stack(values, dtype, (count, *shape), alike=alike)
    return stack if defer else stack.materialize()


def _common_dtype(values: Values) -> np.dtype[Any]:
    """The native dtype that holds every element of `values` unchanged."""
    for at, array in enumerate(values):
        if array.dtype.hasobject and array.dtype.kind != "T":
            raise Mismatch(TypeError, (at, f"dtype {array.dtype} (Python objects)"))
    dtypes: set[np.dtype[Any]] = {_native(array.dtype) for array in values}
    if len(dtypes) == 1:
        return dtypes.pop()
    kinds = {dtype.kind for dtype in dtypes}
    own = all(dtype.type.__module__ == "numpy" for dtype in dtypes)
    if not own or not (kinds <= set("biufc") or kinds in ({"S"}, {"U"})):
        refuse_difference(values, lambda array: f"dtype {array.dtype}", TypeError)
    target: np.dtype[Any] = np.result_type(*dtypes)
    for array in values:
        if not _exact(array, target):
            refuse_difference(values, lambda array: f"dtype {array.dtype}", TypeError)
    return target


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.kind == "T" else dtype.newbyteorder("=")  # T has no byte order


def _exact(array: Array, target: np.dtype[Any]) -> bool:
    """Whether the integers of `array` survive in a float `target` (numpy calls that cast safe)."""
    if array.dtype.kind not in "iu" or target.kind not in "fc":
        return True
    bits = np.finfo(target).nmant + 1
    if array.dtype.itemsize * 8 <= bits:
        return True
    size = np.where(array < 0, -array.astype(np.uint64), array.astype(np.uint64))
    lowest = np.maximum(size & (~size + np.uint64(1)), np.uint64(1))
    return bool(np.all(size // lowest < np.uint64(1) << np.uint64(min(bits, 63))))


def subarrays(values: Values, defer: bool) -> Any:
    """Stack objects of a subclass of ndarray (memmap, matrix ...) as the arrays they are."""
    return arrays([_plain(value, at) for at, value in enumerate(values)], defer)


def _plain(value: Any, at: int) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise Mismatch(TypeError, (at, "a masked array"), way_out="return .filled()")
    array = np.asarray(value)
    if array.dtype.type is np.record:
        # The fields are the same; attributes for them belong to the class that is left behind.
        array = array.view(np.dtype((np.void, array.dtype)))
    return array


# -- numbers ------------------------------------------------------------------------------------


def scalars(values: Values, defer: bool) -> Any:
    """Put numpy scalars of one class into an array."""
    dtype = values[0].dtype
    if dtype.kind in "biufc":
        return np.array(values, dtype)
    return subarrays(values, defer)


def bools(values: Values, _defer: bool) -> Any:
    """Put bools into an array."""
    return np.array(values, np.bool_)


def ints(values: Values, _defer: bool) -> Any:
    """Put ints, members of an IntEnum too, into an int64 array."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        at = next(at for at, value in enumerate(values) if not -(2**63) <= value < 2**63)
        way_out = "int64 holds -2**63 to 2**63-1; return a numpy scalar such as np.uint64"
        raise Mismatch(ValueError, (at, f"int {values[at]:d}"), way_out=way_out) from None


def floats(values: Values, _defer: bool) -> Any:
    """Put floats into a float64 array."""
    return np.array(values, np.float64)


def complexes(values: Values, _defer: bool) -> Any:
    """Put complex numbers into a complex128 array."""
    return np.array(values, np.complex128)


def as_array(value: Any, handler: Any, at: int) -> Any:
    """The array of one number, array or tensor; `handler` is the one of its class."""
    if handler is arrays:
        return value
    if handler is tensors:
        return tensor_array(value, at)
    if handler is subarrays:
        return _plain(value, at)
    try:
        return handler([value], False).reshape(())
    except Mismatch as problem:
        problem.facts = tuple((at, what) for _, what in problem.facts)
        raise


# -- tensors ------------------------------------------------------------------------------------


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch.Tensor."""
    # torch is never imported here: a tensor can't exist before its module does.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def tensors(values: Values, defer: bool) -> Any:
    """Stack CPU tensors."""
    return arrays([tensor_array(value, at) for at, value in enumerate(values)], defer)


def tensor_array(tensor: Any, at: int) -> Array:
    """The array of a dense CPU tensor, without a copy where its memory can be an array's."""
    try:
        array: Array = tensor.detach().numpy()
    except (TypeError, RuntimeError) as error:
        return _unusual_tensor(tensor, at, error)
    return array


def _unusual_tensor(tensor: Any, at: int, error: Exception) -> Array:
    """The array of a tensor of a dtype that numpy lacks, or that is lazily conjugated."""
    if tensor.is_nested:
        raise Mismatch(TypeError, (at, "a nested tensor"), way_out="pad it") from error
    layout = str(tensor.layout).removeprefix("torch.")
    if layout != "strided":
        what = f"a tensor of layout {layout}"
        raise Mismatch(TypeError, (at, what), way_out="return .to_dense()") from error
    if tensor.device.type != "cpu":
        what = f"a tensor on device {tensor.device}"
        way_out = "return CPU tensors; the training loop moves the batch to its device"
        raise Mismatch(TypeError, (at, what), way_out=way_out) from error
    name = str(tensor.dtype).removeprefix("torch.")
    if name in SMALL_FLOATS:
        return _small_floats(tensor, name, at)
    try:
        array: Array = tensor.numpy(force=True)
    except (TypeError, RuntimeError) as again:
        what = f"a {class_name(tensor)} of dtype {name}"
        way_out = "return a plain tensor of a dtype that numpy has"
        raise Mismatch(TypeError, (at, what), way_out=way_out) from again
    return array


def _small_floats(tensor: Any, name: str, at: int) -> Array:
    try:
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError) as error:
        what = f"a tensor of dtype {name}"
        way_out = f"install an ml_dtypes that has {name}, or return .float()"
        raise Mismatch(TypeError, (at, what), way_out=way_out) from error
    torch = sys.modules["torch"]
    bits = torch.int16 if dtype.itemsize == 2 else torch.uint8
    array: Array = tensor.detach().view(bits).numpy().view(dtype)
    return array
