"""What the sidecar serves: four fifths of the digits; every fifth one is held out."""

from pathlib import Path

import numpy as np

from tundish import ArrayDataset, DataLoader

HERE = Path(__file__).parent
images = np.load(HERE / "digits-images.npy").reshape(-1, 64).astype(np.float32) / 16
labels = np.load(HERE / "digits-labels.npy").astype(np.int64)
held_out = np.arange(len(labels)) % 5 == 0

train = DataLoader(
    ArrayDataset(x=images[~held_out], y=labels[~held_out]),
    batch_size=32,
    shuffle=True,
    seed=7,
    num_workers=2,
)
