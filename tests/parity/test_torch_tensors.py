"""Tensors in samples: every dtype and layout as an array, or refused by name."""

import collections
import dataclasses
import sys
import types
import weakref
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

from parity.values import assert_same
from tundish import DataLoader, default_collate
from tundish.collate import convert

SMALL = [
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu",
]  # fmt: skip
SIZES = pytest.mark.parametrize("size", [1, 2, 40])


@SIZES
@pytest.mark.parametrize("name", SMALL)
def test_dtypes_that_numpy_lacks_are_those_of_ml_dtypes(name, size):
    dtype = np.dtype(getattr(ml_dtypes, name))
    bits = np.arange(256).astype(f"u{dtype.itemsize}") << 8 * (dtype.itemsize - 1)
    tensor = torch.from_numpy(bits.view(f"i{dtype.itemsize}").copy())
    tensor = tensor.view(torch.uint8) if dtype.itemsize == 1 else tensor
    tensor = tensor.view(getattr(torch, name))
    for sample in (tensor, tensor.reshape(16, 16).T[::3], tensor[5]):
        batch = default_collate([sample] * size)
        assert batch.dtype == dtype
        assert batch.shape == (size, *sample.shape)
        expected = sample.float().numpy()
        assert np.array_equal(batch[-1].astype("f4"), expected, equal_nan=True)
    assert default_collate([tensor] * size).tobytes() == bits.tobytes() * size


def test_a_small_float_without_ml_dtypes_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    says = r"field \['x'\]: a tensor of dtype bfloat16 in sample 0; install an ml_dtypes.*\.float"
    with pytest.raises(TypeError, match=says):
        default_collate([{"x": torch.ones(2, dtype=torch.bfloat16)}])


LAYOUTS = {
    "gradient": lambda x: x.requires_grad_(),
    "result of a computation": lambda x: x.requires_grad_() * 2,
    "parameter": torch.nn.Parameter,
    "transposed": lambda x: x.T,
    "every second": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(4, 6),
    "channels last": lambda x: x.reshape(1, 4, 2, 3).to(memory_format=torch.channels_last),
    "conjugated": lambda x: torch.complex(x, x).conj(),
    "negated": lambda x: torch.complex(x, x).conj().imag,
    "0-d": lambda x: x.sum(),
    "empty": lambda x: x[:0],
    "in shared memory": lambda x: x.share_memory_(),
}


@SIZES
@pytest.mark.parametrize("name", LAYOUTS)
def test_any_layout_is_stacked(name, size):
    samples = [LAYOUTS[name](torch.arange(24.0).reshape(4, 6) + k) for k in range(size)]
    batch = default_collate(samples)
    assert_same(batch, torch.utils.data.default_collate(samples).detach().resolve_conj())
    assert batch.flags.c_contiguous
    samples[0].detach().zero_()
    assert name == "empty" or batch.any(), "the batch has memory of its own"


def nested():
    with pytest.warns(UserWarning, match="nested tensors is in prototype"):
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def quantized():
    with pytest.warns((DeprecationWarning, UserWarning)):
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


