"""Rates are of the last five seconds."""

import asyncio

import pytest

from helpers.datasets import arrays
from helpers.timing import MS
from tundish import AsyncClient, serve
from tundish.pace import Pace


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_the_rate_since_it_began(clock):
    pace = Pace(40, clock)
    clock.now += 2
    assert pace.rate(50) == 5


def test_the_rate_of_the_last_five_seconds(clock):
    pace = Pace(0, clock)
    for second in range(60):
        clock.now += 0.5
        pace.mark(100 * second)
    clock.now += 0.5
    assert pace.rate(6000) == (6000 - 4900) / 5.5


def test_what_stands_still_has_none(clock):
    pace = Pace(0, clock)
    for _ in range(11):
        clock.now += 0.5
        pace.mark(1000)
    assert pace.rate(1000) == 0


def test_more_marks_do_not_make_it_forget_sooner(clock):
    pace = Pace(0, clock)
    for count in range(100):
        clock.now += 0.01
        pace.mark(count)
    assert pace.rate(100) == pytest.approx(100)


@pytest.mark.parametrize("split", [None, "g"])
async def test_of_streams_runs_and_feeds(path, monkeypatch, split):
    """A consumer that reads and then stands still; the seconds are a fiftieth of what they are."""
    monkeypatch.setattr("tundish.hub.EVERY", 10 * MS)
    monkeypatch.setattr("tundish.pace.EVERY", 10 * MS)
    async with serve(arrays(2000, 10), socket=path) as server, AsyncClient(path) as client:

        def rates():
            counters = server.stats()
            (stream,), (run,), (feed,) = (counters[key] for key in ("streams", "runs", "feeds"))
            assert stream["rate"] == feed["rate"]
            return stream["rate"], run["rate"]

        stream = client.epoch(0, split=split)
        for _ in range(50):
            await anext(stream)
            await asyncio.sleep(5 * MS)
        assert min(rates()) > 20
        await asyncio.sleep(300 * MS)
        assert rates() == (0, 0)
        for _ in range(20):
            await anext(stream)
            await asyncio.sleep(5 * MS)
        assert min(rates()) > 20


async def test_of_a_run_that_is_over_and_kept(path, monkeypatch):
    monkeypatch.setattr("tundish.hub.EVERY", 10 * MS)
    monkeypatch.setattr("tundish.pace.EVERY", 10 * MS)
    async with serve(arrays(100, 10), socket=path, share_linger=60) as server:
        async with AsyncClient(path) as client:
            assert len([batch async for batch in client.epoch(0)]) == 10
        await asyncio.sleep(300 * MS)
        (run,) = server.stats()["runs"]
        assert (run["streams"], run["rate"]) == (0, 0)
