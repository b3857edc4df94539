"""Datasets that the engine reads by itself, without the interpreter."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tundish import _core
from tundish_client._protocol.dtypes import dtype_to_wire
from tundish_client.errors import ConfigError

__all__ = ["ArrayDataset", "is_native"]

Array = np.ndarray[Any, Any]

# numpy doesn't export these through the buffer protocol; their bytes are all that is copied.
_BYTES_VIEW = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}


class ArrayDataset:
    """Samples that are rows of numpy arrays; batches are gathered by Rust threads.

    Args:
        *arrays: unnamed fields; a sample is the tuple of their rows, a batch the list of their
            columns.
        **named: named fields instead; samples and batches are dicts.

    Each array has the samples along its first axis and any dtype but Python objects; a batch holds
    arrays of the same dtypes in native byte order. Arrays and memmaps are used as they are (no
    copy; a memmap stays on disk), whatever their strides. Big-endian arrays are converted once,
    here; big-endian memmaps batch by batch, as structured arrays are, by one thread at a time.

    Raises:
        ConfigError: no array, arrays of different lengths, unnamed mixed with named ones.
        TypeError: something that isn't a numpy array, or one of Python objects.

    Example:
        >>> ds = ArrayDataset(x=np.zeros((3, 2), np.float32), y=np.array([5, 6, 7]))
        >>> len(ds), ds[1]["y"]
        (3, np.int64(6))
    """

    def __init__(self, *arrays: Array, **named: Array) -> None:
        if arrays and named:
            raise ConfigError(
                f"ArrayDataset takes unnamed arrays or named ones, not both: got {len(arrays)} "
                f"unnamed and {', '.join(named)}; name them all"
            )
        self._names = tuple(named) if named else None
        labels = self._names or tuple(map(str, range(len(arrays))))
        fields = arrays or tuple(named.values())
        if not fields:
            raise ConfigError("ArrayDataset needs at least one array, got none")
        self._fields = tuple(
            _checked(label, field) for label, field in zip(labels, fields, strict=True)
        )
        self._length = len(self._fields[0])
        for label, field in zip(labels, self._fields, strict=True):
            if len(field) != self._length:
                raise ConfigError(
                    f"ArrayDataset: field {label!r} has {len(field)} samples, but field "
                    f"{labels[0]!r} has {self._length}; all need the same first dimension"
                )

    def __len__(self) -> int:
        """The number of samples."""
        return self._length

    def __getitem__(self, index: int) -> Any:
        """Sample `index` (from the end if negative): a dict, or a tuple of unnamed fields.

        The arrays in it are views of the dataset's. An index outside is an IndexError.
        """
        at = operator.index(index)
        if self._names is None:
            return tuple(field[at] for field in self._fields)
        return {name: field[at] for name, field in zip(self._names, self._fields, strict=True)}

    def __repr__(self) -> str:
        names = self._names or ("",) * len(self._fields)
        fields = [
            f"{name and name + '='}{f.dtype}{list(f.shape)}"
            for name, f in zip(names, self._fields, strict=True)
        ]
        return f"ArrayDataset({', '.join(fields)})"

    def _sample_nbytes(self) -> int:
        """Bytes of one sample, all fields together."""
        return sum(field[:1].nbytes if len(field) else 0 for field in self._fields)

    def _gather(self, indices: Any) -> Any:
        """The batch of these samples, for arrays that the engine doesn't read by itself."""
        fields = map(np.asarray, self._fields)
        rows = [f[indices].astype(f.dtype.newbyteorder("="), copy=False) for f in fields]
        return rows if self._names is None else dict(zip(self._names, rows, strict=True))

    def _is_native(self) -> bool:
        kind = type(self)
        return (
            kind.__getitem__ is ArrayDataset.__getitem__
            and kind.__len__ is ArrayDataset.__len__
            and not hasattr(self, "__getitems__")
        )

    def _native_source(
        self, rows: np.ndarray[Any, np.dtype[np.int64]] | None = None
    ) -> _core.ArraySource | None:
        """The engine's own reader of these arrays; None where rows must go through Python.

        With `rows` it reads those only: sample i is row ``rows[i]``.
        """
        names = self._names or (None,) * len(self._fields)
        described: list[tuple[str | None, str, Any]] = []
        for name, field in zip(names, self._fields, strict=True):
            dtype = _wire_name(field.dtype)
            if dtype is None:
                return None
            described.append((name, dtype, _exportable(field)))
        return _core.ArraySource(described, "list" if self._names is None else "dict", rows)


def is_native(dataset: Any) -> bool:
    """Whether the engine may read `dataset` itself; what a subclass overrides is heeded.

    Then it has ``_native_source``, ``_sample_nbytes`` and ``_gather``.
    """
    asked = getattr(type(dataset), "_is_native", None)
    return asked is not None and bool(asked(dataset))


def _checked(label: str, field: Array) -> Array:
    """`field`, if it can be a column of samples; in native byte order unless it is mapped."""
    if not isinstance(field, np.ndarray) or isinstance(field, np.ma.MaskedArray):
        raise TypeError(
            f"ArrayDataset: field {label!r} must be a numpy array, got {type(field).__name__}; "
            "convert it with numpy.asarray (a masked array with .filled())"
        )
    if field.dtype.hasobject:
        raise TypeError(
            f"ArrayDataset: field {label!r} holds Python objects (dtype {field.dtype}); give it a "
            "fixed-size dtype, or write a dataset with __getitem__"
        )
    if field.ndim == 0:
        raise ConfigError(
            f"ArrayDataset: field {label!r} has no first dimension to count samples by"
        )
    if isinstance(field, np.memmap):
        return field
    return field.astype(field.dtype.newbyteorder("="), copy=False)


def _wire_name(dtype: np.dtype[Any]) -> str | None:
    """The protocol's name of `dtype`, if the engine can gather it byte by byte."""
    if not dtype.isnative:
        return None
    try:
        name = dtype_to_wire(dtype)
    except TypeError:
        return None
    return name if isinstance(name, str) else None


def _exportable(field: Array) -> Array:
    if _exports(field.dtype):
        return np.asarray(field)
    return np.asarray(field).view(_BYTES_VIEW[field.dtype.itemsize])


def _exports(dtype: np.dtype[Any]) -> bool:
    """Whether numpy exports arrays of `dtype` through the buffer protocol."""
    return dtype.kind in "biufcSU" and dtype.type.__module__ == "numpy"
