"""What all samplers share: iterating, set_epoch, pickles, and the checks of their arguments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from tundish import _core
from tundish.arguments import draw_seed, integer, one_of
from tundish.indices import _of_array, _of_iterable
from tundish.yields import shown_value
from tundish_client.errors import ConfigError

__all__ = [
    "MOST",
    "Planned",
    "Sampler",
    "check_sized",
    "frozen",
    "index_array",
    "refuse_generator",
    "size_of",
    "weight_array",
]

T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A", bound=np.ndarray[Any, Any])

MOST = 2**63 - 1
_MOST_SEED = 2**64 - 1
# Indices that a pass computes at once.
_BLOCK = 4096

_ORDERS = (
    "stable",
    "torch",
    "torch:shared",
    "torch:persistent",
    "torch:default",
    "torch:default:persistent",
)


class Sampler(Generic[T_co]):
    """A base class for samplers of your own, which need none: anything iterable is a sampler.

    ``__iter__`` gives the indices of an epoch, from the front at every call. If there is a
    ``__len__``, it must tell how many there are; if there is a ``set_epoch``, it is called with the
    epoch's number first.

    Example:
        >>> class Backwards(Sampler[int]):
        ...     def __iter__(self):
        ...         return iter(range(9, -1, -1))
    """

    def __init__(self, data_source: Any = None) -> None:
        """Takes a data source as PyTorch's did, and has no use for it."""

    def __iter__(self) -> Iterator[T_co]:
        """The indices of an epoch."""
        raise NotImplementedError(f"{type(self).__name__} needs an __iter__ that gives indices")


class Planned(Sampler[int]):
    """A sampler whose epochs the engine computes.

    A subclass that says itself what comes is read like any other iterable: its ``_plan`` is None.
    """

    _own = True
    _seed: int | None = None
    _drawn = False
    order: str

    def __init_subclass__(cls, *, own: bool = False) -> None:
        super().__init_subclass__()
        cls._own = own
        base = next(base for base in cls.__mro__ if base.__dict__.get("_own"))
        names = ("__iter__", "__len__", "set_epoch", "num_samples", "_planned", "_drawn_from")
        if any(getattr(cls, name, None) is not getattr(base, name, None) for name in names):
            cls._plan = cls._identity = None  # type: ignore[assignment, method-assign]

    def __init__(self) -> None:
        self._upcoming = 0
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """How many indices an epoch has."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        """The indices of the next epoch: 0, 1, 2 ..., or on from where ``set_epoch`` put it.

        They come from a new iterator each time, which computes them in blocks.
        """
        epoch = next(self._numbers)
        self._upcoming = epoch + 1
        return _Pass(self._planned(epoch, _BLOCK))

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next ``iter(sampler)`` goes through."""
        self._upcoming = integer("epoch", epoch, 0, MOST)
        self._numbers = itertools.count(self._upcoming)

    def _planned(
        self,
        epoch: int,
        batch_size: int,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        uneven: str = "pad",
        *,
        seed: int | None = None,
    ) -> _core.Plan:
        """An epoch as batches, for one rank; with another `seed` than its own if one is given."""
        samples, order, sampling = self._drawn_from()
        own = self._seed if seed is None else seed
        share = self._share(rank, world_size, uneven)
        cut = (batch_size, drop_last, *share)
        return _core.Plan(samples, order, own or 0, epoch, *cut, sampling=sampling)

    _plan = _planned

    def _drawn_from(self) -> tuple[int, str, _core.Sampling | None]:
        """What an epoch consists of, by present lengths: samples and their order, or a sampling."""
        raise NotImplementedError

    def _share(self, rank: int, world_size: int, uneven: str) -> tuple[int, int, str]:
        """Whose share of it a plan is."""
        return rank, world_size, uneven

    @property
    def _identity(self) -> str:
        """All that the order depends on, except for the seed."""
        return f"{self._text()}/{self._planned(0, 1).order}"

    def _text(self) -> str:
        """The class and what is drawn."""
        raise NotImplementedError

    def _draw(self, seed: int | None, order: str, known: tuple[str, ...] = _ORDERS) -> None:
        """Take on a seed and an order."""
        self._drawn = seed is None
        self._seed = draw_seed() if seed is None else integer("seed", seed, 0, _MOST_SEED)
        self.order = one_of("order", order, known)

    @property
    def seed(self) -> int | None:
        """The seed, given or drawn; None where nothing is drawn."""
        return self._seed

    def __getstate__(self) -> dict[str, Any]:
        """Plain values: the native description is made anew."""
        left_out = {"_numbers", "_native"}
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._numbers = itertools.count(self._upcoming)


class _Pass:
    """The indices of one epoch, block after block. An interrupt loses none of them."""

    def __init__(self, plan: _core.Plan) -> None:
        self._plan = plan
        self._number = 0
        self._block: Iterator[int] = iter(())

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> int:
        while True:
            for index in self._block:
                return index
            if self._number == self._plan.batches:
                raise StopIteration
            self._block = iter(self._plan.indices(self._number))
            self._number += 1


# -- arguments -------------------------------------------------------------------------------------


def refuse_generator(generator: Any) -> None:
    """Refuse PyTorch's generator, which has a state; a seed has none."""
    if generator is not None:
        raise ConfigError(
            f"generator={shown_value(generator)} is not supported: an epoch's order depends on a "
            'seed only; give seed= (the one the generator was seeded with) and order="torch"'
        )


def check_sized(name: str, source: Any) -> Any:
    """`source`, if it is a number of samples or has a length."""
    if isinstance(source, (int, np.integer)):
        return integer(name, source, 0, MOST)
    if isinstance(source, type) or not hasattr(type(source), "__len__"):
        raise ConfigError(
            f"{name}={shown_value(source)} must be a dataset with __len__, or its number of samples"
        )
    return source


def size_of(source: Any) -> int:
    """The present number of samples of what ``check_sized`` let through."""
    return source if isinstance(source, int) else len(source)


def frozen(array: A) -> A:
    """`array`, read-only: what is drawn from it doesn't change."""
    array.flags.writeable = False  # a pickle forgets it
    return array


def index_array(indices: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A sampler's indices as a copy of their own."""
    try:
        if hasattr(indices, "__array__"):
            found = _of_array(np.asarray(indices), "sampler")
        elif isinstance(indices, range):
            found = np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
        else:
            found = _of_iterable(indices, "sampler")
    except (TypeError, IndexError, OverflowError) as error:
        raise ConfigError(str(error)) from None
    if len(found) and found.min() < 0:
        at = int((found < 0).argmax())
        raise ConfigError(
            f"indices[{at}] is {found[at]}: a sampler's indices count from 0, not from the end"
        )
    return frozen(found)


def weight_array(weights: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A sampler's weights as a copy of their own; the engine checks their values."""
    try:
        # Not numpy.array at once: tensors answer that with a warning about `copy`.
        found = np.asarray(weights).astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"weights={shown_value(weights)} must be numbers: {error}") from None
    if found.ndim != 1:
        raise ConfigError(
            f"weights={shown_value(weights)} must be one row of numbers, one for each sample, not "
            f"of shape {found.shape}"
        )
    return frozen(found)
