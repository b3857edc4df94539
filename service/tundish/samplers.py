"""Samplers: which indices make up an epoch.

PyTorch's, with its arguments in their places, and drawn by the engine: any epoch, from any batch
on, at once. With ``order="torch"`` they give what PyTorch's give from a generator seeded with
`seed`. Any other iterable of indices does as a sampler too; it is then read from front to end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from tundish import _core
from tundish.arguments import flag, integer
from tundish.batch_sampler import BatchSampler
from tundish.distributed_sampler import DistributedSampler
from tundish.sampling import (
    MOST,
    Planned,
    Sampler,
    check_sized,
    frozen,
    index_array,
    refuse_generator,
    size_of,
    weight_array,
)
from tundish.yields import shown_value
from tundish_client.errors import ConfigError

__all__ = [
    "BatchSampler",
    "DistributedSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]


class SequentialSampler(Planned, own=True):
    """0, 1, 2 ... to the end, in every epoch; as torch.utils.data.SequentialSampler.

    Args:
        data_source: a dataset, or how many samples it has.

    Example:
        >>> list(SequentialSampler(3))
        [0, 1, 2]
    """

    order = "sequential"

    def __init__(self, data_source: Any) -> None:
        super().__init__()
        self.data_source = check_sized("data_source", data_source)

    def __len__(self) -> int:
        """How many samples the data source has now."""
        return size_of(self.data_source)

    def _drawn_from(self) -> tuple[int, str, None]:
        return len(self), self.order, None

    def _text(self) -> str:
        return f"SequentialSampler(samples={len(self)})"

    def __repr__(self) -> str:
        return f"SequentialSampler({shown_value(self.data_source)})"


class RandomSampler(Planned, own=True):
    """Samples at random, drawn anew each epoch; as torch.utils.data.RandomSampler.

    Args:
        data_source: a dataset, or how many samples it has.
        replacement: whether a sample may come again before all have come.
        num_samples: indices in an epoch; None for as many as there are samples. Without
            replacement more than that are one permutation after the other.
        generator: must be None; give `seed` instead.
        seed: 0 to 2**64 - 1; None draws one, which ``sampler.seed`` tells; given to a DataLoader,
            such a sampler goes by the loader's seed.
        order: "stable" (the same for ever), or whose generator PyTorch would draw from: "torch"
            (the sampler's own, seeded with `seed`), "torch:shared" (the DataLoader has it too),
            "torch:default" (the default one, after ``torch.manual_seed(seed)``); with
            ``persistent_workers=True`` "torch:persistent" and "torch:default:persistent".

    Raises:
        ConfigError: an argument can't be used; the message names it and its value.

    Example:
        >>> list(RandomSampler(10, seed=7, order="torch"))
        [5, 0, 3, 4, 1, 7, 9, 6, 8, 2]
    """

    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: None = None,
        *,
        seed: int | None = None,
        order: str = "stable",
    ) -> None:
        super().__init__()
        refuse_generator(generator)
        self.data_source = check_sized("data_source", data_source)
        self.replacement: Final = flag("replacement", replacement)
        self._num_samples = (
            None if num_samples is None else integer("num_samples", num_samples, 1, MOST)
        )
        self._draw(seed, order)

    @property
    def num_samples(self) -> int:
        """Indices in an epoch."""
        return size_of(self.data_source) if self._num_samples is None else self._num_samples

    def __len__(self) -> int:
        """Indices in an epoch, by the data source's present length."""
        return self.num_samples

    def _drawn_from(self) -> tuple[int, str, _core.Sampling]:
        samples = size_of(self.data_source)
        if samples:
            number = samples if self._num_samples is None else self._num_samples
            return 0, self.order, _core.Sampling.random(samples, number, self.replacement)
        if self._num_samples is None:
            return 0, self.order, _core.Sampling.subset(np.empty(0, np.int64))
        raise ConfigError(
            f"num_samples={self._num_samples} can't be drawn: the data source has no samples"
        )

    def _text(self) -> str:
        samples = f"samples={size_of(self.data_source)}, num_samples={self.num_samples}"
        return f"RandomSampler({samples}, replacement={self.replacement})"

    def __repr__(self) -> str:
        number = "" if self._num_samples is None else f", num_samples={self._num_samples}"
        what = f"{shown_value(self.data_source)}, replacement={self.replacement}{number}"
        return f"RandomSampler({what}, seed={self.seed}, order={self.order!r})"


class SubsetRandomSampler(Planned, own=True):
    """Some indices, shuffled anew each epoch; as torch.utils.data.SubsetRandomSampler.

    Args:
        indices: integers from 0 on, in a list, an array or anything iterable. They are copied here;
            an index may stand there twice.
        generator: must be None; give `seed` instead.
        seed, order: as of :class:`RandomSampler`.

    Raises:
        ConfigError: an argument can't be used; the message names it and its value.

    Example:
        >>> sorted(SubsetRandomSampler([4, 2, 9], seed=0))
        [2, 4, 9]
    """

    def __init__(
        self,
        indices: Iterable[int],
        generator: None = None,
        *,
        seed: int | None = None,
        order: str = "stable",
    ) -> None:
        super().__init__()
        refuse_generator(generator)
        self._indices = index_array(indices)
        self._native: _core.Sampling | None = None
        self._draw(seed, order)

    @property
    def indices(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The indices, as an array that can't be written to."""
        return frozen(self._indices)

    def __len__(self) -> int:
        """How many indices there are."""
        return len(self._indices)

    def _drawn_from(self) -> tuple[int, str, _core.Sampling]:
        return 0, self.order, self._sampling()

    def _text(self) -> str:
        return f"SubsetRandomSampler({self._sampling().digest})"

    def _sampling(self) -> _core.Sampling:
        native: _core.Sampling | None = self.__dict__.get("_native")
        if native is None:
            native = self._native = _core.Sampling.subset(self._indices)
        return native

    def __repr__(self) -> str:
        what = f"{len(self._indices)} indices, seed={self.seed}, order={self.order!r}"
        return f"<SubsetRandomSampler of {what}>"


class WeightedRandomSampler(Planned, own=True):
    """Samples as often as their weights say; as torch.utils.data.WeightedRandomSampler.

    Args:
        weights: a number from 0 on for each sample; their sum need not be 1. They are copied here.
        num_samples: indices in an epoch.
        replacement: whether a sample may come more than once. Without, there must be as many
            weights above 0 as are drawn.
        generator: must be None; give `seed` instead.
        seed, order: as of :class:`RandomSampler`.

    Raises:
        ConfigError: an argument can't be used; the message names it and its value.

    Example:
        >>> set(WeightedRandomSampler([0.5, 0.0, 2.0], 100, seed=0))
        {0, 2}
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int,
        replacement: bool = True,
        generator: None = None,
        *,
        seed: int | None = None,
        order: str = "stable",
    ) -> None:
        super().__init__()
        refuse_generator(generator)
        self._weights = weight_array(weights)
        self.num_samples: Final = integer("num_samples", num_samples, 1, MOST)
        self.replacement: Final = flag("replacement", replacement)
        self._native: _core.Sampling | None = None
        self._draw(seed, order)
        self._sampling()

    @property
    def _reach(self) -> int:
        return len(self._weights)

    @property
    def weights(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The weights, as an array that can't be written to."""
        return frozen(self._weights)

    def __len__(self) -> int:
        """Indices in an epoch."""
        return self.num_samples

    def _drawn_from(self) -> tuple[int, str, _core.Sampling]:
        return 0, self.order, self._sampling()

    def _text(self) -> str:
        return f"WeightedRandomSampler({self._sampling().digest})"

    def _sampling(self) -> _core.Sampling:
        native: _core.Sampling | None = self.__dict__.get("_native")
        if native is None:
            make = _core.Sampling.weighted
            try:
                native = make(self._weights, self.num_samples, self.replacement)
            except ValueError as error:
                raise ConfigError(str(error)) from None
            self._native = native
        return native

    def __repr__(self) -> str:
        what = f"{len(self._weights)} weights, num_samples={self.num_samples}"
        drawn = f"replacement={self.replacement}, seed={self.seed}, order={self.order!r}"
        return f"<WeightedRandomSampler of {what}, {drawn}>"
