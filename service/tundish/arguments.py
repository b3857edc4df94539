"""Checks of arguments: each refusal names the argument, its value and what would do."""

from __future__ import annotations

import inspect
import operator
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from tundish_client.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_dataset", "draw_seed", "flag", "integer", "one_of", "refuse_unsupported"]


def integer(name: str, value: Any, low: int, high: int) -> int:
    """`value` as a plain int between `low` and `high`; numpy's ints will do, a bool won't."""
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise ConfigError(f"{name}={_shown(value)} must be an integer from {low} to {high}")
    return number


def flag(name: str, value: Any) -> bool:
    """`value` as a bool, which it must be."""
    if not isinstance(value, (bool, np.bool_)):
        raise ConfigError(f"{name}={_shown(value)} must be True or False")
    return bool(value)


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """`value`, if it is one of the `known` names."""
    if not isinstance(value, str) or value not in known:
        raise ConfigError(
            f"{name}={_shown(value)} is unknown; known are {', '.join(map(repr, known))}"
        )
    return value


def refuse_unsupported(**given: Any) -> None:
    """Refuse arguments that have a name already but no meaning yet."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"{name}={_shown(value)} is not supported yet; leave it out, and use shuffle=True, "
                "or a dataset that maps indices itself"
            )


def draw_seed() -> int:
    """A seed of 64 bits from the system."""
    return int.from_bytes(os.urandom(8), "little")


def check_dataset(dataset: Any) -> None:
    """Refuse what isn't a map-style dataset."""
    kind = type(dataset)
    name = f"dataset={_shown(dataset)}"
    if any(base.__name__ == "IterableDataset" for base in kind.__mro__):
        raise ConfigError(
            f"{name} is an iterable dataset; those are not supported yet, give one with __getitem__"
        )
    if not hasattr(kind, "__len__"):
        raise ConfigError(f"{name} has no __len__; a dataset needs __len__ and __getitem__")
    getters = [getattr(kind, method, None) for method in ("__getitem__", "__getitems__")]
    if getters == [None, None]:
        raise ConfigError(f"{name} has no __getitem__; a dataset needs __len__ and __getitem__")
    if any(map(inspect.iscoroutinefunction, getters)):
        raise ConfigError(
            f"{name} has an async __getitem__; that is not supported yet, give a plain one"
        )


def _shown(value: Any) -> str:
    """`value` for the text of an error, short and without running into its repr's own errors."""
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
