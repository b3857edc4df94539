"""States that no state_dict() returned, and those of streams that had not begun."""

import numpy as np
import pytest

from tundish import ArrayDataset, DataLoader
from tundish_client import AsyncClient, Client, ConfigError
from tundish_client.testing import ScriptedServer

PRINT = {"seed": 7, "samples": 96, "order": "stable/1", "batch_size": 12, "drop_last": False}
STATE = {
    "feed": None, "epoch": 3, "batch": 2, "rank": 0, "world_size": 1, "uneven": "pad",
    "fingerprint": {**PRINT, "world_size": 1},
}  # fmt: skip
SPLIT = {"feed": None, "epoch": 0, "split": "g", "acked": [[0, 2]], "fingerprint": {}}
RANKED = {**STATE, "rank": 1, "world_size": 3, "batch_size": 4, "fingerprint": {}}

REFUSED = {
    "a seed": (
        STATE | {"seed": 8}, {}, r"state\['seed'\]=8 .*feed, epoch.*: leave it out: the seed that ",
    ),
    "a word mistaken": (STATE | {"prefetch": 4}, {}, r"state\['prefetch'\]=4 .*leave it out$"),
    "a number as key": (STATE | {3: "x"}, {}, r"state\[3\]='x'"),
    "acked of a position": (STATE | {"acked": []}, {}, r"state\['acked'\]=\[\]"),
    "no split": (STATE | {"split": None}, {}, r"state\['split'\]=None"),
    "a seed of a split": (SPLIT | {"seed": 8}, {}, r"state\['seed'\]=8 .*split, acked"),
    "a batch of a split": (
        SPLIT | {"epoch": 1, "batch": 0}, {}, r"state\['batch'\]=0 .*no position.*acked=\[\]",
    ),
    "a rank of a split": (SPLIT | {"rank": 1}, {}, r"state\['rank'\]=1"),
    "empty text": (SPLIT | {"acked": ""}, {}, r"state\['acked'\] must be a list of .* got ''"),
    "an empty dict": (SPLIT | {"acked": {}}, {}, r"state\['acked'\] must be a list of .* got \{\}"),
    "an empty set": (SPLIT | {"acked": set()}, {}, r"state\['acked'\] must be .* got set\(\)"),
    "no ranges": (SPLIT | {"acked": None}, {}, r"state\['acked'\] must be .* got None"),
    "ranges of text": (SPLIT | {"acked": [(0, 1), {2: 3, 4: 5}]}, {}, r"state\['acked'\] must be"),
    "nothing about acked": (
        {name: SPLIT[name] for name in SPLIT if name != "acked"}, {}, "epoch and acked; 'acked' is"
    ),
    "two worlds": (
        {**STATE, "fingerprint": {**PRINT, "world_size": 3}}, {},
        r"state\['world_size'\]=1, but state\['fingerprint'\]\['world_size'\]=3: .*give world_size",
    ),
    "two worlds and a batch size that is of neither": (
        {**STATE, "batch_size": 12, "fingerprint": {**PRINT, "world_size": 3}}, {},
        r"state\['world_size'\]=1, but .*=3",
    ),
    "two worlds, to be resumed in one of them": (
        {**STATE, "fingerprint": {**PRINT, "world_size": 3}}, {"world_size": 3, "rank": 0},
        r"state\['world_size'\]=1, but .*=3",
    ),
    "another world without any batch size": (
        {**RANKED, "batch_size": None}, {"world_size": 1}, "needs a batch size to divide",
    ),
    "a batch size that can't be divided": (
        RANKED, {"world_size": 5, "rank": 0}, r"does not divide the global batch of 12 samples",
    ),
}  # fmt: skip


@pytest.fixture
def server():
    with ScriptedServer(list(range(5))) as server:
        yield server


@pytest.mark.parametrize("name", REFUSED)
def test_states_that_are_none_are_refused_by_both_clients(name, server):
    state, options, text = REFUSED[name]
    with Client(server.path) as client:
        for asking in (client, AsyncClient(server.path)):
            with pytest.raises(ConfigError, match=text):
                asking.resume(state, **options)
    assert not server.kinds("EPOCH")


@pytest.mark.parametrize("name", [name for name in REFUSED if "split" not in REFUSED[name][0]])
def test_positions_that_are_none_are_refused_in_process_too(name):
    state, options, text = REFUSED[name]
    loader = DataLoader(ArrayDataset(x=np.arange(96)), batch_size=12, seed=7)
    with pytest.raises(ConfigError, match=text):
        loader.resume(state, **options)


def resume(reader, server, *args, **options):
    client = reader(server)
    client.next(client.client.resume(*args, **options))
    return server.kinds("EPOCH")[-1]


def test_a_ranked_stream_that_had_not_begun_goes_on_with_other_ranks(reader, server):
    assert resume(reader, server, RANKED)["batch_size"] == 4
    header = resume(reader, server, RANKED, world_size=1)
    assert (header["batch_size"], header["world_size"], header["rank"]) == (12, 1, 0)
    header = resume(reader, server, RANKED, world_size=6, rank=5)
    assert (header["batch_size"], header["world_size"], header["rank"]) == (2, 6, 5)


def test_a_state_taken_between_resuming_on_other_ranks_and_the_start(reader, server):
    """It still has the fingerprint that it came with; the batches of all ranks are of one size."""
    client = reader(server)
    stream = client.client.resume(STATE, world_size=3, rank=1)
    state = stream.state_dict()
    assert (state["world_size"], state["batch_size"]) == (3, 4)
    assert state["fingerprint"]["world_size"] == 1
    assert resume(reader, server, state)["batch_size"] == 4
    assert resume(reader, server, state, world_size=2, rank=0)["batch_size"] == 6


def test_a_state_without_its_world_has_that_of_its_fingerprint(reader, server):
    state = {name: STATE[name] for name in STATE if name != "world_size"}
    state |= {"rank": 2, "fingerprint": {**PRINT, "world_size": 3}}
    header = resume(reader, server, state)
    assert (header["world_size"], header["rank"]) == (3, 2)


def test_empty_lists_of_what_is_acknowledged(reader, server):
    for acked in ([], ()):
        assert "acked" not in resume(reader, server, SPLIT | {"acked": acked})
    assert resume(reader, server, SPLIT | {"acked": ((0, 1),)})["acked"] == [[0, 1]]


def test_epoch_takes_a_position(reader, server):
    client = reader(server)
    stream = client.epoch(3)
    assert [client.next(stream), client.next(stream)] == [0, 1]
    on = client.client.epoch(*stream.position)
    assert client.next(on) == 2
    header = server.kinds("EPOCH")[-1]
    assert (header["epoch"], header["start"]) == (3, 2)
    with pytest.raises(TypeError):
        client.client.epoch(3, 2, "scripted")  # the rest have names
