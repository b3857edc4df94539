"""Every value comes back equal and of its type, or is refused by name: both clients, both ways."""

import asyncio
import dataclasses
import functools
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.serving import Service
from helpers.wire import MIB, same
from tundish_client import AsyncClient, Client

# Served, and imported here too: a trainer knows the classes of its own samples.
SOURCE = Path(__file__).with_name("values_feeds.py").read_text()


@pytest.fixture(scope="module")
def service():
    service = Service(SOURCE, "feeds")
    yield service
    service.cleanup()


@pytest.fixture(scope="module")
def feeds(service):
    """The served module, in this process."""
    spec = importlib.util.spec_from_file_location("feeds", service.folder / "feeds.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["feeds"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["feeds"]


# -- reading -------------------------------------------------------------------------------------


def read_sync(path, feed, **options):
    found = []
    with Client(path, **options) as client, client.epoch(0, feed=feed) as stream:
        while True:
            try:
                found.append(next(stream))
            except StopIteration:
                return found
            except Exception as error:
                found.append(error)


def read_async(path, feed, **options):
    async def read():
        found = []
        async with AsyncClient(path, **options) as client, client.epoch(0, feed=feed) as stream:
            while True:
                try:
                    found.append(await anext(stream))
                except StopAsyncIteration:
                    return found
                except Exception as error:
                    found.append(error)

    return asyncio.run(read())


def read_in_process(feeds, feed):
    found, epoch = [], feeds[feed].epoch(0)
    while True:
        try:
            found.append(next(epoch))
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)


WAYS = {
    "sync, shared memory": functools.partial(read_sync, shared_memory=True),
    "sync, inline": functools.partial(read_sync, shared_memory=False),
    "async, shared memory": functools.partial(read_async, shared_memory=True),
    "async, inline": functools.partial(read_async, shared_memory=False),
}


@pytest.fixture(params=[0, 4], ids="{} workers".format)
def workers(request):
    return request.param


@pytest.fixture(params=WAYS)
def read(request, service, feeds, workers):
    """Reads the feed of that name: a value or an exception for each batch."""
    return lambda feed: WAYS[request.param](service.socket, f"{feed} {workers}")


