"""``sample_rng``: random numbers that belong to a sample, whoever loads it and when.

A random augmentation that draws from a global generator depends on which thread came first. A
generator of the sample's own does not: it is keyed by the loader's seed, the epoch and the sample's
global position in that epoch, so a batch has the same bytes for any number of workers and lanes,
after any restart, and on any number of ranks with the same global batches; and a sample drawn twice
is augmented twice, differently.
"""

from __future__ import annotations

import operator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator, Philox, SeedSequence
from numpy.random.bit_generator import ISpawnableSeedSequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tundish._core import Task

__all__ = ["Origin", "Place", "here", "place", "places", "sample_rng"]

_TAG = int.from_bytes(b"sample 1", "little")
_WAYS = (
    "it works inside a dataset's __getitem__, and as sample_rng(k), with a sample's place in the "
    "batch, inside __getitems__ and collate_fn; the code of an iterable dataset, of a sampler and "
    "of worker_init_fn loads no sample of a known position: use a generator of its own there"
)


def sample_rng(k: int | None = None) -> Generator:
    """The random generator of the sample that is being loaded.

    Args:
        k: which sample of the batch is meant: its place in the list that ``__getitems__`` was given
            or ``collate_fn`` was given. Left out inside ``__getitem__``, where there is only one.

    Returns:
        A ``numpy.random.Generator``, made at the first call. All calls for one sample give the same
        object, so what ``collate_fn`` draws for a sample follows what ``__getitem__`` drew.

        Its numbers are those of numpy's ``Philox`` (Philox4x64-10) with the key words ``[seed,
        0x3120656c706d6173]`` (the bytes ``sample 1``, little-endian) and the counter words ``[0,
        position, epoch, 0]``, least significant first: the loader's seed, and the sample's global
        position in the epoch, that is, its number in the order of all samples before they are split
        into ranks. numpy counts the first word up before each block of four outputs, so the first
        block is that of ``[1, position, epoch, 0]``, and no two samples of any epochs ever share
        one. This is frozen. ``spawn`` works, and is as repeatable: the children come from
        the ``SeedSequence`` of the words ``[seed, epoch, position, 0x3120656c706d6173]``, each as
        two words of 32 bits, the lower one first.

    Raises:
        RuntimeError: no sample is being loaded in this context, or `k` is needed and missing, or
            given where there is only one sample.
        IndexError: `k` is not a place in the batch.

    It belongs to the code that loads the sample: to the thread that called ``__getitem__``, to the
    coroutine of an ``async def __getitem__``, and to what they start with a copy of their context
    (``asyncio.create_task``, ``asyncio.to_thread``). Threads of the user's own don't have it. It
    costs nothing unless it is called.

    Example:
        >>> class Noisy:
        ...     def __len__(self):
        ...         return 4
        ...
        ...     def __getitem__(self, index):
        ...         return index + sample_rng().uniform(-0.1, 0.1)
    """
    found = here.get()
    if found is None:
        raise RuntimeError(f"sample_rng() was called while no sample is being loaded: {_WAYS}")
    return found.generator(k)


class Origin:
    """What all batches of one run have in common.

    Attributes:
        seed: the loader's.
        dataset: as the user gave it.
        num_workers: threads that make batches, at least 1.
    """

    __slots__ = ("dataset", "num_workers", "seed")

    def __init__(self, seed: int, dataset: Any = None, num_workers: int = 1) -> None:
        self.seed = seed
        self.dataset = dataset
        self.num_workers = max(1, num_workers)


