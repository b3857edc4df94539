"""Peers that send garbage, cut frames, other versions, or nothing: B28, and B19's killed ones."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest

import tundish
from helpers.raw import CREDITS, Raw, epoch, hello
from helpers.timing import MS, wait_for
from tundish import session
from tundish_client import Client
from tundish_client._protocol.frames import encode_message
from tundish_client._protocol.wire_errors import decode_exception

FEEDS = """
    import numpy as np
    from tundish import ArrayDataset, DataLoader
    train = DataLoader(ArrayDataset(x=np.arange(1000)), batch_size=10, num_workers=2)
"""


@pytest.fixture(scope="module")
def service():
    from helpers.serving import Service

    service = Service(FEEDS)
    yield service
    service.cleanup()


def rss(pid: int) -> int:
    """Resident bytes of a process."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read_epoch(service) -> int:
    with Client(service.socket) as client:
        return sum(int(batch["x"].sum()) for batch in client.epoch(0))


@pytest.fixture
def undisturbed(service):
    """A consumer half-way through an epoch, which the test must not disturb."""
    with Client(service.socket) as client:
        batches = iter(client.epoch(0))
        total = sum(int(next(batches)["x"].sum()) for _ in range(50))
        yield
        assert total + sum(int(batch["x"].sum()) for batch in batches) == 999 * 500
    assert service.process.poll() is None


def send_raw(service, data: bytes, *, end: bool = False) -> bool:
    """Sends bytes; whether the server closes this connection because of them."""
    with Raw(service.socket) as raw:
        with contextlib.suppress(BrokenPipeError):
            raw.sock.sendall(data)
            if end:
                raw.sock.shutdown(1)
        return raw.closed()


@pytest.mark.parametrize("seed", range(8))
def test_random_bytes_close_that_connection_only(service, undisturbed, seed):
    assert send_raw(service, random.Random(seed).randbytes(4096))


def test_random_bytes_after_a_hello(service, undisturbed):
    assert send_raw(service, hello() + random.Random(1).randbytes(4096))


def test_a_claim_of_4_gib_allocates_nothing(service, undisturbed):
    before = rss(service.process.pid)
    assert send_raw(service, b"\xce\xff\xff\xff\xff")
    body = encode_message("PING", {"token": 1}, body_nbytes=2**32 - 65)
    assert send_raw(service, hello() + body)
    assert rss(service.process.pid) - before < 16 * 2**20


@pytest.mark.parametrize("cut", [*range(1, 65)])
def test_a_frame_cut_anywhere(service, cut):
    assert send_raw(service, hello()[:cut], end=True)


def test_cuts_leave_the_server_well(service):
    assert read_epoch(service) == 999 * 500


def test_a_byte_at_a_time_is_no_fault(service, undisturbed):
    with Raw(service.socket) as raw:
        for byte in hello():
            raw.sock.sendall(bytes((byte,)))
            time.sleep(1 * MS)
        raw.receive("WELCOME")
        for byte in epoch():
            raw.sock.sendall(bytes((byte,)))
        assert raw.receive("START").header["batches"] == 100


@pytest.mark.parametrize("versions", [(2, 3), (0, 0), (7, 7)])
def test_another_version_is_told_both(service, undisturbed, versions):
    with Raw(service.socket) as raw:
        raw.sock.sendall(hello(versions))
        error = decode_exception(raw.receive("ERROR").header)
        theirs = "version" if versions[0] == versions[1] else "versions"
        assert f"client speaks {theirs} {versions[0]}" in str(error)
        assert "server speaks version 1" in str(error)
        assert isinstance(error, ConnectionError)
        assert raw.closed()


