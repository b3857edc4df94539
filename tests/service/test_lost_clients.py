"""Clients that go away with bytes of the server unread: each loop tells that in its own way."""

import os
import signal

import pytest

from helpers.raw import Raw, epoch
from helpers.timing import MS, wait_for
from tundish_client import Client

FEEDS = """
    import numpy as np
    from tundish import ArrayDataset, DataLoader
    train = DataLoader(ArrayDataset(x=np.arange(1000)), batch_size=10, num_workers=2)
"""


@pytest.fixture(params=["asyncio", "uvloop"])
def service(request, serve):
    return serve(FEEDS, "train", "--loop", request.param)


@pytest.mark.parametrize(
    "last",
    [("CANCEL", {"stream": 1}), ("ACK", {"stream": 1, "batch": 0}), ("PING", {"token": 1})],
    ids=["cancel", "ack", "ping"],
)
@pytest.mark.parametrize("shared", [False, True])
def test_their_last_words_and_their_end_come_at_once(service, last, shared):
    kind, header = last
    with Client(service.socket) as watch:
        for _ in range(3):
            raw = Raw(service.socket, shared_memory=shared)
            raw.sock.sendall(epoch())
            wait_for(lambda: [s for s in watch.stats()["streams"] if s["delivered"]], "batches")
            os.kill(service.process.pid, signal.SIGSTOP)
            raw.send(kind, **header)
            raw.close()
            os.kill(service.process.pid, signal.SIGCONT)
            wait_for(lambda: watch.stats()["connections"] == 1, "the end", 1000 * MS)
            assert watch.stats()["streams"] == []


@pytest.mark.parametrize("shared", [False, True])
def test_what_they_acknowledged_last_is_nobody_elses(service, shared):
    """They ask for more, acknowledge, leave and are gone, before the service has read any of it."""
    with Client(service.socket) as client:
        for number in range(3):
            raw = Raw(service.socket, shared_memory=shared)
            raw.sock.sendall(epoch(epoch=number, split="all"))
            raw.receive("START")
            assert [raw.receive("BATCH").header["batch"] for _ in range(4)] == [0, 1, 2, 3]
            stream = client.epoch(number, split="all")  # so that the epoch goes on without them
            client.ping()
            os.kill(service.process.pid, signal.SIGSTOP)
            raw.send("CREDIT", stream=1, credits={"batches": 4, "bytes": 2**30})
            for batch in (0, 1, 2):
                raw.send("ACK", stream=1, batch=batch)
            raw.send("CANCEL", stream=1, batch=3)
            raw.close()
            os.kill(service.process.pid, signal.SIGCONT)
            rest = [(stream.info.batch, int(x["x"][0])) for x in stream]
            assert rest == [(batch, 10 * batch) for batch in range(4, 100)]
            assert stream.counts["redelivered"] <= 4  # those it had asked for and never saw
