"""Going on after a break: of the trainer, of the server, on another number of ranks."""

import json
import signal
import time

import pytest

from helpers.serving import Service
from helpers.timing import MS, wait_for
from helpers.trainers import KINDS, epoch, flat, once, resume
from tundish import DataLoader
from tundish_client import Client, ConfigError, ConnectionLost, TundishError

SOURCE = """
    import os
    import numpy as np
    from tundish import ArrayDataset, DataLoader, sample_rng

    workers = int(os.environ["WORKERS"])

    class Ints:
        def __init__(self, n):
            self.n = n

        def __len__(self):
            return self.n

        def __getitem__(self, index):
            return index

    class Noisy(Ints):
        def __getitem__(self, index):
            return index, sample_rng().integers(2**40)

    class Stream:
        def __iter__(self):
            return iter(range(57))

    class Lying:
        def __init__(self, promised, given):
            self.promised, self.given = promised, given

        def __len__(self):
            return self.promised

        def __iter__(self):
            return iter(range(self.given))

    def feed(dataset, batch_size=10, **options):
        return DataLoader(dataset, batch_size=batch_size, num_workers=workers, **options)

    def train(n=100, **options):
        return feed(Ints(n), **{"shuffle": True, "seed": 7, **options})

    feeds = {
        "train": train(),
        "train, seed": train(seed=8),
        "train, samples": train(120),
        "train, order": train(order="torch"),
        "train, drop_last": train(drop_last=True),
        "train, batch_size": train(batch_size=20),
        "plain, seed=1": feed(Ints(100), seed=1),
        "plain, seed=2": feed(Ints(100), seed=2),
        "native": feed(ArrayDataset(x=np.arange(100)), shuffle=True, seed=7),
        "singles": feed(Ints(100), batch_size=1, prefetch=16),
        "drawn": feed(Ints(1000), shuffle=True),
        "noisy": feed(Noisy(40)),
        "ragged": feed(Ints(103), batch_size=12, shuffle=True, seed=7),
        "any": feed(Ints(100), in_order=False),
        "stream": feed(Stream()),
        "short": feed(Ints(100), sampler=Lying(50, 30)),
        "long": feed(Ints(100), sampler=Lying(30, 50)),
        "huge": feed(ArrayDataset(x=np.broadcast_to(np.int8(1), 2**30)), batch_size=64,
                     shuffle=True, seed=7),
    }
"""


def start(workers):
    return Service(SOURCE, "feeds", env={"WORKERS": str(workers)})


@pytest.fixture(scope="module", params=[0, 4])
def service(request):
    service = start(request.param)
    yield service
    service.cleanup()


@pytest.fixture
def own(workers):
    """A service for one test, which may kill it."""
    service = start(workers)
    yield service
    service.cleanup()


@pytest.fixture
def workers():
    """See `restarts`."""
    return 4


def again(service):
    """Kills the service without warning and starts it."""
    service.stop(signal.SIGKILL)
    service.restart()


#: For tests that kill the service: not every client with every number of workers.
restarts = pytest.mark.parametrize(
    ("connect", "workers"), [("sync", 0), ("asyncio", 4), ("uvloop", 4)], indirect=["connect"]
)


@pytest.fixture(params=KINDS)
def connect(request):
    """Opens clients of one kind."""
    clients = []
    kind = KINDS[request.param]

    def connect(service):
        clients.append(kind(service))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


