"""AdminClient's requests to one broker about producers and consumers: connections, consume progress, and
changes to groups and their offsets."""

import json
from dataclasses import dataclass, field
from typing import Any

from keelmq.client.admin.transport import CANNOT_SAY, AdminError, AdminTransport, body_of
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Ok, Operation
from keelmq.remoting.operations.broker_admin import (
    CLONE_GROUP_OFFSET,
    GET_BROKER_CONSUME_STATS,
    BrokerConsumeStatsRequest,
    CloneOffsetRequest,
)
from keelmq.remoting.operations.broker_metadata import (
    DELETE_SUBSCRIPTIONGROUP,
    EXPLAIN_DELETE_GROUP,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    DeleteGroupRequest,
    GroupDeletion,
    GroupPageRequest,
    SubscriptionGroupConfig,
    SubscriptionGroups,
)
from keelmq.remoting.operations.clients import (
    CONSUME_MESSAGE_DIRECTLY,
    EXPLAIN_RESET_OFFSET,
    GET_ALL_PRODUCER_INFO,
    GET_CONSUME_STATS,
    GET_CONSUMER_CONNECTION_LIST,
    GET_CONSUMER_RUNNING_INFO,
    GET_PRODUCER_CONNECTION_LIST,
    INVOKE_BROKER_TO_RESET_OFFSET,
    ConsumerCallRequest,
    ConsumerConnectionBody,
    ConsumerGroupRequest,
    ConsumeStatsRequest,
    ProducerConnectionBody,
    ProducerGroupRequest,
    ResetOffsetRequest,
    ResetRow,
)
from keelmq.remoting.paged_table import PAGE_ROWS, PagedTable
from keelmq.remoting.queue_map import QueueKey, load_queue_map

CONSUME_STATS_TIMEOUT_MS = 50_000
"""Time limit for the progress of all groups of a broker."""
CALL_TIMEOUT_MS = 12_000
"""The broker waits 10 s for the consumer's response."""


