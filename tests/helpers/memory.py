"""Services whose memory is watched, and consumers that make it scarce."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from helpers.timing import MS
from tundish import Client

MIB = 2**20

#: Pages of a freshly made array of zeros that is only read take no memory.
NATIVE = """
    import numpy as np
    from tundish import ArrayDataset, DataLoader
    data = ArrayDataset(x=np.zeros(({rows}, {nbytes} // 8)), i=np.arange({rows}))
    train = DataLoader(data, num_workers=2)
"""
PYTHON = """
    import numpy as np
    from tundish import DataLoader
    zeros = np.zeros({nbytes} // 8)
    class Zeros:
        def __len__(self): return {rows}
        def __getitem__(self, i): return {{"x": zeros, "i": i}}
    train = DataLoader(Zeros(), num_workers=8)
"""


def measured(pid: int) -> tuple[int, int]:
    """Bytes of memory that this process has: in memfds of Tundish, and of its own."""
    shared = private = 0
    name = ""
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            field, *rest = line.split()
            if field == "Rss:" and name.startswith("/memfd:tundish"):
                shared += int(rest[0]) * 1024
            elif field == "Anonymous:":
                private += int(rest[0]) * 1024
            elif re.match(r"[0-9a-f]+-[0-9a-f]+$", field):
                name = " ".join(rest[4:])
    return shared, private


class Watch:
    """Looks at a service's memory again and again, from the side of the kernel and from its own.

    Attributes:
        used: The most that it said.
        real: The most that it had, besides what it had at first.
        beyond: The most that it had more than it said.
    """

    def __init__(self, service) -> None:
        self.client = Client(service.socket)
        self._pid = service.process.pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.used = self.real = self.beyond = 0

    @property
    def memory(self):
        return self.client.stats()["memory"]

    def _look(self) -> None:
        _, before = measured(self._pid)
        while not self._stop.is_set():
            shared, private = measured(self._pid)
            real = shared + private - before
            used = self.memory["used"]
            self.used, self.real = max(self.used, used), max(self.real, real)
            if used == self.memory["used"]:  # else it has changed since the kernel was asked
                self.beyond = max(self.beyond, real - used)
            time.sleep(5 * MS)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.client.close()


@contextmanager
def stalled(service, **options) -> Iterator[list]:
    """A consumer that stands still behind its first batch, and then reads the rest."""
    numbers: list[int] = []
    with Client(service.socket, **options) as client:
        stream = client.epoch(0)
        numbers.append(int(next(stream)["i"][0]))
        yield numbers
        numbers.extend(int(batch["i"][0]) for batch in stream)


def read_all(service, epochs, **options):
    """Reads each epoch with a client of its own, all at a time; the numbers that each has got."""
    results = []

    def read(epoch):
        with Client(service.socket, **options) as client:
            results.append([int(batch["i"][0]) for batch in client.epoch(epoch)])

    threads = [threading.Thread(target=read, args=(epoch,)) for epoch in epochs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
