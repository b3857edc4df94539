"""Datasets and functions that torch's worker processes can be sent: all of them have a name."""

import os
import urllib.error
from multiprocessing.queues import SimpleQueue
from multiprocessing.sharedctypes import Synchronized
from subprocess import CalledProcessError
from typing import Any

import torch
from torch.utils import data as torch_data

from helpers.datasets import Range, Slow
from tundish import sample_rng


class TwoArguments(Exception):
    """Needs both."""

    def __init__(self, a: int, b: str) -> None:
        super().__init__(a, b)
        self.a = a
        self.b = b


class ByKeyword(Exception):
    """Takes no place."""

    def __init__(self, *, code: int) -> None:
        super().__init__(code)
        self.code = code


#: What samples raise, with the attributes that must arrive.
ERRORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "OSError": (lambda: OSError("bad"), {}),
    "CalledProcessError": (lambda: CalledProcessError(3, "cmd"), {"returncode": 3, "cmd": "cmd"}),
    "HTTPError": (
        lambda: urllib.error.HTTPError("u", 404, "nf", {}, None),
        {"code": 404, "url": "u"},
    ),
    "UnicodeDecodeError": (
        lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        {"object": b"\xff", "start": 0, "end": 1, "reason": "bad"},
    ),
    "FileNotFoundError": (
        lambda: FileNotFoundError(2, "No such", "/x/y"),
        {"errno": 2, "filename": "/x/y"},
    ),
    "two arguments": (lambda: TwoArguments(1, "b"), {"a": 1, "b": "b"}),
    "a keyword": (lambda: ByKeyword(code=5), {"code": 5}),
    "KeyError": (lambda: KeyError("k"), {"args": ("k",)}),
    "StopIteration": (lambda: StopIteration("enough"), {}),
    "SystemExit": (lambda: SystemExit(3), {}),
}


class Fail(Range):
    """Six samples, of which sample 2 raises the error of this name, from a ValueError."""

    def __init__(self, name: str) -> None:
        super().__init__(6)
        self.name = name

    def __getitem__(self, index: int) -> int:
        if index == 2:
            error = ERRORS[self.name][0]()
            raise error from ValueError("root")
        return index


class Bulk(Range):
    """Six samples, fetched a batch at a time; sample 7 as often as `count` says, if it does."""

    def __init__(self, count: int | None = None, kind: type = list) -> None:
        super().__init__(6)
        self.count = count
        self.kind = kind

    def __getitems__(self, indices: list[int]) -> Any:
        return self.kind(indices if self.count is None else [7] * self.count)


class Informed(Slow):
    """Samples that tell who makes them, by the function that the loader's package has."""

    def __init__(self, ask: Any) -> None:
        super().__init__(40, 0.01)
        self.ask = ask

    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        info = self.ask()
        return info and (info.id, info.num_workers, info.seed, info.dataset is self)


class Counted(Range):
    """Counts the samples that were asked for, in all processes."""

    def __init__(self, n: int, counter: "Synchronized[int]") -> None:
        super().__init__(n)
        self.counter = counter

    def __getitem__(self, index: int) -> int:
        with self.counter.get_lock():
            self.counter.value += 1
        return index


class Noisy(Range):
    """Samples with noise from the generator that each loader's documents advise."""

    def __init__(self, n: int, draw: Any) -> None:
        super().__init__(n)
        self.draw = draw

    def __getitem__(self, index: int) -> float:
        return index + float(self.draw())


def of_torch() -> float:
    """A number of torch's global generator, which each worker process seeds anew."""
    return torch.rand(()).item()


def of_the_sample() -> float:
    """A number of the sample's own generator."""
    return sample_rng().random()


class Numbers(torch_data.IterableDataset[int]):
    """`n` numbers from `first` on, without a length."""

    def __init__(self, first: int, n: int) -> None:
        self.first = first
        self.n = n

    def __iter__(self) -> Any:
        return iter(range(self.first, self.first + self.n))


class Sized(Numbers):
    """The same, with one."""

    def __len__(self) -> int:
        return self.n


class Noted:
    """A worker_init_fn that notes each call, with the process that it is in."""

    def __init__(self, calls: "SimpleQueue[tuple[int, int]]") -> None:
        self.calls = calls

    def __call__(self, worker: int) -> None:
        self.calls.put((os.getpid(), worker))


def no_device(worker: int) -> None:
    """A worker_init_fn that fails."""
    raise OSError(f"no device for worker {worker}")


def stop_at_2(samples: list[int]) -> list[int]:
    """A collate_fn that raises StopIteration for the batch from 2 on."""
    if samples[0] == 2:
        raise StopIteration
    return samples
