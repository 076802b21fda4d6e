"""The controller's metrics: those of RocketMQ, with its names and labels, and those of KeelMQ.

Values are read when they are scraped. Only the leader counts elections and reports groups without a master;
the others report the state that they have. Imported only when HTTP is enabled: it needs prometheus_client.
"""

from collections.abc import Mapping
from heapq import nsmallest
from typing import Any

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.servers.metrics import (
    TELEMETRY_METRICS,
    Metric,
    Scrape,
    Table,
    add_limits,
    add_loop,
    add_telemetry,
    add_unsent,
    limit_metrics,
    loop_metrics,
    unsent_metrics,
)
from keelmq.remoting.servers.request_counts import INTERNAL_ERROR, UNKNOWN
from keelmq.runtime import loop_watch
from keelmq.runtime.slices import Slices
from namesrv.core.liveness import BrokerKey
from namesrv.plugins import Liveness
from namesrv.plugins.controller.core.state import BrokerSet
from namesrv.plugins.controller.core.tally import Counted
from namesrv.plugins.controller.http.sources import ControllerSources, GroupSources, MetricSources

GROUPS_MAX = 1_000
SLICE_GROUPS, SLICE_ELECTIONS = 50, 500
"""What is read between two yields: 1 to 2 ms."""
ROLE_UNKNOWN, ROLE_CANDIDATE, ROLE_FOLLOWER, ROLE_LEADER = 0, 1, 2, 3
OPERATION_STATUS = {"applied": "success", "unknown": "timeout", "notActive": "failed", "busy": "failed"}
REQUEST_STATUS = {UNKNOWN: "timeout", INTERNAL_ERROR: "failed"}
_GROUP = ("cluster", "broker_name")
_FEW = "; of the first 1000 groups"

UPSTREAM = Table(
    "Controller: RocketMQ's names",
    ("address", "group", "peer_id"),
    (
        Metric("role", "0 not running, 1 no leader known, 2 follower, 3 leader"),
        Metric("dledger_disk_usage_bytes", "log and snapshot on disk"),
        Metric(
            "active_broker_num", "brokers of a group with a live heartbeat" + _FEW, ("cluster", "broker_set")
        ),
        Metric(
            "election_total",
            "elections of a group since the start, at the leader: new_master_elected, keep_current_master, "
            "no_master_elected",
            ("cluster", "broker_set", "election_result"),
        ),
        Metric(
            "dledger_op_total",
            "changes proposed here since the start: success, timeout (outcome unknown), failed (not done)",
            ("dledger_operation", "dLedger_operation_status"),
        ),
        Metric(
            "dledger_op_latency_microseconds",
            "from a change's proposal here to its commit",
            ("dledger_operation", "dledger_operation_status"),
            is_histogram=True,
        ),
        Metric(
            "request_total",
            "requests since the start, over TCP and HTTP: success (answered, even if refused), timeout "
            "(outcome unknown), failed (a bug)",
            ("request_type", "request_handle_status"),
        ),
        Metric(
            "request_latency_microseconds",
            "from a request's handler to its answer; heartbeats are not timed",
            ("request_type",),
            is_histogram=True,
        ),
    ),
)
OURS = Table(
    "Controller",
    ("node_type", "node_id"),
    (
        Metric("rocketmq_controller_active", "1 while this controller leads and decides, else 0"),
        Metric("rocketmq_controller_groups", "broker groups in the replicated state"),
        Metric("rocketmq_controller_brokers", "registered brokers of all groups, and cleaned groups"),
        Metric(
            "rocketmq_controller_brokers_max", "maximum of rocketmq_controller_brokers (controllerBrokersMax)"
        ),
        Metric(
            "rocketmq_controller_elections_total",
            "election_total by kind of reason",
            (*_GROUP, "result", "reason"),
        ),
        Metric(
            "rocketmq_controller_group_without_master_seconds",
            "how long the leader has found no master for a group; 0: it has one; of the leader only" + _FEW,
            _GROUP,
        ),
        Metric("rocketmq_controller_group_master_epoch", "masterEpoch" + _FEW, _GROUP),
        Metric("rocketmq_controller_group_syncstateset_size", "members of the SyncStateSet" + _FEW, _GROUP),
        Metric(
            "rocketmq_controller_heartbeat_age_seconds",
            "since a replica's last heartbeat to this controller" + _FEW,
            (*_GROUP, "broker_id"),
        ),
        Metric("rocketmq_controller_raft_term", "term of the log"),
        Metric("rocketmq_controller_raft_commit_index", "entries that a majority has"),
        Metric("rocketmq_controller_raft_applied_index", "entries applied here"),
        Metric("rocketmq_controller_raft_log_entries", "entries since the last snapshot"),
        Metric("rocketmq_controller_raft_waiting", "proposals whose outcome is awaited"),
        Metric("rocketmq_controller_raft_members", "controllers that form the group"),
        Metric("rocketmq_controller_raft_connected_members", "other controllers with a link to this one"),
        Metric(
            "rocketmq_controller_raft_leader_changes_total",
            "changes of the leader, as this controller observed them",
        ),
        Metric("rocketmq_controller_raft_campaigns_total", "elections of a leader that this one started"),
        Metric(
            "rocketmq_controller_raft_pre_votes_refused_total",
            "pre-votes refused to members: the leader is alive, or their log is older",
        ),
        Metric(
            "rocketmq_controller_raft_refused_connections_total",
            "connections closed before HELLO was accepted: unverified peers, wrong keys and certificates",
            ("reason",),
        ),
        Metric(
            "rocketmq_controller_raft_guard_drops_total",
            "dropped messages of members: of an old term, out of order, or from a process that is no member",
            ("rule",),
        ),
        Metric(
            "rocketmq_controller_raft_snapshot_seconds",
            "duration of the last snapshot, during which no heartbeat was sent",
        ),
        Metric(
            "rocketmq_controller_raft_certificate_end_seconds",
            "when the raft port's certificate or its CA expires, since 1970; only with certificates",
        ),
        Metric(
            "rocketmq_controller_raft_commit_seconds",
            "from a change's proposal here to its commit; of the leader",
            is_histogram=True,
        ),
        Metric("rocketmq_controller_raft_sync_seconds", "fdatasync of the log", is_histogram=True),
        Metric("rocketmq_controller_raft_batch_events", "changes in one log entry", is_histogram=True),
        Metric(
            "rocketmq_controller_requests_total",
            "request_total by RocketMQ's names of request and answer",
            ("request_code", "response_code"),
        ),
        Metric("rocketmq_controller_heartbeats_total", "heartbeats of brokers received since the start"),
        Metric(
            "rocketmq_controller_connection_probes_total",
            "connection attempts to brokers whose connection closed: proved (refused: the broker is dead), "
            "unproved (every other answer)",
            ("result",),
        ),
        Metric(
            "rocketmq_controller_hung_masters_total",
            "masters that were found hung before their heartbeat timeout, with the help of their replicas",
        ),
        *unsent_metrics("rocketmq_controller"),
        *limit_metrics("rocketmq_controller"),
        *loop_metrics("rocketmq_controller"),
        *TELEMETRY_METRICS,
    ),
)
_RAFT = {
    "rocketmq_controller_raft_term": "term",
    "rocketmq_controller_raft_commit_index": "commitIndex",
    "rocketmq_controller_raft_applied_index": "lastApplied",
    "rocketmq_controller_raft_log_entries": "logEntries",
    "rocketmq_controller_raft_waiting": "waiting",
    "rocketmq_controller_raft_leader_changes_total": "leaderChanges",
    "rocketmq_controller_raft_campaigns_total": "campaigns",
    "rocketmq_controller_raft_pre_votes_refused_total": "preVotesRefused",
    "rocketmq_controller_raft_snapshot_seconds": "snapshotSeconds",
}

