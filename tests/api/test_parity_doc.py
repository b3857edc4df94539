"""docs/parity.md: each row says what Tundish has, and names a test that exists."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "parity.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py|rustcore/engine/tests/\w+\.rs)::(\w+)`")
HEAD = ["what differs, what to do instead", "test"]
VERDICTS = ("Same", "Other name", "Better", "Not offered", "Not better")


def _rows() -> list[list[str]]:
    """The cells of each row of each table, without heads."""
    found = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if cells[2:] != HEAD and not set(line) <= set("|-"):
                found.append(cells)
    return found


ROWS = _rows()
EACH = pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])


@functools.cache
def _tests(path: str) -> set[str]:
    """Names of the test functions in a file; of none in a file that isn't there."""
    file = ROOT / path
    if not file.is_file():
        return set()
    if file.suffix == ".rs":
        return set(re.findall(r"^fn (\w+)\(\)", file.read_text(), re.MULTILINE))
    tree = ast.walk(ast.parse(file.read_text()))
    return {node.name for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_there_are_rows_for_all_three():
    heads = re.findall(r"^\| ([\w -]+) \| Tundish \|", PAGE.read_text(), re.MULTILINE)
    assert set(heads) == {"PyTorch", "dataloader-rs", "burn", "lacking there"}
    assert len(ROWS) > 100


@EACH
def test_a_row_has_four_cells_and_a_verdict(row):
    assert len(row) == 4, row
    assert row[0]
    assert row[1].startswith(VERDICTS), row
    if row[1].startswith("Not offered"):
        assert row[2], f"{row[0]}: what is there to do instead?"


@EACH
def test_a_row_names_tests_that_exist(row):
    named = NAMED.findall(row[3])
    assert named, f"{row[0]}: no test is named"
    assert NAMED.sub("", row[3]).strip(" ,") == "", row[3]
    for path, test in named:
        assert test in _tests(path), f"{row[0]}: there is no {path}::{test}"
