"""Tundish beside a bare loop, PyTorch, dataloader-rs and tensorsocket: one run, one table.

``make bench`` runs it. Every side is a process of its own (bench/sides); in each round all of
them take one turn, in rotating order, so that what the machine does meanwhile hits all alike.
The table shows medians over the rounds, their spread, and the ratio to Tundish's first line.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import photos

HERE = Path(__file__).parent
TUNDISH = Path(sys.executable)
PEERS = HERE / ".venv-peers/bin/python"
DLRS = HERE / ".venv-dlrs/bin/python"
# dataloader-rs advises to keep freed memory in the process. With its bounds raised to the size of
# the batches here, every peer gets that.
MALLOC = "glibc.malloc.trim_threshold=1073741824:glibc.malloc.mmap_threshold=268435456"


@dataclass(frozen=True)
class Side:
    """One line of the table: which script, in which environment, with which options."""

    label: str
    script: str
    python: Path = TUNDISH
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """One part of the table. `limit` batches a turn; `metric` is a key of METRICS."""

    name: str
    title: str
    data: str
    batch: int
    metric: str
    limit: int
    sides: tuple[Side, ...]
    shuffle: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)


def _tundish(label: str, variant: str, workers: int) -> Side:
    options = ("--variant", variant, "--workers", str(workers))
    return Side(f"tundish {label}", "tundish_side.py", options=options)


def _torch(workers: int) -> Side:
    label = f"torch, {workers} workers"
    return Side(label, "torch_loader.py", PEERS, ("--workers", str(workers)))


def _dlrs(workers: int) -> Side:
    label = f"dataloader-rs, {workers} workers"
    return Side(label, "dlrs_loader.py", DLRS, ("--workers", str(workers)))


def _lanes(label: str, variant: str) -> Side:
    options = ("--variant", variant, "--workers", "4", "--lanes", "16")
    return Side(f"tundish {label}, 4 x 16 lanes", "tundish_side.py", options=options)


def _sharing(peer: str, count: int) -> Side:
    """`count` consumers, each of which gets the whole epoch."""
    label = f"{peer}, {count} consumer{'s' if count > 1 else ''}"
    python = TUNDISH if peer == "tundish" else PEERS
    options = ("--variant", str(count), "--workers", "2")
    return Side(label, f"sharing_{peer}.py", python, options)


SLOTS = _tundish("service, slots", "slots", 1)
SLOTS2 = _tundish("service, slots, 2 workers", "slots", 2)
INLINE = _tundish("service, inline", "inline", 1)
LOCAL = _tundish("in process, 0 workers", "local", 0)
LOCAL2 = _tundish("in process, 2 workers", "local", 2)
CONSUMERS = (1, 2, 4)
FLOOR = Side("bare socket + slot loop", "floor.py")

WORKS = (
    Work(
        "small",
        "200k samples of 16 float32 + label, batch 32: time per batch",
        "small",
        32,
        "us per batch",
        3000,
        (SLOTS, INLINE, LOCAL, FLOOR, _torch(0), _torch(2), _dlrs(0), _dlrs(2)),
    ),
    Work(
        "python",
        "the same through a Python __getitem__: time per batch",
        "small",
        32,
        "us per batch",
        2000,
        (SLOTS2, LOCAL, LOCAL2, _torch(0), _torch(2), _dlrs(0), _dlrs(2)),
    ),
    Work(
        "waits",
        "2 ms of waiting per sample, batch 16: samples per second",
        "small",
        16,
        "samples/s",
        400,
        (
            _lanes("service", "slots"),
            _lanes("service, async", "slots-async"),
            _lanes("in process", "local"),
            _lanes("in process, async", "local-async"),
            Side(
                "dataloader-rs, 4 x 16 lanes",
                "dlrs_loader.py",
                DLRS,
                ("--workers", "4", "--lanes", "16"),
            ),
            _torch(16),
        ),
    ),
    Work(
        "images",
        "4,096 uint8 images of 3x224x224 from a mapped file, shuffled, batch 256: throughput",
        "images",
        256,
        "GB/s",
        16,
        (SLOTS2, INLINE, LOCAL2, FLOOR, _torch(0), _torch(2), _dlrs(0), _dlrs(2)),
        shuffle=True,
    ),
    Work(
        "first",
        "first batch after connect (service) or of a new loader: time",
        "small",
        32,
        "ms to first",
        1,
        (SLOTS, INLINE, LOCAL, _torch(0), _torch(2), _dlrs(0), _dlrs(2)),
    ),
    Work(
        "sharing",
        "1,000 pictures to decode, several consumers of each epoch: samples of all together",
        "photos",
        32,
        "samples/s",
        2**31,
        tuple(
            _sharing(peer, count)
            for peer in ("tundish", "torch", "tensorsocket")
            for count in CONSUMERS
        ),
    ),
)

METRICS = {
    "us per batch": lambda r: r["seconds"] / r["batches"] * 1e6,
    "GB/s": lambda r: r["bytes"] / r["seconds"] / 1e9,
    "ms to first": lambda r: r["first"] * 1e3,
    "samples/s": lambda r: r["samples"] / r["seconds"],
}
MORE_IS_BETTER = {"GB/s", "samples/s"}


class Process:
    """A running side."""

    def __init__(self, work: Work, side: Side, data: Path) -> None:
        self.side = side
        self.results: list[dict[str, float]] = []
        command = [str(side.python), str(HERE / "sides" / side.script), "--work", work.name]
        command += ["--data", str(data / work.data), "--batch", str(work.batch)]
        command += ["--shuffle", str(int(work.shuffle)), *side.options]
        pipe = subprocess.PIPE
        env = os.environ | ({} if side.python == TUNDISH else {"GLIBC_TUNABLES": MALLOC})
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)

    def _line(self) -> str:
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{self.side.label} ended with {self._process.wait(10)}")
        return line

    def ready(self) -> None:
        line = self._line()
        if line != "ready":
            raise RuntimeError(f"{self.side.label} said {line!r} instead of ready")

    def turn(self, epoch: int, limit: int, *, keep: bool) -> None:
        self._process.stdin.write(f"go {epoch} {limit}\n")
        self._process.stdin.flush()
        result = json.loads(self._line())
        if keep:
            self.results.append(result)

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def make_data(folder: Path, names: set[str]) -> None:
    """Writes the arrays of the works; the image file has 617 MB."""
    rng = np.random.default_rng(7)
    shapes = {"small": ((200_000, 16), np.float32), "images": ((4096, 3, 224, 224), np.uint8)}
    for name in names:
        (folder / name).mkdir()
        if name == "photos":
            photos.write(folder / name)
            continue
        shape, dtype = shapes[name]
        x = np.lib.format.open_memmap(folder / name / "x.npy", "w+", dtype, shape)
        for start in range(0, len(x), 512):
            x[start : start + 512] = rng.integers(0, 255, x[start : start + 512].shape)
        x.flush()
        np.save(folder / name / "y.npy", np.arange(shape[0], dtype=np.int64) % 1000)


def measure(work: Work, data: Path, rounds: int) -> None:
    """Runs `work` on all its sides that are installed and fills ``work.rows``."""
    sides = [side for side in work.sides if side.python.exists()]
    processes: list[Process] = []
    try:
        for side in sides:
            processes.append(Process(work, side, data))
            processes[-1].ready()
        order = deque(processes)
        for number in range(rounds + 1):  # round 0 warms up and is thrown away
            for process in order:
                process.turn(number, work.limit, keep=number > 0)
            order.rotate(1)
    finally:
        for process in processes:
            process.close()
    # A side that lost samples can't have the same sum; it has to say so.
    whole = [p for p in processes if not any(r.get("lost") for r in p.results)]
    checks = {tuple(r["check"] for r in p.results) for p in whole}
    if len(checks) != 1:
        raise RuntimeError(f"the sides of {work.name!r} did not deliver the same samples: {checks}")
    work.rows.extend(_row(work, process) for process in processes)


def _row(work: Work, process: Process) -> dict[str, Any]:
    values = sorted(METRICS[work.metric](result) for result in process.results)
    return {
        "side": process.side.label,
        "median": statistics.median(values),
        "low": values[0],
        "high": values[-1],
        "cpu_seconds": statistics.median(result["cpu"] for result in process.results),
        "cpu_ms_per_sample": statistics.median(
            result["cpu"] / max(1, result["samples"]) * 1e3 for result in process.results
        ),
        "lost": max(result.get("lost", 0) for result in process.results),
        "results": process.results,
    }


def show(work: Work) -> None:
    """Prints the part of the table; a ratio above 1 says Tundish's first line is better."""
    print(f"\n{work.title}")
    per_sample = work.metric == "samples/s"
    unit = "CPU ms per sample" if per_sample else "CPU s"
    print(f"  {'':32} {work.metric:>13} {'low .. high':>19} {'ratio':>8} {unit:>7}")
    reference = work.rows[0]["median"]
    for row in work.rows:
        ratio = row["median"] / reference
        if work.metric in MORE_IS_BETTER:
            ratio = 1 / ratio if ratio else float("inf")
        spread = f"{row['low']:.4g} .. {row['high']:.4g}"
        cpu = f"{row['cpu_ms_per_sample' if per_sample else 'cpu_seconds']:7.2f}"
        lost = f"  lost {row['lost']} samples" if row["lost"] else ""
        print(f"  {row['side']:32} {row['median']:13.4g} {spread:>19} {ratio:7.2f}x {cpu}{lost}")


