"""What the service's tests share."""

import tempfile

import pytest


@pytest.fixture
def path():
    """Where a socket may be: short enough, unlike pytest's own folders."""
    with tempfile.TemporaryDirectory(prefix="td-") as folder:
        yield f"{folder}/s"
