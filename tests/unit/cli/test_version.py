"""--version of every program: the version of the installed package."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = ("mqnamesrv", "mqcontroller", "mqbroker", "mqadmin", "keelmq")


@pytest.mark.parametrize("program", PROGRAMS)
def test_version(program: str) -> None:
    command = [str(Path(sys.executable).parent / program), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    expected = f"{program} {importlib.metadata.version('keelmq')}\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
