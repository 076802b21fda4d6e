"""The settings of replication, taken from the broker's configuration: at the start, and after each change."""

from broker.config.broker_config import BrokerConfig
from broker.ha.ports import HaSettings


def awaited_copies(config: BrokerConfig) -> int:
    """Returns inSyncReplicas; 1 with allAckInSyncStateSet, which counts no copies."""
    return 1 if config.all_ack_in_sync_state_set else config.in_sync_replicas


def ha_settings(config: BrokerConfig) -> HaSettings:
    """Returns the settings of the HA service."""
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
