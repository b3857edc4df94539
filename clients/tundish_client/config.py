"""Options of clients and streams, and the rule for the socket's path.

An argument wins over its `TUNDISH_...` variable, the variable over the default.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .errors import ConfigError

__all__ = [
    "MAX_SOCKET_PATH",
    "ClientOptions",
    "EpochOptions",
    "check_socket_path",
    "default_socket",
]

MAX_SOCKET_PATH: Final = 107
"""Bytes that the path of a Unix socket may have on Linux."""

DEFAULT_CONNECT_TIMEOUT: Final = 10.0
DEFAULT_RECONNECT_TIMEOUT: Final = 0.0
DEFAULT_NAME: Final = "tundish-client"
MAX_NAME: Final = 200
"""Characters that the name of a client may have."""
RECEIVE_BYTES: Final = 256 * 2**20
"""Bytes of batches a stream takes in ahead of the consumer; one batch may exceed it."""
SMALL: Final = 32 * 2**10
"""Bytes of a batch that costs less to send than to ask for: several are sent at a time."""

_INT63: Final = 2**63 - 1
_UNEVEN: Final = ("pad", "drop", "keep")
_ON_LAG: Final = ("detach", "wait")
_YES: Final = frozenset(("1", "true", "yes", "on"))
_NO: Final = frozenset(("0", "false", "no", "off"))


def default_socket(environ: Mapping[str, str] | None = None) -> str:
    """Returns the socket's path when none is given; client and server share this rule.

    `$TUNDISH_SOCKET`, else `$XDG_RUNTIME_DIR/tundish/tundish.sock`, else
    `/tmp/tundish-<uid>/tundish.sock`.

    Args:
        environ: The variables to look at, by default those of the process.

    Example:
        >>> default_socket({"XDG_RUNTIME_DIR": "/run/user/1000"})
        '/run/user/1000/tundish/tundish.sock'
    """
    environ = os.environ if environ is None else environ
    if path := environ.get("TUNDISH_SOCKET"):
        return path
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(runtime, "tundish", "tundish.sock")
    return f"/tmp/tundish-{os.getuid()}/tundish.sock"  # noqa: S108 - a folder of its own, 0700


def check_socket_path(path: str | os.PathLike[str]) -> str:
    """Returns the path as a str, if a Unix socket can have it.

    Raises:
        ConfigError: It is empty, holds a zero byte, or is longer than 107 bytes.
    """
    try:
        text = os.fspath(path)
        size = len(os.fsencode(text))
    except (TypeError, UnicodeEncodeError) as error:
        raise ConfigError(f"socket must be a path, got {path!r}") from error
    if not isinstance(text, str):
        text = os.fsdecode(text)
    if not text or "\0" in text:
        raise ConfigError(f"socket must be a path, got {text!r}")
    if size > MAX_SOCKET_PATH:
        raise ConfigError(
            f"socket path {text!r} is {size} bytes long, the limit is {MAX_SOCKET_PATH}: "
            "use a shorter folder, for example one under /tmp or $XDG_RUNTIME_DIR"
        )
    return text


def check_int(name: str, value: Any, least: int, most: int = _INT63) -> int:
    """Returns `value` as an int within bounds; numpy integers pass, bool does not.

    Raises:
        ConfigError: It is something else; the message names the argument and the value.
    """
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ConfigError(f"{name} must be an integer, got {value!r:.100}") from error
    if isinstance(value, bool):
        raise ConfigError(f"{name} must be an integer, got {value!r}")
    if not least <= number <= most:
        bound = f"at least {least}" if number < least else f"at most {most}"
        raise ConfigError(f"{name} must be {bound}, got {number}")
    return number


def _check_name(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, str) and value and _is_text(value)):
        raise ConfigError(f"{name} must be a name or None, got {value!r:.100}")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(
            f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r:.100}"
        )


def check_ranges(name: str, value: Any) -> list[list[int]]:
    """Returns batches as ranges, [[first, last], ...], if they are such.

    Raises:
        ConfigError: They are something else.
    """
    try:
        _check_list(value)
        pairs = [[check_int(name, number, 0) for number in _check_list(pair)] for pair in value]
        if all(first <= last for first, last in pairs):
            return pairs
    except (TypeError, ValueError) as error:
        reason: Exception | None = error
    else:
        reason = None
    raise ConfigError(f"{name} must be a list of [first, last], got {value!r:.100}") from reason


def _check_list(value: Any) -> Any:
    if not isinstance(value, list | tuple):  # "" and {} have nothing in them either
        raise TypeError(f"{type(value).__name__} is no list")
    return value


def _check_bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r:.100}")
    return value


def _check_seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ConfigError(f"{name} must be a number of seconds, got {value!r:.100}")
    if value < 0:
        raise ConfigError(f"{name} must be at least 0 seconds, got {value!r}")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Options of one client.

    Attributes:
        socket: Path of the server's socket; `default_socket()` when None.
        connect_timeout: Seconds to wait for a server that is not there yet, or does not answer.
            `TUNDISH_CONNECT_TIMEOUT`, 10.
        reconnect_timeout: Seconds to look for a server that went away, before open streams fail;
            0 for not at all. `TUNDISH_RECONNECT_TIMEOUT`, 0.
        shared_memory: Take batches in shared memory where the server offers it.
            `TUNDISH_SHARED_MEMORY`, yes.
        name: What the server calls the client in its log and counters. `TUNDISH_CLIENT_NAME`,
            "tundish-client".
    """

    socket: str | os.PathLike[str] | None = None
    connect_timeout: float | None = None
    reconnect_timeout: float | None = None
    shared_memory: bool | None = None
    name: str | None = None
    path: str = field(init=False, default="")

    def __post_init__(self) -> None:
        socket = default_socket() if self.socket is None else self.socket
        timeout, again, shared = self.connect_timeout, self.reconnect_timeout, self.shared_memory
        if timeout is None:
            timeout = _from_environment("CONNECT_TIMEOUT", DEFAULT_CONNECT_TIMEOUT)
        if again is None:
            again = _from_environment("RECONNECT_TIMEOUT", DEFAULT_RECONNECT_TIMEOUT)
        if shared is None:
            shared = _from_environment("SHARED_MEMORY", True)
        object.__setattr__(self, "path", check_socket_path(socket))
        object.__setattr__(self, "connect_timeout", _check_seconds("connect_timeout", timeout))
        object.__setattr__(self, "reconnect_timeout", _check_seconds("reconnect_timeout", again))
        object.__setattr__(self, "shared_memory", _check_bool("shared_memory", shared))
        object.__setattr__(self, "name", self._checked_name())

    def _checked_name(self) -> str:
        option, name = "name", self.name
        if name is None:
            option, name = "TUNDISH_CLIENT_NAME", os.environ.get("TUNDISH_CLIENT_NAME")
        if option != "name" and not name:
            return DEFAULT_NAME
        if not isinstance(name, str) or not name or not _is_text(name):
            raise ConfigError(f"{option} must be text, got {name!r:.100}")
        if len(name) > MAX_NAME:
            raise ConfigError(
                f"{option} must have at most {MAX_NAME} characters, got {len(name)}: {name!r:.100}"
            )
        return name

    @property
    def timeout(self) -> float:
        """`connect_timeout`, resolved."""
        return DEFAULT_CONNECT_TIMEOUT if self.connect_timeout is None else self.connect_timeout

    @property
    def patience(self) -> float:
        """`reconnect_timeout`, resolved; 0 for no reconnecting."""
        return self.reconnect_timeout or 0.0


