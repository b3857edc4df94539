"""What goes wrong in loaders with samplers, lengths and workers, in process and through a service.

Each case is read by the same four readers: the loader itself under `for` and `async for`, and both
clients of a service that offers it.
"""

import asyncio
import itertools
import json
import threading
import time

import pytest

from helpers.serving import Service
from helpers.timing import MS
from tundish import DataLoader
from tundish_client import AsyncClient, Client

SOURCE = """
    import subprocess
    import sys
    import threading
    import time
    import urllib.error

    import numpy as np

    from tundish import DataLoader, DatasetFactory

    class Ints:
        def __init__(self, n, fail=None, slow=None):
            self.n, self.fail, self.slow = n, fail or {}, slow or {}

        def __len__(self):
            return self.n

        def __getitem__(self, index):
            assert type(index) is int, type(index)
            if index in self.fail:
                raise self.fail[index]()
            time.sleep(self.slow.get(index, 0))
            return index

    class Two(Exception):
        def __init__(self, a, b):
            super().__init__(a, b)
            self.a, self.b = a, b

    class Code(Exception):
        def __init__(self, *, code):
            super().__init__()
            self.code = code

    ERRORS = {
        "called": lambda: subprocess.CalledProcessError(3, "cmd"),
        "http": lambda: urllib.error.HTTPError("u", 404, "nf", {}, None),
        "unicode": lambda: UnicodeDecodeError("utf-8", b"\\xff", 0, 1, "bad"),
        "file": lambda: FileNotFoundError(2, "No such", "/x/y"),
        "two": lambda: Two(1, "b"),
        "code": lambda: Code(code=7),
        "key": lambda: KeyError("k"),
    }

    class Locked(Exception):
        def __init__(self):
            super().__init__("holds a lock")
            self.lock = threading.Lock()

    class Unreducible(Exception):
        def __reduce__(self):
            raise RuntimeError("no")

    class Unprintable(Exception):
        def __str__(self):
            raise ValueError("no text")

    class Long(Exception):
        def __init__(self):
            super().__init__("x" * (50 << 20))

    def chained():
        first, second, third = OSError("1"), OSError("2"), OSError("3")
        third.__cause__, second.__cause__, first.__cause__ = second, first, third
        return third

    HARD = {"locked": Locked, "unreducible": Unreducible, "unprintable": Unprintable,
            "long": Long, "chained": chained}

    KINDS = {
        "minus": -1, "six": 6, "far": 99, "float": 1.0, "text": "1", "none": None, "huge": 2**70,
        "numpy": np.int64(1), "array": np.array(1), "bool": True,
    }

    class Sampler:
        def __init__(self, *indices, length=None):
            self.indices, self.length = indices, length

        def __iter__(self):
            return iter(self.indices)

    class Sized(Sampler):
        def __len__(self):
            return self.length

    class Stream:
        def __iter__(self):
            return iter(range(5))

    class SizedStream(Stream):
        def __len__(self):
            return 5

    class Lies(Ints):
        def __getitem__(self, index):
            if index >= 3:
                raise IndexError(f"no item {index}")
            return index

    class Shrinks(Ints):
        asked = 0

        def __len__(self):
            self.asked += 1
            return 10 if self.asked == 1 else 4

    class Length(Ints):
        def __len__(self):
            if isinstance(self.n, Exception):
                raise self.n
            return self.n

    class Records:
        def __init__(self, path):
            self.file = open(path, "rb", buffering=0)

        def __len__(self):
            return 400

        def __getitem__(self, index):
            self.file.seek(4096 * index)
            time.sleep(0)
            return int.from_bytes(self.file.read(8), "little")

    PATH = __file__ + ".records"
    with open(PATH, "wb") as file:
        for number in range(400):
            file.write(number.to_bytes(8, "little") * 512)

    DISAGREE = {
        "extra": [{"x": 1}, {"x": 2, "y": 3}],
        "missing": [{"x": 1, "y": 3}, {"x": 2}],
        "lengths": [[1, 2], [3]],
        "nothing": [1, None],
        "shapes": [np.zeros((3, 4)), np.zeros((1, 4))],
        "types": ["ab", 3],
        "bytes": [b"abc", b"AB"],
        "strings": [["a", "b"], ["c", "d"]],
        "empty": [{}, {}],
    }

    def feeds_of(workers):
        made = {}

        def feed(name, dataset, *args, **options):
            made[f"{name}-{workers}"] = DataLoader(
                dataset, *args, num_workers=workers, **options
            )

        for name, error in ERRORS.items():
            feed(f"b02-{name}", Ints(6, fail={2: error}), 2)
        for name, error in HARD.items():
            feed(f"b03-{name}", Ints(6, fail={2: error}), 2)
        for name, value in KINDS.items():
            feed(f"b07-{name}", Ints(6), 2, sampler=Sampler(0, value, 2, 3))
            feed(f"b07-batches-{name}", Ints(6), batch_sampler=Sampler([0, value], [2, 3]))
        feed("b10-sized", SizedStream(), 2)
        feed("b10-unsized", Stream(), 2)
        feed("b10-unbatched", Stream(), None)
        for shuffle in (False, True):
            for drop in (False, True):
                feed(f"b11-{shuffle}-{drop}", Ints(0), 2, shuffle, drop_last=drop)
        feed("b11-short", Ints(3), 8)
        feed("b12-lies", Lies(6), 2)
        feed("b12-shrinks", Shrinks(10), 2)
        feed("b12-raises", Length(OSError("no length")), 2)
        feed("b12-negative", Length(-1), 2)
        feed("b12-float", Length(2.5), 2)
        feed("b13-order", Ints(32, slow={0: 0.5}), 1, prefetch=4)
        feed("b13-any", Ints(32, slow={0: 0.5}), 1, prefetch=4, in_order=False)
        for name, samples in DISAGREE.items():
            feed(f"b39-{name}", samples, 2)
            feed(f"b39-one-{name}", samples, 1)
        feed("b42-files", DatasetFactory(lambda: Records(PATH)), 8)
        feed("b42-huge", Ints(50_000_000), 4, True, seed=1)
        feed("short-sampler", Ints(9), 2, sampler=Sized(1, 2, 3, length=7))
        feed("long-sampler", Ints(9), 2, sampler=Sized(1, 2, 3, 4, 5, length=3))
        feed("skips", Ints(9, fail={3: OSError, 6: OSError, 7: OSError}), 2, on_error="skip")
        feed("skips-all", Ints(4, fail={2: OSError, 3: OSError}), 2, on_error="skip")
        feed("lanes", Ints(34, fail={20: OSError}), 8, items_in_parallel=4)
        feed("list", [{"a": 1}, {"b": 2}], 2, collate_fn=list)
        return made

    feeds = {**feeds_of(1), **feeds_of(4)}
"""


