"""Both clients behind one interface, so that one table of cases feeds both.

`outcomes` of an epoch is a list: a value for each batch, an exception for each failure, `"end"`.
"""

import asyncio
from typing import Any

import uvloop

from tundish_client import AsyncClient, Client

END = "end"

KINDS = ("sync", "asyncio", "uvloop")


class Reader:
    """Either client, used from a test that is not async.

    Args:
        kind: one of `KINDS`.
        path: the server's socket.
        options: of the client.
    """

    def __init__(self, kind: str, path: str, **options: Any) -> None:
        self.kind = kind
        self.runner: asyncio.Runner | None = None
        if kind == "sync":
            self.client: Any = Client(path, **options)
        else:
            new = uvloop.new_event_loop if kind == "uvloop" else asyncio.new_event_loop
            self.runner = asyncio.Runner(loop_factory=new)
            self.client = AsyncClient(path, **options)

    def run(self, call: Any) -> Any:
        """What a method of the client has returned: of the async one, what it comes to."""
        return call if self.runner is None else self.runner.run(call)

    def epoch(self, number: int = 0, **options: Any) -> Any:
        return self.client.epoch(number, **options)

    def start(self, stream: Any) -> None:
        if self.runner is not None:
            self.runner.run(stream.__aenter__())

    def next(self, stream: Any) -> Any:
        """The next value, or `END`."""
        if self.runner is None:
            return next(stream, END)
        return self.runner.run(anext(stream, END))

    def outcomes(self, stream: Any, most: int = 1000) -> list[Any]:
        """What `most` calls of next() give or raise, to the end or to an error that stays."""
        out: list[Any] = []
        while len(out) < most and (not out or out[-1] is not END):
            try:
                out.append(self.next(stream))
            except Exception as error:
                if out and repr(out[-1]) == repr(error):
                    break
                out.append(error)
        return out

    def close(self, what: Any = None) -> None:
        what = self.client if what is None else what
        if self.runner is None:
            what.close()
        else:
            self.runner.run(what.aclose())

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self.runner is not None:
            self.runner.close()


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
