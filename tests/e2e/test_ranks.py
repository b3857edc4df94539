"""Shards of an epoch through a service: who gets which samples, and what is announced."""

import itertools
import json
import signal
from pathlib import Path

import numpy as np
import pytest

from helpers.serving import Service
from tundish import DataLoader
from tundish_client import Client, ConfigError, ConnectionLost

VECTORS = json.loads((Path(__file__).parents[1] / "core" / "sampler_vectors.json").read_text())
N = 103
SOURCE = f"""
    from tundish import DataLoader

    feeds = {{
        "stable": DataLoader(range({N}), 12, shuffle=True, seed=7, num_workers=2),
        "whole": DataLoader(range({N}), 12, shuffle=True, seed=7, drop_last=True),
        "plain": DataLoader(range({N}), 12),
    }}
    for n in (1, 3, 5, 10, 16, 100):
        feeds[f"torch {{n}}"] = DataLoader(
            range(n), 4, shuffle=True, seed=5, order="torch", num_workers=2
        )
"""


@pytest.fixture(scope="module")
def service():
    service = Service(SOURCE, "feeds")
    yield service
    service.cleanup()


@pytest.fixture
def client(service):
    with Client(service.socket) as client:
        yield client


def share(client, epoch, feed, rank, world, uneven="pad", **options):
    """The batches of one rank, the counts it was told first, and those at its end."""
    asked = {"rank": rank, "world_size": world, "uneven": uneven, **options}
    stream = client.epoch(epoch, feed=feed, **asked)
    length = len(stream)
    announced = dict(stream.counts)
    batches = [batch.tolist() for batch in stream]
    assert len(batches) == length
    return batches, announced, dict(stream.counts)


def flat(lists):
    return [index for indices in lists for index in indices]


