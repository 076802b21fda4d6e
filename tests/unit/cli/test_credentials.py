"""Where commands find their credentials, and what they refuse."""

from pathlib import Path

import pytest

from cli.credentials import BadCredentials, find_credentials
from keelmq import Credentials

TEXT = "accessKey: rocketmq2\nsecretKey: 12345678\n"


def written(path: Path, text: str = TEXT, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_file_then_the_environment_then_tools_yml(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.yml", TEXT + "securityToken: t\n")
    written(tmp_path / "conf" / "tools.yml")
    home = {"ROCKETMQ_HOME": str(tmp_path)}
    both = {**home, "KEELMQ_ACCESS_KEY": "a", "KEELMQ_SECRET_KEY": "s"}
    assert find_credentials(file, both) == Credentials("rocketmq2", "12345678", "t")
    assert find_credentials(None, both) == Credentials("a", "s")
    assert find_credentials(None, home) == Credentials("rocketmq2", "12345678")
    assert find_credentials(None, {"ROCKETMQ_HOME": str(tmp_path / "other")}) is None
    assert find_credentials(None, {}) is None


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (TEXT, 0o606, "mode 606: anybody may change it; chmod 600"),
        ("accessKey: rocketmq2\n", 0o600, "needs accessKey and secretKey"),
        ("- secretKey: 12345678\n", 0o600, "needs accessKey and secretKey"),
        ("secretKey: [12345678\n", 0o600, "mine.yml"),
        ("x" * 70_000, 0o600, "is larger than 65536 bytes"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, mode: int, says: str) -> None:
    with pytest.raises(BadCredentials) as caught:
        find_credentials(written(tmp_path / "mine.yml", text, mode), {})
    assert says in str(caught.value)
    assert "12345678" not in str(caught.value)


def test_rocketmqs_tools_yml_works_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RocketMQ ships it with mode 644."""
    file = written(tmp_path / "tools.yml", TEXT, 0o644)
    assert find_credentials(file, {}) == Credentials("rocketmq2", "12345678")
    said = capsys.readouterr()
    assert f"others may read it; chmod 600 {file}" in said.err and "12345678" not in said.err
    assert said.out == ""
    file.chmod(0o600)
    assert find_credentials(file, {}) is not None
    assert capsys.readouterr().err == ""


def test_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(BadCredentials, match="No such file"):
        find_credentials(tmp_path / "absent.yml", {})


def test_half_of_the_environment() -> None:
    with pytest.raises(BadCredentials, match="are needed together"):
        find_credentials(None, {"KEELMQ_SECRET_KEY": "12345678"})
