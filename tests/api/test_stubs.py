"""The stub of the native module says what the module has."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120)
def test_stubtest_finds_no_difference():
    allowed = Path(__file__).with_name("stubtest-allowlist.txt")
    options = ["--mypy-config-file", str(ROOT / "pyproject.toml"), "--ignore-unused-allowlist"]
    options += ["--allowlist", str(allowed)]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "tundish._core", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
