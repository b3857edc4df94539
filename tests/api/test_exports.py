"""The public names: complete, documented, and shown under the name they are imported by."""

import inspect
import subprocess
import sys

import pytest

import tundish
import tundish_client

CLIENT = {
    "AsyncClient",
    "Client",
    "ConfigError",
    "ConnectError",
    "ConnectionLost",
    "ProtocolError",
    "RemoteError",
    "TundishError",
    "register",
}
SERVICE = {"ArrayDataset", "DataLoader", "serve", "spawn"}
MODULES = pytest.mark.parametrize("module", [tundish, tundish_client], ids=lambda m: m.__name__)


def test_the_client_exports_what_a_trainer_needs():
    assert set(tundish_client.__all__) >= CLIENT


def test_the_service_reexports_the_client():
    assert set(tundish.__all__) >= CLIENT | SERVICE
    for name in CLIENT:
        assert getattr(tundish, name) is getattr(tundish_client, name)


@MODULES
def test_every_exported_name_is_there_and_documented(module):
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert inspect.getdoc(value), f"{module.__name__}.{name} has no docstring"


@MODULES
def test_a_wrong_name_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_exceptions_show_a_public_module():
    for name in CLIENT:
        value = getattr(tundish_client, name)
        if inspect.isclass(value) and issubclass(value, Exception):
            assert not any(part.startswith("_") for part in value.__module__.split(".")), name


def test_the_client_imports_without_the_service():
    source = "import sys, tundish_client; sys.exit('tundish' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


def test_importing_tundish_does_not_load_torch():
    source = "import sys, tundish; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0
