"""The doctor judges a running cluster: hand-made snapshots, one thing wrong in each."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from keelmq.health.findings import Finding, Level
from keelmq.health.group_summary import group_statuses
from keelmq.health.groups import groups
from keelmq.health.reach import HttpAnswer, Silent
from keelmq.health.snapshot import ClusterSnapshot, NameServer, RunningBroker, clock_of, peers_of
from keelmq.health.verdict import verdict
from keelmq.remoting.operations.controller import ControllerMetadata
from keelmq.remoting.operations.route import BrokerData, ClusterInfo
from tests.gallery.cluster import BROKERS, CONTROLLERS, PEERS, controller, replicas

NS = ("10.0.0.1:9876", "10.0.0.2:9876")


def name_server(
    addresses: Mapping[int, str], *, topics: frozenset[str] = frozenset({"T"}), **settings: str
) -> NameServer:
    broker = BrokerData(cluster="C", broker_name="broker-a", broker_addrs=dict(addresses))
    info = ClusterInfo(
        broker_addr_table={"broker-a": broker} if addresses else {}, cluster_addr_table={"C": ["broker-a"]}
    )
    return NameServer(info, settings, topics)


def running(*, active: bool, disk: str = "0.30", clock_ms: int = 0, **settings: str) -> RunningBroker:
    info = {"brokerActive": str(active).lower(), "commitLogDiskRatio": disk, "brokerVersionDesc": "V5_3_3"}
    common = {
        "brokerName": "broker-a",
        "enableControllerMode": "true",
        "controllerAddr": ";".join(CONTROLLERS),
        "minInSyncReplicas": "2",
    }
    return RunningBroker(info, {**common, **settings}, clock_ms)


def ready(index: int, *, status: int = 200, **plugin: object) -> HttpAnswer:
    raft = {"running": True, "commitIndex": 5_000, "lastApplied": 5_000, "connected": ["n1", "n2"]}
    value: dict[str, Any] = {
        "ready": status == 200,
        "reasons": [] if status == 200 else [{"reason": "controller: no controller leads", "detail": ""}],
        "plugins": {
            "controller": {"address": CONTROLLERS[index], "active": index == 0, "raft": raft, **plugin}
        },
    }
    return HttpAnswer(status, json.dumps(value).encode(), 0)


def healthy() -> ClusterSnapshot:
    shown = {0: BROKERS[0], 2: BROKERS[1], 3: BROKERS[2]}
    return ClusterSnapshot(
        name_servers={at: name_server(shown) for at in NS},
        controllers={at: controller(index) for index, at in enumerate(CONTROLLERS)},
        brokers={at: running(active=at == BROKERS[0]) for at in BROKERS},
        health={at.replace("9878", "19876"): ready(index) for index, at in enumerate(CONTROLLERS)},
        sets={"broker-a": replicas()},
        resolved={at: frozenset({at}) for at in CONTROLLERS},
        clocks={"10.0.0.1": [0], "10.0.1.1": [400, 900]},
    )


def judged(seen: ClusterSnapshot) -> list[Finding]:
    return [*verdict(seen), *groups(seen, group_statuses(seen))]


def bad(seen: ClusterSnapshot) -> list[Finding]:
    return [finding for finding in judged(seen) if finding.level is not Level.OK]


def test_what_is_not_shown_without_credentials_is_no_fault() -> None:
    seen = healthy()
    seen.health["10.0.0.3:19876"] = HttpAnswer(200, b'{"ready": true, "reasons": []}', 0)
    found = {each.subject: each for each in judged(seen) if each.check == "controller.raft"}
    assert found["10.0.0.3:19876"].level is Level.OK
    assert "/v1/health was refused (--credentials FILE" in found["10.0.0.3:19876"].text


def test_a_healthy_cluster() -> None:
    found = judged(healthy())
    assert not [each for each in found if each.level is not Level.OK]
    assert len({each.check for each in found}) == 12


def test_more_replicas_are_needed_than_the_group_has() -> None:
    """Replicas that are started again would not help: there are none."""
    seen = healthy()
    seen.brokers = {at: running(active=at == BROKERS[0], minInSyncReplicas="4") for at in BROKERS}
    found = next(each for each in bad(seen) if each.check == "group.in-sync")
    assert found.level is Level.FAILED and found.text.startswith("3 of 3 replicas in sync, 4 needed")
    assert found.next_step.endswith("add replicas to the group, or lower minInSyncReplicas")
    assert found.command == f"mqadmin updateBrokerConfig -b {BROKERS[0]} -k minInSyncReplicas -v 2"


Break = Callable[[ClusterSnapshot], None]


def no_name_server(seen: ClusterSnapshot) -> None:
    seen.name_servers[NS[0]] = Silent("connection refused")


def empty_name_server(seen: ClusterSnapshot) -> None:
    seen.name_servers = {NS[0]: name_server({})}
    seen.brokers, seen.sets = {}, {}


def name_servers_disagree(seen: ClusterSnapshot) -> None:
    seen.name_servers[NS[1]] = name_server({0: BROKERS[1], 1: BROKERS[0], 3: BROKERS[2]})


def a_topic_is_missing(seen: ClusterSnapshot) -> None:
    shown = seen.answering[NS[0]].cluster.broker_addr_table["broker-a"].broker_addrs
    seen.name_servers[NS[1]] = name_server(shown, topics=frozenset({"T", "U"}))


def settings_differ(seen: ClusterSnapshot) -> None:
    shown = seen.answering[NS[0]].cluster.broker_addr_table["broker-a"].broker_addrs
    seen.name_servers[NS[1]] = name_server(
        shown, supportActingMaster="true", listenPort="1", securityPath="other", httpTokensFile="other"
    )


def users_differ(seen: ClusterSnapshot) -> None:
    one, other = seen.answering.values()
    seen.name_servers[NS[0]] = replace(one, rights={"User:orders": "Normal enable"})
    seen.name_servers[NS[1]] = replace(other, rights={})


def a_new_group_has_no_users(seen: ClusterSnapshot) -> None:
    for at, server in seen.answering.items():
        seen.name_servers[at] = replace(server, rights={"User:orders": "Normal enable"})
    seen.master_rights = {BROKERS[0]: {}}


def no_controller(seen: ClusterSnapshot) -> None:
    seen.controllers[CONTROLLERS[2]] = Silent("no answer in 1200 ms")


def no_majority(seen: ClusterSnapshot) -> None:
    for at in CONTROLLERS[1:]:
        seen.controllers[at] = Silent("no answer in 1200 ms")


def nobody_leads(seen: ClusterSnapshot) -> None:
    seen.controllers = {at: controller(index, leader=None) for index, at in enumerate(CONTROLLERS)}
    seen.sets = None


def one_knows_no_leader(seen: ClusterSnapshot) -> None:
    seen.controllers[CONTROLLERS[2]] = controller(2, leader=None)


def two_leaders(seen: ClusterSnapshot) -> None:
    seen.controllers[CONTROLLERS[1]] = controller(1, leader=1)


def members_differ(seen: ClusterSnapshot) -> None:
    seen.controllers[CONTROLLERS[1]] = controller(1, peers=PEERS.replace("10.0.0.3", "10.0.0.4"))


def a_controller_is_not_ready(seen: ClusterSnapshot) -> None:
    seen.health["10.0.0.3:19876"] = ready(2, status=503)


def an_older_controller_is_not_ready(seen: ClusterSnapshot) -> None:
    """It has no /v1/health; its /readyz has the reasons as texts, and everything else."""
    value = ready(2, status=503).json() | {"reasons": ["controller: no controller leads"]}
    seen.health["10.0.0.3:19876"] = HttpAnswer(503, json.dumps(value).encode(), 0)


def a_closed_controller_is_not_ready(seen: ClusterSnapshot) -> None:
    """Without credentials only /readyz answers."""
    value = {"title": "Service Unavailable", "ready": False, "reasons": ["controller: no controller leads"]}
    seen.health["10.0.0.3:19876"] = HttpAnswer(503, json.dumps(value).encode(), 0)


def a_controller_lags(seen: ClusterSnapshot) -> None:
    seen.health["10.0.0.3:19876"] = ready(2, raft={"running": True, "commitIndex": 9, "lastApplied": 9})


def raft_ended(seen: ClusterSnapshot) -> None:
    seen.health["10.0.0.3:19876"] = ready(2, raft={"running": False})


def telemetry_fault(seen: ClusterSnapshot) -> None:
    seen.health["10.0.0.3:19876"] = ready(2, telemetry={"fault": "no space left"})


def leader_alone(seen: ClusterSnapshot) -> None:
    raft = {"running": True, "commitIndex": 5_000, "lastApplied": 5_000, "connected": ["n1"]}
    seen.health["10.0.0.1:19876"] = ready(0, raft={**raft, "refusedConnections": {"wrong key": 3}})


def a_controller_is_new(seen: ClusterSnapshot) -> None:
    raft = {"running": True, "commitIndex": 5_000, "lastApplied": 5_000, "role": "learner"}
    seen.health["10.0.0.3:19876"] = ready(2, raft=raft)


def raft_members_differ(seen: ClusterSnapshot) -> None:
    raft = {"running": True, "commitIndex": 5_000, "lastApplied": 5_000, "otherMemberLists": ["n1"]}
    seen.health["10.0.0.3:19876"] = ready(2, raft=raft)


def raft_certificate_ends(seen: ClusterSnapshot) -> None:
    raft = {"running": True, "commitIndex": 5_000, "lastApplied": 5_000}
    seen.health["10.0.0.3:19876"] = ready(2, raft={**raft, "certificateEnds": int(time.time()) + 86_400})


def raft_certificate_is_old(seen: ClusterSnapshot) -> None:
    raft = {"running": True, "commitIndex": 5_000, "lastApplied": 5_000, "certificateFault": "n0.key: no key"}
    seen.health["10.0.0.3:19876"] = ready(2, raft={**raft, "certificateEnds": int(time.time()) + 90 * 86_400})


def more_brokers_than_can_be_asked(seen: ClusterSnapshot) -> None:
    seen.not_asked = 700


def expected_http_is_silent(seen: ClusterSnapshot) -> None:
    seen.health["10.0.0.1:19999"] = Silent("connection refused")
    seen.http_servers = {"10.0.0.1:19999": NS[0]}


def a_broker_is_silent(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[2]] = Silent("no answer in 1200 ms")


def disk_nearly_full(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[0]] = running(active=True, disk="0.9600")


def disk_filling(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[0]] = running(active=True, disk="0.8500")


def disk_within_its_limit(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[0]] = running(active=True, disk="0.8500", diskMaxUsedSpaceRatio="85")


def disk_full_within_its_limit(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[0]] = running(active=True, disk="0.9600", diskMaxUsedSpaceRatio="95")


def running_settings_differ(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[2]] = running(active=False, mappedFileSizeCommitLog="65536")
    seen.brokers[BROKERS[1]] = running(active=False, mappedFileSizeCommitLog="131072")


def attributes_are_not_done(seen: ClusterSnapshot) -> None:
    broker = running(active=True)
    info = {**broker.info, "attributesWithoutEffect": "without effect: topic t: reserve.time=1: no"}
    seen.brokers[BROKERS[0]] = msgspec.structs.replace(broker, info=info)


def a_controller_gets_no_heartbeats(seen: ClusterSnapshot) -> None:
    seen.brokers = {at: running(active=at == BROKERS[0], controllerAddr=CONTROLLERS[0]) for at in BROKERS}


def clock_is_wrong(seen: ClusterSnapshot) -> None:
    seen.clocks["10.0.1.2"] = [61_000, 60_400]


def master_is_dead(seen: ClusterSnapshot) -> None:
    seen.sets = {"broker-a": replicas(dead=(1, 2, 3))}


def no_master(seen: ClusterSnapshot) -> None:
    seen.sets = {"broker-a": replicas(master=None, dead=(1, 2), out=(3,))}
    seen.groups = {"broker-a": {"withoutLiveMaster": "no live member of the SyncStateSet"}}


def below_the_minimum(seen: ClusterSnapshot) -> None:
    seen.sets = {"broker-a": replicas(out=(2, 3))}


def at_the_minimum(seen: ClusterSnapshot) -> None:
    seen.sets = {"broker-a": replicas(dead=(3,))}


def last_of_the_set(seen: ClusterSnapshot) -> None:
    seen.sets = {"broker-a": replicas(out=(2, 3))}
    seen.brokers = {at: running(active=at == BROKERS[0], minInSyncReplicas="1") for at in BROKERS}


def controllers_do_not_know_the_group(seen: ClusterSnapshot) -> None:
    seen.sets = {}


def routes_lead_elsewhere(seen: ClusterSnapshot) -> None:
    seen.sets = {"broker-a": replicas(master=2)}


def the_leader_sees_a_contradiction(seen: ClusterSnapshot) -> None:
    seen.groups = {"broker-a": {"disagreements": ["broker 2 has epoch 9, above masterEpoch 3"]}}


def the_leader_is_silent(seen: ClusterSnapshot) -> None:
    seen.sets = Silent("CONTROLLER_NOT_LEADER, not in leader state")


def a_lone_master_is_dead(seen: ClusterSnapshot) -> None:
    seen.name_servers = {NS[0]: name_server({0: BROKERS[0]})}
    seen.controllers, seen.health, seen.sets = {}, {}, None
    seen.brokers = {BROKERS[0]: Silent("connection refused")}


F, W = Level.FAILED, Level.WARNING


@pytest.mark.parametrize(
    ("break_it", "expected", "words"),
    [
        (no_name_server, [("namesrv.reachable", F)], "10.0.0.1:9876: name server: connection refused"),
        (empty_name_server, [("namesrv.reachable", F)], "no broker is registered, here or at another one"),
        (name_servers_disagree, [("namesrv.agree", F), ("group.routes", F)], "0=10.0.1.2:10911"),
        (a_topic_is_missing, [("namesrv.agree", W)], "lacks 1 topics: U"),
        (settings_differ, [("namesrv.agree", W)], "supportActingMaster"),
        (
            users_differ,
            [("users.agree", F)],
            "User:orders: differs: Normal enable at 10.0.0.1:9876; not there at",
        ),
        (
            a_new_group_has_no_users,
            [("users.agree", F)],
            f"not there at {BROKERS[0]}; next: masters exchange users with name servers",
        ),
        (no_controller, [("controller.reachable", F)], "10.0.0.3:9878"),
        (
            no_majority,
            [("controller.reachable", F), ("controller.reachable", F), ("controller.leader", F)],
            "2 of 3 must run",
        ),
        (nobody_leads, [("controller.leader", F)], "no controller leads; 3 of 3 answer"),
        (one_knows_no_leader, [("controller.leader", F)], "10.0.0.3:9878: knows no leader"),
        (two_leaders, [("controller.leader", W)], "different leaders"),
        (
            members_differ,
            [("controller.leader", F), *[("broker.settings", F)] * 3],
            "different members",
        ),
        (a_controller_is_not_ready, [("controller.raft", F)], "not ready: controller: no controller leads"),
        (an_older_controller_is_not_ready, [("controller.raft", F)], "not ready: controller: no controller"),
        (a_closed_controller_is_not_ready, [("controller.raft", F)], "not ready: controller: no controller"),
        (a_controller_lags, [("controller.raft", W)], "4991 entries behind"),
        (raft_ended, [("controller.raft", F)], "does not run"),
        (telemetry_fault, [("controller.raft", W)], "no space left"),
        (leader_alone, [("controller.raft", W)], "to n1 only; refused: wrong key (3 times)"),
        (a_controller_is_new, [("controller.raft", W)], "no vote yet"),
        (raft_members_differ, [("controller.raft", F)], "n1 and this one"),
        (raft_certificate_ends, [("controller.raft", F)], "its certificate ends at 2"),
        (raft_certificate_is_old, [("controller.raft", W)], "not in use: n0.key: no key"),
        (more_brokers_than_can_be_asked, [], ""),
        (expected_http_is_silent, [("controller.raft", W)], "10.0.0.1:19999"),
        (a_broker_is_silent, [("broker.reachable", F)], "10.0.1.3:10911"),
        (disk_nearly_full, [("broker.disk", F)], "96% full"),
        (disk_filling, [("broker.disk", W)], "85% full"),
        (disk_within_its_limit, [], ""),
        (disk_full_within_its_limit, [("broker.disk", F)], "96% full"),
        (attributes_are_not_done, [("broker.settings", W)], "topic t: reserve.time=1"),
        (running_settings_differ, [("broker.settings", F)], "mappedFileSizeCommitLog"),
        (a_controller_gets_no_heartbeats, [("broker.settings", F)] * 3, "10.0.0.2:9878, 10.0.0.3:9878"),
        (clock_is_wrong, [("machine.clock", W)], "60.4 s ahead of ours"),
        (
            master_is_dead,
            [("group.master", F), ("group.in-sync", F), *[("group.in-sync", W)] * 3],
            "master 1 at 10.0.1.1:10911 is dead",
        ),
        (
            no_master,
            [("group.master", F), ("group.in-sync", F), *[("group.in-sync", W)] * 3],
            "(no live member of the SyncStateSet); next: start one of the SyncStateSet again: 1 (",
        ),
        (below_the_minimum, [("group.in-sync", F), *[("group.in-sync", W)] * 2], "every message is refused"),
        (at_the_minimum, [("group.in-sync", W)] * 2, "one more failure stops all writes"),
        (last_of_the_set, [("group.in-sync", W)] * 3, "no replica could replace this master"),
        (controllers_do_not_know_the_group, [("group.master", F)], "the controllers do not know it"),
        (routes_lead_elsewhere, [("group.routes", F)] * 2, "shows 10.0.1.1:10911, not 10.0.1.2:10911"),
        (the_leader_sees_a_contradiction, [("group.routes", W)], "epoch 9"),
        (the_leader_is_silent, [("group.master", F)], "CONTROLLER_NOT_LEADER"),
        (a_lone_master_is_dead, [("broker.reachable", F), ("group.master", F)], "only controller mode"),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_one_thing_is_wrong(break_it: Break, expected: list[tuple[str, Level]], words: str) -> None:
    seen = healthy()
    break_it(seen)
    found = bad(seen)
    assert [(each.check, each.level) for each in found] == expected, [each.line() for each in found]
    assert not words or any(words in each.line() for each in found), [each.line() for each in found]


def test_a_lone_master_without_controllers() -> None:
    seen = ClusterSnapshot(
        name_servers={NS[0]: name_server({0: BROKERS[0]})},
        brokers={BROKERS[0]: running(active=True, enableControllerMode="false", minInSyncReplicas="1")},
    )
    found = judged(seen)
    assert not [each for each in found if each.level is not Level.OK]
    assert any("without fail-over" in each.text for each in found)


def test_one_name_for_all_controllers() -> None:
    """A service name that resolves to every controller lists them all."""
    seen = healthy()
    seen.brokers = {at: running(active=at == BROKERS[0], controllerAddr="svc:9878") for at in BROKERS}
    seen.resolved["svc:9878"] = frozenset(CONTROLLERS)
    assert not bad(seen)


def test_a_broker_tells_its_clock() -> None:
    info = {"bootTimestamp": "1000000", "runtime": "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"}
    assert clock_of(info, 1_000_000 + 90_061_000) == 500  # half of the second that it cut off
    assert clock_of({"runtime": "soon"}, 0) is None


def test_peers() -> None:
    assert peers_of(controller(0)) == {f"n{index}": at for index, at in enumerate(CONTROLLERS)}
    assert peers_of(ControllerMetadata()) == {}


def test_brokers_that_were_not_asked_are_counted() -> None:
    seen = healthy()
    more_brokers_than_can_be_asked(seen)
    assert any("700 more were not asked" in each.text for each in judged(seen))


def test_groups_without_controllers_that_lost_their_master_or_have_two() -> None:
    plain = {"enableControllerMode": "false", "minInSyncReplicas": "1"}
    seen = ClusterSnapshot(
        name_servers={NS[0]: name_server({1: BROKERS[0]})},
        brokers={BROKERS[0]: running(active=False, **plain)},
    )
    assert any("only slaves without controllers" in each.text for each in bad(seen))
    seen = ClusterSnapshot(
        name_servers={NS[0]: name_server({0: BROKERS[0]}), NS[1]: name_server({0: BROKERS[1]})},
        brokers={at: running(active=True, **plain) for at in BROKERS[:2]},
    )
    assert any("2 masters of this brokerName" in each.text for each in bad(seen))
