"""The connection ends at every moment there is: each batch comes once, whatever the moment."""

import asyncio
import gc
import os
import threading
import time

import numpy as np
import pytest

from helpers.clients import END, KINDS, Reader
from helpers.cutting import Cutter
from helpers.timing import MS
from tundish_client import AsyncClient, Client, TundishError
from tundish_client._blocking import _open
from tundish_client.testing import Batch, Close, Cut, Goaway, ScriptedServer, Silence

PATIENT = {"reconnect_timeout": 10}
MANY = list(range(40))
PRINT = {"seed": 7, "samples": 4, "order": "stable/1", "batch_size": 1}
SPLIT = {"batches": 4, "exact": False, "in_order": False, "fingerprint": PRINT}
SCRIPT = [
    {"x": np.full(3, 0), "text": "first"},
    Batch(np.full(9, 1), [1], [7]),
    OSError("bad"),
    np.full(5, 3),
]


def serve(split, shared_memory):
    script = SCRIPT
    if split:
        numbers = (2, 0, 3)
        script = [Batch(np.full(6, n), [n], number=n) for n in numbers]
    return ScriptedServer(
        script, shared_memory=shared_memory, slots=8, announce=SPLIT if split else None
    )


def conversation(split, shared_memory):
    """Bytes of server and client: of the handshake, and in all."""
    with serve(split, shared_memory) as server, Cutter(server.path) as cutter:
        with Reader("sync", cutter.path) as client:
            opened = tuple(cutter.passed[0])
            assert client.outcomes(client.epoch(split="g" if split else None))[-1] is END
            return opened, tuple(cutter.passed[0])


