"""Pulling (11, 361): confirmed records of one queue, byte for byte as stored, or a wait for the next one.

What a consumer wants comes with the pull, or else from its group's heartbeats. Long polling: a pull that may
suspend waits at its queue until dispatch passes its offset; a sweep answers those whose time is over.
Source: RocketMQ 5.3.3 PullMessageProcessor, DefaultPullMessageResultHandler, PullRequestHoldService.
"""

import struct
from collections.abc import Mapping
from typing import Final, cast

import msgspec

from broker.clients.core.registry import BROADCASTING
from broker.filter.core.sql import BadSubscription
from broker.filter.core.subscription import EVERYTHING, SQL92, TAG, Wanted, parse
from broker.filter.matching import select
from broker.handlers.parts import BrokerParts
from broker.metadata.groups import Group
from broker.pending import HotPeer, Int32
from broker.store.reading import OUTSIDE, GetResult, GetStatus
from broker.store.record import tag_code
from broker.topics import PERM_READ, Topic
from remoting.clock import now_ms
from remoting.codes import VERSION, RequestCode, ResponseCode
from remoting.command import FLAG_ONEWAY, response_frame
from remoting.operation import Hot, HotHandler, OperationTable
from remoting.operations.broker import PullMessageResponse

FLAG_COMMIT: Final = 1
FLAG_SUSPEND: Final = 2
FLAG_SUBSCRIPTION: Final = 4
FLAG_CLASS_FILTER: Final = 8
FORBIDDEN_BROKER, FORBIDDEN_GROUP, FORBIDDEN_TOPIC, FORBIDDEN_BROADCASTING, FORBIDDEN_SUBSCRIPTION = range(
    1, 6
)
MESSAGES_MAX: Final = 1_024
BODY_BYTES_DEFAULT: Final = 262_144
BODY_BYTES_MAX: Final = 1_048_576
FORBIDDEN_READ: Final = 1
"""Bit of a group's forbidden topic."""
VIEWS_MAX: Final = 8  # more and shorter pieces are cheaper joined
VIEW_BYTES_MIN: Final = 4_096
_SUBSCRIPTIONS_CACHED_MAX: Final = 4_096

NO_SQL_OF_BATCHES: Final = "the topic has queue.type=BatchCQ: its batches cannot be filtered by SQL92"
_NO_SQL: Final = "The broker does not support consumer to filter message by SQL92"
_PREFIX = struct.Struct(">II")
_HEADER: Final = (
    b'{"code":%%d,"extFields":{"suggestWhichBrokerId":"%%d","nextBeginOffset":"%%d","minOffset":"%%d",'
    b'"maxOffset":"%%d","topicSysFlag":"%%d","groupSysFlag":"%%d"},"flag":1,"language":"PYTHON","opaque":%%d,'
    b'"remark":"%%b","serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
)


class PullFields(msgspec.Struct, gc=False, rename="camel"):
    """extFields of 11; what the broker does not use is not decoded."""

    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int = 0
    suspend_timeout_millis: int = 0
    subscription: str = "*"
    expression_type: str = TAG
    max_msg_bytes: int = BODY_BYTES_DEFAULT
    consumer_group: str = ""
    commit_offset: int = -1
    sub_version: int = 0


class PullCommand(msgspec.Struct, gc=False, rename={"ext": "extFields"}):
    opaque: Int32
    ext: PullFields
    flag: int = 0


class _Waiter:
    """A suspended pull. asked_offset: as it came; what is wanted of nothing behind it moves the command's."""

    __slots__ = ("asked_offset", "command", "deadline_ms", "group", "handler", "peer", "topic", "wanted")

    def __init__(
        self,
        handler: "PullHandler",
        command: PullCommand,
        peer: HotPeer,
        topic: Topic,
        group: Group,
        wanted: Wanted,
        deadline_ms: int,
    ) -> None:
        self.handler = handler
        self.command = command
        self.asked_offset = command.ext.queue_offset
        self.peer = peer
        self.topic = topic
        self.group = group
        self.wanted = wanted
        self.deadline_ms = deadline_ms

    def __call__(self) -> None:
        self.handler.wake(self)


