"""Checks of arguments: each refusal names the argument, its value and what would do."""

from __future__ import annotations

import difflib
import operator
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from tundish.yields import check_sampler
from tundish_client.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "draw_seed",
    "flag",
    "function",
    "integer",
    "is_iterable",
    "one_of",
    "refuse_others",
    "seconds",
]

_LONGEST = 10**9


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


# What PyTorch's DataLoader takes for granted asks for nothing.
_NOTHING = {"pin_memory": False, "pin_memory_device": "", "persistent_workers": False}
_OURS = {"prefetch_depth", "rank", "world_size", "uneven"}
_WAYS_OUT = {
    "pin_memory": "pin what is to be copied, torch.from_numpy(array).pin_memory()",
    "pin_memory_device": "pin what is to be copied, torch.from_numpy(array).pin_memory()",
    "prefetch_factor": "use prefetch=, batches made ahead by all workers together",
    "persistent_workers": "workers always stay; for PyTorch's order with persistent workers use "
    'order="torch:persistent"',
    "multiprocessing_context": "workers are threads of this process or of the service",
    "generator": 'use seed=, with order="torch" for the order that a torch.Generator seeded '
    "with it would give",
    "prefetch_depth": "use prefetch=",
    "rank": "ranks are an epoch's: loader.epoch(e, rank=, world_size=)",
    "world_size": "ranks are an epoch's: loader.epoch(e, rank=, world_size=)",
    "uneven": "ranks are an epoch's: loader.epoch(e, rank=, world_size=, uneven=)",
}


def refuse_others(given: dict[str, Any], known: Iterable[str]) -> None:
    """Refuse keyword arguments that DataLoader doesn't have; PyTorch's with the way out."""
    for name, value in given.items():
        if name in _WAYS_OUT and name not in _OURS and value == _NOTHING.get(name):
            continue
        if name in _WAYS_OUT:
            raise ConfigError(f"{name}={_shown(value)} has no counterpart here: {_WAYS_OUT[name]}")
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"DataLoader() got an unexpected keyword argument {name!r}{hint}")


def seconds(name: str, value: Any) -> float | None:
    """`value` as a time that may pass; None, and PyTorch's 0, for as long as it takes."""
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise ConfigError(f"{name}={_shown(value)} must be a number of seconds, or None")
    number = float(value)
    if not 0 <= number <= _LONGEST:
        raise ConfigError(f"{name}={_shown(value)} must be from 0 to {_LONGEST} seconds, or None")
    return number or None


def function(name: str, value: Any, purpose: str) -> Any:
    """`value`, if it can be called; None will do."""
    if value is not None and not callable(value):
        raise ConfigError(f"{name}={_shown(value)} must be callable, or None {purpose}")
    return value


def draw_seed() -> int:
    """A seed of 64 bits from the system."""
    return int.from_bytes(os.urandom(8), "little")


def is_iterable(dataset: Any) -> bool:
    """Whether a dataset is read from front to end, and not by indices.

    Raises:
        ConfigError: it is neither kind of dataset.
    """
    kind = type(dataset)
    name = f"dataset={_shown(dataset)}"
    if isinstance(dataset, type):
        raise ConfigError(f"{name} is a class; give an object of it")
    if any(base.__name__ == "IterableDataset" for base in kind.__mro__):
        check_sampler("dataset", dataset)
        return True
    if not (hasattr(kind, "__getitem__") or hasattr(kind, "__getitems__")):
        if hasattr(kind, "__iter__"):
            check_sampler("dataset", dataset)
            return True
        raise ConfigError(
            f"{name} has no __getitem__; a dataset needs __len__ and __getitem__, or __iter__ if "
            "it is to be read from front to end"
        )
    if not hasattr(kind, "__len__"):
        raise ConfigError(f"{name} has no __len__; a dataset needs __len__ and __getitem__")
    return False


def _shown(value: Any) -> str:
    """`value` for the text of an error, short and without running into its repr's own errors."""
    try:
        text = repr(value)
    except Exception:
        text = object.__repr__(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
