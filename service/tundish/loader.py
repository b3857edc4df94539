"""``DataLoader``: what is loaded, in which order, by how many workers."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tundish import _core
from tundish.arguments import (
    draw_seed,
    flag,
    function,
    integer,
    is_iterable,
    one_of,
    refuse_others,
    seconds,
)
from tundish.epoch import Epoch
from tundish.planning import MAX_BATCH, ORDERS, Planning, check_conflicts, check_order
from tundish.positions import WHOLE, Place, Positioned
from tundish.running import WORKER_MODES, Making, Running, Wake, supply
from tundish.workers import live_epochs
from tundish_client.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tundish.planning import AnyPlan

__all__ = ["ORDERS", "DataLoader"]


def _names() -> list[str]:
    return [
        name for name in DataLoader.__init__.__annotations__ if name not in {"others", "return"}
    ]


_MAX_WORKERS = 1024
_MAX_LANES = 4096
_MAX_PREFETCH = 2**20
_MAX_EPOCH = 2**63 - 1


class DataLoader(Positioned):
    """Batches of a dataset, in an order that depends on seed and epoch only.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__`` (or ``__getitems__``, which gets a
            list of indices and returns as many samples; both may be ``async``); or something with
            ``__iter__``, which is read from front to end as one stream. With workers it is used
            by several threads at once; a :class:`tundish.DatasetFactory` makes one for each.
        batch_size: samples in a batch; the last of an epoch may have fewer. None: no batches, each
            sample comes by itself.
        shuffle: a new permutation each epoch, by `order`; else 0, 1, 2 ...
        sampler: the indices of an epoch, as an iterable; one of :mod:`tundish.samplers` has
            positions that any process can resume from.
        batch_sampler: the same for lists of indices, one for each batch.

        num_workers: threads that make batches. With 0 the work is done in the caller's thread
            (``for``) or on one thread (``async for``, and in a service).
        collate_fn: makes a batch of a list of samples; None for :func:`tundish.default_collate`.
        drop_last: leave out the last batch if it is short.
        seed: 0 to 2**64 - 1, of the order and of :func:`tundish.sample_rng`; None draws one, which
            ``loader.seed`` tells.
        order: "stable" (the same for ever), PyTorch's "torch", "torch:default", "torch:persistent",
            "torch:default:persistent", burn's "burn" and "burn:workers=N", or "dataloader-rs".
        in_order: False hands out batches as they are ready, each exactly once; a ready batch waits
            for those that were ready before it and for no other.
        items_in_parallel: samples of one batch that are loaded at the same time.
        prefetch: batches made ahead of those being worked on; None is 2.
        worker_mode: "thread" loads through Python, "native" refuses to, "auto" chooses.
        worker_init_fn: called with the worker's number on each worker, before its first batch.
        timeout: seconds that a batch may take; it is then a TimeoutError that names the sample, and
            its worker is replaced. None (or 0) is for ever. With a timeout the work is always done
            on a worker.
        on_error: "raise", or "skip" to leave a failing sample out of its batch, counted.

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
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        order: str = "stable",
        in_order: bool = True,
        items_in_parallel: int = 1,
        prefetch: int | None = None,
        worker_mode: str = "auto",
        worker_init_fn: Callable[[int], object] | None = None,
        timeout: float | None = None,
        on_error: str = "raise",
        **others: Any,
    ) -> None:
        refuse_others(others, _names())
        iterable = is_iterable(dataset)
        self.dataset: Final = dataset
        self.shuffle: Final = False if shuffle is None else flag("shuffle", shuffle)
        self.drop_last: Final = flag("drop_last", drop_last)
        check_conflicts(
            iterable=iterable,
            batch_size=batch_size,
            shuffle=self.shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=self.drop_last,
        )
        if batch_size is not None:
            batch_size = integer("batch_size", batch_size, 1, MAX_BATCH)
        self.sampler: Final = sampler
        self.batch_sampler: Final = batch_sampler
        self.batch_size: Final = None if batch_sampler is not None else batch_size
        self.num_workers: Final = integer("num_workers", num_workers, 0, _MAX_WORKERS)
        self.collate_fn: Final = function("collate_fn", collate_fn, "for the default collate")
        if inspect.iscoroutinefunction(collate_fn):
            raise ConfigError(
                f"collate_fn={collate_fn!r} is async: its batches would be coroutines; await in "
                "__getitem__, and give a plain function here"
            )
        self.seed: int = draw_seed() if seed is None else integer("seed", seed, 0, 2**64 - 1)
        self.order: Final = check_order(order)
        self.in_order: Final = flag("in_order", in_order)
        self._in_order = self.in_order
        self.items_in_parallel: Final = integer(
            "items_in_parallel", items_in_parallel, 1, _MAX_LANES
        )
        self.prefetch: Final = (
            2 if prefetch is None else integer("prefetch", prefetch, 0, _MAX_PREFETCH)
        )
        self.worker_mode: Final = one_of("worker_mode", worker_mode, WORKER_MODES)
        self.worker_init_fn: Final = function("worker_init_fn", worker_init_fn, "to call nothing")
        self.timeout: Final = seconds("timeout", timeout)
        self.on_error: Final = one_of("on_error", on_error, ("raise", "skip"))
        self._planning = Planning(
            dataset,
            batch_size=batch_size,
            shuffle=self.shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=self.drop_last,
            seed=self.seed,
            order=self.order,
            iterable=iterable,
            skip_errors=self.on_error == "skip",
        )
        self._running = Running(
            Making(
                dataset=dataset,
                iterable=iterable,
                batch_size=batch_size,
                collate_fn=self.collate_fn,
                num_workers=self.num_workers,
                items_in_parallel=self.items_in_parallel,
                prefetch=self.prefetch,
                in_order=self.in_order,
                worker_mode=self.worker_mode,
                worker_init_fn=self.worker_init_fn,
                timeout=self.timeout,
                on_error=self.on_error,
            )
        )
        self._seed_drawn = seed is None
        draws = self.shuffle or getattr(self._planning.sampler, "_drawn", False)
        self._lasting_order = seed is not None or not draws
        self._frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if "_frozen" in self.__dict__ and not name.startswith("_"):
            way_out = f"make a new DataLoader with {name}={value!r}"
            if callable(getattr(type(self), name, None)):
                way_out = "it is a method"
            raise AttributeError(f"DataLoader.{name} is fixed; {way_out}")
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
        """The number of batches in an epoch, by the dataset's (or sampler's) present length.

        Raises:
            TypeError: it has none.
        """
        batches = self._planning.batches()
        if batches is None:
            what = "dataset" if self._planning.iterable else "sampler"
            raise TypeError(
                f"this loader's length isn't known: its {what} is read to the end and has no "
                "__len__"
            )
        return batches

    def __iter__(self) -> Epoch:
        """The next epoch: 0, 1, 2 ..., or on from where a state or ``set_epoch`` put it."""
        return self._begin()

    def __aiter__(self) -> Epoch:
        """The next epoch, for ``async for``."""
        return self._begin()

    def _begin(self) -> Epoch:
        place = self._following()
        epoch = Epoch(self, self._planning.plan(place.epoch), place, WHOLE)
        self._place = place
        return epoch

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next ``iter(loader)`` goes through, from its start.

        If ``load_state_dict`` was just given a position in this epoch, that stays.
        """
        number = integer("epoch", epoch, 0, _MAX_EPOCH)
        if self._resumed is None or self._resumed.epoch != number:
            self._next_epoch = number
            self._resumed = self._place = None

    def epoch(
        self,
        epoch: int,
        start: int = 0,
        rank: int | None = None,
        world_size: int = 1,
        uneven: str = "pad",
        batch_size: int | None = None,
    ) -> Epoch:
        """Any epoch, from any batch on; with an order of ours at the same cost for every `start`.

        Args:
            epoch: its number, from 0.
            start: the first batch; at most the number of batches. With a user's sampler and with
                an iterable dataset, what comes before is read and thrown away.
            rank: which share of a split epoch this is, from 0; needed with a `world_size`.
            world_size: how many shares there are.
            uneven: what happens to samples that don't divide by `world_size`: "pad" repeats some,
                "drop" leaves some out, "keep" gives some ranks more.
            batch_size: instead of the loader's, so that another number of ranks makes the same
                global batches.

        Returns:
            An iterator for ``for`` and ``async for``. ``len(dataset)`` has been read; nothing is
            loaded before the first batch is asked for.

        Raises:
            ConfigError: an argument out of range, or `start` without ``in_order``.
            Exception: what ``len(dataset)`` raised.
        """
        number = integer("epoch", epoch, 0, _MAX_EPOCH)
        if rank is None:
            if world_size != 1:
                raise ConfigError(
                    f"rank must be given with world_size={world_size}: which of the shares is it?"
                )
            rank = 0
        plan = self._planning.plan(number, rank, world_size, uneven, batch_size=batch_size)
        most = _MAX_EPOCH if plan.batches is None else plan.batches
        first = integer("start", start, 0, most)
        if first and not self.in_order:
            raise ConfigError(
                f"start={first} needs in_order=True: batches as they are ready have no position "
                "to resume from"
            )
        shard = (rank, world_size, uneven, batch_size)
        return Epoch(self, plan, Place(number, first), shard)

    # -- for the epochs and the service ---------------------------------------------------------

    def close(self) -> None:
        """Stop the workers and end all open epochs, without waiting for user code.

        A later epoch starts new workers.
        """
        for epoch in live_epochs:
            if epoch.loader is self:
                epoch.close()
        self._running.workers.close(0.0)

    def _plan(
        self,
        epoch: int,
        rank: int = 0,
        world_size: int = 1,
        uneven: str = "pad",
        *,
        batch_size: int | None = None,
        seed: int | None = None,
    ) -> AnyPlan:
        """The plan of one rank of an epoch, for the service."""
        return self._planning.plan(
            epoch, rank, world_size, uneven, batch_size=batch_size, seed=seed
        )

    def _open(
        self,
        epoch: int,
        *,
        plan: AnyPlan,
        start: int = 0,
        arena: _core.Arena,
        waker: _core.Waker,
        token: int,
        seed: int | None = None,
        background: bool = False,
    ) -> _core.Run:
        """A run of `plan` on the workers that encodes into `arena`, for the service."""
        running = self._running
        source = running.source() or _core.CallSource(
            running.produce(self.seed if seed is None else seed, inline=False)
        )
        return running.open(
            source,
            supply(plan, start),
            epoch=epoch,
            start=start,
            pooled=True,
            arena=arena,
            wake=Wake(waker, token),
            samples=self._planning.limit(),
            background=background,
        )

    def _describe(self) -> dict[str, Any]:
        """This loader as an entry of the service's FEEDS message."""
        fingerprint = self._planning.fingerprint()
        return {
            "samples": fingerprint["samples"],
            "batches": self._planning.batches(),
            "batch_size": self.batch_size,
            "order": self._planning.order,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "num_workers": self.num_workers,
            "fingerprint": fingerprint,
        }

    def _fingerprint(
        self, world_size: int = 1, batch_size: int | None = None, seed: int | None = None
    ) -> dict[str, Any]:
        """What must be equal for a position to mean the same batch."""
        return self._planning.fingerprint(world_size, batch_size, seed)
