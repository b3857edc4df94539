"""The default collate of objects with fields: namedtuples and dataclasses."""

import collections
import dataclasses
import functools
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import pytest

from tundish import default_collate

SIZES = pytest.mark.parametrize("size", [1, 2, 40])


def is_column(got, size):
    return type(got) is np.ndarray and got.dtype == np.int64 and got.tolist() == [5] * size


class Checked(NamedTuple):
    x: object
    y: object = "a"


@dataclasses.dataclass
class Plain:
    x: Any
    y: Any = "a"


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    y: Any = "a"


@dataclasses.dataclass(slots=True)
class Slots:
    x: Any
    y: Any = "a"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    x: Any
    y: Any = "a"


@dataclasses.dataclass
class Strict:
    """Would refuse columns, if it were asked."""

    x: int
    y: str = "a"
    count: ClassVar[int] = 3

    def __post_init__(self):
        if type(self.x) is not int:
            raise TypeError("x must be an int")


@dataclasses.dataclass(frozen=True)
class Derived(Frozen):
    z: Any = dataclasses.field(init=False, default=7)


@dataclasses.dataclass
class Computed:
    x: Any
    given: dataclasses.InitVar[int] = 1
    y: Any = dataclasses.field(init=False)

    def __post_init__(self, given):
        self.y = "a" * given


T = TypeVar("T")


@dataclasses.dataclass
class Of(Generic[T]):
    x: T
    y: Any = "a"

    @functools.cached_property
    def twice(self):
        return 2 * self.x


@SIZES
@pytest.mark.parametrize(
    "kind", [Checked, Plain, Frozen, Slots, Both, Strict, Derived, Computed, Of, Of[int]]
)
def test_an_object_with_fields_becomes_one_of_columns(kind, size):
    batch = default_collate([kind(x=5) for _ in range(size)])
    assert type(batch) is type(kind(x=5))
    assert is_column(batch.x, size)
    assert batch.y == ["a"] * size
    if kind is Derived:
        assert batch.z.tolist() == [7] * size


def test_what_a_class_computed_of_one_sample_does_not_become_the_batchs():
    samples = [Of(1), Of(2)]
    assert samples[0].twice == 2
    assert default_collate(samples).twice.tolist() == [2, 4]


def test_a_dataclass_of_dataclasses_of_arrays():
    samples = [Plain(Frozen(np.full(3, k), {"t": "a"}), [k]) for k in range(4)]
    batch = default_collate(samples)
    assert type(batch) is Plain
    assert type(batch.x) is Frozen
    assert batch.x.x.tolist() == [[k] * 3 for k in range(4)]
    assert batch.x.y == {"t": ["a"] * 4}
    assert batch.y[0].tolist() == [0, 1, 2, 3]
    assert samples[2].x.x.tolist() == [2, 2, 2], "the samples are left alone"


def test_fields_that_disagree_are_named():
    with pytest.raises(ValueError, match=r"field \.x\.y\[0\]: shape \(2,\) in .*shape \(3,\) in"):
        default_collate([Plain(Frozen(1, (np.zeros(2),))), Plain(Frozen(1, (np.zeros(3),)))])
    with pytest.raises(TypeError, match=r"type .*Plain in sample 0, type .*Strict in sample 1"):
        default_collate([Plain(1), Strict(1)])


def test_a_field_that_one_sample_lacks_is_named_and_one_that_all_lack_stays_away():
    samples = [Computed(1), Computed(2)]
    del samples[1].y
    with pytest.raises(ValueError, match=r"\.y: field present in sample 0, field missing in .* 1"):
        default_collate(samples)
    del samples[0].y
    batch = default_collate(samples)
    assert batch.x.tolist() == [1, 2]
    assert not hasattr(batch, "y")


def test_an_attribute_that_is_no_field_is_refused_rather_than_lost():
    sample = Plain(1)
    sample.path = "a.png"
    with pytest.raises(TypeError, match=r"attribute 'path' of a .*Plain .* in sample 1; declare"):
        default_collate([Plain(1), sample])


@dataclasses.dataclass
class Failure(Exception):
    x: Any


def test_a_dataclass_that_needs_its_init_is_refused():
    with pytest.raises(TypeError, match=r"Failure in sample 0; .*__init__; return a dict"):
        default_collate([Failure(1)])


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """A mapping whose fields are its items, as some models return."""

    x: Any = None

    def __post_init__(self):
        super().__setitem__("x", self.x)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.__dict__[key] = value


@SIZES
def test_a_dataclass_that_is_a_mapping_is_one(size):
    batch = default_collate([Output(5) for _ in range(size)])
    assert type(batch) is Output
    assert is_column(batch["x"], size)
    assert batch.x is batch["x"]
