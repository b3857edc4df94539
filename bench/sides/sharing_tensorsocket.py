"""tensorsocket: one producer over a PyTorch DataLoader, several consumers.

``--variant`` is the number of consumers. Producer and consumers are started for each turn, as the
producer goes on with the next epoch by itself. They read two epochs, and the second one counts:
connecting takes seconds.
"""

import contextlib
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from tensorsocket import TensorConsumer, TensorProducer
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[1]))
import photos
import side
import team

PATIENCE = 8
"""Seconds without a batch after which a consumer takes what it has for all there is."""


def free_ports() -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [str(each.getsockname()[1]) for each in sockets]


def ports_of(text: str) -> dict[str, object]:
    port, ack, *heart = map(int, text.split(","))
    return {"port": port, "ack_port": ack, "heart_ports": tuple(heart)}


def produce(ports: str, size: int) -> None:
    """Answers the turn when it has sent two epochs to `size` consumers."""

    def turn(_epoch: int, _limit: int) -> dict[str, object]:
        loader = DataLoader(data, args.batch, num_workers=args.workers, persistent_workers=True)
        # Without a GPU, a group of batches is pickled as a whole for each of its batches and each
        # consumer: 18 GB for groups of 8, the default, and four consumers. With 1 it fails.
        producer = TensorProducer(loader, **ports_of(ports), producer_batch_size=2)
        while len(producer.hb.consumers) < size:
            time.sleep(0.01)
        for _ in range(2):
            for _ in producer:
                pass
        return {}

    side.serve(turn)


def consume(ports: str) -> None:
    def turn(_epoch: int, _limit: int) -> dict[str, object]:
        signal.alarm(4 * PATIENCE)
        stream = TensorConsumer(**ports_of(ports), batch_size=args.batch)
        warm = sum(len(y) for _, y in epoch(stream))
        return side.measure(epoch(stream), 2**31) | {"warm": warm}

    def epoch(stream: TensorConsumer) -> Iterator[side.Pair]:
        with contextlib.suppress(TimeoutError):
            for x, y in stream:
                signal.alarm(PATIENCE)
                yield x.numpy(), y.numpy()
        signal.alarm(PATIENCE)

    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError()))
    side.serve(turn)


def main() -> None:
    size = int(args.variant)

    def turn(epoch: int, limit: int) -> dict[str, object]:
        ports = ",".join(free_ports())
        producer = team.Member(__file__, *sys.argv[1:], "--variant", f"producer {ports} {size}")
        members = [
            team.Member(__file__, *sys.argv[1:], "--variant", f"consumer {ports}")
            for _ in range(size)
        ]
        try:
            for member in (producer, *members):
                member.line()
            producer.go(epoch, limit)
            return team.turn(members, epoch, limit, len(data))
        finally:
            for member in (*members, producer):
                member.close()

    side.serve(turn)


if __name__ == "__main__":
    args = side.arguments()
    warnings.simplefilter("ignore")
    data = photos.Photos(args.data)
    role, *rest = args.variant.split(" ")
    if role == "producer":
        produce(rest[0], int(rest[1]))
    elif role == "consumer":
        consume(rest[0])
    else:
        main()
