"""Counters and logs: `client.stats()`, `tundish stats`, and that the docs name every key."""

import asyncio
import json
import logging
import os
import re
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.datasets import arrays
from helpers.forkery import Forkery
from helpers.raw import Raw, epoch
from helpers.tables import tables
from helpers.timing import MS, until, wait_for
from tundish import AsyncClient, Client, ConfigError, serve
from tundish.log import configure
from tundish.outbox import Outbox
from tundish_client._protocol.frames import encode_message

TUNING = Path(__file__).parents[2] / "docs" / "tuning.md"

FEEDS = """
    import numpy as np
    from tundish import ArrayDataset, DataLoader
    feeds = {
        "train": DataLoader(ArrayDataset(x=np.arange(100)), batch_size=10),
        "val": DataLoader(list(range(7)), batch_size=2),
    }
"""


def keys(value, prefix=""):
    """Names of all leaves, `a.b` for those of maps."""
    if isinstance(value, dict):
        return {name for key in value for name in keys(value[key], f"{prefix}{key}.")}
    return {prefix.rstrip(".")}


def documented():
    """The keys in the tables of the section "Counters": those of the whole, and of the lists."""
    section = TUNING.read_text().split("\n## Counters\n")[1].split("\n## ")[0]
    found, where = {"": set()}, ""
    for line in section.splitlines():
        if match := re.match(r"`(feeds|streams|runs)` is a list", line):
            where = match[1]
            found[where] = set()
        elif line.startswith("| `"):
            found[where] |= set(re.findall(r"`([a-z_.]+)`", line.split("|")[1]))
    return found


async def test_every_counter_is_in_the_docs_and_every_one_of_the_docs_is_there(path):
    async with serve(arrays(), socket=path), AsyncClient(path) as client:
        whole, split = client.epoch(0), client.epoch(1, split="all")
        await anext(whole)
        await anext(split)
        stats = await client.stats()
        described = set((await client.feeds())[0])
    lists = {name: stats.pop(name) for name in ("feeds", "streams", "runs")}
    told = documented()
    assert keys(stats) == told[""]
    assert keys(lists["streams"][0]) == told["streams"]
    of_feeds = set(lists["feeds"][0]) - described - {"totals"}
    assert of_feeds | keys(lists["feeds"][0]["totals"], "totals.") == told["feeds"] - {"feed"}
    assert set().union(*lists["runs"]) == told["runs"]
    assert "redelivered" not in lists["runs"][0]


class TestTotals:
    async def test_they_go_on_when_streams_end(self, path):
        async with serve(arrays(100, 10), socket=path) as server:
            async with AsyncClient(path) as client:
                first = [batch async for batch in client.epoch(0)]
                second = client.epoch(1, prefetch=1)
                await anext(second)
                await until(lambda: server.stats()["streams"][0]["delivered"] == 2, "2 batches")
                (feed,) = (await client.stats())["feeds"]
            assert len(first) == 10
            totals = feed["totals"]
            assert (totals["streams"], feed["streams"]) == (2, 1)
            assert (totals["batches"], totals["samples"], totals["bytes"]) == (12, 120, 12 * 208)
            await until(lambda: not server.stats()["streams"], "the end")
            after = server.stats()["feeds"][0]["totals"]
            assert (after["streams"], after["batches"]) == (2, 12)
            assert after["loader_wait"] >= totals["loader_wait"] > 0

    def test_queues_count(self, serve):
        """Answers that a client does not read take memory, and soon no more are made."""
        service = serve(FEEDS, "feeds")
        with Client(service.socket) as watcher:
            with Raw(service.socket, shared_memory=False) as raw:
                raw.sock.setblocking(False)
                asked = encode_message("STATS", {"request": 1}) * 1000
                while select.select([], [raw.sock], [], 300 * MS)[1]:
                    raw.sock.send(asked)
                memory = watcher.stats()["memory"]
            assert 2**20 < memory["queued"] < 2 * 2**20
            assert memory["used"] == memory["capacity"] + memory["heap"] + memory["queued"]
            wait_for(lambda: watcher.stats()["memory"]["queued"] == 0, "the loss")


class TestCommand:
    def run(self, service, *options):
        args = ["-m", "tundish", "stats", "--socket", str(service.socket), *options]
        done = Forkery.shared().run(args, timeout=10_000 * MS)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def test_tables_for_people_and_json_for_programs(self, serve):
        service = serve(FEEDS, "feeds", "--memory-limit", "64MiB", "--log-level", "warning")
        with Client(service.socket) as client:
            stream = client.epoch(4, feed="train")
            next(stream)
            assert len(list(client.epoch(0, feed="val"))) == 4
            text, counters = self.run(service), json.loads(self.run(service, "--json"))
        assert counters["memory"]["limit"] == 64 * 2**20
        assert [feed["feed"] for feed in counters["feeds"]] == ["train", "val"]
        assert counters["streams"][0]["epoch"] == 4
        assert f"server pid {service.process.pid} on {service.socket}" in text
        assert re.search(r"^memory [\d.]+ [KM]iB of 64\.0 MiB \(\d+%\)", text, re.MULTILINE)
        feeds, _, streams = tables(text)
        assert feeds["train"]["samples/epoch"] == "100"
        assert (feeds["train"]["streams open"], feeds["train"]["streams ever"]) == ("1", "1")
        assert (feeds["val"]["streams open"], feeds["val"]["streams ever"]) == ("0", "1")
        assert (feeds["val"]["batches sent"], feeds["val"]["batches produced"]) == ("4", "4")
        told = counters["streams"][0]
        row = streams[f"{told['connection']}.{told['stream']}"]
        assert row["consumer"] == f"tundish-client ({os.getpid()})"
        assert (row["feed/epoch"], row["run"]) == ("train/4", str(told["run"]))
        assert row["at/of"] == f"{told['position']}/10"

    def test_names_of_a_feed_are_no_markup(self, serve):
        service = serve(
            """
            from tundish import DataLoader
            feeds = {"[red]x[/red]": DataLoader([1, 2])}
            """,
            "feeds",
        )
        assert "[red]x[/red]" in self.run(service)


