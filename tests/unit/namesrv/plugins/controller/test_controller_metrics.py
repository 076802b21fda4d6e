"""The controller's metrics and the tally of its elections, on virtual time."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from keelmq.remoting.operation import CommandError, Unknown, UnknownOutcome
from keelmq.remoting.servers.metrics import ScrapeCollector, documented
from keelmq.runtime.slices import at_once
from namesrv.plugins.controller.core.elect import LiveInfo, LiveView, Loss, LossReason, elect
from namesrv.plugins.controller.core.state import BrokerSet, Replica, State
from namesrv.plugins.controller.core.tally import (
    KEEP_CURRENT_MASTER,
    NEW_MASTER_ELECTED,
    NO_MASTER_ELECTED,
    OTHER,
    Counted,
    kind_of,
)
from namesrv.plugins.controller.http import metrics
from namesrv.plugins.controller.proposer import NOT_LEADER_REMARK
from tests.support.controller_fakes import CLUSTER, GROUP, Bench, address
from tests.support.http_parts import Samples, samples, shapes, value
from tests.support.raft_certificates import Authority
from tests.support.raft_group import Group, ListMachine

GROUP_LABELS = {"cluster": CLUSTER, "broker_name": GROUP}


def text(bench: Bench) -> str:
    registry = CollectorRegistry()
    registry.register(ScrapeCollector(lambda: at_once(metrics.scrapes(bench.plugin.metric_sources()))))
    return generate_latest(registry).decode()


def scraped(bench: Bench) -> Samples:
    return samples(text(bench))


async def test_a_group_and_its_elections(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.group_of(1, 2)
    await bench.elect(2)  # the master lives: it stays
    bench.now_ms += 1_500
    await bench.heartbeat(2)
    found = scraped(bench)
    assert value(found, "rocketmq_controller_active", node_id="n0", node_type="controller") == 1
    assert value(found, "rocketmq_controller_groups") == 1
    assert value(found, "rocketmq_controller_group_master_epoch", **GROUP_LABELS) == 1
    assert value(found, "rocketmq_controller_group_syncstateset_size", **GROUP_LABELS) == 2
    assert value(found, "rocketmq_controller_group_without_master_seconds", **GROUP_LABELS) == 0
    assert value(found, "rocketmq_controller_heartbeat_age_seconds", broker_id="1") == 1.5
    assert value(found, "rocketmq_controller_heartbeat_age_seconds", broker_id="2") == 0
    assert value(found, "active_broker_num", cluster=CLUSTER, broker_set=GROUP, peer_id="n0") == 2
    elections = "rocketmq_controller_elections_total"
    assert value(found, elections, result=NEW_MASTER_ELECTED, reason="first_election", **GROUP_LABELS) == 1
    assert value(found, elections, result=KEEP_CURRENT_MASTER, reason="master_alive", **GROUP_LABELS) == 1
    assert value(found, "election_total", election_result=NEW_MASTER_ELECTED, group="group1") == 1
    assert shapes(text(bench)).items() <= documented([metrics.OURS, metrics.UPSTREAM]).items()


async def test_the_raft_port(tmp_path: Path) -> None:
    """Who was refused and why, which messages were of no use, and when the certificate ends."""
    bench = Bench(tmp_path)
    files = Authority(tmp_path / "ca").issue("n0")
    member = Group(tmp_path, 1, secret=None, tls=files).replicator("n0", ListMachine())
    await member.start()
    try:
        counts = {"refusedConnections": {"no certificate": 3}, "guardDrops": {"second vote": 2}}
        status = member.status() | counts | {"preVotesRefused": 4, "snapshotSeconds": 0.25}
        ends = member.certificates.info.not_after.timestamp()  # type: ignore[union-attr]
    finally:
        await member.stop()
    bench.replicator.status = lambda: status  # type: ignore[method-assign]
    found, prefix = scraped(bench), "rocketmq_controller_raft"
    assert value(found, f"{prefix}_refused_connections_total", reason="no certificate") == 3
    assert value(found, f"{prefix}_guard_drops_total", rule="second vote") == 2
    assert value(found, f"{prefix}_pre_votes_refused_total") == 4
    assert value(found, f"{prefix}_snapshot_seconds") == 0.25
    assert value(found, f"{prefix}_certificate_end_seconds") == int(ends)
    assert shapes(text(bench)).items() <= documented([metrics.OURS, metrics.UPSTREAM]).items()


async def test_requests_and_heartbeats(tmp_path: Path) -> None:
    """RocketMQ counts every answer as a success; our own counter tells the answers apart."""
    bench = Bench(tmp_path)
    await bench.group_of(1, 2)
    with pytest.raises(CommandError):
        await bench.alter([1], master=1, epoch=0, set_epoch=2)
    bench.replicator.next_outcome = Unknown("no majority")
    with pytest.raises(UnknownOutcome):
        await bench.alter([1], master=1, epoch=1, set_epoch=2)
    found = scraped(bench)
    alter = "CONTROLLER_ALTER_SYNC_STATE_SET"
    assert value(found, "request_total", request_type=alter, request_handle_status="success") == 2
    assert value(found, "request_total", request_type=alter, request_handle_status="timeout") == 1
    assert value(found, "request_total", request_type="CONTROLLER_BROKER_HEARTBEAT") == 2
    assert value(found, "rocketmq_controller_heartbeats_total") == 2
    codes = "rocketmq_controller_requests_total"
    for answer in ("SUCCESS", "CONTROLLER_FENCED_MASTER_EPOCH", "UNKNOWN"):
        assert value(found, codes, request_code=alter, response_code=answer) == 1
    assert value(found, "request_latency_microseconds_count", request_type=alter) == 3
    assert value(found, "request_latency_microseconds_bucket", request_type=alter, le="1e+07") == 3
    assert shapes(text(bench)).items() <= documented([metrics.OURS, metrics.UPSTREAM]).items()


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (904, "CONTROLLER_BROKER_HEARTBEAT"),
        (1001, "CONTROLLER_ALTER_SYNC_STATE_SET"),
        (1005, "CONTROLLER_GET_METADATA_INFO"),
        (1006, "CONTROLLER_GET_SYNC_STATE_DATA"),
        (1009, "CONTROLLER_UPDATE_CONTROLLER_CONFIG"),
        (1010, "CONTROLLER_GET_CONTROLLER_CONFIG"),
        (1011, "CONTROLLER_CLEAN_BROKER_DATA"),
        (29011, "KEELMQ_EXPLAIN_ELECTION"),
    ],
)
def test_request_types_are_rocketmqs(code: int, name: str) -> None:
    assert metrics.request_type(code) == name


async def test_a_group_without_master(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.group_of(1)
    bench.lose(1)
    await bench.run_elections()
    bench.now_ms += 2_000
    found = scraped(bench)
    assert value(found, "rocketmq_controller_group_without_master_seconds", **GROUP_LABELS) == 2
    elections = "rocketmq_controller_elections_total"
    assert value(found, elections, result=NO_MASTER_ELECTED, reason="nobody_alive", **GROUP_LABELS) == 1
    assert value(found, "active_broker_num", broker_set=GROUP) == 0
    assert bench.plugin.health()["failedElections"] == 1


async def test_a_controller_that_does_not_lead_judges_no_group(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.group_of(1)
    bench.replicator.become(False)
    found = scraped(bench)
    assert value(found, "rocketmq_controller_active") == 0
    assert "rocketmq_controller_group_without_master_seconds" not in found
    assert value(found, "rocketmq_controller_group_master_epoch", **GROUP_LABELS) == 1


async def test_groups_beyond_the_limit_have_no_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "GROUPS_MAX", 1)
    bench = Bench(tmp_path)
    await bench.group_of(1)
    bench.plugin.machine.state = bench.plugin.machine.state.with_set(BrokerSet(CLUSTER, "broker-b"))
    found = scraped(bench)
    assert value(found, "rocketmq_controller_groups") == 2
    assert len(found["active_broker_num"]) == 1


async def test_groups_and_elections_are_read_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost at a yield, and a group that leaves meanwhile is shown as it was."""
    for name in ("SLICE_GROUPS", "SLICE_ELECTIONS"):
        monkeypatch.setattr(metrics, name, 2)
    bench = Bench(tmp_path)
    state = bench.plugin.machine.state
    for number in range(7):
        state = state.with_set(BrokerSet(CLUSTER, f"broker-{number}", master_epoch=number))
        bench.plugin.tally.counts[Counted(CLUSTER, f"broker-{number}", NO_MASTER_ELECTED, OTHER)] = number
    bench.plugin.machine.state = state
    slices, yields = metrics.scrapes(bench.plugin.metric_sources()), 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            made = end.value
            break
        yields += 1
        bench.plugin.machine.state = State()
        bench.plugin.tally.counts.clear()
    assert yields >= 3 * 3
    registry = CollectorRegistry()
    registry.register(ScrapeCollector(lambda: made))
    found = samples(generate_latest(registry).decode())
    for number in range(7):
        labels = {"cluster": CLUSTER, "broker_name": f"broker-{number}"}
        assert value(found, "rocketmq_controller_group_master_epoch", **labels) == number
        assert value(found, "rocketmq_controller_elections_total", **labels) == number
        assert value(found, "election_total", broker_set=f"broker-{number}") == number


