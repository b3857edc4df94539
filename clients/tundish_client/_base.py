"""What both clients share: options, and whether a client may still be used."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any, NoReturn

from .config import ClientOptions
from .errors import ConfigError, TundishError

__all__ = ["BaseClient", "Life", "choose_feed"]


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
