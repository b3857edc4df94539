"""Heads of batches in shared memory, read without msgpack where they repeat.

The batches of a feed differ in a few integers, which our server writes in a fixed layout
(`batch_frames.lent_head`); the rest of the head, the value and the reference to the sample indices,
is mostly the same bytes every time. They are understood once and remembered as a `Plan`. Heads of
any other layout take the ordinary way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .batch_frames import LENT_FIELDS, LENT_NAMES
from .frames import Decoder, Message
from .resolving import Ref, resolve

__all__ = ["Plan", "QuickDecoder"]

_FIXED, _CONSTANTS = LENT_FIELDS
_START = _CONSTANTS[0]
_PLANS = 64
_LONGEST = 8192

Body = np.ndarray[Any, np.dtype[np.uint8]]


class Plan:
    """How to build sample indices and value of a batch whose arrays lie where they always do.

    Attributes:
        samples: The reference to the sample indices.
        value: The tree of the value: a dict of references, or one reference.
    """

    __slots__ = ("_arrays", "_end", "_one", "samples", "value")

    def __init__(self, samples: Ref, value: Any) -> None:
        self.samples = samples
        self.value = value
        self._one = type(value) is Ref
        # What is built first tells shapes, dtypes and places; None until then.
        self._arrays: list[tuple[Any, tuple[int, ...], Any, int]] | None = None
        self._end = 0

    @classmethod
    def of(cls, samples: Any, value: Any) -> Plan | None:
        """Returns a plan, or None where a value may differ between equal-looking heads."""
        refs = list(value.values()) if type(value) is dict else [value]
        arrays = all(type(ref) is Ref and ref.code == 1 for ref in [samples, *refs])
        keys = value if type(value) is dict else ()
        return cls(samples, value) if arrays and all(type(key) is str for key in keys) else None

    def build(self, body: Body) -> tuple[np.ndarray[Any, Any], Any]:
        """Returns the sample indices and the value, as views of `body`."""
        arrays = self._arrays
        if arrays is None or self._end > len(body):
            return self._first(body)
        ndarray = np.ndarray
        _, shape, dtype, offset = arrays[0]
        samples = ndarray(shape, dtype, body, offset)
        if self._one:
            _, shape, dtype, offset = arrays[1]
            return samples, ndarray(shape, dtype, body, offset)
        return samples, {
            key: ndarray(shape, dtype, body, offset) for key, shape, dtype, offset in arrays[1:]
        }

    def _first(self, body: Body) -> tuple[np.ndarray[Any, Any], Any]:
        samples, value = resolve(self.samples, body), resolve(self.value, body)
        built = [(None, samples), *([(None, value)] if self._one else value.items())]
        start = body.ctypes.data
        if all(array.nbytes for _, array in built):
            self._arrays = [
                (key, array.shape, array.dtype, array.ctypes.data - start) for key, array in built
            ]
            self._end = max(array.ctypes.data - start + array.nbytes for _, array in built)
        return samples, value


class QuickDecoder(Decoder):
    """A decoder that remembers the heads of batches in shared memory."""

    def __init__(self, max_head: int, max_body: int) -> None:
        super().__init__(max_head, max_body)
        self._plans: dict[bytes, Plan] = {}

    def _read_head(self, head: bytes, out: list[Message]) -> None:
        if not head.startswith(_START) or len(head) <= _FIXED.size:
            super()._read_head(head, out)
            return
        fields = _FIXED.unpack_from(head)
        rest = head[_FIXED.size :]
        plan = self._plans.get(rest) if fields[::2] == _CONSTANTS else None
        if plan is not None:
            header = dict(zip(LENT_NAMES, fields[1::2], strict=True))
            header["times"] = (header["times"], header.pop(""))
            header["value"] = plan
            out.append(Message("BATCH", header))
            return
        super()._read_head(head, out)
        if fields[::2] == _CONSTANTS and len(rest) <= _LONGEST:
            self._remember(rest, out[-1].header)

    def _remember(self, rest: bytes, header: dict[str, Any]) -> None:
        plan = Plan.of(header.get("samples"), header.get("value"))
        if plan is not None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            self._plans[rest] = plan
