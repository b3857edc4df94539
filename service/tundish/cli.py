"""The command line: `tundish serve`, `tundish ping`, `tundish stats`."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

from tundish_client.errors import ConfigError, TundishError

__all__ = ["app", "main"]

USAGE = 2
"""Exit status after an error in options, target or socket."""

# Typer brings click along, under different names in different releases.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="tundish",
    help="Batches for any number of training loops, from one process.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

SocketOption = Annotated[
    str | None,
    typer.Option(
        envvar="TUNDISH_SOCKET",
        metavar="PATH",
        help="Path of the Unix socket. [default: $XDG_RUNTIME_DIR/tundish/tundish.sock, "
        "else /tmp/tundish-UID/tundish.sock]",
        show_default=False,
    ),
]
TimeoutOption = Annotated[
    str,
    typer.Option(
        "--connect-timeout",
        envvar="TUNDISH_CONNECT_TIMEOUT",
        metavar="SECONDS",
        help="How long to wait for the server.",
    ),
]


@app.command()
def serve(
    target: Annotated[
        str,
        typer.Argument(help="file.py:attribute or package.module:attribute.", metavar="TARGET"),
    ],
    socket: SocketOption = None,
    loop: Annotated[
        str,
        typer.Option(envvar="TUNDISH_LOOP", metavar="asyncio|uvloop", help="The event loop."),
    ] = "uvloop",
    memory_limit: Annotated[
        str | None,
        typer.Option(
            envvar="TUNDISH_MEMORY_LIMIT",
            metavar="BYTES",
            help="Memory for batches, also as 1GiB. [default: a quarter of what is available, "
            "at most 4GiB]",
            show_default=False,
        ),
    ] = None,
    socket_mode: Annotated[
        str,
        typer.Option(
            envvar="TUNDISH_SOCKET_MODE", metavar="OCTAL", help="Permissions of the socket."
        ),
    ] = "0600",
    allowed_uids: Annotated[
        str | None,
        typer.Option(
            envvar="TUNDISH_ALLOWED_UIDS",
            metavar="UID,...",
            help="Users besides this one and root that may connect.",
            show_default=False,
        ),
    ] = None,
    lease_quota: Annotated[
        str,
        typer.Option(
            envvar="TUNDISH_LEASE_QUOTA",
            metavar="SLOTS",
            help="Slots of shared memory that a client may hold; 0 sends all batches inline.",
        ),
    ] = "64",
    share_window: Annotated[
        str,
        typer.Option(
            envvar="TUNDISH_SHARE_WINDOW",
            metavar="BYTES",
            help="Batches held for streams that lag behind others of their epoch; one that falls "
            "further behind gets the rest by itself.",
        ),
    ] = "32MiB",
    share_linger: Annotated[
        str,
        typer.Option(
            envvar="TUNDISH_SHARE_LINGER",
            metavar="SECONDS",
            help="How long an epoch that is over is kept for streams that come late, when no "
            "stream of its feed is open any more.",
        ),
    ] = "2",
    join_timeout: Annotated[
        str,
        typer.Option(
            envvar="TUNDISH_JOIN_TIMEOUT",
            metavar="SECONDS",
            help="How long streams with a group_size wait for the others.",
        ),
    ] = "60",
    lease_timeout: Annotated[
        str,
        typer.Option(
            envvar="TUNDISH_LEASE_TIMEOUT",
            metavar="SECONDS",
            help="After which what a stopped consumer holds of a split epoch goes to the others.",
        ),
    ] = "60",
    metrics: Annotated[
        str | None,
        typer.Option(
            envvar="TUNDISH_METRICS",
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus there, over HTTP.",
            show_default=False,
        ),
    ] = None,
    log_level: Annotated[
        str,
        typer.Option(
            envvar="TUNDISH_LOG_LEVEL", metavar="debug|info|warning|error", help="Log to stderr."
        ),
    ] = "info",
    sidecar: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve the DataLoaders of TARGET until SIGINT or SIGTERM."""
    from tundish.config import ServeConfig
    from tundish.serving import Sidecar, serve_process

    parent = Sidecar.parse(sidecar) if sidecar else None
    if parent is not None:
        parent.watch()
    config = ServeConfig.of(
        socket=socket or None,
        loop=loop,
        memory_limit=memory_limit,
        socket_mode=socket_mode,
        allowed_uids=allowed_uids,
        lease_quota=lease_quota,
        share_window=share_window,
        share_linger=share_linger,
        join_timeout=join_timeout,
        lease_timeout=lease_timeout,
        metrics=metrics or None,
        log_level=log_level,
    )
    feeds = _load(target)
    raise typer.Exit(serve_process(feeds, config, f"feeds {', '.join(feeds)}", parent))


@app.command()
def ping(socket: SocketOption = None, connect_timeout: TimeoutOption = "2") -> None:
    """Ask a server for a sign of life and print how long it took."""
    from tundish_client import Client

    with Client(socket or None, connect_timeout=_seconds(connect_timeout)) as client:
        seconds = client.ping()
    print(f"pong from {client.socket} in {seconds * 1e3:.2f} ms")


@app.command()
def stats(
    socket: SocketOption = None,
    connect_timeout: TimeoutOption = "2",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all counters, as JSON.", show_default=False)
    ] = False,
) -> None:
    """Print a server's counters: its feeds, runs, streams and memory."""
    from tundish_client import Client

    with Client(socket or None, connect_timeout=_seconds(connect_timeout)) as client:
        counters = client.stats()
    if as_json:
        print(json.dumps(counters, indent=2))
    else:
        from tundish.report import report

        report(counters)


def _seconds(text: str) -> float:
    """What `Client` says of a number that it doesn't like is said here of what is no number."""
    try:
        return float(text)
    except ValueError:
        raise ConfigError(
            f"connect_timeout must be a number of seconds, such as 2, got {text!r}"
        ) from None


class _Terminated(BaseException):
    """SIGTERM came before the server took over."""


def _terminate(_signum: int, _frame: object) -> None:
    raise _Terminated


def _load(target: str) -> dict[str, Any]:
    """Imports the target; an error of its code is told in one line."""
    from tundish.targets import explain, load_target

    try:
        return load_target(target)
    except (TundishError, KeyboardInterrupt, _Terminated):
        raise
    except BaseException as error:  # a target that calls sys.exit() has not been loaded either
        if os.environ.get("TUNDISH_LOG_LEVEL") == "debug":
            import traceback

            traceback.print_exc()
        _fail(f"target {target!r} cannot be loaded: {explain(error)}")


def _fail(message: str) -> NoReturn:
    sys.stdout.flush()
    print(f"tundish: error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    raise SystemExit(USAGE)


def main() -> NoReturn:
    """Runs the command line and exits: 0, 2 after an error, 130 after Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name need not be in the terminal's alphabet
        sys.stdout.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _terminate)  # until the server takes over
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="tundish", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = 128 + signal.SIGINT
    except _Terminated:
        code = 0
    except _UsageError as error:
        _fail(error.format_message() if hasattr(error, "format_message") else str(error))
    except TundishError as error:
        _fail(str(error))
    sys.stdout.flush()
    raise SystemExit(code or 0)
