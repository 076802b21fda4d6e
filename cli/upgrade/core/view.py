"""A cluster as an upgrade sees it: its processes with their versions, its groups, and what is not right.
Pure.

A view is made of the status that `keelmq status` shows and of facts that the status does not have. The
cluster is whole if its view has no faults: only then a step begins.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from keelmq.health.status import ClusterStatus, ControllerStatus, GroupStatus, ReplicaStatus, Verdict
from keelmq.remoting.address_text import host_of

NO_VERSION = "none"
"""How a version is written that a server does not report: it is older than the first one that does."""
RAFT_LAG_MAX = 1_000
"""Entries of the log that a controller may lack: one that has just started reads more."""
WITHOUT_CONCERN = ("users.", "consumers.", "machine.", "config.")
"""Checks whose failures an upgrade neither makes worse nor needs solved."""
PRINTED_MAX = 3


class Kind(StrEnum):
    """The program that a process runs."""

    NAME_SERVER = "namesrv"
    CONTROLLER = "controller"
    BROKER = "broker"
    CONTAINER = "container"


@dataclass(frozen=True, slots=True)
class Server:
    """One process, which is restarted as a whole. name: the brokerName, or the id of its controller.
    versions: all that its parts report, "" of an old one; empty: it does not answer. controller: the id of
    the controller in it; "": none."""

    kind: Kind
    address: str
    name: str
    label: str
    versions: frozenset[str]
    controller: str = ""

    @property
    def host(self) -> str:
        """The host of its address."""
        return host_of(self.address)

    @property
    def has_brokers(self) -> bool:
        """Whether brokers run in it."""
        return self.kind in (Kind.BROKER, Kind.CONTAINER)


@dataclass(frozen=True, slots=True)
class Group:
    """One broker group. servers: broker id -> address of the process that the replica runs in. in_sync: ids
    of replicas that can become master."""

    cluster: str
    name: str
    has_controllers: bool
    master: int | None
    min_in_sync: int
    servers: Mapping[int, str]
    in_sync: frozenset[int]


class Fault(NamedTuple):
    """Something that must be right before a step begins."""

    subject: str
    text: str

    def __str__(self) -> str:
        """Returns both."""
        return f"{self.subject}: {self.text}"


@dataclass(frozen=True, slots=True)
class View:
    """leader: id of the leading controller; "": there is none. controllers: all ids. left_alone: RocketMQ's
    own servers, which are not restarted."""

    servers: tuple[Server, ...]
    groups: tuple[Group, ...] = ()
    controllers: tuple[str, ...] = ()
    leader: str = ""
    faults: tuple[Fault, ...] = ()
    left_alone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What the status does not have. registered: name server -> group -> addresses. linked: master -> ids of
    the slaves that copy from it; absent: it does not tell them. embedded: name server -> the controller in
    its process. contained: broker -> its container. learners: controllers without a vote yet. rocketmq:
    RocketMQ's own servers. faults: found while the facts were collected."""

    registered: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    linked: Mapping[str, frozenset[int]] = field(default_factory=dict)
    embedded: Mapping[str, str] = field(default_factory=dict)
    contained: Mapping[str, str] = field(default_factory=dict)
    learners: frozenset[str] = frozenset()
    rocketmq: frozenset[str] = frozenset()
    faults: tuple[Fault, ...] = ()


def rank(version: str) -> tuple[bool, Version]:
    """Returns a key that sorts versions from old to new. What a server does not report is older than all."""
    try:
        return True, Version(version)
    except InvalidVersion:
        return False, Version("0")


def shown(versions: Iterable[str]) -> str:
    """Returns the versions of a server for people."""
    return ", ".join(each or NO_VERSION for each in sorted(versions, key=rank)) or "unknown"


def view_of(found: ClusterStatus, facts: Facts) -> View:
    """Returns the view of a cluster."""
    leaders = [each for each in found.controllers if each.role == "leader"]
    return View(
        servers=tuple(each for each in _servers(found, facts) if each.address not in facts.rocketmq),
        groups=tuple(_group(each, facts) for each in found.groups),
        controllers=tuple(each.member or each.address for each in found.controllers),
        leader=(leaders[0].member or leaders[0].address) if leaders else "",
        faults=tuple(_faults(found, facts)),
        left_alone=tuple(sorted(facts.rocketmq)),
    )


def _servers(found: ClusterStatus, facts: Facts) -> Iterator[Server]:
    controllers = {each.address: each for each in found.controllers}
    for name_server in found.name_servers:
        versions = set() if name_server.problem else {name_server.keelmq_version}
        inside = controllers.pop(facts.embedded.get(name_server.address, ""), None)
        if inside is None:
            label = f"name server at {name_server.address}"
            yield Server(Kind.NAME_SERVER, name_server.address, "namesrv", label, frozenset(versions))
        else:
            versions |= _versions(inside)
            member = inside.member or inside.address
            label = f"name server with controller {member} at {name_server.address}"
            yield Server(
                Kind.NAME_SERVER, name_server.address, member, label, frozenset(versions), controller=member
            )
    for each in controllers.values():
        member = each.member or each.address
        label = f"controller {member} at {each.address}"
        yield Server(Kind.CONTROLLER, each.address, member, label, _versions(each), controller=member)
    yield from _broker_servers(found, facts)


