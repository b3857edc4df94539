"""Options of the server.

An argument wins over its `TUNDISH_...` variable, the variable over the default.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tundish_client.errors import ConfigError

__all__ = [
    "ServeConfig",
    "default_memory_limit",
    "parse_address",
    "parse_bytes",
    "parse_mode",
    "parse_uids",
]

MIB = 2**20

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_bytes(value: Any) -> Any:
    """Reads a number of bytes: `1073741824`, `"1GiB"`, `"1.5g"` (units are powers of 1024)."""
    if isinstance(value, str):
        found = _BYTES.fullmatch(value.strip())
        nbytes = float(found[1]) * _UNITS[found[2].lower()] if found else float("inf")
        if nbytes == float("inf"):
            raise ValueError("no number of bytes")
        return int(nbytes)
    return value


def parse_mode(value: Any) -> Any:
    """Reads permission bits: a string is octal, `"0660"`; an int is taken as it is."""
    if isinstance(value, str):
        return int(value.removeprefix("0o"), 8)
    return value


def parse_uids(value: Any) -> Any:
    """Reads user ids: a string has them separated by commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def parse_address(value: Any) -> Any:
    """Checks an address, `"127.0.0.1:9400"` or `"[::1]:9400"`."""
    if isinstance(value, str):
        host, _, port = value.strip().rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError("no HOST:PORT")
        return value.strip()
    return value


_Uid = Annotated[int, Field(ge=0, lt=2**32)]


class ServeConfig(BaseSettings):
    """How to serve. Frozen.

    Attributes:
        socket: Path of the socket; None for the default (see `tundish_client.default_socket`).
        socket_mode: Permission bits of the socket.
        allowed_uids: Users besides this one and root that may connect.
        memory_limit: Bytes that batches may take in all; by default a quarter of what is
            available to this process, at most 4 GiB.
        lease_quota: Slots of shared memory a client may hold before it gets its batches inline;
            0 turns shared memory off.
        share_window: Bytes of batches that are held for streams that lag behind others of the same
            epoch, or join them late; a stream that falls further behind goes on by itself.
        share_linger: Seconds that a run which is over is kept, for streams that come late, when no
            stream of its feed is open any more; 0 to keep none.
        join_timeout: Seconds that streams of a group wait for the others to join.
        lease_timeout: Seconds after which what a stopped consumer holds of a split epoch goes to
            the others.
        metrics: Where Prometheus finds metrics over HTTP, HOST:PORT; None for nowhere.
        loop: Event loop of `tundish serve`.
        log_level: Level of the log of `tundish serve`.
    """

    model_config = SettingsConfigDict(
        env_prefix="TUNDISH_", env_ignore_empty=True, frozen=True, extra="forbid"
    )

    socket: str | os.PathLike[str] | None = None
    socket_mode: Annotated[int, BeforeValidator(parse_mode), Field(ge=0, le=0o777)] = 0o600
    allowed_uids: Annotated[tuple[_Uid, ...], NoDecode, BeforeValidator(parse_uids)] = ()
    memory_limit: Annotated[int, BeforeValidator(parse_bytes), Field(ge=MIB, le=2**60)] | None = (
        None
    )
    lease_quota: Annotated[int, Field(ge=0)] = 64
    share_window: Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)] = 32 * MIB
    share_linger: Annotated[float, Field(ge=0, le=10**9)] = 2.0
    join_timeout: Annotated[float, Field(gt=0, le=10**9)] = 60.0
    lease_timeout: Annotated[float, Field(gt=0, le=10**9)] = 60.0
    metrics: Annotated[str, BeforeValidator(parse_address)] | None = None
    loop: Literal["asyncio", "uvloop"] = "uvloop"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Makes a configuration of the options that were given; those that are None were not.

        Raises:
            ConfigError: An option or a variable has a value that can't be used.
        """
        try:
            return cls(**{key: value for key, value in given.items() if value is not None})
        except ValidationError as error:
            raise ConfigError(_explain(error, given)) from None


_EXPECTED = {
    "socket": "a path",
    "socket_mode": "permission bits in octal, 0 to 0777, such as 0600",
    "allowed_uids": "numbers of users with commas between them, such as 1000,1001",
    "memory_limit": "a number of bytes from 1MiB to 2**60, such as 1073741824 or 1GiB",
    "lease_quota": "a number of slots, such as 64; 0 sends all batches inline",
    "share_window": "a number of bytes, such as 33554432 or 32MiB; 0 holds one batch",
    "share_linger": "seconds from 0 to 1e9, such as 2; 0 keeps none",
    "join_timeout": "seconds, more than 0 and at most 1e9, such as 60",
    "lease_timeout": "seconds, more than 0 and at most 1e9, such as 60",
    "metrics": "HOST:PORT, such as 127.0.0.1:9400 (0.0.0.0:9400 for all interfaces)",
    "loop": "asyncio or uvloop",
    "log_level": "debug, info, warning or error",
}
"""What each option may be; told where it is something else."""


def _explain(error: ValidationError, given: dict[str, Any]) -> str:
    wrong = {str(item["loc"][0]): item["input"] for item in error.errors(include_url=False)}
    return "; ".join(_told(name, value, given.get(name)) for name, value in wrong.items())


def _told(name: str, value: Any, given: Any) -> str:
    variable = f"TUNDISH_{name.upper()}"
    read = os.environ.get(variable)
    # As it was written: what failed may have been read from that.
    if given is None:
        what = f"{variable}={value if read is None else read!r}"
    else:
        what = f"{name}={given!r}" + (f" (from {variable})" if read == given else "")
    if name not in _EXPECTED:
        return f"{what}: there is no such option; there are {', '.join(_EXPECTED)}"
    return f"{what}: expected {_EXPECTED[name]}"


def default_memory_limit() -> int:
    """A quarter of the memory available to this process, between 64 MiB and 4 GiB."""
    available = min(_available(), _group_limit())
    return max(64 * MIB, min(available // 4, 4096 * MIB))


def _available() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 4096 * MIB


def _group_limit() -> int:
    """What this process's control group may use, if that is limited."""
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 2**62
