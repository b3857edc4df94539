"""One stream as the client sees it: its cells, its position, its end."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, NamedTuple

from ..config import RECEIVE_BYTES, EpochOptions
from ..errors import ConfigError, ProtocolError, TundishError
from .cells import Cell, read_count
from .standing import COUNTS, Standing

__all__ = ["StreamState"]


_WIDE = 9
"""The window of small batches, if the user does not say how many: 8 ahead."""

_TOGETHER = 4
"""ACKs that are sent together."""

_SLOW = 0.02
"""Seconds after which a message more is no matter."""

_CLOSED = "this stream is closed: ask the client for a new one"


class _Before(NamedTuple):
    """What had come when the stream was asked for on its present connection."""

    batches: int = 0
    errors: int = 0
    skipped: int = 0
    samples: int = 0


class StreamState(Standing):
    """The state of one stream; its connection fills it, `take` empties it.

    `take` returns a cell but leaves it at the head of the queue until the next call: the caller
    hands it to the user with plain assignments only (see `streams`), so that a signal never falls
    between the queue and the user.

    A stream outlives its connection: `suspend` when that is lost, `ask` on the next one. What had
    come in order stays, and the server is asked for what follows. What had come of a split epoch
    was not this stream's yet, and is dropped.

    Attributes:
        asked: Whether the server of the present connection has been asked for it.
        answered: Whether that has said START.
        reader: The thread that is reading.
        owed: Batch and bytes to be acknowledged next.
        window: Batches that may be here at a time.
        late: Messages that acknowledge small batches, to be sent together.
        ended: END has come.
        final: The consumer has been told about the end.
        clean: The user ended the stream, and not by an exception.
    """

    def __init__(self, options: EpochOptions) -> None:
        super().__init__(options)
        self.asked = self.answered = False
        self.reader: int | None = None
        self.owed: tuple[int, int] | None = None
        self.window = options.window
        self.late: list[bytes] = []
        self._owed_at = 0.0
        self.received = self.received_errors = self.received_skipped = 0
        self.seen: set[int] = set()
        self.ended = False
        self.final = False
        self.closed = False
        self.clean = False
        self._samples = 0  # in the batches that were consumed
        self._before = _Before()

    @property
    def over(self) -> bool:
        """Whether the server will send nothing more."""
        return self.ended or self.failure is not None

    # Called by the connection

    def ask(self) -> dict[str, Any]:
        """Returns the header of EPOCH, for this connection."""
        self.asked, self.answered = True, False
        self.pay()  # the credit below is that of a consumer that has acknowledged all
        header = {"stream": self.number, **self.options.header()}
        if self.split is not None and len(self.acked):
            header["acked"] = self.acked.pairs()
        if self.started:
            header |= self._again()
            header.pop("group_size", None)  # the group has begun
        return header

    def _again(self) -> dict[str, Any]:
        """What is asked for differently the second time."""
        self._before = _Before(
            self.received,
            self.received_errors,
            self.received_skipped,
            self._samples + sum(cell.count() for cell in self.cells),
        )
        held = sum(cell.nbytes for cell in self.cells)
        return {
            "feed": self.feed,
            "start": self._expected(),
            "fingerprint": self.fingerprint,
            # The credit of the cells that are held comes with their ACK.
            "credits": {
                "batches": max(0, self.window - len(self.cells)),
                "bytes": max(0, RECEIVE_BYTES - held),
            },
        }

    def _expected(self) -> int:
        """The batch that has to come next; 0 where there is no order."""
        return self.first + self.received if self.in_order else 0

    def suspend(self) -> bool:
        """Takes note that the connection is lost and that another will follow.

        Returns:
            Whether the stream can go on there.
        """
        self.asked = False
        if self.split is not None:
            handed = [cell for cell in self.cells if cell is self.handed]
            self.cells.clear()
            self.cells.extend(handed)
            return True
        return self.in_order is not False or not self.received

    def start(self, header: dict[str, Any]) -> None:
        """Takes in START.

        Raises:
            ConfigError: The stream was to begin beyond the end of the epoch, or goes on in another
                one than it began in.
            ProtocolError: A field can't be what it is.
        """
        total = None if header["batches"] is None else read_count(header, "batches")
        first = read_count(header, "start") if "start" in header else self.options.start
        self.answered = True
        if self.started:
            self._start_again(header, total, first)
            return
        self.feed = str(header["feed"])
        self.fingerprint = dict(header.get("fingerprint") or {})
        self.in_order = header.get("in_order") is not False and self.split is None
        if self.split is not None:
            total = None  # others have their part of it
        self.exact = total is not None and header.get("exact") is not False
        if first > self.options.start:
            raise ProtocolError(f"a stream from {self.options.start} on starts at {first}")
        if total is not None and self.exact and first > total:
            raise ConfigError(
                f"start={first} is beyond the end of epoch {self.options.epoch} "
                f"of feed {self.feed!r}, which has {total} batches"
            )
        self.first = self.next_batch = first
        self.total = total
        self.announced = {name: int(header.get(name) or 0) for name in COUNTS}
        self.announced["batches"] = self._due()
        self.started = True

    def _start_again(self, header: dict[str, Any], total: int | None, first: int) -> None:
        """Takes in START on a further connection: all must be as it was."""
        pairs: list[tuple[str, Any, Any]] = [("feed", self.feed, header["feed"])]
        if self.exact:
            pairs.append(("batches", self.total, total))
        if self.split is None:
            pairs.append(("start", self._expected(), first))
            pairs.append(("in_order", self.in_order, header.get("in_order") is not False))
        now = header.get("fingerprint") or {}
        pairs += [(key, self.fingerprint[key], now[key]) for key in self.fingerprint if key in now]
        for name, before, after in pairs:
            if before != after:
                raise ConfigError(
                    f"this stream began with {name}={before!r}, but the server that it reconnected "
                    f"to has {name}={after!r}: it would go on with other batches"
                )

    def add(self, cell: Cell, *, failed: bool) -> None:
        """Takes in a cell.

        Raises:
            ProtocolError: It is out of place.
        """
        if not self.answered:
            raise ProtocolError(f"batch {cell.batch} of stream {self.number} came before START")
        if self.split is None:
            self._check_place(cell)
        self.received += 1
        self.received_errors += failed
        self.received_skipped += len(cell.skipped)
        self.cells.append(cell)

    @property
    def adapts(self) -> bool:
        """Whether the window is ours to choose: not in a split, where others wait for each ACK."""
        return self.options.prefetch is None and self.split is None

    def widen(self) -> int:
        """Makes the window wide.

        What a batch costs on the way is nothing beside the work on a large one, but all there is of
        a small one.

        Returns:
            The credit that is to be given: batches.
        """
        more, self.window = _WIDE - self.window, _WIDE
        return more

    def narrow(self) -> bool:
        """Takes one off a window that is wider than asked for; its credit isn't given back."""
        if self.window <= self.options.window:
            return False
        self.window -= 1
        return True

    def owe(self, ack: bytes, now: float) -> bool:
        """Puts an ACK off; returns whether it has come to be time for all of them.

        It is when several wait or nothing is here, and at once where the user takes their time:
        streams that share a run with this one may wait for it.
        """
        slow, self._owed_at = now - self._owed_at > _SLOW, now
        self.late.append(ack)
        return slow or not self.cells or len(self.late) >= _TOGETHER

    def pay(self) -> list[bytes]:
        """The ACKs that were put off."""
        late, self.late = self.late, []
        return late

    def _check_place(self, cell: Cell) -> None:
        if self.in_order:
            if cell.batch != self._expected():
                raise ProtocolError(
                    f"batch {cell.batch} of stream {self.number} came "
                    f"instead of batch {self._expected()}"
                )
        elif cell.batch < self.first or cell.batch in self.seen:
            raise ProtocolError(
                f"batch {cell.batch} of stream {self.number} came twice, or is before {self.first}"
            )
        else:
            self.seen.add(cell.batch)
        if self.exact and self.total is not None and cell.batch >= self.total:
            raise ProtocolError(
                f"batch {cell.batch} of stream {self.number} is not one of "
                f"{self.first} to {self.total - 1}"
            )

    def revoke(self, batches: Iterable[int]) -> tuple[int, int]:
        """Takes note that batches of a split epoch went to others.

        Those that were not handed out are dropped. What the user holds stays, but what becomes of
        it doesn't count.

        Returns:
            The credit of what was dropped: batches and bytes.
        """
        gone = set(batches)
        for batch in gone:
            self.acked.discard(batch)
        # Built is what is about to be handed out, perhaps in another thread.
        held = [cell for cell in (self.handed, *self.cells) if cell is not None and cell.built]
        for cell in held:
            cell.revoked = cell.revoked or cell.batch in gone
        dropped = [cell for cell in self.cells if cell.batch in gone and not cell.built]
        for cell in dropped:
            self.cells.remove(cell)
        return len(dropped), sum(cell.nbytes for cell in dropped)

    def end(self, header: dict[str, Any]) -> None:
        """Takes in END and compares its counts with what came.

        Raises:
            ProtocolError: They differ.
        """
        counts = {name: int(header["counts"].get(name, 0)) for name in COUNTS}
        if not self.answered:
            raise ProtocolError(f"END of stream {self.number} came before START")
        for name, number in self._before._asdict().items():
            counts[name] += number
        epoch = f"epoch {self.options.epoch} of feed {self.feed!r}"
        said = [("END", counts["batches"])] + ([("START", self._due())] if self.exact else [])
        for what, number in said:
            if number != self.received:
                raise ProtocolError(
                    f"{epoch} ended after {self.received} batches, but {what} says {number}"
                )
        for name, number, what in (
            ("errors", self.received_errors, "failed batches"),
            ("skipped", self.received_skipped, "skipped samples"),
        ):
            if counts[name] != number:
                raise ProtocolError(f"{epoch} had {number} {what}, but END says {counts[name]}")
        self.true = MappingProxyType(counts)
        self.ended = True
        self.seen.clear()

    def fail(self, error: Exception, *, lasting: bool = False) -> None:
        """Ends the stream with an error, after the cells that came before it.

        Args:
            error: The error.
            lasting: The client looks for the server again when it is asked for something else.
        """
        if not self.over:
            self.failure, self.lasting = error, lasting

    def consumed(self) -> int | None:
        """The batch of a split epoch that a clean end acknowledges."""
        handed = self.handed
        if self.split is None or not self.clean or handed is None or handed.revoked:
            return None
        return handed.batch

    def close(self) -> None:
        """Drops what the user has not been given."""
        if (batch := self.consumed()) is not None:
            self.acked.add(batch)
        self.closed = True
        if self.handed is not None:
            self._note(self.taken, self.handed)
            self.handed = None
        self.cells.clear()

    # Called for the user

    def settle(self) -> None:
        """Forgets the cell that was handed over last; it is consumed now."""
        handed = self.handed
        if handed is not None:
            if self.cells and self.cells[0] is handed:
                self.cells.popleft()
            self.owed = (handed.batch, handed.nbytes)
            self._samples += handed.count()
            if self.split is not None and not handed.revoked:
                self.acked.add(handed.batch)
            self._note(self.taken, handed)
            self.handed = None

    def head(self) -> Cell | None:
        """Returns the next cell, built; None when there is none yet, or never.

        Raises:
            Exception: The stream has failed.
        """
        if self.closed and not self.final:
            raise TundishError(_CLOSED)
        if not self.cells:
            if self.failure is not None:
                raise self.failed()
            return None
        cell = self.cells[0]
        if not cell.built:
            cell.build(self.options.epoch)
        return cell

    def is_started(self) -> bool | None:
        """Returns True once START has come, None before.

        Raises:
            Exception: The stream failed, or was closed, before it started.
        """
        if self.started:
            return True
        if self.closed:
            raise TundishError(_CLOSED)
        if self.failure is not None:
            raise self.failed()
        return None