def outcome(error):
    return error if isinstance(error, Exception) else plain(error)


def plain(value):
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def read(stream, most=200):
    got = []
    while len(got) < most:
        try:
            got.append(outcome(next(stream)))
        except StopIteration:
            break
        except Exception as error:
            got.append(error)
    return got, dict(stream.counts)


async def aread(stream, most=200):
    got = []
    while len(got) < most:
        try:
            got.append(outcome(await anext(stream)))
        except StopAsyncIteration:
            break
        except Exception as error:
            got.append(error)
    return got, dict(stream.counts)


@pytest.fixture(scope="module")
def service():
    service = Service(SOURCE, "feeds")
    yield service
    service.cleanup()


@pytest.fixture(scope="module")
def loaders(service):
    """The same feeds in this process; their classes are the ones that the clients know."""
    import importlib.util
    import sys

    spec = importlib.util.spec_from_file_location("feeds", service.folder / "feeds.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["feeds"] = module
    spec.loader.exec_module(module)
    yield module.feeds
    del sys.modules["feeds"]


def in_process(service, loaders, feed, **options):
    return read(loaders[feed].epoch(0, **options))


def in_process_async(service, loaders, feed, **options):
    return asyncio.run(aread(loaders[feed].epoch(0, **options)))


def through_client(service, loaders, feed, **options):
    with Client(service.socket) as client, client.epoch(0, feed=feed, **options) as stream:
        return read(stream)


def through_async_client(service, loaders, feed, **options):
    async def run():
        async with AsyncClient(service.socket) as client:
            async with client.epoch(0, feed=feed, **options) as stream:
                return await aread(stream)

    return asyncio.run(run())


@pytest.fixture(params=[in_process, in_process_async, through_client, through_async_client])
def cells(request, service, loaders):
    """What a feed gives: its batches and errors, to its clean end."""
    return lambda feed, **options: request.param(service, loaders, feed, **options)[0]


@pytest.fixture(params=[in_process, in_process_async, through_client, through_async_client])
def counted(request, service, loaders):
    """The same with the counts at the end."""
    return lambda feed, **options: request.param(service, loaders, feed, **options)


@pytest.fixture(params=[1, 4])
def workers(request):
    return request.param


def only_error(cells, at):
    """The one error, which stands at this place."""
    errors = [k for k, cell in enumerate(cells) if isinstance(cell, Exception)]
    assert errors == [at], cells
    return cells[at]


@pytest.mark.parametrize(
    ("name", "kind", "attributes"),
    [
        ("called", "CalledProcessError", {"returncode": 3, "cmd": "cmd"}),
        ("http", "HTTPError", {"code": 404, "msg": "nf"}),
        (
            "unicode",
            "UnicodeDecodeError",
            {"encoding": "utf-8", "object": b"\xff", "start": 0, "end": 1, "reason": "bad"},
        ),
        ("file", "FileNotFoundError", {"errno": 2, "filename": "/x/y", "strerror": "No such"}),
        ("two", "Two", {"a": 1, "b": "b"}),
        ("code", "Code", {"code": 7}),
        ("key", "KeyError", {"args": ("k",)}),
    ],
)
def test_b02_exceptions_keep_type_and_attributes(cells, workers, name, kind, attributes):
    got = cells(f"b02-{name}-{workers}")
    error = only_error(got, 1)
    assert type(error).__name__ == kind
    assert {name: getattr(error, name) for name in attributes} == attributes
    assert any("dataset[2]" in note for note in error.__notes__)
    assert [got[0], got[2]] == [[0, 1], [4, 5]]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("locked", "Locked"),
        ("unreducible", "Unreducible"),
        ("unprintable", "Unprintable"),
        ("long", "Long"),
        ("chained", "OSError"),
    ],
)
def test_b03_exceptions_that_cannot_travel_name_their_class(cells, workers, name, kind):
    began = time.monotonic()
    got = cells(f"b03-{name}-{workers}")
    assert time.monotonic() - began < 2000 * MS
    error = only_error(got, 1)
    assert kind in (type(error).__name__, getattr(error, "type_name", "").rpartition(".")[2])
    assert [got[0], got[2]] == [[0, 1], [4, 5]]


