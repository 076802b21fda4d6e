"""What is read of a file that a request has named, and what a refusal shows of it."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.container.inner_file import FILE_BYTES_MAX, read_settings
from keelmq.runtime.config import ConfigError

SECRET = "c2VjcmV0IG9mIHRoZSByYWZ0IHBvcnQ="


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    return str(caught.value)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """It would stop the loop, and every broker of the container, until somebody writes into it."""
    os.mkfifo(path := tmp_path / "pipe")
    assert refused(path) == f"addBroker properties empty: {path} is not a regular file"


def test_what_is_no_file(tmp_path: Path) -> None:
    assert refused(tmp_path).startswith("addBroker properties empty: ")
    assert "cannot read" in refused(tmp_path / "nosuch.conf")
    assert "is not a regular file" in refused(Path("/dev/zero"))


def test_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "long.conf"
    lines = b"brokerName=a\n"
    path.write_bytes(lines + b"#" * (FILE_BYTES_MAX - len(lines)))
    assert read_settings(path) == {"brokerName": "a"}
    with path.open("ab") as file:
        file.write(b"#")
    assert refused(path).endswith(f"has more than {FILE_BYTES_MAX} bytes")
    os.truncate(path, 1 << 40)
    assert refused(path).endswith(f"has more than {FILE_BYTES_MAX} bytes")


@pytest.mark.parametrize(
    "text", [SECRET, SECRET.rstrip("="), f"{SECRET}\n{SECRET}", f"brokerName=a\n{SECRET.rstrip('=')}"]
)
def test_a_secret_is_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "raft.key"
    path.write_text(text)
    assert SECRET[:8] not in refused(path)


@given(data=st.binary(max_size=200))
def test_garbage_is_one_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.conf"
    path.write_bytes(data)
    assert "\n" not in refused(path)
