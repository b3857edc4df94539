"""Side channels whose other end is gone, or goes at this very moment."""

import gc

import numpy as np

from tundish_client import Client
from tundish_client._scripted import ScriptedConnection
from tundish_client.testing import ScriptedServer


class Closing:
    """A side channel whose client is closed by another thread while a record is being sent."""

    def __init__(self, segments):
        self._segments = segments
        self._side = segments._side
        self.sent = 0

    def send(self, packet, flags):
        self.sent += len(packet)
        self._segments._shut()
        return len(packet)

    def close(self):
        self._side.close()


def test_a_batch_that_is_dropped_while_the_client_is_closed():
    """What a finalizer raises is printed, and fails this test."""
    with ScriptedServer([np.arange(8)], shared_memory=True) as server:
        client = Client(server.path)
        batch = next(client.epoch(0))
        side = client._link.segments._side = Closing(client._link.segments)
        del batch
        gc.collect()
        assert side.sent == 24
        client.close()


def test_a_scripted_server_sends_bytes_to_who_has_hung_up(monkeypatch):
    """Whether it has noticed already, or not before it sends the segment."""
    monkeypatch.setattr(ScriptedConnection, "_on_records", lambda self, events: None)
    values = [np.arange(8) + n for n in range(3)]
    with ScriptedServer(values, shared_memory=True) as server, Client(server.path) as client:
        client.ping()
        client._link.segments._side.close()
        got = list(client.epoch(0))
        assert [value.tolist() for value in got] == [value.tolist() for value in values]
        client.ping()
        assert not server.released
