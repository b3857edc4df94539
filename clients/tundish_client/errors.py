"""The errors Tundish raises itself.

::

    TundishError
    ├── ConnectError      (also ConnectionError)   no server could be reached, or it refused us
    │   └── ConnectTimeout (also TimeoutError)     ... within connect_timeout
    ├── ConnectionLost    (also ConnectionError)   the connection ended before the stream did
    ├── ProtocolError                              the peer sent something the protocol forbids
    ├── RemoteError                                an error of the server without a local class
    └── ConfigError       (also ValueError)        an argument, option or file is wrong

Errors of a dataset keep their own type and are not part of this tree, unless their class is
unknown here: those arrive as `RemoteError`.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectionLost",
    "ProtocolError",
    "RemoteError",
    "TundishError",
]


class TundishError(Exception):
    """Root of all errors that Tundish raises itself."""


class ConnectError(TundishError, ConnectionError):
    """No usable server at the socket: nobody listens, or it refused this client."""


class ConnectTimeout(ConnectError, TimeoutError):
    """No usable server at the socket before `connect_timeout` ran out."""


class ConnectionLost(TundishError, ConnectionError):
    """The connection ended before the stream did, and could not be resumed.

    Attributes:
        position: Where to resume: an object with `.epoch` and `.batch` (the batch that would
            have come next); None where it is not the error of a stream, or of one without
            positions: split, or out of order.
    """

    def __init__(self, message: str = "connection lost", position: object = None) -> None:
        super().__init__(message)
        self.position = position


class ProtocolError(TundishError):
    """The peer sent bytes that the protocol forbids; the connection is of no further use."""


class RemoteError(TundishError):
    """An error of the server whose class does not exist (or is not imported) in this process.

    Attributes:
        type_name: Qualified name of the original class, `module.qualname` (without the module
            for builtins).
        remote_traceback: The traceback as text, as the server would have printed it.
    """

    def __init__(
        self, message: str = "", type_name: str = "Exception", remote_traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.type_name = type_name
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        message = super().__str__()
        return f"{self.type_name}: {message}" if message else self.type_name


class ConfigError(TundishError, ValueError):
    """An argument, an option, a variable or a file has a value that cannot be used."""