@pytest.mark.parametrize("uneven", ["pad", "drop", "keep"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_all_ranks_together_have_the_epoch(client, world, uneven):
    order = flat(share(client, 3, "stable", 0, 1)[0])
    assert sorted(order) == list(range(N))
    shares = [share(client, 3, "stable", rank, world, uneven) for rank in range(world)]
    more = -N % world
    positions = {"pad": order + order[:more], "drop": order[: N - N % world], "keep": order}[uneven]
    for rank, (batches, announced, counts) in enumerate(shares):
        own = positions[rank::world]
        assert batches == [own[at : at + 12] for at in range(0, len(own), 12)]
        padded = int(uneven == "pad" and N % world != 0 and rank >= N % world)
        # Under "keep" it would have had this sample.
        dropped = int(uneven == "drop" and rank < N % world)
        expected = {"batches": len(batches), "samples": len(own)}
        assert counts == announced == {
            **expected, "padded": padded, "dropped": dropped,
            "skipped": 0, "redelivered": 0, "errors": 0,
        }  # fmt: skip
    total = sum(c["samples"] - c["padded"] + c["dropped"] for _, _, c in shares)
    assert total == N


@pytest.mark.parametrize("world", [1, 2, 4])
def test_what_drop_last_leaves_out_is_counted(client, world):
    for rank in range(world):
        batches, announced, counts = share(client, 0, "whole", rank, world, "keep")
        own = len(range(rank, N, world))
        assert [len(batch) for batch in batches] == [12] * (own // 12)
        assert counts["dropped"] == announced["dropped"] == own % 12


def test_full_global_batches_are_the_same_samples_on_any_number_of_ranks(client):
    whole = [sorted(batch) for batch in share(client, 5, "stable", 0, 1)[0]]
    for world in (2, 3, 4, 6, 12):
        for uneven in ("pad", "drop", "keep"):
            shares = [
                share(client, 5, "stable", rank, world, uneven, batch_size=12 // world)[0]
                for rank in range(world)
            ]
            for number in range(N // 12):
                assert sorted(flat(batches[number] for batches in shares)) == whole[number]


@pytest.mark.parametrize(
    "row",
    [row for row in VECTORS["distributed"] if row["shuffle"]],
    ids=lambda row: f"{row['n']}-{row['world']}-{row['drop_last']}",
)
def test_torchs_order_gives_each_rank_a_distributed_samplers_share(client, row):
    assert row["seed"] == 5
    uneven = "drop" if row["drop_last"] else "pad"
    for rank, passes in enumerate(row["ranks"]):
        for epoch, expected in zip(VECTORS["distributed_epochs"], passes, strict=True):
            feed = f"torch {row['n']}"
            got = share(client, epoch, feed, rank, row["world"], uneven)[0]
            assert flat(got) == expected


def test_torchs_order_goes_on_from_several_ranks_to_several_only(client):
    streams = [client.epoch(0, feed="torch 100", rank=r, world_size=2) for r in range(2)]
    seen = flat(next(stream).tolist() for stream in streams)
    state = streams[0].state_dict()
    assert state["fingerprint"]["order"] == "torch:distributed/1"
    rest = [client.resume(state, rank=rank, world_size=4) for rank in range(4)]
    assert sorted(seen + [i for stream in rest for i in np.concatenate(list(stream))]) == list(
        range(100)
    )
    with pytest.raises(ConfigError, match="torch:distributed/1.*torch/1"):
        next(client.resume(state, rank=0, world_size=1))


def test_one_shard_is_prepared_once_and_another_is_another_run(client):
    ask = {"feed": "stable", "world_size": 2}
    same = [client.epoch(8, rank=1, **ask) for _ in range(2)]
    other = client.epoch(8, rank=0, **ask)
    for stream in (*same, other):
        next(stream)
    runs = {run["rank"]: run["streams"] for run in client.stats()["runs"]}
    assert runs == {0: 1, 1: 2}
    first, second = ([batch.tolist() for batch in stream] for stream in same)
    assert first == second == share(client, 8, "stable", 1, 2)[0][1:]


def test_more_ranks_than_samples(client):
    assert share(client, 0, "torch 1", 2, 4, "pad")[0] == [[0]]
    for uneven in ("drop", "keep"):
        batches, announced, counts = share(client, 0, "torch 1", 2, 4, uneven)
        assert batches == []
        assert counts == announced
        assert (counts["batches"], counts["samples"], counts["padded"]) == (0, 0, 0)


def test_a_rank_must_be_given_as_in_process(client):
    words = "rank must be given with world_size=4: which of the shares is it"
    with pytest.raises(ConfigError, match=words):
        client.epoch(0, feed="stable", world_size=4)
    with pytest.raises(ConfigError, match=words):
        DataLoader(range(N), 12).epoch(0, world_size=4)
    whole = share(client, 0, "stable", 0, 1)[0]
    assert [batch.tolist() for batch in client.epoch(0, feed="stable", world_size=1)] == whole


@pytest.mark.parametrize("uneven", ["pad", "drop", "keep"])
def test_all_ranks_together_have_the_epoch_of_a_service_that_is_killed(uneven):
    service = Service(SOURCE, "feeds")
    try:
        with Client(service.socket) as client:
            whole = [share(client, 2, "stable", rank, 3, uneven, batch_size=4) for rank in range(3)]
        asked = {"feed": "stable", "world_size": 3, "uneven": uneven, "batch_size": 4}
        clients = [Client(service.socket, reconnect_timeout=20) for _ in range(3)]
        streams = [one.epoch(2, rank=rank, **asked) for rank, one in enumerate(clients)]
        got = [[] for _ in streams]
        for life, count in enumerate((3, 2, 100)):
            for stream, batches in zip(streams, got, strict=True):
                batches += [batch.tolist() for batch in itertools.islice(stream, count)]
                if life < 2:
                    assert stream.position == (2, len(batches))
            if life < 2:
                service.stop(signal.SIGKILL)
                service.restart()
        assert got == [batches for batches, _, _ in whole]
        for rank, stream in enumerate(streams):
            assert dict(stream.counts) == whole[rank][2]
            state = stream.state_dict()
            assert (state["rank"], state["world_size"], state["uneven"]) == (rank, 3, uneven)
            assert state["batch"] == len(got[rank])
        for one in clients:
            one.close()
    finally:
        service.cleanup()


def test_the_loss_of_a_shard_says_how_to_go_on_with_it():
    service = Service(SOURCE, "feeds")
    try:
        with Client(service.socket) as client:
            expected = share(client, 0, "stable", 1, 2)[0]
            stream = client.epoch(0, feed="stable", rank=1, world_size=2, prefetch=1)
            got = [next(stream).tolist()]
            service.stop(signal.SIGKILL)
            with pytest.raises(ConnectionLost) as caught:
                for batch in stream:
                    got.append(batch.tolist())
        again = f"epoch(0, feed='stable', rank=1, world_size=2, start={len(got)})"
        assert again in str(caught.value)
        assert caught.value.position == (0, len(got))
        service.restart()
        with Client(service.socket) as client:
            resumed = client.resume(stream.state_dict())
            assert got + [batch.tolist() for batch in resumed] == expected
            rest = eval(f"client.{again}", {"client": client})
            assert got + [batch.tolist() for batch in rest] == expected
    finally:
        service.cleanup()
