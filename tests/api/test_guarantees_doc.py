"""docs/guarantees.md: every guarantee names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py|rustcore/engine/tests/\w+\.rs)::(\w+)`")
ROWS = [
    line
    for line in PAGE.splitlines()
    if line.startswith("|") and not set(line) <= set("|-") and not line.endswith("| test |")
]


def test_each_of_the_promises_has_a_section():
    assert len(re.findall(r"^## ", PAGE, re.MULTILINE)) == 10
    assert len(ROWS) >= 25


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:42])
def test_a_row_names_tests_that_exist(row):
    found = NAMED.findall(row)
    assert found, row
    for path, name in found:
        text = (ROOT / path).read_text()
        if path.endswith(".rs"):
            assert f"fn {name}()" in text, f"{path}::{name}"
        else:
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            names = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, functions)}
            assert name in names, f"{path}::{name}"
