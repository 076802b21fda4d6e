"""Part of suite controller: a small group whose brokers send heartbeats to all three controllers.

One event after the other, over TCP, in turns with puts into etcd on the same disk; and how long nobody serves
when the leader is killed (SIGKILL) or stands still (SIGSTOP). No broker group may get another master by that.
"""

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from keelmq.remoting.command import decode_body, encode, request_command
from keelmq.remoting.operation import Empty
from keelmq.remoting.operations.controller import (
    ALTER_SYNC_STATE_SET,
    GET_REPLICA_INFO,
    GET_SYNC_STATE_DATA,
    AlterSyncStateSetRequest,
    BrokerNameRequest,
    BrokerReplicasInfo,
    SyncStateSet,
)
from tests.bench import etcd
from tests.bench.controllers import Client, Controller, controllers, leader_of, until
from tests.bench.groups import Group, groups_of
from tests.bench.heartbeats import Heartbeats
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results, median

GROUPS, BROKERS = 50, 150
ROUNDS, CALLS = 9, 300
VALUE = b"v" * 100
KEYS = 10
TURNS = 10
KILLED_MS_MAX, STOPPED_MS_MAX = 500.0, 1_000.0
HEARTBEAT_S = 0.1
"""Of a leader. It may stop at any moment between two; a silent one is replaced 0.41 s after the last."""
PROBE_TIMEOUT_S = 0.2
SERVED_S_MAX = 20.0


def run(directory: Path) -> Results:
    with ExitStack() as stack:
        members = stack.enter_context(controllers(directory))
        leader, groups = leader_of(members), groups_of(GROUPS, BROKERS)
        leader.do("populate", groups=GROUPS, brokers=BROKERS)
        stack.enter_context(Heartbeats(groups, [member.address for member in members]))
        for member in members:
            until(
                lambda member=member: member.do("heartbeats")["active"] == BROKERS, "all brokers are active"
            )  # type: ignore[misc]
        results = sequential(leader, groups[0], directory / "etcd")
        before = masters(members, groups)
        killed = [_without_leader(members, groups[0], Controller.kill, _start) for _ in range(TURNS)]
        stopped = [
            _without_leader(members, groups[0], _stop, _resume, after_s=HEARTBEAT_S * turn / TURNS)
            for turn in range(TURNS)
        ]
        after = masters(members, groups)
        if after != before:
            changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
            raise BenchError(f"(master, epoch) changed because a controller did: {changed}")
    return results | {
        "leader_kill_ms": _goal(median(killed), KILLED_MS_MAX),
        "leader_kill_max_ms": _goal(max(killed), KILLED_MS_MAX),
        "leader_stop_ms": _goal(median(stopped), STOPPED_MS_MAX),
        "leader_stop_max_ms": _goal(max(stopped), STOPPED_MS_MAX),
    }


# ---- one after the other ----


class Alternation:
    """A replica of one group leaves the SyncStateSet and comes back; each call is one event of the log."""

    def __init__(self, leader: Controller, group: Group) -> None:
        self._client, self._group = Client(leader), group
        info = self._client.call(GET_REPLICA_INFO, BrokerNameRequest(broker_name=group.broker_name))
        self._master_epoch = int(info.ext_fields["masterEpoch"])
        self._epoch, self._everybody = int(info.ext_fields["syncStateSetEpoch"]), sorted(group.addresses)
        self._full = True

    def close(self) -> None:
        self._client.close()

    def __call__(self) -> None:
        self._full = not self._full
        header = AlterSyncStateSetRequest(
            broker_name=self._group.broker_name, master_broker_id=1, master_epoch=self._master_epoch
        )
        members = self._everybody if self._full else self._everybody[:-1]
        body = SyncStateSet(sync_state_set=members, sync_state_set_epoch=self._epoch)
        answer = self._client.exchange(encode(request_command(ALTER_SYNC_STATE_SET, header, body)))
        self._epoch += 1
        if b'"code":0' not in answer or b'"newSyncStateSetEpoch":"%d"' % self._epoch not in answer:
            raise BenchError(f"alterSyncStateSet: {answer!r}")


class Puts:
    def __init__(self, port: int) -> None:
        self._client, self._count = etcd.Client(port), 0

    def close(self) -> None:
        self._client.close()

    def __call__(self) -> None:
        self._count += 1
        self._client.put(b"key-%d" % (self._count % KEYS), VALUE)


def sequential(leader: Controller, group: Group, directory: Path) -> Results:
    with closing(Alternation(leader, group)) as alternation:
        if not etcd.is_installed():
            print(f"sequential_vs_etcd: left out, there is no etcd here; {etcd.INSTALL}")
            _timed(alternation)
            p50_ms = median(_timed(alternation)) * 1_000
            return {"sequential_p50_ms": Measurement(p50_ms, "ms", 0.0, 0.0)}
        print(
            f"sequential_vs_etcd: {etcd.version()}, 3 members with their defaults, Put by gRPC written by "
            "hand on a connection to its leader; ours is 1001, alterSyncStateSet, on one to our leader, and "
            "our members always encrypt what they send each other; sequential_vs_etcd_tls: etcd's do so, too"
        )
        plain = _against_etcd(alternation, directory / "plain", encrypts=False)
        return plain | _against_etcd(alternation, directory / "tls", encrypts=True)


def _against_etcd(ours: Callable[[], None], directory: Path, *, encrypts: bool) -> Results:
    with (
        etcd.cluster(directory, encrypts=encrypts) as members,
        closing(Puts(etcd.leader_of(members).client_port)) as theirs,
    ):
        return _in_turns(ours, theirs, "_tls" if encrypts else "")


def _in_turns(ours: Callable[[], None], theirs: Callable[[], None], suffix: str) -> Results:
    """The first round of each is a warm-up; the ratio is the median of the rounds' ratios."""
    rounds = [(_timed(ours), _timed(theirs)) for _ in range(1 + ROUNDS)][1:]
    rates, references = ([CALLS / sum(times) for times in side] for side in zip(*rounds, strict=True))
    p50, reference_p50 = (
        median(each for times in side for each in times) * 1_000 for side in zip(*rounds, strict=True)
    )
    ratio = median(rate / reference for rate, reference in zip(rates, references, strict=True))
    return {
        f"sequential_vs_etcd{suffix}": Measurement(median(rates), "events/s", median(references), ratio),
        f"sequential{suffix}_p50_ms": Measurement(p50, "ms", reference_p50, p50 / reference_p50),
    }


def _timed(call: Callable[[], None]) -> list[float]:
    seconds = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return seconds


# ---- without a leader ----


def masters(members: list[Controller], groups: list[Group]) -> dict[str, tuple[int | None, int]]:
    """(master, masterEpoch) of each group."""
    with closing(Client(leader_of(members))) as client:
        names = [group.broker_name for group in groups]
        body = client.call(GET_SYNC_STATE_DATA, Empty(), names).body
    table = decode_body(BrokerReplicasInfo, body).replicas_info_table
    return {name: (table[name].master_broker_id, table[name].master_epoch) for name in names}


def _without_leader(
    members: list[Controller],
    group: Group,
    end: Callable[[Controller], None],
    back: Callable[[Controller], None],
    after_s: float = 0.0,
) -> float:
    """ms from the signal until another member answers a fresh read. after_s: from the leader's last append to
    the signal."""
    leader = leader_of(members)
    others = [member for member in members if member is not leader]
    time.sleep(after_s)
    begin = time.perf_counter()
    end(leader)
    try:
        until(lambda: any(_serves(member, group) for member in others), "another leads", SERVED_S_MAX)
        return (time.perf_counter() - begin) * 1_000
    finally:
        back(leader)


def _serves(member: Controller, group: Group) -> bool:
    try:
        with closing(Client(member, PROBE_TIMEOUT_S)) as client:
            header = BrokerNameRequest(broker_name=group.broker_name)
            return client.call(GET_REPLICA_INFO, header).code == 0
    except OSError:
        return False


def _start(member: Controller) -> None:
    member.start()
    member.wait_ready()


def _stop(member: Controller) -> None:
    member.signal(signal.SIGSTOP)


def _resume(member: Controller) -> None:
    member.signal(signal.SIGCONT)


def _goal(value_ms: float, goal_ms: float) -> Measurement:
    return Measurement(value_ms, "ms", goal_ms, value_ms / goal_ms)
