"""Split epochs that go on at another server, or after their end: who comes late, and first."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from helpers.timing import MS
from tundish import AsyncClient, ConfigError, DataLoader, serve

N = 60


def loader():
    return DataLoader(range(N), seed=1, num_workers=1)


async def take(stream, count):
    return [int((await anext(stream))[0]) for _ in range(count)]


async def rest(stream):
    return [int(batch[0]) async for batch in stream]


async def opened(client):
    stream = client.epoch(0, split="all", prefetch=1)
    await stream.__aenter__()
    return stream


async def test_who_was_busy_while_the_others_got_through_does_not_begin_anew(path):
    """The server is another one; one consumer asks it for more when the others are done."""
    one, two = AsyncClient(path, reconnect_timeout=10), AsyncClient(path, reconnect_timeout=10)
    async with AsyncExitStack() as clients:
        async with serve(loader(), socket=path):
            await clients.enter_async_context(one)
            await clients.enter_async_context(two)
            quick, busy = await opened(one), await opened(two)
            had = await take(quick, 3)
            in_hand = await take(busy, 1)
        async with serve(loader(), socket=path) as server:
            had += await asyncio.wait_for(rest(quick), 20)
            late = await asyncio.wait_for(rest(busy), 20)
            # What the busy one had in its hands was nobody's yet, and so was another's.
            assert sorted(had) == list(range(N))
            assert late == []
            assert busy.counts["batches"] == len(in_hand)
            assert server.stats()["runs"] == []


async def test_it_begins_anew_for_who_has_no_part_in_it(path):
    async with serve(loader(), socket=path), AsyncClient(path) as client:
        for _ in range(2):
            assert await rest(client.epoch(0, split="all")) == list(range(N))


async def test_what_is_over_is_forgotten_in_time(path):
    async with (
        serve(loader(), socket=path, lease_timeout=50 * MS),
        AsyncClient(path) as client,
    ):
        stream = await opened(client)
        begun = await take(stream, 5)
        state = stream.state_dict()
        assert begun + await rest(stream) == list(range(N))
        await asyncio.sleep(100 * MS)
        assert sorted(await rest(client.resume(state))) == list(range(4, N))


async def test_a_new_consumer_does_not_get_what_those_have_had_who_come_back(path):
    """A restarted trainer is at the restarted server before the others are."""
    old, new = AsyncClient(path, reconnect_timeout=10), AsyncClient(path)
    async with AsyncExitStack() as clients:
        async with serve(loader(), socket=path):
            await clients.enter_async_context(old)
            stream = await opened(old)
            had = await take(stream, 10)
        async with serve(loader(), socket=path):
            await clients.enter_async_context(new)
            fresh = asyncio.ensure_future(rest(new.epoch(0, split="all")))
            await asyncio.sleep(100 * MS)
            had += await asyncio.wait_for(rest(stream), 20)
            assert sorted(had + await asyncio.wait_for(fresh, 20)) == list(range(N))


async def test_many_acknowledged_batches_are_few_ranges(path):
    """A state with a million of them holds nobody up."""
    huge = DataLoader(range(2**21), num_workers=1)
    async with serve(huge, socket=path) as server, AsyncClient(path) as client:
        stream = await opened(client)
        await take(stream, 1)
        state = stream.state_dict() | {"acked": [[0, 2**20], [2**20 + 2, 2**21 - 3]]}
        await stream.aclose()
        began, longest = time.monotonic(), 0.0
        reading = asyncio.ensure_future(rest(client.resume(state)))
        while not reading.done():
            before = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - before)
        assert sorted(await reading) == [2**20 + 1, 2**21 - 2, 2**21 - 1]
        assert longest < 150 * MS
        assert time.monotonic() - began < 5000 * MS
        assert server.stats()["streams"] == []


async def test_batches_beyond_the_end_are_those_of_another_epoch(path):
    async with serve(loader(), socket=path), AsyncClient(path) as client:
        stream = await opened(client)
        other = client.epoch(0)
        state = stream.state_dict() | {"acked": [[0, N + 5]]}
        with pytest.raises(ConfigError, match="acked reaches batch 65, .* has 60 batches"):
            await rest(client.resume(state))
        assert await rest(other) == list(range(N))


async def test_counters_are_those_of_all_that_is_left(path):
    """Gaps are made by runs of their own; together they are one run."""
    acked = [[0, 9], [20, 29], [40, 49]]
    async with serve(loader(), socket=path) as server, AsyncClient(path) as client:
        stream = await opened(client)
        state = stream.state_dict() | {"acked": acked}
        await stream.aclose()
        back = client.resume(state, prefetch=3)
        assert await take(back, 3) == [50, 51, 52]
        (one,) = server.stats()["streams"]
        assert 1 <= one["lag"] <= 4  # in hand, and on their way
        assert await take(back, 20) == [*range(53, 60), *range(10, 20), *range(30, 33)]
        (run,) = server.stats()["runs"]
        assert (run["start"], run["total"], run["errors"]) == (50, 10, 0)
        assert 23 <= run["delivered"] <= run["produced"] <= run["claimed"]
        assert 50 <= run["position"] <= 52
        assert await rest(back) == list(range(33, 40))
        totals = server.stats()["feeds"][0]["totals"]
        assert totals["produced"] >= run["produced"]
