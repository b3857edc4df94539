"""The server's side of the protocol, without a socket: layouts that skip msgpack, and credits."""

from types import SimpleNamespace

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.raw import epoch, hello
from helpers.wire import decoder, feed
from tundish_client._protocol.acks import Ack, AckDecoder, ack_message
from tundish_client._protocol.asking import Cancelled, EpochAsked, Granted, HelloReceived
from tundish_client._protocol.batch_frames import inline_head, lent_head
from tundish_client._protocol.frames import encode_message
from tundish_client._protocol.quick import QuickDecoder
from tundish_client._protocol.server import ServerConnection
from tundish_client._protocol.values import encode_value, resolve

unsigned = st.integers(0, 2**63 - 1)


def say(conn: ServerConnection, data: bytes) -> list:
    events = []
    view = memoryview(data)
    while view:
        buffer = conn.get_buffer()
        n = min(len(buffer), len(view))
        buffer[:n] = view[:n]
        events += conn.receive(n)
        view = view[n:]
    return events


@pytest.fixture
def conn() -> ServerConnection:
    conn = ServerConnection()
    (event,) = say(conn, hello(shared_memory=True))
    assert event == HelloReceived("raw", event.pid, shared_memory=True)
    conn.welcome({"name": "tundish", "pid": 1}, "here", shared_memory=True)
    conn.data_to_send()
    return conn


def batch(value: object, samples: int) -> SimpleNamespace:
    encoded = encode_value(value)
    nbytes = encoded.nbytes + 8 * samples
    return SimpleNamespace(
        batch=7, times=(2**60, 2**61), nbytes=nbytes, packed=encoded.packed,
        samples_offset=encoded.nbytes, segment=3, slot=4, generation=5, offset=8192,
        encoded=encoded,
    )  # fmt: skip


@given(unsigned, unsigned, unsigned)
def test_an_ack_in_the_fixed_layout_is_msgpack_too(stream, number, nbytes):
    data = ack_message(stream, number, nbytes)
    (message,) = feed(decoder(), data)
    assert message.kind == "ACK"
    assert message.header == {
        "stream": stream,
        "batch": number,
        "credits": {"batches": 1, "bytes": nbytes},
    }
    (quick,) = feed(AckDecoder(2**20, 0), data)
    assert type(quick) is Ack
    assert (quick.stream, quick.batch, quick.nbytes) == (stream, number, nbytes)


@given(st.binary(min_size=1, max_size=1), st.integers(5, len(ack_message(1, 1, 1)) - 1))
def test_an_ack_with_a_byte_changed_is_read_as_msgpack_reads_it(byte, at):
    data = bytearray(ack_message(1, 2, 3))
    data[at : at + 1] = byte
    try:
        unpacked = msgpack.unpackb(bytes(data[5:]), strict_map_key=False)
    except Exception:
        return
    if type(unpacked) is not list or type(unpacked[0]) is not str or type(unpacked[1]) is not dict:
        return
    (message,) = feed(AckDecoder(2**20, 0), bytes(data))
    if type(message) is Ack:
        assert unpacked[1]["credits"] == {"batches": 1, "bytes": message.nbytes}
        assert (unpacked[1]["stream"], unpacked[1]["batch"]) == (message.stream, message.batch)
    else:
        assert message.header == unpacked[1]


def test_an_ack_acknowledges_and_grants(conn):
    (asked,) = say(conn, epoch(credits={"batches": 1, "bytes": 10}))
    assert type(asked) is EpochAsked
    stream = asked.stream
    stream.charge(25)
    assert (stream.batches, stream.bytes, stream.ready) == (0, -15, False)
    (granted,) = say(conn, ack_message(1, 0, 25))
    assert granted == Granted(stream)
    assert (stream.batches, stream.bytes, stream.acked, stream.ready) == (1, 10, 0, True)
    assert say(conn, ack_message(2, 0, 25)) == []
    assert say(conn, encode_message("CANCEL", {"stream": 1})) == [Cancelled(stream)]
    assert say(conn, ack_message(1, 1, 25)) == []
    assert conn.failed is None


def test_an_ack_before_hello_is_refused():
    conn = ServerConnection()
    assert say(conn, ack_message(1, 0, 0)) == []
    assert "HELLO" in str(conn.failed)


def test_credits_have_a_ceiling(conn):
    (asked,) = say(conn, epoch(credits={"batches": 2**62, "bytes": 2**62}))
    for _ in range(10):
        say(conn, ack_message(1, 0, 2**62))
    assert asked.stream.bytes <= 2**62
    assert conn.failed is None


@given(st.integers(0, 9), st.sampled_from([1, 15, 16, 300]))
def test_the_head_of_an_inline_batch(rows, samples):
    value = {"x": np.arange(rows * 3.0).reshape(rows, 3), "t": ("a", 2**70)}
    source = batch(value, samples)
    head = inline_head(5, source, samples)
    assert len(head) % 64 == 0
    body = np.zeros(source.nbytes, np.uint8)
    source.encoded.write_into(body)
    (message,) = feed(decoder(), head + body.tobytes())
    assert message.header["stream"] == 5
    assert message.header["batch"] == 7
    assert message.header["times"] == [2**60, 2**61]
    assert message.header["nbytes"] == len(message.body) == source.nbytes
    found = resolve(message.header["value"], message.body)
    assert found["t"] == value["t"]
    assert np.array_equal(found["x"], value["x"])
    assert len(resolve(message.header["samples"], message.body)) == samples


