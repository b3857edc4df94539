"""Exceptions to headers and back.

An exception travels as the name of its class, its arguments, its attributes and the text of its
traceback, never as code. The client rebuilds it if the class is builtin, or an Exception class of
a module it has imported itself; otherwise it raises a `RemoteError` that names the class.

Sizes are capped, so that an error fits into any head: the message, each str and each other
argument or attribute at 64 KiB, all arguments and attributes together at 256 KiB, the traceback at
128 KiB, the notes at 64 KiB. What was cut or left out is said in a note.
"""

from __future__ import annotations

import itertools
import traceback
from typing import Any

import msgpack

from tundish_client.errors import TundishError

from .rebuilding import decode_exception, native_attributes
from .resolving import SURROGATES
from .values import encode_inline, unpack_raw

__all__ = ["decode_exception", "encode_exception", "encode_refusal"]

MAX_MESSAGE = 64 * 1024
MAX_ITEM = 64 * 1024
MAX_ITEMS = 256 * 1024
MAX_TRACEBACK = 128 * 1024
MAX_NOTES = 64 * 1024
MAX_SURROGATES = 4 * 1024
MAX_COUNT = 256
MAX_GROUP = 32
MAX_GROUP_DEPTH = 3

# Python's own bookkeeping, and what the client sets itself.
_NOT_ATTRIBUTES = frozenset(("__notes__", "remote_traceback"))

_OURS = frozenset(("tundish", "tundish_client"))


def encode_exception(exc: BaseException) -> dict[str, Any]:
    """Describes an exception for the header of an ERROR message.

    Never raises, whatever the exception does in `__str__`, `__repr__` or `__reduce__`.

    Args:
        exc: Any exception, with or without a traceback.

    Returns:
        `type` ([module, qualname]), `message`, `args`, `attributes`, `traceback`, `notes`, and for
        an ExceptionGroup `group` (a list of the same). All of it can be packed in a header.
    """
    try:
        return _encode(exc, 0, _Budget())
    except Exception as error:
        # Not known to happen; but an error must never get lost.
        message = f"an exception that cannot be described: {_type(error)}"
        return {"type": ["builtins", type(exc).__qualname__], "message": message}


def encode_refusal(exc: BaseException) -> dict[str, Any]:
    """Describes an exception that answers a request, for the header of an ERROR message.

    What Tundish itself has to say about a request is in its message. A traceback is sent where code
    of others was running: where in there it was raised, only that says.
    """
    header = encode_exception(exc)
    try:
        packages = _packages(exc)
    except Exception:  # of a class that has a __cause__ of its own
        return header
    if not packages or (isinstance(exc, TundishError) and packages <= _OURS):
        header["traceback"] = ""
    return header


def _packages(exc: BaseException) -> set[str]:
    """The packages whose code was running when it was raised, or what it comes from."""
    if isinstance(exc, BaseExceptionGroup):
        return {"of its members"}
    found: set[str] = set()
    seen: set[int] = set()
    at: BaseException | None = exc
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        for frame, _ in traceback.walk_tb(at.__traceback__):
            found.add(str(frame.f_globals.get("__name__")).partition(".")[0])
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return found


class _Budget:
    """What arguments and attributes may still take, over an exception and its group."""

    def __init__(self) -> None:
        self.left = MAX_ITEMS
        self.objects = MAX_GROUP


def _encode(exc: BaseException, level: int, budget: _Budget) -> dict[str, Any]:
    cls = type(exc)
    remarks: list[str] = []
    header: dict[str, Any] = {
        "type": [_clean(str(cls.__module__), 512), _clean(str(cls.__qualname__), 512)],
        "message": _message(exc),
        "args": _args(exc, budget, remarks),
        "attributes": _attributes(exc, budget, remarks),
        "traceback": _traceback(exc) if level == 0 else "",
    }
    if isinstance(exc, BaseExceptionGroup):
        header["group"] = _group(exc, level, budget, remarks)
    header["notes"] = _notes(exc, remarks)
    return header


def _message(exc: BaseException) -> str:
    """`str(exc)`; for what would end a program `repr(exc)`, which says what it was."""
    try:
        text = str(exc) if isinstance(exc, Exception) else repr(exc)
    except Exception as error:
        text = f"<{type(exc).__qualname__} whose text cannot be made: {type(error).__qualname__}>"
    return _clean(text, MAX_MESSAGE)


def _clean(text: str, limit: int) -> str:
    """Cuts a text to `limit` bytes, and escapes what UTF-8 has no bytes for."""
    total = len(text)
    data = text[:limit].encode("utf-8", "backslashreplace")
    if total <= limit and len(data) <= limit:
        return data.decode()
    end = f"... (cut, {total} characters in all)"
    return data[: limit - len(end)].decode("utf-8", "ignore") + end