async def test_the_last_election_is_that_of_the_present_epoch(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.group_of(1, 2)
    tally, group = bench.plugin.tally, bench.broker_set
    last = tally.last(group)
    assert last is not None and (last.master_epoch, last.reason) == (1, "first election")
    later = BrokerSet(CLUSTER, GROUP, master_epoch=2)  # came inside a snapshot: nothing is known of it
    assert tally.last(later) is None
    assert tally.last(BrokerSet(CLUSTER, "other")) is None


def group(**changes: object) -> BrokerSet:
    replicas = {each: Replica(address(each), "") for each in (1, 2)}
    values: dict[str, object] = {
        "replicas": replicas,
        "next_broker_id": 3,
        "master_broker_id": 1,
        "master_epoch": 4,
        "sync_state_set": frozenset({1}),
        **changes,
    }
    return BrokerSet(CLUSTER, GROUP, **values)  # type: ignore[arg-type]


LIVE_1, LIVE_2 = {1: LiveInfo(address(1))}, {2: LiveInfo(address(2))}


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (elect(group(), LiveView(LIVE_1)).reason, "master_alive"),
        (
            elect(group(master_broker_id=None, sync_state_set=frozenset()), LiveView(LIVE_1)).reason,
            "first_election",
        ),
        (elect(group(master_broker_id=None), LiveView(LIVE_1)).reason, "no_master"),
        (elect(group(sync_state_set=frozenset({1, 2})), LiveView(LIVE_2)).reason, "master_not_active"),
        *(
            (
                elect(
                    group(sync_state_set=frozenset({1, 2})), LiveView(LIVE_2, lost={1: Loss(1, 2, each)})
                ).reason,
                each.value,
            )
            for each in LossReason
        ),
        (elect(group(), LiveView(LIVE_2), unclean=True).reason, "unclean"),
        (elect(group(), LiveView(LIVE_2)).reason, "nobody_alive"),
        (elect(group(), LiveView(LIVE_2)).reason + "; the master is cleared", "nobody_alive"),
        (elect(group(), LiveView(LIVE_2), preferred=2).reason, "not_in_syncstateset"),
        (elect(group(sync_state_set=frozenset({1, 2})), LiveView(LIVE_1), preferred=2).reason, "not_alive"),
        (
            elect(group(sync_state_set=frozenset({1, 2})), LiveView(LIVE_2), preferred=2).reason,
            "designated",
        ),
        (
            elect(group(master_broker_id=None), LiveView({}, frozenset({1}))).reason,
            "not_heard_yet",
        ),
        ("outcome unknown (no quorum): it may have happened, repeat", "not_replicated"),
        (NOT_LEADER_REMARK, "not_replicated"),
        ("something new", OTHER),
    ],
)
def test_every_reason_has_its_kind(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind, reason
