"""Tables of text: as wide as they are, or with the columns for which a terminal has room."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Column", "layout", "plain"]

_GAP = "  "

_QUIET = {"-", "0", "0 B", "0.0 s"}
"""Cells that tell nothing: a column of them is the first to go."""

_LAST = 1000

_AMPLE = 24
"""The width that a long name has before a column is shown that tells nothing."""

_PARTS = re.compile(r"(.+)((?: \(|/|: ).*)")
"""A name, and what stands behind it: a process, an epoch, numbers."""


class Column(NamedTuple):
    """One column of a table.

    Attributes:
        heading: Its heading; where it may be broken there is a line feed.
        rank: The columns of the lowest rank are kept the longest, those of 0 always.
        least: The width to which its cells may be shortened, None for those that may not: numbers.
    """

    heading: str
    rank: int
    least: int | None = None


def layout(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None
) -> tuple[list[str], int]:
    r"""The lines of a table, none longer than `room` if that can be, and how many columns went.

    Names are shortened where there is no room, never numbers; nothing is broken but headings,
    between words. None for `room` has everything, and each heading in one line.

    Example:
        >>> layout([Column("times\ndetached", 0), Column("errors", 1)], [["12", "0"]], 10)[0]
        ['   times', 'detached', '--------', '      12']
    """
    heads = [[_joined(column.heading)] for column in columns]
    natural = _widths(heads, rows)
    if room is not None and _total(natural) > room:
        heads = [column.heading.split("\n") for column in columns]
        natural = _widths(heads, rows)
    least = [
        width if column.least is None else min(width, max(column.least, *map(_width, head)))
        for column, head, width in zip(columns, heads, natural, strict=True)
    ]
    chosen = _chosen(columns, rows, least, natural, room)
    widths = _spread(chosen, least, natural, room)
    lines = _head([heads[at] for at in chosen], [columns[at] for at in chosen], widths)
    for row in rows:
        cells = [_shortened(row[at], width) for at, width in zip(chosen, widths, strict=True)]
        lines.append(_line(cells, [columns[at] for at in chosen], widths))
    return lines, len(columns) - len(chosen)


def plain(text: str) -> str:
    """A name that others chose, without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _chosen(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    least: Sequence[int],
    natural: Sequence[int],
    room: int | None,
) -> list[int]:
    """Which columns there is room for: the more important ones first, those that are quiet last."""
    quiet = [all(row[at] in _QUIET for row in rows) for at in range(len(columns))]
    ample = [max(one, min(other, _AMPLE)) for one, other in zip(least, natural, strict=True)]
    chosen: list[int] = []
    for at in sorted(range(len(columns)), key=lambda at: columns[at].rank + _LAST * quiet[at]):
        widths = ample if quiet[at] else least
        fits = room is None or _total([widths[other] for other in (*chosen, at)]) <= room
        if fits or columns[at].rank == 0:
            chosen.append(at)
    return sorted(chosen)


def _spread(
    chosen: Sequence[int], least: Sequence[int], natural: Sequence[int], room: int | None
) -> list[int]:
    """The widths of these columns; names have what is left."""
    if room is None:
        return [natural[at] for at in chosen]
    widths = [least[at] for at in chosen]
    left = max(0, room - _total(widths))
    for place, at in enumerate(chosen):
        more = min(left, natural[at] - least[at])
        widths[place] += more
        left -= more
    return widths


def _widths(heads: Sequence[Sequence[str]], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(_width, [*head, *(row[at] for row in rows)])) for at, head in enumerate(heads)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _head(
    heads: Sequence[Sequence[str]], columns: Sequence[Column], widths: Sequence[int]
) -> list[str]:
    high = max(map(len, heads))
    padded = [["", *head] if len(head) < high else head for head in heads]
    lines = [_line([head[at] for head in padded], columns, widths) for at in range(high)]
    return [*lines, _GAP.join("-" * width for width in widths)]


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    padded = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        space = " " * (width - _width(cell))
        padded.append(space + cell if column.least is None else cell + space)
    return _GAP.join(padded).rstrip()


def _shortened(cell: str, width: int) -> str:
    """A name that is cut off; the numbers behind it stay, if they have room."""
    if _width(cell) <= width:
        return cell
    found = _PARTS.fullmatch(cell)
    name, tail = (found[1], found[2]) if found else (cell, "")
    if _width(tail) + 2 > width:
        name, tail = cell, ""
    while name and _width(f"{name}…{tail}") > width:
        name = name[:-1]
    return f"{name}…{tail}"


def _joined(heading: str) -> str:
    return heading.replace("\n/", "/").replace("\n", " ")


def _width(text: str) -> int:
    """Columns that a terminal gives it."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
