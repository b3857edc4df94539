"""A server inside one's own program: feeds, streams, leases, stats, the end."""

import asyncio
import contextlib
import gc
import os
import threading
import time

import numpy as np
import pytest

from helpers.datasets import arrays
from helpers.raw import Raw, epoch, hello
from helpers.timing import MS, until
from tundish import DataLoader, serve
from tundish_client import AsyncClient, Client, ConfigError, ConnectionLost
from tundish_client._protocol.wire_errors import decode_exception

MIB = 2**20


class TestFeeds:
    async def test_one_loader_is_called_default(self, path):
        async with serve(arrays(), socket=path) as server, AsyncClient(server.socket) as client:
            (feed,) = await client.feeds()
            assert (feed["feed"], feed["samples"], feed["batches"]) == ("default", 100, 10)
            assert [b["x"].tolist() async for b in client.epoch(0)][9] == list(range(90, 100))

    async def test_several_are_asked_for_by_name(self, path):
        loaders = {"a": arrays(), "b": arrays(6, 2)}
        async with serve(loaders, socket=path), AsyncClient(path) as client:
            assert [feed["feed"] for feed in await client.feeds()] == ["a", "b"]
            assert len([b async for b in client.epoch(0, feed="b")]) == 3
            with pytest.raises(ConfigError, match="'a', 'b'"):
                await anext(client.epoch(0))
            with pytest.raises(ConfigError, match="feed='c'"):
                await anext(client.epoch(0, feed="c"))

    async def test_a_function_may_make_them(self, path):
        async with serve(lambda: {"made": arrays()}, socket=path), AsyncClient(path) as client:
            assert [feed["feed"] for feed in await client.feeds()] == ["made"]

    @pytest.mark.parametrize("wrong", [None, [], {}, 3, {"a": 3}, {1: 2}, lambda: None])
    def test_anything_else_is_refused_at_once(self, wrong):
        with pytest.raises(ConfigError):
            serve(wrong)

    async def test_a_dataset_whose_len_raises_is_told_and_harms_no_other(self, path):
        class Broken:
            ok = True

            def __len__(self):
                if not self.ok:
                    raise OSError(5, "disk gone")
                return 4

            def __getitem__(self, i):
                return i

        data = Broken()
        loaders = {"broken": DataLoader(data), "good": arrays()}
        async with serve(loaders, socket=path), AsyncClient(path) as client:
            data.ok = False
            broken, good = await client.feeds()
            assert (broken["samples"], broken["batches"]) == (None, None)
            assert "OSError: [Errno 5] disk gone" in broken["error"]
            assert (good["samples"], "error" in good) == (100, False)
            with pytest.raises(OSError, match="disk gone"):
                await anext(client.epoch(0, feed="broken"))
            data.ok = True
            assert len([b async for b in client.epoch(0, feed="broken")]) == 4

    async def test_a_len_that_exits_does_not_end_the_server(self, path):
        class Exits:
            calls = 0

            def __len__(self):
                self.calls += 1
                if self.calls > 1:
                    raise SystemExit(3)
                return 4

            def __getitem__(self, i):
                return i

        async with serve({"bad": DataLoader(Exits()), "good": arrays()}, socket=path):
            async with AsyncClient(path) as client:
                with pytest.raises(Exception, match="SystemExit"):
                    [b async for b in client.epoch(0, feed="bad")]
                assert len([b async for b in client.epoch(0, feed="good")]) == 10


