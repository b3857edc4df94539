"""A server that goes away in mid-epoch: the user's loop notices a pause, and nothing else."""

import gc
import os
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from helpers.clients import END
from helpers.timing import MS
from tundish_client import ConfigError, ConnectionLost, ProtocolError, TundishError
from tundish_client.testing import (
    Batch,
    Close,
    Cut,
    End,
    Fail,
    Goaway,
    Raw,
    ScriptedServer,
    Silence,
)

MANY = list(range(40))
PATIENT = {"reconnect_timeout": 10}
UNKNOWN = {"batches": None, "samples": None, "padded": None, "dropped": None}
ANY_ORDER = {"in_order": False}
PRINT = {"seed": 7, "samples": 4, "order": "stable/1", "batch_size": 1}


@dataclass
class Case:
    """`expect` holds values, exception classes, (class, text) pairs and END.

    `lives` are the connections that the client opens, `counts` what it has counted at the end.
    """

    script: list[Any]
    expect: list[Any]
    epoch: dict[str, Any] = field(default_factory=dict)
    announce: dict[str, Any] = field(default_factory=dict)
    lives: int = 2
    counts: dict[str, int] = field(default_factory=dict)


BIG = np.zeros(100_000)
CASES = {
    "closed": Case([0, 1, Close(once=True), 2, 3], [0, 1, 2, 3, END]),
    "closed before the first batch": Case([Close(once=True), 0, 1], [0, 1, END]),
    "closed after the last batch": Case([0, 1, Close(once=True)], [0, 1, END]),
    "closed twice": Case([0, Close(once=True), 1, Goaway(once=True), 2], [0, 1, 2, END], lives=3),
    "closed with many batches on their way": Case(
        [*range(9), Close(once=True), *range(9, 20)], [*range(20), END], {"prefetch": 8}
    ),
    "one credit": Case([0, 1, Close(once=True), 2], [0, 1, 2, END], {"prefetch": 1}),
    "from the middle": Case(
        [0, 1, 2, Close(once=True), 3], [1, 2, 3, END], {"start": 1}, counts={"batches": 3}
    ),
    "cut in a head": Case([0, Cut(7, once=True), 1, 2], [0, 1, 2, END]),
    "cut in the first message": Case([Cut(7, once=True), 1, 2], [1, 2, END]),
    "it says that it leaves": Case([0, Goaway("upgrade", once=True), 1], [0, 1, END]),
    "errors and skipped samples on both sides": Case(
        [
            Batch("a", [0], [1]),
            OSError("bad"),
            Close(once=True),
            KeyError("k"),
            Batch("d", [4, 5], [6, 7]),
        ],
        ["a", (OSError, "bad"), (KeyError, "k"), "d", END],
        counts={"batches": 4, "samples": 3, "errors": 2, "skipped": 3},
    ),
    "an unknown length": Case(
        [0, 1, Close(once=True), 2], [0, 1, 2, END], announce=UNKNOWN, counts={"batches": 3}
    ),
    "an unknown length, at the end": Case(
        [0, Close(once=True)], [0, END], announce=UNKNOWN, counts={"batches": 1}
    ),
    "a length that a sampler promised": Case(
        [0, Close(once=True), 1], [0, 1, END], announce={"batches": 9, "exact": False}
    ),
    "an error of the whole stream": Case(
        [0, Close(once=True), 1, Fail(RuntimeError("gone"))], [0, 1, (RuntimeError, "gone")]
    ),
    "END with another count": Case(
        [0, Close(once=True), 1, End({"batches": 4})],
        [0, 1, (ProtocolError, "after 2 batches, but END says 5")],
    ),
    "END too early": Case(
        [0, Close(once=True), 1, End(), 2],
        [0, 1, (ProtocolError, "after 2 batches, but START says 3")],
    ),
    "END hides an error": Case(
        [OSError("x"), Close(once=True), OSError("y"), End({"errors": 0})],
        [OSError, OSError, (ProtocolError, "2 failed batches, but END says 1")],
    ),
    "out of order, before anything came": Case(
        [Close(once=True), *(Batch(n, [n], number=n) for n in (2, 0, 1))],
        [2, 0, 1, END],
        announce=ANY_ORDER,
    ),
    "out of order": Case(
        [Batch(1, [1], number=1), Close(once=True), 0],
        [1, (ConnectionLost, "in_order=False: there is no position to resume from")],
        announce=ANY_ORDER,
        lives=1,
    ),
    "garbage": Case(
        [0, Raw(b"\x00hello"), 1], [0, (ConnectionLost, "expected a message")], lives=1
    ),
}


