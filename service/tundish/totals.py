"""Counters of each feed that go on when its streams have ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["SUMMED", "Totals"]

SUMMED = {
    "batches": "delivered",
    "samples": "samples",
    "bytes": "bytes",
    "errors": "errors",
    "skipped": "skipped",
    "redelivered": "redelivered",
    "detached": "detached",
    "consumer_wait": "consumer_wait",
    "loader_wait": "loader_wait",
}
"""The names of the totals, and of a stream's counters that they sum up."""


class Totals:
    """What all streams of each feed have been sent. Use it from one thread.

    Args:
        feeds: The names of the feeds.

    Example:
        >>> totals = Totals(["train"])
        >>> totals.add("train", dict.fromkeys(SUMMED.values(), 2) | {"errors": 1})
        >>> totals.of("train", [])["batches"], totals.of("train", [])["streams"]
        (1, 1)
    """

    def __init__(self, feeds: Iterable[str]) -> None:
        self._feeds: dict[str, dict[str, Any]] = {
            feed: {"streams": 0, **dict.fromkeys(SUMMED, 0)} for feed in feeds
        }

    def add(self, feed: str, stream: Mapping[str, Any]) -> None:
        """Takes over the counters of a stream that is over."""
        _sum_up(self._feeds[feed], stream)

    def of(self, feed: str, streams: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """The totals of a feed, with those of its streams that are open."""
        totals = dict(self._feeds[feed])
        for stream in streams:
            _sum_up(totals, stream)
        return totals


def _sum_up(totals: dict[str, Any], stream: Mapping[str, Any]) -> None:
    totals["streams"] += 1
    for name, counter in SUMMED.items():
        totals[name] += stream[counter]
    totals["batches"] -= stream["errors"]  # of the cells that were delivered
