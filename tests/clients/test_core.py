"""The client's connection without a socket."""

import gc

import msgpack
import pytest

from helpers.client_core import WELCOME, batch, feed, sent
from tundish_client._protocol.acks import ack_message
from tundish_client._protocol.client import END, ClientConnection
from tundish_client._protocol.frames import encode_message
from tundish_client._protocol.reading import StreamState
from tundish_client.config import EpochOptions
from tundish_client.errors import ConnectionLost, ProtocolError, TundishError

START = {"stream": 1, "feed": "f", "batches": 3}


@pytest.fixture
def core() -> ClientConnection:
    core = ClientConnection()
    feed(core, WELCOME)
    assert core.opened
    core.data_to_send()
    return core


def opened(core: ClientConnection, **options: int) -> StreamState:
    stream = StreamState(EpochOptions(epoch=0, **options))
    core.open_stream(stream)
    feed(core, encode_message("START", START))
    core.data_to_send()
    return stream


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_any_chunking(core, step):
    stream = opened(core)
    counts = {"batches": 3, "errors": 1}
    error = {"stream": 1, "batch": 1, "type": ["builtins", "KeyError"], "message": "k"}
    error["args"] = ["k"]
    data = batch(0) + encode_message("ERROR", error) + batch(2)
    feed(core, data + encode_message("END", {"stream": 1, "counts": counts}), step)
    got = []
    while (cell := core.take(stream)) is not END:
        got.append(cell.error or cell.value)
        stream.handed = cell
    assert got[0] == "value 0" and repr(got[1]) == "KeyError('k')" and got[2] == "value 2"
    assert core.take(stream) is END and core.failed is None and not core.streams


def test_a_cell_stays_until_it_was_handed_over(core):
    stream = opened(core)
    feed(core, batch(0) + batch(1))
    first = core.take(stream)
    assert core.take(stream) is first and core.take(stream) is first
    assert sent(core) == []
    stream.handed = first
    assert core.take(stream).value == "value 1"
    assert core.take(stream).value == "value 1"
    assert len(sent(core)) == 1  # acknowledged once


def test_credits_and_acks(core):
    stream = opened(core)
    feed(core, batch(0, nbytes=64000) + batch(1, nbytes=128))
    stream.handed = core.take(stream)
    assert sent(core) == []
    stream.handed = core.take(stream)
    ack = {"stream": 1, "batch": 0, "credits": {"batches": 1, "bytes": 64000}}
    assert sent(core) == [["ACK", ack]]
    assert core.take(stream) is None
    ack = {"stream": 1, "batch": 1, "credits": {"batches": 1, "bytes": 128}}
    assert sent(core)[-1] == ["ACK", ack]
    assert core.take(stream) is None and sent(core) == []


def test_ack_in_its_short_form_is_a_message():
    data = ack_message(2**40, 2**50, 2**60)
    assert msgpack.unpackb(data[5:]) == [
        "ACK", {"stream": 2**40, "batch": 2**50, "credits": {"batches": 1, "bytes": 2**60}}
    ]  # fmt: skip
    assert data[:5] == encode_message("ACK", {"x": b"x" * (len(data) - 5 - 10)})[:5]


def test_unknown_kinds_keys_and_streams_are_ignored(core):
    stream = opened(core)
    feed(core, encode_message("TOMORROW", {"x": 1}) + batch(0, tomorrow=2, stream=1))
    feed(core, batch(0, stream=9) + encode_message("END", {"stream": 9}))
    feed(core, encode_message("START", {"stream": 9}) + encode_message("PONG", {"token": 77}))
    assert core.take(stream).value == "value 0" and core.failed is None


