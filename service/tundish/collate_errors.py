"""What the default collate says about samples that it can't put into one batch."""

from __future__ import annotations

import collections.abc
import datetime as dt
import enum
import numbers
import os
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Values = Sequence[Any]

__all__ = [
    "WAY_OUT",
    "Mismatch",
    "advice",
    "class_name",
    "refuse_difference",
    "refuse_keys",
    "refuse_presence",
    "refuse_type",
]

WAY_OUT = "make the samples agree, or give the DataLoader a collate_fn"


class Mismatch(Exception):
    """Something that can't be collated; collects the field's path while it unwinds.

    Args:
        error: the class of the error for the user.
        facts: (position of the sample, what was seen there), in the order to name them.
        way_out: what the user can do.
    """

    def __init__(
        self, error: type[Exception], *facts: tuple[int, str], way_out: str = WAY_OUT
    ) -> None:
        super().__init__(facts)
        self.error = error
        self.facts = facts
        self.way_out = way_out
        self.path: list[str] = []

    def report(self, indices: Values | None, rule: str = "default_collate") -> Exception:
        """The error for the user, in terms of dataset indices where they are known."""
        field = "".join(reversed(self.path)) or "(the sample)"
        found = ", ".join(f"{what} in {_sample_name(at, indices)}" for at, what in self.facts)
        return self.error(f"{rule}: field {field}: {found}; {self.way_out}")


def _sample_name(position: int, indices: Values | None) -> str:
    return f"sample {position}" if indices is None else f"dataset[{indices[position]}]"


def class_name(value: Any) -> str:
    """The class of `value`, with its module unless it is a builtin."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


# -- differences --------------------------------------------------------------------------------


def refuse_difference(
    values: Values,
    describe: Callable[[Any], str],
    error: type[Exception] = ValueError,
    way_out: str = WAY_OUT,
) -> NoReturn:
    """Name the first sample and the first one that differs from it."""
    first = describe(values[0])
    for at, value in enumerate(values):
        if (other := describe(value)) != first:
            raise Mismatch(error, (0, first), (at, other), way_out=way_out)
    raise Mismatch(error, (0, first), way_out=way_out)


def refuse_presence(has: int, lacks: int, what: str, step: str) -> NoReturn:
    """Name one sample that has a key or a field, and one that lacks it."""
    problem = Mismatch(ValueError, (has, f"{what} present"), (lacks, f"{what} missing"))
    problem.path.append(step)
    raise problem from None


def refuse_keys(values: Values) -> NoReturn:
    """Name the first key that one sample has and another lacks."""
    for at, value in enumerate(values):
        for key in [*values[0], *value]:
            if (key in values[0]) != (key in value):
                has, lacks = (0, at) if key in values[0] else (at, 0)
                refuse_presence(has, lacks, "key", f"[{key!r}]")
    raise Mismatch(ValueError, (0, "keys that compare unequal to themselves"))


# -- types --------------------------------------------------------------------------------------


def refuse_type(values: Values, _defer: bool = False) -> NoReturn:
    """Refuse values of a class that no rule is about, with the way out that fits it."""
    value = values[0]
    raise Mismatch(TypeError, (0, f"type {class_name(value)}"), way_out=advice(value))


def advice(value: Any) -> str:
    """What to return instead of `value`."""
    for kinds, words in _ADVICE:
        if isinstance(value, kinds):
            return words
    kind = type(value)
    if kind.__module__ == "uuid":
        return "return str(...)"
    if hasattr(kind, "__array__") or hasattr(kind, "__array_interface__"):
        return "return numpy.asarray(...)"
    return (
        "return arrays, numbers, str, bytes, or dicts, lists, tuples or dataclasses of them, "
        "or give the DataLoader a collate_fn"
    )


_ADVICE: tuple[tuple[Any, str], ...] = (
    (
        type(None),
        "return a value, or leave the key out (a __getitem__ without a return gives None)",
    ),
    (enum.Enum, "return its .value or .name (members of an IntEnum become int64)"),
    ((set, frozenset), "return sorted(...), a list"),
    (os.PathLike, "return str(...)"),
    (dt.date, "return numpy.datetime64(...), or a number such as .timestamp()"),
    (dt.timedelta, "return numpy.timedelta64(...) or .total_seconds()"),
    (dt.time, "return .isoformat()"),
    (numbers.Number, "return float(...), or str(...) to keep every digit"),
    ((collections.abc.Iterator, collections.abc.MappingView), "return list(...)"),
)
