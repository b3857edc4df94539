"""What a client asks of a server: streams with their credits, and the other requests as events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tundish_client.errors import ProtocolError

from .ranges import Ranges

__all__ = [
    "Cancelled",
    "EpochAsked",
    "Event",
    "FeedsAsked",
    "Granted",
    "HelloReceived",
    "Released",
    "ServerStream",
    "StatsAsked",
    "read_credits",
    "read_integer",
]

UNEVEN = ("pad", "drop", "keep")
ON_LAG = ("detach", "wait")

_INT63 = 2**63 - 1
_MAX_CREDIT = 2**53


def read_integer(
    header: Mapping[str, Any], key: str, least: int, most: int = _INT63, default: int | None = None
) -> int:
    """Reads an integer of a header.

    Raises:
        ProtocolError: It is missing, no integer, or out of range.
    """
    value = header.get(key, default)
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(f"{key} must be an integer of {least} or more, got {value!r:.80}")
    return value


def _optional(header: Mapping[str, Any], key: str, kind: type) -> Any:
    value = header.get(key)
    if value is not None and type(value) is not kind:
        raise ProtocolError(f"{key} must be a {kind.__name__} or absent, got {value!r:.80}")
    return value


def read_credits(header: Mapping[str, Any]) -> tuple[int, int]:
    """Reads the credits of a header: batches and bytes.

    Raises:
        ProtocolError: They are missing or malformed.
    """
    value = header.get("credits")
    if type(value) is not dict:
        raise ProtocolError(f"credits must be {{'batches': n, 'bytes': n}}, got {value!r:.80}")
    return read_integer(value, "batches", 0), read_integer(value, "bytes", 0)


def _ranges(value: Any) -> Ranges:
    """Reads batches as ranges, [[first, last], ...], the shape in which many are few."""
    if value is None:
        return Ranges()
    if type(value) is not list or not all(map(_is_range, value)):
        raise ProtocolError(f"acked must be a list of [first, last], got {value!r:.80}")
    return Ranges(value)


def _is_range(pair: Any) -> bool:
    return (
        type(pair) is list
        and len(pair) == 2
        and all(type(n) is int for n in pair)
        and 0 <= pair[0] <= pair[1]
    )


class ServerStream:
    """One stream as the server sees it.

    Attributes:
        number: The client's number for it.
        feed: Name of the feed, None when the client left it out.
        epoch, start, rank, world_size, uneven: What was asked for.
        batch_size: The batch size asked for, None for the feed's.
        shared_memory: Whether batches may be lent to this stream.
        fingerprint: The plan a returning client expects, or None.
        batches, bytes: Credits left; `bytes` may fall below zero once.
        on_lag: "detach" or "wait": what happens when it lags behind others of its epoch.
        group, group_size: The streams it begins together with.
        split: The streams among which its epoch is split.
        done: What it knows to be acknowledged of the split epoch.
        acks: Batches of a split epoch acknowledged since somebody looked.
        acked: The last batch the client has consumed, `start - 1` at first.
        sent: Cells sent so far, batches and errors together.
        errors: Cells sent that were errors.
        sent_bytes: Bytes of the batches sent.
        samples: Samples in the batches sent.
        skipped: Samples that were left out of the batches sent.
    """

    __slots__ = (
        "acked",
        "acks",
        "batch_size",
        "batches",
        "bytes",
        "done",
        "epoch",
        "errors",
        "feed",
        "fingerprint",
        "group",
        "group_size",
        "number",
        "on_lag",
        "rank",
        "samples",
        "sent",
        "sent_bytes",
        "shared_memory",
        "skipped",
        "split",
        "start",
        "uneven",
        "world_size",
    )

    def __init__(self, header: Mapping[str, Any], shared_memory: bool) -> None:
        """Reads the header of an EPOCH message.

        Raises:
            ProtocolError: A field is missing, of a wrong type, or out of range.
        """
        self.number = read_integer(header, "stream", 1)
        self.feed: str | None = _optional(header, "feed", str)
        self.epoch = read_integer(header, "epoch", 0)
        self.start = read_integer(header, "start", 0, default=0)
        self.world_size = read_integer(header, "world_size", 1, default=1)
        self.rank = read_integer(header, "rank", 0, default=0)
        self.uneven = header.get("uneven", "pad")
        if self.uneven not in UNEVEN:
            raise ProtocolError(f"EPOCH has uneven={self.uneven!r:.80}, expected one of {UNEVEN}")
        sized = header.get("batch_size") is not None
        self.batch_size = read_integer(header, "batch_size", 1) if sized else None
        self.batches, self.bytes = read_credits(header)
        self.on_lag = header.get("on_lag", "detach")
        if self.on_lag not in ON_LAG:
            raise ProtocolError(f"EPOCH has on_lag={self.on_lag!r:.80}, expected one of {ON_LAG}")
        self.group: str | None = _optional(header, "group", str)
        sized = header.get("group_size") is not None
        self.group_size = read_integer(header, "group_size", 1, 2**20) if sized else None
        self.split: str | None = _optional(header, "split", str)
        if self.split is not None and (self.start or self.world_size > 1 or self.group_size):
            raise ProtocolError("EPOCH with split can't have a start, ranks or a group_size")
        self.done = _ranges(header.get("acked"))
        self.acks: list[int] = []
        wanted: bool | None = _optional(header, "shared_memory", bool)
        self.shared_memory = shared_memory and wanted is not False
        self.fingerprint: dict[str, Any] | None = _optional(header, "fingerprint", dict)
        self.acked = self.start - 1
        self.sent = self.errors = self.sent_bytes = self.samples = self.skipped = 0

    def ack(self, batch: int) -> None:
        """Takes note that the client has consumed a batch."""
        self.acked = max(self.acked, batch)
        if self.split is not None:
            self.acks.append(batch)

    @property
    def ready(self) -> bool:
        """Whether the credits allow another cell."""
        return self.batches > 0 and self.bytes > 0

    def grant(self, batches: int, nbytes: int) -> None:
        """Adds credits."""
        self.batches = min(self.batches + batches, _MAX_CREDIT)
        self.bytes = min(self.bytes + nbytes, _MAX_CREDIT)

    def charge(self, nbytes: int, samples: int = 0) -> None:
        """Takes one cell of `nbytes` off the credits."""
        self.batches -= 1
        self.bytes -= nbytes
        self.sent += 1
        self.sent_bytes += nbytes
        self.samples += samples


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """A client said HELLO; answer with `welcome`.

    Attributes:
        name, pid: The client, as it calls itself.
        shared_memory: Whether it can take batches in shared memory.
    """

    name: str
    pid: int
    shared_memory: bool


@dataclass(frozen=True, slots=True)
class FeedsAsked:
    """Answer with `send("FEEDS", {"request": request, "feeds": ...})`."""

    request: int


@dataclass(frozen=True, slots=True)
class StatsAsked:
    """Answer with `send("STATS", {"request": request, "stats": ...})`."""

    request: int


@dataclass(frozen=True, slots=True)
class EpochAsked:
    """A stream was opened; answer with `start_stream` or `stream_error`."""

    stream: ServerStream


@dataclass(frozen=True, slots=True)
class Granted:
    """A stream got credits; see whether there is something to send."""

    stream: ServerStream


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client gave this stream up; nothing more may be sent for it."""

    stream: ServerStream


@dataclass(frozen=True, slots=True)
class Released:
    """A slot comes back in-band."""

    segment: int
    slot: int
    generation: int


Event = HelloReceived | FeedsAsked | StatsAsked | EpochAsked | Granted | Cancelled | Released
