"""The samples of one batch: one by one, together, in lanes, or awaited on the loader's loop."""

from __future__ import annotations

import inspect
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from tundish.awaiting import Awaiting, discard
from tundish.errors_of_batches import Cancelled, is_samples_own, settle, some
from tundish.passes import Unread
from tundish.per_worker import DatasetFactory
from tundish.randomness import here
from tundish.skipping import Skips

if TYPE_CHECKING:
    from collections.abc import Callable

    from tundish._core import Lanes, Task
    from tundish.randomness import Place

    Outcome = tuple[Any, BaseException | None]

__all__ = ["Fetch"]


class Fetch:
    """Asks one dataset for samples, in the way that the dataset and the options call for.

    Args:
        dataset: has ``__getitem__`` or ``__getitems__``; or a ``DatasetFactory``.
        inline: the consumer's own thread does the work, so nobody can cancel between two samples.
        items_in_parallel: how many samples of a batch are loaded at once.
        lanes: threads for that; None to load them in this thread, or on the loop if they have to be
            awaited.
        awaiting: the loader's loop.
        skip: leave out samples that fail.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        inline: bool,
        items_in_parallel: int,
        lanes: Lanes | None,
        awaiting: Awaiting,
        skip: bool,
    ) -> None:
        self._dataset = dataset
        self._target = None if isinstance(dataset, DatasetFactory) else _Target(dataset)
        self._inline = inline
        self._width = items_in_parallel
        self._lanes = lanes
        self._awaiting = awaiting
        self._skips = Skips() if skip else None
        #: The type of sample that was found last not to be awaitable.
        self._plain: type | None = None

    def __call__(self, indices: list[int], task: Task, place: Place) -> list[Any]:
        """The samples of `indices`, less those that are left out; ``place.places`` says which."""
        if self._target is None and self._lanes is not None:
            # The lanes have datasets of their own; this thread needs none.
            return self._settled(self._outcomes(None, indices, task, place), indices, task, place)
        target = self._target or self._target_here(task)
        if target.together is not None and (self._width == 1 or not target.single):
            return self._fetch_together(target, indices, task, place)
        if self._skips is None and self._lanes is None and not target.awaits:
            samples = self._fetch_one_by_one(target.dataset, indices, task, place)
            kind = type(samples[0])
            # Only the first is looked at: that all of a batch have to be awaited or none is a rule,
            # and the default collate refuses what breaks it.
            if kind is self._plain or not hasattr(kind, "__await__"):
                self._plain = kind
                return samples
            return self._settled(self._awaited(samples, task, place), indices, task, place)
        return self._settled(self._outcomes(target, indices, task, place), indices, task, place)

    def given(self, items: list[Any], indices: list[int], task: Task, place: Place) -> list[Any]:
        """The samples that an iterable dataset gave, without those whose reading failed."""
        if self._skips is None or not any(type(item) is Unread for item in items):
            return items
        outcomes: list[Outcome | None] = [
            (None, item.error) if type(item) is Unread else (item, None) for item in items
        ]
        return self._settled(outcomes, indices, task, place)

    def single(self, index: Any, task: Task, place: Place) -> Any:
        """``dataset[index]``, for one index or for a list of them that the dataset understands."""
        target = self._target or self._target_here(task)
        where = f"dataset[{some(index) if isinstance(index, list) else index}]"
        try:
            value = target.dataset[index]
        except BaseException as error:
            settle(error, where, task)
        if inspect.isawaitable(value):
            value = self._await_one(value, where, task, place)
        return value

    def _target_here(self, task: Task) -> _Target:
        """This thread's own dataset."""
        instance = self._dataset._instance_for(task)
        if instance.target is None:
            instance.target = _Target(instance.dataset)
        target: _Target = instance.target
        return target

    # -- in this thread -------------------------------------------------------------------------

    def _fetch_one_by_one(
        self, dataset: Any, indices: list[int], task: Task, place: Place
    ) -> list[Any]:
        samples: list[Any] = []
        place.samples = samples
        append = samples.append
        index = -1
        try:
            if self._inline:
                for index in indices:
                    append(dataset[index])
            else:
                step = task.step
                for k, index in enumerate(indices):
                    if step(k):
                        raise Cancelled
                    append(dataset[index])
        except BaseException as error:
            discard(samples)
            settle(error, f"dataset[{index}]", task)
        place.samples = None
        return samples

    def _try_one_by_one(
        self, dataset: Any, indices: list[int], task: Task, place: Place
    ) -> list[Outcome | None]:
        """Like `_fetch_one_by_one`, but a sample's own failure doesn't end it."""
        outcomes: list[Outcome | None] = []
        place.samples = outcomes
        for k, index in enumerate(indices):
            if not self._inline and task.step(k):
                discard(outcome[0] for outcome in outcomes if outcome is not None)
                raise Cancelled
            outcomes.append(_try(dataset, index, task))
        place.samples = None
        return outcomes

    def _fetch_together(
        self, target: _Target, indices: list[int], task: Task, place: Place
    ) -> list[Any]:
        place.places = range(len(indices))
        where = f"dataset.__getitems__({some(indices)})"
        try:
            # A list of its own: user code may change it, and the indices are needed afterwards.
            result = target.together(list(indices))  # type: ignore[misc]
            if inspect.isawaitable(result):
                result = self._await_one(result, where, task, place)
            samples = _checked(result, indices)
        except BaseException as error:
            found = None
            if self._skips is not None and target.single and is_samples_own(error):
                self._skips.tell_of_fetch(error, indices, task)
                found = self._after_failure(target, indices, task, place)
            if found is None:
                settle(error, where, task)
            return found
        if _all_there(samples):
            return samples
        return self._settled(self._awaited(samples, task, place), indices, task, place)

    def _after_failure(
        self, target: _Target, indices: list[int], task: Task, place: Place
    ) -> list[Any] | None:
        """The samples one by one, of a batch whose batched fetch failed; None if that can't be."""
        place.places = None
        place.forget()
        outcomes = self._outcomes(target, indices, task, place)
        if all(o is not None and isinstance(o[1], NotImplementedError) for o in outcomes):
            # A base class's __getitem__, of a dataset that has only __getitems__.
            return None
        return self._settled(outcomes, indices, task, place)

    # -- side by side ---------------------------------------------------------------------------

    def _outcomes(
        self, target: _Target | None, indices: list[int], task: Task, place: Place
    ) -> list[Outcome | None]:
        """What became of each sample; None if it wasn't loaded."""
        if target is not None and target.awaits:
            load = target.load
            return self._on_loop(lambda k: load(indices[k]), len(indices), task, place.at)
        if target is None or self._lanes is not None:
            outcomes = self._in_lanes(indices, task, place)
        else:
            outcomes = self._try_one_by_one(target.dataset, indices, task, place)
        values = [None if outcome is None else outcome[0] for outcome in outcomes]
        if _all_there(values):
            return outcomes
        if self._skips is None and any(o is None or o[1] is not None for o in outcomes):
            discard(values)
            return outcomes
        for k, found in enumerate(self._awaited(values, task, place)):
            outcome = outcomes[k]
            if outcome is not None and outcome[1] is None:
                outcomes[k] = found
        return outcomes

    def _in_lanes(self, indices: list[int], task: Task, place: Place) -> list[Outcome | None]:
        assert self._lanes is not None

        def call(k: int) -> Any:
            before = here.get()
            try:
                here.set(place.at(k))
                return self._target_of_lane(task).load(indices[k])
            finally:
                here.set(before)

        try:
            return self._lanes.map(call, len(indices), self._width, task, self._skips is None)
        except BaseException as error:
            settle(error, f"dataset[k] for k in {some(indices)}", task)

    def _target_of_lane(self, task: Task) -> _Target:
        try:
            return self._target or self._target_here(task)
        except BaseException as error:
            raise _NoDataset from error

    def _awaited(self, values: list[Any], task: Task, place: Place) -> list[Outcome | None]:
        """`values` with those that are awaitable replaced by what comes of them."""
        outcomes: list[Outcome | None] = [(value, None) for value in values]
        open_ones = [k for k, value in enumerate(values) if inspect.isawaitable(value)]
        found = self._on_loop(
            lambda j: values[open_ones[j]],
            len(open_ones),
            task,
            lambda j: place.at(open_ones[j]),
        )
        for k, outcome in zip(open_ones, found, strict=True):
            outcomes[k] = outcome
        discard(values)  # those that weren't begun
        return outcomes

    def _await_one(self, value: Any, where: str, task: Task, place: Place) -> Any:
        (outcome,) = self._on_loop(lambda _: value, 1, task, lambda _: place)
        if outcome is None:
            discard([value])
            raise Cancelled
        result, error = outcome
        if error is not None:
            settle(error, where, task, elsewhere=True)
        return result

    def _on_loop(
        self,
        call: Callable[[int], Any],
        count: int,
        task: Task,
        at: Callable[[int], Place],
    ) -> list[Outcome | None]:
        stop = self._skips is None
        return self._awaiting.run(call, count, self._width, task, stop=stop, at=at)

    # -- what comes of it -----------------------------------------------------------------------

    def _settled(
        self, outcomes: list[Outcome | None], indices: list[int], task: Task, place: Place
    ) -> list[Any]:
        """The samples, if all are there; else the first error, or those that are left."""
        failed = {k: o[1] for k, o in enumerate(outcomes) if o is not None and o[1] is not None}
        try:
            fatal = [k for k, error in failed.items() if not self._may_skip(error)]
            if fatal:
                only = [failed[fatal[0]]]
                outcomes.clear()
                failed.clear()
                _refuse(only, f"dataset[{indices[fatal[0]]}]", task)
            if None in outcomes:
                raise Cancelled
            if self._skips is not None and failed:
                self._skips.leave_out(failed, indices, task)
                place.places = [k for k in range(len(indices)) if k not in failed]
            return [o[0] for o in outcomes if o is not None and o[1] is None]
        finally:
            # Frames that an error's traceback holds, and those below them, know these: unless they
            # are emptied, errors and samples stay until garbage is collected.
            outcomes.clear()
            failed.clear()

    def _may_skip(self, error: BaseException) -> bool:
        if self._skips is None or isinstance(error, _NoDataset):
            return False
        return is_samples_own(error, elsewhere=True)


