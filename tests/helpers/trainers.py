"""Both clients, on both loops, as trainers that read a while, keep their state, and stop."""

import asyncio
import itertools
import json

import uvloop

from tundish_client import AsyncClient, Client


def plain(batch):
    if isinstance(batch, dict):
        return {key: plain(part) for key, part in batch.items()}
    return [plain(part) for part in batch] if isinstance(batch, list | tuple) else batch.tolist()


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


class Sync:
    """The blocking client under the interface of the tests below."""

    def __init__(self, service):
        self.client = Client(service.socket)

    def close(self):
        self.client.close()

    def read(self, make, most=None):
        """The batches of a stream, at most so many, and the state after them."""
        stream = make(self.client)
        out = []
        while most is None or len(out) < most:
            try:
                out.append(plain(next(stream)))
            except StopIteration:
                break
        self.stream = stream
        return out, json.loads(json.dumps(stream.state_dict()))


class Async(Sync):
    """The asyncio client."""

    new_loop = asyncio.new_event_loop

    def __init__(self, service):
        self.runner = asyncio.Runner(loop_factory=type(self).new_loop)
        self.client = AsyncClient(service.socket)

    def close(self):
        self.runner.run(self.client.aclose())
        self.runner.close()

    def read(self, make, most=None):
        async def read():
            stream = make(self.client)
            out = []
            while most is None or len(out) < most:
                try:
                    out.append(plain(await anext(stream)))
                except StopAsyncIteration:
                    break
            self.stream = stream
            return out, json.loads(json.dumps(stream.state_dict()))

        return self.runner.run(read())


class Uvloop(Async):
    """The same on uvloop."""

    new_loop = uvloop.new_event_loop


KINDS = {"sync": Sync, "asyncio": Async, "uvloop": Uvloop}


def once(connect, service, make, most=None):
    """Reads with a client that is closed afterwards, as a trainer that stops."""
    client = connect(service)
    return client.read(make, most)


def epoch(number, feed, **options):
    return lambda client: client.epoch(number, feed=feed, **options)


def resume(state, **options):
    return lambda client: client.resume(state, **options)
