"""When a batch of ours is the batch of torch's."""

import collections
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch


def as_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor as an array of the same dtype and bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


def assert_same(ours: Any, theirs: Any, *, unbatched: bool = False) -> None:
    """Equal values, dtypes, shapes and containers; arrays stand for tensors.

    Two allowances: columns of strings are lists everywhere in ours, where torch has tuples of them
    inside of tuples and lists. And a sample that is not batched stays what it is, where torch makes
    lists of its tuples and tensors of its numpy scalars.
    """
    if isinstance(theirs, torch.Tensor):
        expected = as_numpy(theirs)
        if unbatched and isinstance(ours, np.generic):
            ours = np.array(ours)
        assert isinstance(ours, np.ndarray)
        assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
        assert ours.tobytes() == expected.tobytes()
        assert ours.flags.writeable
        return
    strings = type(theirs) is tuple and all(isinstance(item, (str, bytes)) for item in theirs)
    if not (unbatched and type(ours) is tuple and type(theirs) is list):
        assert type(ours) is (list if strings else type(theirs))
    if isinstance(theirs, Mapping):
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            assert_same(ours[key], value, unbatched=unbatched)
    elif isinstance(theirs, (list, tuple, collections.deque)):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other, unbatched=unbatched)
    else:
        assert ours == theirs
