"""What a batch comes to in a few characters, so that processes can compare what they got."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np


def digest(value: Any) -> str:
    """A digest of arrays in dicts, lists and tuples: of their names, types, shapes and bytes."""
    found = hashlib.blake2b(digest_size=8)
    _add(found, value)
    return found.hexdigest()


def digests(batches: Iterable[Any], start: int = 0) -> dict[int, str]:
    """The digest of each batch by its number."""
    return {number: digest(batch) for number, batch in enumerate(batches, start)}


def _add(found: Any, value: Any) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            found.update(f"{key}:".encode())
            _add(found, part)
    elif isinstance(value, list | tuple):
        found.update(f"{type(value).__name__} {len(value)}:".encode())
        for part in value:
            _add(found, part)
    elif isinstance(value, np.ndarray | np.generic):
        found.update(f"{value.dtype.str} {value.shape}:".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    else:
        found.update(f"{type(value).__name__} {value!r};".encode())
