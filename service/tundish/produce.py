"""One batch from a Python dataset: fetch, collate, encode.

``Produce`` is what the engine's workers call. What user code raises in here is an error of this
batch, by the rules of ``errors_of_batches``.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from tundish.awaiting import Awaiting
from tundish.collate import collate, convert, default_collate
from tundish.errors_of_batches import Cancelled, settle, some
from tundish.fetching import Fetch
from tundish.per_worker import call_once_per_worker
from tundish.randomness import Origin, Place, here
from tundish_client._protocol.values import encode_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from tundish._core import Lanes, Task

__all__ = ["Produce", "WeakProduce"]


class Produce:
    """The engine's callable for a dataset in Python: indices to one batch.

    Args:
        dataset: has ``__getitem__`` or ``__getitems__``, plain or async; a ``DatasetFactory``; or
            an iterable dataset, whose samples come with the task.
        collate_fn: list of samples -> batch; None for the default collate.
        inline: the consumer's own thread does the work, so nobody can cancel between two samples.
        seed: the loader's, for ``sample_rng``.
        unbatched: each index is a batch of its own, and `collate_fn` gets its sample.
        on_error: "raise", or "skip" to leave out samples that fail.
        lanes: threads that load `items_in_parallel` samples of a batch at once.
        awaiting: the loader's event loop, for async datasets.
        worker_init_fn: called with the worker's number before its first batch.
        num_workers: the loader's.
    """

    __slots__ = (
        "__weakref__",
        "_collate_fn",
        "_dataset",
        "_fetch",
        "_origin",
        "_unbatched",
        "_worker_init_fn",
    )

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any] | None,
        *,
        inline: bool,
        seed: int,
        unbatched: bool = False,
        on_error: str = "raise",
        lanes: Lanes | None = None,
        items_in_parallel: int = 1,
        awaiting: Awaiting | None = None,
        worker_init_fn: Callable[[int], object] | None = None,
        num_workers: int = 0,
    ) -> None:
        self._origin = Origin(seed, dataset, num_workers)
        self._collate_fn = None if collate_fn is default_collate else collate_fn
        self._unbatched = unbatched
        self._worker_init_fn = worker_init_fn
        self._fetch = Fetch(
            dataset,
            inline=inline,
            items_in_parallel=items_in_parallel,
            lanes=lanes,
            awaiting=awaiting or Awaiting(),
            skip=on_error == "skip",
        )

    def __call__(self, indices: list[int], task: Task) -> Any:
        """Make batch `task.batch`: the packed value with ``task.encode``, else the object."""
        place = Place(self._origin, task)
        before = here.get()
        try:
            here.set(place)
            if self._worker_init_fn is not None:
                call_once_per_worker(self._worker_init_fn, task)
            make = self._make_unbatched if self._unbatched else self._make
            return make(indices, task, place)
        finally:
            here.set(before)

    def _make(self, indices: list[int], task: Task, place: Place) -> Any:
        items = task.items
        if items is None:
            samples = self._fetch(indices, task, place)
        else:
            samples = self._fetch.given(items, indices, task, place)
        if place.places is None:
            place.places = range(len(samples))
        elif len(samples) < len(indices):
            indices = [indices[k] for k in place.places]
        batch = self._collate(samples, indices, task)
        return self._encode(batch, indices, task) if task.encode else batch

    def _make_unbatched(self, indices: list[int], task: Task, place: Place) -> Any:
        items = task.items
        if items is not None:
            (sample,) = self._fetch.given(items, indices, task, place)
            place.places = (0,)
        elif len(indices) == 1 and task.position(1) != task.position(0):
            (sample,) = self._fetch(indices, task, place)
            place.k, place.places = 0, (0,)
        else:
            # A sampler's list of indices: the dataset makes one batch of it.
            place.places = range(len(indices))
            sample = self._fetch.single(list(indices), task, place)
        batch = self._convert(sample, indices, task)
        return self._encode(batch, indices, task) if task.encode else batch

    # -- collate and encode ---------------------------------------------------------------------

    def _collate(self, samples: list[Any], indices: list[int], task: Task) -> Any:
        try:
            if self._collate_fn is None:
                return collate(samples, indices, defer=task.encode)
            return self._collate_fn(samples)
        except BaseException as error:
            name = "default_collate" if self._collate_fn is None else "collate_fn"
            settle(error, f"{name}, for dataset indices {some(indices)}", task)

    def _convert(self, sample: Any, indices: list[int], task: Task) -> Any:
        try:
            return convert(sample) if self._collate_fn is None else self._collate_fn(sample)
        except BaseException as error:
            name = "default_convert" if self._collate_fn is None else "collate_fn"
            settle(error, f"{name}, for dataset indices {some(indices)}", task)

    def _encode(self, batch: Any, indices: list[int], task: Task) -> bytes:
        try:
            encoded = encode_value(batch)
            if encoded.nbytes:
                encoded.write_into(np.frombuffer(task.alloc(encoded.nbytes), np.uint8))
        except BaseException as error:
            settle(error, f"encoding the batch of dataset indices {some(indices)}", task)
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
            raise Cancelled
        return produce(indices, task)
