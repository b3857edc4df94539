"""What both clients share: opening a connection, without waiting, and the state of a client."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import weakref
from typing import Any, NoReturn

from ._protocol.client import ClientConnection
from .config import ClientOptions
from .errors import ConfigError, ConnectError, ConnectTimeout, TundishError
from .shm import Segments

__all__ = ["BaseClient", "Life", "Opening", "choose_feed"]

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1
_LEAST_HANDSHAKE = 0.25
_SILENCE = 1.0  # seconds of waiting without a word

_log = logging.getLogger("tundish.client")


class Opening:
    """One client's way to an open connection; the driver does the waiting.

    `attempt` until it returns a socket, sleeping `pause()` seconds between; then `receive` whenever
    the socket is readable, within `patience()` seconds, until it returns True.

    Attributes:
        core: The connection to be.
        segments: The shared memory, if the server offers it and its side channel arrived.
    """

    def __init__(self, options: ClientOptions) -> None:
        self.core = ClientConnection(shared_memory=bool(options.shared_memory))
        self.segments: Segments | None = None
        self._options = options
        self._deadline = time.monotonic() + options.timeout
        self._speak_at: float | None = time.monotonic() + _SILENCE
        self._pause = _FIRST_PAUSE
        self._reason = ""
        self._fds: list[int] = []

    def attempt(self) -> socket.socket | None:
        """Tries once to connect; returns a non-blocking socket with HELLO sent, or None.

        Raises:
            ConnectError: Trying again is of no use.
        """
        path = self._options.path
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
            sock.close()
            self._reason = _reason(error)
            return None
        except OSError as error:
            sock.close()
            raise ConnectError(f"cannot connect to {path!r}: {error.strerror or error}") from error
        with contextlib.suppress(OSError):  # gone already: what it said is there to be read
            sock.send(b"".join(self.core.data_to_send()), socket.MSG_NOSIGNAL)
        self._deadline = max(self._deadline, time.monotonic() + _LEAST_HANDSHAKE)
        return sock

    def pause(self) -> float:
        """Returns the seconds to sleep before the next attempt.

        Raises:
            ConnectTimeout: There is no time left.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise ConnectTimeout(
                f"no server at {self._options.path!r} within {self._options.timeout:g} s "
                f"(connect_timeout): {self._reason}. Start one with `tundish serve TARGET "
                f"--socket {self._options.path}`, or give its socket as Client(socket) or in "
                "TUNDISH_SOCKET"
            )
        self._wait_aloud(self._reason)
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return min(pause, left)

    def patience(self) -> float:
        """Returns for how many seconds to wait for an answer before asking this again.

        Raises:
            ConnectTimeout: There is no time left.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise ConnectTimeout(
                f"something listens at {self._options.path!r} but did not answer within "
                f"{self._options.timeout:g} s (connect_timeout): it is not a Tundish server, "
                "or it is stopped"
            )
        self._wait_aloud("something listens there but has not answered yet")
        silence = left if self._speak_at is None else self._speak_at - time.monotonic()
        return min(left, max(silence, 0.001))

    def _wait_aloud(self, reason: str) -> None:
        """Says once, after a second, what is being waited for."""
        if self._speak_at is not None and time.monotonic() >= self._speak_at:
            self._speak_at = None
            _log.warning(
                "waiting for a server at %r, for up to %g s (connect_timeout): %s",
                self._options.path,
                self._options.timeout,
                reason,
            )

    def receive(self, sock: socket.socket) -> bool:
        """Takes in what has arrived; True when the connection is open.

        Raises:
            ConnectError: The peer refuses, is no Tundish server, or is of another version.
        """
        core = self.core
        try:
            n, ancillary, _, _ = sock.recvmsg_into(
                [core.get_buffer()], socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError:  # a reset says no more than an end
            n, ancillary = 0, []
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._fds += memoryview(data[: len(data) // 4 * 4]).cast("i").tolist()
        if n:
            core.receive(n)
        else:
            core.eof_received()
        if core.failed is not None:
            self._refuse(core.failed)
        if core.opened:
            self._take_side_channel()
        return core.opened

    def _refuse(self, error: Exception) -> NoReturn:
        if isinstance(error, ConnectError):
            raise error
        raise ConnectError(
            f"the peer at {self._options.path!r} is not a Tundish server: {error}"
        ) from error

    def _take_side_channel(self) -> None:
        if self.core.wants_shared_memory and len(self._fds) == 1:
            self.segments = Segments(socket.socket(fileno=self._fds.pop()))
            self.core.segments = self.segments
        self.abandon()

    def abandon(self) -> None:
        """Closes the file descriptors that nobody took."""
        while self._fds:
            os.close(self._fds.pop())


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there (a stale file?)"
    return "its queue of connections is full"


class Life:
    """Whether a client may still be used, and why not.

    Attributes:
        closed: It was closed.
        forked: This process is a forked child of the one that opened it.
    """

    def __init__(self, name: str) -> None:
        self.closed = False
        self.forked = False
        self._name = name
        self._owner = os.getpid()

    @property
    def over(self) -> bool:
        """Whether there is nothing left to close."""
        return self.closed or self.forked

    def check(self) -> None:
        """Raises TundishError when the client is of no use here."""
        if self.forked:
            raise TundishError(
                f"this {self._name} belongs to process {self._owner} and was inherited "
                f"through fork: open one in process {os.getpid()}"
            )
        if self.closed:
            raise TundishError(f"this {self._name} is closed")


class BaseClient:
    """Options and state of a client, without input or output.

    Attributes:
        pid: The sidecar's pid, for a client from `tundish.spawn`; else None.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._life = Life(type(self).__name__)
        self.pid: int | None = None
        _live.add(self)

    @property
    def socket(self) -> str:
        """Path of the server's socket."""
        return self._options.path

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._life.closed

    def _abandon(self) -> None:
        """Lets go of inherited file descriptors in a forked child."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} holds an open connection and cannot be pickled: "
            "open one in the other process, with the same socket"
        )

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"{type(self).__name__}({self._options.path!r}{state})"


def choose_feed(feeds: list[dict[str, Any]], name: str | None) -> dict[str, Any]:
    """Picks the entry of one feed, the only one when `name` is None.

    Raises:
        ConfigError: There is no such feed, or the name is needed.
    """
    names = ", ".join(repr(entry["feed"]) for entry in feeds)
    if name is None and len(feeds) == 1:
        return feeds[0]
    for entry in feeds:
        if entry["feed"] == name:
            return entry
    if name is None:
        raise ConfigError(f"feed must be given, the server offers {names or 'none'}")
    raise ConfigError(f"feed must be one of {names or 'none at all'}, got {name!r:.100}")


_live: weakref.WeakSet[BaseClient] = weakref.WeakSet()


def _in_child() -> None:
    for client in list(_live):
        client._life.forked = True
        with contextlib.suppress(Exception):
            client._abandon()


os.register_at_fork(after_in_child=_in_child)
