"""From worker threads to the event loop: one eventfd, no thread parked on a queue.

A worker that has a batch ready writes the loop's eventfd (without the interpreter, and only if the
loop has not been told yet). The loop reads it and calls back whoever registered the tokens.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable

from tundish._core import Waker

__all__ = ["Pump"]

_log = logging.getLogger("tundish.server")


class Pump:
    """Wakes callbacks on one event loop. Use it from that loop's thread only.

    Attributes:
        waker: To be given to runs, together with a token from `register`.

    Example:
        >>> async def next_cell(loader, arena):
        ...     pump = Pump.of(asyncio.get_running_loop())
        ...     ready = asyncio.Event()
        ...     token = pump.register(ready.set)
        ...     run = loader._open(0, arena=arena, waker=pump.waker, token=token)
        ...     while (cell := run.take()) is None:
        ...         ready.clear()
        ...         await ready.wait()
        ...     pump.unregister(token)
        ...     return cell
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.waker = Waker()
        # Weak, because the registry below must not keep a loop alive.
        self._loop = weakref.ref(loop)
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._last = 0

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Pump:
        """The pump of `loop`, made at the first call."""
        pump = _pumps.get(loop)
        if pump is None:
            pump = _pumps[loop] = cls(loop)
        return pump

    def register(self, callback: Callable[[], object]) -> int:
        """Returns the token that makes `callback` be called, on the loop, when a run has news.

        It is called once for any number of batches: take all there are. Call `unregister` when
        the run is over.
        """
        self._last += 1
        if not self._callbacks:
            loop = self._loop()
            if loop is not None:
                loop.add_reader(self.waker.fileno(), self._woken)
        self._callbacks[self._last] = callback
        return self._last

    def unregister(self, token: int) -> None:
        """Forgets a token; its callback is not called again. Unknown tokens are ignored."""
        if self._callbacks.pop(token, None) is None or self._callbacks:
            return
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self.waker.fileno())

    def _woken(self) -> None:
        callbacks = self._callbacks
        for token in self.waker.drain():
            callback = callbacks.get(token)
            if callback is None:
                continue
            try:
                callback()
            except Exception:
                _log.exception("a wake-up failed")


_pumps: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Pump] = weakref.WeakKeyDictionary()
