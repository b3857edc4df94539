"""Runs README.md: its files are written, its commands run, its output compared.

A ``python`` block that opens with ``# name.py`` is that file. In a ``console`` block each ``$``
line is run in that folder; the lines below must be what it prints, where ``...`` stands for any
text. A line ``^C`` sends SIGINT. ``tundish serve`` goes on in the background until the next one.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from helpers.serving import listening
from helpers.timing import MS, wait_for

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """The (language, text) of a page's blocks."""
    return BLOCK.findall(page.read_text())


def matches(expected: list[str], printed: str) -> bool:
    """Whether `printed` has the expected lines, ``...`` standing for any text."""
    pattern = r"\n".join(
        re.escape(line).replace(re.escape("..."), "[\\s\\S]*") for line in expected
    )
    return re.fullmatch(pattern, printed.strip()) is not None


class Shell:
    """Runs a page's blocks in one folder, as a reader would."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tundish-"))
        self.socket = self.folder / "feed.sock"
        scripts = Path(sys.executable).parent
        path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
        # Unbuffered, so that the time of ^C can be told by what was printed.
        settings = {"TUNDISH_SOCKET": str(self.socket), "PATH": path, "PYTHONUNBUFFERED": "1"}
        self.env = os.environ | settings
        self.server: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """Ends the service and removes the folder."""
        self.stop_server()
        shutil.rmtree(self.folder)

    def stop_server(self) -> None:
        if self.server is not None:
            self.server.terminate()
            assert self.server.wait(5000 * MS) == 0
            self.server = None

    def run(self, language: str, text: str) -> None:
        """Runs one block; AssertionError where it doesn't do what the page says."""
        if language == "python":
            name = re.match(r"# (\w+\.py)\b", text)
            assert name, f"a python block without a file name:\n{text}"
            (self.folder / name.group(1)).write_text(text)
        elif language == "console":
            for command, expected in _commands(text):
                self._command(command, expected)

    def _command(self, command: str, expected: list[str]) -> None:
        if command.startswith(
            "make "
        ):  # of the checkout, not of the folder: is there such a target?
            done = subprocess.run(["make", "-n", *command.split()[1:]], cwd=ROOT, check=False)
            assert done.returncode == 0
        elif command.startswith((".", "git ")):
            return  # gets and enters the environment that this test runs in
        elif command.startswith("tundish serve"):
            self._serve(command.partition("#")[0], expected)
        else:
            printed = self._foreground(command, expected)
            told = [line for line in expected if line != "^C"]
            assert matches(told, printed), f"$ {command}\n{printed}"

    def _serve(self, command: str, expected: list[str]) -> None:
        self.stop_server()
        log = self.folder / "serve.log"
        with log.open("wb") as out:
            self.server = subprocess.Popen(
                command.split(), cwd=self.folder, env=self.env, stdout=out, stderr=out
            )
        wait_for(lambda: listening(self.socket), "the service of the page", 10000 * MS)
        if expected:
            wait_for(lambda: matches(expected, log.read_text()), f"{expected} of {command}")

    def _foreground(self, command: str, expected: list[str]) -> str:
        with subprocess.Popen(
            command.split(),
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            before = ""
            if "^C" in expected:
                for _ in range(expected.index("^C")):
                    before += process.stdout.readline()
                time.sleep(50 * MS)  # a reader, too, lets it wait before losing patience
                process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=10000 * MS)
        return before + rest


def _commands(text: str) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for line in text.rstrip("\n").split("\n"):
        if line.startswith("$ "):
            found.append((line[2:].strip(), []))
        else:
            found[-1][1].append(line)
    return found


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/guide.md",
        "docs/loader.md",
        "docs/datasets.md",
        "docs/collate.md",
        "docs/porting.md",
    ],
)
def test_every_block_of_the_page_does_what_it_says(page):
    shell = Shell()
    try:
        for language, text in blocks(ROOT / page):
            shell.run(language, text)
    finally:
        shell.close()
