"""Several consumers of one epoch: prepared once, complete for each, whatever the others do."""

import itertools
import threading
import time

import pytest

from helpers.digests import digest, digests
from helpers.raw import Raw, epoch
from helpers.serving import Service
from helpers.sharing import with_datasets
from helpers.timing import MS, wait_for
from tundish_client import Client

SOURCE = """
    options = {"batch_size": 4, "shuffle": True, "seed": 7}
    feeds = {
        "shared": DataLoader(Counted(), num_workers=2, **options),
        "any": DataLoader(Counted(), num_workers=4, in_order=False, **options),
        "stream": DataLoader(Streamed(seconds=0.001), 4, num_workers=2),
        # 16 KiB a batch, which takes 20.
        "wide": DataLoader(Counted(400, 4096, 0.001), num_workers=2, **options),
        "wide-any": DataLoader(
            Counted(400, 4096, 0.001), num_workers=4, in_order=False, **options
        ),
        "wide-stream": DataLoader(Streamed(400, 4096, 0.001), 4, num_workers=2),
        "slow": DataLoader(Counted(200, 8, 0.001), num_workers=1, seed=7),
    }
    feeds["told"] = told(feeds)
"""
WINDOW = 1024 * 1024
WIDE_HELD = WINDOW // (20 * 1024)
"""Batches of "wide" that the window has room for."""


@pytest.fixture(scope="module")
def service():
    started = Service(with_datasets(SOURCE), "feeds", env={"TUNDISH_SHARE_WINDOW": str(WINDOW)})
    yield started
    started.cleanup()


def read_in_turn(streams):
    """The digests of all batches of each stream, read one batch of each at a time."""
    found = [{} for _ in streams]
    for values in zip(*streams, strict=True):
        for stream, value, got in zip(streams, values, found, strict=True):
            assert stream.info.batch not in got
            got[stream.info.batch] = digest(value)
    return found


def read_on(stream):
    """The digests of the batches that a stream still has."""
    return {stream.info.batch: digest(value) for value in stream}


def test_all_get_every_batch_in_order_of_one_preparation(service, watch, ours, number):
    before = watch.loads("shared")
    expected = digests(ours["shared"].epoch(number))
    with Client(service.socket) as one, Client(service.socket) as two:
        clients = (one, one, two, Client(service.socket, shared_memory=False))
        streams = [client.epoch(number, feed="shared") for client in clients]
        assert [len(stream) for stream in streams] == [50] * 4
        (run,) = watch.stats()["runs"]
        assert (run["streams"], run["feed"], run["epoch"]) == (4, "shared", number)
        for found in read_in_turn(streams):
            assert found == expected
            assert list(found) == list(range(50)), "in order"
        for stream in streams:
            assert (stream.counts["batches"], stream.counts["samples"]) == (50, 200)
        clients[-1].close()
    assert (watch.loads("shared") - before == 1).all()


def test_they_look_at_the_same_slots(service, watch, number):
    with (
        Raw(service.socket, shared_memory=True) as one,
        Raw(service.socket, shared_memory=True) as two,
    ):
        for raw in (one, two):
            raw.sock.sendall(epoch(1, feed="shared", epoch=number))
            raw.receive("START")
        for _ in range(4):
            mine, theirs = one.receive("BATCH"), two.receive("BATCH")
            place = [mine.header[key] for key in ("segment", "slot", "generation", "offset")]
            assert place == [
                theirs.header[key] for key in ("segment", "slot", "generation", "offset")
            ]
            assert digest(one.value(mine)) == digest(two.value(theirs))
        stats = watch.stats()
        assert stats["slots"]["leased"] == 8
        # Four that both hold; no more than the run's window beyond.
        assert stats["slots"]["lent"] <= 4 + 2 + 2 + 1


