"""One broker group of a snapshot: its replicas, how far they are behind, its last election, who disagrees.

Groups without controllers: the name servers' routes list their members, and brokerId 0 is the master.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from keelmq.health.numbers import whole
from keelmq.health.snapshot import ClusterSnapshot, RunningBroker
from keelmq.health.status import GroupStatus, LastElection, ReplicaStatus, Verdict
from keelmq.remoting.booleans import is_true
from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.operations.broker import HaConnectionRuntimeInfo
from keelmq.remoting.operations.controller import ReplicaIdentity, ReplicasInfo

NOBODY = -1
"""The broker id in LastElection if no replica could be elected."""
CLOSED_CONNECTION = ("(connection_refused)", "(connection_closed)")
"""Parts of an election's reason: its master was lost when its connection closed."""


def group_statuses(snapshot: ClusterSnapshot) -> dict[str, GroupStatus]:
    """Returns the state of each group by its name. Verdicts and problems are still to be filled in."""
    brokers = running(snapshot)
    return {name: _group_status(snapshot, name, brokers.get(name, {})) for name in snapshot.group_names}


def _group_status(snapshot: ClusterSnapshot, name: str, brokers: Mapping[str, RunningBroker]) -> GroupStatus:
    sets = snapshot.sets if isinstance(snapshot.sets, Mapping) else {}
    info, view = sets.get(name), snapshot.groups.get(name, {})
    if info is None and view:
        info = _info_of_view(name, view)
    if info is None:
        return _plain(snapshot, name, brokers)
    replicas = [*info.in_sync_replicas, *info.not_in_sync_replicas]
    in_sync = {each.broker_id for each in info.in_sync_replicas}
    master = next((each for each in replicas if each.broker_id == info.master_broker_id), None)
    links = _links(snapshot, master.broker_address if master else "")
    rows = [
        _replica(snapshot, each, links, view, info, is_in_sync=each.broker_id in in_sync)
        for each in sorted(replicas, key=lambda each: each.broker_id)
    ]
    leading = next((row for row in rows if row.broker_id == info.master_broker_id), None)
    return GroupStatus(
        cluster=_cluster(snapshot, name, view),
        broker_name=name,
        verdict=Verdict.OK,
        has_controllers=True,
        master_id=info.master_broker_id,
        master_address=info.master_address or "",
        master_epoch=info.master_epoch,
        sync_state_set=sorted(in_sync),
        sync_state_set_epoch=info.sync_state_set_epoch,
        min_in_sync=_min_in_sync(brokers, info.master_address or ""),
        confirm_offset=leading.confirm_offset if leading else None,
        max_offset=leading.max_offset if leading else None,
        replicas=rows,
        last_election=_last_election(snapshot, name, view),
        disagreements=list(dict.fromkeys(_disagreements(snapshot, name, info, replicas, view))),
    )


def _info_of_view(name: str, view: Mapping[str, Any]) -> ReplicasInfo:
    """The leader's /v1/groups instead of 1006, which asks for names and may fail on its own."""
    each = [
        (
            one.get("inSync") is True,
            ReplicaIdentity(
                broker_name=name,
                broker_id=int(one["brokerId"]),
                broker_address=str(one["address"]),
                alive=one.get("alive") is True,
            ),
        )
        for one in view.get("replicas", ())
    ]
    return ReplicasInfo(
        master_broker_id=view.get("masterBrokerId"),
        master_address=view.get("masterAddress"),
        master_epoch=view.get("masterEpoch", 0),
        sync_state_set_epoch=view.get("syncStateSetEpoch", 0),
        in_sync_replicas=[one for is_in, one in each if is_in],
        not_in_sync_replicas=[one for is_in, one in each if not is_in],
    )


def _plain(snapshot: ClusterSnapshot, name: str, brokers: Mapping[str, RunningBroker]) -> GroupStatus:
    """A group that no controller leads, or that of controllers that do not answer."""
    routed = routed_brokers(snapshot, name)
    master, controlled = routed.get(MASTER_ID, ""), are_controlled(brokers)
    master_id = _id_of_master(snapshot, master, is_controlled=controlled) if master else None
    links = _links(snapshot, master)
    info = ReplicasInfo(master_broker_id=master_id, master_address=master)
    rows = []
    for listed_id, address in sorted(routed.items()):
        broker_id = master_id if address == master and master_id is not None else listed_id
        link = links.get(broker_id)
        is_up = isinstance(snapshot.brokers.get(address), RunningBroker)
        identity = ReplicaIdentity(broker_name=name, broker_id=broker_id, broker_address=address, alive=is_up)
        follows = link.in_sync if link is not None else not controlled and _follows(snapshot, address, master)
        in_sync = address == master or follows
        rows.append(_replica(snapshot, identity, links, {}, info, is_in_sync=in_sync and is_up))
    rows.sort(key=lambda row: row.broker_id)
    leading = next((row for row in rows if row.address == master), None)
    return GroupStatus(
        cluster=_cluster(snapshot, name, {}),
        broker_name=name,
        verdict=Verdict.OK,
        has_controllers=controlled,
        master_id=master_id,
        master_address=master,
        master_epoch=leading.epoch if leading is not None and controlled else None,
        sync_state_set=[row.broker_id for row in rows if row.is_in_sync],
        min_in_sync=_min_in_sync(brokers, master),
        confirm_offset=leading.confirm_offset if leading else None,
        max_offset=leading.max_offset if leading else None,
        replicas=rows,
    )


def _id_of_master(snapshot: ClusterSnapshot, address: str, *, is_controlled: bool) -> int:
    """Returns the id of a master that routes list as 0. In controller mode it has another one, which its
    answer to 1007 has; MASTER_ID: it reports none (RocketMQ's brokers report 0)."""
    broker = snapshot.brokers.get(address)
    if is_controlled and isinstance(broker, RunningBroker) and broker.epochs is not None:
        return broker.epochs.broker_id
    return MASTER_ID


def _replica(
    snapshot: ClusterSnapshot,
    identity: ReplicaIdentity,
    links: Mapping[int, HaConnectionRuntimeInfo],
    view: Mapping[str, Any],
    info: ReplicasInfo,
    *,
    is_in_sync: bool,
) -> ReplicaStatus:
    """From its own answers, the master's (907), and the heartbeats that the leading controller has."""
    address, broker_id = identity.broker_address, identity.broker_id
    other = another_at_its_address(identity, info)
    broker = snapshot.brokers.get(address) if other is None else None
    heard: Mapping[str, Any] = next(
        (each for each in view.get("replicas", ()) if each.get("brokerId") == broker_id), {}
    )
    is_master = broker_id == info.master_broker_id
    link = None if is_master else links.get(broker_id)
    role = "master" if is_master else "slave"
    common: dict[str, Any] = {
        "broker_id": broker_id,
        "address": address,
        "role": role,
        "is_alive": identity.alive,
        "is_in_sync": is_in_sync,
        "max_offset": heard.get("maxOffset"),
        "confirm_offset": heard.get("confirmOffset"),
        "epoch": heard.get("epoch"),
        "lag_bytes": 0 if is_master and identity.alive else heard.get("lagBytes"),
        "lag_ms": 0 if is_master and identity.alive else None,
    }
    if link is not None:
        common |= {"lag_bytes": link.diff, "lag_ms": link.lag_millis}
    if not isinstance(broker, RunningBroker):
        why = str(broker) if broker is not None else other or "no name server lists it"
        return ReplicaStatus(**common | {"role": "silent", "problem": why})
    common |= {key: value for key, value in _numbers(broker).items() if value is not None}
    if common["lag_bytes"] is None:
        common["lag_bytes"] = _behind(snapshot, info, common["max_offset"])
    why = broker.info.get("notWritable", "") if is_master else (broker.ha.fault or "" if broker.ha else "")
    return ReplicaStatus(**common, problem=why)


def another_at_its_address(identity: ReplicaIdentity, info: ReplicasInfo) -> str | None:
    """Returns the broker that runs at the address of a dead replica if it is another one: a broker that lost
    its disk has a new id. None: nothing else that the controllers know."""
    if identity.alive:
        return None
    others = [*info.in_sync_replicas, *info.not_in_sync_replicas]
    ids = [each.broker_id for each in others if each.alive and each.broker_address == identity.broker_address]
    return f"broker {ids[0]} runs at its address" if ids else None


def _numbers(broker: RunningBroker) -> dict[str, Any]:
    info, epochs = broker.info, broker.epochs
    return {
        "max_offset": whole(info.get("commitLogMaxOffset")),
        "confirm_offset": whole(info.get("confirmOffset")),
        "epoch": epochs.epoch_list[-1].epoch if epochs is not None and epochs.epoch_list else None,
        "messages_in_per_s": _first(info.get("putTps")),
        "messages_out_per_s": _first(info.get("getTransferredTps")),
        "disk_used": _first(info.get("commitLogDiskRatio")),
        "grpc_port": whole(info.get("grpcServerPort")),
        "grpc_clients": whole(info.get("grpcClients")),
        "version": info.get("brokerVersionDesc", ""),
        "keelmq_version": info.get("keelmqVersion", ""),
        "started_ms": whole(info.get("bootTimestamp")),
    }


def _behind(snapshot: ClusterSnapshot, info: ReplicasInfo, max_offset: int | None) -> int | None:
    """Returns the difference of two answers, a moment apart; None: the master's end is not known."""
    master = snapshot.brokers.get(info.master_address or "")
    end = whole(master.info.get("commitLogMaxOffset")) if isinstance(master, RunningBroker) else None
    return None if end is None or max_offset is None else max(end - max_offset, 0)


def _follows(snapshot: ClusterSnapshot, address: str, master: str) -> bool:
    """Returns whether a slave without controllers is in sync by its own report, because its master does not
    know whose link it has: it copies, and lacks no more than haMaxGapNotInSync."""
    slave, its_master = snapshot.brokers.get(address), snapshot.brokers.get(master)
    if not isinstance(slave, RunningBroker) or not isinstance(its_master, RunningBroker):
        return False
    if slave.ha is None or not slave.ha.ha_client_runtime_info.activated:
        return False
    limit = whole(its_master.settings.get("haMaxGapNotInSync"))
    end, its_end = (whole(each.info.get("commitLogMaxOffset")) for each in (slave, its_master))
    return limit is not None and end is not None and its_end is not None and its_end - end <= limit


