"""What a broker writes down for analytics: a sample each second, and every finished role change.

The event loop reads a few numbers; a thread makes lines and files of them (remoting/telemetry.py). Nothing
is sampled before the broker's id is known. Without controller mode the broker is its own master, with id 0
and masterEpoch 0, and the SyncStateSet is itself.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

from broker.config import BrokerConfig
from broker.core.lag import LagMeter
from broker.core.role import Role
from broker.ha.ports import ReplicatedStore
from broker.ha.service import HaService
from remoting.clock import now_ms, wall_ms
from remoting.codes import MASTER_ID
from remoting.records import HaSample, RoleChange
from remoting.tasks import TaskSet
from remoting.telemetry import TelemetryWriter

TICK_MS = 100
SAMPLE_PERIOD_MS = 1_000
ALONE = Role(broker_id=MASTER_ID, master_broker_id=MASTER_ID)
"""The role without controller mode."""

RoleName = Literal["master", "slave", "none"]


class BrokerTelemetry:
    """Owned by the event loop's thread. The broker serves on whatever happens to the files."""

    def __init__(
        self,
        config: BrokerConfig,
        store: ReplicatedStore,
        *,
        node: str,
        ha: HaService | None,
        role: Callable[[], Role],
    ) -> None:
        """`role`: the last finished one."""
        self.writer = TelemetryWriter(
            config.telemetry_path,
            node=node,
            reserved_hours=config.telemetry_reserved_time,
            bytes_max=config.telemetry_bytes_max,
        )
        self._config, self._store, self._ha, self._role = config, store, ha, role
        self._lag = LagMeter()

    def start(self, tasks: TaskSet) -> None:
        tasks.start("telemetry files", self.writer.run)
        tasks.start("telemetry samples", self._sample_forever)

    async def close(self) -> None:
        """After the tasks were stopped."""
        await self.writer.close()

    async def _sample_forever(self) -> None:
        next_ms = now_ms() + SAMPLE_PERIOD_MS
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            now = now_ms()
            if now < next_ms:
                store = self._store
                self._lag.tick(
                    now, max_offset=store.commit_log.max_offset, confirm_offset=store.confirm_offset
                )
                continue
            next_ms = max(next_ms, now - TICK_MS) + SAMPLE_PERIOD_MS  # in step, unless the loop was held up
            sample = self.sample()
            if sample is not None:
                self.writer.put(sample)

    def sample(self) -> HaSample | None:
        """Now; None while the broker's id is not known."""
        role, ha, config = self._role(), self._ha, self._config
        max_offset, confirm_offset = self._store.commit_log.max_offset, self._store.confirm_offset
        lag = self._lag.read(now_ms(), max_offset=max_offset, confirm_offset=confirm_offset)
        if ha is not None and role.broker_id == 0:
            return None
        name, epoch, members, set_epoch = self._standing(role)
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
            replicas=ha.replica_samples() if ha is not None else (),
        )

    def _standing(self, role: Role) -> tuple[RoleName, int, tuple[int, ...], int]:
        """Role, masterEpoch, SyncStateSet and its epoch. The HA service knows them first: offsets mean
        nothing beside another epoch than that in which they were written."""
        ha = self._ha
        if ha is None:
            return "master", role.epoch, (MASTER_ID,), 0
        if ha.mastership is not None:
            agreed = ha.mastership.keeper.agreed
            return "master", ha.mastership.epoch, tuple(sorted(agreed.members)), agreed.epoch
        return "slave" if ha.client is not None else "none", role.epoch, (), 0

    def role_changed(self, before: Role, after: Role, took_ms: int) -> None:
        """A change has just been finished: as master, messages are accepted from now on."""
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