def show_sharing(work: Work) -> None:
    """How several consumers compare with one, for each peer."""
    rows = {row["side"]: row for row in work.rows}
    for peer in ("tundish", "torch", "tensorsocket"):
        one, most = (rows.get(_sharing(peer, count).label) for count in (1, CONSUMERS[-1]))
        if one and most:
            rate = most["median"] / one["median"]
            cpu = most["cpu_seconds"] / one["cpu_seconds"]
            print(
                f"  {peer}: {CONSUMERS[-1]} consumers get {rate:.2f} times what one gets, for "
                f"{cpu:.2f} times the CPU seconds"
            )


def save(works: list[Work], rounds: int) -> Path:
    """Writes everything measured to bench/results/."""
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    path = folder / time.strftime("bench-%Y%m%d-%H%M%S.json")
    document = {
        "machine": {"system": platform.platform(), "python": platform.python_version()},
        "rounds": rounds,
        "works": {w.name: {"title": w.title, "metric": w.metric, "rows": w.rows} for w in works},
    }
    path.write_text(json.dumps(document, indent=1))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("works", nargs="*", help="which parts; all when none is named")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    works = [work for work in WORKS if not args.works or work.name in args.works]
    if not works:
        parser.error(f"no work named {args.works}; there are {[w.name for w in WORKS]}")
    for missing in {s.python for w in works for s in w.sides if not s.python.exists()}:
        print(f"Left out: the sides of {missing.parent.parent.name}, which is not installed")
    data = Path(tempfile.mkdtemp(prefix="tundish-bench-"))
    try:
        print(f"{args.rounds} rounds, sides interleaved, medians; ratio > 1: the first line leads")
        make_data(data, {work.data for work in works})
        for work in works:
            measure(work, data, args.rounds)
            show(work)
            if work.name == "sharing":
                show_sharing(work)
        print(f"\nAll results: {save(works, args.rounds)}")
    finally:
        shutil.rmtree(data)


if __name__ == "__main__":
    main()
