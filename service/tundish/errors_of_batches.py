"""Whose error an exception is: the batch's, the run's end, or the process's.

Whatever user code raises while a batch is made belongs to that batch: ordinary exceptions keep
their type and get a note saying where, and those that would end a loop or a process (StopIteration,
SystemExit, ...) become a RuntimeError. Only what a signal handler raised in the main thread passes
through unchanged, because it isn't the dataset's.
"""

from __future__ import annotations

import asyncio
import dis
import signal
import threading
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType

    from tundish._core import Task

__all__ = ["Cancelled", "is_samples_own", "place_of", "settle", "shown", "some"]

_NOTE = "tundish: "
_SHOWN = 8
# These mean something to whoever runs the loop; raised by a dataset they are just its error.
_CONTROL = (
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
    SystemExit,
    KeyboardInterrupt,
    asyncio.CancelledError,
)
_RAISE = frozenset(dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))


class Cancelled(Exception):
    """The run is over; nobody will see this batch or this error."""


def settle(error: BaseException, where: str, task: Task, *, elsewhere: bool = False) -> NoReturn:
    """Raise `error` as the own error of `task`'s batch, saying where it happened.

    Args:
        error: what was caught.
        where: the call that raised it.
        task: the batch.
        elsewhere: it was raised on another thread than this one, so no signal handler did it.
    """
    try:
        if isinstance(error, Cancelled) or (not elsewhere and _from_signal(error)):
            raise error
        place = f"{_NOTE}in {place_of(where, task)}"
        if isinstance(error, _CONTROL):
            wrapped = RuntimeError(
                f"{where} raised {shown(error)}; it is an error of this batch, no more"
            )
            wrapped.add_note(place)
            raise wrapped from error
        _annotate(error, place)
        raise error
    finally:
        # The traceback holds this frame: nothing in it may lead back to the error, or both, and the
        # samples, would stay until garbage is collected.
        error = wrapped = None  # type: ignore[assignment]


def is_samples_own(error: BaseException, *, elsewhere: bool = False) -> bool:
    """Whether `error` is a failure of the sample that was being loaded, which may be left out."""
    if isinstance(error, Cancelled) or not isinstance(error, (Exception, *_CONTROL)):
        return False
    return elsewhere or not _from_signal(error)


def place_of(where: str, task: Task) -> str:
    """`where` with the batch and the epoch."""
    return f"{where}, batch {task.batch} of epoch {task.epoch}"


def some(indices: Sequence[Any]) -> str:
    """The indices as text, the first few if there are many."""
    if len(indices) <= _SHOWN:
        return f"[{', '.join(map(str, indices))}]"
    return f"[{', '.join(map(str, indices[:_SHOWN]))}, ...] ({len(indices)} in all)"


def shown(error: BaseException) -> str:
    """The repr of `error`, or its type where that fails."""
    try:
        return repr(error)
    except Exception:
        return f"{type(error).__name__}(...)"


def _annotate(error: BaseException, place: str) -> None:
    """Add the note; an exception object that was raised before carries its latest place only."""
    try:
        notes = getattr(error, "__notes__", None)
        if notes:
            notes[:] = [note for note in notes if not str(note).startswith(_NOTE)]
        error.add_note(place)
    except Exception:
        pass  # an exception that refuses notes is still the user's exception


def _from_signal(error: BaseException) -> bool:
    """Whether a signal handler raised `error`: then it is the process's, not the dataset's."""
    if threading.get_ident() != threading.main_thread().ident:
        return False  # Python runs signal handlers in the main thread only
    handlers = set(_handler_codes())
    last = trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        last, trace = trace, trace.tb_next
    if type(error) is not KeyboardInterrupt or last is None:
        return False
    # The default handler is C and leaves no frame: the interrupt then comes out of an instruction
    # that isn't a raise statement.
    return last.tb_frame.f_code.co_code[last.tb_lasti] not in _RAISE


def _handler_codes() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while hasattr(handler, "func"):  # functools.partial, as asyncio.Runner installs
            handler = handler.func
        handler = getattr(handler, "__func__", handler)
        code = getattr(handler, "__code__", None)
        if code is not None:
            yield code
