"""Arrays that a user still holds never change, whatever happens to the two processes."""

import gc
import hashlib
import os
import textwrap

import numpy as np
import pytest

import tundish
from helpers.serving import Service
from helpers.timing import wait_for
from tundish_client import Client

SOURCE = """
    import numpy as np
    from tundish import ArrayDataset, DataLoader

    n = 600
    x = (np.arange(n * 16384, dtype=np.int64) * 2654435761 % 251).astype(np.uint8).reshape(n, 16384)
    dataset = ArrayDataset(x=x, i=np.arange(n))
    train = DataLoader(dataset, batch_size=4, seed=3, shuffle=True, num_workers=2)
"""
X = (np.arange(600 * 16384, dtype=np.int64) * 2654435761 % 251).astype(np.uint8).reshape(600, 16384)


def digest(batch):
    return hashlib.sha256(batch["x"].tobytes() + batch["i"].tobytes()).hexdigest()


def check(held):
    """The batches are what they were, and what the dataset says."""
    for batch, was in held:
        assert digest(batch) == was
        assert np.array_equal(batch["x"], X[batch["i"]])


@pytest.fixture
def service():
    # Room for about a dozen slots: what is held goes three times over it.
    service = Service(SOURCE, "train", "--memory-limit", str(1 << 20))
    yield service
    service.cleanup()


def hold(client, epoch, n):
    held = []
    for batch in client.epoch(epoch):
        held.append((batch, digest(batch)))
        if len(held) == n:
            break
    return held


def test_across_close_and_reconnect(service):
    with Client(service.socket) as client:
        slots = max(1, hold_slots(client))
        held = hold(client, 0, 3 * slots)
        assert len(held) == 3 * slots
    check(held)
    for epoch in (1, 2, 3):
        with Client(service.socket) as client:
            hold(client, epoch, 100)
            check(held)
    check(held)


def hold_slots(client):
    hold(client, 9, 3)
    return client.stats()["slots"]["total"]


def test_across_a_killed_server(service):
    with Client(service.socket) as client:
        held = hold(client, 0, 100)
        service.process.kill()
        service.process.wait()
        check(held)
    gc.collect()
    check(held)


def test_what_a_user_writes_nobody_else_sees(service):
    with Client(service.socket) as one, Client(service.socket) as other:
        for epoch in range(3):
            for mine, theirs in zip(one.epoch(epoch), other.epoch(epoch), strict=True):
                assert np.array_equal(mine["x"], X[mine["i"]])
                mine["x"][:] = 255
                assert np.array_equal(theirs["x"], X[theirs["i"]])


def test_all_slots_come_back_and_no_descriptor_is_left(service):
    def descriptors():
        return len(os.listdir(f"/proc/{service.process.pid}/fd"))

    with Client(service.socket) as watcher:
        before = descriptors()
        for _ in range(10):
            with Client(service.socket) as client:
                hold(client, 0, 40)
        wait_for(lambda: watcher.stats()["slots"]["lent"] == 0, "the slots")
        wait_for(lambda: descriptors() <= before + 2, "the descriptors")


def test_a_spawned_sidecar_serves_the_same_bytes(tmp_path):
    (tmp_path / "feeds.py").write_text(textwrap.dedent(SOURCE))
    with tundish.spawn(f"{tmp_path / 'feeds.py'}:train") as client:
        got = [batch["i"] for batch in client.epoch(1)]
    namespace = {}
    exec(textwrap.dedent(SOURCE), namespace)
    expected = [batch["i"] for batch in namespace["train"].epoch(1)]
    assert np.array_equal(np.concatenate(got), np.concatenate(expected))
    assert sorted(np.concatenate(got)) == list(range(600))
