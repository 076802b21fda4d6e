"""The next step of an upgrade: the order, what is refused, and what a whole cluster is."""

from collections.abc import Callable

import pytest

from cli.upgrade.core.steps import (
    Deed,
    Done,
    HandOver,
    Restart,
    Stop,
    TransferLeader,
    Wait,
    next_step,
    plan,
)
from cli.upgrade.core.view import Facts, View, rank, shown, view_of
from keelmq.health.status import (
    ClusterStatus,
    ControllerStatus,
    GroupStatus,
    NameServerStatus,
    Problem,
    ReplicaStatus,
    Verdict,
)
from keelmq.remoting.operation import Wire

OLD, NEW = "0.1.0", "0.2.0"


def status(
    *,
    version: str = OLD,
    name_servers: int = 3,
    controllers: int = 3,
    groups: int = 1,
    replicas: int = 3,
    min_in_sync: int = 2,
    has_controllers: bool = True,
) -> ClusterStatus:
    """A whole cluster of one version; n0 leads, and broker 1 is the master of each group."""
    return ClusterStatus(
        taken_ms=0,
        took_ms=0,
        verdict=Verdict.OK,
        name_servers=[
            NameServerStatus(address=f"h{each}:9876", is_up=True, keelmq_version=version)
            for each in range(name_servers)
        ],
        controllers=[
            ControllerStatus(
                address=f"h{each}:9878",
                member=f"n{each}",
                role="follower" if each else "leader",
                keelmq_version=version,
            )
            for each in range(controllers)
        ],
        groups=[
            GroupStatus(
                cluster="c",
                broker_name=f"broker-{name}",
                verdict=Verdict.OK,
                has_controllers=has_controllers,
                master_id=1,
                master_address=f"{name}1:10911",
                min_in_sync=min_in_sync,
                replicas=[
                    ReplicaStatus(
                        broker_id=each,
                        address=f"{name}{each}:10911",
                        role="slave" if each > 1 else "master",
                        is_alive=True,
                        is_in_sync=True,
                        keelmq_version=version,
                    )
                    for each in range(1, replicas + 1)
                ],
            )
            for name in "abcdef"[:groups]
        ],
    )


def facts(found: ClusterStatus, *, embedded: bool = True) -> Facts:
    pairs = {each.address: each.address.replace("9876", "9878") for each in found.name_servers}
    table = {group.broker_name: frozenset(each.address for each in group.replicas) for group in found.groups}
    return Facts(
        registered={each.address: table for each in found.name_servers},
        linked={
            group.master_address: frozenset(
                each.broker_id for each in group.replicas if each.broker_id != group.master_id
            )
            for group in found.groups
        },
        embedded=pairs if embedded else {},
    )


def view(found: ClusterStatus | None = None, *, embedded: bool = True) -> View:
    found = found or status()
    return view_of(found, facts(found, embedded=embedded))


def text(step: Deed | Wait | Stop | Done) -> str:
    match step:
        case Restart(server):
            return f"{server.kind} {server.address}"
        case HandOver(_, group, from_id, to_id):
            return f"{group} {from_id} -> {to_id}"
        case TransferLeader(from_id, to_id):
            return f"{from_id} -> {to_id}"
    return type(step).__name__


BROKERS = ["broker a2:10911", "broker a3:10911", "broker-a 1 -> 2", "broker a1:10911"]
CONTROLLERS = ["namesrv h1:9876", "namesrv h2:9876", "n0 -> n1", "namesrv h0:9876"]


def test_up_controllers_come_first_and_masters_last() -> None:
    assert [*map(text, plan(view(), NEW))] == [*CONTROLLERS, *BROKERS, "Done"]


def test_down_brokers_come_first() -> None:
    assert [*map(text, plan(view(status(version=NEW)), OLD))] == [*BROKERS, *CONTROLLERS, "Done"]


def test_a_version_that_is_not_reported_is_older_than_all() -> None:
    assert text(next_step(view(status(version="")), NEW)) == CONTROLLERS[0]
    assert text(next_step(view(status(version=NEW)), "")) == BROKERS[0]
    assert plan(view(status(version="")), "") == [Done()]
    assert shown(["0.2.0", ""]) == "none, 0.2.0" and shown([]) == "unknown"


def test_versions_are_compared_as_versions() -> None:
    assert rank("0.10.0") > rank("0.9.0") > rank("0.9.0rc1") > rank("") == rank("what?")
    assert plan(view(status(version="0.2")), "0.2.0") == [Done()]


