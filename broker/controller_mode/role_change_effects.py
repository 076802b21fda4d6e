"""Effects of role changes and of the HA service on the rest of the broker: gate, replies, metadata, clients.

The ReplicasManager decides and the HaService replicates; both act on the broker through the two classes here,
which decide nothing.
"""

from collections.abc import Awaitable, Callable

from broker.admission.pending_replies import PendingReplies
from broker.admission.send_gate import HAND_OVER, ROLE, SendGate
from broker.controller_mode.slave_sync import Leader, SlaveSync
from broker.core.role import Role
from broker.ha.ports import MasterHaAddress
from broker.metadata.ports import Replicas
from broker.metadata.service import Metadata
from broker.stats.messages_in import MessagesIn
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.controller import SyncStateSet

FATE_UNKNOWN = "the broker stopped being master before enough replicas confirmed; the message may be stored"


class BrokerRoleChangeEffects:
    """The RoleChangeEffects of this broker."""

    def __init__(
        self,
        *,
        gate: SendGate,
        pending: PendingReplies,
        metadata: Metadata,
        replicas: Replicas,
        on_released: Callable[[], None],
        sync: SlaveSync,
        messages_in: MessagesIn,
        close_clients: Callable[[], None],
        announce: Callable[[], None],
    ) -> None:
        """replicas: those whose copies of the metadata count. on_released: called when metadata were
        replicated, so replies may be due. close_clients: closes all connections of clients. announce:
        registers with the name servers and sends heartbeats to the controllers, in the background."""
        self._gate, self._pending, self._metadata, self._sync = gate, pending, metadata, sync
        self._replicas, self._on_released = replicas, on_released
        self._messages_in = messages_in
        self._close_clients, self._announce = close_clients, announce

    def fence(self, remark: str) -> None:
        self._gate.close(ROLE, remark)
        self._messages_in.term_ends()  # before the log is truncated

    def send_clients_away(self) -> None:
        """KeelMQ's producers read the route again when their connection closes. In a hand-over the
        connections stay open: every stored message is replicated, and the held ones still get their
        answers."""
        self._pending.fail_all(ResponseCode.FLUSH_SLAVE_TIMEOUT, FATE_UNKNOWN)
        if not self._gate.is_closed_by(HAND_OVER):
            self._close_clients()  # after the answers above have left

    def unfence(self) -> None:
        self._messages_in.term_begins()  # the next offset of each queue is known now
        self._gate.open(ROLE)

    async def find_master(self, master_address: str) -> MasterHaAddress | None:
        return await self._sync.find_master(master_address)

    async def serve_as(self, role: Role) -> None:
        if role.is_master:
            self._sync.follow(None)
            await self._metadata.begin_term(role.epoch, self._replicas, on_released=self._on_released)
        else:
            self._metadata.end_term()
            leader = Leader(role.master_address or "", role.epoch, role.broker_id)
            self._sync.follow(leader if role.epoch else None)

    def announce(self, role: Role) -> None:
        if not role.is_master:
            self._gate.close(ROLE, f"this broker is slave of {role.master_address}")
        self._announce()


class BrokerHaEvents:
    """The HaEvents of this broker."""

    def __init__(
        self,
        *,
        gate: SendGate,
        pending: PendingReplies,
        hold_offset: Callable[[], int],
        copies: int,
        alter_sync_state_set: Callable[[frozenset[int], int], Awaitable[SyncStateSet | None]],
        read_sync_state_set: Callable[[int], Awaitable[SyncStateSet | None]],
    ) -> None:
        """hold_offset: returns the log offset behind which messages wait for their topic to be replicated.
        copies: inSyncReplicas, if replies wait for that many."""
        self._gate, self._pending, self._hold_offset, self._copies = gate, pending, hold_offset, copies
        self._alter_sync_state_set, self._read_sync_state_set = alter_sync_state_set, read_sync_state_set
        self._replicated = 0

    def configure(self, *, copies: int) -> None:
        """Changes inSyncReplicas, and sends the replies that may leave now."""
        self._copies = copies
        self._pending.few_replicas = self._gate.in_sync < copies
        self.release()

    def on_confirm(self, offset: int) -> None:
        """Does nothing: the HA service has set the store's confirmOffset."""

    def on_replicated(self, offset: int) -> None:
        self._replicated = offset
        self.release()

    def release(self) -> None:
        """Sends the replies whose messages are replicated. Called when log or metadata were replicated."""
        self._pending.release(min(self._replicated, self._hold_offset()))

    def on_in_sync_changed(self, count: int) -> None:
        self._gate.in_sync = count
        self._pending.few_replicas = count < self._copies

    async def alter_sync_state_set(self, new_set: frozenset[int], current_epoch: int) -> SyncStateSet | None:
        return await self._alter_sync_state_set(new_set, current_epoch)

    async def read_sync_state_set(self, doubted_epoch: int) -> SyncStateSet | None:
        return await self._read_sync_state_set(doubted_epoch)
