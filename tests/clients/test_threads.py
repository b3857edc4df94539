"""One client in several threads, and in a forked child."""

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from helpers.forked import in_child, inode, inodes, refused
from tundish_client import AsyncClient, Client, TundishError
from tundish_client.testing import ScriptedServer, Silence


def in_threads(n, work):
    """Runs work(i) in n threads; returns what they returned or raised."""
    out = [None] * n

    def run(i):
        try:
            out[i] = work(i)
        except Exception as error:
            out[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    return out


SCRIPT = [np.full(1500, i) for i in range(60)]


@pytest.mark.parametrize("shared_memory", [False, True])
def test_streams_of_one_client_in_several_threads(shared_memory):
    with ScriptedServer(SCRIPT, shared_memory=shared_memory) as server:
        with Client(server.path) as client:

            def work(i):
                return [int(b[0]) for b in client.epoch(i, start=i) if (b == b[0]).all()]

            assert in_threads(4, work) == [list(range(i, 60)) for i in range(4)]


def test_requests_while_another_thread_waits():
    with ScriptedServer([1, Silence(0.3), 2]) as server, Client(server.path) as client:
        stream = client.epoch(0)
        assert next(stream) == 1
        got = []
        thread = threading.Thread(target=lambda: got.extend(stream))
        thread.start()
        for _ in range(50):
            assert client.ping() < 0.2
        assert not got
        thread.join()
        assert got == [2]


def test_one_stream_in_two_threads_is_refused_never_mixed():
    with ScriptedServer(list(range(300))) as server, Client(server.path) as client:
        stream = client.epoch(0)

        def work(_):
            got = []
            while True:
                try:
                    got.append(next(stream))
                except StopIteration:
                    return got
                except TundishError as error:
                    assert "another thread" in str(error)

        parts = in_threads(2, work)
        assert sorted(parts[0] + parts[1]) == list(range(300))
        assert all(part == sorted(part) for part in parts)


def test_a_client_of_its_own_in_each_thread():
    with ScriptedServer(SCRIPT, shared_memory=True) as server:

        def work(_):
            with Client(server.path) as client:
                return [int(b[0]) for b in client.epoch(0)]

        assert in_threads(4, work) == [list(range(60))] * 4


def test_close_wakes_waiting_threads():
    with ScriptedServer([1, Silence()]) as server:
        client = Client(server.path)
        streams = [client.epoch(i) for i in range(3)]
        timer = threading.Timer(0.1, client.close)
        timer.start()
        results = in_threads(3, lambda i: list(streams[i]))
        assert all("closed" in str(error) for error in results)
        timer.join()
        server.wait_for(lambda: server.connections == 0)


def test_forked_child_is_told_and_the_parent_goes_on():
    with ScriptedServer(SCRIPT, shared_memory=True) as server, Client(server.path) as client:
        stream = client.epoch(0)
        held = next(stream)
        ours = {inode(client._link.sock.fileno()), inode(client._link.segments.fileno())}

        def child() -> bool:
            client_says = all(refused(c) for c in (client.ping, lambda: next(stream), client.feeds))
            nothing_open = ours.isdisjoint(inodes())
            client.close()
            return client_says and nothing_open and bool((held == 0).all())

        def forgetful_child() -> bool:
            nonlocal client, stream, held
            client = stream = held = None
            gc.collect()
            return True

        assert in_child(child) == 0
        assert in_child(forgetful_child) == 0
        assert [int(b[0]) for b in stream] == list(range(1, 60))
        assert not server.kinds("CANCEL") and client.ping() < 1


def test_forked_child_of_an_async_client():
    async def main(server) -> None:
        async with AsyncClient(server.path) as client:
            stream = client.epoch(0)
            assert (await anext(stream) == 0).all()
            ours = inode(client._link.sock.fileno())

            def child() -> bool:
                return refused(lambda: client.epoch(0)) and ours not in inodes()

            assert in_child(child) == 0
            assert [int(b[0]) async for b in stream] == list(range(1, 60))

    with ScriptedServer(SCRIPT, shared_memory=True) as server:
        asyncio.run(main(server))


def test_child_opens_a_client_of_its_own():
    with ScriptedServer([1, 2]) as server, Client(server.path) as client:

        def child() -> bool:
            with Client(server.path) as own:
                return list(own.epoch(0)) == [1, 2]

        assert in_child(child) == 0
        assert list(client.epoch(0)) == [1, 2]


def test_a_hundred_rounds_leave_nothing():
    with ScriptedServer(SCRIPT, shared_memory=True) as server:

        def round_() -> None:
            with Client(server.path) as client:
                for batch in client.epoch(0):
                    if batch[0] == 2:
                        break

        for _ in range(5):
            round_()
        server.wait_for(lambda: server.connections == 0)
        before, threads = len(inodes()), threading.active_count()
        for _ in range(100):
            round_()
        server.wait_for(lambda: server.connections == 0)
        assert (len(inodes()), threading.active_count()) == (before, threads)


def test_closing_a_stream_wakes_the_thread_that_reads_it():
    with ScriptedServer([1, Silence()]) as server, Client(server.path) as client:
        stream = client.epoch(0)
        next(stream)
        timer = threading.Timer(0.05, stream.close)
        timer.start()
        assert "closed" in str(in_threads(1, lambda _: next(stream))[0])
        timer.join()


async def test_closing_a_stream_wakes_the_task_that_reads_it():
    with ScriptedServer([1, Silence()]) as server:
        async with AsyncClient(server.path) as client:
            stream = client.epoch(0)
            await anext(stream)
            task = asyncio.create_task(stream.__anext__())
            await asyncio.sleep(0.01)
            await stream.aclose()
            with pytest.raises(TundishError, match="closed"):
                await task


EXITS = {
    "sync": """
        from tundish_client import Client
        client = Client(sys.argv[1])
        stream = client.epoch(0)
        held = next(stream), next(stream)
    """,
    "sync in a daemon thread": """
        import threading
        from tundish_client import Client
        client = Client(sys.argv[1])
        threading.Thread(target=lambda: list(client.epoch(0)), daemon=True).start()
        client.ping()
    """,
    "asyncio": """
        import asyncio
        from tundish_client import AsyncClient
        client = AsyncClient(sys.argv[1])
        stream = client.epoch(0)
        async def main():
            return [await anext(stream), await anext(stream)]
        held = asyncio.run(main())
    """,
    "uvloop": """
        import uvloop
        from tundish_client import AsyncClient
        client = AsyncClient(sys.argv[1])
        stream = client.epoch(0)
        async def main():
            return [await anext(stream), await anext(stream)]
        held = uvloop.run(main())
    """,
}


@pytest.mark.parametrize("name", EXITS)
def test_exit_without_close_is_silent_and_quick(name, tmp_path):
    script = tmp_path / "exits.py"
    script.write_text("import sys\n" + textwrap.dedent(EXITS[name]))
    with ScriptedServer([*SCRIPT, Silence()], shared_memory=True) as server:
        run = subprocess.run(
            [sys.executable, script, server.path], capture_output=True, text=True, timeout=10
        )
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
        server.wait_for(lambda: server.connections == 0)
