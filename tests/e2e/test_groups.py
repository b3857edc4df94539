"""Streams that begin together, that are waited for, and that share an epoch out."""

import threading
import time

import numpy as np
import pytest

from helpers.digests import digest, digests
from helpers.serving import Service
from helpers.sharing import with_datasets
from helpers.timing import MS, wait_for
from tundish_client import Client, ConfigError

SOURCE = """
    options = {"batch_size": 4, "shuffle": True, "seed": 7}
    feeds = {
        "shared": DataLoader(Counted(), num_workers=2, **options),
        "wide": DataLoader(Counted(400, 4096, 0.001), num_workers=2, **options),
        "slow": DataLoader(Counted(200, 8, 0.001), 1, num_workers=1, seed=7),
    }
    feeds["told"] = told(feeds)
"""
WINDOW = 256 * 1024
WIDE_HELD = WINDOW // (20 * 1024)
"""Batches of "wide" that the window has room for."""

JOIN_TIMEOUT = 400 * MS


@pytest.fixture(scope="module")
def service():
    env = {"TUNDISH_SHARE_WINDOW": str(WINDOW), "TUNDISH_JOIN_TIMEOUT": str(JOIN_TIMEOUT)}
    started = Service(with_datasets(SOURCE), "feeds", env=env)
    yield started
    started.cleanup()


def test_a_group_begins_when_all_have_joined(service, watch, young, ours, number):
    before = watch.loads("shared")
    expected = digests(ours["shared"].epoch(number))
    job = {"feed": "shared", "group": "g", "group_size": 4}
    first = [young.start(service.socket, number, asynchronous=k == 1, **job) for k in range(3)]
    wait_for(lambda: watch.stats()["connections"] == 4, "three members")
    time.sleep(50 * MS)
    assert [member.batches for member in first] == [[], [], []]
    assert watch.stats()["runs"] == []
    last = young.start(service.socket, number, **job)
    for member in (*first, last):
        assert member.done().digests == expected
        assert member.batches == list(range(50))
    assert (watch.loads("shared") - before == 1).all()


def test_a_group_that_stays_incomplete_ends_with_who_has_joined(service, watch, number):
    job = {"feed": "shared", "group": "g", "group_size": 3}
    with Client(service.socket) as one, Client(service.socket) as two:
        streams = [one.epoch(number, **job), two.epoch(number, **job)]
        begun = time.monotonic()
        for stream in streams:
            with pytest.raises(TimeoutError) as caught:
                next(stream)
            for word in ("group 'g'", "2 of group_size=3", "join_timeout", f"epoch {number}"):
                assert word in str(caught.value)
        assert time.monotonic() - begun >= 0.9 * JOIN_TIMEOUT
        assert next(iter(one.epoch(number, feed="shared"))), "the client is well"


def test_a_lost_member_is_replaced_before_the_group_begins(service, watch, young, ours, number):
    expected = digests(ours["shared"].epoch(number))
    job = {"feed": "shared", "group": "g", "group_size": 2}
    lost = young.start(service.socket, number, **job)
    wait_for(lambda: watch.stats()["connections"] == 2, "the first member")
    time.sleep(20 * MS)
    lost.kill()
    wait_for(lambda: watch.stats()["connections"] == 1, "the loss")
    members = [young.start(service.socket, number, **job)]
    time.sleep(20 * MS)
    assert members[0].batches == []
    members.append(young.start(service.socket, number, **job))
    for member in members:
        assert member.done().digests == expected


def test_members_agree_on_the_size(service, watch, number):
    with Client(service.socket) as one, Client(service.socket) as two:
        waiting = one.epoch(number, feed="shared", group="g", group_size=2)
        one.ping()
        with pytest.raises(ConfigError, match="group_size=3.*group_size=2"):
            next(two.epoch(number, feed="shared", group="g", group_size=3))
        other = two.epoch(number, feed="shared", group="g", group_size=2)
        assert digest(next(waiting)) == digest(next(other))
        waiting.close()
        other.close()


def test_who_comes_later_joins_a_group_that_has_begun(service, watch, ours, number):
    job = {"feed": "shared", "group": "g", "group_size": 2}
    with Client(service.socket) as client:
        streams = [client.epoch(number, **job) for _ in range(2)]
        for stream in streams:
            next(stream)
        (run,) = watch.stats()["runs"]
        assert (run["group"], run["streams"]) == ("g", 2)
        late = client.epoch(number, **job)
        assert digests(late) == digests(ours["shared"].epoch(number))
        for stream in streams:
            stream.close()


def test_groups_and_streams_without_one_have_runs_of_their_own(service, watch, number):
    with Client(service.socket) as client:
        asked = ({"group": "g"}, {"group": "h"}, {}, {"group": "g"})
        streams = [client.epoch(number, feed="shared", **job) for job in asked]
        for stream in streams:
            next(stream)
        runs = {run["group"]: run["streams"] for run in watch.stats()["runs"]}
        assert runs == {"g": 2, "h": 1, None: 1}
        for stream in streams:
            stream.close()


