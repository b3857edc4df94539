"""The memory limit, with consumers that read, that stand still and that keep what they get.

What the server says of its memory is compared with what the kernel says of its process.
"""

import asyncio
import os
import time

import numpy as np
import pytest

from helpers.datasets import arrays
from helpers.memory import MIB, NATIVE, PYTHON, Watch, measured, read_all, stalled
from helpers.timing import MS, until, wait_for
from tundish import ArrayDataset, AsyncClient, Client, DataLoader, serve
from tundish.leases import Lending


class TestTheLimit:
    ROWS = 150

    @pytest.mark.parametrize("shared_memory", [True, False], ids=["slots", "inline"])
    @pytest.mark.parametrize("consumers", [1, 2, 8])
    @pytest.mark.parametrize("source", [NATIVE, PYTHON], ids=["native", "python"])
    def test_holds_while_one_of_several_consumers_stands_still(
        self, serve, source, consumers, shared_memory
    ):
        limit = 48 * MIB
        service = serve(
            source.format(rows=self.ROWS, nbytes=MIB), "train", "--memory-limit", str(limit)
        )
        everything = list(range(self.ROWS))
        with Watch(service) as watch:
            if consumers == 1:
                assert read_all(service, [0], shared_memory=shared_memory) == [everything]
            else:
                with stalled(service, shared_memory=shared_memory) as numbers:
                    others = [0] * (consumers - 1)
                    found = read_all(service, others, shared_memory=shared_memory)
                    assert found == [everything] * (consumers - 1)
                assert numbers == everything
            peak = watch.memory["peak"]
        assert 2 * MIB < watch.used <= limit
        assert 2 * MIB < peak <= limit
        # The interpreter's own memory grows a little as it works.
        assert watch.real <= limit + 8 * MIB
        assert watch.beyond <= 8 * MIB

    def test_is_passed_by_a_batch_for_each_run_at_most(self, serve):
        """Eight epochs at a time of batches that are a quarter of the limit each."""
        limit, nbytes, runs = 16 * MIB, 4 * MIB, 8
        service = serve(
            NATIVE.format(rows=20, nbytes=nbytes), "train", "--memory-limit", str(limit)
        )
        with Watch(service) as watch, stalled(service) as numbers:
            found = read_all(service, range(1, runs))
            assert found == [list(range(20))] * (runs - 1)
            peak = watch.memory["peak"]
        assert numbers == list(range(20))
        assert limit // 2 < peak <= limit + runs * (nbytes + 4096)
        assert watch.real <= limit + runs * nbytes + 8 * MIB

    def test_holds_against_those_who_keep_their_batches(self, serve):
        """Two that keep everything do not take the memory from a third one."""
        limit = 32 * MIB
        source = NATIVE.format(rows=100, nbytes=MIB)
        service = serve(source, "train", "--memory-limit", str(limit))
        with Watch(service) as watch, Client(service.socket) as one, Client(service.socket) as two:
            kept = [list(client.epoch(number)) for number, client in enumerate((one, two))]
            assert [len(batches) for batches in kept] == [100, 100]
            stats = watch.client.stats()
            assert stats["slots"]["leased"] > 0
            assert stats["memory"]["lent"] <= limit // 2
            assert read_all(service, [2, 3]) == [list(range(100))] * 2
            assert all(int(b["i"][0]) == i for batches in kept for i, b in enumerate(batches))
            assert watch.memory["peak"] <= limit

    def test_holds_while_members_of_a_split_epoch_stand_still(self, serve):
        """Long prefetches are no way to have the whole epoch in memory, unacknowledged."""
        limit = 16 * MIB
        source = NATIVE.format(rows=60, nbytes=MIB)
        service = serve(source, "train", "--memory-limit", str(limit))

        async def read(hold):
            async with AsyncClient(service.socket, shared_memory=False) as client:
                stream = client.epoch(0, split="all", prefetch=100)
                numbers = [int((await anext(stream))["i"][0])]
                await hold.wait()
                return numbers + [int(batch["i"][0]) async for batch in stream]

        async def main():
            hold = asyncio.Event()
            readers = [asyncio.ensure_future(read(hold)) for _ in range(2)]
            look = lambda: watch.client.stats()
            while len([s for s in look()["streams"] if s["delivered"]]) < 2:
                await asyncio.sleep(10 * MS)
            await asyncio.sleep(300 * MS)  # what they are sent they take in
            (held,) = look()["runs"]
            hold.set()
            one, two = await asyncio.gather(*readers)
            return held, one + two

        with Watch(service) as watch:
            held, numbers = asyncio.run(main())
            assert sorted(numbers) == list(range(60))
            assert 0 < held["bytes"] <= limit
            assert watch.memory["peak"] <= limit


