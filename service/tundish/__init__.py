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
    from tundish.server import serve
    from tundish.spawn import spawn
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
    "BatchTimes",
    "Client",
    "ConfigError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectionLost",
    "DataLoader",
    "Epoch",
    "Position",
    "ProtocolError",
    "RemoteError",
    "Stream",
    "TundishError",
    "__version__",
    "default_collate",
    "default_socket",
    "register",
    "serve",
    "spawn",
]

_MODULES = {
    "ArrayDataset": "tundish.datasets",
    "DataLoader": "tundish.loader",
    "Epoch": "tundish.epoch",
    "default_collate": "tundish.collate",
    "serve": "tundish.server",
    "spawn": "tundish.spawn",
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
