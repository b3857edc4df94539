"""A sample that is a batch of its own, for ``batch_size=None``."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tundish.collate_arrays import is_tensor, tensor_array
from tundish.collate_errors import Mismatch
from tundish.collate_rebuild import like_dataclass, like_mapping, like_sequence, like_tuple

__all__ = ["convert"]

_LEAVES = (str, bytes, bytearray, memoryview, range, int, float, complex, type(None))
_ARRAYS = (np.ndarray, np.generic)
_KINDS = frozenset((*_LEAVES, bool, np.ndarray))


def convert(sample: Any, index: Any = None) -> Any:
    """Make arrays of the tensors in a sample: ``torch.utils.data.default_convert``, reversed.

    Args:
        sample: anything.
        index: its dataset index, for the text of errors.

    Returns:
        `sample` itself if there is no tensor in it. Else a copy of the containers around tensors;
        tuples, namedtuples, dataclasses, mappings and sequences keep their class by the rules of
        :func:`tundish.default_collate`. An array has the memory of its tensor.

    Raises:
        TypeError: a tensor can't be an array; the message names its field.

    It may be called from several threads at once.

    Example:
        >>> convert({"x": torch.ones(2), "y": ("a", 1)})
        {'x': array([1., 1.], dtype=float32), 'y': ('a', 1)}
    """
    if "torch" not in sys.modules:
        return sample  # no module, no tensors
    try:
        return _convert(sample)
    except Mismatch as problem:
        error = problem.report(None if index is None else [index], "default_convert")
        cause = problem.__cause__
    except RecursionError:
        error = ValueError(
            "default_convert: a sample is nested too deeply, or contains itself; return a flat one"
        )
        cause = None
    raise error from cause


def _convert(value: Any) -> Any:
    if type(value) in _KINDS or isinstance(value, _LEAVES + _ARRAYS):
        return value
    if is_tensor(value):
        return tensor_array(value, 0)
    if isinstance(value, Mapping):
        keys = list(value.keys())
        items = {key: value[key] for key in keys}
        return _rebuilt(value, items, lambda new: like_mapping(value, items | new), "[{!r}]")
    if isinstance(value, (tuple, Sequence)):
        return _convert_sequence(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        items = {name: getattr(value, name) for name in names}
        return _rebuilt(value, items, lambda new: like_dataclass(value, new), ".{}")
    return value


def _convert_sequence(value: Sequence[Any]) -> Any:
    items = list(value)
    if _KINDS.issuperset(map(type, items)):
        return value  # a long list of numbers needs no look at each of them

    def like(new: dict[Any, Any]) -> Any:
        for k, item in new.items():
            items[k] = item
        return like_tuple(value, items) if isinstance(value, tuple) else like_sequence(value, items)

    return _rebuilt(value, dict(enumerate(items)), like, "[{}]")


def _rebuilt(
    value: Any, items: dict[Any, Any], like: Callable[[dict[Any, Any]], Any], step: str
) -> Any:
    """`value`, or what `like` makes of the items that changed."""
    changed = {}
    for key, item in items.items():
        try:
            new = _convert(item)
        except Mismatch as problem:
            problem.path.append(step.format(key))
            raise
        if new is not item:
            changed[key] = new
    return like(changed) if changed else value
