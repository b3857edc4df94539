"""The same batches through a real service: orders, samplers, datasets, errors."""

import pytest
import torch
from torch.utils import data as torch_data

from helpers.clients import read_async, read_sync
from helpers.serving import Service
from parity import rs
from parity.peers import TESTS, generator, theirs
from parity.samples import ERRORS, Numbers
from parity.values import assert_same
from tundish import Client

#: Served in a process of its own. Seeds, sizes and options stand here and in LOADERS below.
FEEDS = """
    import torch
    from torch.utils import data as torch_data
    from parity.samples import ERRORS, Fail, Numbers
    from tundish import (
        BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler,
    )


    def generator(seed):
        return torch.Generator().manual_seed(seed)


    def tensors():
        x = torch.arange(66.0).reshape(11, 2, 3)
        return torch_data.TensorDataset(x, torch.arange(11) % 3)


    def torch_sampler():
        return torch_data.RandomSampler(range(100), generator=generator(7))


    def loader(dataset=range(100), batch_size=8, **options):
        return DataLoader(dataset, batch_size, **options)


    def shuffled(order):
        return loader(shuffle=True, seed=2**32 + 7, order=order, num_workers=2)


    feeds = {
        "torch": shuffled("torch"),
        "default": shuffled("torch:default"),
        "persistent": shuffled("torch:persistent"),
        "default-persistent": shuffled("torch:default:persistent"),
        "dataloader-rs": shuffled("dataloader-rs"),
        "random": loader(sampler=RandomSampler(range(100), True, 33, seed=7, order="torch")),
        "subset": loader(sampler=SubsetRandomSampler([5, 3, 9, 60], seed=7, order="torch")),
        "weighted": loader(
            sampler=WeightedRandomSampler([0.1, 0.9, 0.4], 50, seed=7, order="torch")
        ),
        "batches": DataLoader(
            range(100),
            batch_sampler=BatchSampler(RandomSampler(range(100), seed=7, order="torch"), 7, True),
        ),
        "given": loader(sampler=torch_sampler()),
        "tensors": loader(tensors(), 4, shuffle=True, seed=7, order="torch", num_workers=2),
        "subset-of": loader(torch_data.Subset(tensors(), [9, 3, 1, 4]), 3, num_workers=2),
        "stream": loader(torch_data.ChainDataset([Numbers(0, 5), Numbers(20, 4)]), 4),
        "samples": DataLoader(tensors(), None, shuffle=True, seed=7, order="torch"),
    } | {f"fail {name}": loader(Fail(name), 2, num_workers=2) for name in ERRORS}
"""


def tensors():
    x = torch.arange(66.0).reshape(11, 2, 3)
    return torch_data.TensorDataset(x, torch.arange(11) % 3)


def shuffled(seed, **options):
    return torch_data.DataLoader(range(100), 8, shuffle=True, generator=seed, **options)


def sampled(sampler):
    return torch_data.DataLoader(range(100), 8, sampler=sampler)


#: The peer's loader that each feed must equal, made when its passes are read.
LOADERS = {
    "torch": lambda: shuffled(generator(2**32 + 7)),
    "default": lambda: torch.manual_seed(2**32 + 7) and shuffled(None),
    "persistent": lambda: theirs(
        range(100),
        8,
        shuffle=True,
        generator=generator(2**32 + 7),
        num_workers=2,
        persistent_workers=True,
        collate_fn=torch_data.default_collate,
    ),
    "default-persistent": lambda: (
        torch.manual_seed(2**32 + 7)
        and theirs(
            range(100),
            8,
            shuffle=True,
            num_workers=2,
            persistent_workers=True,
            collate_fn=torch_data.default_collate,
        )
    ),
    "dataloader-rs": lambda: rs.theirs(
        rs.Items(100), 8, shuffle=True, seed=2**32 + 7, collate_fn=torch.tensor
    ),
    "random": lambda: sampled(torch_data.RandomSampler(range(100), True, 33, generator(7))),
    "subset": lambda: sampled(torch_data.SubsetRandomSampler([5, 3, 9, 60], generator(7))),
    "weighted": lambda: sampled(
        torch_data.WeightedRandomSampler([0.1, 0.9, 0.4], 50, generator=generator(7))
    ),
    "batches": lambda: torch_data.DataLoader(
        range(100),
        batch_sampler=torch_data.BatchSampler(
            torch_data.RandomSampler(range(100), generator=generator(7)), 7, True
        ),
    ),
    "given": lambda: sampled(torch_data.RandomSampler(range(100), generator=generator(7))),
    "tensors": lambda: torch_data.DataLoader(tensors(), 4, shuffle=True, generator=generator(7)),
    "subset-of": lambda: torch_data.DataLoader(torch_data.Subset(tensors(), [9, 3, 1, 4]), 3),
    "stream": lambda: torch_data.DataLoader(
        torch_data.ChainDataset([Numbers(0, 5), Numbers(20, 4)]), 4
    ),
    "samples": lambda: torch_data.DataLoader(tensors(), None, shuffle=True, generator=generator(7)),
}
#: Feeds whose epochs are functions of their number, and can be asked for in any sequence.
ANY_EPOCH = sorted(LOADERS.keys() - {"given", "stream"})


