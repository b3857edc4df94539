"""What START can't tell: samples left out, lengths that nobody knows, batches out of order."""

import asyncio
import itertools
import threading
import time

import pytest

from helpers.datasets import Range
from helpers.raw import Raw, epoch
from helpers.timing import MS, until
from tundish import DataLoader, serve
from tundish_client import AsyncClient


class Holes:
    """A dataset with samples that can't be loaded: those in `bad`."""

    def __init__(self, n, bad):
        self.n, self.bad = n, bad

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i in self.bad:
            raise OSError(f"bad {i}")
        return i


class Endless:
    """An iterable dataset: the first `n` integers, told by nobody beforehand."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


class TestSkippedSamples:
    @pytest.mark.parametrize("shared_memory", [False, True])
    @pytest.mark.parametrize("workers", [0, 4])
    async def test_are_told_with_their_batch_and_counted(self, path, workers, shared_memory):
        data = Holes(12, {1, 4, 5, 9, 10, 11})
        loader = DataLoader(data, batch_size=3, num_workers=workers, on_error="skip")
        async with serve(loader, socket=path) as server:
            async with AsyncClient(path, shared_memory=shared_memory) as client:
                seen = []
                stream = client.epoch(0, prefetch=1)
                for _ in range(4):
                    try:
                        seen.append((await anext(stream)).tolist())
                        seen.append((stream.info.indices, stream.info.skipped))
                    except Exception as error:
                        seen.append(type(error))
                    if len(seen) == 4:
                        assert stream.counts["skipped"] == 3
                        assert server.stats()["streams"][0]["skipped"] >= 3
                assert await anext(stream, None) is None
                counts = dict(stream.counts)
        assert seen[:6] == [[0, 2], ([0, 2], [1]), [3], ([3], [4, 5]), [6, 7, 8], ([6, 7, 8], [])]
        assert len(seen) == 7
        assert (counts["batches"], counts["errors"]) == (4, 1)
        assert (counts["samples"], counts["skipped"]) == (6, 3)
        loader.close()

    async def test_are_nowhere_else_in_the_messages(self, path):
        loader = DataLoader(Holes(6, {4}), batch_size=2, on_error="skip")
        async with serve(loader, socket=path):

            def talk():
                with Raw(path, shared_memory=True) as raw:
                    raw.sock.sendall(epoch(credits={"batches": 9, "bytes": 2**30}))
                    assert "exact" not in raw.receive("START").header
                    batches = [raw.receive("BATCH") for _ in range(3)]
                    skipped = [batch.header.get("skipped") for batch in batches]
                    assert skipped == [None, None, [4]]
                    assert [raw.value(batch).tolist() for batch in batches] == [[0, 1], [2, 3], [5]]
                    assert raw.receive("END").header["counts"]["skipped"] == 1

            await asyncio.to_thread(talk)


class TestUnknownLengths:
    async def test_start_says_so_and_end_comes_with_the_next_credit(self, path):
        async with serve(DataLoader(Endless(5), batch_size=2), socket=path) as server:

            def talk():
                with Raw(path, shared_memory=False) as raw:
                    raw.sock.sendall(epoch(credits={"batches": 3, "bytes": 2**30}))
                    start = raw.receive("START").header
                    assert (start["batches"], start["samples"]) == (None, None)
                    assert start["exact"] is False
                    batches = [raw.value(raw.receive("BATCH")).tolist() for _ in range(3)]
                    assert batches == [[0, 1], [2, 3], [4]]
                    (stream,) = server.stats()["streams"]
                    assert (stream["total"], stream["delivered"]) == (None, 3)
                    raw.send("CREDIT", stream=1, credits={"batches": 1, "bytes": 1})
                    counts = raw.receive("END").header["counts"]
                    assert (counts["batches"], counts["samples"]) == (3, 5)

            await asyncio.to_thread(talk)
            assert server.stats()["streams"] == []

    async def test_feeds_say_so(self, path):
        async with serve(DataLoader(Endless(5), batch_size=2), socket=path):
            async with AsyncClient(path) as client:
                info = await client.info()
        assert (info["samples"], info["batches"], info["fingerprint"]["samples"]) == (None,) * 3

    async def test_an_iterable_that_fails_goes_on_or_ends_with_its_error(self, path):
        class Fails:
            def __iter__(self):
                yield from range(3)
                raise OSError(5, "torn")

        async with serve(DataLoader(Fails(), batch_size=2), socket=path):
            async with AsyncClient(path) as client:
                stream = client.epoch(0)
                assert (await anext(stream)).tolist() == [0, 1]
                with pytest.raises(OSError, match="torn"):
                    await anext(stream)
                assert await anext(stream, None) is None
                assert (stream.counts["batches"], stream.counts["errors"]) == (2, 1)

    async def test_a_cancelled_stream_stops_an_endless_dataset(self, path):
        class Forever:
            given = 0

            def __iter__(self):
                for i in itertools.count():
                    self.given = i
                    yield i

        data = Forever()
        async with serve(DataLoader(data, num_workers=2), socket=path) as server:
            async with AsyncClient(path) as client:
                async with client.epoch(0) as stream:
                    assert [(await anext(stream)).tolist() for _ in range(3)] == [[0], [1], [2]]
                await until(lambda: not server.stats()["streams"], "the stream to go")
                await asyncio.sleep(20 * MS)
                given = data.given
                await asyncio.sleep(20 * MS)
                assert data.given == given < 2000


async def test_out_of_order_start_says_so(path):
    class Slow:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            time.sleep(50 * MS if i == 0 else 0)
            return i

    loader = DataLoader(Slow(), num_workers=2, in_order=False)
    async with serve(loader, socket=path):

        def talk():
            with Raw(path, shared_memory=False) as raw:
                raw.sock.sendall(epoch(credits={"batches": 9, "bytes": 2**30}))
                assert raw.receive("START").header["in_order"] is False
                numbers = [raw.receive("BATCH").header["batch"] for _ in range(6)]
                assert sorted(numbers) == list(range(6))
                assert numbers[0] != 0
                raw.receive("END")

        await asyncio.to_thread(talk)
        async with AsyncClient(path) as client:
            stream = client.epoch(0)
            assert sorted([int(batch[0]) async for batch in stream]) == list(range(6))
    loader.close()


async def test_out_of_order_the_lag_is_never_negative(path):
    """The first batch is held back: all others are acknowledged, the last number being 5 of 5."""
    opened = threading.Event()

    class FirstWaits(Range):
        def __getitem__(self, i):
            if i == 0:
                opened.wait(10)
            return i

    loader = DataLoader(FirstWaits(6), num_workers=2, in_order=False, prefetch=6)
    async with serve(loader, socket=path) as server, AsyncClient(path) as client:
        stream = client.epoch(0)
        assert sorted([int((await anext(stream))[0]) for _ in range(5)]) == [1, 2, 3, 4, 5]
        waiting = asyncio.ensure_future(anext(stream))
        await until(lambda: server.stats()["streams"][0]["acked"] == 5, "the acknowledgements")
        (entry,) = server.stats()["streams"]
        assert (entry["delivered"], entry["lag"]) == (5, 0)
        opened.set()
        assert int((await waiting)[0]) == 0
    loader.close()
