"""The listening socket: who owns a path, and with which permissions it comes into being.

A file lock beside the socket decides who owns a path; the probe only tells a stale socket from
that of a program that takes no lock. Nothing but a stale socket is ever removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct

from tundish_client.config import check_socket_path, default_socket
from tundish_client.errors import ConfigError

__all__ = ["Listener", "peer"]

BACKLOG = 512

_UCRED = struct.Struct("3i")


class Listener:
    """A listening Unix socket that owns its path until `close`.

    Args:
        path: Where; None for `tundish_client.config.default_socket()`, whose folder is made
            (0700) if it is missing.
        mode: Permission bits of the socket. It never has more than these, whatever the umask.

    Attributes:
        path: The path as bound.
        sock: The socket, non-blocking.

    Raises:
        ConfigError: The path can't be used; the message says why and what stands there.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, mode: int = 0o600) -> None:
        if path is None:
            path = default_socket()
            if not os.environ.get("TUNDISH_SOCKET"):
                _make_folder(os.path.dirname(path))
        self.path = check_socket_path(path)
        self._home = os.path.abspath(self.path)
        _check_parent(self.path)
        self._lock = _Lock(f"{self._home}.lock", self.path)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            _clear(self.path)
            self._bind(mode)
        except BaseException:
            self.sock.close()
            self._lock.release()
            raise

    def _bind(self, mode: int) -> None:
        # bind() creates the file with the mode of the socket's inode, less the umask: it is
        # there with at most these bits from its first moment on.
        os.fchmod(self.sock.fileno(), mode)
        try:
            self.sock.bind(self.path)
        except OSError as error:
            raise ConfigError(
                f"cannot create the socket {self.path!r}: {error.strerror}"
            ) from error
        found = os.lstat(self._home)
        self._inode = (found.st_dev, found.st_ino)
        if stat.S_IMODE(found.st_mode) != mode:
            os.chmod(self._home, mode)
        self.sock.listen(BACKLOG)

    def close(self) -> None:
        """Stops listening; removes the socket if it is still ours, then the lock."""
        if self.sock.fileno() < 0:
            return
        self.sock.close()
        with contextlib.suppress(OSError):
            found = os.lstat(self._home)
            if (found.st_dev, found.st_ino) == self._inode:
                os.unlink(self._home)
        self._lock.release()


class _Lock:
    """An exclusive lock on `path`, which holds the owner's pid; ConfigError if it is taken."""

    def __init__(self, path: str, socket_path: str) -> None:
        self._path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            try:
                self._fd = os.open(path, flags, 0o600)
            except OSError as error:
                raise ConfigError(
                    f"cannot create the lock of socket {socket_path!r}: {error.strerror}: {path!r}"
                ) from error
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise self._taken(socket_path) from error
            if self._current():
                break
            os.close(self._fd)  # its last owner removed it while we opened it
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _taken(self, socket_path: str) -> ConfigError:
        with os.fdopen(self._fd, "rb") as file:
            owner = file.read(32).decode(errors="replace").strip() or "unknown"
        return ConfigError(
            f"a live server (pid {owner}) has the socket {socket_path!r}: stop it, "
            "or serve on another path"
        )

    def _current(self) -> bool:
        try:
            named = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(self._fd))

    def release(self) -> None:
        """Removes the lock's file, then unlocks."""
        with contextlib.suppress(OSError):
            if self._current():
                os.unlink(self._path)
        os.close(self._fd)


def _make_folder(folder: str) -> None:
    """Makes the default folder; one that others could write to is refused."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError as error:
        raise ConfigError(
            f"cannot make the folder {folder!r} for the socket ({error.strerror}): "
            "give a path with --socket"
        ) from error
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.getuid()
        or stat.S_IMODE(found.st_mode) & 0o022
    ):
        raise ConfigError(
            f"{folder!r} is not a folder that only you (uid {os.getuid()}) can write to: "
            "remove it, or give a path with --socket"
        )


def _check_parent(path: str) -> None:
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        what = "is not a folder" if os.path.lexists(folder) else "does not exist"
        raise ConfigError(f"cannot create the socket {path!r}: {folder!r} {what}, make it first")


def _clear(path: str) -> None:
    """Removes a stale socket at `path`; anything else there is left alone and refused."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot create the socket {path!r}: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(
            f"cannot create the socket {path!r}: {_kind(found.st_mode)} stands there, "
            "remove it or choose another path"
        )
    if _answers(path):
        raise ConfigError(
            f"another program is listening at the socket {path!r}: stop it, "
            "or serve on another path"
        )
    try:
        os.unlink(path)
    except OSError as error:
        raise ConfigError(f"cannot replace the stale socket {path!r}: {error.strerror}") from error


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a file" if stat.S_ISREG(mode) else "something that is no socket"


def _answers(path: str) -> bool:
    """Whether some program listens at `path` (one with a full queue does)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        code = probe.connect_ex(path)
        if code == errno.EPROTOTYPE:  # not a stream socket, but bound by somebody
            return True
    return code not in {errno.ECONNREFUSED, errno.ENOENT}


def peer(sock: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process that connected."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
