"""What is open on a client's connection, and what becomes of it when the server goes away."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError, ConnectionLost
from .connection import Connection, Limits
from .frames import encode_message
from .info import Position
from .reading import StreamState
from .replies import Reply

__all__ = ["Keeping"]

_PRELUDE = 5
_ARRAY = 4  # bytes more that the header of a long array takes than that of an empty one

_log = logging.getLogger("tundish.client")


class Keeping(Connection):
    """A connection with streams and requests that may outlive it. Not thread-safe.

    If it `recovers`, what is open stays so when the server goes away: the driver opens another
    connection and has that `adopt` this one, or says `give_up`.

    Attributes:
        opened: The handshake is done.
        streams: The open streams, by number.
        changed: Streams and replies to look at again; the driver clears it.
        recovers: Whether another connection follows when the server goes away.
        gone: It went away.
        silently: It did so without a word.
        progressed: It has sent a batch, an end or an answer.
    """

    def __init__(self, limits: Limits, *, recovers: bool) -> None:
        super().__init__(limits)
        self.opened = False
        self.streams: dict[int, StreamState] = {}
        self.changed: list[StreamState | Reply] = []
        self.recovers = recovers
        self._left: list[StreamState] = []  # whose acknowledgements no server has been told
        self.gone = self.silently = self.progressed = False
        self._last = 0
        self._replies: weakref.WeakValueDictionary[int, Reply] = weakref.WeakValueDictionary()

    @property
    def shares_memory(self) -> bool:
        """Whether batches may come in shared memory."""
        return False

    # Asking

    def open_stream(self, stream: StreamState) -> None:
        """Asks for the epoch of a stream and gives it its number.

        Raises:
            ConnectionLost: The connection has failed, and no other will follow.
        """
        if self.failed is not None and not self.recovering:
            stream.fail(self._lost(of_stream=True))
            asked = stream.options
            place = Position(asked.epoch, asked.start) if asked.split is None else None
            raise self._lost(position=place)
        self._last += 1
        stream.number = self._last
        self.streams[stream.number] = stream
        if self.failed is None:
            self._ask(stream)

    def _ask(self, stream: StreamState, **other: Mapping[str, int]) -> None:
        header = {**stream.ask(), "shared_memory": self.shares_memory, **other}
        try:
            try:
                self.send("EPOCH", header)
            except ValueError as error:  # over the server's limits
                self._ask_for_less(stream, header, error)
        except ConfigError as error:
            stream.fail(error)
            self.streams.pop(stream.number, None)
            self.changed.append(stream)

    def _ask_for_less(self, stream: StreamState, header: dict[str, Any], error: Exception) -> None:
        """Asks again for a stream that has acknowledged more ranges than fit into one message.

        Raises:
            ConfigError: It has not begun, so that its user can still say what to do, or it is too
                much without them, too.
        """
        acked = stream.acked
        if "acked" not in header or self.peer_limits is None:
            raise ConfigError(f"{error}: give shorter names") from error
        if not stream.started:
            raise ConfigError(
                f"state['acked'] holds {len(acked.pairs())} ranges, too many for one message: "
                f"{error}; resume with fewer ranges, the largest: the batches of those that are "
                "left out will be delivered again"
            ) from error
        rest = len(encode_message("EPOCH", {**header, "acked": []})) - _PRELUDE + _ARRAY
        told = acked.largest(self.peer_limits.head - rest)
        _log.warning(
            "split=%r: this stream has acknowledged %d ranges of batches, more than the server "
            "accepts in one message; it is told of the largest %d, so %d batches will be delivered "
            "again",
            stream.split, len(acked.pairs()), len(told.pairs()), len(acked) - len(told),
        )  # fmt: skip
        try:
            self.send("EPOCH", {**header, "acked": told.pairs()})
        except ValueError as still:
            raise ConfigError(f"{still}: give shorter names") from still

    def request(self, kind: str) -> Reply:
        """Sends FEEDS, STATS or PING; the reply is forgotten when nobody keeps it.

        Raises:
            ConnectionLost: The connection has failed, and no other will follow.
        """
        if self.failed is not None and not self.recovering:
            raise self._lost()
        self._last += 1
        reply = self._replies[self._last] = Reply(kind)
        if self.failed is None:
            self._inquire(self._last, reply)
        return reply

    def _inquire(self, number: int, reply: Reply) -> None:
        self.send(reply.kind, {"token" if reply.kind == "PING" else "request": number})

    def cancel(self, stream: StreamState) -> None:
        """Ends a stream from this side; what it still holds is dropped."""
        if self.streams.get(stream.number) is stream:
            if self.failed is None:
                self._take_leave(stream)
            elif self.recovering and stream.split is not None:
                self._left.append(stream)
            self.streams.pop(stream.number, None)
        stream.close()
        self.changed.append(stream)

    def _take_leave(self, stream: StreamState) -> None:
        batch = stream.consumed()
        header = {"stream": stream.number}
        if not stream.asked:  # it is of a split, and what it has acknowledged is news here
            if batch is not None:
                stream.acked.add(batch)
            if not len(stream.acked):
                return
            self._ask(stream, credits={"batches": 0, "bytes": 0})
        elif batch is not None:
            header["batch"] = batch
        self.send("CANCEL", header)

    # Losing the connection

    @property
    def recovering(self) -> bool:
        """Whether what is open waits for another connection."""
        return self.gone and self.recovers

    @property
    def busy(self) -> bool:
        """Whether anything is open."""
        return bool(self.streams or self._replies)

    def lose(self, error: Exception) -> None:
        """Fails the connection and everything that waits for it; the first reason stays."""
        self.failed = self.failed or error
        if self.recovering:
            self._suspend()
        else:
            self._fail()

    def _suspend(self) -> None:
        """Keeps what can go on with another connection, and fails the rest."""
        for stream in list(self.streams.values()):
            if not stream.suspend():
                stream.fail(self._lost(of_stream=True), lasting=True)
                del self.streams[stream.number]
            self.changed.append(stream)

    def _fail(self, then: Exception | None = None) -> None:
        for stream in self.streams.values():
            stream.fail(self._lost(then, of_stream=True), lasting=self.recovering)
            self.changed.append(stream)
        self.streams.clear()
        for reply in list(self._replies.values()):
            reply.settle({}, self._lost(then))
            self.changed.append(reply)
        self._replies.clear()

    def give_up(self, error: Exception) -> None:
        """Fails everything that waits for another connection: none could be opened."""
        self._fail(error)

    def _lost(
        self,
        then: Exception | None = None,
        *,
        of_stream: bool = False,
        position: Position | None = None,
    ) -> ConnectionLost:
        """Returns a fresh error for what the connection has failed.

        Args:
            then: Why there is no other connection.
            of_stream: It is one of a stream, which says itself how to go on.
            position: Where to go on.
        """
        cause = self.failed
        text = str(cause) or repr(cause)
        if of_stream and self.silently:
            text += " without an END"
        if then is not None:
            text += f"; {then}"
        if not of_stream:
            text += f"; {self._way_on()}"
        fresh = ConnectionLost(text, position)
        own = cause.__cause__ if isinstance(cause, ConnectionLost) else cause
        fresh.__cause__ = own if then is None else then
        return fresh

    def _way_on(self) -> str:
        if self.recovering:
            return "ask this client again, it looks for the server anew"
        if self.gone and not self.recovers:
            return "open another client, or give it a reconnect_timeout to look for the server with"
        return "open another client"

    def adopt(self, old: Keeping) -> None:
        """Goes on with what was open on a connection that was lost; this one is open."""
        self._last = old._last
        for number, reply in list(old._replies.items()):
            self._replies[number] = reply
            self._inquire(number, reply)
        self.streams, old.streams = old.streams, {}
        for stream in list(self.streams.values()):
            # What the user holds of a split epoch is acknowledged by asking for more: only then
            # is it known what to tell the server.
            if stream.split is None or not stream.started:
                self._ask(stream)
        for stream in old._left:
            self._take_leave(stream)
        old._left.clear()
        self.changed += self.streams.values()
