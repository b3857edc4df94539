"""Streams of a group whose production can't be begun."""

import asyncio

import pytest

from tundish import AsyncClient, DataLoader, serve
from tundish.hub import Ask


@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_each_is_told_whose_production_cannot_be_begun(path, monkeypatch, failures):
    """No threads, no memory: rare, and no reason for the other members to wait for ever."""
    opens, left = Ask.open, [failures]

    def scarce(*args, **options):
        if left[0]:
            left[0] -= 1
            raise OSError(11, "no thread can be started")
        return opens(*args, **options)

    monkeypatch.setattr(Ask, "open", scarce)

    async def read(client):
        stream = client.epoch(0, group="g", group_size=3)
        try:
            return [int(batch[0]) async for batch in stream]
        except OSError as error:
            return str(error)

    async with serve(DataLoader(range(4)), socket=path) as server:
        async with AsyncClient(path) as one, AsyncClient(path) as two:
            found = await asyncio.wait_for(asyncio.gather(*map(read, (one, two, one))), 10)
            assert server.stats()["streams"] == []
            assert server.stats()["runs"] == []
    assert found.count("[Errno 11] no thread can be started") == failures
    assert found.count([0, 1, 2, 3]) == 3 - failures


async def test_who_goes_on_begins_for_those_who_have_come(path):
    """A member of a group that had begun comes back, after others of it have started anew."""
    async with serve(DataLoader(range(4)), socket=path, join_timeout=5) as server:
        async with AsyncClient(path) as one, AsyncClient(path) as two:
            waiting = [one.epoch(0, group="g", group_size=4) for _ in range(2)]
            first = [asyncio.ensure_future(anext(stream)) for stream in waiting]
            while [stream["joined"] for stream in server.stats()["streams"]] != [2, 2]:
                await asyncio.sleep(0)
            assert [int(batch[0]) async for batch in two.epoch(0, group="g", start=1)] == [1, 2, 3]
            assert [int((await batch)[0]) for batch in first] == [0, 0]
            late = two.epoch(0, group="g", group_size=4)
            assert [int(batch[0]) async for batch in late] == [0, 1, 2, 3]
            rest = [[int(batch[0]) async for batch in stream] for stream in waiting]
            assert rest == [[1, 2, 3]] * 2
