"""While the server is away: Ctrl-C, closing, exits: nothing waits."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from helpers.clients import END
from helpers.timing import MS, until
from tundish_client import AsyncClient, Client, TundishError
from tundish_client._protocol.frames import encode_message
from tundish_client.testing import Batch, Close, Goaway, ScriptedServer, Silence


class TestCtrlC:
    @pytest.mark.parametrize("peer", ["nobody", "a silent server"])
    @pytest.mark.parametrize("split", [None, "g"])
    def test_comes_at_once_and_leaves_the_stream_whole(self, path, reader, peer, split):
        script = [Batch(n, [n], number=n) for n in range(4)]
        said = {"exact": False, "in_order": False} if split else {}
        with ScriptedServer([*script[:2], Silence(), *script[2:]], path=path, announce=said):
            client = reader(path)
            stream = client.epoch(split=split)
            assert [client.next(stream), client.next(stream)] == [0, 1]
        silent = ScriptedServer(path=path, welcome=False)
        if peer != "nobody":
            silent.start()
        for _ in range(3):
            sent = []

            def interrupt(sent=sent):
                time.sleep(120 * MS)
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                client.next(stream)
            assert time.monotonic() - sent[0] < 100 * MS
            thread.join()
            if split is None:
                assert stream.position == (0, 2)
        silent.stop()
        with ScriptedServer(script, path=path, announce=said) as server:
            assert client.outcomes(stream) == [2, 3, END]
            (asked,) = server.kinds("EPOCH")
            assert asked["acked"] == [[0, 1]] if split else asked["start"] == 2

    def test_in_the_moment_a_stream_is_asked_for_ends_it(self, path, monkeypatch):
        with ScriptedServer([0, 1], path=path) as server, Client(path) as client:
            update = client._link.update

            def interrupted(*args):
                result = update(*args)
                if args[0] == "open_stream":
                    raise KeyboardInterrupt
                return result

            monkeypatch.setattr(client._link, "update", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.epoch(0)
            gc.collect()
            client.ping()
            assert server.kinds("CANCEL") == [{"stream": 1}]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_stream_that_was_closed_before_it_began_is_not_waited_for(kind, path):
    """Its START never comes, from this server or any other."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def serve():
        conn, _ = listener.accept()
        with conn:
            conn.sendall(encode_message("WELCOME", {"version": 1, "shared_memory": False}))
            while conn.recv(1 << 16):
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    if kind == "sync":
        with Client(path) as client:
            stream = client.epoch(0)
            stream.close()
            with pytest.raises(TundishError, match="closed"):
                len(stream)
    else:

        async def main():
            async with AsyncClient(path) as client:
                for asked in (True, False):
                    stream = client.epoch(0)
                    if asked:
                        with pytest.raises(TimeoutError):
                            await asyncio.wait_for(anext(stream), 20 * MS)
                    await stream.aclose()
                    with pytest.raises(TundishError, match="closed"):
                        await stream.__aenter__()

        asyncio.run(main())
    thread.join()
    listener.close()


