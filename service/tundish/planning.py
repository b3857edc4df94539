"""Which samples stand in which batch: what a loader's order arguments come to."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from tundish import _core
from tundish.arguments import integer, one_of
from tundish.reading import ReadPlan, check_sampler, read_batch_sampler, read_sampler, read_stream
from tundish_client.errors import ConfigError

if TYPE_CHECKING:
    AnyPlan = _core.Plan | ReadPlan

__all__ = ["MAX_BATCH", "ORDERS", "Planning", "check_conflicts", "check_order"]

ORDERS = (
    "stable",
    "torch",
    "torch:default",
    "torch:persistent",
    "torch:default:persistent",
    "burn",
    "burn:workers=N",
    "dataloader-rs",
)
UNEVEN = ("pad", "drop", "keep")
MAX_BATCH = 2**40
_MAX_BURN_WORKERS = 1024


def check_order(value: Any) -> str:
    """`value`, if it is the name of an order that shuffles."""
    if isinstance(value, str) and value.startswith("burn:workers="):
        number = value.removeprefix("burn:workers=")
        if number.isascii() and number.isdigit() and 1 <= int(number) <= _MAX_BURN_WORKERS:
            return f"burn:workers={int(number)}"
        raise ConfigError(
            f"order={value!r} must name 1 to {_MAX_BURN_WORKERS} workers, as burn:workers=4"
        )
    known = [name for name in ORDERS if name != "burn:workers=N"]
    if isinstance(value, str) and value in known:
        return value
    return one_of("order", value, ORDERS)  # refuses, and names them all


class Planning:
    """Makes the plan of an epoch.

    Args:
        dataset: what the samples come from; an iterable one if `iterable`.
        batch_size: samples in a batch; None for samples that aren't batched.
        shuffle: whether `order` applies, where there is no sampler.
        sampler, batch_sampler: who says which samples come, if anybody.
        drop_last: whether a short last batch is left out.
        seed: of the order.
        order: its name.
        iterable: whether the dataset is read from front to end.
        skip_errors: whether reading goes on behind a sample that failed.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None,
        shuffle: bool,
        sampler: Any,
        batch_sampler: Any,
        drop_last: bool,
        seed: int,
        order: str,
        iterable: bool,
        skip_errors: bool,
    ) -> None:
        if batch_sampler is not None:
            from tundish.samplers import BatchSampler
        if batch_sampler is not None and type(batch_sampler) is BatchSampler:
            # The same batches, and any of them by its number if the sampler's order has that.
            batch_size, drop_last = batch_sampler.batch_size, batch_sampler.drop_last
            sampler, batch_sampler = batch_sampler.sampler, None
        for name, value in (("sampler", sampler), ("batch_sampler", batch_sampler)):
            if value is not None:
                check_sampler(name, value)
        self.dataset = dataset
        self.batch_size = batch_size
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.drop_last = drop_last
        self.seed = seed
        self.order = order if shuffle else "sequential"
        self.iterable = iterable
        self.skip_errors = skip_errors

    def samples(self) -> int | None:
        """The dataset's present length; None for an iterable one that has none."""
        if self.iterable and not hasattr(type(self.dataset), "__len__"):
            return None
        try:
            return len(self.dataset)
        except Exception as error:
            if self.iterable and isinstance(error, (TypeError, NotImplementedError)):
                return None
            error.add_note("tundish: in len(dataset), read at the start of an epoch")
            raise

    def limit(self) -> int | None:
        """What every index must be below, where a sampler's plan may go beyond it."""
        planned = getattr(self.sampler, "_plan", None) is not None
        return self.samples() if planned else None

    def plan(
        self,
        epoch: int,
        rank: int = 0,
        world_size: int = 1,
        uneven: str = "pad",
        *,
        batch_size: int | None = None,
        seed: int | None = None,
    ) -> AnyPlan:
        """The plan of one rank of an epoch.

        Raises:
            ConfigError: an argument out of range, or one that this loader can't heed.
            Exception: what ``len(dataset)`` raised.
        """
        world = integer("world_size", world_size, 1, 2**31 - 1)
        place = integer("rank", rank, 0, world - 1)
        mode = one_of("uneven", uneven, UNEVEN)
        size = self._size(batch_size)
        plan = self._plan(epoch, (place, world, mode), size, self.seed if seed is None else seed)
        self._warn_of_nothing(plan, size, world)
        return plan

    def _size(self, override: int | None) -> int | None:
        if override is None:
            return self.batch_size
        size = integer("batch_size", override, 1, MAX_BATCH)
        if self.batch_size is None or self.batch_sampler is not None:
            what = "batch_sampler" if self.batch_sampler is not None else "batch_size=None"
            raise ConfigError(
                f"batch_size={size}: this loader's batches come from its {what}; leave it out"
            )
        return size

    def _plan(
        self, epoch: int, shard: tuple[int, int, str], size: int | None, seed: int
    ) -> AnyPlan:
        rank, world, uneven = shard
        ranks: dict[str, Any] = {"rank": rank, "world_size": world, "uneven": uneven}
        if self.iterable:
            return read_stream(
                self.dataset,
                epoch=epoch,
                batch_size=size,
                drop_last=self.drop_last,
                skip_errors=self.skip_errors,
                **ranks,
            )
        samples = self.samples()
        assert samples is not None
        if self.batch_sampler is not None:
            return read_batch_sampler(
                self.batch_sampler, epoch=epoch, samples=samples, rank=rank, world_size=world
            )
        if self.sampler is None:
            # Over several ranks PyTorch's order is that of a DistributedSampler.
            ranked = self.order == "torch" and world > 1
            order = "torch:distributed" if ranked else self.order
            return _core.Plan(
                samples, order, seed, epoch, size or 1, self.drop_last, rank, world, uneven
            )
        own = getattr(self.sampler, "_plan", None)
        if own is not None:
            _check_reach(self.sampler, samples)
            # A sampler that drew its seed takes the loader's: one seed says it all.
            drawn = getattr(self.sampler, "_drawn", False)
            plan: _core.Plan = own(
                epoch,
                size or 1,
                self.drop_last,
                rank,
                world,
                uneven,
                seed=seed if drawn else None,
            )
            return plan
        return read_sampler(
            self.sampler,
            epoch=epoch,
            batch_size=size,
            drop_last=self.drop_last,
            samples=samples,
            **ranks,
        )

    def _warn_of_nothing(self, plan: AnyPlan, size: int | None, world: int) -> None:
        samples = self.samples() if self.drop_last and plan.batches == 0 else 0
        if samples:
            warnings.warn(
                f"drop_last=True leaves no batch: the dataset has {samples} samples"
                f"{f' for {world} ranks' if world > 1 else ''} and batch_size is {size}",
                UserWarning,
                stacklevel=5,
            )

    def batches(self) -> int | None:
        """The number of batches in an epoch, by the present lengths; None if there is none."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.plan(0).batches

    def fingerprint(
        self, world_size: int = 1, batch_size: int | None = None, seed: int | None = None
    ) -> dict[str, Any]:
        """What must be equal for a position to mean the same batch."""
        own = self.seed if seed is None else seed
        size = self._size(batch_size)
        return {
            "seed": own,
            "samples": self.samples(),
            "order": self._order_name(size, world_size, own),
            "batch_size": size,
            "drop_last": self.drop_last,
            "world_size": world_size,
        }

    def _order_name(self, size: int | None, world: int, seed: int) -> str:
        """The order with its version; a sampler's with all that it depends on."""
        identity = getattr(self.sampler, "_identity", None)
        if isinstance(identity, str):
            own = getattr(self.sampler, "_seed", None)
            if own is None or getattr(self.sampler, "_drawn", False):
                return identity
            return f"{identity} seed={own}"
        return self._plan(0, (0, world, "pad"), size, seed).order


