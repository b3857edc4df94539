"""The client's connection without a socket: what the server says, and what the client said."""

import msgpack

from tundish_client._protocol.client import ClientConnection
from tundish_client._protocol.frames import encode_message
from tundish_client._protocol.values import encode_value

WELCOME = encode_message("WELCOME", {"version": 1, "shared_memory": False, "new key": 1})


def feed(core: ClientConnection, data: bytes, step: int = 1 << 20) -> None:
    """Has the client receive `data`, `step` bytes at a time."""
    while data:
        view = core.get_buffer()
        n = min(step, len(view), len(data))
        view[:n] = data[:n]
        core.receive(n)
        data = data[n:]


def batch(number: int, **extra: object) -> bytes:
    """A BATCH of stream 1."""
    packed = {"value": encode_value(f"value {number}").packed}
    header = {"stream": 1, "batch": number, "nbytes": 0, "times": [1, 2], **extra}
    return encode_message("BATCH", header, packed=packed)


def sent(core: ClientConnection) -> list[list[object]]:
    """The messages that the client has queued since the last look."""
    out = []
    for data in core.data_to_send():
        assert data[0] == 0xCE and int.from_bytes(data[1:5], "big") == len(data) - 5
        out.append(msgpack.unpackb(data[5:]))
    return out
