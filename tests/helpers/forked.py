"""A forked child of the test's own process."""

import contextlib
import os
import signal
from collections.abc import Callable

from tundish_client import TundishError


def in_child(work: Callable[[], object]) -> int:
    """Forks; the exit status of work() in the child: 0 if it returned something true."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(10)  # ends it if it hangs
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def told(work: Callable[[], object]) -> str:
    """Forks; what work() returned in the child, as `repr` tells it."""
    read, write = os.pipe()

    def tell() -> bool:
        return os.write(write, repr(work()).encode()) >= 0

    try:
        status = in_child(tell)
    finally:
        os.close(write)
    with open(read, encoding="utf-8") as answer:
        text = answer.read()
    assert status == 0, text
    return text


def refused(call: Callable[[], object]) -> bool:
    """Whether a child is told that the client belongs to its parent."""
    try:
        call()
    except TundishError as error:
        return "fork" in str(error) and str(os.getppid()) in str(error)
    return False


def inode(fd: int) -> int:
    """What tells an open file from another that has got its number."""
    return os.fstat(fd).st_ino


def inodes() -> list[int]:
    """Of all open file descriptors."""
    out = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            out.append(inode(fd))
    return out
