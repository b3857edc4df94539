"""One measured side: a process that runs an epoch when told to and answers with one JSON line.

Spoken over stdin and stdout: the side says ``ready``; each ``go EPOCH BATCHES`` is answered with
a result; the end of stdin ends it. Sides idle between their turns, so that run.py can interleave
them. This file needs numpy only: it also runs in the peers' environments.
"""

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]
PAGE = 4096
TICK = os.sysconf("SC_CLK_TCK")
WAIT = 0.002
"""Seconds that a sample of the work "waits" waits for its storage."""


def arguments() -> argparse.Namespace:
    """The command line of every side: which work, where its files are, which variant."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--shuffle", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--variant", default="")
    return parser.parse_args()


def load(data: Path) -> Pair:
    """The work's arrays, mapped; private, so that a peer which wants writable ones is content."""
    return np.load(data / "x.npy", mmap_mode="c"), np.load(data / "y.npy")


def cpu_seconds() -> float:
    """CPU time of this process and of its living descendants."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except OSError:
                continue
            fields = stat.rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    total, family = 0, [os.getpid()]
    while family:
        pid = family.pop()
        total += ticks.get(pid, 0)
        family += parents.get(pid, [])
    return total / TICK


def measure(batches: Iterator[Pair], limit: int) -> dict[str, float]:
    """Reads `limit` batches, or as many as there are, and tells how long it took."""
    count = nbytes = check = samples = 0
    before = cpu_seconds()
    begun = time.perf_counter()
    first = 0.0
    for x, y in batches:
        # Every array is looked at, and a large one on each of its pages, as a model would.
        check += int(y[0]) if len(y) < PAGE // 64 else int(y.sum())
        touched = x.reshape(-1).view(np.uint8)[::PAGE]
        check += int(touched.sum()) * 0 if len(touched) > 1 else 0
        nbytes += x.nbytes + y.nbytes
        samples += len(y)
        count += 1
        if count == 1:
            first = time.perf_counter() - begun
        if count == limit:
            break
    seconds = time.perf_counter() - begun
    cpu = cpu_seconds() - before
    return {
        "seconds": seconds,
        "first": first,
        "cpu": cpu,
        "batches": count,
        "samples": samples,
        "bytes": nbytes,
        "check": check,
    }


def run(epoch: Callable[[int], Iterator[Pair]]) -> None:
    """Serves turns until stdin ends.

    Args:
        epoch: makes the iterator over an epoch's (x, y) arrays; it has a ``close`` if what it
            holds must be given back. Making it is part of the time to the first batch.
    """

    def turn(number: int, limit: int) -> dict[str, float]:
        gc.collect()
        with closing(_turn(epoch, number)) as batches:
            return measure(batches, limit)

    serve(turn)


def serve(turn: Callable[[int, int], dict[str, Any]]) -> None:
    """Serves turns until stdin ends: `turn` is called with an epoch and a number of batches."""
    print("ready", flush=True)
    for line in sys.stdin:
        _, number, limit = line.split()
        print(json.dumps(turn(int(number), int(limit))), flush=True)


def _turn(epoch: Callable[[int], Iterator[Pair]], number: int) -> Iterator[Pair]:
    """Delays `epoch` to the first next(), where the clock runs."""
    yield from epoch(number)