REFUSED = {
    "sparse": (lambda: torch.eye(2).to_sparse(), r"tensor of layout sparse_coo.*to_dense"),
    "csr": (lambda: torch.eye(2).to_sparse_csr(), r"tensor of layout sparse_csr.*to_dense"),
    "nested": (nested, "a nested tensor"),
    "meta": (lambda: torch.ones(2, device="meta"), r"a tensor on device meta.*return CPU"),
    "quantized": (quantized, "Tensor of dtype qint8"),
    "complex32": (lambda: torch.ones(2, dtype=torch.complex32), "Tensor of dtype complex32"),
    "bits": (lambda: torch.ones(2).view(torch.uint8).view(torch.bits8), "of dtype bits8"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_a_tensor_that_no_array_can_be_is_refused_by_name(name):
    make, says = REFUSED[name]
    tensor = make()
    for samples in ([{"x": (0, tensor)}], [{"x": (0, tensor)}] * 3):
        with pytest.raises(TypeError, match=rf"field \['x'\]\[1\]: .*{says}") as caught:
            default_collate(samples)
        assert "sample 0" in str(caught.value)
    with pytest.raises(TypeError, match=rf"field \['x'\]\[1\]: .*{says}"):
        convert({"x": [0, tensor]})


def test_the_one_among_others_is_named_by_its_place():
    with pytest.raises(TypeError, match="a tensor on device meta in sample 2"):
        default_collate([torch.ones(2), torch.ones(2), torch.ones(2, device="meta")])
    with pytest.raises(TypeError, match="a tensor on device meta in sample 1"):
        default_collate([np.ones(2), torch.ones(2, device="meta")])
    with pytest.raises(ValueError, match=r"shape \(2,\) in sample 0, shape \(3,\) in sample 1"):
        default_collate([torch.ones(2), torch.ones(3)])


class OwnTensor(torch.Tensor):
    pass


def test_a_subclass_of_tensor_is_a_tensor():
    batch = default_collate([torch.ones(2).as_subclass(OwnTensor)] * 2)
    assert_same(batch, torch.ones(2, 2))


# -- convert -----------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any = "a"


@dataclasses.dataclass
class Plain:
    x: Any
    y: Any = "a"
    z: Any = dataclasses.field(init=False, repr=False)


class OwnTuple(tuple):  # noqa: SLOT001 (it is to have attributes)
    pass


class OwnDict(dict):
    pass


def tensor():
    return torch.arange(3, dtype=torch.bfloat16)


ARRAY = np.arange(3).astype(ml_dtypes.bfloat16)

CONTAINERS = {
    "tuple": lambda x: (x, "a"),
    "tuple subclass": lambda x: OwnTuple([x, "a"]),
    "namedtuple": lambda x: Point(x, "a"),
    "list": lambda x: [1, x, "a"],
    "deque": lambda x: collections.deque([x, "a"], 5),
    "dict": lambda x: {"x": x, 1: "a"},
    "dict subclass": lambda x: OwnDict(x=x, y="a"),
    "OrderedDict": lambda x: collections.OrderedDict(x=x, y="a"),
    "defaultdict": lambda x: collections.defaultdict(list, x=x, y="a"),
    "UserDict": lambda x: collections.UserDict(x=x, y="a"),
    "mappingproxy": lambda x: types.MappingProxyType({"x": x, "y": "a"}),
    "frozen dataclass": Frozen,
    "dataclass": Plain,
    "nested": lambda x: {"a": [Frozen((Point(0, x), ("b",)))]},
}


def parts(value):
    """The tensors and arrays in a container."""
    return [item for item in flat(value) if isinstance(item, (torch.Tensor, np.ndarray))]


def flat(value):
    if isinstance(value, collections.abc.Mapping):
        value = list(value.values())
    if dataclasses.is_dataclass(value):
        value = [value.x, value.y]
    if isinstance(value, (list, tuple, collections.deque)):
        return [item for part in value for item in flat(part)]
    return [value]


@pytest.mark.parametrize("name", CONTAINERS)
def test_tensors_become_arrays_wherever_they_are(name):
    sample = CONTAINERS[name](tensor())
    converted = convert(sample)
    assert type(converted) is type(sample)
    assert repr(converted) == repr(CONTAINERS[name](ARRAY))
    assert [type(part) for part in parts(converted)] == [np.ndarray]
    assert [type(part) for part in parts(sample)] == [torch.Tensor], "the sample is left alone"


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_holds_no_tensor_is_handed_on_as_it_is(name):
    sample = CONTAINERS[name](ARRAY)
    assert convert(sample) is sample


def test_only_what_holds_a_tensor_is_made_anew():
    sample = {"a": [1, (2,)], "b": (tensor(), [3])}
    converted = convert(sample)
    assert converted["a"] is sample["a"]
    assert converted["b"] is not sample["b"]
    assert converted["b"][1] is sample["b"][1]


def test_a_dataclass_keeps_what_is_no_field_too():
    sample = Plain(tensor())
    sample.path = "a.png"
    converted = convert(sample)
    assert type(converted.x) is np.ndarray
    assert converted.path == "a.png"
    assert not hasattr(converted, "z")


def test_a_tuple_keeps_its_attributes():
    sample = OwnTuple([tensor()])
    sample.path = "a.png"
    assert convert(sample).path == "a.png"


def test_a_structure_of_torchs_keeps_its_class():
    converted = convert(torch.arange(6.0).reshape(2, 3).max(0))
    assert type(converted) is torch.return_types.max
    assert [part.tolist() for part in converted] == [[3, 4, 5], [1, 1, 1]]


def test_an_array_of_a_tensor_has_its_memory():
    numbers = torch.arange(3)
    convert({"x": numbers})["x"][0] = 7
    assert numbers[0] == 7


OTHERS = [
    5, 1.5, None, "text", b"bytes", np.arange(3), np.float32(1), {1, 2}, object(), range(3), Frozen,
    torch.float32, [1] * 1000, torch.nn.Identity(), weakref.ref(Point), bytearray(b"a"), {}, (), [],
]  # fmt: skip


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: type(value).__name__)
def test_anything_else_is_left_alone(value):
    assert convert(value) is value


def test_a_sample_that_contains_itself_is_refused():
    sample = [tensor()]
    sample.append(sample)
    with pytest.raises(ValueError, match="contains itself"):
        convert(sample)


def test_without_batching_a_loader_hands_out_arrays():
    samples = [{"x": tensor(), "y": (k, "a")} for k in range(3)]
    batches = list(DataLoader(samples, None))
    assert [batch["y"] for batch in batches] == [(0, "a"), (1, "a"), (2, "a")]
    for batch in batches:
        assert_same(batch["x"], tensor())
