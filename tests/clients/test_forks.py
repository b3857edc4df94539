"""A client in a forked child while the server is away, or just being found."""

import asyncio
import os
import threading

from helpers.clients import END
from helpers.forked import in_child, inode, inodes, refused
from helpers.timing import until, wait_for
from tundish_client import AsyncClient, Client, TundishError, _opening
from tundish_client.testing import Close, ScriptedServer


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
            ours = inode(client._link._opening._sock.fileno())

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
            ours = inode(open_now()[0].fileno())
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
            ours = inode(client._link._opening._sock.fileno())

            def child() -> bool:
                return refused(lambda: client.epoch(0)) and ours not in inodes()

            assert in_child(child) == 0
            assert silent.connections == 1
        with ScriptedServer([0, 1, 2], path=path):
            assert await waiting == 2
            assert await anext(stream, END) is END
            await client.aclose()

    def test_a_forked_child_has_no_part_in_it(self, path):
        with ScriptedServer([0, 1, 2, Close(), 3], path=path):
            client = Client(path, reconnect_timeout=60)
            stream = client.epoch(0)
            assert [next(stream) for _ in range(3)] == [0, 1, 2]
        with ScriptedServer([0, 1, 2, 3], path=path) as server:
            pid = os.fork()
            if pid == 0:
                try:
                    next(stream)
                except TundishError as error:
                    os._exit(0 if "fork" in str(error) else 2)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert list(stream) == [3]
            assert len(server.kinds("HELLO")) == 1
        client.close()
