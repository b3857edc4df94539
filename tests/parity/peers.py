"""The other side: PyTorch's and dataloader-rs' loaders, and what both sides are compared over."""

import itertools
import multiprocessing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import data as torch_data

import tundish

#: Where `helpers` and `parity` are, for processes that tests start.
TESTS = Path(__file__).parents[1]
#: Small ones, one that needs more than 32 bits (torch takes the low half), and the largest.
SEEDS = (0, 7, 2**32 + 7, 2**63, 2**64 - 1)
#: Around torch's blocks of 32 and its generator's 624 words.
SIZES = (1, 2, 3, 10, 31, 33, 100, 624, 1000)

#: Where torch's worker processes come from: a server process without threads. A fork of this one,
#: whose threads may hold any lock just then, hangs at times.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", "torch.utils.data", "tundish.loader", "uvloop"])


def generator(seed: int) -> torch.Generator:
    """A generator of torch's with this seed."""
    return torch.Generator().manual_seed(seed)


def theirs(dataset: Any, batch_size: int | None = 1, **options: Any) -> torch_data.DataLoader[Any]:
    """torch's DataLoader; batches are the lists of their samples unless `options` say more."""
    if batch_size is not None:
        options.setdefault("collate_fn", list)
    if options.get("num_workers"):
        options["multiprocessing_context"] = PROCESSES
    return torch_data.DataLoader(dataset, batch_size, **options)


def ours(dataset: Any, batch_size: int | None = 1, **options: Any) -> tundish.DataLoader:
    """Tundish's DataLoader, likewise."""
    if batch_size is not None:
        options.setdefault("collate_fn", list)
    return tundish.DataLoader(dataset, batch_size, **options)


def passes(loader: Iterable[Any], count: int) -> list[list[Any]]:
    """`count` passes over a loader, each read to its end."""
    return [list(loader) for _ in range(count)]


def flat(batches: Iterable[Iterable[Any]]) -> list[Any]:
    """The samples of all batches, in order."""
    return list(itertools.chain.from_iterable(batches))


def epochs(loader: tundish.DataLoader, numbers: Iterable[int]) -> Iterator[list[Any]]:
    """These epochs, each asked for by its number."""
    for number in numbers:
        yield list(loader.epoch(number))


def assert_same_passes(loader: tundish.DataLoader, expected: list[list[Any]]) -> None:
    """`loader`'s epochs are `expected`: in turn, and each by itself in another sequence."""
    assert passes(loader, len(expected)) == expected
    numbers = range(len(expected))[::-1]
    assert list(epochs(loader, numbers)) == expected[::-1]
