"""Judges whether masters accept messages, and what the controllers may elect. Pure."""

from collections.abc import Iterator, Mapping
from shlex import quote

from keelmq.health import commands
from keelmq.health.disk_rules import WRITABLE_AGAIN, sync_fault
from keelmq.health.findings import Finding, failed, warning
from keelmq.health.numbers import whole
from keelmq.health.snapshot import ClusterSnapshot, RunningBroker
from keelmq.health.status import GroupStatus
from keelmq.remoting.booleans import is_true
from keelmq.remoting.codes import PERM_WRITE
from keelmq.remoting.operations.health import NO_ROOM

UNCLEAN = "enableElectUncleanMaster"


def permission_rules(snapshot: ClusterSnapshot, statuses: Mapping[str, GroupStatus]) -> Iterator[Finding]:
    """Yields masters that refuse messages, topics without write permission, and unclean elections."""
    for status in statuses.values():
        yield from _master(snapshot, status)
        yield from _wiped(snapshot, status)
    yield from _unclean(snapshot)


def _master(snapshot: ClusterSnapshot, status: GroupStatus) -> Iterator[Finding]:
    address = status.master_address
    broker = snapshot.brokers.get(address)
    if not isinstance(broker, RunningBroker):
        return
    permission = whole(broker.settings.get("brokerPermission"))
    reason = broker.info.get("notWritable", "")
    if permission is not None and not permission & PERM_WRITE:
        text = f"brokerPermission={permission} has no write permission: producers get no queue of this broker"
        step = "add the write permission again when the reason no longer applies"
        line = commands.update_broker(address, "brokerPermission", "6")
        yield warning("broker.writable", address, text, step, line)
    elif reason and not reason.startswith("brokerPermission"):
        text = f"master of {status.broker_name} accepts no messages: {reason}"
        if any(each in reason for each in NO_ROOM):
            step = (
                "it hands over to a replica in sync whose disk has room, if there is one; this command says "
                "who could take over, and whose disk is full; else free space on one of the disks"
            )
            line = commands.explain_election(snapshot, status.broker_name, status.cluster)
            yield failed("broker.writable", address, text, step, line)
            return
        if sync_fault(broker):
            step = (
                "it hands over to another replica in sync, if there is one; this command says who could take "
                f"over; otherwise {WRITABLE_AGAIN}"
            )
            line = commands.explain_election(snapshot, status.broker_name, status.cluster)
            yield failed("broker.writable", address, text, step, line)
            return
        step = "remove the cause, then check that the problem is no longer reported"
        yield failed("broker.writable", address, text, step, commands.watch(snapshot, status.broker_name))


def _wiped(snapshot: ClusterSnapshot, status: GroupStatus) -> Iterator[Finding]:
    """Topics whose write permission an operator removed (wipeWritePerm), seen at a topic that every broker
    has."""
    name, master = status.broker_name, snapshot.brokers.get(status.master_address)
    wiped = [
        at
        for at, each in snapshot.answering.items()
        if not each.permissions.get(name, PERM_WRITE) & PERM_WRITE
    ]
    settings: Mapping[str, str] = master.settings if isinstance(master, RunningBroker) else {}
    if wiped and settings.get("brokerPermission", "6") == "6":
        text = f"{', '.join(wiped)}: its topics have no write permission (wipeWritePerm)"
        step = "add the permission again when the maintenance is finished"
        line = f"mqadmin addWritePerm -n {commands.joined(wiped)} -b {quote(name)}"
        yield warning("broker.writable", name, text, step, line)


def _unclean(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    on = [
        at
        for at, each in snapshot.controller_settings.items()
        if isinstance(each, Mapping) and is_true(each.get(UNCLEAN))
    ]
    if on:
        text = f"{UNCLEAN}=true: a replica that lacks acknowledged messages may become master"
        step = "set it to false, unless this cluster may lose messages"
        line = commands.update_controllers(snapshot, UNCLEAN, "false")
        yield warning("controller.settings", ", ".join(on), text, step, line)
