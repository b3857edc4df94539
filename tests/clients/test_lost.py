"""What a client says that has lost its server: what is the matter, where, and what to do."""

import logging
import re
import time

import pytest

from helpers.clients import END
from helpers.timing import MS
from tundish_client import ConnectionLost
from tundish_client.testing import Close, Goaway, ScriptedServer

CALLS = ["ping", "stats", "feeds", "info"]


def lose(client, server):
    """Has the client notice that its server has hung up."""
    client.run(client.client.ping())
    server.close_connections()
    with pytest.raises(ConnectionLost) as caught:
        client.run(client.client.ping())
    return str(caught.value)


def ask(client, number, **options):
    """A new stream, asked for within the loop if there is one."""

    async def within():
        return client.epoch(number, **options)

    return client.epoch(number, **options) if client.kind == "sync" else client.run(within())


class TestWithoutReconnecting:
    GONE = "the server is gone (killed, or ended); open another client, or give it a reconnect_"

    def test_a_request_under_way(self, reader):
        with ScriptedServer([0]) as server:
            assert lose(reader(server, reconnect_timeout=0), server).startswith(self.GONE)

    @pytest.mark.parametrize("call", CALLS)
    def test_a_request_afterwards(self, reader, call):
        with ScriptedServer([0]) as server:
            client = reader(server, reconnect_timeout=0)
            lose(client, server)
            with pytest.raises(ConnectionLost) as caught:
                client.run(getattr(client.client, call)())
            assert str(caught.value).startswith(self.GONE)
            assert "END" not in str(caught.value)
            assert caught.value.position is None

    @pytest.mark.parametrize("split", [None, "g"])
    def test_a_new_stream(self, reader, split):
        with ScriptedServer([0]) as server:
            client = reader(server, reconnect_timeout=0)
            lose(client, server)
            with pytest.raises(ConnectionLost) as caught:
                ask(client, 3, start=0 if split else 4, split=split)
            assert str(caught.value).startswith(self.GONE)
            assert caught.value.position == (None if split else (3, 4))

    def test_an_open_stream(self, reader):
        with ScriptedServer([0, Close()]) as server:
            client = reader(server, reconnect_timeout=0)
            stream = client.epoch(3)
            assert client.next(stream) == 0
            with pytest.raises(ConnectionLost) as caught:
                client.next(stream)
            assert str(caught.value).startswith(
                "the server is gone (killed, or ended) without an END; "
                "resume on a new client with epoch(3, start=1), or with"
            )
            with pytest.raises(ConnectionLost, match="open another client"):
                client.run(client.client.ping())
            assert caught.value.position == (3, 1)

    def test_a_server_that_said_why(self, reader):
        with ScriptedServer([0, Goaway("an upgrade")]) as server:
            client = reader(server, reconnect_timeout=0)
            stream = client.epoch()
            assert client.next(stream) == 0
            with pytest.raises(ConnectionLost, match="left: an upgrade; resume on a new client"):
                client.next(stream)
            with pytest.raises(ConnectionLost, match="left: an upgrade; open another client"):
                client.run(client.client.stats())


class TestWithReconnecting:
    """The client of a server that did not come back in time is still of use."""

    def lost(self, reader, path, **asked):
        server = ScriptedServer([0, Close()], path=path, announce=asked.pop("announce", None))
        server.start()
        client = reader(server, reconnect_timeout=50 * MS)
        stream = client.epoch(**asked)
        assert client.next(stream) == 0
        server.stop()
        with pytest.raises(ConnectionLost) as caught:
            client.next(stream)
        return client, stream, str(caught.value)

    def test_a_stream_says_so(self, reader, path):
        client, stream, text = self.lost(reader, path)
        assert "without an END; it did not come back within" in text
        assert (
            "; resume on this client when the server is back, with epoch(0, start=1), or with"
            in text
        )
        assert "new client" not in text
        with ScriptedServer([0, 1, 2], path=path):  # and it is true
            fresh = client.client.resume(stream.state_dict())
            assert client.outcomes(fresh) == [1, 2, END]
            with pytest.raises(ConnectionLost, match="on this client when the server is back"):
                client.next(stream)

    def test_a_stream_of_a_split_says_so(self, reader, path):
        _, _, text = self.lost(reader, path, split="g")
        assert "; join split='g' again on this client when the server is back, with resume(" in text

    def test_a_request_says_so(self, reader, path):
        client, _, _ = self.lost(reader, path)
        with pytest.raises(ConnectionLost) as caught:
            client.run(client.client.stats())
        text = str(caught.value)
        assert text.startswith("the server is gone (killed, or ended); it did not come back within")
        assert text.endswith("; ask this client again, it looks for the server anew")
        with ScriptedServer([], path=path):
            assert client.run(client.client.stats())["streams"] == []


def test_the_log_counts_from_when_the_loss_was_noticed(reader, path, caplog):
    caplog.set_level(logging.WARNING, "tundish.client")
    script = [0, Close(once=True), 1]
    with ScriptedServer(script, path=path):
        client = reader(path)
        stream = client.epoch()
        assert client.next(stream) == 0
    time.sleep(300 * MS)  # the next call notices
    with ScriptedServer(script, path=path):
        assert client.next(stream) == 1
    found = caplog.records[-1].getMessage()
    said = re.fullmatch(
        r"found the server at '.*' again after ([0-9.]+) s of looking for it", found
    )
    assert float(said[1]) < 200 * MS
