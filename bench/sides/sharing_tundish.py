"""One service, any number of clients. Run by bench/run.py; ``--variant`` is their number."""

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import photos
import side
import team

import tundish


def consumer(path: str, size: int) -> None:
    def epoch(number: int) -> Iterator[side.Pair]:
        yield from client.epoch(number, group="bench", group_size=size)

    logging.getLogger("tundish.client").setLevel(logging.ERROR)  # the server takes its time
    with tundish.Client(path, connect_timeout=60) as client:
        side.run(epoch)


def main(args: "side.argparse.Namespace") -> None:
    size = int(args.variant)
    with tempfile.TemporaryDirectory(prefix="tundish-") as folder:
        path = f"{folder}/feed.sock"
        command = [sys.executable, "-m", "tundish", "serve", f"{__file__}:feed", "--socket", path]
        env = os.environ | {"TUNDISH_BENCH": "\n".join(sys.argv[1:]), "TUNDISH_LOG_LEVEL": "error"}
        server = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
        members = [team.Member(__file__, path, str(size)) for _ in range(size)]
        try:
            for member in members:
                member.line()
            side.serve(lambda epoch, limit: team.turn(members, epoch, limit, len(feed.dataset)))
        finally:
            for member in members:
                member.close()
            server.terminate()
            server.wait(10)


def loader() -> tundish.DataLoader:
    return tundish.DataLoader(
        photos.Photos(args.data), args.batch, num_workers=args.workers, prefetch=4
    )


if "TUNDISH_BENCH" in os.environ:
    sys.argv[1:] = os.environ["TUNDISH_BENCH"].split("\n")
    args = side.arguments()
    feed = loader()
elif __name__ == "__main__" and len(sys.argv) == 3:
    consumer(sys.argv[1], int(sys.argv[2]))
elif __name__ == "__main__":
    args = side.arguments()
    feed = loader()
    main(args)