def test_a_range_that_includes_ours_is_welcome(service):
    with Raw(service.socket) as raw:
        raw.sock.sendall(hello((0, 9), unheard_of=[1, 2]))
        assert raw.receive("WELCOME").header["version"] == 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encode_message("PING", {"token": 1}), id="no hello"),
        pytest.param(hello() + hello(), id="hello twice"),
        pytest.param(hello() + encode_message("WELCOME", {}), id="a server's message"),
        pytest.param(hello() + encode_message("EPOCH", {}), id="epoch without fields"),
        pytest.param(hello() + epoch(stream=0), id="stream 0"),
        pytest.param(hello() + epoch(stream=True), id="stream True"),
        pytest.param(hello() + epoch(epoch=-1), id="epoch -1"),
        pytest.param(hello() + epoch(epoch=2**63), id="epoch 2**63"),
        pytest.param(hello() + epoch(epoch="0"), id="epoch of str"),
        pytest.param(hello() + epoch(uneven="odd"), id="unknown uneven"),
        pytest.param(hello() + epoch(credits={}), id="no credits"),
        pytest.param(hello() + epoch(credits={"batches": -1, "bytes": 1}), id="debts"),
        pytest.param(hello() + epoch(feed=3), id="feed of int"),
        pytest.param(hello() + epoch() + epoch(), id="a stream twice"),
        pytest.param(hello() + encode_message("ACK", {"stream": 1.5}), id="ack of a float"),
        pytest.param(hello() + encode_message("STATS", {}), id="stats without request"),
        pytest.param(hello() + encode_message("PING", {"token": [1]}), id="token of a list"),
        pytest.param(hello(limits={"head": "x", "body": 1}), id="limits of str"),
        pytest.param(hello(limits=None), id="no limits"),
        pytest.param(hello(limits={"head": 1, "body": 1}), id="limits too low to be told"),
        pytest.param(encode_message("HELLO", {"version": [1]}), id="half a version"),
    ],
)
def test_what_the_protocol_forbids_closes_that_connection(service, undisturbed, data):
    assert send_raw(service, data)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"feed": "nope"}, "feed='nope'"),
        ({"start": 101}, "start=101"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"fingerprint": {"seed": -5}}, "seed=-5"),
    ],
)
def test_what_cannot_be_served_ends_that_stream_only(service, fields, says):
    with Raw(service.socket, shared_memory=False) as raw:
        raw.sock.sendall(epoch(1, **fields))
        header = raw.receive("ERROR").header
        assert header["stream"] == 1
        error = decode_exception(header)
        assert says in str(error)
        assert isinstance(error, ValueError)
        raw.sock.sendall(epoch(2, start=100))
        assert raw.receive("START").header["stream"] == 2
        assert raw.receive("END").header["counts"]["batches"] == 0


def test_unknown_streams_and_slots_are_ignored(service):
    with Raw(service.socket, shared_memory=True) as raw:
        raw.send("CREDIT", stream=9, credits=CREDITS)
        raw.send("ACK", stream=9, batch=3)
        raw.send("CANCEL", stream=9)
        raw.send("RELEASE", segment=9, slot=9, generation=9)
        raw.send("PING", token="still there?")
        assert raw.receive("PONG").header == {"token": "still there?"}


@pytest.mark.parametrize("record", [b"x", b"\xff" * 24, b"\x01" * 25])
def test_garbage_on_the_side_channel_closes_that_connection(service, undisturbed, record):
    with Raw(service.socket, shared_memory=True) as raw:
        raw.side.send(record)
        assert raw.closed()


def test_no_traceback_and_one_line_for_each(service):
    before = ""
    while before != service.output:  # what earlier tests left to be said
        before = service.output
        time.sleep(100 * MS)
    for _ in range(20):
        send_raw(service, b"GET / HTTP/1.1\r\n\r\n")
    wait_for(lambda: service.output[len(before) :].count("\n") >= 20, "the log")
    lines = service.output[len(before) :].splitlines()
    assert len(lines) == 20
    assert all("closed" in line for line in lines)
    assert "Traceback" not in service.output


BIG = """
    import numpy as np
    from tundish import DataLoader
    class Big:
        def __len__(self): return 64
        def __getitem__(self, i): return np.full(2**22, i, np.float32)
    train = DataLoader(Big(), batch_size=1, num_workers=2)
"""

