"""`tundish serve`, `ping` and `stats` as a shell sees them: output, exit status, time."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

from helpers.forkery import Forkery
from helpers.raw import epoch, hello
from helpers.timing import MS, wait_for
from tundish.cli import main
from tundish.config import ServeConfig
from tundish_client import Client, ConfigError

FEEDS = """
    from tundish import DataLoader
    train = DataLoader(list(range(100)), batch_size=10)
"""
SLEEPY = """
    import time
    from tundish import DataLoader
    class Sleepy:
        def __len__(self): return 100
        def __getitem__(self, i):
            time.sleep(5)
            return i
    train = DataLoader(Sleepy(), num_workers=4)
"""


# Values that an option can't have, and what is said then.
WRONG = {
    "socket": ([5], "a path"),
    "socket_mode": (["9", "1777"], "permission bits in octal, 0 to 0777, such as 0600"),
    "allowed_uids": (
        ["root", "-1", "1000,x"],
        "numbers of users with commas between them, such as 1000,1001",
    ),
    "memory_limit": (
        ["much", "5", "1e9", "9" * 400, "2048PiB", str(2**61)],
        "a number of bytes from 1MiB to 2**60, such as 1073741824 or 1GiB",
    ),
    "lease_quota": (
        ["-1", "1.5", "many"],
        "a number of slots, such as 64; 0 sends all batches inline",
    ),
    "share_window": (
        ["wide", "-1"],
        "a number of bytes, such as 33554432 or 32MiB; 0 holds one batch",
    ),
    "share_linger": (["-1", "nan", "long"], "seconds from 0 to 1e9, such as 2; 0 keeps none"),
    "join_timeout": (
        ["-1", "0", "inf", "soon"],
        "seconds, more than 0 and at most 1e9, such as 60",
    ),
    "lease_timeout": (["0", "soon"], "seconds, more than 0 and at most 1e9, such as 60"),
    "metrics": (
        ["9400", ":1", "localhost:65536"],
        "HOST:PORT, such as 127.0.0.1:9400 (0.0.0.0:9400 for all interfaces)",
    ),
    "loop": (["trio"], "asyncio or uvloop"),
    "log_level": (["loud"], "debug, info, warning or error"),
}


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="td-") as name:
        yield Path(name)


def tundish(*arguments, cwd=None, env=None, timeout=10_000 * MS) -> subprocess.CompletedProcess:
    args = ["-m", "tundish", *map(str, arguments)]
    return Forkery.shared().run(args, cwd=cwd, env=env, timeout=timeout)


def write(folder, source, name="feeds.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(source))
    return path


class TestReady:
    def test_says_one_line_when_it_listens(self, serve):
        service = serve(FEEDS)
        wait_for(lambda: "\n" in service.output, "the line")
        assert service.output.splitlines()[0] == (
            f"tundish: serving feeds train on {service.socket} (pid {service.process.pid})"
        )

    def test_serves_on_either_loop(self, serve):
        for loop in ("asyncio", "uvloop"):
            service = serve(FEEDS, "train", "--loop", loop)
            with Client(service.socket) as client:
                assert [b.tolist()[0] for b in client.epoch(0)] == list(range(0, 100, 10))
                assert client.info()["feed"] == "train"

    def test_ping_and_stats(self, serve):
        service = serve(FEEDS, "train", "--memory-limit", "64MiB")
        done = tundish("ping", "--socket", service.socket)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"pong from {service.socket} in ")
        done = tundish("stats", "--json", env={"TUNDISH_SOCKET": str(service.socket)})
        assert done.returncode == 0
        stats = json.loads(done.stdout)
        assert stats["memory"]["limit"] == 64 * 2**20
        assert stats["server"]["pid"] == service.process.pid

    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
    def test_socket_mode_is_honoured(self, serve, umask):
        before = os.umask(umask)
        try:
            default, group = serve(FEEDS), serve(FEEDS, "train", "--socket-mode", "0660")
        finally:
            os.umask(before)
        assert stat.S_IMODE(default.socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(group.socket.stat().st_mode) == 0o660

    def test_options_come_from_variables(self, folder):
        write(folder, FEEDS)
        env = {"TUNDISH_SOCKET": "", "XDG_RUNTIME_DIR": str(folder), "TUNDISH_SOCKET_MODE": "0666"}
        process = subprocess.Popen(
            [sys.executable, "-m", "tundish", "serve", "feeds.py"],
            cwd=folder,
            env=os.environ | env,
            stdout=subprocess.PIPE,
        )
        with process:
            line = process.stdout.readline().decode()
            path = folder / "tundish" / "tundish.sock"
            assert str(path) in line
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            process.terminate()
            assert process.wait(2000 * MS) == 0
        assert not path.exists()


def test_every_option_says_what_it_may_be():
    """None in the words of the library that checks them, which don't tell the way out."""
    assert set(WRONG) == set(ServeConfig.model_fields)
    for option, (values, expected) in WRONG.items():
        for value in values:
            with pytest.raises(ConfigError) as caught:
                ServeConfig.of(**{option: value})
            assert str(caught.value) == f"{option}={value!r}: expected {expected}"
    with pytest.raises(ConfigError, match=r"^port=5: there is no such option; there are socket, "):
        ServeConfig.of(port=5)
    with pytest.raises(ConfigError, match=r"^join_timeout=-1: expected .*; loop='x': expected "):
        ServeConfig.of(loop="x", join_timeout=-1)


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["serve", "missing.py"], "'missing.py' does not exist"),
            (["serve", "feeds.py:nope"], "no attribute 'nope'; it has the loaders train"),
            (["serve", "nowhere.at_all:x"], "no module 'nowhere'"),
            (["serve", "feeds.py", "--nonsense"], "--nonsense"),
            (["serve", "feeds.py", "--socket", "x" * 200], "200 bytes long, the limit is 107"),
            (["serve", "feeds.py", "--socket", "not/there"], "'not' does not exist"),
            (["serve", "feeds.py", "--socket", "feeds.py"], "a file stands there"),
            (["serve", "feeds.py", "--socket", "."], "a folder stands there"),
            (["serve"], "TARGET"),
            (["nonsense"], "nonsense"),
            (["ping", "--socket", "none", "--connect-timeout", "0.1"], "there is no such file"),
            (["stats", "--socket", "x" * 108, "--connect-timeout", "0.1"], "108 bytes"),
            (
                ["ping", "--connect-timeout", "soon"],
                "must be a number of seconds, such as 2, got 's",
            ),
            (["stats", "--connect-timeout", "-1"], "connect_timeout must be at least 0 seconds"),
        ],
    )
    def test_one_line_on_stderr_and_status_2(self, folder, arguments, says):
        feeds = write(folder, FEEDS)
        done = tundish(*arguments, cwd=folder)
        assert done.returncode == 2, done
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert line.startswith("tundish: error: ")
        assert says in line
        assert feeds.read_text() == textwrap.dedent(FEEDS)

    def test_a_wrong_option_is_told_with_what_it_may_be(self, folder, capsys, monkeypatch):
        """In this process: two dozen starts would take a minute."""
        feeds = str(write(folder, FEEDS))
        for option in sorted(set(WRONG) - {"socket"}):
            for value in WRONG[option][0]:
                arguments = ["tundish", "serve", feeds, f"--{option.replace('_', '-')}", value]
                monkeypatch.setattr("sys.argv", arguments)
                monkeypatch.setattr("signal.signal", lambda *_: None)  # this is pytest's process
                with pytest.raises(SystemExit) as ended:
                    main()
                out, err = capsys.readouterr()
                expected = f"tundish: error: {option}={value!r}: expected {WRONG[option][1]}\n"
                assert (ended.value.code, out, err) == (2, "", expected)

    def test_a_wrong_variable_is_told_too(self, folder):
        write(folder, FEEDS)
        done = tundish("serve", "feeds.py", cwd=folder, env={"TUNDISH_JOIN_TIMEOUT": "-1"})
        assert done.returncode == 2
        assert done.stderr == (
            "tundish: error: join_timeout='-1' (from TUNDISH_JOIN_TIMEOUT): expected seconds, more "
            "than 0 and at most 1e9, such as 60\n"
        )

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("import of_nothing", "ModuleNotFoundError: No module named 'of_nothing'"),
            ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
            ("import sys; sys.exit(0)", "SystemExit: 0"),
            ("def f(:", "SyntaxError"),
        ],
    )
    def test_an_error_of_the_target_is_told_with_its_place(self, folder, source, says):
        path = write(folder, source)
        done = tundish("serve", path)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert says in line
        assert str(path) in line

    def test_a_live_server_is_refused_by_name(self, serve):
        service = serve(FEEDS)
        done = tundish("serve", service.folder / "feeds.py", "--socket", service.socket)
        assert done.returncode == 2
        assert f"pid {service.process.pid}" in done.stderr
        assert str(service.socket) in done.stderr
        with Client(service.socket) as client:
            client.ping()

    def test_help_names_the_variables(self):
        done = tundish("serve", "--help")
        assert done.returncode == 0
        for name in (
            "SOCKET", "LOOP", "MEMORY_LIMIT", "SOCKET_MODE", "ALLOWED_UIDS", "LEASE_QUOTA",
            "SHARE_WINDOW", "SHARE_LINGER", "JOIN_TIMEOUT", "LEASE_TIMEOUT", "METRICS", "LOG_LEVEL",
        ):  # fmt: skip
            assert f"TUNDISH_{name}" in done.stdout

    def test_no_command_shows_the_help(self):
        done = tundish()
        assert done.returncode == 0
        assert "serve" in done.stdout


