"""A scripted server whose epochs are split."""

from typing import Any

from tundish_client.testing import Batch, ScriptedServer

PRINT = {"seed": 7, "samples": 40, "order": "stable/1", "batch_size": 4, "drop_last": False}
SAID = {"batches": 10, "exact": False, "in_order": False, "fingerprint": PRINT}


def batches(*numbers: int) -> list[Batch]:
    """Batches of two samples each."""
    return [Batch(f"batch {n}", [4 * n, 4 * n + 1], number=n) for n in numbers]


def serve(*script: Any, **options: Any) -> ScriptedServer:
    """A server that says so much of one stream."""
    return ScriptedServer(script, announce=SAID, **options)
