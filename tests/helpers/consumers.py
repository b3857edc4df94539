"""Consumers in processes of their own, which a test may stop or kill."""

import json
import signal
import textwrap
from pathlib import Path
from typing import Any

from helpers.forkery import Forkery
from helpers.timing import MS, wait_for

#: Tells of each batch when it is handed out, then takes `pause` seconds over it; `hang` is the
#: number of batches after which it takes for ever; `gate` is a file that it waits for with its
#: first batch in its hands.
PROGRAM = """
    import asyncio, json, os, sys, time

    options = json.loads(sys.argv[1])
    number = 0

    def say(**what):
        print(json.dumps(what), flush=True)

    def take(stream):
        global number
        number += 1
        info = stream.info
        say(batch=info.batch, indices=info.indices, acked=stream.state_dict()["acked"])
        while number == 1 and not os.path.exists(options.get("gate", ".")):
            time.sleep(0.005)
        return 3600 if number == options.get("hang") else options.get("pause", 0)

    def end(stream):
        say(end=dict(stream.counts), acked=stream.state_dict()["acked"])

    async def read(AsyncClient):
        async with AsyncClient(options["socket"], **options.get("client", {})) as client:
            stream = client.epoch(0, **options["epoch"])
            while True:
                try:
                    await anext(stream)
                except StopAsyncIteration:
                    break
                except OSError:
                    pass
                time.sleep(take(stream)) if options.get("busy") else await asyncio.sleep(
                    take(stream))
            end(stream)

    def main():
        if options["kind"] != "sync":
            from tundish_client import AsyncClient

            if options["kind"] == "uvloop":
                import uvloop as loops
            else:
                loops = asyncio
            loops.run(read(AsyncClient))
            return
        from tundish_client import Client

        with Client(options["socket"], **options.get("client", {})) as client:
            stream = client.epoch(0, **options["epoch"])
            while True:
                try:
                    next(stream)
                except StopIteration:
                    break
                except OSError:
                    pass
                time.sleep(take(stream))
            end(stream)

    main()
"""


class Consumer:
    """A process that reads epoch 0.

    Args:
        kind: "sync", "asyncio" or "uvloop".
        socket: the server's.
        folder: for its output.
        options: see `PROGRAM`; the rest are those of `epoch`.
    """

    def __init__(
        self, kind: str, socket: Any, folder: Path, *, name: str = "", **options: Any
    ) -> None:
        own = {
            key: options.pop(key)
            for key in ("hang", "pause", "busy", "gate", "client")
            if key in options
        }
        given = {"kind": kind, "socket": str(socket), "epoch": options, **own}
        self._out = folder / f"consumer-{name or id(self)}"
        with self._out.open("wb") as out:
            args = ["-c", textwrap.dedent(PROGRAM), json.dumps(given)]
            self.process = Forkery.shared().start(args, output=out.fileno())

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it has said."""
        lines = self._out.read_text().splitlines()
        try:
            return [json.loads(line) for line in lines if line.startswith("{")]
        except ValueError:
            return self.lines  # a line was being written

    @property
    def batches(self) -> list[int]:
        """The batches that it was handed, in order."""
        return [line["batch"] for line in self.lines if "batch" in line]

    @property
    def indices(self) -> list[int]:
        """The sample indices of those."""
        return [index for line in self.lines for index in line.get("indices", ())]

    @property
    def acked(self) -> list[int]:
        """The batches that it has acknowledged, as far as it has said."""
        said = self.lines
        pairs = said[-1]["acked"] if said else []
        return [number for first, last in pairs for number in range(first, last + 1)]

    @property
    def counts(self) -> dict[str, int]:
        """Its counts at the end."""
        return self.lines[-1]["end"]

    def wait_for(self, batches: int) -> None:
        """Waits until it was handed so many."""
        wait_for(
            lambda: len(self.batches) >= batches or self.process.poll() is not None,
            f"{batches} batches",
            timeout=15000 * MS,
        )
        assert len(self.batches) >= batches, self._out.read_text()

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def kill(self) -> None:
        """Ends it without a warning."""
        self.process.kill()
        self.process.wait()

    def end(self, timeout: float = 15000 * MS) -> None:
        """Waits for its end, which must be a good one."""
        assert self.process.wait(timeout) == 0, self._out.read_text()
