"""Fixtures for tests with several consumers of one service.

A module that uses them has the text of its feeds in ``SOURCE`` and a fixture ``service``.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.nursery import Nursery
from helpers.serving import Service
from helpers.sharing import Watch, loaders

_epochs = itertools.count()


@pytest.fixture
def watch(service: Service) -> Iterator[Watch]:
    """Looks at the service, which must be idle when the test is over."""
    with Watch(service) as watch:
        yield watch
        watch.wait_until_idle()
    assert service.process.poll() is None


@pytest.fixture(scope="module")
def ours(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The same feeds in this process."""
    return loaders(request.module.SOURCE)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def young(nursery: Nursery) -> Iterator[Nursery]:
    """Starts consumers, of which none is left when the test is over."""
    yield nursery
    nursery.clear()


@pytest.fixture
def number() -> int:
    """An epoch that no other test has asked for."""
    return next(_epochs)