@pytest.mark.parametrize("form", ["b07", "b07-batches"])
@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("minus", "IndexError", "-1"),
        ("six", "IndexError", "6"),
        ("far", "IndexError", "99"),
        ("huge", "IndexError", str(2**70)),
        ("float", "TypeError", "1.0"),
        ("text", "TypeError", "'1'"),
        ("none", "TypeError", "None"),
        ("bool", "TypeError", "True"),
    ],
)
def test_b07_an_index_that_is_none_is_an_error_of_its_batch(
    cells, workers, form, name, kind, value
):
    got = cells(f"{form}-{name}-{workers}")
    error = only_error(got, 0)
    assert type(error).__name__ == kind
    assert value in str(error)
    assert got[1:] == [[2, 3]]


@pytest.mark.parametrize("form", ["b07", "b07-batches"])
@pytest.mark.parametrize("name", ["numpy", "array"])
def test_b07_integers_of_other_types_reach_the_dataset_as_int(cells, workers, form, name):
    assert cells(f"{form}-{name}-{workers}") == [[0, 1], [2, 3]]


def test_b10_an_iterable_is_one_stream(counted, workers):
    for name in ("sized", "unsized"):
        got, counts = counted(f"b10-{name}-{workers}")
        assert got == [[0, 1], [2, 3], [4]]
        assert (counts["batches"], counts["samples"], counts["errors"]) == (3, 5, 0)
    assert counted(f"b10-unbatched-{workers}")[0] == [0, 1, 2, 3, 4]
    assert counted(f"b10-unsized-{workers}", start=1)[0] == [[2, 3], [4]]
    shares = [
        list(itertools.chain(*counted(f"b10-unsized-{workers}", rank=rank, world_size=2)[0]))
        for rank in (0, 1)
    ]
    assert shares == [[0, 2, 4], [1, 3, 0]], "padded from the front"


