"""What a stream tells of itself: length, counts, skipped samples, streams out of order."""

from typing import Any, NamedTuple

import pytest

from helpers.clients import END, KINDS, Reader
from tundish_client import BatchInfo, Client, ProtocolError, TundishError
from tundish_client.testing import Batch, Close, End, ScriptedServer

UNKNOWN = {"batches": None, "samples": None, "padded": None, "dropped": None}
SKIPS = [Batch("a", [0, 1]), Batch("b", [3], [2]), OSError("no"), Batch("d", [6], [4, 5])]


@pytest.fixture(params=KINDS)
def read(request):
    return lambda server, **options: Reader(request.param, server.path, **options)


def test_a_length_that_is_not_known_is_a_type_error(read):
    with ScriptedServer([1, 2], announce=UNKNOWN) as server, read(server) as reader:
        stream = reader.epoch()
        reader.start(stream)
        for _ in range(2):
            with pytest.raises(TypeError, match=r"length of epoch 0 of feed 'scripted'.*__len__"):
                len(stream)
        assert stream and reader.next(stream) == 1
        with pytest.raises(TypeError, match="not known"):
            len(stream)


def test_a_promised_length_is_told(read):
    said = {"batches": 5, "exact": False}
    with ScriptedServer([1, 2], announce=said) as server, read(server) as reader:
        for start, length in ((0, 5), (2, 3), (9, 0)):
            stream = reader.epoch(start=start)
            reader.start(stream)
            assert len(stream) == length


def test_a_list_of_unknown_length():
    with ScriptedServer([1, 2, 3], announce=UNKNOWN) as server, Client(server.path) as client:
        assert list(client.epoch(0)) == [1, 2, 3]


def test_counts_of_an_unknown_length_grow_as_batches_are_handed_out(read):
    script = [Batch("a", [4, 7]), OSError("no"), Batch("c", [1])]
    with ScriptedServer(script, announce=UNKNOWN) as server, read(server) as reader:
        stream = reader.epoch(prefetch=8)
        reader.start(stream)
        seen = [dict(stream.counts)]
        for _ in range(4):
            try:
                reader.next(stream)
            except OSError:
                pass
            seen.append(dict(stream.counts))
    assert all(type(value) is int for counts in seen for value in counts.values())
    assert [counts["batches"] for counts in seen] == [0, 1, 2, 3, 3]
    assert [counts["samples"] for counts in seen] == [0, 2, 2, 3, 3]
    assert [counts["errors"] for counts in seen] == [0, 0, 1, 1, 1]


def test_skipped_samples_are_told_with_their_batch_and_counted(read):
    with ScriptedServer(SKIPS) as server, read(server) as reader:
        stream = reader.epoch(prefetch=8)
        skipped, counts, values = [], [], []
        for _ in range(5):
            try:
                values.append(reader.next(stream))
            except OSError as error:
                values.append(error)
            skipped.append(stream.info.skipped)
            counts.append((stream.counts["skipped"], stream.counts["errors"]))
        assert [str(value) for value in values] == ["a", "b", "no", "d", "end"]
        assert skipped == [[], [2], [], [4, 5], [4, 5]]
        assert counts == [(0, 0), (1, 0), (1, 1), (3, 1), (3, 1)]
        assert (stream.counts["samples"], stream.counts["batches"]) == (4, 4)
        assert stream.info.indices == [6]
        stream.info.skipped.append(9)
        assert stream.info.skipped == [4, 5]


def test_info_tells_of_skipped_samples_in_its_text():
    assert "skipped" not in repr(BatchInfo(0, 1, [2], (0, 0)))
    assert repr(BatchInfo(0, 1, [2], (0, 0), [3])).endswith("indices=[2], skipped=[3])")


@pytest.mark.parametrize("wrong", [3, [1.5], ["a"], None, [True]])
def test_skipped_that_is_no_list_of_indices_fails_the_connection(wrong):
    from tundish_client._protocol.client import ClientConnection
    from tundish_client._protocol.frames import encode_message
    from tundish_client._protocol.reading import StreamState
    from tundish_client.config import EpochOptions

    core = ClientConnection()
    stream = StreamState(EpochOptions(epoch=0))
    core.open_stream(stream)
    start = {"stream": 1, "feed": "f", "batches": 1}
    batch = {"stream": 1, "batch": 0, "value": 1, "skipped": wrong}
    data = encode_message("WELCOME", {"version": 1}) + encode_message("START", start)
    data += encode_message("BATCH", batch)
    view = core.get_buffer()
    view[: len(data)] = data
    core.receive(len(data))
    assert "skipped must be a list" in str(core.failed)


