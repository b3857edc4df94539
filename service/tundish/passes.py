"""One pass over an iterable of the user's, of which nothing is lost and nothing goes unnoticed.

A signal handler may raise between any two steps of Python, and out of the middle of the user's own
iterator. So values go from the iterator into a list within one step of C, the end is a value of its
own, and what stands in the list tells the next call where the last one was cut short.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from itertools import chain, islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from tundish.errors_of_batches import Cancelled, _from_signal, settle

if TYPE_CHECKING:
    from tundish._core import Task

__all__ = ["END", "PATIENCE", "Got", "Pass", "Unread", "waiting"]

END: Final = object()
"""Stands behind the last value of an iterator."""

# Values between two looks at whether the run was cancelled, and the seconds they should take.
_MOST = 256
_BRIEF = 0.002
# An iterator that only raises, so many times in a row, will do nothing else.
PATIENCE: Final = 1000
_POLL = 0.002


class Unread:
    """Stands in the place of a value when the iterator raised `error` instead of giving one."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"Unread({type(self.error).__name__})"


class Got:
    """What one batch has read: values, ``Unread`` in the places of some, ``END`` after the last.

    Attributes:
        values: the list of them.
        torn: where an interrupt came out of the iterator, or -1.
        failed: whether an error came out of it, now or for an earlier batch.
        given_up: whether it was given up, since it only raised.
    """

    __slots__ = ("_in_a_row", "_stride", "_wanted", "failed", "given_up", "torn", "values")

    failed: bool
    _stride: int
    _in_a_row: int

    def __init__(self, before: Got | None = None) -> None:
        self.values: list[Any] = []
        self.torn = -1
        self.given_up = False
        self.failed = before is not None and before.failed
        self._wanted = 0
        self._stride = 1 if before is None else before._stride
        self._in_a_row = 0 if before is None else before._in_a_row

    @property
    def ended(self) -> bool:
        """Whether the iterator came to its end."""
        return bool(self.values) and self.values[-1] is END

    def pull(
        self,
        stream: Iterator[Any],
        count: int,
        cancelled: Callable[[], bool],
        settled: Callable[[BaseException, int], BaseException],
    ) -> None:
        """Read on until there are `count` values, or the end. An error counts as a value.

        Args:
            stream: gives the values, and END after the last.
            count: how many.
            cancelled: asked every millisecond or so, and at least every 256 values.
            settled: makes an error that came at a place the error of a batch.

        Raises:
            Cancelled: `cancelled` says so. Whatever was read stays.
            BaseException: what a signal handler raised; the next call reads on.
        """
        values = self.values
        while len(values) < count and not self.ended:
            if cancelled():
                raise Cancelled
            if len(values) < self._wanted:
                self.torn = len(values)
            before, began = len(values), time.monotonic()
            wanted = min(count, before + self._stride)
            some = islice(stream, wanted - before)
            try:
                # Nothing is called between these two, so no handler runs between them either.
                self._wanted = wanted
                values.extend(some)
            except BaseException as error:
                if _from_signal(error):
                    raise
                self._note(settled(error, len(values)), fresh=len(values) > before)
            else:
                self._in_a_row = 0
                self._adapt(time.monotonic() - began)

    def begin(self) -> None:
        """Forget that an interrupt came out of an iterator that is given up for a new one."""
        self.torn, self._wanted = -1, 0

    def put(self, error: BaseException) -> None:
        """`error` instead of the next value."""
        self.failed = True
        # An interrupt between the next two lines must look like one that came out of the iterator.
        self._wanted = len(self.values) + 1
        self.values.append(Unread(error))

    def _note(self, error: BaseException, *, fresh: bool) -> None:
        self._in_a_row = 1 if fresh else self._in_a_row + 1
        self.put(error)
        if self._in_a_row >= PATIENCE:
            self.given_up = True
            self.values.append(END)

    def _adapt(self, seconds: float) -> None:
        """Few values at once where each takes long: between two of them a run can be stopped."""
        if seconds > _BRIEF:
            self._stride = max(1, self._stride // 4)
        elif seconds < _BRIEF / 4:
            self._stride = min(_MOST, self._stride * 2)


class _Place(NamedTuple):
    """Where an error belongs."""

    batch: int
    epoch: int


class Pass:
    """One pass over `iterable`, begun when the first value is asked for.

    Args:
        iterable: the user's; its ``set_epoch(epoch)``, or that of the sampler within it, is called
            before ``iter()``. Both and the first value come under one lock of that object, so two
            passes that begin at once don't get each other's epoch.
        what: what errors call it.
        epoch: the epoch.

    Not for use by two threads at once.
    """

    __slots__ = ("__weakref__", "_epoch", "_iterable", "_iterator", "_stream", "what")

    def __init__(self, iterable: Any, what: str, epoch: int) -> None:
        self.what = what
        self._iterable = iterable
        self._epoch = epoch
        self._iterator: Any = None
        self._stream: Iterator[Any] = iter((END,))

    def fill(
        self, got: Got, count: int, place: tuple[int, int], cancelled: Callable[[], bool]
    ) -> None:
        """Read into `got` until it has `count` values or the end.

        Args:
            got: of this batch.
            count: how many.
            place: (batch, number of the values that came before this batch's), for errors.
            cancelled: whether to give up.

        Raises:
            Cancelled: `cancelled` says so.
            BaseException: what a signal handler raised. Call again to read on.
        """
        if got.ended or len(got.values) >= count:
            return
        batch, first = place

        def settled(error: BaseException, at: int) -> BaseException:
            return self._settled(error, f"{self.what}, yield {first + at}", batch)

        if first == 0 and not got.values:
            self._begin(got, settled, batch, cancelled)
        if self._iterator is not None and not self._owned():
            self._lose(got, batch)
        got.pull(self._stream, count, cancelled, settled)

    def _begin(
        self,
        got: Got,
        settled: Callable[[BaseException, int], BaseException],
        batch: int,
        cancelled: Callable[[], bool],
    ) -> None:
        """Begin, or begin again after an interrupt that came before the first value."""
        try:
            target = _with_set_epoch(self._iterable)
        except BaseException as error:
            self._fail(got, error, "set_epoch", batch)
            return
        lock = _lock_of(self._iterable if target is None else target)
        waiting(lock, cancelled)
        with lock:
            try:
                if target is not None:
                    target.set_epoch(self._epoch)
                iterator = _fresh(self._iterable, self.what)
            except BaseException as error:
                calls = "iter()" if target is None else f"set_epoch({self._epoch}) and iter()"
                self._fail(got, error, calls, batch)
                return
            self._iterator = iterator
            self._stream = chain(iterator, (END,))
            _own(iterator, self)
            got.begin()
            # A generator looks at its object's epoch only here.
            got.pull(self._stream, 1, cancelled, settled)

    def _fail(self, got: Got, error: BaseException, calls: str, batch: int) -> None:
        """There is nothing but this error, unless a signal handler raised it."""
        if _from_signal(error):
            raise error
        self._iterator, self._stream = None, iter((END,))
        got.put(self._settled(error, f"{calls} of {self.what}", batch))

    def _owned(self) -> bool:
        owner = _owners.get(id(self._iterator))
        return owner is not None and owner() is self

    def _lose(self, got: Got, batch: int) -> None:
        """Another pass began on the very same iterator: what it gives isn't this epoch any more."""
        error = RuntimeError(
            f"iter({self.what}) gave an iterator that another epoch uses too, so epoch "
            f"{self._epoch} can't be read on from batch {batch}; let __iter__ return a new "
            "iterator each time, or read one epoch after the other"
        )
        self._stream = iter((END,))
        self._iterator = None
        got.put(error)

    def _settled(self, error: BaseException, where: str, batch: int) -> BaseException:
        """`error` as the error of this batch, without our frames, which lead back to it."""
        trace = error.__traceback__ and error.__traceback__.tb_next
        BaseException.with_traceback(error, trace)
        try:
            settle(error, where, cast("Task", _Place(batch, self._epoch)), elsewhere=True)
        except BaseException as own:
            if own is not error and _from_signal(own):
                raise
            return BaseException.with_traceback(own, trace if own is error else None)


def waiting(lock: Any, cancelled: Callable[[], bool]) -> None:
    """Wait until `lock` seems free, as long as nobody cancels.

    Then take it by ``with``, between whose first and second step no signal handler runs.
    """
    while lock.locked():
        if cancelled():
            raise Cancelled
        time.sleep(_POLL)


def _with_set_epoch(iterable: Any) -> Any:
    """`iterable`, or the sampler in it (in it ...), that is to be told the epoch; None if none."""
    for _ in range(8):
        if callable(getattr(iterable, "set_epoch", None)):
            return iterable
        iterable = getattr(iterable, "sampler", None)
    return None


def _fresh(iterable: Any, what: str) -> Iterator[Any]:
    """A new iterator; an error for one that is known to be over."""
    iterator: Iterator[Any] = iter(iterable)
    if (
        isinstance(iterator, GeneratorType)
        and inspect.getgeneratorstate(iterator) == inspect.GEN_CLOSED
    ):
        raise RuntimeError(
            f"iter({what}) returned a generator that is over already; let __iter__ make a new one "
            "for every epoch"
        )
    return iterator


# -- what several passes share ---------------------------------------------------------------------

# By id: the keys are looked up while the objects are alive. Nothing runs when an entry dies (a
# Ctrl-C in a weak reference's callback would be lost), so dead ones are swept now and then.
_locks: dict[int, weakref.ref[Any]] = {}
_owners: dict[int, weakref.ref[Any]] = {}
_registry = threading.Lock()


def _lock_of(thing: Any) -> Any:
    """The lock of `thing`, the same as long as anybody holds it."""
    with _registry:
        reference = _locks.get(id(thing))
        lock = None if reference is None else reference()
        if lock is None:
            lock = threading.Lock()
            _sweep(_locks)
            _locks[id(thing)] = weakref.ref(lock)
        return lock


def _own(iterator: Any, reader: Pass) -> None:
    with _registry:
        _sweep(_owners)
        _owners[id(iterator)] = weakref.ref(reader)


def _sweep(registry: dict[int, weakref.ref[Any]]) -> None:
    if len(registry) & (len(registry) - 1) == 0 and len(registry) >= 64:
        for key in [key for key, reference in registry.items() if reference() is None]:
            del registry[key]


def _after_fork() -> None:
    # A thread that exists in the parent only may hold any of them.
    global _registry  # noqa: PLW0603
    _registry = threading.Lock()
    _locks.clear()


os.register_at_fork(after_in_child=_after_fork)
