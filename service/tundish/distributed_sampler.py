"""``DistributedSampler``: one rank's share of an epoch, as a sampler."""

from __future__ import annotations

import sys
from typing import Any, Final

from tundish.arguments import flag, integer
from tundish.sampling import Planned, check_sized, size_of
from tundish.yields import shown_value
from tundish_client.errors import ConfigError

__all__ = ["DistributedSampler"]

_MOST_RANKS = 2**31 - 1
_ORDERS = ("stable", "torch")


class DistributedSampler(Planned, own=True):
    """One rank's share of a dataset; as torch.utils.data.distributed.DistributedSampler.

    ``loader.epoch(e, rank=, world_size=)`` does the same without a sampler.

    Args:
        dataset: a dataset, or how many samples it has.
        num_replicas: how many ranks there are; None asks torch.distributed, if that is in use.
        rank: which of them this is, from 0; None likewise.
        shuffle: a new permutation each epoch, the same on all ranks; else 0, 1, 2 ...
        seed: of the permutations. It must be the same on all ranks, so none is drawn.
        drop_last: leave out the last samples if they don't divide; else some are repeated.
        order: "stable" (the same for ever), or "torch", PyTorch's.

    Raises:
        ConfigError: an argument can't be used; the message names it and its value.

    Epochs follow each other, 0, 1, 2 ..., unless ``set_epoch`` says which comes next. (PyTorch's
    repeats epoch 0 without it.) Call it where ranks may have begun different numbers of epochs.

    Example:
        >>> [list(DistributedSampler(5, 2, rank, shuffle=False)) for rank in range(2)]
        [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        order: str = "stable",
    ) -> None:
        super().__init__()
        self.dataset = check_sized("dataset", dataset)
        if num_replicas is None:
            num_replicas = _of_torch("num_replicas", "get_world_size")
        self.num_replicas: Final = integer("num_replicas", num_replicas, 1, _MOST_RANKS)
        if rank is None:
            rank = _of_torch("rank", "get_rank")
        self.rank: Final = integer("rank", rank, 0, self.num_replicas - 1)
        self.shuffle: Final = flag("shuffle", shuffle)
        if seed is None:
            raise ConfigError("seed=None would draw another seed on every rank; give a number")
        self._draw(seed, order, _ORDERS)
        self.drop_last: Final = flag("drop_last", drop_last)

    @property
    def num_samples(self) -> int:
        """Indices in this rank's epoch."""
        samples = size_of(self.dataset)
        return samples // self.num_replicas if self.drop_last else -(-samples // self.num_replicas)

    @property
    def total_size(self) -> int:
        """Indices in the epoch, those of all ranks."""
        return self.num_samples * self.num_replicas

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter(sampler)`` goes through."""
        return self._upcoming

    def __len__(self) -> int:
        """Indices in this rank's epoch, by the dataset's present length."""
        return self.num_samples

    def _drawn_from(self) -> tuple[int, str, None]:
        order = "torch:distributed" if self.order == "torch" else self.order
        return size_of(self.dataset), order if self.shuffle else "sequential", None

    def _share(self, rank: int, world_size: int, uneven: str) -> tuple[int, int, str]:
        own = "drop" if self.drop_last else "pad"
        if world_size != 1 or uneven not in {"pad", own}:
            raise ConfigError(
                f"rank={rank}, world_size={world_size}, uneven={uneven!r}: a DistributedSampler "
                f"gives the share of rank {self.rank} of {self.num_replicas} already, as its own "
                "drop_last says; leave them out, or leave out the sampler"
            )
        return self.rank, self.num_replicas, own

    def _text(self) -> str:
        # Not the rank: a state that one rank took is every rank's.
        what = f"samples={size_of(self.dataset)}, num_replicas={self.num_replicas}"
        return f"DistributedSampler({what}, shuffle={self.shuffle}, drop_last={self.drop_last})"

    def __repr__(self) -> str:
        share = f"num_replicas={self.num_replicas}, rank={self.rank}, shuffle={self.shuffle}"
        rest = f"seed={self.seed}, drop_last={self.drop_last}, order={self.order!r}"
        return f"DistributedSampler({shown_value(self.dataset)}, {share}, {rest})"


def _of_torch(name: str, getter: str) -> int:
    """What torch.distributed says, where the program has initialised it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        raise ConfigError(
            f"{name}=None needs torch.distributed to be initialised; give num_replicas= and rank="
        )
    number: int = getattr(distributed, getter)()
    return number
