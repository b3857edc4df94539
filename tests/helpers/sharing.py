"""Feeds that tell how often each sample was loaded, and what the server holds."""

import os
import textwrap
import time
from collections import Counter
from typing import Any

import numpy as np

from helpers.serving import Service
from helpers.timing import MS
from tundish_client import Client

#: Datasets for the feeds of a service. `told(...)` makes the feed that `loads` reads.
DATASETS = """
    import time
    import numpy as np
    from tundish import ArrayDataset, DataLoader, sample_rng

    class Counted:
        def __init__(self, n=200, nbytes=256, seconds=0.0):
            self.n, self.nbytes, self.seconds = n, nbytes, seconds
            self.asked = []

        def __len__(self):
            return self.n

        def __getitem__(self, index):
            self.asked.append(index)
            time.sleep(self.seconds)
            rng = sample_rng()
            return {"i": index, "x": rng.integers(0, 255, self.nbytes, np.uint8)}

    class Streamed:
        def __init__(self, n=200, nbytes=256, seconds=0.0):
            self.n, self.nbytes, self.seconds = n, nbytes, seconds
            self.asked = []

        def __iter__(self):
            for index in range(self.n):
                self.asked.append(index)
                time.sleep(self.seconds)
                yield {"i": index, "x": np.full(self.nbytes, index % 251, np.uint8)}

    class Told:
        def __init__(self, datasets):
            self.datasets = datasets

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return {
                name: np.bincount(np.array(dataset.asked, np.int64), minlength=dataset.n)
                for name, dataset in self.datasets.items()
            }

    def told(feeds):
        counting = {name: feed.dataset for name, feed in feeds.items()}
        return DataLoader(Told({k: v for k, v in counting.items() if hasattr(v, "asked")}), None)
"""


def with_datasets(source: str) -> str:
    """A feeds file that has the datasets above."""
    return textwrap.dedent(DATASETS) + textwrap.dedent(source)


def loaders(source: str) -> dict[str, Any]:
    """The same feeds in this process, to compare with."""
    namespace: dict[str, Any] = {"__name__": "feeds"}
    exec(compile(with_datasets(source), "feeds.py", "exec"), namespace)
    feeds: dict[str, Any] = namespace["feeds"]
    return feeds


class Watch:
    """Looks at a service from the side.

    Attributes:
        client: a connection for that.
    """

    def __init__(self, service: Service) -> None:
        self.client = Client(service.socket)
        self._pid = service.process.pid
        self.stats()

    def loads(self, feed: str) -> np.ndarray[Any, Any]:
        """How often each sample of a feed was loaded so far."""
        (counts,) = self.client.epoch(0, feed="told")
        return np.array(counts[feed])

    def stats(self) -> dict[str, Any]:
        stats = self.client.stats()
        stats["runs"] = [run for run in stats["runs"] if run["feed"] != "told"]
        return stats

    def idle(self) -> bool:
        """Whether no stream, run or lease is left."""
        stats = self.stats()
        slots = stats["slots"]
        return not (stats["streams"] or stats["runs"] or slots["lent"] or slots["quarantined"])

    def wait_until_idle(self) -> None:
        """Asks now and then: who asks all the time keeps the server from looking at leases."""
        deadline = time.monotonic() + 5000 * MS
        while not self.idle():
            if time.monotonic() > deadline:
                left = {key: self.stats()[key] for key in ("streams", "runs", "slots")}
                raise AssertionError(f"what should have ended is still there: {left}")
            time.sleep(0.02)

    def held(self) -> "Counter[str]":
        """The server's threads, and its descriptors by kind, but for those of its memory."""
        folder = f"/proc/{self._pid}"
        links = [_link(f"{folder}/fd/{fd}") for fd in os.listdir(f"{folder}/fd")]
        found = Counter(link.partition(":[")[0] for link in links if link)
        found["threads"] = len(os.listdir(f"{folder}/task"))
        return Counter({kind: n for kind, n in found.items() if not kind.startswith("/memfd:")})

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _link(path: str) -> str:
    """Where a link leads; nothing if it has gone meanwhile."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
