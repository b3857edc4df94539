"""Datasets cut into parts, and shuffled once, as in PyTorch and burn."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import numpy as np

from tundish.arguments import draw_seed, integer, one_of
from tundish.indices import drawn, is_integer, table
from tundish.selections import Subset
from tundish.view_base import check_map_style
from tundish_client.errors import ConfigError

__all__ = ["random_split", "shuffled", "split", "split_batches"]

_MAX_PARTS = 2**31 - 1
# "torch" is what torch.randperm draws from a new generator, which is DistributedSampler's order.
_ORDERS = {"stable": "stable", "torch": "torch:distributed", "burn": "burn"}


def random_split(
    dataset: Any,
    lengths: Iterable[float],
    generator: None = None,
    *,
    seed: int | None = None,
    order: str = "stable",
) -> list[Subset]:
    """Cut a shuffled dataset into parts, as torch.utils.data.random_split.

    Args:
        dataset: a map-style dataset.
        lengths: of the parts, ``len(dataset)`` together; or fractions of it that sum to 1, which
            are rounded down, and what is left goes to the first parts, one each, round robin.
        generator: must be None.
        seed: 0 to 2**64 - 1; None draws one.
        order: "stable", or "torch" for the parts that PyTorch makes with
            ``torch.Generator().manual_seed(seed)``.

    Returns:
        A ``Subset`` for each length. The parts have no sample in common.

    Raises:
        ConfigError: lengths that don't sum to the dataset's, or another argument.

    Warns:
        UserWarning: a fraction is too small for a single sample.

    Example:
        >>> train, test = random_split(range(10), [0.8, 0.2], seed=7)
        >>> len(train), len(test)
        (8, 2)
    """
    if generator is not None:
        raise ConfigError(
            f"random_split: generator={generator!r} is not supported; pass seed=, and "
            "order='torch' for the parts of torch.Generator().manual_seed(seed)"
        )
    check_map_style("random_split: dataset", dataset)
    samples = len(dataset)
    sizes = _sizes(list(lengths), samples)
    indices = table(_permutation(samples, one_of("order", order, ("stable", "torch")), seed))
    # Copies, so that one part that is kept doesn't keep the indices of all.
    return [
        Subset(dataset, indices[end - size : end])
        for end, size in zip(accumulate(sizes), sizes, strict=True)
    ]


def shuffled(dataset: Any, *, seed: int, order: str = "stable") -> Subset:
    """All samples of a dataset in another order, the same in every epoch.

    Args:
        dataset: a map-style dataset.
        seed: 0 to 2**64 - 1.
        order: "stable", whose indices are computed as they are needed; "torch", which is
            ``Subset(dataset, torch.randperm(len(dataset), generator=...))`` with the generator
            ``torch.Generator().manual_seed(seed)``; "burn", which is
            ``ShuffledDataset::with_seed(dataset, seed)``.

    Returns:
        A ``Subset``.

    Raises:
        ConfigError: an argument can't be used.

    Example:
        >>> sorted(shuffled("abc", seed=1))
        ['a', 'b', 'c']
    """
    check_map_style("shuffled: dataset", dataset)
    name = one_of("order", order, tuple(_ORDERS))
    return Subset._of(dataset, _permutation(len(dataset), name, seed))


def split(dataset: Any, n: int) -> list[Subset]:
    """Cut a dataset into `n` stretches of one length, as burn's ``PartialDataset::split``.

    Args:
        dataset: a map-style dataset.
        n: how many, at least 1. The last one gets the rest too.

    Returns:
        `n` subsets; all but the last are empty if the dataset has fewer than `n` samples.

    Raises:
        ConfigError: an argument can't be used.

    Example:
        >>> [list(part) for part in split("abcde", 2)]
        [['a', 'b'], ['c', 'd', 'e']]
    """
    check_map_style("split: dataset", dataset)
    parts = integer("n", n, 1, _MAX_PARTS)
    samples = len(dataset)
    ends = [samples // parts * (part + 1) for part in range(parts - 1)]
    return _stretches(dataset, [*ends, samples])


def split_batches(dataset: Any, n: int, batch_size: int) -> list[Subset]:
    """Cut a dataset into stretches of whole batches, as burn's ``PartialDataset::split_chunks``.

    Args:
        dataset: a map-style dataset.
        n: how many, at least 1. The first ones get one batch more if they don't divide evenly.
        batch_size: samples in a batch; only the last batch of the last part may have fewer.

    Returns:
        `n` subsets; fewer if there are fewer batches than that, because none is empty.

    Raises:
        ConfigError: an argument can't be used.

    Example:
        >>> [list(part) for part in split_batches("abcdefg", 2, 2)]
        [['a', 'b', 'c', 'd'], ['e', 'f', 'g']]
    """
    check_map_style("split_batches: dataset", dataset)
    parts = integer("n", n, 1, _MAX_PARTS)
    size = integer("batch_size", batch_size, 1, 2**40)
    samples = len(dataset)
    each, extra = divmod(-(-samples // size), parts)
    batches = [each + (part < extra) for part in range(parts)]
    ends = accumulate(count for count in batches if count)
    return _stretches(dataset, [min(end * size, samples) for end in ends])


def _stretches(dataset: Any, ends: list[int]) -> list[Subset]:
    starts = [0, *ends][: len(ends)]
    return [Subset._of(dataset, range(start, end)) for start, end in zip(starts, ends, strict=True)]


def _permutation(samples: int, order: str, seed: int | None) -> Any:
    number = draw_seed() if seed is None else integer("seed", seed, 0, 2**64 - 1)
    return drawn(samples, _ORDERS[order], number)


def _sizes(lengths: list[Any], samples: int) -> list[int]:
    """How many samples each part of a ``random_split`` gets."""
    for part, length in enumerate(lengths):
        if not isinstance(length, (float, np.floating)) and not is_integer(length):
            raise ConfigError(f"lengths[{part}]={length!r} must be an integer or a fraction")
        if not length >= 0:
            raise ConfigError(f"lengths[{part}]={length!r} must not be negative")
    if lengths and math.isclose(math.fsum(lengths), 1):
        return _fractions(lengths, samples)
    total = sum(lengths)
    if not all(map(is_integer, lengths)):
        raise ConfigError(f"lengths={lengths!r} sum to {total}; fractions must sum to 1")
    if total != samples:
        raise ConfigError(
            f"lengths={lengths!r} sum to {total}, but the dataset has {samples} samples"
        )
    return list(map(operator.index, lengths))


def _fractions(fractions: list[float], samples: int) -> list[int]:
    sizes = [math.floor(samples * fraction) for fraction in fractions]
    if sum(sizes) > samples:
        raise ConfigError(f"lengths={fractions!r} sum to more than 1")
    for turn in range(samples - sum(sizes)):
        sizes[turn % len(sizes)] += 1
    for part, size in enumerate(sizes):
        if not size:
            warnings.warn(
                f"random_split: part {part} is empty: lengths[{part}]={fractions[part]!r} of "
                f"{samples} samples",
                UserWarning,
                stacklevel=4,
            )
    return sizes