def test_the_head_of_a_lent_batch():
    source = batch({"x": np.arange(3)}, 3)
    (message,) = feed(decoder(), lent_head(5, source, 3))
    header = message.header
    place = [header[key] for key in ("segment", "slot", "generation", "offset")]
    assert place == [3, 4, 5, 8192]
    assert message.body is None
    assert (header["stream"], header["batch"], header["nbytes"]) == (5, 7, source.nbytes)


@pytest.mark.parametrize("lent", [False, True])
def test_a_batch_tells_of_skipped_samples(conn, lent):
    (asked,) = say(conn, epoch())
    stream, source = asked.stream, batch({"x": np.arange(3)}, 3)
    body = np.zeros(source.nbytes, np.uint8)
    source.encoded.write_into(body)
    if lent:
        conn.lend_batch(stream, source, 3, [5, 2**40])
    else:
        conn.send_batch(stream, source, memoryview(body), 3, [5, 2**40])
    sent = b"".join(bytes(data) for data in conn.data_to_send())
    for read in (decoder(), QuickDecoder(2**20, 2**30)):
        (message,) = feed(read, sent)
        header = message.header
        assert header["skipped"] == [5, 2**40]
        assert ("slot" in header) == lent
        assert resolve(header["value"], body)["x"].tolist() == [0, 1, 2]
    assert (stream.skipped, stream.samples, stream.sent) == (2, 3, 1)
    conn.lend_batch(stream, source, 3)
    assert conn.data_to_send() == [lent_head(1, source, 3)]
    assert stream.skipped == 2


def test_a_batch_with_too_many_skipped_samples_is_neither_sent_nor_charged(conn):
    (asked,) = say(conn, epoch())
    conn.peer_limits = type(conn.limits)(head=1024, body=2**20)
    source = batch({"x": np.arange(3)}, 3)
    with pytest.raises(ValueError, match="1024"):
        conn.lend_batch(asked.stream, source, 3, list(range(2000)))
    assert conn.data_to_send() == []
    assert (asked.stream.sent, asked.stream.skipped) == (0, 0)


def test_an_epoch_may_ask_for_a_batch_size_and_bring_a_fingerprint(conn):
    (plain,) = say(conn, epoch(1))
    (own,) = say(conn, epoch(2, batch_size=8, fingerprint={"seed": 1}))
    assert (plain.stream.batch_size, plain.stream.fingerprint) == (None, None)
    assert (own.stream.batch_size, own.stream.fingerprint) == (8, {"seed": 1})


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, "8"])
def test_a_batch_size_that_is_none_fails_the_connection(conn, wrong):
    say(conn, epoch(batch_size=wrong))
    assert "batch_size" in str(conn.failed)


def test_an_epoch_may_ask_for_company(conn):
    (plain,) = say(conn, epoch(1))
    (group,) = say(conn, epoch(2, group="g", group_size=3, on_lag="wait"))
    (split,) = say(conn, epoch(3, split="s", acked=[[4, 6], [1, 1]]))
    asked = [
        (s.group, s.group_size, s.split, s.on_lag, s.done.pairs())
        for s in (plain.stream, group.stream, split.stream)
    ]
    assert asked == [
        (None, None, None, "detach", []),
        ("g", 3, None, "wait", []),
        (None, None, "s", "detach", [[1, 1], [4, 6]]),
    ]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("group", 3), ("group_size", 0), ("group_size", 2.0), ("split", ["s"]), ("on_lag", "no"),
        ("acked", 7), ("acked", [[2, 1]]), ("acked", [[-1, 1]]), ("acked", [[1]]),
        ("acked", [[0, 2.0]]), ("acked", [[True, 2]]), ("acked", [3]),
    ],
)  # fmt: skip
def test_company_that_is_none_fails_the_connection(conn, name, wrong):
    say(conn, epoch(**{name: wrong}))
    assert name in str(conn.failed)


@pytest.mark.parametrize("other", [{"start": 1}, {"world_size": 2}, {"group_size": 2}])
def test_what_does_not_go_together_with_split_fails_the_connection(conn, other):
    say(conn, epoch(split="s", **other))
    assert "split" in str(conn.failed)


def test_acknowledgements_of_a_split_are_collected(conn):
    (plain,) = say(conn, epoch(1))
    (split,) = say(conn, epoch(2, split="s"))
    for number in (1, 2):
        say(conn, ack_message(number, 7, 0))
        say(conn, encode_message("ACK", {"stream": number, "batch": 3}))
    assert (plain.stream.acks, split.stream.acks) == ([], [7, 3])
    (event,) = say(conn, encode_message("CANCEL", {"stream": 2, "batch": 5}))
    assert event == Cancelled(split.stream)
    assert split.stream.acks == [7, 3, 5]


def test_batches_are_revoked(conn):
    (split,) = say(conn, epoch(2, split="s"))
    conn.revoke(split.stream, [5, 2**40])
    assert conn.data_to_send() == [encode_message("REVOKE", {"stream": 2, "batches": [5, 2**40]})]


def test_what_fits_no_limit_is_neither_sent_nor_charged(conn):
    (asked,) = say(conn, epoch())
    conn.peer_limits = type(conn.limits)(head=64, body=64)
    source = batch({"x": np.arange(100)}, 100)
    for send in (
        lambda: conn.lend_batch(asked.stream, source, 100),
        lambda: conn.send_batch(asked.stream, source, memoryview(bytes(source.nbytes)), 100),
    ):
        with pytest.raises(ValueError, match="make batches smaller"):
            send()
    assert conn.data_to_send() == []
    assert asked.stream.sent == 0
