"""Reads what `tundish stats` prints, and has it printed on a terminal of any width."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

Table = dict[str, dict[str, str]]
"""The first cell of each row to its row: heading to cell."""


def tables(text: str | Sequence[str]) -> list[Table]:
    """The tables of a report, in their order; a heading of two lines is joined."""
    lines = text.splitlines() if isinstance(text, str) else list(text)
    blocks, block = [], []
    for line in [*lines, ""]:
        if line:
            block.append(line)
        elif block:
            blocks, block = [*blocks, block], []
    return [_table(block) for block in blocks if any(_is_rule(line) for line in block)]


def _is_rule(line: str) -> bool:
    return set(line) == {"-", " "} or set(line) == {"-"}


def _table(block: list[str]) -> Table:
    (rule,) = [at for at, line in enumerate(block) if _is_rule(line)]
    spans = [match.span() for match in re.finditer("-+", block[rule])]
    assert block[rule] == "  ".join("-" * (end - begin) for begin, end in spans)

    def cut(line: str) -> list[str]:
        between = "".join(line[end : end + 2] for _, end in spans)
        assert not between.strip(), f"{line!r} has something between its columns"
        return [line[begin:end].strip() for begin, end in spans]

    parts = zip(*map(cut, block[:rule]), strict=True)
    heads = [" ".join(part for part in head if part).replace(" /", "/") for head in parts]
    rows = [dict(zip(heads, cut(line), strict=True)) for line in block[rule + 1 :]]
    found = {next(iter(row.values())): row for row in rows}
    assert len(found) == len(rows)
    return found


def on_a_terminal(columns: int, socket: str | Path) -> str:
    """What `tundish stats` shows on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "tundish", "stats", "--socket", str(socket)]
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 2**16):
                shown += part
        except OSError:  # how a terminal ends whose other side is closed
            pass
        os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode().replace("\r\n", "\n")
