"""The native core of Tundish: plans, runs, the arena, wake-ups and endings.

Internal: `tundish.DataLoader` and `tundish.serve` are the public faces of it. All blocking
calls release the interpreter and look at the process's signals every 50 ms.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, final

from typing_extensions import Buffer

@final
class Arena:
    """Memory for batches: sealed memfd segments cut into slots, and a byte limit.

    Args:
        limit: bytes that segments, their slots lent or free, and heap memory together may take.
            A batch that a stream needs next is admitted all the same.
        lenient: admits all batches, beyond the limit with heap memory.
    """

    def __new__(cls, limit: int, lenient: bool = False) -> Arena: ...
    @property
    def limit(self) -> int: ...
    @property
    def used(self) -> int:
        """Bytes that count against the limit: segments and heap memory."""
    @property
    def capacity(self) -> int:
        """Bytes of all mapped segments."""
    @property
    def busy(self) -> int:
        """Bytes of lent slots, of heap memory, and set aside for batches in the making."""
    @property
    def lent(self) -> int:
        """Bytes of the slots that somebody holds."""
    @property
    def slots_total(self) -> int: ...
    @property
    def slots_lent(self) -> int: ...
    @property
    def retiring(self) -> bool:
        """Whether segments are to go, now or when their slots have come back."""
    def usage(self) -> dict[str, int]:
        """All of this at one moment: used, peak, capacity, heap, lent, reserved (bytes set aside
        for batches in the making), slots_total, slots_lent."""
    def trim(self) -> None:
        """Retires the segments of which nobody holds a slot."""
    def segment_fd(self, segment: int) -> int:
        """The segment's memfd, which stays the arena's. KeyError for an unknown segment."""
    def segment_bytes(self, segment: int) -> int: ...
    def retired(self) -> list[int]:
        """Segments to be dropped once every client has unmapped them."""
    def drop_segment(self, segment: int) -> bool:
        """Unmaps a retired segment; False if there was none."""

@final
class Sizes:
    """How large a loader's batches have been, for the memory that is set aside for further ones."""

    def __new__(cls) -> Sizes: ...

@final
class Waker:
    """An eventfd that wakes one event loop for any number of runs."""

    def __new__(cls) -> Waker: ...
    def fileno(self) -> int: ...
    def drain(self) -> list[int]:
        """Resets the eventfd; the tokens of runs with something to take."""

@final
class Pool:
    """Named worker threads shared fairly by runs. Dropping it closes it without waiting."""

    def __new__(cls, workers: int, name: str) -> Pool: ...
    @property
    def workers(self) -> int: ...
    def close(self, timeout: float) -> bool:
        """Ends the threads after the batch in hand; False if some still run after `timeout` s."""