def _check_reach(sampler: Any, samples: int) -> None:
    """Refuse weights that were made for another, larger dataset."""
    reach = getattr(sampler, "_reach", 0)
    if reach > samples:
        raise ConfigError(
            f"sampler={type(sampler).__name__} has {reach} weights, but the dataset has {samples} "
            "samples; give one weight for each (after random_split: those of this part's indices)"
        )


def check_conflicts(
    *,
    iterable: bool,
    batch_size: Any,
    shuffle: bool,
    sampler: Any,
    batch_sampler: Any,
    drop_last: bool,
) -> None:
    """Refuse arguments that contradict each other, as PyTorch does."""
    if iterable:
        _refuse_for_iterable(shuffle=shuffle, sampler=sampler, batch_sampler=batch_sampler)
    if sampler is not None and shuffle:
        raise ConfigError(
            "shuffle=True and a sampler contradict each other: the sampler decides the order; "
            "leave out one of them"
        )
    if batch_sampler is not None:
        given = {
            "batch_size": batch_size != 1,
            "shuffle": shuffle,
            "sampler": sampler is not None,
            "drop_last": drop_last,
        }
        names = [name for name, there in given.items() if there]
        if names:
            raise ConfigError(
                f"a batch_sampler decides the batches: it excludes {', '.join(names)}; leave "
                "them out, or give a sampler instead"
            )
    if batch_size is None and drop_last:
        raise ConfigError(
            "batch_size=None makes no batches, so drop_last=True has nothing to drop; leave it out"
        )


def _refuse_for_iterable(**given: Any) -> None:
    names = [name for name, value in given.items() if value is not None and value is not False]
    if names:
        raise ConfigError(
            f"{', '.join(names)}: an iterable dataset decides its own order; leave it out, or "
            "shuffle where the samples are made"
        )
