"""Tundish: batches prepared once, in Rust, for any number of training loops.

Names are imported when first used, so ``import tundish`` costs little and a program that only
iterates a ``DataLoader`` doesn't load the server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import tundish_client

from tundish._version import __version__

if TYPE_CHECKING:
    from tundish_client import *  # noqa: F403

    from tundish.collate import default_collate
    from tundish.datasets import ArrayDataset
    from tundish.epoch import BatchInfo, Epoch, Position
    from tundish.loader import DataLoader
    from tundish.server import serve
    from tundish.spawn import spawn

_OWN = {
    "ArrayDataset": "tundish.datasets",
    "BatchInfo": "tundish.epoch",
    "DataLoader": "tundish.loader",
    "Epoch": "tundish.epoch",
    "Position": "tundish.epoch",
    "default_collate": "tundish.collate",
    "serve": "tundish.server",
    "spawn": "tundish.spawn",
}

__all__ = [*_OWN, *tundish_client.__all__, "__version__"]  # pyright: ignore


def __getattr__(name: str) -> Any:
    if name in _OWN:
        value = getattr(importlib.import_module(_OWN[name]), name)
        if isinstance(value, type):
            value.__module__ = __name__  # tracebacks and pickles show the public name
    elif name in tundish_client.__all__:
        value = getattr(tundish_client, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
