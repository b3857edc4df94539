"""Groups: streams of an epoch that begin together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tundish_client.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tundish.delivery import Delivery

__all__ = ["Gathering"]


_NAMED = 8
"""Members that an error names; each of a thousand would name them all."""


class Gathering:
    """Streams that wait until there are as many of them as the group has members.

    Args:
        first: The first of them.
        timeout: Seconds until those that have joined get an error instead.
        begin: Called with all of them when the group is complete.
        over: Called when nobody waits any more.
    """

    def __init__(
        self,
        first: Delivery,
        timeout: float,
        begin: Callable[[list[Delivery]], None],
        over: Callable[[], object],
    ) -> None:
        self.size = first.stream.group_size
        self.members: list[Delivery] = []
        self._timeout = timeout
        self._begin = begin
        self._over = over
        self._timer = asyncio.get_running_loop().call_later(timeout, self._expire)
        self.add(first)

    def add(self, member: Delivery) -> None:
        """One more has joined.

        Raises:
            ConfigError: It expects another number of members.
        """
        stream = member.stream
        if stream.group_size != self.size:
            raise ConfigError(
                f"group_size={stream.group_size}: group {stream.group!r} was opened with "
                f"group_size={self.size}; all its members must give the same"
            )
        self.members.append(member)
        if len(self.members) == self.size:
            self._close()
            self._begin(self.members)

    def leave(self, member: Delivery) -> None:
        """One is lost before the group was complete; somebody else may take its place."""
        if member in self.members:
            self.members.remove(member)
        if not self.members:
            self._close()

    def dissolve(self) -> list[Delivery]:
        """Those that wait, who need not wait any more."""
        self._close()
        return self.members

    def _close(self) -> None:
        self._timer.cancel()
        self._over()

    def _expire(self) -> None:
        self._close()
        members, self.members = self.members, []
        names = ", ".join(member.name for member in members[:_NAMED])
        if len(members) > _NAMED:
            names += f" and {len(members) - _NAMED} more"
        for member in members:
            stream = member.stream
            member.fail(
                TimeoutError(
                    f"group {stream.group!r} of feed {member.feed!r}, epoch {stream.epoch}: "
                    f"{len(members)} of group_size={self.size} had joined within "
                    f"join_timeout={self._timeout:g} s: {names}"
                )
            )
            member.flush()
