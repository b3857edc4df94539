"""Which event loop the server runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tundish_client.errors import ConfigError

__all__ = ["run"]

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], loop: str) -> T:
    """Runs a coroutine on a fresh event loop and returns its result.

    Args:
        main: What to run.
        loop: "asyncio" or "uvloop".

    Raises:
        ConfigError: The loop is unknown, or uvloop isn't installed.
    """
    try:
        factory = _factory(loop)
    except ConfigError:
        main.close()
        raise
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def _factory(loop: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if loop == "asyncio":
        return asyncio.new_event_loop
    if loop != "uvloop":
        raise ConfigError(f"loop={loop!r} must be asyncio or uvloop")
    try:
        import uvloop
    except ImportError as error:
        raise ConfigError(
            "loop='uvloop' needs uvloop: install it, or use --loop asyncio"
        ) from error
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
