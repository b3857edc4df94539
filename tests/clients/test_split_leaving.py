"""How a stream of a split epoch may end, and what that acknowledges."""

import asyncio
import contextlib
import gc

import pytest

from helpers.clients import Reader
from helpers.splits import PRINT, SAID, batches, serve
from helpers.timing import MS
from tundish_client import AsyncClient, Client
from tundish_client.testing import Batch, ScriptedServer, Silence


class Oops(Exception):
    pass


def break_(client):
    for _ in client.epoch(0, split="g"):
        break


def return_(client):
    for batch in client.epoch(0, split="g"):
        return batch
    return None


def return_a_constant(client):
    for _ in client.epoch(0, split="g"):
        return 1
    return None


def break_out_of_a_view(client):
    for _ in enumerate(client.epoch(0, split="g")):
        break


def break_in_a_loop_in_a_try(client):
    try:
        for _ in client.epoch(0, split="g"):
            try:
                break
            finally:
                len("x")
    finally:
        len("y")


def break_after_an_exception(client):
    for _ in client.epoch(0, split="g"):
        try:
            raise Oops
        except Oops:
            break


def close(client):
    stream = client.epoch(0, split="g")
    next(stream)
    stream.close()
    stream.close()


def with_(client):
    with client.epoch(0, split="g") as stream:
        next(stream)


def break_in_with(client):
    with client.epoch(0, split="g") as stream:
        for _ in stream:
            break


def return_in_with(client):
    with client.epoch(0, split="g") as stream:
        for batch in stream:
            return batch
    return None


def with_while_an_exception_is_handled(client):
    try:
        raise Oops
    except Oops:
        with_(client)


def raise_(client):
    with contextlib.suppress(Oops):
        for _ in client.epoch(0, split="g"):
            raise Oops


def raise_in_a_function(client):
    def train(_):
        raise Oops

    try:
        for batch in client.epoch(0, split="g"):
            train(batch)
    except Oops:
        pass


def raise_in_an_inner_try(client):
    with contextlib.suppress(Oops):
        for _ in client.epoch(0, split="g"):
            try:
                raise Oops
            finally:
                len("x")


def raise_in_with(client):
    with contextlib.suppress(Oops), client.epoch(0, split="g") as stream:
        for _ in stream:
            raise Oops


def close_while_an_exception_is_handled(client):
    stream = client.epoch(0, split="g")
    try:
        next(stream)
        raise Oops
    except Oops:
        stream.close()


def closing(client):
    with contextlib.suppress(Oops), contextlib.closing(client.epoch(0, split="g")) as stream:
        next(stream)
        raise Oops


def delete(client):
    stream = client.epoch(0, split="g")
    next(stream)
    del stream


def forget(client):
    stream = client.epoch(0, split="g")
    next(stream)
    cycle = [stream]
    cycle.append(cycle)
    del stream, cycle
    gc.collect()


def leave_a_function(client):
    def read():
        stream = client.epoch(0, split="g")
        next(stream)

    read()


def raise_around_a_generator(client):
    def batches():
        yield from client.epoch(0, split="g")

    with contextlib.suppress(Oops):
        for _ in batches():
            raise Oops


def one_next(client):
    next(client.epoch(0, split="g"))


def a_generator(client):
    def batches():
        yield from client.epoch(0, split="g")

    for _ in batches():
        break


ACKNOWLEDGE = [
    break_, return_, return_a_constant, break_out_of_a_view, break_in_a_loop_in_a_try,
    break_after_an_exception, close, with_, break_in_with, return_in_with,
    with_while_an_exception_is_handled,
]  # fmt: skip
GIVE_BACK = [
    raise_, raise_in_a_function, raise_in_an_inner_try, raise_in_with,
    close_while_an_exception_is_handled, closing, delete, forget, leave_a_function, one_next,
    a_generator, raise_around_a_generator,
]  # fmt: skip


@pytest.mark.parametrize("leave", [*ACKNOWLEDGE, *GIVE_BACK])
def test_only_a_clean_end_acknowledges(leave):
    with serve(*batches(3, 5, 7), Silence()) as server, Client(server.path) as client:
        leave(client)
        gc.collect()
        client.ping()
        expected = {"stream": 1, "batch": 3} if leave in ACKNOWLEDGE else {"stream": 1}
        assert server.kinds("CANCEL") == [expected]
        assert not server.kinds("ACK")


async def abreak(client):
    async for _ in client.epoch(0, split="g"):
        break


async def areturn(client):
    async for batch in client.epoch(0, split="g"):
        return batch
    return None


async def aclose(client):
    stream = client.epoch(0, split="g")
    await anext(stream)
    await stream.aclose()


async def awith(client):
    async with client.epoch(0, split="g") as stream:
        async for _ in stream:
            break


async def awith_while_an_exception_is_handled(client):
    try:
        raise Oops
    except Oops:
        await awith(client)


async def araise(client):
    with contextlib.suppress(Oops):
        async for _ in client.epoch(0, split="g"):
            raise Oops


async def araise_in_with(client):
    with contextlib.suppress(Oops):
        async with client.epoch(0, split="g") as stream:
            await anext(stream)
            raise Oops


