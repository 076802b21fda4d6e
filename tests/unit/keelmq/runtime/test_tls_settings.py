"""The tls.* keys: what they become, and what is told about those that cannot work."""

import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pytest import LogCaptureFixture

from broker.config.broker_config import BrokerConfig
from keelmq.runtime.config import Config, ConfigError, load_config, to_properties
from keelmq.runtime.tls import settings as settings_module
from keelmq.runtime.tls.contexts import ClientTls, ServerTls, TlsSettings
from keelmq.runtime.tls.names import certificate_names
from keelmq.runtime.tls.settings import TlsConfig, client_tls, server_tls, with_file
from namesrv.config import NamesrvConfig
from tests.support.raft_certificates import Authority
from tests.support.tls_parts import client_files, server_files, with_password


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def config(**keys: Any) -> TlsConfig:
    """tls_server_mode="enforcing" and so on; paths as text."""
    return TlsConfig(**keys)


def pair(authority: Authority, **options: Any) -> dict[str, Path | None]:
    files = server_files(authority, **options)
    assert files.key is not None
    files.key.chmod(0o600)
    return {"tls_server_cert_path": files.certificate, "tls_server_key_path": files.key}


def problem_of(**keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        server_tls(config(**keys))
    return str(caught.value)


def test_the_defaults_are_rocketmqs() -> None:
    tls = server_tls(config())
    assert (tls.mode, tls.http.mode) == ("permissive", "permissive")
    assert tls.accepts_tls
    assert not tls.is_made
    assert client_tls(config()) is None


@pytest.mark.parametrize("model", [BrokerConfig, NamesrvConfig])
def test_a_file_of_rocketmq_is_read(model: type[Config], tmp_path: Path) -> None:
    path = tmp_path / "x.conf"
    path.write_text(
        "tls.server.mode=enforcing\ntls.server.keyPassword=verysecret\ntls.client.keyPassword=alsosecret\n"
    )
    (loaded,) = load_config(model, path=path, environ={}, overrides={})
    assert isinstance(loaded, TlsConfig)
    assert loaded.tls_server_mode == "enforcing"
    shown = to_properties(loaded)
    assert "tls.server.mode=enforcing" in shown
    assert "tls.server.keyPassword=**********" in shown
    for text in (shown, repr(loaded), str(loaded.model_dump(mode="json", by_alias=True))):
        assert "verysecret" not in text
        assert "alsosecret" not in text


def test_an_unknown_mode_is_an_error(tmp_path: Path) -> None:
    """RocketMQ takes it for permissive: a typo would leave a port open to plain clients."""
    path = tmp_path / "x.conf"
    path.write_text("tls.server.mode=enforced\n")
    with pytest.raises(ConfigError) as caught:
        load_config(BrokerConfig, path=path, environ={}, overrides={})
    assert "tls.server.mode = 'enforced'" in str(caught.value)
    with pytest.raises(ValidationError):
        config(tls_server_mode="Enforcing ")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"tls_server_cert_path": "x"}, "go together: set tls.server.keyPath, too"),
        ({"tls_server_key_path": "x"}, "go together: set tls.server.certPath, too"),
        ({"tls_server_need_client_auth": "require"}, "needs tls.server.trustCertPath"),
        ({"tls_server_auth_client": True}, "set tls.server.need.client.auth=require"),
        ({"tls_server_mode": "enforcing", "tls_test_mode_enable": False}, "tls.server.certPath and"),
        ({"http_tls_mode": "enforcing", "tls_test_mode_enable": False}, "tls.server.certPath and"),
        ({"listeners_tls_mode": "enforcing", "tls_test_mode_enable": False}, "tls.server.certPath and"),
        (
            {"tls_server_cert_path": "/nowhere/a", "tls_server_key_path": "/nowhere/b"},
            "tls.server.certPath /nowhere/a: No such file or directory",
        ),
    ],
)
def test_settings_that_cannot_work(keys: dict[str, Any], told: str) -> None:
    assert told in problem_of(**keys)


def test_files_that_cannot_work(authority: Authority, tmp_path: Path) -> None:
    good, other = pair(authority), pair(authority, stem="other")
    mixed = {**good, "tls_server_key_path": other["tls_server_key_path"]}
    assert "is not the key of tls.server.certPath" in problem_of(**mixed)
    garbage = tmp_path / "garbage"
    garbage.write_text("not PEM")
    assert "(both PEM)" in problem_of(**{**good, "tls_server_cert_path": garbage})
    told = problem_of(**good, tls_server_need_client_auth="require", tls_server_trust_cert_path=garbage)
    assert f"tls.server.trustCertPath {garbage}: no certificate in PEM form" in told


def test_the_password_of_a_key(authority: Authority) -> None:
    files = server_files(authority)
    ServerTls("enforcing", with_password(files, "secret"))
    for password, told in ((None, "is not set, and the key has one"), ("wrong", "is wrong")):
        with pytest.raises(ConfigError) as caught:
            ServerTls("enforcing", with_password(files, password))
        assert f"tls.server.keyPassword {told}" in str(caught.value)
        assert "secret" not in str(caught.value)