MALFORMED = {
    "no stream": encode_message("BATCH", {"batch": 0}),
    "no batch": encode_message("BATCH", {"stream": 1, "value": 1}),
    "batch of another type": batch("0"),
    "a negative batch": batch(-1),
    "a batch beyond the end": batch(3),
    "a batch twice": batch(0) + batch(0),
    "no counts": encode_message("END", {"stream": 1}),
    "times": batch(0, times=[1]),
    "shared memory that was not offered": batch(0, segment=1, slot=0, generation=0, offset=0),
    "a stream that is a list": batch(0, stream=[]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_messages_fail_the_connection(core, name):
    stream = opened(core)
    feed(core, MALFORMED[name])
    assert isinstance(core.failed, ProtocolError)
    for _ in range(len(stream.cells)):
        stream.handed = core.take(stream)
    with pytest.raises(ConnectionLost) as caught:
        core.take(stream)
    assert caught.value.position == stream.position


def test_batches_must_be_in_order_if_the_server_says_so(core):
    stream = StreamState(EpochOptions(epoch=0))
    core.open_stream(stream)
    feed(core, encode_message("START", {**START, "in_order": True}) + batch(1))
    with pytest.raises(ConnectionLost, match="batch 1 of stream 1 came instead of batch 0"):
        core.take(stream)


def test_out_of_order_feeds_have_no_position(core):
    stream = StreamState(EpochOptions(epoch=0))
    core.open_stream(stream)
    feed(core, encode_message("START", {**START, "in_order": False}) + batch(2) + batch(0))
    assert core.take(stream).value == "value 2"
    with pytest.raises(Exception, match="in_order=False"):
        stream.state()


def test_batch_before_start(core):
    stream = StreamState(EpochOptions(epoch=0))
    core.open_stream(stream)
    feed(core, batch(0))
    with pytest.raises(ConnectionLost, match="before START"):
        core.take(stream)


def test_cancel_is_said_once_and_drops_what_is_held(core):
    stream = opened(core)
    feed(core, batch(0) + batch(1))
    core.cancel(stream)
    core.cancel(stream)
    assert sent(core) == [["CANCEL", {"stream": 1}]] and not stream.cells
    feed(core, batch(2))
    assert core.failed is None and not stream.cells


def test_the_first_reason_stays(core):
    stream = opened(core)
    feed(core, b"\x00")
    first = core.failed
    core.eof_received()
    assert core.failed is first
    with pytest.raises(ConnectionLost, match="expected a message"):
        core.take(stream)
    with pytest.raises(ConnectionLost, match="expected a message"):
        core.request("PING")


def test_requests_are_forgotten_with_their_reply(core):
    reply = core.request("STATS")
    del reply
    feed(core, encode_message("STATS", {"request": 1, "stats": {}}))
    assert core.failed is None and not core._replies


class TestAnotherConnection:
    """What is asked for again on the connection after the one that was lost."""

    @pytest.fixture
    def core(self) -> ClientConnection:
        return self.connection()

    def connection(self) -> ClientConnection:
        core = ClientConnection(recovers=True)
        feed(core, WELCOME)
        core.data_to_send()
        return core

    def follow(self, old: ClientConnection) -> ClientConnection:
        """The connection after `old`, which is lost."""
        old.eof_received()
        assert old.recovering
        core = self.connection()
        core.adopt(old)
        return core

    def test_a_stream_that_had_not_started_is_asked_for_as_before(self, core):
        stream = StreamState(EpochOptions(epoch=3, start=2, group="g", group_size=2))
        core.open_stream(stream)
        (before,) = sent(core)
        core = self.follow(core)
        assert sent(core) == [before]
        assert core.streams == {1: stream}

    def test_what_has_come_stays_and_its_credit_comes_with_its_acknowledgement(self, core):
        stream = opened(core, prefetch=4)
        feed(core, batch(0, nbytes=64000) + batch(1, nbytes=128))
        stream.handed = core.take(stream)
        core = self.follow(core)
        ((kind, header),) = sent(core)
        assert (kind, header["start"], header["feed"]) == ("EPOCH", 2, "f")
        assert header["credits"] == {"batches": 3, "bytes": 256 * 2**20 - 64128}
        assert stream.position.batch == 0  # `streams` counts what it hands out
        stream.handed = core.take(stream)
        assert stream.handed.batch == 1
        credit = {"batches": 1, "bytes": 64000}
        assert sent(core) == [["ACK", {"stream": 1, "batch": 0, "credits": credit}]]
        feed(core, encode_message("START", {**START, "start": 2}) + batch(2))
        assert core.take(stream).batch == 2

    def test_a_batch_that_is_larger_than_the_credit(self, core):
        stream = opened(core)
        feed(core, batch(0, nbytes=2**40))
        core = self.follow(core)
        assert sent(core)[0][1]["credits"] == {"batches": 2, "bytes": 0}
        assert stream.received == 1

    def test_counts_are_those_of_the_whole_stream(self, core):
        stream = opened(core)
        error = {"stream": 1, "batch": 1, "type": ["builtins", "KeyError"], "message": "k"}
        feed(core, batch(0) + encode_message("ERROR", error))
        core = self.follow(core)
        counts = {"batches": 1, "errors": 0, "samples": 5}
        feed(core, encode_message("START", {**START, "start": 2}) + batch(2))
        feed(core, encode_message("END", {"stream": 1, "counts": counts}))
        got = []
        while (cell := core.take(stream)) is not END:
            got.append(cell.batch)
            stream.handed = cell
        assert got == [0, 1, 2]
        assert (stream.counts["batches"], stream.counts["errors"]) == (3, 1)
        assert stream.counts["samples"] == 5  # and none in `batch`

    def test_a_batch_that_was_there_already_is_out_of_place(self, core):
        stream = opened(core)
        feed(core, batch(0) + batch(1))
        core = self.follow(core)
        feed(core, encode_message("START", {**START, "start": 2}) + batch(1))
        for _ in range(2):
            stream.handed = core.take(stream)
        with pytest.raises(ConnectionLost, match="batch 1 of stream 1 came instead of batch 2"):
            core.take(stream)

    @pytest.mark.parametrize("kind", ["BATCH", "END"])
    def test_the_server_has_to_say_first_what_it_goes_on_with(self, core, kind):
        stream = opened(core)
        feed(core, batch(0))
        core = self.follow(core)
        end = encode_message("END", {"stream": 1, "counts": {"batches": 2}})
        feed(core, batch(1) if kind == "BATCH" else end)
        stream.handed = core.take(stream)
        with pytest.raises(TundishError, match="came before START"):
            core.take(stream)

    def test_who_leaves_in_the_pause_is_told_of_once(self, core):
        stream = opened(core, split="g")
        feed(core, batch(2) + batch(0))
        for _ in range(2):
            stream.handed = core.take(stream)
        core.eof_received()
        stream.clean = True
        core.cancel(stream)
        assert not core.busy
        core = self.follow(core)
        (_, asked), cancel = sent(core)
        assert (asked["acked"], cancel) == ([[0, 0], [2, 2]], ["CANCEL", {"stream": 1}])
        assert not core.streams
        assert sent(self.follow(core)) == []

    def test_of_a_split_only_what_was_handed_out_counts(self, core):
        stream = opened(core, split="g")
        feed(core, batch(2) + batch(0) + batch(1))
        stream.handed = core.take(stream)
        core = self.follow(core)
        assert sent(core) == []  # what the user holds will be acknowledged by asking for more
        assert stream.state()["acked"] == []
        assert core.take(stream) is None
        ((kind, header),) = sent(core)
        assert (kind, header["acked"], header["start"]) == ("EPOCH", [[2, 2]], 0)
        assert header["credits"]["batches"] == 3
        feed(core, encode_message("START", {**START, "in_order": False}) + batch(1) + batch(0))
        assert core.take(stream).batch == 1
        counts = {"batches": 2, "redelivered": 1}
        stream.handed = core.take(stream)
        stream.handed = core.take(stream)
        assert [header["batch"] for _, header in sent(core)] == [1]
        assert core.take(stream) is None
        feed(core, encode_message("END", {"stream": 1, "counts": counts}))
        assert core.take(stream) is END
        assert (stream.counts["batches"], stream.counts["redelivered"]) == (3, 1)

    def test_a_split_that_had_not_started_is_asked_for_at_once(self, core):
        stream = StreamState(EpochOptions(epoch=0, split="g", acked=[[0, 1]]))
        core.open_stream(stream)
        (before,) = sent(core)
        assert before[1]["acked"] == [[0, 1]]
        assert sent(self.follow(core)) == [before]

    def test_numbers_go_on(self, core):
        opened(core)
        reply = core.request("STATS")
        core = self.follow(core)
        assert [kind for kind, _ in sent(core)] == ["STATS", "EPOCH"]
        feed(core, encode_message("STATS", {"request": 2, "stats": {"a": 1}}))
        assert reply.take()["stats"] == {"a": 1}
        other = StreamState(EpochOptions(epoch=1))
        core.open_stream(other)
        assert other.number == 3

    def test_what_nobody_waits_for_is_not_asked_again(self, core):
        reply, stream = core.request("PING"), opened(core)
        core.cancel(stream)
        del reply
        gc.collect()
        core = self.follow(core)
        assert sent(core) == []
        assert not core.busy

    def test_asking_while_there_is_no_connection(self, core):
        core.eof_received()
        stream = StreamState(EpochOptions(epoch=1))
        core.open_stream(stream)
        core.request("PING")
        reply = core.request("STATS")
        assert sent(core) == []
        core = self.follow(core)
        assert [kind for kind, _ in sent(core)] == ["STATS", "EPOCH"]
        assert reply.take() is None

    @pytest.mark.parametrize(
        "data", [b"\x00", batch(3), encode_message("ERROR", {"type": ["builtins", "OSError"]})]
    )
    def test_a_server_that_does_wrong_is_not_asked_again(self, core, data):
        stream = opened(core)
        feed(core, data)
        core.eof_received()
        assert not core.recovering
        with pytest.raises(ConnectionLost):
            core.take(stream)

    def test_giving_up_names_both_reasons(self, core):
        stream = opened(core)
        reply = core.request("PING")
        core.eof_received()
        core.give_up(TimeoutError("not there"))
        with pytest.raises(ConnectionLost, match=r"without an END; not there; resume .*start=0"):
            core.take(stream)
        with pytest.raises(ConnectionLost, match="not there"):
            reply.take()
        assert not core.busy

    def test_a_stream_over_the_servers_limits_fails_alone(self, core):
        stream = opened(core)
        other = StreamState(EpochOptions(epoch=1, feed="x" * 2000))
        core.open_stream(other)
        assert len(sent(core)) == 1
        core.eof_received()
        small = ClientConnection(recovers=True)
        limits = {"head": 1000, "body": 0}
        feed(small, encode_message("WELCOME", {"version": 1, "limits": limits}))
        small.data_to_send()
        small.adopt(core)
        assert len(sent(small)) == 1
        with pytest.raises(ValueError, match="EPOCH takes"):
            small.take(other)
        assert small.take(stream) is None
