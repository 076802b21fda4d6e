"""Serves operators' requests to a consumer: its state (307), its offsets (221), consuming one message (309).

`mqadmin consumerStatus`, `consumerProgress -s true`, `queryMsgById -g -d` and RocketMQ's dashboard send them
through a broker. Source: RocketMQ 5.3.3 ClientRemotingProcessor, ConsumerRunningInfo,
ConsumeMessageDirectlyResult.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from keelmq.client.consumer.consume_message_service import ReconsumeLater
from keelmq.client.consumer.damage import DamageReports
from keelmq.client.consumer.process_queue import ProcessQueue, as_sent
from keelmq.client.consumer.settings import ConsumerSettings
from keelmq.client.core.queues import MessageQueue
from keelmq.client.message import MessageExt, decode_messages
from keelmq.remoting.codes import VERSION_DESC, ResponseCode
from keelmq.remoting.operation import Call, CommandError, OperationTable, RemoteProtocolError, Reply
from keelmq.remoting.operations.clients import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_CONSUMER_RUNNING_INFO,
    GET_CONSUMER_STATUS_FROM_CLIENT,
    ConsumerCallRequest,
    ConsumerStatusRequest,
    SubscriptionData,
)
from keelmq.remoting.queue_map import QueueKey, dump_queue_map
from keelmq.runtime.clock import now_ms, wall_ms

Handle = Callable[[MessageExt], Awaitable[ReconsumeLater | None]]
"""The listener, for one message in addition to those of its queues. None: consumed."""

STACKS_MAX: Final = 500
"""The largest number of tasks whose stacks are reported."""
MIB: Final = 1 << 20


class Inspected(Protocol):
    """The members of GroupMember that the responses need (keelmq/client/consumer/group.py)."""

    @property
    def group(self) -> str:
        """Returns the group's name."""

    @property
    def settings(self) -> ConsumerSettings:
        """Returns the member's settings."""

    @property
    def consume_type(self) -> str:
        """Returns RocketMQ's ConsumeType: CONSUME_ACTIVELY or CONSUME_PASSIVELY."""

    @property
    def running(self) -> asyncio.Event:
        """Returns the event that is cleared while the consumer is paused."""

    @property
    def damage(self) -> DamageReports:
        """Returns the count of damaged messages."""

    @property
    def process_queues(self) -> Mapping[MessageQueue, ProcessQueue]:
        """Returns the assigned queues."""

    def wire_subscriptions(self) -> Sequence[SubscriptionData]:
        """Returns the subscriptions as heartbeats have them."""


class Inspection:
    """Serves the requests of one group member. `handle` None: it has no listener (lite pull)."""

    def __init__(self, member: Inspected, namesrv_addr: str, handle: Handle | None, *, orderly: bool) -> None:
        self._member, self._namesrv_addr, self._handle, self._orderly = member, namesrv_addr, handle, orderly
        self._started_ms = wall_ms()

    def bind(self, table: OperationTable) -> None:
        """Binds the three requests."""
        table.bind(GET_CONSUMER_RUNNING_INFO, self.running_info)
        table.bind(GET_CONSUMER_STATUS_FROM_CLIENT, self.status)
        table.bind(CONSUME_MESSAGE_DIRECTLY, self.consume_directly)

    async def running_info(self, header: ConsumerCallRequest, call: Call) -> Reply:
        """Serves 307: returns the ConsumerRunningInfo, with stacks if requested."""
        self._check(header.consumer_group)
        process_queues = sorted(self._member.process_queues.items())
        body = dump_queue_map(
            "mqTable",
            [(_key(queue), _state(process_queue)) for queue, process_queue in process_queues],
            properties=self._properties(),
            subscriptionSet=[each.model_dump(by_alias=True) for each in self._member.wire_subscriptions()],
            statusTable={},
            userConsumerInfo={},
            **({"jstack": stacks()} if header.jstack_enable else {}),
        )
        return Reply(body=body)

    def _properties(self) -> dict[str, str]:
        member = self._member
        return {
            "PROP_CLIENT_VERSION": VERSION_DESC,
            "PROP_CONSUMEORDERLY": str(self._orderly).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_TYPE": member.consume_type,
            "PROP_NAMESERVER_ADDR": self._namesrv_addr,
            "PROP_THREADPOOL_CORE_SIZE": str(member.settings.consume_concurrency),
            "PROP_DAMAGED_MESSAGES": str(member.damage.skipped),
            "consumeFromWhere": member.settings.from_where.wire,
            "consumerGroup": member.group,
            "messageModel": member.settings.model.value,
            "pause": str(not member.running.is_set()).lower(),
        }

    async def status(self, header: ConsumerStatusRequest, call: Call) -> Reply:
        """Serves 221: returns the commit offsets of a topic, without queues whose start offset is not known
        yet."""
        self._check(header.group)
        rows = [
            (_key(queue), process_queue.commit_offset)
            for queue, process_queue in sorted(self._member.process_queues.items())
            if queue.topic == header.topic and process_queue.commit_offset is not None
        ]
        return Reply(body=dump_queue_map("messageQueueTable", rows, consumerTable={}))

    async def consume_directly(self, header: ConsumerCallRequest, call: Call) -> Reply:
        """Serves 309: consumes one message now; no offset changes."""
        self._check(header.consumer_group)
        if self._handle is None:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "a lite pull consumer has no listener")
        try:
            (message,) = decode_messages(call.raw_body)
        except (RemoteProtocolError, ValueError) as error:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"the body is not a message: {error}") from None
        if message.body_error:
            raise CommandError(ResponseCode.SYSTEM_ERROR, message.body_error)
        began_ms = now_ms()
        later = await self._handle(as_sent(message))
        result = "CR_SUCCESS"
        if later is not None:
            result = "CR_LATER" if later.__cause__ is None else "CR_THROW_EXCEPTION"
        return Reply(
            body={
                "autoCommit": True,
                "consumeResult": result,
                "order": self._orderly,
                "remark": None if later is None else str(later),
                "spentTimeMills": now_ms() - began_ms,
            }
        )

    def _check(self, group: str) -> None:
        if group != self._member.group:
            remark = f"The Consumer Group <{group}> not exist in this consumer"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)


def _key(queue: MessageQueue) -> QueueKey:
    return QueueKey(queue.topic, queue.broker_name, queue.queue_id)


def _state(process_queue: ProcessQueue) -> dict[str, Any]:
    """Returns the ProcessQueueInfo. Times are wall-clock ms; 0: not yet."""
    window = process_queue.window
    held = 0 if window is None else len(window)
    return {
        "cachedMsgCount": held,
        "cachedMsgMaxOffset": window.next_offset - 1 if window is not None and held else 0,
        "cachedMsgMinOffset": window.commit_offset if window is not None and held else 0,
        "cachedMsgSizeInMiB": 0 if window is None else window.held_bytes // MIB,
        "commitOffset": 0 if process_queue.commit_offset is None else process_queue.commit_offset,
        "droped": process_queue.dropped,
        "lastConsumeTimestamp": process_queue.consumed_ms,
        "lastLockTimestamp": process_queue.granted_ms,
        "lastPullTimestamp": process_queue.pulled_ms,
        "locked": process_queue.is_locked,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def stacks() -> str:
    """Returns the stack of each thread and of each task of this loop, as a Java client returns its jstack."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name())[:STACKS_MAX]:
        lines = [
            f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
            for frame in task.get_stack()
        ]
        parts.append("\n".join([f"task {task.get_name()}", *lines]))
    return "\n\n".join(parts)
