"""An epoch's place in the pump of its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import TYPE_CHECKING

from tundish.pump import Pump

if TYPE_CHECKING:
    from collections.abc import Callable

    from tundish.epoch import Epoch

__all__ = ["Registration"]


def _weak_call(epoch: Epoch) -> Callable[[], None]:
    """A wake-up that doesn't keep the epoch alive: dropping it must cancel its run."""
    reference = weakref.ref(epoch)

    def wake() -> None:
        target = reference()
        if target is not None:
            target._on_ready()

    return wake


class Registration:
    """An epoch's place in the pump of its loop, given up when the epoch is.

    An object of its own, so that an epoch under ``for`` is freed without running Python code, in
    which a Ctrl-C would be lost.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch: Epoch) -> None:
        self._loop = loop
        self._pump: Pump | None = Pump.of(loop)
        self.waker = self._pump.waker
        self.token = self._pump.register(_weak_call(epoch))

    def release(self) -> None:
        """Take the wake-up out of the pump, from whatever thread this is."""
        pump, self._pump = self._pump, None
        if pump is None:
            return
        if asyncio._get_running_loop() is self._loop:
            pump.unregister(self.token)
            return
        # A loop that is closed, or closes just now, takes its pump along.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(pump.unregister, self.token)

    __del__ = release
