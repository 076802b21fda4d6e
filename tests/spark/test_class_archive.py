"""`keelmq analytics prepare` with a real Java: its archive fits, and is no condition of a session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analytics.class_archive import prepare

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

SESSION = """
import os, pathlib
from analytics.session import spark_session
from tests.bench.analytics_job import java_pid
with spark_session(quick=True) as spark:
    assert spark.range(3).count() == 3
    mapped = pathlib.Path(f"/proc/{java_pid()}/maps").read_text()
print("mapped" if ".jsa" in mapped and os.environ["XDG_CACHE_HOME"] in mapped else "not mapped")
"""


def session(cache: Path) -> str:
    """Returns what a session in a process of its own said."""
    environ = os.environ | {"XDG_CACHE_HOME": str(cache)}
    done = subprocess.run([sys.executable, "-c", SESSION], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_session_maps_it_if_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive = prepare()
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    assert session(tmp_path) == "mapped"
    archive.chmod(0o600)
    archive.write_bytes(b"damaged" * 1000)
    assert session(tmp_path) == "not mapped"
