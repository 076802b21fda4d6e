"""plain_acl.yml and conf/acl: reading, hot reload, and files that must not be read."""

from pathlib import Path

import pytest

from keelmq.security.core.plain_acl import BadPlainAcl, PlainAcl
from keelmq.security.plain_acl_files import FILE_BYTES_MAX, PlainAclFiles, load_yaml


def account(name: str, secret: str = "12345678") -> str:
    return f"accounts:\n- accessKey: {name}\n  secretKey: {secret}\n"


class Home:
    """conf/plain_acl.yml and conf/acl/."""

    def __init__(self, path: Path) -> None:
        self.default, self.directory = path / "plain_acl.yml", path / "acl"
        self.files = PlainAclFiles(self.default, self.directory)

    def write(self, name: str, text: str) -> None:
        path = self.default if name == "plain_acl.yml" else self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def poll(self) -> list[str] | None:
        """The accounts, if the change was told."""
        found = self.files.poll()
        return None if found is None else sorted(found.accounts)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_absent_files_are_empty_and_stay_absent(home: Home) -> None:
    assert home.files.load() == PlainAcl()
    assert not home.default.exists() and not home.directory.exists()


def test_the_default_file_and_the_directory(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    home.write("plain_acl.yml", account("RocketMQ"))
    home.write(
        "deep/er/b.yaml",
        account("RocketMQ", "other-secret") + "- accessKey: Another\n  secretKey: 87654321\n",
    )
    home.write("ignored.txt", "[")
    plain = home.files.load()
    assert sorted(plain.accounts) == ["Another", "RocketMQ"]
    assert plain.accounts["RocketMQ"].password == "12345678"
    assert "b.yaml: accessKey RocketMQ is ignored" in caplog.text


def test_a_file_that_others_may_read_is_named_once(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """RocketMQ ships plain_acl.yml with mode 644."""
    home.write("plain_acl.yml", account("one-account"))
    home.default.chmod(0o644)
    home.files.load()
    assert caplog.text.count(f"chmod 600 {home.default}") == 1 and "12345678" not in caplog.text
    home.default.chmod(0o600)
    caplog.clear()
    home.files.load()
    assert "chmod" not in caplog.text


def test_changes_are_found_by_content(home: Home) -> None:
    home.write("plain_acl.yml", account("RocketMQ"))
    home.files.load()
    assert home.poll() is None
    home.write("plain_acl.yml", account("RocketMQ2"))
    assert home.poll() == ["RocketMQ2"]
    home.write("more.yml", account("Another"))
    assert home.poll() == ["Another", "RocketMQ2"]
    home.default.unlink()
    assert home.poll() == ["Another"]
    assert home.poll() is None


@pytest.mark.parametrize(
    "broken", ["accounts: [", "accounts: x", account("short"), "- a", "\x00", "a: &a [*a]"]
)
def test_pitfall_8_a_broken_edit_keeps_the_last_good_state(
    home: Home, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    home.write("plain_acl.yml", account("RocketMQ"))
    home.files.load()
    home.write("plain_acl.yml", broken)
    assert home.poll() is None and home.poll() is None
    assert list(home.files.current.accounts) == ["RocketMQ"]
    assert home.files.problem is not None and "plain_acl.yml" in home.files.problem
    assert caplog.text.count("the last good ones stay") == 1
    home.write("plain_acl.yml", account("Mended1"))
    assert home.poll() == ["Mended1"]
    assert home.files.problem is None


def test_a_broken_file_at_start_is_an_error(home: Home) -> None:
    home.write("plain_acl.yml", "accounts: [")
    with pytest.raises(BadPlainAcl, match="not YAML in line"):
        home.files.load()


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, r"aliases \(\*name\) are not allowed"),
        ("a: &a\n  <<: *a\n", "are not allowed"),
        ("[" * 5_000, "nested deeper than 16"),
        ("{a: " * 5_000, "nested deeper than 16"),
        ("- x\n" * 150_000, "more than 100000 nodes"),
        ("x" * (FILE_BYTES_MAX + 1), "is the limit"),
        ("!!python/object/apply:os.system [id]", "not YAML"),
        ("a: 2001-99-99", "not YAML"),
        ("? [a]\n: b", "not YAML"),
        (f"a: 1{':1' * 200}.0", "not YAML"),
    ],
)
def test_yaml_that_must_not_be_built(text: str, says: str) -> None:
    with pytest.raises(BadPlainAcl, match=says):
        load_yaml(text.encode(), "f.yml")


def test_an_error_has_nothing_of_the_content(home: Home) -> None:
    with pytest.raises(BadPlainAcl) as caught:
        load_yaml(b"secretKey: swordfish: x", "f.yml")
    assert "swordfish" not in str(caught.value)
