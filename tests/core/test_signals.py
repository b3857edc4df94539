"""Ctrl-C in this process: seen within 100 ms, gone within 1 s, whatever a sample is doing."""

import signal
import subprocess
import sys
import textwrap

import pytest

from helpers.sigint import interrupt
from helpers.timing import MS

SCRIPT = """
    import asyncio, sys, time
    import numpy as np, uvloop
    from tundish import ArrayDataset, DataLoader

    way, workers, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]

    class Dataset:
        def __len__(self):
            return 100

        def __getitem__(self, index):
            until = time.monotonic() + 5
            if kind == "sleeping":
                time.sleep(5)
            while time.monotonic() < until:
                pass
            return index

    class Ready(Dataset):
        def __getitem__(self, index):
            return index

    dataset = {"ready": Ready, "native": lambda: ArrayDataset(np.zeros(100))}.get(kind, Dataset)()
    loader = DataLoader(dataset, 1, num_workers=workers)

    def read():
        print("READY")
        while True:
            for batch in loader:
                pass

    async def aread():
        print("READY")
        while True:
            async for batch in loader:
                pass

    try:
        if way == "for":
            read()
        else:
            (asyncio if way == "asyncio" else uvloop).run(aread())
    except KeyboardInterrupt:
        print("INTERRUPTED")
        raise
"""


@pytest.mark.parametrize("kind", ["sleeping", "computing", "ready", "native"])
@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("way", ["for", "asyncio", "uvloop"])
def test_ctrl_c(way, workers, kind, tmp_path):
    outcome = interrupt(SCRIPT, way, str(workers), kind, folder=tmp_path, delay=200 * MS)
    assert outcome.interrupted_after is not None, outcome.output
    assert outcome.interrupted_after <= 100 * MS
    assert outcome.exited_after <= 1000 * MS
    assert outcome.returncode in (130, -signal.SIGINT), outcome.output
    assert outcome.output.count("Traceback (most recent call last)") <= 2, outcome.output
    assert "Fatal" not in outcome.output


def test_ctrl_c_during_a_long_plan(tmp_path):
    source = """
        from tundish import DataLoader

        class Huge:
            def __len__(self):
                return 200_000_000

            def __getitem__(self, index):
                return index

        epoch = iter(DataLoader(Huge(), 32, True, seed=1, order="torch"))
        print("READY")
        try:
            next(epoch)
            print("too early")
        except KeyboardInterrupt:
            print("INTERRUPTED")
            raise
    """
    outcome = interrupt(source, folder=tmp_path, delay=100 * MS)
    assert outcome.interrupted_after is not None, outcome.output
    assert outcome.interrupted_after <= 100 * MS
    assert outcome.exited_after <= 1000 * MS


def test_ctrl_c_on_the_way_to_a_far_epoch(tmp_path):
    source = """
        from tundish import DataLoader

        epoch = DataLoader(range(1000), 32, True, seed=1, order="torch").epoch(10**9)
        print("READY")
        try:
            next(epoch)
            print("too early")
        except KeyboardInterrupt:
            print("INTERRUPTED")
            raise
    """
    outcome = interrupt(source, folder=tmp_path, delay=100 * MS)
    assert outcome.interrupted_after is not None, outcome.output
    assert outcome.interrupted_after <= 100 * MS
    assert outcome.exited_after <= 1000 * MS


def test_after_ctrl_c_the_epoch_goes_on(tmp_path):
    source = """
        import time
        from tundish import DataLoader

        class Slow:
            def __len__(self):
                return 3

            def __getitem__(self, index):
                time.sleep(0.3)
                return index

        for workers in (0, 2):
            epoch = iter(DataLoader(Slow(), 1, num_workers=workers))
            found = []
            if workers == 0:
                print("READY")
            while len(found) < 3:
                try:
                    found.append(next(epoch).tolist())
                except KeyboardInterrupt:
                    print("INTERRUPTED")
            print(found)
    """
    outcome = interrupt(source, folder=tmp_path, delay=100 * MS)
    assert outcome.interrupted_after <= 100 * MS
    assert outcome.output.count("[[0], [1], [2]]") == 2
    assert outcome.returncode == 0


def test_workers_with_a_python_dataset_share_the_interpreter():
    script = """
        import sys
        import numpy as np
        from tundish import ArrayDataset, DataLoader
        seen = [sys.getswitchinterval()]
        next(iter(DataLoader(ArrayDataset(np.zeros(4)), num_workers=1)))
        next(iter(DataLoader(range(4))))
        seen.append(sys.getswitchinterval())
        next(iter(DataLoader(range(4), num_workers=1)))
        seen.append(sys.getswitchinterval())
        sys.setswitchinterval(0.0001)
        next(iter(DataLoader(range(4), num_workers=1)))
        seen.append(sys.getswitchinterval())
        print([round(interval, 6) for interval in seen])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[0.005, 0.005, 0.0005, 0.0001]\n"
