"""How a user leaves a stream: by a clean end, or by an exception."""

from __future__ import annotations

import opcode
import sys

__all__ = ["in_exception", "left_by_break"]

_POPS = frozenset(opcode.opmap[name] for name in ("POP_TOP", "POP_ITER") if name in opcode.opmap)


def left_by_break(depth: int = 2) -> bool:
    """Whether an object is being dropped because a `for` loop over it ends by break or return.

    For finalizers. Such an end takes the iterator off the frame's stack with an instruction of its
    own. An exception unwinds the stack at whatever instruction raised it, a `del` has another
    instruction, and the garbage collector comes at neither.

    Args:
        depth: Frames between this function and the one that dropped the object.
    """
    try:
        frame = sys._getframe(depth)
    except ValueError:  # no Python code is running
        return False
    at = frame.f_lasti
    return at >= 0 and frame.f_code.co_code[at] in _POPS


def in_exception() -> bool:
    """Whether the caller was called while an exception is being handled."""
    return sys.exc_info()[1] is not None
