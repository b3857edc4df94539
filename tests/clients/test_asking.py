"""When an AsyncClient asks the server for a stream, and when it never does."""

import asyncio
import contextlib
import gc

import pytest

from helpers.clients import END
from helpers.timing import MS, until
from tundish_client import AsyncClient, ConnectionLost, ConnectTimeout, TundishError
from tundish_client.testing import ScriptedServer, Silence


def asked(server):
    """What has come of the client, as kinds with their epochs."""
    received = [(kind, header.get("epoch")) for kind, header in list(server.received)]
    return [(kind, epoch) for kind, epoch in received if kind != "HELLO"]


async def test_at_once_without_a_turn_of_the_loop():
    with ScriptedServer([0, 1]) as server:
        async with AsyncClient(server.path) as client:
            streams = [client.epoch(5), client.resume({**STATE, "epoch": 6})]
            server.wait_for(lambda: len(asked(server)) == 2)  # blocks the loop
            assert asked(server) == [("EPOCH", 5), ("EPOCH", 6)]
            assert [await anext(stream) for stream in streams] == [0, 1]
            assert len(server.kinds("EPOCH")) == 2


STATE = {"epoch": 0, "batch": 1, "rank": 0, "world_size": 1, "fingerprint": {}}


@pytest.mark.parametrize("use", ["enter", "ping", "feeds", "read another"])
async def test_as_soon_as_there_is_a_connection_and_before_anything_else(use):
    with ScriptedServer([0, 1]) as server:
        client = AsyncClient(server.path)
        streams = [client.epoch(n) for n in range(3)]
        assert not server.received
        if use == "enter":
            await client.__aenter__()
        elif use == "read another":
            assert await anext(streams[2]) == 0
        else:
            await getattr(client, use)()
        server.wait_for(lambda: len(asked(server)) >= 3)
        assert asked(server)[:3] == [("EPOCH", n) for n in range(3)]
        assert [await anext(stream) for stream in streams[:2]] == [0, 0]
        await client.aclose()


def test_opened_where_no_loop_runs():
    with ScriptedServer([0, 1]) as server:
        client = AsyncClient(server.path)
        before = client.epoch(0)
        runner = asyncio.Runner()
        assert runner.run(client.ping()) < 1
        assert asked(server)[0] == ("EPOCH", 0)
        later = client.epoch(1)  # between two runs of its loop
        runner.run(asyncio.sleep(0))
        server.wait_for(lambda: ("EPOCH", 1) in asked(server))
        assert [runner.run(anext(stream)) for stream in (before, later)] == [0, 0]
        runner.run(client.aclose())
        runner.close()


async def test_opened_in_another_thread():
    with ScriptedServer([0, 1]) as server:
        async with AsyncClient(server.path) as client:
            stream = await asyncio.to_thread(client.epoch, 3)
            await until(lambda: asked(server) == [("EPOCH", 3)], "the request")
            assert await anext(stream) == 0


async def test_a_connection_that_fails_leaves_it_for_the_next(path):
    client = AsyncClient(path, connect_timeout=20 * MS)
    stream = client.epoch(4)
    with pytest.raises(ConnectTimeout):
        await client.ping()
    with ScriptedServer([0], path=path) as server:
        assert [await anext(stream), await anext(stream, END)] == [0, END]
        assert server.kinds("EPOCH")[0]["epoch"] == 4
        await client.aclose()


async def test_while_the_server_is_away_of_the_next_one(path):
    with ScriptedServer([0], path=path):
        client = AsyncClient(path, reconnect_timeout=10)
        await client.ping()
    await asyncio.sleep(20 * MS)
    stream = client.epoch(2)
    with ScriptedServer([7], path=path) as server:
        await until(lambda: asked(server) == [("EPOCH", 2)], "the request")
        assert [await anext(stream), await anext(stream, END)] == [7, END]
        await client.aclose()


class TestNeverRead:
    @pytest.mark.parametrize("how", ["close", "drop", "collect", "cancel", "enter"])
    async def test_it_is_cancelled(self, how):
        with ScriptedServer([0, 1, Silence()]) as server:
            async with AsyncClient(server.path) as client:
                await getattr(self, how)(client)
                gc.collect()
                await until(lambda: len(asked(server)) == 2, "the end of the stream")
                assert asked(server) == [("EPOCH", 0), ("CANCEL", None)]
                assert server.open_streams == 0

    async def close(self, client):
        stream = client.epoch(0)
        await stream.aclose()

    async def drop(self, client):
        client.epoch(0)

    async def collect(self, client):
        cycle = [client.epoch(0)]
        cycle.append(cycle)

    async def cancel(self, client):
        async def read():
            stream = client.epoch(0)
            await asyncio.sleep(10)
            await anext(stream)

        task = asyncio.create_task(read())
        await asyncio.sleep(10 * MS)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def enter(self, client):
        async with client.epoch(0):
            pass

    @pytest.mark.parametrize("how", ["close", "drop", "collect"])
    async def test_before_there_is_a_connection_it_is_never_asked_for(self, how):
        with ScriptedServer([0, 1]) as server:
            client = AsyncClient(server.path)
            kept = client.epoch(1)
            await getattr(self, how)(client)
            gc.collect()
            assert len(client._unasked) == 1
            assert await anext(kept) == 0
            await client.ping()
            assert asked(server) == [("EPOCH", 1), ("PING", None)]
            await client.aclose()

    async def test_dropped_in_another_thread(self):
        with ScriptedServer([0, 1, Silence()]) as server:
            async with AsyncClient(server.path) as client:
                streams = [client.epoch(0)]
                await asyncio.to_thread(streams.clear)
                await client.ping()
                await client.ping()
                assert server.kinds("CANCEL") == [{"stream": 1}]

    async def test_opened_and_dropped_in_another_thread(self):
        with ScriptedServer([0, 1, Silence()]) as server:
            async with AsyncClient(server.path) as client:

                def open_and_drop():
                    for _ in range(200):
                        client.epoch(0)

                await asyncio.to_thread(open_and_drop)
                await client.ping()
                await client.ping()
                assert len(server.kinds("EPOCH")) == len(server.kinds("CANCEL"))
                assert server.open_streams == 0 and not client._unasked


async def test_of_a_lost_server_it_is_refused_at_once():
    with ScriptedServer([0]) as server:
        async with AsyncClient(server.path) as client:
            await client.ping()
            server.close_connections()
            with pytest.raises(ConnectionLost, match="the server is gone"):
                await client.ping()
            with pytest.raises(ConnectionLost, match="open another client") as caught:
                client.epoch(2, start=5)
            assert caught.value.position == (2, 5)


async def test_what_was_opened_elsewhere_says_itself_that_the_server_is_gone():
    with ScriptedServer([0]) as server:
        async with AsyncClient(server.path) as client:
            await client.ping()
            server.close_connections()
            with pytest.raises(ConnectionLost):
                await client.ping()
            stream = await asyncio.to_thread(client.epoch, 2, start=5)
            with pytest.raises(ConnectionLost, match=r"gone.*epoch\(2, start=5\)") as caught:
                await asyncio.wait_for(anext(stream), 1)
            assert caught.value.position == (2, 5)


async def test_a_closed_client_refuses_it():
    client = AsyncClient("/tmp/nobody")
    stream = client.epoch(0)
    await client.aclose()
    for call in (lambda: client.epoch(0), lambda: client.resume(STATE)):
        with pytest.raises(TundishError, match="closed"):
            call()
    with pytest.raises(TundishError, match="closed"):
        await anext(stream)
