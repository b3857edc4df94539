"""What is left of a split epoch."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tundish._core import End

if TYPE_CHECKING:
    from tundish import _core
    from tundish.hub import Ask, Hub
    from tundish_client._protocol.ranges import Ranges

    Cell = _core.Batch | _core.Failure

__all__ = ["Remainder"]

_SUMMED = ("claimed", "produced", "delivered", "errors", "skipped")


class Remainder:
    """The cells of a split epoch that nobody has acknowledged, each once.

    After a restart the acknowledgements come back with the streams that made them. Nobody has
    consumed what lies behind the last one; a gap before it may belong to a stream that is still on
    its way back. So the gaps come last, those that are left by then.

    Args:
        hub: Where runs are opened.
        ask: What is produced.
        acked: The batches that are acknowledged; may grow.
        token: What the runs wake.

    Attributes:
        start: The batch that was produced first.
        run: The present run.
    """

    def __init__(self, hub: Hub, ask: Ask, acked: Ranges, token: int) -> None:
        self._hub = hub
        self._ask = ask
        self._acked = acked
        self._token = token
        self._end: End | None = None  # of the first run, once that is over
        self._over = False
        self._past: Counter[str] = Counter()
        self.start = self._behind()
        self.run = self._open(self.start)

    def _behind(self) -> int:
        behind = self._acked.last + 1
        return behind if self._ask.batches is None else min(behind, self._ask.batches)

    def _open(self, start: int) -> _core.Run:
        return self._ask.open(self._hub, start, self._token, background=False)

    @property
    def counters(self) -> dict[str, Any]:
        """Those of a run, over all its runs."""
        now = self.run.stats()
        counters = now | {name: self._past[name] + now[name] for name in _SUMMED}
        if self._ask.batches is not None:
            counters["total"] = self._ask.batches - self.start
        return counters

    def _replace(self, start: int) -> None:
        self._past.update({name: self.run.stats()[name] for name in _SUMMED})
        self.run.cancel()
        self.run = self._open(start)

    def renew(self) -> None:
        """More is known to be acknowledged, and nothing has been taken yet: starts behind it."""
        start = self._behind()
        if start != self.start:
            self.start = start
            self._replace(start)

    def take(self) -> Cell | End | None:
        """The next cell, the end, or None while it isn't there."""
        while not self._over:
            cell = self.run.take()
            if cell is None:
                return None
            if isinstance(cell, End):
                self._ended(cell)
            elif cell.batch not in self._acked and not self._is_past(cell.batch):
                return cell
            elif self._end is not None and self._ask.loader.in_order:
                self._fill(cell.batch + 1)
        return self._end

    def _is_past(self, batch: int) -> bool:
        """Whether a batch lies behind the gaps, whose turn it is."""
        return self._end is not None and batch >= self.start

    def _ended(self, end: End) -> None:
        if self._end is None:
            self._end = end
            self._fill(0)
        else:
            self._over = True

    def _fill(self, batch: int) -> None:
        """Goes on with the first gap from `batch` on, or ends."""
        batch = self._acked.after(batch)
        self._over = batch >= self.start
        if self._over:
            self.run.cancel()
        else:
            self._replace(batch)
