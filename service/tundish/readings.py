"""Readings: batches cut from what an iterator gives, one after the other.

All that a reading knows of its batch is in one object, which is replaced in one step; making a
batch of it changes nothing. So a call that a signal handler cut short can be made again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tundish import _core
from tundish.errors_of_batches import shown
from tundish.passes import PATIENCE, Got, Pass, Unread, waiting
from tundish.yields import index_of, indices_of, is_group, is_list, items_of, shown_value
from tundish_client.errors import ConfigError

__all__ = ["Batches", "Bulk", "Indices", "Job", "Loss", "Portion", "Reading", "Samples"]

Portion = tuple[list[int], list[Any] | None, int, int]

# Indices in a batch that doesn't say beforehand how many it has.
_MOST_UNSIZED = 2**24


@dataclass(frozen=True)
class Job:
    """What is read, and how it is cut into batches; see ``read_sampler``.

    Attributes:
        reading: the kind of reading.
        what: what errors call the iterable.
        samples: what indices must be below.
        length: ``len()`` of the iterable, if it has one.
    """

    reading: type[Reading]
    iterable: Any
    what: str
    epoch: int
    length: int | None
    size: int = 1
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    uneven: str = "pad"
    samples: int = 0
    skip_errors: bool = False

    def plan(self, places: int) -> _core.Plan:
        """How so many places are cut."""
        cut = (self.size, self.drop_last, self.rank, self.world_size, self.uneven)
        return _core.Plan(places, "sequential", 0, 0, *cut)


class Loss:
    """What padding and dropping cost: by the length at first, as it was after a whole pass."""

    __slots__ = ("dropped", "padded")

    def __init__(self, plan: _core.Plan | None) -> None:
        self.padded = 0 if plan is None else plan.padded
        self.dropped = 0 if plan is None else plan.dropped


class _At:
    """The batch that is being read, and what the batches before it leave behind.

    Attributes:
        first: places before this batch, those of all ranks.
        base: indices in them, where a place can hold several.
        front: the values that this rank may need for padding.
        tail: the error in the last place before this batch.
        inner: the pass over a batch that is an iterator itself.
    """

    __slots__ = ("base", "batch", "first", "front", "got", "inner", "tail")

    def __init__(self, batch: int, first: int, base: int, front: list[Any], got: Got) -> None:
        self.batch = batch
        self.first = first
        self.base = base
        self.front = front
        self.got = got
        self.tail: Unread | None = None
        self.inner: tuple[Pass, Got] | None = None


class _Over(NamedTuple):
    """The end: this rank's batches and places, the places of all, an error behind the batches."""

    batches: int
    places: int
    total: int
    error: BaseException | None


