"""``serve()``: DataLoaders offered at a Unix socket."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket as sockets
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from tundish._core import Arena
from tundish.config import ServeConfig, default_memory_limit
from tundish.hub import Hub
from tundish.leases import Leases, Retiring
from tundish.listen import Listener, peer
from tundish.loader import DataLoader
from tundish.pump import Pump
from tundish.session import Session
from tundish_client.errors import ConfigError

__all__ = ["Loaders", "Server", "name_feeds", "serve"]

_log = logging.getLogger("tundish.server")

Loaders = DataLoader | Mapping[str, DataLoader]

_PAUSE = 0.1
"""Seconds without accepting after the process ran out of file descriptors."""

_HANG_UP = 0.1
"""Seconds that clients have to hang up after GOAWAY before the server closes over them."""


def name_feeds(loaders: Any, single: str = "default") -> dict[str, DataLoader]:
    """Returns the feeds by name: a single loader is called `single`, a function is called.

    Raises:
        ConfigError: It is no DataLoader, no mapping of them, and no function returning either.
    """
    if callable(loaders) and not isinstance(loaders, DataLoader):
        loaders = loaders()
    if isinstance(loaders, DataLoader):
        return {single: loaders}
    if isinstance(loaders, Mapping) and loaders:
        for name, loader in loaders.items():
            if not isinstance(name, str) or not name:
                raise ConfigError(f"the name of a feed must be a str, got {name!r}")
            if not isinstance(loader, DataLoader):
                raise ConfigError(f"feed {name!r} must be a DataLoader, got {loader!r:.100}")
        return dict(loaders)
    raise ConfigError(
        "loaders must be a DataLoader, a dict of name to DataLoader with at least one entry, "
        f"or a function returning either; got {loaders!r:.100}"
    )


class Server:
    """A running server. Made by `serve`; use it from its event loop's thread only.

    Attributes:
        feeds: The loaders offered, by name.
        socket: Path of the socket.
        instance: A name that no other server has.
    """

    def __init__(self, feeds: dict[str, DataLoader], config: ServeConfig) -> None:
        self.feeds = feeds
        self.config = config
        self.instance = secrets.token_hex(8)
        self.loop = asyncio.get_running_loop()
        self.pump = Pump.of(self.loop)
        self.lease_quota = config.lease_quota
        limit = config.memory_limit
        self.arena = Arena(default_memory_limit() if limit is None else limit)
        self.hub = Hub(self.loop, self.pump, self.arena, config)
        self.retiring = Retiring(self.arena)
        self._uids = {os.geteuid(), 0, *config.allowed_uids}
        self._sessions: set[Session] = set()
        self._quarantine: set[Leases] = set()
        self._closed = False
        self._listener = Listener(config.socket, config.socket_mode)
        self.socket = self._listener.path
        self.loop.add_reader(self._listener.sock.fileno(), self._accept)
        for name, loader in feeds.items():
            if loader.shuffle and not loader._lasting_order:
                _log.warning(
                    "feed %r shuffles by a drawn seed, %d: after a restart its positions stand for "
                    "other samples, unless a client brings the seed by resume(state); give seed= "
                    "to have one order for ever",
                    name,
                    loader.seed,
                )

    # Clients

    def _accept(self) -> None:
        for _ in range(16):
            try:
                sock, _address = self._listener.sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            sock.setblocking(False)
            self._admit(sock)

    def _admit(self, sock: sockets.socket) -> None:
        pid, uid = peer(sock)
        if uid not in self._uids:
            _log.warning("pid %d of user %d may not connect: refused", pid, uid)
            sock.close()
            return
        self._sessions.add(Session(self, sock, pid))

    def _pause(self, error: OSError) -> None:
        """Out of file descriptors: the connection stays in the queue, we look again later."""
        _log.error("cannot accept a connection: %s", error.strerror)
        fd = self._listener.sock.fileno()
        self.loop.remove_reader(fd)
        self.loop.call_later(_PAUSE, self._go_on)

    def _go_on(self) -> None:
        if not self._closed:
            self.loop.add_reader(self._listener.sock.fileno(), self._accept)

    def session_over(self, session: Session) -> None:
        """A session has closed; its leases wait for its side channel."""
        self._sessions.discard(session)
        leases = session.leases
        if leases is not None and not leases.over:
            self._quarantine.add(leases)

    def leases_over(self, leases: Leases) -> None:
        """A side channel has hung up: nobody looks at its slots any more."""
        self._quarantine.discard(leases)
        self.retiring.gone(leases)

    def retire_segments(self) -> None:
        """Has clients unmap the segments that the arena wants to be rid of."""
        holders: dict[Leases, Callable[[int], None]] = {
            session.leases: session.retire
            for session in self._sessions
            if session.leases is not None
        }
        # Whoever lost its main socket can't be asked; its hang-up will do.
        holders.update((leases, lambda _: None) for leases in self._quarantine)
        self.retiring.look(holders)

    # What clients ask

    def feed(self, name: str | None) -> tuple[str, DataLoader]:
        """Returns a feed by name; the name may be left out if there is only one.

        Raises:
            ConfigError: There is no such feed; the message names those there are.
        """
        if name is None and len(self.feeds) == 1:
            return next(iter(self.feeds.items()))
        names = ", ".join(map(repr, self.feeds))
        if name is None:
            raise ConfigError(f"feed must be given, this server offers {names}")
        if name not in self.feeds:
            raise ConfigError(f"feed={name!r} is not offered here; feeds: {names}")
        return name, self.feeds[name]

    def describe(self) -> list[dict[str, Any]]:
        """The feeds, as in the FEEDS message."""
        return [{"feed": name, **_described(loader)} for name, loader in self.feeds.items()]

    def stats(self) -> dict[str, Any]:
        """Counters of the moment: streams, runs, feeds, memory (bytes), slots, connections."""
        deliveries = [
            (session, delivery)
            for session in self._sessions
            for delivery in session.deliveries.values()
        ]
        arena = self.arena
        return {
            "server": {"pid": os.getpid(), "instance": self.instance, "socket": str(self.socket)},
            "connections": len(self._sessions),
            "streams": [{**d.stats(), "client": dict(s.client)} for s, d in deliveries],
            "runs": self.hub.stats(),
            "feeds": self.describe(),
            "memory": {"used": arena.used, "limit": arena.limit, "capacity": arena.capacity},
            "slots": {
                "lent": arena.slots_lent,
                "total": arena.slots_total,
                "leased": sum(len(s.leases) for s in self._sessions if s.leases is not None),
                "quarantined": sum(map(len, self._quarantine)),
            },
        }

    # The end

    async def aclose(self, reason: str = "the server is shutting down") -> None:
        """Stops serving: GOAWAY to the clients, runs cancelled, our own socket removed.

        Takes 0.1 s at most, whatever workers or clients are doing. Safe to call twice.
        """
        if self._closed:
            return
        self._closed = True
        self.loop.remove_reader(self._listener.sock.fileno())
        self._listener.close()
        for session in list(self._sessions):
            session.goodbye(reason)
        self.hub.close()
        await self._hang_ups()

    async def _hang_ups(self) -> None:
        """Waits a moment for side channels to hang up.

        Slots of those that don't stay taken as long as this loop runs: their client may still
        be looking at them.
        """
        deadline = self.loop.time() + _HANG_UP
        while self._quarantine and self.loop.time() < deadline:  # noqa: ASYNC110 - twenty times at most
            await asyncio.sleep(0.005)


def _described(loader: DataLoader) -> dict[str, Any]:
    try:
        return loader._describe()
    except Exception as error:
        # The length of a dataset that can't tell it is no reason to keep quiet about the others.
        return {"samples": None, "batches": None, "error": f"{type(error).__name__}: {error}"}


class serve:  # noqa: N801 - reads like a function: `async with serve(...)`
    """Offers loaders at a Unix socket, for as long as the `async with` block lasts.

    Args:
        loaders: A DataLoader (the feed "default"), a dict of name to DataLoader, or a function
            that returns either.
        socket: Path of the socket; by default `$TUNDISH_SOCKET`, else
            `$XDG_RUNTIME_DIR/tundish/tundish.sock`, else `/tmp/tundish-<uid>/tundish.sock`.
        memory_limit: Bytes that batches may take in all, also as "1GiB".
        socket_mode: Permission bits of the socket, an int or an octal str.
        allowed_uids: Users besides this one and root that may connect.
        lease_quota: Slots of shared memory a client may hold before it gets its batches inline.

    Each option that is left out is read from its `TUNDISH_...` variable. The loaders stay the
    caller's: they are not closed.

    Raises:
        ConfigError: An option can't be used, or the socket's path belongs to somebody else.

    Cancelling the task that runs the block ends the server, within 0.1 s.

    Example:
        >>> async def main():
        ...     async with serve(
        ...         DataLoader(range(10), batch_size=2), socket="/tmp/s.sock"
        ...     ) as server:
        ...         async with AsyncClient(server.socket) as client:
        ...             return [batch async for batch in client.epoch(0)]
    """

    def __init__(
        self,
        loaders: Loaders | Callable[[], Loaders],
        *,
        socket: str | os.PathLike[str] | None = None,
        memory_limit: int | str | None = None,
        socket_mode: int | str | None = None,
        allowed_uids: tuple[int, ...] | None = None,
        lease_quota: int | None = None,
    ) -> None:
        self._feeds = name_feeds(loaders)
        self._config = ServeConfig.of(
            socket=socket,
            memory_limit=memory_limit,
            socket_mode=socket_mode,
            allowed_uids=allowed_uids,
            lease_quota=lease_quota,
        )
        self._server: Server | None = None

    async def __aenter__(self) -> Server:
        self._server = Server(self._feeds, self._config)
        return self._server

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            await self._server.aclose()
