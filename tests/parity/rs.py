"""What the comparisons with dataloader-rs share: its loader, and datasets that it accepts."""

from typing import Any

from dataloader_rs import PyDataloader, PyDataset


class Items(PyDataset):
    """Item i is the int i, or what `item(i)` gives."""

    def __init__(self, n, item=int):
        self.n = n
        self.item = item

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.item(index)


class Bulk(Items):
    """The same, fetched a batch at a time."""

    def __init__(self, n, fetch=list):
        super().__init__(n)
        self.fetch = fetch
        self.asked = []

    def __getitems__(self, indices):
        self.asked.append(list(indices))
        return self.fetch(indices)


def theirs(dataset: Any, batch_size: int, **options: Any) -> PyDataloader:
    """dataloader-rs' loader, which has other arguments in torch's places."""
    return PyDataloader(dataset, batch_size=batch_size, **options)
