"""Consumers as processes of their own, which a test kills, stops and lets go on.

They are forked from one process that has imported what they need, so that starting one takes
milliseconds. What a consumer saw stands in a file, a line for each batch: nothing of it is lost
when it is killed. This file is both: the class for the test, and the process.
"""

import asyncio
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from helpers.digests import digest
from helpers.timing import MS, wait_for
from tundish_client import AsyncClient, Client


class Consumer:
    """One consumer's process.

    Attributes:
        pid: its process, which is gone when it is done.
        job: what it was told.
    """

    def __init__(self, pid: int, log: Path, job: dict[str, Any]) -> None:
        self.pid = pid
        self.job = job
        self._log = log

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it wrote: ``batch``, ``digest`` and ``at`` for each batch, then how it ended."""
        whole, _, _ = self._log.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def cells(self) -> list[dict[str, Any]]:
        """Its batches: number, digest, and when it had it (`time.monotonic`)."""
        return [line for line in self.lines if "batch" in line]

    @property
    def batches(self) -> list[int]:
        """The numbers of its batches."""
        return [cell["batch"] for cell in self.cells]

    @property
    def digests(self) -> dict[int, str]:
        """Its batches by number; an AssertionError if one came twice."""
        cells = self.cells
        found = {cell["batch"]: cell["digest"] for cell in cells}
        assert len(found) == len(cells), f"batches came twice: {self.batches}"
        return found

    @property
    def ended(self) -> dict[str, Any] | None:
        """Its last line: ``end`` with the counts, ``left``, or ``error``; None if it has none."""
        lines = self.lines
        return lines[-1] if lines and "batch" not in lines[-1] else None

    @property
    def counts(self) -> dict[str, int]:
        """The counts of END."""
        ended = self.ended
        assert ended is not None, "it did not come to an end"
        assert "end" in ended, ended.get("error")
        counts: dict[str, int] = ended["end"]
        return counts

    def longest_stall(self, since: float = 0.0) -> float:
        """Seconds between two batches at most, of those that came after `since`."""
        times = [cell["at"] for cell in self.cells if cell["at"] >= since]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)

    @property
    def alive(self) -> bool:
        return os.path.exists(f"/proc/{self.pid}")

    def signal(self, signum: signal.Signals) -> None:
        """Signals it, if it is still there."""
        if self.alive:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.signal(signal.SIGKILL)
        wait_for(lambda: not self.alive, "the killed consumer's end")

    def stop(self) -> None:
        """SIGSTOP; returns when it stands still."""
        self.signal(signal.SIGSTOP)
        wait_for(lambda: not self.alive or self._state() == "T", "the consumer to stop")

    def _state(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return ""

    def go_on(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def until(self, batches: int) -> "Consumer":
        """Waits until it has had so many batches, or is gone."""
        wait_for(
            lambda: len(self.batches) >= batches or not self.alive,
            f"{batches} batches",
            timeout=10000 * MS,
        )
        return self

    def done(self, timeout: float = 10000 * MS) -> "Consumer":
        """Waits until its process is gone."""
        wait_for(
            lambda: not self.alive,
            f"consumer {self.job} to end; it has {len(self.cells)} batches, {self.ended}",
            timeout,
        )
        return self


class Nursery:
    """Starts consumers."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tundish-consumers-"))
        self.consumers: list[Consumer] = []
        paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helpers.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": ":".join(filter(None, paths))},
            start_new_session=True,
            text=True,
        )

    def start(self, socket: Any, epoch: int = 0, **job: Any) -> Consumer:
        """A consumer that reads one epoch.

        Args:
            socket: the service's.
            epoch: which epoch.
            job: ``asynchronous``: with `AsyncClient`; ``client``: arguments of the client;
                ``pause``: seconds after each batch; ``pauses``: seconds by how many batches it has
                had; ``leave``: break after so many batches; ``fail``: raise there instead;
                ``hold``: keep all batches, and look at the end whether they are what they were;
                the rest are arguments of ``epoch``.
        """
        log = self.folder / f"{len(self.consumers)}.log"
        log.touch()
        job |= {"socket": str(socket), "epoch": epoch, "log": str(log)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        self.consumers.append(Consumer(int(self._process.stdout.readline()), log, job))
        return self.consumers[-1]

    def clear(self) -> None:
        """Ends all consumers, stopped ones too."""
        for consumer in self.consumers:
            consumer.signal(signal.SIGKILL)

    def close(self) -> None:
        """Ends all of them, and itself."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        for log in self.folder.iterdir():
            log.unlink()
        self.folder.rmdir()


# The process.


class Left(Exception):
    """Raised in the body of a consumer's loop."""


class _Reader:
    """Reads one epoch and writes down what comes."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self._fd = os.open(job.pop("log"), os.O_WRONLY | os.O_APPEND)
        self._had = 0
        self._pause = job.pop("pause", 0)
        self._pauses = job.pop("pauses", {})
        self._leave = job.pop("leave", None)
        self._fail = job.pop("fail", None)
        self._socket = job.pop("socket")
        self._client = job.pop("client", {})
        self._held: list[tuple[Any, str]] | None = [] if job.pop("hold", False) else None

    def write(self, **line: Any) -> None:
        os.write(self._fd, json.dumps(line | {"at": time.monotonic()}).encode() + b"\n")

    def _take(self, stream: Any, value: Any) -> bool:
        """Writes a batch down; whether to leave."""
        found = digest(value)
        self.write(batch=stream.info.batch, digest=found)
        self._had += 1
        if self._held is not None:
            self._held.append((value, found))
        if self._had == self._fail:
            raise Left
        return self._had == self._leave

    def check_held(self) -> None:
        """Raises AssertionError if a batch is not what it was."""
        for value, was in self._held or ():
            assert digest(value) == was, "a batch that the consumer held has changed"

    def _rest(self) -> float:
        return float(self._pauses.get(str(self._had), self._pause))

    def _over(self, counts: dict[str, int]) -> None:
        self.check_held()
        if self._had == self._leave:
            self.write(left=self._had)
        else:
            self.write(end=counts)

    def read(self) -> None:
        with Client(self._socket, **self._client) as client:
            stream = client.epoch(**self.job)
            with closing(stream):
                for value in stream:
                    if self._take(stream, value):
                        break
                    time.sleep(self._rest())
                counts = dict(stream.counts)
        self._over(counts)

    async def aread(self) -> None:
        async with AsyncClient(self._socket, **self._client) as client:
            stream = client.epoch(**self.job)
            async with stream:
                async for value in stream:
                    if self._take(stream, value):
                        break
                    await asyncio.sleep(self._rest())
                counts = dict(stream.counts)
        self._over(counts)


def _consume(job: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asynchronous = job.pop("asynchronous", False)
    reader = _Reader(job)
    try:
        if asynchronous:
            asyncio.run(reader.aread())
        else:
            reader.read()
    except Left:
        reader.write(left=reader._had)
    except BaseException:
        reader.write(error=traceback.format_exc())


def _fork(job: dict[str, Any], work: Callable[[dict[str, Any]], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work(job)
    finally:
        os._exit(0)


def _serve(jobs: Iterator[str]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that who has ended is gone at once
    logging.getLogger("tundish.client").setLevel(logging.ERROR)
    for line in jobs:
        print(_fork(json.loads(line), _consume), flush=True)


if __name__ == "__main__":
    _serve(iter(sys.stdin.readline, ""))