class TestRestart:
    def test_after_sigkill_in_the_middle_of_an_epoch(self, serve):
        service = serve(FEEDS)
        with Client(service.socket) as client:
            stream = client.epoch(0, prefetch=1)
            first = [next(stream).tolist() for _ in range(3)]
            service.process.kill()
            service.process.wait()
            assert service.socket.exists()
        service.restart()
        with Client(service.socket) as client:
            rest = [batch.tolist() for batch in client.epoch(0, start=3)]
        assert first + rest == [list(range(i, i + 10)) for i in range(0, 100, 10)]
        assert service.stop() == 0
        assert not service.socket.exists()

    def test_a_socket_seen_from_the_start_is_never_wider(self, folder):
        write(folder, FEEDS)
        path, seen, stop = folder / "s", set(), threading.Event()

        def look():
            while not stop.is_set():
                try:
                    seen.add(stat.S_IMODE(os.lstat(path).st_mode))
                except FileNotFoundError:
                    pass

        watcher = threading.Thread(target=look)
        watcher.start()
        command = [sys.executable, "-m", "tundish", "serve", "feeds.py", "--socket", str(path)]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, umask=0) as process:
            process.stdout.readline()
            wait_for(lambda: bool(seen), "a look at the socket")
            process.terminate()
        stop.set()
        watcher.join()
        assert seen == {0o600}