class Counted:
    """Samples of half a MiB that count how often they are loaded."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.loads = 0
        self._zeros = np.zeros(2**16)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int):
        self.loads += 1
        return {"x": self._zeros, "i": index}


class TestScarcity:
    async def test_consumers_of_one_epoch_stay_together(self, path):
        """Where the window is small, those ahead wait a moment for the others."""
        dataset = Counted(100)

        def read():
            with Client(path) as client:
                return [int(batch["i"][0]) for batch in client.epoch(0, prefetch=1)]

        loader = DataLoader(dataset, num_workers=1)
        async with serve(loader, socket=path, memory_limit=6 * MIB) as server:
            found = await asyncio.gather(*(asyncio.to_thread(read) for _ in range(5)))
            assert found == [list(range(100))] * 5
            assert dataset.loads <= 200  # by themselves they would load 500
            assert server.stats()["memory"]["peak"] <= 6 * MIB

    async def test_but_not_for_one_that_stands_still(self, path):
        async with serve(DataLoader(Counted(60)), socket=path, memory_limit=6 * MIB) as server:
            async with AsyncClient(path) as slow, AsyncClient(path) as fast:
                late = slow.epoch(0, prefetch=1)
                await anext(late)
                began = time.monotonic()
                assert len([batch async for batch in fast.epoch(0)]) == 60
                assert time.monotonic() - began < 1000 * MS
                (stream,) = server.stats()["streams"]
                assert stream["detached"] == 1
                assert [int(b["i"][0]) async for b in late] == list(range(1, 60))

    @pytest.mark.parametrize("split", [None, "all"])
    @pytest.mark.parametrize("kind", ["native", "python", "iterable", "unordered"])
    async def test_a_limit_below_one_batch_stops_nobody(self, path, kind, split):
        """Everything is made on the heap then, one at a time, and only when somebody asks."""
        n, loader = 12, DataLoader(ArrayDataset(x=np.zeros((12, 2**18)), i=np.arange(12)))
        large = {"x": np.zeros(2**18)}
        if kind == "python":
            loader = DataLoader([large | {"i": i} for i in range(n)], num_workers=4)
        elif kind == "iterable":
            loader = DataLoader(Iterable([large | {"i": i} for i in range(n)]))
        elif kind == "unordered":
            samples = [large | {"i": i} for i in range(n)]
            loader = DataLoader(samples, num_workers=4, in_order=False)

        async def read(client, options):
            return [int(batch["i"][0]) async for batch in client.epoch(0, **options)]

        options = {} if split is None else {"split": split}
        async with serve(loader, socket=path, memory_limit=MIB) as server:
            async with AsyncClient(path) as one, AsyncClient(path, shared_memory=False) as two:
                found = await asyncio.gather(*(read(client, options) for client in (one, two)))
            if split is None:
                assert [sorted(numbers) for numbers in found] == [list(range(n))] * 2
            else:
                assert sorted(found[0] + found[1]) == list(range(n))
            assert server.stats()["memory"]["peak"] < 8 * 2 * MIB
            await until(lambda: server.stats()["memory"]["heap"] == 0, "the heap")


class Iterable:
    def __init__(self, samples) -> None:
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


class TestTwoSizes:
    async def test_both_go_on_at_a_time(self, path):
        """One feed's slots don't keep the other from having any."""
        feeds = {
            "large": DataLoader(ArrayDataset(x=np.zeros((80, 2**17))), num_workers=2),
            "small": DataLoader(ArrayDataset(x=np.zeros((400, 2**11))), num_workers=2),
        }

        def read(feed, epochs, seen):
            with Client(path) as client:
                for number in range(epochs):
                    for _ in client.epoch(number, feed=feed):
                        slots = client.stats()["slots"]["leased"]
                        seen.append(slots)

        async with serve(feeds, socket=path, memory_limit=8 * MIB) as server:
            large: list[int] = []
            small: list[int] = []
            await asyncio.gather(
                asyncio.to_thread(read, "large", 2, large),
                asyncio.to_thread(read, "small", 2, small),
            )
            assert (len(large), len(small)) == (160, 800)
            sent = {feed["feed"]: feed["totals"] for feed in server.stats()["feeds"]}
            assert sent["small"]["batches"] == 800
            assert server.stats()["memory"]["peak"] <= 8 * MIB + 2 * (MIB + 4096)
            assert server.stats()["slots"]["total"] > 0

    async def test_slots_of_one_go_when_the_other_needs_the_room(self, path):
        feeds = {
            "large": DataLoader(ArrayDataset(x=np.zeros((4, 2**17)))),
            "small": DataLoader(ArrayDataset(x=np.zeros((400, 2**16)))),
        }

        async with serve(feeds, socket=path, memory_limit=3 * MIB // 2) as server:
            async with AsyncClient(path) as client:
                assert len([batch async for batch in client.epoch(0, feed="large")]) == 4
                assert server.stats()["memory"]["capacity"] > MIB
                lent = []
                async for batch in client.epoch(0, feed="small"):
                    assert batch["x"].nbytes == MIB // 2
                    await asyncio.sleep(2 * MS)  # for the client to unmap the large one
                    lent.append(server.stats()["slots"]["leased"])
                assert len(lent) == 400
                assert max(lent) > 0
                assert server.stats()["memory"]["peak"] <= 3 * MIB // 2 + MIB


class TestRest:
    async def test_memory_goes_back_when_nothing_is_going_on(self, path, monkeypatch):
        monkeypatch.setattr("tundish.server._REST", 30 * MS)
        async with serve(arrays(), socket=path) as server:
            async with AsyncClient(path) as client:
                held = [batch async for batch in client.epoch(0)]
                assert server.stats()["memory"]["capacity"] > 0
                await asyncio.sleep(100 * MS)
                assert server.stats()["memory"]["lent"] > 0
                assert [batch["x"][0] for batch in held] == list(range(0, 100, 10))
                del held
                again = client.epoch(1)
                await anext(again)
                await asyncio.sleep(100 * MS)
                assert server.stats()["memory"]["capacity"] > 0  # a stream is open
                await again.aclose()
                await until(lambda: server.stats()["memory"]["used"] == 0, "the end")
                assert server.stats()["slots"] == {
                    "lent": 0, "total": 0, "leased": 0, "quarantined": 0,
                }  # fmt: skip
                assert len([batch async for batch in client.epoch(2)]) == 10

    def test_the_process_gives_it_back_too(self, serve):
        service = serve(NATIVE.format(rows=40, nbytes=4 * MIB))
        with Client(service.socket) as client:
            assert len(list(client.epoch(0, prefetch=8))) == 40
            assert measured(service.process.pid)[0] >= 8 * MIB
            wait_for(lambda: client.stats()["memory"]["used"] == 0, "the rest")
            assert measured(service.process.pid)[0] == 0
            names = [os.readlink(f"/proc/{service.process.pid}/fd/{fd}") for fd in fds(service)]
            assert not [name for name in names if "memfd:tundish" in name]


def fds(service):
    return os.listdir(f"/proc/{service.process.pid}/fd")


class TestLending:
    def test_a_slot_that_several_have_counts_once(self):
        lending = Lending(1000)
        lending.clients = 2
        for _ in range(2):
            assert lending.allows((0, 0, 0), 250, 0)
            lending.lend((0, 0, 0), 250)
        assert not lending.allows((0, 1, 0), 63, 0)
        assert lending.allows((0, 1, 0), 62, 0)  # its part of an eighth
        assert not lending.allows((0, 1, 0), 62, 1)
        assert lending.allows((0, 0, 0), 250, 250)
        lending.take_back((0, 0, 0), 250)
        assert not lending.allows((0, 1, 0), 63, 0)
        lending.take_back((0, 0, 0), 250)
        assert lending.allows((0, 1, 0), 250, 0)

    def test_one_is_lent_however_large(self):
        lending = Lending(1000)
        assert lending.allows((0, 0, 0), 5000, 0)
        lending.lend((0, 0, 0), 5000)
        assert not lending.allows((0, 1, 0), 5000, 0)

    async def test_two_streams_of_a_client_never_share_an_array(self, path):
        """The client has a slot mapped once: what one stream's user writes the other would see."""
        async with serve(arrays(100, 10), socket=path) as server:
            async with AsyncClient(path) as client:
                one, two = client.epoch(0), client.epoch(0)
                for number in range(10):
                    first, second = await anext(one), await anext(two)
                    assert first["x"][0] == second["x"][0] == number * 10
                    first["x"][:] = -1
                    assert second["x"].tolist() == list(range(number * 10, number * 10 + 10))
                    del first
                    await asyncio.sleep(0)
                    assert second["x"].tolist() == list(range(number * 10, number * 10 + 10))
                assert server.hub.stats() == [] or len(server.hub.stats()) == 1
