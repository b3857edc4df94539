"""The floor: a process that fills memfd slots with numpy, and 8-byte messages on a socket.

No order but the plan's own, no credits, no errors, no second consumer: what is left when
everything but the hop is taken away. Run by bench/run.py.
"""

import mmap
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import side

SLOTS = 4


def produce(peer: socket.socket, slots: list[np.ndarray], batches: list[np.ndarray]) -> None:
    """Fills a free slot for each batch and says which; a byte from the consumer frees one."""
    free = list(range(SLOTS))
    for index in batches:
        if not free:
            free += peer.recv(SLOTS)
        slot = free.pop()
        end = 0
        for field in FIELDS:
            rows = np.frombuffer(slots[slot], field.dtype, len(index) * field[0].size, end)
            np.take(
                field, index, axis=0, out=rows.reshape(len(index), *field.shape[1:]), mode="clip"
            )
            end += -(-rows.nbytes // 64) * 64
        peer.sendall(slot.to_bytes(4, "little") + len(index).to_bytes(4, "little"))


def serve(peer: socket.socket, slots: list[np.ndarray]) -> None:
    """An epoch for each 8 bytes asked for."""
    while ask := peer.recv(8):
        samples = len(FIELDS[1])
        order = np.arange(samples)
        if args.shuffle:
            np.random.default_rng(int.from_bytes(ask[:4], "little")).shuffle(order)
        count = int.from_bytes(ask[4:], "little")
        batches = [order[i : i + args.batch] for i in range(0, samples, args.batch)][:count]
        produce(peer, slots, batches)


def received(count: int) -> Iterator[side.Pair]:
    """The batches of an epoch; a slot goes back when the next batch is asked for."""
    x, y = FIELDS
    for i in range(count):
        message = ours.recv(8, socket.MSG_WAITALL)
        slot, n = message[0], int.from_bytes(message[4:], "little")
        offset = -(-n * x[0].nbytes // 64) * 64
        yield (
            np.frombuffer(views[slot], x.dtype, n * x[0].size).reshape(n, *x.shape[1:]),
            np.frombuffer(views[slot], y.dtype, n, offset),
        )
        if i + SLOTS < count:
            ours.send(bytes([slot]))


def epoch(number: int) -> Iterator[side.Pair]:
    count = -(-len(FIELDS[1]) // args.batch)
    ours.sendall(number.to_bytes(4, "little") + count.to_bytes(4, "little"))
    batches = received(count)
    try:
        # Not `yield from`, which would close it: what is left is read after the clock stopped.
        for batch in batches:  # noqa: UP028
            yield batch
    finally:
        for _ in batches:
            pass


args = side.arguments()
FIELDS = side.load(args.data)
size = args.batch * sum(f[0].nbytes for f in FIELDS)
size = (size // mmap.PAGESIZE + 2) * mmap.PAGESIZE
memory = os.memfd_create("floor")
os.ftruncate(memory, SLOTS * size)
views = [mmap.mmap(memory, size, offset=i * size) for i in range(SLOTS)]
ours, theirs = socket.socketpair()
if os.fork() == 0:
    ours.close()
    serve(theirs, [np.frombuffer(view, np.uint8) for view in views])
    os._exit(0)
theirs.close()
side.run(epoch)