class TestStreams:
    async def test_many_streams_on_many_clients(self, path):
        loaders = {"a": arrays(shuffle=True, seed=1, num_workers=2), "b": arrays(50, 5, seed=2)}

        async def read(client, feed, number):
            batches = [b["x"] async for b in client.epoch(number, feed=feed)]
            return np.sort(np.concatenate(batches)).tolist()

        async with serve(loaders, socket=path), contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(AsyncClient(path)) for _ in range(4)]
            reads = [read(c, feed, e) for c in clients for feed in loaders for e in range(3)]
            for result, feed in zip(
                await asyncio.gather(*reads), ["a"] * 3 + ["b"] * 3, strict=False
            ):
                assert result == list(range(100 if feed == "a" else 50))

    async def test_threads_with_sync_clients(self, path):
        def read():
            with Client(path) as client:
                return [int(b["x"].sum()) for number in range(3) for b in client.epoch(number)]

        async with serve(arrays(shuffle=True, seed=3, num_workers=2), socket=path):
            results = await asyncio.gather(*(asyncio.to_thread(read) for _ in range(4)))
        assert len({tuple(result) for result in results}) == 1

    async def test_the_end_is_sent_without_a_further_credit(self, path):
        async with serve(arrays(20), socket=path):

            def talk():
                with Raw(path, shared_memory=False) as raw:
                    raw.sock.sendall(epoch(credits={"batches": 2, "bytes": 2**30}))
                    kinds = [raw.receive().kind for _ in range(4)]
                    assert kinds == ["START", "BATCH", "BATCH", "END"]

            await asyncio.to_thread(talk)

    async def test_credits_bound_what_is_sent(self, path):
        async with serve(arrays(), socket=path) as server:

            def talk(credits, expected):
                with Raw(path, shared_memory=False) as raw:
                    raw.sock.sendall(epoch(credits=credits))
                    raw.receive("START")
                    sizes = [raw.receive("BATCH").header["nbytes"] for _ in range(expected)]
                    raw.send("PING", token=1)
                    raw.receive("PONG")  # and no batch before it
                    time.sleep(20 * MS)
                    raw.send("PING", token=2)
                    raw.receive("PONG")
                    raw.send("CREDIT", stream=1, credits={"batches": 1, "bytes": sum(sizes)})
                    assert raw.receive("BATCH").header["batch"] == expected

            await asyncio.to_thread(talk, {"batches": 3, "bytes": 2**30}, 3)
            # Bytes may be overdrawn once: by the batch that was begun with one byte left.
            await asyncio.to_thread(talk, {"batches": 100, "bytes": 1}, 1)
            await asyncio.to_thread(talk, {"batches": 100, "bytes": 209}, 2)
            await until(lambda: not server.stats()["streams"], "the streams to go")

    async def test_cancel_frees_the_stream_and_its_number(self, path):
        async with serve(arrays(1000, 1), socket=path) as server:

            def talk():
                with Raw(path, shared_memory=False) as raw:
                    for _ in range(20):
                        raw.sock.sendall(epoch(credits={"batches": 2, "bytes": 2**30}))
                        while raw.receive().kind != "START":
                            pass  # batches of the stream before
                        raw.send("CANCEL", stream=1)
                    raw.send("PING", token=1)
                    while raw.receive().kind != "PONG":
                        pass

            await asyncio.to_thread(talk)
            assert server.stats()["streams"] == []

    async def test_a_failing_batch_takes_its_place(self, path):
        class Fails:
            def __len__(self):
                return 6

            def __getitem__(self, i):
                if i == 3:
                    raise OSError(5, "bad 3", "/x")
                return i

        async with serve(DataLoader(Fails(), num_workers=2), socket=path):

            def talk():
                with Raw(path, shared_memory=False) as raw:
                    raw.sock.sendall(epoch(credits={"batches": 9, "bytes": 2**30}))
                    raw.receive("START")
                    seen = [raw.receive() for _ in range(6)]
                    assert [m.header["batch"] for m in seen] == list(range(6))
                    assert [m.kind for m in seen] == ["BATCH"] * 3 + ["ERROR"] + ["BATCH"] * 2
                    assert seen[3].header["samples"] == [3]
                    error = decode_exception(seen[3].header)
                    assert (type(error), error.errno, error.filename) == (OSError, 5, "/x")
                    counts = raw.receive("END").header["counts"]
                    assert (counts["batches"], counts["errors"], counts["samples"]) == (6, 1, 5)

            await asyncio.to_thread(talk)

    async def test_a_batch_over_the_clients_limit_is_an_error_of_that_batch(self, path):
        async with serve(arrays(20), socket=path):

            def talk():
                with Raw(path) as raw:
                    raw.sock.sendall(hello(limits={"head": 2**20, "body": 100}) + epoch())
                    raw.receive("WELCOME")
                    raw.receive("START")
                    for number in range(2):
                        header = raw.receive("ERROR").header
                        assert header["batch"] == number
                        error = decode_exception(header)
                        assert "208 bytes" in str(error)
                        assert "100" in str(error)
                    assert raw.receive("END").header["counts"]["errors"] == 2

            await asyncio.to_thread(talk)