# Forks a victim for each line: it reads one frame and a part of the next, and waits for its end.
VICTIMS = textwrap.dedent("""
    import os, signal, sys, time
    from helpers.raw import Raw, epoch
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork():
            continue
        how = line.strip()
        raw = Raw(sys.argv[1], shared_memory=how == "shared")
        raw.sock.sendall(epoch())
        raw.receive("START")
        raw.value(raw.receive("BATCH"))
        if how == "inline":
            raw.sock.recv(2**20)
        print(os.getpid(), flush=True)
        time.sleep(60)
""")


def counts(pid: int) -> tuple[int, int]:
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


@contextlib.contextmanager
def victims(service):
    """Gives the pid of a client in the middle of a frame, as often as it is called."""
    with subprocess.Popen(
        [sys.executable, "-c", VICTIMS, str(service.socket)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": "tests"},
    ) as process:

        def next_victim(how: str) -> int:
            process.stdin.write(how.encode() + b"\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield next_victim
        process.stdin.close()


@pytest.mark.timeout(60)
def test_killed_consumers_leave_nothing_behind(serve):
    service = serve(BIG)
    pid = service.process.pid
    with Client(service.socket) as client, victims(service) as next_victim:
        batches = iter(client.epoch(0))
        half = [int(next(batches)[0, 0]) for _ in range(8)]
        for number in range(54):
            if number == 4:  # the arena has as many segments now as this needs
                before = counts(pid)
            os.kill(next_victim("shared" if number % 2 else "inline"), signal.SIGKILL)
            wait_for(lambda: client.stats()["connections"] == 1, "the loss to be seen", 1000 * MS)
        stats = client.stats()
        assert stats["slots"]["quarantined"] == 0
        assert stats["slots"]["leased"] <= 8
        assert [len(stats["streams"]), len(stats["runs"])] == [1, 1]
        after = counts(pid)
        assert abs(after[0] - before[0]) <= 2
        assert abs(after[1] - before[1]) <= 2
        assert half + [int(batch[0, 0]) for batch in batches] == list(range(64))
    assert "Traceback" not in service.output
    losses = [line for line in service.output.splitlines() if "WARNING" in line]
    assert len(losses) == 54


def test_a_client_that_never_reads_costs_its_window_only(serve):
    service = serve(BIG)
    with Raw(service.socket, shared_memory=False) as raw, Client(service.socket) as client:
        raw.sock.sendall(epoch(credits={"batches": 1000, "bytes": 2**40}))
        assert [int(batch[0, 0]) for batch in client.epoch(0)] == list(range(64))
        stats = client.stats()
        (stream,) = stats["streams"]
        assert stream["delivered"] <= 2
        assert stats["memory"]["used"] <= 16 * 2**24
        # And still it gets all of it, in order.
        raw.receive("START")
        for number in range(64):
            message = raw.receive("BATCH")
            assert raw.value(message)[0, 0] == message.header["batch"] == number
        assert raw.receive("END").header["counts"]["batches"] == 64


def test_requests_of_a_client_that_never_reads_are_left_unread(service):
    with Raw(service.socket, shared_memory=False) as raw:
        raw.sock.settimeout(500 * MS)
        before = rss(service.process.pid)
        ping = encode_message("PING", {"token": "x" * 1000}) * 64
        with pytest.raises(TimeoutError):
            for _ in range(10_000):
                raw.sock.sendall(ping)
        assert rss(service.process.pid) - before < 64 * 2**20


async def test_without_hello_a_connection_ends(monkeypatch):
    monkeypatch.setattr(session, "HELLO_TIMEOUT", 50 * MS)
    with tempfile.TemporaryDirectory(prefix="td-") as folder:
        path = f"{folder}/s"
        async with tundish.serve(tundish.DataLoader([1]), socket=path):
            reader, writer = await asyncio.open_unix_connection(path)
            assert await asyncio.wait_for(reader.read(), 2000 * MS) == b""
            writer.close()
