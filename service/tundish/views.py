"""Views: datasets made of datasets, as in PyTorch and burn.

A view holds no samples. It passes the batched fetch (``__getitems__``) of the datasets below on,
and has one only where all of them have one. Datasets with ``async def __getitem__`` or ``async def
__getitems__`` may be below: the view then returns awaitables, and :func:`is_async` says so.
"""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from tundish import randomness
from tundish.arguments import integer
from tundish.chains import ChainDataset, IterableDataset
from tundish.selections import SampledDataset, Subset
from tundish.view_base import (
    Dataset,
    Fetch,
    Join,
    View,
    at_once,
    check_map_style,
    is_async,
    read,
    ready,
)
from tundish_client.errors import ConfigError

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "MapDataset",
    "SampledDataset",
    "StackDataset",
    "Subset",
    "WindowsDataset",
    "is_async",
]

_ITEM, _ITEMS = "__getitem__", "__getitems__"


class ConcatDataset(View):
    """Datasets one after the other, as torch.utils.data.ConcatDataset (burn: ComposedDataset).

    Args:
        datasets: map-style datasets, at least one. Their lengths are read here.

    Attributes:
        datasets: the list of them.
        cumulative_sizes: where each of them ends.

    A batch costs one batched fetch of each dataset that it has samples of.

    Raises:
        ConfigError: no dataset, or one that isn't map-style.

    Example:
        >>> ConcatDataset([[1, 2], [3]])[2]
        3
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ConfigError("ConcatDataset needs at least one dataset, got none")
        for part, dataset in enumerate(self.datasets):
            check_map_style(f"ConcatDataset: dataset {part}", dataset, "use ChainDataset")
        self.cumulative_sizes = list(accumulate(map(len, self.datasets)))

    def __len__(self) -> int:
        """The lengths of all datasets together."""
        return self.cumulative_sizes[-1]

    def _below(self) -> Sequence[Any]:
        return self.datasets

    def _locate(self, at: int) -> tuple[int, int]:
        part = bisect_right(self.cumulative_sizes, at)
        return part, at - self.cumulative_sizes[part - 1] if part else at

    def _item(self, at: int) -> Any:
        part, index = self._locate(at)
        dataset = self.datasets[part]
        sample = read(dataset, index)
        later = self._awaits_item and not is_async(dataset, _ITEM)
        return at_once(sample) if later else sample

    def _fetches(self, indices: list[int]) -> tuple[list[Fetch], Join]:
        fetches: dict[int, Fetch] = {}
        for at, index in enumerate(indices):
            part, below = self._locate(index)
            if part not in fetches:
                dataset = self.datasets[part]
                label = f"ConcatDataset: dataset {part} ({type(dataset).__name__})"
                fetches[part] = Fetch(label, dataset, [], [])
            fetches[part].indices.append(below)
            fetches[part].places.append(at)
        ordered = list(fetches.values())

        def join(found: list[list[Any]]) -> list[Any]:
            samples: list[Any] = [None] * len(indices)
            for fetch, part in zip(ordered, found, strict=True):
                for at, sample in zip(fetch.places, part, strict=True):
                    samples[at] = sample
            return samples

        return ordered, join


class StackDataset(View):
    """Datasets of one length side by side, as torch.utils.data.StackDataset.

    Args:
        *datasets: a sample is the tuple of their samples.
        **named: a sample is the dict of their samples.

    Attributes:
        datasets: the tuple or the dict of them.

    Raises:
        ConfigError: none, unnamed mixed with named ones, different lengths, or one that isn't
            map-style.

    Example:
        >>> StackDataset(word=["a", "b"], length=[1, 1])[0]
        {'word': 'a', 'length': 1}
    """

    def __init__(self, *datasets: Any, **named: Any) -> None:
        if bool(datasets) == bool(named):
            got = f"{len(datasets)} unnamed and {', '.join(named)}" if named else "none"
            raise ConfigError(f"StackDataset takes unnamed datasets or named ones: got {got}")
        self.datasets: tuple[Any, ...] | dict[str, Any] = datasets or named
        for part, dataset in self._parts():
            check_map_style(f"StackDataset: dataset {part!r}", dataset)
        (first, some), *others = self._parts()
        self._length = len(some)
        self._values = [dataset for _, dataset in self._parts()]
        for part, dataset in others:
            if len(dataset) != self._length:
                raise ConfigError(
                    f"StackDataset: dataset {part!r} has {len(dataset)} samples, but dataset "
                    f"{first!r} has {self._length}; all need the same number"
                )

    def __len__(self) -> int:
        """The length of each dataset."""
        return self._length

    def _parts(self) -> list[tuple[Any, Any]]:
        named = isinstance(self.datasets, dict)
        return list(self.datasets.items() if named else enumerate(self.datasets))  # type: ignore[union-attr]

    def _below(self) -> Sequence[Any]:
        return self._values

    def _item(self, at: int) -> Any:
        if self._awaits_item:
            return self._item_awaiting(at)
        return self._sample([read(dataset, at) for dataset in self._values])

    async def _item_awaiting(self, at: int) -> Any:
        return self._sample([await ready(read(dataset, at)) for dataset in self._values])

    def _sample(self, values: Iterable[Any]) -> Any:
        if isinstance(self.datasets, dict):
            return dict(zip(self.datasets, values, strict=True))
        return tuple(values)

    def _fetches(self, indices: list[int]) -> tuple[list[Fetch], Join]:
        every = list(range(len(indices)))
        fetches = []
        for part, dataset in self._parts():
            label = f"StackDataset: dataset {part!r} ({type(dataset).__name__})"
            fetches.append(Fetch(label, dataset, indices[:], every))
        return fetches, lambda found: [self._sample(values) for values in zip(*found, strict=True)]


class MapDataset(View):
    """A function of each sample, as burn's MapperDataset; a transform, in PyTorch's words.

    Args:
        dataset: a map-style dataset.
        function: sample -> sample, called by the workers, each time a sample is asked for. It may
            be an ``async def``, and may draw from ``tundish.sample_rng()``.

    Attributes:
        dataset, function: as given.

    In a batched fetch an ``async def`` is awaited for one sample after the other.

    Raises:
        ConfigError: `dataset` isn't map-style, or `function` not callable.

    Example:
        >>> MapDataset([1, 2, 3], lambda sample: sample * 10)[2]
        30
    """

    def __init__(self, dataset: Any, function: Callable[[Any], Any]) -> None:
        check_map_style("MapDataset: dataset", dataset, "call the function in its __iter__")
        if not callable(function):
            raise ConfigError(f"MapDataset: function={function!r} must be callable")
        self.dataset = dataset
        self.function = function

    def __len__(self) -> int:
        """The length of the dataset."""
        return len(self.dataset)

    def _below(self) -> Sequence[Any]:
        return [self.dataset]

    def _awaits(self, method: str) -> bool:
        called = getattr(type(self.function), "__call__", None)  # noqa: B004
        functions = map(inspect.iscoroutinefunction, (self.function, called))
        return any(functions) or super()._awaits(method)

    def _item(self, at: int) -> Any:
        if self._awaits_item:
            return self._item_awaiting(at)
        return self.function(read(self.dataset, at))

    async def _item_awaiting(self, at: int) -> Any:
        return await ready(self.function(await ready(read(self.dataset, at))))

    def _fetches(self, indices: list[int]) -> tuple[list[Fetch], Join]:
        fetches, _ = self._only(self.dataset, indices)
        return fetches, self._mapped_awaiting if self._awaits(_ITEMS) else self._mapped

    def _mapped(self, found: list[list[Any]]) -> list[Any]:
        samples = []
        for at, sample in enumerate(found[0]):
            with randomness.place(at):
                samples.append(self.function(sample))
        return samples

    async def _mapped_awaiting(self, found: list[list[Any]]) -> list[Any]:
        samples = []
        for at, sample in enumerate(found[0]):
            with randomness.place(at):
                samples.append(await ready(self.function(sample)))
        return samples


class WindowsDataset(View):
    """Windows of neighbouring samples, as burn's WindowsDataset.

    Args:
        dataset: a map-style dataset.
        size: samples in a window, at least 1.
        step: from the start of one window to the start of the next, at least 1.

    Attributes:
        dataset, size, step: as given.

    A sample is the list of the window's samples; there are only whole windows. A batched fetch
    asks for each index once, so windows of a batch share the samples they have in common.

    Raises:
        ConfigError: `dataset` isn't map-style, or `size` or `step` out of range.

    Example:
        >>> list(WindowsDataset([1, 2, 3, 4, 5], 3, step=2))
        [[1, 2, 3], [3, 4, 5]]
    """

    def __init__(self, dataset: Any, size: int, step: int = 1) -> None:
        check_map_style("WindowsDataset: dataset", dataset)
        self.dataset = dataset
        self.size = integer("size", size, 1, 2**63 - 1)
        self.step = integer("step", step, 1, 2**63 - 1)

    def __len__(self) -> int:
        """The number of whole windows."""
        return max(0, (len(self.dataset) - self.size) // self.step + 1)

    def _below(self) -> Sequence[Any]:
        return [self.dataset]

    def _window(self, at: int) -> range:
        return range(at * self.step, at * self.step + self.size)

    def _item(self, at: int) -> Any:
        if self._awaits_item:
            return self._item_awaiting(at)
        return [read(self.dataset, index) for index in self._window(at)]

    async def _item_awaiting(self, at: int) -> Any:
        return [await ready(read(self.dataset, index)) for index in self._window(at)]

    def _fetches(self, indices: list[int]) -> tuple[list[Fetch], Join]:
        first: dict[int, int] = {}  # index below: the first window that it is in
        for at, index in enumerate(indices):
            for below in self._window(index):
                first.setdefault(below, at)
        fetch = Fetch(self._label(self.dataset), self.dataset, list(first), list(first.values()))

        def join(found: list[list[Any]]) -> list[Any]:
            samples = dict(zip(first, found[0], strict=True))
            return [[samples[below] for below in self._window(index)] for index in indices]

        return [fetch], join
