"""Splits of which more was acknowledged than fits into one message."""

import logging

import msgpack
import pytest

from helpers.clients import END
from tundish_client import ConfigError
from tundish_client._protocol.connection import Limits
from tundish_client._protocol.frames import encode_message
from tundish_client._protocol.ranges import Ranges
from tundish_client._protocol.server import ServerConnection
from tundish_client.testing import Batch, Close, ScriptedServer, Silence

LIMIT = 700
PRINT = {"seed": 7, "samples": 5000, "order": "stable/1", "batch_size": 1, "drop_last": False}
SAID = {"batches": 5000, "exact": False, "in_order": False, "fingerprint": PRINT}
#: 300 ranges of 1 to 5 batches, and two long ones.
SHORT = [[n, n + n // 10 % 5] for n in range(0, 3000, 10)]
ACKED = [*SHORT, [4000, 4099], [4200, 4250]]
STATE = {"feed": None, "epoch": 0, "split": "g", "acked": ACKED, "fingerprint": {}}


@pytest.fixture
def narrow(monkeypatch):
    """From when it is called on, servers accept short messages only."""

    def limit(head=LIMIT):
        limits = (Limits(head, 0),)
        monkeypatch.setattr(ServerConnection.__init__, "__defaults__", limits)

    return limit


def count(pairs):
    return sum(last - first + 1 for first, last in pairs)


def test_resuming_with_too_many_is_refused_by_name(reader, narrow):
    narrow()
    with ScriptedServer([Batch("x", [1], number=4500)], announce=SAID) as server:
        client = reader(server)
        client.run(client.client.ping())
        stream = client.client.resume(STATE)
        for _ in range(2):
            with pytest.raises(ConfigError) as caught:
                client.next(stream)
        text = str(caught.value)
        assert text.startswith("state['acked'] holds 302 ranges, too many for one message: the ")
        assert f"the peer accepts {LIMIT}; resume with fewer ranges, the largest: " in text
        assert not server.kinds("EPOCH")
        # The way out, which the text names.
        fewer = client.client.resume(STATE | {"acked": ACKED[-9:]})
        assert client.outcomes(fewer) == ["x", END]
        assert server.kinds("EPOCH")[0]["acked"] == ACKED[-9:]


def test_names_that_are_too_long_are_refused(reader, narrow):
    narrow()
    with ScriptedServer([0], announce=SAID) as server:
        client = reader(server)
        client.run(client.client.ping())
        for asked in ({"split": "g" * LIMIT}, {"group": "g" * LIMIT}, {"feed": "f" * LIMIT}):
            with pytest.raises(ConfigError, match=f"accepts {LIMIT}: give shorter names"):
                client.next(client.epoch(**asked))
        assert client.next(client.epoch()) == 0


def test_on_a_reconnect_the_largest_are_told(reader, narrow, path, caplog):
    caplog.set_level(logging.WARNING, "tundish.client")
    first = [Batch("a", [1], number=4500), Batch("b", [2], number=4600), Close()]
    with ScriptedServer(first, path=path, announce=SAID):
        client = reader(path)
        stream = client.client.resume(STATE)
        assert [client.next(stream), client.next(stream)] == ["a", "b"]
    narrow()
    with ScriptedServer([Batch("c", [3], number=0)], path=path, announce=SAID) as server:
        assert client.outcomes(stream) == ["c", END]
        header = server.kinds("EPOCH")[0]
        told = header["acked"]
    lines = [line for line in caplog.messages if line.startswith("split='g'")]
    assert told == sorted(told)
    assert all(pair in ACKED for pair in told)
    assert [4000, 4099] in told and [4200, 4250] in told
    left = [pair for pair in SHORT if pair not in told]
    assert max(b - a for a, b in left) <= min(b - a for a, b in told)
    again = count(ACKED) + 2 - count(told)  # 4500 was acknowledged before the loss, 4600 after it
    (line,) = lines
    assert "has acknowledged 304 ranges of batches, more than the server accepts" in line
    assert f"the largest {len(told)}, so {again} batches will be delivered again" in line
    assert LIMIT - 8 <= len(encode_message("EPOCH", header)) - 5 <= LIMIT  # no room for another
    # It still knows all that it has acknowledged.
    assert count(stream.state_dict()["acked"]) == count(ACKED) + 2


def test_a_stream_that_is_left_in_the_pause_tells_what_fits(reader, narrow, path):
    with ScriptedServer([Batch("a", [1], number=4500), Silence()], path=path, announce=SAID):
        client = reader(path)
        stream = client.client.resume(STATE)
        assert client.next(stream) == "a"
    narrow()
    client.close(stream)
    with ScriptedServer([], path=path, announce=SAID) as server:
        client.run(client.client.ping())
        client.run(client.client.ping())
        (header,) = server.kinds("EPOCH")
        assert [4000, 4099] in header["acked"]
        assert server.kinds("CANCEL") == [{"stream": 1}]


def test_the_largest_ranges_that_fit():
    ranges = Ranges([[0, 9], [20, 20], [30, 31], [40, 300]])
    sizes = [len(msgpack.packb(pair)) for pair in ([40, 300], [0, 9], [30, 31], [20, 20])]
    assert ranges.largest(sum(sizes)).pairs() == ranges.pairs()
    assert ranges.largest(sum(sizes) - 1).pairs() == [[0, 9], [30, 31], [40, 300]]
    assert ranges.largest(sizes[0]).pairs() == [[40, 300]]
    assert ranges.largest(sizes[0] - 1).pairs() == ranges.largest(-1).pairs() == []