def _from_environment(name: str, default: Any) -> Any:
    name = f"TUNDISH_{name}"
    text = os.environ.get(name, "").strip().lower()
    if not text:
        return default
    if isinstance(default, bool):
        if text not in _YES | _NO:
            raise ConfigError(f"{name} must be yes or no, got {text!r}")
        return text in _YES
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{name} must be a number of seconds, got {text!r}") from error


@dataclass(frozen=True, kw_only=True)
class EpochOptions:
    """What a stream asks for; see `Client.epoch`.

    `rank` is 0 afterwards if it was left out; it must be given with a `world_size` above 1.
    `fingerprint` is what a position was counted in: the server compares it with what it has.
    `acked` are the batches of a split epoch that were acknowledged before, as ranges.
    """

    epoch: int
    feed: str | None = None
    start: int = 0
    rank: int | None = None
    world_size: int = 1
    uneven: str = "pad"
    batch_size: int | None = None
    fingerprint: Mapping[str, Any] | None = None
    group: str | None = None
    group_size: int | None = None
    split: str | None = None
    acked: Sequence[Sequence[int]] = ()
    on_lag: str = "detach"
    prefetch: int | None = None
    copy: bool = False

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("epoch", check_int("epoch", self.epoch, 0))
        for name in ("feed", "group", "split"):
            _check_name(name, getattr(self, name))
        put("start", check_int("start", self.start, 0))
        put("world_size", check_int("world_size", self.world_size, 1))
        put("rank", self._checked_rank())
        _check_choice("uneven", self.uneven, _UNEVEN)
        _check_choice("on_lag", self.on_lag, _ON_LAG)
        for name, most in (("batch_size", _INT63), ("group_size", 2**20), ("prefetch", 2**20)):
            if (value := getattr(self, name)) is not None:
                put(name, check_int(name, value, 1, most))
        _check_bool("copy", self.copy)
        put("acked", check_ranges("acked", self.acked))
        self._check_together()

    def _checked_rank(self) -> int:
        """The rank; 0 where there is but one.

        Raises:
            ConfigError: It is none, or must be given.
        """
        if self.rank is None:
            if self.world_size > 1 and self.split is None:  # a split has no ranks at all
                raise ConfigError(
                    f"rank must be given with world_size={self.world_size}: which of the shares "
                    "is it?"
                )
            return 0
        rank = check_int("rank", self.rank, 0)
        if rank >= self.world_size:
            raise ConfigError(f"rank must be below world_size={self.world_size}, got {rank}")
        return rank

    def _check_together(self) -> None:
        """Refuses what doesn't go together.

        Raises:
            ConfigError: Something; the message says what to leave out.
        """
        if self.group_size is not None and self.group is None and self.split is None:
            raise ConfigError(
                f"group_size={self.group_size} needs the name of the group: give group='...', the "
                "same to all its members"
            )
        if self.split is None:
            return
        for name, value, default, reason in (
            ("start", self.start, 0, "its streams get what the others have not had"),
            ("world_size", self.world_size, 1, "it is shared out as its streams ask, not by rank"),
            ("group", self.group, None, "split names those who share the epoch"),
            ("group_size", self.group_size, None, "its streams may join at any time"),
            ("on_lag", self.on_lag, "detach", "no stream of it waits for another"),
        ):
            if value != default:
                raise ConfigError(
                    f"split={self.split!r:.100} does not go together with {name}={value!r}: "
                    f"{reason}; leave out {name}"
                )

    def header(self) -> dict[str, Any]:
        """The part of the EPOCH message that describes the request."""
        optional = {
            "batch_size": self.batch_size,
            "fingerprint": self.fingerprint,
            "group": self.group,
            "group_size": self.group_size,
            "split": self.split,
            "on_lag": None if self.on_lag == "detach" else self.on_lag,
        }
        return {
            "feed": self.feed,
            "epoch": self.epoch,
            "start": self.start,
            "rank": self.rank,
            "world_size": self.world_size,
            "uneven": self.uneven,
            **{name: value for name, value in optional.items() if value is not None},
            "credits": {"batches": self.window, "bytes": RECEIVE_BYTES},
        }

    @property
    def window(self) -> int:
        """Batches that may be here at a time, to begin with.

        One more than are sent ahead: the one in the user's hands, whose credit comes back with its
        ACK.
        """
        return (2 if self.prefetch is None else self.prefetch) + 1
