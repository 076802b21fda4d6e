"""Where commands find their credentials, and what they refuse."""

from pathlib import Path

import pytest

from cli.credentials import BadCredentials, Found, find_credentials
from keelmq import Credentials
from keelmq.runtime.tls.contexts import TlsSettings

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
    assert find_credentials(file, both) == Found(Credentials("rocketmq2", "12345678", "t"))
    assert find_credentials(None, both) == Found(Credentials("a", "s"))
    assert find_credentials(None, home) == Found(Credentials("rocketmq2", "12345678"))
    named = {**both, "KEELMQ_CREDENTIALS": str(file)}
    assert find_credentials(None, named) == find_credentials(file, {})
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
        (TEXT + "tls: true\n", 0o600, "mine.yml: tls needs ca"),
        (TEXT + "tls: {certificate: a.crt}\n", 0o600, "mine.yml: tls needs ca"),
        (TEXT + "tls: {ca: ca.crt, password: 12345678}\n", 0o600, "mine.yml: tls needs ca"),
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
    assert find_credentials(file, {}) == Found(Credentials("rocketmq2", "12345678"))
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


def test_tls_of_the_file_is_relative_to_it(tmp_path: Path) -> None:
    text = TEXT + "tls: {ca: ca.crt, certificate: /etc/a.crt, key: a.key}\n"
    found = find_credentials(written(tmp_path / "admin" / "mine.yml", text), {})
    assert found is not None and isinstance(found.tls, TlsSettings)
    admin = tmp_path / "admin"
    assert (found.tls.ca, found.tls.certificate, found.tls.key) == (
        admin / "ca.crt",
        Path("/etc/a.crt"),
        admin / "a.key",
    )
