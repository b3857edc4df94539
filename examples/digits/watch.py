"""A second consumer: reads the epochs it is told and prints a digest of every batch.

Usage: watch.py SOCKET EPOCHS. One JSON line per batch: [epoch, batch, sha256].
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Mapping

import numpy as np

from tundish_client import AsyncClient


def digest(batch: Mapping[str, np.ndarray]) -> str:
    """The sha256 of a batch's bytes, field by field."""
    sha = hashlib.sha256()
    for name, array in sorted(batch.items()):
        sha.update(f"{name}{array.dtype}{array.shape}".encode())
        sha.update(array)
    return sha.hexdigest()


async def watch(socket: str, epochs: int) -> None:
    """Reads on until the last epoch's end, at its own pace."""
    async with AsyncClient(socket) as client:
        for epoch in range(epochs):
            stream = client.epoch(epoch)
            async for batch in stream:
                print(json.dumps([epoch, stream.info.batch, digest(batch)]), flush=True)


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1], int(sys.argv[2])))