_RAFT_COUNTS = {
    "rocketmq_controller_raft_refused_connections_total": "refusedConnections",
    "rocketmq_controller_raft_guard_drops_total": "guardDrops",
}

_RAFT_HISTOGRAMS = {
    "rocketmq_controller_raft_commit_seconds": "commitSeconds",
    "rocketmq_controller_raft_sync_seconds": "syncSeconds",
    "rocketmq_controller_raft_batch_events": "batchSizes",
}


def scrapes(sources: MetricSources) -> Slices[list[Scrape]]:
    """Returns the samples of both tables. Those of groups are read in slices, so each group is as it was at
    one moment, and not all are of the same."""
    controller = sources.groups.controller
    self_id, config = controller.replicator.self_id, controller.config
    upstream = Scrape(
        UPSTREAM, (controller.request_address(self_id) or "", config.controller_d_leger_group, self_id)
    )
    ours = Scrape(OURS, ("controller", self_id))
    _add_raft(upstream, ours, controller, controller.replicator.status())
    _add_requests(upstream, ours, sources)
    state = controller.state  # a value: changes replace it
    ours.add("rocketmq_controller_groups", len(state.brokers))
    ours.add("rocketmq_controller_brokers", state.size)
    ours.add("rocketmq_controller_brokers_max", config.controller_brokers_max)
    counts = dict(controller.elections.tally.counts)
    yield
    for number, (counted, count) in enumerate(counts.items(), 1):
        ours.add("rocketmq_controller_elections_total", count, *counted)
        if number % SLICE_ELECTIONS == 0:
            yield
    by_result = yield from _by_result(counts)
    for number, (labels, count) in enumerate(by_result.items(), 1):
        upstream.add("election_total", count, *labels)
        if number % SLICE_ELECTIONS == 0:
            yield
    yield
    names = nsmallest(GROUPS_MAX, state.brokers)
    for number, name in enumerate(names, 1):
        _add_group(upstream, ours, sources.groups, state.brokers[name])
        if number % SLICE_GROUPS == 0:
            yield
    add_telemetry(ours, sources.telemetry)
    return [upstream, ours]