class Place:
    """Where in an epoch the code that runs now is: in which batch, at which sample.

    One object for a whole batch, whose `samples`, `k` and `places` move on while it is made; lanes
    and coroutines get one each, by `at`. Generators are
    shared by all of them.

    Attributes:
        origin: the run's.
        task: the batch.
        samples: the samples fetched one by one so far: their number is the place of the next.
        k: the place of the one sample that is being loaded, if `samples` doesn't tell.
        places: what ``sample_rng(k)`` counts: for each k the sample's place in the batch.
    """

    __slots__ = ("_made", "k", "origin", "places", "samples", "task")

    def __init__(self, origin: Origin, task: Task) -> None:
        self.origin = origin
        self.task = task
        self.samples: list[Any] | None = None
        self.k: int | None = None
        self.places: Sequence[int] | None = None
        self._made: dict[int, Generator] = {}

    def at(self, k: int) -> Place:
        """The place of sample `k`, for code that runs beside that of other samples."""
        beside = Place(self.origin, self.task)
        beside.k = k
        beside.places = self.places
        beside._made = self._made
        return beside

    def forget(self) -> None:
        """Start all generators afresh: the samples are about to be loaded anew."""
        self._made = {}

    def generator(self, k: int | None) -> Generator:
        """The generator that ``sample_rng(k)`` means here."""
        at = self.sole(k) if k is None or self.places is None else self._one_of(self.places, k)
        found = self._made.get(at)
        if found is None:
            task = self.task
            found = self._made[at] = _generator(self.origin.seed, task.epoch, task.position(at))
        return found

    def sole(self, k: int | None = None) -> int:
        """The place of the one sample that is being loaded; `k` is what the user gave, wrongly."""
        at = self.k if self.samples is None else len(self.samples)
        if k is not None:
            where = "while no sample is loaded" if at is None else "where one sample is loaded"
            raise RuntimeError(f"sample_rng({k!r}) was called {where}: {_WAYS}")
        if at is None:
            what = "no sample is" if self.places is None else "several samples are"
            raise RuntimeError(f"sample_rng() was called while {what} being loaded: {_WAYS}")
        return at

    @staticmethod
    def _one_of(places: Sequence[int], k: int) -> int:
        at = operator.index(k)
        if not 0 <= at < len(places):
            raise IndexError(
                f"sample_rng({at}): there are {len(places)} samples here, numbered from 0"
            )
        return places[at]


here: ContextVar[Place | None] = ContextVar("tundish_place", default=None)
"""The place of the code that runs in this context; None outside of batches."""


class place:  # noqa: N801 -- used like a function
    """While this is open, ``sample_rng()`` means one sample of a batched fetch.

    For views whose ``__getitems__`` does something for one sample after the other, by code that
    also works in ``__getitem__``.

    Args:
        k: which of the indices that ``__getitems__`` was given, by number.
    """

    __slots__ = ("_before", "_k", "_place")

    def __init__(self, k: int) -> None:
        self._k = k

    def __enter__(self) -> None:
        self._place = found = here.get()
        if found is not None:
            self._before = found.k
            if found.places is not None:
                found.k = found.places[self._k]

    def __exit__(self, *_exception: object) -> None:
        if self._place is not None:
            self._place.k = self._before


@contextmanager
def places(chosen: Sequence[int]) -> Iterator[None]:
    """While this is open, ``sample_rng(k)`` means sample ``chosen[k]`` of those around it.

    For views whose ``__getitems__`` passes some of its indices to another dataset's, and for those
    whose ``__getitem__`` asks another's ``__getitems__``: there all k mean the one sample. Each
    coroutine that opens one while others run needs a task of its own.

    Args:
        chosen: which of the indices that ``__getitems__`` was given are passed on, by number.
    """
    found = here.get()
    if found is None:
        yield
        return
    before = found.places
    if before is None:
        found.places = [found.sole()] * len(chosen)
    else:
        found.places = [before[k] for k in chosen]
    try:
        yield
    finally:
        found.places = before


class _Key(ISpawnableSeedSequence):
    """The key words of a sample's Philox, and the seeds of what is spawned from it.

    Philox made with ``key=`` would draw a seed sequence from the system for ``spawn``: slow, and
    other children in every run.
    """

    __slots__ = ("_epoch", "_position", "_seed", "_sequence")

    def __init__(self, seed: int, epoch: int, position: int) -> None:
        self._seed = seed
        self._epoch = epoch
        self._position = position
        self._sequence: SeedSequence | None = None

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """The key, which is two words of 64 bits; anything else is derived by SeedSequence."""
        if n_words == 2 and np.dtype(dtype) == np.uint64:
            return np.array((self._seed, _TAG), np.uint64)
        return self._seeds().generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> list[Any]:
        """Seed sequences for `n_children` generators; other ones at each call."""
        return list(self._seeds().spawn(n_children))

    def _seeds(self) -> SeedSequence:
        if self._sequence is None:
            words = np.array((self._seed, self._epoch, self._position, _TAG), "<u8")
            self._sequence = SeedSequence(words.view("<u4"))
        return self._sequence


def _generator(seed: int, epoch: int, position: int) -> Generator:
    # An array of the right type: numpy takes a list of large ints through floats.
    counter = np.array((0, position, epoch, 0), np.uint64)
    key: Any = _Key(seed, epoch, position)  # numpy's stubs know of no seed sequence but its own
    return Generator(Philox(key, counter=counter))
