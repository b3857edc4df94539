"""What every test area shares: both event loops, the unit of time, a real service."""

import asyncio
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import uvloop

from helpers.serving import Service

# Tests look at what is left when their streams are over; tests/service/test_linger.py at the rest.
os.environ.setdefault("TUNDISH_SHARE_LINGER", "0")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every async test runs on asyncio's own loop and on uvloop's."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Takes what pytest keeps of thousands of tests out of the collections of garbage.

    With it a collection takes 0.3 s, in the middle of tests that allow 0.1 s.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    """Starts services (see :class:`helpers.serving.Service`) that end with the test."""
    services: list[Service] = []

    def start(source: str, *args: Any, **kwargs: Any) -> Service:
        services.append(Service(source, *args, **kwargs))
        return services[-1]

    yield start
    for service in services:
        service.cleanup()
