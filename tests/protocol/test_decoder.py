"""The decoder gives the same messages for any chunking, and one error for anything else."""

import os
import re
import resource
import struct

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.wire import MIB, batch_bytes, decoder, feed
from tundish_client._protocol.connection import CLIENT_LIMITS, SERVER_LIMITS, Connection, Limits
from tundish_client._protocol.frames import Decoder, Message, encode_message, frame
from tundish_client._protocol.scan import check_claims
from tundish_client.errors import ProtocolError

KINDS = st.sampled_from(["HELLO", "ACK", "PING", "BATCH", "X" * 40])
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20)
HEADERS = st.dictionaries(st.text(max_size=12), PLAIN | st.lists(PLAIN, max_size=20), max_size=20)
BODIES = st.none() | st.binary(max_size=300) | st.integers(1, 40_000).map(lambda n: b"\x07" * n)


@st.composite
def messages(draw):
    kind, header, body = draw(KINDS), draw(HEADERS), draw(BODIES)
    header.pop("bins", None)
    # A small max_bin would make thousands of bins of a long body.
    max_bin = (
        draw(st.integers(max(1, len(body or b"") // 50), 400)) if len(body or b"") < 9000 else 2**31
    )
    return kind, header, body, max_bin


def to_bytes(kind, header, body, max_bin):
    view = None if body is None else memoryview(body)
    return b"".join(frame(kind, header, None, view, max_bin=max_bin))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(st.lists(messages(), min_size=1, max_size=6), st.data())
def test_any_chunking_gives_the_same_messages(sent, data):
    stream = b"".join(to_bytes(*message) for message in sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=30))
    target = decoder()
    got = feed(target, stream, cuts)
    target.eof()
    assert len(got) == len(sent)
    for message, (kind, header, body, _) in zip(got, sent, strict=True):
        message.header.pop("bins", None)
        assert (message.kind, message.header) == (kind, header)
        assert (None if message.body is None else message.body.tobytes()) == body


@settings(deadline=None, max_examples=50)
@given(messages())
def test_byte_by_byte(sent):
    stream = to_bytes(*sent)[:5000]
    whole = to_bytes(*sent)
    got = feed(decoder(), whole, range(len(stream)))
    assert [message.kind for message in got] == [sent[0]]


@settings(deadline=None, max_examples=60)
@given(st.lists(messages(), min_size=1, max_size=4))
def test_a_plain_msgpack_library_reads_the_stream(sent):
    stream = b"".join(to_bytes(*message) for message in sent)
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
    unpacker.feed(stream)
    for kind, header, body, _ in sent:
        length = unpacker.unpack()
        assert type(length) is int
        array = unpacker.unpack()
        array[1].pop("bins", None)
        assert array[:2] == [kind, header]
        assert (b"".join(array[3:]) if len(array) > 2 else None) == body
    with pytest.raises(msgpack.OutOfData):
        unpacker.unpack()


@settings(deadline=None, max_examples=400)
@given(st.binary(min_size=1, max_size=200))
def test_garbage_is_one_protocol_error_or_wants_more(garbage):
    target = decoder(max_head=4096, max_body=4096)
    try:
        for message in feed(target, garbage):
            assert isinstance(message, Message)
        target.eof()
    except ProtocolError as error:
        again = error
    else:
        return
    with pytest.raises(ProtocolError) as caught:
        target.buffer_updated(1)
    assert caught.value is again


@settings(deadline=None, max_examples=400)
@given(st.integers(0, 400), st.integers(1, 255))
def test_a_changed_byte_is_a_message_or_one_protocol_error(at, change):
    head, body = batch_bytes({"x": np.arange(6.0), "s": ["text"] * 20}, range(2))
    data = bytearray(head + body.tobytes())
    data[at % len(data)] ^= change
    target = decoder(max_head=4096, max_body=65536)
    try:
        feed(target, bytes(data))
        target.eof()
    except ProtocolError:
        assert target.failed is not None


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "GET / HTTP"),
        (b"\x00" * 30, "00 00"),
        (b"\xce\xff\xff\xff\xff", "4294967295"),
        (b"\xce\x00\x00\x00\x00", "0 bytes"),
        (b"\xce\x00\x00\x00\x01\xc0", "array"),
        (b"\xce\x00\x00\x00\x03\x92\xc0\x80", "kind, header"),
        (b"\xce\x00\x00\x00\x03\x92\xa1A", "not msgpack"),
        (b"\xce\x00\x00\x00\x04\x92\xa1A\x90", "kind, header"),
        (b"\xce\x00\x00\x00\x05\x92\xa1A\x80\xc0", "not msgpack"),
        (b"\xce\x00\x00\x00\x04\x93\xa1A\x80", "array of 2, 4"),
        (b"\xce\x00\x00\x00\x0a\x94\xa1A\x80\xc0\xc6\x00\x00\x00\x00", "padding"),
        (b"\xce\x00\x00\x00\x0b\x94\xa1A\x80\xc4\x00\xc6\xff\xff\xff\xff", "4294967295"),
        (b"\xce\x00\x00\x00\x0b\x95\xa1A\x80\xc4\x00\xc6\x00\x00\x00\x01", "bins"),
        (b"\xce\x00\x00\x00\x08\x94\xa1A\x80\xc4\x00\xc4\x00", "bin32"),
    ],
)
def test_what_was_seen_is_said(data, says):
    target = decoder()
    with pytest.raises(ProtocolError, match=re.escape(says)):
        feed(target, data)
        target.eof()