def test_name_servers_and_controllers_of_their_own() -> None:
    shown = [*map(text, plan(view(embedded=False), NEW))]
    assert shown[:7] == [
        "namesrv h0:9876",
        "namesrv h1:9876",
        "namesrv h2:9876",
        "controller h1:9878",
        "controller h2:9878",
        "n0 -> n1",
        "controller h0:9878",
    ]


def test_groups_follow_each_other() -> None:
    shown = [*map(text, plan(view(status(groups=2)), NEW))]
    of_b = ["broker b2:10911", "broker b3:10911", "broker-b 1 -> 2", "broker b1:10911"]
    assert shown[4:] == [*BROKERS, *of_b, "Done"]


def test_only_one_group_or_the_controllers() -> None:
    found = status(groups=2)
    assert [*map(text, plan(view(found), NEW, only="controllers"))] == [*CONTROLLERS, "Done"]
    (stop,) = plan(view(found), NEW, only="broker-a")
    assert isinstance(stop, Stop) and not stop.is_gap
    assert stop.reasons == (
        "name server with controller n0 at h0:9876 has 0.1.0, and brokers of 0.2.0 need controllers and name "
        "servers that are not older: first --only controllers",
    )
    for each in (*found.name_servers, *found.controllers):
        put(each, keelmq_version=NEW)
    assert [*map(text, plan(view(found), NEW, only="broker-a"))] == [*BROKERS, "Done"]
    (stop,) = plan(view(status(version=NEW)), OLD, only="controllers")
    assert isinstance(stop, Stop) and "first bring all brokers to 0.1.0" in stop.reasons[0]
    (stop,) = plan(view(found), NEW, only="broker-x")
    assert stop == Stop(("no group is named broker-x, and it is not 'controllers'",))


GAPS: list[tuple[ClusterStatus, list[str]]] = [
    (
        status(replicas=1, min_in_sync=1),
        ["broker-a has one replica: no message is sent to it or received from it during the restart"],
    ),
    (
        status(replicas=2),
        ["broker-a has 2 replicas and minInSyncReplicas=2: sends are refused while one restarts"],
    ),
    (
        status(controllers=1),
        ["1 controller: while one restarts, no majority is left, and no lost master is replaced; 3 have one"],
    ),
    (
        status(controllers=2, name_servers=2),
        [
            "2 controllers: while one restarts, no majority is left, and no lost master is replaced; "
            "3 have one"
        ],
    ),
    (
        status(name_servers=1),
        ["1 name server: while it restarts, clients that start find no brokers"],
    ),
    (
        status(has_controllers=False, controllers=0, min_in_sync=1),
        ["broker-a has no controllers, so no slave takes over: sends fail while its master restarts"],
    ),
]


@pytest.mark.parametrize(("found", "reasons"), GAPS, ids=[each[1][0][:30] for each in GAPS])
def test_gaps_are_refused_unless_they_are_allowed(found: ClusterStatus, reasons: list[str]) -> None:
    assert next_step(view(found), NEW) == Stop(tuple(reasons), is_gap=True)
    steps = plan(view(found), NEW, allow_gap=True)
    assert steps[-1] == Done() and len([each for each in steps if isinstance(each, Restart)]) >= 4


def test_a_gap_of_what_is_not_restarted_is_none() -> None:
    found = status(name_servers=1, replicas=1, min_in_sync=1)
    assert next_step(view(found), OLD) == Done()
    stop = next_step(view(found), NEW, only="broker-a")
    assert isinstance(stop, Stop) and len(stop.reasons) == 1 and "one replica" in stop.reasons[0]


def test_a_container_hands_over_all_its_masters_and_is_restarted_once() -> None:
    """Two hosts, two groups, a replica of each in each container, and one on a third host."""
    found = status(groups=2)
    inside = {"a1:10911": "x:10811", "b1:10911": "x:10811", "a2:10911": "y:10811", "b2:10911": "y:10811"}
    of_facts = facts(found)
    seen = view_of(found, Facts(of_facts.registered, of_facts.linked, of_facts.embedded, contained=inside))
    assert [*map(text, plan(seen, NEW))][4:] == [
        "container y:10811",
        "broker a3:10911",
        "broker-a 1 -> 2",
        "broker-b 1 -> 2",
        "container x:10811",
        "broker b3:10911",
        "Done",
    ]
    (server,) = (each for each in seen.servers if each.address == "x:10811")
    assert server.label == "container with broker-a 1, broker-b 1 at x:10811"


