"""How long a client looks for a server that went away, and what it says."""

import logging
import time

import pytest

from helpers.clients import END
from helpers.timing import MS
from tundish_client import AsyncClient, Client, ConfigError, ConnectionLost, ConnectTimeout
from tundish_client.testing import Close, Goaway, ScriptedServer


class TestTime:
    def lose(self, reader, server, **options):
        """A stream that has got two batches, with the server gone for good."""
        client = reader(server, **options)
        stream = client.epoch()
        assert [client.next(stream), client.next(stream)] == [0, 1]
        server.stop()
        return client, stream

    def test_when_it_runs_out_the_loss_names_the_position(self, reader, path):
        server = ScriptedServer([0, 1, Close()], path=path).start()
        client, stream = self.lose(reader, server, reconnect_timeout=300 * MS)
        began = time.monotonic()
        for _ in range(2):  # and it keeps saying so
            with pytest.raises(ConnectionLost, match=r"start=2\)") as caught:
                client.next(stream)
        took = time.monotonic() - began
        assert took < 1500 * MS
        text = str(caught.value)
        assert "without an END" in text
        assert f"did not come back within {300 * MS:g} s (reconnect_timeout)" in text
        assert "no such file" in text
        assert caught.value.position == (0, 2)
        assert isinstance(caught.value.__cause__, ConnectTimeout)

    def test_a_new_request_looks_for_the_server_again(self, reader, path):
        server = ScriptedServer([0, 1, Close()], path=path).start()
        client, stream = self.lose(reader, server, reconnect_timeout=100 * MS)
        with pytest.raises(ConnectionLost):
            client.next(stream)
        with pytest.raises(ConnectionLost):
            client.run(client.client.ping())
        with ScriptedServer([5, 6], path=path):
            assert client.run(client.client.ping()) < 1
            assert client.outcomes(client.epoch()) == [5, 6, END]
            with pytest.raises(ConnectionLost):
                client.next(stream)

    @pytest.mark.parametrize("timeout", [0, 0.0, None])
    def test_without_a_time_there_is_no_reconnecting(self, reader, timeout):
        with ScriptedServer([0, 1, Close(once=True), 2]) as server:
            client = reader(server, reconnect_timeout=timeout)
            got = client.outcomes(client.epoch())
            assert got[:2] == [0, 1]
            assert type(got[2]) is ConnectionLost
            assert "reconnect_timeout" not in str(got[2])
            with pytest.raises(ConnectionLost):
                client.run(client.client.ping())
            assert len(server.kinds("HELLO")) == 1

    def test_the_variable(self, reader, monkeypatch):
        monkeypatch.setenv("TUNDISH_RECONNECT_TIMEOUT", "10")
        with ScriptedServer([0, Close(once=True), 1]) as server:
            client = reader(server, reconnect_timeout=None)
            assert client.outcomes(client.epoch()) == [0, 1, END]

    @pytest.mark.parametrize("value", [-1, "5", float("nan"), True])
    def test_wrong_values_are_named(self, value):
        for client in (Client, AsyncClient):
            with pytest.raises(ConfigError, match=f"reconnect_timeout .*{value!r}"):
                client("/tmp/x", reconnect_timeout=value)

    def test_a_server_that_says_when_it_is_back_is_left_alone_until_then(self, reader):
        wait = 400 * MS
        with ScriptedServer([0, Goaway("upgrade", wait, once=True), 1]) as server:
            client = reader(server)
            stream = client.epoch()
            assert client.next(stream) == 0
            began = time.monotonic()
            assert client.next(stream) == 1
            assert 0.8 * wait < time.monotonic() - began < wait + 1000 * MS

    def test_a_server_that_will_be_away_for_too_long_is_not_waited_for(self, reader):
        with ScriptedServer([0, Goaway("upgrade", 3600.0, once=True), 1]) as server:
            client = reader(server)
            stream = client.epoch()
            assert client.next(stream) == 0
            began = time.monotonic()
            with pytest.raises(ConnectionLost, match=r"3600.*10 s \(reconnect_timeout\)") as lost:
                client.next(stream)
            assert time.monotonic() - began < 1000 * MS
            assert lost.value.position == (0, 1)

    def test_a_server_that_dies_at_the_same_batch_again_and_again_is_given_up(self, reader):
        with ScriptedServer([0, 1, Close(), 2]) as server:
            client = reader(server, reconnect_timeout=300 * MS)
            stream = client.epoch()
            assert [client.next(stream), client.next(stream)] == [0, 1]
            began = time.monotonic()
            with pytest.raises(ConnectionLost, match="reconnect_timeout") as caught:
                client.next(stream)
            assert time.monotonic() - began < 3000 * MS
            assert caught.value.position == (0, 2)
            assert len(server.kinds("HELLO")) > 3

    def test_it_is_told(self, reader, caplog):
        with ScriptedServer([0, Close(once=True), 1]) as server:
            client = reader(server)
            client.outcomes(client.epoch())
            lost, found = caplog.records
            assert (lost.name, lost.levelno) == ("tundish.client", logging.WARNING)
            assert server.path in lost.getMessage()
            assert "10 s (reconnect_timeout)" in lost.getMessage()
            assert "again after" in found.getMessage()
