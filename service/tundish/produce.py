"""One batch from a Python dataset: fetch, collate, encode.

``Produce`` is what the engine's workers call. Whatever user code raises in here belongs to this
batch: ordinary exceptions keep their type and get a note saying where, and those that would end a
loop or a process (StopIteration, SystemExit, ...) become a RuntimeError. Only what a signal handler
raised in the main thread passes through unchanged, because it isn't the dataset's.
"""

from __future__ import annotations

import asyncio
import dis
import signal
import threading
import weakref
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tundish.collate import collate, default_collate
from tundish_client._protocol.values import encode_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from tundish._core import Task

__all__ = ["Produce", "WeakProduce"]

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


class Produce:
    """The engine's callable for a dataset in Python: indices to one batch.

    Args:
        dataset: has ``__getitem__`` or ``__getitems__``.
        collate_fn: list of samples -> batch; None for the default collate.
        inline: the consumer's own thread does the work, so nobody can cancel between two samples.
    """

    __slots__ = ("__weakref__", "_collate_fn", "_dataset", "_getitems", "_inline")

    def __init__(
        self, dataset: Any, collate_fn: Callable[[list[Any]], Any] | None, *, inline: bool = False
    ) -> None:
        self._dataset = dataset
        self._inline = inline
        self._collate_fn = None if collate_fn is default_collate else collate_fn
        getitems = getattr(dataset, "__getitems__", None)
        self._getitems = getitems if callable(getitems) else None

    def __call__(self, indices: list[int], task: Task) -> Any:
        """Make batch `task.batch`: the packed value with ``task.encode``, else the object."""
        batch = self._batch(self._fetch(indices, task), indices, task)
        return self._encode(batch, indices, task) if task.encode else batch

    # -- fetch ----------------------------------------------------------------------------------

    def _fetch(self, indices: list[int], task: Task) -> list[Any]:
        if self._getitems is not None:
            return self._fetch_together(indices, task)
        dataset = self._dataset
        cancelled = None if self._inline else task.cancelled
        samples: list[Any] = []
        append = samples.append
        index = -1
        try:
            for index in indices:
                append(dataset[index])
                if cancelled is not None and cancelled():
                    raise _Cancelled
        except BaseException as error:
            _settle(error, f"dataset[{index}]", task)
        return samples

    def _fetch_together(self, indices: list[int], task: Task) -> list[Any]:
        where = f"dataset.__getitems__({_some(indices)})"
        try:
            # A list of its own: user code may change it, and the indices are needed afterwards.
            samples = _checked(self._getitems(list(indices)), indices)  # type: ignore[misc]
        except BaseException as error:
            _settle(error, where, task)
        return samples

    # -- collate and encode ---------------------------------------------------------------------

    def _batch(self, samples: list[Any], indices: list[int], task: Task) -> Any:
        try:
            if self._collate_fn is None:
                return collate(samples, indices, defer=task.encode)
            return self._collate_fn(samples)
        except BaseException as error:
            name = "default_collate" if self._collate_fn is None else "collate_fn"
            _settle(error, f"{name}, for dataset indices {_some(indices)}", task)

    def _encode(self, batch: Any, indices: list[int], task: Task) -> bytes:
        try:
            encoded = encode_value(batch)
            if encoded.nbytes:
                encoded.write_into(np.frombuffer(task.alloc(encoded.nbytes), np.uint8))
        except BaseException as error:
            _settle(error, f"encoding the batch of dataset indices {_some(indices)}", task)
        return encoded.packed


class WeakProduce:
    """A ``Produce`` that is there as long as its epoch is."""

    __slots__ = ("_target",)

    def __init__(self, produce: Produce) -> None:
        self._target = weakref.ref(produce)

    def __call__(self, indices: list[int], task: Task) -> Any:
        """Like ``Produce``."""
        produce = self._target()
        if produce is None:
            raise _Cancelled
        return produce(indices, task)


class _Cancelled(Exception):
    """The run is over; nobody will see this batch or this error."""


def _checked(result: Any, indices: list[int]) -> list[Any]:
    """The samples of a batched fetch, exactly as many as asked for."""
    asked = len(indices)
    tail = f"for {asked} indices, the first of which is {indices[0]}"
    if result is None or isinstance(result, (str, bytes, dict)):
        kind = "None" if result is None else f"a {type(result).__name__}"
        raise TypeError(f"__getitems__ returned {kind} instead of {asked} samples {tail}")
    if not isinstance(result, (list, tuple)):
        # One more than asked is enough to know, and an endless iterator must end here.
        result = list(islice(iter(result), asked + 1))
    if len(result) != asked:
        more = "at least " if len(result) == asked + 1 else ""
        raise ValueError(
            f"__getitems__ returned {more}{len(result)} samples, expected {asked}, {tail}"
        )
    return list(result)


def _some(indices: list[int]) -> str:
    """The indices as text, the first few if there are many."""
    if len(indices) <= _SHOWN:
        return str(indices)
    return f"[{', '.join(map(str, indices[:_SHOWN]))}, ...] ({len(indices)} in all)"


# -- errors ------------------------------------------------------------------------------------


def _settle(error: BaseException, where: str, task: Task) -> NoReturn:
    """Raise `error` as this batch's own error, saying where it happened."""
    if isinstance(error, _Cancelled) or _from_signal(error):
        raise error
    place = f"{_NOTE}in {where}, batch {task.batch} of epoch {task.epoch}"
    if isinstance(error, _CONTROL):
        wrapped = RuntimeError(
            f"{where} raised {_shown(error)}; it is an error of this batch, no more"
        )
        wrapped.add_note(place)
        raise wrapped from error
    _annotate(error, place)
    raise error


def _shown(error: BaseException) -> str:
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
