"""Pulling (11, 361): returns confirmed records of one queue, byte for byte as stored, or waits for the next.

The subscription comes with the pull, or else from the heartbeats of the consumer's group. Long polling: a
pull that may be suspended waits at its queue until dispatch passes its offset; expire() answers those whose
timeout is over. Source: RocketMQ 5.3.3 PullMessageProcessor, DefaultPullMessageResultHandler,
PullRequestHoldService.
"""

import logging
import struct
from time import monotonic
from typing import Final, cast

import msgspec

from broker.admission.fast_path import FastPathPeer
from broker.core.deadlines import Deadlines
from broker.filter.core.subscription import MessageFilter
from broker.filter.matching import select
from broker.handlers.pull_commands import (
    BODY_BYTES_DEFAULT,
    BODY_BYTES_MAX,
    FLAG_COMMIT,
    FLAG_SUBSCRIPTION,
    FLAG_SUSPEND,
    FORBIDDEN_BROKER,
    FORBIDDEN_GROUP,
    FORBIDDEN_SUBSCRIPTION,
    FORBIDDEN_TOPIC,
    MESSAGES_MAX,
    PullCommand,
    keep_little,
    lenient,
    refuse,
)
from broker.handlers.pull_subscriptions import PullSubscriptions
from broker.metadata.groups import FORBIDDEN_READ, Group
from broker.metadata.topics import PERM_READ, Topic
from broker.put.handler_context import HandlerContext
from broker.stats.rpc_latency import response_code_of
from broker.store.queue.reading import (
    OUTSIDE,
    VIEW_BYTES_MIN,
    VIEWS_MAX,
    DamagedQueueError,
    GetResult,
    GetStatus,
)
from keelmq.remoting.codes import VERSION, RequestCode, ResponseCode
from keelmq.remoting.command import FLAG_ONEWAY
from keelmq.remoting.operation import FastPath, FastPathHandler, OperationTable
from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger

logger = logging.getLogger(__name__)

CHECKED_MAX: Final = 4_096
"""Waiting pulls whose connection one expire() checks. All are checked before the longest wait is over."""

NO_SQL_OF_BATCHES: Final = "the topic has queue.type=BatchCQ: its batches cannot be filtered by SQL92"
_FOUND: Final = GetStatus.FOUND
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_PREFIX = struct.Struct(">II")
_HEADER: Final = (
    b'{"code":%%d,"extFields":{"suggestWhichBrokerId":"%%d","nextBeginOffset":"%%d","minOffset":"%%d",'
    b'"maxOffset":"%%d","topicSysFlag":"%%d","groupSysFlag":"%%d"},"flag":1,"language":"PYTHON","opaque":%%d,'
    b'"remark":"%%b","serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
)


class _Waiter(msgspec.Struct, eq=False):
    """A suspended pull. asked_offset: the offset of the request; messages that do not match the subscription
    move that of the command."""

    handler: "PullHandler"
    command: PullCommand
    peer: FastPathPeer
    topic: Topic
    group: Group
    message_filter: MessageFilter
    deadline_ms: int
    asked_offset: int
    request_code: int
    began_s: float

    def __call__(self) -> None:
        self.handler.wake(self)


