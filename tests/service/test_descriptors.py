"""A server that runs out of file descriptors."""

import resource
import time

from helpers.timing import MS, wait_for
from tundish_client import Client

FEEDS = """
    import resource
    import numpy as np
    from tundish import ArrayDataset, DataLoader
    resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
    train = DataLoader(ArrayDataset(x=np.arange(1000)), batch_size=10, num_workers=1)
"""


def test_it_serves_those_it_has_and_then_the_others(serve):
    service = serve(FEEDS)
    early = Client(service.socket)
    stream = early.epoch(0, prefetch=1)
    assert int(next(stream)["x"][0]) == 0
    crowd = []
    # Each takes several: when there are none left, it gets its batches inline, and then nobody in.
    while "cannot accept" not in service.output:
        assert len(crowd) < 60
        client = Client(service.socket, connect_timeout=300 * MS)
        try:
            client.ping()
        except TimeoutError:
            assert "cannot accept" in service.output
        crowd.append(client)
    assert "inline: Too many open files (see ulimit -n)" in service.output
    last = next(c for c in reversed(crowd) if c not in crowd[-1:])
    assert [int(b["x"][0]) for b in last.epoch(1)] == list(range(0, 1000, 10))
    assert [int(b["x"][0]) for b in stream] == list(range(10, 1000, 10))
    time.sleep(500 * MS)
    assert service.output.count("cannot accept") == 1
    for client in crowd:
        client.close()
    with Client(service.socket) as client:
        wait_for(lambda: client.stats()["connections"] == 2, "the crowd to leave")
        assert [int(b["x"][0]) for b in client.epoch(2)] == list(range(0, 1000, 10))
    early.close()
    assert "Traceback" not in service.output
    assert service.process.poll() is None
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 48