def test_who_comes_late_but_within_the_window_joins(service, watch, ours, number):
    before = watch.loads("wide")
    expected = digests(ours["wide"].epoch(number))
    with Client(service.socket) as client:
        first = client.epoch(number, feed="wide")
        got = {first.info.batch: digest(value) for value in itertools.islice(first, 8)}
        late = client.epoch(number, feed="wide")
        assert len(late) == 100
        (run,) = watch.stats()["runs"]
        assert (run["streams"], run["start"]) == (2, 0)
        later = client.epoch(number, feed="wide", start=5)
        assert digest(next(later)) == expected[5]
        assert len(watch.stats()["runs"]) == 1
        later.close()
        mine, theirs = {}, {}
        threads = [
            threading.Thread(target=lambda: mine.update(read_on(first))),
            threading.Thread(target=lambda: theirs.update(read_on(late))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got | mine == theirs == expected
    assert (watch.loads("wide") - before == 1).all()


def test_who_comes_too_late_has_a_run_of_its_own_until_it_catches_up(service, watch, ours, number):
    before = watch.loads("wide")
    expected = digests(ours["wide"].epoch(number))
    with Client(service.socket) as client:
        first = client.epoch(number, feed="wide")
        got = {first.info.batch: digest(value) for value in itertools.islice(first, 80)}
        late = client.epoch(number, feed="wide")
        theirs = {late.info.batch: digest(value) for value in itertools.islice(late, 1)}
        runs = watch.stats()["runs"]
        assert sorted(run["streams"] for run in runs) == [1, 1]
        while len(watch.stats()["runs"]) > 1:
            value = next(late)
            theirs[late.info.batch] = digest(value)
        met = len(theirs)
        (run,) = watch.stats()["runs"]
        assert (run["streams"], run["start"]) == (2, 0)
        while len(theirs) < len(got):
            value = next(late)
            theirs[late.info.batch] = digest(value)
        for mine, other in zip(first, late, strict=True):
            got[first.info.batch] = digest(mine)
            theirs[late.info.batch] = digest(other)
    assert got == theirs == expected
    # It met the first somewhere within what that holds.
    assert 80 - WIDE_HELD - 4 <= met <= 80 + 4
    loads = (watch.loads("wide") - before).reshape(-1)
    order = [i for batch in ours["wide"].epoch(number) for i in batch["i"].tolist()]
    by_batch = loads[order].reshape(100, 4)
    assert (by_batch >= 1).all()
    assert (by_batch[: met - 8] == 2).all(), "made once for each of the two"
    assert (by_batch[met + 8 :] == 1).all(), "and once for both"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stopped_consumer_holds_nobody_up_and_gets_the_rest(
    service, watch, young, ours, number, asynchronous
):
    before, held = watch.loads("wide"), watch.held()
    expected = digests(ours["wide"].epoch(number))
    job = {"feed": "wide", "asynchronous": asynchronous}
    stopped, *others = [young.start(service.socket, number, **job) for _ in range(3)]
    stopped.until(5).stop()
    since = time.monotonic()
    for other in others:
        assert other.done().digests == expected
        assert other.longest_stall(since) <= 200 * MS
    seen = stopped.batches
    assert len(seen) < 80
    stats = watch.stats()
    (stream,) = stats["streams"]
    assert stream["detached"] >= 1
    assert sum(run["bytes"] for run in stats["runs"]) <= WINDOW
    stopped.go_on()
    assert stopped.done().digests == expected
    assert stopped.batches == list(range(100)), "in order"
    assert (stopped.counts["batches"], stopped.counts["samples"]) == (100, 400)
    # Twice, at most, is what it could not get with the others.
    loads = watch.loads("wide") - before
    assert loads.min() == 1
    assert loads.max() <= 2
    assert loads.sum() <= 2 * 400 - 4 * len(seen)
    watch.wait_until_idle()
    wait_for(lambda: watch.held() <= held, "descriptors and threads of before")


def test_a_slow_consumer_gets_the_same_bytes_behind_the_others(service, watch, young, ours, number):
    expected = digests(ours["wide"].epoch(number))
    pauses = {str(k): 400 * MS for k in (3, 60)}
    slow = young.start(service.socket, number, feed="wide", pauses=pauses)
    fast = young.start(service.socket, number, feed="wide")
    assert fast.done().digests == expected
    assert fast.longest_stall() <= 200 * MS
    assert slow.done().digests == expected


def test_consumers_killed_at_any_moment_disturb_nobody(service, watch, young, ours, number):
    expected = digests(ours["wide"].epoch(number))
    held = watch.held()
    steady = young.start(service.socket, number, feed="wide", pause=0.01)
    for k in range(12):
        other = young.start(service.socket, number, feed="wide", asynchronous=k % 2 == 1)
        time.sleep(k * 0.004)
        other.kill()
        assert set(other.digests.items()) <= set(expected.items())
    assert steady.done().digests == expected
    assert steady.longest_stall() <= 0.01 + 200 * MS
    watch.wait_until_idle()
    wait_for(lambda: watch.held() <= held, "descriptors and threads of before")
    wait_for(
        lambda: len(watch.stats()["streams"]) == watch.stats()["connections"] - 1 == 0,
        "the end of lost connections",
    )


def test_the_last_one_left_goes_on_when_the_others_are_killed(service, watch, young, ours, number):
    consumers = [young.start(service.socket, number, feed="wide", pause=0.002) for _ in range(4)]
    for consumer in consumers[1:]:
        consumer.until(3).kill()
    assert consumers[0].done().digests == digests(ours["wide"].epoch(number))


def test_batches_as_they_are_ready_come_once_to_each(service, watch, ours, number):
    before = watch.loads("any")
    expected = digests(ours["shared"].epoch(number))
    with Client(service.socket) as client:
        streams = [client.epoch(number, feed="any") for _ in range(3)]
        assert [len(stream) for stream in streams] == [50] * 3
        assert len(watch.stats()["runs"]) == 1
        for found in read_in_turn(streams):
            assert found == expected
    assert (watch.loads("any") - before == 1).all()


def test_batches_as_they_are_ready_come_once_to_who_lags_or_is_late(
    service, watch, young, ours, number
):
    before = watch.loads("wide-any")
    expected = digests(ours["wide"].epoch(number))
    pauses = {str(k): 200 * MS for k in (1, 40)}
    slow = young.start(service.socket, number, feed="wide-any", pauses=pauses)
    steady = young.start(service.socket, number, feed="wide-any", pause=0.002)
    late = young.start(service.socket, number, feed="wide-any") if steady.until(60) else None
    for consumer in (slow, steady, late):
        assert consumer.done().digests == expected
    loads = watch.loads("wide-any") - before
    assert loads.min() >= 1
    assert loads.max() <= 3, "once for each of the three"


def test_a_stream_is_read_once_and_waits_for_the_slowest(service, watch, young, ours, number):
    before = watch.loads("stream")
    expected = digests(ours["stream"].epoch(number))
    stopped, other = [young.start(service.socket, number, feed="stream") for _ in range(2)]
    stopped.until(2).stop()
    assert other.done().digests == expected, "all of it has room in the window"
    stopped.go_on()
    assert stopped.done().digests == expected
    assert (watch.loads("stream") - before <= 1).all()


def test_a_stream_beyond_its_window_waits_and_says_for_whom(service, watch, young, ours, number):
    before = watch.loads("wide-stream")
    expected = digests(ours["wide-stream"].epoch(number))
    stopped, other = [young.start(service.socket, number, feed="wide-stream") for _ in range(2)]
    stopped.until(1).stop()

    def waiting():
        return [run["waiting_for"] for run in watch.stats()["runs"] if run["waiting_for"]]

    wait_for(waiting, "a run that waits")
    ((name,),) = waiting()
    assert str(stopped.pid) in name
    had = len(other.batches)
    time.sleep(100 * MS)
    assert len(other.batches) == had < len(expected)
    wait_for(
        lambda: f"the group waits for {name}" in service.output, "a line of the log", 8000 * MS
    )
    stopped.go_on()
    assert stopped.done().digests == other.done().digests == expected
    assert (watch.loads("wide-stream") - before <= 1).all()


def test_a_stream_waits_no_longer_for_who_is_killed(service, watch, young, ours, number):
    expected = digests(ours["wide-stream"].epoch(number))
    stopped, other = [young.start(service.socket, number, feed="wide-stream") for _ in range(2)]
    stopped.until(1).stop()
    wait_for(lambda: any(run["waiting_for"] for run in watch.stats()["runs"]), "a run that waits")
    stopped.kill()
    assert other.done().digests == expected


@pytest.mark.parametrize("feed", ["wide-stream", "wide-any"])
def test_what_is_not_the_same_each_time_is_never_mixed(service, watch, ours, number, feed):
    """Who comes too late has a run of its own to the end, also where the positions meet."""
    before = watch.loads(feed)
    expected = digests(ours["wide-stream" if feed == "wide-stream" else "wide"].epoch(number))
    with Client(service.socket) as client:
        first = client.epoch(number, feed=feed)
        got = {first.info.batch: digest(value) for value in itertools.islice(first, 80)}
        late = client.epoch(number, feed=feed)
        theirs = {late.info.batch: digest(value) for value in itertools.islice(late, 90)}
        assert [run["streams"] for run in watch.stats()["runs"]] == [1, 1]
        theirs |= read_on(late)
        got |= read_on(first)
    assert got == theirs == expected
    assert (watch.loads(feed) - before == 2).all()


def test_b17_who_takes_one_batch_and_sleeps_does_not_hold_the_other_up(
    service, watch, ours, number
):
    """200 samples of 1 ms, one by one."""
    expected = [digest(batch) for batch in ours["slow"].epoch(number, batch_size=1)]

    def read(stream):
        begun = time.monotonic()
        return [digest(value) for value in stream], time.monotonic() - begun

    with Client(service.socket) as a, Client(service.socket) as b:
        _, alone = read(b.epoch(number, feed="slow", batch_size=1))
        sleeping = a.epoch(number, feed="slow", batch_size=1)
        first = digest(next(sleeping))
        got, seconds = read(b.epoch(number, feed="slow", batch_size=1))
        assert got == expected
        assert seconds <= 2 * alone + 100 * MS
        assert [first] + [digest(value) for value in sleeping] == expected
