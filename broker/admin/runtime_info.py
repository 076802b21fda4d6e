"""The runtime information of a broker (28): a table of texts, with every key that RocketMQ's tools read.

Exporters fail on missing keys, so keys for RocketMQ's internals get the nearest measured value. KeelMQ
has no thread pools: the size of a "queue" is the number of its requests that are being served, for sends the
replies that wait until the message is safe; the time at its head, and the one for the page-cache lock, is the
delay of the event loop. Source: RocketMQ 5.3.3 AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from broker.core.readiness import not_writable
from broker.message.delay_levels import SCHEDULE_TOPIC
from broker.message.record import store_timestamp
from broker.metadata.offsets import DelayOffsetTable
from broker.put.handler_context import HandlerContext
from broker.stats.service import FOUND, GOT, MISSED, PUT, TIMERS_IN, TIMERS_OUT, BrokerStats
from broker.store.querying import record_at
from keelmq.remoting.codes import VERSION, VERSION_DESC, RequestCode
from keelmq.remoting.dispatch import IN_FLIGHT_MAX
from keelmq.remoting.operation import Call, Empty, OperationTable, Reply
from keelmq.remoting.operations.broker import GET_BROKER_RUNTIME_INFO
from keelmq.runtime.disk_room import disk_ratio, disk_room
from keelmq.runtime.program import installed_version

RATE_SECONDS: Final = (10, 60, 600)
NO_POOL: Final = "2147483647"
"""remainTransientStoreBufferNumbs without transientStorePoolEnable, as in RocketMQ."""
RUNNING: Final[Mapping[str, tuple[RequestCode, ...]]] = {
    "pull": (RequestCode.PULL_MESSAGE,),
    "litePull": (RequestCode.LITE_PULL_MESSAGE,),
    "query": (RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID),
    "ack": (
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    ),
}
"""The requests of RocketMQ's thread pools. Pulls are answered or suspended as soon as they are read."""