def busy(service) -> Client:
    """A client that has all workers of a sleepy feed in user code."""
    client = Client(service.socket)
    reader = threading.Thread(target=lambda: _swallow(client), daemon=True)
    reader.start()
    wait_for(lambda: bool(client.stats()["streams"]), "the stream")
    wait_for(lambda: client.stats()["runs"][0]["claimed"] >= 4, "the workers")
    time.sleep(50 * MS)
    return client


def _swallow(client) -> None:
    try:
        for _ in client.epoch(0):
            pass
    except Exception:
        pass


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
class TestSignals:
    def test_idle(self, serve, loop, signum, status):
        service = serve(FEEDS, "train", "--loop", loop)
        began = time.monotonic()
        assert service.stop(signum) == status
        assert time.monotonic() - began < 1000 * MS
        assert not service.socket.exists()
        assert "Traceback" not in service.output

    def test_with_four_workers_asleep_in_user_code(self, serve, loop, signum, status):
        service = serve(SLEEPY, "train", "--loop", loop)
        client = busy(service)
        began = time.monotonic()
        assert service.stop(signum) == status
        assert time.monotonic() - began < 1000 * MS
        assert not service.socket.exists()
        assert "Traceback" not in service.output
        client.close()

    def test_in_a_target_that_is_being_imported(self, folder, loop, signum, status):
        write(folder, "import time; print('importing', flush=True); time.sleep(60)")
        command = [sys.executable, "-m", "tundish", "serve", "feeds.py", "--loop", loop]
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout.readline() == b"importing\n"
            began = time.monotonic()
            process.send_signal(signum)
            assert process.wait(2000 * MS) == status
            assert time.monotonic() - began < 1000 * MS
            assert process.stderr.read() == b""


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_loop_that_python_code_holds_ends_all_the_same(serve, signum, status):
    """`len(dataset)` runs on the loop's thread; one that never returns must not keep us."""
    service = serve("""
        import time
        from tundish import DataLoader
        class Slow:
            calls = 0
            def __len__(self):
                Slow.calls += 1
                if Slow.calls > 1:
                    time.sleep(30)
                return 4
            def __getitem__(self, i): return i
        train = DataLoader(Slow())
    """)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(service.socket))
        sock.sendall(hello() + epoch())
        time.sleep(100 * MS)
        began = time.monotonic()
        assert service.stop(signum) == status
        assert time.monotonic() - began < 1000 * MS


def test_a_second_signal_ends_it_at_once(serve):
    service = serve(SLEEPY)
    client = busy(service)
    service.process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(2000 * MS) in {0, 130}
    assert time.monotonic() - began < 500 * MS
    client.close()
