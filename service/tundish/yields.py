"""What samplers give, checked: indices, groups of indices, lengths, and the samplers themselves."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from tundish.indices import is_integer
from tundish_client.errors import ConfigError

__all__ = [
    "check_sampler",
    "index_of",
    "indices_of",
    "is_group",
    "is_list",
    "items_of",
    "length_of",
    "shown_value",
]

# -- indices ---------------------------------------------------------------------------------------


def index_of(value: Any, samples: int, where: str) -> int:
    """`value` as an index into `samples` samples.

    Any integer will do: Python's, numpy's, 0-d arrays and tensors. A bool is none, and negative
    ones don't count from the end: a sampler that gives them means something else, mostly.

    Raises:
        TypeError: it is no integer.
        IndexError: it is negative, or `samples` or more.
    """
    if type(value) is not int:
        if not is_integer(value):
            hint = (
                "a list of indices is a batch_sampler's" if is_group(value) else "give an integer"
            )
            kind = type(value).__name__
            raise TypeError(f"{where}: {shown_value(value)} ({kind}) is no index; {hint}")
        value = operator.index(value)
    if 0 <= value < samples:
        return int(value)
    there = f"indices go from 0 to {samples - 1}" if samples else "it is empty"
    if value < 0:
        there += ", negative ones are refused"
    raise IndexError(
        f"{where}: {shown_value(value)} is outside of the dataset of {samples} samples; {there}"
    )


def indices_of(values: Sequence[Any], samples: int) -> list[int] | None:
    """All of `values` as indices, fast; None if one of them needs a closer look."""
    kinds = set(map(type, values))
    if kinds != {int}:
        if not all(issubclass(kind, (int, np.integer)) and kind is not bool for kind in kinds):
            return None
        values = list(map(operator.index, values))
    if values and not (min(values) >= 0 and max(values) < samples):
        return None
    return list(values)


def is_list(value: Any) -> bool:
    """Whether `value` is one of the lists whose items can be taken again and again."""
    if isinstance(value, (list, tuple, range)):
        return True
    return getattr(value, "ndim", None) == 1 and callable(getattr(value, "tolist", None))


def is_group(value: Any) -> bool:
    """Whether `value` may be several indices: something to iterate over, but no text, no dict."""
    return _is_iterable(value) and not isinstance(value, (str, bytes, bytearray, dict))


def items_of(value: Any) -> list[Any]:
    """The items of what ``is_list`` says yes to."""
    found: list[Any] = value.tolist() if hasattr(value, "tolist") else list(value)
    return found


# -- samplers --------------------------------------------------------------------------------------


def check_sampler(name: str, value: Any) -> None:
    """Refuse what can't be iterated over once per epoch.

    Args:
        name: the argument's.
        value: the user's.

    Raises:
        ConfigError: it isn't iterable, it is text, or it is an iterator, which is used up after one
            epoch.
    """
    given = f"{name}={shown_value(value)}"
    if isinstance(value, type):
        raise ConfigError(f"{given} is a class; give an object of it")
    if isinstance(value, (str, bytes, bytearray)):
        raise ConfigError(f"{given} is a {type(value).__name__}, whose items are no indices")
    if not _is_iterable(value):
        what = "only async-iterable" if hasattr(type(value), "__aiter__") else "not iterable"
        raise ConfigError(f"{given} is {what}; give a list, or an object with __iter__")
    if _is_one_shot(value):
        raise ConfigError(
            f"{given} is a one-shot iterator: it would be used up after one epoch; give a list, or "
            "an object whose __iter__ returns a new iterator each time"
        )


def length_of(value: Any, what: str) -> int | None:
    """``len(value)``; None if it has none, or says so by a TypeError or NotImplementedError.

    Raises:
        TypeError, ValueError: the length is no integer, or negative.
        Exception: what ``__len__`` raised.
    """
    method = getattr(type(value), "__len__", None)
    if method is None:
        return None
    try:
        length = method(value)
    except (TypeError, NotImplementedError):
        return None
    except Exception as error:
        error.add_note(f"tundish: in len() of {what}, read at the start of an epoch")
        raise
    if not is_integer(length):
        raise TypeError(f"len() of {what} is {shown_value(length)}, which is not an integer")
    if length < 0:
        raise ValueError(f"len() of {what} is {length}, which is negative")
    return operator.index(length)


def shown_value(value: Any) -> str:
    """`value` for the text of an error: short, and without the errors of its own repr."""
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_iterable(value: Any) -> bool:
    if getattr(value, "ndim", None) == 0:  # has an __iter__ that only raises
        return False
    kind = type(value)
    method = getattr(kind, "__iter__", None)
    return method is not None or (not hasattr(kind, "__iter__") and hasattr(kind, "__getitem__"))


def _is_one_shot(value: Any) -> bool:
    """Whether ``iter(value)`` is `value` itself, without anything that begins it anew."""
    kind = type(value)
    if not hasattr(kind, "__next__") or callable(getattr(value, "set_epoch", None)):
        return False
    method = kind.__iter__
    if isinstance(method, FunctionType):
        return method.__code__.co_code == _returns_itself.__code__.co_code
    return not hasattr(kind, "__len__")


_returns_itself: Callable[[Any], Any] = lambda self: self  # noqa: E731
