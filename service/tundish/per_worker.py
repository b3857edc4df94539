"""What belongs to one worker: a dataset of its own, its number, its initialisation.

Workers are threads and share the dataset. One that can't be shared (it holds a file position, a
database connection, a decoder with state) is given as a ``DatasetFactory``.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tundish.errors_of_batches import settle
from tundish.randomness import here
from tundish_client.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tundish._core import Task

__all__ = ["DatasetFactory", "Instance", "WorkerInfo", "call_once_per_worker", "get_worker_info"]

_log = logging.getLogger("tundish.loader")

# Instances that a fork copied from the parent, whose file positions and connections are shared with
# it. They are kept, so that nothing of them is closed or flushed on the parent's behalf.
_leaked: list[Any] = []


class DatasetFactory:
    """A dataset that every thread makes for itself.

    Args:
        function: called without arguments, returns a map-style dataset. It should cost little and
            return equal datasets; it is called from several threads at once.

    Each thread that loads samples (worker, lane, or the consumer's own with ``num_workers=0``), and
    the one that asks for the length, calls `function` at its first need and keeps the result: a
    dataset is used by the thread that made it only. With ``async def __getitem__`` the call is made
    there and the coroutine runs on the loader's loop.

    An exception of `function` is the error of the batch that needed the dataset; the next batch
    tries again. A process that is forked makes its datasets anew, and doesn't touch the parent's.

    A dataset with a ``close()`` is closed by its own thread: by workers and lanes when they end,
    which is soon after their loader is closed or freed; by the consumer's thread when that frees
    the factory. Where a worker is the last to let go of the factory, the consumer's thread closes
    its own when it next makes a dataset, or ends. What ``close`` raises is logged. A coroutine
    function is not called, and nothing is closed in a thread that is stuck in user code at the end
    of the process.

    A factory is a dataset itself, so views may be made of it. It is picklable if `function` is.

    Raises:
        ConfigError: `function` isn't callable, or is a coroutine function.

    Example:
        >>> class Records:
        ...     def __init__(self, path):
        ...         self.file = open(path, "rb", buffering=0)
        ...
        ...     def __len__(self):
        ...         return os.path.getsize(self.file.name) // 4096
        ...
        ...     def __getitem__(self, index):
        ...         self.file.seek(4096 * index)
        ...         return self.file.read(4096)
        >>> dataset = DatasetFactory(lambda: Records("records.bin"))
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"DatasetFactory(function={function!r}): function must be callable without "
                "arguments and return a dataset; for a dataset that exists already, give the "
                "DataLoader the dataset"
            )
        self._function = function

    def __len__(self) -> int:
        """The length of this thread's dataset."""
        return len(self._instance().dataset)

    def __getitem__(self, index: Any) -> Any:
        """Sample `index` of this thread's dataset."""
        return self._instance().dataset[index]

    @property
    def __getitems__(self) -> Callable[[list[int]], Any]:
        """The batched fetch of this thread's dataset, if it has one."""
        method: Callable[[list[int]], Any] = self._instance().dataset.__getitems__
        return method

    def _is_async(self, method: str) -> bool:
        """Whether views of this have to await that method; not, as long as there is no dataset."""
        from tundish.view_base import is_async

        try:
            dataset = self._instance().dataset
        except Exception:
            return False  # it is the error of whoever needs the dataset
        return is_async(dataset, method)

    def __repr__(self) -> str:
        return f"DatasetFactory({getattr(self._function, '__qualname__', self._function)})"

    def __reduce__(self) -> tuple[type[DatasetFactory], tuple[Callable[[], Any]]]:
        return (type(self), (self._function,))

    def __del__(self) -> None:
        # Only this thread's: those of others may be at work, and their threads see to them. There
        # is nothing yet where a collection of garbage runs while `_here` is being made.
        getattr(_here, "instances", {}).pop(id(self), None)

    def _instance(self) -> Instance:
        """This thread's dataset, made if there is none; raises what `function` raises."""
        instances = _here.instances
        found = instances.get(id(self))
        if found is None or not found.belongs_to(self):
            # What a fork copied shares file positions and connections with the parent's.
            _leaked.extend(held for held in instances.values() if held.pid != os.getpid())
            for key, held in list(instances.items()):
                if held.is_left():
                    del instances[key]
            found = instances[id(self)] = Instance(self, self._function())
        return found

    def _instance_for(self, task: Task) -> Instance:
        """This thread's dataset for `task`'s batch, whose error it is if it can't be made."""
        try:
            return self._instance()
        except BaseException as error:
            settle(error, repr(self), task)