def test_messages_before_garbage_are_delivered_first():
    target = decoder()
    got = feed(target, encode_message("PING", {"token": 1}) + b"garbage")
    assert [message.kind for message in got] == ["PING"]
    assert isinstance(target.failed, ProtocolError)
    with pytest.raises(ProtocolError, match="garbage"):
        target.buffer_updated(1)
    assert len(target.get_buffer()) > 0


def test_every_cut_of_a_message_is_an_error_at_the_end():
    head, body = batch_bytes({"x": np.arange(4)}, [1])
    data = head + body.tobytes()
    for cut in range(1, len(data)):
        target = decoder()
        assert feed(target, data[:cut]) == []
        with pytest.raises(ProtocolError, match="middle"):
            target.eof()
    target = decoder()
    target.eof()


def test_several_bins_are_received_as_one_body():
    body = os.urandom(1000)
    parts = frame("BATCH", {"stream": 1}, None, memoryview(body), max_bin=300)
    assert [len(part) for part in parts[1:]] == [300, 5, 300, 5, 300, 5, 100]
    (message,) = feed(decoder(), b"".join(parts), range(0, 1500, 7))
    assert message.body.tobytes() == body
    assert message.header["bins"] == [300, 300, 300, 100]


def test_many_bins_need_a_longer_array_header():
    body = os.urandom(500)
    data = b"".join(frame("BATCH", {}, None, memoryview(body), max_bin=10))
    assert data[5] == 0xDC
    (message,) = feed(decoder(), data)
    assert message.body.tobytes() == body
    with pytest.raises(ValueError, match="bins"):
        frame("BATCH", {}, None, memoryview(bytes(10_000)), max_bin=1)


def test_a_bin_of_another_size_than_announced_is_refused():
    parts = frame("BATCH", {}, None, memoryview(bytes(100)), max_bin=60)
    parts[2] = struct.pack(">BI", 0xC6, 41)
    with pytest.raises(ProtocolError, match="bin32 of 40 bytes"):
        feed(decoder(), b"".join(parts))


def test_bodies_are_aligned_owned_and_writable():
    for size in (1, 100, 70_000, 3_000_000):
        head, body = batch_bytes({"x": np.arange(size, dtype=np.uint8)}, [1])
        assert len(head) % 64 == 0
        (message,) = feed(decoder(), head + body.tobytes())
        assert message.body.ctypes.data % 64 == 0
        assert message.body.flags.writeable
        assert message.body.dtype == np.uint8


def test_a_body_is_received_into_its_final_place():
    data = np.random.default_rng(0).integers(0, 256, 5 * MIB, dtype=np.uint8)
    head, body = batch_bytes({"x": data}, [1])
    target = decoder()
    buffer = target.get_buffer()
    buffer[: len(head)] = head
    assert target.buffer_updated(len(head)) == []
    assert len(target.get_buffer()) == len(body)
    target.get_buffer()[:] = body
    (message,) = target.buffer_updated(len(body))
    assert message.body.tobytes() == body.tobytes()


def test_body_memory_is_reused_only_when_nobody_sees_it():
    head, body = batch_bytes({"x": np.arange(100_000)}, [1])
    data = head + body.tobytes()
    target = decoder()
    (first,) = feed(target, data)
    address = first.body.ctypes.data
    view = first.body[64:128].view("<i8")
    del first
    held = view.copy()
    for _ in range(12):
        (other,) = feed(target, data)
        assert other.body.ctypes.data != address
        other.body[:] = 0xFF
    assert (view == held).all()
    del view, other
    addresses = set()
    for _ in range(6):
        (message,) = feed(target, data)
        addresses.add(message.body.ctypes.data)
        del message
    assert len(addresses) == 1


def test_the_head_limit_counts():
    data = encode_message("PING", {"token": "x" * 1000})
    assert feed(Decoder(len(data) - 5, 0), data)
    with pytest.raises(ProtocolError, match="limit"):
        feed(Decoder(len(data) - 6, 0), data)


def test_a_long_head_arrives_in_any_pieces():
    data = encode_message("PING", {"token": "x" * 200_000}) * 3
    for step in (97, 4096, 65536):
        target = decoder()
        got = feed(target, data, range(0, len(data), step))
        assert [len(message.header["token"]) for message in got] == [200_000] * 3
        assert len(target.get_buffer()) <= 64 * 1024


