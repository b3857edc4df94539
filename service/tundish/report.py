"""The counters of a server as tables, for `tundish stats`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

__all__ = ["report"]

_WIDE = 200
"""Columns where there is no terminal to fit."""


def report(counters: dict[str, Any]) -> None:
    """Prints what `client.stats()` returned to stdout."""
    width = None if sys.stdout.isatty() else _WIDE
    console = Console(width=width, highlight=False, soft_wrap=False)
    server = counters["server"]
    console.print(f"server pid {server['pid']} on {server['socket']}", markup=False)
    console.print(_memory(counters), markup=False)
    console.print(_feeds(counters["feeds"]))
    if counters["runs"]:
        console.print(_runs(counters["runs"]))
    if counters["streams"]:
        console.print(_streams(counters["streams"]))


def _memory(counters: dict[str, Any]) -> str:
    memory, slots = counters["memory"], counters["slots"]
    used, limit = _size(memory["used"]), _size(memory["limit"])
    return (
        f"memory {used} of {limit} ({memory['used'] / memory['limit']:.0%}), at most "
        f"{_size(memory['peak'])}; segments {_size(memory['capacity'])}, heap "
        f"{_size(memory['heap'])}, queues {_size(memory['queued'])}\n"
        f"slots {slots['lent']} of {slots['total']} in use, {slots['leased']} by clients, "
        f"{slots['quarantined']} in quarantine; connections {counters['connections']}"
    )


def _feeds(feeds: list[dict[str, Any]]) -> Table:
    table = _table(
        "feed", "samples", "batches", "streams", "batch/s", "sent", "bytes", "errors", "skipped",
        "redelivered", "detached", "consumer wait", "loader wait",
    )  # fmt: skip
    for feed in feeds:
        totals = feed["totals"]
        _row(
            table,
            feed["feed"],
            feed["samples"],
            feed["batches"],
            f"{feed['streams']}/{totals['streams']}",
            feed["rate"],
            totals["batches"],
            _size(totals["bytes"]),
            *(totals[name] for name in ("errors", "skipped", "redelivered", "detached")),
            _time(totals["consumer_wait"]),
            _time(totals["loader_wait"]),
        )
    return table


def _runs(runs: list[dict[str, Any]]) -> Table:
    table = _table(
        "run", "feed", "epoch", "rank", "at", "of", "batch/s", "ready", "held", "bytes", "streams",
        "errors", "waits for",
    )  # fmt: skip
    for run in runs:
        late = ", ".join(run["waiting_for"])
        _row(
            table,
            f"{run['run']} (background)" if run["background"] else run["run"],
            run["feed"],
            run["epoch"],
            f"{run['rank']}/{run['world_size']}",
            run["position"],
            None if run["total"] is None else run["start"] + run["total"],
            run["rate"],
            run["ready"],
            run["held"],
            _size(run["bytes"]),
            run["streams"],
            run["errors"],
            f"{late} {_time(run['waiting'])}" if late else "",
        )
    return table


def _streams(streams: list[dict[str, Any]]) -> Table:
    table = _table(
        "consumer", "stream", "run", "feed", "epoch", "at", "of", "batch/s", "lag", "queued",
        "slots", "bytes", "errors", "detached", "consumer wait", "loader wait",
    )  # fmt: skip
    for stream in streams:
        client, total = stream["client"], stream["total"]
        _row(
            table,
            f"{client['name']} ({client['pid']})",
            f"{stream['connection']}.{stream['stream']}",
            stream["run"],
            stream["feed"],
            stream["epoch"],
            stream["position"],
            None if total is None else stream["start"] + total,
            stream["rate"],
            *(stream[name] for name in ("lag", "queued", "slots")),
            _size(stream["bytes"]),
            stream["errors"],
            stream["detached"],
            _time(stream["consumer_wait"]),
            _time(stream["loader_wait"]),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        words = column in {"feed", "consumer", "waits for"}
        table.add_column(column, justify="left" if words else "right", overflow="fold")
    return table


def _row(table: Table, *cells: object) -> None:
    from rich.text import Text

    table.add_row(*[Text(_cell(cell)) for cell in cells])


def _cell(cell: object) -> str:
    if cell is None:
        return "?"
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)


def _size(nbytes: float) -> str:
    units: Sequence[str] = ("B", "KiB", "MiB", "GiB")
    for unit in units:
        if nbytes < 1024 or unit == units[-1]:
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s"