@dataclass(frozen=True)
class QueueProgress:
    """Progress of a group in one queue. last_timestamp: when its last consumed message was stored (ms), 0 if
    unknown."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int = 0
    pull_offset: int = 0

    @property
    def behind(self) -> int:
        """Returns the number of messages that are not consumed yet."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """Returns the number of messages that are pulled but not consumed yet."""
        return max(self.pull_offset - self.consumer_offset, 0)


@dataclass(frozen=True)
class GroupProgress:
    """Progress of a group at one broker. tps: messages delivered to it per second, mean of the last
    minute."""

    queues: dict[QueueKey, QueueProgress] = field(default_factory=dict)
    tps: float = 0.0


class GroupAdmin(AdminTransport):
    """Requests to one broker about its clients, groups and offsets. All methods raise AdminError."""

    async def consume_stats(self, broker_addr: str, group: str, topic: str | None = None) -> GroupProgress:
        """Returns the group's progress (GET_CONSUME_STATS, 208); empty if it has consumed nothing at this
        broker."""
        header = ConsumeStatsRequest(consumer_group=group, topic=topic)
        return _progress(
            await self.ask(broker_addr, GET_CONSUME_STATS, header), GET_CONSUME_STATS, broker_addr
        )

    async def broker_consume_stats(
        self, broker_addr: str, *, is_order: bool = False, timeout_ms: int = CONSUME_STATS_TIMEOUT_MS
    ) -> dict[str, list[GroupProgress]]:
        """Returns the progress of every group, one entry per topic (GET_BROKER_CONSUME_STATS, 317)."""
        header = BrokerConsumeStatsRequest(is_order=is_order)
        answer = await self.ask(broker_addr, GET_BROKER_CONSUME_STATS, header, timeout_ms=timeout_ms)
        try:
            _, members = load_queue_map(bytes(answer.body or b""), "")
            return {
                group: [_progress_of(value) for value in values]
                for groups in members.get("consumeStatsList") or []
                for group, values in groups.items()
            }
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise AdminError(GET_BROKER_CONSUME_STATS.name, broker_addr, f"unreadable: {error}", 0) from error

    async def consumer_connections(self, broker_addr: str, group: str) -> ConsumerConnectionBody:
        """Returns the group's connected members and subscriptions (GET_CONSUMER_CONNECTION_LIST, 203).
        AdminError 206: no member is connected to this broker."""
        header = ConsumerGroupRequest(consumer_group=group)
        answer = await self.ask(broker_addr, GET_CONSUMER_CONNECTION_LIST, header)
        return body_of(answer, ConsumerConnectionBody, GET_CONSUMER_CONNECTION_LIST, broker_addr)

    async def producer_connections(self, broker_addr: str, group: str) -> ProducerConnectionBody:
        """Returns the group's connected producers (GET_PRODUCER_CONNECTION_LIST, 204). AdminError 1: none is
        connected to this broker."""
        header = ProducerGroupRequest(producer_group=group)
        answer = await self.ask(broker_addr, GET_PRODUCER_CONNECTION_LIST, header)
        return body_of(answer, ProducerConnectionBody, GET_PRODUCER_CONNECTION_LIST, broker_addr)

    async def producers(self, broker_addr: str) -> dict[str, list[dict[str, Any]]]:
        """Returns {clientId, language, remoteIP, version} of each connected producer, by group
        (GET_ALL_PRODUCER_INFO, 328). remoteIP: host:port; brokers write /host:port."""
        answer = await self.ask(broker_addr, GET_ALL_PRODUCER_INFO, Empty())
        table = (answer.body.get("data") if isinstance(answer.body, dict) else answer.body) or {}
        members = [each for rows in _lists_of(table) for each in rows]
        if not all(isinstance(each, dict) for each in members):
            remark = "unreadable: it is not {data: {group: [{clientId, ...}]}}"
            raise AdminError(GET_ALL_PRODUCER_INFO.name, broker_addr, remark, 0)
        for each in members:
            if isinstance(each.get("remoteIP"), str):
                each["remoteIP"] = each["remoteIP"].removeprefix("/")
        return dict(table)

    async def running_info(
        self, broker_addr: str, group: str, client_id: str, *, jstack: bool = False
    ) -> dict[str, Any]:
        """Returns the ConsumerRunningInfo of one consumer; mqTable: QueueKey -> ProcessQueueInfo
        (GET_CONSUMER_RUNNING_INFO, 307)."""
        header = ConsumerCallRequest(consumer_group=group, client_id=client_id, jstack_enable=jstack)
        answer = await self.ask(broker_addr, GET_CONSUMER_RUNNING_INFO, header, timeout_ms=CALL_TIMEOUT_MS)
        try:
            queues, members = load_queue_map(bytes(answer.body or b"{}"), "mqTable")
        except ValueError as error:
            raise AdminError(
                GET_CONSUMER_RUNNING_INFO.name, broker_addr, f"unreadable: {error}", 0
            ) from error
        return members | {"mqTable": queues}

    async def consume_directly(
        self, broker_addr: str, group: str, client_id: str, offset_msg_id: str
    ) -> dict[str, Any]:
        """Makes one consumer consume one message now; no offset changes (CONSUME_MESSAGE_DIRECTLY, 309).
        Returns {consumeResult, order, autoCommit, remark, spentTimeMills}."""
        header = ConsumerCallRequest(consumer_group=group, client_id=client_id, msg_id=offset_msg_id)
        answer = await self.ask(broker_addr, CONSUME_MESSAGE_DIRECTLY, header, timeout_ms=CALL_TIMEOUT_MS)
        try:
            value = json.loads(bytes(answer.body or b"{}"))
        except (ValueError, RecursionError) as error:
            raise AdminError(CONSUME_MESSAGE_DIRECTLY.name, broker_addr, f"unreadable: {error}", 0) from error
        if not isinstance(value, dict):
            remark = "the answer of the consumer is not a JSON object"
            raise AdminError(CONSUME_MESSAGE_DIRECTLY.name, broker_addr, remark, 0)
        return value

    # -- changes -----------------------------------------------------------------------------------------

    async def list_groups(self, broker_addr: str) -> dict[str, SubscriptionGroupConfig]:
        """Returns the configuration of every group of the broker, by name (GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        201)."""
        operation, table = GET_ALL_SUBSCRIPTIONGROUP_CONFIG, PagedTable[SubscriptionGroupConfig]()
        while True:
            header = GroupPageRequest(
                group_seq=table.seq, max_group_num=PAGE_ROWS, data_version=table.version_text
            )
            answer = await self.ask(broker_addr, operation, header)
            body = body_of(answer, SubscriptionGroups, operation, broker_addr)
            try:
                total = answer.header.total_group_num
                if table.take(body.subscription_group_table, body.data_version, total):
                    return table.rows
            except ValueError as error:
                raise AdminError(operation.name, broker_addr, str(error), 0) from error

    async def update_group(self, broker_addr: str, config: SubscriptionGroupConfig) -> None:
        """Creates or changes a group (UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, 200). config.attributes are
        changes: "+key": value, "-key": ""."""
        await self.ask(broker_addr, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Empty(), config)

    async def delete_group(self, broker_addr: str, group: str, *, clean_offset: bool = False) -> None:
        """Deletes the group, and its offsets if `clean_offset` (DELETE_SUBSCRIPTIONGROUP, 207)."""
        header = DeleteGroupRequest(group_name=group, clean_offset=clean_offset)
        await self.ask(broker_addr, DELETE_SUBSCRIPTIONGROUP, header)

    async def explain_delete_group(
        self, broker_addr: str, group: str, *, clean_offset: bool = False
    ) -> GroupDeletion:
        """Returns what the broker would delete with the group (EXPLAIN_DELETE_GROUP, 29052). Raises as
        explain()."""
        header = DeleteGroupRequest(group_name=group, clean_offset=clean_offset)
        answer = await self.explain(broker_addr, EXPLAIN_DELETE_GROUP, header)
        return body_of(answer, GroupDeletion, EXPLAIN_DELETE_GROUP, broker_addr)

    async def explain_reset_offset(
        self, broker_addr: str, header: ResetOffsetRequest
    ) -> dict[QueueKey, ResetRow]:
        """Returns the queues that a reset would change (EXPLAIN_RESET_OFFSET, 29053). Raises as explain()."""
        answer = await self.explain(broker_addr, EXPLAIN_RESET_OFFSET, header)
        try:
            rows, _ = load_queue_map(bytes(answer.body), "offsetTable")
            return {key: ResetRow.model_validate(row) for key, row in sorted(rows.items())}
        except ValueError:
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            raise AdminError(EXPLAIN_RESET_OFFSET.name, broker_addr, CANNOT_SAY, code) from None

    async def reset_offset(
        self,
        broker_addr: str,
        group: str,
        topic: str,
        *,
        timestamp: int,
        queue_id: int = -1,
        offset: int | None = None,
        force: bool = True,
    ) -> dict[QueueKey, int]:
        """Resets to the first message stored at `timestamp` (ms; -1: the end) or later, or to `offset` (of
        one queue) (INVOKE_BROKER_TO_RESET_OFFSET, 222). Returns the new offsets; consumers continue there at
        their next pull."""
        header = ResetOffsetRequest(
            topic=topic, group=group, queue_id=queue_id, offset=offset, timestamp=timestamp, is_force=force
        )
        answer = await self.ask(broker_addr, INVOKE_BROKER_TO_RESET_OFFSET, header)
        try:
            return load_queue_map(bytes(answer.body or b"{}"), "offsetTable")[0]
        except ValueError as error:
            remark = f"the offsets are reset, but the response is unreadable: {error}"
            raise AdminError(INVOKE_BROKER_TO_RESET_OFFSET.name, broker_addr, remark, 0) from error

    async def clone_offset(
        self, broker_addr: str, source: str, target: str, topic: str | None = None, *, offline: bool = True
    ) -> None:
        """Sets the offsets of the group `target` to those of `source` (CLONE_GROUP_OFFSET, 314)."""
        header = CloneOffsetRequest(src_group=source, dest_group=target, topic=topic, offline=offline)
        await self.ask(broker_addr, CLONE_GROUP_OFFSET, header)


def _progress(answer: Ok[Any], operation: Operation[Any, Any], address: str) -> GroupProgress:
    try:
        table, members = load_queue_map(bytes(answer.body or b"{}"), "offsetTable")
        return GroupProgress(
            {queue: _queue(row) for queue, row in table.items()}, float(members.get("consumeTps") or 0)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise AdminError(operation.name, address, f"unreadable: {error}", 0) from error


def _progress_of(value: dict[str, Any]) -> GroupProgress:
    """Returns one entry of a larger response, in which queues are already JSON texts."""
    table = {QueueKey.from_json(key): _queue(row) for key, row in (value.get("offsetTable") or {}).items()}
    return GroupProgress(table, float(value.get("consumeTps") or 0))


def _queue(row: dict[str, Any]) -> QueueProgress:
    return QueueProgress(
        int(row["brokerOffset"]),
        int(row["consumerOffset"]),
        int(row.get("lastTimestamp") or 0),
        int(row.get("pullOffset") or 0),
    )


def _lists_of(table: object) -> list[list[Any]]:
    """Returns the values of a JSON object, all lists; [[None]]: it is not one."""
    if not isinstance(table, dict) or not all(isinstance(rows, list) for rows in table.values()):
        return [[None]]
    return list(table.values())
