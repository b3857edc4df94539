"""The default collate of mappings and sequences of any class."""

import collections
import os
import types
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence

import numpy as np
import pytest

from tundish import default_collate

SIZES = pytest.mark.parametrize("size", [1, 2, 40])


def is_column(got, size):
    return type(got) is np.ndarray and got.dtype == np.int64 and got.tolist() == [5] * size


# -- mappings ----------------------------------------------------------------------------------


class Sub(dict):
    pass


class Tagged(dict):
    tag = "none"


class Base(MutableMapping):
    """A mapping over a dict of its own, without __copy__."""

    def __init__(self, items):
        self.held = dict(items)

    def __getitem__(self, key):
        return self.held[key]

    def __setitem__(self, key, value):
        self.held[key] = value

    def __delitem__(self, key):
        del self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


class Lazy(Base):
    """Builds values when they are asked for, and knows how to be copied: as rows of a table do."""

    def __init__(self, table, row):
        super().__init__(dict.fromkeys(table))
        self.table, self.row = table, row

    def __getitem__(self, key):
        return self.table[key][self.row] if self.held[key] is None else self.held[key]

    def __copy__(self):
        new = Lazy(self.table, self.row)
        new.held = dict(self.held)
        return new


class Fixed(Base):
    """Neither filled nor made by its class."""

    def __init__(self, first, second):
        super().__init__({"x": first, "y": second})

    def __setitem__(self, key, value):
        raise TypeError("fixed")


class ReadOnly(Mapping):
    def __init__(self, items):
        self.held = dict(items)

    def __getitem__(self, key):
        return self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


class Wrapped(ReadOnly):
    """Makes something else of what it is given."""

    def __init__(self, items):
        super().__init__({key: value + 0 for key, value in items.items()})


KEPT = {
    "OrderedDict": collections.OrderedDict,
    "defaultdict": lambda items: collections.defaultdict(list, items),
    "Counter": collections.Counter,
    "subclass": Sub,
    "UserDict": collections.UserDict,
    "ChainMap": collections.ChainMap,
    "mappingproxy": types.MappingProxyType,
    "mutable": Base,
    "read only": ReadOnly,
    "lazy": lambda items: Lazy({key: [value] for key, value in items.items()}, 0),
}


@SIZES
@pytest.mark.parametrize("name", KEPT)
def test_a_mapping_keeps_its_class(name, size):
    samples = [KEPT[name]({"x": 5, "y": 5}) for _ in range(size)]
    batch = default_collate(samples)
    assert type(batch) is type(samples[0])
    assert list(batch) == ["x", "y"]
    assert is_column(batch["x"], size)
    assert is_column(batch["y"], size)


@pytest.mark.parametrize("name", KEPT)
def test_samples_in_mappings_are_left_alone(name):
    samples = [KEPT[name]({"x": 5}), KEPT[name]({"x": 6})]
    default_collate(samples)
    assert [sample["x"] for sample in samples] == [5, 6]
    assert [len(sample) for sample in samples] == [1, 1]


@SIZES
@pytest.mark.parametrize("make", [Fixed, lambda x, y: Wrapped({"x": x, "y": y})])
def test_a_mapping_that_cannot_be_made_again_becomes_a_dict(make, size):
    samples = [make(5, 5) for _ in range(size)]
    batch = default_collate(samples)
    assert type(batch) is dict
    assert list(batch) == list(samples[0])
    assert all(is_column(column, size) for column in batch.values())


def test_what_a_dict_carries_besides_its_items_is_the_first_samples():
    samples = [Tagged(x=1), Tagged(x=2)]
    samples[0].tag = "first"
    assert default_collate(samples).tag == "first"
    batch = default_collate([collections.defaultdict(list, x=1)])
    assert batch.default_factory is list


def test_values_that_a_subclass_computes_are_the_ones():
    class Doubled(dict):
        def __getitem__(self, key):
            value = super().__getitem__(key)
            return value if isinstance(value, np.ndarray) else 2 * value

    assert default_collate([Doubled(x=1), Doubled(x=2)])["x"].tolist() == [2, 4]


@pytest.mark.parametrize("name", KEPT)
def test_a_key_that_one_mapping_lacks_is_named(name):
    make = KEPT[name]
    samples = [make({"x": 1, "y": 2}), make({"x": 1})]
    for pair, has, lacks in [(samples, 0, 1), (samples[::-1], 1, 0)]:
        says = rf"\['y'\]: key present in sample {has}, key missing in sample {lacks}"
        with pytest.raises(ValueError, match=says):
            default_collate(pair)
    assert list(samples[1]) == ["x"], "a defaultdict or a Counter must not grow a key"


def test_mappings_of_two_classes_are_refused():
    with pytest.raises(TypeError, match=r"type dict in .*type collections.OrderedDict in"):
        default_collate([{"x": 1}, collections.OrderedDict(x=1)])


# -- sequences ---------------------------------------------------------------------------------


class Items(list):
    pass


class Row(Sequence):
    def __init__(self, *items):
        self.items = items

    def __getitem__(self, k):
        return self.items[k]

    def __len__(self):
        return len(self.items)


class Boxes(MutableSequence):
    """A sequence over a list of its own, without __copy__."""

    def __init__(self, items):
        self.held = list(items)

    def __getitem__(self, k):
        return self.held[k]

    def __setitem__(self, k, item):
        self.held[k] = item

    def __delitem__(self, k):
        del self.held[k]

    def insert(self, k, item):
        self.held.insert(k, item)

    def __len__(self):
        return len(self.held)


class Triple(tuple):
    __slots__ = ()


@SIZES
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (list, list),
        (tuple, list),
        (Triple, list),
        (Items, Items),
        (collections.deque, collections.deque),
        (collections.UserList, collections.UserList),
        (Boxes, Boxes),
        (lambda items: Row(*items), list),
        (lambda items: range(5, 6), list),
        (lambda items: os.stat_result([5] * 10), list),
    ],
)
def test_sequences_become_columns_and_keep_their_class_if_possible(make, kind, size):
    samples = [make([5]) for _ in range(size)]
    batch = default_collate(samples)
    assert type(batch) is kind
    assert len(batch) == len(samples[0])
    assert is_column(batch[0], size)
    assert samples[0][0] == 5


def test_a_deque_keeps_its_bound():
    batch = default_collate([collections.deque([1, "a"], 2), collections.deque([2, "b"], 2)])
    assert batch.maxlen == 2
    assert batch[0].tolist() == [1, 2]
    assert batch[1] == ["a", "b"]


@pytest.mark.parametrize("make", [collections.deque, Items, Boxes, range])
def test_lengths_that_differ_are_named(make):
    short, long = (make(3), make(4)) if make is range else (make([1, 2, 3]), make([1, 2, 3, 4]))
    for pair, lengths in [([short, long], (3, 4)), ([long, short], (4, 3))]:
        says = "length {} in sample 0, length {} in sample 1; .*pads".format(*lengths)
        with pytest.raises(ValueError, match=says):
            default_collate(pair)
