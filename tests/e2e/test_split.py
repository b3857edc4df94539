"""Split epochs: each batch is acknowledged by one consumer, whatever becomes of the others."""

import asyncio
import contextlib
import itertools
import signal
import threading
import time

import pytest

from helpers.clients import END, KINDS, Reader
from helpers.consumers import Consumer
from helpers.serving import Service
from helpers.timing import MS, wait_for
from tundish_client import AsyncClient, Client, ConnectionLost

SOURCE = """
    import os
    import numpy as np
    from tundish import ArrayDataset, DataLoader

    class Failing:
        def __len__(self):
            return 240

        def __getitem__(self, index):
            if index % 100 == 50:
                raise OSError(f"sample {index}")
            return index

    class Stream:
        def __iter__(self):
            return iter(range(240))

    rows = ArrayDataset(x=np.arange(240 * 64).reshape(240, 64), y=np.arange(240))

    def feed(dataset, **options):
        return DataLoader(dataset, batch_size=2, num_workers=4, **options)

    feeds = {
        "rows": feed(rows, shuffle=True, seed=7),
        "drawn": feed(rows, shuffle=True),
        "failing": feed(Failing(), shuffle=True, seed=7),
        "stream": feed(Stream()),
        "any": feed(rows, in_order=False),
    }
"""
N = 120
ALL = list(range(N))
EVERY = sorted(range(240))


@pytest.fixture
def service(request):
    """A service; its lease_timeout may be the parameter."""
    service = Service(
        SOURCE, "feeds", env={"TUNDISH_LEASE_TIMEOUT": getattr(request, "param", "60")}
    )
    yield service
    service.cleanup()


class Consumers:
    """Consumers of one split, that begin together when `go` is called."""

    def __init__(self, service, folder):
        self.service, self.folder = service, folder
        self.started = []

    def __call__(self, kind, feed="rows", **options):
        name = str(len(self.started))
        options = {"feed": feed, "split": "g", "name": name, "gate": str(self.gate)} | options
        self.started.append(Consumer(kind, self.service.socket, self.folder, **options))
        return self.started[-1]

    @property
    def gate(self):
        return self.folder / "gate"

    def go(self):
        """Waits until each of them has a batch, and lets them go on."""
        for consumer in self.started:
            consumer.wait_for(1)
        self.gate.touch()


@pytest.fixture
def consume(service, tmp_path):
    """Starts consumers of one split."""
    consumers = Consumers(service, tmp_path)
    yield consumers
    for consumer in consumers.started:
        consumer.kill()


@pytest.fixture(params=KINDS)
def reader(request, service):
    """Opens clients of one kind."""
    readers = []

    def open_(**options):
        readers.append(Reader(request.param, str(service.socket), **options))
        return readers[-1]

    yield open_
    for reader in readers:
        reader.__exit__()


def flat(lists):
    return sorted(itertools.chain.from_iterable(lists))


def runs(service):
    with Client(service.socket) as client:
        return client.stats()["runs"]


@pytest.mark.parametrize("feed", ["rows", "drawn", "failing", "stream", "any"])
def test_each_batch_goes_to_one(service, feed):
    clients = [Client(service.socket, shared_memory=shared) for shared in (True, False, True)]
    streams = [client.epoch(0, feed=feed, split="g", prefetch=1) for client in clients]
    batches, indices = [[] for _ in streams], []
    barrier = threading.Barrier(len(streams))

    def work(n):
        barrier.wait()
        while True:
            try:
                next(streams[n])
            except StopIteration:
                return
            except OSError:
                pass
            batches[n].append(streams[n].info.batch)
            indices.extend(streams[n].info.indices)
            time.sleep(1 * MS)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(batches)
    assert flat(batches) == ALL
    for stream, got in zip(streams, batches, strict=True):
        acked = stream.state_dict()["acked"]
        assert [n for a, b in acked for n in range(a, b + 1)] == sorted(got)
    errors = 2 if feed == "failing" else 0
    for name, number in (("batches", N), ("errors", errors), ("redelivered", 0)):
        assert sum(stream.counts[name] for stream in streams) == number
    if not errors:
        assert sorted(indices) == EVERY
    wait_for(lambda: not runs(service), "the end of the run")
    for client in clients:
        client.close()