async def aclose_while_an_exception_is_handled(client):
    stream = client.epoch(0, split="g")
    try:
        await anext(stream)
        raise Oops
    except Oops:
        await stream.aclose()


async def adelete(client):
    stream = client.epoch(0, split="g")
    await anext(stream)
    del stream


async def acancel(client):
    async def read():
        async for _ in client.epoch(0, split="g"):
            await asyncio.sleep(10)

    task = asyncio.create_task(read())
    await asyncio.sleep(30 * MS)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


AACKNOWLEDGE = [abreak, areturn, aclose, awith, awith_while_an_exception_is_handled]
AGIVE_BACK = [
    araise, araise_in_with, aclose_while_an_exception_is_handled, adelete, acancel,
]  # fmt: skip


@pytest.mark.parametrize("leave", [*AACKNOWLEDGE, *AGIVE_BACK])
async def test_only_a_clean_end_acknowledges_async(leave):
    with serve(*batches(3, 5, 7), Silence()) as server:
        async with AsyncClient(server.path) as client:
            await leave(client)
            gc.collect()
            await asyncio.sleep(0)
            await client.ping()
            expected = {"stream": 1, "batch": 3} if leave in AACKNOWLEDGE else {"stream": 1}
            assert server.kinds("CANCEL") == [expected]


class TestSplitsThatAreLeft:
    """A stream that ends in the pause has told its acknowledgements to nobody."""

    SCRIPT = [Batch(f"batch {n}", [n], number=n) for n in (3, 1, 4)]

    def away(self, reader, path):
        with ScriptedServer([*self.SCRIPT, Silence()], path=path, announce=SAID):
            client = reader(path)
            stream = client.epoch(split="g")
            assert [client.next(stream) for _ in range(2)] == ["batch 3", "batch 1"]
        return client, stream

    def told(self, client, path):
        with ScriptedServer(self.SCRIPT, path=path, announce=SAID) as server:
            client.run(client.client.ping())
            client.run(client.client.ping())
            return server.kinds("EPOCH"), server.kinds("CANCEL")

    def test_by_a_clean_end(self, reader, path):
        client, stream = self.away(reader, path)
        client.close(stream)
        (asked,), cancels = self.told(client, path)
        assert (asked["split"], asked["acked"]) == ("g", [[1, 1], [3, 3]])
        assert asked["credits"] == {"batches": 0, "bytes": 0}
        assert asked["fingerprint"] == PRINT
        assert cancels == [{"stream": 1}]
        assert self.told(client, path) == ([], [])  # once

    def test_by_an_exception(self, reader, path):
        client, stream = self.away(reader, path)
        with pytest.raises(ZeroDivisionError):
            self.raise_in_with(client, stream)
        (asked,), cancels = self.told(client, path)
        assert (asked["acked"], cancels) == ([[3, 3]], [{"stream": 1}])

    def raise_in_with(self, client, stream):
        if client.runner is None:
            with stream:
                raise ZeroDivisionError

        async def main():
            try:
                raise ZeroDivisionError
            except ZeroDivisionError as error:
                await stream.__aexit__(ZeroDivisionError, error, None)
                raise

        client.runner.run(main())

    def test_by_break(self, path):
        with ScriptedServer([*self.SCRIPT, Silence()], path=path, announce=SAID) as server:
            client = Reader("sync", path, reconnect_timeout=20)
            for batch in client.epoch(split="g"):
                if batch == "batch 1":
                    server.stop()
                    break
        (asked,), cancels = self.told(client, path)
        assert (asked["acked"], cancels) == ([[1, 1], [3, 3]], [{"stream": 1}])
        client.close()

    async def test_by_break_out_of_async_for(self, path):
        with ScriptedServer([*self.SCRIPT, Silence()], path=path, announce=SAID) as server:
            client = AsyncClient(path, reconnect_timeout=20)
            async for batch in client.epoch(0, split="g"):
                if batch == "batch 1":
                    server.stop()
                    break
        with ScriptedServer(self.SCRIPT, path=path, announce=SAID) as server:
            await client.ping()
            await client.ping()
            (asked,) = server.kinds("EPOCH")
            assert (asked["acked"], server.kinds("CANCEL")) == ([[1, 1], [3, 3]], [{"stream": 1}])
        await client.aclose()

    @pytest.mark.parametrize("timeout", [0, 10])
    async def test_by_break_just_before_the_client_is_closed(self, path, timeout):
        """The server is there: it is told although the loop has no further turn."""
        with ScriptedServer([*self.SCRIPT, Silence()], path=path, announce=SAID) as server:
            async with AsyncClient(path, reconnect_timeout=timeout) as client:
                async for batch in client.epoch(0, split="g"):
                    if batch == "batch 1":
                        break
            server.wait_for(lambda: server.connections == 0)
            assert server.kinds("CANCEL") == [{"stream": 1, "batch": 1}]

    def test_that_had_acknowledged_nothing_have_nothing_to_tell(self, reader, path):
        with ScriptedServer([*self.SCRIPT, Silence()], path=path, announce=SAID):
            client = reader(path)
            streams = [client.epoch(split="g"), client.epoch()]
            for stream in streams:
                client.next(stream)
        with pytest.raises(ZeroDivisionError):
            self.raise_in_with(client, streams[0])
        client.close(streams[1])
        assert self.told(client, path) == ([], [])
