"""How many batches a client has sent ahead, and how it pays for them."""

from types import SimpleNamespace

import pytest

from helpers.client_core import WELCOME, batch, feed, sent
from helpers.clients import KINDS, Reader
from helpers.serving import Service
from helpers.timing import wait_for
from tundish_client._protocol.client import ClientConnection
from tundish_client._protocol.frames import encode_message
from tundish_client._protocol.reading import StreamState
from tundish_client.config import SMALL, EpochOptions


class Talk:
    """A client's connection with one stream, of which 40 batches have come."""

    def __init__(self, nbytes: int = 128, **options: object) -> None:
        self.nbytes = nbytes
        self.stream = StreamState(EpochOptions(epoch=0, **options))
        self.core = self.connection()
        self.core.open_stream(self.stream)
        self.start(split=options.get("split"))
        self.come(*range(40))

    def connection(self) -> ClientConnection:
        core = ClientConnection(recovers=True)
        feed(core, WELCOME)
        core.data_to_send()
        return core

    def start(self, split: object = None, **more: int) -> None:
        more |= {"in_order": False} if split else {}
        header = {"stream": self.stream.number, "feed": "f", "batches": 100, **more}
        feed(self.core, encode_message("START", header))

    def come(self, *numbers: int) -> None:
        for n in numbers:
            feed(self.core, batch(n, nbytes=self.nbytes, stream=self.stream.number))
        self.core.data_to_send()

    def next(self, times: int = 1) -> list[object]:
        """What is said when the user takes so many batches: batches acknowledged, credits given."""
        said = []
        for _ in range(times):
            cell = self.core.take(self.stream)
            if cell is not None:
                self.stream.handed = cell
            for kind, header in sent(self.core):
                credit = (header["credits"]["batches"], header["credits"]["bytes"])
                said.append((kind, header.get("batch"), *credit))
        return said


def acks(numbers, nbytes=128):
    return [("ACK", n, 1, nbytes) for n in numbers]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The seconds that the client sees; they stand still unless a test adds some."""
    now = SimpleNamespace(seconds=1000.0)
    time = SimpleNamespace(monotonic=lambda: now.seconds)
    monkeypatch.setattr("tundish_client._protocol.client.time", time)
    return now


def test_small_batches_widen_the_window_and_are_acknowledged_four_at_a_time():
    talk = Talk()
    assert talk.next() == []
    assert talk.next() == [("CREDIT", None, 6, 0), *acks([0])]
    assert talk.next(3) == []
    assert talk.next() == acks(range(1, 5))
    assert talk.next(3) == []
    assert talk.next() == acks(range(5, 9))


def test_who_takes_their_time_acknowledges_each(clock):
    talk = Talk()
    talk.next(2)
    for number in range(1, 10):
        clock.seconds += 0.021
        assert talk.next() == acks([number])
    clock.seconds += 0.019
    assert talk.next() == []
    clock.seconds += 0.021
    assert talk.next() == acks([10, 11])


def test_what_is_owed_is_paid_before_there_is_nothing_left():
    talk = Talk()
    talk.next(38)
    assert talk.next(2) == []
    assert talk.next() == acks(range(37, 40))
    assert talk.next() == []
    talk.come(40, 41)
    assert talk.next(2) == []
    assert talk.next() == acks([40, 41])


def test_large_batches_are_paid_for_at_once_in_the_window_of_two():
    talk = Talk(SMALL + 1)
    assert talk.next(6) == acks(range(5), SMALL + 1)


@pytest.mark.parametrize("nbytes", [0, SMALL + 1])
def test_where_batches_are_small_no_longer_the_window_is_as_it_was(nbytes):
    talk = Talk()
    talk.next(38)
    talk.next(3)
    talk.nbytes = nbytes
    talk.come(*range(40, 50))
    talk.next()
    assert talk.next(6) == [("ACK", n, 0, nbytes) for n in range(40, 46)]
    assert talk.next(2) == acks([46, 47], nbytes)


def test_an_error_says_nothing_of_the_size_of_batches():
    talk = Talk(SMALL + 1)
    error = {"stream": 1, "batch": 40, "type": ["builtins", "KeyError"], "message": "k"}
    feed(talk.core, encode_message("ERROR", error))
    talk.next(41)
    assert talk.next() == acks([40], 0)


@pytest.mark.parametrize("options", [{"prefetch": 2}, {"prefetch": 8}, {"split": "g"}])
def test_what_was_asked_for_stays(options):
    talk = Talk(**options)
    assert talk.next(6) == acks(range(5))


def test_the_next_server_is_asked_for_the_wide_window_and_hears_of_nothing_before():
    talk = Talk()
    talk.next(4)
    talk.core.eof_received()
    before, talk.core = talk.core, talk.connection()
    talk.core.adopt(before)
    ((kind, header),) = sent(talk.core)
    assert (kind, header["start"]) == ("EPOCH", 40)
    assert header["credits"]["batches"] == 0  # all that are here come with their ACKs
    talk.start(start=40)
    assert talk.next(3) == []
    assert talk.next() == acks(range(3, 7))  # not those before, which were owed to the first one


@pytest.fixture(scope="module")
def service():
    service = Service(
        """
        import numpy as np
        from tundish import ArrayDataset, DataLoader

        feeds = {
            "small": DataLoader(ArrayDataset(np.zeros((400, 64), np.uint8)), batch_size=4),
            "large": DataLoader(ArrayDataset(np.zeros((400, 16384), np.uint8)), batch_size=4),
        }
        """,
        "feeds",
    )
    yield service
    service.cleanup()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("feed", "prefetch", "ahead"), [("small", None, 8), ("large", None, 2), ("small", 3, 3)]
)
def test_so_many_are_sent_ahead(service, kind, feed, prefetch, ahead):
    with Reader(kind, str(service.socket)) as reader:
        stream = reader.epoch(0, feed=feed, prefetch=prefetch)
        for _ in range(40):
            reader.next(stream)
        owed = 3 if ahead == 8 else 0  # at most, for what was consumed

        def is_ahead():
            (own,) = reader.run(reader.client.stats())["streams"]
            assert own["position"] <= 40 + ahead
            return own["position"] >= 40 + ahead - owed

        wait_for(is_ahead, f"{ahead} batches ahead")
