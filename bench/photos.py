"""Pictures that take a millisecond or two of CPU each, as JPEGs do. Needs numpy only.

A picture is decompressed, which leaves the interpreter to others, and made smaller with numpy,
which does so for the most part. The same files give the same arrays everywhere.
"""

import zlib
from pathlib import Path

import numpy as np

SIDE = 256
OUT = 224
COUNT = 1000
DISTINCT = 100


def write(folder: Path) -> None:
    """Writes the pictures, each of which stands for several samples, and the labels."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    blobs = []
    for _ in range(DISTINCT):
        waves = rng.uniform(0.01, 0.1, (3, 2))
        picture = np.stack([np.sin(a * x + b * y) for a, b in waves], axis=-1)
        noise = rng.integers(0, 12, picture.shape)
        blobs.append(zlib.compress((picture * 100 + 110 + noise).astype(np.uint8).tobytes(), 1))
    (folder / "pictures.bin").write_bytes(b"".join(blobs))
    np.save(folder / "ends.npy", np.cumsum([len(blob) for blob in blobs]))
    np.save(folder / "y.npy", np.arange(COUNT, dtype=np.int64))


class Photos:
    """Sample i is a picture, uint8[3, 224, 224], and its label."""

    def __init__(self, folder: Path) -> None:
        self._bytes = np.memmap(folder / "pictures.bin", np.uint8, "r")
        self._ends = np.load(folder / "ends.npy")
        self._labels = np.load(folder / "y.npy")
        at = np.arange(OUT) * (SIDE / OUT)
        self._low = at.astype(np.intp)
        self._high = np.minimum(self._low + 1, SIDE - 1)
        self._part = ((at - self._low) * 256).astype(np.uint16)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        number = index % DISTINCT
        begin = self._ends[number - 1] if number else 0
        raw = zlib.decompress(self._bytes[begin : self._ends[number]])
        picture = np.frombuffer(raw, np.uint8).reshape(SIDE, SIDE, 3)
        return self._smaller(self._smaller(picture).swapaxes(0, 1)).transpose(2, 1, 0).copy(), (
            self._labels[index]
        )

    def _smaller(self, picture: np.ndarray) -> np.ndarray:
        """Linear between two rows."""
        part = self._part[:, None, None]
        mixed = picture[self._low] * (256 - part) + picture[self._high] * part
        return (mixed >> 8).astype(np.uint8)