@pytest.mark.timeout(60)
class TestProcesses:
    def test_the_faster_gets_more(self, consume):
        slow, fast = consume("sync", pause=30 * MS), consume("asyncio", pause=1 * MS)
        consume.go()
        slow.end(), fast.end()
        assert flat([slow.batches, fast.batches]) == flat([slow.acked, fast.acked]) == ALL
        assert len(fast.batches) > 2 * len(slow.batches)
        assert flat([slow.indices, fast.indices]) == EVERY

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_a_killed_consumer_had_not_acknowledged_goes_to_the_others(self, consume, kind):
        lost = consume(kind, hang=10, prefetch=4)
        others = [consume("sync", pause=10 * MS), consume("uvloop", pause=10 * MS)]
        consume.go()
        lost.wait_for(10)
        lost.kill()
        for other in others:
            other.end()
        acked, in_hand = lost.acked, lost.batches[-1]
        assert sorted(acked) == sorted(lost.batches[:-1])
        assert flat([acked, *(other.acked for other in others)]) == ALL
        assert in_hand in flat(other.batches for other in others)
        redelivered = sum(other.counts["redelivered"] for other in others)
        assert 1 <= redelivered <= 5  # in its hands, and on their way to it

    @pytest.mark.parametrize("service", [f"{500 * MS:.3f}"], indirect=True)
    @pytest.mark.parametrize("kind", KINDS)
    def test_what_a_stopped_consumer_holds_goes_to_the_others(self, service, consume, kind):
        # It does not wait for the other's start with a batch in its hands: that lasts too long.
        stopped = consume(kind, pause=60 * MS, prefetch=4, gate=".")
        stopped.wait_for(1)
        other = consume("sync", pause=5 * MS, prefetch=1)
        consume.go()
        stopped.wait_for(5)
        stopped.signal(signal.SIGSTOP)
        # What it had in its hands, and what was on its way.
        held = len(stopped.batches) - len(stopped.acked) + 4
        wait_for(lambda: "lease_timeout" in service.output, "the leases to end")
        wait_for(lambda: len(other.batches) >= N - len(stopped.batches), "the rest", 10000 * MS)
        stopped.signal(signal.SIGCONT)
        stopped.end(), other.end()
        assert flat([stopped.acked, other.acked]) == ALL
        # Only what it had in its hands when it was stopped was consumed twice.
        assert len(stopped.batches) + len(other.batches) <= N + 1
        assert 1 <= other.counts["redelivered"] <= held

    def test_all_are_killed_but_one(self, consume):
        lost = [consume(kind, hang=8, prefetch=3) for kind in KINDS]
        last = consume("sync", pause=2 * MS, prefetch=1)
        consume.go()
        for consumer in lost:
            consumer.wait_for(8)
        for consumer in lost:
            consumer.kill()
        last.end()
        assert flat([last.acked, *(consumer.acked for consumer in lost)]) == ALL
        assert 3 <= last.counts["redelivered"] <= 12

    def test_the_service_is_killed_and_started_again(self, service, consume):
        patient = {"pause": 20 * MS, "client": {"reconnect_timeout": 20}}
        consumers = [consume(kind, "drawn", **patient) for kind in KINDS]
        consume.go()
        for times in (1, 2):
            for consumer in consumers:
                consumer.wait_for(8 * times)
            service.stop(signal.SIGKILL)
            service.restart()
        for consumer in consumers:
            consumer.end()
        assert flat(consumer.acked for consumer in consumers) == ALL
        assert flat(consumer.batches for consumer in consumers) == ALL
        assert flat(consumer.indices for consumer in consumers) == EVERY
        assert sum(consumer.counts["batches"] for consumer in consumers) == N

    @pytest.mark.parametrize("kind", ["sync", "uvloop"])
    def test_the_service_is_killed_while_one_is_busy(self, service, consume, kind):
        """It comes back late; what it had acknowledged before is not given out again."""
        patient = {"client": {"reconnect_timeout": 20}}
        busy = consume(kind, pause=700 * MS, busy=True, prefetch=1, **patient)
        quick = consume("uvloop", pause=25 * MS, prefetch=1, **patient)
        consume.go()
        busy.wait_for(3)
        service.stop(signal.SIGKILL)
        service.restart()
        quick.end(30000 * MS), busy.end(30000 * MS)
        assert flat([busy.acked, quick.acked]) == ALL
        assert flat([busy.batches, quick.batches]) == ALL


