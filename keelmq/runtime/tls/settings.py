"""TlsConfig: the tls.* keys of RocketMQ, for every program, and what is made of them.

Source: RocketMQ 5.3.3 TlsSystemConfig and TlsHelper. Where a key does something else here, docs/adr/0027 says
why.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from keelmq.runtime.config import Config, ConfigError, home_path, parse_settings, read_named, with_settings
from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.runtime.tls.files import CertificateFiles, key_names

DEFAULT_FILE = Path("/etc/rocketmq/tls.properties")
NOT_IN_FILE = frozenset({"tls.server.mode", "tls.enable", "tls.config.file"})
"""RocketMQ reads these from the command line only."""


class TlsConfig(Config):
    """Base of the configuration of every program with ports."""

    tls_server_mode: Literal["disabled", "permissive", "enforcing"] = Field(
        "permissive",
        alias="tls.server.mode",
        description="what all our ports serve: disabled (plain only), permissive (plain and TLS), enforcing "
        "(TLS only); the HA and raft ports have keys of their own",
    )
    listeners_tls_mode: Literal["disabled", "permissive", "enforcing"] | None = Field(
        None, description="the same for the ports of `listeners`; default: tls.server.mode (ours)"
    )
    http_tls_mode: Literal["disabled", "permissive", "enforcing"] | None = Field(
        None,
        description="the same for the HTTP port (default: as tls.server.mode), which never requires a "
        "certificate of clients; permissive keeps plain probes working (ours)",
    )
    tls_enable: bool = Field(
        False, alias="tls.enable", description="connections of this program to others are TLS"
    )
    tls_test_mode_enable: bool = Field(
        True,
        alias="tls.test.mode.enable",
        description="without tls.server.certPath: a self-signed certificate, made when the first TLS client "
        "comes; it encrypts, but no client can tell who we are",
    )
    tls_config_file: Path | None = Field(
        None,
        alias="tls.config.file",
        description="file with tls.* keys, which override those here, except tls.server.mode and tls.enable "
        f"(default: {DEFAULT_FILE}, if there is one)",
    )
    tls_server_need_client_auth: Literal["none", "optional", "require"] = Field(
        "none",
        alias="tls.server.need.client.auth",
        description="certificates of clients: not asked for, verified if there is one, or required",
    )
    tls_server_auth_client: bool = Field(
        False,
        alias="tls.server.authClient",
        description="needs tls.server.need.client.auth here: what is asked for is always verified",
    )
    tls_server_cert_path: Path | None = Field(
        None, alias="tls.server.certPath", description="certificate and its chain, PEM"
    )
    tls_server_key_path: Path | None = Field(None, alias="tls.server.keyPath", description="its key, PEM")
    tls_server_key_password: SecretStr | None = Field(
        None, alias="tls.server.keyPassword", description="password of the key"
    )
    tls_server_trust_cert_path: Path | None = Field(
        None, alias="tls.server.trustCertPath", description="CAs of clients' certificates, PEM"
    )
    tls_client_cert_path: Path | None = Field(
        None, alias="tls.client.certPath", description="certificate that this program shows to others, PEM"
    )
    tls_client_key_path: Path | None = Field(None, alias="tls.client.keyPath", description="its key, PEM")
    tls_client_key_password: SecretStr | None = Field(
        None, alias="tls.client.keyPassword", description="password of the key"
    )
    tls_client_auth_server: bool = Field(
        False,
        alias="tls.client.authServer",
        description="verify the certificates of others; tls.client.trustCertPath does that, too",
    )
    tls_client_trust_cert_path: Path | None = Field(
        None,
        alias="tls.client.trustCertPath",
        description="CAs of others' certificates, PEM; default, with tls.client.authServer: the system's",
    )
    tls_client_verify_host_name: bool = Field(
        False,
        alias="tls.client.verifyHostName",
        description="others' certificates must have the host name or address that we connect to (ours)",
    )

    @field_validator(
        "tls_config_file",
        "tls_server_cert_path",
        "tls_server_key_path",
        "tls_server_trust_cert_path",
        "tls_client_cert_path",
        "tls_client_key_path",
        "tls_client_trust_cert_path",
    )
    @classmethod
    def _expand_tls(cls, path: Path | None) -> Path | None:
        return home_path(path)


def with_file(config: TlsConfig, default_file: Path = DEFAULT_FILE) -> TlsConfig:
    """Returns the tls.* keys of `config`, overridden by tls.config.file. ConfigError: it cannot be read, or
    is wrong."""
    own = TlsConfig.model_validate({name: getattr(config, name) for name in TlsConfig.model_fields})
    path = own.tls_config_file or default_file
    if own.tls_config_file is None and not path.exists():
        return own
    try:
        settings = parse_settings(read_named(path).decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"tls.config.file: cannot read {path}: {why}") from error
    wanted = {key: value for key, value in settings.items() if key not in NOT_IN_FILE}
    return with_settings(own, wanted, str(path))


def server_tls(config: TlsConfig) -> ServerTls:
    """Returns what the ports of a program need. ConfigError: settings or files that cannot work."""
    keys = with_file(config)
    _check_server(keys)
    return ServerTls(
        keys.tls_server_mode,
        CertificateFiles(
            key_names("tls.server"),
            keys.tls_server_cert_path,
            keys.tls_server_key_path,
            keys.tls_server_key_password,
            keys.tls_server_trust_cert_path,
        ),
        client_auth=keys.tls_server_need_client_auth,
        self_signed=keys.tls_test_mode_enable,
        http_mode=keys.http_tls_mode,
        listeners_mode=keys.listeners_tls_mode,
    )


def client_tls(config: TlsConfig) -> ClientTls | None:
    """Returns what the connections of a program to others need; None: they are plain. ConfigError."""
    keys = with_file(config)
    if not keys.tls_enable:
        return None
    trust = keys.tls_client_trust_cert_path
    return ClientTls(
        CertificateFiles(
            key_names("tls.client"),
            keys.tls_client_cert_path,
            keys.tls_client_key_path,
            keys.tls_client_key_password,
            trust,
        ),
        verify=keys.tls_client_auth_server or trust is not None,
        verify_hostname=keys.tls_client_verify_host_name,
    )


def _check_server(keys: TlsConfig) -> None:
    own = keys.tls_server_mode
    modes = {own, keys.http_tls_mode or own, keys.listeners_tls_mode or own}
    if modes == {"disabled"}:
        return
    asks = keys.tls_server_need_client_auth != "none"
    if asks and keys.tls_server_trust_cert_path is None:
        raise ConfigError(
            f"tls.server.need.client.auth={keys.tls_server_need_client_auth} needs tls.server.trustCertPath: "
            "the CA of the clients' certificates"
        )
    if keys.tls_server_auth_client and not asks:
        raise ConfigError(
            "tls.server.authClient=true verifies nothing while no certificate is asked for: set "
            "tls.server.need.client.auth=require (or optional)"
        )
    has_certificate = keys.tls_server_cert_path is not None
    if "enforcing" in modes and not has_certificate and not keys.tls_test_mode_enable:
        raise ConfigError(
            "enforcing TLS needs tls.server.certPath and tls.server.keyPath (`keelmq "
            "certificates` makes them), or tls.test.mode.enable=true for a self-signed certificate"
        )
