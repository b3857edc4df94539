"""What all views have in common: checked indices, the batched fetch, awaiting."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from tundish import randomness
from tundish.indices import place, places
from tundish_client.errors import ConfigError

if TYPE_CHECKING:
    from tundish.views import ConcatDataset

__all__ = [
    "Dataset",
    "Fetch",
    "Join",
    "View",
    "at_once",
    "check_map_style",
    "is_async",
    "read",
    "ready",
]

T_co = TypeVar("T_co", covariant=True)

_ITEM, _ITEMS = "__getitem__", "__getitems__"


class Dataset(Generic[T_co]):
    """Optional base of map-style datasets: subclasses have ``__len__`` and ``__getitem__``.

    It adds ``a + b``, which is ``ConcatDataset([a, b])``, and a name for type hints.

    Example:
        >>> class Squares(Dataset[int]):
        ...     def __len__(self):
        ...         return 4
        ...
        ...     def __getitem__(self, index):
        ...         return index * index
        >>> (Squares() + Squares())[6]
        4
    """

    if TYPE_CHECKING:  # without one, a subclass that forgot it is refused by name

        def __getitem__(self, index: Any) -> T_co: ...

    def __add__(self, other: Any) -> ConcatDataset:
        from tundish.views import ConcatDataset

        return ConcatDataset([self, other])


def is_async(dataset: Any, method: str | None = None) -> bool:
    """Whether samples of `dataset` have to be awaited.

    Args:
        dataset: any map-style dataset.
        method: "__getitem__" or "__getitems__"; None asks for either.
    """
    if method is None:
        return is_async(dataset, _ITEM) or is_async(dataset, _ITEMS)
    told = getattr(type(dataset), "_is_async", None)
    if told is not None:
        return bool(told(dataset, method))
    if method == _ITEM and hasattr(type(dataset), _ITEM):
        return inspect.iscoroutinefunction(type(dataset).__getitem__)
    return inspect.iscoroutinefunction(getattr(dataset, _ITEMS, None))


class Fetch(NamedTuple):
    """One batched fetch of a dataset below a view."""

    label: str
    dataset: Any
    indices: list[int]
    #: For each index the place in the view's batch that it is for.
    places: list[int]


Join = Callable[[list[list[Any]]], Any]
"""Makes samples of what was fetched; the result is awaitable where the fetch is."""

_FIRST: Join = itemgetter(0)


class View(Dataset[Any]):
    """What all views share: checked indices, the batched fetch, awaiting.

    A subclass says what is below (``_below``), how one sample is made (``_item``), and how many are
    (``_fetches``). A user's subclass that overrides ``__getitem__`` alone has no batched fetch,
    which would pass its override by.
    """

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    def __getitem__(self, index: int) -> Any:
        """Sample `index`, from the end if negative; an awaitable of it if :func:`is_async`.

        Raises:
            IndexError: there is no such sample.
            TypeError: `index` is no integer.
        """
        return self._item(place(index, len(self), self))

    @property
    def __getitems__(self) -> Callable[[Sequence[int]], Any]:
        """The samples of a list of indices, by the batched fetch of the datasets below.

        Raises:
            AttributeError: not all of them have one.
        """
        if _passed_by(type(self)) or not all(map(_has_fetch, self._below())):
            raise AttributeError(f"{type(self).__name__} has no __getitems__ to pass on")
        return self._fetch_awaiting if self._awaits(_ITEMS) else self._fetch

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    def __repr__(self) -> str:
        below = ", ".join(type(dataset).__name__ for dataset in self._below())
        return f"<{type(self).__name__} of {below}: {len(self)} samples>"

    def _is_async(self, method: str) -> bool:
        if method == _ITEM and type(self).__getitem__ is View.__getitem__:
            return self._awaits_item
        own = type(self).__getitem__ if method == _ITEM else getattr(self, _ITEMS, None)
        return inspect.iscoroutinefunction(own)

    def _awaits(self, method: str) -> bool:
        return any(is_async(dataset, method) for dataset in self._below())

    @cached_property
    def _awaits_item(self) -> bool:
        return self._awaits(_ITEM)

    # -- what a view is made of -----------------------------------------------------------------

    @abstractmethod
    def _below(self) -> Sequence[Any]:
        """The datasets that this view is made of."""

    @abstractmethod
    def _item(self, at: int) -> Any:
        """Sample `at`, which is in range; an awaitable if ``_awaits_item``."""

    @abstractmethod
    def _fetches(self, indices: list[int]) -> tuple[list[Fetch], Join]:
        """What to fetch for `indices`, and what makes their samples of it."""

    def _only(self, dataset: Any, indices: list[int]) -> tuple[list[Fetch], Join]:
        """One fetch, of as many samples as the view's."""
        every = list(range(len(indices)))
        return [Fetch(self._label(dataset), dataset, indices, every)], _FIRST

    def _label(self, dataset: Any) -> str:
        return f"{type(self).__name__} of {type(dataset).__name__}"

    # -- the batched fetch ----------------------------------------------------------------------

    def _fetch(self, indices: Sequence[int]) -> list[Any]:
        fetches, join = self._fetches(places(indices, len(self), self))
        found = []
        for label, dataset, below, at in fetches:
            with randomness.places(at):
                found.append(counted(dataset.__getitems__(below), len(below), label))
        samples: list[Any] = join(found)
        return samples

    async def _fetch_awaiting(self, indices: Sequence[int]) -> list[Any]:
        fetches, join = self._fetches(places(indices, len(self), self))
        found = []
        # One after the other: samples that draw from one generator draw in the same order.
        for label, dataset, below, at in fetches:
            with randomness.places(at):
                result = await ready(dataset.__getitems__(below))
            found.append(counted(result, len(below), label))
        samples: list[Any] = await ready(join(found))
        return samples


