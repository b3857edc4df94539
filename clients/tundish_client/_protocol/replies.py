"""Answers to requests that are no streams."""

from __future__ import annotations

from typing import Any

__all__ = ["Reply"]


class Reply:
    """The answer to one request, once it is there.

    Attributes:
        kind: FEEDS, STATS or PING: what is asked, again on another connection if need be.
    """

    __slots__ = ("__weakref__", "done", "error", "header", "kind")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.done = False
        self.header: dict[str, Any] = {}
        self.error: Exception | None = None

    def settle(self, header: dict[str, Any], error: Exception | None = None) -> None:
        """Sets the answer."""
        self.header, self.error, self.done = header, error, True

    def take(self) -> dict[str, Any] | None:
        """Returns the answer, None while there is none.

        Raises:
            Exception: The request failed.
        """
        if self.error is not None:
            raise self.error
        return self.header if self.done else None