@final
class Plan:
    """Which samples are in which batch; see `docs/order.md`. ValueError on bad arguments.

    Args:
        samples: number of samples of the dataset; ignored with a `sampling`.
        order: `sequential`, `stable`, `torch`, `torch:default`, `torch:persistent`,
            `torch:default:persistent`, `torch:distributed`, `burn`, `burn:workers=N` (1 to
            1024), `dataloader-rs`. With a `sampling`: `stable`, `torch` (the sampler has a
            generator of its own), `torch:shared` (the DataLoader has the same one),
            `torch:persistent`, `torch:default`, `torch:default:persistent`.
        sampling: what a sampler draws in an epoch, instead of every sample once.
    """

    def __new__(
        cls,
        samples: int,
        order: str,
        seed: int,
        epoch: int,
        batch_size: int,
        drop_last: bool,
        rank: int = 0,
        world_size: int = 1,
        uneven: str = "pad",
        sampling: Sampling | None = None,
    ) -> Plan: ...
    @property
    def batches(self) -> int: ...
    @property
    def samples(self) -> int:
        """Samples of this rank that its batches hold."""
    @property
    def padded(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def order(self) -> str:
        """The order with its version, such as `stable/1`."""
    def indices(self, batch: int) -> list[int]:
        """The samples of a batch. May build the order first; Ctrl-C works meanwhile."""

@final
class Sampling:
    """What a sampler draws in an epoch, whatever the order, the seed and the epoch: frozen.

    ValueError on bad arguments. Buffers are one-dimensional and copied; Ctrl-C works
    meanwhile. Equal if everything in them is.
    """

    @staticmethod
    def random(samples: int, num_samples: int, replacement: bool) -> Sampling:
        """`num_samples` (1 or more) of so many samples, all equally likely.

        Without replacement no sample comes again before all have come.
        """
    @staticmethod
    def weighted(weights: Buffer, num_samples: int, replacement: bool) -> Sampling:
        """`num_samples` samples, each as likely as its weight (float64) says.

        At most 2**24 weights, finite and 0 or more, with a sum above 0; without replacement
        at most as many samples as there are weights above 0.
        """
    @staticmethod
    def subset(indices: Buffer) -> Sampling:
        """These indices (int64, 0 or more), shuffled anew in each epoch."""
    @staticmethod
    def fixed(indices: Buffer) -> Sampling:
        """These indices (int64, 0 or more) in this order, in each epoch; any order will do."""
    @property
    def digest(self) -> str:
        """16 hexadecimal digits of everything in it, for fingerprints."""
    def __len__(self) -> int:
        """Positions of an epoch."""
    def __hash__(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class ArraySource:
    """A native dataset of arrays whose first axis counts samples.

    Args:
        fields: (name or None, dtype in the protocol's spelling, array) each.
        container: "dict" for named fields, "list" else.
        selection: int64 row numbers; sample i is then row `selection[i]`.
    """

    def __new__(
        cls,
        fields: list[tuple[str | None, str, Buffer]],
        container: Literal["dict", "list"],
        selection: Buffer | None = None,
    ) -> ArraySource: ...

_Portion: TypeAlias = tuple[list[int], list[Any] | None, int, int]
"""Indices, samples if they were read already, the first one's position, the step to the next."""

@final
class Reader:
    """An epoch that is read by `read(batch, cancelled)`, which returns None at its end.

    It is called for one batch at a time, in order. What it raises is the failure of that batch.
    """

    def __new__(cls, read: Callable[[int, Callable[[], bool]], _Portion | None]) -> Reader: ...

@final
class Task:
    """One batch to be produced by a `CallSource`."""

    @property
    def epoch(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def encode(self) -> bool: ...
    @property
    def worker(self) -> int | None:
        """The worker's number, from 0; None in the consumer's own thread."""
    @property
    def items(self) -> list[Any] | None:
        """The samples, if a `Reader` read them; handed out once."""
    def position(self, place: int) -> int:
        """The position in the epoch of sample number `place` of the batch."""
    def cancelled(self) -> bool: ...
    def step(self, place: int) -> bool:
        """Notes that sample number `place` is being loaded; returns `cancelled()`."""
    def keep(self, places: list[int]) -> None:
        """Leaves the other places out of the batch; once, before `alloc`."""
    def alloc(self, nbytes: int) -> memoryview:
        """Writable memory at a 64-byte boundary, once per task."""

@final
class CallSource:
    """A dataset behind a callable `produce(indices, task)`."""

    def __new__(cls, produce: Callable[[list[int], Task], Any]) -> CallSource: ...

@final
class Lanes:
    """Runs the calls of a batch side by side on the threads of a pool."""

    def __new__(cls, pool: Pool) -> Lanes: ...
    def map(
        self, call: Callable[[int], Any], count: int, lanes: int, task: Task, stop: bool
    ) -> list[tuple[Any, BaseException | None] | None]:
        """`call(k)` for each k below `count`, at most `lanes` at a time.

        None for calls that weren't made (after an exception with `stop`) or hadn't come back when
        `task` was cancelled. What a signal handler raises comes through.
        """

@final
class Run:
    """One production of an epoch. Dropping it cancels it.

    `epoch` is that of a `Reader`. With `timeout` (s) a batch that takes longer on a pool fails.
    With `samples` a batch fails that has an index of that or more.
    In the `background` a run gets what capacity others leave, and a little of it in any case.
    """

    def __new__(
        cls,
        source: ArraySource | CallSource,
        plan: Plan | Reader,
        *,
        start: int = 0,
        pool: Pool | None = None,
        arena: Arena | None = None,
        encode: bool = False,
        window: int = 1,
        in_order: bool = True,
        waker: Waker | None = None,
        token: int = 0,
        epoch: int = 0,
        timeout: float | None = None,
        samples: int | None = None,
        background: bool = False,
        sizes: Sizes | None = None,
    ) -> Run: ...
    def take(self) -> Batch | Failure | End | None:
        """The next cell; None while there is none. Never blocks."""
    def next(self) -> Batch | Failure | End:
        """The next cell, waiting for it; without a pool it is produced in this thread."""
    def cancel(self) -> None: ...
    def stats(self) -> dict[str, Any]:
        """Counters; "total" is None while it isn't known."""

@final
class Batch:
    """A finished batch. Exports its memory as a writable buffer, which holds its slot."""

    @property
    def batch(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def packed(self) -> bytes | None:
        """The encoded value; None for a Python object."""
    @property
    def samples(self) -> list[int]: ...
    @property
    def count(self) -> int:
        """How many samples it has."""
    @property
    def skipped(self) -> list[int]:
        """The samples that were left out."""
    @property
    def samples_offset(self) -> int:
        """Where the sample indices stand in the memory, as int64."""
    @property
    def segment(self) -> int | None: ...
    @property
    def slot(self) -> int | None: ...
    @property
    def generation(self) -> int | None: ...
    @property
    def offset(self) -> int | None:
        """Where the slot begins in its segment, in bytes."""
    @property
    def times(self) -> tuple[int, int]:
        """When it was claimed and ready, in ns of CLOCK_MONOTONIC."""
    @property
    def object(self) -> Any:
        """The Python object; handed out once."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Failure:
    """A batch that failed."""

    @property
    def batch(self) -> int: ...
    @property
    def samples(self) -> list[int]: ...
    @property
    def error(self) -> BaseException: ...

@final
class End:
    """The counted end of a run."""

    @property
    def batches(self) -> int: ...
    @property
    def errors(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def skipped(self) -> int: ...

def watch_parent(pidfd: int, grace: float) -> None:
    """Ends this process when the one behind `pidfd` is gone: SIGTERM, then `_exit`."""

def watch_signals(grace: float) -> None:
    """Enforces the exit `grace` seconds after a first SIGINT or SIGTERM, at once at a second."""
