"""The Prometheus endpoint: what it says, and that it never gets in the way."""

import asyncio
import logging
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from helpers.datasets import Fail, arrays
from helpers.scraping import look, samples, scrape, value
from helpers.timing import MS, until, wait_for
from tundish import ConfigError, DataLoader, serve, spawn
from tundish_client import AsyncClient, Client

FEEDS = """
    from tundish import DataLoader
    train = DataLoader(list(range(100)), batch_size=10)
"""


class TestWhatItSays:
    async def test_a_stream_while_it_is_open_and_its_feed_for_ever(self, path):
        async with serve(arrays(100, 10), socket=path, metrics="127.0.0.1:0") as server:
            assert re.fullmatch(r"127\.0\.0\.1:\d{2,5}", server.metrics)
            async with AsyncClient(path) as client:
                stream = client.epoch(3, prefetch=2)
                for _ in range(4):
                    await anext(stream)
                await until(lambda: server.stats()["streams"][0]["delivered"] == 6, "6 batches")
                text = await look(server)
                where = {"feed": "default", "epoch": "3", "stream": "1.1"}
                assert value(text, "stream_position_batch", **where) == 6
                assert value(text, "stream_batches_total", **where) == 6
                assert value(text, "stream_samples_total", **where) == 60
                assert value(text, "stream_bytes_total", **where) == 6 * 208
                assert value(text, "stream_lag_batches", **where) == 3
                assert 0 < value(text, "stream_slots_lent", **where) <= 6
                assert value(text, "stream_rate_batches_per_second", **where) > 0
                assert value(text, "stream_loader_wait_seconds_total", **where) > 0
                assert value(text, "run_position_batch", epoch="3", rank="0") == 6
                assert value(text, "run_batches", epoch="3") == 10
                assert value(text, "run_streams", epoch="3") == 1
                assert value(text, "connections") == 1
                [rest async for rest in stream]
            text = await look(server)
            assert not [name for name, _ in samples(text) if "_stream_" in name or "_run_" in name]
            assert value(text, "feed_batches_total", feed="default") == 10
            assert value(text, "feed_samples_total", feed="default") == 100
            assert value(text, "feed_bytes_total", feed="default") == 2080
            assert value(text, "feed_streams_total", feed="default") == 1
            assert value(text, "feed_streams", feed="default") == 0
            assert value(text, "up") == 1
            assert value(text, "memory_limit_bytes") == server.arena.limit
            assert 0 < value(text, "memory_used_bytes") <= server.arena.limit
            assert value(text, "server_info", socket=path) == 1

    async def test_errors_and_samples_left_out_are_counted(self, path):
        broken = Fail(40, {3: ValueError("three"), 17: ValueError("seventeen")})
        feeds = {
            "raises": DataLoader(broken, batch_size=10),
            "skips": DataLoader(broken, batch_size=10, on_error="skip"),
        }

        def read():
            with Client(path) as client:
                assert sum(1 for _ in client.epoch(0, feed="skips")) == 4
                stream = client.epoch(0, feed="raises")
                for number in range(4):
                    if number < 2:
                        with pytest.raises(ValueError, match="three|seventeen"):
                            next(stream)
                    else:
                        next(stream)
                assert next(stream, None) is None

        async with serve(feeds, socket=path, metrics="127.0.0.1:0") as server:
            await asyncio.to_thread(read)
            text = await look(server)
        assert value(text, "feed_errors_total", feed="raises") == 2
        assert value(text, "feed_batches_total", feed="raises") == 2
        assert value(text, "feed_skipped_samples_total", feed="skips") == 2
        assert value(text, "feed_samples_total", feed="skips") == 38
        assert value(text, "feed_errors_total", feed="skips") == 0

    async def test_who_is_waited_for_and_how_long(self, path):
        """A consumer that stopped, with on_lag="wait", is named with the seconds."""
        loader = arrays(1000, 10)
        async with serve(loader, socket=path, metrics="127.0.0.1:0", share_window=8192) as server:
            async with AsyncClient(path) as fast, AsyncClient(path) as slow:
                await fast.ping()
                late = slow.epoch(0, on_lag="wait", prefetch=1)
                await anext(late)
                quick = fast.epoch(0, on_lag="wait", prefetch=1)
                reader = asyncio.ensure_future(_read(quick))
                await until(lambda: bool(server.stats()["runs"][0]["waiting_for"]), "the wait")
                first = await look(server)
                await asyncio.sleep(40 * MS)
                second = await look(server)
                name = "run_waited_for_seconds"
                assert value(second, name) - value(first, name) >= 40 * MS
                (consumer,) = [
                    dict(labels)["consumer"]
                    for other, labels in samples(second)
                    if other == f"tundish_{name}"
                ]
                number = server.stats()["runs"][0]["run"]
                assert value(second, name, run=str(number)) > 0
                assert consumer.endswith("stream 2.1")
                assert value(second, "run_lag_batches") >= 1
                assert await _read(late) == 99
                assert await reader == 100
                assert "waited_for_seconds{" not in await look(server)

    async def test_two_clients_of_one_process_are_told_apart(self, path):
        async with serve(arrays(), socket=path, metrics="127.0.0.1:0") as server:
            async with AsyncClient(path) as one, AsyncClient(path) as two:
                streams = [client.epoch(0) for client in (one, two, two)]
                for stream in streams:
                    await anext(stream)
                text = await look(server)  # `samples` refuses what is there twice
                found = [
                    dict(labels)["stream"]
                    for name, labels in samples(text)
                    if name == "tundish_stream_position_batch"
                ]
                assert sorted(found) == ["1.1", "2.1", "2.2"]

    async def test_what_was_made_and_for_whom_others_waited(self, path):
        """Two streams share 20 batches; the slow one of them counts the time of the other."""
        loader = arrays(200, 10)
        async with serve(loader, socket=path, metrics="127.0.0.1:0", share_window=8192) as server:
            async with AsyncClient(path) as fast, AsyncClient(path) as slow:
                await fast.ping()
                late = slow.epoch(0, on_lag="wait", prefetch=1)
                await anext(late)
                reader = asyncio.ensure_future(_read(fast.epoch(0, on_lag="wait", prefetch=1)))
                await until(lambda: bool(server.stats()["runs"][0]["waiting_for"]), "the wait")
                await asyncio.sleep(100 * MS)
                await look(server)  # the counter is carried on by whoever looks
                text = await look(server)
                name = "stream_waited_for_seconds_total"
                assert value(text, name, stream="2.1") >= 100 * MS
                assert value(text, name, stream="1.2") == 0
                consumer_wait = "stream_consumer_wait_seconds_total"
                assert value(text, consumer_wait, stream="1.2") >= 100 * MS
                assert value(text, consumer_wait, stream="2.1") < 100 * MS
                assert (await _read(late), await reader) == (19, 20)
            text = await look(server)
            assert value(text, "feed_produced_batches_total", feed="default") == 20
            assert value(text, "feed_batches_total", feed="default") == 40

    async def test_a_group_that_gathers(self, path):
        async with serve(arrays(), socket=path, metrics="127.0.0.1:0") as server:
            async with AsyncClient(path) as client:
                options = {"group": "sweep", "group_size": 3}
                waiting = [
                    asyncio.ensure_future(anext(client.epoch(0, **options))) for _ in range(2)
                ]
                await until(lambda: len(server.stats()["streams"]) == 2, "both")
                text = await look(server)
                assert value(text, "stream_joined_streams", stream="1.1") == 2
                assert value(text, "stream_joined_streams", stream="1.2") == 2
                assert value(text, "stream_consumer_wait_seconds_total", stream="1.1") == 0
                await anext(client.epoch(0, **options))
                await asyncio.gather(*waiting)
                text = await look(server)
                assert "tundish_stream_joined_streams{" not in text

    async def test_every_metric_says_its_unit_and_meaning(self, path):
        async with serve(arrays(), socket=path, metrics="127.0.0.1:0") as server:
            text = await look(server)
        ours = [f for f in text_string_to_metric_families(text) if f.name.startswith("tundish_")]
        assert len(ours) > 40
        units = ("bytes", "seconds", "batch", "batches", "samples", "batches_per_second")
        counted = ("up", "connections", "slots", "lent", "leased", "quarantined", "streams")
        others = ("errors", "detached", "server_info")
        for family in ours:
            assert family.name.endswith((*units, *counted, *others)), family.name
            assert family.documentation.endswith("."), family.name
            assert family.documentation[0].isupper()


