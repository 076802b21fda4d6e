"""SecurityConfig: its texts, its files, and the defaults below securityPath."""

from pathlib import Path

import pytest

from broker.config.broker_config import BrokerConfig
from keelmq.runtime.config import ConfigError, load_config, setting_sources, to_properties
from keelmq.security.config import SecurityConfig, codes_of
from keelmq.security.signer import Credentials
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig

INNER = '{"accessKey":"inner","secretKey":"inner-secret"}'


def loaded(**settings: str) -> SecurityConfig:
    (config,) = load_config(SecurityConfig, path=None, environ={}, overrides=settings)
    assert isinstance(config, SecurityConfig)
    return config


def test_everything_is_off_by_default() -> None:
    config = loaded()
    assert not config.security_on
    assert (config.member_credentials, config.init_user) == (None, None)


def test_the_texts_of_rocketmq_are_read() -> None:
    config = loaded(
        innerClientAuthenticationCredentials=INNER,
        initAuthenticationUser='{"username":"rocketmq","password":12345678}',
        authenticationStrategy="org.apache.rocketmq.auth.authentication.strategy.StatefulAuthenticationStrategy",
    )
    assert config.member_credentials == Credentials("inner", "inner-secret")
    assert config.init_user is not None
    assert config.init_user.is_super
    assert config.init_user.password == "12345678"
    assert config.is_stateful
    assert config.security_on


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("innerClientAuthenticationCredentials", "hunter2", "is not JSON of the form"),
        ("innerClientAuthenticationCredentials", '{"accessKey":"hunter2"}', "an access key and a secret key"),
        ("initAuthenticationUser", '{"username":"a:b","password":"hunter2"}', "illegal username 'a:b'"),
        ("initAuthenticationUser", '["hunter2"]', "is not JSON of the form"),
        ("authenticationWhitelist", "10,heartbeat", "'heartbeat' is not a request code"),
    ],
)
def test_a_bad_value_is_named_and_no_secret_is_shown(key: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        loaded(**{key: value})
    assert "hunter2" not in str(error.value)
    assert key in str(error.value)


def test_secrets_are_not_printed() -> None:
    config = loaded(
        innerClientAuthenticationCredentials=INNER,
        initAuthenticationUser='{"username":"rocketmq","password":"hunter2"}',
    )
    for text in (to_properties(config), repr(config)):
        assert "hunter2" not in text
        assert "inner-secret" not in text


def test_the_file_of_the_credentials_must_be_private(tmp_path: Path) -> None:
    path = tmp_path / "member.json"
    path.write_text(INNER)
    path.chmod(0o600)
    config = loaded(innerClientAuthenticationCredentialsFile=str(path))
    assert config.member_credentials == Credentials("inner", "inner-secret")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=f"others may open it; chmod 600 {path}"):
        _ = config.member_credentials
    with pytest.raises(ConfigError, match="cannot read"):
        _ = loaded(innerClientAuthenticationCredentialsFile=str(tmp_path / "none")).member_credentials
    with pytest.raises(ConfigError, match="are both set"):
        loaded(innerClientAuthenticationCredentials=INNER, innerClientAuthenticationCredentialsFile=str(path))


def test_white_lists_are_numbers() -> None:
    assert codes_of("10, 11;12,") == {10, 11, 12}


# -- defaults below securityPath ----------------------------------------------------------------------------


def directory_of(path: Path, **files: str) -> str:
    for name, text in files.items():
        (path / f"{name}.conf").write_text(text)
    return str(path)


def test_defaults_are_weaker_than_the_programs_own_file(tmp_path: Path) -> None:
    directory = directory_of(
        tmp_path,
        security="authenticationEnabled=true\ntls.server.certPath=${securityPath}/server.crt\n",
        broker="brokerClusterName=c1\n",
        namesrv="listenPort=1\n",
    )
    own = tmp_path / "own.conf"
    own.write_text(f"securityPath={directory}\nbrokerClusterName=c2\n")
    (config,) = load_config(BrokerConfig, path=own, environ={}, overrides={})
    assert isinstance(config, BrokerConfig)
    assert (config.authentication_enabled, config.broker_cluster_name) == (True, "c2")
    assert config.tls_server_cert_path == tmp_path / "server.crt"
    assert config.listen_port == 10911
    sources = setting_sources(BrokerConfig, path=own, environ={}, overrides={})
    assert sources["authenticationEnabled"] == f"{tmp_path}/security.conf line 1"
    assert sources["brokerClusterName"] == f"{own} line 2"


def test_every_program_reads_its_own_defaults(tmp_path: Path) -> None:
    directory = directory_of(
        tmp_path, security="", namesrv="authorizationCluster=c1\n", controller="controllerGraceMs=123\n"
    )
    needed = {
        "controllerDLegerGroup": "g",
        "controllerDLegerPeers": "n0-127.0.0.1:1",
        "controllerDLegerSelfId": "n0",
    }
    namesrv, controller = load_config(
        NamesrvConfig,
        ControllerConfig,
        path=None,
        environ={"KEELMQ_securityPath": directory},
        overrides=needed,
    )
    assert isinstance(namesrv, NamesrvConfig)
    assert isinstance(controller, ControllerConfig)
    assert (namesrv.authorization_cluster, controller.controller_grace_ms) == ("c1", 123)


def test_a_directory_that_cannot_close_anything_stops_the_program(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"cannot read .*security.conf'?: No such file or directory; `keelmq init-security` makes it",
    ):
        load_config(BrokerConfig, path=None, environ={}, overrides={"securityPath": str(tmp_path)})
    directory_of(tmp_path, security="authenticatonEnabled=true\n")
    with pytest.raises(ConfigError, match="did you mean 'authenticationEnabled'"):
        load_config(BrokerConfig, path=None, environ={}, overrides={"securityPath": str(tmp_path)})
    directory_of(tmp_path, security="securityPath=/elsewhere\n")
    with pytest.raises(ConfigError, match="belongs in the program's own file"):
        load_config(BrokerConfig, path=None, environ={}, overrides={"securityPath": str(tmp_path)})


def test_members_can_be_introduced_before_they_are_required(tmp_path: Path) -> None:
    """Servers with credentials sign, and serve those that do not sign yet."""
    directory = directory_of(
        tmp_path, security='innerClientAuthenticationCredentials={"accessKey":"m","secretKey":"s"}\n'
    )

    def required(**keys: str) -> bool:
        overrides = {"securityPath": directory, **keys}
        (config,) = load_config(BrokerConfig, path=None, environ={}, overrides=overrides)
        assert isinstance(config, BrokerConfig) and config.member_credentials is not None
        return config.members_required

    assert required()
    assert not required(memberAuthenticationRequired="false")
    (config,) = load_config(BrokerConfig, path=None, environ={}, overrides={"authenticationEnabled": "true"})
    assert isinstance(config, BrokerConfig) and config.members_required
