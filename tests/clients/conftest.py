"""What tests of clients share."""

import shutil
import tempfile

import pytest

from helpers.clients import KINDS, Reader


@pytest.fixture(params=KINDS)
def reader(request):
    """Opens clients of one kind, which look for a server that goes away."""
    readers = []

    def open_(server, **options):
        path = server if isinstance(server, str) else server.path
        readers.append(Reader(request.param, path, **({"reconnect_timeout": 10} | options)))
        return readers[-1]

    open_.kind = request.param
    yield open_
    for reader in readers:
        reader.__exit__()


@pytest.fixture
def path():
    """Where several servers may listen, one after the other."""
    folder = tempfile.mkdtemp(prefix="tundish-")
    yield f"{folder}/s"
    shutil.rmtree(folder)
