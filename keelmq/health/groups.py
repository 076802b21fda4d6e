"""Judges each broker group of a cluster snapshot: its master, its SyncStateSet, and the routes to it."""

from collections.abc import Iterable, Iterator, Mapping

from keelmq.health import commands
from keelmq.health.consumer_rules import consumer_rules
from keelmq.health.container_rules import container_rules
from keelmq.health.disk_rules import sync_fault
from keelmq.health.findings import Finding, failed, ok, warning
from keelmq.health.group_summary import another_at_its_address, are_controlled, running
from keelmq.health.permission_rules import permission_rules
from keelmq.health.plain_routes import plain_routes
from keelmq.health.reach import Silent
from keelmq.health.replication_rules import replication_rules
from keelmq.health.snapshot import ClusterSnapshot, RunningBroker
from keelmq.health.status import GroupStatus
from keelmq.remoting.address_text import split_list
from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.operations.controller import ReplicaIdentity, ReplicasInfo

GONE_MS = 6 * 3_600_000
"""A replica that was not heard from for longer may have been removed."""
OTHERS_SOUND = "keelmq verify finds no damage at the others"
KEEP_FILES = f"keep its files until {OTHERS_SOUND}"
"""Forgetting an id deletes no file; what is deleted afterwards may be the only sound copy of a record."""
AGAIN = "run it again in some seconds: a fail-over or a start may be in progress"


def groups(snapshot: ClusterSnapshot, statuses: Mapping[str, GroupStatus]) -> list[Finding]:
    """Returns findings about each group that the name servers list or the controllers know. statuses: of
    group_statuses()."""
    found: list[Finding] = []
    brokers = running(snapshot)
    if isinstance(snapshot.sets, Silent):
        step = f"{AGAIN}; if this persists, check that a majority of the controllers runs"
        text = f"the leading controller does not report the masters: {snapshot.sets}"
        found.append(failed("group.master", "groups", text, step, commands.watch(snapshot)))
    for name, status in statuses.items():
        found += _group(snapshot, status, brokers.get(name, {}))
    return [
        *found,
        *replication_rules(snapshot, statuses, brokers),
        *permission_rules(snapshot, statuses),
        *consumer_rules(snapshot, statuses),
        *container_rules(snapshot),
    ]


def _group(
    snapshot: ClusterSnapshot, status: GroupStatus, brokers: Mapping[str, RunningBroker]
) -> Iterator[Finding]:
    name, controlled = status.broker_name, are_controlled(brokers)
    known = snapshot.sets if snapshot.sets is not None and not isinstance(snapshot.sets, Silent) else None
    if known is not None and name in known:
        yield from _controlled(snapshot, status, known[name])
    elif known is not None and controlled:
        text = "its brokers run in controller mode, but the controllers do not know it"
        step = "restart them with the controllerAddr of these controllers; the brokers' logs say more"
        line = commands.start_with("controllerAddr", sorted(snapshot.controllers))
        yield failed("group.master", name, text, step, line)
    elif not controlled:
        yield from _alone(snapshot, name, is_silent=not brokers)
    elif known is None:
        yield _untold(snapshot, status)


def _untold(snapshot: ClusterSnapshot, status: GroupStatus) -> Finding:
    """The master of a group whose controllers report nothing, as the name servers list it."""
    name, address = status.broker_name, status.master_address
    step, line = "first see to the controllers: only they elect a master", commands.watch(snapshot, name)
    if not address:
        text = "no name server lists a master, and no controller answers for the group"
        return failed("group.master", name, text, step, line)
    if not isinstance(snapshot.brokers.get(address), RunningBroker):
        text = f"master {address} does not answer, and no controller answers for the group"
        return failed("group.master", name, text, step, line)
    who = f"broker {status.master_id} at {address}"
    return ok("group.master", name, f"master is {who}, as name servers and brokers say")


def _alone(snapshot: ClusterSnapshot, name: str, *, is_silent: bool) -> Iterator[Finding]:
    """A group without controllers, or of which no broker answers: only the name servers' routes are known."""
    tables = {
        address: server.cluster.broker_addr_table[name].broker_addrs
        for address, server in snapshot.answering.items()
        if name in server.cluster.broker_addr_table
    }
    wrong = [] if is_silent else list(plain_routes(name, tables))
    if wrong:
        yield from wrong
        return
    shown = {master for master in _routed(snapshot, name).values() if master is not None}
    if not shown:
        step = "start its broker; in controller mode, see the findings about the controllers"
        yield failed("group.master", name, "the name servers list no master", step, commands.START_BROKER)
        return
    for master in sorted(shown):
        if isinstance(snapshot.brokers.get(master), RunningBroker):
            yield ok("group.master", name, f"master {master}, without fail-over (no controller mode)")
        else:
            step = "start it again; only controller mode replaces a master automatically"
            line = commands.start_broker(snapshot.brokers.get(master), snapshot, name)
            yield failed("group.master", name, f"master {master} does not answer", step, line)


