"""Tundish over the same arrays: through the service, or in process. Run by bench/run.py.

Variants: ``slots`` and ``inline`` go through a service in a process of its own; ``local`` iterates
the DataLoader here.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import side

import tundish


class Rows:
    """One Python call per sample."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"x": self.x[index], "y": self.y[index]}


class Waits(Rows):
    """Each sample waits for its storage."""

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        time.sleep(side.WAIT)
        return super().__getitem__(index)


class Awaits(Rows):
    """The same as a coroutine."""

    async def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        await asyncio.sleep(side.WAIT)
        return super().__getitem__(index)


def dataset(args: "side.argparse.Namespace") -> object:
    """What this work reads, in this variant."""
    x, y = side.load(args.data)
    if args.work == "waits":
        return (Awaits if "async" in args.variant else Waits)(x, y)
    return Rows(x, y) if args.work == "python" else tundish.ArrayDataset(x=x, y=y)


def loader(args: "side.argparse.Namespace") -> tundish.DataLoader:
    """The DataLoader of this work; the service's process makes its own."""
    shuffle, workers, lanes = bool(args.shuffle), args.workers, args.lanes
    return tundish.DataLoader(
        dataset(args), args.batch, shuffle, seed=7, num_workers=workers, items_in_parallel=lanes
    )


def through_service(args: "side.argparse.Namespace") -> None:
    """Starts ``tundish serve`` of :func:`loader` and reads epochs from it."""
    shared = args.variant.startswith("slots")
    with tempfile.TemporaryDirectory(prefix="tundish-") as folder:
        path = f"{folder}/feed.sock"
        command = [sys.executable, "-m", "tundish", "serve", f"{__file__}:feed", "--socket", path]
        env = os.environ | {"TUNDISH_BENCH": "\n".join(sys.argv[1:]), "TUNDISH_LOG_LEVEL": "error"}
        server = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)

        def connect() -> tundish.Client:
            return tundish.Client(path, connect_timeout=30, shared_memory=shared)

        def epoch(number: int) -> Iterator[side.Pair]:
            client = connect() if args.work == "first" else kept
            with client.epoch(number) as stream:
                for batch in stream:
                    yield batch["x"], batch["y"]
            if client is not kept:
                client.close()

        try:
            with connect() as kept:
                side.run(epoch)
        finally:
            server.terminate()
            server.wait(10)


def in_process(args: "side.argparse.Namespace") -> None:
    def epoch(number: int) -> Iterator[side.Pair]:
        for batch in kept.epoch(number):
            yield batch["x"], batch["y"]

    kept = loader(args)
    side.run(epoch)


if "TUNDISH_BENCH" in os.environ:
    sys.argv[1:] = os.environ["TUNDISH_BENCH"].split("\n")
    feed = loader(side.arguments())
elif __name__ == "__main__":
    options = side.arguments()
    (in_process if options.variant.startswith("local") else through_service)(options)