# The first test pays for the start.
pytestmark = pytest.mark.timeout(80)


class WithTorch(Service):
    """Its start imports torch, which takes seconds where the processor is shared."""

    patience = 60
    forked = False  # its PYTHONPATH is read by the interpreter


@pytest.fixture(scope="module")
def service():
    started = WithTorch(FEEDS, "feeds", env={"PYTHONPATH": str(TESTS)})
    yield started
    started.cleanup()


def assert_same_epoch(stream, expected, *, unbatched):
    batches = list(stream)
    assert len(batches) == len(expected)
    for mine, other in zip(batches, expected, strict=True):
        assert_same(mine, other, unbatched=unbatched)


@pytest.mark.parametrize("name", LOADERS)
def test_the_same_epochs_in_turn(service, name):
    other = LOADERS[name]()
    with Client(service.socket) as client:
        for epoch in range(3):
            assert_same_epoch(
                client.epoch(epoch, feed=name), list(other), unbatched=name == "samples"
            )


@pytest.mark.parametrize("name", ANY_EPOCH)
def test_any_epoch_from_any_batch(service, name):
    other = LOADERS[name]()
    expected = [list(other) for _ in range(4)]
    with Client(service.socket) as client:
        for epoch, start in ((3, 0), (1, 0), (3, len(expected[3]) - 1)):
            stream = client.epoch(epoch, feed=name, start=start)
            assert len(stream) == len(expected[epoch]) - start
            assert_same_epoch(stream, expected[epoch][start:], unbatched=name == "samples")


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_ranks_of_a_distributed_sampler(service, drop_last):
    with Client(service.socket) as client:
        for rank in range(3):
            sampler = torch_data.DistributedSampler(range(100), 3, rank, True, 2**32 + 7, drop_last)
            uneven = "drop" if drop_last else "pad"
            for epoch in (0, 3):
                sampler.set_epoch(epoch)
                expected = list(torch_data.DataLoader(range(100), 8, sampler=sampler))
                stream = client.epoch(epoch, feed="torch", rank=rank, world_size=3, uneven=uneven)
                assert_same_epoch(stream, expected, unbatched=False)


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_errors_keep_type_and_attributes_over_the_socket(service, name):
    make, attributes = ERRORS[name]
    options = {"calls": 4, "client": {}, "feed": f"fail {name}"}
    before, error, after, end, _ = read_sync(service.socket, **options)
    assert (before.tolist(), after.tolist(), end) == ([0, 1], [4, 5], "end")
    if name in {"StopIteration", "SystemExit"}:
        assert type(error) is RuntimeError
        assert name in str(error)
    else:
        assert type(error) is type(make())
        assert {key: getattr(error, key) for key in attributes} == attributes
    assert any("dataset[2]" in note for note in error.__notes__)


@pytest.mark.parametrize("name", ["two arguments", "FileNotFoundError"])
async def test_errors_of_the_async_client(service, name):
    make, attributes = ERRORS[name]
    before, error, after, end, _ = await read_async(
        service.socket, calls=4, client={}, feed=f"fail {name}"
    )
    assert (before.tolist(), after.tolist(), end) == ([0, 1], [4, 5], "end")
    assert type(error) is type(make())
    assert {key: getattr(error, key) for key in attributes} == attributes


def test_two_services_share_an_epoch(serve):
    # What worker processes are for: two interpreters that prepare the halves of each batch.
    source = """
        import os
        from tundish import DataLoader, MapDataset

        def work(number):
            return number, os.getpid()

        train = DataLoader(MapDataset(range(100), work), 4, shuffle=True, seed=7, order="torch")
    """
    makers = set()
    for rank in range(2):
        service = serve(source)
        with Client(service.socket) as client:
            found = list(client.epoch(1, rank=rank, world_size=2))
        makers |= {pid for _, pids in found for pid in pids.tolist()}
        sampler = torch_data.DistributedSampler(range(100), 2, rank, True, 7)
        sampler.set_epoch(1)
        expected = torch_data.DataLoader(range(100), 4, sampler=sampler)
        assert [numbers.tolist() for numbers, _ in found] == [part.tolist() for part in expected]
    assert len(makers) == 2
