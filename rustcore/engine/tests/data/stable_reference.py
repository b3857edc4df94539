# ruff: noqa: INP001 (a script beside the data it writes, not a package)
"""The ``stable`` order and its samplings, written a second time from docs/order.md.

``python stable_reference.py > stable_vectors.json`` writes the golden vectors that
``tests/order.rs`` and ``tests/sampling.rs`` hold the engine to. The order is frozen: the
rows never change.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import math
import struct
import sys
from collections.abc import Iterator
from typing import Any

TAG = b"tundish order 1\0"
REPEAT = b"tundish repeat 1"
WEIGHT = b"tundish weight 1"
RACE = b"tundish race 1\0\0"
LN_2 = 0.6931471805599453
FEISTEL_FROM = 1 << 20
ROUNDS = 8
MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1


def _quarter(s: list[int], a: int, b: int, c: int, d: int) -> None:
    for first, second, third, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        s[first] = (s[first] + s[second]) & MASK32
        mixed = s[third] ^ s[first]
        s[third] = ((mixed << turn) | (mixed >> (32 - turn))) & MASK32


def _block(key: bytes, counter: int, nonce: int) -> list[int]:
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key)]
    start += [counter & MASK32, counter >> 32, nonce & MASK32, nonce >> 32]
    s = list(start)
    for _ in range(4):  # 8 rounds: 4 of columns, 4 of diagonals
        for i in range(4):
            _quarter(s, i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            _quarter(s, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return [(x + y) & MASK32 for x, y in zip(s, start, strict=True)]


def words(
    seed: int, epoch: int, tag: bytes = TAG, nonce: int = 0, first_block: int = 0
) -> Iterator[int]:
    """The 32-bit words of the ChaCha8 keystream of one epoch."""
    key = struct.pack("<QQ", seed, epoch) + tag
    for counter in itertools.count(first_block):
        yield from _block(key, counter, nonce)


def _below(limit: int, draws: Iterator[int]) -> int:
    while True:
        product = next(draws) * limit
        if product & MASK32 >= (1 << 32) % limit:
            return product >> 32


def table(n: int, seed: int, epoch: int, nonce: int = 0) -> list[int]:
    """The whole order, for fewer than 2**20 samples."""
    draws = words(seed, epoch, nonce=nonce)
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


def feistel(n: int, seed: int, epoch: int, position: int, nonce: int = 0) -> int:
    """The index at one position, for 2**20 samples or more."""
    draws = words(seed, epoch, nonce=nonce)
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


def permuted(n: int, seed: int, epoch: int, position: int) -> int:
    """One permutation after the other, at one position, for 2**20 samples or more."""
    return feistel(n, seed, epoch, position % n, nonce=position // n)


def permuted_table(n: int, count: int, seed: int, epoch: int) -> list[int]:
    """One permutation after the other, for fewer than 2**20 samples."""
    passes = range(-(-count // n)) if n else range(0)
    return [i for nonce in passes for i in table(n, seed, epoch, nonce)][:count]


def _words_at(place: int, count: int, seed: int, epoch: int, tag: bytes) -> int:
    """``count`` words from ``place`` on as one number, the first word lowest."""
    stream = words(seed, epoch, tag, first_block=place // 16)
    taken = itertools.islice(stream, place % 16, place % 16 + count)
    return sum(word << 32 * k for k, word in enumerate(taken))


def repeated(n: int, seed: int, epoch: int, position: int) -> int:
    """With replacement: the index at one position."""
    return (_words_at(4 * position, 4, seed, epoch, REPEAT) * n) >> 128


def weighted(weights: list[float], seed: int, epoch: int, position: int) -> int:
    """Weighted, with replacement: the index at one position."""
    largest = max(weights)
    sums = list(itertools.accumulate(w / largest for w in weights))
    u = (_words_at(2 * position, 2, seed, epoch, WEIGHT) >> 11) * 2.0**-53
    place = bisect.bisect_right(sums, u * sums[-1])
    return place if place < len(sums) else bisect.bisect_left(sums, sums[-1])


def _waiting(drawn: int) -> float:
    """-ln((drawn + 1) / 2**53), by the four operations only."""
    number = drawn + 1
    k = number.bit_length() - 1
    y = number / 2**k
    if y > 1.5:
        y, k = y / 2, k + 1
    s = (y - 1) / (y + 1)
    square, series = s * s, 0.0
    for term in range(11, -1, -1):
        series = series * square + 1 / (2 * term + 1)
    return (53 - k) * LN_2 - (2 * s) * series


def raced(weights: list[float], count: int, seed: int, epoch: int) -> list[int]:
    """Weighted, without replacement: the whole epoch."""
    draws, largest, ratios = words(seed, epoch, RACE), max(weights), []
    for weight in weights:
        waiting = _waiting((next(draws) | next(draws) << 32) >> 11)
        ratios.append((weight / largest) / waiting if waiting else math.inf)
    running = [i for i, weight in enumerate(weights) if weight > 0]
    return sorted(running, key=lambda i: (-ratios[i], i))[:count]


def digest(kind: int, length: int, *contents: int) -> str:
    """What the fingerprint of a sampling says about it."""
    state = 0
    for word in (kind, length, *contents):
        z = ((state ^ word) + 0x9E3779B97F4A7C15) & MASK64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
        state = z ^ (z >> 31)
    return f"{state:016x}"


def bits(weight: float) -> int:
    """The bits of a double."""
    number: int = struct.unpack("<Q", struct.pack("<d", weight))[0]
    return number


def _shown(order: list[int], long: int = 20) -> dict[str, object]:
    if len(order) <= long:
        return {"order": order}
    sha = hashlib.sha256(struct.pack(f"<{len(order)}Q", *order)).hexdigest()
    return {"first": order[:8], "last": order[-4:], "sha256_u64le": sha}


def _case(n: int, seed: int, epoch: int) -> dict[str, object]:
    case: dict[str, object] = {"n": n, "seed": seed, "epoch": epoch}
    if n >= FEISTEL_FROM:
        places = [0, 1, 2, 3, n // 3, n // 2, n - 2, n - 1]
        return case | {"at": {str(p): feistel(n, seed, epoch, p) for p in places}}
    return case | _shown(table(n, seed, epoch))


WEIGHTS = {
    "few": [0.1, 0.9, 0.4, 0.7, 3.0, 0.6],
    "many": [(k * 2654435761 % 2**30) / 2**30 * (k % 7 > 0) for k in range(1000)],
    "one": [2.5],
    "tiny": [0.0, 5e-324, 5e-324, 0.0, 1.5e-323, 0.0],
    "wide": [1e-300, 1e300, 0.0, 1e300, 5e-324],
}
INDICES = {
    "none": [],
    "one": [5],
    "few": [3, 1, 4, 1, 5, 9, 2, 6],
    "large": [2**62, 7, 2**63 - 2],
    "many": list(range(3000, 0, -7)),
}
PLACES = [(7, 0), (7, 1), (2**32 + 7, 20), (2**64 - 1, 2**64 - 1)]
Rows = Iterator[dict[str, Any]]


def _random_cases(seed: int, epoch: int) -> Rows:
    for n, count in [(1, 5), (10, 10), (10, 4), (10, 25), (1000, 999), (1000, 2500)]:
        drawn = _shown(permuted_table(n, count, seed, epoch), 40)
        yield {"n": n, "num_samples": count, "replacement": False} | drawn
    for n, count in [(FEISTEL_FROM, FEISTEL_FROM + 5), (10**7, 35 * 10**6), (2**62 + 1, 2**63 - 1)]:
        places = {0, 1, n - 1, n, min(3 * n, count - 1), count - 1}
        at = {str(p): permuted(n, seed, epoch, p) for p in sorted(places)}
        yield {"n": n, "num_samples": count, "replacement": False, "at": at}
    for n, count in [(1, 9), (10, 40), (2**32 + 5, 2**40), (2**63 - 1, 2**63 - 1)]:
        places = {p for p in [*range(20), 1000, 2**39 + 1, 2**63 - 2] if p < count}
        at = {str(p): repeated(n, seed, epoch, p) for p in sorted(places)}
        yield {"n": n, "num_samples": count, "replacement": True, "at": at}


def _weighted_cases(seed: int, epoch: int) -> Rows:
    for name, count in [
        ("few", 4),
        ("few", 6),
        ("many", 800),
        ("one", 1),
        ("tiny", 3),
        ("wide", 4),
    ]:
        drawn = _shown(raced(WEIGHTS[name], count, seed, epoch), 40)
        yield {"weights": name, "num_samples": count, "replacement": False} | drawn
    for name, count in [("few", 12), ("many", 200), ("one", 3), ("tiny", 30), ("wide", 30)]:
        drawn = _shown([weighted(WEIGHTS[name], seed, epoch, p) for p in range(count)], 40)
        yield {"weights": name, "num_samples": count, "replacement": True} | drawn


def _subset_cases(seed: int, epoch: int) -> Rows:
    for name, indices in INDICES.items():
        order = permuted_table(len(indices), len(indices), seed, epoch)
        yield {"indices": name} | _shown([indices[i] for i in order], 40)


def _digest_of(case: dict[str, Any]) -> str:
    if "indices" in case:
        indices = INDICES[case["indices"]]
        return digest(3, len(indices), *indices)
    drawn = case["num_samples"], int(case["replacement"])
    if "weights" in case:
        weights = WEIGHTS[case["weights"]]
        return digest(2, len(weights), *drawn, *map(bits, weights))
    return digest(1, case["n"], *drawn)


def _sampling_cases() -> Rows:
    kinds = {"random": _random_cases, "weighted": _weighted_cases, "subset": _subset_cases}
    for (name, kind), (seed, epoch) in itertools.product(kinds.items(), PLACES):
        for case in kind(seed, epoch):
            head = {"kind": name, "seed": seed, "epoch": epoch, "digest": _digest_of(case)}
            yield head | case


def main() -> None:
    """Write the vectors to standard output."""
    sizes = [1, 2, 3, 10, 17, 100, 1000]
    sizes += [FEISTEL_FROM, FEISTEL_FROM + 1, 10**7, 2 * 10**8, 5 * 10**9, 2**63 - 1]
    places = [(0, 0), (7, 0), (7, 1), (7, 2), (42, 3), (2**32 + 7, 0)]
    places += [(2**63, 2**40), (2**64 - 1, 2**64 - 1)]
    cases = [_case(n, *place) for n in sizes for place in places]
    cases += [_case(n, 7, e) for n in (100_000, FEISTEL_FROM - 1) for e in (0, 1)]
    given = {
        "weights_as_bits": {name: [bits(w) for w in row] for name, row in WEIGHTS.items()},
        "indices": INDICES,
    }
    lines = [f' "{key}": {json.dumps(value)},\n' for key, value in given.items()]
    rows = ",\n  ".join(json.dumps(case) for case in cases)
    drawn = ",\n  ".join(json.dumps(case) for case in _sampling_cases())
    sys.stdout.write(f'{{\n "stable": [\n  {rows}\n ],\n' + "".join(lines))
    sys.stdout.write(f' "samplings": [\n  {drawn}\n ]\n}}\n')


if __name__ == "__main__":
    main()
