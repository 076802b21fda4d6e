"""The telemetry files of a broker, for analytics: a sample each second, and every finished role change.

The event loop reads a few numbers; a thread writes them (keelmq/remoting/telemetry.py). Nothing is sampled
before the broker's id is known. Without controller mode the broker is its own master, with id 0 and
masterEpoch 0, and the SyncStateSet contains only this broker.

The data path reports appends and confirmations to store.dispatcher.confirm_times, which is read every
TICK_MS.
"""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from broker.admin.consumer_lags import ConsumerLags
from broker.config.broker_config import BrokerConfig
from broker.controller_mode.service import ControllerMode
from broker.core.lag import LagMeter
from broker.core.readiness import RoleName
from broker.core.role import Role
from broker.ha.known_replicas import KnownReplicas
from broker.ha.service import HaService
from broker.metadata.service import Metadata
from broker.store.message_store import MessageStore
from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.records import HaSample, RoleChange
from keelmq.remoting.telemetry import TelemetryWriter
from keelmq.runtime.clock import now_ms, now_us, wall_ms
from keelmq.runtime.log_buckets import bucket_of
from keelmq.runtime.tasks import TaskSet

TICK_MS = 100
SAMPLE_PERIOD_MS = 1_000
ALONE = Role(broker_id=MASTER_ID, master_broker_id=MASTER_ID)
"""The role without controller mode."""


class BrokerTelemetry:
    """Owned by the event loop's thread. An error of the files does not stop the broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        *,
        node: str,
        ha: HaService | None,
        role: Callable[[], Role],
        plain_role: RoleName = "master",
    ) -> None:
        """node: part of the files' names. ha: None without controller mode. role: the last finished one.
        plain_role: without controller mode."""
        self._plain_role = plain_role
        self.writer = TelemetryWriter(
            config.telemetry_path,
            node=node,
            reserved_hours=config.telemetry_reserved_time,
            bytes_max=config.telemetry_bytes_max,
        )
        self._config, self._store, self._ha, self._role = config, store, ha, role
        self._lag, self._replicas = LagMeter(), KnownReplicas()
        self._ages: dict[int, int] = {}  # bucket of an age in us -> readings since the last sample
        store.dispatcher.confirm_times.is_on = True

    def start(self, tasks: TaskSet) -> None:
        tasks.start("telemetry files", self.writer.run)
        tasks.start("telemetry samples", self._sample_forever)

    async def close(self) -> None:
        """Writes the remaining records. Called after the tasks were stopped."""
        await self.writer.close()

    async def _sample_forever(self) -> None:
        next_ms = now_ms() + SAMPLE_PERIOD_MS
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            now = now_ms()
            if now < next_ms:
                store = self._store
                self._look(
                    self._lag.tick(
                        now, max_offset=store.commit_log.max_offset, confirm_offset=store.confirm_offset
                    )
                )
                continue
            next_ms = max(next_ms, now - TICK_MS) + SAMPLE_PERIOD_MS  # skips periods that the loop missed
            sample = self.sample()
            if sample is not None:
                self.writer.put(sample)

    def _look(self, lag_ms: int) -> None:
        """Counts the age of the oldest unconfirmed byte. lag_ms: from LagMeter, which also covers the bytes
        that a new master received as a slave, but each only since its first reading."""
        if self._is_master_now:
            bucket = bucket_of(max(self._store.dispatcher.confirm_times.age_us(now_us()), lag_ms * 1_000))
            self._ages[bucket] = self._ages.get(bucket, 0) + 1

    @property
    def _is_master_now(self) -> bool:
        return self._plain_role == "master" if self._ha is None else self._ha.mastership is not None

    def master_id(self) -> int | None:
        """Returns this broker's id; None: it is not master."""
        return self._role().broker_id if self._is_master_now else None

    def sample(self) -> HaSample | None:
        """Returns the present values; None while the broker's id is not known."""
        role, ha, config = self._role(), self._ha, self._config
        max_offset, confirm_offset = self._store.commit_log.max_offset, self._store.confirm_offset
        lag = self._lag.read(now_ms(), max_offset=max_offset, confirm_offset=confirm_offset)
        self._look(lag.ms)
        ages, self._ages = self._ages, {}
        confirm_us = self._store.dispatcher.confirm_times.take()
        if ha is not None and role.broker_id == 0:
            return None
        name, epoch, members, set_epoch = self._role_and_set(role)
        return HaSample(
            ts=wall_ms(),
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=role.broker_id,
            role=name,
            master_epoch=epoch,
            max_offset=max_offset,
            confirm_offset=confirm_offset,
            lag_ms=lag.ms,
            lag_ms_max=lag.ms_max,
            lag_bytes_max=lag.bytes_max,
            sync_state_set=members,
            sync_state_set_epoch=set_epoch,
            min_in_sync_replicas=config.min_in_sync_replicas,
            replicas=self._replicas.samples(ha) if ha is not None else (),
            lag_us=tuple(sorted(ages.items())),
            confirm_us=confirm_us,
        )

    def _role_and_set(self, role: Role) -> tuple[RoleName, int, tuple[int, ...], int]:
        """Returns role, masterEpoch, SyncStateSet and its epoch from the HA service: offsets have a meaning
        only together with the epoch in which they were written."""
        ha = self._ha
        if ha is None:
            return self._plain_role, role.epoch, (MASTER_ID,) if self._plain_role == "master" else (), 0
        if ha.mastership is not None:
            agreed = ha.mastership.sync_state_set_manager.agreed
            return "master", ha.mastership.epoch, tuple(sorted(agreed.members)), agreed.epoch
        return "slave" if ha.client is not None else "none", role.epoch, (), 0

    def role_changed(self, before: Role, after: Role, took_ms: int) -> None:
        """Writes a role change that has just been finished."""
        now, is_master = wall_ms(), self._is_master(after)
        self.writer.put(
            RoleChange(
                ts=now,
                cluster_name=self._config.broker_cluster_name,
                broker_name=self._config.broker_name,
                broker_id=after.broker_id,
                role="master" if is_master else "slave",
                master_epoch=after.epoch,
                previous_role="none" if before.epoch == 0 else "master" if before.is_master else "slave",
                previous_epoch=before.epoch,
                started_ts=now - took_ms,
                max_offset=self._store.commit_log.max_offset,
                confirm_offset=self._store.confirm_offset,
                truncated_bytes=self._ha.truncated_bytes if self._ha is not None and is_master else 0,
            )
        )

    def _is_master(self, role: Role) -> bool:
        return role.is_master or self._ha is None


def start_telemetry(
    config: BrokerConfig,
    store: MessageStore,
    metadata: Metadata,
    tasks: TaskSet,
    *,
    address: str,
    controlled: ControllerMode | None,
    plain_role: RoleName,
) -> BrokerTelemetry | None:
    """Starts the telemetry of a broker, with the lags of its consumers if these are wanted. address: makes
    the files' names unique in the cluster. None: telemetry is off."""
    if not config.telemetry_enable:
        return None
    alone = replace(ALONE, broker_id=config.broker_id)
    telemetry = BrokerTelemetry(
        config,
        store,
        node=f"{config.broker_name}-{address}",
        ha=controlled.ha if controlled is not None else None,
        role=lambda: controlled.role if controlled is not None else alone,
        plain_role=plain_role,
    )
    telemetry.start(tasks)
    if config.telemetry_consumer_lag_interval:
        lags = ConsumerLags(config, store, metadata, telemetry.writer, telemetry.master_id)
        tasks.start("consumer lags", lags.run)
    return telemetry
