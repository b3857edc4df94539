"""What one feed's consumers hold doesn't have another feed make one batch at a time."""

import time

import pytest

from helpers.timing import MS
from tundish import Client

MIB = 1 << 20
LIMIT = 16 * MIB
SLEEP = 20 * MS
BATCHES = 40

FEEDS = f"""
    import time
    import numpy as np
    from tundish import ArrayDataset, DataLoader

    class Slow:
        def __len__(self):
            return {BATCHES}

        def __getitem__(self, index):
            time.sleep({SLEEP})
            return np.full(1 << 18, index, np.uint8)

    feeds = {{
        "held": DataLoader(ArrayDataset(np.zeros((80, 1 << 18), np.uint8)), batch_size=1),
        "slow": DataLoader(Slow(), batch_size=1, num_workers=8),
    }}
"""


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_feed_is_made_by_several_workers_beside_one_whose_memory_is_held(serve, shared_memory):
    service = serve(FEEDS, "feeds", "--memory-limit", str(LIMIT))
    with (
        Client(service.socket) as holder,
        Client(service.socket, shared_memory=shared_memory) as reader,
    ):
        stream = holder.epoch(0, feed="held")
        held = [next(stream) for _ in range(60)]

        memory = reader.stats()["memory"]
        busy = memory["lent"] + memory["heap"] + memory["reserved"]
        assert busy > LIMIT // 2, memory

        began = time.monotonic()
        seen = [int(batch[0, 0]) for batch in reader.epoch(0, feed="slow", copy=True)]
        took = time.monotonic() - began
        assert seen == list(range(BATCHES))
        assert took < 0.75 * BATCHES * SLEEP  # one at a time takes all of it
        assert reader.stats()["memory"]["peak"] <= LIMIT
        assert all(int(batch[0].max()) == 0 for batch in held)
