"""Controller mode of a broker: identity, roles, heartbeats and replication, wired to the rest of the
broker."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.controller_client import ControllerClient, Heartbeats
from broker.core.lease import Lease
from broker.core.role import Role
from broker.ha.ports import HaSettings
from broker.ha.report import runtime_info
from broker.ha.service import HaService
from broker.hand_over import Groups, HandOver, HandOverError
from broker.identity import Identity
from broker.late_sends import LateSends
from broker.replicas_manager import ReplicasManager
from broker.role_shell import BrokerHaEvents, BrokerRoleShell
from broker.route_registration import RouteRegistration
from broker.slave_sync import SlaveSync
from broker.store.meta_file import MetaFiles
from broker.telemetry import BrokerTelemetry
from remoting.client import RemotingClient
from remoting.config import ConfigError, why_refused
from remoting.operation import Call, Empty, Operation, OperationTable, Outcome, Reply, Wire
from remoting.operations.broker import (
    GET_BROKER_EPOCH_CACHE,
    GET_BROKER_HA_STATUS,
    BrokerNameOptionalRequest,
    EpochEntryBody,
    EpochEntryCache,
)
from remoting.operations.controller import (
    HAND_OVER,
    NOTIFY_BROKER_ROLE_CHANGED,
    HandOverRequest,
    NotifyBrokerRoleChangedRequest,
)
from remoting.operations.route import BrokerHeartbeatRequest
from remoting.tasks import TaskSet

if TYPE_CHECKING:
    from broker.app import Broker

logger = logging.getLogger(__name__)

NO_ROLE = Role(broker_id=0)
WITNESS_BEATS = 3
"""A slave that missed so many of its reports is not known to be a slave."""
LEASE_LOOK_MS = 100
QUIET_MS = 300
"""So long nobody sends to a master that handed over and wants to stop: then it does."""


class Controlled:
    """listen() binds the replication port; start() begins to talk to the controllers."""

    def __init__(
        self,
        broker: "Broker",
        files: MetaFiles,
        sync: SlaveSync,
        routes: RouteRegistration,
    ) -> None:
        self._broker, self._files, self._sync, self._routes = broker, files, sync, routes
        config = broker.config
        self._events = BrokerHaEvents(
            gate=broker.gate,
            pending=broker.pending,
            metadata=broker.metadata,
            copies=1 if config.all_ack_in_sync_state_set else config.in_sync_replicas,
        )
        self.ha = HaService(
            broker.store,
            epoch_path=config.epoch_path,
            host=config.bind_address,
            port=config.ha_listen_port or (config.listen_port + 1 if config.listen_port else 0),
            settings=HaSettings(
                batch_bytes=config.ha_transfer_batch_size,
                send_heartbeat_interval_ms=config.ha_send_heartbeat_interval,
                housekeeping_interval_ms=config.ha_housekeeping_interval,
                max_time_slave_not_catchup_ms=config.ha_max_time_slave_not_catchup,
                check_sync_state_set_period_ms=config.check_sync_state_set_period,
                all_ack=config.all_ack_in_sync_state_set,
                in_sync_replicas=config.in_sync_replicas,
                sync_from_last_file=config.sync_from_last_file,
                async_learner=config.async_learner,
                bytes_per_second=config.max_ha_transfer_byte_in_second
                if config.ha_flow_control_enable
                else 0,
                far_bytes_per_second=config.max_ha_transfer_byte_in_second,
                catch_up_threads=config.ha_catch_up_threads,
                stay_awake=config.ha_stay_awake,
                sync_flush=config.sync_flush,
            ),
            events=self._events,
            commit=broker.commit,
            metadata_lag_ms=broker.metadata.lag_ms,
            one_waits=lambda: len(broker.pending) == 1,
        )
        self.ha.on_cut = broker.metadata.cut
        self.ha.stranger = sync.stranger
        broker.metadata.members = self.ha.metadata_members
        broker.metadata.on_heard = self.ha.metadata_heard
        self.appended = self.ha.appended
        broker.gate.min_in_sync = config.min_in_sync_replicas
        self._identity: Identity | None = None
        self._manager: ReplicasManager | None = None
        self._controller: ControllerClient | None = None
        self._heartbeats: Heartbeats | None = None
        self._lease = Lease(
            timeout_ms=config.controller_heart_beat_timeout_mills,
            witness_ms=WITNESS_BEATS * config.ha_send_heartbeat_interval,
        )
        if config.isolation_lease_enable:
            broker.gate.lease = self._lease_is_over
        self._hand_over: HandOver | None = None
        self.late: LateSends | None = None

    async def listen(self) -> None:
        config = self._broker.config
        try:
            await self.ha.start()
        except (OSError, UnicodeError) as error:
            port = config.ha_listen_port or config.listen_port + 1
            raise ConfigError(
                f"haListenPort: cannot listen on {config.bind_address}:{port}: {why_refused(error)}"
            ) from error

    def bind(self, table: OperationTable) -> None:
        table.bind(GET_BROKER_EPOCH_CACHE, self._get_broker_epoch)
        table.bind(GET_BROKER_HA_STATUS, self._get_broker_ha_status)

    def start(
        self,
        client: RemotingClient,
        pushed: OperationTable,
        tasks: TaskSet,
        telemetry: BrokerTelemetry | None,
    ) -> None:
        """Everything that needs our address."""
        broker, config = self._broker, self._broker.config
        self._controller = ControllerClient(client, config.controllers)
        self._heartbeats = Heartbeats(
            client,
            config.controllers,
            interval_ms=config.broker_heartbeat_interval,
            heartbeat=self._heartbeat,
            on_answer=self._lease.beat_answered,
        )
        self._controller.on_addresses = self._heartbeats.follow
        self._identity = Identity(
            self._files,
            self._controller,
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_address=broker.address,
            on_registered=self._heartbeats.beat_now,
            last_epoch=lambda: self.ha.last_epoch if self.ha.epochs else None,
        )
        shell = BrokerRoleShell(
            gate=broker.gate,
            pending=broker.pending,
            metadata=broker.metadata,
            sync=self._sync,
            close_clients=broker.close_clients,
            announce=self._announce,
        )
        self._manager = ReplicasManager(
            self._identity,
            self._controller,
            self.ha,
            shell,
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            poll_period_ms=config.sync_broker_metadata_period,
            on_change=telemetry.role_changed if telemetry is not None else None,
            on_confirmed=self._confirmed,
        )
        self._events.manager = self._manager
        self._prepare_hand_over(client, self._manager, self._controller)
        self._sync.refresh_by(self._manager.refresh_ha_address)
        pushed.bind(NOTIFY_BROKER_ROLE_CHANGED, self._notified)
        pushed.bind(HAND_OVER, self._asked_to_hand_over)
        self._heartbeats.start(tasks)
        self._manager.start(tasks)
        tasks.start("isolation lease", self._watch_lease)
        tasks.start("metadata of the master", self._sync.run)
        tasks.start("HA address of the master", self._sync.refresh_forever)

    def _prepare_hand_over(
        self, client: RemotingClient, manager: ReplicasManager, controller: ControllerClient
    ) -> None:
        broker, config = self._broker, self._broker.config
        self.late = LateSends(client, broker.gate, broker_name=config.broker_name, master=self._other_master)
        self.late.serve(broker.send_here)
        if config.forward_late_sends:
            broker.gate.detour = self.late.take
        self._hand_over = HandOver(
            Groups(config.broker_cluster_name, config.broker_name),
            ha=self.ha,
            gate=broker.gate,
            pending=broker.pending,
            late=self.late,
            metadata=broker.metadata,
            manager=manager,
            controller=controller,
        )

    async def stop(self) -> None:
        if self.late is not None:
            await self.late.close()
        await self.ha.stop()

    async def leave(self) -> None:
        """A master that is to stop hands over, and stays until nobody sends to it any more."""
        if self._hand_over is None or self.late is None or not self.role.is_master:
            return
        try:
            await self._hand_over.give(leaves=True)
        except HandOverError:
            return  # it is logged: the controllers will see us go
        await self.late.quiet(QUIET_MS)

    def _confirmed(self, asked_ms: int) -> None:
        if self._controller is not None and self._controller.active_address is not None:
            self._lease.confirmed(self._controller.active_address, asked_ms)

    def _lease_is_over(self, now_ms: int) -> bool:
        return self._lease.is_over(now_ms, self.ha.heirs, self.ha.links)

    async def _watch_lease(self) -> None:
        """Says it once; the gate looks for itself."""
        was_over = False
        while True:
            await asyncio.sleep(LEASE_LOOK_MS / 1000)
            is_over = self.is_isolated
            if is_over and not was_over:
                logger.error(
                    "isolated: neither the controller that leads nor every in-sync replica (%s) is heard; "
                    "nothing is acknowledged, because another master may have been elected",
                    sorted(self.ha.heirs),
                )
            elif was_over and not is_over:
                logger.warning("no longer isolated")
            was_over = is_over

    @property
    def is_isolated(self) -> bool:
        """Master by its own word only."""
        return self.role.is_master and self._broker.gate.lease_is_over

    def _other_master(self) -> str | None:
        role = self.role
        return None if role.is_master or role.epoch == 0 else role.master_address

    async def hand_on(self, operation: Operation[Any, Any], header: Wire) -> Outcome[Any] | None:
        return None if self.late is None else await self.late.hand_on(operation, header)

    def sends_to_master(self) -> bool:
        """Are consumers better served by the master that this replica knows?"""
        return self._other_master() is not None and not self._broker.config.slave_read_enable

    @property
    def fault(self) -> str:
        """Why this broker cannot take the role that the controllers gave it; empty: it can."""
        return self._manager.fault if self._manager is not None else ""

    def poll_now(self) -> None:
        """Ask the controllers for the role at once."""
        if self._manager is not None:
            self._manager.poll_now()

    @property
    def role(self) -> Role:
        return self._manager.role if self._manager is not None else NO_ROLE

    @property
    def ha_port(self) -> int:
        return self.ha.address[1]

    def connection_lost(self, address: str) -> None:
        """A lost controller may have pushed a change that we never saw: poll."""
        if self._controller is None or self._heartbeats is None or self._manager is None:
            return
        self._lease.connection_lost(address)
        self._controller.connection_lost(address)
        self._heartbeats.connection_lost(address)
        if address in self._controller.addresses:
            self._manager.poll_now()

    def runtime_info(self) -> Mapping[str, str]:
        role = self.role
        return {
            "brokerRole": "SYNC_MASTER" if role.is_master else "SLAVE",
            "masterEpoch": str(role.epoch),
            "brokerControllerId": str(role.broker_id),
            "haStatus": str(self.ha.status()),
        }

    def _master_address(self) -> str | None:
        role = self.role
        return None if role.is_master or role.epoch == 0 else role.master_address

    def _announce(self) -> None:
        self._routes.trigger()
        if self._heartbeats is not None:
            self._heartbeats.beat_now()

    def _heartbeat(self) -> BrokerHeartbeatRequest | None:
        if self._identity is None or not self._identity.is_registered or self.fault:
            return None
        config, store = self._broker.config, self._broker.store
        return BrokerHeartbeatRequest(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_addr=self._broker.address,
            broker_id=self._identity.broker_id,
            epoch=self.ha.last_epoch,
            max_offset=store.commit_log.max_offset,
            confirm_offset=store.confirm_offset,
            heartbeat_timeout_mills=config.controller_heart_beat_timeout_mills,
            election_priority=config.broker_election_priority,
            hands_over=True,
            min_in_sync_replicas=config.min_in_sync_replicas,
        )

    async def _notified(self, request: NotifyBrokerRoleChangedRequest, call: Call) -> None:
        if self._controller is not None and request.controllers is not None:
            self._controller.learn(request.controllers)
        if self._manager is not None:
            self._manager.notified(request, call.body)

    async def _asked_to_hand_over(self, request: HandOverRequest, call: Call) -> None:
        if self._hand_over is None or request.broker_name != self._broker.config.broker_name:
            return
        if request.master_epoch == self.role.epoch:
            with contextlib.suppress(HandOverError):  # it is logged, and the controller elects without us
                await self._hand_over.give(request.broker_id)

    async def _get_broker_ha_status(self, request: Empty, call: Call) -> Reply:
        return Reply(body=runtime_info(self.ha))

    async def _get_broker_epoch(self, request: BrokerNameOptionalRequest, call: Call) -> Reply:
        config = self._broker.config
        entries = [
            EpochEntryBody(epoch=entry.epoch, start_offset=entry.start_offset, end_offset=entry.end_offset)
            for entry in self.ha.epochs
        ]
        return Reply(
            body=EpochEntryCache(
                cluster_name=config.broker_cluster_name,
                broker_name=config.broker_name,
                broker_id=self.role.broker_id,
                epoch_list=entries,
                max_offset=self._broker.store.commit_log.max_offset,
            )
        )
