"""keelmq init-security: what it creates, who may open it, and what it never does to files that exist."""

import hashlib
import json
import re
import ssl
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.config.broker_config import BrokerConfig
from cli import private_tree
from cli.credentials import read_credentials
from cli.keelmq import app
from keelmq.runtime.config import load_config
from keelmq.runtime.tls.contexts import ClientTls, TlsSettings
from keelmq.runtime.tls.settings import client_tls, server_tls
from keelmq.security.open_network import openings
from keelmq.security.tokens_file import TokensFile
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig

HOSTS = ("--host", "localhost,10.0.0.1")
"""One server with two names: its files are in the directory itself."""
SERVERS = ("10.0.0.1,mq-1.example", "10.0.0.2", "localhost")


def run(directory: Path, *arguments: str, code: int = 0) -> str:
    command = ["init-security", str(directory), "--cluster", "DefaultCluster", *HOSTS, *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == code, result.output
    return result.output


def settings(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def names_of(certificate: Path) -> list[str]:
    from cryptography import x509

    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(each.value) for each in names]


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_only_the_owner_may_open_anything(tmp_path: Path) -> None:
    run(tmp_path / "s")
    for path in [tmp_path / "s", *(tmp_path / "s").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_servers_get_neither_the_key_of_the_ca_nor_what_administrators_have(tmp_path: Path) -> None:
    """`scp DIR/*` and `--from-file=DIR` take the files of the directory, and no folders."""
    directory = tmp_path / "s"
    run(directory)
    assert sorted(path.name for path in directory.iterdir() if path.is_dir()) == ["admin", "keep-offline"]
    of_servers = b"".join(path.read_bytes() for path in directory.iterdir() if path.is_file())
    assert (directory / "keep-offline" / "ca.key").read_bytes() not in of_servers
    for token in (directory / "admin").glob("http-*.token"):
        assert token.read_bytes().strip() not in of_servers
        assert (
            hashlib.sha256(token.read_bytes().strip()).hexdigest() in (directory / "http-tokens").read_text()
        )
    assert re.fullmatch(
        r"administer admin sha256:[0-9a-f]{64}\nread metrics sha256:[0-9a-f]{64}\n",
        (directory / "http-tokens").read_text(),
    )


def test_the_administrator(tmp_path: Path) -> None:
    """One user, whom every server creates at its first start. The directory, which is copied to servers, has
    no users: a copy of it must not replace theirs."""
    run(tmp_path / "s")
    assert not list((tmp_path / "s").rglob("users.json"))
    credentials = read_credentials(tmp_path / "s" / "admin" / "credentials.yml").credentials
    first = json.loads(settings(tmp_path / "s" / "security.conf")["initAuthenticationUser"])
    assert (first["username"], first["password"]) == (credentials.access_key, credentials.secret_key)
    member = json.loads((tmp_path / "s" / "member.json").read_text())
    assert member["secretKey"] != first["password"] and len(member["secretKey"]) >= 48


def test_no_secret_is_the_same_twice(tmp_path: Path) -> None:
    run(tmp_path / "a")
    run(tmp_path / "b")
    secret = re.compile(r"[0-9a-f]{48,}")
    of_a, of_b = (
        {each for data in contents(tmp_path / name).values() for each in secret.findall(data.decode())}
        for name in "ab"
    )
    assert len(of_a) == 7  # administrator, member, raft, two tokens and their digests
    assert not of_a & of_b


def test_certificates_are_of_one_ca_and_have_the_hosts(tmp_path: Path) -> None:
    run(tmp_path / "s")
    directory = tmp_path / "s"
    assert names_of(directory / "server.crt") == ["localhost", "10.0.0.1"]
    assert names_of(directory / "member.crt") == ["member.DefaultCluster"]
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "server.crt", directory / "server.key")
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(directory / "ca.crt")
    found = read_credentials(directory / "admin" / "credentials.yml")
    assert isinstance(found.tls, TlsSettings)
    client = ClientTls.of(found.tls)
    assert client is not None and client.verifies
    assert shakes_hands(server, client.context, "localhost")


def shakes_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> bool:
    client.check_hostname = True
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        waiting = []
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting.append(end)
        ends = waiting
    return not ends


def test_what_exists_is_not_touched(tmp_path: Path) -> None:
    run(tmp_path / "s")
    before = contents(tmp_path / "s")
    assert "is not empty: nothing was changed" in run(tmp_path / "s", code=1)
    assert contents(tmp_path / "s") == before


def test_force_keeps_the_old_directory_aside(tmp_path: Path) -> None:
    run(tmp_path / "s")
    before = {path.name: data for path, data in contents(tmp_path / "s").items()}
    moved = Path(json.loads(run(tmp_path / "s", "--force", "--json"))["moved"])
    assert {path.name: data for path, data in contents(moved).items()} == before
    assert (tmp_path / "s" / "member.json").read_bytes() != before["member.json"]


def test_an_empty_directory_is_used(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o755)
    run(tmp_path / "s")
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "s")
    before = contents(tmp_path / "s")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "raft.key")

    monkeypatch.setattr(private_tree, "write_private", full)
    assert "raft.key: No space left on device" in run(tmp_path / "new", code=1)
    assert "No space left" in run(tmp_path / "s", "--force", code=1)
    assert contents(tmp_path / "s") == before
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def servers(directory: Path, *arguments: str) -> str:
    hosts = [word for host in SERVERS for word in ("--host", host)]
    command = ["init-security", str(directory), "--cluster", "DefaultCluster", *hosts, *arguments]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return result.output


