"""What a stream says of itself after its server was lost, once and again."""

import pytest

from helpers.clients import END
from helpers.timing import MS
from tundish_client import ConnectionLost
from tundish_client.testing import Batch, ScriptedServer, Silence

PRINT = {
    "seed": 7, "samples": 24, "order": "stable/1", "batch_size": 3, "drop_last": False,
    "world_size": 2,
}  # fmt: skip


class TestWhatAStreamSays:
    """Position and state after two reconnects, and in the loss after which there is none."""

    def lose_three_times(self, reader, path, number, announce=None, **epoch):
        """Reads batches `number` of one, two and three servers; returns what was asked for."""
        asked = []
        client, stream, got = None, None, []
        for life, count in enumerate(number):
            script = [Batch(n, [n], number=n) for n in range(12)]
            script.insert(sum(number[: life + 1]), Silence())
            with ScriptedServer(script, path=path, announce=announce) as server:
                if client is None:
                    client = reader(path, reconnect_timeout=300 * MS)
                    stream = client.epoch(3, **epoch)
                got += [client.next(stream) for _ in range(count)]
                asked += server.kinds("EPOCH")
        with pytest.raises(ConnectionLost) as caught:
            client.next(stream)
        assert got == list(range(sum(number)))
        return stream, asked, caught.value

    @pytest.mark.parametrize(
        ("epoch", "words"),
        [
            ({}, "epoch(3, start=6)"),
            ({"group": "g"}, "epoch(3, start=6)"),
            ({"feed": "scripted", "uneven": "pad"}, "epoch(3, feed='scripted', start=6)"),
            (
                {"rank": 1, "world_size": 2, "uneven": "drop", "batch_size": 3},
                "epoch(3, rank=1, world_size=2, uneven='drop', batch_size=3, start=6)",
            ),
            ({"rank": 0, "world_size": 2}, "epoch(3, rank=0, world_size=2, start=6)"),
        ],
    )
    def test_of_a_position(self, reader, path, epoch, words):
        own_print = PRINT | {"world_size": epoch.get("world_size", 1)}
        announce = {"fingerprint": own_print}
        stream, asked, lost = self.lose_three_times(reader, path, (3, 1, 2), announce, **epoch)
        assert words in str(lost)
        assert lost.position == stream.position == (3, 6)
        state = stream.state_dict()
        shard = {"rank": 0, "world_size": 1, "uneven": "pad"} | {
            name: epoch[name] for name in ("rank", "world_size", "uneven") if name in epoch
        }
        own = {"batch_size": 3} if "batch_size" in epoch else {}
        assert state == {
            "feed": "scripted", "epoch": 3, "batch": 6, "fingerprint": own_print, **shard, **own,
        }  # fmt: skip
        for header in asked:
            assert header["epoch"] == 3
            assert {name: header[name] for name in shard} == shard
            assert header.get("batch_size") == epoch.get("batch_size")
            assert header.get("group") == epoch.get("group")
        # What had come and was not handed out is not asked for again.
        starts = [header["start"] for header in asked]
        assert starts == [0, 3, 4]
        with ScriptedServer(list(range(12)), path=path, announce=announce) as server:
            later = reader(path)
            rest = later.client.resume(state)
            assert later.outcomes(rest) == [*range(6, 12), END]
            (header,) = server.kinds("EPOCH")
            assert {name: header[name] for name in shard} == shard
            assert (header["start"], header["fingerprint"]) == (6, own_print)
            assert rest.state_dict() == state | {"batch": 12}

    def test_of_a_split(self, reader, path):
        announce = {"exact": False, "in_order": False, "fingerprint": PRINT}
        stream, asked, lost = self.lose_three_times(reader, path, (3, 1, 2), announce, split="g")
        assert lost.position is None
        assert "join split='g' again" in str(lost)
        assert stream.state_dict() == {
            "feed": "scripted", "epoch": 3, "split": "g", "acked": [[0, 5]], "fingerprint": PRINT,
        }  # fmt: skip
        assert [header.get("acked") for header in asked] == [None, [[0, 2]], [[0, 3]]]
        with ScriptedServer(list(range(12)), path=path, announce=announce) as server:
            later = reader(path)
            rest = later.client.resume(stream.state_dict())
            assert later.outcomes(rest) == [*range(6, 12), END]
            assert server.kinds("EPOCH")[0]["acked"] == [[0, 5]]
            assert rest.state_dict()["acked"] == [[0, 11]]

    def test_of_a_split_the_batch_in_hand_is_told_to_the_server_that_is_asked_for_more(
        self, reader, path
    ):
        """Servers come and go while the user works on a batch; only the last one is told."""
        announce = {"exact": False, "in_order": False, "fingerprint": PRINT}
        script = [Batch(f"batch {n}", [n], number=n) for n in (5, 2, 7)]

        def serve():
            return ScriptedServer([*script, Silence()], path=path, announce=announce)

        with serve():
            client = reader(path)
            stream = client.epoch(split="g")
            assert [client.next(stream) for _ in range(2)] == ["batch 5", "batch 2"]
        for life in range(3):
            with serve() as server:
                client.run(client.client.ping())
                assert not server.kinds("EPOCH")
                assert stream.state_dict()["acked"] == [[5, 5]]
                if life == 2:
                    assert client.next(stream) == "batch 7"
                    (asked,) = server.kinds("EPOCH")
                    assert asked["acked"] == stream.state_dict()["acked"] == [[2, 2], [5, 5]]
                    client.run(client.client.ping())
                    assert not server.kinds("ACK")  # the ranges said it
