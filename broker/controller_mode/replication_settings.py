"""Settings and security of replication, taken from the broker's configuration."""

from broker.config.broker_config import BrokerConfig
from broker.ha.ports import HaSettings
from broker.ha.security import HaSecurity
from keelmq.remoting.operation import Audit
from keelmq.runtime.config import ConfigError
from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.runtime.tls.settings import client_tls, server_tls


def awaited_copies(config: BrokerConfig) -> int:
    """Returns inSyncReplicas; 1 with allAckInSyncStateSet, which counts no copies."""
    return 1 if config.all_ack_in_sync_state_set else config.in_sync_replicas


def ha_settings(config: BrokerConfig) -> HaSettings:
    """Returns the settings of the HA service: at the start, and after each change."""
    return HaSettings(
        batch_bytes=config.ha_transfer_batch_size,
        send_heartbeat_interval_ms=config.ha_send_heartbeat_interval,
        housekeeping_interval_ms=config.ha_housekeeping_interval,
        max_time_slave_not_catchup_ms=config.ha_max_time_slave_not_catchup,
        all_ack=config.all_ack_in_sync_state_set,
        in_sync_replicas=config.in_sync_replicas,
        acknowledges_alone=awaited_copies(config) == 1 and config.min_in_sync_replicas == 1,
        sync_from_last_file=config.sync_from_last_file,
        async_learner=config.async_learner,
        bytes_per_second=config.max_ha_transfer_byte_in_second if config.ha_flow_control_enable else 0,
        far_bytes_per_second=config.max_ha_transfer_byte_in_second,
        catch_up_threads=config.ha_catch_up_threads,
        stay_awake=config.ha_stay_awake,
        sync_flush=config.sync_flush,
        has_lease=config.isolation_lease_enable,
    )


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
        audit=audit,
    )


def _server_tls(config: BrokerConfig) -> ServerTls | None:
    """Of the HA port, whose mode differs from that of the other ports."""
    if config.ha_tls_mode == "disabled":
        return None
    return server_tls(
        config.model_copy(
            update={
                "tls_server_mode": config.ha_tls_mode,
                "http_tls_mode": "disabled",
                "listeners_tls_mode": "disabled",
            }
        )
    )


def _client_tls(config: BrokerConfig) -> ClientTls | None:
    return client_tls(config.model_copy(update={"tls_enable": config.ha_tls_enable}))
