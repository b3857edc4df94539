"""``spawn()``: a server of one's own, that lives exactly as long as it is needed.

The sidecar has a session of its own, so that Ctrl-C in a terminal ends the trainer only, and
watches its parent through a pidfd, so that it ends however the parent does, SIGKILL included. Its
socket lies in a private folder, which it removes itself if the parent no longer can.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping

from tundish_client import Client
from tundish_client.errors import ConfigError, ConnectError, ConnectTimeout

__all__ = ["spawn"]

STOP_TIMEOUT = 1.5
"""Seconds a sidecar has to end after SIGTERM before it is killed."""

_MOST_TEXT = 64 * 1024


def spawn(
    target: str,
    *,
    socket: str | os.PathLike[str] | None = None,
    memory_limit: int | str | None = None,
    share_window: int | str | None = None,
    share_linger: float | None = None,
    join_timeout: float | None = None,
    lease_timeout: float | None = None,
    metrics: str | None = None,
    connect_timeout: float = 30.0,
    shared_memory: bool | None = None,
) -> Client:
    """Starts a server for `target` and returns a client of it; closing the client ends the server.

    Args:
        target: What to serve, as for `tundish serve`: `"feeds.py:train"` or
            `"package.module:attribute"`.
        socket: Path of the socket, for further clients; by default one in a private folder (see
            `client.socket`).
        memory_limit: Bytes that batches may take in all, also as "1GiB".
        share_window: As for `serve`, and so are the next four; each that is left out is read from
            its `TUNDISH_...` variable.
        share_linger: As for `serve`.
        join_timeout: As for `serve`.
        lease_timeout: As for `serve`.
        metrics: As for `serve`.
        connect_timeout: Seconds the server has to import the target and listen.
        shared_memory: As for `Client`.

    Returns:
        A `Client` with `.pid` of the server. The server also ends with this process, however that
        ends.

    Raises:
        ConfigError: `target` is no str.
        ConnectError: The server ended before it listened; the message is what it wrote to stderr.
        ConnectTimeout: It did not listen in time.

    Example:
        >>> with spawn("feeds.py:train") as client:  # doctest: +SKIP
        ...     for batch in client.epoch(0):
        ...         train(batch)
    """
    if not isinstance(target, str):
        raise ConfigError(
            f"target must be a str such as 'feeds.py:train', got {target!r:.100}: the server is "
            "another process and imports its loaders itself (serve() takes a DataLoader)"
        )
    deadline = time.monotonic() + connect_timeout
    options = {
        "--memory-limit": memory_limit,
        "--share-window": share_window,
        "--share-linger": share_linger,
        "--join-timeout": join_timeout,
        "--lease-timeout": lease_timeout,
        "--metrics": metrics,
    }
    sidecar = _Sidecar(target, socket, options)
    try:
        sidecar.wait(deadline, connect_timeout)
        left = max(deadline - time.monotonic(), 0.1)
        client = Client(
            sidecar.socket,
            connect_timeout=left,
            reconnect_timeout=0,  # a sidecar that is gone does not come back
            shared_memory=shared_memory,
        )
    except BaseException:
        sidecar.stop()
        raise
    client.pid = sidecar.process.pid
    # Not only `close` ends the server: so do garbage collection and the interpreter's end.
    client._closers.append(weakref.finalize(client, sidecar.stop))
    return client


class _Sidecar:
    """The server's process."""

    def __init__(
        self, target: str, socket: str | os.PathLike[str] | None, options: Mapping[str, object]
    ) -> None:
        self.folder = tempfile.mkdtemp(prefix="tundish-")
        self.socket = os.path.join(self.folder, "s") if socket is None else os.fspath(socket)
        self._target = target
        command = [sys.executable, "-m", "tundish", "serve", target, "--socket", self.socket]
        for name, value in options.items():
            if value is not None:
                command += [name, str(value)]
        try:
            self._start(command)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self._owner = os.getpid()

    def _start(self, command: list[str]) -> None:
        self._status, status = os.pipe()
        self._text, text = os.pipe()
        parent = os.pidfd_open(os.getpid())
        errors = _stderr()
        passed = f"{parent},{status},{errors},{self.folder}"
        environment = {"TUNDISH_LOG_LEVEL": "warning", **os.environ}
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                [*command, "--sidecar", passed],
                stdin=subprocess.DEVNULL,
                stderr=text,
                pass_fds=(parent, status, errors),
                start_new_session=True,
                env=environment,
            )
        except BaseException:
            os.close(self._status)
            os.close(self._text)
            raise
        finally:
            for fd in (status, text, parent, errors):
                os.close(fd)

    def wait(self, deadline: float, timeout: float) -> None:
        """Waits until the socket listens.

        Raises:
            ConnectError: The process ended first.
            ConnectTimeout: The deadline passed.
        """
        text = b""
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        poll.register(self._text, select.POLLIN)
        try:
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ConnectTimeout(self._late(timeout, text))
                events = dict(poll.poll(left * 1000))
                if self._text in events:
                    text += self._read(poll)
                if self._status in events:
                    if os.read(self._status, 1):
                        break
                    raise ConnectError(self._ended(text))
        finally:
            text += self._rest()
            os.close(self._status)
            os.close(self._text)
        if text:  # warnings of the target, say; they were meant for stderr
            sys.stderr.write(text.decode(errors="replace"))

    def _read(self, poll: select.poll) -> bytes:
        data = os.read(self._text, _MOST_TEXT)
        if not data:
            poll.unregister(self._text)
        return data

    def _rest(self) -> bytes:
        os.set_blocking(self._text, False)
        with contextlib.suppress(BlockingIOError):
            return os.read(self._text, _MOST_TEXT)
        return b""

    def _ended(self, text: bytes) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT)
        return _told(
            f"the server for {self._target!r} ended (exit status {self.process.poll()}) "
            "before it listened",
            text + self._rest(),
        )

    def _late(self, timeout: float, text: bytes) -> str:
        return _told(
            f"the server for {self._target!r} did not listen within {timeout:g} s "
            "(connect_timeout): does the target do its work on import?",
            text,
        )

    def stop(self) -> None:
        """Ends the process and removes its folder; in a forked child it does nothing."""
        if os.getpid() != self._owner:
            return
        process = self.process
        try:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_TIMEOUT)
                if process.poll() is None:
                    process.kill()
                    process.wait()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def _told(what: str, text: bytes) -> str:
    said = text.decode(errors="replace").strip()
    return f"{what}:\n{said}" if said else what


def _stderr() -> int:
    """A copy of this process's stderr for the sidecar, also where there is none."""
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