class PullHandler:
    """Never beyond confirmOffset: the store shows no more."""

    def __init__(self, parts: BrokerParts) -> None:
        self._store = parts.store
        self._topics = parts.topics.topics
        self._parts = parts
        self._settings, self._resets = parts.settings, parts.resets.offsets
        self._consumers = parts.registry.consumers
        self._reads = parts.reads
        self._subscriptions: dict[tuple[str, str], Wanted] = {}
        self._waiting: set[_Waiter] = set()

    def configure(self) -> None:
        """A setting has changed: what was parsed under the old ones is parsed again."""
        self._subscriptions.clear()

    def bind(self, table: OperationTable) -> None:
        table.bind_hot(RequestCode.PULL_MESSAGE, Hot(PullCommand, _lenient, cast(HotHandler, self.pull)))
        lite = cast(HotHandler, self.lite_pull)
        table.bind_hot(RequestCode.LITE_PULL_MESSAGE, Hot(PullCommand, _lenient, lite))

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def lite_pull(self, command: PullCommand, body: bytes, peer: HotPeer) -> bytes | None:
        """361: of consumers that keep their own rhythm."""
        if self._settings.lite_pull_message_enable:
            return self.pull(command, body, peer)
        remark = "the broker for lite pull message is forbidden"
        return _refuse(command, ResponseCode.NO_PERMISSION, remark, FORBIDDEN_BROKER)

    def pull(self, command: PullCommand, body: bytes, peer: HotPeer) -> bytes | None:
        """A whole reply frame; None: written in parts, suspended, or oneway, which makes no sense here."""
        if command.flag & FLAG_ONEWAY:
            return None
        ext = command.ext
        topic = self._topics.get(ext.topic)
        group = self._parts.find_group(ext.consumer_group)
        if (
            topic is None
            or group is None
            or not self._parts.readable
            or not group.config.consume_enable
            or not topic.perm & PERM_READ
            or group.forbidden
            or not 0 <= ext.queue_id < topic.read_queue_nums
        ):
            refused = self._check(command, topic, group)
            if refused is not None:
                return refused
        assert topic is not None and group is not None
        wanted = self._wanted(command, group)
        if type(wanted) is bytes:
            return wanted
        assert isinstance(wanted, Wanted)
        if wanted.sql is not None and self._store.queues.is_batch(ext.topic):
            return _refuse(command, ResponseCode.SYSTEM_ERROR, NO_SQL_OF_BATCHES)
        if ext.sys_flag & FLAG_COMMIT and ext.commit_offset >= 0:
            self._parts.commit_offset(ext.consumer_group, ext.topic, ext.queue_id, ext.commit_offset)
        if self._resets:
            moved = self._moved(command, peer, topic, group)
            if moved is not None:
                return moved
        result = self._get(command, wanted)
        code = self._code(result, ext.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and ext.sys_flag & FLAG_SUSPEND:
            suspend_ms = min(ext.suspend_timeout_millis, self._settings.suspend_ms_max)
            if suspend_ms > 0:
                waiter = _Waiter(self, command, peer, topic, group, wanted, now_ms() + suspend_ms)
                if self._suspend(waiter):
                    return None
        return self._reply(command, peer, topic, group, code, result)

    def _check(self, command: PullCommand, topic: Topic | None, group: Group | None) -> bytes | None:
        """The first reason to refuse, in the peer's order."""
        ext = command.ext
        if not self._parts.readable:
            remark = "the broker pulling message is forbidden"
            return _refuse(command, ResponseCode.NO_PERMISSION, remark, FORBIDDEN_BROKER)
        if group is None:
            remark = f"subscription group [{ext.consumer_group}] does not exist"
            return _refuse(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.config.consume_enable:
            remark = f"subscription group no permission, {ext.consumer_group}"
            return _refuse(command, ResponseCode.NO_PERMISSION, remark, FORBIDDEN_GROUP)
        if topic is None:
            remark = f"topic[{ext.topic}] not exist, apply first please!"
            return _refuse(command, ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic.perm & PERM_READ:
            remark = f"the topic[{ext.topic}] pulling message is forbidden"
            return _refuse(command, ResponseCode.NO_PERMISSION, remark, FORBIDDEN_TOPIC)
        if group.forbidden.get(ext.topic, 0) & FORBIDDEN_READ:
            remark = f"the consumer group[{ext.consumer_group}] is forbidden for topic[{ext.topic}]"
            return _refuse(command, ResponseCode.NO_PERMISSION, remark, FORBIDDEN_SUBSCRIPTION)
        if not 0 <= ext.queue_id < topic.read_queue_nums:
            remark = (
                f"queueId[{ext.queue_id}] is illegal, topic:[{ext.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
            )
            return _refuse(command, ResponseCode.INVALID_PARAMETER, remark)
        return None

    def _wanted(self, command: PullCommand, group: Group) -> Wanted | bytes:
        """By the pull itself or by the group's heartbeats; bytes: the answer that says why not."""
        ext = command.ext
        if ext.sys_flag & FLAG_SUBSCRIPTION:
            wanted = self._subscriptions.get((ext.expression_type, ext.subscription))
            return wanted if wanted is not None else self._parsed(command)
        consumers = self._consumers.get(ext.consumer_group)
        if consumers is None:
            remark = f"the consumer's group info not exist: {ext.consumer_group}"
            return _refuse(command, ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if consumers.message_model == BROADCASTING and not group.config.consume_broadcast_enable:
            remark = f"the consumer group[{ext.consumer_group}] can not consume by broadcast way"
            return _refuse(command, ResponseCode.NO_PERMISSION, remark, FORBIDDEN_BROADCASTING)
        subscription = consumers.subscriptions.get(ext.topic)
        if subscription is None:
            remark = f"the consumer's subscription not exist: {ext.consumer_group}, {ext.topic}"
            return _refuse(command, ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if subscription.version < ext.sub_version:
            remark = f"the consumer's subscription is {subscription.version}, the pull's {ext.sub_version}"
            return _refuse(command, ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
        wanted = subscription.wanted
        if wanted is None:
            remark = (
                f"the subscription is no {subscription.expression_type} expression: {subscription.sub_string}"
            )
            return _refuse(command, ResponseCode.FILTER_DATA_NOT_EXIST, remark)
        if wanted.sql is not None and not self._settings.enable_property_filter:
            return _refuse(command, ResponseCode.SYSTEM_ERROR, _NO_SQL)
        return wanted

    def _parsed(self, command: PullCommand) -> Wanted | bytes:
        ext = command.ext
        if ext.expression_type == SQL92 and not self._settings.enable_property_filter:
            return _refuse(command, ResponseCode.SYSTEM_ERROR, _NO_SQL)
        if ext.sys_flag & FLAG_CLASS_FILTER:
            return EVERYTHING
        try:
            wanted = parse(ext.subscription, ext.expression_type, tag_code)
        except BadSubscription as error:
            remark = f"parse the consumer's subscription failed: {error}"
            return _refuse(command, ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
        if len(self._subscriptions) >= _SUBSCRIPTIONS_CACHED_MAX:
            self._subscriptions.clear()
        self._subscriptions[ext.expression_type, ext.subscription] = wanted
        return wanted

    def _moved(self, command: PullCommand, peer: HotPeer, topic: Topic, group: Group) -> bytes | None:
        """An operator has set the group's offset: the consumer is told where to go on, once."""
        ext = command.ext
        offset = self._parts.resets.take(ext.consumer_group, ext.topic, ext.queue_id)
        if offset is None:
            return None
        low = self._store.min_queue_offset(ext.topic, ext.queue_id)
        high = self._store.max_queue_offset(ext.topic, ext.queue_id)
        result = GetResult(GetStatus.OFFSET_RESET, offset, low, high, [])
        return self._reply(command, peer, topic, group, ResponseCode.PULL_OFFSET_MOVED, result)

    def _get(self, command: PullCommand, wanted: Wanted) -> GetResult:
        """A replica may only be behind: it leaves a consumer where it is (offsetCheckInSlave)."""
        result = self._found(command, wanted)
        if result.status in OUTSIDE and not self._store.is_master:
            return result._replace(next_begin_offset=command.ext.queue_offset)
        return result

    def _found(self, command: PullCommand, wanted: Wanted) -> GetResult:
        ext = command.ext
        nums = min(max(ext.max_msg_nums, 1), MESSAGES_MAX)
        size = min(ext.max_msg_bytes, BODY_BYTES_MAX) if ext.max_msg_bytes > 0 else BODY_BYTES_DEFAULT
        result = self._store.get(ext.topic, ext.queue_id, ext.queue_offset, nums, size, wanted.tag_codes)
        if wanted.sql is not None and result.views:
            return select(result, wanted.sql)
        return result

    def _code(self, result: GetResult, asked_offset: int) -> int:
        """The response code of a status. A replica never moves a consumer (21): it may only be behind."""
        match result.status:
            case GetStatus.FOUND:
                return ResponseCode.SUCCESS
            case _ if not self._store.is_master and self._parts.sends_to_master():
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
        self, command: PullCommand, peer: HotPeer, topic: Topic, group: Group, code: int, result: GetResult
    ) -> bytes | None:
        size = result.body_bytes
        suggested = self._suggested(command, group, result) if self._settings.slave_read_enable else 0
        header = _HEADER % (code, suggested, result.next_begin_offset, result.min_offset, result.max_offset,
                            topic.config.topic_sys_flag, group.config.group_sys_flag, command.opaque,
                            result.status.name.encode())
        # fmt: on
        head = _PREFIX.pack(4 + len(header) + size, len(header)) + header
        views = result.views
        if not views:
            self._reads.missed += 1
            return head
        self._reads.got(topic.name, command.ext.consumer_group, result.message_count, size)
        if len(views) > VIEWS_MAX or size < VIEW_BYTES_MIN * len(views):
            return b"".join((head, *views))
        peer.write_parts([head, *views])
        return None

    def _suggested(self, command: PullCommand, group: Group, result: GetResult) -> int:
        """Who should be asked next: a replica, when the master would have to read from its disk."""
        ext = command.ext
        queue = self._store.find_queue(ext.topic, ext.queue_id)
        if queue is None or not queue.min_offset < result.next_begin_offset <= queue.max_offset:
            return group.config.broker_id
        log_offset, _, _ = queue.unit(result.next_begin_offset - 1)
        if self._store.commit_log.max_offset - log_offset > self._parts.cached_bytes:
            return group.config.which_broker_when_consume_slowly
        return group.config.broker_id

    # -- long polling ------------------------------------------------------------------------------------

    def _suspend(self, waiter: _Waiter) -> bool:
        """False: too many wait already, answer at once."""
        ext = waiter.command.ext
        if not self._store.wait_for(ext.topic, ext.queue_id, ext.queue_offset, waiter):
            return False
        self._waiting.add(waiter)
        return True

    def wake(self, waiter: _Waiter) -> None:
        """The queue grew beyond the offset that this pull wants. Messages of other tags: it waits on."""
        self._waiting.discard(waiter)
        ext = waiter.command.ext
        if waiter.peer.is_closing():
            return
        if not self._still_answers(waiter):
            return
        result = self._get(waiter.command, waiter.wanted)
        while result.status is GetStatus.NO_MATCHED_MESSAGE:
            ext.queue_offset = result.next_begin_offset
            result = self._get(waiter.command, waiter.wanted)
        code = self._code(result, ext.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and self._suspend(waiter):
            return
        self._answer(waiter, code, result)

    def expire(self, now: int) -> None:
        """Once a second: answer the pulls whose time is over, forget those whose connection is gone."""
        for waiter in [w for w in self._waiting if w.deadline_ms <= now or w.peer.is_closing()]:
            self._waiting.discard(waiter)
            ext = waiter.command.ext
            self._store.stop_waiting(ext.topic, ext.queue_id, waiter)
            if not waiter.peer.is_closing() and self._still_answers(waiter):
                result = self._get(waiter.command, waiter.wanted)
                self._answer(waiter, self._code(result, ext.queue_offset), result)

    def _still_answers(self, waiter: _Waiter) -> bool:
        """A group that wants something else by now is served from where it asked, as by upstream's
        PullRequestHoldService: what was passed over may be wanted. False: it is refused now, and told so."""
        command = waiter.command
        if command.ext.sys_flag & FLAG_SUBSCRIPTION:
            return True
        wanted = self._wanted(command, waiter.group)
        if wanted == waiter.wanted:
            return True
        if isinstance(wanted, Wanted):
            if wanted.sql is None or not self._store.queues.is_batch(command.ext.topic):
                waiter.wanted, command.ext.queue_offset = wanted, waiter.asked_offset
                return True
            wanted = _refuse(command, ResponseCode.SYSTEM_ERROR, NO_SQL_OF_BATCHES)
        waiter.peer.send(wanted)
        return False

    def _answer(self, waiter: _Waiter, code: int, result: GetResult) -> None:
        reply = self._reply(waiter.command, waiter.peer, waiter.topic, waiter.group, code, result)
        if reply is not None:
            waiter.peer.send(reply)


def _refuse(command: PullCommand, code: int, remark: str, forbidden: int | None = None) -> bytes:
    """With the header fields of an answer: some clients read them whatever the code is."""
    offset = command.ext.queue_offset
    header = PullMessageResponse(
        next_begin_offset=offset, min_offset=0, max_offset=0, forbidden_type=forbidden
    )
    return response_frame(command.opaque, code, remark, header)


def _lenient(code: int, opaque: int, flag: int, ext: Mapping[str, str]) -> PullCommand:
    """As the typed decoder, from text. KeyError: a mandatory field is missing; ValueError: not a number."""
    return PullCommand(
        opaque,
        PullFields(
            topic=ext["topic"],
            queue_id=int(ext["queueId"]),
            queue_offset=int(ext["queueOffset"]),
            max_msg_nums=int(ext["maxMsgNums"]),
            sys_flag=int(ext.get("sysFlag") or 0),
            suspend_timeout_millis=int(ext.get("suspendTimeoutMillis") or 0),
            subscription=ext.get("subscription") or "*",
            expression_type=ext.get("expressionType") or TAG,
            max_msg_bytes=int(ext.get("maxMsgBytes") or BODY_BYTES_DEFAULT),
            consumer_group=ext.get("consumerGroup") or "",
            commit_offset=int(ext.get("commitOffset") or -1),
            sub_version=int(ext.get("subVersion") or 0),
        ),
        flag,
    )