def check(case, got):
    for seen, wanted in zip(got, case.expect, strict=True):
        cls, text = wanted if isinstance(wanted, tuple) else (wanted, None)
        if isinstance(cls, type) and issubclass(cls, BaseException):
            with pytest.raises(cls, match=text):
                raise seen
        else:
            assert seen == wanted


@pytest.mark.parametrize("shared_memory", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_each_batch_comes_once(reader, case, shared_memory):
    with ScriptedServer(case.script, shared_memory=shared_memory, announce=case.announce) as server:
        client = reader(server)
        stream = client.epoch(**case.epoch)
        check(case, client.outcomes(stream))
        assert len(server.kinds("HELLO")) == case.lives
        for name, number in case.counts.items():
            assert stream.counts[name] == number, name


def test_a_body_that_was_cut_comes_again(reader):
    script = [b"0", Cut(9000, once=True), BIG, b"2"]
    with ScriptedServer(script) as server:
        client = reader(server, shared_memory=False)
        got = client.outcomes(client.epoch())
    assert [got[0], *got[2:]] == [b"0", b"2", END]
    assert np.array_equal(got[1], BIG)


class TestWhatIsAskedForAgain:
    def test_the_next_batch_and_what_it_was_counted_in(self, reader):
        script = [0, 1, Close(once=True), 2, 3]
        with ScriptedServer(script, announce={"fingerprint": PRINT}) as server:
            client = reader(server)
            assert client.outcomes(client.epoch(uneven="keep", group="g", group_size=1))[4] is END
            first, second = server.kinds("EPOCH")
            assert (first["start"], second["start"]) == (0, 2)
            assert "fingerprint" not in first
            assert second["fingerprint"] == PRINT
            assert (first["group_size"], second["group"]) == (1, "g")
            assert "group_size" not in second  # the group has begun: it doesn't gather again
            assert (first["feed"], second["feed"]) == (None, "scripted")
            assert second["uneven"] == "keep"


class TestAnotherFeed:
    def serve_twice(self, path, reader, before, after):
        with ScriptedServer([0, 1, Close(), 2], path=path, announce=before):
            client = reader(path)
            stream = client.epoch()
            assert [client.next(stream), client.next(stream)] == [0, 1]
        with ScriptedServer([0, 1, 2], path=path, announce=after):
            return client.outcomes(stream), stream

    @pytest.mark.parametrize(
        ("after", "words"),
        [
            ({"fingerprint": PRINT | {"seed": 8}}, ["seed=7", "seed=8"]),
            ({"fingerprint": PRINT | {"order": "torch/1"}}, ["'stable/1'", "'torch/1'"]),
            ({"fingerprint": PRINT, "batches": 4}, ["batches=3", "batches=4"]),
            ({"fingerprint": PRINT, "start": 1}, ["start=2", "start=1"]),
            ({"fingerprint": PRINT, "in_order": False}, ["in_order=True", "in_order=False"]),
        ],
    )
    def test_is_refused_with_both_values(self, path, reader, after, words):
        before = {"fingerprint": PRINT, "batches": 3}
        got, stream = self.serve_twice(path, reader, before, {"batches": 3} | after)
        assert isinstance(got[0], ConfigError)
        for word in words:
            assert word in str(got[0])
        assert stream.position == (0, 2)
        assert stream.state_dict()["batch"] == 2

    def test_the_same_one_goes_on(self, path, reader):
        announce = {"fingerprint": PRINT, "batches": 3}
        got, stream = self.serve_twice(path, reader, announce, announce)
        assert got == [2, END]
        assert (stream.counts["batches"], stream.counts["samples"]) == (3, 3)


class TestTheRest:
    def test_arrays_from_before_stay_as_they_are(self, reader):
        script = [np.full(3000, n) for n in range(12)]
        for n in (3, 7):
            script.insert(n, Close(once=True))
        with ScriptedServer(script, shared_memory=True, slots=4) as server:
            client = reader(server)
            held = client.outcomes(client.epoch())
            server.arena._map[:] = bytes(server.arena.nbytes)
            assert held.pop() is END
            assert [int(array[0]) for array in held] == list(range(12))
            assert all((array == array[0]).all() for array in held)
            held[0][:] = 77
            assert (held[1] == 1).all()

    @pytest.mark.parametrize("name", ["stats", "ping", "feeds"])
    def test_requests_under_way_are_sent_again(self, reader, name):
        kind = name.upper()
        with ScriptedServer([1]) as server:
            server.answers = False

            def lose():
                server.wait_for(lambda: bool(server.kinds(kind)))
                server.answers = True
                server.close_connections()

            client = reader(server)
            thread = threading.Thread(target=lose)
            thread.start()
            assert client.run(getattr(client.client, name)())
            thread.join()
            assert len(server.kinds("HELLO")) == len(server.kinds(kind)) == 2

    def test_an_idle_client_finds_the_server_when_it_needs_it(self, reader, path):
        with ScriptedServer([1], path=path):
            client = reader(path)
            client.run(client.client.ping())
        with ScriptedServer([2], path=path) as server:
            assert client.outcomes(client.epoch()) == [2, END]
            assert len(server.kinds("HELLO")) == 1

    def test_a_stream_that_ended_is_not_asked_for_again(self, reader):
        with ScriptedServer(MANY) as server:
            client = reader(server)
            ended, going = client.epoch(1, start=40), client.epoch(0)
            assert client.outcomes(ended) == [END]
            assert client.next(going) == 0
            server.close_connections()
            assert client.outcomes(going) == [*MANY[1:], END]
            epochs = [header["epoch"] for header in server.kinds("EPOCH")]
            assert (epochs.count(0), epochs.count(1)) == (2, 1)

    def test_a_stream_that_was_closed_in_the_pause_is_not_asked_for_again(self, reader, path):
        with ScriptedServer(MANY, path=path):
            client = reader(path)
            streams = [client.epoch(n) for n in range(3)]
            assert [client.next(stream) for stream in streams] == [0, 0, 0]
        client.close(streams[0])
        streams[1] = None
        gc.collect()
        with pytest.raises(TundishError, match="closed"):
            client.next(streams[0])
        with ScriptedServer(MANY, path=path) as server:
            assert client.outcomes(streams[2]) == [*MANY[1:], END]
            assert [header["epoch"] for header in server.kinds("EPOCH")] == [2]
            assert not server.kinds("CANCEL")

    def test_no_file_is_left(self, reader):
        script = [np.full(3000, n) for n in range(40)]
        for n in range(35, 5, -1):
            script.insert(n, Close(once=True))
        with ScriptedServer(script, shared_memory=True) as server:
            client = reader(server)
            stream = client.epoch()
            client.next(stream)
            before = len(os.listdir("/proc/self/fd"))
            assert len(client.outcomes(stream)) == 40
            assert len(server.kinds("HELLO")) == 31
            server.wait_for(lambda: server.connections == 1)
            assert len(os.listdir("/proc/self/fd")) <= before

    def test_something_else_at_the_socket_is_not_waited_for(self, reader, path):
        with ScriptedServer([0, 1, Close()], path=path):
            client = reader(path)
            stream = client.epoch()
            assert [client.next(stream), client.next(stream)] == [0, 1]
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()

        def answer():
            conn, _ = listener.accept()
            conn.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            conn.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConnectionLost, match=r"not a Tundish server.*start=2\)"):
            client.next(stream)
        thread.join()
        listener.close()

    def test_a_server_that_hangs_up_in_the_handshake_is_asked_again(self, reader, path):
        with ScriptedServer([0, 1, Close(), 2], path=path):
            client = reader(path)
            stream = client.epoch()
            assert [client.next(stream), client.next(stream)] == [0, 1]
        server = ScriptedServer([0, 1, 2], path=path)

        def hang_up():
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen()
                for _ in range(3):
                    listener.accept()[0].close()
                os.unlink(path)
            server.start()

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert client.outcomes(stream) == [2, END]
        thread.join()
        server.stop()


def test_values_received_before_the_loss_are_handed_out_without_a_server(reader):
    with ScriptedServer([*range(6), Close(once=True)]) as server:
        client = reader(server, reconnect_timeout=60)
        stream = client.epoch(prefetch=6)
        assert client.next(stream) == 0
        server.wait_for(lambda: bool(server.played))
        server.stop()
        assert client.outcomes(stream, 5) == [1, 2, 3, 4, 5]


def test_silence_is_no_loss(reader):
    with ScriptedServer([0, Silence(100 * MS), 1]) as server:
        client = reader(server)
        assert client.outcomes(client.epoch()) == [0, 1, END]
        assert len(server.kinds("HELLO")) == 1
