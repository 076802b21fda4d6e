"""Pulling (11): confirmed records of one queue, byte for byte as stored, or a wait for the next one.

Long polling: a pull that may suspend waits at its queue until dispatch passes its offset; a periodic sweep
answers those whose time is over. Source: RocketMQ 5.3.3 PullMessageProcessor, PullRequestHoldService.
"""

import struct
from collections.abc import Mapping
from typing import Final, cast

import msgspec

from broker.handlers.parts import BrokerParts
from broker.pending import HotPeer, Int32
from broker.store.reading import GetResult, GetStatus
from broker.store.record import tag_code
from broker.topics import PERM_READ
from remoting.clock import now_ms
from remoting.codes import VERSION, RequestCode, ResponseCode
from remoting.command import FLAG_ONEWAY, response_frame
from remoting.operation import Hot, HotHandler, OperationTable

FLAG_COMMIT: Final = 1
FLAG_SUSPEND: Final = 2
MESSAGES_MAX: Final = 1_024
BODY_BYTES_DEFAULT: Final = 262_144
BODY_BYTES_MAX: Final = 1_048_576
SUSPEND_MS_MAX: Final = 120_000
VIEWS_MAX: Final = 8  # more and shorter pieces are cheaper joined
VIEW_BYTES_MIN: Final = 4_096
_SUBSCRIPTIONS_CACHED_MAX: Final = 4_096