def _controlled(snapshot: ClusterSnapshot, status: GroupStatus, info: ReplicasInfo) -> Iterator[Finding]:
    name = status.broker_name
    replicas = [*info.in_sync_replicas, *info.not_in_sync_replicas]
    master = next((each for each in replicas if each.broker_id == info.master_broker_id), None)
    if master is None or not master.alive:
        yield _no_master(snapshot, status, info, master)
    else:
        where = f"broker {master.broker_id} at {master.broker_address}, epoch {info.master_epoch}"
        yield ok("group.master", name, f"master is {where}")
    yield from _in_sync(snapshot, status, info)
    disagree = list(_routes(snapshot, name, info, master)) if master is not None and master.alive else []
    yield from disagree
    if not disagree:
        told = snapshot.groups.get(name, {}).get("disagreements") or []
        line = commands.watch(snapshot, name)
        yield from (warning("group.routes", name, str(text), AGAIN, line) for text in told)
        if not told and master is not None and master.alive and snapshot.answering:
            yield ok("group.routes", name, "every name server shows that master")


def _no_master(
    snapshot: ClusterSnapshot, status: GroupStatus, info: ReplicasInfo, master: ReplicaIdentity | None
) -> Finding:
    name = status.broker_name
    who = "no master" if master is None else f"master {master.broker_id} at {master.broker_address} is dead"
    reason = snapshot.groups.get(name, {}).get("withoutLiveMaster")
    in_sync = ", ".join(f"{each.broker_id} ({each.broker_address})" for each in info.in_sync_replicas)
    others = [each for each in info.not_in_sync_replicas if each.alive]
    line = commands.explain_election(snapshot, name, status.cluster)
    if any(each.alive for each in info.in_sync_replicas):
        step, line = AGAIN, commands.watch(snapshot, name)
    elif faulty := _takes_no_writes(snapshot, info.in_sync_replicas):
        step = (
            f"no other replica in sync is alive: make the disk of {faulty[0]} writable again, and restart it"
        )
    elif others:
        step = (
            f"start one of the SyncStateSet again: {in_sync or 'it is empty'}; broker "
            f"{others[0].broker_id} is alive but lacks messages (elected only by enableElectUncleanMaster)"
        )
    else:
        step = f"start one of the SyncStateSet again: {in_sync or 'it is empty'}"
    return failed("group.master", name, f"{who}{f' ({reason})' if reason else ''}", step, line)


