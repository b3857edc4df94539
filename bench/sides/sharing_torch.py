"""A PyTorch DataLoader in each of several consumers. ``--variant`` is their number."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[1]))
import photos
import side
import team


def consumer() -> None:
    def epoch(_number: int) -> Iterator[side.Pair]:
        for x, y in kept:
            yield x.numpy(), y.numpy()

    kept = DataLoader(data, args.batch, num_workers=args.workers, persistent_workers=True)
    side.run(epoch)


def main() -> None:
    options = [*sys.argv[1:], "--variant", ""]
    members = [team.Member(__file__, *options) for _ in range(int(args.variant))]
    try:
        for member in members:
            member.line()
        side.serve(lambda epoch, limit: team.turn(members, epoch, limit, len(data)))
    finally:
        for member in members:
            member.close()


if __name__ == "__main__":
    args = side.arguments()
    warnings.simplefilter("ignore")
    data = photos.Photos(args.data)
    main() if args.variant else consumer()
