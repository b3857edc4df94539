"""Shared memory: arrays are the user's, slots come back clean, nothing held ever changes."""

import gc
import os
import resource
import socket
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from helpers.timing import MS
from tundish_client import AsyncClient, Client, ConnectionLost
from tundish_client.pages import PAGE, PageScanner, open_scanner
from tundish_client.shm import Segments
from tundish_client.testing import Close, ScriptedServer, Silence

N = 3000  # float64: several pages


def arrays(n: int, size: int = N) -> list[np.ndarray]:
    return [np.full(size, float(i)) for i in range(n)]


def test_batches_lie_in_the_slots_and_come_back():
    with ScriptedServer(arrays(20), shared_memory=True) as server, Client(server.path) as client:
        for i, batch in enumerate(client.epoch(0)):
            assert (batch == i).all() and batch.flags.writeable
        del batch
        lent = server.arena.generation
        server.wait_for(lambda: len(server.released) == lent)
        assert 4 <= lent <= 20
        assert sorted(generation for _, _, generation in server.released) == [*range(1, lent + 1)]
        assert client._link.segments.lent == 0 and not client._link.segments.copying
        assert not server.kinds("RELEASE")


def test_every_view_keeps_the_slot():
    script = [{"a": np.arange(9), "b": np.arange(5.0)}, Silence()]
    with ScriptedServer(script, shared_memory=True) as server:
        with Client(server.path) as client:
            batch = next(client.epoch(0))
            view = memoryview(batch.pop("b"))[2:4]
            del batch
            gc.collect()
            client.ping()
            assert not server.released and view.tolist() == [2.0, 3.0]
            del view
            server.wait_for(lambda: len(server.released) == 1)


def test_release_reaches_an_idle_server_at_once():
    """No call on the client, and not even its thread."""
    with ScriptedServer([*arrays(1), Silence()], shared_memory=True) as server:
        with Client(server.path) as client:
            held = [next(stream := client.epoch(0))]
            thread = threading.Thread(target=held.clear)
            thread.start()
            thread.join()
            server.wait_for(lambda: server.released == [(1, 0, 1)], 200 * MS)
            del stream


@pytest.mark.parametrize("ioctl", [True, False])
def test_writes_are_invisible_to_the_next_use_of_a_slot(ioctl):
    with ScriptedServer(arrays(60), shared_memory=True, slots=2) as server:
        with Client(server.path) as client:
            client._link.segments._scanner = PageScanner(ioctl=ioctl)
            for i, batch in enumerate(client.epoch(0, prefetch=1)):
                assert (batch == i).all()
                if i % 3 == 0:
                    batch[:] = -1
                elif i % 3 == 1:
                    batch[::700] = -2
        assert not client._link.segments.copying
        assert len({slot for _, slot, _ in server.released}) <= 2


def test_pages_written_by_the_kernel_are_found():
    """read(2) into a batch, as file-like objects do."""
    read, write = os.pipe()
    with ScriptedServer(arrays(10), shared_memory=True, slots=1) as server:
        with Client(server.path) as client:
            for i, batch in enumerate(client.epoch(0, prefetch=1)):
                assert (batch == i).all()
                os.write(write, b"\xff" * 64)
                os.readv(read, [memoryview(batch).cast("B")[8192:8256]])
    os.close(read), os.close(write)


def test_what_is_held_never_changes_after_close():
    with ScriptedServer(arrays(12), shared_memory=True, slots=12) as server:
        with Client(server.path) as client:
            held = list(client.epoch(0, prefetch=12))
            assert client._link.segments.lent == 12
        server.wait_for(lambda: server.connections == 0)
        for slot in range(12):
            server.arena.bytes_of(slot, server.arena.slot_bytes)[:] = 0xEE
        for i, batch in enumerate(held):
            assert (batch == i).all()
            batch[:] = i + 1  # and stays writable


def test_what_is_held_never_changes_after_goaway():
    with ScriptedServer([*arrays(2), Silence()], shared_memory=True) as server:
        with Client(server.path) as client:
            stream = client.epoch(0)
            held = [next(stream), next(stream)]
            server.goaway("upgrade")
            client.ping()
            for slot in range(4):
                server.arena.bytes_of(slot, server.arena.slot_bytes)[:] = 0xEE
            assert (held[0] == 0).all() and (held[1] == 1).all()