async def _read(stream):
    return sum([1 async for _ in stream])


class TestNotInTheWay:
    async def test_a_loop_that_is_held_up_does_not_hang_a_scrape(self, path, monkeypatch):
        monkeypatch.setattr("tundish.metrics.PATIENCE", 50 * MS)
        async with serve(arrays(), socket=path, metrics="127.0.0.1:0") as server:
            answers = []

            def ask():
                began = time.monotonic()
                answers.append((scrape(server.metrics), time.monotonic() - began))

            thread = threading.Thread(target=ask)
            thread.start()
            time.sleep(500 * MS)  # the loop is held up, by this very call
            thread.join()
            ((text, seconds),) = answers
            assert seconds < 400 * MS
            assert value(text, "up") == 0
            assert not [name for name, _ in samples(text) if name.startswith("tundish_memory")]
            assert value(await look(server), "up") == 1

    @pytest.mark.parametrize("said", [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost:"])
    async def test_connections_that_ask_for_nothing_keep_nobody_out(self, path, said):
        """Whoever asks while they are silent is answered, in the place of the oldest of them."""
        async with serve(arrays(), socket=path, metrics="127.0.0.1:0") as server:
            host, port = server.metrics.split(":")
            before = threading.active_count()
            silent = [socket.create_connection((host, int(port))) for _ in range(20)]
            try:
                for sock in silent:
                    sock.sendall(said)
                async with AsyncClient(path) as client:
                    assert await _read(client.epoch(0)) == 10
                began = time.monotonic()
                for _ in range(10):
                    text = await asyncio.to_thread(scrape, server.metrics)
                    assert value(text, "feed_batches_total") == 10
                assert time.monotonic() - began < 2000 * MS
                await until(lambda: threading.active_count() - before < 12, "the oldest to go")
                silent[0].settimeout(1)
                assert silent[0].recv(100) == b""
            finally:
                for sock in silent:
                    sock.close()

    async def test_the_port_is_free_when_the_server_ends(self, path):
        async with serve(arrays(), socket=path, metrics="127.0.0.1:0") as server:
            address = server.metrics
            assert "tundish_up 1.0" in await look(server)
        async with serve(arrays(), socket=path, metrics=address) as server:
            assert server.metrics == address
            assert "tundish_up 1.0" in await look(server)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(scrape, address)

    async def test_a_taken_port_is_one_clear_error(self, path):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(ConfigError, match=f"metrics='{address}': cannot listen there"):
                async with serve(arrays(), socket=path, metrics=address):
                    pass
            async with serve(arrays(), socket=path) as server:
                assert server.metrics is None

    async def test_a_taken_socket_frees_the_port(self, path):
        async with serve(arrays(), socket=path):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            with pytest.raises(ConfigError, match="a live server"):
                async with serve(arrays(), socket=path, metrics=f"127.0.0.1:{port}"):
                    pass
            with socket.create_server(("127.0.0.1", port)):
                pass

    def test_without_prometheus_client_there_is_one_clear_error(self, path):
        source = f"""
            import asyncio, sys
            sys.modules["prometheus_client"] = None
            from tundish import DataLoader, serve
            async def main():
                async with serve(DataLoader([1]), socket={path!r}, metrics="127.0.0.1:0"): pass
            try:
                asyncio.run(main())
            except Exception as error:
                print(type(error).__name__, error)
            async def plain():
                async with serve(DataLoader([1]), socket={path!r}): print("serves")
            asyncio.run(plain())
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source)],
            capture_output=True,
            text=True,
            timeout=10_000 * MS,
        )
        assert done.stderr == ""
        refused, serves = done.stdout.splitlines()
        assert refused == (
            "ConfigError metrics='127.0.0.1:0' needs prometheus-client, which isn't installed: "
            "pip install prometheus-client"
        )
        assert serves == "serves"

    async def test_an_address_of_the_sixth_version(self, path):
        if not socket.has_ipv6:
            return
        async with serve(arrays(), socket=path, metrics="[::1]:0") as server:
            assert re.fullmatch(r"\[::1\]:\d+", server.metrics)
            assert "tundish_up 1.0" in await look(server)


class TestCommandLine:
    def test_it_says_where_the_metrics_are(self, serve):
        service = serve(FEEDS, "train", "--metrics", "127.0.0.1:0")
        wait_for(lambda: service.output.count("\n") > 1, "the lines")
        line = service.output.splitlines()[1]
        found = re.fullmatch(r"tundish: metrics at http://(127\.0\.0\.1:\d+)/metrics", line)
        with Client(service.socket) as client:
            assert sum(1 for _ in client.epoch(0)) == 10
        text = scrape(found[1])
        assert value(text, "feed_batches_total", feed="train") == 10
        assert value(text, "server_info", pid=str(service.process.pid)) == 1

    def test_a_taken_port_is_one_line_and_status_2(self, serve):
        service = serve(FEEDS)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            done = subprocess.run(
                [
                    sys.executable, "-m", "tundish", "serve", service.folder / "feeds.py:train",
                    "--socket", service.folder / "other", "--metrics", address,
                ],
                capture_output=True,
                text=True,
                timeout=10_000 * MS,
            )  # fmt: skip
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"tundish: error: metrics='{address}': cannot listen there")
        assert "Address already in use" in line
        assert not (service.folder / "other").exists()

    @pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
    def test_it_does_not_slow_the_end(self, serve, signum, status):
        service = serve(FEEDS, "train", "--metrics", "127.0.0.1:0")
        wait_for(lambda: "metrics at" in service.output, "the line")
        host, port = re.search(r"http://([\d.]+):(\d+)/", service.output).groups()
        with socket.create_connection((host, int(port))) as silent:
            silent.sendall(b"GET /metrics HTTP/1.1\r\n")  # and never the rest of it
            time.sleep(50 * MS)
            began = time.monotonic()
            assert service.stop(signum) == status
            assert time.monotonic() - began < 1000 * MS
        assert "Traceback" not in service.output

    def test_a_sidecar_has_metrics_too(self, serve, tmp_path):
        (tmp_path / "feeds.py").write_text(textwrap.dedent(FEEDS))
        options = {"metrics": "127.0.0.1:0", "share_window": "1MiB", "join_timeout": 5.5}
        with spawn(f"{tmp_path / 'feeds.py'}:train", lease_timeout=7, **options) as client:
            assert sum(1 for _ in client.epoch(0)) == 10
            address = client.stats()["server"]["metrics"]
            assert value(scrape(address), "feed_batches_total") == 10
            with open(f"/proc/{client.pid}/cmdline") as file:
                command = file.read().split("\0")
            for name, given in (("share-window", "1MiB"), ("join-timeout", "5.5")):
                assert command[command.index(f"--{name}") + 1] == given
            assert command[command.index("--lease-timeout") + 1] == "7"


async def test_no_log_line_for_a_scrape(path, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    async with serve(arrays(), socket=path, metrics="127.0.0.1:0") as server:
        await look(server)
    assert not [record for record in caplog.records if record.name.startswith("tundish")]
    assert capsys.readouterr().err == ""