class _Target:
    """A dataset and what it offers.

    Attributes:
        dataset: the dataset.
        together: its ``__getitems__``, if it has one.
        single: whether it has ``__getitem__``.
        awaits: whether that is a coroutine function. A plain one may still return awaitables.
    """

    __slots__ = ("awaits", "dataset", "single", "together")

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        together = getattr(dataset, "__getitems__", None)
        self.together = together if callable(together) else None
        getitem = getattr(type(dataset), "__getitem__", None)
        self.single = getitem is not None
        self.awaits = inspect.iscoroutinefunction(getitem)

    def load(self, index: int) -> Any:
        """Sample `index`, in a lane."""
        if not self.single:
            raise TypeError(
                f"{type(self.dataset).__qualname__}, made by a DatasetFactory, has no __getitem__, "
                "which items_in_parallel needs; leave that at 1"
            )
        return self.dataset[index]


def _try(dataset: Any, index: int, task: Task) -> Outcome:
    """``dataset[index]``, or the sample's own failure: which doesn't lead to those of others."""
    try:
        return dataset[index], None
    except BaseException as error:
        if not is_samples_own(error):
            settle(error, f"dataset[{index}]", task)
        return None, error


def _refuse(only: list[BaseException], where: str, task: Task) -> NoReturn:
    """Take the error out of the list, which has no other, and raise it as that of the batch."""
    error = only.pop()
    try:
        if isinstance(error, _NoDataset) and error.__cause__ is not None:
            raise error.__cause__
        settle(error, where, task, elsewhere=True)
    finally:
        del error


class _NoDataset(Exception):
    """A lane's own dataset couldn't be made, for the reason that is the cause."""


def _all_there(samples: list[Any]) -> bool:
    """Whether none of `samples` has to be awaited."""
    return not any(hasattr(kind, "__await__") for kind in {*map(type, samples)})


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
