"""What the service makes of requests: streams opened ahead, names, and refusals."""

import asyncio
import itertools
import os

import pytest

from helpers.clients import KINDS, Reader
from helpers.serving import Service
from tundish_client import AsyncClient, Client, ConfigError

SOURCE = """
    import numpy as np
    from tundish import ArrayDataset, DataLoader

    class Angry:
        def __len__(self):
            raise ConfigError("no length today")

        def __getitem__(self, index):
            return index

    from tundish import ConfigError

    feeds = {
        "rows": DataLoader(ArrayDataset(x=np.arange(80)), batch_size=2, shuffle=True, seed=7),
        "angry": DataLoader(Angry(), batch_size=2),
    }
"""


@pytest.fixture(scope="module")
def service():
    service = Service(SOURCE, "feeds", env={"TUNDISH_JOIN_TIMEOUT": "0.3"})
    yield service
    service.cleanup()


@pytest.fixture(params=KINDS)
def reader(request, service):
    with Reader(request.param, str(service.socket)) as reader:
        yield reader


async def numbers(stream):
    return [stream.info.batch async for _ in stream]


class TestOpenedAhead:
    """Streams of an AsyncClient are there for the service before one of them is read."""

    async def test_a_split(self, service):
        async with AsyncClient(service.socket) as client:
            streams = [client.epoch(0, feed="rows", split="ahead") for _ in range(2)]
            await client.ping()
            assert [row["split"] for row in (await client.stats())["streams"]] == ["ahead"] * 2
            head = []
            for _ in range(20):  # the second one holds its batches meanwhile
                await anext(streams[0])
                head.append(streams[0].info.batch)
            parts = [head, *await asyncio.gather(*map(numbers, streams))]
            assert len(parts[2]) > 0
            assert sorted(itertools.chain(*parts)) == list(range(40))

    async def test_a_group_in_one_task(self, service):
        async with AsyncClient(service.socket) as client:
            asked = {"feed": "rows", "group": "ahead", "group_size": 2}
            streams = [client.epoch(1, **asked) for _ in range(2)]
            for stream in streams:
                assert await numbers(stream) == list(range(40))


REFUSED = {
    "no such feed": ({"feed": "nothing"}, "nothing"),
    "a start beyond the end": ({"feed": "rows", "start": 41}, "start=41"),
    "a rank of another batch size": ({"feed": "rows", "start": 50}, "start=50"),
    "a group that nobody joins": (
        {"feed": "rows", "group": "lonely", "group_size": 2}, "1 of group_size=2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_service_refuses_has_no_traceback(reader, name):
    asked, text = REFUSED[name]
    with pytest.raises((ConfigError, TimeoutError), match=text) as caught:
        reader.next(reader.epoch(0, **asked))
    assert not getattr(caught.value, "__notes__", [])
    assert caught.value.remote_traceback == ""


def test_another_plan_has_none_either(reader):
    stream = reader.epoch(0, feed="rows")
    reader.next(stream)
    state = stream.state_dict()
    state["fingerprint"]["seed"] = 8
    with pytest.raises(ConfigError, match=r"seed=8.*seed=7") as caught:
        reader.next(reader.client.resume(state))
    assert not getattr(caught.value, "__notes__", [])


def test_members_that_give_another_size_have_none_either(reader, service):
    waiting = reader.epoch(5, feed="rows", group="sized", group_size=2)
    reader.run(reader.client.ping())
    with Client(service.socket) as client:
        with pytest.raises(ConfigError, match="group_size=2") as caught:
            next(client.epoch(5, feed="rows", group="sized", group_size=3))
        assert not getattr(caught.value, "__notes__", [])
        assert len(list(client.epoch(5, feed="rows", group="sized", group_size=2))) == 40
    assert len(reader.outcomes(waiting)) == 41


def test_user_code_has_one_whatever_it_raises(reader):
    with pytest.raises(ConfigError, match="no length today") as caught:
        reader.next(reader.epoch(0, feed="angry"))
    note = caught.value.__notes__[-1]
    assert note.startswith("Traceback in the server:\n") and "in __len__" in note


def test_the_name_is_in_stats_and_log(service):
    with Client(service.socket, name="rank 3 of 8") as client:
        stream = client.epoch(0, feed="rows")
        next(stream)
        names = [row["client"] for row in client.stats()["streams"]]
        assert names == [{"name": "rank 3 of 8", "pid": os.getpid()}]
    assert f"'rank 3 of 8' (pid {os.getpid()}) connected" in service.output


def test_the_stream_that_is_too_much_leaves_the_others_alone(reader):
    streams = [reader.epoch(n % 4, feed="rows", prefetch=1) for n in range(1025)]
    with pytest.raises(ConfigError, match="1024 streams open.*open another client"):
        reader.next(streams[1024])
    assert [reader.next(stream)["x"].shape for stream in streams[:4]] == [(2,)] * 4
    reader.close(streams.pop(0))
    assert reader.next(reader.epoch(0, feed="rows"))["x"].shape == (2,)
