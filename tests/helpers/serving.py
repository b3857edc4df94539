"""A real service in a process of its own, started from source text."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from helpers.forkery import Forkery, Program
from helpers.timing import MS, wait_for


def listening(path: Path) -> bool:
    """Whether something accepts connections at the Unix socket `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


class Service:
    """``tundish serve`` of one source text; `socket` accepts when the constructor returns.

    Args:
        source: a Python file that defines the DataLoader `target`; may be indented.
        target: the name of the loader in it.
        options: further command-line options.
        env: variables on top of this process's.

    Attributes:
        socket: the path of the Unix socket, in a short temporary folder.
        process: the server's process.
        patience: seconds that a start may take; a subclass whose files import much sets more.
        forked: whether the interpreter has imported Tundish already (see `helpers.forkery`); a
            subclass that is about the start itself, or its memory, sets False.
    """

    patience = 10000 * MS
    forked = True

    def __init__(
        self,
        source: str,
        target: str = "train",
        *options: str,
        env: dict[str, str] | None = None,
    ) -> None:
        # Not pytest's tmp_path: the names there may exceed the 107 bytes of a socket path.
        self.folder = Path(tempfile.mkdtemp(prefix="tundish-"))
        self.socket = self.folder / "feed.sock"
        self._log = self.folder / "server.log"
        self._arguments = [f"{self.folder / 'feeds.py'}:{target}", *options]
        self._env = env or {}
        (self.folder / "feeds.py").write_text(textwrap.dedent(source))
        self.process = self._start()

    def _launch(self, args: list[str], output: int) -> "Program | subprocess.Popen[bytes]":
        if self.forked:
            return Forkery.shared().start(args, output=output, cwd=self.folder, env=self._env)
        return subprocess.Popen(
            [sys.executable, *args],
            cwd=self.folder,
            env=os.environ | self._env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _start(self) -> "Program | subprocess.Popen[bytes]":
        args = ["-m", "tundish", "serve", *self._arguments, "--socket", str(self.socket)]
        with self._log.open("ab") as log:
            process = self._launch(args, log.fileno())
        try:
            wait_for(
                lambda: process.poll() is not None or listening(self.socket),
                f"the service at {self.socket}",
                timeout=self.patience,
            )
        except AssertionError:
            process.kill()
            process.wait()
            raise
        assert process.poll() is None, f"the service ended at once:\n{self.output}"
        return process

    @property
    def output(self) -> str:
        """All that the service has printed, over restarts."""
        return self._log.read_text(errors="replace")

    def stop(self, signum: signal.Signals = signal.SIGTERM, timeout: float = 5000 * MS) -> int:
        """Signals the service and returns its exit status."""
        self.process.send_signal(signum)
        return self.process.wait(timeout)

    def restart(self) -> None:
        """Starts it again at the same path; the old process must be gone."""
        assert self.process.poll() is not None, "stop or kill the service before restart"
        self.process = self._start()

    def cleanup(self) -> None:
        """Ends the process, whatever state it is in, and removes its folder."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
