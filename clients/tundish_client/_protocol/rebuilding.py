"""Exceptions from the header of an ERROR message.

The server names a class; it can't make the client import anything or run any constructor. Only
classes that are already imported are looked up, only subclasses of Exception are built, and only
by the builtin class they derive from.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from tundish_client.errors import RemoteError

from .resolving import resolve

__all__ = ["decode_exception", "native_attributes"]

# Kept by builtin classes outside __dict__.
_NATIVE: tuple[tuple[type[BaseException], tuple[str, ...]], ...] = (
    (OSError, ("errno", "strerror", "filename", "filename2")),
    (ImportError, ("msg", "name", "path")),
    (NameError, ("name",)),
    (AttributeError, ("name", "obj")),
    (
        SyntaxError,
        ("msg", "filename", "lineno", "offset", "text", "end_lineno", "end_offset"),
    ),
)

# Attributes that are not kept in __dict__: slots, and those of builtin classes.
_IN_C = (types.MemberDescriptorType, types.GetSetDescriptorType)

# They end loops and programs: raised for a batch, they would be taken for that.
_CONTROL_FLOW = (StopIteration, StopAsyncIteration, GeneratorExit, SystemExit, KeyboardInterrupt)


def native_attributes(exc: BaseException) -> tuple[str, ...]:
    """Names of the attributes that the builtin class of an exception keeps for itself."""
    for base, names in _NATIVE:
        if isinstance(exc, base):
            return names
    return ()


def decode_exception(header: dict[str, Any]) -> Exception:
    """Rebuilds the exception of an ERROR message.

    Args:
        header: The header of the message.

    Returns:
        An instance of the same class, if it is builtin or already imported here and a subclass of
        Exception; else a `RemoteError`. It has `remote_traceback` (str) and the same text as a
        note. Missing or malformed entries of the header are passed over.
    """
    module, qualname = _names(header.get("type"))
    exc = _rebuild(header, module, qualname)
    text = _str(header.get("traceback"))
    if exc is None:
        name = qualname if module == "builtins" else f"{module}.{qualname}"
        exc = RemoteError(_str(header.get("message")), name, text)
    _set(exc, "remote_traceback", text)
    notes = header.get("notes")
    for note in notes if type(notes) is list else ():
        _note(exc, note)
    if text:
        _note(exc, "Traceback in the server:\n" + text.rstrip())
    return exc


def _names(value: object) -> tuple[str, str]:
    if type(value) is list and len(value) == 2 and all(type(name) is str for name in value):
        return value[0], value[1]
    return "builtins", "Exception"


def _str(value: object) -> str:
    return value if type(value) is str else ""


def _note(exc: BaseException, note: object) -> None:
    if type(note) is str:
        try:
            # Not add_note: it asks the class, whose __getattr__ may raise what it likes.
            vars(exc).setdefault("__notes__", []).append(note)
        except Exception:  # no __dict__
            pass


def _find(module: str, qualname: str) -> type[Exception] | None:
    """Finds a class among the modules imported so far, without running code of theirs."""
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        # Not getattr: a module's __getattr__ may import.
        try:
            found = vars(found).get(name)
        except TypeError:
            return None
    if not isinstance(found, type) or not issubclass(found, Exception):
        return None
    return None if issubclass(found, _CONTROL_FLOW) else found


def _rebuild(header: dict[str, Any], module: str, qualname: str) -> Exception | None:
    cls = _find(module, qualname)
    if cls is None:
        return None
    args = _resolved(header.get("args"), list)
    attributes = _resolved(header.get("attributes"), dict)
    try:
        if issubclass(cls, BaseExceptionGroup):
            exc = _group(cls, args, header.get("group"))
        else:
            exc = _plain(cls, args)
    except Exception:
        return None
    for name, value in attributes.items():
        if type(name) is str and not (name.startswith("__") and name.endswith("__")):
            _set(exc, name, value)
    return exc


def _resolved(tree: object, kind: type) -> Any:
    try:
        value = resolve(tree)
    except Exception:
        # One argument of a class that is unknown here: keep the others.
        if type(tree) is list:
            return [_one(item) for item in tree]
        if type(tree) is dict:
            return {key: _one(item) for key, item in tree.items() if type(key) is str}
        return kind()
    return value if type(value) is kind else kind()


def _one(tree: object) -> Any:
    try:
        return resolve(tree)
    except Exception as error:
        return f"<{error}>"


def _plain(cls: type[Exception], args: list[Any]) -> Exception:
    """Makes an instance by the builtin base alone; user constructors may want anything."""
    base: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    exc: Exception = base.__new__(cls, *args)
    try:
        base.__init__(exc, *args)
    except TypeError:
        # A subclass with other arguments than its builtin base, say of UnicodeDecodeError.
        if issubclass(cls, UnicodeError) and base is not UnicodeError:
            raise
    object.__setattr__(exc, "args", tuple(args))  # not through a __setattr__ of the class
    return exc


def _group(cls: type, args: list[Any], members: object) -> Exception:
    found = members if type(members) is list else []
    errors = [decode_exception(member) for member in found if type(member) is dict]
    message = args[0] if args and type(args[0]) is str else ""
    exc: Exception = ExceptionGroup.__new__(cls, message, errors)
    return exc


def _set(exc: BaseException, name: str, value: object) -> None:
    """Sets an attribute without running any code of the class."""
    place = next((vars(base)[name] for base in type(exc).__mro__ if name in vars(base)), None)
    try:
        if isinstance(place, _IN_C):
            object.__setattr__(exc, name, value)
        else:
            vars(exc)[name] = value
    except Exception:  # read-only, or of another type than the class wants
        pass
