"""The settings of links, made from those of the HA service, which change while the broker runs."""

from broker.core.report_lease import REPORT_MS
from broker.ha.core.master_link import LinkSettings
from broker.ha.core.slave_link import SlaveSettings
from broker.ha.ports import HaSettings


def master_link_settings(settings: HaSettings) -> LinkSettings:
    """Returns the settings of a master's links."""
    return LinkSettings(
        batch_bytes=settings.batch_bytes,
        send_heartbeat_interval_ms=settings.send_heartbeat_interval_ms,
        housekeeping_interval_ms=settings.housekeeping_interval_ms,
        bytes_per_second=settings.bytes_per_second,
        far_bytes_per_second=settings.far_bytes_per_second,
        is_watched=settings.all_ack,
    )


def slave_link_settings(settings: HaSettings, *, file_bytes: int) -> SlaveSettings:
    """Returns the settings of a slave's link. file_bytes: mappedFileSizeCommitLog."""
    return SlaveSettings(
        file_bytes=file_bytes,
        send_heartbeat_interval_ms=min(settings.send_heartbeat_interval_ms, REPORT_MS),
        silent_interval_ms=settings.housekeeping_interval_ms // 2,
        housekeeping_interval_ms=settings.housekeeping_interval_ms,
        sync_from_last_file=settings.sync_from_last_file,
        async_learner=settings.async_learner,
        sync_flush=settings.sync_flush,
        pulls_metadata=True,
    )
