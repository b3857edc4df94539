"""The default collate, for any structure of samples: rows are the samples, for every batch size."""

import collections
import dataclasses
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.wire import same
from tundish import DataLoader, default_collate
from tundish.collate import collate
from tundish_client._protocol.values import encode_value


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    a: Any
    b: Any


# -- what samples look like ----------------------------------------------------------------------
# A structure is a strategy of samples that are all alike.

NUMBERS = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(),
    bool: st.booleans(),
    complex: st.complex_numbers(),
    str: st.text(max_size=5),
    bytes: st.binary(max_size=5),
}
DTYPES = ["?", "i1", ">i2", "u8", "f4", ">f8", "c8", "M8[ms]", "m8[D]", "S3", "U2"]
DTYPES += [[("a", "u1"), ("b", ">f4", (2,))]]
SHAPES = [(), (3,), (0,), (2, 0), (1, 2, 3), (2, 2)]
LAYOUTS = [np.asarray, np.asfortranarray, lambda a: a[::-1] if a.ndim else a, lambda a: a.T]


def arrays(dtype, shape, layout):
    def make(seed):
        raw = np.random.default_rng(seed).integers(0, 2, shape).astype("u1")
        array = np.zeros(shape, dtype)
        for name in array.dtype.names or ():
            array[name] = raw.reshape(shape + (1,) * (array[name].ndim - raw.ndim))
        return layout(array if array.dtype.names else raw.astype(dtype))

    return st.integers(0, 2**32).map(make)


def scalars(dtype):
    return st.integers(0, 1).map(lambda k: np.array([k]).astype(dtype)[0])


LEAVES = (
    st.sampled_from(list(NUMBERS.values()))
    | st.builds(arrays, st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.sampled_from(LAYOUTS))
    | st.builds(scalars, st.sampled_from(DTYPES[:-1]))
)


def dicts(parts):
    return st.fixed_dictionaries(parts)


CONTAINERS = {
    "tuple": lambda parts: st.tuples(*parts),
    "list": lambda parts: st.tuples(*parts).map(list),
    "deque": lambda parts: st.tuples(*parts).map(collections.deque),
    "pair": lambda parts: st.builds(Pair, *(parts * 2)[:2]) if parts else st.just(()),
    "record": lambda parts: st.builds(Record, *(parts * 2)[:2]) if parts else st.just([]),
    "dict": lambda parts: dicts({f"k{k}": part for k, part in enumerate(parts)}),
    "keys": lambda parts: dicts(dict(zip([0, (1, "x"), None], parts, strict=False))),
    "ordered": lambda parts: dicts(dict(enumerate(parts))).map(collections.OrderedDict),
    "proxy": lambda parts: dicts(dict(enumerate(parts))).map(types.MappingProxyType),
}
STRUCTURES = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        lambda name, parts: CONTAINERS[name](parts),
        st.sampled_from(list(CONTAINERS)),
        st.lists(inner, max_size=3),
    ),
    max_leaves=8,
)
BATCHES = STRUCTURES.flatmap(lambda samples: st.lists(samples, min_size=1, max_size=4))


# -- what a batch must be ------------------------------------------------------------------------


def row(batch, sample, k):
    """Sample k out of a batch; its structure is that of `sample`."""
    if isinstance(sample, (collections.abc.Mapping, collections.deque, list, tuple)):
        expected = type(sample) if type(sample) is not tuple else list
        assert type(batch) is expected
        assert len(batch) == len(sample)
    if isinstance(sample, collections.abc.Mapping):
        assert set(batch) == set(sample)
        return type(sample)({key: row(batch[key], sample[key], k) for key in sample})
    if isinstance(sample, Record):
        assert type(batch) is Record
        return Record(row(batch.a, sample.a, k), row(batch.b, sample.b, k))
    if isinstance(sample, Pair):
        return Pair(*(row(*pair, k) for pair in zip(batch, sample, strict=True)))
    if isinstance(sample, (list, tuple, collections.deque)):
        return type(sample)(row(*pair, k) for pair in zip(batch, sample, strict=True))
    if isinstance(sample, (str, bytes)):
        assert type(batch) is list
        return batch[k]
    assert type(batch) is np.ndarray
    assert batch.flags.c_contiguous
    assert batch.flags.writeable
    assert batch.dtype.isnative
    return batch[k, ...]


def equal(got, sample):
    """Whether a row is its sample: the same bits, numbers of numpy's for Python's."""
    if isinstance(sample, collections.abc.Mapping):
        return all(equal(got[key], sample[key]) for key in sample)
    if isinstance(sample, (list, tuple, collections.deque)):
        return all(map(equal, got, sample))
    if isinstance(sample, Record):
        return equal(got.a, sample.a) and equal(got.b, sample.b)
    if isinstance(sample, (str, bytes)):
        return got == sample
    sample = np.asarray(sample)
    native = sample.astype(sample.dtype.newbyteorder("="))
    return got.dtype == native.dtype and got.shape == sample.shape and bits(got) == bits(native)


def bits(array):
    if array.dtype.names:
        return [bits(np.ascontiguousarray(array[name])) for name in array.dtype.names]
    return array.tobytes()


def identical(a, b):
    if isinstance(a, collections.abc.Mapping):
        return type(a) is type(b) and set(a) == set(b) and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, collections.deque):
        return type(a) is type(b) and all(map(identical, a, b))
    if isinstance(a, Record):
        return type(a) is type(b) and identical(a.a, b.a) and identical(a.b, b.b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    return same(a, b)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=300)
@given(BATCHES)
def test_rows_of_a_batch_are_its_samples(samples):
    batch = default_collate(samples)
    for k, sample in enumerate(samples):
        assert equal(row(batch, sample, k), sample)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=300)
@given(BATCHES)
def test_a_batch_of_one_is_a_row_of_the_batch(samples):
    batch = default_collate(samples)
    for k, sample in enumerate(samples):
        one = default_collate([sample])
        assert identical(row(one, sample, 0), row(batch, sample, k))


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=200)
@given(BATCHES)
def test_what_a_worker_encodes_is_what_the_caller_gets(samples):
    batch = default_collate(samples)
    deferred = collate(samples, range(len(samples)), defer=True)
    try:
        encoded = encode_value(batch)
    except TypeError as error:  # classes that don't travel are refused in the same words
        with pytest.raises(TypeError) as caught:
            encode_value(deferred)
        assert str(caught.value) == str(error)
        return
    bodies = []
    for value in (encoded, encode_value(deferred)):
        bodies.append(np.zeros(value.nbytes, np.uint8))
        value.write_into(bodies[-1])
    assert encoded.packed == value.packed
    assert bodies[0].tobytes() == bodies[1].tobytes()
    (one,) = list(DataLoader(samples, batch_size=len(samples)))
    assert identical(one, batch)
