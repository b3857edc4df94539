# ruff: noqa: INP001 (a script beside the data it writes, not a package)
"""Golden vectors of torch's samplers, made by torch itself.

``python torch_samplings.py > torch_sampling_vectors.json``, with torch 2.13 installed, reads
DataLoaders to their end, pass after pass, and keeps some of the passes. ``tests/sampling.rs``
holds the engine to them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

MODES = ["torch", "torch:shared", "torch:persistent", "torch:default", "torch:default:persistent"]
WEIGHTS = {
    "few": [0.1, 0.9, 0.4, 0.7, 3.0, 0.6],
    "many": [(k * 2654435761 % 2**30) / 2**30 * (k % 7 > 0) for k in range(1000)],
    "one": [2.5],
    "tiny": [0.0, 0.0, 5e-324, 0.0],
    "wide": [1e-300, 1e300, 0.0, 1e300],
}
INDICES = {
    "none": [],
    "one": [5],
    "few": [3, 1, 4, 1, 5, 9, 2, 6],
    "large": [2**62, 7, 2**63 - 2],
    "many": list(range(3000, 0, -7)),
}


class Indices:
    """A dataset of any length whose samples are their indices."""

    def __init__(self, samples: int) -> None:
        """Keep the length."""
        self.samples = samples

    def __len__(self) -> int:
        """Answer the number of samples."""
        return self.samples

    def __getitem__(self, index: int) -> int:
        """Answer the index."""
        return int(index)


def sampler(case: dict[str, Any], generator: torch.Generator | None) -> Any:
    """Make the sampler of a case."""
    if case["kind"] == "subset":
        return SubsetRandomSampler(INDICES[case["indices"]], generator)
    drawn = case["num_samples"], case["replacement"]
    if case["kind"] == "weighted":
        return WeightedRandomSampler(WEIGHTS[case["weights"]], *drawn, generator=generator)
    return RandomSampler(Indices(case["samples"]), drawn[1], drawn[0], generator)


def passes(case: dict[str, Any], mode: str, seed: int) -> Iterator[list[int]]:
    """Read a DataLoader again and again."""
    default, persistent = "default" in mode, "persistent" in mode
    generator = None if default else torch.Generator().manual_seed(seed)
    torch.manual_seed(seed if default else 99)
    loader = DataLoader(
        Indices(case.get("samples", 1)),
        batch_size=64,
        sampler=sampler(case, generator),
        generator=None if mode == "torch" else generator,
        num_workers=int(persistent),
        persistent_workers=persistent,
        collate_fn=list,
    )
    while True:
        yield [index for batch in loader for index in batch]


def row(order: list[int]) -> Any:
    """Shorten a long pass to its ends and a digest."""
    if len(order) <= 40:
        return order
    digest = hashlib.sha256(struct.pack(f"<{len(order)}Q", *order)).hexdigest()
    return {"first": order[:8], "last": order[-4:], "sha256_u64le": digest}


Case = tuple[dict[str, Any], list[int], list[int]]
SEEDS, EPOCHS = [7, 2**40 + 5], [0, 1, 2]
MORE_SEEDS, MORE_EPOCHS = [0, 2**32 + 7], [0, 1, 2, 7, 20]


def _random(samples: int, num_samples: int, replacement: bool) -> dict[str, Any]:
    drawn = {"num_samples": num_samples, "replacement": replacement}
    return {"kind": "random", "samples": samples} | drawn


def _weighted(weights: str, num_samples: int, replacement: bool) -> dict[str, Any]:
    drawn = {"num_samples": num_samples, "replacement": replacement}
    return {"kind": "weighted", "weights": weights} | drawn


def cases() -> Iterator[Case]:
    """Give every case with its seeds and epochs."""
    permuted = [(10, 10), (10, 1), (10, 25), (10, 30), (1, 5), (2, 1), (1000, 999), (1000, 2500)]
    for sizes in permuted:
        yield _random(*sizes, replacement=False), SEEDS, EPOCHS
    drawn = [(10, 40), (10, 1), (10, 31), (10, 32), (10, 33), (1, 5), (1000, 2000)]
    drawn += [(2**28 + d, 40) for d in (-1, 0, 1)]
    drawn += [(2**32 + d, 20) for d in (-1, 0, 1)] + [(2**40 + 3, 20)]
    for sizes in drawn:
        yield _random(*sizes, replacement=True), SEEDS, EPOCHS
    for once in [("few", 4), ("few", 6), ("few", 1), ("many", 800), ("tiny", 1)]:
        yield _weighted(*once, replacement=False), SEEDS, EPOCHS
    looked_up = [("few", 1), ("few", 2), ("few", 12), ("many", 500), ("many", 2000), ("one", 3)]
    for often in [*looked_up, ("wide", 30)]:
        yield _weighted(*often, replacement=True), SEEDS, EPOCHS
    for name in INDICES:
        yield {"kind": "subset", "indices": name}, SEEDS, EPOCHS
    for case in [
        _random(10, 10, replacement=False),
        _random(10, 40, replacement=True),
        _weighted("few", 4, replacement=False),
        _weighted("few", 12, replacement=True),
        {"kind": "subset", "indices": "few"},
    ]:
        yield case, MORE_SEEDS, MORE_EPOCHS


def _bits(weight: float) -> int:
    """Keep a weight exactly: JSON readers differ in the last bit."""
    bits: int = struct.unpack("<Q", struct.pack("<d", weight))[0]
    return bits


def main() -> None:
    """Write the vectors to standard output."""
    rows = []
    for (case, seeds, epochs), mode in itertools.product(cases(), MODES):
        for seed in seeds:
            read = list(itertools.islice(passes(case, mode, seed), max(epochs) + 1))
            kept = {str(epoch): row(read[epoch]) for epoch in epochs}
            rows.append(json.dumps(case | {"order": mode, "seed": seed, "epochs": kept}))
    version = torch.__version__.split("+")[0]
    head = {
        "note": f"passes of DataLoaders, read to their end, by torch {version}",
        "weights_as_bits": {name: [_bits(w) for w in row] for name, row in WEIGHTS.items()},
        "indices": INDICES,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items()]
    text = ",\n  ".join(rows)
    sys.stdout.write("{\n" + "".join(lines) + f' "samplings": [\n  {text}\n ]\n}}\n')


if __name__ == "__main__":
    main()