def test_who_is_waited_for_holds_the_group_up_and_nothing_is_made_twice(
    service, watch, young, ours, number
):
    before = watch.loads("wide")
    expected = digests(ours["wide"].epoch(number))
    job = {"feed": "wide", "group": "g", "group_size": 3, "prefetch": 2}
    stopped = young.start(service.socket, number, on_lag="wait", **job)
    others = [young.start(service.socket, number, **job) for _ in range(2)]
    stopped.until(3).stop()

    def waiting():
        return [run["waiting_for"] for run in watch.stats()["runs"] if run["waiting_for"]]

    wait_for(waiting, "a group that waits")
    ((name,),) = waiting()
    assert str(stopped.pid) in name
    time.sleep(50 * MS)
    had = [len(other.batches) for other in others]
    time.sleep(100 * MS)
    assert [len(other.batches) for other in others] == had
    seen = len(stopped.batches)
    assert all(seen < n <= seen + WIDE_HELD + 5 for n in had), (seen, had)
    stopped.go_on()
    for member in (stopped, *others):
        assert member.done().digests == expected
    assert (watch.loads("wide") - before == 1).all()


def test_a_group_goes_on_without_the_killed_member_it_waited_for(
    service, watch, young, ours, number
):
    job = {"feed": "wide", "group": "g", "group_size": 2, "on_lag": "wait"}
    stopped, other = [young.start(service.socket, number, **job) for _ in range(2)]
    stopped.until(3).stop()
    wait_for(lambda: any(run["waiting_for"] for run in watch.stats()["runs"]), "a group that waits")
    stopped.kill()
    assert other.done().digests == digests(ours["wide"].epoch(number))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_split_epoch_is_shared_out(service, watch, young, ours, number, asynchronous):
    before = watch.loads("wide")
    expected = digests(ours["wide"].epoch(number))
    job = {"feed": "wide", "split": "s", "pause": 0.01}
    members = [
        young.start(service.socket, number, asynchronous=asynchronous, **job) for _ in range(3)
    ]
    parts = [member.done().digests for member in members]
    assert sum(map(len, parts)) == 100
    assert parts[0] | parts[1] | parts[2] == expected
    assert all(len(part) >= 5 for part in parts), "nobody is left out"
    assert [member.counts["redelivered"] for member in members] == [0, 0, 0]
    assert [member.counts["batches"] for member in members] == [len(part) for part in parts]
    assert (watch.loads("wide") - before == 1).all()


def test_b17_of_a_split_epoch_the_other_gets_all_that_the_sleeper_does_not_hold(
    service, watch, ours, number
):
    expected = digests(ours["slow"].epoch(number))
    asleep, woken = threading.Event(), threading.Event()
    had, got = {}, {}

    def sleep():
        with Client(service.socket) as client:
            stream = client.epoch(number, feed="slow", split="s")
            for value in stream:
                had[stream.info.batch] = digest(value)
                asleep.set()
                woken.wait(15)

    thread = threading.Thread(target=sleep)
    thread.start()
    asleep.wait(10)
    with Client(service.socket) as client:
        stream = client.epoch(number, feed="slow", split="s")
        begun = time.monotonic()
        for value in stream:
            got[stream.info.batch] = digest(value)
            seconds = time.monotonic() - begun
            if len(got) >= 200 - 3:
                # The sleeper has one batch and two more that were sent ahead.
                woken.set()
    thread.join()
    assert len(had) <= 3
    assert seconds < 5000 * MS
    assert not had.keys() & got.keys()
    assert had | got == expected


def test_what_a_killed_member_holds_goes_to_the_others(service, watch, young, ours, number):
    expected = digests(ours["wide"].epoch(number))
    job = {"feed": "wide", "split": "s", "pause": 0.01}
    killed, *others = [young.start(service.socket, number, **job) for _ in range(3)]
    killed.until(4).kill()
    parts = [other.done().digests for other in others]
    assert not parts[0].keys() & parts[1].keys()
    lost = {**parts[0], **parts[1]}
    assert lost | killed.digests == expected
    again = lost.keys() & killed.digests.keys()
    # What it had acknowledged is nobody else's, at most the last it had comes again.
    assert len(again) <= 1
    redelivered = sum(other.counts["redelivered"] for other in others)
    assert len(again) <= redelivered <= 3


def test_ranks_of_a_group(service, watch, number):
    """Each rank is a shard of its own: it takes all of them to begin none of them late."""
    with Client(service.socket) as client:
        parts = []
        for rank in range(2):
            stream = client.epoch(
                number, feed="shared", rank=rank, world_size=2, group="g", group_size=1
            )
            parts.append(np.concatenate([batch["i"] for batch in stream]))
    assert sorted(np.concatenate(parts)) == list(range(200))