class TestPositions:
    @restarts
    def test_b16_positions_count_what_was_handed_out(self, own, connect):
        client = connect(own)
        got, state = client.read(epoch(0, "singles", prefetch=16), 3)
        wait_for(lambda: Client(own.socket).stats()["streams"][0]["delivered"] >= 16, "prefetch")
        assert got == [[0], [1], [2]]
        assert (state["epoch"], state["batch"]) == (0, 3)
        assert client.stream.state_dict() == state
        again(own)
        rest, _ = once(connect, own, resume(state, prefetch=16))
        assert rest == [[i] for i in range(3, 100)]

    @restarts
    @pytest.mark.parametrize("feed", ["train", "native"])
    def test_twice_in_an_epoch_and_into_the_next(self, own, connect, feed):
        plan = [epoch(number, feed) for number in (4, 5)]
        whole, following = (once(connect, own, make)[0] for make in plan)
        first, state = once(connect, own, plan[0], 3)
        again(own)
        second, state = once(connect, own, resume(state), 4)
        assert (state["epoch"], state["batch"]) == (4, 7)
        again(own)
        third, state = once(connect, own, resume(state))
        assert first + second + third == whole
        assert state["batch"] == 10
        assert once(connect, own, resume(state)) == ([], state)
        assert once(connect, own, plan[1])[0] == following
        assert whole != following

    @pytest.mark.parametrize("taken", [0, 1, 5, 9, 10])
    def test_from_every_batch(self, service, connect, taken):
        whole, _ = once(connect, service, epoch(2, "train"))
        got, state = once(connect, service, epoch(2, "train"), taken)
        assert got + once(connect, service, resume(state))[0] == whole

    def test_a_state_of_an_epoch_in_process(self, service, connect):
        with_seed = {"shuffle": True, "seed": 7, "batch_size": 10}
        loader = DataLoader(range(100), **with_seed)
        mine = loader.epoch(3)
        first = [next(mine).tolist() for _ in range(4)]
        state = json.loads(json.dumps(mine.state_dict()))
        assert state["feed"] is None
        rest, ended = once(connect, service, resume(state, feed="train"))
        assert first + rest == [batch.tolist() for batch in loader.epoch(3)]
        assert ended["feed"] == "train"
        _, state = once(connect, service, epoch(3, "train"), 6)
        theirs = DataLoader(range(100), **with_seed)
        theirs.load_state_dict(state)
        assert [batch.tolist() for batch in theirs] == (first + rest)[6:]

    @restarts
    def test_sample_rng_goes_on_with_the_seed_of_the_position(self, own, connect):
        """A feed in order, without a seed: only random augmentation shows which one it drew."""
        whole, _ = once(connect, own, epoch(1, "noisy"))
        _, state = once(connect, own, epoch(1, "noisy"), 2)
        again(own)
        assert once(connect, own, epoch(1, "noisy"))[0] != whole
        assert once(connect, own, resume(state))[0] == whole[2:]

    def test_a_position_costs_the_same_at_any_batch(self, service, connect):
        client = connect(service)
        seconds, sizes = [], []
        for first in (0, 10**6, 2**24 - 2):
            _, state = client.read(epoch(0, "huge", start=first), 1)
            assert state["batch"] == first + 1
            sizes.append(len(json.dumps(state)))
            began = time.perf_counter()
            got, state = client.read(resume(state), 1)
            seconds.append(time.perf_counter() - began)
            assert got == [{"x": [1] * 64}]
            began = time.perf_counter()
            for _ in range(1000):
                client.stream.state_dict()
            assert time.perf_counter() - began < 1000 * MS
        assert max(sizes) - min(sizes) <= 7
        assert max(seconds[1:]) < 5 * seconds[0] + 50 * MS


class TestDrawnSeeds:
    @restarts
    def test_a_server_that_drew_its_seed_takes_the_position_s(self, own, connect):
        whole, _ = once(connect, own, epoch(1, "drawn"))
        got, state = once(connect, own, epoch(1, "drawn"), 33)
        again(own)
        other, _ = once(connect, own, epoch(1, "drawn"))
        assert other != whole
        assert sorted(flat(other)) == list(range(1000))
        rest, state = once(connect, own, resume(state))
        assert got + rest == whole
        following = resume(state | {"epoch": 2, "batch": 0})
        kept, next_state = once(connect, own, following)
        again(own)
        assert once(connect, own, resume(next_state | {"batch": 0}))[0] == kept

    @pytest.mark.parametrize("seed", [-1, 2**64, "7"])
    def test_a_seed_that_is_none_is_refused(self, service, connect, seed):
        _, state = once(connect, service, epoch(0, "drawn"), 1)
        state["fingerprint"]["seed"] = seed
        with pytest.raises(ConfigError, match="seed"):
            once(connect, service, resume(state))


@pytest.mark.parametrize(
    ("name", "before", "now"),
    [
        ("seed", "seed=7", "seed=8"),
        ("samples", "samples=100", "samples=120"),
        ("order", "'stable/1'", "'torch/1'"),
        ("drop_last", "False", "True"),
        ("batch_size", "batch_size=10", "batch_size=20"),
    ],
)
def test_what_would_be_another_batch_is_refused_with_both_values(
    service, connect, name, before, now
):
    _, state = once(connect, service, epoch(0, "train"), 3)
    with pytest.raises(ConfigError) as caught:
        once(connect, service, resume(state, feed=f"train, {name}"))
    for word in (name, before, now):
        assert word in str(caught.value)


def test_a_seed_that_was_given_is_not_replaced_where_it_only_feeds_sample_rng(service, connect):
    _, state = once(connect, service, epoch(0, "plain, seed=1"), 3)
    with pytest.raises(ConfigError, match=r"seed=1.*seed=2"):
        once(connect, service, resume(state, feed="plain, seed=2"))


