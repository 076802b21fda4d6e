"""The HaSecurity of a broker, made of its configuration."""

from broker.config.broker_config import BrokerConfig
from broker.ha.security import HaSecurity
from keelmq.remoting.operation import Audit
from keelmq.runtime.config import ConfigError
from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.runtime.tls.settings import client_tls, server_tls


def ha_security(config: BrokerConfig, audit: Audit | None = None) -> HaSecurity:
    """Returns who may replicate, and the TLS of HA links. audit: records who is refused. Raises ConfigError:
    settings or files that cannot work."""
    credentials, has_tls = config.member_credentials, config.ha_tls_mode != "disabled"
    can_prove = credentials is not None or (has_tls and bool(config.member_certificates))
    required, plain_master = config.ha_authentication_required, config.ha_plain_master
    if required and not can_prove:
        raise ConfigError(
            "haAuthenticationRequired=true needs innerClientAuthenticationCredentials, or "
            "memberCertificateNames and haTlsMode: no slave could prove its membership"
        )
    return HaSecurity(
        cluster=config.broker_cluster_name,
        broker_name=config.broker_name,
        credentials=credentials,
        required=can_prove if required is None else required,
        plain_slaves=config.plain_slaves,
        plain_master=credentials is None if plain_master is None else plain_master,
        certificate_names=config.member_certificates,
        tls=_server_tls(config),
        client_tls=_client_tls(config),
        tell_refused=None if audit is None else audit.refused,
    )


def _server_tls(config: BrokerConfig) -> ServerTls | None:
    """Of the HA port, whose mode differs from that of the other ports."""
    if config.ha_tls_mode == "disabled":
        return None
    return server_tls(
        config.model_copy(update={"tls_server_mode": config.ha_tls_mode, "http_tls_mode": "disabled"})
    )


def _client_tls(config: BrokerConfig) -> ClientTls | None:
    return client_tls(config.model_copy(update={"tls_enable": config.ha_tls_enable}))
