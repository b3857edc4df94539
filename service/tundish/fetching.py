"""The samples of one batch: one by one, together, in lanes, or awaited on the loader's loop."""

from __future__ import annotations

import inspect
from itertools import islice
from typing import TYPE_CHECKING, Any

from tundish.awaiting import Awaiting, discard
from tundish.errors_of_batches import Cancelled, is_samples_own, settle, some
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
    ) -> list[Outcome]:
        """Like `_fetch_one_by_one`, but a sample's own failure doesn't end it."""
        outcomes: list[Outcome] = []
        place.samples = outcomes
        for k, index in enumerate(indices):
            try:
                if not self._inline and task.step(k):
                    raise Cancelled
                outcomes.append((dataset[index], None))
            except BaseException as error:
                if not is_samples_own(error):
                    discard(value for value, _ in outcomes)
                    settle(error, f"dataset[{index}]", task)
                outcomes.append((None, error))
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
            if self._skips is None or not target.single or not is_samples_own(error):
                settle(error, where, task)
            place.places = None
            return self._after_failure(error, target, indices, task, place)
        if _all_there(samples):
            return samples
        return self._settled(self._awaited(samples, task, place), indices, task, place)

    def _after_failure(
        self,
        error: BaseException,
        target: _Target,
        indices: list[int],
        task: Task,
        place: Place,
    ) -> list[Any]:
        """The samples one by one, of a batch whose batched fetch failed with `error`."""
        assert self._skips is not None
        self._skips.tell_of_fetch(error, indices, task)
        place.forget()
        outcomes = self._outcomes(target, indices, task, place)
        if all(o is not None and isinstance(o[1], NotImplementedError) for o in outcomes):
            # A base class's __getitem__, of a dataset that has only __getitems__.
            settle(error, f"dataset.__getitems__({some(indices)})", task)
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
            outcomes = [*self._try_one_by_one(target.dataset, indices, task, place)]
        values = [None if outcome is None else outcome[0] for outcome in outcomes]
        if _all_there(values):
            return outcomes
        if self._skips is None and any(o is None or o[1] is not None for o in outcomes):
            discard(values)
            return outcomes
        awaited = self._awaited(values, task, place)
        return [o if o is None or o[1] is not None else awaited[k] for k, o in enumerate(outcomes)]

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
        failed: dict[int, BaseException] = {}
        for k, outcome in enumerate(outcomes):
            error = None if outcome is None else outcome[1]
            if error is None:
                continue
            if isinstance(error, _NoDataset) and error.__cause__ is not None:
                raise error.__cause__
            if self._skips is None or not is_samples_own(error, elsewhere=True):
                settle(error, f"dataset[{indices[k]}]", task, elsewhere=True)
            failed[k] = error
        found = [outcome for outcome in outcomes if outcome is not None]
        if len(found) < len(outcomes):
            raise Cancelled
        if self._skips is not None and failed:
            self._skips.leave_out(failed, indices, task)
            place.places = [k for k in range(len(indices)) if k not in failed]
        return [value for value, error in found if error is None]


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
