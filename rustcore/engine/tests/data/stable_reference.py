# ruff: noqa: INP001 (a script beside the data it writes, not a package)
"""The ``stable`` order, written a second time from docs/order.md, in plain Python.

``python stable_reference.py > stable_vectors.json`` writes the golden vectors that
``tests/order.rs`` holds the engine to. The order is frozen: the file never changes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import struct
import sys
from collections.abc import Iterator

TAG = b"tundish order 1\0"
FEISTEL_FROM = 1 << 20
ROUNDS = 8
MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1


def _quarter(s: list[int], a: int, b: int, c: int, d: int) -> None:
    for first, second, third, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        s[first] = (s[first] + s[second]) & MASK32
        mixed = s[third] ^ s[first]
        s[third] = ((mixed << turn) | (mixed >> (32 - turn))) & MASK32


def _block(key: bytes, counter: int) -> list[int]:
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key)]
    start += [counter & MASK32, counter >> 32, 0, 0]
    s = list(start)
    for _ in range(4):  # 8 rounds: 4 of columns, 4 of diagonals
        for i in range(4):
            _quarter(s, i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            _quarter(s, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return [(x + y) & MASK32 for x, y in zip(s, start, strict=True)]


def words(seed: int, epoch: int) -> Iterator[int]:
    """The 32-bit words of the ChaCha8 keystream of one epoch."""
    key = struct.pack("<QQ", seed, epoch) + TAG
    for counter in itertools.count():
        yield from _block(key, counter)


def _below(limit: int, draws: Iterator[int]) -> int:
    while True:
        product = next(draws) * limit
        if product & MASK32 >= (1 << 32) % limit:
            return product >> 32


def table(n: int, seed: int, epoch: int) -> list[int]:
    """The whole order, for fewer than 2**20 samples."""
    draws = words(seed, epoch)
    out = list(range(n))
    for i in range(n - 1):
        j = i + _below(n - i, draws)
        out[i], out[j] = out[j], out[i]
    return out


def _hash(half: int, key: int, inner: int, limit: int) -> int:
    z = (half + key) & MASK64
    z = (((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64) ^ inner
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    z ^= z >> 31
    return (z * limit) >> 64


def feistel(n: int, seed: int, epoch: int, position: int) -> int:
    """The index at one position, for 2**20 samples or more."""
    draws = words(seed, epoch)
    keys = [next(draws) | next(draws) << 32 for _ in range(2 * ROUNDS)]
    left = math.isqrt(n - 1) + 1
    right = -(-n // left)
    x = position
    while True:
        lo, ro = divmod(x, right)
        for k in range(0, 2 * ROUNDS, 4):
            lo = (lo + _hash(ro, keys[k], keys[k + 1], left)) % left
            ro = (ro + _hash(lo, keys[k + 2], keys[k + 3], right)) % right
        x = lo * right + ro
        if x < n:
            return x


def _case(n: int, seed: int, epoch: int) -> dict[str, object]:
    case: dict[str, object] = {"n": n, "seed": seed, "epoch": epoch}
    if n >= FEISTEL_FROM:
        places = [0, 1, 2, 3, n // 3, n // 2, n - 2, n - 1]
        return case | {"at": {str(p): feistel(n, seed, epoch, p) for p in places}}
    order = table(n, seed, epoch)
    if n <= 20:
        return case | {"order": order}
    digest = hashlib.sha256(struct.pack(f"<{n}Q", *order)).hexdigest()
    return case | {"first": order[:8], "last": order[-4:], "sha256_u64le": digest}


def main() -> None:
    """Write the vectors to standard output."""
    sizes = [1, 2, 3, 10, 17, 100, 1000]
    sizes += [FEISTEL_FROM, FEISTEL_FROM + 1, 10**7, 2 * 10**8, 5 * 10**9, 2**63 - 1]
    places = [(0, 0), (7, 0), (7, 1), (7, 2), (42, 3), (2**32 + 7, 0)]
    places += [(2**63, 2**40), (2**64 - 1, 2**64 - 1)]
    cases = [_case(n, *place) for n in sizes for place in places]
    cases += [_case(n, 7, e) for n in (100_000, FEISTEL_FROM - 1) for e in (0, 1)]
    rows = ",\n  ".join(json.dumps(case) for case in cases)
    sys.stdout.write(f'{{\n "stable": [\n  {rows}\n ]\n}}\n')


if __name__ == "__main__":
    main()
