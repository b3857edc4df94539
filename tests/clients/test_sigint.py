"""Ctrl-C: seen within 100 ms, gone within 1 s, nothing lost."""

import os
import shutil
import textwrap
import threading

import pytest

from helpers.sigint import interrupt
from helpers.timing import MS
from tundish_client.testing import Close, ScriptedServer, Silence

SYNC = """
    import sys
    from tundish_client import Client
    with Client(sys.argv[1]) as client:
        stream = client.epoch(0)
        next(stream)
        print("READY")
        try:
            next(stream)
        except KeyboardInterrupt:
            print("INTERRUPTED")
            raise
"""

ASYNC = """
    import asyncio, sys
    from tundish_client import AsyncClient
    async def main():
        async with AsyncClient(sys.argv[1]) as client:
            stream = client.epoch(0)
            await anext(stream)
            print("READY")
            await anext(stream)
    try:
        {run}
    except KeyboardInterrupt:
        print("INTERRUPTED")
        raise
"""

CONNECTING = """
    import sys
    from tundish_client import Client
    print("READY")
    try:
        Client(sys.argv[1], connect_timeout=30)
    except KeyboardInterrupt:
        print("INTERRUPTED")
        raise
"""

ASYNC_CONNECTING = """
    import asyncio, sys
    from tundish_client import AsyncClient
    print("READY")
    try:
        asyncio.run(AsyncClient(sys.argv[1], connect_timeout=30).ping())
    except KeyboardInterrupt:
        print("INTERRUPTED")
        raise
"""

BETWEEN = """
    import sys, time
    from tundish_client import Client
    with Client(sys.argv[1]) as client:
        stream = client.epoch(0)
        next(stream)
        print("READY")
        try:
            while True:
                pass
        except KeyboardInterrupt:
            print("INTERRUPTED")
            raise
"""

PROGRAMS = {
    "sync": SYNC,
    "sync between batches": BETWEEN,
    "asyncio.run": ASYNC.format(run="asyncio.run(main())"),
    "uvloop.run": ASYNC.format(run="import uvloop; uvloop.run(main())"),
    "anyio.run": ASYNC.format(run="import anyio; anyio.run(main)"),
}


def check(outcome) -> None:
    assert outcome.interrupted_after is not None, outcome.output
    assert outcome.interrupted_after <= 100 * MS
    assert outcome.exited_after <= 1000 * MS
    assert outcome.returncode in (-2, 130)
    assert outcome.output.count("Traceback") <= 2, outcome.output  # one, and its cause
    assert "ignored" not in outcome.output and "never retrieved" not in outcome.output


