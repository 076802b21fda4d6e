"""The runtime information (28): every key that RocketMQ's tools look for, as text, with the right numbers."""

import json
import re
from pathlib import Path

from broker.admin.runtime_info import RuntimeInfo, readable_bytes
from broker.metadata.offsets import DelayOffsetTable
from broker.stats.service import BrokerStats
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.frame import whole_frames
from keelmq.runtime.program import installed_version
from tests.support.handler_parts import Broker

FRAMES = Path(__file__).parents[3] / "fixtures" / "frames"
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
    assert table["keelmqVersion"] == installed_version() != ""
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


def test_an_answer_of_rocketmq_has_no_key_that_ours_lacks(tmp_path: Path) -> None:
    """Exporters fail on missing keys. Keys with a path, a level or a disk's name are those of its machine."""
    frame = (FRAMES / "28-broker-runtime-info-mqadmin.resp.bin").read_bytes()
    ((_, _, body, _),) = whole_frames(frame)
    theirs = {key for key in json.loads(body)["table"] if "_" not in key}
    broker = Broker(tmp_path)
    stats = BrokerStats(broker.store, broker.context.reads, "c", timer_counts=lambda: (0, 0))
    info = RuntimeInfo(broker.context, stats, DelayOffsetTable(tmp_path / "delayOffset.json"))
    assert theirs and theirs <= info.table().keys(), theirs - info.table().keys()
    broker.store.close()


def test_what_stands_for_queues_of_thread_pools_is_measured(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    stats = BrokerStats(broker.store, broker.context.reads, "c", timer_counts=lambda: (0, 0))
    info = RuntimeInfo(broker.context, stats, DelayOffsetTable(tmp_path / "delayOffset.json"))
    stats.loop_lag_ms = 17
    broker.pending.latency.running[RequestCode.QUERY_MESSAGE] = 2
    table = info.table()
    assert table["sendThreadPoolQueueHeadWaitTimeMills"] == table["pageCacheLockTimeMills"] == "17"
    assert (table["queryThreadPoolQueueSize"], table["ackThreadPoolQueueSize"]) == ("2", "0")
    assert int(table["sendThreadPoolQueueCapacity"]) == broker.pending.room
    broker.store.close()


def test_sizes_as_people_read_them() -> None:
    assert [readable_bytes(count) for count in (0, 1023, 1024, 1536, 5 << 30, 1 << 62)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB", "4.0 EiB",
    ]  # fmt: skip
