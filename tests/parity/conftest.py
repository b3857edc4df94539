"""What is needed before the first comparison."""

import pytest

from parity.peers import PROCESSES


def pytest_sessionstart(session: pytest.Session) -> None:
    """The server that torch's workers are forked from imports torch, in no test's time."""
    process = PROCESSES.Process(target=int)
    process.start()
    process.join()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Torch's loaders wait 5 s for each worker that doesn't end; now and then one doesn't."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(60))
