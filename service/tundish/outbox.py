"""What waits to be written to one client."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable

__all__ = ["Outbox"]

_COPIED = 64 * 1024  # up to here one buffer is cheaper than a vector of several
_VECTOR = min(os.sysconf("SC_IOV_MAX"), 256)
_SEND = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class Outbox:
    """Buffers on their way into a socket, written in order; large ones are never copied.

    A memoryview keeps its owner alive until it is written. Lives on the loop's thread.

    Attributes:
        nbytes: Bytes that wait for room in the socket.
        closed: Nothing will be written any more.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_room: Callable[[], None],
        on_error: Callable[[OSError], None],
    ) -> None:
        """Takes the non-blocking socket.

        Args:
            loop: The running loop.
            sock: Where to write.
            on_room: Called when nothing waits any more.
            on_error: Called when what waited can't be written.
        """
        self.nbytes = 0
        self.closed = False
        self._loop = loop
        self._sock = sock
        self._on_room = on_room
        self._on_error = on_error
        self._queue: deque[bytes | memoryview] = deque()
        self._watching = False

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def own(self) -> int:
        """Bytes that wait in memory of their own, not in that of a batch."""
        return sum(len(data) for data in self._queue if type(getattr(data, "obj", data)) is bytes)

    def write(self, buffers: list[bytes | memoryview]) -> None:
        """Writes buffers, now as far as there is room, the rest when there is.

        Raises:
            OSError: The client is gone.
        """
        if self.closed or not buffers:
            return
        if self._queue:
            self._append(buffers)
            return
        if len(buffers) == 1 or sum(map(len, buffers)) <= _COPIED:
            data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
            try:
                sent = self._sock.send(data, _SEND)
            except BlockingIOError:
                sent = 0
            if sent == len(data):
                return
            buffers = [memoryview(data)[sent:]]
        self._append(buffers)
        self._drain()

    def write_with_fd(self, buffers: list[bytes | memoryview], fd: int) -> None:
        """Writes the first message, with a file descriptor on its first byte.

        Raises:
            OSError: The client is gone, or something is waiting already.
        """
        if self._queue:
            raise BlockingIOError("a file descriptor goes with the first message only")
        data = b"".join(buffers)
        sent = socket.send_fds(self._sock, [data], [fd], _SEND)
        if sent < len(data):
            self._append([data[sent:]])
            self._drain()

    def close(self) -> None:
        """Forgets what waits."""
        self.closed = True
        self._queue.clear()
        self.nbytes = 0
        self._watch(False)

    def _append(self, buffers: list[bytes | memoryview]) -> None:
        self._queue.extend(buffers)
        self.nbytes += sum(map(len, buffers))

    def _drain(self) -> None:
        queue = self._queue
        while queue:
            vector = list(queue) if len(queue) <= _VECTOR else [queue[i] for i in range(_VECTOR)]
            try:
                sent = self._sock.sendmsg(vector, (), _SEND)
            except BlockingIOError:
                break
            self.nbytes -= sent
            while queue and sent >= len(queue[0]):
                sent -= len(queue.popleft())
            if sent:
                queue[0] = memoryview(queue[0])[sent:]
        self._watch(bool(queue))

    def _watch(self, wanted: bool) -> None:
        if wanted == self._watching:
            return
        self._watching = wanted
        if wanted:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _writable(self) -> None:
        try:
            self._drain()
        except OSError as error:
            self._on_error(error)
            return
        if not self._queue:
            self._on_room()