class TestLeavingInThePause:
    """The service is killed; a consumer ends its stream before there is another one."""

    @pytest.mark.parametrize("how", ["break", "raise"])
    def test_what_it_acknowledged_is_known_to_those_who_come_back(self, service, reader, how):
        client = reader(reconnect_timeout=20)
        with Client(service.socket, reconnect_timeout=20) as keeper:
            kept = keeper.epoch(0, feed="drawn", split="g", prefetch=1)
            next(kept)
            mine, theirs = [], [kept.info.batch]
            stream = client.epoch(feed="drawn", split="g", prefetch=1)
            for _ in range(30):
                client.next(stream)
                mine.append(stream.info.batch)
            service.stop(signal.SIGKILL)
            if how == "break":
                client.close(stream)
            else:
                del mine[-1]
                stream = None
                if client.runner is not None:
                    client.runner.run(asyncio.sleep(0))
            service.restart()

            def read():
                for _ in kept:
                    theirs.append(kept.info.batch)

            thread = threading.Thread(target=read)
            thread.start()
            wait_for(lambda: bool(runs(service)), "the other to come back")
            client.run(client.client.ping())
            thread.join()
        assert sorted(mine + theirs) == ALL


class TestLeaving:
    """The stream of one consumer ends; the other gets what was not acknowledged."""

    @pytest.mark.parametrize("kind", ["sync", "async"])
    @pytest.mark.parametrize("how", ["break", "raise", "with", "with, raise", "close"])
    def test_only_a_clean_end_acknowledges(self, service, kind, how):
        class Oops(Exception):
            pass

        def leave(client):
            stream = client.epoch(0, feed="rows", split="g")
            if how == "close":
                next(stream), next(stream)
                stream.close()
            elif "with" in how:
                with contextlib.suppress(Oops), stream:
                    for number, _ in enumerate(stream):
                        if number == 1 and "raise" in how:
                            raise Oops
                        if number == 1:
                            break
            else:
                del stream
                with contextlib.suppress(Oops):
                    for number, _ in enumerate(client.epoch(0, feed="rows", split="g")):
                        if number == 1 and how == "raise":
                            raise Oops
                        if number == 1:
                            break

        async def aleave(client):
            stream = client.epoch(0, feed="rows", split="g")
            if how == "close":
                await anext(stream), await anext(stream)
                await stream.aclose()
            elif "with" in how:
                with contextlib.suppress(Oops):
                    async with stream:
                        await anext(stream)
                        async for _ in stream:
                            if "raise" in how:
                                raise Oops
                            break
            else:
                del stream
                number = 0
                with contextlib.suppress(Oops):
                    async for _ in client.epoch(0, feed="rows", split="g"):
                        number += 1
                        if number == 2 and how == "raise":
                            raise Oops
                        if number == 2:
                            break

        with Client(service.socket) as watcher:
            # Joins as soon as the stream that is left has its first batches.
            other = watcher.epoch(0, feed="rows", split="g", prefetch=1)
            if kind == "sync":
                with Client(service.socket) as client:
                    leave(client)
                    client.ping()
            else:
                reader = Reader("asyncio", str(service.socket))

                async def both(client=reader.client):
                    await aleave(client)
                    await client.ping()

                with reader:
                    reader.runner.run(both())
            got, redelivered = [], 0
            for _ in other:
                got.append(other.info.batch)
            redelivered = other.counts["redelivered"]
        missing = set(ALL) - set(got)
        if "raise" in how:
            assert len(missing) == 1  # the first, acknowledged by asking for the second
            assert redelivered >= 1
        else:
            assert len(missing) == 2
        assert len(got) == len(set(got))


