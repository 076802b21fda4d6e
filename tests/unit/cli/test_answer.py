"""Standard output that cannot be written: one line, an exit code of its own, and no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.slices import first

FULL = "the answer could not be written: No space left on device"
CLOSED = "the answer could not be written: Bad file descriptor"
DONE = "; the command itself was carried out"


def shell(program: str, line: str, into: str) -> subprocess.CompletedProcess[str]:
    command = f"{Path(sys.executable).parent / program} {line} {into}"
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("into", "why"), [("> /dev/full", FULL), (">&-", CLOSED)])
@pytest.mark.parametrize(
    ("program", "line", "code", "end"),
    first(
        2,
        [
            ("mqadmin", "--version", 5, DONE),
            ("keelmq", "certificates n0 --output {}", 5, DONE),
            ("mqadmin", "topicStatus --help", 5, DONE),
            ("keelmq", "version", 5, DONE),
        ],
    ),
)
def test_the_answer_cannot_be_written(
    tmp_path: Path, program: str, line: str, code: int, end: str, into: str, why: str
) -> None:
    done = shell(program, line.format(tmp_path), into)
    assert (done.returncode, done.stderr) == (code, f"{program}: {why}{end}\n")
    if "certificates" in line:
        assert (tmp_path / "n0.crt").exists()


def test_a_failure_keeps_its_exit_code() -> None:
    done = shell("mqadmin", "topicList -n 127.0.0.1:1", "> /dev/full")
    assert done.returncode == 3 and "could not be written" not in done.stderr


def test_a_reader_that_has_gone_is_no_news() -> None:
    done = shell("keelmq", "version", "| true")
    assert done.stderr == ""


@pytest.mark.parametrize("program", first(1, ["mqbroker", "mqnamesrv", "mqbrokercontainer"]))
@pytest.mark.parametrize(("into", "why"), [("> /dev/full", "No space left"), (">&-", "it is closed")])
@pytest.mark.parametrize("option", ["-p", "--version"])
def test_servers_cannot_print(program: str, option: str, into: str, why: str) -> None:
    done = shell(program, option, into)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"{program}: standard output cannot be written: {why}")