def identical(a, b):
    """Equal and of the same types, with the bits of floats and arrays."""
    if type(a) is not type(b):
        return False
    if dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a)]
        return all(identical(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(
            same(k, m) and identical(a[k], b[m]) for k, m in zip(a, b, strict=True)
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, (np.ndarray, np.generic)) and a.dtype.names:
        return a.dtype == b.dtype and all(identical(a[name], b[name]) for name in a.dtype.names)
    return same(a, b)


def usable(array):
    """What a consumer may rely on; torch.from_numpy asks for no more."""
    return (
        type(array) is np.ndarray
        and array.flags.c_contiguous
        and array.flags.writeable
        and array.dtype.isnative
        and all(stride >= 0 for stride in array.strides)
    )


def native(value):
    """A value as it arrives: arrays and numpy scalars in the byte order of this machine."""
    array = np.asarray(value)
    plain = array.astype(array.dtype.newbyteorder("="))
    return plain if isinstance(value, np.ndarray) else plain[()]


# -- B32: numbers, keys and containers -----------------------------------------------------------


def test_b32_every_value_comes_back_equal_and_of_its_type(read, feeds):
    found = read("plain listed")
    assert len(found) == len(feeds.PLAIN)
    for got, value in zip(found, feeds.PLAIN, strict=True):
        assert identical(got, [{"a": value}]), f"{value!r:.80} came back as {got!r:.80}"


def test_b32_what_cannot_travel_is_refused_in_the_server_and_the_next_batch_arrives(read, feeds):
    found = read("refused listed")
    assert len(found) == len(feeds.REFUSED)
    for error, (name, value) in zip(found, feeds.REFUSED.items(), strict=True):
        assert type(error) is TypeError, f"{value!r:.80} came as {error!r:.80}"
        assert str(error).startswith("value[0]['a'][1] is ")
        assert name in str(error)
        assert any("encoding the batch" in note for note in error.__notes__), "the server's error"


def test_b32_a_class_that_the_client_does_not_know_is_the_error_of_its_batch(read, feeds):
    for feed, before, after in [
        ("stranger listed", [{"a": 1}], [{"a": 2}]),
        ("stranger", {"a": np.array([1])}, {"a": np.array([2])}),
    ]:
        found = read(feed)
        assert identical([found[0], found[2]], [before, after])
        assert type(found[1]) is TypeError
        assert "register(Stranger)" in str(found[1])


def test_b32_collated_values_are_those_of_the_same_loader_in_process(read, feeds, workers):
    for feed in ("plain", "refused"):
        found = read(feed)
        expected = read_in_process(feeds.feeds, f"{feed} {workers}")
        assert len(found) == len(expected)
        for got, wanted in zip(found, expected, strict=True):
            if isinstance(wanted, Exception):
                assert (type(got), str(got)) == (type(wanted), str(wanted))
                assert "['a']" in str(got)
            elif isinstance(got, Exception):  # collated, but of a class that doesn't travel
                assert type(got) is TypeError
                assert str(got).startswith("value['a'][1]")
                assert "OrderedDict" in str(got) or "UTF-8" in str(got)
            else:
                assert identical(got, wanted)


# -- B33 and B34: layouts and dtypes -------------------------------------------------------------


def test_b33_any_layout_arrives_contiguous(read, feeds):
    for feed, value_of, stacked in [
        ("layouts listed", lambda batch: batch[0]["a"], False),
        ("layouts", lambda batch: batch["a"], True),
        ("layouts in pairs", lambda batch: batch["a"], True),
    ]:
        found = read(feed)
        assert len(found) == len(feeds.LAYOUTS)
        for got, array in zip(map(value_of, found), feeds.LAYOUTS.values(), strict=True):
            assert usable(got)
            assert got.shape == ((len(got), *array.shape) if stacked else array.shape)
            assert got.dtype == array.dtype.newbyteorder("=")
            for row in got if stacked else [got]:
                assert np.array_equal(row, array)


def test_b34_every_dtype_keeps_its_bits(read, feeds):
    for feed in ("dtypes listed", "dtypes", "dtypes in pairs"):
        found = read(feed)
        assert len(found) == len(feeds.DTYPES)
        for batch, array in zip(found, feeds.DTYPES.values(), strict=True):
            if feed == "dtypes listed":
                assert identical(batch, [{"a": native(array), "s": native(array[0])}])
                assert usable(batch[0]["a"])
                continue
            size = len(batch["a"])
            assert usable(batch["a"])
            assert identical(batch["a"], native(np.stack([array] * size)))
            if isinstance(array[0], (str, bytes)):
                assert identical(batch["s"], [array[0]] * size)
            else:
                assert identical(batch["s"], native(np.stack([np.asarray(array[0])] * size)))


def test_b34_and_b39_what_differs_is_promoted_exactly_or_named(read, feeds, workers):
    for found in (
        read("mixed in pairs"),
        read_in_process(feeds.feeds, f"mixed in pairs {workers}"),
    ):
        assert len(found) == len(feeds.MIXED)
        for at, (got, (_, expected)) in enumerate(zip(found, feeds.MIXED, strict=True)):
            if not isinstance(got, Exception):
                assert identical(got, expected)
                continue
            assert type(got) in (TypeError, ValueError)
            assert f"dataset[{2 * at}]" in str(got)
            assert all(word in str(got) for word in expected)


# -- B37: big batches ----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_b37_batches_beyond_100_mib_arrive_whole(service, feeds, way):
    *arrays, (texts,) = WAYS[way](service.socket, "big")
    assert len(arrays) == len(feeds.Big.sizes)
    for k, ((array,), size) in enumerate(zip(arrays, feeds.Big.sizes, strict=True)):
        assert array.nbytes == size * MIB
        assert (array == k).all()
    assert texts == [str(n) for n in range(100_000)]
