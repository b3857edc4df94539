"""The unit of every duration in the tests."""

import asyncio
import os
import time
from collections.abc import Callable

#: One millisecond, stretched on slow machines by TUNDISH_TEST_SLOWNESS.
MS = 0.001 * float(os.environ.get("TUNDISH_TEST_SLOWNESS", "1"))


def wait_for(condition: Callable[[], bool], what: str, timeout: float = 5000 * MS) -> None:
    """Polls `condition` until it holds; AssertionError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout:.1f} s for {what}"
        time.sleep(2 * MS)


async def until(condition: Callable[[], bool], what: str, timeout: float = 2000 * MS) -> None:
    """`wait_for` for a test on an event loop."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout:.1f} s for {what}"
        await asyncio.sleep(2 * MS)
