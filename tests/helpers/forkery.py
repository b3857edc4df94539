"""Python programs as processes of their own, started in milliseconds.

An interpreter that has imported Tundish costs most of a second of CPU time, and the tests start
hundreds. Here they are forked from one process that has imported everything and has begun nothing:
no thread, no loop, no loader. What runs in them is the real program, from its command line on.
This file is both: the class for the tests, and that process.
"""

import functools
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from typing import Any

_MESSAGE = 1 << 18
#: What nearly all of the programs import.
_PRELOADED = (
    "asyncio",
    "numpy",
    "tundish.cli",
    "tundish.config",
    "tundish.loader",
    "tundish.metrics",
    "tundish.server",
    "tundish.serving",
    "tundish_client.aio",
    "tundish_client.sync",
    "uvloop",
)


class Program:
    """A process of the forkery, with the methods of `subprocess.Popen` that tests use.

    Attributes:
        pid: the process, which stays until it was waited for.
        args: the command line behind the interpreter's name.
        returncode: as Popen's; None until it was waited for.
    """

    def __init__(self, forkery: "Forkery", pid: int, args: list[str]) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None
        self._forkery = forkery
        self._pidfd = os.pidfd_open(pid)  # readable when it has ended

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; `subprocess.TimeoutExpired` if it still runs after `timeout` seconds."""
        status = self._ended(timeout)
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return status

    def send_signal(self, signum: int) -> None:
        """Signals it, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._pidfd], [], [], timeout)[0]:
            self.returncode = self._forkery.ask({"reap": self.pid})
            os.close(self._pidfd)
        return self.returncode

    def __del__(self) -> None:
        if self.returncode is None and hasattr(self, "_pidfd"):
            os.close(self._pidfd)


class Forkery:
    """Starts programs; ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @staticmethod
    @functools.cache
    def shared() -> "Forkery":
        """The one of this process."""
        return Forkery()

    def start(
        self,
        args: list[str],
        *,
        output: int,
        errors: int | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: dict[str, str] | None = None,
    ) -> Program:
        """Runs ``python *args`` in a session of its own, without input.

        Args:
            args: ``["-m", module, ...]``, ``["-c", text, ...]`` or ``[path, ...]``; ``"-u"`` before
                it has what is printed come at once.
            output: a descriptor for what it prints.
            errors: one for what it prints to stderr, if another.
            cwd: its folder.
            env: variables on top of this process's; those for the interpreter are not heeded.
        """
        fds = [output, output if errors is None else errors]
        request = {"args": args, "cwd": str(cwd or os.getcwd()), "env": os.environ | (env or {})}
        return Program(self, self.ask(request, fds), args)

    def run(
        self, args: list[str], *, timeout: float, **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        """As `subprocess.run` with captured text; the rest of the arguments are `start`'s."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            program = self.start(args, output=output.fileno(), errors=errors.fileno(), **options)
            try:
                status = program.wait(timeout)
            finally:
                program.kill()
                program.wait()
            said = []
            for file in (output, errors):
                file.seek(0)
                said.append(file.read().decode())
        return subprocess.CompletedProcess(args, status, *said)

    def ask(self, request: dict[str, Any], fds: list[int] | None = None) -> int:
        """One request and its answer."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds or [])
            answer = self._socket.recv(_MESSAGE)
        assert answer, "the forkery is gone"
        return int(answer)


# The process.


def _reap(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _enter(request: dict[str, Any], output: int, errors: int) -> None:
    """Makes the fork look like a process that was just started."""
    os.setsid()
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    random.seed()


def _programs(control: socket.socket) -> list[str]:
    """Starts what is asked for; returns in each of the programs, with its command line."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, _MESSAGE, 2)
        if not message:
            os._exit(0)  # the tests are over
        request = json.loads(message)
        if "reap" in request:
            control.send(str(_reap(request["reap"])).encode())
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            _enter(request, *fds)
            return list(request["args"])
        for fd in fds:
            os.close(fd)
        control.send(str(pid).encode())


def _run(args: list[str]) -> None:
    """What the interpreter does with a command line."""
    if args[0] == "-u":
        args = args[1:]
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    if args[0] == "-m":
        sys.argv[:] = args[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    elif args[0] == "-c":
        sys.argv[:] = ["-c", *args[2:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(args[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:] = args
        sys.path.insert(0, os.path.dirname(args[0]))
        runpy.run_path(args[0], run_name="__main__")


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    for name in _PRELOADED:
        __import__(name)
    _run(_programs(socket.socket(fileno=int(sys.argv[1]))))
