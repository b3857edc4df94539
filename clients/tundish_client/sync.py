"""The blocking client."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from ._base import BaseClient, choose_feed
from ._blocking import BlockingLink
from ._protocol.reading import StreamState
from .config import ClientOptions, EpochOptions
from .resuming import resume_any
from .streams import Stream

__all__ = ["Client"]


class Client(BaseClient):
    """A connection to a Tundish server.

    It may be used from several threads. Ctrl-C comes through at once and loses nothing: after
    catching KeyboardInterrupt, the next call goes on where the interrupted one was.

    Args:
        socket: Path of the server's socket; by default `$TUNDISH_SOCKET`, else
            `$XDG_RUNTIME_DIR/tundish/tundish.sock`, else `/tmp/tundish-<uid>/tundish.sock`.
        connect_timeout: Seconds to wait for a server that is not there yet, or does not answer;
            10 by default (`$TUNDISH_CONNECT_TIMEOUT`).
        reconnect_timeout: Seconds to look for a server that went away: open streams go on at their
            own position when it, or another one with the same feed, is there again. By default 0:
            they raise ConnectionLost at once (`$TUNDISH_RECONNECT_TIMEOUT`).
        shared_memory: Take batches in shared memory; yes by default (`$TUNDISH_SHARED_MEMORY`).
        name: What the server calls this client in its log, counters and errors, up to 200
            characters; "tundish-client" by default (`$TUNDISH_CLIENT_NAME`).

    Raises:
        ConfigError: An argument is wrong; the message names it.
        ConnectTimeout: No server came, or it did not answer in time.
        ConnectError: What listens there is not a Tundish server, or one of another version.

    Example:
        >>> with Client() as client:  # doctest: +SKIP
        ...     for batch in client.epoch(0):
        ...         train(batch)
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        connect_timeout: float | None = None,
        reconnect_timeout: float | None = None,
        shared_memory: bool | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            ClientOptions(
                socket=socket,
                connect_timeout=connect_timeout,
                reconnect_timeout=reconnect_timeout,
                shared_memory=shared_memory,
                name=name,
            )
        )
        self._closers: list[Callable[[], None]] = []
        self._link = BlockingLink(self._options, self._life)

    # What users call

    def epoch(
        self,
        epoch: int,
        start: int = 0,
        *,
        feed: str | None = None,
        rank: int | None = None,
        world_size: int = 1,
        uneven: str = "pad",
        batch_size: int | None = None,
        group: str | None = None,
        group_size: int | None = None,
        split: str | None = None,
        on_lag: str = "detach",
        prefetch: int | None = None,
        copy: bool = False,
    ) -> Stream:
        """Asks for an epoch and returns the stream of its batches.

        Args:
            epoch: Which epoch, from 0; the order depends on it and on the feed's seed only.
            start: The first batch wanted; `epoch(*stream.position)` goes on at a position.
            feed: Name of the feed; may be left out when the server has one.
            rank: This consumer's shard, below `world_size`; must be given with one above 1.
            world_size: Number of shards.
            uneven: "pad", "drop" or "keep": what to do if the shards are not of one size.
            batch_size: Samples in a batch of this stream; by default the feed's.
            group: Name of a group: its streams share one production, which no others join.
            group_size: How many streams the group begins with: they wait for each other.
            split: Name of a split: each batch of the epoch goes to one of the streams that give
                this name, first come, first served. See `Stream` for what acknowledges a batch;
                what a lost consumer has not acknowledged goes to the others.
            on_lag: What happens when this stream falls too far behind others of its epoch:
                "detach", it gets the rest by itself, or "wait", the others wait for it.
            prefetch: Batches the server may send ahead, at least 1. By default 2; of a feed whose
                batches take 32 KiB at most 8, but 2 in a split.
            copy: Hand out arrays in memory of their own instead of views of shared memory.

        Raises:
            ConfigError: An argument is wrong; the message names it. What only the server can know
                (no such feed, a start beyond the end) is raised by the stream.
            ConnectionLost: The server is gone.
        """
        options = EpochOptions(
            epoch=epoch, start=start, feed=feed, rank=rank, world_size=world_size,
            uneven=uneven, batch_size=batch_size, group=group, group_size=group_size,
            split=split, on_lag=on_lag, prefetch=prefetch, copy=copy,
        )  # fmt: skip
        return self._stream(options)

    def resume(
        self,
        state: Mapping[str, Any],
        *,
        feed: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: str | None = None,
        group: str | None = None,
        group_size: int | None = None,
        on_lag: str = "detach",
        prefetch: int | None = None,
        copy: bool = False,
    ) -> Stream:
        """Goes on where a stream was when its `state_dict()` was taken.

        The server may be another one; it compares what the position was counted in (seed, samples,
        order, drop_last, global batch size) with its feed and refuses a difference, with both
        values. If the feed's seed was drawn at its start, the stream gets the state's instead; to
        keep that seed in the next epoch, resume `state | {"epoch": e + 1, "batch": 0}` (of a split:
        `"acked": []`).

        A stream of a split epoch joins the split again, and tells the server what it has
        acknowledged.

        Args:
            state: From `state_dict()` of a stream, or of an epoch or a DataLoader in-process.
            feed: Name of the feed; by default the state's.
            rank: By default the state's; must be given with another `world_size` above 1.
            world_size: By default the state's. With another one the batch size becomes the global
                batch divided by it.
            uneven: By default the state's.
            group: As for `epoch`.
            group_size: As for `epoch`.
            on_lag: As for `epoch`.
            prefetch: As for `epoch`.
            copy: As for `epoch`.

        Raises:
            ConfigError: The state is none, has a key that is none of a state's, or the global batch
                can't be divided by `world_size`. What only the server can know is raised by the
                stream.
            ConnectionLost: The server is gone.

        Example:
            >>> checkpoint = json.dumps(stream.state_dict())  # doctest: +SKIP
            >>> stream = client.resume(json.loads(checkpoint))  # doctest: +SKIP
        """
        options = resume_any(
            state, feed=feed, rank=rank, world_size=world_size, uneven=uneven,
            group=group, group_size=group_size, on_lag=on_lag, prefetch=prefetch, copy=copy,
        )  # fmt: skip
        return self._stream(options)

    def _stream(self, options: EpochOptions) -> Stream:
        state = StreamState(options)
        stream = Stream(self, state)  # if Ctrl-C comes now, the stream ends with this
        self._link.update("open_stream", state)
        return stream

    def feeds(self) -> list[dict[str, Any]]:
        """Returns what the server offers: one dict per feed (feed, samples, batches, seed...)."""
        return list(self._link.request("FEEDS")["feeds"])

    def info(self, feed: str | None = None) -> dict[str, Any]:
        """Returns the entry of one feed in `feeds()`; the name may be left out if there is one.

        Raises:
            ConfigError: There is no such feed; the message names those there are.
        """
        return choose_feed(self.feeds(), feed)

    def stats(self) -> dict[str, Any]:
        """Returns the server's counters: streams, runs, feeds, memory, slots."""
        return dict(self._link.request("STATS")["stats"])

    def ping(self) -> float:
        """Asks the server for a sign of life; returns the seconds it took."""
        began = time.perf_counter()
        self._link.request("PING")
        return time.perf_counter() - began

    def close(self) -> None:
        """Closes the connection. Arrays that are still held stay as they are. Never waits."""
        if self._life.over:
            return
        self._link.cancel_dropped()
        self._life.closed = True
        self._link.shut()
        for closer in self._closers:
            closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    # What streams call

    def _take(self, state: StreamState) -> Any:
        return self._link.take(state)

    def _length(self, state: StreamState) -> int:
        if not state.is_started():
            self._link.until(state.is_started)
        return state.length()

    def _close_stream(self, state: StreamState, *, clean: bool) -> None:
        if not (state.closed or self._life.over):
            state.clean = clean
            self._link.cancel(state)

    def _forget(self, state: StreamState) -> None:
        if not self._life.over:
            self._link.forget(state)

    def _abandon(self) -> None:
        self._link.abandon()
