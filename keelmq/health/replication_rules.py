"""Judges how the replicas of each group copy their master: who lags, who stopped, whose log differs. Pure."""

from collections.abc import Iterator, Mapping

from keelmq.health import commands
from keelmq.health.disk_rules import WRITABLE_AGAIN
from keelmq.health.findings import Finding, failed, warning
from keelmq.health.snapshot import ClusterSnapshot, RunningBroker
from keelmq.health.status import GroupStatus, ReplicaStatus
from keelmq.remoting.operations.health import CANNOT_WRITE

LAG_MS = 5_000
"""A replica that has lacked bytes of its master for longer than this is reported. It leaves the SyncStateSet
after haMaxTimeSlaveNotCatchup, 15 s by default."""
WHO_IS_RIGHT = (
    "find out whose copies are sound before you change either log: the master's may be the damaged one. If "
    "this command says that the replica is to be replaced, keelmq repair --store DIR shows what that removes"
)
COPIES_AGAIN = f"{WRITABLE_AGAIN}. On a new, empty disk it copies the log of its master"
LAG_BYTES = 64 << 20
"""The same, where the time is not known."""
DISPATCH_BEHIND_BYTES = 16 << 20
"""Confirmed bytes that are in no ConsumeQueue: a broker that is well dispatches them in 0.1 s."""


def replication_rules(
    snapshot: ClusterSnapshot,
    statuses: Mapping[str, GroupStatus],
    brokers: Mapping[str, Mapping[str, RunningBroker]],
) -> Iterator[Finding]:
    """Yields what is wrong with the replication of each group. brokers: of running()."""
    for name, status in statuses.items():
        for replica in status.replicas:
            yield from _replica(snapshot, status, replica)
        yield from _masters(snapshot, status, brokers.get(name, {}))
        yield from _epochs(snapshot, status)
        for address, broker in brokers.get(name, {}).items():
            yield from _dispatch(status, address, broker)


def _dispatch(status: GroupStatus, address: str, broker: RunningBroker) -> Iterator[Finding]:
    behind = broker.info.get("dispatchBehindBytes", "")
    if behind.isdecimal() and int(behind) > DISPATCH_BEHIND_BYTES:
        text = f"consumers at {address} cannot read the last {int(behind):,} confirmed bytes: they are in no"
        step = "its disk is full, or its CPU is too slow for this traffic: its log says which"
        line = commands.broker_status(address)
        yield warning("group.in-sync", status.broker_name, f"{text} ConsumeQueue", step, line)


def _replica(snapshot: ClusterSnapshot, status: GroupStatus, replica: ReplicaStatus) -> Iterator[Finding]:
    broker, name = snapshot.brokers.get(replica.address), status.broker_name
    if not isinstance(broker, RunningBroker):
        return
    who = f"replica {replica.broker_id} at {replica.address}"
    if replica.role == "slave" and replica.problem:
        text = f"{who} copies nothing: {replica.problem}"
        if replica.problem.startswith(CANNOT_WRITE):
            yield failed("group.in-sync", name, text, COPIES_AGAIN, commands.broker_status(replica.address))
        else:
            yield failed("group.epochs", name, text, WHO_IS_RIGHT, commands.verify(snapshot, name))
    elif replica.role == "slave" and status.master_address and _lags(replica):
        behind = "" if replica.lag_bytes is None else f"{replica.lag_bytes:,} bytes"
        since = "" if replica.lag_ms is None else f"for {replica.lag_ms / 1000:.0f} s"
        text = f"{who} lags: {' '.join(filter(None, (behind, since)))}"
        step = "its disk or network is slower than the master's traffic; check that the lag shrinks"
        yield warning("group.in-sync", name, text, step, commands.watch_replication(status.master_address))


def _lags(replica: ReplicaStatus) -> bool:
    if replica.lag_ms is not None:
        return replica.lag_ms > LAG_MS and bool(replica.lag_bytes)
    return (replica.lag_bytes or 0) > LAG_BYTES


def _masters(
    snapshot: ClusterSnapshot, status: GroupStatus, brokers: Mapping[str, RunningBroker]
) -> Iterator[Finding]:
    """A master that the controllers replaced, and that has not heard of it."""
    if not status.has_controllers:
        return
    for address, broker in brokers.items():
        is_other = address != status.master_address
        if is_other and broker.ha is not None and broker.ha.master and status.master_address:
            refuses = broker.info.get("notWritable", "")
            text = f"{address} also acts as master; the controllers name {status.master_address}"
            text += f"; it accepts no messages: {refuses}" if refuses else "; it accepts messages"
            step = "check its connection to the controllers and to the other brokers, then restart it"
            line = commands.watch(snapshot, status.broker_name)
            yield failed("group.master", status.broker_name, text, step, line)


def _epochs(snapshot: ClusterSnapshot, status: GroupStatus) -> Iterator[Finding]:
    """Two replicas that begin one masterEpoch at different offsets have different messages from there on."""
    master = snapshot.brokers.get(status.master_address)
    of_master = _starts(master) if isinstance(master, RunningBroker) else {}
    for replica in status.replicas:
        broker = snapshot.brokers.get(replica.address)
        if replica.address == status.master_address or not isinstance(broker, RunningBroker):
            continue
        differing = [
            (epoch, start, of_master[epoch])
            for epoch, start in sorted(_starts(broker).items())
            if epoch in of_master and of_master[epoch] != start
        ]
        if differing:
            epoch, start, ours = differing[0]
            text = (
                f"replica {replica.broker_id} at {replica.address} begins epoch {epoch} at {start}, its "
                f"master at {ours}: their logs differ from {min(start, ours)} on"
            )
            line = commands.verify(snapshot, status.broker_name)
            yield failed("group.epochs", status.broker_name, text, WHO_IS_RIGHT, line)


def _starts(broker: RunningBroker) -> Mapping[int, int]:
    """Returns epoch -> its first offset."""
    entries = broker.epochs.epoch_list if broker.epochs is not None else ()
    return {each.epoch: each.start_offset for each in entries}