def test_b10_lengths(loaders, service, workers):
    assert len(loaders[f"b10-sized-{workers}"]) == 3
    with pytest.raises(TypeError, match="length"):
        len(loaders[f"b10-unsized-{workers}"])
    with Client(service.socket) as client:
        assert len(client.epoch(0, feed=f"b10-sized-{workers}")) == 3
        with pytest.raises(TypeError, match="length"):
            len(client.epoch(0, feed=f"b10-unsized-{workers}"))


def test_b11_an_empty_dataset_ends_at_once_whatever_the_flags(cells, workers):
    for shuffle, drop in itertools.product((False, True), repeat=2):
        assert cells(f"b11-{shuffle}-{drop}-{workers}") == []
    assert cells(f"b11-short-{workers}") == [[0, 1, 2]]


def test_b11_a_batch_that_drop_last_leaves_none_of_is_warned_of():
    with pytest.warns(UserWarning, match="3 samples.*batch_size is 8"):
        assert list(DataLoader(range(3), 8, drop_last=True)) == []


def test_b12_a_length_that_lies(cells, workers):
    got = cells(f"b12-lies-{workers}")
    assert got[0] == [0, 1]
    assert [type(error) for error in got[1:]] == [IndexError, IndexError]
    assert "no item 3" in str(got[1])


def test_b12_a_length_is_read_once_per_epoch(loaders, workers):
    feed = loaders[f"b12-shrinks-{workers}"]
    feed.dataset.asked = 0
    assert read(feed.epoch(0))[0] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert read(feed.epoch(0))[0] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("name", "kind"), [("raises", OSError), ("negative", ValueError), ("float", TypeError)]
)
def test_b12_a_length_that_cannot_be_read_is_an_error_at_the_start(
    service, loaders, workers, name, kind
):
    with pytest.raises(kind):
        loaders[f"b12-{name}-{workers}"].epoch(0)
    with Client(service.socket) as client:
        with pytest.raises(kind):
            next(client.epoch(0, feed=f"b12-{name}-{workers}"))
        # Whoever asks what there is learns of it too, and of all the others.
        assert kind.__name__ in client.info(f"b12-{name}-{workers}")["error"]
        assert client.info("list-1")["batches"] == 1


def test_b13_order_and_head_of_line(service, loaders):
    for read_feed in (in_process, through_client):
        got, _ = read_feed(service, loaders, "b13-order-4")
        assert got == [[k] for k in range(32)]
    began = time.monotonic()
    with Client(service.socket) as client, client.epoch(0, feed="b13-any-4") as stream:
        first = next(stream).tolist()
        assert first != [0]
        assert time.monotonic() - began < 200 * MS
        rest = [batch.tolist()[0] for batch in stream]
    assert sorted(first + rest) == list(range(32))