class Reading:
    """One reading of an epoch, for one batch after the other.

    Calls may come from different threads, but one at a time; a second one waits. After an exception
    that a signal handler raised, and after `cancelled`, the same call goes on where it stopped.
    """

    one_each = True
    """Whether each place is one sample."""

    def __init__(self, job: Job, start: int, loss: Loss) -> None:
        self._job = job
        self._start = start
        self._loss = loss
        self._pass = Pass(job.iterable, job.what, job.epoch)
        self._at = _At(0, 0, 0, [], Got())
        self._over: _Over | None = None
        self._turn = threading.Lock()
        self._thread: int | None = None

    def __call__(self, batch: int, cancelled: Callable[[], bool]) -> Portion | None:
        """Batch number `batch`: its indices, samples, first position, and step to the next one.

        Returns:
            None if there is no such batch.

        Raises:
            Cancelled: `cancelled` says so.
            BaseException: the error of this batch, or what a signal handler raised.
        """
        if self._turn.locked() and self._thread == threading.get_ident():
            raise RuntimeError(
                f"{self._job.what} asked for a batch of the epoch that is being read from it"
            )
        waiting(self._turn, cancelled)
        with self._turn:
            try:
                self._thread = threading.get_ident()
                found = self._read(batch, cancelled)
            finally:
                self._thread = None
        if not isinstance(found, Unread):
            return found
        try:
            # Not raised further down: frames that hold the batch would make a cycle with its error.
            raise found.error
        finally:
            del found

    def _read(self, batch: int, cancelled: Callable[[], bool]) -> Portion | Unread | None:
        if batch < self._at.batch:
            raise RuntimeError(f"batch {batch} was read before batch {self._at.batch} already")
        while self._over is None:
            self._load(self._at, cancelled)
            if self._over is not None or self._at.batch == batch:
                break
            done, self._at = self._at, self._following(self._at)
            # The frames of an error that it holds lead back to it.
            done.got.values.clear()
        over = self._over
        if over is None or batch < over.batches:
            return self._noted(self._at)
        if over.error is not None and batch == over.batches:
            return Unread(over.error)
        if batch == self._start and batch > over.batches + (over.error is not None):
            left = (v.error for v in (self._at.tail, *self._at.got.values) if type(v) is Unread)
            error = over.error or next(left, None)
            why = "" if error is None else f", and then {type(error).__name__}: {error}"
            gave = f"{self._job.what} gave {over.batches} batches{why}"
            raise ConfigError(f"start={batch} is behind the epoch's end: {gave}") from error
        return None

    def _load(self, at: _At, cancelled: Callable[[], bool]) -> None:
        """Read what is missing of a batch, and find out whether it is the end."""
        job, values = self._job, at.got.values
        want = job.size * job.world_size
        left = want if job.length is None else job.length - at.first
        # Behind the last value there must be the end: there one more is asked for.
        self._fill(at, want if left >= want else left + 1, cancelled)
        if at.got.ended or len(values) > left:
            self._over = self._ending(at, min(left, len(values) - at.got.ended))

    def _fill(self, at: _At, count: int, cancelled: Callable[[], bool]) -> None:
        self._pass.fill(at.got, count, (at.batch, at.first), cancelled)

    def _following(self, at: _At) -> _At:
        values = at.got.values
        front = at.front if at.batch else values[: self._job.rank]
        base = at.base + self._indices_in(at)
        following = _At(at.batch + 1, at.first + len(values), base, front, Got(at.got))
        following.tail = values[-1] if isinstance(values[-1], Unread) else None
        return following

    def _indices_in(self, at: _At) -> int:
        """How many indices the values are, if that isn't their number."""
        return len(at.got.values)

    # -- the end --------------------------------------------------------------------------------

    def _ending(self, at: _At, count: int) -> _Over:
        """The end, behind `count` values of this batch."""
        plan = self._job.plan(at.first + count)
        self._loss.padded, self._loss.dropped = plan.padded, plan.dropped
        error = self._last_error(at, count, plan.samples)
        return _Over(plan.batches, plan.samples, at.first + count, error)

    def _last_error(self, at: _At, count: int, places: int) -> BaseException | None:
        """What would go unnoticed if the epoch just ended; `places` of this rank are in batches."""
        what, length, total = self._job.what, self._job.length, at.first + count
        extra = at.got.values[count]
        if isinstance(extra, Unread):
            return extra.error
        if length == total and not at.got.ended:
            return ValueError(
                f"len() of {what} is {length}, but it gives more than {length} values"
            )
        if at.got.given_up:
            return RuntimeError(f"{what} raised {PATIENCE} errors in a row and is given up")
        if length != total and at.got.torn == count:
            return RuntimeError(
                f"{what} ended after {total} values because an interrupt came out of it: epoch "
                f"{self._job.epoch} isn't complete; ask for it again from batch {at.batch} on"
            )
        lost = self._lost_error(at, count, places)
        if lost is None and length is not None and total < length and not at.got.failed:
            return ValueError(f"len() of {what} is {length}, but it ended after {total} values")
        return lost

    def _lost_error(self, at: _At, count: int, places: int) -> BaseException | None:
        """An error of the iterator that fails no batch of this rank.

        That is one in a place that is dropped, or the last one, after which nothing came any more,
        in another rank's place or in one that may be skipped.
        """
        job, total = self._job, at.first + count
        last = job.rank + (places - 1) * job.world_size  # of this rank; padding, if behind the end
        values = [at.tail, *at.got.values[:count]]
        for place, value in enumerate(values, at.first - 1):
            if not isinstance(value, Unread):
                continue
            own = place % job.world_size == job.rank
            fails = (own and place <= last) or (last >= total and last % total == place)
            if job.skip_errors:
                fails = total == job.length
                own = False
            if not fails and (own or place == total - 1):
                return value.error
        return None

    # -- a batch --------------------------------------------------------------------------------

    def _noted(self, at: _At) -> Portion | Unread:
        try:
            return self._portion(at)
        except Exception as error:
            where = f"{self._job.what}, batch {at.batch} of epoch {self._job.epoch}"
            error.add_note(f"tundish: in {where}")
            raise

    def _portion(self, at: _At) -> Portion | Unread:
        """The batch for the engine, or its error."""
        raise NotImplementedError

    def _share(self, at: _At) -> tuple[range, list[Any]]:
        """The places of this rank's part of a batch, and what was read there."""
        job, over, values = self._job, self._over, at.got.values
        size = job.size if over is None else min(job.size, over.places - at.batch * job.size)
        first, step = at.first + job.rank, job.world_size
        places = range(first, first + size * step, step)
        total = at.first + len(values) if over is None else over.total
        share = values[job.rank : min(total - at.first, size * step) : step]
        if len(share) < size:
            again = places[-1] % total  # only the last can be behind the end
            share.append(at.front[again] if again < len(at.front) else values[again])
        return places, share

    def _checked(self, values: list[Any], where: Callable[[int], str]) -> list[int] | Unread:
        """`values` as indices; the first that isn't one is the batch's error."""
        samples = self._job.samples
        found = indices_of(values, samples)
        if found is not None:
            return found
        error = _first_error(values)
        if error is not None:
            return error
        return [index_of(value, samples, where(at)) for at, value in enumerate(values)]


