"""feeds, info, stats, ping, and what a client says after close."""

import asyncio
import pickle

import pytest

from tundish_client import AsyncClient, Client, ConfigError, ConnectionLost, TundishError
from tundish_client.testing import ScriptedServer, Silence


def test_requests_sync():
    with ScriptedServer([1, 2]) as server, Client(server.path) as client:
        assert [feed["feed"] for feed in client.feeds()] == ["scripted"]
        assert client.info()["batches"] == client.info("scripted")["batches"] == 2
        with pytest.raises(ConfigError, match=r"'scripted'.*'other'"):
            client.info("other")
        assert client.stats()["streams"] == []
        assert 0 < client.ping() < 1
        assert client.pid is None and client.socket == server.path


async def test_requests_async():
    with ScriptedServer([1, 2]) as server:
        async with AsyncClient(server.path) as client:
            feeds, stats, ping = await asyncio.gather(client.feeds(), client.stats(), client.ping())
            assert feeds[0]["feed"] == "scripted" and stats["streams"] == [] and 0 < ping < 1
            assert (await client.info())["batches"] == 2
            with pytest.raises(ConfigError, match="'other'"):
                await client.info("other")


def test_after_close_everything_says_so():
    with ScriptedServer([1, 2]) as server:
        client = Client(server.path)
        stream, ended = client.epoch(0), client.epoch(0)
        assert list(ended) == [1, 2]
        client.close()
        client.close()
        assert client.closed and "closed" in repr(client)
        calls = (client.feeds, client.stats, client.ping, client.info)
        for call in (*calls, lambda: client.epoch(0), lambda: next(stream)):
            with pytest.raises(TundishError, match="closed"):
                call()
        assert list(ended) == []
        server.wait_for(lambda: server.connections == 0)


async def test_after_aclose_everything_says_so():
    with ScriptedServer([1, 2]) as server:
        client = AsyncClient(server.path)
        stream = client.epoch(0)
        assert await anext(stream) == 1
        await client.aclose()
        await client.aclose()
        for call in (client.feeds, client.ping, lambda: anext(stream)):
            with pytest.raises(TundishError, match="closed"):
                await call()
        with pytest.raises(TundishError, match="closed"):
            client.epoch(0)
        server.wait_for(lambda: server.connections == 0)


async def test_aclose_ends_a_waiting_task():
    with ScriptedServer([1, Silence()]) as server:
        client = AsyncClient(server.path)
        stream = client.epoch(0)
        await anext(stream)
        task = asyncio.create_task(stream.__anext__())
        await asyncio.sleep(0.02)
        await client.aclose()
        with pytest.raises(TundishError):
            await task


def test_lost_connection_fails_requests():
    with ScriptedServer([1]) as server, Client(server.path) as client:
        server.close_connections()
        for call in (client.ping, client.stats, lambda: client.epoch(0)):
            with pytest.raises(ConnectionLost):
                call()


def test_clients_are_not_pickled():
    with ScriptedServer([1]) as server, Client(server.path) as client:
        with pytest.raises(TypeError, match="other process"):
            pickle.dumps(client)
    with pytest.raises(TypeError, match="other process"):
        pickle.dumps(AsyncClient("/tmp/x"))


def test_sync_client_inside_a_running_loop():
    async def main() -> list[int]:
        with Client(server.path) as client:
            return list(client.epoch(0))

    with ScriptedServer([1, 2]) as server:
        assert asyncio.run(main()) == [1, 2]


def test_another_loop_is_named():
    with ScriptedServer([1, 2]) as server:
        client = AsyncClient(server.path)
        stream = client.epoch(0)

        async def first() -> None:
            assert await anext(stream) == 1

        async def second() -> None:
            for call in (client.ping, lambda: anext(stream)):
                with pytest.raises(TundishError, match="another event loop"):
                    await call()

        runner = asyncio.Runner()
        runner.run(first())
        asyncio.run(second())
        runner.run(client.aclose())
        runner.close()
