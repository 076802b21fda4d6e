"""Controller mode of a broker: makes its parts (identity, roles, heartbeats, replication, hand-over),
connects them with the rest of the broker, and starts and stops them.

Decides nothing itself: core/role.py decides about roles, core/registration.py about the id, core/lease.py
about the isolation lease.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from broker.admission.disk_fault import DiskFault
from broker.admission.fast_path import FastPathPeer
from broker.admission.pending_replies import PendingReplies
from broker.admission.send_forwarder import SendForwarder
from broker.admission.send_gate import DISK_FULL, SendGate
from broker.clients.core.registry import ClientRegistry
from broker.config.broker_config import BrokerConfig
from broker.controller_mode.broker_id_registration import Identity
from broker.controller_mode.broker_meta_file import MetaFiles
from broker.controller_mode.controller_client import ControllerClient, Heartbeats
from broker.controller_mode.hand_over import HandOver, HandOverError, HandOverRequests
from broker.controller_mode.hand_over_watch import HEAL_MS, ROOM_MS, HandOverWatch
from broker.controller_mode.isolation_lease import IsolationLease
from broker.controller_mode.peer_connections import PeerConnections
from broker.controller_mode.planned_stop import PlannedStop
from broker.controller_mode.replicas_manager import ReplicasManager
from broker.controller_mode.replication_settings import awaited_copies, ha_security, ha_settings
from broker.controller_mode.role_change import RoleChange
from broker.controller_mode.role_change_notifications import RoleChangeNotifications, RoleHints
from broker.controller_mode.slave_sync import SlaveSync
from broker.core.readiness import RoleName
from broker.core.role import Role
from broker.ha.core.master_watch import MasterWatch
from broker.ha.report import runtime_info, status_of
from broker.ha.service import HaService
from broker.healing.lost_epochs import EpochFinder
from broker.metadata.service import Metadata
from broker.put.send_commands import SendCommand
from broker.stats.messages_in import MessagesIn
from broker.store.log.group_commit import GroupCommit
from broker.store.message_store import MessageStore
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import (
    Audit,
    Call,
    Empty,
    Operation,
    OperationTable,
    Outcome,
    Reply,
    Wire,
    build_validators,
)
from keelmq.remoting.operations.broker import (
    GET_BROKER_EPOCH_CACHE,
    GET_BROKER_HA_STATUS,
    BrokerNameOptionalRequest,
    EpochEntryBody,
    EpochEntryCache,
    SendMessageRequestV2,
)
from keelmq.remoting.operations.broker_metadata import MetadataUpdates
from keelmq.remoting.operations.clients import HeartbeatData, HeartbeatResponse
from keelmq.remoting.operations.controller import (
    AlterSyncStateSetRequest,
    AlterSyncStateSetResponse,
    SyncStateSet,
)
from keelmq.remoting.operations.route import BrokerHeartbeatRequest
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.config import ConfigError, why_refused
from keelmq.runtime.stop_steps import StopSteps
from keelmq.runtime.tasks import TaskSet

NEEDED_BY_A_NEW_MASTER: Final = (
    SyncStateSet,
    MetadataUpdates,
    AlterSyncStateSetRequest,
    AlterSyncStateSetResponse,
    HeartbeatData,
    HeartbeatResponse,
    SendMessageRequestV2,
)
"""Their validators are built at the start. A slave uses none of them, and 2 ms matter in a fail-over."""


class ReplicationParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the broker that replication works on, and its callbacks.

    client, pushed: for controllers, name servers and other brokers, and the requests that come over these
    connections. address: host:port that is announced to clients. announce: registers with the name servers,
    at once and in the background. send_here: the send handler. close_clients: closes all connections of
    clients. on_role_changed(before, after, took_ms): a role change has just been finished.
    """

    client: RemotingClient
    pushed: OperationTable
    gate: SendGate
    pending: PendingReplies
    store: MessageStore
    commit: GroupCommit
    disk_fault: DiskFault
    metadata: Metadata
    registry: ClientRegistry
    messages_in: MessagesIn
    audit: Audit | None
    address: Callable[[], str]
    announce: Callable[[], None]
    send_here: Callable[[SendCommand, bytes, FastPathPeer], bytes | None]
    close_clients: Callable[[], None]
    on_role_changed: Callable[[Role, Role, int], None]