@pytest.mark.parametrize("shared_memory", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_while_waiting(name, shared_memory, tmp_path):
    if "anyio" in name:
        pytest.importorskip("anyio")
    with ScriptedServer([b"x" * 9000, Silence()], shared_memory=shared_memory) as server:
        check(interrupt(PROGRAMS[name], server.path, folder=tmp_path))
        server.wait_for(lambda: server.connections == 0)


@pytest.mark.parametrize("program", [CONNECTING, ASYNC_CONNECTING], ids=["sync", "async"])
@pytest.mark.parametrize("peer", ["none", "silent"])
def test_while_connecting(program, peer, tmp_path):
    if peer == "none":
        check(interrupt(program, f"{tmp_path}/s", folder=tmp_path, delay=100 * MS))
        return
    with ScriptedServer(welcome=False) as server:
        check(interrupt(program, server.path, folder=tmp_path, delay=100 * MS))


PAUSES = {
    name: program.replace("(sys.argv[1])", "(sys.argv[1], reconnect_timeout=60)")
    for name, program in PROGRAMS.items()
    if name != "sync between batches"
}


@pytest.mark.parametrize("after", ["nothing", "a silent server"])
@pytest.mark.parametrize("name", PAUSES)
def test_while_the_server_is_away(name, after, tmp_path):
    server = ScriptedServer([b"x", Silence()]).start()
    silent = ScriptedServer(path=server.path, welcome=False)

    def leave():
        server.wait_for(lambda: bool(server.kinds("ACK")))  # the second next() has begun
        server.stop()
        if after != "nothing":
            os.makedirs(os.path.dirname(server.path))
            silent.start()

    thread = threading.Thread(target=leave)
    thread.start()
    try:
        check(interrupt(PAUSES[name], server.path, folder=tmp_path, delay=300 * MS))
    finally:
        thread.join()
        silent.stop()
        shutil.rmtree(os.path.dirname(server.path), ignore_errors=True)


LOSES_NOTHING = """
    import signal, sys, threading, time, os
    from tundish_client import Client, ConnectionLost
    main = threading.main_thread().ident
    busy = sys.argv[2] == "busy"

    def fire():
        while not ready:
            time.sleep(0.001)
        for _ in range(60):
            time.sleep(0.005)
            signal.pthread_kill(main, signal.SIGINT)

    got, caught, lost, ready = [], 0, 0, []
    thread = threading.Thread(target=fire)
    client = Client(sys.argv[1])
    stream = client.epoch(0)
    thread.start()
    while True:
        try:
            try:
                ready.append(True)
                got.append(next(stream)[0])
            except ConnectionLost as error:
                assert "interrupted in an update" in str(error), error
                assert error.position.batch == stream.position.batch
                lost += 1
                client = Client(sys.argv[1])
                stream = client.epoch(0, start=error.position.batch)
            except StopIteration:
                break
        except KeyboardInterrupt:
            caught += 1
    while True:
        try:
            thread.join()
            break
        except KeyboardInterrupt:
            caught += 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    missing = [i for i in range(int(sys.argv[3])) if got.count(i) != 1]
    print(len(got), caught, lost, missing)
"""


@pytest.mark.parametrize("busy", [False, True])
def test_a_storm_of_interrupts_loses_nothing(busy, tmp_path):
    """Interrupts in the wait cost nothing; those in an update name the position to resume from.

    A batch taken but not yet appended by the test's own code is the test's to lose: hence at most
    as many are missing as there were interrupts outside next().
    """
    import subprocess
    import sys

    n = 3000 if busy else 60
    script = []
    for i in range(n):
        script.append([i, b"x" * 2000])
        if not busy:
            script.append(Silence(0.006))
    (tmp_path / "storm.py").write_text(textwrap.dedent(LOSES_NOTHING))
    with ScriptedServer(script, shared_memory=busy) as server:
        run = subprocess.run(
            [
                sys.executable,
                tmp_path / "storm.py",
                server.path,
                "busy" if busy else "idle",
                str(n),
            ],
            capture_output=True,
            text=True,
            timeout=15,
        )
    assert run.returncode == 0, run.stderr
    numbers, missing = run.stdout.strip().split(" [")
    got, caught, lost = map(int, numbers.split())
    print(run.stdout, run.stderr)
    assert caught >= 30
    if busy:
        assert len([x for x in missing.rstrip("]").split(",") if x]) <= caught // 4
    else:
        assert (got, missing) == (n, "]") and lost <= caught // 4


def test_a_storm_of_interrupts_while_reconnecting_loses_nothing(tmp_path):
    import subprocess
    import sys

    n = 60
    script = []
    for i in range(n):
        script += [[i, b"x" * 2000], Silence(0.004)]
        if i % 5 == 2:
            script.append(Close(once=True))
    program = LOSES_NOTHING.replace("(sys.argv[1])", "(sys.argv[1], reconnect_timeout=20)")
    (tmp_path / "storm.py").write_text(textwrap.dedent(program))
    with ScriptedServer(script, shared_memory=True) as server:
        run = subprocess.run(
            [sys.executable, tmp_path / "storm.py", server.path, "idle", str(n)],
            capture_output=True,
            text=True,
            timeout=15,
        )
    assert run.returncode == 0, run.stderr
    numbers, missing = run.stdout.strip().split(" [")
    got, caught, lost = map(int, numbers.split())
    assert caught >= 30
    assert (got, missing, lost) == (n, "]", 0), run.stderr


def test_ctrl_c_after_the_server_is_gone(tmp_path):
    """An interrupt in ordinary code right after a ConnectionLost is just that."""
    program = """
        import sys, time
        from tundish_client import Client, ConnectionLost
        client = Client(sys.argv[1])
        try:
            list(client.epoch(0))
        except ConnectionLost:
            print("READY")
        try:
            time.sleep(30)
        except KeyboardInterrupt:
            print("INTERRUPTED")
            raise
    """
    with ScriptedServer([1, Close()]) as server:
        check(interrupt(program, server.path, folder=tmp_path))