class Instance:
    """One thread's dataset, closed when the thread lets go of it.

    Attributes:
        dataset: what the factory's function returned.
        pid: the process that it was made in.
        target: room for what the fetching code knows of it.
    """

    __slots__ = ("_factory", "dataset", "pid", "target")

    def __init__(self, factory: DatasetFactory, dataset: Any) -> None:
        kind = type(dataset)
        if not hasattr(kind, "__getitem__") and not hasattr(kind, "__getitems__"):
            raise TypeError(
                f"the function of a DatasetFactory returned {kind.__qualname__}, which has no "
                "__getitem__; it must return a map-style dataset"
            )
        self._factory = weakref.ref(factory)
        self.pid = os.getpid()
        self.target: Any = None
        self.dataset = dataset

    def belongs_to(self, factory: DatasetFactory) -> bool:
        """Whether it is `factory`'s in this process, and not that of a freed one or a parent's."""
        return self._factory() is factory and self.pid == os.getpid()

    def is_left(self) -> bool:
        """Whether nobody can ask for it any more."""
        return self._factory() is None or self.pid != os.getpid()

    def __del__(self) -> None:
        # Set last, so that an Instance that refused its dataset doesn't have it.
        close = getattr(getattr(self, "dataset", None), "close", None)
        if not callable(close) or inspect.iscoroutinefunction(close) or self.pid != os.getpid():
            return
        try:
            close()
        except Exception:
            _log.warning("close() of a DatasetFactory's dataset failed", exc_info=True)


class _Thread(threading.local):
    """What a thread keeps for as long as it lives."""

    def __init__(self) -> None:
        #: By the id of the factory.
        self.instances: dict[int, Instance] = {}
        #: A flag: the function itself, kept by a thread of its loader, would keep the loader alive.
        self.initialised = False


_here = _Thread()


# -- numbers of workers ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class WorkerInfo:
    """The worker that runs this code, as PyTorch's ``get_worker_info`` describes it.

    Attributes:
        id: its number, from 0.
        num_workers: how many there are.
        seed: the loader's seed plus `id`. Random numbers should come from ``sample_rng`` instead:
            what is seeded per worker changes with their number.
    """

    id: int
    num_workers: int
    seed: int
    _dataset: Any

    @property
    def dataset(self) -> Any:
        """The loader's dataset; of a ``DatasetFactory`` this thread's own."""
        dataset = self._dataset
        return dataset._instance().dataset if isinstance(dataset, DatasetFactory) else dataset

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, num_workers={self.num_workers}, seed={self.seed})"


def get_worker_info() -> WorkerInfo | None:
    """The worker that loads the sample or makes the batch which this code is part of.

    Returns:
        Its description; None outside of workers, in the consumer's own thread (``num_workers=0``
        under ``for``), and in the code of an iterable dataset, which is one stream and must not be
        split by workers.

    Example:
        >>> get_worker_info() is None
        True
    """
    place = here.get()
    number = None if place is None else place.task.worker
    if place is None or number is None:
        return None
    origin = place.origin
    return WorkerInfo(number, origin.num_workers, (origin.seed + number) % 2**64, origin.dataset)


def call_once_per_worker(function: Callable[[int], object], task: Task) -> None:
    """Call a ``worker_init_fn`` with the worker's number, before the first batch of its thread.

    Not in the consumer's own thread, which is no worker. What it raises is the error of `task`'s
    batch, and it is called again before the next one.
    """
    number = task.worker
    # A worker's thread belongs to one loader, which has one such function for all its life.
    if number is None or _here.initialised:
        return
    try:
        function(number)
    except BaseException as error:
        settle(error, f"worker_init_fn({number})", task)
    _here.initialised = True
