"""Epochs of samplers and iterable datasets that are the user's own.

What a ``_core.Plan`` computes for any batch at once has to be read from the front here. A batch
number means the same all the same: value `i` that the iterator gives has place `i` of the epoch, an
error that it raises instead of a value takes that place, and batches and ranks cut these places as
a plan would. See ``readings`` for how.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tundish import _core
from tundish.errors_of_batches import Cancelled
from tundish.passes import Unread
from tundish.readings import Batches, Bulk, Indices, Job, Loss, Portion, Reading, Samples
from tundish.yields import check_sampler, length_of
from tundish_client.errors import ConfigError

__all__ = [
    "ReadPlan",
    "Unread",
    "check_sampler",
    "read_batch_sampler",
    "read_sampler",
    "read_stream",
]


class ReadPlan:
    """An epoch that has to be read, for one rank; made by the ``read_...`` functions.

    Attributes:
        batches: how many there are by ``len()`` of what is read, or None. The iterator may not keep
            to it; then the epoch ends with an error that names both numbers.
        samples: how many samples these hold, or None.
        order: what stands for the order in a fingerprint.

    It holds nothing of the reading unless ``reader(..., weak=True)`` was asked for.
    """

    def __init__(self, job: Job, order: str) -> None:
        self._job = job
        self._reading: Reading | None = None
        plan = None if job.length is None else job.plan(job.length)
        self._loss = Loss(plan)
        self.batches = None if plan is None else plan.batches
        self.samples = None if plan is None or not job.reading.one_each else plan.samples
        self.order = order

    @property
    def padded(self) -> int:
        """Places that repeat those at the front; exact once a reading has come to the end."""
        return self._loss.padded

    @property
    def dropped(self) -> int:
        """This rank's places that are in no batch; exact once a reading has come to the end."""
        return self._loss.dropped

    def reader(self, start: int, *, weak: bool = False) -> _core.Reader:
        """The engine's reader from batch `start` on, which begins the iterator anew.

        Args:
            start: the first batch. Those before are read, since nothing else tells where they end.
            weak: the engine, into which the garbage collector can't look, gets a weak reference;
                this plan keeps the reading until the next such call.
        """
        read = self.read_from(start)
        if weak:
            self._reading = read
            return _core.Reader(_WeakRead(read))
        return _core.Reader(read)

    def release(self) -> None:
        """Let go of the reading of a weak reader: generators are closed when nobody has them."""
        self._reading = None

    def read_from(self, start: int) -> Reading:
        """What ``reader`` gives to the engine: ``read(batch, cancelled)``."""
        return self._job.reading(self._job, start, self._loss)

    def __repr__(self) -> str:
        known = "unknown length" if self.batches is None else f"{self.batches} batches"
        return f"<ReadPlan of {self._job.what}, epoch {self._job.epoch}: {known}>"


class _WeakRead:
    """A reading that is there as long as its plan is."""

    __slots__ = ("_target",)

    def __init__(self, read: Reading) -> None:
        self._target = weakref.ref(read)

    def __call__(self, batch: int, cancelled: Callable[[], bool]) -> Portion | None:
        read = self._target()
        if read is None:
            raise Cancelled
        return read(batch, cancelled)


# -- what can be read ------------------------------------------------------------------------------


