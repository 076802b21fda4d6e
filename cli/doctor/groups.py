"""Judges each broker group of a cluster snapshot: its master, its SyncStateSet, and the routes to it."""

from collections.abc import Iterator

from cli.doctor.cluster_snapshot import ClusterSnapshot, RunningBroker
from cli.doctor.findings import Finding, failed, ok, warning
from cli.doctor.reach import Silent
from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.operations.controller import ReplicaIdentity, ReplicasInfo

AGAIN = "run it again in some seconds: a fail-over or a start may be in progress"


def groups(seen: ClusterSnapshot) -> list[Finding]:
    """Returns findings about each group that the name servers list or the controllers know."""
    found: list[Finding] = []
    if isinstance(seen.sets, Silent):
        step = f"{AGAIN}; if this persists, check that a majority of the controllers runs"
        text = f"the leading controller does not tell the masters: {seen.sets}"
        found.append(failed("group.master", "groups", text, step))
    for name in seen.group_names:
        found += _group(seen, name)
    return found


def _group(seen: ClusterSnapshot, name: str) -> Iterator[Finding]:
    known = seen.sets if seen.sets is not None and not isinstance(seen.sets, Silent) else None
    controlled = any(
        broker.settings.get("enableControllerMode") == "true" for broker in _running(seen, name).values()
    )
    if known is not None and name in known:
        yield from _controlled(seen, name, known[name])
    elif known is not None and controlled:
        text = "its brokers run in controller mode, but the controllers do not know it"
        step = "check that their controllerAddr names these controllers; the brokers' logs say more"
        yield failed("group.master", name, text, step)
    elif not controlled:
        yield from _alone(seen, name)


def _alone(seen: ClusterSnapshot, name: str) -> Iterator[Finding]:
    """A group without controllers, or of which no broker answers: only the name servers' routes are known."""
    shown = {master for master in _routed(seen, name).values() if master is not None}
    if not shown:
        step = "start its broker; in controller mode, see the findings about the controllers"
        yield failed("group.master", name, "the name servers list no master", step)
        return
    for master in sorted(shown):
        if isinstance(seen.brokers.get(master), RunningBroker):
            yield ok("group.master", name, f"master {master}, without fail-over (no controller mode)")
        else:
            step = "start it again; only controller mode replaces a master automatically"
            yield failed("group.master", name, f"master {master} does not answer", step)


def _controlled(seen: ClusterSnapshot, name: str, info: ReplicasInfo) -> Iterator[Finding]:
    replicas = [*info.in_sync_replicas, *info.not_in_sync_replicas]
    master = next((each for each in replicas if each.broker_id == info.master_broker_id), None)
    if master is None or not master.alive:
        yield _no_master(seen, name, info, master)
    else:
        where = f"broker {master.broker_id} at {master.broker_address}, epoch {info.master_epoch}"
        yield ok("group.master", name, f"master is {where}")
    yield from _in_sync(seen, name, info)
    disagree = list(_routes(seen, name, info, master)) if master is not None and master.alive else []
    yield from disagree
    if not disagree:
        told = seen.groups.get(name, {}).get("disagreements") or []
        yield from (warning("group.routes", name, str(text), AGAIN) for text in told)
        if not told and master is not None and master.alive and seen.answering:
            yield ok("group.routes", name, "every name server shows that master")


def _no_master(
    seen: ClusterSnapshot, name: str, info: ReplicasInfo, master: ReplicaIdentity | None
) -> Finding:
    who = "no master" if master is None else f"master {master.broker_id} at {master.broker_address} is dead"
    reason = seen.groups.get(name, {}).get("withoutLiveMaster")
    in_sync = ", ".join(f"{each.broker_id} ({each.broker_address})" for each in info.in_sync_replicas)
    others = [each for each in info.not_in_sync_replicas if each.alive]
    if any(each.alive for each in info.in_sync_replicas):
        step = AGAIN
    elif others:
        step = (
            f"start one of the SyncStateSet again: {in_sync or 'it is empty'}; broker "
            f"{others[0].broker_id} is alive but lacks messages (elected only by enableElectUncleanMaster)"
        )
    else:
        step = f"start one of the SyncStateSet again: {in_sync or 'it is empty'}"
    return failed("group.master", name, f"{who}{f' ({reason})' if reason else ''}", step)


