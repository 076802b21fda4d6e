"""Writes telemetry of a fleet at a steady rate, as its nodes do: files that grow, a sample a second of each
broker.

    python -m tests.bench.analytics_load DIRECTORY RATE

A group has a master and two slaves, so RATE records a second are RATE / 3 groups. Of the first group's
samples the times are kept in DIRECTORY/probe.txt: a benchmark looks for them in a page.
"""

import sys
import time
from collections import defaultdict
from itertools import count
from pathlib import Path

from keelmq.remoting.records import (
    ControllerEvent,
    GroupView,
    HaSample,
    Record,
    ReplicaSample,
    encode_record,
    name_of,
)
from keelmq.runtime.clock import now_ms, wall_ms

CLUSTER, PROBE = "Load", "group-00000"
PROBE_FILE = "probe.txt"
BROKERS = (1, 2, 3)
TICKS = 10
"""In a second; in each a part of the groups writes."""
GROUPS_A_FILE = 20
BYTES_A_SECOND = 65_536


class Node:
    """A telemetry directory, into which some groups write."""

    def __init__(self, root: Path, number: int) -> None:
        self._root, self._name = root / f"node-{number:04d}" / "telemetry", f"node-{number:04d}"

    def write(self, kind: str, ts: int, lines: bytes) -> None:
        hour = time.strftime("dt=%Y-%m-%d/hour=%H", time.gmtime(ts / 1000))
        folder = self._root / kind / hour
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{self._name}-1.jsonl.open").open("ab") as file:
            file.write(lines)


def samples(group: int, ts: int, second: int) -> list[HaSample]:
    """Returns what the three brokers of a group write in a second."""
    end = second * BYTES_A_SECOND
    behind = (group * 7919 + second) % 4_096
    head = {"cluster_name": CLUSTER, "broker_name": f"group-{group:05d}", "ts": ts, "master_epoch": 1}
    replicas = tuple(
        ReplicaSample(broker_id=each, ack_offset=end - behind, lag_ms=behind % 30, in_sync=True)
        for each in BROKERS[1:]
    )
    master = HaSample(
        **head, broker_id=1, role="master", max_offset=end, confirm_offset=end - behind, lag_ms=behind % 30,
        lag_ms_max=behind % 40, lag_bytes_max=behind, sync_state_set=BROKERS, sync_state_set_epoch=1,
        min_in_sync_replicas=2, replicas=replicas, lag_us=((60, 4), (64, 5), (70, 1)),
        confirm_us=((70, 20), (74, 30), (80, 1)),
    )  # fmt: skip
    slaves = [
        HaSample(**head, broker_id=each, role="slave", max_offset=end, confirm_offset=end - behind)
        for each in BROKERS[1:]
    ]
    return [master, *slaves]


def snapshot(group: int, ts: int) -> ControllerEvent:
    """Returns what a controller writes of a group at the start of its file."""
    view = GroupView(
        master_broker_id=1, master_epoch=1, sync_state_set=BROKERS, sync_state_set_epoch=1, replicas=BROKERS
    )
    return ControllerEvent(
        ts=ts, cluster_name=CLUSTER, broker_name=f"group-{group:05d}", event_id=1, type="snapshot",
        controller_id="n0", log_id="L", before=view, after=view,
    )  # fmt: skip


def write_load(root: Path, rate: int) -> None:
    """Writes until it is killed; a second that is late is written late, not left out."""
    groups = max(1, rate // len(BROKERS))
    nodes = [Node(root, number) for number in range(-(-groups // GROUPS_A_FILE))]
    _write(nodes, [(each, [snapshot(each, wall_ms())]) for each in range(groups)], wall_ms())
    began_ms = now_ms()
    with (root / PROBE_FILE).open("a") as probe:
        for tick in count():
            due_ms = began_ms + tick * 1_000 // TICKS
            while (left_ms := due_ms - now_ms()) > 0:
                time.sleep(left_ms / 1_000)
            ts = wall_ms()
            mine = range(tick % TICKS, groups, TICKS)
            _write(nodes, [(each, samples(each, ts, tick // TICKS + 1)) for each in mine], ts)
            if tick % TICKS == 0:
                probe.write(f"{ts}\n")
                probe.flush()


def _write(nodes: list[Node], records: list[tuple[int, list[Record]]], ts: int) -> None:
    lines: defaultdict[tuple[int, str], bytearray] = defaultdict(bytearray)
    for group, some in records:
        for record in some:
            lines[group // GROUPS_A_FILE, name_of(type(record))] += encode_record(record)
    for (node, kind), text in lines.items():
        nodes[node].write(kind, ts, bytes(text))


if __name__ == "__main__":
    write_load(Path(sys.argv[1]), int(sys.argv[2]))