class TestThePause:
    """What the user does while the server is away works at once."""

    @pytest.fixture
    def lost(self, path):
        """A path whose server has gone."""
        server = ScriptedServer([0, 1, 2, Close(), 3], path=path)
        server.start()
        yield server
        server.stop()

    def away(self, reader, server):
        client = reader(server, reconnect_timeout=60)
        stream = client.epoch(prefetch=1)
        assert [client.next(stream) for _ in range(2)] == [0, 1]
        server.stop()
        return client, stream

    def test_a_close_in_another_thread(self, lost):
        client = Client(lost.path, reconnect_timeout=60)
        stream, other = client.epoch(0), client.epoch(1)
        assert [next(stream) for _ in range(3)] == [0, 1, 2]
        lost.stop()
        ended = []

        def wait(of):
            with pytest.raises(TundishError, match="closed"):
                for _ in of:
                    pass
            ended.append(time.monotonic())

        threads = [threading.Thread(target=wait, args=(of,)) for of in (stream, other)]
        for thread in threads:
            thread.start()
        time.sleep(100 * MS)
        began = time.monotonic()
        client.close()
        for thread in threads:
            thread.join(5)
        assert max(ended) - began < 100 * MS
        assert client._link.sock.fileno() == -1

    def test_closing_the_stream_in_another_thread(self, lost):
        with Client(lost.path, reconnect_timeout=60) as client:
            stream = client.epoch(0)
            assert [next(stream) for _ in range(3)] == [0, 1, 2]
            lost.stop()
            closed = []
            timer = threading.Timer(
                100 * MS, lambda: (closed.append(time.monotonic()), stream.close())
            )
            timer.start()
            with pytest.raises(TundishError, match="closed"):
                next(stream)
            assert time.monotonic() - closed[0] < 100 * MS
            timer.join()

    async def test_a_close_in_another_task(self, lost):
        client = AsyncClient(lost.path, reconnect_timeout=60)
        stream = client.epoch(0)
        assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
        lost.stop()
        task = asyncio.create_task(anext(stream))
        await asyncio.sleep(50 * MS)
        began = time.monotonic()
        await client.aclose()
        with pytest.raises(TundishError, match="closed"):
            await task
        assert time.monotonic() - began < 100 * MS
        assert len(asyncio.all_tasks()) == 1

    async def test_a_timeout_loses_nothing(self, lost):
        async with AsyncClient(lost.path, reconnect_timeout=60) as client:
            stream = client.epoch(0)
            assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
            lost.stop()
            for _ in range(3):
                began = time.monotonic()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(stream), 20 * MS)
                assert time.monotonic() - began < 120 * MS
            with ScriptedServer([0, 1, 2, 3], path=lost.path):
                assert [value async for value in stream] == [3]

    async def test_a_client_that_is_dropped_stops_looking(self, lost):
        client = AsyncClient(lost.path, reconnect_timeout=60)
        stream = client.epoch(0)
        assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
        lost.stop()
        await until(lambda: len(asyncio.all_tasks()) == 2, "the search")
        del client, stream
        gc.collect()
        await until(lambda: len(asyncio.all_tasks()) == 1, "the end of the search")

    def test_a_silent_server_is_waited_for_without_blocking_close(self, lost, path):
        client = Client(lost.path, reconnect_timeout=60)
        stream = client.epoch(0)
        assert [next(stream) for _ in range(3)] == [0, 1, 2]
        lost.stop()
        with ScriptedServer(path=path, welcome=False) as silent:
            timer = threading.Timer(100 * MS, client.close)
            timer.start()
            began = time.monotonic()
            with pytest.raises(TundishError, match="closed"):
                next(stream)
            assert time.monotonic() - began < 300 * MS
            timer.join()
            silent.wait_for(lambda: silent.connections == 0)


@pytest.mark.parametrize("turns", range(8))
async def test_closing_at_any_moment_of_the_search(turns):
    def files():
        return len(os.listdir("/proc/self/fd"))

    with ScriptedServer([0, 1, Close(), 2], shared_memory=True) as server:
        counts = []
        for more in range(5):
            client = AsyncClient(server.path, reconnect_timeout=60)
            stream = client.epoch(0)
            assert [await anext(stream), await anext(stream)] == [0, 1]
            waiting = asyncio.create_task(anext(stream))
            for _ in range(4 * turns + more):
                await asyncio.sleep(0)
            async with asyncio.timeout(5000 * MS):
                await client.aclose()
            with pytest.raises(TundishError, match="closed"):
                await waiting
            assert len(asyncio.all_tasks()) == 1
            await until(lambda: server.connections == 0, "the server to see it")
            counts.append(files())
        await until(lambda: files() <= counts[0], "files to be closed")


EXITS = {
    "sync": """
        import threading
        threading.Thread(target=lambda: list(Client(path, **patient).epoch(0)), daemon=True).start()
        wait()
    """,
    "asyncio": "run = asyncio.run",
    "uvloop": "import uvloop; run = uvloop.run",
}
LOOP = """
async def main():
    stream = AsyncClient(path, **patient).epoch(0)
    try:
        async with asyncio.timeout(0.3):
            async for _ in stream:
                pass
    except TimeoutError:
        return stream
held = run(main())
"""


@pytest.mark.parametrize("name", EXITS)
def test_an_exit_in_the_pause_is_quick_and_without_a_trace(name, tmp_path):
    script = tmp_path / "exits.py"
    script.write_text(
        "import asyncio, sys, time\nfrom tundish_client import AsyncClient, Client\n"
        "path, patient = sys.argv[1], {'reconnect_timeout': 60}\n"
        "def wait(): time.sleep(0.3)\n"
        + textwrap.dedent(EXITS[name])
        + ("" if name == "sync" else LOOP)
    )
    with ScriptedServer([0, 1, Goaway("upgrade", 30.0), 2], shared_memory=True) as server:
        run = subprocess.run(
            [sys.executable, script, server.path], capture_output=True, text=True, timeout=15
        )
    assert (run.returncode, run.stdout) == (0, "")
    assert run.stderr.startswith("lost the server")
    assert len(run.stderr.splitlines()) == 1, run.stderr