def _first_error(values: list[Any]) -> Unread | None:
    """The first error among `values`, with a note on others."""
    errors = [value for value in values if isinstance(value, Unread)]
    if len(errors) > 1:
        first, second = errors[0].error, errors[1].error
        note = f"tundish: it is the first of {len(errors)} in this batch, then came {shown(second)}"
        if note not in getattr(first, "__notes__", ()):
            first.add_note(note)
    return errors[0] if errors else None


class Indices(Reading):
    """A sampler's indices, so and so many in a batch."""

    def _portion(self, at: _At) -> Portion | Unread:
        places, values = self._share(at)
        found = self._checked(values, lambda k: f"{self._job.what}, yield {places[k]}")
        return found if isinstance(found, Unread) else (found, None, places.start, places.step)


class Samples(Reading):
    """The samples of an iterable dataset."""

    def _portion(self, at: _At) -> Portion | Unread:
        places, samples = self._share(at)
        error = None if self._job.skip_errors else _first_error(samples)
        if error is not None:
            return error
        total = None if self._over is None else self._over.total
        indices = [place if total is None else place % total for place in places]
        return indices, samples, places.start, places.step

    def _fill(self, at: _At, count: int, cancelled: Callable[[], bool]) -> None:
        world = self._job.world_size
        if world == 1:
            super()._fill(at, count, cancelled)
            return
        while len(at.got.values) < count and not at.got.ended:
            done = len(at.got.values)
            super()._fill(at, min(count, done + world), cancelled)
            self._let_go(at, done)

    def _let_go(self, at: _At, done: int) -> None:
        """Keep no samples of other ranks, except those that may be repeated at the end."""
        rank, world, values = self._job.rank, self._job.world_size, at.got.values
        for k in range(done, len(values) - at.got.ended):
            place = at.first + k
            if place % world != rank and place >= rank and not isinstance(values[k], Unread):
                values[k] = None


class Bulk(Reading):
    """A sampler without batches: each index, or each list of indices, is one."""

    one_each = False

    def _indices_in(self, at: _At) -> int:
        return sum(map(_weight, at.got.values))

    def _portion(self, at: _At) -> Portion | Unread:
        places, (value,) = self._share(at)
        total = places.stop if self._over is None else self._over.total
        earlier = at.got.values[: self._job.rank][: total - at.first]
        first = at.base + sum(map(_weight, earlier)) + self._job.rank - len(earlier)
        where = f"{self._job.what}, yield {places.start}"
        if is_list(value):
            # The step of 0 is what tells a list of one index from that index itself.
            return self._group(items_of(value), where, first, int(len(value) > 1))
        found = self._checked([value], lambda _: where)
        return found if isinstance(found, Unread) else (found, None, first, 1)

    def _group(self, values: list[Any], where: str, first: int, step: int = 1) -> Portion | Unread:
        if not values:
            raise ValueError(f"{where}: an empty list of indices is no batch")
        found = self._checked(values, lambda k: f"{where}, place {k}")
        return found if isinstance(found, Unread) else (found, None, first, step)


def _weight(value: Any) -> int:
    return len(value) if is_list(value) else 1


class Batches(Bulk):
    """A batch sampler's lists, which may also be iterators of indices."""

    def _load(self, at: _At, cancelled: Callable[[], bool]) -> None:
        super()._load(at, cancelled)
        value = at.got.values[0]
        if self._over is not None or is_list(value) or not is_group(value):
            return
        if at.inner is None:
            what = f"{self._job.what}, yield {at.first}"
            at.inner = Pass(value, what, self._job.epoch), Got()
        reading, got = at.inner
        reading.fill(got, _MOST_UNSIZED + 1, (at.batch, 0), cancelled)

    def _indices_in(self, at: _At) -> int:
        return super()._indices_in(at) if at.inner is None else len(at.inner[1].values) - 1

    def _portion(self, at: _At) -> Portion | Unread:
        value, where = at.got.values[0], f"{self._job.what}, yield {at.first}"
        if isinstance(value, Unread):
            return value
        if is_list(value):
            return self._group(items_of(value), where, at.base)
        if at.inner is None:
            kind = type(value).__name__
            raise TypeError(f"{where}: {shown_value(value)} ({kind}) is no list of indices")
        got = at.inner[1]
        if not got.ended:
            raise ValueError(f"{where}: more than {_MOST_UNSIZED} indices are too many for a batch")
        if got.torn == len(got.values) - 1:
            raise RuntimeError(f"{where}: ended because an interrupt came out of it")
        return self._group(got.values[:-1], where, at.base)
