"""Whatever the number of consumers, workers, the transport and the order: the same bytes, once."""

import asyncio
import itertools
import threading

import pytest

from helpers.digests import digest, digests
from helpers.serving import Service
from helpers.sharing import Watch, with_datasets
from tundish_client import AsyncClient, Client

SOURCE = """
    feeds = {
        f"{workers} {in_order}": DataLoader(
            Counted(60, 512), 4, shuffle=True, seed=7, num_workers=workers, in_order=in_order
        )
        for workers in (0, 1, 4)
        for in_order in (True, False)
    }
    feeds["native"] = DataLoader(
        ArrayDataset(i=np.arange(60), x=np.arange(6000).reshape(60, 100)), 4, num_workers=2
    )
    feeds["told"] = told(feeds)
"""
MODES = {
    "slots": (Client, {}),
    "inline": (Client, {"shared_memory": False}),
    "async slots": (AsyncClient, {}),
    "async inline": (AsyncClient, {"shared_memory": False}),
}

COMBINATIONS = list(itertools.product((1, 2, 3, 4), (0, 1, 4), (True, False)))


@pytest.fixture(scope="module")
def service():
    started = Service(with_datasets(SOURCE), "feeds")
    yield started
    started.cleanup()


@pytest.fixture(scope="module")
def watch(service):
    with Watch(service) as watch:
        yield watch
        watch.wait_until_idle()


def read_together(service, modes, epoch, **asked):
    """What each of several consumers gets that read an epoch at the same time: batches, counts."""
    asked |= {"group": "all", "group_size": len(modes)}
    found = [None] * len(modes)

    def read(k, options):
        with Client(service.socket, **options) as client:
            stream = client.epoch(epoch, **asked)
            batches = [(stream.info.batch, digest(value)) for value in stream]
            found[k] = batches, stream.counts

    async def aread(k, options):
        async with AsyncClient(service.socket, **options) as client:
            stream = client.epoch(epoch, **asked)
            batches = [(stream.info.batch, digest(value)) async for value in stream]
            found[k] = batches, stream.counts

    def run(k, mode):
        kind, options = MODES[mode]
        if kind is Client:
            read(k, options)
        else:
            asyncio.run(aread(k, options))

    threads = [threading.Thread(target=run, args=each) for each in enumerate(modes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("consumers", "workers", "in_order"), COMBINATIONS)
def test_the_same_batches(service, watch, ours, number, mode, consumers, workers, in_order):
    feed = f"{workers} {in_order}"
    before = watch.loads(feed)
    found = read_together(service, [mode] * consumers, number, feed=feed)
    expected = list(digests(ours["0 True"].epoch(number)).items())
    for batches, counts in found:
        assert (batches if in_order else sorted(batches)) == expected
        assert (counts["batches"], counts["samples"], counts["errors"]) == (15, 60, 0)
    assert all(batches == found[0][0] for batches, _ in found), "in one order"
    assert (watch.loads(feed) - before == 1).all(), "prepared once"


@pytest.mark.parametrize("feed", ["0 True", "4 True", "4 False", "native"])
def test_the_same_batches_by_any_way_at_once(service, ours, number, feed):
    found = read_together(service, MODES, number, feed=feed)
    expected = list(digests(ours["native" if feed == "native" else "0 True"].epoch(number)).items())
    for batches, _ in found:
        assert sorted(batches) == expected
