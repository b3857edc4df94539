"""tensorsocket: one producer over a PyTorch DataLoader, several consumers.

``--variant`` is the number of consumers. Producer and consumers are started for each turn, as the
producer goes on with the next epoch by itself; the time begins when all consumers are connected.
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

PATIENCE = 60


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
    """Answers the turn when it has sent one epoch to `size` consumers."""

    def turn(_epoch: int, _limit: int) -> dict[str, object]:
        loader = DataLoader(data, args.batch, num_workers=args.workers)
        producer = TensorProducer(loader, **ports_of(ports))
        while len(producer.hb.consumers) < size:
            time.sleep(0.01)
        for _ in producer:
            pass
        return {}

    side.serve(turn)


def consume(ports: str) -> None:
    def turn(_epoch: int, _limit: int) -> dict[str, object]:
        signal.alarm(PATIENCE)  # not every consumer sees the end
        stream = TensorConsumer(**ports_of(ports), batch_size=args.batch)
        begun = time.perf_counter()
        result = side.measure(epoch(stream), 2**31)
        return result | {"wall": time.perf_counter() - begun}

    def epoch(stream: TensorConsumer) -> Iterator[side.Pair]:
        with contextlib.suppress(TimeoutError):
            for x, y in stream:
                yield x.numpy(), y.numpy()

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