class TestEnd:
    async def test_goaway_then_the_end_and_no_file(self, path):
        async with serve(arrays(), socket=path):
            raw = await asyncio.to_thread(Raw, path, shared_memory=False)
            raw.sock.sendall(epoch(credits={"batches": 0, "bytes": 0}))
            await asyncio.to_thread(raw.receive, "START")
            await asyncio.sleep(0)
        assert raw.receive("GOAWAY").header["reason"]
        assert raw.closed()
        raw.close()
        assert not os.path.exists(path)
        assert not os.path.exists(f"{path}.lock")

    async def test_a_client_learns_where_to_go_on(self, path):
        async with serve(arrays(), socket=path) as server:
            client = AsyncClient(path)
            await client.__aenter__()
            stream = client.epoch(0)
            for _ in range(3):
                await anext(stream)
            await server.aclose()
        with pytest.raises(ConnectionLost) as caught:
            while True:
                await anext(stream)
        assert caught.value.position.batch >= 3
        await client.aclose()

    async def test_is_not_held_up_by_a_worker_stuck_in_user_code(self, path):
        release, entered = threading.Event(), threading.Event()

        class Stuck:
            def __len__(self):
                return 4

            def __getitem__(self, i):
                entered.set()
                release.wait(10)
                return i

        loader = DataLoader(Stuck(), num_workers=2)
        async with AsyncClientOf(loader, path) as (client, began):
            waiting = asyncio.ensure_future(anext(client.epoch(0)))
            await until(entered.is_set, "a worker to be in user code")
            began.append(time.monotonic())
        with pytest.raises(ConnectionLost):
            await waiting
        assert time.monotonic() - began[0] < 500 * MS
        release.set()
        loader.close()

    async def test_again_on_the_same_path(self, path):
        for _ in range(3):
            async with serve(arrays(), socket=path), AsyncClient(path) as client:
                assert len([b async for b in client.epoch(0)]) == 10

    async def test_is_cancelled_with_its_task(self, path):
        ready = asyncio.Event()

        async def main():
            async with serve(arrays(), socket=path):
                ready.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(main())
        await ready.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not os.path.exists(path)

    async def test_leaves_no_descriptors_and_no_threads(self, path):
        def count():
            gc.collect()
            return len(os.listdir("/proc/self/fd")), threading.active_count()

        loader = arrays(num_workers=2)

        async def once():
            async with serve(loader, socket=path), AsyncClient(path) as client:
                return [b async for b in client.epoch(0)]

        await once()
        before = count()
        for _ in range(10):
            await once()
        await asyncio.sleep(20 * MS)
        after = count()
        assert after[0] <= before[0] + 2
        assert after[1] <= before[1]
        loader.close()


@contextlib.asynccontextmanager
async def AsyncClientOf(loader, path):
    began: list[float] = []
    async with serve(loader, socket=path):
        client = AsyncClient(path)
        await client.__aenter__()
        yield client, began
    await client.aclose()


async def test_two_servers_on_one_path_are_one_too_many(path):
    async with serve(arrays(), socket=path):
        with pytest.raises(ConfigError, match=f"pid {os.getpid()}"):
            async with serve(arrays(), socket=path):
                pass
        async with AsyncClient(path) as client:
            assert await client.ping() < 1