def test_out_of_order_every_batch_comes_once_and_there_is_no_position(read):
    script = [Batch(n, [n], number=n) for n in (2, 0, 1)]
    with ScriptedServer(script, announce={"in_order": False}) as server, read(server) as reader:
        stream = reader.epoch()
        assert stream.state_dict()["batch"] == 0
        assert [reader.next(stream) for _ in range(4)] == [2, 0, 1, "end"]
        assert stream.info.batch == 1
        for ask in (stream.state_dict, lambda: stream.position):
            with pytest.raises(TundishError, match=r"in_order=False.*no position"):
                ask()
        assert "epoch 0>" in repr(stream)


def test_out_of_order_no_batch_may_come_twice(read):
    script = [Batch(n, [n], number=n) for n in (1, 1)]
    with ScriptedServer(script, announce={"in_order": False}) as server, read(server) as reader:
        stream = reader.epoch()
        assert reader.next(stream) == 1
        with pytest.raises(ConnectionError, match="came twice"):
            reader.next(stream)


def test_a_lost_stream_out_of_order_names_no_position(read):
    script = [Batch(1, [1], number=1), Close(), 3]
    with ScriptedServer(script, announce={"in_order": False}) as server, read(server) as reader:
        stream = reader.epoch()
        assert reader.next(stream) == 1
        with pytest.raises(ConnectionError, match="in_order=False") as caught:
            reader.next(stream)
        assert caught.value.position is None


class Pair(NamedTuple):
    """Of a class that no client knows."""

    x: Any
    y: Any


class TestWhatOnlyTheClientCouldNotPutTogether:
    SCRIPT = (Batch("a", [0, 1]), Batch(Pair(1, 2), [2, 3, 4]), OSError("no"), Batch("d", [6], [5]))

    def seen(self, reader, stream):
        """What came, and the counts after each call."""
        out = []
        for call in range(5):
            (value,) = reader.outcomes(stream, 1)
            counts = stream.counts
            out.append([value, *(counts[name] for name in ("errors", "samples", "batches"))])
            assert counts["skipped"] == int(call > 2)
        return out

    @pytest.mark.parametrize("shared_memory", [False, True])
    @pytest.mark.parametrize("prefetch", [1, 8])
    def test_is_an_error_of_its_batch_and_counts_as_one(self, read, shared_memory, prefetch):
        with ScriptedServer(self.SCRIPT, shared_memory=shared_memory) as server:
            with read(server) as reader:
                stream = reader.epoch(prefetch=prefetch)
                values, errors, samples, batches = zip(*self.seen(reader, stream), strict=True)
                assert [type(value) for value in values] == [str, TypeError, OSError, str, str]
                assert (values[0], values[3], values[4]) == ("a", "d", END)
                assert errors == (0, 1, 2, 2, 2)
                assert (samples[:3], samples[4]) == ((4, 4, 4), 3)  # announced, then what came
                assert batches == (4, 4, 4, 4, 4)
                assert reader.next(stream) is END
                assert stream.counts["errors"] == 2

    @pytest.mark.parametrize("split", [None, "g"])
    def test_counts_as_one_where_no_length_is_known(self, read, split):
        with ScriptedServer(self.SCRIPT, announce=UNKNOWN) as server, read(server) as reader:
            stream = reader.epoch(split=split)
            _, errors, samples, batches = zip(*self.seen(reader, stream), strict=True)
            assert errors == (0, 1, 2, 2, 2)
            assert samples == (2, 2, 2, 3, 3)
            assert batches == (1, 2, 3, 4, 4)

    def test_counts_once_over_several_connections(self, read):
        script = [*self.SCRIPT]
        for place in (3, 2, 1):
            script.insert(place, Close(once=True))
        with ScriptedServer(script) as server, read(server, reconnect_timeout=10) as reader:
            stream = reader.epoch(prefetch=1)
            _, errors, samples, _ = zip(*self.seen(reader, stream), strict=True)
            assert (errors, samples[-1]) == ((0, 1, 2, 2, 2), 3)
            assert len(server.kinds("HELLO")) == 4

    def test_counts_when_the_stream_is_left(self, read):
        with ScriptedServer(self.SCRIPT) as server, read(server) as reader:
            stream = reader.epoch(prefetch=1)
            reader.outcomes(stream, 2)
            reader.close(stream)
            assert stream.counts["errors"] == 1

    @pytest.mark.parametrize("said", [0, 2])
    def test_does_not_make_up_for_an_error_that_end_tells_otherwise(self, read, said):
        script = [*self.SCRIPT, End({"errors": said})]
        with ScriptedServer(script) as server, read(server) as reader:
            got = reader.outcomes(reader.epoch())
            assert isinstance(got[-1], ProtocolError)
            assert f"1 failed batches, but END says {said}" in str(got[-1])
