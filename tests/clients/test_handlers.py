"""Signal handlers that raise at any moment, in one thread and beside others: nothing hangs."""

import gc
import itertools
import random
import signal
import threading
import time

import numpy as np
import pytest

from helpers.timing import wait_for
from tundish_client import Client, ConnectionLost, TundishError
from tundish_client.testing import Batch, ScriptedServer

SECONDS = 2.0
BATCHES = 400


class Alarm(Exception):
    pass


@pytest.fixture
def alarms():
    """A handler that raises; how often it has."""
    raised = []

    def raise_(*_):
        raised.append(time.monotonic())
        raise Alarm

    before = signal.signal(signal.SIGALRM, raise_)
    yield raised
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def read(client, epoch, seconds):
    """Reads on, an alarm in nearly each `next`; the batches that came, in order."""
    chance = random.Random(epoch)
    stream, got = client.epoch(epoch), []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00003, 0.0006))
                next(stream)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm:
            pass
        except StopIteration:
            break
        except ConnectionLost as error:
            assert "interrupted in an update" in str(error)
            return got, error.position
        if stream.info is not None and got[-1:] != [stream.info.batch]:
            got.append(stream.info.batch)
    return got, stream.position


# Python prints what a handler raises in the finalizer of an array, and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("others", "shared_memory"), [(0, False), (0, True), (2, False)])
def test_an_exception_of_a_handler_leaves_no_lock_behind(alarms, others, shared_memory):
    script = [
        Batch(np.full(1500, n) if shared_memory else n, [n], number=n) for n in range(BATCHES)
    ]
    with ScriptedServer(script, shared_memory=shared_memory) as server:
        ended = threading.Event()
        clients = [Client(server.path)]
        found = []

        def beside():
            client = clients[-1]
            while not ended.is_set():
                try:
                    found.append(list(client.epoch(0)) == list(range(BATCHES)))
                except TundishError as error:
                    client = clients[-1]
                    found.append("interrupted in an update" in str(error) or ended.is_set())
                    time.sleep(0.001)

        threads = [threading.Thread(target=beside) for _ in range(others)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + SECONDS
        try:
            for epoch in itertools.count():
                if time.monotonic() > until:
                    break
                got, position = read(clients[-1], epoch, until - time.monotonic())
                assert got == list(range(len(got)))
                assert position.batch == len(got)
                if clients[-1]._link.core.failed is not None:
                    clients.append(Client(server.path))
            assert clients[-1].ping() < 5
            if shared_memory:
                segments = clients[-1]._link.segments
                assert not segments._turn.locked()
                wait_for(lambda: gc.collect() is not None and not segments.lent, "slots to go back")
        finally:
            ended.set()
            clients[-1].close()
            for thread in threads:
                thread.join(5)
        assert not any(thread.is_alive() for thread in threads)
        assert all(found)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert len(alarms) > 100
