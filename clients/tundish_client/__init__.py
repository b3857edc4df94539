"""Reads batches from a Tundish server, with `for` or with `async for`.

::

    from tundish_client import Client

    with Client() as client:
        for batch in client.epoch(0):
            ...
"""

from ._protocol.info import BatchInfo, BatchTimes, Position
from ._protocol.registry import register
from ._version import __version__
from .aio import AsyncClient
from .config import default_socket
from .errors import (
    ConfigError,
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    ProtocolError,
    RemoteError,
    TundishError,
)
from .streams import AsyncStream, Stream
from .sync import Client

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "BatchInfo",
    "BatchTimes",
    "Client",
    "ConfigError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectionLost",
    "Position",
    "ProtocolError",
    "RemoteError",
    "Stream",
    "TundishError",
    "__version__",
    "default_socket",
    "register",
]

for _name in __all__:
    if hasattr(_value := globals()[_name], "__module__"):
        _value.__module__ = __name__  # tracebacks show where users find it
del _name, _value
