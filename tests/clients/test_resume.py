"""`resume`: what both clients ask for to go on at a state, and what they refuse."""

import asyncio
import json

import numpy as np
import pytest

from tundish_client import AsyncClient, Client, ConfigError, ConnectionLost
from tundish_client.testing import Close, ScriptedServer

PRINT = {
    "seed": 2**64 - 1, "samples": 96, "order": "stable/1", "batch_size": 12,
    "drop_last": False, "world_size": 2,
}  # fmt: skip
STATE = {
    "feed": "scripted", "epoch": 3, "batch": 2, "rank": 1, "world_size": 2, "uneven": "drop",
    "fingerprint": PRINT,
}  # fmt: skip
ASKED = ("feed", "epoch", "start", "rank", "world_size", "uneven", "batch_size", "fingerprint")


def sync_resume(server, state, **options):
    with Client(server.path) as client:
        stream = client.resume(state, **options)
        return list(stream), stream.state_dict()


def async_resume(server, state, **options):
    async def main():
        async with AsyncClient(server.path) as client:
            stream = client.resume(state, **options)
            return [batch async for batch in stream], stream.state_dict()

    return asyncio.run(main())


@pytest.fixture(params=[sync_resume, async_resume], ids=["sync", "async"])
def resume(request):
    return request.param


@pytest.fixture
def server():
    with ScriptedServer(list(range(5)), announce={"fingerprint": PRINT}) as server:
        yield server


def asked(server):
    header = server.kinds("EPOCH")[-1]
    return {name: header[name] for name in ASKED if name in header}


def test_a_state_says_it_all(resume, server):
    got, state = resume(server, json.loads(json.dumps(STATE)))
    assert got == [2, 3, 4]
    assert asked(server) == {
        "feed": "scripted", "epoch": 3, "start": 2, "rank": 1, "world_size": 2,
        "uneven": "drop", "fingerprint": PRINT,
    }  # fmt: skip
    assert state == {**STATE, "batch": 5}


def test_at_the_end_there_is_an_empty_stream(resume, server):
    got, state = resume(server, {**STATE, "batch": 5})
    assert (got, state["batch"]) == ([], 5)


def test_a_state_before_the_start_keeps_what_was_asked_for():
    with ScriptedServer([1]) as server, Client(server.path) as client:
        fresh = client.epoch(4, start=1, rank=1, world_size=2, batch_size=3)
        assert fresh.state_dict() == {
            "feed": None, "epoch": 4, "batch": 1, "rank": 1, "world_size": 2, "uneven": "pad",
            "fingerprint": {}, "batch_size": 3,
        }  # fmt: skip
    stream = AsyncClient(server.path).resume(STATE)
    assert stream.state_dict() == STATE


def test_a_state_of_an_epoch_in_process_has_no_feed(resume, server):
    got, state = resume(server, {**STATE, "feed": None})
    assert got == [2, 3, 4]
    assert asked(server)["feed"] is None
    assert state["feed"] == "scripted"
    resume(server, {**STATE, "feed": None}, feed="scripted")
    assert asked(server)["feed"] == "scripted"


@pytest.mark.parametrize(
    ("world", "rank", "size"), [(1, None, 24), (1, 0, 24), (3, 2, 8), (4, 0, 6), (24, 23, 1)]
)
def test_on_another_number_of_ranks_the_global_batch_stays(resume, server, world, rank, size):
    resume(server, STATE, rank=rank, world_size=world)
    said = asked(server)
    assert (said["world_size"], said["rank"], said["batch_size"]) == (world, rank or 0, size)
    assert said["fingerprint"] == PRINT
    assert said["start"] == 2


def test_a_batch_size_of_its_own_is_kept(resume, server):
    resume(server, {**STATE, "batch_size": 12})
    assert asked(server)["batch_size"] == 12
    again = resume(server, STATE, rank=0, world_size=4)[1]
    assert (again["batch_size"], again["world_size"], again["rank"]) == (6, 4, 0)


def test_a_rank_that_is_given_needs_none_in_the_state(resume, server):
    state = {name: STATE[name] for name in STATE if name != "rank"}
    assert resume(server, state, rank=1)[0] == [2, 3, 4]
    assert resume(server, state, world_size=1)[0] == [2, 3, 4]
    assert [(h["rank"], h["world_size"]) for h in server.kinds("EPOCH")] == [(1, 2), (0, 1)]


