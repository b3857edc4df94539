"""Ctrl-C with a dataset whose samples sleep 5 s: client, sidecar, process group, in-process."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from helpers.serving import Service
from helpers.sigint import interrupt
from helpers.timing import MS, wait_for

SLOW = """
    import time
    from tundish import DataLoader

    class Slow:
        def __len__(self):
            return 100

        def __getitem__(self, index):
            time.sleep(5)
            return index

    train = DataLoader(Slow(), num_workers=4)
"""

LOOPS = {
    "sync": """
        import sys
        from tundish_client import Client
        try:
            with Client(sys.argv[1]) as client:
                print("READY", flush=True)
                for batch in client.epoch(0): pass
        except KeyboardInterrupt:
            print("INTERRUPTED", flush=True)
            sys.exit(130)
    """,
    "async": """
        import asyncio, sys
        from tundish_client import AsyncClient
        async def main():
            async with AsyncClient(sys.argv[1]) as client:
                print("READY", flush=True)
                async for batch in client.epoch(0): pass
        try:
            {run}(main())
        except KeyboardInterrupt:
            print("INTERRUPTED", flush=True)
            sys.exit(130)
    """,
}
SCRIPTS = {
    "sync": LOOPS["sync"],
    "asyncio": LOOPS["async"].replace("{run}", "asyncio.run"),
    "uvloop": LOOPS["async"].replace("{run}", "__import__('uvloop').run"),
    "anyio": LOOPS["async"].replace("{run}(main())", "__import__('anyio').run(main)"),
}


@pytest.fixture
def slow():
    service = Service(SLOW)
    yield service
    service.cleanup()


@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_waiting_client_is_interrupted_at_once_and_the_service_lives(slow, kind, tmp_path):
    outcome = interrupt(SCRIPTS[kind], str(slow.socket), folder=tmp_path, delay=300 * MS)
    assert outcome.interrupted_after is not None, outcome.output
    assert outcome.interrupted_after <= 100 * MS
    assert outcome.exited_after <= 1000 * MS
    assert outcome.returncode == 130
    assert "Traceback" not in outcome.output
    assert slow.process.poll() is None


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_the_server_is_gone_within_a_second(slow, signum, status):
    reader = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPTS["sync"]), str(slow.socket)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with reader:
        assert reader.stdout.readline() == "READY\n"
        time.sleep(300 * MS)
        sent = time.monotonic()
        assert slow.stop(signum) == status
        assert time.monotonic() - sent <= 1000 * MS
        _, error = reader.communicate(timeout=5)
        assert "ConnectionLost" in error
        assert reader.returncode == 1
    assert not slow.socket.exists()


def test_a_trainers_ctrl_c_leaves_its_sidecar_to_serve_until_it_ends(tmp_path):
    (tmp_path / "feeds.py").write_text(
        textwrap.dedent("""
            import numpy as np
            from tundish import ArrayDataset, DataLoader
            train = DataLoader(ArrayDataset(x=np.arange(1000)), batch_size=10)
        """)
    )
    script = f"""
        import time, tundish
        client = tundish.spawn({str(tmp_path / "feeds.py")!r} + ":train")
        print("PID", client.pid, flush=True)
        stream = client.epoch(0)
        next(stream)
        try:
            print("READY", flush=True)
            time.sleep(30)
        except KeyboardInterrupt:
            # Still saving: the rest of the epoch is to be had.
            print("LEFT", sum(1 for _ in stream), flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        sidecar = int(process.stdout.readline().split()[1])
        assert process.stdout.readline() == "READY\n"
        # As the terminal does it: to everybody in the foreground group.
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "LEFT 99\n"
        assert process.wait(5) == 0
    wait_for(lambda: not os.path.exists(f"/proc/{sidecar}"), "the sidecar's end", 2000 * MS)