# -- the datasets below --------------------------------------------------------------------------


def check_map_style(name: str, dataset: Any, way_out: str = "choose in its __iter__") -> None:
    """ConfigError unless `dataset` has ``__len__`` and samples by index."""
    kind = type(dataset)
    shown = f"{name} is a {kind.__name__}"
    if any(base.__name__ == "IterableDataset" for base in kind.__mro__):
        raise ConfigError(f"{shown}, an iterable dataset without indices; {way_out}")
    if not hasattr(kind, _ITEM) and not _has_fetch(dataset):
        raise ConfigError(f"{shown} without __getitem__; {way_out}")
    if not hasattr(kind, "__len__"):
        raise ConfigError(f"{shown} without __len__; a view needs to know how many samples it has")


def read(dataset: Any, index: int) -> Any:
    """``dataset[index]``, also of a dataset that has only ``__getitems__``."""
    if hasattr(type(dataset), _ITEM):
        return dataset[index]
    if is_async(dataset, _ITEMS):
        return _read_awaiting(dataset, index)
    with randomness.places((0,)):
        return counted(dataset.__getitems__([index]), 1, type(dataset).__name__)[0]


async def _read_awaiting(dataset: Any, index: int) -> Any:
    with randomness.places((0,)):
        result = await dataset.__getitems__([index])
    return counted(result, 1, type(dataset).__name__)[0]


async def at_once(sample: Any) -> Any:
    """`sample`, for whoever awaits it."""
    return sample


async def ready(value: Any) -> Any:
    """`value`, awaited if need be."""
    return await value if inspect.isawaitable(value) else value


def counted(result: Any, asked: int, label: str) -> list[Any]:
    """The samples of a batched fetch, exactly as many as asked for."""
    if result is None or isinstance(result, (str, bytes, Mapping)):
        kind = "None" if result is None else f"a {type(result).__name__}"
        raise TypeError(f"{label}: __getitems__ returned {kind} instead of {asked} samples")
    if not isinstance(result, (list, tuple)):
        # One more than asked is enough to know, and an endless iterator must end here.
        result = list(islice(iter(result), asked + 1))
    if len(result) != asked:
        more = "at least " if len(result) == asked + 1 else ""
        raise ValueError(
            f"{label}: __getitems__ returned {more}{len(result)} samples for {asked} indices"
        )
    return list(result)


def _has_fetch(dataset: Any) -> bool:
    return callable(getattr(dataset, _ITEMS, None))


def _passed_by(kind: type) -> bool:
    """Whether a subclass overrides ``__getitem__`` without ``__getitems__``."""
    names = [next(base for base in kind.__mro__ if name in vars(base)) for name in (_ITEM, _ITEMS)]
    return kind.__mro__.index(names[0]) < kind.__mro__.index(names[1])
