"""Split epochs as a client sees them: what acknowledges a batch, and what a stream remembers."""

import itertools
import json
import threading

import pytest

from helpers.clients import END, KINDS, Reader
from helpers.splits import PRINT, SAID, batches, serve
from helpers.timing import MS
from tundish_client import AsyncClient, Client, ConfigError, ConnectionLost, TundishError
from tundish_client._protocol.ranges import Ranges
from tundish_client.testing import Close, Fail, Revoke, ScriptedServer, Silence


@pytest.fixture(params=KINDS)
def reader(request):
    """Opens clients of one kind."""
    readers = []

    def open_(server, **options):
        readers.append(Reader(request.param, server.path, **options))
        return readers[-1]

    yield open_
    for reader in readers:
        reader.__exit__()


class TestStream:
    def test_batches_come_in_any_order_with_gaps_and_again(self, reader):
        with serve(*batches(3, 1, 9, 4, 1)) as server:
            client = reader(server)
            stream = client.epoch(split="g")
            got = client.outcomes(stream)
            assert got == ["batch 3", "batch 1", "batch 9", "batch 4", "batch 1", END]
            assert (stream.info.batch, stream.counts["batches"]) == (1, 5)
            assert stream.counts["samples"] == 10
            assert server.kinds("EPOCH")[0]["split"] == "g"

    def test_a_batch_is_acknowledged_by_asking_for_the_next(self, reader):
        with serve(*batches(3, 1, 9), Silence()) as server:
            client = reader(server)
            stream = client.epoch(split="g")
            seen = []
            for _ in range(3):
                client.next(stream)
                seen.append(stream.state_dict()["acked"])
            assert seen == [[], [[3, 3]], [[1, 1], [3, 3]]]
            client.run(client.client.ping())
            assert [ack["batch"] for ack in server.kinds("ACK")] == [3, 1]

    def test_there_is_no_position_but_a_state(self, reader):
        with serve(*batches(0, 1, 2, 5), Silence()) as server:
            client = reader(server)
            stream = client.epoch(4, split="g", batch_size=4)
            for _ in range(4):
                client.next(stream)
            with pytest.raises(TundishError, match=r"split='g'.*no position.*state_dict"):
                _ = stream.position
            state = stream.state_dict()
            assert state == {
                "feed": "scripted", "epoch": 4, "split": "g", "acked": [[0, 2]],
                "fingerprint": PRINT, "batch_size": 4,
            }  # fmt: skip
            assert json.loads(json.dumps(state)) == state
            assert repr(stream).endswith("of feed 'scripted' at epoch 4, split 'g'>")
            with pytest.raises(TypeError, match="split='g'"):
                len(stream)
            assert bool(stream)

    def test_resume_joins_again(self, reader):
        state = {
            "feed": "scripted", "epoch": 4, "split": "g", "acked": [[0, 2], [5, 5]],
            "fingerprint": PRINT, "batch_size": 4,
        }  # fmt: skip
        with serve(*batches(3, 4)) as server:
            client = reader(server)
            stream = client.client.resume(json.loads(json.dumps(state)))
            assert stream.state_dict() == state
            assert client.outcomes(stream) == ["batch 3", "batch 4", END]
            (asked,) = server.kinds("EPOCH")
            assert (asked["split"], asked["acked"]) == ("g", [[0, 2], [5, 5]])
            assert (asked["fingerprint"], asked["start"]) == (PRINT, 0)
            assert (asked["epoch"], asked["batch_size"]) == (4, 4)
            assert stream.state_dict()["acked"] == [[0, 5]]

    def test_counts_are_of_what_was_handed_out(self, reader):
        script = [*batches(3), OSError("no"), *batches(9)]
        with serve(*script) as server:
            client = reader(server)
            stream = client.epoch(split="g")
            seen = []
            for _ in range(3):
                client.outcomes(stream, 1)
                seen.append([stream.counts[name] for name in ("batches", "samples", "errors")])
            assert seen == [[1, 2, 0], [2, 2, 1], [3, 4, 1]]

    def test_a_closed_stream_remembers_its_last_batch(self):
        with serve(*batches(3, 1), Silence()) as server, Client(server.path) as client:
            with client.epoch(0, split="g") as stream:
                next(stream), next(stream)
            assert stream.state_dict()["acked"] == [[1, 1], [3, 3]]