def _in_sync(seen: ClusterSnapshot, name: str, info: ReplicasInfo) -> Iterator[Finding]:
    replicas = [*info.in_sync_replicas, *info.not_in_sync_replicas]
    alive = [each for each in info.in_sync_replicas if each.alive]
    wanted = _least(seen, name)
    size = f"{len(alive)} of {len(replicas)} replicas in sync"
    if wanted is not None:
        size += f", {wanted} needed (minInSyncReplicas)"
    if wanted is not None and len(alive) < wanted:
        step = "start the missing replicas; every message is refused until they have caught up"
        yield failed("group.in-sync", name, size, step)
    elif len(alive) == 1 and len(replicas) > 1:
        step = "start the others, or wait until they have caught up: no replica could replace this master now"
        yield warning("group.in-sync", name, size, step)
    elif len(alive) == wanted != 1 and len(replicas) > len(alive):
        step = "start the others: one more failure stops all writes"
        yield warning("group.in-sync", name, size, step)
    else:
        yield ok("group.in-sync", name, size)
    for each in replicas:
        yield from _replica(name, each, in_sync=each in info.in_sync_replicas, cluster=_cluster(seen, name))


def _replica(name: str, replica: ReplicaIdentity, *, in_sync: bool, cluster: str) -> Iterator[Finding]:
    who = f"replica {replica.broker_id} at {replica.broker_address}"
    if not replica.alive:
        step = (
            f"start it; if it will not return: mqadmin cleanBrokerMetadata -a CONTROLLER -bn {name} "
            f"-b {replica.broker_id} -c {cluster or 'CLUSTER'}"
        )
        yield warning("group.in-sync", name, f"{who} is not alive", step)
    elif not in_sync:
        step = "if it does not catch up, its disk or network is slower than the master's traffic"
        yield warning("group.in-sync", name, f"{who} is alive, but not in sync", step)


def _routes(
    seen: ClusterSnapshot, name: str, info: ReplicasInfo, master: ReplicaIdentity | None
) -> Iterator[Finding]:
    assert master is not None
    for address, shown in _routed(seen, name).items():
        if shown == master.broker_address:
            continue
        text = f"name server {address} shows {shown or 'no master'}, not {master.broker_address}"
        step = f"{AGAIN}; if this persists, check namesrvAddr of that broker, and its connection"
        yield failed("group.routes", name, text, step)


def _routed(seen: ClusterSnapshot, name: str) -> dict[str, str | None]:
    """Returns name server -> the master that its routes have, None: no master."""
    found: dict[str, str | None] = {}
    for address, server in seen.answering.items():
        broker = server.cluster.broker_addr_table.get(name)
        found[address] = None if broker is None else broker.broker_addrs.get(MASTER_ID)
    return found


def _running(seen: ClusterSnapshot, name: str) -> dict[str, RunningBroker]:
    return {
        address: broker
        for address, broker in seen.brokers.items()
        if isinstance(broker, RunningBroker) and broker.settings.get("brokerName") == name
    }


def _least(seen: ClusterSnapshot, name: str) -> int | None:
    """Returns the highest minInSyncReplicas of the brokers that answer; None: none does."""
    texts = [broker.settings.get("minInSyncReplicas", "") for broker in _running(seen, name).values()]
    return max((int(text) for text in texts if text.isdigit()), default=None)


def _cluster(seen: ClusterSnapshot, name: str) -> str:
    for server in seen.answering.values():
        if name in server.cluster.broker_addr_table:
            return server.cluster.broker_addr_table[name].cluster
    return ""