class TestLog:
    async def test_a_line_for_a_connection_and_two_for_a_stream(self, path, caplog):
        caplog.set_level(logging.INFO, logger="tundish.server")
        async with serve(arrays(100, 10), socket=path) as server:
            async with AsyncClient(path) as client:
                [batch async for batch in client.epoch(3, start=2)]
                async with client.epoch(4) as stream:
                    await anext(stream)
                with pytest.raises(ConfigError):
                    await anext(client.epoch(0, feed="other"))
            await until(lambda: server.stats()["connections"] == 0, "the end")
        lines = [record.getMessage() for record in caplog.records]
        me = f"'tundish-client' (pid {os.getpid()})"
        assert lines[0] == f"{me} connected"
        assert lines[1] == f"{me}, stream 1.1: epoch 3 of feed 'default' begins at batch 2 of 10"
        assert re.fullmatch(
            re.escape(f"{me}, stream 1.1: epoch 3 of feed 'default' ended after 8 batches, ")
            + r"80 samples, 0 errors, 1664 bytes; it waited [\d.e-]+ s for the loader",
            lines[2],
        )
        assert lines[3] == f"{me}, stream 1.2: epoch 4 of feed 'default' begins at batch 0 of 10"
        assert "epoch 4 of feed 'default' was given up after" in lines[4]
        assert lines[5] == (
            f"{me}, stream 1.3: refused, ConfigError: feed='other' is not offered here; "
            "feeds: 'default'"
        )
        assert lines[6:] == [f"{me} left"]

    async def test_a_stream_that_is_cut_off_says_so(self, path, caplog):
        caplog.set_level(logging.INFO, logger="tundish.server")

        def talk():
            with Raw(path, shared_memory=False) as raw:
                raw.sock.sendall(epoch())
                for kind in ("START", "BATCH", "BATCH", "BATCH", "BATCH"):
                    raw.receive(kind)

        async with serve(arrays(100, 10), socket=path):
            await asyncio.to_thread(talk)
            await until(lambda: "was cut off after 4 batches, 40 samples" in caplog.text, "a line")

    def test_nothing_waits_for_a_pipe_that_nobody_reads(self, monkeypatch):
        reading, writing = os.pipe()
        with os.fdopen(writing, "w") as pipe:
            monkeypatch.setattr(sys, "stderr", pipe)
            logger = logging.getLogger("tundish")
            before = (logger.handlers[:], logger.propagate, logger.level, logging.raiseExceptions)
            try:
                configure("info")
                for number in range(5000):
                    logger.info("line %d %s", number, "x" * 100)
                text = _drain(reading)
                logger.info("the last one")
                text += _drain(reading)
            finally:
                logger.handlers[:], logger.propagate, logger.level, logging.raiseExceptions = before
        os.close(reading)
        lines = text.splitlines()
        kept = sum(" line " in line for line in lines)
        assert 100 < kept < 5000
        assert f"({5000 - kept} lines were lost: nobody read this)" in lines
        assert lines[-1].endswith("INFO tundish: the last one")

    def test_a_server_goes_on_although_nobody_reads_its_log(self, path, tmp_path):
        (tmp_path / "feeds.py").write_text(
            "from tundish import DataLoader\ntrain = DataLoader(list(range(4)))\n"
        )
        command = [sys.executable, "-m", "tundish", "serve", "feeds.py", "--socket", path]
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            with Client(path, connect_timeout=10_000 * MS) as client:
                for number in range(500):
                    assert len(list(client.epoch(number))) == 4
            process.terminate()
            assert process.wait(2000 * MS) == 0
            assert process.stderr is not None
            assert b"begins at batch 0 of 4" in process.stderr.read()


def _drain(fd):
    text = b""
    while select.select([fd], [], [], 0)[0]:
        text += os.read(fd, 2**16)
    return text.decode()


async def test_what_waits_in_an_outbox_is_told_apart():
    """Bytes of batches are the arena's; what was copied or made for a message counts here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    outbox = Outbox(asyncio.get_running_loop(), ours, lambda: None, lambda _: None)
    body = memoryview(bytearray(2**22))
    outbox.write([b"h" * 1000, body, b"t" * 500])
    assert outbox.own == 500
    assert 2**21 < outbox.nbytes < 2**22 + 500
    outbox.write([b"x" * 700])
    assert outbox.own == 1200
    outbox.close()
    assert outbox.own == 0
    ours.close()
    theirs.close()