def test_what_a_forked_child_holds_never_changes():
    with ScriptedServer([*arrays(1), Silence()], shared_memory=True) as server:
        with Client(server.path) as client:
            held = next(client.epoch(0))
            started, go = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.read(started, 1)
                os._exit(0 if (held == 0).all() and not client._link.segments.lent else 1)
            del held
            server.wait_for(lambda: len(server.released) == 1)
            server.arena.bytes_of(0, server.arena.slot_bytes)[:] = 0xEE
            os.write(go, b"x")
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            os.close(started), os.close(go)


def test_arrays_outlive_a_lost_server():
    server = ScriptedServer([*arrays(3), Close()], shared_memory=True).start()
    client = Client(server.path)
    stream = client.epoch(0, prefetch=3)
    held = [next(stream) for _ in range(3)]
    with pytest.raises(ConnectionLost):
        next(stream)
    server.stop()
    assert all((batch == i).all() for i, batch in enumerate(held))
    client.close()
    held[0][:] = 7
    assert all((batch == i).all() for i, batch in enumerate(held[1:], 1))


def test_late_finalizers_do_nothing():
    with ScriptedServer(arrays(3), shared_memory=True) as server:
        client = Client(server.path)
        stream = client.epoch(0, prefetch=1)
        held = next(stream)
        client.close()
        server.wait_for(lambda: server.connections == 0)
        with Client(server.path) as other:
            before = list(server.released)
            del held
            gc.collect()
            other.ping()
            assert server.released == before
            assert len(list(other.epoch(0, copy=True))) == 3


def test_copy_hands_out_arrays_of_ones_own():
    with ScriptedServer(arrays(6), shared_memory=True, slots=2) as server:
        with Client(server.path) as client:
            held = list(client.epoch(0, copy=True))
            assert client._link.segments.lent == 0
            assert all((batch == i).all() for i, batch in enumerate(held))
            server.wait_for(lambda: 2 <= len(server.released) == server.arena.generation)


def test_holding_more_than_there_are_slots():
    with ScriptedServer(arrays(30), shared_memory=True, slots=3) as server:
        with Client(server.path) as client:
            held = list(client.epoch(0))
            assert client._link.segments.lent == 3
            assert all((batch == i).all() for i, batch in enumerate(held))


def test_dropped_segment_is_unmapped_when_its_last_lease_returns():
    gc.collect()  # closed clients of the tests before, whose mappings would be counted
    with ScriptedServer([*arrays(2), Silence()], shared_memory=True) as server:
        with Client(server.path) as client:
            stream = client.epoch(0)
            held = [next(stream), next(stream)]
            server.drop_segment()
            client.ping()
            del held[0]
            assert mapped() == 2  # the server's and ours
            assert (held[0] == 1).all() and not server.dropped
            held.clear()
            server.wait_for(lambda: server.dropped == [1])
            assert mapped() == 1
            assert len(server.released) == 2


def mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum("tundish-scripted" in line for line in maps)


def test_a_segment_can_be_announced_again():
    with ScriptedServer(arrays(4), shared_memory=True) as server, Client(server.path) as client:
        assert len(list(client.epoch(0))) == 4
        server.drop_segment()
        client.ping()
        server.wait_for(lambda: server.dropped == [1])
        assert sum(batch[0] for batch in client.epoch(0)) == 6.0


def test_without_pagemap_batches_are_copied(monkeypatch):
    monkeypatch.setattr("tundish_client.shm.open_scanner", lambda: None)
    with ScriptedServer(arrays(9), shared_memory=True, slots=1) as server:
        with Client(server.path) as client:
            held = list(client.epoch(0))
            assert all((batch == i).all() for i, batch in enumerate(held))
            assert client._link.segments.copying and client._link.segments.lent == 0
            assert server.released and held[0].ctypes.data % 64 == 0


