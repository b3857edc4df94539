"""What an epoch gives, call by call: the same for both clients."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from helpers.clients import END, read_async, read_sync
from tundish_client import (
    AsyncClient,
    Client,
    ConfigError,
    ConnectionLost,
    Position,
    ProtocolError,
    TundishError,
    register,
)
from tundish_client.testing import Batch, Close, Cut, End, Fail, Goaway, Raw, ScriptedServer


@dataclass
class Point:
    x: int


@dataclass
class Case:
    """`expect` holds values, exception classes, (class, text) pairs and END."""

    script: list[Any]
    expect: list[Any]
    epoch: dict[str, Any] = field(default_factory=dict)
    position: int | None = None
    client: dict[str, Any] = field(default_factory=dict)
    announce: dict[str, Any] = field(default_factory=dict)


UNKNOWN = {"batches": None, "samples": None, "padded": None, "dropped": None}
FIVE = {"batches": 5, "exact": False}

CASES = {
    "all batches, then the end for ever": Case([10, 11, 12], [10, 11, 12, END, END, END], {}, 3),
    "no batches": Case([], [END, END], {}, 0),
    "from the middle": Case([10, 11, 12, 13], [12, 13, END], {"start": 2}, 4),
    "from the end": Case([10, 11], [END, END], {"start": 2}, 2),
    "beyond the end": Case(
        [10], [(ConfigError, "start=3"), (ConfigError, "1 batches")], {"start": 3}
    ),
    "one credit": Case([1, 2, 3, 4], [1, 2, 3, 4, END], {"prefetch": 1}),
    "many credits": Case([1, 2, 3, 4], [1, 2, 3, 4, END], {"prefetch": 100}),
    "an error takes its own place": Case(
        [0, OSError("bad 1"), 2, KeyError("k"), 4],
        [0, (OSError, "bad 1"), 2, KeyError, 4, END, END],
        {},
        5,
    ),
    "an error is the last cell": Case([0, ValueError("x")], [0, ValueError, END], {}, 2),
    "an error of the whole stream stays": Case(
        [0, Fail(RuntimeError("gone"))],
        [0, (RuntimeError, "gone"), RuntimeError, RuntimeError],
        {},
        1,
    ),
    "no such feed": Case([0], [(ValueError, "'nope'"), ValueError], {"feed": "nope"}),
    "no END": Case([0, 1, Close()], [0, 1, (ConnectionLost, r"start=2\)"), ConnectionLost], {}, 2),
    "cut in the middle of a body": Case(
        [0, Cut(9000), np.zeros(100_000)],
        [0, (ConnectionLost, "middle of a body"), ConnectionLost],
        position=1,
        client={"shared_memory": False},
    ),
    "cut in the middle of a head": Case(
        [0, Cut(7), 1], [0, (ConnectionLost, "middle of a message head")], {}, 1
    ),
    "garbage": Case(
        [0, Raw(b"\x00hello")], [0, (ConnectionLost, "expected a message"), ConnectionLost]
    ),
    "the server leaves": Case(
        [0, Goaway("upgrade", 2.0)], [0, (ConnectionLost, r"upgrade \(back in 2.0 s\)")], {}, 1
    ),
    "END too early": Case([0, End(), 1], [0, (ProtocolError, "after 1 batches, but START says 2")]),
    "END with another count": Case(
        [0, End({"batches": 4})], [0, (ProtocolError, "after 1 batches, but END says 4")]
    ),
    "END hides an error": Case(
        [0, OSError("x"), End({"errors": 0})], [0, OSError, (ProtocolError, "1 failed batches")]
    ),
    "a class that was not registered": Case(
        [0, Point(1), 2], [0, (TypeError, r"Point.*register"), 2, END]
    ),
    "unknown length": Case(
        [10, OSError("bad 1"), 12], [10, OSError, 12, END, END], {}, 3, announce=UNKNOWN
    ),
    "unknown length, no batches": Case([], [END, END], {}, 0, announce=UNKNOWN),
    "unknown length, one credit": Case(
        [1, 2, 3], [1, 2, 3, END], {"prefetch": 1}, 3, announce=UNKNOWN
    ),
    "unknown length, from the middle": Case(
        [10, 11, 12], [11, 12, END], {"start": 1}, 3, announce=UNKNOWN
    ),
    "unknown length, from the end": Case([10], [END, END], {"start": 1}, 1, announce=UNKNOWN),
    "unknown length, END with another count": Case(
        [0, End({"batches": 4})],
        [0, (ProtocolError, "after 1 batches, but END says 4"), ProtocolError],
        announce=UNKNOWN,
    ),
    "unknown length, END hides an error": Case(
        [OSError("x"), End({"errors": 0})],
        [OSError, (ProtocolError, "1 failed batches")],
        announce=UNKNOWN,
    ),
    "unknown length, no END": Case(
        [0, Close()], [0, (ConnectionLost, r"start=1\)"), ConnectionLost], {}, 1, announce=UNKNOWN
    ),
    "fewer batches than a sampler promised": Case([0, 1], [0, 1, END, END], {}, 2, announce=FIVE),
    "more batches than a sampler promised": Case(
        list(range(7)), [*range(7), END], {}, 7, announce=FIVE
    ),
    "beyond what a sampler promised": Case(
        list(range(7)), [6, END], {"start": 6}, 7, announce=FIVE
    ),
    "fewer batches than the server promised": Case(
        [0, 1],
        [0, 1, (ProtocolError, "after 2 batches, but START says 5")],
        announce={"batches": 5},
    ),
    "more batches than the server promised": Case(
        [0, 1], [0, (ConnectionLost, "not one of 0 to 0")], announce={"batches": 1}
    ),
    "skipped samples": Case([Batch("a", [0], [1]), Batch("b", [2])], ["a", "b", END], {}, 2),
    "END hides a skipped sample": Case(
        [Batch("a", [0], [1]), End({"skipped": 0})],
        ["a", (ProtocolError, "1 skipped samples, but END says 0")],
    ),
}


def check(case: Case, got: list[Any]) -> None:
    for seen, wanted in zip(got, case.expect, strict=False):
        cls, text = wanted if isinstance(wanted, tuple) else (wanted, None)
        if isinstance(cls, type) and issubclass(cls, BaseException):
            with pytest.raises(cls, match=text):
                raise seen
        else:
            assert seen == wanted
    if case.position is not None:
        assert got[-1][0] == Position(0, case.position)


@pytest.mark.parametrize("shared_memory", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
class TestCalls:
    def test_sync(self, case, shared_memory):
        script, said = case.script, case.announce
        with ScriptedServer(script, shared_memory=shared_memory, announce=said) as server:
            check(
                case,
                read_sync(server.path, calls=len(case.expect), client=case.client, **case.epoch),
            )

    async def test_async(self, case, shared_memory):
        script, said = case.script, case.announce
        with ScriptedServer(script, shared_memory=shared_memory, announce=said) as server:
            got = await read_async(
                server.path, calls=len(case.expect), client=case.client, **case.epoch
            )
            check(case, got)


VALUE = {
    "x": np.arange(12, dtype=np.float32).reshape(3, 4),
    "deep": [(1, "two"), {"k": np.array([True, False])}, b"bytes"],
    "text": [f"line {i}" for i in range(40)],
}


def same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b) and type(a) is type(b)


@pytest.mark.parametrize("shared_memory", [False, True])
@pytest.mark.parametrize("copy", [False, True])
class TestValues:
    def test_sync(self, shared_memory, copy):
        with ScriptedServer([VALUE], shared_memory=True) as server:
            client = {"shared_memory": shared_memory}
            got = read_sync(server.path, calls=2, client=client, copy=copy)
            assert same(got[0], VALUE)
            assert got[0]["x"].flags.writeable and got[0]["x"].ctypes.data % 64 == 0
            assert got[1] == END

    async def test_async(self, shared_memory, copy):
        with ScriptedServer([VALUE], shared_memory=True) as server:
            client = {"shared_memory": shared_memory}
            got = await read_async(server.path, calls=2, client=client, copy=copy)
            assert same(got[0], VALUE) and got[1] == END


def test_registered_class_comes_back():
    register(Point)
    with ScriptedServer([Point(7)]) as server, Client(server.path) as client:
        assert next(client.epoch(0)) == Point(7)


def test_info_position_counts_and_state():
    script = [Batch("a", [5, 3]), ValueError("no"), Batch("c", [])]
    with ScriptedServer(script) as server, Client(server.path) as client:
        stream = client.epoch(4)
        assert (stream.position, stream.info, stream.counts["batches"]) == ((4, 0), None, 0)
        assert len(stream) == 3 and stream and stream.feed == "scripted"
        assert stream.counts["batches"] == 3
        assert next(stream) == "a"
        assert (stream.info.epoch, stream.info.batch, stream.info.indices) == (4, 0, [5, 3])
        assert 0 < stream.info.times.claimed_ns <= stream.info.times.ready_ns
        with pytest.raises(ValueError, match="no"):
            next(stream)
        assert (stream.info.batch, stream.info.indices) == (1, [1])
        state = stream.state_dict()
        assert (state["epoch"], state["batch"], state["feed"]) == (4, 2, "scripted")
        assert state["fingerprint"] == stream.fingerprint
        assert list(stream) == ["c"] and stream.info.indices == []
        assert dict(stream.counts) == {
            "batches": 3,
            "samples": 2,
            "padded": 0,
            "dropped": 0,
            "skipped": 0,
            "redelivered": 0,
            "errors": 1,
        }
        with pytest.raises(TypeError):
            stream.counts["errors"] = 0


def test_position_counts_what_was_handed_out():
    with ScriptedServer(list(range(50))) as server, Client(server.path) as client:
        stream = client.epoch(0, prefetch=16)
        next(stream)
        server.wait_for(lambda: len(stream._state.cells) > 0 or client.ping() < 0)
        assert stream.position == Position(0, 1) and stream.state_dict()["batch"] == 1


def test_acknowledgements_say_consumed():
    with ScriptedServer(list(range(6))) as server, Client(server.path) as client:
        stream = client.epoch(0, prefetch=2)
        next(stream)
        client.ping()
        assert not server.kinds("ACK")
        next(stream)
        client.ping()
        credit = {"batches": 1, "bytes": 8}
        assert server.kinds("ACK") == [{"stream": 1, "batch": 0, "credits": credit}]
        assert not server.kinds("CREDIT")


async def test_async_len_needs_the_start():
    with ScriptedServer([1, 2, 3]) as server:
        async with AsyncClient(server.path) as client:
            stream = client.epoch(0, start=1)
            with pytest.raises(TundishError, match="async with"):
                len(stream)
            async with stream:
                assert len(stream) == 2 and stream.feed == "scripted"
            with pytest.raises(TundishError, match="closed"):
                await anext(stream)


def test_nested_epochs_are_independent():
    with ScriptedServer(list(range(5))) as server, Client(server.path) as client:
        got = [(a, b) for a in client.epoch(0) for b in client.epoch(1, prefetch=1)]
        assert got == [(a, b) for a in range(5) for b in range(5)]


WRONG = {
    "epoch": [-1, 1.5, True, "0", None, 2**70],
    "start": [-1, 2.0, False, None],
    "rank": [-1, 1, "a"],
    "world_size": [0, True, 1.0],
    "uneven": ["Pad", None, 3],
    "batch_size": [0, -1, 2.0, True, "8"],
    "group": ["", 3, b"g"],
    "group_size": [0, -1, 2.0, True, "2", 2**21],
    "split": ["", 3, ["g"]],
    "on_lag": ["Wait", None, 1],
    "prefetch": [0, -1, 1.5, True],
    "copy": [1, None, "yes"],
    "feed": ["", 3],
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, vs in WRONG.items() for v in vs])
def test_wrong_arguments_are_named(name, value):
    with ScriptedServer([1]) as server, Client(server.path) as client:
        arguments = {"epoch": 0} | {name: value}
        with pytest.raises(ConfigError, match=name) as caught:
            client.epoch(**arguments)
        assert str(value)[:10] in str(caught.value)
        with pytest.raises(ConfigError, match=name):
            AsyncClient(server.path).epoch(**arguments)
        assert next(client.epoch(np.int64(0), start=np.uint8(0))) == 1


def test_a_shard_must_be_named():
    with ScriptedServer([1]) as server, Client(server.path) as client:
        for asking in (client, AsyncClient(server.path)):
            with pytest.raises(ConfigError, match="rank must be given with world_size=2: which"):
                asking.epoch(0, world_size=2)
        assert not server.kinds("EPOCH")
        next(client.epoch(0, world_size=2, rank=0))
        next(client.epoch(0, world_size=1))
        asked = [(h["rank"], h["world_size"]) for h in server.kinds("EPOCH")]
        assert asked == [(0, 2), (0, 1)]
