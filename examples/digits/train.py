"""Trains a softmax classifier on real digits through a Tundish sidecar; ``make demo`` runs it.

Exits with 1 if the accuracy on held-out digits is below 90 %, or if the second consumer (watch.py)
saw other bytes than this one.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from feeds import held_out, images, labels
from watch import digest

import tundish

HERE = Path(__file__).parent
EPOCHS = 12
LEARNING_RATE = 0.5
GOAL = 0.9


class Softmax:
    """Logistic regression over ten classes, trained by plain gradient descent."""

    def __init__(self) -> None:
        self.weights = np.zeros((64, 10), np.float32)
        self.bias = np.zeros(10, np.float32)

    def scores(self, x: np.ndarray) -> np.ndarray:
        """Scores of shape (n, 10) for pixels of shape (n, 64)."""
        return x @ self.weights + self.bias

    def step(self, x: np.ndarray, y: np.ndarray) -> None:
        """One descent step on the mean cross-entropy of a batch."""
        scores = self.scores(x)
        gradient = np.exp(scores - scores.max(axis=1, keepdims=True))
        gradient /= gradient.sum(axis=1, keepdims=True)
        gradient[np.arange(len(y)), y] -= 1
        gradient *= LEARNING_RATE / len(y)
        self.weights -= x.T @ gradient
        self.bias -= gradient.sum(axis=0)

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        """The part of `x` that gets its label `y`."""
        return float((self.scores(x).argmax(axis=1) == y).mean())


@dataclass
class Waits:
    """Seconds, added up over the epochs.

    Attributes:
        training: from the first epoch's start to the last one's end.
        trainer: spent in ``next()``, seen from here.
        loader: the loader had a batch ready and no leave to send it, seen from the sidecar.
    """

    training: float = 0.0
    trainer: float = 0.0
    loader: float = 0.0


class Timed:
    """Passes batches on and adds up the seconds that the loop waited for them."""

    def __init__(self, client: tundish.Client, stream: tundish.Stream, waits: Waits) -> None:
        self._client, self._stream, self._waits = client, stream, waits

    def __len__(self) -> int:
        return len(self._stream)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        begun = time.perf_counter()
        try:
            batch = next(self._stream)
        finally:
            self._waits.trainer += time.perf_counter() - begun
        # The sidecar's counters are there as long as the stream is: until its last batch is sent.
        if self._stream.position.batch == len(self) - 4:
            self._waits.loader += loader_wait(self._client)
        return batch


def loader_wait(client: tundish.Client) -> float:
    """Seconds that the sidecar's loader has waited for this process in the present epoch."""
    streams = client.stats()["streams"]
    return sum(s["loader_wait"] for s in streams if s["client"]["pid"] == os.getpid())


def progress(batches: Timed, title: str) -> Iterable[Any]:
    """A bar: tqdm's where it is installed, else a plain one; none where nobody looks."""
    if not sys.stderr.isatty():
        return batches
    try:
        from tqdm import tqdm
    except ImportError:
        return _plain_bar(batches, title)
    return tqdm(batches, title, unit="batch", ascii=" #", ncols=72)


def _plain_bar(batches: Timed, title: str) -> Iterator[Any]:
    total = len(batches)
    for count, batch in enumerate(batches, 1):
        yield batch
        bar = "#" * (30 * count // total)
        print(f"\r{title} |{bar:30}| {count}/{total}", end="", file=sys.stderr)
    print(file=sys.stderr)


def train(client: tundish.Client, model: Softmax, seen: list[list[Any]]) -> Waits:
    """Trains for all epochs; adds (epoch, batch, digest) of each batch to `seen`."""
    waits = Waits()
    begun = time.perf_counter()
    for epoch in range(EPOCHS):
        stream = client.epoch(epoch)
        for batch in progress(Timed(client, stream, waits), f"epoch {epoch:2}"):
            model.step(batch["x"], batch["y"])
            seen.append([epoch, stream.info.batch, digest(batch)])
    waits.training = time.perf_counter() - begun
    return waits


def main() -> int:
    """Runs it all; the exit status."""
    model = Softmax()
    seen: list[list[Any]] = []
    with tempfile.TemporaryDirectory(prefix="tundish-") as folder:
        socket = f"{folder}/feed.sock"
        with tundish.spawn(f"{HERE / 'feeds.py'}:train", socket=socket) as client:
            print(f"sidecar {client.pid} serves {client.info()['samples']} digits at {socket}")
            command = [sys.executable, str(HERE / "watch.py"), socket, str(EPOCHS)]
            lines = Path(folder, "watched")
            with lines.open("w") as out, subprocess.Popen(command, stdout=out) as watcher:
                waits = train(client, model, seen)
            if watcher.returncode:
                return watcher.returncode
        watched = [json.loads(line) for line in lines.read_text().splitlines()]
    return report(model, waits, seen, watched)


def report(model: Softmax, waits: Waits, seen: list[list[Any]], watched: list[list[Any]]) -> int:
    """Prints how it went; 1 if the accuracy or the second consumer's bytes are not right."""
    same = watched == seen
    accuracy = model.accuracy(images[held_out], labels[held_out])
    rate = len(seen) / waits.training
    print(f"accuracy on {held_out.sum()} held-out digits: {accuracy:.1%} (goal {GOAL:.0%})")
    print(f"second consumer: {len(watched)} batches, bytes {'the same' if same else 'DIFFER'}")
    print(f"{len(seen)} batches of 32 in {waits.training:.2f} s: {rate:.0f} a second")
    print(f"trainer waiting for loader {waits.trainer:.2f} s,", end=" ")
    print(f"loader waiting for trainer {waits.loader:.2f} s")
    print(f"\nThe same in your own code:\n\n{OWN}")
    return 0 if accuracy >= GOAL and same else 1


OWN = """\
    with tundish.spawn("feeds.py:train") as client:
        for batch in client.epoch(0):       # {"x": float32 (32, 64), "y": int64 (32,)}
            model.step(batch["x"], batch["y"])
"""

if __name__ == "__main__":
    sys.exit(main())
