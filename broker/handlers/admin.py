"""What tools, slaves and consumers ask beside the data path: 30, 31, 21, 26, 28; and the binding of all."""

import shutil
import time

from broker.handlers.parts import BrokerParts
from broker.handlers.pull import PullHandler
from broker.handlers.query import QueryHandlers
from broker.handlers.send import SendHandler
from broker.handlers.send_back import SendBackHandler
from remoting.codes import VERSION
from remoting.operation import Call, Empty, OperationTable, Reply, Wire
from remoting.operations.broker import (
    GET_ALL_TOPIC_CONFIG,
    GET_BROKER_CONFIG,
    GET_BROKER_RUNTIME_INFO,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    OffsetResponse,
    QueueRequest,
)

VERSION_DESC = "V5_3_3"
"""The name of remoting.codes.VERSION."""


class BrokerConfigVersion(Wire):
    """Response header of 26: the data version of the configuration, JSON inside a string."""

    version: str = '{"counter":0,"stateVersion":0,"timestamp":0}'


class AdminHandlers:
    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._booted_at = time.time()

    def bind(self, table: OperationTable) -> None:
        table.bind(GET_MAX_OFFSET, self.get_max_offset)
        table.bind(GET_MIN_OFFSET, self.get_min_offset)
        table.bind(GET_ALL_TOPIC_CONFIG, self.get_all_topic_config)
        table.bind(GET_BROKER_CONFIG, self.get_broker_config)
        table.bind(GET_BROKER_RUNTIME_INFO, self.get_broker_runtime_info)

    async def get_max_offset(self, header: QueueRequest, call: Call) -> OffsetResponse:
        """The next offset that a consumer can see; 0 for a queue without messages."""
        return OffsetResponse(offset=self._parts.store.max_queue_offset(header.topic, header.queue_id))

    async def get_min_offset(self, header: QueueRequest, call: Call) -> OffsetResponse:
        return OffsetResponse(offset=self._parts.store.min_queue_offset(header.topic, header.queue_id))

    async def get_all_topic_config(self, header: Empty, call: Call) -> Reply:
        return Reply(body=self._parts.topics.wrapper())

    async def get_broker_config(self, header: Empty, call: Call) -> Reply:
        return Reply(header=BrokerConfigVersion(), body=self._parts.properties_text().encode())

    async def get_broker_runtime_info(self, header: Empty, call: Call) -> Reply:
        return Reply(body={"table": dict(sorted(self._runtime_table().items()))})

    def _runtime_table(self) -> dict[str, str]:
        """All values are texts. Counters count since start: 'today' began then."""
        store = self._parts.store
        disk = shutil.disk_usage(store.root)
        table = {
            "bootTimestamp": str(int(self._booted_at * 1000)),
            "brokerActive": str(self._parts.gate.writable).lower(),
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_DESC,
            "commitLogDiskRatio": f"{disk.used / disk.total:.4f}",
            "commitLogMaxOffset": str(store.commit_log.max_offset),
            "commitLogMinOffset": str(store.commit_log.min_offset),
            "confirmOffset": str(store.confirm_offset),
            "dispatchBehindBytes": str(max(store.confirm_offset - store.dispatch_offset, 0)),
            "msgGetTotalTodayNow": str(store.got_messages),
            "msgGetTotalTodayMorning": "0",
            "msgPutTotalTodayNow": str(store.put_messages),
            "msgPutTotalTodayMorning": "0",
            "pendingReplies": str(len(self._parts.pending)),
            "putMessageSizeTotal": str(store.put_bytes),
            "putMessageTimesTotal": str(store.put_messages),
            "runtime": _duration(time.time() - self._booted_at),
            "writable": str(self._parts.gate.writable).lower(),
        }
        return table | dict(self._parts.runtime_info())


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"[ {days} days, {hour} hours, {minute} minutes, {second} seconds ]"


class BrokerHandlers:
    """Everything bound; the app calls expire() once or several times a second."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self.send, self.pull, self.admin = SendHandler(parts), PullHandler(parts), AdminHandlers(parts)
        self.send_back = SendBackHandler(parts, self.send.writer)
        self.query = QueryHandlers(parts)

    def expire(self, now_ms: int) -> None:
        self.pull.expire(now_ms)
        parts = self._parts
        parts.pending.expire(now_ms, parts.replication_timeout_ms, parts.flush_timeout_ms)


def bind_broker_operations(table: OperationTable, parts: BrokerParts) -> BrokerHandlers:
    handlers = BrokerHandlers(parts)
    handlers.send.bind(table)
    handlers.pull.bind(table)
    handlers.send_back.bind(table)
    handlers.admin.bind(table)
    handlers.query.bind(table)
    return handlers
