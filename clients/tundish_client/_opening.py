"""Opening a connection, the first one or one after a loss: all but the waiting."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import time
import weakref
from typing import NoReturn

from ._protocol.client import ClientConnection
from .config import DEFAULT_NAME, ClientOptions
from .errors import ConnectError, ConnectTimeout
from .shm import Segments

__all__ = ["Opening", "Patience", "Recovery"]

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1
_LEAST_HANDSHAKE = 0.25
_SILENCE = 1.0  # seconds of waiting without a word
_BARREN = 3  # losses in a row, without anything having come, that each get their time
_HANGUPS = 3  # connections that may be closed at once: a server that is going, or not yet there

_log = logging.getLogger("tundish.client")


class Patience:
    """How long to look for a server.

    Attributes:
        option: The option that says so.
        seconds: Its value.
        deadline: The end of it (`time.monotonic`).
        not_before: When to try first.
        again: Whether there was a connection before, so that one that ends in the handshake is a
            server that is going, not something else than a server.
    """

    def __init__(self, option: str, seconds: float, *, again: bool = False) -> None:
        self.option = option
        self.seconds = seconds
        self.again = again
        self.not_before = self.began = time.monotonic()
        self.deadline = self.began + seconds

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({self.option})"


class Recovery:
    """The patience of a client whose server goes away, perhaps time and again."""

    def __init__(self, path: str, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._barren = 0
        self._patience: Patience | None = None

    def after(self, core: ClientConnection) -> Patience:
        """Returns for how long to look for the server that `core` was connected to.

        A server that goes away again and again before it has sent anything doesn't start the time
        anew for ever.

        Raises:
            ConnectTimeout: It said that it will be away for longer.
        """
        now = time.monotonic()
        self._barren = 0 if core.progressed else self._barren + 1
        patience = self._patience
        if patience is None or self._barren <= _BARREN:
            patience = self._patience = Patience("reconnect_timeout", self._seconds, again=True)
        elif now > patience.deadline:
            raise ConnectTimeout(
                f"{self._barren} connections in a row were lost before anything came, for longer "
                f"than {patience}"
            )
        pause = min(_FIRST_PAUSE * 2**self._barren, _SILENCE) if self._barren else 0.0
        patience.not_before = now + max(pause, core.back_in)
        if core.back_in > self._seconds:
            raise ConnectTimeout(
                f"that is later than {patience} allows: give the client a longer one"
            )
        _log.warning(
            "lost the server at %r: %s; looking for it for up to %s",
            self._path, core.failed, patience,
        )  # fmt: skip
        return patience

    def succeeded(self) -> None:
        """There is a connection again."""
        if self._patience is not None:
            seconds = time.monotonic() - self._patience.began
            # Not since it went away: that may have been noticed late.
            _log.warning(
                "found the server at %r again after %.2f s of looking for it", self._path, seconds
            )

    def failed(self) -> None:
        """The time has run out; the next loss is the first again."""
        self._barren = 0
        self._patience = None


class Opening:
    """One client's way to an open connection; the driver does the waiting.

    `go_on` until it returns True, waiting for what `wait` returns between. Then `detach`. In any
    case `abandon` at the end.

    Attributes:
        core: The connection to be; there is one as soon as somebody has accepted.
        segments: The shared memory, if the server offers it and its side channel arrived.
    """

    core: ClientConnection

    def __init__(self, options: ClientOptions, patience: Patience | None = None) -> None:
        self.segments: Segments | None = None
        self._options = options
        self._patience = patience or Patience("connect_timeout", options.timeout)
        self._deadline = self._patience.deadline
        # After a loss that has been told already.
        self._speak_at = None if self._patience.again else time.monotonic() + _SILENCE
        self._pause = _FIRST_PAUSE
        self._reason = "it is not time to try"
        self._fds: list[int] = []
        self._sock: socket.socket | None = None
        self._heard = 0  # bytes of the present attempt
        self._hangups = 0
        self._done = False
        _live.add(self)

    def go_on(self) -> bool:
        """Tries to connect, or takes in what has arrived; True when the connection is open.

        Raises:
            ConnectError: Trying again is of no use.
        """
        if not self._done:
            if self._sock is None and time.monotonic() >= self._patience.not_before:
                self._sock = self._connect()
            elif self._sock is not None:
                self._receive(self._sock)
        return self._done

    def wait(self) -> tuple[socket.socket | None, float]:
        """Returns what has to be readable (None: just time has to pass), and seconds at most.

        Raises:
            ConnectTimeout: There is no time left.
        """
        now = time.monotonic()
        if self._sock is not None:
            return self._sock, self._silence(now)
        left = self._patience.deadline - now
        if left <= 0:
            self._give_up()
        self._wait_aloud(self._reason)
        if now < self._patience.not_before:
            return None, min(self._patience.not_before - now, left)
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return None, min(pause, left)

    def detach(self) -> socket.socket:
        """Gives the socket of the open connection away; it does not block."""
        sock, self._sock = self._sock, None
        assert sock is not None
        return sock

    def abandon(self) -> None:
        """Closes what nobody took."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        while self._fds:
            os.close(self._fds.pop())

    # Connecting

    def _connect(self) -> socket.socket | None:
        """Tries once; returns a non-blocking socket with HELLO sent, or None."""
        sock: socket.socket | None = None
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            sock.connect(self._options.path)
        except OSError as error:
            if sock is not None:
                sock.close()
            self._could_not(error)
            return None
        self._heard = 0
        self.core = ClientConnection(
            shared_memory=bool(self._options.shared_memory),
            recovers=self._options.patience > 0,
            name=self._options.name or DEFAULT_NAME,
        )
        with contextlib.suppress(OSError):  # gone already: what it said is there to be read
            sock.send(b"".join(self.core.data_to_send()), socket.MSG_NOSIGNAL)
        self._deadline = max(self._patience.deadline, time.monotonic() + _LEAST_HANDSHAKE)
        return sock

    def _could_not(self, error: OSError) -> None:
        """Takes note that nothing could be connected to.

        Raises:
            ConnectError: Trying again is of no use.
        """
        path, refused = self._options.path, isinstance(error, ConnectionRefusedError)
        what = _kind_of_file(path) if refused else None
        if what is not None:
            self._reason = f"there is {what}, not a socket"
        elif refused or isinstance(error, FileNotFoundError | BlockingIOError):
            self._reason = _reason(error)
            return
        else:
            self._reason = str(error.strerror or error)
        if not self._patience.again:  # else it may be about to make its folder and its file
            raise ConnectError(
                f"cannot connect to {path!r}: {self._reason}; give the socket of a server as "
                "Client(socket) or in TUNDISH_SOCKET"
            ) from error

    def _give_up(self) -> NoReturn:
        path, patience = self._options.path, self._patience
        if patience.again:
            raise ConnectTimeout(f"it did not come back within {patience}: {self._reason}")
        raise ConnectTimeout(
            f"no server at {path!r} within {patience}: {self._reason}. Start one with `tundish "
            f"serve TARGET --socket {path}`, or give its socket as Client(socket) or in "
            "TUNDISH_SOCKET"
        )

    def _silence(self, now: float) -> float:
        """For how many seconds to wait for an answer before asking this again."""
        left = self._deadline - now
        if left <= 0:
            raise ConnectTimeout(
                f"something listens at {self._options.path!r} but did not answer within "
                f"{self._patience}: it is not a Tundish server, or it is stopped"
            )
        self._wait_aloud("something listens there but has not answered yet")
        silence = left if self._speak_at is None else self._speak_at - now
        return min(left, max(silence, 0.001))

    def _wait_aloud(self, reason: str) -> None:
        """Says once, after a second, what is being waited for."""
        if self._speak_at is not None and time.monotonic() >= self._speak_at:
            self._speak_at = None
            _log.warning(
                "waiting for a server at %r, for up to %s: %s",
                self._options.path, self._patience, reason,
            )  # fmt: skip

    # The handshake

    def _receive(self, sock: socket.socket) -> None:
        core = self.core
        try:
            n, ancillary, _, _ = sock.recvmsg_into(
                [core.get_buffer()], socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:  # a reset says no more than an end
            n, ancillary = 0, []
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._fds += memoryview(data[: len(data) // 4 * 4]).cast("i").tolist()
        self._heard += n
        if n:
            core.receive(n)
        elif self._is_leaving():
            self.abandon()
            return
        else:
            core.eof_received()
        if core.failed is not None:
            self._refuse(core.failed)
        if core.opened:
            self._take_side_channel()
            self._done = True

    def _is_leaving(self) -> bool:
        """Whether a server that closed the connection may be there again, or another one."""
        core, patience = self.core, self._patience
        if core.goaway is not None:
            self._reason = f"the server there left: {core.goaway}"
            patience.not_before = time.monotonic() + core.back_in
            return True
        self._hangups += 1
        self._reason = "what listened there closed the connection at once"
        return patience.again or (not self._heard and self._hangups < _HANGUPS)

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
        while self._fds:
            os.close(self._fds.pop())


def _kind_of_file(path: str) -> str | None:
    """What there is instead of a socket; None if there is one, or nothing."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return None
    if stat.S_ISSOCK(mode):
        return None
    if stat.S_ISREG(mode):
        return "a file"
    return "a folder" if stat.S_ISDIR(mode) else "a device or pipe"


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there (a stale file?)"
    return "its queue of connections is full"


_live: weakref.WeakSet[Opening] = weakref.WeakSet()


def _in_child() -> None:
    for opening in list(_live):
        with contextlib.suppress(Exception):
            opening.abandon()


os.register_at_fork(after_in_child=_in_child)
