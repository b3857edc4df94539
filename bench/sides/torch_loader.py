"""PyTorch's DataLoader over the same arrays. Run by bench/run.py in the peers' environment."""

import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1]))
import side


class Rows(Dataset):
    """One Python call per sample."""

    def __len__(self) -> int:
        return len(y)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        if args.work == "waits":
            time.sleep(side.WAIT)
        return x[index], y[index]


def loader() -> DataLoader:
    """Two workers stay alive over the epochs, as PyTorch's guide advises."""
    data = (
        Rows()
        if args.work in {"python", "waits"}
        else TensorDataset(*map(torch.from_numpy, (x, y)))
    )
    return DataLoader(
        data,
        args.batch,
        shuffle=bool(args.shuffle),
        num_workers=args.workers,
        persistent_workers=args.workers > 0 and args.work != "first",
    )


def epoch(number: int) -> Iterator[side.Pair]:
    torch.manual_seed(number)
    for batch_x, batch_y in loader() if args.work == "first" else kept:
        yield batch_x.numpy(), batch_y.numpy()


args = side.arguments()
warnings.simplefilter("ignore")
x, y = side.load(args.data)
kept = loader()
side.run(epoch)
