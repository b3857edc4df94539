"""Iterable datasets: a base class for them, and several of them as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tundish_client.errors import ConfigError

__all__ = ["ChainDataset", "IterableDataset"]

T_co = TypeVar("T_co", covariant=True)


class IterableDataset(Generic[T_co]):
    """Optional base of iterable datasets: subclasses have ``__iter__``, and maybe ``__len__``.

    ``iter(dataset)`` begins an epoch anew each time. A DataLoader reads it as one stream, never one
    per worker, and calls ``set_epoch(epoch)`` before, if there is such a method.

    ``a + b`` is ``ChainDataset([a, b])``.

    Example:
        >>> class Lines(IterableDataset[str]):
        ...     def __iter__(self):
        ...         return iter("abc")
        >>> list(Lines() + Lines())
        ['a', 'b', 'c', 'a', 'b', 'c']
    """

    if TYPE_CHECKING:  # without one, a subclass that forgot it is refused by name

        def __iter__(self) -> Iterator[T_co]: ...

    def __add__(self, other: Any) -> ChainDataset:
        return ChainDataset([self, other])


class ChainDataset(IterableDataset[Any]):
    """Iterable datasets one after the other, as torch.utils.data.ChainDataset.

    Args:
        datasets: iterables that can be iterated again and again. Each is asked for its iterator
            when its turn comes.

    Attributes:
        datasets: the list of them.

    After an exception of one of them, also in its ``__iter__``, the chain goes on when it is asked
    again: with that iterator, or with the next dataset if there is none.

    Raises:
        ConfigError: one isn't iterable, or is an iterator that could be read only once.

    Example:
        >>> list(ChainDataset([range(2), "ab"]))
        [0, 1, 'a', 'b']
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        for part, dataset in enumerate(self.datasets):
            name = f"ChainDataset: dataset {part} is a {type(dataset).__name__}"
            if isinstance(dataset, Iterator):
                raise ConfigError(
                    f"{name}, which can be read only once; give an object whose __iter__ returns a "
                    "new iterator"
                )
            if not isinstance(dataset, Iterable):
                raise ConfigError(f"{name} without __iter__; use ConcatDataset for map-style ones")

    def __iter__(self) -> Iterator[Any]:
        return _Chained(self.datasets)

    def __len__(self) -> int:
        """The lengths of all datasets together.

        Raises:
            TypeError: one of them doesn't know its length.
        """
        return sum(map(len, self.datasets))

    def set_epoch(self, epoch: int) -> None:
        """Pass the number of the next epoch on to the datasets that want to know it."""
        for dataset in self.datasets:
            if hasattr(dataset, "set_epoch"):
                dataset.set_epoch(epoch)

    def __repr__(self) -> str:
        return f"<ChainDataset of {', '.join(type(dataset).__name__ for dataset in self.datasets)}>"


class _Chained(Iterator[Any]):
    """One pass through a chain. A class, because a generator is over after an exception."""

    def __init__(self, datasets: list[Any]) -> None:
        self._rest = iter(datasets)
        self._current: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        while True:
            try:
                return next(self._current)
            except StopIteration:
                self._current = iter(())  # what has ended is not asked again
            dataset = next(self._rest)
            try:
                self._current = iter(dataset)
            except StopIteration as error:
                raise RuntimeError(
                    f"__iter__ of {type(dataset).__name__} raised StopIteration"
                ) from error
