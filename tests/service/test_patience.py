"""How long consumers of one epoch wait for one of them that lags, before it goes on by itself."""

import asyncio
import random
import time

import numpy as np

from helpers.timing import MS
from tundish import AsyncClient, DataLoader, serve


class Counted:
    """Samples that count how often they are loaded."""

    def __init__(self, n: int) -> None:
        self.loads = [0] * n

    def __len__(self) -> int:
        return len(self.loads)

    def __getitem__(self, index: int):
        self.loads[index] += 1
        return np.full(2048, index)


async def test_trainers_of_one_speed_stay_together(path):
    """Each is held up now and then, by more than the window of one batch forgives."""
    n, dataset = 120, Counted(120)

    async def train(client, seed):
        draw, seen = random.Random(seed), []
        async for batch in client.epoch(0, prefetch=1):
            seen.append(int(batch[0, 0]))
            await asyncio.sleep(8 * MS if draw.random() < 0.03 else 0)
        return seen

    async with serve(DataLoader(dataset), socket=path, share_window=0) as server:
        async with AsyncClient(path) as one, AsyncClient(path) as two:
            found = await asyncio.gather(train(one, 1), train(two, 2))
        (feed,) = server.stats()["feeds"]
    assert found == [list(range(n))] * 2
    # By themselves they would load twice as many; a busy machine may part them for a while.
    assert sum(dataset.loads) < 1.5 * n
    assert feed["totals"]["detached"] <= 2


async def test_who_stands_still_costs_the_others_a_tenth_of_a_second_once(path):
    n, dataset = 60, Counted(60)
    async with (
        serve(DataLoader(dataset), socket=path, share_window=0) as server,
        AsyncClient(path) as client,
    ):
        stopped = [client.epoch(0, prefetch=1) for _ in range(6)]
        fast = client.epoch(0, prefetch=1)
        await asyncio.gather(*(anext(stream) for stream in (*stopped, fast)))
        gaps, last = [], time.monotonic()
        for k in range(1, n):
            # All of them stop, each at a place of its own.
            await asyncio.gather(*(anext(s) for at, s in enumerate(stopped) if k < 3 * at))
            assert int((await anext(fast))[0, 0]) == k
            now = time.monotonic()
            gaps.append(now - last)
            last = now
        assert max(gaps) < 200 * MS
        assert sum(gaps) < 500 * MS
        streams = {stream["stream"]: stream for stream in server.stats()["streams"]}
        assert min(streams[k + 1]["detached"] for k in range(6)) >= 1
        rest = [[int(batch[0, 0]) async for batch in stream] for stream in stopped]
        assert rest == [list(range(max(1, 3 * at), n)) for at in range(6)]


async def test_who_has_to_be_waited_for_does_not_use_the_patience_up(path):
    """A member with on_lag="wait" holds the others up; who lags beside it goes on with them."""
    dataset = Counted(40)
    async with (
        serve(DataLoader(dataset), socket=path, share_window=0) as server,
        AsyncClient(path) as client,
    ):
        fast = client.epoch(0, prefetch=1)
        awaited = client.epoch(0, prefetch=1, on_lag="wait")
        await asyncio.gather(anext(fast), anext(awaited))
        reading = asyncio.ensure_future(_read(fast))
        await asyncio.sleep(300 * MS)
        assert not reading.done()
        (run,) = server.stats()["runs"]
        assert len(run["waiting_for"]) == 1
        assert run["waiting"] > 150 * MS
        assert await _read(awaited) == list(range(1, 40))
        assert await reading == list(range(1, 40))
    assert dataset.loads == [1] * 40


async def _read(stream):
    return [int(batch[0, 0]) async for batch in stream]