class TestRevoked:
    def test_what_was_not_handed_out_is_dropped_and_its_credit_returns(self, reader):
        script = [*batches(3, 1, 9), Revoke([1, 9]), Silence(150 * MS), *batches(4, 5)]
        with serve(*script) as server:
            client = reader(server)
            stream = client.epoch(split="g", prefetch=4)
            assert client.next(stream) == "batch 3"
            threading.Event().wait(60 * MS)
            assert client.outcomes(stream) == ["batch 4", "batch 5", END]
            client.run(client.client.ping())  # what was sent before has been read
            (credit,) = server.kinds("CREDIT")
            assert credit["credits"]["batches"] == 2
            assert credit["credits"]["bytes"] > 0
            assert stream.counts["batches"] == 3
            assert stream.state_dict()["acked"] == [[3, 5]]

    def test_what_the_user_holds_is_not_acknowledged_any_more(self, reader):
        with serve(*batches(3), Silence(100 * MS), Revoke([3]), *batches(1)) as server:
            client = reader(server)
            stream = client.epoch(split="g")
            assert client.outcomes(stream) == ["batch 3", "batch 1", END]
            assert stream.state_dict()["acked"] == [[1, 1]]

    def test_what_was_acknowledged_too_late_is_not(self, reader):
        with serve(*batches(3, 1), Silence(50 * MS), Revoke([3, 1, 8]), *batches(3)) as server:
            client = reader(server)
            stream = client.epoch(split="g")
            assert client.outcomes(stream) == ["batch 3", "batch 1", "batch 3", END]
            assert stream.state_dict()["acked"] == [[3, 3]]

    def test_a_clean_end_does_not_acknowledge_it(self):
        with serve(*batches(3), Silence(20 * MS), Revoke([3]), Silence()) as server:
            with Client(server.path) as client:
                with client.epoch(0, split="g") as stream:
                    next(stream)
                    threading.Event().wait(60 * MS)
                    client.ping()  # takes in what has come
                assert stream.state_dict()["acked"] == []
                client.ping()
                assert server.kinds("CANCEL") == [{"stream": 1}]

    def test_a_slow_consumer_looks_before_it_takes_the_next(self, reader):
        """What came while the user was busy is taken in, although there is a batch at hand."""
        script = [*batches(3, 1), Silence(30 * MS), Revoke([3, 1]), *batches(4)]
        with serve(*script) as server:
            client = reader(server)
            stream = client.epoch(split="g", prefetch=4)
            assert client.next(stream) == "batch 3"
            threading.Event().wait(90 * MS)  # also the loop is not running
            assert client.outcomes(stream) == ["batch 4", END]


class TestLosingTheServer:
    def test_ranges_are_brought_to_the_next_one(self, reader):
        script = [*batches(3, 1, 9), Close(once=True), *batches(4)]
        with serve(*script) as server:
            client = reader(server, reconnect_timeout=10)
            stream = client.epoch(split="g", prefetch=1)
            got = client.outcomes(stream)
            assert sorted(got) == ["batch 1", "batch 3", "batch 4", "batch 9", END]
            assert got[:2] == ["batch 3", "batch 1"]
            first, second = server.kinds("EPOCH")
            assert "acked" not in first
            assert "fingerprint" not in first
            assert (second["split"], second["start"]) == ("g", 0)
            assert second["fingerprint"] == PRINT
            # What was handed out is acknowledged, the last by asking for the next.
            acked = [n for a, b in second["acked"] for n in range(a, b + 1)]
            assert [f"batch {n}" for n in acked] == sorted(got[: len(acked)])
            assert len(acked) in {2, 3}  # the loss may be seen before batch 9
            assert stream.state_dict()["acked"] == [[1, 1], [3, 4], [9, 9]]
            assert stream.counts["batches"] == 4

    def test_in_hand_while_the_server_is_away_nothing_is_said(self, path_of_two):
        """The stream joins again when the user asks for more, and knows then what to tell."""
        path, serve_at = path_of_two
        with serve_at([*batches(3, 1), Silence()], path):
            client = Client(path, reconnect_timeout=10)
            stream = client.epoch(0, split="g")
            next(stream), next(stream)
        with serve_at([*batches(4), Silence()], path) as server:
            client.ping()
            assert not server.kinds("EPOCH")
            assert next(stream) == "batch 4"
            assert server.kinds("EPOCH")[0]["acked"] == [[1, 1], [3, 3]]
        client.close()

    def test_a_clean_end_without_having_joined_again_tells_what_was_acknowledged(self, path_of_two):
        path, serve_at = path_of_two
        with serve_at([*batches(3, 1), Silence()], path):
            client = Client(path, reconnect_timeout=10)
            streams = [client.epoch(0, split="g") for _ in range(2)]
            for stream in streams:
                next(stream), next(stream)
        with serve_at([Silence()], path) as server:
            client.ping()
            streams[0].close()
            del streams[1], stream
            client.ping()
            (first, second), cancels = server.kinds("EPOCH"), server.kinds("CANCEL")
            assert (first["acked"], second["acked"]) == ([[1, 1], [3, 3]], [[3, 3]])
            assert first["credits"] == {"batches": 0, "bytes": 0}
            # The server has not lent it batch 1, so CANCEL can't acknowledge that.
            assert cancels == [{"stream": 1}, {"stream": 2}]
        client.close()

    def test_when_the_time_runs_out_the_loss_says_how_to_join_again(self, reader):
        with serve(*batches(3), Close()) as server:
            client = reader(server)
            stream = client.epoch(split="g")
            client.next(stream)
            with pytest.raises(ConnectionLost, match=r"split='g' again.*state_dict") as caught:
                client.next(stream)
            assert caught.value.position is None
            assert stream.state_dict()["acked"] == [[3, 3]]

    def test_an_error_of_the_stream(self, reader):
        with serve(*batches(3), Fail(RuntimeError("gone"))) as server:
            client = reader(server)
            got = client.outcomes(client.epoch(split="g"))
            assert got[0] == "batch 3"
            assert str(got[1]) == "gone"


