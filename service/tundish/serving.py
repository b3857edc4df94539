"""The serving process: what `tundish serve` does once its options are known."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import sys
from dataclasses import dataclass

from tundish import log, loops
from tundish._core import watch_parent
from tundish.config import ServeConfig
from tundish.loader import DataLoader
from tundish.server import Server
from tundish.signals import GRACE, exit_code, wait_for_signal
from tundish.workers import share_interpreter

__all__ = ["Sidecar", "serve_process"]


@dataclass(frozen=True)
class Sidecar:
    """What a parent that spawned this process has passed down.

    Attributes:
        parent: Its pidfd.
        status: Pipe to write one byte to when the socket listens.
        stderr: Where stderr goes from then on.
        folder: To be removed at the end.
    """

    parent: int
    status: int
    stderr: int
    folder: str

    @classmethod
    def parse(cls, text: str) -> Sidecar:
        """Reads the form of `--sidecar`: three descriptors and the folder, separated by commas."""
        parent, status, stderr, folder = text.split(",", 3)
        return cls(int(parent), int(status), int(stderr), folder)

    def watch(self) -> None:
        """Ties this process's life to the parent's."""
        watch_parent(self.parent, GRACE)

    def ready(self) -> None:
        """Tells the parent that the socket listens."""
        sys.stderr.flush()
        os.dup2(self.stderr, 2)
        os.close(self.stderr)
        os.write(self.status, b"1")
        os.close(self.status)


def serve_process(
    feeds: dict[str, DataLoader], config: ServeConfig, names: str, sidecar: Sidecar | None
) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit status.

    Args:
        feeds: The loaders by name.
        config: The options.
        names: What is served, for the line that says so.
        sidecar: Set if a parent spawned this process.

    Raises:
        ConfigError: The socket can't be had.
    """
    log.configure(config.log_level)
    share_interpreter()
    # What the feeds and all that was imported consist of stays for good: of a dataset of a million
    # Python objects, each full collection of garbage would hold all streams up for a second.
    gc.collect()
    gc.freeze()
    try:
        return loops.run(_serve(feeds, config, names, sidecar), config.loop)
    finally:
        for loader in feeds.values():
            loader.close()
        if sidecar is not None:
            shutil.rmtree(sidecar.folder, ignore_errors=True)


async def _serve(
    feeds: dict[str, DataLoader], config: ServeConfig, names: str, sidecar: Sidecar | None
) -> int:
    came = wait_for_signal(asyncio.get_running_loop())
    server = Server(feeds, config)
    try:
        if sidecar is None:
            sys.stdout.write(f"tundish: serving {names} on {server.socket} (pid {os.getpid()})\n")
            if server.metrics is not None:
                sys.stdout.write(f"tundish: metrics at http://{server.metrics}/metrics\n")
            sys.stdout.flush()
        else:
            sidecar.ready()
        signum = await came
    except BaseException:
        await server.aclose()
        raise
    await server.aclose(f"{signal.Signals(signum).name} was received")
    return exit_code(signum)
