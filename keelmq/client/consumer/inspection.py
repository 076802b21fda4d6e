"""What a consumer is asked for operators: its state (307), how far it is (221), to handle a message (309).

`mqadmin consumerStatus`, `consumerProgress -s true`, `queryMsgById -g -d` and RocketMQ's dashboard ask so, by
way of a broker. Source: RocketMQ 5.3.3 ClientRemotingProcessor, ConsumerRunningInfo,
ConsumeMessageDirectlyResult.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from client.core.queues import MessageQueue
from client.listening import ReconsumeLater
from client.message import MessageExt, decode_messages
from client.worker import QueueWorker, as_sent
from remoting.clock import now_ms, wall_ms
from remoting.codes import VERSION_DESC, ResponseCode
from remoting.operation import Call, CommandError, OperationTable, RemoteProtocolError, Reply
from remoting.operations.clients import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_CONSUMER_RUNNING_INFO,
    GET_CONSUMER_STATUS_FROM_CLIENT,
    ConsumerCallRequest,
    ConsumerStatusRequest,
)
from remoting.queue_map import QueueKey, dump_queue_map

if TYPE_CHECKING:
    from client.group import GroupMember

Handle = Callable[[MessageExt], Awaitable[ReconsumeLater | None]]
"""The listener, with one message beside those of its queues. None: consumed."""

STACKS_MAX: Final = 500
"""Tasks whose stacks are told."""
MIB: Final = 1 << 20


class Inspection:
    """Of one member. `handle` None: it has no listener (lite pull)."""

    def __init__(
        self, member: "GroupMember", namesrv_addr: str, handle: Handle | None, *, orderly: bool
    ) -> None:
        self._member, self._namesrv_addr, self._handle, self._orderly = member, namesrv_addr, handle, orderly
        self._started_ms = wall_ms()

    def bind(self, table: OperationTable) -> None:
        table.bind(GET_CONSUMER_RUNNING_INFO, self.running_info)
        table.bind(GET_CONSUMER_STATUS_FROM_CLIENT, self.status)
        table.bind(CONSUME_MESSAGE_DIRECTLY, self.consume_directly)

    async def running_info(self, header: ConsumerCallRequest, call: Call) -> Reply:
        self._check(header.consumer_group)
        workers = sorted(self._member.workers.items())
        body = dump_queue_map(
            "mqTable",
            [(_key(queue), _state(worker)) for queue, worker in workers],
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
            "consumeFromWhere": member.settings.from_where.value,
            "consumerGroup": member.group,
            "messageModel": member.settings.model.value,
            "pause": str(not member.running.is_set()).lower(),
        }

    async def status(self, header: ConsumerStatusRequest, call: Call) -> Reply:
        """Queues of which it is not known yet where to read are left out."""
        self._check(header.group)
        rows = [
            (_key(queue), worker.commit_offset)
            for queue, worker in sorted(self._member.workers.items())
            if queue.topic == header.topic and worker.commit_offset is not None
        ]
        return Reply(body=dump_queue_map("messageQueueTable", rows, consumerTable={}))

    async def consume_directly(self, header: ConsumerCallRequest, call: Call) -> Reply:
        """Whatever the group has consumed; what comes of it moves no offset."""
        self._check(header.consumer_group)
        if self._handle is None:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "this consumer has no listener: it polls")
        try:
            (message,) = decode_messages(call.raw_body)
        except (RemoteProtocolError, ValueError) as error:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"the body is no message: {error}") from None
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


def _state(worker: QueueWorker) -> dict[str, Any]:
    """ProcessQueueInfo. Times are wall clock ms, 0: not yet."""
    window = worker.window
    held = 0 if window is None else len(window)
    return {
        "cachedMsgCount": held,
        "cachedMsgMaxOffset": window.next_offset - 1 if window is not None and held else 0,
        "cachedMsgMinOffset": window.commit_offset if window is not None and held else 0,
        "cachedMsgSizeInMiB": 0 if window is None else window.held_bytes // MIB,
        "commitOffset": 0 if worker.commit_offset is None else worker.commit_offset,
        "droped": worker.dropped,
        "lastConsumeTimestamp": worker.consumed_ms,
        "lastLockTimestamp": worker.granted_ms,
        "lastPullTimestamp": worker.pulled_ms,
        "locked": worker.is_locked,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def stacks() -> str:
    """Where each thread and each task of this loop is: what a Java client's jstack is good for."""
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
