"""Runs of one loader: what makes its batches, and on which threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tundish import _core
from tundish.collate import default_collate
from tundish.datasets import is_native
from tundish.per_worker import DatasetFactory
from tundish.produce import Produce
from tundish.view_base import is_async
from tundish.workers import Workers, share_interpreter
from tundish_client.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tundish.planning import AnyPlan

    AnySource = _core.ArraySource | _core.CallSource

__all__ = ["WORKER_MODES", "Making", "Running", "Wake", "supply"]

WORKER_MODES = ("auto", "native", "thread")

# The in-process arena has room for what is in flight and for some batches that the user keeps;
# batches beyond that live on the heap.
_ARENA_FLOOR = 64 << 20
_ARENA_WINDOWS = 4
_MAX_THREADS = 4096


class Making(NamedTuple):
    """How a loader's batches are made: its arguments, checked."""

    dataset: Any
    iterable: bool
    batch_size: int | None
    collate_fn: Callable[[Any], Any] | None
    num_workers: int
    items_in_parallel: int
    prefetch: int
    in_order: bool
    worker_mode: str
    worker_init_fn: Callable[[int], object] | None
    timeout: float | None
    on_error: str


class Wake(NamedTuple):
    """Whom a run wakes when it has something to take."""

    waker: _core.Waker
    token: int


class Running:
    """Opens the runs of one loader, on its workers and lanes.

    Raises:
        ConfigError: the arguments can't be had together.
    """

    def __init__(self, making: Making) -> None:
        self.making = making
        # Each thread asks its own dataset of a factory, when it needs one.
        made = isinstance(making.dataset, DatasetFactory)
        self.awaited = not (making.iterable or made) and is_async(making.dataset)
        workers = max(1, making.num_workers)
        if workers * making.items_in_parallel > _MAX_THREADS and not self.awaited:
            raise ConfigError(
                f"num_workers={making.num_workers} with "
                f"items_in_parallel={making.items_in_parallel} would need "
                f"{workers * making.items_in_parallel} threads; at most {_MAX_THREADS} are possible"
            )
        self.workers = Workers(workers, workers * making.items_in_parallel)
        self.native = self._is_native()
        self._sizes = _core.Sizes()

    def _is_native(self) -> bool:
        """Whether the engine reads the dataset by itself."""
        making = self.making
        obstacles = {
            f"dataset={type(making.dataset).__name__} isn't a native one": not is_native(
                making.dataset
            ),
            "collate_fn is Python code": making.collate_fn not in {None, default_collate},
            "worker_init_fn is Python code": making.worker_init_fn is not None,
            "batch_size=None hands out samples": making.batch_size is None,
        }
        found = [what for what, there in obstacles.items() if there]
        if making.worker_mode == "native" and found:
            raise ConfigError(
                f'worker_mode="native" loads batches without Python, but {", ".join(found)}; '
                'use worker_mode="auto"'
            )
        return not found and making.worker_mode != "thread"

    @property
    def pooled(self) -> bool:
        """Whether batches are made on workers also when nobody else has to be kept waiting."""
        # A thread that makes a batch can't see that it takes too long.
        return self.making.num_workers > 0 or self.making.timeout is not None

    def source(self) -> _core.ArraySource | None:
        """The engine's own reader of the dataset; None where batches are made by Python code."""
        source: _core.ArraySource | None = (
            self.making.dataset._native_source() if self.native else None
        )
        return source

    def produce(self, seed: int, *, inline: bool) -> Produce:
        """What makes batches in Python, for a run with this seed."""
        making = self.making
        if self.native:
            # Arrays that the engine can't read: all rows of a batch in one step of numpy's.
            return Produce(_Indices(), making.dataset._gather, inline=inline, seed=seed)
        lanes = making.items_in_parallel
        return Produce(
            making.dataset,
            making.collate_fn,
            inline=inline,
            seed=seed,
            unbatched=making.batch_size is None,
            on_error=making.on_error,
            lanes=self.workers.lanes() if lanes > 1 and not self.awaited else None,
            items_in_parallel=lanes,
            worker_init_fn=making.worker_init_fn,
            num_workers=making.num_workers,
            awaiting=self.workers.awaiting,
        )

    def open(
        self,
        source: AnySource,
        plan: _core.Plan | _core.Reader,
        *,
        epoch: int,
        start: int,
        pooled: bool,
        arena: _core.Arena | None = None,
        wake: Wake | None = None,
        samples: int | None = None,
        background: bool = False,
    ) -> _core.Run:
        """A run from batch `start` on; batches are encoded into `arena`, if one is given.

        Indices from `samples` on are errors; None where there can't be any.
        """
        making = self.making
        if arena is None and isinstance(source, _core.ArraySource):
            arena = self._own_arena()
        if pooled and isinstance(source, _core.CallSource):
            share_interpreter()
        return _core.Run(
            source,
            plan,
            epoch=epoch,
            start=start,
            pool=self.workers.pool() if pooled else None,
            arena=arena,
            encode=arena is not None,
            window=max(1, making.num_workers) + making.prefetch if pooled else 1,
            in_order=making.in_order,
            waker=None if wake is None else wake.waker,
            token=0 if wake is None else wake.token,
            timeout=making.timeout,
            samples=samples,
            background=background,
            sizes=self._sizes,
        )

    def _own_arena(self) -> _core.Arena:
        making = self.making
        samples = min(making.batch_size or 1, max(1, len(making.dataset)))
        batch = making.dataset._sample_nbytes() * samples
        in_flight = (max(1, making.num_workers) + making.prefetch) * batch
        return self.workers.arena(max(_ARENA_FLOOR, _ARENA_WINDOWS * in_flight))


def supply(plan: AnyPlan, start: int, *, weak: bool = False) -> _core.Plan | _core.Reader:
    """What the engine takes its indices from; `weak` for a plan that outlives the run."""
    return plan if isinstance(plan, _core.Plan) else plan.reader(start, weak=weak)


class _Indices:
    """A dataset whose samples are their own indices."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices
