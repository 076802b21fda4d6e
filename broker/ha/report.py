"""Views of an HaService: status_of() for operators and metrics, runtime_info() for getBrokerHAStatus (907),
and replica_samples() for telemetry. They change nothing."""

from broker.ha.core.master_link import MasterLink
from broker.ha.core.progress import ReplicationProgress
from broker.ha.mastership import Mastership
from broker.ha.service import HaService
from broker.ha.slave_client import SlaveClient
from keelmq.remoting.operations.broker import HaClientRuntimeInfo, HaConnectionRuntimeInfo, HaRuntimeInfo
from keelmq.remoting.records import ReplicaSample
from keelmq.runtime.clock import wall_ms


def status_of(ha: HaService) -> dict[str, object]:
    """Returns the state as JSON values. Times are ms since the event, offsets are bytes.

    `fault`: why this replica copies nothing, and what an operator can do; None: it copies, or tries to.
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
    return common | {"role": "slave"} | _slave(ha.client)


def _slave(client: SlaveClient) -> dict[str, object]:
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


def _master(ha: HaService, mastership: Mastership) -> dict[str, object]:
    now, manager = ha.now_ms(), mastership.sync_state_set_manager
    replicas = [
        {
            "brokerId": slave_id,
            "address": ha.address_of(link),
            "ackOffset": link.ack_offset,
            "transferFromWhere": link.position,
            "lastCaughtUpTimeMs": now - link.caught_up_ms(now),
            "inSync": slave_id in manager.agreed.members,
            "learner": link.learner,
            "sentBytes": link.sent_bytes,
            "restartedFrom": link.restarted_from,
        }
        | _progress(link.progress)
        for slave_id, link in sorted(ha.links.items())
    ]
    return {
        "masterEpoch": mastership.epoch,
        "syncStateSet": sorted(manager.agreed.members),
        "syncStateSetEpoch": manager.agreed.epoch,
        "syncStateSetInDoubt": manager.in_flight or manager.must_read,
        "replicas": replicas,
    }


def replica_samples(ha: HaService) -> tuple[ReplicaSample, ...]:
    """Returns the connected slaves as their master sees them; empty when this broker is not master."""
    if ha.mastership is None:
        return ()
    now, members = ha.now_ms(), ha.mastership.sync_state_set_manager.agreed.members
    return tuple(
        ReplicaSample(
            broker_id=slave_id,
            ack_offset=link.ack_offset,
            lag_ms=now - link.caught_up_ms(now),
            in_sync=slave_id in members,
        )
        for slave_id, link in sorted(ha.links.items())
    )


def runtime_info(ha: HaService) -> HaRuntimeInfo:
    """Returns the body of 907. `fault`, which RocketMQ's tools skip, says why a replica copies nothing."""
    mastership = ha.mastership
    if mastership is None:
        client = _client(ha, ha.client) if ha.client is not None else HaClientRuntimeInfo()
        return HaRuntimeInfo(master=False, ha_client_runtime_info=client, fault=ha.fault)
    members = mastership.sync_state_set_manager.agreed.members
    links = sorted(ha.links.items())
    return HaRuntimeInfo(
        master=True,
        master_commit_log_max_offset=ha.store.commit_log.max_offset,
        in_sync_slave_nums=len(members) - 1,
        ha_connection_info=[_connection(ha, members, slave_id, link) for slave_id, link in links],
        fault=ha.fault,
    )


def _connection(
    ha: HaService, members: frozenset[int], slave_id: int, link: MasterLink
) -> HaConnectionRuntimeInfo:
    ack = max(link.ack_offset, 0)
    return HaConnectionRuntimeInfo(
        addr=ha.address_of(link),
        slave_ack_offset=ack,
        diff=max(ha.store.commit_log.max_offset - ack, 0),
        in_sync=slave_id in members,
        transferred_byte_in_second=link.progress.bytes_per_second,
        transfer_from_where=max(link.began_at, 0),
        broker_id=slave_id,
        eta_millis=link.progress.eta_ms,
    )


def _client(ha: HaService, client: SlaveClient) -> HaClientRuntimeInfo:
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
