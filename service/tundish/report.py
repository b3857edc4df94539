"""The counters of a server as tables, for `tundish stats`."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tundish.tables import Column, layout, plain

__all__ = ["render", "report"]

_FEEDS = (
    Column("feed", 0, 8),
    Column("samples\n/epoch", 8),
    Column("batches\n/epoch", 6),
    Column("streams\nopen", 0),
    Column("streams\never", 3),
    Column("batch\n/s", 1),
    Column("batches\nsent", 1),
    Column("batches\nproduced", 2),
    Column("bytes\nsent", 7),
    Column("errors", 4),
    Column("samples\nskipped", 7),
    Column("batches\nredelivered", 6),
    Column("times\ndetached", 5),
    Column("consumer\nwait", 2),
    Column("loader\nwait", 3),
)

_RUNS = (
    Column("run", 0),
    Column("feed\n/epoch", 0, 8),
    Column("rank", 4),
    Column("kind", 2, 10),
    Column("at/of", 0),
    Column("batch\n/s", 1),
    Column("batches\nproduced", 5),
    Column("batches\nready", 4),
    Column("batches\nheld", 4),
    Column("bytes\nheld", 7),
    Column("streams", 1),
    Column("errors", 3),
    Column("batches\nredelivered", 6),
    Column("waits\nfor", 1, 6),
    Column("waiting", 2),
)

_STREAMS = (
    Column("stream", 0),
    Column("consumer", 0, 11),
    Column("feed\n/epoch", 0, 8),
    Column("group\n/split", 2, 8),
    Column("rank", 5),
    Column("run", 6),
    Column("at/of", 0),
    Column("batch\n/s", 1),
    Column("lag", 2),
    Column("behind", 5),
    Column("slots", 7),
    Column("bytes\nsent", 8),
    Column("errors", 4),
    Column("batches\nredelivered", 9),
    Column("times\ndetached", 5),
    Column("consumer\nwait", 1),
    Column("loader\nwait", 3),
    Column("waited\nfor", 1),
    Column("waits\nfor", 1, 10),
)


def report(counters: Mapping[str, Any]) -> None:
    """Prints what `client.stats()` returned to stdout.

    A terminal gets the columns for which it has room. What is no terminal gets all of them, and no
    line is broken.
    """
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    sys.stdout.write("\n".join(render(counters, room)) + "\n")


def render(counters: Mapping[str, Any], room: int | None) -> list[str]:
    """The lines of the report; for a terminal with `room` columns, or None for all there is."""
    lines = [line for text in _summary(counters) for line in _wrapped(text, room)]
    lost = 0
    for columns, rows in (
        (_FEEDS, _feeds(counters)),
        (_RUNS, _runs(counters)),
        (_STREAMS, _streams(counters)),
    ):
        if rows:
            table, without = layout(columns, rows, room)
            lines += ["", *table]
            lost += without
    if lost:
        hint = f"{lost} columns more have no room here; `tundish stats --json` has all"
        lines += ["", *_wrapped(hint, room)]
    return lines


def _wrapped(text: str, room: int | None) -> list[str]:
    if room is None:
        return [text]
    return textwrap.wrap(
        text, room, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _summary(counters: Mapping[str, Any]) -> list[str]:
    server, memory, slots = counters["server"], counters["memory"], counters["slots"]
    used, limit = _size(memory["used"]), _size(memory["limit"])
    where = f"server pid {server['pid']} on {plain(server['socket'])}"
    room = (
        f"memory {used} of {limit} ({memory['used'] / memory['limit']:.0%}), at most "
        f"{_size(memory['peak'])}; segments {_size(memory['capacity'])}, heap "
        f"{_size(memory['heap'])}, queues {_size(memory['queued'])}"
    )
    lent = (
        f"slots {slots['lent']} of {slots['total']} in use, {slots['leased']} by clients, "
        f"{slots['quarantined']} in quarantine; connections {counters['connections']}"
    )
    return [where, room, lent]


def _feeds(counters: Mapping[str, Any]) -> list[list[str]]:
    return [
        _cells(
            feed["feed"],
            feed["samples"],
            feed["batches"],
            feed["streams"],
            feed["totals"]["streams"],
            feed["rate"],
            feed["totals"]["batches"],
            feed["totals"]["produced"],
            _size(feed["totals"]["bytes"]),
            *(feed["totals"][name] for name in ("errors", "skipped", "redelivered", "detached")),
            _time(feed["totals"]["consumer_wait"]),
            _time(feed["totals"]["loader_wait"]),
        )
        for feed in counters["feeds"]
    ]


def _runs(counters: Mapping[str, Any]) -> list[list[str]]:
    return [
        _cells(
            run["run"],
            f"{run['feed']}/{run['epoch']}",
            _rank(run),
            _kind(run),
            f"{run['position']}/{_end(run)}",
            run["rate"],
            *(run[name] for name in ("produced", "ready", "held")),
            _size(run["bytes"]),
            run["streams"],
            run["errors"],
            run.get("redelivered", "-"),
            _late(run) or "-",
            _time(run["waiting"]) if run["waiting_for"] else "-",
        )
        for run in sorted(counters["runs"], key=lambda run: run["run"])
    ]


def _streams(counters: Mapping[str, Any]) -> list[list[str]]:
    runs = {run["run"]: run for run in counters["runs"]}
    return [
        _cells(
            _number(stream),
            f"{stream['client']['name']} ({stream['client']['pid']})",
            f"{stream['feed']}/{stream['epoch']}",
            _together(stream),
            _rank(stream),
            "-" if stream["run"] is None else stream["run"],
            _at(stream),
            stream["rate"],
            *(stream[name] for name in ("lag", "behind", "slots")),
            _size(stream["bytes"]),
            *(stream[name] for name in ("errors", "redelivered", "detached")),
            *(_time(stream[name]) for name in ("consumer_wait", "loader_wait", "waited_for")),
            _waits_for(stream, runs.get(stream["run"])),
        )
        for stream in sorted(counters["streams"], key=_place)
    ]


def _cells(*values: object) -> list[str]:
    return [
        "?" if value is None else f"{value:.1f}" if isinstance(value, float) else plain(str(value))
        for value in values
    ]


def _place(stream: Mapping[str, Any]) -> tuple[int, int]:
    return stream["connection"], stream["stream"]


def _number(stream: Mapping[str, Any]) -> str:
    return f"{stream['connection']}.{stream['stream']}"


def _rank(what: Mapping[str, Any]) -> str:
    return f"{what['rank']}/{what['world_size']}" if what["world_size"] > 1 else "-"


def _end(what: Mapping[str, Any]) -> str:
    return "?" if what["total"] is None else str(what["start"] + what["total"])


def _at(stream: Mapping[str, Any]) -> str:
    # Of a split epoch a stream has no place, others have their part.
    sent = f"{stream['delivered']} sent"
    return sent if stream["split"] is not None else f"{stream['position']}/{_end(stream)}"


def _together(what: Mapping[str, Any]) -> str:
    if what["split"] is not None:
        return f"split {what['split']}"
    return "-" if what["group"] is None else f"group {what['group']}"


def _kind(run: Mapping[str, Any]) -> str:
    """What sets a run apart: whom it is for, and how it is gone about."""
    kinds = [_together(run)] if run["split"] is not None or run["group"] is not None else []
    if run["background"]:
        kinds.append("background")
    if not run["streams"]:
        kinds.append("kept")
    return ", ".join(kinds) or "-"


def _late(run: Mapping[str, Any]) -> str:
    """The streams for which others of the run wait, by their numbers."""
    return ", ".join(name.rpartition("stream ")[2] for name in run["waiting_for"])


def _waits_for(stream: Mapping[str, Any], run: Mapping[str, Any] | None) -> str:
    if stream["joined"] is not None:
        name = stream["split"] if stream["group"] is None else stream["group"]
        return f"{name}: {stream['joined']} of {stream['group_size']}"
    if run is None or not run["waiting_for"] or _number(stream) in _late(run).split(", "):
        return "-"
    return _late(run)


def _size(nbytes: float) -> str:
    units: Sequence[str] = ("B", "KiB", "MiB", "GiB")
    for unit in units:
        if nbytes < 1024 or unit == units[-1]:
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s"
