"""`tundish stats` for people: what it shows, and on terminals of any width."""

import asyncio
import os
import subprocess
import sys

import pytest

from helpers.datasets import arrays
from helpers.tables import on_a_terminal, tables
from helpers.timing import MS, until
from tundish import AsyncClient, serve
from tundish.report import render
from tundish.tables import Column, layout, plain

# What must be there on a terminal of 80 columns: of feeds, runs and streams.
NEEDED = (
    {"feed", "streams open", "streams ever", "batch/s", "batches sent", "batches produced"},
    {"run", "feed/epoch", "kind", "at/of", "batch/s", "streams", "waits for", "waiting"},
    {"stream", "consumer", "feed/epoch", "at/of", "batch/s", "consumer wait", "waited for",
     "waits for"},
)  # fmt: skip

FEEDS = {
    "feed", "samples/epoch", "batches/epoch", "streams open", "streams ever", "batch/s",
    "batches sent", "batches produced", "bytes sent", "errors", "samples skipped",
    "batches redelivered", "times detached", "consumer wait", "loader wait",
}  # fmt: skip
RUNS = {
    "run", "feed/epoch", "rank", "kind", "at/of", "batch/s", "batches produced", "batches ready",
    "batches held", "bytes held", "streams", "errors", "batches redelivered", "waits for",
    "waiting",
}  # fmt: skip
STREAMS = {
    "stream", "consumer", "feed/epoch", "group/split", "rank", "run", "at/of", "batch/s", "lag",
    "behind", "slots", "bytes sent", "errors", "batches redelivered", "times detached",
    "consumer wait", "loader wait", "waited for", "waits for",
}  # fmt: skip
EVERYTHING = (FEEDS, RUNS, STREAMS)


async def count(stream):
    return sum([1 async for _ in stream])


@pytest.fixture
async def crowd(path):
    """A server with a bit of everything: who is waited for, a group, a split, ranks, a kept run."""
    feeds = {"train": arrays(1000, 10), "validation": arrays(700, 2)}
    async with (
        serve(feeds, socket=path, share_window=8192, share_linger=3600) as server,
        AsyncClient(path) as one,
        AsyncClient(path) as two,
    ):
        await one.ping()  # it is 1.1 for the protocol
        slow = one.epoch(0, feed="train", on_lag="wait", prefetch=1)  # 1.2
        await anext(slow)
        waits = asyncio.ensure_future(
            count(two.epoch(0, feed="train", on_lag="wait"))  # 2.1
        )
        group = asyncio.ensure_future(
            anext(two.epoch(1, feed="train", group="sweep", group_size=2))  # 2.2
        )
        split = [each.epoch(3, feed="validation", split="evaluation") for each in (one, two)]
        for stream in split:  # 1.3, 2.3
            for _ in range(3):
                await anext(stream)
        rank = two.epoch(2, feed="validation", rank=1, world_size=2)  # 2.4
        await anext(rank)
        assert await count(two.epoch(5, feed="validation", start=340)) == 10  # 2.5
        await until(lambda: any(run["waiting"] for run in server.stats()["runs"]), "a wait")
        await asyncio.sleep(200 * MS)
        yield server
        for each in (waits, group):
            each.cancel()
        await asyncio.gather(waits, group, return_exceptions=True)


def check(feeds, runs, streams):
    """What every report of the crowd says."""
    assert (feeds["train"]["streams open"], feeds["train"]["streams ever"]) == ("3", "3")
    whom = [row for name, row in feeds.items() if name.startswith("valid")]
    assert [(row["streams open"], row["streams ever"]) for row in whom] == [("3", "4")]
    late = [row for row in runs.values() if row["waits for"] != "-"]
    assert [(row["feed/epoch"], row["waits for"]) for row in late] == [("train/0", "1.2")]
    assert float(late[0]["waiting"].removesuffix(" s")) > 0
    kinds = sorted(row["kind"][:5] for row in runs.values())
    assert kinds == ["-", "-", "kept", "split"]
    assert [row["streams"] for row in runs.values() if row["kind"] == "kept"] == ["0"]
    assert (streams["1.2"]["waits for"], streams["2.1"]["waits for"]) == ("-", "1.2")
    assert float(streams["1.2"]["waited for"].removesuffix(" s")) >= 200 * MS - 0.1
    assert streams["1.2"]["consumer wait"] == streams["2.1"]["waited for"] == "0.0 s"
    assert streams["1.2"]["at/of"].endswith("/100")
    assert streams["2.2"]["waits for"].endswith(": 1 of 2")
    assert streams["2.2"]["waits for"].startswith("s")
    for number in ("1.3", "2.3"):
        assert streams[number]["at/of"].endswith(" sent")
    assert all(row["consumer"].endswith(f" ({os.getpid()})") for row in streams.values())
    assert [row["feed/epoch"].rpartition("/")[2] for row in streams.values()] == list("030132")