def _in_sync(snapshot: ClusterSnapshot, status: GroupStatus, info: ReplicasInfo) -> Iterator[Finding]:
    name, min_in_sync = status.broker_name, status.min_in_sync
    replicas = [*info.in_sync_replicas, *info.not_in_sync_replicas]
    alive = [each for each in info.in_sync_replicas if each.alive]
    size = f"{len(alive)} of {len(replicas)} replicas in sync"
    if min_in_sync is not None:
        size += f", {min_in_sync} needed (minInSyncReplicas)"
    stopped = {each.address for each in status.replicas if each.role == "slave" and each.problem}
    behind = [each for each in info.not_in_sync_replicas if each.alive and each.broker_address not in stopped]
    catching_up = behind and info.master_address
    line = commands.watch_replication(info.master_address or "") if catching_up else commands.START_BROKER
    if min_in_sync is not None and min_in_sync > len(replicas):
        step = "every message is refused: add replicas to the group, or lower minInSyncReplicas"
        enough = str(len(replicas) // 2 + 1)
        line = commands.update_broker(info.master_address or "HOST:10911", "minInSyncReplicas", enough)
        yield failed("group.in-sync", name, size, step, line)
    elif min_in_sync is not None and len(alive) < min_in_sync:
        step = "start the missing replicas; every message is refused until they have caught up"
        yield failed("group.in-sync", name, size, step, line)
    elif len(alive) < len(replicas) and (faulty := _takes_no_writes(snapshot, replicas)):
        step = (
            f"make the disk of {', '.join(faulty)} writable again, or replace it; until then the failure of "
            "another replica may stop all writes"
        )
        yield warning("group.in-sync", name, size, step, commands.broker_status(faulty[0]))
    elif len(alive) == 1 and len(replicas) > 1:
        step = "start the others, or wait until they have caught up: no replica could replace this master now"
        yield warning("group.in-sync", name, size, step, line)
    elif len(alive) == min_in_sync != 1 and len(replicas) > len(alive):
        step = "start the others: one more failure stops all writes"
        yield warning("group.in-sync", name, size, step, line)
    else:
        yield ok("group.in-sync", name, size)
    for each in replicas:
        yield from _replica(snapshot, status, info, each)


def _replica(
    snapshot: ClusterSnapshot, status: GroupStatus, info: ReplicasInfo, replica: ReplicaIdentity
) -> Iterator[Finding]:
    name = status.broker_name
    who = f"replica {replica.broker_id} at {replica.broker_address}"
    if not replica.alive and sync_fault(snapshot.brokers.get(replica.broker_address)):
        return  # it runs without heartbeats: replication_rules() says what to do
    if not replica.alive:
        forget = commands.clean_replica(snapshot, name, status.cluster, replica.broker_id)
        if not any(each.alive for each in info.in_sync_replicas):
            step = "start it, and keep its store: no replica in sync is alive, so it may have the only copy"
            line = commands.start_broker(snapshot.brokers.get(replica.broker_address), snapshot, name)
            yield warning("group.in-sync", name, f"{who} is not alive", step, line)
        elif (other := another_at_its_address(replica, info)) is not None:
            step = (
                "a store that is new or empty gets a new id: unless the old store will return, forget its "
                f"id; {KEEP_FILES}"
            )
            yield warning("group.in-sync", name, f"{who} is not alive: {other}", step, forget)
        elif (gone := _gone(snapshot, name, replica.broker_id)) is not None:
            step = f"start it, or if it was removed permanently, make the controllers forget it; {KEEP_FILES}"
            yield warning("group.in-sync", name, f"{who} is not alive: {gone}", step, forget)
        else:
            step, answer = (
                f"start it (if it will not return, and {OTHERS_SOUND}: {forget})",
                snapshot.brokers.get(replica.broker_address),
            )
            line = commands.start_broker(answer, snapshot, name)
            yield warning("group.in-sync", name, f"{who} is not alive", step, line)
    elif replica not in info.in_sync_replicas:
        step = "if it does not catch up, its disk or network is slower than the master's traffic"
        line = commands.watch_replication(info.master_address) if info.master_address else ""
        yield warning("group.in-sync", name, f"{who} is alive, but not in sync", step, line)


def _takes_no_writes(snapshot: ClusterSnapshot, replicas: Iterable[ReplicaIdentity]) -> list[str]:
    """Returns the addresses of brokers that run, and whose disk accepts no writes."""
    return [at for each in replicas if sync_fault(snapshot.brokers.get(at := each.broker_address))]


def _gone(snapshot: ClusterSnapshot, name: str, broker_id: int) -> str | None:
    """Returns for how long a dead replica has not been heard from, if that is longer than a repair takes.
    None: it is not, or the controllers do not report it."""
    for each in snapshot.groups.get(name, {}).get("replicas", ()):
        if each.get("brokerId") == broker_id:
            age_ms = each.get("heartbeatAgeMs")
            if age_ms is None:
                return "the leading controller has had no heartbeat from it"
            if age_ms > GONE_MS:
                return f"no heartbeat for {age_ms // 3_600_000} hours"
    return None


def _routes(
    snapshot: ClusterSnapshot, name: str, info: ReplicasInfo, master: ReplicaIdentity | None
) -> Iterator[Finding]:
    assert master is not None
    for address, shown in _routed(snapshot, name).items():
        if shown == master.broker_address:
            continue
        text = f"name server {address} shows {shown or 'no master'}, not {master.broker_address}"
        step = f"{AGAIN}; if this persists, check namesrvAddr of that broker, and its connection"
        line = commands.watch(snapshot, name)
        listed = listed_name_servers(snapshot, master.broker_address)
        if listed and address not in listed:
            step = f"namesrvAddr of the master lacks {address}: restart it with the whole list"
            line = commands.start_with("namesrvAddr", snapshot.name_servers)
        yield failed("group.routes", name, text, step, line)


def _routed(snapshot: ClusterSnapshot, name: str) -> dict[str, str | None]:
    """Returns name server -> the master that its routes have, None: no master."""
    found: dict[str, str | None] = {}
    for address, server in snapshot.answering.items():
        broker = server.cluster.broker_addr_table.get(name)
        found[address] = None if broker is None else broker.broker_addrs.get(MASTER_ID)
    return found


def listed_name_servers(snapshot: ClusterSnapshot, address: str) -> list[str]:
    """Returns namesrvAddr of a running broker."""
    broker = snapshot.brokers.get(address)
    return split_list(broker.settings.get("namesrvAddr", "")) if isinstance(broker, RunningBroker) else []
