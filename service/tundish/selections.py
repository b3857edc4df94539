"""Views that choose samples of one dataset by index, natively where the dataset is native."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np

from tundish import _core
from tundish.arguments import flag, integer, one_of
from tundish.datasets import ArrayDataset, is_native
from tundish.indices import Array, Indices, drawn, index_table, table, take
from tundish.view_base import Fetch, Join, View, check_map_style, read
from tundish_client.errors import ConfigError

__all__ = ["SampledDataset", "Subset"]


class Subset(View):
    """Some samples of a dataset, in any order, as torch.utils.data.Subset.

    It is burn's SelectionDataset and PartialDataset, too.

    Args:
        dataset: a map-style dataset.
        indices: integers; negative ones count from the end. They are checked and copied here, into
            8 bytes each; a ``range`` is kept as it is.

    Attributes:
        dataset: as given.
        indices: a read-only numpy array of int64, none of them negative.

    Of an ``ArrayDataset``, or of subsets of one, batches are gathered by Rust threads.

    Raises:
        IndexError: an index is out of range; the text names the first.
        TypeError: an index is no integer.
        ConfigError: `dataset` isn't map-style.

    Example:
        >>> Subset(["a", "b", "c"], [2, 0])[0]
        'c'
    """

    def __init__(self, dataset: Any, indices: Iterable[int]) -> None:
        name = type(self).__name__
        check_map_style(f"{name}: dataset", dataset)
        self.dataset = dataset
        self._indices: Indices = index_table(indices, len(dataset), name)
        self._source: _core.ArraySource | None = None

    @classmethod
    def _of(cls, dataset: Any, indices: Indices) -> Self:
        """A subset whose indices need no check."""
        subset = cls.__new__(cls)
        subset.dataset = dataset
        subset._indices = indices
        subset._source = None
        return subset

    @property
    def indices(self) -> Array:
        """The index in `dataset` of each sample; computed here where they weren't needed yet."""
        return table(self._indices)

    def __len__(self) -> int:
        """The number of indices."""
        return len(self._indices)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_source": None}

    def _below(self) -> Sequence[Any]:
        return [self.dataset]

    def _item(self, at: int) -> Any:
        return read(self.dataset, int(self._indices[at]))

    def _fetches(self, indices: list[int]) -> tuple[list[Fetch], Join]:
        return self._only(self.dataset, take(self._indices, indices))

    # -- for the loader: an ArrayDataset below is read by the engine ----------------------------

    def _is_native(self) -> bool:
        kind = type(self)
        return (
            kind.__getitem__ is View.__getitem__
            and kind.__len__ is Subset.__len__
            and not hasattr(self, "__getitems__")
            and is_native(self.dataset)
        )

    def _native_source(self) -> _core.ArraySource | None:
        if self._source is None:
            arrays, rows = self._rows()
            self._source = arrays._native_source(rows)
        return self._source

    def _rows(self) -> tuple[ArrayDataset, Array]:
        """The arrays at the bottom, and the row of each sample."""
        if isinstance(self.dataset, ArrayDataset):
            return self.dataset, self.indices
        arrays, rows = self.dataset._rows()
        return arrays, rows[self.indices]

    def _sample_nbytes(self) -> int:
        nbytes: int = self.dataset._sample_nbytes()
        return nbytes

    def _gather(self, indices: list[int]) -> Any:
        return self.dataset._gather(take(self._indices, indices))


class SampledDataset(Subset):
    """Randomly chosen samples of a dataset, as burn's SamplerDataset.

    Args:
        dataset: a map-style dataset with at least one sample.
        num_samples: how many to choose.
        replacement: choose each from all of them; else one permutation after the other, the last
            one cut, so that no sample comes twice more often than another.
        seed: 0 to 2**64 - 1.
        order: "stable", or "torch" for what torch.utils.data.RandomSampler draws from
            ``torch.Generator().manual_seed(seed)`` in its first pass.

    Sample i is a pure function of `seed` and i, and the same in every epoch. (burn's is drawn anew
    each time it is asked for, whatever i is; for samples drawn anew each epoch use
    ``RandomSampler``.)

    Raises:
        ConfigError: an argument can't be used.

    Example:
        >>> dataset = SampledDataset(["a", "b"], 5, replacement=False, seed=3)
        >>> sorted(dataset)[1:4]
        ['a', 'b', 'b']
    """

    def __init__(
        self,
        dataset: Any,
        num_samples: int,
        replacement: bool = True,
        *,
        seed: int = 0,
        order: str = "stable",
    ) -> None:
        check_map_style("SampledDataset: dataset", dataset)
        number = integer("num_samples", num_samples, 0, 2**48)
        samples = len(dataset)
        if number and not samples:
            raise ConfigError(f"num_samples={number}: the dataset is empty, nothing can be chosen")
        draws = (number, flag("replacement", replacement))
        seed = integer("seed", seed, 0, 2**64 - 1)
        order = one_of("order", order, ("stable", "torch"))
        self.dataset = dataset
        self._indices = drawn(samples, order, seed, draws) if number else np.empty(0, np.int64)
        self._source = None
