"""A broker may answer anything: then its numbers are unknown, and the rest of the cluster is shown."""

import pytest

from keelmq.console.core.history import History
from keelmq.health.numbers import whole
from keelmq.health.reach import HttpAnswer
from keelmq.health.snapshot import ClusterSnapshot, NameServer, RunningBroker, clock_of
from keelmq.health.summary import status_of
from keelmq.remoting.operations.route import BrokerData, ClusterInfo

GOOD, ODD = "10.0.0.1:10911", "10.0.0.2:10911"
RUNTIME = "1 days, 1 hours, 1 minutes, 1 seconds"


def seen(info: dict[str, str], settings: dict[str, str]) -> ClusterSnapshot:
    """Two groups: `a` answers as usual, `b` with these values."""
    table = {
        name: BrokerData(cluster="C", broker_name=name, broker_addrs={0: address})
        for name, address in (("a", GOOD), ("b", ODD))
    }
    cluster = ClusterInfo(broker_addr_table=table, cluster_addr_table={"C": ["a", "b"]})
    return ClusterSnapshot(
        name_servers={"10.0.0.9:9876": NameServer(cluster, {}, frozenset())},
        brokers={
            GOOD: RunningBroker({"commitLogMaxOffset": "7"}, {"brokerName": "a"}),
            ODD: RunningBroker(info, {"brokerName": "b", **settings}),
        },
    )


@pytest.mark.parametrize(
    ("info", "settings"),
    [
        ({"commitLogMaxOffset": "9" * 400}, {}),
        ({"commitLogMaxOffset": "9" * 5_000, "confirmOffset": "x"}, {}),
        ({"putTps": "1e999", "commitLogDiskRatio": "NaN"}, {}),
        ({}, {"minInSyncReplicas": "²"}),
        ({}, {"minInSyncReplicas": "9" * 5_000}),
        ({}, {"brokerPermission": "²"}),
    ],
    ids=[
        "large",
        "thousands of digits",
        "no finite numbers",
        "a superscript",
        "a long setting",
        "permission",
    ],
)
def test_one_odd_broker_hides_no_other(info: dict[str, str], settings: dict[str, str]) -> None:
    status, history = status_of(seen(info, settings)), History()
    history.add(20_000, status.groups)
    assert [group.max_offset for group in status.groups] == [7, None]
    assert status.groups[1].min_in_sync is None
    read = history.read(("C", "a"), 0, 20_000)
    assert read is not None and read.values["maxOffset"] == [7]


def test_a_number_of_more_than_64_bits_in_an_answer_is_not_kept() -> None:
    (group,) = [each for each in status_of(seen({}, {})).groups if each.broker_name == "a"]
    history = History()
    history.add(20_000, [group.model_copy(update={"max_offset": 10**400})])
    read = history.read(("C", "a"), 0, 20_000)
    assert read is not None and read.values["maxOffset"] == [None]


def test_whole_numbers() -> None:
    assert [whole(text) for text in ("7", "-1", "", None, "x", str(2**63), "²")] == [7, -1, *[None] * 5]


def test_a_clock_that_nobody_can_read_is_unknown() -> None:
    assert clock_of({"runtime": RUNTIME, "bootTimestamp": "²"}, 0) is None
    assert clock_of({"runtime": RUNTIME, "bootTimestamp": "9" * 5_000}, 0) is None
    assert clock_of({"runtime": "9" * 5_000 + RUNTIME[1:], "bootTimestamp": "1"}, 0) is not None


def test_deeply_nested_json_is_no_json() -> None:
    assert HttpAnswer(200, b"[" * 200_000, None).json() is None
