"""User classes that may come back as themselves: namedtuples, dataclasses and Enums.

The server sends their name and their fields, never code. A client builds only classes it has
registered, and never imports a module because a server named it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from typing import Any, TypeVar

__all__ = ["build_object", "describe_object", "is_namedtuple", "register"]

T = TypeVar("T", bound=type)

_classes: dict[tuple[str, str], type] = {}


def register(cls: T) -> T:
    """Lets values of a class arrive as that class. Usable as a decorator.

    Args:
        cls: A namedtuple class, a dataclass or an Enum. It is found again by its module and
            qualified name, which must be the same in the server and in the client.

    Returns:
        `cls`.

    Raises:
        TypeError: `cls` is none of these.
    """
    if kind_of(cls) is None:
        raise TypeError(f"register() takes namedtuples, dataclasses and Enums, got {cls!r}")
    _classes[cls.__module__, cls.__qualname__] = cls
    return cls


def is_namedtuple(cls: type) -> bool:
    """Whether the class was made by `collections.namedtuple` or `typing.NamedTuple`."""
    return (
        issubclass(cls, tuple)
        and type(getattr(cls, "_fields", None)) is tuple
        and callable(getattr(cls, "_make", None))
    )


def kind_of(cls: object) -> str | None:
    """Names the kind of a class that may be sent, None for all others."""
    if not isinstance(cls, type):
        return None
    if issubclass(cls, enum.Enum):
        return "enum"
    if is_namedtuple(cls):
        return "namedtuple"
    return "dataclass" if dataclasses.is_dataclass(cls) and _has_fields_only(cls) else None


@functools.lru_cache(256)
def _has_fields_only(cls: type) -> bool:
    """Whether objects of a dataclass are no dict, list or exception besides.

    Those hold more than fields, and can't be made without their own ``__new__``.
    """
    made = (vars(base).get("__new__") for base in cls.__mro__ if base is not object)
    return not any(isinstance(new, types.BuiltinFunctionType) for new in made)


def describe_object(value: object) -> tuple[str, str, str, Any] | None:
    """Takes an object apart: (kind, module, qualname, payload), None if it may not be sent.

    The payload is a list of the fields of a namedtuple, a dict of those of a dataclass, the name of
    an Enum member (the int of a Flag).
    """
    cls = type(value)
    kind = kind_of(cls)
    if kind is None:
        return None
    payload: Any
    if isinstance(value, enum.Flag):
        payload = int(value.value)
    elif isinstance(value, enum.Enum):
        payload = value.name
    elif kind == "namedtuple":
        payload = list(value)  # type: ignore[call-overload]
    else:
        payload = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)  # type: ignore[arg-type]
            if hasattr(value, field.name)
        }
    return kind, cls.__module__, cls.__qualname__, payload


def build_object(kind: object, module: object, qualname: object, payload: Any) -> object:
    """Puts an object together again.

    Raises:
        TypeError: The class is not registered, or is not what the server's was.
    """
    cls = _classes.get((module, qualname))  # type: ignore[arg-type]
    name = f"{module}.{qualname}"
    if cls is None:
        others = [known for known in _classes if known[1] == qualname]
        hint = f"call tundish_client.register({qualname}) before reading"
        if others:
            hint = (
                f"{others[0][0]}.{qualname} is registered, but it must be the class of module "
                f"{module}: define it in a module that both import"
            )
        raise TypeError(f"the batch holds a {name}, which this client does not know: {hint}")
    if kind_of(cls) == kind:
        try:
            return _build(cls, payload)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise TypeError(f"cannot build a {name} from {payload!r:.80}: {error}") from error
    raise TypeError(f"{name} is a {kind} in the server, but a {kind_of(cls)} in this client")


def _build(cls: type, payload: Any) -> object:
    if issubclass(cls, enum.Enum):
        return cls(payload) if issubclass(cls, enum.Flag) else cls[payload]
    if issubclass(cls, tuple):
        fields = cls._fields  # type: ignore[attr-defined]
        if len(payload) != len(fields):
            raise TypeError(f"its fields here are {', '.join(fields)}")
        return tuple.__new__(cls, payload)
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if not payload.keys() <= names:
        raise TypeError(f"its fields here are {', '.join(sorted(names))}")
    # Neither __init__ nor __post_init__: the fields are as they were, and may be frozen.
    built = object.__new__(cls)
    for name, value in payload.items():
        object.__setattr__(built, name, value)
    return built