class RuntimeInfo:
    """Handler of 28. wall_s: returns seconds since 1970."""

    def __init__(
        self,
        context: HandlerContext,
        stats: BrokerStats,
        delays: DelayOffsetTable,
        *,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._context, self._stats, self._delays, self._wall_s = context, stats, delays, wall_s
        self._booted_at = wall_s()

    def bind(self, table: OperationTable) -> None:
        """Binds 28 (GET_BROKER_RUNTIME_INFO)."""
        table.bind(GET_BROKER_RUNTIME_INFO, self.get)

    async def get(self, header: Empty, call: Call) -> Reply:
        """Returns {"table": {key: text}}, sorted by key (28)."""
        return Reply(body={"table": dict(sorted(self.table().items()))})

    def table(self) -> dict[str, str]:
        """Returns all keys with their present values."""
        table = self._pools() | self._broker() | self._disk() | self._messages() | self._timers()
        table |= dict(self._delay_levels())
        return table | dict(self._context.runtime_info())

    def _pools(self) -> dict[str, str]:
        pending, stats = self._context.pending, self._stats
        running, head_wait = pending.latency.running, str(stats.loop_lag_ms)
        sizes = {pool: sum(running[code] for code in codes) for pool, codes in RUNNING.items()}
        pools = {pool: (size, IN_FLIGHT_MAX) for pool, size in sizes.items()}
        pools["send"] = len(pending), len(pending) + pending.room
        table = {
            "dispatchMaxBuffer": str(stats.dispatch_behind_max),
            "pageCacheLockTimeMills": head_wait,
            "remainTransientStoreBufferNumbs": NO_POOL,
            "EndTransactionQueueSize": str(running[RequestCode.END_TRANSACTION]),
            "EndTransactionThreadPoolQueueCapacity": str(IN_FLIGHT_MAX),
        }
        for pool, (size, capacity) in pools.items():
            table[f"{pool}ThreadPoolQueueSize"] = str(size)
            table[f"{pool}ThreadPoolQueueCapacity"] = str(capacity)
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = head_wait
        return table

    def _broker(self) -> dict[str, str]:
        refused = self._context.gate.refuse_all()
        refusal = "" if refused is None else refused.remark
        unwritable = not_writable(refusal, permits_write=self._context.gate.permits_write)
        return {
            "bootTimestamp": str(int(self._booted_at * 1000)),
            "brokerActive": str(self._context.gate.writable).lower(),
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_DESC,
            "keelmqVersion": installed_version(),
            "pendingReplies": str(len(self._context.pending)),
            "startAcceptSendRequestTimeStamp": str(
                self._context.settings.start_accept_send_request_time_stamp
            ),
            "runtime": _duration(self._wall_s() - self._booted_at),
            "writable": str(not unwritable).lower(),
            "notWritable": unwritable,
        }

    def _disk(self) -> dict[str, str]:
        store, log = self._context.store, self._context.store.commit_log
        disk = disk_room(log.directory)
        ratio = f"{disk.used_ratio:.4f}"
        total, free = readable_bytes(disk.total), readable_bytes(disk.free)
        return {
            "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{log.directory}": ratio,
            "commitLogMaxOffset": str(log.max_offset),
            "commitLogMinOffset": str(log.min_offset),
            "confirmOffset": str(store.confirm_offset),
            "consumeQueueDiskRatio": f"{disk_ratio(store.root):.4f}",
            "dispatchBehindBytes": str(max(store.confirm_offset - store.dispatch_offset, 0)),
            "logDamage": store.damage.describe(),
            "syncFault": store.sync_fault.text,
            "earliestMessageTimeStamp": str(self._oldest_ms()),
            "remainHowManyDataToFlush": readable_bytes(max(log.max_offset - log.flushed_offset, 0)),
        }

    def _oldest_ms(self) -> int:
        """Returns the store timestamp of the oldest message, in ms; -1: there is none."""
        view = record_at(self._context.store, self._context.store.commit_log.min_offset)
        return -1 if view is None else store_timestamp(view)

    def _messages(self) -> dict[str, str]:
        store, stats, times = self._context.store, self._stats, self._context.pending.times
        return {
            "getMessageEntireTimeMax": str(int(self._context.reads.longest_s * 1000)),
            "getFoundTps": self._rates(FOUND),
            "getMissTps": self._rates(MISSED),
            "getTotalTps": self._rates(FOUND, MISSED),
            "getTransferredTps": self._rates(GOT),
            "msgGetTotalTodayMorning": str(stats.got.today),
            "msgGetTotalTodayNow": str(store.got_messages),
            "msgGetTotalYesterdayMorning": str(stats.got.yesterday),
            "msgPutTotalTodayMorning": str(stats.put.today),
            "msgPutTotalTodayNow": str(store.put_messages),
            "msgPutTotalYesterdayMorning": str(stats.put.yesterday),
            "putMessageAverageSize": str(store.put_bytes / max(store.put_messages, 1)),
            "putLatency99": str(float(times.percentile(0.99))),
            "putLatency999": str(float(times.percentile(0.999))),
            "putMessageDistributeTime": times.text(),
            "putMessageEntireTimeMax": str(times.max_ms),
            "putMessageFailedTimes": str(times.failed),
            "putMessageSizeTotal": str(store.put_bytes),
            "putMessageTimesTotal": str(store.put_messages),
            "putTps": self._rates(PUT),
        }

    def _timers(self) -> dict[str, str]:
        """timerReadBehind: how long the next timer has been due, in s. timerOffsetBehind: messages that are
        not in the wheel yet. timerCongestNum: undelivered timers. The rates are those of the last 10 s."""
        timers, rates = self._context.timers, self._stats.rates
        return {
            "timerCongestNum": str(timers.waiting if timers else 0),
            "timerDequeueTps": str(round(rates.per_second(TIMERS_OUT, RATE_SECONDS[0]), 4)),
            "timerEnqueueTps": str(round(rates.per_second(TIMERS_IN, RATE_SECONDS[0]), 4)),
            "timerOffsetBehind": str(timers.unread if timers else 0),
            "timerReadBehind": str(timers.late_ms // 1_000 if timers else 0),
        }

    def _rates(self, *numbers: int) -> str:
        """Returns the rates per second over 10 s, a minute and ten minutes."""
        rates = self._stats.rates
        return " ".join(
            str(round(sum(rates.per_second(number, seconds) for number in numbers), 4))
            for seconds in RATE_SECONDS
        )

    def _delay_levels(self) -> Iterator[tuple[str, str]]:
        """Yields how many messages of each delay level were delivered, and how many there are."""
        store = self._context.store
        for level in range(1, store.delay_levels.count + 1):
            end = store.max_queue_offset(SCHEDULE_TOPIC, level - 1)
            if end:
                yield f"scheduleMessageOffset_{level}", f"{self._delays.get(level)},{end}"


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"[ {days} days, {hour} hours, {minute} minutes, {second} seconds ]"


def readable_bytes(count: float) -> str:
    """Returns the text of a size: 1536 -> "1.5 KiB"."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in "KMGTPE":
        count /= 1024
        if count < 1024 or unit == "E":
            break
    return f"{count:.1f} {unit}iB"