def test_without_a_mapping_batches_are_copied(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no")

    server = ScriptedServer(arrays(9), shared_memory=True).start()
    monkeypatch.setattr("tundish_client.shm.mmap.mmap", refuse)
    monkeypatch.setattr("tundish_client.shm.open_scanner", lambda: PageScanner(ioctl=False))
    try:
        with Client(server.path) as client:
            held = list(client.epoch(0))
            assert all((batch == i).all() for i, batch in enumerate(held))
            assert server.released
    finally:
        monkeypatch.undo()
        server.stop()


LOCKED = """
    import ctypes, sys
    import numpy as np
    from tundish_client import Client
    from tundish_client.testing import ScriptedServer
    libc = ctypes.CDLL(None, use_errno=True)
    script = [np.full(3000, float(i)) for i in range(30)]
    with ScriptedServer(script, shared_memory=True, slots=8) as server:
        with Client(server.path) as client:
            stream = client.epoch(0, prefetch=1)
            for i, batch in enumerate(stream):
                assert (batch == i).all(), i
                if i == 10 and sys.argv[1] == "array":
                    batch[:] = 1
                    assert libc.mlock(ctypes.c_void_p(batch.ctypes.data), batch.nbytes) == 0
                elif i == 10:
                    del batch
                    assert libc.mlockall({"current": 1, "future": 3}[sys.argv[1]]) == 0
            print(client._link.segments.copying)
"""


@pytest.mark.parametrize("what", ["array", "current"])
def test_locked_pages_are_copied(what, tmp_path):
    """mlock makes private copies that cannot be dropped."""
    script = tmp_path / "locked.py"
    script.write_text(textwrap.dedent(LOCKED))
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] != resource.RLIM_INFINITY:
        what = "array"
    run = subprocess.run([sys.executable, script, what], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\n", "")


def test_a_full_side_channel_costs_nothing():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    segments = Segments(ours)
    n = 0
    while not segments.backlog:
        segments.release(1, n, n)
        n += 1
    for _ in range(500):
        segments.release(1, n, n)
        n += 1
    got = 0
    theirs.setblocking(False)
    while got < n:
        got += len(theirs.recv(1 << 16)) // 24
        segments.flush()
    assert got == n and not segments.backlog
    theirs.close()
    segments.release(1, 0, 0)  # nobody is there: no error, no queue
    assert not segments.backlog
    segments.close()


def test_file_descriptors_and_maps_stay_few():
    gc.collect()
    with ScriptedServer(arrays(200), shared_memory=True) as server, Client(server.path) as client:
        held = []
        before = len(os.listdir("/proc/self/fd"))
        for batch in client.epoch(0):
            held.append(batch)
        assert len(os.listdir("/proc/self/fd")) <= before + 2
        assert mapped() == 2


@pytest.mark.parametrize("ioctl", [True, False])
def test_scanner_finds_runs_of_pages(ioctl):
    import mmap

    scanner = PageScanner(ioctl=ioctl)
    fd = os.memfd_create("probe")
    os.ftruncate(fd, 400 * PAGE)
    with mmap.mmap(fd, 400 * PAGE, flags=mmap.MAP_PRIVATE) as mapping:
        view = np.frombuffer(mapping, np.uint8)
        start, wanted = view.ctypes.data, []
        assert scanner.copies(start, start + 400 * PAGE) == []
        for page in [0, 1, 2, *range(10, 398, 4), 399]:  # more runs than fit into one answer
            view[page * PAGE + 5] = 1
            wanted.append(page)
        pages = [
            page
            for first, last in scanner.copies(start, start + 400 * PAGE)
            for page in range((first - start) // PAGE, (last - start) // PAGE)
        ]
        assert pages == wanted
        assert scanner.copies(start + PAGE, start + 2 * PAGE) == [(start + PAGE, start + 2 * PAGE)]
        del view
    os.close(fd)
    scanner.close()
    scanner.close()
    assert open_scanner() is not None


async def test_async_client_uses_slots_too():
    with ScriptedServer(arrays(40), shared_memory=True) as server:
        async with AsyncClient(server.path) as client:
            i = 0
            async for batch in client.epoch(0):
                assert (batch == i).all()
                batch[:] = -1
                i += 1
            held = batch
            assert i == 40 and client._link.segments.lent <= 1
        server.wait_for(lambda: server.connections == 0)
        for slot in range(4):
            server.arena.bytes_of(slot, server.arena.slot_bytes)[:] = 0xEE
        assert (held == -1).all() and server.released
