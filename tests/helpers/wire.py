"""Moves values and messages through the real codec, without a socket."""

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from tundish_client._protocol.frames import Decoder, Message, encode_message
from tundish_client._protocol.values import encode_samples, encode_value, resolve
from tundish_client._protocol.wire_errors import decode_exception, encode_exception

MIB = 2**20


def decoder(max_head: int = MIB, max_body: int = 1024 * MIB) -> Decoder:
    return Decoder(max_head, max_body)


def feed(target: Decoder, data: bytes, cuts: Iterable[int] = ()) -> list[Message]:
    """Receives `data` in pieces that end at `cuts`, each as the decoder's buffers allow."""
    out: list[Message] = []
    view = memoryview(data)
    at = 0
    for end in [*sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]:
        while at < end:
            buffer = target.get_buffer()
            n = min(len(buffer), end - at)
            buffer[:n] = view[at : at + n]
            at += n
            out += target.buffer_updated(n)
    return out


def batch_bytes(value: Any, samples: Iterable[int] = (), **header: Any) -> tuple[bytes, np.ndarray]:
    """Encodes an inline BATCH as the server does; returns its head and its body."""
    encoded = encode_value(value)
    samples = np.fromiter(samples, "<i8")
    body = np.full(encoded.nbytes + samples.nbytes, 0xAA, np.uint8)
    encoded.write_into(body[: encoded.nbytes])
    body[encoded.nbytes :] = samples.view(np.uint8)
    packed = {
        "value": encoded.packed,
        "samples": encode_samples(encoded.nbytes, len(samples)),
    }
    head = encode_message(
        "BATCH", header or {"stream": 1, "batch": 0}, packed=packed, body_nbytes=len(body)
    )
    return head, body


def round_trip(value: Any) -> Any:
    """Sends a value inline and returns what a client would hand out."""
    head, body = batch_bytes(value, [3, 1])
    (message,) = feed(decoder(max_head=16 * MIB), head + body.tobytes())
    assert resolve(message.header["samples"], message.body).tolist() == [3, 1]
    return resolve(message.header["value"], message.body)


def send_error(exc: BaseException) -> Exception:
    """Raises `exc`, sends it as an ERROR and returns what a client would raise."""
    try:
        raise exc
    except BaseException as raised:
        header = encode_exception(raised)
    data = encode_message("ERROR", {"stream": 1, "batch": 2, **header})
    (message,) = feed(decoder(), data)
    return decode_exception(message.header)


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, with the bits of floats and arrays."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k, m) and same(a[k], b[m]) for k, m in zip(a, b, strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
