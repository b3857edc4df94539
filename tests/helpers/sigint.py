"""Ctrl-C as a user meets it: a real process, a real signal, times as seen from outside.

The script says ``READY`` when it is about to wait, and ``INTERRUPTED`` where it has caught
KeyboardInterrupt.
"""

import os
import select
import signal
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

from helpers.forkery import Forkery, Program
from helpers.timing import MS

READY = "READY"
INTERRUPTED = "INTERRUPTED"


@dataclass(frozen=True)
class Outcome:
    """What one interrupted script did.

    Attributes:
        interrupted_after: seconds from the signal to the INTERRUPTED line; None if it never came.
        exited_after: seconds from the signal to the end of the process.
        returncode: as of subprocess; negative for a signal.
        output: all lines of stdout and stderr.
    """

    interrupted_after: float | None
    exited_after: float
    returncode: int
    output: str


class _Lines:
    """Lines of a pipe, each with a deadline."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pending = b""
        self.seen: list[str] = []

    def next(self, deadline: float) -> str | None:
        """The next line, None at the end of the pipe; TimeoutError after `deadline`."""
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                raise TimeoutError("no further line; so far:\n" + "\n".join(self.seen))
            chunk = os.read(self._fd, 65536)
            if not chunk:
                return None
            self._pending += chunk
        line, self._pending = self._pending.split(b"\n", 1)
        self.seen.append(line.decode(errors="replace"))
        return self.seen[-1]

    def until(self, marker: str, deadline: float) -> bool:
        """Reads on to the line that is `marker`; False if the pipe ends before."""
        while (line := self.next(deadline)) is not None:
            if line.strip() == marker:
                return True
        return False


def interrupt(
    source: str,
    *args: str,
    folder: Path,
    signum: signal.Signals = signal.SIGINT,
    delay: float = 50 * MS,
    patience: float = 8000 * MS,
    env: dict[str, str] | None = None,
) -> Outcome:
    """Runs `source` as a script, signals it `delay` seconds after READY, and times the answer.

    Args:
        source: the script; may be indented.
        args: its command line.
        folder: where it is written and runs.
        signum: the signal to send.
        delay: seconds between READY and the signal, so that the script is in its wait.
        patience: seconds for each of start, answer and exit; the process is killed after.
        env: variables on top of this process's.

    Returns:
        The times and the exit status. Raises AssertionError if the script ends before READY.
    """
    script = folder / "interrupted_script.py"
    script.write_text(textwrap.dedent(source))
    ours, theirs = os.pipe()
    try:
        process = Forkery.shared().start(
            ["-u", str(script), *args], output=theirs, cwd=folder, env=env
        )
    finally:
        os.close(theirs)
    try:
        return _time_interrupt(process, ours, signum, delay, patience)
    finally:
        os.close(ours)
        process.kill()
        process.wait()


def _time_interrupt(
    process: Program, output: int, signum: signal.Signals, delay: float, patience: float
) -> Outcome:
    lines = _Lines(output)
    ready = lines.until(READY, time.monotonic() + patience)
    assert ready, "the script ended before READY:\n" + "\n".join(lines.seen)
    time.sleep(delay)
    sent = time.monotonic()
    process.send_signal(signum)
    came = lines.until(INTERRUPTED, sent + patience)
    interrupted_after = time.monotonic() - sent if came else None
    while lines.next(sent + patience) is not None:
        pass
    returncode = process.wait(patience)
    return Outcome(interrupted_after, time.monotonic() - sent, returncode, "\n".join(lines.seen))
