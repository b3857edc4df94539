"""What goes wrong in loaders, through the service: both clients, one worker and four."""

import asyncio
import itertools

import numpy as np
import pytest

from helpers.serving import Service
from helpers.timing import MS, wait_for
from tundish_client import AsyncClient, Client

SOURCE = """
    import time
    from tundish import DataLoader

    class Ints:
        def __init__(self, n, fail=None, slow=None):
            self.n, self.fail, self.slow = n, fail or {}, slow or {}

        def __len__(self):
            return self.n

        def __getitem__(self, index):
            assert type(index) is int
            if index in self.fail:
                raise self.fail[index]
            time.sleep(self.slow.get(index, 0))
            return index

    class Batched(Ints):
        def __init__(self, answer):
            super().__init__(6)
            self.answer = answer

        def __getitems__(self, indices):
            return self.answer(indices)

    class Stops(Ints):
        def __getitem__(self, index):
            if index == 3:
                raise (StopIteration, SystemExit, KeyboardInterrupt)[self.kind](3)
            return index

    def stops(kind):
        dataset = Stops(8)
        dataset.kind = kind
        return dataset

    feeds = {}
    for workers in (1, 4):
        def feed(name, dataset, **options):
            feeds[f"{name}-{workers}"] = DataLoader(dataset, num_workers=workers, **options)

        feed("flaky", Ints(6, fail={3: OSError("bad 3")}), batch_size=2)
        feed("flaky-any", Ints(6, fail={3: OSError("bad 3")}), batch_size=2, in_order=False)
        for name, answer in {
            "fewer": lambda indices: indices[1:],
            "more": lambda indices: [*indices, 0],
            "none": lambda indices: None,
            "tuple": tuple,
            "iterator": iter,
        }.items():
            feed(name, Batched(answer), batch_size=2)
        feed("tail", Ints(34), batch_size=16)
        feed("whole", Ints(34), batch_size=16, drop_last=True)
        feed("shuffled", Ints(1000), batch_size=50, shuffle=True, seed=7)
        feed("torch", Ints(10), batch_size=4, shuffle=True, seed=7, order="torch")
        feed("slow", Ints(6, slow={2: 0.3}))
        feed("many", Ints(10_000), batch_size=1)
        for kind, name in enumerate(("StopIteration", "SystemExit", "KeyboardInterrupt")):
            feed(name, stops(kind), batch_size=2)
"""


@pytest.fixture(scope="module")
def service():
    service = Service(SOURCE, "feeds")
    yield service
    service.cleanup()


def outcome(error):
    return type(error).__name__, str(error)


def read_sync(service, feed, epoch=0, **options):
    got = []
    with Client(service.socket) as client, client.epoch(epoch, feed=feed, **options) as stream:
        while True:
            try:
                got.append(next(stream).tolist())
            except StopIteration:
                return got
            except Exception as error:
                got.append(outcome(error))


def read_async(service, feed, epoch=0, **options):
    async def read():
        got = []
        async with AsyncClient(service.socket) as client:
            async with client.epoch(epoch, feed=feed, **options) as stream:
                while True:
                    try:
                        got.append((await anext(stream)).tolist())
                    except StopAsyncIteration:
                        return got
                    except Exception as error:
                        got.append(outcome(error))

    return asyncio.run(read())


@pytest.fixture(params=[read_sync, read_async], ids=["sync", "async"])
def read(request, service):
    return lambda feed, *args, **options: request.param(service, feed, *args, **options)


@pytest.fixture(params=[1, 4])
def workers(request):
    return request.param


def test_b05_the_epoch_goes_on_after_a_failing_batch(read, workers):
    assert read(f"flaky-{workers}") == [[0, 1], ("OSError", "bad 3"), [4, 5]]
    got = read(f"flaky-any-{workers}")
    assert sorted(map(str, got)) == sorted(map(str, [[0, 1], ("OSError", "bad 3"), [4, 5]]))


@pytest.mark.parametrize(("answer", "count"), [("fewer", 1), ("more", 3)])
def test_b06_a_wrong_count_is_an_error_of_each_batch(read, workers, answer, count):
    got = read(f"{answer}-{workers}")
    assert [kind for kind, _ in got] == ["ValueError"] * 3
    for first, (_, message) in zip((0, 2, 4), got, strict=True):
        assert f"{count}" in message
        assert "2" in message
        assert f"{first}" in message


def test_b06_none_is_refused_and_other_collections_are_taken(read, workers):
    assert [kind for kind, _ in read(f"none-{workers}")] == ["TypeError"] * 3
    assert read(f"tuple-{workers}") == [[0, 1], [2, 3], [4, 5]]
    assert read(f"iterator-{workers}") == [[0, 1], [2, 3], [4, 5]]


