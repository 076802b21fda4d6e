"""HA services, links and their settings with the values that a test does not care about."""

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from broker.ha.core.master_link import LinkSettings
from broker.ha.core.master_watch import MasterWatch
from broker.ha.core.slave_link import SlaveSettings
from broker.ha.ports import FindEpochs, FoundEpochs, HaSettings
from broker.ha.security import HaSecurity
from broker.ha.service import HaService
from broker.ha.slave_client import MasterCheck
from broker.store.log.group_commit import GroupCommit
from broker.store.message_store import MessageStore
from keelmq.runtime.clock import now_ms

_HA = HaSettings(
    batch_bytes=131_072,
    send_heartbeat_interval_ms=5_000,
    housekeeping_interval_ms=20_000,
    max_time_slave_not_catchup_ms=15_000,
    all_ack=False,
    in_sync_replicas=1,
    acknowledges_alone=False,
    sync_from_last_file=False,
    async_learner=False,
    bytes_per_second=0,
    far_bytes_per_second=104_857_600,
    catch_up_threads=4,
    stay_awake=False,
    sync_flush=False,
)
_LINK = LinkSettings(
    batch_bytes=131_072,
    send_heartbeat_interval_ms=5_000,
    housekeeping_interval_ms=20_000,
    bytes_per_second=0,
    far_bytes_per_second=0,
)


def ha_settings(**changes: int | bool) -> HaSettings:
    """The defaults of RocketMQ, with these changes."""
    return replace(_HA, **changes)  # type: ignore[arg-type]


def link_settings(**changes: int) -> LinkSettings:
    """Without limits of speed, with these changes."""
    return replace(_LINK, **changes)


def slave_settings(
    file_bytes: int,
    *,
    sync_from_last_file: bool = False,
    sync_flush: bool = False,
    async_learner: bool = False,
) -> SlaveSettings:
    """A RocketMQ slave's: it does not pull metadata."""
    return SlaveSettings(
        file_bytes=file_bytes,
        send_heartbeat_interval_ms=5_000,
        housekeeping_interval_ms=20_000,
        sync_from_last_file=sync_from_last_file,
        async_learner=async_learner,
        sync_flush=sync_flush,
        pulls_metadata=False,
    )


async def no_epochs(epoch: int) -> FoundEpochs | str:
    """A FindEpochs that finds none."""
    return "no master is known"


async def any_master() -> str | None:
    """A MasterCheck that refuses no master."""
    return None


def ha_service(
    store: MessageStore,
    *,
    epoch_path: Path,
    settings: HaSettings,
    port: int = 0,
    on_replicated: Callable[[int], None] = lambda offset: None,
    on_in_sync_changed: Callable[[int], None] = lambda count: None,
    metadata_lag_ms: Callable[[int, int], int] = lambda slave_id, epoch: 0,
    one_message_waits: Callable[[], bool] = lambda: False,
    on_truncated: Callable[[int, int], None] = lambda before, end: None,
    check_master: MasterCheck = any_master,
    commit: GroupCommit | None = None,
    security: HaSecurity | None = None,
    watch: MasterWatch | None = None,
    find_epochs: FindEpochs = no_epochs,
    clock: Callable[[], int] = now_ms,
) -> HaService:
    """A service on 127.0.0.1 whose replicas have all metadata; not started. 0: a port of the OS."""
    return HaService(
        store,
        epoch_path=epoch_path,
        host="127.0.0.1",
        port=port,
        settings=settings,
        on_replicated=on_replicated,
        on_in_sync_changed=on_in_sync_changed,
        commit=commit,
        metadata_lag_ms=metadata_lag_ms,
        one_message_waits=one_message_waits,
        on_truncated=on_truncated,
        check_master=check_master,
        security=security or HaSecurity(),
        watch=watch or MasterWatch(clock(), lambda: None),
        find_epochs=find_epochs,
        clock=clock,
    )