def test_claims_allocate_nothing():
    """4 GiB bodies, and lists of a million elements nested a thousand deep, that never come."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    head = b"\x94\xa5BATCH\x80\xc4\x00\xc6\xff\xff\xff\xff"
    claim = b"\xdd\x00\x0f\x00\x00"
    nested = b"\x92\xa1A\x81\xa1x" + claim * 500
    nested += b"\xc0" * (MIB - len(nested))
    for data in (
        b"\xce\xff\xff\xff\xff",
        struct.pack(">BI", 0xCE, len(head)) + head,
        struct.pack(">BI", 0xCE, len(nested)) + nested,
    ):
        connection = Connection(SERVER_LIMITS)
        at = 0
        while at < len(data) and connection.failed is None:
            buffer = connection.get_buffer()
            n = min(len(buffer), len(data) - at)
            buffer[:n] = data[at : at + n]
            at += n
            assert connection.buffer_updated(n) == []
        assert isinstance(connection.failed, ProtocolError)
    # A body that the limits allow is not touched before its bytes arrive.
    head = b"\x94\xa5BATCH\x80\xc4\x00\xc6\x80\x00\x00\x00"
    assert feed(Decoder(MIB, 2**32), struct.pack(">BI", 0xCE, len(head)) + head) == []
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 16 * 1024  # KiB


def test_true_claims_pass_the_scan():
    value = {"a": list(range(40_000)), "b": b"\xdd\xff\xff\xff\xff" * 3000, "c": [[1.5] * 20] * 900}
    value["d"] = {str(i): "s" * (i % 300) for i in range(3000)}
    value["e"] = [msgpack.ExtType(5, b"x" * n) for n in (1, 2, 4, 8, 16, 17, 300, 70_000)]
    value["f"] = [2**n for n in range(64)] + [-(2**n) for n in range(64)] + [1.5, None, True]
    value["g"] = [b"x" * n for n in (3, 300, 70_000)] + ["x" * n for n in (3, 40, 300, 70_000)]
    check_claims(msgpack.packb(value))
    with pytest.raises(ValueError, match="claim"):
        check_claims(b"\xdd\x00\x00\xff\xff" * 2 + b"\xc0" * 70_000)


class TestConnection:
    def test_send_and_receive(self):
        a, b = Connection(CLIENT_LIMITS), Connection(SERVER_LIMITS)
        a.send("HELLO", {"version": [1, 1]})
        a.send("PING", {"token": 7})
        got = []
        for data in a.data_to_send():
            b.get_buffer()[: len(data)] = data
            got += b.buffer_updated(len(data))
        assert [message.kind for message in got] == ["HELLO", "PING"]
        assert a.data_to_send() == []
        b.eof_received()
        assert b.failed is None

    def test_failure_is_kept_not_raised(self):
        connection = Connection(SERVER_LIMITS)
        connection.get_buffer()[:4] = b"junk"
        assert connection.buffer_updated(4) == []
        failed = connection.failed
        assert isinstance(failed, ProtocolError)
        connection.get_buffer()[:4] = b"junk"
        assert connection.buffer_updated(4) == []
        connection.eof_received()
        assert connection.failed is failed

    def test_eof_in_a_message_fails(self):
        connection = Connection(SERVER_LIMITS)
        connection.get_buffer()[:2] = b"\xce\x00"
        connection.buffer_updated(2)
        connection.eof_received()
        assert "middle" in str(connection.failed)

    def test_peer_limits_are_checked_before_queueing(self):
        connection = Connection(SERVER_LIMITS)
        connection.peer_limits = Limits(head=100, body=10)
        with pytest.raises(
            ValueError, match=r"head of BATCH takes \d+ bytes, the peer accepts 100"
        ):
            connection.send("BATCH", {"stream": "x" * 100})
        with pytest.raises(ValueError, match="body of BATCH takes 11 bytes, the peer accepts 10"):
            connection.send("BATCH", {}, None, memoryview(bytes(11)))
        assert connection.data_to_send() == []
        connection.send("BATCH", {}, None, memoryview(bytes(10)))
        assert len(connection.data_to_send()) == 2

    def test_a_body_is_sent_without_copying(self):
        body = np.zeros(1000, "<f4")
        connection = Connection(SERVER_LIMITS)
        connection.send("BATCH", {}, None, body.data)
        view = connection.data_to_send()[1]
        assert np.shares_memory(np.frombuffer(view, np.uint8), body)

    def test_limits_in_headers(self):
        assert Limits.from_header(CLIENT_LIMITS.as_header()) == CLIENT_LIMITS
        for bad in (None, {}, {"head": 0, "body": 1}, {"head": True, "body": 1}, {"head": 1}):
            with pytest.raises(ProtocolError, match="limits"):
                Limits.from_header(bad)


def test_headers_take_numpy_integers_and_nothing_odd():
    (message,) = feed(decoder(), encode_message("ACK", {"batch": np.int64(3), "v": (1, 2)}))
    assert message.header == {"batch": 3, "v": [1, 2]}
    with pytest.raises(TypeError, match="object"):
        encode_message("ACK", {"batch": object()})


def test_packed_entries_are_spliced_in():
    for n in (0, 1, 14, 15, 16, 20):
        header = {f"k{i}": i for i in range(n)}
        packed = {"value": msgpack.packb([1, {"a": 2}]), "w": b"\xc0"}
        (message,) = feed(decoder(), encode_message("BATCH", header, packed=packed))
        assert message.header == {**header, "value": [1, {"a": 2}], "w": None}
