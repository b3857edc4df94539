"""dataloader-rs over the same arrays, in process. Run by bench/run.py on CPython 3.13."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from dataloader_rs import PyDataloader, PyDataset

sys.path.insert(0, str(Path(__file__).parents[1]))
import side


class Rows(PyDataset):
    """Python reads the rows: one call per sample, or per batch where the work allows it."""

    def __len__(self) -> int:
        return len(y)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        return x[index], y[index]


class Waits(Rows):
    """Each sample waits for its storage."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        time.sleep(side.WAIT)
        return x[index], y[index]


class Batches(Rows):
    """The batched protocol, which is this package's fastest way over arrays."""

    def __getitems__(self, indices: list[int]) -> list[side.Pair]:
        # The package wants a sample per index: the batch travels in the first.
        batch = (x[indices], y[indices])
        return [batch] + [batch] * (len(indices) - 1)


def collate(samples: list[tuple[np.ndarray, np.int64]]) -> side.Pair:
    if args.work in {"python", "waits"}:
        return np.stack([s[0] for s in samples]), np.array([s[1] for s in samples])
    return samples[0]


def loader() -> PyDataloader:
    options = {"shuffle": True, "seed": 7} if args.shuffle else {}
    kinds = {"python": Rows, "waits": Waits}
    return PyDataloader(
        kinds.get(args.work, Batches)(),
        batch_size=args.batch,
        items_in_parallel=args.lanes,
        num_workers=args.workers,
        collate_fn=collate,
        **options,
    )


def epoch(_: int) -> Iterator[side.Pair]:
    yield from loader() if args.work == "first" else kept


args = side.arguments()
x, y = side.load(args.data)
kept = loader()
side.run(epoch)
