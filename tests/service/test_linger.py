"""Runs that are over and kept for those who come late."""

import asyncio

import numpy as np
import pytest

from helpers.timing import MS, until
from tundish import AsyncClient, DataLoader, serve

LINGER = 300 * MS


class Counted:
    """Samples that count how often they are loaded; one may fail the first time."""

    def __init__(self, n: int, failing: int | None = None) -> None:
        self.loads = [0] * n
        self.failing = failing

    def __len__(self) -> int:
        return len(self.loads)

    def __getitem__(self, index: int):
        self.loads[index] += 1
        if index == self.failing and self.loads[index] == 1:
            raise OSError("the first time")
        return np.full(2048, index)


async def read(client, epoch=0, **options):
    return [int(batch[0, 0]) async for batch in client.epoch(epoch, **options)]


@pytest.fixture
async def serving(path):
    """Opens a server with one feed and a client of it; see `serve` for options."""
    opened = []

    async def start(dataset, window="1MiB", limit="64MiB", **options):
        loader = DataLoader(dataset, **options)
        server = serve(
            loader, socket=path, share_linger=LINGER, share_window=window, memory_limit=limit
        )
        opened.append(server)
        running = await server.__aenter__()
        client = AsyncClient(path)
        opened.append(client)
        return running, await client.__aenter__()

    yield start
    for each in reversed(opened):
        await each.__aexit__(None, None, None)


async def test_an_epoch_is_not_made_again_for_who_comes_a_moment_too_late(serving):
    dataset = Counted(20)
    server, client = await serving(dataset)
    assert await read(client) == list(range(20))
    (run,) = server.stats()["runs"]
    assert (run["streams"], run["held"], run["produced"]) == (0, 20, 20)
    assert await read(client) == list(range(20))
    assert await read(client, start=7) == list(range(7, 20))
    assert dataset.loads == [1] * 20
    assert server.stats()["feeds"][0]["totals"]["produced"] == 20


async def test_it_goes_when_nobody_reads_the_feed_any_more(serving):
    dataset = Counted(20)
    server, client = await serving(dataset)
    assert await read(client) == list(range(20))
    other = client.epoch(1)
    await anext(other)
    await asyncio.sleep(3 * LINGER)
    assert [run["epoch"] for run in server.stats()["runs"]] == [0, 1]
    await other.aclose()
    await until(lambda: server.stats()["runs"] == [], "the run's end", 4 * LINGER)
    await until(lambda: server.stats()["slots"]["lent"] == 0, "slots")
    assert await read(client) == list(range(20))
    assert dataset.loads[-1] == 2  # of epoch 1 only the first ones
    totals = server.stats()["feeds"][0]["totals"]
    assert totals["produced"] == sum(dataset.loads)


async def test_the_feed_only_begins_behind_what_the_window_holds(serving):
    """What was let go of is made again: who wants it has a run of its own until they meet."""
    dataset = Counted(20)
    _, client = await serving(dataset, window=8 * 16384)
    assert await read(client) == list(range(20))
    assert await read(client) == list(range(20))
    assert dataset.loads[:11] == [2] * 11
    assert dataset.loads[-3:] == [1] * 3


async def test_what_failed_is_tried_again(serving):
    dataset = Counted(8, failing=3)
    server, client = await serving(dataset)
    stream = client.epoch(0)
    with pytest.raises(OSError, match="the first time"):
        async for _ in stream:
            pass
    assert [int(batch[0, 0]) async for batch in stream] == [4, 5, 6, 7]
    assert server.stats()["runs"] == []
    assert await read(client) == list(range(8))


async def test_what_was_skipped_is_tried_again(serving):
    dataset = Counted(8, failing=3)
    _, client = await serving(dataset, batch_size=2, on_error="skip")
    shapes = [batch.shape async for batch in client.epoch(0)]
    assert [shape[0] for shape in shapes] == [2, 1, 2, 2]
    assert [batch.shape[0] async for batch in client.epoch(0)] == [2, 2, 2, 2]


@pytest.mark.parametrize("kind", ["iterable", "unordered", "split", "left"])
async def test_what_is_another_each_time_is_made_again(serving, kind):
    dataset = Counted(12)

    class Iterable:
        def __iter__(self):
            return (dataset[index] for index in range(12))

    source = Iterable() if kind == "iterable" else dataset
    server, client = await serving(source, in_order=kind != "unordered")
    options = {"split": "all"} if kind == "split" else {}
    if kind == "left":
        stream = client.epoch(0)
        await anext(stream)
        await stream.aclose()
    else:
        assert sorted(await read(client, **options)) == list(range(12))
    await until(lambda: server.stats()["runs"] == [], "the run's end", LINGER / 2)
    assert sorted(await read(client, **options)) == list(range(12))
    if kind != "left":
        assert dataset.loads == [2] * 12


async def test_those_that_were_left_first_make_room(serving):
    """A quarter of the limit for all: twelve of these batches, which take a page beside."""
    dataset = Counted(4)
    server, client = await serving(dataset, limit=4 * 16 * 16384)
    reading = client.epoch(9)
    await anext(reading)
    for epoch in range(5):
        assert await read(client, epoch) == list(range(4))
        held = sum(run["bytes"] for run in server.stats()["runs"])
        assert held <= 16 * 16384
    assert [run["epoch"] for run in server.stats()["runs"] if not run["streams"]] == [3, 4]
    assert await read(client, 4) == list(range(4))
    assert sum(dataset.loads) <= 4 * 6


async def test_two_trainers_share_every_epoch_although_one_is_always_behind(serving):
    dataset = Counted(30)

    async def train(client, seconds):
        seen = []
        for epoch in range(4):
            async for batch in client.epoch(epoch):
                seen.append((epoch, int(batch[0, 0])))
                await asyncio.sleep(seconds)
        return seen

    server, client = await serving(dataset)
    found = await asyncio.gather(train(client, 0), train(client, 3 * MS))
    assert found == [[(epoch, index) for epoch in range(4) for index in range(30)]] * 2
    assert dataset.loads == [4] * 30
    assert server.stats()["feeds"][0]["totals"]["produced"] == 120


async def test_a_group_gathers_again_for_an_epoch_that_is_kept(serving):
    dataset = Counted(6)
    server, client = await serving(dataset)
    for _ in range(2):
        group = {"group": "g", "group_size": 2}
        first = asyncio.ensure_future(read(client, **group))
        await asyncio.sleep(30 * MS)
        assert not first.done()
        assert [stream["joined"] for stream in server.stats()["streams"]] == [1]
        assert await read(client, **group) == list(range(6))
        assert await first == list(range(6))
    assert dataset.loads == [1] * 6