def test_rank_and_uneven_may_be_others(resume, server):
    resume(server, STATE, rank=np.int64(0), uneven="keep")
    said = asked(server)
    assert (said["rank"], said["world_size"], said["uneven"]) == (0, 2, "keep")
    assert "batch_size" not in said


REFUSED = {
    "no state": (None, {}, ["state", "None"]),
    "another dict": ({"step": 7}, {}, ["'epoch'", "step", "7"]),
    "no batch": ({"epoch": 7}, {}, ["'batch'"]),
    "an epoch of str": ({**STATE, "epoch": "3"}, {}, ["epoch", "'3'"]),
    "a negative batch": ({**STATE, "batch": -2}, {}, ["batch", "-2"]),
    "a fingerprint of list": ({**STATE, "fingerprint": [1]}, {}, ["fingerprint", "[1]"]),
    "a seed beyond 64 bits": (
        {**STATE, "fingerprint": {**PRINT, "seed": 2**64}}, {}, ["seed", str(2**64)],
    ),
    "a fingerprint of objects": (
        {**STATE, "fingerprint": {"samples": {1}}}, {}, ["fingerprint", "samples", "{1}"],
    ),
    "a rank of float": ({**STATE, "rank": 1.5}, {}, ["rank", "1.5"]),
    "a world of 0": ({**STATE, "world_size": 0}, {}, ["world_size", "0"]),
    "a feed of int": ({**STATE, "feed": 3}, {}, ["feed", "3"]),
    "an unknown uneven": ({**STATE, "uneven": "odd"}, {}, ["uneven", "odd"]),
    "a batch size of 0": ({**STATE, "batch_size": 0}, {}, ["batch_size", "0"]),
    "a rank beyond the world": (STATE, {"rank": 2}, ["rank", "world_size=2", "2"]),
    "a state of several ranks that names none": (
        {name: STATE[name] for name in STATE if name != "rank"}, {}, ["rank", "world_size=2"],
    ),
    "another world than that of such a state": (
        {name: STATE[name] for name in STATE if name != "rank"},
        {"world_size": 4},
        ["rank", "world_size=4", "2 ranks"],
    ),
    "another world without a rank": (STATE, {"world_size": 4}, ["rank", "world_size=4", "1 of 2"]),
    "a world that does not divide": (
        STATE, {"world_size": 5, "rank": 0}, ["world_size=5", "24", "12", "2 ranks"],
    ),
    "a world with single samples": (
        {**STATE, "fingerprint": {**PRINT, "batch_size": None}},
        {"world_size": 4, "rank": 0},
        ["world_size=4", "batch size", "world_size=2"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(server, name):
    state, options, words = REFUSED[name]
    with Client(server.path) as client:
        for asking in (client, AsyncClient(server.path)):
            with pytest.raises(ConfigError) as caught:
                asking.resume(state, **options)
            assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not server.kinds("EPOCH")


def test_a_stream_that_starts_beyond_where_it_was_asked_to_is_an_error():
    with ScriptedServer([0, 1], announce={"start": 1}) as server, Client(server.path) as client:
        with pytest.raises(Exception, match="from 0 on starts at 1"):
            next(client.epoch(0))


def test_the_server_may_say_that_the_end_is_nearer():
    """After the short last batch of another number of ranks."""
    said = {"start": 2, "fingerprint": PRINT}
    with ScriptedServer([0, 1], announce=said) as server, Client(server.path) as client:
        stream = client.resume({**STATE, "batch": 3})
        assert list(stream) == []
        assert stream.position == (3, 2)
        assert len(stream) == 0


def test_a_lost_stream_can_be_resumed_from_its_state():
    with ScriptedServer([0, 1, Close(), 2]) as server, Client(server.path) as client:
        stream = client.epoch(0)
        assert [next(stream), next(stream)] == [0, 1]
        with pytest.raises(ConnectionLost, match=r"resume\(stream.state_dict\(\)\)") as caught:
            next(stream)
        assert caught.value.position == (0, 2)
    with ScriptedServer([0, 1, 2]) as server, Client(server.path) as client:
        assert list(client.resume(stream.state_dict())) == [2]