def _cut_middle(text: str, limit: int) -> str:
    """Keeps both ends of a traceback: where it began and what it ended with."""
    # Only the ends are encoded: the text may be 50 MB.
    left = text[:limit].encode("utf-8", "backslashreplace")
    if len(text) <= limit and len(left) <= limit:
        return left.decode()
    right = text[-limit:].encode("utf-8", "backslashreplace")
    half = limit // 2 - 64
    left, right = left[:half], right[-half:]
    middle = f"\n... (cut, {len(text)} characters in all) ...\n"
    return left.decode("utf-8", "ignore") + middle + right.decode("utf-8", "ignore")


def _args(exc: BaseException, budget: _Budget, remarks: list[str]) -> list[Any]:
    """Packs the arguments; one that cannot be sent is replaced by its text."""
    args = exc.args if type(exc.args) is tuple else ()
    if isinstance(exc, BaseExceptionGroup):
        args = args[:1]  # the exceptions stand in `group`
    out: list[Any] = []
    for i, value in enumerate(args[:MAX_COUNT]):
        packed = _pack(value, budget)
        if packed is None:
            remarks.append(f"argument {i} ({_type(value)}) was replaced by its text")
            packed = _pack(_shown(value), budget)
        out.append(None if packed is None else unpack_raw(packed))
    return out


def _attributes(exc: BaseException, budget: _Budget, remarks: list[str]) -> dict[str, Any]:
    """Packs what the exception carries; what cannot be sent is left out and named."""
    out: dict[str, Any] = {}
    for name, value in itertools.islice(_carried(exc).items(), MAX_COUNT):
        packed = _pack(value, budget)
        if packed is None:
            remarks.append(f"attribute {_clean(name, 256)} ({_type(value)}) was left out")
        else:
            out[_clean(name, 256)] = unpack_raw(packed)
    return out


def _carried(exc: BaseException) -> dict[str, Any]:
    """Attributes in `__dict__`, in `__slots__`, and those that builtin classes keep in C."""
    found: dict[str, Any] = {}
    for name in (*native_attributes(exc), *_slots(type(exc))):
        try:
            value = getattr(exc, name)
        except Exception:  # an empty slot, or a __getattr__ of its own
            value = None
        if value is not None:
            found[name] = value
    found.update(_vars(exc))
    return {k: v for k, v in found.items() if type(k) is str and k not in _NOT_ATTRIBUTES}


def _vars(exc: BaseException) -> dict[str, Any]:
    """The instance's `__dict__`, whatever its class does about attributes."""
    try:
        return vars(exc)
    except Exception:
        return {}


def _slots(cls: type) -> list[str]:
    names: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else [s for s in slots if type(s) is str]
    return [name for name in names if name not in {"__dict__", "__weakref__"}]


def _pack(value: Any, budget: _Budget) -> bytes | None:
    """Packs one argument or attribute, None if it cannot be sent or takes too much."""
    if type(value) is str:
        special = _surrogates(value)
        if special is not None and len(special) <= budget.left:
            budget.left -= len(special)
            return special
        value = _clean(value, MAX_ITEM)
    elif type(value) is bytes:
        value = value[:MAX_ITEM]
    try:
        packed = encode_inline(value)
    except Exception:
        return None
    if len(packed) > min(MAX_ITEM + 16, budget.left):
        return None
    budget.left -= len(packed)
    return packed


def _surrogates(value: str) -> bytes | None:
    """Packs a str that UTF-8 has no bytes for, such as the name of a file that isn't UTF-8."""
    if len(value) > MAX_SURROGATES or value.isascii():
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        data = value.encode("utf-8", "surrogatepass")
        return bytes(msgpack.packb(msgpack.ExtType(SURROGATES, data)))
    return None


def _shown(value: object) -> str:
    try:
        return _clean(repr(value), 1024)
    except Exception:
        return f"<{_type(value)}>"


def _type(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _traceback(exc: BaseException) -> str:
    """The traceback as Python prints it, with all causes; cycles and bad `__str__` are no harm."""
    try:
        text = "".join(traceback.format_exception(exc))
    except Exception as error:
        try:
            text = "".join(traceback.format_tb(exc.__traceback__))
        except Exception:
            text = ""
        text += f"{_type(exc)} (the rest could not be printed: {_type(error)})\n"
    return _cut_middle(text, MAX_TRACEBACK)


def _group(
    exc: BaseExceptionGroup[Any], level: int, budget: _Budget, remarks: list[str]
) -> list[dict[str, Any]]:
    members = exc.exceptions if level < MAX_GROUP_DEPTH else ()
    out = []
    for member in members[: budget.objects]:
        budget.objects -= 1
        out.append(_encode(member, level + 1, budget))
    if len(out) < len(exc.exceptions):
        remarks.append(f"{len(exc.exceptions) - len(out)} exceptions of the group were left out")
    return out


def _notes(exc: BaseException, remarks: list[str]) -> list[str]:
    notes = _vars(exc).get("__notes__")
    own = [note for note in notes if type(note) is str] if type(notes) is list else []
    out: list[str] = []
    left = MAX_NOTES
    for note in (*own[:MAX_COUNT], *(f"not sent: {remark}" for remark in remarks)):
        text = _clean(note, MAX_NOTES // 4)
        left -= len(text.encode())
        if left < 0:
            out.append("(further notes were left out)")
            break
        out.append(text)
    return out
