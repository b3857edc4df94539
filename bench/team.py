"""Several consumers of one epoch as one side: each of them is a side by itself (bench/side.py)."""

import json
import subprocess
import sys
import time
from typing import Any

import side


class Member:
    """A process that reads an epoch when told to."""

    def __init__(self, *command: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, *command], stdin=pipe, stdout=pipe, text=True
        )

    def line(self) -> str:
        """The next line that is meant for us; libraries may print others."""
        while True:
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"a member ended with {self._process.wait(10)}")
            if line.startswith(("ready", "{")):
                return line.strip()

    def go(self, epoch: int, limit: int) -> None:
        self._process.stdin.write(f"go {epoch} {limit}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def turn(members: list[Member], epoch: int, limit: int, expected: int) -> dict[str, Any]:
    """Has all members read an epoch and adds up what they tell.

    Args:
        members: who reads.
        epoch: which epoch.
        limit: the batches of it.
        expected: the samples that each member should get; what is missing counts as lost.
    """
    before, begun = side.cpu_seconds(), time.perf_counter()
    for member in members:
        member.go(epoch, limit)
    results = [json.loads(member.line()) for member in members]
    seconds = time.perf_counter() - begun
    cpu = side.cpu_seconds() - before
    samples = sum(r["samples"] for r in results)
    warm = sum(r.get("warm", 0) for r in results)
    if warm:  # they have read an epoch before the one that counts
        seconds = max(r["seconds"] for r in results)
        cpu *= samples / max(1, samples + warm)
    lost = len(members) * expected - samples
    checks = {r["check"] for r in results}
    return {
        "seconds": seconds,
        "cpu": cpu,
        "samples": samples,
        "lost": lost,
        "check": None if lost else checks.pop() if len(checks) == 1 else sorted(checks),
        "bytes": sum(r["bytes"] for r in results),
        "batches": sum(r["batches"] for r in results),
        "first": max(r["first"] for r in results),
    }
