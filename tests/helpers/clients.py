"""Both clients behind one interface, so that one table of cases feeds both.

`outcomes` of an epoch is a list: a value for each batch, an exception for each failure, `"end"`.
"""

import asyncio
from typing import Any

from tundish_client import AsyncClient, Client

END = "end"


def read_sync(path: str, *, calls: int, client: dict[str, Any], **epoch: Any) -> list[Any]:
    """Calls next() `calls` times, whatever it raises."""
    out: list[Any] = []
    with Client(path, **client) as opened:
        stream = opened.epoch(0, **epoch)
        for _ in range(calls):
            try:
                out.append(next(stream))
            except StopIteration:
                out.append(END)
            except Exception as error:
                out.append(error)
        out.append((stream.position, dict(stream.counts)))
    return out


async def read_async(path: str, *, calls: int, client: dict[str, Any], **epoch: Any) -> list[Any]:
    """Awaits anext() `calls` times, whatever it raises."""
    out: list[Any] = []
    async with AsyncClient(path, **client) as opened:
        stream = opened.epoch(0, **epoch)
        for _ in range(calls):
            try:
                out.append(await asyncio.wait_for(anext(stream), 5))
            except StopAsyncIteration:
                out.append(END)
            except Exception as error:
                out.append(error)
        out.append((stream.position, dict(stream.counts)))
    return out
