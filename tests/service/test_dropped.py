"""Streams that nobody has any more end at the server, whatever they had handed out last."""

import asyncio
import gc

import pytest

from helpers.timing import wait_for
from tundish_client import AsyncClient, Client

FEEDS = """
    from tundish import DataLoader

    class Broken:
        def __len__(self):
            return 100
        def __getitem__(self, i):
            if i == 3:
                raise OSError("sample 3")
            return i

    class Stream:
        def __iter__(self):
            return (list(range(1000)) * i for i in range(100))

    feeds = {"broken": DataLoader(Broken()), "wide": DataLoader(Stream())}
"""


@pytest.fixture
def service(serve):
    return serve(FEEDS, "feeds", "--share-window", "8KiB")


def read_on(client):
    """As users write it; the stream goes with the frame, the error with the handler."""
    try:
        for _ in client.epoch(0, feed="broken"):
            pass
    except OSError as error:
        return str(error)


async def aread_on(client):
    try:
        async for _ in client.epoch(0, feed="broken"):
            pass
    except OSError as error:
        return str(error)


def test_after_a_failing_batch(service):
    gc.disable()  # a cycle would be found some day: who waits for the stream waits until then
    try:
        with Client(service.socket) as client, Client(service.socket) as watch:
            assert [read_on(client) for _ in range(5)] == ["sample 3"] * 5
            client.ping()
            wait_for(lambda: watch.stats()["streams"] == [], "the streams' end")
    finally:
        gc.enable()


async def test_after_a_failing_batch_of_an_async_client(service):
    gc.disable()
    try:
        async with AsyncClient(service.socket) as client, AsyncClient(service.socket) as watch:
            assert [await aread_on(client) for _ in range(5)] == ["sample 3"] * 5
            await client.ping()
            for _ in range(200):
                if (await watch.stats())["streams"] == []:
                    break
                await asyncio.sleep(0.01)
            assert (await watch.stats())["streams"] == []
    finally:
        gc.enable()


def test_the_error_is_whole_and_the_stream_goes_on(service):
    with Client(service.socket) as client:
        stream = client.epoch(0, feed="broken")
        assert [int(next(stream)[0]) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(OSError, match="sample 3") as caught:
            next(stream)
        assert "in __getitem__" in "".join(caught.value.__notes__)
        assert stream.counts["errors"] == 1
        assert [int(batch[0]) for batch in stream] == list(range(4, 100))
        assert (stream.counts["batches"], stream.counts["errors"]) == (100, 1)
