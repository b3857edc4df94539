"""The connection ends at every moment there is: each batch comes once, whatever the moment."""

import numpy as np
import pytest

from helpers.clients import END, KINDS, Reader
from helpers.cutting import Cutter
from tundish_client.testing import Batch, ScriptedServer

PRINT = {"seed": 7, "samples": 4, "order": "stable/1", "batch_size": 1}
SPLIT = {"batches": 4, "exact": False, "in_order": False, "fingerprint": PRINT}
SCRIPT = [
    {"x": np.full(3, 0), "text": "first"},
    Batch(np.full(9, 1), [1], [7]),
    OSError("bad"),
    np.full(5, 3),
]


def serve(split, shared_memory):
    script = SCRIPT
    if split:
        numbers = (2, 0, 3)
        script = [Batch(np.full(6, n), [n], number=n) for n in numbers]
    return ScriptedServer(
        script, shared_memory=shared_memory, slots=8, announce=SPLIT if split else None
    )


def conversation(split, shared_memory):
    """Bytes of server and client: of the handshake, and in all."""
    with serve(split, shared_memory) as server, Cutter(server.path) as cutter:
        with Reader("sync", cutter.path) as client:
            opened = tuple(cutter.passed[0])
            assert client.outcomes(client.epoch(split="g" if split else None))[-1] is END
            return opened, tuple(cutter.passed[0])


def plain(value):
    """What can be compared."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return repr(value)


class TestEveryMoment:
    @pytest.fixture(params=KINDS)
    def kind(self, request):
        return request.param

    def read(self, kind, split, shared_memory, down, up):
        """One epoch by way of connections that are cut; returns how many there were."""
        with serve(split, shared_memory) as server:
            with Cutter(server.path, down, up) as cutter:
                with Reader(kind, cutter.path, reconnect_timeout=10) as client:
                    stream = client.epoch(prefetch=2, split="g" if split else None)
                    got = client.outcomes(stream)
                    state, counts = stream.state_dict(), stream.counts
                connections = len(cutter.passed)
        moment = f"cut after {down} bytes of the server, {up} of the client"
        if split:
            assert sorted(plain(v)[0] for v in got[:-1]) == [0, 2, 3], moment
            assert state["acked"] == [[0, 0], [2, 3]], moment
            assert counts["batches"] == 3, moment
        else:
            wanted = [SCRIPT[0], SCRIPT[1].value, *SCRIPT[2:]]
            assert [plain(v) for v in got[:-1]] == [plain(v) for v in wanted], moment
            assert state["batch"] == 4, moment
            told = [counts[name] for name in ("batches", "samples", "errors", "skipped")]
            assert told == [4, 3, 1, 1], moment
        assert got[-1] is END, moment
        return connections

    @pytest.mark.parametrize("shared_memory", [False, True], ids=["inline", "shared"])
    @pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
    def test_of_what_the_server_says(self, kind, split, shared_memory):
        (opened, _), (whole, _) = conversation(split, shared_memory)
        connections = [
            self.read(kind, split, shared_memory, [cut], [])
            for cut in range(opened, whole, step(whole - opened))
        ]
        assert set(connections) == {2}

    @pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
    def test_of_what_the_client_says(self, kind, split):
        (_, opened), (_, whole) = conversation(split, True)
        for cut in range(opened, whole, step(whole - opened)):
            self.read(kind, split, True, [], [cut])

    @pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
    def test_of_the_second_connection_too(self, kind, split):
        (opened, _), (whole, _) = conversation(split, True)
        for first, end in ((opened + 1, whole), ((opened + whole) // 2, opened)):
            for cut in range(0, end, step(whole)):
                assert self.read(kind, split, True, [first, cut], []) == 3


def step(nbytes):
    """So that there are about 40 moments, at other places of messages each."""
    return max(1, nbytes // 40) | 1
