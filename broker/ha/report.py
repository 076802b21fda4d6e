"""Views of an HaService: status_of() for operators and metrics, runtime_info() for getBrokerHAStatus (907).

They change nothing.
"""

from typing import Protocol

from broker.ha.core.master_link import MasterLink
from broker.ha.core.progress import ReplicationProgress
from broker.ha.master_server import MasterServer
from broker.ha.mastership import Mastership
from broker.ha.service import HaService
from broker.ha.slave_client import SlaveClient
from broker.store.message_store import MessageStore
from keelmq.remoting.operations.broker import HaClientRuntimeInfo, HaConnectionRuntimeInfo, HaRuntimeInfo
from keelmq.runtime.clock import wall_ms


class Replication(Protocol):
    """The common interface of HaService and PlainHaService for reports."""

    @property
    def store(self) -> MessageStore:
        """The store of this broker."""
        ...

    def now_ms(self) -> int:
        """Returns the monotonic time of the links, in ms."""
        ...

    @property
    def server(self) -> MasterServer:
        """The HA port and the links of this broker."""
        ...


def status_of(ha: HaService) -> dict[str, object]:
    """Returns the state as JSON values. Times are ms since the event, offsets are bytes.

    `fault`: why this replica does not copy, and the remedy; None: it copies, or tries to.
    """
    common: dict[str, object] = {
        "maxOffset": ha.store.commit_log.max_offset,
        "confirmOffset": ha.store.confirm_offset,
        "epoch": ha.last_epoch,
        "fault": ha.fault,
    }
    if ha.mastership is not None:
        return common | {"role": "master"} | _master(ha, ha.mastership)
    if ha.client is None:
        return common | {"role": "none"}
    return common | {"role": "slave"} | slave_status(ha.client)


def slave_status(client: SlaveClient) -> dict[str, object]:
    """Returns the state of a slave's link as JSON values."""
    link = client.protocol.link if client.protocol is not None else None
    return {
        "masterHaAddress": ":".join(map(str, client.address)),
        "connected": client.connected,
        "masterMaxOffset": link.master_max_offset if link is not None else None,
        "receivedBytes": link.received_bytes if link is not None else 0,
        "lastCloseReason": client.last_reason,
    } | _progress(link.progress if link is not None else ReplicationProgress())


def _progress(progress: ReplicationProgress) -> dict[str, object]:
    """Returns the progress as JSON values. etaMs: time until the replica has the whole log, at its present
    rate; None: it does not catch up."""
    return {
        "bytesBehind": progress.bytes_behind,
        "bytesPerSecond": progress.bytes_per_second,
        "etaMs": progress.eta_ms,
    }


def replica_status(ha: Replication, link: MasterLink, *, broker_id: int, in_sync: bool) -> dict[str, object]:
    """Returns the state of the link of one slave as JSON values."""
    now = ha.now_ms()
    return {
        "brokerId": broker_id,
        "address": ha.server.address_of(link),
        "ackOffset": link.ack_offset,
        "transferFromWhere": link.position,
        "lastCaughtUpTimeMs": now - link.caught_up_ms(now),
        "inSync": in_sync,
        "learner": link.learner,
        "sentBytes": link.sent_bytes,
        "restartedFrom": link.restarted_from,
    } | _progress(link.progress)


def _master(ha: HaService, mastership: Mastership) -> dict[str, object]:
    manager = mastership.sync_state_set_manager
    replicas = [
        replica_status(ha, link, broker_id=slave_id, in_sync=slave_id in manager.agreed.members)
        for slave_id, link in sorted(ha.links.items())
    ]
    return {
        "masterEpoch": mastership.epoch,
        "syncStateSet": sorted(manager.agreed.members),
        "syncStateSetEpoch": manager.agreed.epoch,
        "syncStateSetInDoubt": manager.in_flight or manager.must_read,
        "replicas": replicas,
    }


def runtime_info(ha: HaService) -> HaRuntimeInfo:
    """Returns the body of 907. `fault`, which RocketMQ's tools skip: why a replica does not copy."""
    mastership = ha.mastership
    if mastership is None:
        client = client_info(ha, ha.client) if ha.client is not None else HaClientRuntimeInfo()
        return HaRuntimeInfo(master=False, ha_client_runtime_info=client, fault=ha.fault)
    members = mastership.sync_state_set_manager.agreed.members
    links = sorted(ha.links.items())
    return HaRuntimeInfo(
        master=True,
        master_commit_log_max_offset=ha.store.commit_log.max_offset,
        in_sync_slave_nums=len(members) - 1,
        ha_connection_info=[
            connection_info(ha, link, broker_id=slave_id, in_sync=slave_id in members)
            for slave_id, link in links
        ],
        fault=ha.fault,
    )


def connection_info(
    ha: Replication, link: MasterLink, *, broker_id: int | None, in_sync: bool
) -> HaConnectionRuntimeInfo:
    """Returns one slave for 907. broker_id None: it is not known."""
    ack, now = max(link.ack_offset, 0), ha.now_ms()
    return HaConnectionRuntimeInfo(
        addr=ha.server.address_of(link),
        slave_ack_offset=ack,
        diff=max(ha.store.commit_log.max_offset - ack, 0),
        in_sync=in_sync,
        transferred_byte_in_second=link.progress.bytes_per_second,
        transfer_from_where=max(link.position, 0),
        began_at_offset=max(link.began_at, 0),
        broker_id=broker_id,
        eta_millis=link.progress.eta_ms,
        lag_millis=max(now - link.caught_up_ms(now), 0),
    )


def client_info(ha: Replication, client: SlaveClient) -> HaClientRuntimeInfo:
    """Returns a slave's own link for 907."""
    link = client.protocol.link if client.protocol is not None else None
    since = ha.now_ms() - wall_ms()  # RocketMQ reports wall-clock times
    return HaClientRuntimeInfo(
        master_addr=":".join(map(str, client.address)),
        transferred_byte_in_second=link.progress.bytes_per_second if link is not None else 0,
        max_offset=ha.store.commit_log.max_offset,
        last_read_timestamp=link.read_ms - since if link is not None else 0,
        last_write_timestamp=link.sent_ms - since if link is not None else 0,
        master_flush_offset=link.master_max_offset if link is not None else 0,
        activated=client.connected,
        eta_millis=link.progress.eta_ms if link is not None else None,
    )
