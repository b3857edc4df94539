"""A go-between that cuts connections after so many bytes, at any moment of a conversation."""

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Sequence


class Cutter:
    """Passes bytes and file descriptors between clients and a server.

    Args:
        server: Path of the server's socket.
        down: After how many bytes of the server each connection in turn is cut; None, and those
            beyond the last, never.
        up: The same for bytes of the client.

    Attributes:
        path: Where clients connect.
        passed: For each connection, how many bytes of the server and of the client came through.
    """

    def __init__(
        self, server: str, down: Sequence[int | None] = (), up: Sequence[int | None] = ()
    ) -> None:
        self._server = server
        self._down, self._up = list(down), list(up)
        self._folder = tempfile.mkdtemp(prefix="tundish-")
        self.path = f"{self._folder}/s"
        self.passed: list[list[int]] = []
        self._socks: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._spawn(self._accept)

    def _spawn(self, work, *args) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                ends = client, server
                self._socks.update(ends)
                number = len(self.passed)
                self.passed.append([0, 0])
                budgets = [
                    given[number] if number < len(given) else None
                    for given in (self._down, self._up)
                ]
                self._spawn(self._pump, server, client, budgets[0], number, 0)
                self._spawn(self._pump, client, server, budgets[1], number, 1)

    def _pump(
        self, source: socket.socket, sink: socket.socket, left: int | None, number: int, way: int
    ) -> None:
        with contextlib.suppress(OSError):
            while left is None or left > 0:
                most = 1 << 16 if left is None else min(left, 1 << 16)
                data, fds, _, _ = socket.recv_fds(source, most, 4)
                if not data:
                    break
                self.passed[number][way] += len(data)
                sent = socket.send_fds(sink, [data], fds)
                for fd in fds:
                    os.close(fd)
                sink.sendall(data[sent:])
                left = None if left is None else left - len(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> "Cutter":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for sock in list(self._socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in (self._listener, *self._socks):
            sock.close()
        shutil.rmtree(self._folder)
