"""Slots lent to clients, and the counters that tell of them."""

import asyncio
import os
import time

import numpy as np

from helpers.datasets import arrays
from helpers.raw import RECORD, Raw, epoch
from helpers.timing import MS, until
from tundish import ArrayDataset, DataLoader, serve
from tundish_client import AsyncClient, Client

MIB = 2**20


class TestLeases:
    async def test_slots_come_back_by_the_side_channel(self, path):
        async with serve(arrays(20), socket=path) as server:

            def talk():
                with Raw(path, shared_memory=True) as raw:
                    raw.sock.sendall(epoch())
                    raw.receive("START")
                    batches = [raw.receive("BATCH") for _ in range(2)]
                    assert [raw.value(m)["x"].tolist()[0] for m in batches] == [0, 10]
                    raw.receive("END")
                    yield 2
                    raw.release(batches[0])
                    raw.release(batches[0])
                    yield 1
                    where = batches[1].header
                    raw.side.send(RECORD.pack(1, where["segment"], where["slot"], 0, 2**40))
                    yield 1
                    raw.send("RELEASE", **{k: where[k] for k in ("segment", "slot", "generation")})
                    yield 0

            steps = talk()
            while (expected := await asyncio.to_thread(next, steps, None)) is not None:
                await until(
                    lambda expected=expected: server.stats()["slots"]["leased"] == expected,
                    f"{expected} leases",
                )

    async def test_a_lent_slot_is_quarantined_until_the_side_channel_hangs_up(self, path):
        async with serve(arrays(), socket=path) as server:

            def lend():
                raw = Raw(path, shared_memory=True)
                raw.sock.sendall(epoch())
                raw.receive("START")
                for _ in range(3):
                    raw.receive("BATCH")
                return raw

            raw = await asyncio.to_thread(lend)
            copy = raw.side.dup()  # as a forked child would have it
            raw.sock.close()
            await until(lambda: server.stats()["connections"] == 0, "the loss")
            held = server.stats()["slots"]["quarantined"]
            assert held >= 3
            raw.close()
            await asyncio.sleep(30 * MS)
            assert server.stats()["slots"]["quarantined"] == held
            assert server.stats()["slots"]["lent"] >= held
            copy.send(RECORD.pack(1, 0, 0, 0, 0) * 2)  # a release still counts, a wrong one not
            copy.close()
            await until(lambda: server.stats()["slots"]["quarantined"] == 0, "the hang-up")
            await until(lambda: server.stats()["slots"]["lent"] == 0, "the slots")

    async def test_past_its_quota_a_client_gets_inline_batches(self, path):
        async with serve(arrays(), socket=path, lease_quota=3) as server:

            def hold():
                with Client(path) as client, Client(path) as other:
                    held = list(client.epoch(0))
                    assert [b["x"].tolist()[0] for b in held] == list(range(0, 100, 10))
                    assert client.stats()["slots"]["leased"] == 3
                    assert len(list(other.epoch(0))) == 10
                    del held
                    assert len(list(client.epoch(1))) == 10

            await asyncio.to_thread(hold)
            await until(lambda: server.stats()["slots"]["lent"] == 0, "the slots")

    async def test_a_quota_of_0_turns_shared_memory_off(self, path):
        async with serve(arrays(), socket=path, lease_quota=0):

            def talk():
                with Raw(path, shared_memory=True) as raw:
                    assert raw.welcome["shared_memory"] is False
                    assert raw.side is None

            await asyncio.to_thread(talk)

    async def test_a_stream_may_do_without(self, path):
        async with serve(arrays(), socket=path):

            def talk():
                with Raw(path, shared_memory=True) as raw:
                    raw.sock.sendall(epoch(shared_memory=False))
                    raw.receive("START")
                    assert raw.receive("BATCH").body is not None

            await asyncio.to_thread(talk)

    async def test_a_proxy_that_loses_the_descriptor_gets_inline_batches(self, path):
        async with serve(arrays(), socket=path):

            def talk():
                with Raw(path, shared_memory=True) as raw:
                    raw.side.close()
                    raw.side = None
                    time.sleep(20 * MS)
                    raw.sock.sendall(epoch())
                    raw.receive("START")
                    assert raw.receive("BATCH").body is not None

            await asyncio.to_thread(talk)

    async def test_a_full_arena_sends_inline_and_gives_segments_up(self, path):
        """Batches of two sizes in an arena that has room for one of them."""
        sizes = {"small": arrays(64, 1), "large": DataLoader(ArrayDataset(x=np.zeros((8, 2**18))))}
        async with serve(sizes, socket=path, memory_limit=16 * MIB) as server:

            def read():
                with Client(path) as client:
                    for number in range(3):
                        for feed, n in (("small", 64), ("large", 8), ("small", 64)):
                            assert sum(1 for _ in client.epoch(number, feed=feed)) == n
                    return client.stats()

            stats = await asyncio.to_thread(read)
            assert stats["memory"]["capacity"] <= 16 * MIB
            await until(lambda: server.stats()["slots"]["lent"] == 0, "the slots")


class TestStats:
    async def test_names(self, path):
        async with serve(arrays(), socket=path, memory_limit="64MiB") as server:

            def talk():
                with Raw(path, shared_memory=True) as raw:
                    raw.sock.sendall(
                        epoch(credits={"batches": 2, "bytes": 2**30}, rank=1, world_size=2)
                    )
                    raw.receive("START")
                    raw.receive("BATCH")
                    raw.receive("BATCH")
                    raw.send("ACK", stream=1, batch=0)
                    raw.send("STATS", request=5)
                    message = raw.receive("STATS")
                    assert message.header["request"] == 5
                    return message.header["stats"]

            stats = await asyncio.to_thread(talk)
            (stream,) = stats["streams"]
            assert stream["feed"] == "default"
            assert (stream["rank"], stream["world_size"]) == (1, 2)
            assert (stream["delivered"], stream["acked"], stream["lag"]) == (2, 0, 1)
            assert stream["client"] == {"name": "raw", "pid": os.getpid()}
            assert stream["consumer_wait"] >= 0
            assert stream["loader_wait"] >= 0
            assert len(stats["runs"]) == 1
            assert stats["feeds"][0]["feed"] == "default"
            assert stats["memory"]["limit"] == 64 * MIB
            assert 0 < stats["memory"]["used"] <= 64 * MIB
            assert stats["slots"]["lent"] >= 2
            assert stats["slots"]["total"] >= stats["slots"]["lent"]
            assert server.stats()["server"]["pid"] == os.getpid()

    async def test_the_two_waits_are_told_apart(self, path):
        class Slow:
            def __len__(self):
                return 6

            def __getitem__(self, i):
                time.sleep(30 * MS)
                return i

        async with serve({"slow": DataLoader(Slow()), "fast": arrays(6, 1)}, socket=path):
            async with AsyncClient(path) as client:
                slow = client.epoch(0, feed="slow")
                fast = client.epoch(0, feed="fast", prefetch=1)
                await anext(fast)
                for _ in range(4):
                    await anext(slow)
                waits = {s["feed"]: s for s in (await client.stats())["streams"]}
                assert waits["slow"]["consumer_wait"] > 60 * MS > waits["slow"]["loader_wait"]
                assert waits["fast"]["loader_wait"] > 60 * MS > waits["fast"]["consumer_wait"]
