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
from tundish.leases import Leases, Lending, Retiring
from tundish.listen import Listener, peer
from tundish.loader import DataLoader
from tundish.metrics import Metrics
from tundish.pump import Pump
from tundish.session import Session
from tundish.totals import Totals
from tundish_client.errors import ConfigError

__all__ = ["Loaders", "Server", "name_feeds", "serve"]

_log = logging.getLogger("tundish.server")

Loaders = DataLoader | Mapping[str, DataLoader]

_PAUSE = 0.1
"""Seconds without accepting after the process ran out of file descriptors."""

_COMPLAIN = 10.0
"""Seconds until the log says again that the process is out of file descriptors."""

_REST = 2.0
"""Seconds without a stream after which memory that nobody uses is given back."""

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
        metrics: Address of the metrics, "HOST:PORT", or None.
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
        self.lending = Lending(self.arena.limit)
        self.retiring = Retiring(self.arena)
        self.totals = Totals(feeds)
        self._rest: asyncio.TimerHandle | None = None
        self._uids = {os.geteuid(), 0, *config.allowed_uids}
        self._sessions: set[Session] = set()
        self._quarantine: set[Leases] = set()
        self._closed = False
        self._complain_at = 0.0
        self._connected = 0
        self._metrics = Metrics(config.metrics, self) if config.metrics else None
        self.metrics = None if self._metrics is None else self._metrics.address
        try:
            self._listener = Listener(config.socket, config.socket_mode)
        except BaseException:
            self._stop_metrics()
            raise
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
        self._connected += 1
        self._sessions.add(Session(self, sock, pid, self._connected))
        self.lending.clients = len(self._sessions)

    def _pause(self, error: OSError) -> None:
        """Out of file descriptors: the connection stays in the queue, we look again later."""
        now = self.loop.time()
        if now >= self._complain_at:
            self._complain_at = now + _COMPLAIN
            _log.error(
                "cannot accept a connection beside %d others: %s; it waits for one of them to "
                "leave. Give the server more descriptors (ulimit -n)",
                len(self._sessions),
                error.strerror,
            )
        fd = self._listener.sock.fileno()
        self.loop.remove_reader(fd)
        self.loop.call_later(_PAUSE, self._go_on)

    def _go_on(self) -> None:
        if not self._closed:
            self.loop.add_reader(self._listener.sock.fileno(), self._accept)

    def session_over(self, session: Session) -> None:
        """A session has closed; its leases wait for its side channel."""
        self._sessions.discard(session)
        self.lending.clients = len(self._sessions)
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

    # Rest

    def rest_later(self) -> None:
        """A stream is over: was it the last one?"""
        if self._rest is None and not self._closed:
            self._rest = self.loop.call_later(_REST, self._rest_now)

    def _rest_now(self) -> None:
        self._rest = None
        if any(session.deliveries for session in self._sessions):
            return  # its end will bring us here again
        self.arena.trim()
        self.retire_segments()
        if self.arena.capacity:  # somebody still holds batches
            self.rest_later()

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
        """Counters of the moment, as in the STATS message; `docs/tuning.md` has them all."""
        counters = self.counters()
        for feed in counters["feeds"]:
            feed.update(_described(self.feeds[feed["feed"]]))
        return counters

    def counters(self) -> dict[str, Any]:
        """What of `stats` takes no look at the datasets."""
        runs = self.hub.stats()  # first: a look at who is waited for counts until now
        streams = [
            {**delivery.stats(), "connection": session.number, "client": dict(session.client)}
            for session in self._sessions
            for delivery in session.deliveries.values()
        ]
        return {
            "server": {
                "pid": os.getpid(),
                "instance": self.instance,
                "socket": str(self.socket),
                "metrics": self.metrics,
            },
            "connections": len(self._sessions),
            "streams": streams,
            "runs": runs,
            "feeds": [self._feed_counters(name, streams) for name in self.feeds],
            **self._memory(),
        }

    def _feed_counters(self, name: str, streams: list[dict[str, Any]]) -> dict[str, Any]:
        own = [stream for stream in streams if stream["feed"] == name]
        return {
            "feed": name,
            "streams": len(own),
            "rate": sum(stream["rate"] for stream in own),
            "slots": sum(stream["slots"] for stream in own),
            "totals": self.totals.of(name, own) | {"produced": self.hub.produced(name)},
        }

    def _memory(self) -> dict[str, Any]:
        usage = self.arena.usage()
        total, lent = usage.pop("slots_total"), usage.pop("slots_lent")
        queued = sum(session.queued for session in self._sessions)
        usage |= {"used": usage["used"] + queued, "queued": queued, "limit": self.arena.limit}
        return {
            "memory": usage,
            "slots": {
                "lent": lent,
                "total": total,
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
        self._stop_metrics()
        if self._rest is not None:
            self._rest.cancel()
        for session in list(self._sessions):
            session.goodbye(reason)
        self.hub.close()
        await self._hang_ups()

    def _stop_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

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
        share_window: Bytes of batches that are held for streams that lag behind others of the same
            epoch, or join them late, also as "32MiB"; a stream that falls further behind gets the
            rest by itself. Runs share out a quarter of the memory limit at most.
        share_linger: Seconds that a run which is over is kept, for streams that come late, when no
            stream of its feed is open any more; 0 to keep none.
        join_timeout: Seconds that streams with a `group_size` wait for the others.
        lease_timeout: Seconds after which what a stopped consumer holds of a split epoch goes to
            the others.
        metrics: Where Prometheus finds metrics over HTTP, "HOST:PORT"; port 0 takes a free one
            (see `server.metrics`). Nowhere by default.

    Each option that is left out is read from its `TUNDISH_...` variable. The loaders stay the
    caller's: they are not closed.

    Raises:
        ConfigError: An option can't be used, or the socket's path or the metrics' port belongs to
            somebody else.

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
        share_window: int | str | None = None,
        share_linger: float | None = None,
        join_timeout: float | None = None,
        lease_timeout: float | None = None,
        metrics: str | None = None,
    ) -> None:
        self._feeds = name_feeds(loaders)
        self._config = ServeConfig.of(
            socket=socket,
            memory_limit=memory_limit,
            socket_mode=socket_mode,
            allowed_uids=allowed_uids,
            lease_quota=lease_quota,
            share_window=share_window,
            share_linger=share_linger,
            join_timeout=join_timeout,
            lease_timeout=lease_timeout,
            metrics=metrics,
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
