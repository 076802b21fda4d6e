"""The doctor about open ports, passwords and files with secrets."""

import json
from pathlib import Path

import pytest

from cli.doctor.files import Kind, load
from cli.doctor.security import check_security, weakness
from cli.init_security import SecurityOptions, create
from keelmq.health.findings import Finding, Level
from tests.unit.cli.doctor.test_doctor_files import one

MEMBER = "f3b1c09d5a7e4f62881d"
AUTH = {"authenticationEnabled": "true", "authorizationEnabled": "true"}
HERE = {"bindAddress": "127.0.0.1"}


class Files:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def found(self, *layers: dict[str, str], kind: Kind = Kind.BROKER, mode: int = 0o600) -> list[Finding]:
        path = self.directory / "file.conf"
        settings = {key: value for layer in layers for key, value in layer.items()}
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        path.chmod(mode)
        file, findings = load(path, kind, path.name)
        assert file is not None, findings
        return check_security([file])

    def member(self, secret: str = MEMBER) -> dict[str, str]:
        path = self.directory / "member.json"
        path.write_text(json.dumps({"accessKey": "keelmq-member", "secretKey": secret}))
        path.chmod(0o600)
        return {"innerClientAuthenticationCredentialsFile": str(path)}

    def users(self, **passwords: str) -> dict[str, str]:
        path = self.directory / "users.json"
        users = [{"username": name, "password": password} for name, password in passwords.items()]
        path.write_text(json.dumps({"users": users}))
        path.chmod(0o600)
        return {"usersPath": str(self.directory)}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def user(name: str, password: str) -> dict[str, str]:
    return {"initAuthenticationUser": json.dumps({"username": name, "password": password})}


def bad(found: list[Finding]) -> list[str]:
    return [each.text for each in found if each.level is not Level.OK]


def test_a_directory_of_init_security_is_good(tmp_path: Path, files: Files) -> None:
    create(tmp_path / "s", SecurityOptions("C", ("10.0.0.1",)))
    closed = {"securityPath": str(tmp_path / "s")}
    (only,) = bad(files.found(closed))
    assert "keep-offline/ca.key: whoever copies it" in only
    (tmp_path / "s" / "keep-offline" / "ca.key").unlink()
    assert not bad(files.found(closed))
    found = files.found(closed, kind=Kind.NAMESRV)
    assert not bad(found)
    assert "admin, keelmq-member" in one(found, "config.passwords", Level.OK).text


def test_a_program_that_other_machines_reach(files: Files) -> None:
    (text,) = bad(files.found({}))
    assert text.startswith("open to other machines: requests need no signature") and "self-signed" in text
    assert not bad(files.found(HERE))
    assert not bad(files.found({"allowOpenNetwork": "true"}))
    assert not bad(files.found(HERE, kind=Kind.NAMESRV))


def test_one_switch_without_the_other(files: Files) -> None:
    found = files.found(HERE, {"authorizationEnabled": "true"})
    assert "whoever knows a user's name" in one(found, "config.security", Level.FAILED).text
    texts = bad(files.found(HERE, {"authenticationEnabled": "true"}))
    assert any("every user can do everything" in text for text in texts)
    assert not any("every user" in text for text in bad(files.found(HERE, AUTH)))


def test_signatures_on_plain_connections(files: Files) -> None:
    member = files.member()
    (text,) = bad(files.found(HERE, AUTH, member))
    assert text.startswith("tls.server.mode=permissive") and "can be sent again" in text
    assert not bad(files.found(HERE, AUTH, member, {"tls.server.mode": "enforcing"}))
    assert not bad(files.found(HERE, member))


def test_signatures_at_listeners_only(files: Files) -> None:
    outside = {"listenersAuthenticationEnabled": "true"}
    (rights, tls) = bad(files.found(HERE, outside))
    assert "every user can do everything" in rights and tls.startswith("tls.server.mode=permissive")
    outside |= {"listenersAuthorizationEnabled": "true", "listenersTlsMode": "enforcing"}
    assert not bad(files.found(HERE, outside))


def test_members_need_credentials(files: Files) -> None:
    texts = bad(files.found(HERE, AUTH, {"tls.server.mode": "enforcing"}))
    assert len(texts) == 1 and texts[0].startswith("there are no credentials of members")


@pytest.mark.parametrize("password", ["12345678", "RocketMQ", "alice", "short-one"])
def test_passwords_that_can_be_guessed(files: Files, password: str) -> None:
    (finding,) = [each for each in files.found(HERE, user("alice", password)) if each.level is not Level.OK]
    assert finding.text.startswith("the password of alice (initAuthenticationUser)")
    assert finding.level is (Level.WARNING if password == "short-one" else Level.FAILED)
    assert password == "alice" or password not in finding.line()


def test_passwords_of_every_source(files: Files, tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text("accounts:\n- accessKey: RocketMQ\n  secretKey: 12345678\n")
    (tmp_path / "plain_acl.yml").chmod(0o600)
    acl = {"aclEnable": "true", "aclPath": str(tmp_path)}
    found = files.found(HERE, acl, files.users(bob="12345678"), files.member("12345678"), kind=Kind.NAMESRV)
    weak = {each.text.split()[3] for each in found if "everybody tries" in each.text}
    assert weak == {"RocketMQ", "bob", "keelmq-member"}
    assert not any("12345678" in each.line() for each in found)


def test_a_user_with_the_secret_of_the_members(files: Files) -> None:
    found = files.found(HERE, files.member(), user("alice", MEMBER))
    (text,) = bad(found)
    assert text.startswith("the password of alice (initAuthenticationUser) is the secret of the members")
    assert MEMBER not in text
    assert not bad(files.found(HERE, files.member(), user("alice", MEMBER + "0")))


def test_secrets_that_others_can_read(files: Files, tmp_path: Path) -> None:
    assert not bad(files.found(HERE, mode=0o644))
    (text,) = bad(files.found(HERE, user("alice", MEMBER), mode=0o644))
    assert "file.conf has secrets in it and mode 644" in text
    keys = files.member()
    (tmp_path / "member.json").chmod(0o640)
    found = files.found(HERE, keys)
    assert any("member.json" in text and "mode 640" in text for text in bad(found))


def test_a_directory_of_secrets_that_others_can_change(files: Files, tmp_path: Path) -> None:
    create(tmp_path / "s", SecurityOptions("C", ("10.0.0.1",)))
    (tmp_path / "s").chmod(0o777)
    (tmp_path / "s" / "raft.key").chmod(0o644)
    texts = bad(files.found({"securityPath": str(tmp_path / "s")}))
    assert any("s can be changed by others" in text for text in texts)
    assert any("raft.key has secrets in it and mode 644" in text for text in texts)


def test_a_damaged_file_is_a_failure_without_its_content(files: Files, tmp_path: Path) -> None:
    keys = files.users(bob=MEMBER)
    (tmp_path / "users.json").write_text(f'{{"users": [{MEMBER}')
    finding = one(files.found(HERE, keys, kind=Kind.NAMESRV), "config.passwords", Level.FAILED)
    assert "is not JSON" in finding.text and MEMBER not in finding.line()


def test_what_is_no_weakness() -> None:
    assert not weakness("alice", MEMBER)