class TestJoining:
    def test_again_with_the_state_of_before(self, service, reader):
        client, keeper = reader(), Client(service.socket)
        kept = keeper.epoch(0, feed="rows", split="g", prefetch=1)
        first = next(kept)
        assert len(first["y"]) == 2
        stream = client.epoch(feed="rows", split="g")
        for _ in range(10):
            client.next(stream)
        client.close(stream)
        state = stream.state_dict()
        again = client.client.resume(state)
        got = 0
        thread = threading.Thread(target=lambda: list(kept))
        thread.start()
        while client.next(again) is not END:
            got += 1
        thread.join()
        mine, theirs = (s.state_dict()["acked"] for s in (again, kept))
        numbers = [n for a, b in [*mine, *theirs] for n in range(a, b + 1)]
        assert sorted(numbers) == ALL
        assert got >= 1
        keeper.close()

    def test_with_the_state_of_before_on_another_service(self, service, reader):
        client = reader()
        stream = client.epoch(feed="drawn", split="g")
        before = [client.next(stream)["y"].tolist() for _ in range(50)]
        state = stream.state_dict()
        assert state["acked"] == [[0, 48]]
        service.stop(signal.SIGKILL)
        service.restart()
        later = reader()
        rest = later.client.resume(state)
        got = [value["y"].tolist() for value in later.outcomes(rest)[:-1]]
        assert flat(before[:49] + got) == EVERY
        assert rest.state_dict()["acked"] == [[0, N - 1]]
        assert rest.counts["batches"] == N - 49

    def test_one_who_brings_no_state_shares_with_one_who_does(self, service, reader):
        client = reader()
        stream = client.epoch(feed="drawn", split="g")
        client.next(stream)
        with Client(service.socket) as other:
            resumed = other.resume(stream.state_dict())
            theirs = []
            thread = threading.Thread(
                target=lambda: theirs.extend(batch["y"].tolist() for batch in resumed)
            )
            thread.start()
            wait_for(lambda: len(theirs) > 2, "batches")
            assert len(runs(service)) == 1
            mine = [value["y"].tolist() for value in client.outcomes(stream)[:-1]]
            thread.join()
        assert len(mine) + len(theirs) == N - 1


def test_a_loss_without_reconnecting_says_how_to_join_again(service, reader):
    client = reader()
    stream = client.epoch(feed="rows", split="g")
    got = [client.next(stream) for _ in range(5)]
    service.stop(signal.SIGKILL)
    with pytest.raises(ConnectionLost, match=r"split='g' again") as caught:
        while True:
            got.append(client.next(stream))
    assert caught.value.position is None
    service.restart()
    later = reader()
    rest = later.outcomes(later.client.resume(stream.state_dict()))[:-1]
    assert len(got) + len(rest) == N


async def test_tasks_of_one_client(service):
    async with AsyncClient(service.socket) as client:
        streams = [client.epoch(0, feed="rows", split="g") for _ in range(3)]
        got = [[], [], []]

        async def read(n):
            async for _ in streams[n]:
                got[n].append(streams[n].info.batch)
                await asyncio.sleep(1 * MS)

        await asyncio.gather(*map(read, range(3)))
        assert flat(got) == ALL
        assert all(got)
