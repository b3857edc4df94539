"""The client's connection without a socket."""

import msgpack
import pytest

from tundish_client._protocol.acks import ack_message
from tundish_client._protocol.client import END, ClientConnection
from tundish_client._protocol.frames import encode_message
from tundish_client._protocol.reading import StreamState
from tundish_client._protocol.values import encode_value
from tundish_client.config import EpochOptions
from tundish_client.errors import ConnectionLost, ProtocolError

WELCOME = encode_message("WELCOME", {"version": 1, "shared_memory": False, "new key": 1})
START = {"stream": 1, "feed": "f", "batches": 3}


def feed(core: ClientConnection, data: bytes, step: int = 1 << 20) -> None:
    while data:
        view = core.get_buffer()
        n = min(step, len(view), len(data))
        view[:n] = data[:n]
        core.receive(n)
        data = data[n:]


def batch(number: int, **extra: object) -> bytes:
    packed = {"value": encode_value(f"value {number}").packed}
    header = {"stream": 1, "batch": number, "nbytes": 0, "times": [1, 2], **extra}
    return encode_message("BATCH", header, packed=packed)


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


def sent(core: ClientConnection) -> list[list[object]]:
    out = []
    for data in core.data_to_send():
        assert data[0] == 0xCE and int.from_bytes(data[1:5], "big") == len(data) - 5
        out.append(msgpack.unpackb(data[5:]))
    return out


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_any_chunking(core, step):
    stream = opened(core)
    counts = {"batches": 3, "errors": 1}
    error = {
        "stream": 1,
        "batch": 1,
        "type": ["builtins", "KeyError"],
        "message": "k",
        "args": ["k"],
    }
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
    feed(core, batch(0, nbytes=640) + batch(1, nbytes=128))
    stream.handed = core.take(stream)
    assert sent(core) == []
    stream.handed = core.take(stream)
    ack = {"stream": 1, "batch": 0, "credits": {"batches": 1, "bytes": 640}}
    assert sent(core) == [["ACK", ack]]
    assert core.take(stream) is None
    ack = {"stream": 1, "batch": 1, "credits": {"batches": 1, "bytes": 128}}
    assert sent(core) == [["ACK", ack]]
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