@pytest.fixture
def path_of_two(tmp_path_factory):
    """A path, and a way to serve there."""
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="tundish-")

    def serve_at(script, path):
        return ScriptedServer(script, path=path, announce=SAID)

    yield f"{folder}/s", serve_at
    shutil.rmtree(folder)


TOGETHER = {
    "a start": ({"split": "g", "start": 3}, ["split='g'", "start=3"]),
    "ranks": ({"split": "g", "world_size": 2}, ["split='g'", "world_size=2"]),
    "a group": ({"split": "g", "group": "h"}, ["split='g'", "group='h'"]),
    "a group's size": ({"split": "g", "group_size": 2}, ["split='g'", "group_size=2"]),
    "waiting": ({"split": "g", "on_lag": "wait"}, ["split='g'", "on_lag='wait'"]),
    "a size without a group": ({"group_size": 2}, ["group_size=2", "group='...'"]),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_what_does_not_go_together_is_named(name):
    options, words = TOGETHER[name]
    with serve() as server, Client(server.path) as client:
        for asking in (client, AsyncClient(server.path)):
            with pytest.raises(ConfigError) as caught:
                asking.epoch(0, **options)
            assert all(word in str(caught.value) for word in words), str(caught.value)
        assert not server.kinds("EPOCH")


STATE = {"feed": None, "epoch": 0, "split": "g", "acked": [[0, 2]], "fingerprint": {}}
POSITION = {"feed": None, "epoch": 0, "batch": 0, "fingerprint": {}}
REFUSED = {
    "a split of int": (STATE | {"split": 3}, {}, ["split", "3"]),
    "no ranges": (STATE | {"acked": 7}, {}, ["acked", "7"]),
    "ranges of one": (STATE | {"acked": [[1]]}, {}, ["acked", "[[1]]"]),
    "ranges backwards": (STATE | {"acked": [[3, 1]]}, {}, ["acked", "[[3, 1]]"]),
    "ranges of float": (STATE | {"acked": [[0.5, 1]]}, {}, ["acked", "0.5"]),
    "ranges below 0": (STATE | {"acked": [[-1, 1]]}, {}, ["acked", "-1"]),
    "an epoch of str": (STATE | {"epoch": "0"}, {}, ["epoch", "'0'"]),
    "ranks": (STATE, {"world_size": 2, "rank": 0}, ["split='g'", "world_size=2"]),
    "a group": (STATE, {"group": "h"}, ["split='g'", "group='h'"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_states_that_are_none_are_named(name):
    state, options, words = REFUSED[name]
    with serve() as server, Client(server.path) as client:
        for asking in (client, AsyncClient(server.path)):
            with pytest.raises(ConfigError) as caught:
                asking.resume(state, **options)
            assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("name", ["feed", "group", "split"])
def test_names_that_are_no_text(name):
    with pytest.raises(ConfigError, match=name):
        AsyncClient("/tmp/x").epoch(0, **{name: "\ud800"})


def test_groups_and_lag_are_asked_for(reader):
    with serve(*batches(0)) as server:
        client = reader(server)
        client.outcomes(client.epoch(group="g", group_size=3, on_lag="wait"))
        client.outcomes(client.client.resume(POSITION, group="h"))
        client.outcomes(client.epoch())
        first, second, third = server.kinds("EPOCH")
        assert (first["group"], first["group_size"], first["on_lag"]) == ("g", 3, "wait")
        assert (second["group"], "group_size" in second) == ("h", False)
        assert not {"group", "group_size", "split", "on_lag", "acked"} & set(third)


def test_ranges_are_a_set_of_numbers():
    import random

    rng = random.Random(3)
    ranges, numbers = Ranges([[3, 5], [0, 1], [5, 8]]), {0, 1, *range(3, 9)}
    for _ in range(3000):
        number = rng.randrange(60)
        if rng.random() < 0.6:
            ranges.add(number)
            numbers.add(number)
        else:
            ranges.discard(number)
            numbers.discard(number)
        pairs = ranges.pairs()
        assert [n for a, b in pairs for n in range(a, b + 1)] == sorted(numbers)
        assert all(b + 1 < c for (_, b), (c, _) in itertools.pairwise(pairs))
        assert len(ranges) == len(numbers)
        assert (number in ranges) == (number in numbers)