def _versions(controller: ControllerStatus) -> frozenset[str]:
    return frozenset() if controller.role == "silent" else frozenset({controller.keelmq_version})


def _broker_servers(found: ClusterStatus, facts: Facts) -> Iterator[Server]:
    contained: dict[str, list[tuple[str, ReplicaStatus]]] = {}
    for group in found.groups:
        for replica in group.replicas:
            who = f"{group.broker_name} {replica.broker_id}"
            if replica.address in facts.contained:
                contained.setdefault(facts.contained[replica.address], []).append((who, replica))
                continue
            label = f"{who} at {replica.address}"
            yield Server(Kind.BROKER, replica.address, group.broker_name, label, _of_replica(replica))
    for address, inside in contained.items():
        label = f"container with {', '.join(who for who, _ in inside)} at {address}"
        versions = frozenset[str]().union(*(_of_replica(each) for _, each in inside))
        yield Server(Kind.CONTAINER, address, "container", label, versions)


def _of_replica(replica: ReplicaStatus) -> frozenset[str]:
    return frozenset() if replica.role == "silent" else frozenset({replica.keelmq_version})


def _group(group: GroupStatus, facts: Facts) -> Group:
    faulty = {each.broker_id for each in group.replicas if any(_of_one(group, each, facts))}
    return Group(
        cluster=group.cluster,
        name=group.broker_name,
        has_controllers=group.has_controllers,
        master=group.master_id,
        min_in_sync=group.min_in_sync or 1,
        servers={each.broker_id: facts.contained.get(each.address, each.address) for each in group.replicas},
        in_sync=frozenset(each.broker_id for each in group.replicas if each.broker_id not in faulty),
    )


def _faults(found: ClusterStatus, facts: Facts) -> Iterator[Fault]:
    own = [
        *facts.faults,
        *(Fault(each.address, f"name server: {each.problem}") for each in found.name_servers if each.problem),
        *_of_controllers(found, facts),
        *(fault for group in found.groups for fault in _of_group(group, facts)),
        *_not_registered(found, facts),
    ]
    if found.brokers_not_asked:
        own.append(Fault("brokers", f"{found.brokers_not_asked} were not asked: there are too many"))
    yield from own
    named = {each.subject for each in own}
    for problem in found.problems:
        if problem.level is not Verdict.FAILED or problem.check.startswith(WITHOUT_CONCERN):
            continue
        if not set(problem.subject.split(", ")) <= named:
            yield Fault(problem.subject, problem.text)


def _of_controllers(found: ClusterStatus, facts: Facts) -> Iterator[Fault]:
    committed = max((each.commit_index or 0 for each in found.controllers), default=0)
    for each in found.controllers:
        if each.role == "silent":
            yield Fault(each.address, f"controller: {each.problem}")
        elif each.address in facts.learners:
            yield Fault(each.address, "controller: it has no vote yet")
        elif each.last_applied is not None and committed - each.last_applied > RAFT_LAG_MAX:
            yield Fault(each.address, f"controller: {committed - each.last_applied} entries behind")
    leaders = [each.member or each.address for each in found.controllers if each.role == "leader"]
    if found.controllers and len(leaders) != 1:
        yield Fault("controllers", f"{' and '.join(leaders)} lead" if leaders else "none of them leads")


def _of_group(group: GroupStatus, facts: Facts) -> Iterator[Fault]:
    if group.master_id is None or all(each.broker_id != group.master_id for each in group.replicas):
        yield Fault(group.broker_name, "it has no master")
    for replica in group.replicas:
        for text in _of_one(group, replica, facts):
            yield Fault(f"{group.broker_name} {replica.broker_id} at {replica.address}", text)
    for text in group.disagreements:
        yield Fault(group.broker_name, text)


def _of_one(group: GroupStatus, replica: ReplicaStatus, facts: Facts) -> Iterator[str]:
    """Yields what keeps a replica from being master, or from being one that the master can do without."""
    linked = facts.linked.get(group.master_address)
    if replica.role == "silent" or not replica.is_alive:
        yield replica.problem or "the controllers hear nothing of it"
    elif replica.problem:
        yield replica.problem
    elif not replica.is_in_sync:
        yield "it is not in the SyncStateSet"
    elif replica.role == "slave" and linked is not None and replica.broker_id not in linked:
        # A replica that was away for a moment is still in the SyncStateSet when it returns.
        yield "it is not connected to its master"


def _not_registered(found: ClusterStatus, facts: Facts) -> Iterator[Fault]:
    for group in found.groups:
        wanted = {each.address for each in group.replicas}
        for name_server, table in facts.registered.items():
            if missing := sorted(wanted - table.get(group.broker_name, frozenset())):
                yield Fault(group.broker_name, f"{', '.join(missing)} is not registered at {name_server}")


def summary(faults: Iterable[Fault]) -> str:
    """Returns the first faults in one line."""
    texts = list(dict.fromkeys(map(str, faults)))
    more = len(texts) - PRINTED_MAX
    return "; ".join(texts[:PRINTED_MAX]) + (f"; and {more} more" if more > 0 else "")
