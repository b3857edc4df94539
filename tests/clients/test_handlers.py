"""Signal handlers that raise at any moment, in one thread and beside others: nothing hangs."""

import itertools
import random
import signal
import threading
import time

import pytest

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


@pytest.mark.parametrize("others", [0, 2])
def test_an_exception_of_a_handler_leaves_no_lock_behind(alarms, others):
    script = [Batch(n, [n], number=n) for n in range(BATCHES)]
    with ScriptedServer(script) as server:
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
        finally:
            ended.set()
            clients[-1].close()
            for thread in threads:
                thread.join(5)
        assert not any(thread.is_alive() for thread in threads)
        assert all(found)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert len(alarms) > 100
