"""How far the script of a `testing.ScriptedServer` has been played to one stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._protocol.asking import ServerStream

__all__ = ["Encoded", "Play"]


@dataclass
class Encoded:
    """What the protocol wants to know about a batch."""

    batch: int
    packed: bytes
    samples_offset: int
    nbytes: int
    times: tuple[int, int]
    segment: int = 0
    slot: int = 0
    generation: int = 0
    offset: int = 0


class Play:
    """What one stream is sent.

    Attributes:
        stream: The stream.
        items: Steps and cells from its start on, each with its batch or that which follows; of a
            split without what it has acknowledged before.
        cells: How many cells the script has.
        at: The next item.
        samples: Samples sent.
        silent_until: When to go on (`time.monotonic`).
        held: Batches of a split that were sent, and not revoked.
    """

    def __init__(self, stream: ServerStream, script: Sequence[Any]) -> None:
        from .testing import Batch, is_value

        self.stream = stream
        self.items: list[tuple[int, Any]] = []
        self.cells = self.at = self.samples = 0
        self.silent_until = 0.0
        self.held: set[int] = set()
        done = stream.done
        for item in script:
            number = self.cells
            if isinstance(item, Batch) and item.number is not None:
                number = item.number
            is_cell = is_value(item) or isinstance(item, BaseException)
            if not is_cell or (self.cells >= stream.start and number not in done):
                self.items.append((number, item))
            self.cells += is_cell

    def advance(self, number: int, *, cell: bool) -> None:
        """The item at hand is sent, which is batch `number` if it is a cell."""
        self.at += 1
        if cell and self.stream.split is not None:
            self.held.add(number)

    @property
    def acknowledged(self) -> bool:
        """Whether nothing is held of a split, so that it may end."""
        return self.held.issubset(self.stream.acks)