class TestRanks:
    def read_ranks(self, connect, service, makes, most=None):
        return [once(connect, service, make, most) for make in makes]

    @pytest.mark.parametrize("uneven", ["pad", "drop", "keep"])
    @pytest.mark.parametrize("worlds", [(1, 2), (2, 1), (2, 4), (4, 3), (3, 12)])
    def test_another_number_of_ranks_goes_on_with_the_same_global_batches(
        self, service, connect, worlds, uneven
    ):
        before, after = worlds
        whole = once(connect, service, epoch(1, "ragged"))[0]
        asked = {"world_size": before, "batch_size": 12 // before, "uneven": uneven}
        first = self.read_ranks(
            connect, service, [epoch(1, "ragged", rank=r, **asked) for r in range(before)], 3
        )
        states = [state for _, state in first]
        rest = self.read_ranks(
            connect,
            service,
            [resume(states[0], rank=r, world_size=after) for r in range(after)],
        )
        for number in range(3):
            together = flat(got[number] for got, _ in first)
            assert sorted(together) == sorted(whole[number])
        for number in range(3, 8):  # the last, short one depends on the number of ranks
            together = flat(got[number - 3] for got, _ in rest)
            assert sorted(together) == sorted(whole[number])
        ended = rest[0][1]
        assert (ended["world_size"], ended["batch_size"]) == (after, 12 // after)
        # And once more: the override is a part of the state.
        assert once(connect, service, resume(ended)) == ([], ended)

    def test_at_its_end_an_epoch_is_over_on_any_number_of_ranks(self, service, connect):
        """103 samples: 12 ranks that drop have 8 batches, one rank has 9."""
        got, state = once(connect, service, epoch(0, "ragged"))
        assert len(got) == state["batch"] == 9
        for rank in range(12):
            rest = once(connect, service, resume(state, rank=rank, world_size=12, uneven="drop"))
            assert rest[0] == []
            assert rest[1]["batch"] == 8
        with pytest.raises(ConfigError, match="start=9.*8 batches"):
            once(connect, service, epoch(0, "ragged", start=9, rank=0, world_size=12,
                                         batch_size=1, uneven="drop"))  # fmt: skip

    def test_a_batch_size_of_its_own(self, service, connect):
        got, state = once(connect, service, epoch(0, "train", batch_size=25), 1)
        assert (len(got[0]), state["batch_size"]) == (25, 25)
        assert state["fingerprint"]["batch_size"] == 25
        rest, state = once(connect, service, resume(state))
        assert sorted(flat(got + rest)) == list(range(100))
        assert state["batch"] == 4


class TestEpochsOfUnknownLength:
    def test_an_iterable_dataset(self, service, connect):
        client = connect(service)
        got, state = client.read(epoch(0, "stream"))
        assert flat(got) == list(range(57))
        assert state["fingerprint"]["samples"] is None
        counts = dict(client.stream.counts)
        assert (counts["batches"], counts["samples"], counts["errors"]) == (6, 57, 0)
        with pytest.raises(TypeError, match="length"):
            len(client.stream)
        for taken in (0, 2, 6):
            head, state = once(connect, service, epoch(0, "stream"), taken)
            assert head + once(connect, service, resume(state))[0] == got

    def test_with_one_credit(self, service, connect):
        got, _ = once(connect, service, epoch(0, "stream", prefetch=1))
        assert flat(got) == list(range(57))

    def test_behind_the_end_is_an_error(self, service, connect):
        with pytest.raises(ValueError, match="7.*6 batches"):
            once(connect, service, epoch(0, "stream", start=7))

    @pytest.mark.parametrize(("feed", "given"), [("short", 30), ("long", 30)])
    def test_a_sampler_that_lies_is_an_error_behind_its_batches(
        self, service, connect, feed, given
    ):
        client = connect(service)
        got, _ = client.read(epoch(0, feed), given // 10)
        assert flat(got) == list(range(given))
        with pytest.raises(ValueError, match=r"len\(\)"):
            client.read(lambda _: client.stream, 1)
        assert client.read(lambda _: client.stream, 1)[0] == []
        assert client.stream.counts["errors"] == 1
        assert client.stream.counts["batches"] == given // 10 + 1

    def test_the_service_says_what_it_does_not_know(self, service):
        with Client(service.socket) as client:
            info = client.info("stream")
            assert (info["samples"], info["batches"]) == (None, None)
            stream = client.epoch(0, feed="stream", prefetch=1)
            next(stream)
            (entry,) = client.stats()["streams"]
            assert (entry["total"], entry["feed"]) == (None, "stream")
            assert entry["delivered"] >= 1
            stream.close()


def test_out_of_order_there_is_no_position(service, connect):
    client = connect(service)
    client.read(epoch(0, "any"), 0)
    stream = client.stream
    with pytest.raises(TundishError, match="in_order=False"):
        client.read(lambda _: stream)
    with pytest.raises(ConfigError, match=r"start=1.*in_order"):
        once(connect, service, epoch(0, "any", start=1))


@restarts
def test_a_lost_stream_goes_on_at_its_position(own, connect):
    whole, _ = once(connect, own, epoch(0, "train"))
    client = connect(own)
    first, _ = client.read(epoch(0, "train", prefetch=1), 2)
    own.stop(signal.SIGTERM)
    stream = client.stream
    with pytest.raises(ConnectionLost) as caught:
        while len(first) < 10:
            first += client.read(lambda _: stream, 1)[0]
    assert caught.value.position == stream.position == (0, len(first))
    own.restart()
    assert first + once(connect, own, resume(stream.state_dict()))[0] == whole