async def test_a_terminal_of_80_columns(crowd):
    text = await asyncio.to_thread(on_a_terminal, 80, crowd.socket)
    assert max(map(len, text.splitlines())) <= 80
    found = tables(text)
    check(*found)
    for table, needed, known in zip(found, NEEDED, EVERYTHING, strict=True):
        for row in table.values():
            assert needed <= set(row) <= known
    assert "columns more have no room here; `tundish stats --json` has all" in text


async def test_a_terminal_of_200_columns(crowd):
    text = await asyncio.to_thread(on_a_terminal, 200, crowd.socket)
    assert 120 < max(map(len, text.splitlines())) <= 200
    found = tables(text)
    check(*found)
    for table, known in zip(found, EVERYTHING, strict=True):
        for row in table.values():
            assert set(row) == known
    assert "…" not in text
    assert "no room" not in text
    _, runs, streams = found
    assert [row["kind"] for row in runs.values()].count("split evaluation") == 1
    assert streams["1.3"]["group/split"] == "split evaluation"
    assert (streams["2.2"]["group/split"], streams["2.2"]["run"]) == ("group sweep", "-")
    assert streams["2.2"]["waits for"] == "sweep: 1 of 2"
    assert streams["2.4"]["rank"] == "1/2"


async def test_what_is_no_terminal_gets_everything_in_long_lines(crowd):
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tundish", "stats", "--socket", str(crowd.socket)],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "60"},
    )
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) > 200
    rules = [at for at, line in enumerate(lines) if line and set(line) <= {"-", " "}]
    assert [lines[at - 2] for at in rules] == ["", "", ""]  # headings of one line
    found = tables(done.stdout)
    check(*found)
    assert [set(next(iter(table.values()))) for table in found] == list(EVERYTHING)
    assert not any(cell == "" for table in found for row in table.values() for cell in row.values())


async def test_at_any_width_numbers_are_whole_and_names_are_told(crowd):
    counters = crowd.stats()
    whole = tables(render(counters, None))
    named = {"feed", "consumer", "feed/epoch", "group/split", "kind", "waits for"}
    shown = []
    for room in range(30, 260):
        lines = render(counters, room)
        found = tables(lines)
        shown.append(sum(len(next(iter(table.values()))) for table in found))
        if room >= 60:
            assert max(map(len, lines)) <= room
        for table, full in zip(found, whole, strict=True):
            for row, all_of_it in zip(table.values(), full.values(), strict=True):
                for heading, cell in row.items():
                    if cell != all_of_it[heading]:
                        assert heading in named, (room, heading)
                        begin, _, end = cell.partition("…")
                        assert all_of_it[heading].startswith(begin)
                        assert all_of_it[heading].endswith(end)
    assert shown[0] < shown[50] < shown[-1] == sum(map(len, EVERYTHING))


class TestColumns:
    COLUMNS = (Column("feed", 0, 4), Column("batches\nsent", 1), Column("errors", 2))

    def test_headings_are_broken_between_words_if_that_helps(self):
        rows = [["train", "12", "3"]]
        assert layout(self.COLUMNS, rows, 28) == (
            [
                "feed   batches sent  errors",
                "-----  ------------  ------",
                "train            12       3",
            ],
            0,
        )
        assert layout(self.COLUMNS, rows, 26) == (
            [
                "       batches",
                "feed      sent  errors",
                "-----  -------  ------",
                "train       12       3",
            ],
            0,
        )

    def test_what_tells_nothing_goes_first(self):
        lines, lost = layout(self.COLUMNS, [["train", "0", "3"]], 14)
        assert (lines[0], lost) == ("feed   errors", 1)
        lines, lost = layout(self.COLUMNS, [["train", "12", "3"]], 15)
        assert (lines[1], lost) == ("feed      sent", 1)

    def test_what_stands_behind_a_name_stays(self):
        columns = [Column("consumer", 0, 4)]

        def shown(name, room):
            return layout(columns, [[name]], room)[0][-1]

        assert shown("a-long-name (4242)", 14) == "a-long… (4242)"
        assert shown("validation/17", 8) == "vali…/17"
        assert shown("sweep: 1 of 2", 11) == "sw…: 1 of 2"
        assert shown("validation", 8) == "validat…"
        assert shown("名前の長い消費者 (7)", 10) == "名前… (7)"

    def test_names_move_no_cursor(self):
        assert plain("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"
        assert plain("Zürich 名前") == "Zürich 名前"
