"""`tundish.spawn`: a sidecar that lives as long as it is needed, and not a moment longer."""

import gc
import glob
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

import tundish
from helpers.timing import MS, wait_for
from tundish_client import ConfigError, ConnectError, ConnectTimeout

FEEDS = """
    import time
    from tundish import DataLoader
    train = DataLoader(list(range(20)), batch_size=5)
    class Sleepy:
        def __len__(self): return 100
        def __getitem__(self, i):
            time.sleep(5)
            return i
    sleepy = DataLoader(Sleepy(), num_workers=4)
"""


@pytest.fixture
def feeds(monkeypatch):
    """A file of feeds; temporary folders of sidecars go beside it."""
    with tempfile.TemporaryDirectory(prefix="td-") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        path = Path(name) / "feeds.py"
        path.write_text(textwrap.dedent(FEEDS))
        yield path


def folders(feeds) -> list[str]:
    return glob.glob(f"{feeds.parent}/tundish-*")


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_client_with_its_server(feeds):
    with tundish.spawn(f"{feeds}:train") as client:
        assert [batch.tolist() for batch in client.epoch(0)] == [
            list(range(i, i + 5)) for i in range(0, 20, 5)
        ]
        pid = client.pid
        assert client.stats()["server"]["pid"] == pid
        assert os.getsid(pid) == pid  # Ctrl-C in this terminal is not for it
        assert os.stat(os.path.dirname(client.socket)).st_mode & 0o777 == 0o700
    assert gone(pid)
    assert folders(feeds) == []


def test_a_given_socket_serves_others_too(feeds):
    path = feeds.parent / "shared"
    with tundish.spawn(f"{feeds}:train", socket=path, memory_limit="64MiB") as client:
        with tundish.Client(path) as other:
            assert len(list(other.epoch(0))) == 4
            assert other.stats()["memory"]["limit"] == 64 * 2**20
        assert client.socket == str(path)
    assert not path.exists()


def test_close_is_quick_with_workers_asleep(feeds):
    client = tundish.spawn(f"{feeds}:sleepy")
    stream = client.epoch(0)
    wait_for(lambda: client.stats()["runs"] != [], "the run")
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 1000 * MS
    assert gone(client.pid)
    del stream


def test_a_forgotten_client_takes_its_server_along(feeds):
    client = tundish.spawn(f"{feeds}:train")
    pid = client.pid
    del client
    gc.collect()
    wait_for(lambda: gone(pid), "the server's end")
    assert folders(feeds) == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import of_nothing", "No module named 'of_nothing'"),
        (
            "import os; os.write(2, b'broken'); os._exit(7)",
            "exit status 7) before it listened:\nbroken",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "exit status -9"),
    ],
)
def test_a_failing_start_is_raised_at_once_with_what_it_said(feeds, source, says):
    feeds.write_text(source)
    began = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        tundish.spawn(f"{feeds}:train")
    assert time.monotonic() - began < 10_000 * MS
    assert says in str(caught.value)
    assert folders(feeds) == []


def test_a_start_that_takes_too_long_is_ended(feeds):
    feeds.write_text("import time; time.sleep(60)")
    with pytest.raises(ConnectTimeout, match="within 1 s"):
        tundish.spawn(f"{feeds}:train", connect_timeout=1)
    assert folders(feeds) == []


@pytest.mark.parametrize("target", [None, 3, b"feeds.py", tundish.DataLoader([1])])
def test_only_a_str_can_be_spawned(target):
    with pytest.raises(ConfigError, match="must be a str"):
        tundish.spawn(target)


def test_what_the_target_writes_to_stderr_is_passed_on(feeds, capfd):
    feeds.write_text(feeds.read_text() + "import sys; print('hello from below', file=sys.stderr)\n")
    with tundish.spawn(f"{feeds}:train"):
        pass
    assert "hello from below" in capfd.readouterr().err


def test_no_descriptors_are_left(feeds):
    def once():
        with tundish.spawn(f"{feeds}:train") as client:
            list(client.epoch(0))

    once()
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    once()
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before


PARENT = """
    import os, sys, time
    import tundish
    client = tundish.spawn(sys.argv[1])
    stream = client.epoch(0)
    if sys.argv[2] == "reading":
        next(stream)
    print(client.pid, flush=True)
    how = sys.argv[3]
    if how == "returns":
        sys.exit(0)
    if how == "raises":
        raise ValueError("on purpose")
    if how == "_exit":
        os._exit(0)
    time.sleep(60)
"""


@pytest.mark.parametrize("feed", ["train", "sleepy"])
@pytest.mark.parametrize("how", ["returns", "raises", "_exit", "SIGKILL", "SIGINT", "SIGTERM"])
def test_the_server_ends_however_its_parent_does(feeds, feed, how):
    reading = "reading" if feed == "train" else "asking"
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), f"{feeds}:{feed}", reading, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as parent:
        assert select.select([parent.stdout], [], [], 10_000 * MS)[0], "no answer"
        pid = int(parent.stdout.readline() or parent.stderr.read())
        if how.startswith("SIG"):
            parent.send_signal(signal.Signals[how])
        parent.wait(5000 * MS)
        wait_for(lambda: gone(pid), "the server's end", 1000 * MS)
        wait_for(lambda: folders(feeds) == [], "the folder's end", 1000 * MS)


def test_a_forked_child_leaves_the_server_alone(feeds):
    script = """
        import os, sys
        import tundish
        with tundish.spawn(sys.argv[1]) as client:
            stream = client.epoch(0)
            next(stream)
            child = os.fork()
            if not child:
                sys.exit(0)
            os.waitpid(child, 0)
            print(len(list(stream)), client.ping() < 5)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), f"{feeds}:train"],
        capture_output=True,
        text=True,
        timeout=15_000 * MS,
    )
    assert (done.stdout, done.stderr) == ("3 True\n", "")
