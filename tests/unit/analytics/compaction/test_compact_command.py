"""`keelmq analytics compact`: its output, and its errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.keelmq import app
from keelmq.remoting.records import encode_record
from tests.unit.analytics.compaction.model import HOUR, file_of, run, write
from tests.unit.analytics.compaction.test_compactor import LINE, sample


def compact(*arguments: object) -> "tuple[int, str, str]":
    """Returns the exit code, standard output and standard error."""
    done = CliRunner().invoke(app, ["analytics", "compact", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


def test_counts(tmp_path: Path) -> None:
    write(tmp_path / "in", [sample(HOUR), LINE])
    write(tmp_path / "in", [sample(HOUR)], "copy-2.jsonl")
    file_of(tmp_path / "in", "ha_sample", "bad-1.jsonl").write_bytes(b"[]\n")
    file_of(tmp_path / "in", "ha_sample", "bad-1.txt").write_bytes(b"[]\n")
    paths = ("--input", tmp_path / "in", "--output", tmp_path / "out")
    code, text, progress = compact(*paths, "--from", "2026-01-01", "--to", "2026-01-01T01", "--json")
    assert code == 0 and json.loads(text) == {
        "hours": 1,
        "rows": {"ha_sample": 1, "clock_sample": 1},
        "duplicates": {"ha_sample": 1, "clock_sample": 0},
        "bad_lines": {"ha_sample": 1, "clock_sample": 0},
        "not_read": 1,
        "deleted_sources": 0,
    }
    assert "dt=2026-01-01/hour=00: 4 files read" in progress and "bad-1.txt: unknown suffix .txt" in progress
    assert compact(*paths)[1] == f"{tmp_path / 'out'}: 0 hours changed\n"


def test_delete_sources(tmp_path: Path) -> None:
    hour = 1_600_000_000_000 // 3_600_000 * 3_600_000
    path = file_of(tmp_path / "in", "ha_sample", "n-1.jsonl", hour)
    path.write_bytes(encode_record(sample(hour)))
    code, text, _ = compact(
        "--input", tmp_path / "in", "--output", tmp_path / "out", "--delete-sources", "--json"
    )
    assert (code, json.loads(text)["deleted_sources"], path.exists()) == (0, 1, False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--from", "yesterday"), "--from yesterday: give a UTC time like 2026-01-31"),
        (("--input", "/nowhere/at/all"), "/nowhere/at/all does not exist; give the directory"),
        (("--output", "/proc/nowhere"), "cannot write /proc/nowhere: No such file or directory; what was"),
        (("--input", "nonsense://x/y"), "cannot open nonsense://x/y: Unrecognized filesystem type"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, arguments: tuple[str, str], text: str) -> None:
    write(tmp_path / "in", [LINE])
    code, output, errors = compact("--input", tmp_path / "in", "--output", tmp_path / "out", *arguments)
    last = errors.splitlines()[-1]
    assert (code, output) == (1, "") and last.startswith(f"keelmq: {text}"), errors
    assert "Traceback" not in errors


def test_without_pyarrow_the_install_line_is_shown(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pyarrow'] = None; from cli.keelmq import app; app()"
    command = [sys.executable, "-c", program, "analytics", "compact", "--input", ".", "--output", "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=tmp_path, check=False)
    assert done.returncode == 1 and done.stderr.startswith("keelmq: pyarrow is not installed: pip install")


@pytest.mark.slow
def test_no_spark_is_imported(tmp_path: Path) -> None:
    without = "import sys; sys.modules['pyspark'] = None; sys.modules['py4j'] = None"
    program = f"{without}; from cli.keelmq import app; app()"
    write(tmp_path / "in", [LINE])
    command = [sys.executable, "-c", program, "analytics", "compact", "--input", "in", "--output", "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert run(tmp_path / "in", tmp_path / "out") == []