def test_b39_disagreements_name_the_field_and_the_samples(cells, workers):
    for name, texts in {
        "extra": ["'y'", "dataset[0]", "dataset[1]"],
        "missing": ["'y'", "dataset[0]", "dataset[1]"],
        "lengths": ["length 2", "length 1"],
        "nothing": ["int", "None"],
        "shapes": ["(3, 4)", "(1, 4)", "dataset[1]"],
        "types": ["str", "int"],
    }.items():
        error = only_error(cells(f"b39-{name}-{workers}"), 0)
        assert all(text in str(error) for text in texts), error
    assert cells(f"b39-bytes-{workers}") == [[b"abc", b"AB"]]
    assert cells(f"b39-strings-{workers}") == [[["a", "c"], ["b", "d"]]]
    assert cells(f"b39-one-strings-{workers}") == [[["a"], ["b"]], [["c"], ["d"]]]
    assert cells(f"b39-empty-{workers}") == [{}]


def test_b42_a_factory_gives_each_worker_a_file_of_its_own(cells, workers):
    for _ in range(3):
        got = cells(f"b42-files-{workers}")
        assert list(itertools.chain(*got)) == list(range(400))


def test_b42_a_huge_index_costs_no_time(service, loaders, workers):
    began = time.monotonic()
    with Client(service.socket) as client:
        first = next(client.epoch(0, feed=f"b42-huge-{workers}")).tolist()
        second = next(client.epoch(1, feed=f"b42-huge-{workers}")).tolist()
    assert time.monotonic() - began < 3000 * MS
    assert next(loaders[f"b42-huge-{workers}"].epoch(0)).tolist() == first
    assert first != second


def test_a_sampler_whose_length_lies_is_an_error_behind_its_batches(counted, workers):
    got, counts = counted(f"short-sampler-{workers}")
    assert got[:2] == [[1, 2], [3]]
    assert type(got[2]) is ValueError
    assert "7" in str(got[2])
    assert "3" in str(got[2])
    assert (len(got), counts["errors"], counts["batches"]) == (3, 1, 3)
    got, counts = counted(f"long-sampler-{workers}")
    assert [type(cell) for cell in got].count(ValueError) == 1
    assert type(got[-1]) is ValueError
    assert counts["errors"] == 1


def test_skipping_leaves_samples_out_and_counts_them(counted, workers):
    got, counts = counted(f"skips-{workers}")
    assert got[:3] == [[0, 1], [2], [4, 5]]
    assert type(got[3]) is ValueError
    assert "[6, 7]" in str(got[3])
    assert got[4:] == [[8]]
    assert (counts["skipped"], counts["errors"], counts["samples"]) == (1, 1, 6)


def test_lanes_give_the_same_batches(cells, workers):
    got = cells(f"lanes-{workers}")
    assert type(only_error(got, 2)) is OSError
    rest = [row for k, batch in enumerate(got) if k != 2 for row in batch]
    assert rest == [k for k in range(34) if not 16 <= k < 24]


def test_collating_by_list_leaves_samples_as_they_are(cells, workers):
    assert cells(f"list-{workers}") == [[{"a": 1}, {"b": 2}]]


def test_b16_a_position_counts_what_was_handed_out(service):
    with Client(service.socket) as client:
        stream = client.epoch(0, feed="b13-order-4", prefetch=16)
        for _ in range(3):
            next(stream)
        time.sleep(50 * MS)
        state = json.loads(json.dumps(stream.state_dict()))
        assert next(client.resume(state)).tolist() == [3]


def test_everything_is_given_back(service):
    with Client(service.socket) as client:
        assert client.stats()["streams"] == []
        assert client.stats()["slots"]["lent"] == 0
    assert threading.active_count() < 200
