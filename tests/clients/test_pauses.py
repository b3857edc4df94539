"""While the server is away: Ctrl-C, forks, streams that are left; what a stream says after it."""

import asyncio
import gc
import os
import shutil
import signal
import tempfile
import threading
import time

import pytest

from helpers.clients import END, KINDS, Reader
from helpers.timing import MS, until, wait_for
from tundish_client import AsyncClient, Client, ConnectionLost, TundishError, _opening
from tundish_client.testing import Batch, Close, ScriptedServer, Silence

PRINT = {
    "seed": 7, "samples": 24, "order": "stable/1", "batch_size": 3, "drop_last": False,
    "world_size": 2,
}  # fmt: skip


@pytest.fixture(params=KINDS)
def reader(request):
    """Opens clients of one kind."""
    readers = []

    def open_(server, **options):
        path = server if isinstance(server, str) else server.path
        readers.append(Reader(request.param, path, **({"reconnect_timeout": 20} | options)))
        return readers[-1]

    yield open_
    for reader in readers:
        reader.__exit__()


@pytest.fixture
def path():
    """Where several servers may listen, one after the other."""
    folder = tempfile.mkdtemp(prefix="tundish-")
    yield f"{folder}/s"
    shutil.rmtree(folder)


class TestCtrlC:
    @pytest.mark.parametrize("peer", ["nobody", "a silent server"])
    @pytest.mark.parametrize("split", [None, "g"])
    def test_comes_at_once_and_leaves_the_stream_whole(self, path, reader, peer, split):
        script = [Batch(n, [n], number=n) for n in range(4)]
        said = {"exact": False, "in_order": False} if split else {}
        with ScriptedServer([*script[:2], Silence(), *script[2:]], path=path, announce=said):
            client = reader(path)
            stream = client.epoch(split=split)
            assert [client.next(stream), client.next(stream)] == [0, 1]
        silent = ScriptedServer(path=path, welcome=False)
        if peer != "nobody":
            silent.start()
        for _ in range(3):
            sent = []

            def interrupt(sent=sent):
                time.sleep(120 * MS)
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                client.next(stream)
            assert time.monotonic() - sent[0] < 100 * MS
            thread.join()
            if split is None:
                assert stream.position == (0, 2)
        silent.stop()
        with ScriptedServer(script, path=path, announce=said) as server:
            assert client.outcomes(stream) == [2, 3, END]
            (asked,) = server.kinds("EPOCH")
            assert asked["acked"] == [[0, 1]] if split else asked["start"] == 2

    def test_in_the_moment_a_stream_is_asked_for_ends_it(self, path, monkeypatch):
        with ScriptedServer([0, 1], path=path) as server, Client(path) as client:
            update = client._link.update

            def interrupted(*args):
                result = update(*args)
                if args[0] == "open_stream":
                    raise KeyboardInterrupt
                return result

            monkeypatch.setattr(client._link, "update", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.epoch(0)
            gc.collect()
            client.ping()
            assert server.kinds("CANCEL") == [{"stream": 1}]


def in_child(work) -> int:
    """Forks; returns the exit status of work() in the child: 0 if it returned True."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(5)  # ends it if it hangs
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def refused(call) -> bool:
    try:
        call()
    except TundishError as error:
        return "fork" in str(error) and str(os.getppid()) in str(error)
    return False


def inode(sock) -> int:
    return os.fstat(sock.fileno()).st_ino


def inodes() -> list[int]:
    """Of all open file descriptors."""
    out = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            out.append(os.fstat(fd).st_ino)
        except OSError:
            pass
    return out


class TestFork:
    """A child of a process that is connecting: told so, with nothing of the connection in it."""

    def test_in_the_middle_of_a_handshake(self, path):
        with ScriptedServer([0, 1, Close(), 2], path=path):
            client = Client(path, reconnect_timeout=20)
            stream = client.epoch(0)
            assert [next(stream), next(stream)] == [0, 1]
        got = []
        reader = threading.Thread(target=lambda: got.extend(stream))
        with ScriptedServer(path=path, welcome=False) as silent:
            reader.start()
            silent.wait_for(lambda: bool(silent.kinds("HELLO")))
            ours = inode(client._link._opening._sock)

            def child() -> bool:
                told = all(refused(c) for c in (client.ping, client.feeds, lambda: client.epoch(0)))
                client.close()
                return told and ours not in inodes()

            assert in_child(child) == 0
            assert silent.connections == 1
            assert [kind for kind, _ in silent.received] == ["HELLO"]
        with ScriptedServer([0, 1, 2], path=path):
            reader.join(5)
            assert got == [2]
        client.close()

    def test_in_the_middle_of_the_first_handshake(self, path):
        with ScriptedServer(path=path, welcome=False) as silent:
            opened = []
            thread = threading.Thread(target=lambda: opened.append(Client(path)))
            thread.start()
            silent.wait_for(lambda: bool(silent.kinds("HELLO")))

            def open_now():
                return [one._sock for one in _opening._live if one._sock is not None]

            wait_for(lambda: len(open_now()) == 1, "the connection")
            ours = inode(open_now()[0])
            assert in_child(lambda: ours not in inodes()) == 0
        with ScriptedServer([5], path=path):
            thread.join(5)
            assert list(opened[0].epoch(0)) == [5]
            opened[0].close()

    def test_while_another_thread_changes_something(self, path):
        with ScriptedServer([0, 1, 2], path=path), Client(path, reconnect_timeout=20) as client:
            streams = [client.epoch(0), client.epoch(0, split="g")]
            assert [next(stream) for stream in streams] == [0, 0]
            held, done = threading.Event(), threading.Event()

            def hold():
                with client._link._lock:
                    held.set()
                    done.wait()

            thread = threading.Thread(target=hold)
            thread.start()
            held.wait()
            calls = [client.ping, *(lambda stream=stream: next(stream) for stream in streams)]
            status = in_child(lambda: all(refused(call) for call in calls))
            done.set()
            thread.join()
            assert status == 0
            assert list(streams[0]) == [1, 2]

    async def test_of_an_async_client_in_the_middle_of_a_handshake(self, path):
        with ScriptedServer([0, 1, Close(), 2], path=path):
            client = AsyncClient(path, reconnect_timeout=20)
            stream = client.epoch(0)
            assert [await anext(stream), await anext(stream)] == [0, 1]
        with ScriptedServer(path=path, welcome=False) as silent:
            waiting = asyncio.create_task(anext(stream))
            await until(lambda: bool(silent.kinds("HELLO")), "HELLO")
            ours = inode(client._link._opening._sock)

            def child() -> bool:
                return refused(lambda: client.epoch(0)) and ours not in inodes()

            assert in_child(child) == 0
            assert silent.connections == 1
        with ScriptedServer([0, 1, 2], path=path):
            assert await waiting == 2
            assert await anext(stream, END) is END
            await client.aclose()


class TestSplitsThatAreLeft:
    """A stream that ends in the pause has told its acknowledgements to nobody."""

    SAID = {"exact": False, "in_order": False, "fingerprint": PRINT}
    SCRIPT = [Batch(f"batch {n}", [n], number=n) for n in (3, 1, 4)]

    def away(self, reader, path):
        with ScriptedServer([*self.SCRIPT, Silence()], path=path, announce=self.SAID):
            client = reader(path)
            stream = client.epoch(split="g")
            assert [client.next(stream) for _ in range(2)] == ["batch 3", "batch 1"]
        return client, stream

    def told(self, client, path):
        with ScriptedServer(self.SCRIPT, path=path, announce=self.SAID) as server:
            client.run(client.client.ping())
            client.run(client.client.ping())
            return server.kinds("EPOCH"), server.kinds("CANCEL")

    def test_by_a_clean_end(self, reader, path):
        client, stream = self.away(reader, path)
        client.close(stream)
        (asked,), cancels = self.told(client, path)
        assert (asked["split"], asked["acked"]) == ("g", [[1, 1], [3, 3]])
        assert asked["credits"] == {"batches": 0, "bytes": 0}
        assert asked["fingerprint"] == PRINT
        assert cancels == [{"stream": 1}]
        assert self.told(client, path) == ([], [])  # once

    def test_by_an_exception(self, reader, path):
        client, stream = self.away(reader, path)
        with pytest.raises(ZeroDivisionError):
            self.raise_in_with(client, stream)
        (asked,), cancels = self.told(client, path)
        assert (asked["acked"], cancels) == ([[3, 3]], [{"stream": 1}])

    def raise_in_with(self, client, stream):
        if client.runner is None:
            with stream:
                raise ZeroDivisionError

        async def main():
            try:
                raise ZeroDivisionError
            except ZeroDivisionError as error:
                await stream.__aexit__(ZeroDivisionError, error, None)
                raise

        client.runner.run(main())

    def test_by_break(self, path):
        with ScriptedServer([*self.SCRIPT, Silence()], path=path, announce=self.SAID) as server:
            client = Reader("sync", path, reconnect_timeout=20)
            for batch in client.epoch(split="g"):
                if batch == "batch 1":
                    server.stop()
                    break
        (asked,), cancels = self.told(client, path)
        assert (asked["acked"], cancels) == ([[1, 1], [3, 3]], [{"stream": 1}])
        client.close()

    async def test_by_break_out_of_async_for(self, path):
        with ScriptedServer([*self.SCRIPT, Silence()], path=path, announce=self.SAID) as server:
            client = AsyncClient(path, reconnect_timeout=20)
            async for batch in client.epoch(0, split="g"):
                if batch == "batch 1":
                    server.stop()
                    break
        with ScriptedServer(self.SCRIPT, path=path, announce=self.SAID) as server:
            await client.ping()
            await client.ping()
            (asked,) = server.kinds("EPOCH")
            assert (asked["acked"], server.kinds("CANCEL")) == ([[1, 1], [3, 3]], [{"stream": 1}])
        await client.aclose()

    @pytest.mark.parametrize("timeout", [0, 10])
    async def test_by_break_just_before_the_client_is_closed(self, path, timeout):
        """The server is there: it is told although the loop has no further turn."""
        with ScriptedServer([*self.SCRIPT, Silence()], path=path, announce=self.SAID) as server:
            async with AsyncClient(path, reconnect_timeout=timeout) as client:
                async for batch in client.epoch(0, split="g"):
                    if batch == "batch 1":
                        break
            server.wait_for(lambda: server.connections == 0)
            assert server.kinds("CANCEL") == [{"stream": 1, "batch": 1}]

    def test_that_had_acknowledged_nothing_have_nothing_to_tell(self, reader, path):
        with ScriptedServer([*self.SCRIPT, Silence()], path=path, announce=self.SAID):
            client = reader(path)
            streams = [client.epoch(split="g"), client.epoch()]
            for stream in streams:
                client.next(stream)
        with pytest.raises(ZeroDivisionError):
            self.raise_in_with(client, streams[0])
        client.close(streams[1])
        assert self.told(client, path) == ([], [])


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


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_length_of_a_stream_that_was_closed_before_it_began(kind, path):
    """START may come or not: nobody waits for it."""
    with ScriptedServer([0, 1], path=path) as server:
        if kind == "sync":
            with Client(path) as client:
                stream = client.epoch(0)
                stream.close()
                with pytest.raises(TundishError, match="closed"):
                    len(stream)
            return

        async def main():
            async with AsyncClient(path) as client:
                for asked in (True, False):
                    stream = client.epoch(0)
                    if asked:
                        await client._started(stream._state)
                    await stream.aclose()
                    with pytest.raises(TundishError, match="closed"):
                        await stream.__aenter__()
            wait_for(lambda: server.connections == 0, "the end")

        asyncio.run(main())