class ControllerMode:
    """listen() binds the replication port; start() connects to the controllers."""

    def __init__(self, config: BrokerConfig, parts: ReplicationParts, files: MetaFiles) -> None:
        """files: the identity on disk."""
        self._config, self._parts = config, parts
        self._names = {"cluster_name": config.broker_cluster_name, "broker_name": config.broker_name}
        self._tasks: TaskSet | None = None
        self._replicated_offset = 0
        build_validators(*NEEDED_BY_A_NEW_MASTER)
        self._make_replication()
        self._make_roles(files)
        self._make_hand_over()
        self._hints = RoleHints(self._manager.poll_now)
        self._notifications = RoleChangeNotifications(
            self._manager,
            self._controller,
            self._hints,
            broker_name=config.broker_name,
            dialled=parts.client.address_of,
        )
        self._notifications.bind_pushed(parts.pushed)
        HandOverRequests(self._hand_over, lambda: self.role, broker_name=config.broker_name).bind_pushed(
            parts.pushed
        )

    def _make_replication(self) -> None:
        """Makes the parts that replicate log and metadata, as slave and as master."""
        config, parts = self._config, self._parts
        self.slave_sync = SlaveSync(
            parts.client,
            parts.metadata,
            cluster=config.broker_cluster_name,
            broker_name=config.broker_name,
        )
        self.ha = HaService(
            parts.store,
            epoch_path=config.epoch_path,
            host=config.bind_address,
            port=config.ha_listen_port or (config.listen_port + 1 if config.listen_port else 0),
            settings=ha_settings(config),
            on_replicated=self._replicated,
            on_in_sync_changed=self._in_sync_changed,
            commit=parts.commit,
            metadata_lag_ms=parts.metadata.lag_ms,
            one_message_waits=lambda: len(parts.pending) == 1,
            on_truncated=parts.metadata.log_truncated,
            check_master=self.slave_sync.unverified_peer,
            security=ha_security(config, parts.audit),
            watch=MasterWatch(now_ms(), lambda: self._heartbeats.send_now()),
            find_epochs=EpochFinder(
                parts.store, parts.client, broker_name=config.broker_name, peers=self.replicas
            ),
        )
        self._lease = IsolationLease(
            self.ha,
            timeout_ms=config.controller_heart_beat_timeout_mills,
            heartbeat_interval_ms=config.broker_heartbeat_interval,
        )
        if config.isolation_lease_enable:
            parts.gate.lease = self._lease.is_over

    def _make_roles(self, files: MetaFiles) -> None:
        """Makes the client of the controllers, the identity and the ReplicasManager."""
        config, parts = self._config, self._parts
        self._heartbeats = Heartbeats(
            parts.client,
            config.controllers,
            interval_ms=config.broker_heartbeat_interval,
            heartbeat=self._heartbeat,
            on_answer=self._lease.heartbeat_answered,
        )
        self._controller = ControllerClient(
            parts.client, config.controllers, on_addresses=self._heartbeats.follow
        )
        self._identity = Identity(
            files,
            self._controller,
            **self._names,
            broker_address=parts.address,
            on_registered=self._heartbeats.send_now,
            last_epoch=lambda: self.ha.last_epoch if self.ha.epochs else None,
        )
        role_change = RoleChange(
            self.ha,
            gate=parts.gate,
            pending=parts.pending,
            metadata=parts.metadata,
            sync=self.slave_sync,
            messages_in=parts.messages_in,
            on_metadata_replicated=self._release_replies,
            close_clients=parts.close_clients,
        )
        self._peers = PeerConnections(
            parts.client,
            self._controller,
            broker_name=config.broker_name,
            broker_id=lambda: self.role.broker_id,
        )
        self._manager = ReplicasManager(
            self._identity,
            self._controller,
            role_change,
            **self._names,
            poll_period_ms=config.sync_broker_metadata_period,
            on_change=self._role_changed,
            on_confirmed=self._confirmed,
            on_sync_state_set=self._peers.members,
            unfit_because=lambda: parts.store.damage.end_fault,
            on_refused=self._heartbeats.send_now,
        )

    def _make_hand_over(self) -> None:
        """Makes the hand-over, the planned stop, and the forwarder of sends that reach a slave."""
        config, parts = self._config, self._parts
        self.forwarder = SendForwarder(
            parts.client,
            parts.gate,
            broker_name=config.broker_name,
            master=self._master_address,
            send_here=parts.send_here,
            successor_is_due=lambda: self._room_watch.is_due,
        )
        if config.forward_late_sends:
            parts.gate.hold_or_forward = self.forwarder.take
        self._hand_over = HandOver(
            **self._names,
            ha=self.ha,
            gate=parts.gate,
            pending=parts.pending,
            forwarder=self.forwarder,
            metadata=parts.metadata,
            manager=self._manager,
            controller=self._controller,
        )
        self._damage_watch = HandOverWatch(self._damage, self._hand_over, grace_ms=HEAL_MS)
        self._room_watch = HandOverWatch(
            lambda: parts.gate.remark_of(DISK_FULL), self._hand_over, grace_ms=ROOM_MS, for_room=True
        )
        parts.store.damage.on_change.append(self._damage_changed)
        self._planned_stop = PlannedStop(
            self._hand_over,
            self.forwarder,
            parts.registry,
            role=lambda: self.role,
            is_linked=lambda: self.ha.client is not None and self.ha.client.connected,
            announce=parts.announce,
            config=config,
        )

    # -- start and stop ----------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Reads the identity and binds the replication port. Raises BrokerMetaError if the identity cannot be
        trusted, ConfigError if the port is not available."""
        config = self._config
        self._identity.load()
        try:
            await self.ha.start()
        except (OSError, UnicodeError) as error:
            port = config.ha_listen_port or config.listen_port + 1
            raise ConfigError(
                f"haListenPort: cannot listen on {config.bind_address}:{port}: {why_refused(error)}"
            ) from error

    def bind(self, table: OperationTable) -> None:
        """Binds 1007, 907 and 1008 at the broker's own port."""
        table.bind(GET_BROKER_EPOCH_CACHE, self.get_broker_epoch)
        table.bind(GET_BROKER_HA_STATUS, self.get_broker_ha_status)
        self._notifications.bind(table)

    def start(self, tasks: TaskSet) -> None:
        """Starts heartbeats, role changes and the copy of metadata. The broker's address must be known."""
        self._tasks = tasks
        self._heartbeats.start(tasks)
        self._manager.start(tasks)
        tasks.start("connections to the SyncStateSet", self._peers.run)
        tasks.start("damage of the log", self._damage_watch.run)
        tasks.start("room on the disk", self._room_watch.run)
        tasks.start("isolation lease", lambda: self._lease.watch(lambda: self.is_isolated))
        tasks.start("metadata of the master", self.slave_sync.run)

    async def leave(self) -> None:
        """Prepares a planned stop: hands over, then waits until no client needs this broker any more."""
        await self._planned_stop.run()

    async def stop(self) -> None:
        """Closes the links. Raises StopError if a step failed; the others were done."""
        steps = StopSteps("controller mode")
        steps.add("forwarded sends", self.forwarder.close)
        steps.add("HA", self.ha.stop)
        await steps.run()

    def configure(self) -> None:
        """Applies changed settings. Heartbeats, which carry settings for controllers, are sent at once."""
        config = self._config
        self._lease.configure(
            timeout_ms=config.controller_heart_beat_timeout_mills,
            heartbeat_interval_ms=config.broker_heartbeat_interval,
        )
        self.ha.configure(ha_settings(config))
        self._in_sync_changed(self._parts.gate.in_sync)
        self._release_replies()
        self._heartbeats.configure(interval_ms=config.broker_heartbeat_interval)
        self._manager.poll_period_ms = config.sync_broker_metadata_period

    # -- calls of the broker -----------------------------------------------------------------------------

    def connection_lost(self, address: str) -> None:
        """Called when a connection closed. If it was a controller's, a notification may be lost, so it asks
        for the role."""
        self._lease.connection_lost(address)
        self._controller.connection_lost(address)
        self._heartbeats.connection_lost(address)
        if address in self._controller.addresses:
            self._manager.poll_now()

    def hand_over_soon(self) -> None:
        """Called when the disk of this broker failed: hands over in the background."""
        if self._tasks is not None:
            self._tasks.start("hand-over after a disk fault", self._hand_over_now)

    async def _hand_over_now(self) -> None:
        """Hands over if this broker is master. If that fails, the controllers elect another member of the
        SyncStateSet, because this broker sends no more heartbeats (_heartbeat)."""
        if self.role.is_master:
            with contextlib.suppress(HandOverError):  # it is logged
                await self._hand_over.give(leaves=True)

    def hint(self) -> None:
        """Handles an unverified hint of a role change: asks the controllers, at most once a second."""
        self._hints.hint()

    async def replicas(self) -> list[str]:
        """Returns the addresses of the other replicas that are alive, the master first."""
        return await self._peers.replicas()

    async def forward_to_master(
        self, operation: Operation[Any, Any], header: Wire, body: Wire | None = None
    ) -> Outcome[Any] | None:
        """Sends a request to the master, once. None: no other master is known."""
        return await self.forwarder.forward_to_master(operation, header, body)

    # -- state -------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """The last finished role; broker_id 0 until the broker has its id."""
        return self._manager.role

    @property
    def role_name(self) -> RoleName:
        """ "none": no role yet, or a role change is in progress."""
        if not self.role.epoch:
            return "none"
        is_master, is_slave = self.ha.mastership is not None, self.ha.client is not None
        return "master" if is_master else "slave" if is_slave else "none"

    @property
    def has_settled_role(self) -> bool:
        """Whether there is a role to announce, and no role change is in progress."""
        role = self.role
        return role.epoch > 0 and (self._parts.gate.role_is_settled or not role.is_master)

    @property
    def fault(self) -> str:
        """Why this broker cannot take the role that the controllers gave it; empty: it can."""
        return self._manager.fault

    @property
    def out_of_sync(self) -> str:
        """Why this slave is not in sync; empty: it is, or this broker is no slave. It knows the SyncStateSet
        as of the last poll (syncBrokerMetadataPeriod). A replica that has just been restarted may still be in
        it, so the link counts, too."""
        if self.role_name != "slave":
            return ""
        if self.ha.client is None or not self.ha.client.connected:
            return "it has no link to the master"
        members = self._peers.sync_state_set
        if self.role.broker_id not in members:
            return f"the SyncStateSet is {sorted(members)}, without {self.role.broker_id}"
        return ""

    @property
    def is_isolated(self) -> bool:
        """Whether this broker is master, but its isolation lease is over."""
        return self.role.is_master and self._parts.gate.lease_is_over

    def sends_to_master(self) -> bool:
        """Returns whether pulls of consumers are sent to the master: it is known, and slaveReadEnable is not
        set."""
        return self._master_address() is not None and not self._config.slave_read_enable

    @property
    def forwards_sends(self) -> bool:
        """Whether this broker, as a slave, forwards messages of producers now and will continue to."""
        return self._config.forward_late_sends and not self._planned_stop.is_running

    @property
    def ha_port(self) -> int:
        """The port on which slaves connect."""
        return self.ha.address[1]

    def runtime_info(self) -> Mapping[str, str]:
        """Returns the keys of the runtime information (28) that describe the role."""
        role = self.role
        return {
            "brokerRole": "SYNC_MASTER" if role.is_master else "SLAVE",
            "masterEpoch": str(role.epoch),
            "brokerControllerId": str(role.broker_id),
            "haStatus": msgspec.json.encode(status_of(self.ha)).decode(),
        }

    async def get_broker_ha_status(self, request: Empty, call: Call) -> Reply:
        """Returns the state of each HA connection (907)."""
        return Reply(body=runtime_info(self.ha))

    async def get_broker_epoch(self, request: BrokerNameOptionalRequest, call: Call) -> Reply:
        """Returns the epochs of this broker's log with their start and end offsets (1007)."""
        entries = [
            EpochEntryBody(epoch=entry.epoch, start_offset=entry.start_offset, end_offset=entry.end_offset)
            for entry in self.ha.epochs
        ]
        return Reply(
            body=EpochEntryCache(
                **self._names,
                broker_id=self.role.broker_id,
                epoch_list=entries,
                max_offset=self.ha.store.commit_log.max_offset,
            )
        )

    # -- callbacks of the parts --------------------------------------------------------------------------

    def _role_changed(self, before: Role, after: Role, took_ms: int) -> None:
        self._planned_stop.role_changed(before, after)
        self._parts.on_role_changed(before, after, took_ms)
        self._parts.announce()
        self._heartbeats.send_now()

    def _in_sync_changed(self, count: int) -> None:
        """The SyncStateSet that the controller has agreed to has a new number of members, or the settings
        have changed."""
        self._parts.gate.in_sync = count
        self._parts.pending.few_replicas = count < awaited_copies(self._config)

    def _replicated(self, offset: int) -> None:
        self._replicated_offset = offset
        self._release_replies()

    def _release_replies(self) -> None:
        """Sends the replies whose messages, and the metadata that these need, are replicated."""
        parts = self._parts
        parts.pending.release(min(self._replicated_offset, parts.metadata.hold_offset()))

    def _confirmed(self, asked_ms: int) -> None:
        if self._controller.active_address is not None:
            self._lease.confirmed(self._controller.active_address, asked_ms)

    def _master_address(self) -> str | None:
        """Returns the master's address; None: there is no role, or this broker is the master."""
        role = self.role
        return None if role.is_master or role.epoch == 0 else role.master_address

    def _damage(self) -> str:
        """Returns the first damage of the confirmed log, as a reason to hand over; empty: there is none."""
        store = self._parts.store
        damage = store.damage.first_unhealed(store.confirm_offset)
        if damage is None:
            return ""
        return f"the log of this master is damaged at {damage.start}..{damage.end} ({damage.reason})"

    def _damage_changed(self) -> None:
        if self._tasks is not None:  # not during the start
            self._heartbeats.send_now()

    def _heartbeat(self) -> BrokerHeartbeatRequest | None:
        """Returns the heartbeat; None: this broker is not registered, or must not be elected. With a lost end
        it must not be elected either, and the heartbeat reports that: without heartbeats, it might be elected
        before the controllers notice that its earlier process has died, and could not refuse."""
        config, store = self._config, self._parts.store
        if not self._identity.is_registered or self.fault or self._parts.disk_fault.text:
            return None
        broker_id, lost_end = self._identity.broker_id, store.damage.lost_end
        knows_epochs = self.ha.log_epochs.fault is None
        return BrokerHeartbeatRequest(
            **self._names,
            broker_addr=self._parts.address(),
            broker_id=None if lost_end else broker_id,
            unfit_broker_id=broker_id if lost_end else None,
            refused_master_epoch=self._manager.refused_epoch if lost_end and knows_epochs else None,
            epoch=self.ha.last_epoch,
            max_offset=store.commit_log.max_offset,
            confirm_offset=lost_end or store.confirm_offset,
            heartbeat_timeout_mills=config.controller_heart_beat_timeout_mills,
            election_priority=config.broker_election_priority,
            hands_over=not lost_end,
            min_in_sync_replicas=config.min_in_sync_replicas,
            send_time_millis=wall_ms(),
            all_ack_in_sync_state_set=self.role.is_master and config.all_ack_in_sync_state_set,
            silent_master_epoch=self.role.epoch if self.ha.watch.is_silent else None,
            disk_full=True if self._parts.gate.is_closed_by(DISK_FULL) else None,
            damaged_bytes=store.damage.unhealed_below(store.confirm_offset) or None,
        )
