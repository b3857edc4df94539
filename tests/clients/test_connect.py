"""Reaching a server, or saying clearly why not."""

import asyncio
import contextlib
import os
import socket
import threading
import time

import pytest

from helpers.timing import MS
from tundish_client import (
    AsyncClient,
    Client,
    ConfigError,
    ConnectError,
    ConnectTimeout,
    _opening,
    default_socket,
)
from tundish_client._protocol.frames import encode_message
from tundish_client.testing import ScriptedServer


def connect(kind: str, path: str, **options) -> None:
    """Connects and closes, with either client."""
    if kind == "sync":
        Client(path, **options).close()
        return

    async def main() -> None:
        async with AsyncClient(path, **options):
            pass

    asyncio.run(main())


@pytest.fixture(params=["sync", "async"])
def kind(request) -> str:
    return request.param


@contextlib.contextmanager
def peer(path, behaviour):
    """A listener that gives each connection to `behaviour`."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                conn, _ = listener.accept()
                with conn, contextlib.suppress(OSError):
                    behaviour(conn)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield str(path)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_no_file(kind, path):
    began = time.monotonic()
    with pytest.raises(ConnectTimeout, match="no such file.*tundish serve") as caught:
        connect(kind, path, connect_timeout=100 * MS)
    assert path in str(caught.value) and f"{100 * MS:g} s" in str(caught.value)
    assert 100 * MS <= time.monotonic() - began < 600 * MS
    assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, ConnectionError)


def test_zero_timeout_tries_once(kind, path):
    with pytest.raises(ConnectTimeout):
        connect(kind, path, connect_timeout=0)
    with ScriptedServer(path=path):
        connect(kind, path, connect_timeout=0)


def test_stale_file(kind, path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with pytest.raises(ConnectTimeout, match="nothing listens"):
        connect(kind, path, connect_timeout=50 * MS)


def test_a_wait_is_told_once(kind, path, caplog, monkeypatch):
    monkeypatch.setattr(_opening, "_SILENCE", 50 * MS)
    with pytest.raises(ConnectTimeout):
        connect(kind, path, connect_timeout=300 * MS)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("tundish.client", "WARNING")
    assert path in record.getMessage()
    assert f"{300 * MS:g} s (connect_timeout): there is no such file" in record.getMessage()
    caplog.clear()
    with ScriptedServer(path=path, welcome=False), pytest.raises(ConnectTimeout):
        connect(kind, path, connect_timeout=300 * MS)
    (record,) = caplog.records
    assert "has not answered" in record.getMessage()


def test_a_short_wait_is_not_told(kind, path, caplog):
    with pytest.raises(ConnectTimeout):
        connect(kind, path, connect_timeout=100 * MS)
    with ScriptedServer(path=path):
        connect(kind, path)
    assert not caplog.records


def put_file(path):
    open(path, "wb").close()


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (os.mkdir, "there is a folder, not a socket"),
        (put_file, "there is a file, not a socket"),
        (os.mkfifo, "there is a device or pipe, not a socket"),
        (lambda path: os.symlink("/", path), "there is a folder, not a socket"),
    ],
    ids=["folder", "file", "pipe", "link"],
)
def test_what_is_no_socket_is_refused_at_once(kind, tmp_path, put, words):
    path = f"{tmp_path}/x"
    put(path)
    began = time.monotonic()
    with pytest.raises(ConnectError, match=f"{path}.*{words}.*TUNDISH_SOCKET") as caught:
        connect(kind, path, connect_timeout=30)
    assert time.monotonic() - began < 1000 * MS
    assert not isinstance(caught.value, TimeoutError)


def test_a_file_in_place_of_the_folder_is_told_at_once(kind, tmp_path):
    put_file(f"{tmp_path}/x")
    began = time.monotonic()
    with pytest.raises(ConnectError, match=r"x/s': Not a directory.*TUNDISH_SOCKET"):
        connect(kind, f"{tmp_path}/x/s", connect_timeout=30)
    assert time.monotonic() - began < 1000 * MS


def test_a_link_to_nothing_is_waited_for(kind, path):
    os.symlink(f"{path}.later", path)
    with pytest.raises(ConnectTimeout, match="no such file"):
        connect(kind, path, connect_timeout=50 * MS)
    with ScriptedServer(path=f"{path}.later"):
        connect(kind, path)


@pytest.mark.parametrize("stale", [False, True])
def test_client_before_server(kind, path, stale):
    if stale:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
    server = ScriptedServer([1], path=path)

    def later() -> None:
        time.sleep(150 * MS)
        if stale:
            os.unlink(path)
        server.start()

    thread = threading.Thread(target=later)
    thread.start()
    try:
        connect(kind, path, connect_timeout=10)
    finally:
        thread.join()
        server.stop()


def echo(conn):
    while data := conn.recv(4096):
        conn.sendall(data)


NOT_TUNDISH = {
    "echo": (echo, "not a Tundish server.*HELLO"),
    "http": (lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "not a Tundish server"),
    "hangs up": (lambda c: c.recv(1), "not a Tundish server.*WELCOME"),
    "half a message": (lambda c: c.sendall(b"\xce\x00\x00\x00\x20abc"), "not a Tundish server"),
    "claims 4 GiB": (lambda c: c.sendall(b"\xce\xff\xff\xff\xff"), "not a Tundish server"),
    "malformed": (lambda c: c.sendall(encode_message("WELCOME", {})), "not a Tundish server"),
}


@pytest.mark.parametrize("name", NOT_TUNDISH)
def test_another_program_listens(kind, path, name):
    behaviour, text = NOT_TUNDISH[name]
    with peer(path, behaviour), pytest.raises(ConnectError, match=text) as caught:
        connect(kind, path, connect_timeout=2)
    assert path in str(caught.value) and not isinstance(caught.value, TimeoutError)


def farewell(**header):
    return encode_message("GOAWAY", {"reason": "an upgrade", **header})


@pytest.mark.parametrize("leaving", ["hangs up", "says so", "says when it is back"])
def test_a_server_that_is_just_leaving_is_followed_by_another(kind, path, leaving):
    wait = 300 * MS
    said = {
        "hangs up": b"",
        "says so": farewell(),
        "says when it is back": farewell(back_in=wait),
    }[leaving]
    times = {"hangs up": 2, "says so": 5, "says when it is back": 1}[leaving]
    attempts = []
    server = ScriptedServer(path=path)

    def leave() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            for _ in range(times):
                conn, _ = listener.accept()
                attempts.append(time.monotonic())
                conn.sendall(said)
                conn.close()
            os.unlink(path)
        server.start()

    thread = threading.Thread(target=leave)
    thread.start()
    try:
        connect(kind, path, connect_timeout=10)
        assert len(attempts) == times
        if leaving == "says when it is back":
            assert time.monotonic() - attempts[0] > 0.8 * wait
    finally:
        thread.join()
        server.stop()


def test_a_server_that_leaves_for_longer_is_told(kind, path):
    def behaviour(conn):
        conn.sendall(farewell(back_in=3600))

    began = time.monotonic()
    with peer(path, behaviour), pytest.raises(ConnectTimeout, match=r"an upgrade \(back in 3600"):
        connect(kind, path, connect_timeout=100 * MS)
    assert time.monotonic() - began < 1000 * MS


def test_silent_peer(kind, path):
    with ScriptedServer(path=path, welcome=False):
        began = time.monotonic()
        with pytest.raises(ConnectTimeout, match="did not answer.*not a Tundish server"):
            connect(kind, path, connect_timeout=300 * MS)
        assert time.monotonic() - began < 900 * MS


def test_slow_welcome(kind, path):
    message = encode_message("WELCOME", {"version": 1, "shared_memory": False})

    def drip(conn):
        for i in range(len(message)):
            conn.sendall(message[i : i + 1])
            time.sleep(1 * MS)
        conn.recv(1 << 16)
        conn.recv(1)

    with peer(path, drip):
        connect(kind, path, connect_timeout=5)


def test_versions_are_both_named(kind, path):
    message = encode_message("WELCOME", {"version": 7})
    with (
        peer(path, lambda c: c.sendall(message)),
        pytest.raises(ConnectError, match="version 7, this client speaks 1"),
    ):
        connect(kind, path)


def test_refusal_keeps_its_text(kind, path):
    header = {"type": ["tundish_client.errors", "ConnectError"], "message": "m", "args": ["uid 7"]}
    message = encode_message("ERROR", header)
    with (
        peer(path, lambda c: (c.sendall(message), c.recv(1 << 16))),
        pytest.raises(ConnectError, match="refused this client.*uid 7"),
    ):
        connect(kind, path)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_side_channel_that_does_not_arrive_means_inline(kind, path, shared_memory):
    """A proxy passes bytes, not file descriptors."""
    with ScriptedServer([b"x" * 5000], shared_memory=True) as server:

        def proxy(conn):
            with socket.socket(socket.AF_UNIX) as up:
                up.connect(server.path)
                back = threading.Thread(target=pump, args=(up, conn))
                back.start()
                pump(conn, up)
                back.join()

        def pump(a, b):
            with contextlib.suppress(OSError):
                while data := a.recv(4096):
                    b.sendall(data)
                b.shutdown(socket.SHUT_RDWR)

        with peer(path, proxy):
            if kind == "sync":
                with Client(path, shared_memory=shared_memory) as client:
                    assert list(client.epoch(0)) == [b"x" * 5000]
            else:

                async def main():
                    async with AsyncClient(path, shared_memory=shared_memory) as client:
                        assert [b async for b in client.epoch(0)] == [b"x" * 5000]

                asyncio.run(main())
        assert server.kinds("EPOCH")[0]["shared_memory"] is False
        assert not server.kinds("RELEASE") and not server.released


def test_no_file_descriptor_is_left(kind, path):
    before = len(os.listdir("/proc/self/fd"))
    for behaviour, _ in NOT_TUNDISH.values():
        with peer(path, behaviour), pytest.raises(ConnectError):
            connect(kind, path)
        os.unlink(path)
    with ScriptedServer([1], shared_memory=True) as server:
        connect(kind, server.path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_long_paths(kind):
    folder = "/tmp/" + "é" * 49  # 5 + 98 bytes
    for name, size in (("x" * 4, 108), ("x" * 100, 204)):
        bad = f"{folder}/{name}"
        with pytest.raises(ConfigError, match=f"{size} bytes long, the limit is 107") as caught:
            connect(kind, bad)
        assert bad in str(caught.value)
    with pytest.raises(ConnectTimeout):
        connect(kind, f"{folder}/{'x' * 3}", connect_timeout=0)


@pytest.mark.parametrize("bad", ["", "a\0b", 3, object()])
def test_paths_that_are_none(bad):
    for client in (Client, AsyncClient):
        with pytest.raises(ConfigError, match="socket"):
            client(bad)


@pytest.mark.parametrize(
    ("option", "value"),
    [("connect_timeout", -1), ("connect_timeout", "5"), ("connect_timeout", float("nan")),
     ("connect_timeout", True), ("shared_memory", 1)],
)  # fmt: skip
def test_wrong_options_are_named(option, value):
    for client in (Client, AsyncClient):
        with pytest.raises(ConfigError, match=f"{option} .*{value!r}"):
            client("/tmp/x", **{option: value})


def test_default_socket(monkeypatch):
    assert default_socket({}) == f"/tmp/tundish-{os.getuid()}/tundish.sock"
    runtime = {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert default_socket(runtime) == "/run/user/7/tundish/tundish.sock"
    assert default_socket(runtime | {"TUNDISH_SOCKET": "/s"}) == "/s"


def test_environment(monkeypatch):
    with ScriptedServer([1], shared_memory=True) as server:
        monkeypatch.setenv("TUNDISH_SOCKET", server.path)
        monkeypatch.setenv("TUNDISH_SHARED_MEMORY", "no")
        with Client() as client:
            assert list(client.epoch(0)) == [1]
        assert server.kinds("HELLO")[0]["shared_memory"] is False
        with Client(shared_memory=True):
            assert server.kinds("HELLO")[1]["shared_memory"] is True
    monkeypatch.setenv("TUNDISH_CONNECT_TIMEOUT", "0.05")
    with pytest.raises(ConnectTimeout, match="0.05 s"):
        Client()
    monkeypatch.setenv("TUNDISH_CONNECT_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="TUNDISH_CONNECT_TIMEOUT.*soon"):
        Client()
    monkeypatch.delenv("TUNDISH_CONNECT_TIMEOUT")
    monkeypatch.setenv("TUNDISH_SHARED_MEMORY", "maybe")
    with pytest.raises(ConfigError, match="TUNDISH_SHARED_MEMORY.*maybe"):
        AsyncClient()


async def test_cancelling_the_connection_attempt(path):
    client = AsyncClient(path)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.ping(), 20 * MS)
    with ScriptedServer([1], path=path):
        assert await client.ping() < 1
        await client.aclose()
