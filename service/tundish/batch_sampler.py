"""``BatchSampler``: the indices of any sampler, so and so many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

from tundish.arguments import flag, integer
from tundish.passes import END
from tundish.sampling import Sampler
from tundish.yields import check_sampler, shown_value

__all__ = ["BatchSampler"]

_MOST = 2**40


class BatchSampler(Sampler[list[int]]):
    """Lists of a sampler's indices; as torch.utils.data.BatchSampler.

    A loader takes it apart: ``batch_sampler=BatchSampler(s, n, drop)`` is the same there as
    ``sampler=s, batch_size=n, drop_last=drop``.

    Args:
        sampler: any iterable of indices.
        batch_size: indices in a batch; the last of an epoch may have fewer.
        drop_last: leave out the last batch if it is short.

    Raises:
        ConfigError: an argument can't be used; the message names it and its value.

    Example:
        >>> list(BatchSampler(range(5), 2))
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool = False) -> None:
        super().__init__()
        check_sampler("sampler", sampler)
        self.sampler: Final = sampler
        self.batch_size: Final = integer("batch_size", batch_size, 1, _MOST)
        self.drop_last: Final = flag("drop_last", drop_last)

    def __len__(self) -> int:
        """Batches in an epoch, by the sampler's present length.

        Raises:
            TypeError: the sampler has none.
        """
        number = len(self.sampler)  # type: ignore[arg-type]
        return number // self.batch_size if self.drop_last else -(-number // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of an epoch; from a new iterator, which an interrupt leaves as it is."""
        return _Batches(iter(self.sampler), self.batch_size, self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler, if it is to be told."""
        tell = getattr(self.sampler, "set_epoch", None)
        if callable(tell):
            tell(epoch)

    def __repr__(self) -> str:
        what = f"{shown_value(self.sampler)}, {self.batch_size}, drop_last={self.drop_last}"
        return f"BatchSampler({what})"


class _Batches:
    """The lists of one epoch."""

    def __init__(self, indices: Iterator[Any], size: int, drop_last: bool) -> None:
        self._indices = chain(indices, (END,))
        self._size = size
        self._drop_last = drop_last
        self._batch: list[Any] = []

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> list[Any]:
        if END not in self._batch[-1:]:
            # In one step of C, so that an interrupt finds every index that was read in the list.
            self._batch.extend(islice(self._indices, self._size - len(self._batch)))
        batch, over = self._batch, END in self._batch[-1:]
        if not over:
            self._batch = []
            return batch
        rest = batch[:-1]
        self._batch = [END]
        if rest and not self._drop_last:
            return rest
        raise StopIteration