def test_a_key_that_others_can_read_is_named(authority: Authority, caplog: LogCaptureFixture) -> None:
    keys = pair(authority)
    path = keys["tls_server_key_path"]
    assert path is not None
    server_tls(config(**keys))
    assert not caplog.records
    path.chmod(0o604)
    server_tls(config(**keys))
    (record,) = caplog.records
    assert f"tls.server.keyPath {path} can be read by every user" in record.message
    assert record.message.endswith(f"chmod 600 {path}")


@pytest.mark.parametrize(
    ("until", "told"), [(-2, "expired 2 days ago"), (9.2, "expires in 9 days"), (90, "")]
)
def test_the_log_has_what_expires(
    until: float, told: str, authority: Authority, caplog: LogCaptureFixture
) -> None:
    tls = server_tls(config(**pair(authority, days=(-5, until + 0.01))))
    assert tls.expires is not None
    assert [told in record.message for record in caplog.records] == ([True] if told else [])


def test_enforcing_with_a_self_signed_certificate_warns(caplog: LogCaptureFixture) -> None:
    tls = server_tls(config(tls_server_mode="enforcing"))
    assert tls.accepts_tls
    assert "self-signed" in caplog.text
    caplog.clear()
    server_tls(config())
    assert not caplog.records


def test_a_certificate_wins_over_the_test_mode(authority: Authority) -> None:
    """In RocketMQ the test mode wins, which is the default: the certificate is not used, without a word."""
    tls = server_tls(config(**pair(authority), tls_test_mode_enable=True))
    assert tls.is_made
    assert tls.expires is not None


def test_the_tls_file_overrides_all_but_two_keys(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(
        "tls.server.mode=disabled\ntls.enable=true\ntls.test.mode.enable=false\ntls.client.authServer=true\n"
    )
    found = with_file(config(tls_config_file=path))
    assert (found.tls_server_mode, found.tls_enable) == ("permissive", False)
    assert (found.tls_test_mode_enable, found.tls_client_auth_server) == (False, True)
    path.write_text("tls.server.certpath=x\n")
    with pytest.raises(ConfigError, match=r"did you mean 'tls.server.certPath'"):
        with_file(config(tls_config_file=path))
    with pytest.raises(ConfigError, match=r"tls.config.file: cannot read"):
        with_file(config(tls_config_file=tmp_path / "none"))


def test_the_default_tls_file_is_read_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tls.properties"
    assert with_file(config(), path).tls_test_mode_enable
    path.write_text("tls.test.mode.enable=false\n")
    assert not with_file(config(), path).tls_test_mode_enable
    assert str(settings_module.DEFAULT_FILE) == "/etc/rocketmq/tls.properties"


def test_connections_to_others(authority: Authority) -> None:
    files = client_files(authority, "member")
    plain = client_tls(config(tls_enable=True))
    assert plain is not None
    assert not plain.verifies
    verified = client_tls(
        config(
            tls_enable=True,
            tls_client_trust_cert_path=authority.path,
            tls_client_cert_path=files.certificate,
            tls_client_key_path=files.key,
            tls_client_verify_host_name=True,
        )
    )
    assert verified is not None
    assert verified.verifies
    assert verified.verifies_hostname
    with pytest.raises(ConfigError, match=r"a host name can be verified only if the certificate is verified"):
        client_tls(config(tls_enable=True, tls_client_verify_host_name=True))


def test_what_applications_write(authority: Authority) -> None:
    assert ClientTls.of(False) is None
    assert ClientTls.of(None) is None
    encrypted = ClientTls.of(True)
    assert encrypted is not None
    assert not encrypted.verifies
    verified = ClientTls.of(TlsSettings(ca=str(authority.path)))
    assert verified is not None
    assert verified.verifies
    assert ClientTls.of(verified) is verified
    assert "topsecret" not in repr(TlsSettings(password="topsecret"))
    with pytest.raises(ConfigError, match=r"TlsSettings.ca /none: No such file"):
        ClientTls.of(TlsSettings(ca="/none"))
    with pytest.raises(ConfigError, match=r"set TlsSettings.key, too"):
        ClientTls.of(TlsSettings(certificate="/none"))


def test_names_of_a_certificate() -> None:
    assert certificate_names(None) == ()
    assert certificate_names({}) == ()
    certificate = {
        "subject": ((("organizationName", "O"),), (("commonName", "b-1"),), (("commonName", "cn"),)),
        "subjectAltName": (("DNS", "b-1"), ("IP Address", "10.0.0.1"), ("URI", "spiffe://c/b")),
    }
    assert certificate_names(certificate) == ("b-1", "spiffe://c/b", "cn")


async def test_a_client_reads_changed_files_when_it_is_due(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.pem)
    monkeypatch.setattr("keelmq.runtime.tls.files.RELOAD_PERIOD_S", 0)
    tls = ClientTls.of(TlsSettings(ca=ca))
    assert tls is not None
    before = tls.context
    await tls.refresh()
    assert tls.context is before
    ca.write_bytes(Authority(tmp_path / "new").pem)
    await tls.refresh()
    assert tls.context is not before
    assert "new certificate files are in use" in caplog.text
