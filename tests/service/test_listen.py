"""Who owns a path, and what may stand there: B25 and B27."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from helpers.timing import MS
from tundish.listen import Listener, peer
from tundish_client import ConfigError


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="td-") as name:
        yield Path(name)


@pytest.fixture
def path(folder):
    return str(folder / "s")


def mode_of(path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def stale(path) -> None:
    """Leaves a socket file that nobody listens at."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)


class TestMode:
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o177])
    @pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
    def test_is_the_one_asked_for_under_any_umask(self, path, umask, mode):
        before = os.umask(umask)
        try:
            listener = Listener(path, mode)
        finally:
            os.umask(before)
        assert mode_of(path) == mode
        listener.close()

    def test_is_0600_by_default(self, path):
        listener = Listener(path)
        assert mode_of(path) == 0o600
        assert mode_of(f"{path}.lock") == 0o600
        listener.close()

    @pytest.mark.parametrize("umask", [0o000, 0o022])
    def test_is_never_wider(self, path, umask):
        seen, stop = set(), threading.Event()

        def look():
            while not stop.is_set():
                try:
                    seen.add(mode_of(path))
                except FileNotFoundError:
                    pass

        watcher = threading.Thread(target=look)
        watcher.start()
        before = os.umask(umask)
        try:
            for _ in range(100):
                Listener(path).close()
        finally:
            os.umask(before)
            stop.set()
            watcher.join()
        assert seen <= {0o600}


class TestLength:
    def test_107_bytes_work(self, folder):
        path = os.path.join(folder, "")
        path += "x" * (107 - len(path))
        listener = Listener(path)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
        listener.close()
        assert not os.path.exists(path)

    @pytest.mark.parametrize("name", ["y" * 108, "é" * 60, "z" * 200])
    def test_longer_is_refused_with_the_numbers(self, folder, name):
        path = os.path.join(folder, name)
        with pytest.raises(ConfigError) as caught:
            Listener(path)
        assert path in str(caught.value)
        assert f"{len(os.fsencode(path))} bytes" in str(caught.value)
        assert "107" in str(caught.value)
        assert os.listdir(folder) == []


class TestOccupied:
    def test_a_stale_socket_is_replaced(self, path):
        stale(path)
        listener = Listener(path)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
        listener.close()

    def test_a_live_one_of_ours_is_refused_by_name(self, path):
        first = Listener(path)
        with pytest.raises(ConfigError, match=f"pid {os.getpid()}.*{path}"):
            Listener(path)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
        first.close()

    def test_a_live_one_of_another_program_is_refused(self, path):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(path)
            sock.listen(0)
            with pytest.raises(ConfigError, match=f"another program.*{path}"):
                Listener(path)
            inode = os.stat(path).st_ino
            # A full queue is no sign of death.
            fill = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)]
            while not fill[-1].connect_ex(path):
                fill.append(
                    socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                )
            with pytest.raises(ConfigError, match="another program"):
                Listener(path)
            for each in fill:
                each.close()
            assert os.stat(path).st_ino == inode
        assert not os.path.exists(f"{path}.lock")

    @pytest.mark.parametrize(
        "make", ["file", "folder", "link", "dangling", "link to stale", "fifo"]
    )
    def test_anything_else_is_left_alone(self, folder, path, make):
        other = str(folder / "other")
        if make == "file":
            Path(path).write_text("precious")
        elif make == "folder":
            os.mkdir(path)
        elif make == "link":
            Path(other).write_text("precious")
            os.symlink(other, path)
        elif make == "dangling":
            os.symlink(other, path)
        elif make == "fifo":
            os.mkfifo(path)
        else:
            stale(other)
            os.symlink(other, path)
        before = {name: os.lstat(folder / name) for name in os.listdir(folder)}
        with pytest.raises(ConfigError, match=path):
            Listener(path)
        after = {name: os.lstat(folder / name) for name in os.listdir(folder)}
        assert {name: (s.st_ino, s.st_size) for name, s in before.items()} == {
            name: (s.st_ino, s.st_size) for name, s in after.items()
        }

    def test_a_missing_parent_is_named(self, folder):
        with pytest.raises(ConfigError, match="missing' does not exist"):
            Listener(str(folder / "missing" / "s"))

    def test_a_parent_that_is_a_file_is_named(self, folder):
        (folder / "f").touch()
        with pytest.raises(ConfigError, match="is not a folder"):
            Listener(str(folder / "f" / "s"))

    def test_a_lock_that_is_a_link_is_refused(self, folder, path):
        os.symlink(folder / "elsewhere", f"{path}.lock")
        with pytest.raises(ConfigError, match="lock"):
            Listener(path)
        assert not (folder / "elsewhere").exists()

    def test_killed_owner_frees_the_path(self, path):
        code = (
            "import sys, time; from tundish.listen import Listener; l = Listener(sys.argv[1]);"
            "print('ready', flush=True); time.sleep(60)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, path], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout.readline() == b"ready\n"
            with pytest.raises(ConfigError, match=f"pid {process.pid}"):
                Listener(path)
            process.kill()
        listener = Listener(path)
        listener.close()

    def test_one_of_many_contenders_wins(self, path):
        stale(path)
        won, lost = [], []
        barrier = threading.Barrier(16)

        def contend():
            barrier.wait()
            try:
                won.append(Listener(path))
            except ConfigError as error:
                lost.append(error)

        threads = [threading.Thread(target=contend) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5000 * MS)
        assert (len(won), len(lost)) == (1, 15)
        won[0].close()


class TestClose:
    def test_removes_socket_and_lock(self, folder, path):
        Listener(path).close()
        assert os.listdir(folder) == []

    def test_twice_is_fine(self, path):
        listener = Listener(path)
        listener.close()
        listener.close()

    def test_leaves_what_somebody_else_put_there(self, path):
        listener = Listener(path)
        os.unlink(path)
        Path(path).write_text("theirs")
        listener.close()
        assert Path(path).read_text() == "theirs"

    def test_finds_the_socket_from_another_folder(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        listener = Listener("s")
        monkeypatch.chdir("/")
        listener.close()
        assert os.listdir(folder) == []


class TestDefault:
    @pytest.fixture(autouse=True)
    def runtime(self, folder, monkeypatch):
        monkeypatch.delenv("TUNDISH_SOCKET", raising=False)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
        return folder

    def test_its_folder_is_made_0700(self, runtime):
        before = os.umask(0)
        try:
            listener = Listener()
        finally:
            os.umask(before)
        assert listener.path == str(runtime / "tundish" / "tundish.sock")
        assert mode_of(runtime / "tundish") == 0o700
        listener.close()

    def test_a_folder_that_others_can_write_to_is_refused(self, runtime):
        (runtime / "tundish").mkdir()
        (runtime / "tundish").chmod(0o777)
        with pytest.raises(ConfigError, match="only you"):
            Listener()

    def test_a_link_instead_of_the_folder_is_refused(self, runtime):
        (runtime / "real").mkdir(mode=0o700)
        (runtime / "tundish").symlink_to(runtime / "real")
        with pytest.raises(ConfigError, match="only you"):
            Listener()


def test_peer_tells_pid_and_uid():
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        assert peer(left) == (os.getpid(), os.getuid())
