"""``DataLoader``: what is loaded, in which order, by how many workers."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tundish import _core
from tundish.arguments import check_dataset, draw_seed, flag, integer, one_of, refuse_unsupported
from tundish.datasets import ArrayDataset
from tundish.epoch import Epoch
from tundish.produce import Produce
from tundish.workers import Workers, live_epochs, share_interpreter
from tundish_client.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ORDERS", "DataLoader"]

ORDERS = ("stable", "torch", "torch:default", "torch:persistent")
UNEVEN = ("pad", "drop", "keep")

_MAX_WORKERS = 1024
_MAX_BATCH = 2**40
_MAX_PREFETCH = 2**20
_MAX_EPOCH = 2**63 - 1
# The in-process arena has room for what is in flight and for some batches that the user keeps;
# batches beyond that live on the heap.
_ARENA_FLOOR = 64 << 20
_ARENA_WINDOWS = 4


class DataLoader:
    """Batches of a dataset, in an order that depends on seed and epoch only.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__`` (or ``__getitems__``, which gets a
            list of indices and returns as many samples). With workers it is called from several
            threads at once.
        batch_size: samples in a batch; the last of an epoch may have fewer.
        shuffle: a new permutation each epoch, by `order`; else 0, 1, 2 ...
        sampler, batch_sampler: not supported yet; must be None.

        num_workers: threads that make batches. With 0 the work is done in the caller's thread
            (``for``) or on one thread (``async for``, and in a service).
        collate_fn: makes a batch of a list of samples; None for :func:`tundish.default_collate`.
        drop_last: leave out the last batch if it is short.
        seed: 0 to 2**64 - 1; None draws one, which ``loader.seed`` tells.
        order: "stable" (the same for ever), or one of PyTorch's: "torch", "torch:default",
            "torch:persistent".
        in_order: False hands out batches as they are ready, each exactly once.
        prefetch: batches made ahead of those being worked on; None is 2.

    Raises:
        ConfigError: an argument can't be used; the message names it and its value.

    A loader may be used from several threads. It is not picklable. In a forked child it starts
    workers of its own; epochs begun before the fork raise.

    Example:
        >>> loader = DataLoader([1, 2, 3], batch_size=2)
        >>> list(loader)
        [array([1, 2]), array([3])]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: None = None,
        batch_sampler: None = None,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        order: str = "stable",
        in_order: bool = True,
        prefetch: int | None = None,
    ) -> None:
        refuse_unsupported(sampler=sampler, batch_sampler=batch_sampler)
        check_dataset(dataset)
        if collate_fn is not None and not callable(collate_fn):
            raise ConfigError(
                f"collate_fn={collate_fn!r} must be callable, or None for the default collate"
            )
        self.dataset: Final = dataset
        self.batch_size: Final = integer("batch_size", batch_size, 1, _MAX_BATCH)
        self.shuffle: Final = flag("shuffle", shuffle)
        self.num_workers: Final = integer("num_workers", num_workers, 0, _MAX_WORKERS)
        self.collate_fn: Final = collate_fn
        self.drop_last: Final = flag("drop_last", drop_last)
        self.seed: Final = draw_seed() if seed is None else integer("seed", seed, 0, 2**64 - 1)
        self._lasting_order: Final = seed is not None or not self.shuffle
        self.order: Final = one_of("order", order, ORDERS)
        self.in_order: Final = flag("in_order", in_order)
        self.prefetch: Final = (
            2 if prefetch is None else integer("prefetch", prefetch, 0, _MAX_PREFETCH)
        )
        self._numbers = itertools.count()
        self._workers = Workers(max(1, self.num_workers))
        self._native = collate_fn is None and _is_native(dataset)
        self._frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if "_frozen" in self.__dict__ and not name.startswith("_"):
            raise AttributeError(
                f"DataLoader.{name} is fixed; make a new DataLoader with {name}={value!r}"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return (
            f"DataLoader({type(self.dataset).__name__}, batch_size={self.batch_size}, "
            f"shuffle={self.shuffle}, num_workers={self.num_workers}, seed={self.seed}, "
            f"order={self.order!r})"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a DataLoader can't be pickled or copied: its worker threads belong to this process; "
            "make it in the process that uses it"
        )

    # -- epochs ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of batches in an epoch, by the dataset's present length."""
        samples = self._samples()
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def __iter__(self) -> Epoch:
        """The next epoch: 0, 1, 2 ..., or on from where ``set_epoch`` put it."""
        return self._following()

    def __aiter__(self) -> Epoch:
        """The next epoch, for ``async for``."""
        return self._following()

    def _following(self) -> Epoch:
        samples = self._samples()
        number = next(self._numbers)
        return Epoch(self, self._new_plan(number, 0, 1, "pad", samples), number, 0)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next ``iter(loader)`` goes through."""
        self._numbers = itertools.count(integer("epoch", epoch, 0, _MAX_EPOCH))

    def epoch(
        self, epoch: int, start: int = 0, rank: int = 0, world_size: int = 1, uneven: str = "pad"
    ) -> Epoch:
        """Any epoch, from any batch on; costs the same for every `start`.

        Args:
            epoch: its number, from 0.
            start: the first batch; at most the number of batches.
            rank: which share of a split epoch this is, from 0.
            world_size: how many shares there are.
            uneven: what happens to samples that don't divide by `world_size`: "pad" repeats some,
                "drop" leaves some out, "keep" gives some ranks more.

        Returns:
            An iterator for ``for`` and ``async for``. ``len(dataset)`` has been read; nothing is
            loaded before the first batch is asked for.

        Raises:
            ConfigError: an argument out of range, or `start` without ``in_order``.
            Exception: what ``len(dataset)`` raised.
        """
        number = integer("epoch", epoch, 0, _MAX_EPOCH)
        plan = self._new_plan(number, rank, world_size, uneven, self._samples())
        first = integer("start", start, 0, plan.batches)
        if first and not self.in_order:
            raise ConfigError(
                f"start={first} needs in_order=True: batches as they are ready have no position "
                "to resume from"
            )
        return Epoch(self, plan, number, first)

    def close(self) -> None:
        """Stop the workers and end all open epochs, without waiting for user code.

        A later epoch starts new workers.
        """
        for epoch in live_epochs:
            if epoch.loader is self:
                epoch.close()
        self._workers.close(0.0)

    # -- for the epochs and the service ---------------------------------------------------------

    def _samples(self) -> int:
        try:
            return len(self.dataset)
        except Exception as error:
            error.add_note("tundish: in len(dataset), read at the start of an epoch")
            raise

    @property
    def _plan_order(self) -> str:
        return self.order if self.shuffle else "sequential"

    def _new_plan(
        self, epoch: int, rank: int, world_size: int, uneven: str, samples: int
    ) -> _core.Plan:
        world = integer("world_size", world_size, 1, 2**31 - 1)
        place = integer("rank", rank, 0, world - 1)
        mode = one_of("uneven", uneven, UNEVEN)
        plan = _core.Plan(
            samples,
            self._plan_order,
            self.seed,
            epoch,
            self.batch_size,
            self.drop_last,
            place,
            world,
            mode,
        )
        if self.drop_last and samples and not plan.batches:
            warnings.warn(
                f"drop_last=True leaves no batch: the dataset has {samples} samples"
                f"{f' for {world} ranks' if world > 1 else ''} and batch_size is {self.batch_size}",
                UserWarning,
                stacklevel=4,
            )
        return plan

    def _plan(
        self, epoch: int, rank: int = 0, world_size: int = 1, uneven: str = "pad"
    ) -> _core.Plan:
        """The plan of one rank of an epoch, for the service."""
        return self._new_plan(epoch, rank, world_size, uneven, self._samples())

    def _open(
        self,
        epoch: int,
        *,
        start: int = 0,
        rank: int = 0,
        world_size: int = 1,
        uneven: str = "pad",
        arena: _core.Arena,
        waker: _core.Waker,
        token: int,
        plan: _core.Plan | None = None,
    ) -> _core.Run:
        """A run on the workers that encodes into `arena`, for the service.

        Pass the `plan` that was announced, so that a dataset whose length changes keeps to it.
        """
        if plan is None:
            plan = self._plan(epoch, rank, world_size, uneven)
        source = self._native_source() or _core.CallSource(self._produce(inline=False))
        return self._run(source, plan, start, pooled=True, arena=arena, waker=waker, token=token)

    def _run(
        self,
        source: _core.ArraySource | _core.CallSource,
        plan: _core.Plan,
        start: int,
        *,
        pooled: bool,
        arena: _core.Arena | None = None,
        waker: _core.Waker | None = None,
        token: int = 0,
    ) -> _core.Run:
        if arena is None and isinstance(source, _core.ArraySource):
            arena = self._own_arena()
        if pooled and isinstance(source, _core.CallSource):
            share_interpreter()
        return _core.Run(
            source,
            plan,
            start=start,
            pool=self._workers.pool() if pooled else None,
            arena=arena,
            encode=arena is not None,
            window=max(1, self.num_workers) + self.prefetch if pooled else 1,
            in_order=self.in_order,
            waker=waker,
            token=token,
        )

    def _native_source(self) -> _core.ArraySource | None:
        source: _core.ArraySource | None = self.dataset._native_source() if self._native else None
        return source

    def _produce(self, *, inline: bool) -> Produce:
        if self._native:
            # Arrays that the engine can't read: all rows of a batch in one step of numpy's.
            return Produce(_Indices(), self.dataset._gather, inline=inline)
        return Produce(self.dataset, self.collate_fn, inline=inline)

    def _own_arena(self) -> _core.Arena:
        batch = self.dataset._sample_nbytes() * min(self.batch_size, max(1, len(self.dataset)))
        in_flight = (max(1, self.num_workers) + self.prefetch) * batch
        return self._workers.arena(max(_ARENA_FLOOR, _ARENA_WINDOWS * in_flight))

    def _describe(self) -> dict[str, Any]:
        """This loader as an entry of the service's FEEDS message."""
        return {
            "samples": self._samples(),
            "batches": len(self),
            "batch_size": self.batch_size,
            "order": self._plan_order,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "num_workers": self.num_workers,
            "fingerprint": self._fingerprint(1),
        }

    def _fingerprint(self, world_size: int) -> dict[str, Any]:
        """What must be equal for a position to mean the same batch."""
        samples = self._samples()
        plan = _core.Plan(
            samples, self._plan_order, self.seed, 0, self.batch_size, self.drop_last, 0, world_size
        )
        return {
            "seed": self.seed,
            "samples": samples,
            "order": plan.order,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "world_size": world_size,
        }


class _Indices:
    """A dataset whose samples are their own indices."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


def _is_native(dataset: Any) -> bool:
    """Whether the engine may read `dataset` itself; what a subclass overrides is heeded."""
    kind = type(dataset)
    return (
        isinstance(dataset, ArrayDataset)
        and kind.__getitem__ is ArrayDataset.__getitem__
        and kind.__len__ is ArrayDataset.__len__
        and not hasattr(dataset, "__getitems__")
    )
