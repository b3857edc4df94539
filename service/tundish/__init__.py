"""Tundish: batches prepared once, in Rust, for any number of training loops.

Names are imported when first used, so ``import tundish`` costs little, and a program that only
iterates a ``DataLoader`` doesn't load the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tundish._version import __version__

if TYPE_CHECKING:
    from tundish.collate import default_collate
    from tundish.datasets import ArrayDataset
    from tundish.epoch import Epoch
    from tundish.loader import DataLoader
    from tundish.per_worker import DatasetFactory, WorkerInfo, get_worker_info
    from tundish.randomness import sample_rng
    from tundish.samplers import (
        BatchSampler,
        DistributedSampler,
        RandomSampler,
        Sampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )
    from tundish.server import serve
    from tundish.spawn import spawn
    from tundish.splits import (
        random_split,
        shuffled,
        split,
        split_batches,
    )
    from tundish.views import (
        ChainDataset,
        ConcatDataset,
        Dataset,
        IterableDataset,
        MapDataset,
        SampledDataset,
        StackDataset,
        Subset,
        WindowsDataset,
    )
    from tundish_client import (
        AsyncClient,
        AsyncStream,
        BatchInfo,
        BatchTimes,
        Client,
        ConfigError,
        ConnectError,
        ConnectionLost,
        ConnectTimeout,
        Position,
        ProtocolError,
        RemoteError,
        Stream,
        TundishError,
        default_socket,
        register,
    )

__all__ = [
    "ArrayDataset",
    "AsyncClient",
    "AsyncStream",
    "BatchInfo",
    "BatchSampler",
    "BatchTimes",
    "ChainDataset",
    "Client",
    "ConcatDataset",
    "ConfigError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectionLost",
    "DataLoader",
    "Dataset",
    "DatasetFactory",
    "DistributedSampler",
    "Epoch",
    "IterableDataset",
    "MapDataset",
    "Position",
    "ProtocolError",
    "RandomSampler",
    "RemoteError",
    "SampledDataset",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Stream",
    "Subset",
    "SubsetRandomSampler",
    "TundishError",
    "WeightedRandomSampler",
    "WindowsDataset",
    "WorkerInfo",
    "__version__",
    "default_collate",
    "default_socket",
    "get_worker_info",
    "random_split",
    "register",
    "sample_rng",
    "serve",
    "shuffled",
    "spawn",
    "split",
    "split_batches",
]

_MODULES = {
    "ArrayDataset": "tundish.datasets",
    "BatchSampler": "tundish.samplers",
    "ChainDataset": "tundish.views",
    "ConcatDataset": "tundish.views",
    "DataLoader": "tundish.loader",
    "Dataset": "tundish.views",
    "DatasetFactory": "tundish.per_worker",
    "DistributedSampler": "tundish.samplers",
    "Epoch": "tundish.epoch",
    "IterableDataset": "tundish.views",
    "MapDataset": "tundish.views",
    "RandomSampler": "tundish.samplers",
    "SampledDataset": "tundish.views",
    "Sampler": "tundish.samplers",
    "SequentialSampler": "tundish.samplers",
    "StackDataset": "tundish.views",
    "Subset": "tundish.views",
    "SubsetRandomSampler": "tundish.samplers",
    "WeightedRandomSampler": "tundish.samplers",
    "WindowsDataset": "tundish.views",
    "WorkerInfo": "tundish.per_worker",
    "default_collate": "tundish.collate",
    "get_worker_info": "tundish.per_worker",
    "random_split": "tundish.splits",
    "sample_rng": "tundish.randomness",
    "serve": "tundish.server",
    "shuffled": "tundish.splits",
    "spawn": "tundish.spawn",
    "split": "tundish.splits",
    "split_batches": "tundish.splits",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES.get(name, "tundish_client")), name)
    if name in _MODULES and isinstance(value, type):
        value.__module__ = __name__  # tracebacks and pickles show the public name
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
