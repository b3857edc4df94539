"""A check of msgpack's claims before msgpack allocates for them.

msgpack makes a list as long as an array header claims, at every depth. Each claim is limited by the
length of the head, but a head of 1 MiB can nest a thousand such claims.
"""

from __future__ import annotations

import re

__all__ = ["MAX_CLAIM_DEPTH", "check_claims"]

MAX_CLAIM_DEPTH = 512
_HARMLESS = 4096  # bytes: below this all claims together are harmless
_BIG = re.compile(rb"[\xdc\xdd\xde\xdf]")
_BYTES_PER_COUNT = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


def check_claims(head: bytes) -> None:
    """Refuses a head whose arrays and maps claim more elements than it has bytes.

    Raises:
        ValueError: The claims cannot be true.
    """
    if len(head) <= _HARMLESS:
        return
    suspected = 0
    for match in _BIG.finditer(head):
        at = match.start()
        width = _BYTES_PER_COUNT[head[at]]
        count = int.from_bytes(head[at + 1 : at + 1 + width], "big")
        if count <= len(head):
            suspected += count
    # Most heads end here. Bytes of strings and numbers look like claims too: count exactly then.
    if suspected > len(head):
        _scan(head)


def _scan(head: bytes) -> None:
    """Walks over all tokens; the elements still owed can never exceed the bytes left."""
    at, owed, size = 0, 1, len(head)
    while owed:
        if owed > size - at:
            raise ValueError(f"arrays and maps claim {owed} elements in {size - at} bytes")
        width, elements = _token(head, at)
        at += width
        owed += elements - 1


def _token(head: bytes, at: int) -> tuple[int, int]:
    """Returns the length of the token at `at` and the number of elements that follow it."""
    tag = head[at]
    if tag < 0x80 or tag >= 0xE0 or tag in (0xC0, 0xC2, 0xC3):
        return 1, 0
    if tag < 0x90:
        return 1, 2 * (tag & 0xF)
    if tag < 0xA0:
        return 1, tag & 0xF
    if tag < 0xC0:
        return 1 + (tag & 0x1F), 0
    if tag in _BYTES_PER_COUNT:
        width = _BYTES_PER_COUNT[tag]
        count = int.from_bytes(head[at + 1 : at + 1 + width], "big")
        return 1 + width, count * (2 if tag >= 0xDE else 1)
    return _scalar(head, at, tag), 0


def _scalar(head: bytes, at: int, tag: int) -> int:
    if tag in _FIXED:
        return _FIXED[tag]
    if tag in _SIZED:
        width, extra = _SIZED[tag]
        return 1 + width + extra + int.from_bytes(head[at + 1 : at + 1 + width], "big")
    raise ValueError(f"byte {tag:02x} starts no msgpack value")


# tag -> length of the whole token
_FIXED = {
    **dict(zip(range(0xCA, 0xD4), (5, 9, 2, 3, 5, 9, 2, 3, 5, 9), strict=True)),
    **dict(zip(range(0xD4, 0xD9), (3, 4, 6, 10, 18), strict=True)),
}
# tag -> bytes of the length, bytes besides
_SIZED = {
    0xC4: (1, 0),
    0xC5: (2, 0),
    0xC6: (4, 0),
    0xC7: (1, 1),
    0xC8: (2, 1),
    0xC9: (4, 1),
    0xD9: (1, 0),
    0xDA: (2, 0),
    0xDB: (4, 0),
}
