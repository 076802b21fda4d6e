"""The runtime information (28): every key that RocketMQ's tools look for, as text, with the right numbers."""

import json
import re
from pathlib import Path

from broker.admin.runtime_info import RuntimeInfo, readable_bytes
from broker.metadata.offsets import DelayOffsetTable
from broker.stats.service import BrokerStats
from tests.support.handler_parts import Broker

KEYS = [
    "brokerVersionDesc",
    "brokerVersion",
    "brokerActive",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "dispatchBehindBytes",
    "pageCacheLockTimeMills",
    "earliestMessageTimeStamp",
    "startAcceptSendRequestTimeStamp",
    "commitLogDirCapacity",
    "commitLogDiskRatio",
    "consumeQueueDiskRatio",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "remainTransientStoreBufferNumbs",
    "remainHowManyDataToFlush",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "bootTimestamp",
    "runtime",
    "putMessageEntireTimeMax",
    "putMessageTimesTotal",
    "putMessageFailedTimes",
    "putMessageSizeTotal",
    "putMessageDistributeTime",
    "putMessageAverageSize",
    "dispatchMaxBuffer",
    "getMessageEntireTimeMax",
    "putTps",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "getTransferredTps",
    "putLatency99",
    "putLatency999",
]


def test_all_keys_are_there_and_are_texts(tmp_path: Path) -> None:
    broker, now = Broker(tmp_path), [0]
    stats = BrokerStats(
        broker.store, broker.context.reads, "c", timer_counts=lambda: (0, 0), clock=lambda: now[0]
    )
    wall = [1_000.0]
    delays = DelayOffsetTable(tmp_path / "delayOffset.json")
    info = RuntimeInfo(broker.context, stats, delays, wall_s=lambda: wall[0])
    assert info.table()["earliestMessageTimeStamp"] == "-1"
    stats.tick()
    for _ in range(3):
        broker.send()
    broker.send(i="DELAY\x012\x02")
    broker.tick()
    broker.pull(0)
    broker.pull(3)
    now[0], wall[0] = 10_000, 1_000.0 + 90_061
    stats.tick()
    table = info.table()
    pools = [
        f"{pool}ThreadPoolQueue{what}"
        for pool in ("send", "pull", "litePull", "query", "ack")
        for what in ("Size", "Capacity", "HeadWaitTimeMills")
    ]
    assert set(table) >= {*KEYS, *pools}
    assert all(isinstance(value, str) for value in table.values())
    assert (table["msgPutTotalTodayNow"], table["masterEpoch"]) == ("4", "7")
    assert (table["brokerVersionDesc"], table["brokerActive"]) == ("V5_3_3", "true")
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    assert table["commitLogMaxOffset"] == table["confirmOffset"] == str(broker.store.commit_log.max_offset)
    assert table["putTps"] == "0.4 0.4 0.4"
    assert (table["getFoundTps"], table["getTotalTps"]) == ("0.1 0.1 0.1", "0.2 0.2 0.2")
    assert table["getTransferredTps"].split()[0] == "0.3"
    assert table["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert table["scheduleMessageOffset_2"] == "0,1" and "scheduleMessageOffset_1" not in table
    assert int(table["earliestMessageTimeStamp"]) > 0
    assert re.fullmatch(r"Total : \S+ \S+, Free : \S+ \S+\.", table["commitLogDirCapacity"])
    json.dumps(table)
    broker.store.close()


def test_sizes_as_people_read_them() -> None:
    assert [readable_bytes(count) for count in (0, 1023, 1024, 1536, 5 << 30, 1 << 62)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "4.0 EiB",
    ]  # fmt: skip
