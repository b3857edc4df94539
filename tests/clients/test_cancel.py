"""Leaving early: break, close, garbage collection, time-outs. Nothing lost, nothing left behind."""

import asyncio
import gc
import threading

import numpy as np
import pytest

from helpers.timing import MS
from tundish_client import AsyncClient, Client, TundishError
from tundish_client.testing import Close, ScriptedServer, Silence

MANY = list(range(1000))


def idle(server: ScriptedServer) -> None:
    server.wait_for(lambda: server.open_streams == 0, 200 * MS)


class Oops(Exception):
    pass


def leave_by_break(client):
    for _ in client.epoch(0):
        break


def leave_by_return(client):
    for i in client.epoch(0):
        if i == 2:
            return i
    return None


def leave_by_error(client):
    try:
        for _ in client.epoch(0):
            raise Oops
    except Oops:
        pass


def leave_by_close(client):
    stream = client.epoch(0)
    next(stream)
    stream.close()
    with pytest.raises(TundishError, match="closed"):
        next(stream)
    stream.close()


def leave_by_with(client):
    with client.epoch(0) as stream:
        next(stream)


@pytest.mark.parametrize("shared_memory", [False, True])
@pytest.mark.parametrize(
    "leave", [leave_by_break, leave_by_return, leave_by_error, leave_by_close, leave_by_with]
)
def test_leaving_sync(leave, shared_memory):
    script = [np.full(2000, i) for i in MANY] if shared_memory else MANY
    with ScriptedServer(script, shared_memory=shared_memory) as server:
        with Client(server.path) as client:
            for _ in range(20):
                if leave is leave_by_return and shared_memory:
                    leave = leave_by_break
                leave(client)
            idle(server)
            assert len(server.kinds("CANCEL")) == 20
            assert not client._link.core.streams
            if shared_memory:
                client.ping()
                server.wait_for(lambda: len(server.arena.free) == 4)
            assert len(list(client.epoch(0))) == 1000


async def test_leaving_async():
    with ScriptedServer(MANY) as server:
        async with AsyncClient(server.path) as client:
            for _ in range(10):
                async for _ in client.epoch(0):
                    break
                stream = client.epoch(0)
                await anext(stream)
                await stream.aclose()
                with pytest.raises(TundishError, match="closed"):
                    await anext(stream)
                async with client.epoch(0) as entered:
                    await anext(entered)
                try:
                    async for _ in client.epoch(0):
                        raise Oops
                except Oops:
                    pass
                await client.epoch(0).aclose()  # never asked for
            del stream, entered
            await client.ping()
            await asyncio.sleep(10 * MS)
            idle(server)
            assert len(server.kinds("CANCEL")) == 50
            assert [b async for b in client.epoch(0)] == MANY


async def test_kept_stream_costs_its_window_only():
    with ScriptedServer(MANY) as server:
        async with AsyncClient(server.path) as client:
            kept = client.epoch(0, prefetch=4)
            async for _ in kept:
                break
            await client.ping()
            assert server.open_streams == 1 and len(kept._state.cells) <= 5
            await kept.aclose()
            await client.ping()
            assert server.open_streams == 0


def test_dropped_by_a_cycle_on_another_thread():
    with ScriptedServer([1, Silence()]) as server, Client(server.path) as client:
        stream = client.epoch(0)
        next(stream)
        cycle = [stream]
        cycle.append(cycle)
        del stream, cycle
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
        idle(server)


def test_dropped_while_another_thread_waits():
    with ScriptedServer([1, Silence()]) as server, Client(server.path) as client:
        waiting, other = client.epoch(0), client.epoch(1)
        next(waiting), next(other)
        errors = []

        def wait():
            try:
                next(waiting)
            except TundishError as error:
                errors.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        server.wait_for(lambda: client._link._reader is not None)
        del other
        server.wait_for(lambda: server.open_streams == 1, 200 * MS)
        client.close()
        thread.join(1)
        assert not thread.is_alive() and "closed" in errors[0]


def test_client_that_is_dropped_hangs_up():
    with ScriptedServer(MANY, shared_memory=True) as server:
        client = Client(server.path)
        stream = client.epoch(0)
        next(stream)
        del client, stream
        gc.collect()
        server.wait_for(lambda: server.connections == 0, 500 * MS)


async def test_async_client_that_is_dropped_hangs_up():
    with ScriptedServer(MANY, shared_memory=True) as server:
        client = AsyncClient(server.path)
        stream = client.epoch(0)
        await anext(stream)
        del client, stream
        gc.collect()
        for _ in range(50):
            await asyncio.sleep(1 * MS)
        server.wait_for(lambda: server.connections == 0, 500 * MS)


@pytest.mark.parametrize("wait_for", ["wait_for", "timeout", "cancel"])
async def test_timeouts_lose_nothing(wait_for):
    script = [0, 1, Silence(0.12), 2, 3, Silence(0.06), 4, 5]
    with ScriptedServer(script) as server:
        async with AsyncClient(server.path) as client:
            stream, got, timeouts = client.epoch(0), [], 0
            while True:
                try:
                    if wait_for == "wait_for":
                        got.append(await asyncio.wait_for(anext(stream), 5 * MS))
                    elif wait_for == "timeout":
                        async with asyncio.timeout(5 * MS):
                            got.append(await anext(stream))
                    else:
                        task = asyncio.create_task(stream.__anext__())
                        await asyncio.wait((task,), timeout=5 * MS)
                        if not task.done():
                            task.cancel()
                            await asyncio.wait((task,))
                        if task.cancelled():
                            raise TimeoutError
                        got.append(task.result())
                except TimeoutError:
                    timeouts += 1
                except StopAsyncIteration:
                    break
            assert got == [0, 1, 2, 3, 4, 5] and timeouts > 5


@pytest.mark.parametrize("when", ["before", "after"])
async def test_cancelled_in_the_turn_the_batch_comes(when):
    """The waiter is set and the task cancelled in one turn of the loop, in both orders."""
    with ScriptedServer(MANY) as server:
        async with AsyncClient(server.path) as client:
            got = []
            stream = client.epoch(0, prefetch=1)
            while len(got) < 30:
                task = asyncio.create_task(stream.__anext__())
                await asyncio.sleep(0)
                waiter = client._link._waiters.get(stream._state)
                if waiter is not None and when == "before":
                    waiter.add_done_callback(lambda _, task=task: task.cancel())
                elif waiter is not None:
                    waiter.set_result(None)
                    task.cancel()
                try:
                    got.append(await task)
                except asyncio.CancelledError:
                    pass
                assert stream.position.batch == len(got)
            assert got == list(range(30))


async def test_one_task_at_a_time():
    with ScriptedServer([Silence(0.05), 1, 2]) as server:
        async with AsyncClient(server.path) as client:
            stream = client.epoch(0)
            first = asyncio.create_task(stream.__anext__())
            await asyncio.sleep(5 * MS)
            with pytest.raises(TundishError, match="another task"):
                await anext(stream)
            assert await first == 1 and await anext(stream) == 2


async def test_received_batches_survive_the_loss_of_the_server():
    with ScriptedServer([*range(8), Close()]) as server:
        async with AsyncClient(server.path) as client:
            stream = client.epoch(0, prefetch=8)
            assert await anext(stream) == 0
            server.wait_for(lambda: server.connections == 0)
            assert [await anext(stream) for _ in range(7)] == [1, 2, 3, 4, 5, 6, 7]