def test_each_server_has_a_folder_with_keys_that_no_other_has(tmp_path: Path) -> None:
    servers(tmp_path / "s")
    folders = {"10.0.0.1": ["10.0.0.1", "mq-1.example"], "10.0.0.2": ["10.0.0.2"], "localhost": ["localhost"]}
    assert {path.name for path in (tmp_path / "s").iterdir()} == {*folders, "admin", "keep-offline"}
    keys = [path.read_bytes() for path in (tmp_path / "s").rglob("*.key") if path.name != "raft.key"]
    assert len(keys) == len(set(keys)) == 2 * 3 + 2
    of_each = [{path.name for path in (tmp_path / "s" / name).iterdir()} for name in folders]
    assert of_each[0] == of_each[1] == of_each[2]
    for name, names in folders.items():
        assert names_of(tmp_path / "s" / name / "server.crt") == names
        for shared in ("member.json", "raft.key", "http-tokens", "security.conf", "ca.crt"):
            first = tmp_path / "s" / "10.0.0.1" / shared
            assert (tmp_path / "s" / name / shared).read_bytes() == first.read_bytes()
    for path in [tmp_path / "s", *(tmp_path / "s").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_each_server_gets_its_own_folder(tmp_path: Path) -> None:
    text = servers(tmp_path / "s")
    assert f"scp -p {tmp_path}/s/10.0.0.1/* 10.0.0.1:{tmp_path}/s/" in text
    assert f"scp -p {tmp_path}/s/10.0.0.2/* 10.0.0.2:{tmp_path}/s/" in text
    assert "mq-1.example:" not in text and "localhost:" not in text
    assert f"echo securityPath={tmp_path}/s >> broker.conf" in text
    assert f"echo securityPath={tmp_path}/s/localhost >> broker.conf" in text


@pytest.mark.parametrize("how", [("--together",), ("--host", "*.keelmq-namesrv")])
def test_servers_of_one_secret_share_a_key(tmp_path: Path, how: tuple[str, ...]) -> None:
    servers(tmp_path / "s", *how)
    names = names_of(tmp_path / "s" / "server.crt")
    assert names[:4] == ["10.0.0.1", "mq-1.example", "10.0.0.2", "localhost"] and names[4:] == list(how[1:])
    assert sorted(path.name for path in (tmp_path / "s").iterdir() if path.is_dir()) == [
        "admin",
        "keep-offline",
    ]


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--cluster", "a/b", "is not a name"),
        ("--cluster", "", "is not a name"),
        ("--host", "10.0.0.1:9876", "no port"),
        ("--host", "a b", "neither a DNS name"),
        ("--host", "", "neither a DNS name"),
        ("--host", "a,", "neither a DNS name"),
        ("--host", "admin", "is the name of a folder"),
        ("--host", "localhost,b", "'localhost' is given for two servers"),
    ],
)
def test_bad_names(tmp_path: Path, option: str, value: str, says: str) -> None:
    assert says in run(tmp_path / "s", option, value, code=1)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("option", ["--days", "--ca-days"])
def test_a_validity_that_no_certificate_can_have(tmp_path: Path, option: str) -> None:
    assert f"Invalid value for '{option}'" in run(tmp_path / "s", option, "9999999", code=2)
    assert not (tmp_path / "s").exists()


def test_no_secret_is_printed(tmp_path: Path) -> None:
    printed = run(tmp_path / "s") + run(tmp_path / "j", "--json")
    for name in "sj":
        for data in contents(tmp_path / name).values():
            for secret in re.findall(r"[0-9a-f]{48,}", data.decode()):
                assert secret not in printed
    assert "BEGIN" not in printed


def test_next_steps_can_be_pasted(tmp_path: Path) -> None:
    """Paths are absolute and quoted; a server of this machine needs no copy."""
    directory = tmp_path / "with blank"
    text = run(directory, "--together", "--host", "10.0.0.1")
    assert f"scp -p '{directory}'/* 10.0.0.1:'{directory}'/" in text
    assert "localhost:" not in text
    assert f"echo securityPath='{directory}' >> broker.conf" in text
    assert f"export KEELMQ_CREDENTIALS='{directory}'/admin/credentials.yml" in text


def test_every_program_takes_its_settings(tmp_path: Path) -> None:
    """A key that a program does not know would stop it."""
    run(tmp_path / "s")
    own = {"securityPath": str(tmp_path / "s")}
    (broker,) = load_config(BrokerConfig, path=None, environ={}, overrides=own)
    peers = {
        "controllerDLegerGroup": "g",
        "controllerDLegerPeers": "n0-10.0.0.1:1",
        "controllerDLegerSelfId": "n0",
    }
    namesrv, controller = load_config(
        NamesrvConfig, ControllerConfig, path=None, environ={}, overrides={**own, **peers}
    )
    assert isinstance(broker, BrokerConfig) and isinstance(namesrv, NamesrvConfig)
    assert isinstance(controller, ControllerConfig) and len(controller.read_secret() or b"") >= 32
    for each in (broker, namesrv):
        assert each.authentication_enabled and each.authorization_enabled and each.members_required
        assert each.member_credentials is not None and each.init_user is not None
        assert server_tls(each).mode == "enforcing" and openings(each) == []
        client = client_tls(each)
        assert client is not None and client.verifies
        assert each.http_tokens_file is not None
        tokens = TokensFile(each.http_tokens_file)
        for role in ("administer", "read"):
            found = tokens.find((tmp_path / "s" / "admin" / f"http-{role}.token").read_text().strip())
            assert found is not None and found.role.name.lower() == role
    assert (broker.ha_tls_mode, broker.ha_tls_enable) == ("enforcing", True)