def _links(snapshot: ClusterSnapshot, master: str) -> dict[int, HaConnectionRuntimeInfo]:
    """Returns the slaves as the master has them. RocketMQ's masters do not report whose link it is."""
    broker = snapshot.brokers.get(master)
    if not isinstance(broker, RunningBroker) or broker.ha is None:
        return {}
    return {each.broker_id: each for each in broker.ha.ha_connection_info if each.broker_id is not None}


def _last_election(snapshot: ClusterSnapshot, name: str, view: Mapping[str, Any]) -> LastElection | None:
    for past in snapshot.elections:
        if past.broker_name == name:
            # It closes when the process ends; a master that hangs may have worked until its last one.
            has_closed = any(reason in past.reason for reason in CLOSED_CONNECTION)
            lost_ms = past.detected_ts if has_closed else past.last_heartbeat_ts
            return LastElection(
                event_id=past.event_id,
                time_ms=past.ts,
                reason=past.reason,
                broker_id=NOBODY if past.new_master_broker_id is None else past.new_master_broker_id,
                before=past.old_master_broker_id,
                master_epoch=past.master_epoch,
                without_master_ms=max(past.ts - lost_ms, 0) if lost_ms and past.ts else None,
            )
    last = view.get("lastElection")
    if not isinstance(last, dict) or not last.get("ts"):
        return None
    elected = last.get("masterBrokerId")
    return LastElection(
        event_id=None,
        time_ms=last["ts"],
        reason=str(last.get("reason", "")),
        broker_id=NOBODY if elected is None else elected,
        master_epoch=last.get("masterEpoch", 0),
    )


def _disagreements(
    snapshot: ClusterSnapshot,
    name: str,
    info: ReplicasInfo,
    replicas: list[ReplicaIdentity],
    view: Mapping[str, Any],
) -> Iterator[str]:
    yield from map(str, view.get("disagreements") or ())
    ids = {each.broker_address: each.broker_id for each in replicas}
    for address, server in snapshot.answering.items():
        broker = server.cluster.broker_addr_table.get(name)
        shown = {} if broker is None else broker.broker_addrs
        if info.master_address and shown.get(MASTER_ID) != info.master_address:
            yield f"name server {address} shows {shown.get(MASTER_ID) or 'no master'}"
        for each in sorted(set(shown.values()) - ids.keys()):
            yield f"name server {address} lists {each}, which the controllers do not know"
    for address, broker_id in ids.items():
        answer = snapshot.brokers.get(address)
        says = isinstance(answer, RunningBroker) and answer.ha is not None and answer.ha.master
        if says and address != info.master_address:
            yield f"broker {broker_id} at {address} acts as master, too"


def routed_brokers(snapshot: ClusterSnapshot, name: str) -> dict[int, str]:
    """Returns id -> address of a group in the routes of all name servers; of several, the first."""
    found: dict[int, str] = {}
    for server in snapshot.answering.values():
        if broker := server.cluster.broker_addr_table.get(name):
            for broker_id, address in broker.broker_addrs.items():
                found.setdefault(broker_id, address)
    return found


def running(snapshot: ClusterSnapshot) -> dict[str, dict[str, RunningBroker]]:
    """Returns brokerName -> address -> broker, of the brokers that answer."""
    found: dict[str, dict[str, RunningBroker]] = {}
    for address, broker in snapshot.brokers.items():
        if isinstance(broker, RunningBroker):
            found.setdefault(broker.settings.get("brokerName", ""), {})[address] = broker
    return found


def are_controlled(brokers: Mapping[str, RunningBroker]) -> bool:
    """Returns whether one of the brokers of a group runs in controller mode."""
    return any(is_true(each.settings.get("enableControllerMode")) for each in brokers.values())


def _min_in_sync(brokers: Mapping[str, RunningBroker], master: str) -> int | None:
    """Returns minInSyncReplicas of the master, else the highest of the brokers that answer; None: none
    does."""
    chosen = [brokers[master]] if master in brokers else list(brokers.values())
    numbers = [whole(broker.settings.get("minInSyncReplicas")) for broker in chosen]
    return max((each for each in numbers if each is not None and each >= 0), default=None)


def _cluster(snapshot: ClusterSnapshot, name: str, view: Mapping[str, Any]) -> str:
    for server in snapshot.answering.values():
        if name in server.cluster.broker_addr_table:
            return server.cluster.broker_addr_table[name].cluster
    return str(view.get("cluster", ""))


def _first(text: str | None) -> float | None:
    """Returns the first number of "10 s, a minute and ten minutes"; RocketMQ writes NaN where it divides by
    zero."""
    try:
        value = float((text or "").split()[0])
    except (IndexError, ValueError):
        return None
    return value if value == value else None
