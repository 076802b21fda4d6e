"""What controller mode works on: the other parts of the broker."""

from collections.abc import Callable

import msgspec

from broker.admission.disk_fault import DiskFault
from broker.admission.fast_path import FastPathPeer
from broker.admission.pending_replies import PendingReplies
from broker.admission.send_gate import SendGate
from broker.clients.core.registry import ClientRegistry
from broker.core.role import Role
from broker.metadata.service import Metadata
from broker.put.send_commands import SendCommand
from broker.stats.messages_in import MessagesIn
from broker.store.log.group_commit import GroupCommit
from broker.store.message_store import MessageStore
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Audit, OperationTable


class ControlledParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the broker that controller mode works on, and what it calls.

    client, pushed: for controllers, name servers and other brokers, and the requests that come over these
    connections. address: host:port that clients are told. announce: registers with the name servers, at once
    and in the background. send_here: the send handler. close_clients: closes all connections of clients.
    on_role_changed(before, after, took_ms): a role change has just been finished.
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