_PREFIX = struct.Struct(">II")
_HEADER: Final = (
    b'{"code":%%d,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%%d","minOffset":"%%d",'
    b'"maxOffset":"%%d","topicSysFlag":"0","groupSysFlag":"0"},"flag":1,"language":"PYTHON","opaque":%%d,'
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
    expression_type: str = "TAG"
    max_msg_bytes: int = BODY_BYTES_DEFAULT
    consumer_group: str = ""
    commit_offset: int = -1


class PullCommand(msgspec.Struct, gc=False, rename={"ext": "extFields"}):
    opaque: Int32
    ext: PullFields
    flag: int = 0


class _Waiter:
    """A suspended pull."""

    __slots__ = ("command", "deadline_ms", "handler", "peer", "tag_codes")

    def __init__(
        self,
        handler: "PullHandler",
        command: PullCommand,
        peer: HotPeer,
        tag_codes: frozenset[int] | None,
        deadline_ms: int,
    ) -> None:
        self.handler = handler
        self.command = command
        self.peer = peer
        self.tag_codes = tag_codes
        self.deadline_ms = deadline_ms

    def __call__(self) -> None:
        self.handler.wake(self)


class PullHandler:
    """Never beyond confirmOffset: the store shows no more."""

    def __init__(self, parts: BrokerParts) -> None:
        self._store = parts.store
        self._topics = parts.topics.topics
        self._parts = parts
        self._subscriptions: dict[str, frozenset[int] | None] = {}
        self._waiting: set[_Waiter] = set()

    def bind(self, table: OperationTable) -> None:
        table.bind_hot(RequestCode.PULL_MESSAGE, Hot(PullCommand, _lenient, cast(HotHandler, self.pull)))

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def pull(self, command: PullCommand, body: bytes, peer: HotPeer) -> bytes | None:
        """A whole reply frame; None: written in parts, suspended, or oneway, which makes no sense here."""
        if command.flag & FLAG_ONEWAY:
            return None
        ext = command.ext
        if not self._parts.readable:
            remark = "the broker pulling message is forbidden"
            return response_frame(command.opaque, ResponseCode.NO_PERMISSION, remark)
        topic = self._topics.get(ext.topic)
        if topic is None:
            remark = f"topic[{ext.topic}] not exist, apply first please!"
            return response_frame(command.opaque, ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic.perm & PERM_READ:
            remark = f"the topic[{ext.topic}] pulling message is forbidden"
            return response_frame(command.opaque, ResponseCode.NO_PERMISSION, remark)
        if not 0 <= ext.queue_id < topic.queue_count:
            remark = f"queueId[{ext.queue_id}] is illegal, topic:[{ext.topic}] queues: {topic.queue_count}"
            return response_frame(command.opaque, ResponseCode.INVALID_PARAMETER, remark)
        if ext.expression_type not in ("TAG", ""):
            remark = f"The broker does not support consumer to filter message by {ext.expression_type}"
            return response_frame(command.opaque, ResponseCode.SYSTEM_ERROR, remark)
        if ext.sys_flag & FLAG_COMMIT and ext.commit_offset >= 0:
            self._parts.commit_offset(ext.consumer_group, ext.topic, ext.queue_id, ext.commit_offset)
        tag_codes = self._tag_codes(ext.subscription)
        result = self._get(command, tag_codes)
        code = self._code(result, ext.queue_offset)
        suspend_ms = min(ext.suspend_timeout_millis, SUSPEND_MS_MAX)
        if code == ResponseCode.PULL_NOT_FOUND and ext.sys_flag & FLAG_SUSPEND and suspend_ms > 0:
            waiter = _Waiter(self, command, peer, tag_codes, now_ms() + suspend_ms)
            if self._suspend(waiter):
                return None
        return self._reply(command, peer, code, result)

    def _get(self, command: PullCommand, tag_codes: frozenset[int] | None) -> GetResult:
        ext = command.ext
        nums = min(max(ext.max_msg_nums, 1), MESSAGES_MAX)
        size = min(ext.max_msg_bytes, BODY_BYTES_MAX) if ext.max_msg_bytes > 0 else BODY_BYTES_DEFAULT
        return self._store.get(ext.topic, ext.queue_id, ext.queue_offset, nums, size, tag_codes)

    def _code(self, result: GetResult, asked_offset: int) -> int:
        """The response code of a status. A replica never moves a consumer (21): it may only be behind."""
        match result.status:
            case GetStatus.FOUND:
                return ResponseCode.SUCCESS
            case GetStatus.NO_MATCHED_MESSAGE | GetStatus.MESSAGE_WAS_REMOVING:
                return ResponseCode.PULL_RETRY_IMMEDIATELY
            case GetStatus.OFFSET_FOUND_NULL | GetStatus.OFFSET_OVERFLOW_ONE:
                return ResponseCode.PULL_NOT_FOUND
            case GetStatus.NO_MESSAGE_IN_QUEUE | GetStatus.NO_MATCHED_LOGIC_QUEUE if asked_offset == 0:
                return ResponseCode.PULL_NOT_FOUND
            case _:
                master = self._store.is_master
                return ResponseCode.PULL_OFFSET_MOVED if master else ResponseCode.PULL_RETRY_IMMEDIATELY

    def _reply(self, command: PullCommand, peer: HotPeer, code: int, result: GetResult) -> bytes | None:
        size = result.body_bytes
        # fmt: off
        header = _HEADER % (code, result.next_begin_offset, result.min_offset, result.max_offset,
                            command.opaque, result.status.name.encode())
        # fmt: on
        head = _PREFIX.pack(4 + len(header) + size, len(header)) + header
        views = result.views
        if not views:
            return head
        if len(views) > VIEWS_MAX or size < VIEW_BYTES_MIN * len(views):
            return b"".join((head, *views))
        peer.write_parts([head, *views])
        return None

    def _tag_codes(self, subscription: str) -> frozenset[int] | None:
        """Tag codes of `a || b`; None: everything."""
        if subscription in ("*", ""):
            return None
        try:
            return self._subscriptions[subscription]
        except KeyError:
            tags = [tag.strip() for tag in subscription.split("||")]
            codes = frozenset(tag_code(tag) for tag in tags if tag) or None
            if "*" in tags:
                codes = None
            if len(self._subscriptions) < _SUBSCRIPTIONS_CACHED_MAX:
                self._subscriptions[subscription] = codes
            return codes

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
        result = self._get(waiter.command, waiter.tag_codes)
        while result.status is GetStatus.NO_MATCHED_MESSAGE:
            ext.queue_offset = result.next_begin_offset
            result = self._get(waiter.command, waiter.tag_codes)
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
            if not waiter.peer.is_closing():
                result = self._get(waiter.command, waiter.tag_codes)
                self._answer(waiter, self._code(result, ext.queue_offset), result)

    def _answer(self, waiter: _Waiter, code: int, result: GetResult) -> None:
        reply = self._reply(waiter.command, waiter.peer, code, result)
        if reply is not None:
            waiter.peer.send(reply)


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
            expression_type=ext.get("expressionType") or "TAG",
            max_msg_bytes=int(ext.get("maxMsgBytes") or BODY_BYTES_DEFAULT),
            consumer_group=ext.get("consumerGroup") or "",
            commit_offset=int(ext.get("commitOffset") or -1),
        ),
        flag,
    )
