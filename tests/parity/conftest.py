"""What is needed before the first comparison."""

import pytest

from parity.peers import PROCESSES


def pytest_sessionstart(session: pytest.Session) -> None:
    """The server that torch's workers are forked from imports torch, in no test's time."""
    process = PROCESSES.Process(target=int)
    process.start()
    process.join()
