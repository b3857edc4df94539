"""A client down to the bytes: what the real ones would never send, or never tell."""

import contextlib
import os
import socket
import struct
from typing import Any

import numpy as np

from helpers.timing import MS
from tundish_client._protocol.connection import CLIENT_LIMITS
from tundish_client._protocol.frames import Decoder, Message, encode_message
from tundish_client._protocol.values import resolve

RECORD = struct.Struct("<IIIIQ")
CREDITS = {"batches": 4, "bytes": 2**30}


def hello(version: tuple[int, int] = (1, 1), *, shared_memory: bool = False, **extra: Any) -> bytes:
    """The bytes of a HELLO."""
    header = {
        "version": list(version),
        "features": [],
        "client": {"name": "raw", "pid": os.getpid()},
        "shared_memory": shared_memory,
        "limits": CLIENT_LIMITS.as_header(),
        **extra,
    }
    return encode_message("HELLO", header)


def epoch(stream: int = 1, credits: dict[str, int] | None = None, **extra: Any) -> bytes:
    """The bytes of an EPOCH."""
    header = {"stream": stream, "epoch": 0, "credits": CREDITS if credits is None else credits}
    return encode_message("EPOCH", header | extra)


class Raw:
    """One connection; blocking, with a timeout on each wait."""

    def __init__(self, path: Any, *, shared_memory: bool | None = None) -> None:
        """Connects; says HELLO and awaits WELCOME unless `shared_memory` is None."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5000 * MS)
        self.sock.connect(str(path))
        self.side: socket.socket | None = None
        self.segments: dict[int, int] = {}
        self._decoder = Decoder(CLIENT_LIMITS.head, CLIENT_LIMITS.body)
        self._messages: list[Message] = []
        if shared_memory is not None:
            self.sock.sendall(hello(shared_memory=shared_memory))
            self.welcome = self.receive("WELCOME").header

    def send(self, kind: str, **header: Any) -> None:
        self.sock.sendall(encode_message(kind, header))

    def receive(self, kind: str | None = None) -> Message:
        """The next message, which must be of this kind; SEGMENTs are taken in on the way."""
        while not self._messages:
            self._read()
        message = self._messages.pop(0)
        if message.kind == "SEGMENT" and kind != "SEGMENT":
            self.take_segment()
            return self.receive(kind)
        assert kind in {None, message.kind}, f"expected {kind}, got {message} {message.header}"
        return message

    def _read(self) -> None:
        n, ancillary, _, _ = self.sock.recvmsg_into(
            [self._decoder.get_buffer()], socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC
        )
        for _, _, data in ancillary:
            self.side = socket.socket(fileno=struct.unpack("i", data[:4])[0])
            self.side.settimeout(5000 * MS)
        if not n:
            raise EOFError("the server closed the connection")
        self._messages += self._decoder.buffer_updated(n)

    def closed(self) -> bool:
        """Whether the server closes the connection, after whatever it still has to say."""
        try:
            while True:
                self._messages.clear()
                self._read()
        except (EOFError, ConnectionResetError):
            return True
        except TimeoutError:
            return False

    def take_segment(self) -> int:
        """Receives a segment's file from the side channel; returns its number."""
        data, fds, _, _ = socket.recv_fds(self.side, RECORD.size, 1)
        kind, number, *_ = RECORD.unpack(data)
        assert (kind, len(fds)) == (3, 1)
        self.segments[number] = fds[0]
        return number

    def value(self, message: Message) -> Any:
        """The value of a BATCH, from its body or from its slot."""
        header, body = message.header, message.body
        if "segment" in header:
            data = os.pread(self.segments[header["segment"]], header["nbytes"], header["offset"])
            body = np.frombuffer(bytearray(data), np.uint8)
        assert body is not None and len(body) == header["nbytes"]
        return resolve(header["value"], body)

    def release(self, message: Message) -> None:
        """Returns the slot of a BATCH on the side channel."""
        header = message.header
        self.side.send(RECORD.pack(1, header["segment"], header["slot"], 0, header["generation"]))

    def close(self) -> None:
        self.sock.close()
        for fd in self.segments.values():
            with contextlib.suppress(OSError):
                os.close(fd)
        self.segments.clear()
        if self.side is not None:
            self.side.close()

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