def _add_raft(upstream: Scrape, ours: Scrape, controller: ControllerSources, status: dict[str, Any]) -> None:
    ours.add("rocketmq_controller_active", controller.replicator.is_active)
    upstream.add("role", _role(controller, status))
    if not status.get("running"):
        return
    upstream.add("dledger_disk_usage_bytes", status["journalBytes"] + status["snapshotBytes"])
    totals: dict[str, int] = {}
    for outcome, count in status["outcomes"].items():
        kind = OPERATION_STATUS[outcome]
        totals[kind] = totals.get(kind, 0) + count
    for kind, count in totals.items():
        upstream.add("dledger_op_total", count, "append", kind)
    for name, key in _RAFT.items():
        ours.add(name, status[key])
    ours.add("rocketmq_controller_raft_members", len(status["members"]))
    ours.add("rocketmq_controller_raft_connected_members", len(status["connected"]))
    for name, key in _RAFT_COUNTS.items():
        for label, count in sorted(status[key].items()):
            ours.add(name, count, label)
    if "certificateEnds" in status:
        ours.add("rocketmq_controller_raft_certificate_end_seconds", status["certificateEnds"])
    for name, key in _RAFT_HISTOGRAMS.items():
        values = status[key]
        ours.add_buckets(name, values["bounds"], values["counts"], values["sum"])
    commit = status["commitSeconds"]
    bounds = [round(each * 1e6) for each in commit["bounds"]]
    upstream.add_buckets(
        "dledger_op_latency_microseconds", bounds, commit["counts"], commit["sum"] * 1e6, "append", "success"
    )


def _add_requests(upstream: Scrape, ours: Scrape, sources: MetricSources) -> None:
    """Heartbeats have their own counter: RequestCounts would cost too much on that path."""
    heartbeats = sources.heartbeat_count()
    ours.add("rocketmq_controller_heartbeats_total", heartbeats)
    for result, count in zip(("proved", "unproved"), sources.probe_counts(), strict=True):
        ours.add("rocketmq_controller_connection_probes_total", count, result)
    ours.add("rocketmq_controller_hung_masters_total", sources.hung_count())
    add_unsent(ours, "rocketmq_controller", sources.write_buffers)
    add_limits(ours, "rocketmq_controller", sources.limits)
    add_loop(ours, "rocketmq_controller", loop_watch.running())
    totals = {(request_type(RequestCode.BROKER_HEARTBEAT), "success"): heartbeats}
    for (code, answer), count in sorted(sources.requests.answers.items()):
        ours.add("rocketmq_controller_requests_total", count, RequestCode(code).name, answer)
        status = REQUEST_STATUS.get(answer, "success")
        key = (request_type(code), status)
        totals[key] = totals.get(key, 0) + count
    for labels, count in totals.items():
        upstream.add("request_total", count, *labels)
    for code, latency in sources.requests.latencies.items():
        upstream.add_histogram("request_latency_microseconds", latency, request_type(code))


def request_type(code: int) -> str:
    """Returns RocketMQ's name of a controller request (ControllerRequestCode); KeelMQ's keep their names."""
    name = RequestCode(code).name
    return name if name.startswith(("CONTROLLER_", "KEELMQ_")) else f"CONTROLLER_{name}"


def _role(controller: ControllerSources, status: dict[str, Any]) -> int:
    if not status.get("running"):
        return ROLE_UNKNOWN
    if controller.replicator.is_active:
        return ROLE_LEADER
    return ROLE_CANDIDATE if controller.replicator.leader_id is None else ROLE_FOLLOWER


def _by_result(counts: Mapping[Counted, int]) -> Slices[dict[tuple[str, str, str], int]]:
    totals: dict[tuple[str, str, str], int] = {}
    for number, (counted, count) in enumerate(counts.items(), 1):
        labels = counted[:3]
        totals[labels] = totals.get(labels, 0) + count
        if number % SLICE_ELECTIONS == 0:
            yield
    return totals


def _add_group(upstream: Scrape, ours: Scrape, sources: GroupSources, broker_set: BrokerSet) -> None:
    cluster, name = broker_set.cluster_name, broker_set.broker_name
    liveness, now = sources.liveness, sources.clock()
    keys = broker_set.keys()
    alive = sum(liveness.is_active(key, now) for key in keys)
    upstream.add("active_broker_num", alive, cluster, name)
    ours.add("rocketmq_controller_group_master_epoch", broker_set.master_epoch, cluster, name)
    ours.add("rocketmq_controller_group_syncstateset_size", len(broker_set.sync_state_set), cluster, name)
    if sources.controller.replicator.is_active:
        retry = sources.controller.elections.retries.get(name)
        seconds = 0.0 if retry is None else (now - retry.since_ms) / 1_000
        ours.add("rocketmq_controller_group_without_master_seconds", seconds, cluster, name)
    for key in keys:
        _add_heartbeat(ours, liveness, key, now)


def _add_heartbeat(ours: Scrape, liveness: Liveness, key: BrokerKey, now_ms: int) -> None:
    seen = liveness.last_seen(key)
    if seen is not None:
        age = (now_ms - seen.last_heartbeat_ms) / 1_000
        ours.add(
            "rocketmq_controller_heartbeat_age_seconds",
            age,
            key.cluster_name,
            key.broker_name,
            str(key.broker_id),
        )
