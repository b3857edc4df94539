"""The examples in docs/protocol.md are what the codec writes and reads."""

import inspect
import json
import re
import struct
from pathlib import Path

import msgpack
import numpy as np
import pytest

from helpers.wire import decoder, feed
from tundish_client._protocol import client, server
from tundish_client._protocol.frames import encode_message
from tundish_client._protocol.values import encode_samples, encode_value, resolve
from tundish_client._protocol.wire_errors import decode_exception

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(hex|json) ([\w-]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEX = {name: bytes.fromhex(text) for form, name, text in BLOCK.findall(PAGE) if form == "hex"}
JSON = {name: json.loads(text) for form, name, text in BLOCK.findall(PAGE) if form == "json"}

VALUE = {"x": np.array([[1, 2], [3, 4]], "<f4"), "y": (7, "seven")}
SAMPLES = np.array([5, 9])


def is_value(got):
    assert list(got) == ["x", "y"]
    assert np.array_equal(got["x"], VALUE["x"])
    assert got["x"].dtype == VALUE["x"].dtype
    assert got["y"] == VALUE["y"]
    assert type(got["y"]) is tuple


def encoded_batch():
    encoded = encode_value(VALUE)
    body = np.zeros(encoded.nbytes + 16, np.uint8)
    encoded.write_into(body[: encoded.nbytes])
    body[encoded.nbytes :] = SAMPLES.view(np.uint8)
    samples = encode_samples(encoded.nbytes, len(SAMPLES))
    return {"value": encoded.packed, "samples": samples}, body.tobytes()


def test_every_kind_of_the_code_has_an_example():
    source = inspect.getsource(client) + inspect.getsource(server)
    kinds = set(re.findall(r'"([A-Z]{3,}(?:_DROP)?)"', source)) - {"END_OF_STREAM"}
    assert kinds <= {kind for kind, _ in JSON.values()}
    assert set(JSON) | {"record", "slot"} == set(HEX)


@pytest.mark.parametrize("name", [name for name in JSON if not name.startswith("BATCH")])
def test_control_messages(name):
    kind, header = JSON[name]
    assert encode_message(kind, header) == HEX[name]
    (message,) = feed(decoder(), HEX[name])
    assert (message.kind, message.header, message.body) == (kind, header, None)


def test_the_inline_batch():
    kind, header = JSON["BATCH-inline"]
    packed, body = encoded_batch()
    head = encode_message(kind, header, packed=packed, body_nbytes=len(body))
    assert head + body == HEX["BATCH-inline"]
    assert len(head) % 64 == 0
    (message,) = feed(decoder(), HEX["BATCH-inline"])
    is_value(resolve(message.header["value"], message.body))
    assert resolve(message.header["samples"], message.body).tolist() == SAMPLES.tolist()
    assert {k: message.header[k] for k in header} == header
    assert message.header["nbytes"] == len(body)


def test_the_batch_without_a_skipped_sample():
    kind, header = JSON["BATCH-skipped"]
    packed, body = encoded_batch()
    head = encode_message(kind, header, packed=packed, body_nbytes=len(body))
    assert head + body == HEX["BATCH-skipped"]
    (message,) = feed(decoder(), HEX["BATCH-skipped"])
    assert message.header["skipped"] == [7]
    assert resolve(message.header["samples"], message.body).tolist() == SAMPLES.tolist()


def test_the_shared_batch():
    kind, header = JSON["BATCH-shared"]
    packed, body = encoded_batch()
    assert encode_message(kind, header, packed=packed) == HEX["BATCH-shared"]
    assert body == HEX["slot"]
    (message,) = feed(decoder(), HEX["BATCH-shared"])
    assert message.body is None
    slot = np.frombuffer(HEX["slot"], np.uint8)
    is_value(resolve(message.header["value"], slot))
    assert resolve(message.header["samples"], slot).tolist() == SAMPLES.tolist()


def test_the_error_is_an_exception():
    (message,) = feed(decoder(), HEX["ERROR"])
    error = decode_exception(message.header)
    assert type(error) is FileNotFoundError
    assert (error.errno, error.filename) == (2, "/data/7")
    assert str(error) == message.header["message"]


def test_the_side_channel_record():
    assert struct.pack("<IIIIQ", 1, 1, 2, 0, 3) == HEX["record"]


def test_all_examples_are_one_msgpack_stream():
    unpacker = msgpack.Unpacker(strict_map_key=False)
    messages = [data for name, data in HEX.items() if name not in {"record", "slot"}]
    unpacker.feed(b"".join(messages))
    objects = list(unpacker)
    assert [type(item) for item in objects] == [int, list] * len(messages)
    for data, length, array in zip(messages, objects[::2], objects[1::2], strict=True):
        assert [array[0], len(array) == 4] in [[kind, len(array) == 4] for kind, _ in JSON.values()]
        assert 5 + length + (len(array[3]) if len(array) == 4 else 0) == len(data)


def test_a_foreign_client_needs_a_msgpack_library_alone():
    """What the page says about bodies, done by hand and without this codec."""
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(HEX["BATCH-inline"])
    assert unpacker.unpack() == len(HEX["BATCH-inline"]) - 5 - 80
    _, header, _, body = unpacker.unpack()
    code, payload = header["value"]["x"]
    dtype, shape, offset, nbytes = msgpack.unpackb(payload)
    assert (code, dtype, shape, offset, nbytes) == (1, "<f4", [2, 2], 0, 16)
    assert struct.unpack("<4f", body[offset : offset + nbytes]) == (1, 2, 3, 4)
    assert msgpack.unpackb(header["value"]["y"].data) == [7, "seven"]
    assert struct.unpack("<2q", body[64:80]) == (5, 9)