def test_rocketmqs_servers_are_left_alone() -> None:
    found = status()
    of_facts = facts(found, embedded=False)
    seen = view_of(
        found, Facts(of_facts.registered, of_facts.linked, rocketmq=frozenset({"h0:9876", "a3:10911"}))
    )
    assert seen.left_alone == ("a3:10911", "h0:9876")
    addresses = [each.server.address for each in plan(seen, NEW) if isinstance(each, Restart)]
    assert addresses == ["h1:9876", "h2:9876", "h1:9878", "h2:9878", "h0:9878", "a2:10911", "a1:10911"]


def put(into: Wire, **values: object) -> None:
    """The parts of a status are frozen for programs."""
    into.__dict__.update(values)


def _role(found: ClusterStatus, **values: object) -> None:
    put(found.controllers[1], **values)


def _slave(found: ClusterStatus, **values: object) -> None:
    put(found.groups[0].replicas[1], **values)


BROKEN: list[tuple[Callable[[ClusterStatus], None], str]] = [
    (lambda it: put(it.name_servers[0], problem="refused"), "h0:9876: name server: refused"),
    (lambda it: _role(it, role="silent", problem="refused"), "h1:9878: controller: refused"),
    (lambda it: _role(it, role="leader"), "controllers: n0 and n1 lead"),
    (lambda it: put(it.controllers[0], role="follower"), "controllers: none of them leads"),
    (lambda it: _role(it, commit_index=2_000, last_applied=9), "h1:9878: controller: 1991 entries behind"),
    (lambda it: _slave(it, role="silent", problem="refused"), "broker-a 2 at a2:10911: refused"),
    (lambda it: _slave(it, is_alive=False), "broker-a 2 at a2:10911: the controllers hear nothing of it"),
    (lambda it: _slave(it, is_in_sync=False), "broker-a 2 at a2:10911: it is not in the SyncStateSet"),
    (lambda it: _slave(it, problem="cannot write"), "broker-a 2 at a2:10911: cannot write"),
    (lambda it: put(it.groups[0], master_id=None), "broker-a: it has no master"),
    (lambda it: it.groups[0].disagreements.append("h0 shows b"), "broker-a: h0 shows b"),
    (lambda it: put(it, brokers_not_asked=3), "brokers: 3 were not asked: there are too many"),
    (lambda it: _problem(it, "broker.damage"), "a1:10911: bad"),
]


def _problem(found: ClusterStatus, check: str, level: Verdict = Verdict.FAILED) -> None:
    found.problems.append(Problem(level=level, check=check, subject="a1:10911", text="bad", next_step="x"))


@pytest.mark.parametrize(("damage", "reason"), BROKEN, ids=[each[1] for each in BROKEN])
def test_no_step_begins_unless_the_cluster_is_whole(
    damage: Callable[[ClusterStatus], None], reason: str
) -> None:
    found = status()
    damage(found)
    assert next_step(view(found), NEW) == Wait(reason)
    assert plan(view(found), NEW)[-1] == Done(), "a plan shows what comes when it is whole"


def test_what_does_not_concern_an_upgrade_does_not_stop_it() -> None:
    found = status()
    _problem(found, "users.agree")
    _problem(found, "broker.settings", Verdict.WARNING)
    assert text(next_step(view(found), NEW)) == CONTROLLERS[0]


def test_links_and_registrations_count() -> None:
    found = status()
    of_facts = facts(found)
    alone = Facts(of_facts.registered, {"a1:10911": frozenset({3})}, of_facts.embedded)
    reason = "broker-a 2 at a2:10911: it is not connected to its master"
    assert next_step(view_of(found, alone), NEW) == Wait(reason)
    table = {"broker-a": frozenset({"a1:10911", "a2:10911"})}
    missing = Facts({**of_facts.registered, "h2:9876": table}, of_facts.linked, of_facts.embedded)
    reason = "broker-a: a3:10911 is not registered at h2:9876"
    assert next_step(view_of(found, missing), NEW) == Wait(reason)
    learns = Facts(of_facts.registered, of_facts.linked, of_facts.embedded, learners=frozenset({"h2:9878"}))
    assert next_step(view_of(found, learns), NEW) == Wait("h2:9878: controller: it has no vote yet")