def plain(value):
    """What can be compared."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return repr(value)


class TestEveryMoment:
    @pytest.fixture(params=KINDS)
    def kind(self, request):
        return request.param

    def read(self, kind, split, shared_memory, down, up):
        """One epoch by way of connections that are cut; returns how many there were."""
        with serve(split, shared_memory) as server:
            with Cutter(server.path, down, up) as cutter:
                with Reader(kind, cutter.path, reconnect_timeout=10) as client:
                    stream = client.epoch(prefetch=2, split="g" if split else None)
                    got = client.outcomes(stream)
                    state, counts = stream.state_dict(), stream.counts
                connections = len(cutter.passed)
        moment = f"cut after {down} bytes of the server, {up} of the client"
        if split:
            assert sorted(plain(v)[0] for v in got[:-1]) == [0, 2, 3], moment
            assert state["acked"] == [[0, 0], [2, 3]], moment
            assert counts["batches"] == 3, moment
        else:
            wanted = [SCRIPT[0], SCRIPT[1].value, *SCRIPT[2:]]
            assert [plain(v) for v in got[:-1]] == [plain(v) for v in wanted], moment
            assert state["batch"] == 4, moment
            told = [counts[name] for name in ("batches", "samples", "errors", "skipped")]
            assert told == [4, 3, 1, 1], moment
        assert got[-1] is END, moment
        return connections

    @pytest.mark.parametrize("shared_memory", [False, True], ids=["inline", "shared"])
    @pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
    def test_of_what_the_server_says(self, kind, split, shared_memory):
        (opened, _), (whole, _) = conversation(split, shared_memory)
        connections = [
            self.read(kind, split, shared_memory, [cut], [])
            for cut in range(opened, whole, step(whole - opened))
        ]
        assert set(connections) == {2}

    @pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
    def test_of_what_the_client_says(self, kind, split):
        (_, opened), (_, whole) = conversation(split, True)
        for cut in range(opened, whole, step(whole - opened)):
            self.read(kind, split, True, [], [cut])

    @pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
    def test_of_the_second_connection_too(self, kind, split):
        (opened, _), (whole, _) = conversation(split, True)
        for first, end in ((opened + 1, whole), ((opened + whole) // 2, opened)):
            for cut in range(0, end, step(whole)):
                assert self.read(kind, split, True, [first, cut], []) == 3


def step(nbytes):
    """So that there are about 40 moments, at other places of messages each."""
    return max(1, nbytes // 40) | 1


class TestGoaway:
    @pytest.mark.parametrize("nbytes", [1, 5, 20, 40])
    def test_that_was_cut_is_a_loss_like_others(self, reader, nbytes):
        script = [0, Cut(nbytes, once=True), Goaway("an upgrade", 3600.0, once=True), 1]
        with ScriptedServer(script) as server:
            client = reader(server)
            assert client.outcomes(client.epoch()) == [0, 1, END]
            assert len(server.kinds("HELLO")) == 2

    @pytest.mark.parametrize("shared_memory", [False, True])
    def test_does_not_end_what_still_comes(self, reader, shared_memory):
        script = [np.full(600, n) for n in range(12)]
        script.insert(3, Silence(50 * MS))
        with ScriptedServer(script, shared_memory=shared_memory) as server:
            client = reader(server)
            stream = client.epoch(prefetch=1)
            got = [client.next(stream)]
            server.goaway("an upgrade")
            got += client.outcomes(stream, 6)
            server.close_connections()
            got += client.outcomes(stream)
            assert [plain(value)[0] for value in got[:-1]] == list(range(12))
            assert got[-1] is END
            assert len(server.kinds("HELLO")) == 2


class TestAnotherThread:
    """What a thread asks for while another one reconnects."""

    def reconnect_meanwhile(self, server, client, ask):
        """`ask` has begun on the lost connection and goes on when there is another one."""
        link = client._link
        opening = _open(client._options)
        thread = threading.Thread(target=ask, daemon=True)
        with link._lock:
            link.core.eof_received()
            thread.start()
            time.sleep(30 * MS)
            link._adopt(opening)
        thread.join(5)
        assert not thread.is_alive()
        assert server.connections >= 1

    def test_a_stream_is_asked_of_the_new_server(self):
        got = []
        with ScriptedServer(MANY) as server, Client(server.path, **PATIENT) as client:
            self.reconnect_meanwhile(server, client, lambda: got.extend(client.epoch(3)))
        assert got == MANY

    def test_a_request_is_answered_by_the_new_server(self):
        got = []
        with ScriptedServer(MANY) as server, Client(server.path, **PATIENT) as client:
            self.reconnect_meanwhile(server, client, lambda: got.append(client.feeds()))
        assert got[0][0]["feed"] == "scripted"

    def test_a_closed_stream_is_closed_there(self):
        with ScriptedServer(MANY) as server, Client(server.path, **PATIENT) as client:
            stream = client.epoch(0)
            assert next(stream) == 0
            self.reconnect_meanwhile(server, client, stream.close)
            client.ping()
            assert len(server.kinds("EPOCH")) == 2
            assert server.kinds("CANCEL") == [{"stream": 1}]

    def test_closing_the_client_at_any_moment(self):
        def files():
            return len(os.listdir("/proc/self/fd"))

        script = [np.full(600, n) for n in range(60)]
        for n in range(57, 0, -3):
            script.insert(n, Close(once=True))
        counts = []
        for turn in range(30):
            with ScriptedServer(script, shared_memory=True) as server:
                client = Client(server.path, **PATIENT)
                got, errors = [[], []], []

                def read(n, client=client, got=got, errors=errors):
                    try:
                        got[n] += (int(value[0]) for value in client.epoch(n))
                    except TundishError as error:
                        errors.append(str(error))

                threads = [threading.Thread(target=read, args=(n,)) for n in range(2)]
                for thread in threads:
                    thread.start()
                time.sleep(turn * 1 * MS)
                began = time.monotonic()
                client.close()
                for thread in threads:
                    thread.join(5)
                assert time.monotonic() - began < 500 * MS
                assert all("closed" in error for error in errors)
                for values in got:
                    assert values == list(range(len(values)))
                server.wait_for(lambda server=server: server.connections == 0)
            gc.collect()
            counts.append(files())
        # One of thirty may be on its way; a leak would be one of each.
        assert min(counts[-5:]) <= max(counts[:3])


@pytest.mark.parametrize("split", [None, "g"])
async def test_cancelling_at_any_moment_loses_nothing(split):
    script = []
    for n in MANY:
        script += [Batch(n, [n], number=n), Silence(2 * MS)]
        if n % 4 == 3:
            script.append(Close(once=True))
    with ScriptedServer(script, announce=SPLIT if split else None) as server:
        async with AsyncClient(server.path, **PATIENT) as client:
            stream, got, cancelled = client.epoch(0, split=split), [], 0
            while True:
                task = asyncio.create_task(anext(stream, END))
                for _ in range(1 + cancelled % 9):
                    await asyncio.sleep(0)
                if cancelled % 3 == 2:
                    await asyncio.sleep(1 * MS)
                if not task.done():
                    cancelled += task.cancel()
                try:
                    got.append(await task)
                except asyncio.CancelledError:
                    continue
                if got[-1] is END:
                    break
            assert sorted(got[:-1]) == MANY
            assert split or got[:-1] == MANY
            assert cancelled > 40
            assert len(server.kinds("HELLO")) == 11
            state = stream.state_dict()
            assert state["acked"] == [[0, 39]] if split else state["batch"] == 40


class TestSeveral:
    def test_streams_reconnect_once_together(self, reader):
        with ScriptedServer(MANY) as server:
            client = reader(server)
            streams = [client.epoch(n) for n in range(4)]
            got = [[] for _ in streams]
            for call in range(41):
                if call in {7, 20}:
                    server.close_connections()
                for stream, values in zip(streams, got, strict=True):
                    values.append(client.next(stream))
            assert got == [[*MANY, END]] * 4
            assert len(server.kinds("HELLO")) == 3
            assert [header["epoch"] for header in server.kinds("EPOCH")] == [0, 1, 2, 3] * 3

    def test_threads_reconnect_once_together(self):
        with ScriptedServer(list(range(400)), shared_memory=True) as server:
            with Client(server.path, **PATIENT) as client:
                got = [[] for _ in range(4)]

                def work(n):
                    for value in client.epoch(n):
                        got[n].append(value)
                        if value % 100 == 0:
                            client.ping()

                threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
                for thread in threads:
                    thread.start()
                for _ in range(3):
                    time.sleep(10 * MS)
                    server.close_connections()
                for thread in threads:
                    thread.join(10)
                    assert not thread.is_alive()
            assert got == [list(range(400))] * 4
            assert len(server.kinds("HELLO")) <= 4

    async def test_tasks_reconnect_once_together(self):
        with ScriptedServer(list(range(100)), shared_memory=True) as server:
            async with AsyncClient(server.path, **PATIENT) as client:

                async def work(n):
                    got = []
                    async for value in client.epoch(n):
                        got.append(value)
                        if value == 50 and n == 0:
                            server.close_connections()
                    return got

                assert await asyncio.gather(*map(work, range(4))) == [list(range(100))] * 4
            assert len(server.kinds("HELLO")) == 2
