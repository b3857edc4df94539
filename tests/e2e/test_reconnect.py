"""The service is killed in mid-epoch and started again: trainers notice a pause."""

import hashlib
import signal
import threading
import time

import numpy as np
import pytest

from helpers.clients import END, KINDS, Reader
from helpers.cutting import Cutter
from helpers.serving import Service
from helpers.timing import MS, wait_for
from tundish_client import Client, ConfigError, ConnectionLost, TundishError

SOURCE = """
    import os
    import numpy as np
    from tundish import ArrayDataset, DataLoader, sample_rng

    workers = int(os.environ["WORKERS"])
    seed = int(os.environ.get("SEED", "7"))

    class Noisy:
        def __len__(self):
            return 240

        def __getitem__(self, index):
            if index == 77:
                raise OSError(f"sample {index}")
            return {"index": index, "noise": sample_rng().random(500), "text": f"sample {index}"}

    class Stream:
        def __iter__(self):
            return iter(np.arange(240.0).repeat(100).reshape(-1, 100))

    rng = np.random.default_rng(0)
    rows = ArrayDataset(x=rng.integers(0, 256, (240, 3000), np.uint8), y=np.arange(240))

    def feed(dataset, **options):
        return DataLoader(dataset, batch_size=4, num_workers=workers, **options)

    feeds = {
        "rows": feed(rows, shuffle=True, seed=seed),
        "drawn": feed(rows, shuffle=True),
        "noisy": feed(Noisy(), shuffle=True, seed=seed, prefetch=8),
        "stream": feed(Stream()),
        "any": feed(rows, in_order=False),
    }
"""
FEEDS = ("rows", "drawn", "noisy", "stream")