def test_b09_the_last_batch_is_short_or_dropped(read, workers):
    got = read(f"tail-{workers}")
    assert list(map(len, got)) == [16, 16, 2]
    assert list(itertools.chain(*got)) == list(range(34))
    assert read(f"whole-{workers}") == got[:2]


def test_b14_the_order_depends_on_seed_and_epoch_alone(read, workers):
    epochs = {epoch: read(f"shuffled-{workers}", epoch) for epoch in (3, 0, 2, 1)}
    assert epochs == {epoch: read("shuffled-1", epoch) for epoch in (0, 1, 2, 3)}
    flat = [tuple(itertools.chain(*epochs[epoch])) for epoch in range(4)]
    assert len(set(flat)) == 4
    assert all(sorted(order) == list(range(1000)) for order in flat)
    assert read(f"shuffled-{workers}", 2, start=13) == epochs[2][13:]
    assert read(f"torch-{workers}", 1) == [[5, 1, 6, 0], [9, 7, 8, 4], [3, 2]]


@pytest.mark.parametrize("raised", ["StopIteration", "SystemExit", "KeyboardInterrupt"])
def test_what_would_end_a_loop_or_a_process_is_an_error_of_its_batch(
    read, workers, service, raised
):
    got = read(f"{raised}-{workers}")
    assert [got[0], got[2], got[3]] == [[0, 1], [4, 5], [6, 7]]
    kind, message = got[1]
    assert kind == "RuntimeError"
    assert f"{raised}(3)" in message
    assert "3" in message
    assert service.process.poll() is None


async def test_b22_a_timed_out_step_loses_no_batch(service):
    got, timeouts = [], 0
    async with AsyncClient(service.socket) as client:
        stream = client.epoch(0, feed="slow-1")
        while True:
            try:
                got.append((await asyncio.wait_for(anext(stream), 50 * MS)).tolist())
            except TimeoutError:
                timeouts += 1
            except StopAsyncIteration:
                break
    assert got == [[0], [1], [2], [3], [4], [5]]
    assert timeouts >= 1


def streams(service):
    with Client(service.socket) as client:
        return len(client.stats()["streams"])


def test_b20_a_broken_loop_leaves_no_stream(service):
    with Client(service.socket) as client:
        for _ in range(20):
            for number, _batch in enumerate(client.epoch(0, feed="many-4")):
                if number == 2:
                    break
            wait_for(lambda: streams(service) == 0, "the stream's end", 200 * MS)
        kept = client.epoch(0, feed="many-4")
        next(kept)
        assert streams(service) == 1
        kept.close()
        wait_for(lambda: streams(service) == 0, "the stream's end", 200 * MS)
        assert len(list(client.epoch(0, feed="tail-1"))) == 3
    wait_for(lambda: streams(service) == 0, "the stream's end", 200 * MS)


async def test_b20_a_broken_async_loop_leaves_no_stream(service):
    async with AsyncClient(service.socket) as client:
        for _ in range(20):
            number = 0
            async for _batch in client.epoch(0, feed="many-4"):
                number += 1
                if number == 2:
                    break
            await gone(client)
        with pytest.raises(ZeroDivisionError):
            async for _batch in client.epoch(0, feed="many-4"):
                1 / 0
        await gone(client)
        batches = [batch async for batch in client.epoch(0, feed="tail-1")]
        assert np.concatenate(batches).tolist() == list(range(34))


async def gone(client):
    """No stream is open, within 200 ms."""
    async with asyncio.timeout(200 * MS):
        while (await client.stats())["streams"]:
            await asyncio.sleep(2 * MS)


def test_an_error_names_its_sample_and_brings_the_remote_traceback(service):
    with Client(service.socket) as client:
        stream = client.epoch(0, feed="flaky-1")
        next(stream)
        with pytest.raises(OSError, match="bad 3") as caught:
            next(stream)
    notes = "\n".join(caught.value.__notes__)
    assert "3" in notes
    assert "__getitem__" in notes


def test_a_drawn_seed_is_named_where_positions_would_not_last():
    service = Service(
        """
        from tundish import DataLoader
        data = range(10)
        feeds = {
            "drawn": DataLoader(data, shuffle=True),
            "given": DataLoader(data, shuffle=True, seed=1),
            "plain": DataLoader(data),
        }
    """,
        "feeds",
    )
    try:
        with Client(service.socket) as client:
            seed = client.info("drawn")["seed"]
        assert f"feed 'drawn' shuffles by a drawn seed, {seed}" in service.output
        assert "'given'" not in service.output
        assert "'plain'" not in service.output
    finally:
        service.cleanup()
