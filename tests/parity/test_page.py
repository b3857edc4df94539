"""docs/parity.md leaves out nothing of what the peers' own signatures and exports have."""

import inspect
import re

import pytest
from dataloader_rs import PyDataloader
from torch.utils import data as torch_data

from parity.peers import TESTS

ROOT = TESTS.parent
PAGE = (ROOT / "docs" / "parity.md").read_text()


def _section(head):
    (found,) = re.findall(rf"^## {head}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return found


def _first_cells(text):
    return "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))


@pytest.mark.parametrize(
    "name", sorted(inspect.signature(torch_data.DataLoader.__init__).parameters.keys() - {"self"})
)
def test_every_argument_of_torch_has_a_row(name):
    rows = _first_cells(_section("PyTorch: arguments of DataLoader"))
    assert re.search(rf"`{name}\b", rows)


@pytest.mark.parametrize("name", sorted(set(torch_data.__all__) - {"DataLoader", "_DatasetKind"}))
def test_every_name_of_torchs_package_has_a_row(name):
    assert re.search(rf"`{name}\b", _first_cells(PAGE))


@pytest.mark.parametrize("name", sorted(inspect.signature(PyDataloader).parameters))
def test_every_argument_of_dataloader_rs_has_a_row(name):
    rows = _first_cells(_section("dataloader-rs: arguments of PyDataloader"))
    assert re.search(rf"`{name}\b", rows)


def test_the_core_says_that_it_does_not_need_the_interpreter_lock():
    source = (ROOT / "rustcore" / "pyext" / "src" / "lib.rs").read_text()
    assert re.search(r"#\[pymodule\(.*gil_used = false", source)
