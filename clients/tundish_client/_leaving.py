"""How a user leaves a stream: by a clean end, or by an exception."""

from __future__ import annotations

import opcode
import sys

__all__ = ["in_exception", "left_by_break"]

_POPS = frozenset(opcode.opmap[name] for name in ("POP_TOP", "POP_ITER") if name in opcode.opmap)
_CALLS = frozenset(code for name, code in opcode.opmap.items() if name.startswith("CALL"))
_CACHE = 0  # the number of what stands behind an instruction for the interpreter's own use


def left_by_break(depth: int = 2) -> bool:
    """Whether an object is being dropped because a `for` loop over it ends by break or return.

    For finalizers. Such an end takes the iterator off the frame's stack with an instruction of its
    own. An exception unwinds the stack at whatever instruction raised it, a `del` has another
    instruction, and the garbage collector comes at neither. The same instruction drops the value of
    a call that nobody wants, as in the statement `streams.pop()`, but there it follows the call.

    Args:
        depth: Frames between this function and the one that dropped the object.
    """
    try:
        frame = sys._getframe(depth)
    except ValueError:  # no Python code is running
        return False
    at, code = frame.f_lasti, frame.f_code.co_code
    if at < 0 or code[at] not in _POPS:
        return False
    before = at - 2
    while before >= 0 and code[before] == _CACHE:
        before -= 2
    return before < 0 or code[before] not in _CALLS


def in_exception() -> bool:
    """Whether the caller was called while an exception is being handled."""
    return sys.exc_info()[1] is not None
