"""Loops over a split stream: what ends it, what it acknowledges, and what leaves it open."""

import gc

import pytest

from helpers.clients import END
from tundish_client import AsyncClient, Client
from tundish_client.testing import Batch, ScriptedServer, Silence

SAID = {"batches": 10, "exact": False, "in_order": False}
GIVEN_BACK = [{"stream": 1}]
ACKNOWLEDGED = [{"stream": 1, "batch": 3}]


def serve(*more):
    batches = [Batch(f"batch {n}", [n], number=n) for n in (3, 5, 7)]
    return ScriptedServer([*batches, *more], announce=SAID)


def return_what_a_call_returns(client):
    for batch in client.epoch(0, split="g"):
        return batch.upper()
    return None


def break_after_a_call(client):
    for batch in client.epoch(0, split="g"):
        batch.upper()
        break


def break_in_the_frame_of_another(client):
    def read(stream):
        for _ in stream:
            break

    read(client.epoch(0, split="g"))


def break_out_of_a_name(client):
    stream = client.epoch(0, split="g")
    for _ in stream:
        break


def return_out_of_a_name(client):
    stream = client.epoch(0, split="g")
    for batch in stream:
        return batch
    return None


def break_out_of_an_attribute(client):
    class Trainer:
        stream = client.epoch(0, split="g")

    for _ in Trainer.stream:
        break


def break_out_of_a_named_iterator(client):
    iterator = iter(client.epoch(0, split="g"))
    for _ in iterator:
        break


def throw_away_the_last_of_a_list(client):
    streams = [client.epoch(0, split="g")]
    next(streams[0])
    streams.pop()


def throw_away_an_iterator(client):
    iterators = {"a": iter(client.epoch(0, split="g"))}
    next(iterators["a"])
    iterators.pop("a")


@pytest.mark.parametrize(
    ("leave", "told"),
    [
        (return_what_a_call_returns, ACKNOWLEDGED),
        (break_after_a_call, ACKNOWLEDGED),
        (break_in_the_frame_of_another, GIVEN_BACK),
        (break_out_of_a_name, GIVEN_BACK),
        (return_out_of_a_name, GIVEN_BACK),
        (break_out_of_an_attribute, GIVEN_BACK),
        (break_out_of_a_named_iterator, GIVEN_BACK),
        (throw_away_the_last_of_a_list, GIVEN_BACK),
        (throw_away_an_iterator, GIVEN_BACK),
    ],
)
def test_ways_out_of_a_for(leave, told):
    with serve(Silence()) as server, Client(server.path) as client:
        leave(client)
        gc.collect()
        client.ping()
        assert server.kinds("CANCEL") == told
        assert not server.kinds("ACK")


def test_a_named_stream_is_open_after_its_loop():
    with serve() as server, Client(server.path) as client:
        stream = client.epoch(0, split="g")
        for batch in stream:
            assert batch == "batch 3"
            break
        client.ping()
        assert not server.kinds("CANCEL") + server.kinds("ACK")
        assert stream.state_dict()["acked"] == []
        assert next(stream) == "batch 5"  # which acknowledges
        assert stream.state_dict()["acked"] == [[3, 3]]
        assert list(stream) == ["batch 7"]
        assert [ack["batch"] for ack in server.kinds("ACK")] == [3, 5, 7]


async def abreak_out_of_a_name(client):
    stream = client.epoch(0, split="g")
    async for _ in stream:
        break


async def areturn_out_of_a_name(client):
    stream = client.epoch(0, split="g")
    async for batch in stream:
        return batch
    return None


async def areturn_what_a_call_returns(client):
    async for batch in client.epoch(0, split="g"):
        return batch.upper()
    return None


async def athrow_away(client):
    streams = [client.epoch(0, split="g")]
    await anext(streams[0])
    streams.pop()


@pytest.mark.parametrize(
    ("leave", "told"),
    [
        (areturn_what_a_call_returns, ACKNOWLEDGED),
        (abreak_out_of_a_name, GIVEN_BACK),
        (areturn_out_of_a_name, GIVEN_BACK),
        (athrow_away, GIVEN_BACK),
    ],
)
async def test_ways_out_of_an_async_for(leave, told):
    with serve(Silence()) as server:
        async with AsyncClient(server.path) as client:
            await leave(client)
            gc.collect()
            await client.ping()
            await client.ping()
            assert server.kinds("CANCEL") == told
            assert not server.kinds("ACK")


async def test_a_named_stream_is_open_after_its_async_loop():
    with serve() as server:
        async with AsyncClient(server.path) as client:
            stream = client.epoch(0, split="g")
            async for _ in stream:
                break
            await client.ping()
            assert not server.kinds("CANCEL") + server.kinds("ACK")
            assert await anext(stream) == "batch 5"
            assert stream.state_dict()["acked"] == [[3, 3]]
            assert [await anext(stream), await anext(stream, END)] == ["batch 7", END]
