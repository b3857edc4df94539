"""Metrics for Prometheus, over HTTP.

They are served by threads of their own, so that a scrape costs the event loop one look at the
counters and nothing else, and gets an answer (`tundish_up 0`) also while the loop is held up.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tundish.series import series
from tundish_client.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from tundish.server import Server

__all__ = ["Collector", "Metrics"]

PATIENCE = 1.0
"""Seconds that a scrape waits for the event loop."""

_MOST = 8
"""Connections at a time; for one more, the one that has been silent for longest is closed."""

_SILENT = 5.0
"""Seconds that a scraper has for its request."""


class Collector:
    """The counters of a server as Prometheus's metrics. To be used from any thread but the loop's.

    Args:
        ask: Has a function called on the loop, soon; RuntimeError if there is no loop any more.
        counters: What to call there, see `Server.counters`.
    """

    def __init__(
        self, ask: Callable[[Callable[[], None]], object], counters: Callable[[], dict[str, Any]]
    ) -> None:
        self._ask = ask
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """All metrics of the moment; only `tundish_up 0` if the loop gives no answer in time."""
        return iter(series(self._look()))

    def _look(self) -> dict[str, Any] | None:
        answer: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()

        def look() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self._counters())
                except BaseException as error:
                    answer.set_exception(error)

        try:
            self._ask(look)
            return answer.result(PATIENCE)
        except (RuntimeError, TimeoutError):
            return None
        finally:
            answer.cancel()  # a loop that was held up has nothing to catch up on


class Metrics:
    """The endpoint of one server, from its constructor to `close`.

    Args:
        address: "HOST:PORT"; port 0 for a free one.
        server: Whose counters are told.

    Attributes:
        address: Where it listens, with the port it has got.

    Raises:
        ConfigError: prometheus-client isn't installed, or the address can't be had.
    """

    def __init__(self, address: str, server: Server) -> None:
        registry = _registry(address)
        registry.register(Collector(server.loop.call_soon_threadsafe, server.counters))
        self._http = _listen(address, registry)
        host, port = map(str, self._http.socket.getsockname()[:2])
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # Daemons: neither a scrape nor the wait for one keeps the process.
        threading.Thread(target=self._http.serve, name="tundish-metrics", daemon=True).start()

    def close(self) -> None:
        """Listens no longer; scrapes that are going on may end. Waits for nobody."""
        self._http.end()


def _registry(address: str) -> CollectorRegistry:
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
    except ImportError as error:
        raise ConfigError(
            f"metrics={address!r} needs prometheus-client, which isn't installed: "
            "pip install prometheus-client"
        ) from error
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)  # CPU seconds, resident memory, descriptors
    return registry


class _Http(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, family: int, where: Any, handler: Any) -> None:
        self.address_family = family
        self._ended = False
        self._open: dict[socket.socket, bool] = {}  # whether it has asked; the oldest is first
        self._lock = threading.Lock()
        super().__init__(where, handler)

    def serve(self) -> None:
        """Answers requests until `end`."""
        while not self._ended:
            self.handle_request()
        self.server_close()

    def end(self) -> None:
        """Frees the port at once; `serve` returns."""
        self._ended = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def verify_request(self, request: Any, _: object) -> bool:
        """Whether there is a place for one more, or can be made: nobody is held up by silence."""
        with self._lock:
            if len(self._open) >= _MOST:
                silent = next((one for one, asked in self._open.items() if not asked), None)
                if silent is None:
                    return False
                del self._open[silent]
                with contextlib.suppress(OSError):
                    silent.shutdown(socket.SHUT_RDWR)  # its thread closes it
            self._open[request] = False
        return True

    def asked(self, request: Any) -> None:
        """A request has come on this connection."""
        with self._lock:
            if request in self._open:
                self._open[request] = True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers one request, in a thread of its own."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, *_: object) -> None:
        """A scraper that went away is no news."""


def _listen(address: str, registry: CollectorRegistry) -> _Http:
    from prometheus_client.exposition import MetricsHandler

    class Handler(MetricsHandler.factory(registry)):  # type: ignore[misc]
        timeout = _SILENT

        def parse_request(self) -> bool:
            whole = bool(super().parse_request())
            self.server.asked(self.request)
            return whole

    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, where = found[0]
        return _Http(family, where, Handler)
    except OSError as error:
        raise ConfigError(
            f"metrics={address!r}: cannot listen there ({error.strerror}); choose another port, "
            "or leave metrics out"
        ) from error