class PullHandler:
    """Never returns records beyond confirmOffset: the store does not show them."""

    def __init__(self, context: HandlerContext) -> None:
        self._store = context.store
        self._topics = context.topics.topics
        self._context = context
        self._settings, self._resets = context.settings, context.resets.offsets
        self._reads, self._latency = context.reads, context.pending.latency
        self.request_code = int(RequestCode.PULL_MESSAGE)  # of the pull that is served now
        self._took_s = 0.0  # by the last read of the store
        self._subscriptions = PullSubscriptions(context)
        self._waiting: Deadlines[_Waiter] = Deadlines()
        self._failures = RateLimitedLogger(logger, level=logging.ERROR)
        context.resets.wake_pulls = self.wake_moved

    def configure(self) -> None:
        """Forgets the parsed subscriptions, after a setting has changed."""
        self._subscriptions.clear()

    def bind(self, table: OperationTable) -> None:
        """Binds 11 and 361."""
        table.bind_fast_path(
            RequestCode.PULL_MESSAGE, FastPath(PullCommand, lenient, cast(FastPathHandler, self.pull))
        )
        lite = cast(FastPathHandler, self.lite_pull)
        table.bind_fast_path(RequestCode.LITE_PULL_MESSAGE, FastPath(PullCommand, lenient, lite))

    @property
    def waiting_count(self) -> int:
        """Suspended pulls."""
        return len(self._waiting)

    def lite_pull(self, command: PullCommand, body: bytes, peer: FastPathPeer) -> bytes | None:
        """Serves 361, the pull of a DefaultLitePullConsumer."""
        if self._settings.lite_pull_message_enable:
            self.request_code = int(RequestCode.LITE_PULL_MESSAGE)
            try:
                return self.pull(command, body, peer)
            finally:
                self.request_code = int(RequestCode.PULL_MESSAGE)
        remark = "the broker for lite pull message is forbidden"
        return refuse(command, ResponseCode.NO_PERMISSION, remark, FORBIDDEN_BROKER)

    def pull(self, command: PullCommand, body: bytes, peer: FastPathPeer) -> bytes | None:
        """Returns the reply as a frame. None: it is written in parts, or the pull is suspended or oneway."""
        if command.flag & FLAG_ONEWAY:
            return None
        ext = command.ext
        topic = self._topics.get(ext.topic)
        group = self._context.find_group(ext.consumer_group, peer)
        if (
            topic is None
            or group is None
            or not self._context.readable
            or not group.config.consume_enable
            or not topic.perm & PERM_READ
            or group.forbidden
            or not 0 <= ext.queue_id < topic.read_queue_nums
        ):
            refused = self._check(command, topic, group)
            if refused is not None:
                return self._refused(refused)
        assert topic is not None and group is not None
        message_filter = self._subscriptions.find(command, group)
        if isinstance(message_filter, bytes):
            return self._refused(message_filter)
        if message_filter.sql is not None and self._store.queues.is_batch(ext.topic):
            return self._refused(refuse(command, ResponseCode.SYSTEM_ERROR, NO_SQL_OF_BATCHES))
        if ext.sys_flag & FLAG_COMMIT and ext.commit_offset >= 0:
            self._context.commit_offset(ext.consumer_group, ext.topic, ext.queue_id, ext.commit_offset)
        if self._resets:
            moved = self._moved(command, peer, topic, group)
            if moved is not None:
                return moved
        try:
            result = self._get(command, message_filter)
        except DamagedQueueError as error:
            return self._refused(self._is_damaged(command, error))
        if result.status is _FOUND:
            self._latency.observe(self.request_code, _SUCCESS, self._took_s * 1_000)
            return self._reply(command, peer, topic, group, _SUCCESS, result)
        code = self._code(result, ext.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and ext.sys_flag & FLAG_SUSPEND:
            suspend_ms = min(ext.suspend_timeout_millis, self._settings.suspend_ms_max)
            if suspend_ms > 0:
                keep_little(command)
                waiter = _Waiter(
                    self, command, peer, topic, group, message_filter, now_ms() + suspend_ms,
                    ext.queue_offset, self.request_code, monotonic(),
                )  # fmt: skip
                if self._suspend(waiter):
                    return None
        self._latency.observe(self.request_code, code, self._took_s * 1_000)
        return self._reply(command, peer, topic, group, code, result)

    def _refused(self, frame: bytes) -> bytes:
        self._latency.observe(self.request_code, response_code_of(frame), 0)
        return frame

    def _is_damaged(self, command: PullCommand, error: DamagedQueueError) -> bytes:
        self._failures.tell(now_ms(), "%s", error)
        return refuse(command, ResponseCode.SYSTEM_ERROR, str(error))

    def _check(self, command: PullCommand, topic: Topic | None, group: Group | None) -> bytes | None:
        """Returns the refusal of the first check that fails, in RocketMQ's order; None: all pass."""
        ext = command.ext
        if not self._context.readable:
            remark = "the broker pulling message is forbidden"
            return refuse(command, ResponseCode.NO_PERMISSION, remark, FORBIDDEN_BROKER)
        if group is None:
            remark = f"subscription group [{ext.consumer_group}] does not exist"
            return refuse(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.config.consume_enable:
            remark = f"subscription group no permission, {ext.consumer_group}"
            return refuse(command, ResponseCode.NO_PERMISSION, remark, FORBIDDEN_GROUP)
        if topic is None:
            remark = f"topic[{ext.topic}] not exist, apply first please!"
            return refuse(command, ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic.perm & PERM_READ:
            remark = f"the topic[{ext.topic}] pulling message is forbidden"
            return refuse(command, ResponseCode.NO_PERMISSION, remark, FORBIDDEN_TOPIC)
        if group.forbidden.get(ext.topic, 0) & FORBIDDEN_READ:
            remark = f"the consumer group[{ext.consumer_group}] is forbidden for topic[{ext.topic}]"
            return refuse(command, ResponseCode.NO_PERMISSION, remark, FORBIDDEN_SUBSCRIPTION)
        if not 0 <= ext.queue_id < topic.read_queue_nums:
            remark = (
                f"queueId[{ext.queue_id}] is illegal, topic:[{ext.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
            )
            return refuse(command, ResponseCode.INVALID_PARAMETER, remark)
        return None

    def _moved(self, command: PullCommand, peer: FastPathPeer, topic: Topic, group: Group) -> bytes | None:
        """Returns, once, the offset that an operator has set for the group (222). None: there is none."""
        result = self._reset_of(command)
        if result is None:
            return None
        self._latency.observe(self.request_code, ResponseCode.PULL_OFFSET_MOVED, 0)
        return self._reply(command, peer, topic, group, ResponseCode.PULL_OFFSET_MOVED, result)

    def _reset_of(self, command: PullCommand) -> GetResult | None:
        """Removes and returns the queue's pending reset. None: there is none."""
        ext = command.ext
        offset = self._context.resets.take(ext.consumer_group, ext.topic, ext.queue_id)
        if offset is None:
            return None
        low = self._store.min_queue_offset(ext.topic, ext.queue_id)
        high = self._store.max_queue_offset(ext.topic, ext.queue_id)
        return GetResult(GetStatus.OFFSET_RESET, offset, low, high, [])

    def _get(self, command: PullCommand, message_filter: MessageFilter) -> GetResult:
        """Reads the store. A replica never moves a consumer's offset: the replica may be behind."""
        result = self._look_up(command, message_filter)
        if result.status in OUTSIDE and not self._store.is_master:
            return result._replace(next_begin_offset=command.ext.queue_offset)
        return result

    def _look_up(self, command: PullCommand, message_filter: MessageFilter) -> GetResult:
        ext = command.ext
        nums = min(max(ext.max_msg_nums, 1), MESSAGES_MAX)
        size = min(ext.max_msg_bytes, BODY_BYTES_MAX) if ext.max_msg_bytes > 0 else BODY_BYTES_DEFAULT
        tag_codes, has_sql = message_filter.tag_codes, message_filter.sql is not None
        began_s = monotonic()
        result = self._store.get(
            ext.topic, ext.queue_id, ext.queue_offset, nums, size, tag_codes, decodes=has_sql
        )
        self._took_s = monotonic() - began_s
        self._reads.record_lookup_time(self._took_s)
        if message_filter.sql is not None and result.views:
            return select(result, message_filter.sql)
        return result

    def _code(self, result: GetResult, asked_offset: int) -> int:
        """Returns the response code for a status. A replica never answers 21: it may be behind."""
        match result.status:
            case GetStatus.FOUND:
                return ResponseCode.SUCCESS
            case _ if not self._store.is_master and self._context.sends_to_master():
                return ResponseCode.PULL_RETRY_IMMEDIATELY
            case GetStatus.NO_MATCHED_MESSAGE | GetStatus.MESSAGE_WAS_REMOVING:
                return ResponseCode.PULL_RETRY_IMMEDIATELY
            case GetStatus.OFFSET_FOUND_NULL | GetStatus.OFFSET_OVERFLOW_ONE:
                return ResponseCode.PULL_NOT_FOUND
            case GetStatus.NO_MESSAGE_IN_QUEUE | GetStatus.NO_MATCHED_LOGIC_QUEUE if asked_offset == 0:
                return ResponseCode.PULL_NOT_FOUND
            case _:
                master = self._store.is_master
                return ResponseCode.PULL_OFFSET_MOVED if master else ResponseCode.PULL_RETRY_IMMEDIATELY

    # fmt: off
    def _reply(
        self, command: PullCommand, peer: FastPathPeer, topic: Topic, group: Group, code: int,
        result: GetResult,
    ) -> bytes | None:
        size = result.body_bytes
        suggested = self._suggested(command, group, result) if self._settings.slave_read_enable else 0
        header = _HEADER % (code, suggested, result.next_begin_offset, result.min_offset, result.max_offset,
                            topic.config.topic_sys_flag, group.config.group_sys_flag, command.opaque,
                            b"FOUND" if result.status is _FOUND else result.status.name.encode())
        # fmt: on
        head = _PREFIX.pack(4 + len(header) + size, len(header)) + header
        views = result.views
        if not views:
            self._reads.missed += 1
            return head
        ext, end = command.ext, result.next_begin_offset
        self._reads.count_read(topic.name, ext.consumer_group, ext.queue_id, end, result.message_count, size)
        if len(views) > VIEWS_MAX or size < VIEW_BYTES_MIN * len(views):
            return b"".join((head, *views))
        peer.write_parts([head, *views])
        return None

    def _suggested(self, command: PullCommand, group: Group, result: GetResult) -> int:
        """Returns the broker id to pull from next: a replica's if the master would read from its disk."""
        ext = command.ext
        queue = self._store.find_queue(ext.topic, ext.queue_id)
        if queue is None or not queue.min_offset < result.next_begin_offset <= queue.max_offset:
            return group.config.broker_id
        log_offset, _, _ = queue.unit(result.next_begin_offset - 1)
        if self._store.commit_log.max_offset - log_offset > self._context.cached_bytes:
            return group.config.which_broker_when_consume_slowly
        return group.config.broker_id

    # -- long polling ------------------------------------------------------------------------------------

    def _suspend(self, waiter: _Waiter) -> bool:
        """Suspends the pull. False: too many are suspended; it must be answered now."""
        ext = waiter.command.ext
        if not self._store.wait_for(ext.topic, ext.queue_id, ext.queue_offset, waiter):
            return False
        self._waiting.add(waiter)
        return True

    def wake(self, waiter: _Waiter) -> None:
        """Answers a suspended pull when its queue has grown. It stays suspended if no message matches."""
        self._waiting.discard(waiter)
        ext, result = waiter.command.ext, self._result_for(waiter)
        while result is not None and result.status is GetStatus.NO_MATCHED_MESSAGE:
            ext.queue_offset = result.next_begin_offset
            result = self._result_for(waiter)
        if result is None:
            return
        code = self._code(result, ext.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and self._suspend(waiter):
            return
        self._answer(waiter, code, result)

    def wake_moved(self) -> None:
        """Answers the suspended pulls of queues whose offset an operator has set (222)."""
        if not self._resets:
            return
        for waiter in self._waiting.every():
            ext = waiter.command.ext
            if (ext.consumer_group, ext.topic, ext.queue_id) not in self._resets:
                continue
            self._stop_waiting(waiter)
            if not waiter.peer.is_closing() and (result := self._reset_of(waiter.command)) is not None:
                self._answer(waiter, ResponseCode.PULL_OFFSET_MOVED, result)

    def expire(self, now: int) -> None:
        """Answers the pulls whose timeout is over, and forgets those with a closed connection (CHECKED_MAX of
        them are checked in each call). now: ms, monotonic."""
        for waiter in self._waiting.expired(now):
            self._stop_waiting(waiter)
            try:
                self._give_up(waiter)
            except Exception as error:  # noqa: BLE001 - logged; the others are answered
                text = "cannot answer a suspended pull of group %s, topic %s: %r"
                ext = waiter.command.ext
                self._failures.tell(now, text, ext.consumer_group, ext.topic, error, exc_info=error)
        for waiter in self._waiting.sample(CHECKED_MAX):
            if waiter.peer.is_closing():
                self._stop_waiting(waiter)

    def _give_up(self, waiter: _Waiter) -> None:
        result = self._result_for(waiter)
        if result is not None:
            self._answer(waiter, self._code(result, waiter.command.ext.queue_offset), result)

    def _result_for(self, waiter: _Waiter) -> GetResult | None:
        """Reads the store for a suspended pull. None: its connection is closed, or it was refused."""
        if waiter.peer.is_closing() or not self._still_answers(waiter):
            return None
        try:
            return self._get(waiter.command, waiter.message_filter)
        except DamagedQueueError as error:
            waiter.peer.send(self._is_damaged(waiter.command, error))
            return None

    def _stop_waiting(self, waiter: _Waiter) -> None:
        ext = waiter.command.ext
        self._waiting.discard(waiter)
        self._store.stop_waiting(ext.topic, ext.queue_id, waiter)

    def _still_answers(self, waiter: _Waiter) -> bool:
        """Applies a subscription that has changed meanwhile. False: the pull was refused, and is answered.

        It then starts again at the offset of the request, as in upstream's PullRequestHoldService: messages
        that were skipped may match now.
        """
        command = waiter.command
        if command.ext.sys_flag & FLAG_SUBSCRIPTION:
            return True
        found = self._subscriptions.find(command, waiter.group)
        if found == waiter.message_filter:
            return True
        if isinstance(found, MessageFilter):
            if found.sql is None or not self._store.queues.is_batch(command.ext.topic):
                waiter.message_filter, command.ext.queue_offset = found, waiter.asked_offset
                return True
            found = refuse(command, ResponseCode.SYSTEM_ERROR, NO_SQL_OF_BATCHES)
        waiter.peer.send(found)
        return False

    def _answer(self, waiter: _Waiter, code: int, result: GetResult) -> None:
        elapsed_ms = (monotonic() - waiter.began_s) * 1_000
        self._latency.observe(waiter.request_code, code, elapsed_ms, is_long_polling=True)
        reply = self._reply(waiter.command, waiter.peer, waiter.topic, waiter.group, code, result)
        if reply is not None:
            waiter.peer.send(reply)