def read_sampler(
    sampler: Any,
    *,
    epoch: int,
    batch_size: int | None,
    drop_last: bool,
    samples: int,
    rank: int = 0,
    world_size: int = 1,
    uneven: str = "pad",
) -> ReadPlan:
    """An epoch of any iterable of indices.

    Args:
        sampler: the iterable. ``len()`` of it is read here, ``iter()`` called at the first batch.
        epoch: given to its ``set_epoch``, or to that of its ``sampler``, if there is one.
        batch_size: indices in a batch of one rank. None: each index is a batch of its own, and a
            list of indices is one batch.
        drop_last: leave out a last batch that is short.
        samples: length of the dataset, which the indices must be below.
        rank: which share to take, from 0.
        world_size: how many shares there are. Every rank reads all of it.
        uneven: as of an epoch.

    Raises:
        ConfigError: it can't be iterated over once per epoch, or is one rank's share already.
        Exception: what its ``len()`` raised.

    Example:
        >>> plan = read_sampler([3, 1, 2], epoch=0, batch_size=2, drop_last=False, samples=4)
        >>> read = plan.read_from(0)
        >>> [read(batch, lambda: False) for batch in range(3)]
        [([3, 1], None, 0, 1), ([2], None, 2, 1), None]
    """
    check_sampler("sampler", sampler)
    _refuse_second_split(sampler, world_size)
    job = _job(Bulk if batch_size is None else Indices, "sampler", sampler, epoch)
    job = replace(job, rank=rank, world_size=world_size, uneven=uneven, samples=samples)
    if batch_size is not None:
        job = replace(job, size=batch_size, drop_last=drop_last)
    return ReadPlan(job, f"sampler:{_qualified(sampler)}")


def read_batch_sampler(
    batch_sampler: Any, *, epoch: int, samples: int, rank: int = 0, world_size: int = 1
) -> ReadPlan:
    """An epoch of any iterable of lists of indices; each is a batch.

    Args and errors as of :func:`read_sampler`.

    Raises:
        ConfigError: `world_size` is not 1.
    """
    check_sampler("batch_sampler", batch_sampler)
    if world_size != 1:
        raise ConfigError(
            f"world_size={world_size} (rank={rank}) can't split the batches of a batch_sampler, "
            "which may all be of another size; let the batch_sampler give this rank's batches, or "
            "give a sampler"
        )
    job = _job(Batches, "batch_sampler", batch_sampler, epoch)
    return ReadPlan(replace(job, samples=samples), f"batch_sampler:{_qualified(batch_sampler)}")


def read_stream(
    dataset: Any,
    *,
    epoch: int,
    batch_size: int | None,
    drop_last: bool,
    rank: int = 0,
    world_size: int = 1,
    uneven: str = "pad",
    skip_errors: bool = False,
) -> ReadPlan:
    """An epoch of an iterable dataset: its values are the samples, their places the indices.

    Args as of :func:`read_sampler`, and:

    Args:
        dataset: the iterable.
        epoch: given to ``set_epoch``.
        batch_size: None: each sample is a batch of its own.
        drop_last: leave out a last batch that is short.
        rank: which share to take. Every rank reads the whole stream and keeps its own samples.
        world_size: how many shares there are.
        uneven: as of an epoch; "pad" repeats samples (the same objects) from the front.
        skip_errors: an error that the iterator raises doesn't fail its batch: an ``Unread`` stands
            among the samples. It fails the epoch's end if the iterator ended with it.
    """
    check_sampler("dataset", dataset)
    job = _job(Samples, "dataset", dataset, epoch)
    job = replace(job, rank=rank, world_size=world_size, uneven=uneven, skip_errors=skip_errors)
    if batch_size is not None:
        job = replace(job, size=batch_size, drop_last=drop_last)
    return ReadPlan(job, f"iterable:{_qualified(dataset)}")


def _job(reading: type[Reading], name: str, iterable: Any, epoch: int) -> Job:
    what = f"{name} {type(iterable).__name__}"
    return Job(reading, iterable, what, epoch, length=length_of(iterable, what))


def _qualified(thing: Any) -> str:
    kind = type(thing)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _refuse_second_split(sampler: Any, world_size: int) -> None:
    ranks = getattr(sampler, "num_replicas", 1)
    if world_size != 1 and isinstance(ranks, int) and ranks != 1:
        raise ConfigError(
            f"world_size={world_size}: the sampler {type(sampler).__name__} gives the share of one "
            f"of {ranks} ranks already, and would be split twice; leave out world_size, or give "
            "another sampler"
        )