def digest(value):
    """Tells one batch, or one error, from another."""
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, dict):
        return {name: digest(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest())
    return value


@pytest.fixture
def serve_feeds():
    """Starts services of `SOURCE`, which the test may kill."""
    services = []

    def start(workers=4, **env):
        env = {"WORKERS": str(workers)} | env
        services.append(Service(SOURCE, "feeds", env=env))
        return services[-1]

    yield start
    for service in services:
        service.cleanup()


@pytest.fixture(params=KINDS)
def reader(request):
    """Opens clients of one kind that wait for the service."""
    readers = []

    def open_(service, **options):
        options = {"reconnect_timeout": 20} | options
        readers.append(Reader(request.param, str(service.socket), **options))
        return readers[-1]

    yield open_
    for reader in readers:
        reader.__exit__()


def again(service, signum=signal.SIGKILL):
    """Ends the service, and starts it while the clients wait for it."""
    service.stop(signum)
    thread = threading.Thread(target=service.restart)
    thread.start()
    return thread


def whole(client, state):
    """The epoch of a state from its first batch, without a break."""
    stream = client.client.resume(state | {"batch": 0})
    return [digest(value) for value in client.outcomes(stream)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("workers", "shared_memory"), [(1, True), (4, False)])
def test_killed_twice_in_an_epoch(serve_feeds, reader, workers, shared_memory):
    service = serve_feeds(workers)
    client = reader(service, shared_memory=shared_memory)
    streams = [client.epoch(3, feed=feed) for feed in FEEDS]
    got, held = [[] for _ in FEEDS], []
    restarts = []
    for call in range(61):
        if call in {17, 40}:
            restarts.append(again(service))
        for stream, values in zip(streams, got, strict=True):
            values += client.outcomes(stream, 1)
        held.append([(values[-1], digest(values[-1])) for values in got])
    for thread in restarts:
        thread.join()
    for stream, values in zip(streams, got, strict=True):
        assert values[-1] is END
        assert stream.counts["batches"] == 60
        assert stream.counts["samples"] == 240 - 4 * stream.counts["errors"]
        assert [digest(value) for value in values] == whole(client, stream.state_dict())
    noisy = FEEDS.index("noisy")
    assert sum(isinstance(value, OSError) for value in got[noisy]) == 1
    assert streams[noisy].counts["errors"] == 1
    # What was handed out before stayed as it was.
    assert all(digest(value) == before for step in held for value, before in step)


def test_stopped_gracefully(serve_feeds, reader):
    service = serve_feeds()
    client = reader(service)
    stream = client.epoch(feed="rows")
    got = client.outcomes(stream, 10)
    restart = again(service, signal.SIGTERM)
    got += client.outcomes(stream)
    restart.join()
    assert [digest(value) for value in got] == whole(client, stream.state_dict())


def test_away_while_the_trainer_was_busy(serve_feeds, reader):
    service = serve_feeds()
    client = reader(service)
    stream = client.epoch(feed="drawn")
    got = client.outcomes(stream, 10)
    for _ in range(2):
        again(service).join()
    got += client.outcomes(stream)
    assert [digest(value) for value in got] == whole(client, stream.state_dict())


def test_killed_before_the_first_batch_and_after_the_last(serve_feeds, reader):
    service = serve_feeds()
    client = reader(service)
    stream = client.epoch(feed="rows")
    client.start(stream)
    restart = again(service)
    got = client.outcomes(stream, 60)
    restart.join()
    restart = again(service)
    got += client.outcomes(stream)
    restart.join()
    assert len(got) == 61
    assert stream.counts["batches"] == 60
    assert [digest(value) for value in got] == whole(client, stream.state_dict())


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("feed", "shared_memory"), [("rows", True), ("noisy", False), ("stream", False)]
)
def test_a_connection_that_ends_at_any_byte(serve_feeds, reader, feed, shared_memory):
    """The service stays; what it had sent on the lost connection comes on the next one."""
    service = serve_feeds()
    client = reader(service, shared_memory=shared_memory)
    stream = client.epoch(feed=feed)
    expected = [digest(value) for value in client.outcomes(stream)]
    counts = dict(stream.counts)
    with Cutter(str(service.socket)) as cutter:
        with Reader("sync", cutter.path, shared_memory=shared_memory) as straight:
            opened = cutter.passed[0][0]
            assert len(straight.outcomes(straight.epoch(feed=feed))) == 61
        whole = cutter.passed[0][0]
    for cut in range(opened, whole, (whole - opened) // 5):
        with Cutter(str(service.socket), [cut, cut // 2 + opened]) as cutter:
            patient = {"reconnect_timeout": 20, "shared_memory": shared_memory}
            with Reader(client.kind, cutter.path, **patient) as other:
                stream = other.epoch(feed=feed)
                assert [digest(value) for value in other.outcomes(stream)] == expected, cut
                assert dict(stream.counts) == counts
            assert len(cutter.passed) >= 2
    wait_for(lambda: not client.run(client.client.stats())["streams"], "the streams to end")


def test_a_service_that_stays_away(serve_feeds, reader):
    service = serve_feeds()
    client = reader(service, reconnect_timeout=500 * MS)
    stream = client.epoch(feed="rows")
    got = client.outcomes(stream, 10)
    service.stop(signal.SIGKILL)
    with pytest.raises(ConnectionLost, match="reconnect_timeout") as caught:
        while True:
            got.append(client.next(stream))
    assert caught.value.position == stream.position == (0, len(got))
    service.restart()
    got += client.outcomes(client.client.resume(stream.state_dict()))
    assert [digest(value) for value in got] == whole(client, stream.state_dict())


def test_another_feed_at_the_same_socket_is_refused(serve_feeds, reader):
    service = serve_feeds(SEED="7")
    client = reader(service)
    stream, other = client.epoch(feed="rows"), client.epoch(feed="drawn")
    assert len(client.outcomes(stream, 5) + client.outcomes(other, 5)) == 10
    service.stop(signal.SIGKILL)
    service._env["SEED"] = "8"
    service.restart()
    got = client.outcomes(stream)
    assert isinstance(got[-1], ConfigError)
    assert "seed=7" in str(got[-1])
    assert "seed=8" in str(got[-1])
    assert stream.position.batch == 5 + len(got) - 1
    assert client.outcomes(other)[-1] is END  # and only that one


def test_out_of_order_there_is_no_going_on(serve_feeds, reader):
    service = serve_feeds()
    client = reader(service)
    stream, other = client.epoch(feed="any", prefetch=1), client.epoch(feed="rows")
    got = client.outcomes(stream, 5) + client.outcomes(other, 5)
    restart = again(service)
    lost = client.outcomes(stream)[-1]
    assert isinstance(lost, ConnectionLost)
    assert "in_order=False" in str(lost)
    assert lost.position is None
    assert len(got + client.outcomes(other)) == 5 + 61
    restart.join()


def test_a_group_that_had_begun_does_not_wait_for_those_who_left(serve_feeds, reader):
    service = serve_feeds()
    client = reader(service)
    with Client(service.socket, reconnect_timeout=20) as leaver:
        asked = {"feed": "rows", "group": "g", "group_size": 2}
        stream, left = client.epoch(**asked), leaver.epoch(0, **asked)
        began = threading.Thread(target=lambda: next(left))
        began.start()
        got = client.outcomes(stream, 5)
        began.join()
    restart = again(service)
    got += client.outcomes(stream)
    restart.join()
    assert [digest(value) for value in got] == whole(client, stream.state_dict())


def test_threads_of_one_client(serve_feeds):
    service = serve_feeds()
    with Client(service.socket, reconnect_timeout=20) as client:
        got, states = [[] for _ in range(3)], [None] * 3

        def work(n):
            stream = client.epoch(n, feed="rows")
            for batch in stream:
                got[n].append(digest(batch))
                time.sleep(2 * MS)
            states[n] = stream.state_dict()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(40 * MS)
        again(service).join()
        for thread in threads:
            thread.join()
        assert got == [
            [digest(batch) for batch in client.resume(state | {"batch": 0})] for state in states
        ]
        assert len(client.stats()["streams"]) == 0


def test_a_request_under_way(serve_feeds, reader):
    service = serve_feeds()
    client = reader(service)
    before = client.run(client.client.feeds())
    service.stop(signal.SIGKILL)
    thread = threading.Timer(200 * MS, service.restart)
    thread.start()
    after = client.run(client.client.feeds())
    thread.join()
    assert [entry["feed"] for entry in after] == [entry["feed"] for entry in before]
    drawn = [entry["seed"] for entry in (*before, *after) if entry["feed"] == "drawn"]
    assert drawn[0] != drawn[1]


def test_a_client_that_was_closed_in_the_pause(serve_feeds):
    service = serve_feeds()
    client = Client(service.socket, reconnect_timeout=20)
    stream = client.epoch(0, feed="rows")
    next(stream)
    service.stop(signal.SIGKILL)
    timer = threading.Timer(100 * MS, client.close)
    timer.start()
    with pytest.raises(TundishError, match="closed"):
        while True:
            next(stream)
    timer.join()
