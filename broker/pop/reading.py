"""Pops messages from queues for a group: reads and filters them, and writes their checkpoints.

No function here awaits, so two pops never interleave in a queue (broker-ops pitfall 17). Source: RocketMQ
5.5 PopMessageProcessor, popMsgFromTopic and popMsgFromQueue.
"""

import logging
import random
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from broker.admission.send_gate import PutRefused
from broker.filter.core.subscription import MATCH_ALL, MessageFilter
from broker.filter.matching import select
from broker.message.properties import with_properties
from broker.message.record import PROPERTIES_BYTES_MAX, decode, encode
from broker.metadata.core.topic_names import REVIVE_QUEUES, retry_topics
from broker.pop.core.handles import (
    ORDER_REVIVE_QUEUE,
    Handle,
    join_infos,
    msg_offset_info,
    order_count_infos,
    retry_flag,
    start_offset_info,
)
from broker.pop.core.order import Block, QueueOfGroup
from broker.pop.core.state import Checkpoint, Key
from broker.pop.service import PopService
from broker.put.handler_context import HandlerContext
from broker.store.queue.reading import DamagedQueueError, GetResult, GetStatus
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.pop import PopMessageResponse
from keelmq.runtime.rate_limited_log import RateLimitedLogger

logger = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 262_144
ATTEMPT_CHARACTERS_MAX: Final = 256
"""Of an attemptId, which is a UUID: the rest does not count, since it is kept."""
OWNER_CHARACTERS_MAX: Final = 255
MESSAGES_MAX: Final = 32
READS_MAX: Final = 16
"""Reads of a queue in one pop while the filter matches nothing. The next pop continues there; for a waiting
pop, the next turn of the event loop does."""
FILTERED_MAX: Final = 64
"""Messages of a queue to which a notification applies its filter; of more, one probably matches
(maxMessageFilterNumForNotification)."""
MIN_MODE: Final = 0
TABLE_IS_FULL: Final = PutRefused(
    ResponseCode.SYSTEM_ERROR,
    "the table of consumer offsets is full, so the offset of this group cannot be stored: delete groups or "
    "topics that are no longer used",
)


QueueOrder: TypeAlias = Callable[[int], Sequence[int]]
"""(number of queues) -> their ids, in the order in which a pop reads them"""


def from_any(queues: int) -> Sequence[int]:
    """Returns the queues from a random one on, so that none is favoured."""
    start = random.randrange(max(queues, 1))
    return [(start + step) % queues for step in range(queues)]


def from_last(queues: int) -> Sequence[int]:
    """Returns the queues, the last one first."""
    return range(queues)[::-1]


def by_chance(percent: int) -> bool:
    """Returns True for this share of the calls."""
    return random.randrange(100) < percent


class PopParameters(msgspec.Struct):
    """The parameters of a pop. queue_id -1: any queue; queues: their number; messages: how many at most.
    priority_factor: how many of 100 such pops read the queues in the order of priority. owner: see
    Checkpoint."""

    group: str
    topic: str
    queue_id: int
    queues: int
    messages: int
    invisible_ms: int
    message_filter: MessageFilter = MATCH_ALL
    init_mode: int = MIN_MODE
    is_ordered: bool = False
    attempt_id: str = ""
    priority_factor: int = 0
    owner: str = ""

    def queue_ids(self, order: QueueOrder) -> Sequence[int]:
        """Returns the queues to read."""
        return order(self.queues) if self.queue_id < 0 else (self.queue_id,)


class PopResult(msgspec.Struct):
    """The messages of a pop. end: the log must be safe up to here before the pop is answered. is_unfinished:
    the filter matched nothing so far, and a queue has more messages."""

    pop_ms: int
    revive_queue: int
    bodies: list[bytes] = msgspec.field(default_factory=list)
    starts: list[str] = msgspec.field(default_factory=list)
    offsets: list[str] = msgspec.field(default_factory=list)
    order_counts: list[str] = msgspec.field(default_factory=list)
    messages: int = 0
    body_bytes: int = 0
    rest: int = 0
    end: int = 0
    is_unfinished: bool = False
    refused: PutRefused | None = None
    damage: PutRefused | None = None  # the refusal if there are no messages

    def header(self, params: PopParameters) -> PopMessageResponse:
        """Returns the header of the response."""
        return PopMessageResponse(
            pop_time=self.pop_ms,
            invisible_time=params.invisible_ms,
            revive_qid=self.revive_queue,
            rest_num=self.rest,
            start_offset_info=join_infos(self.starts),
            msg_offset_info=join_infos(self.offsets),
            order_count_info=join_infos(self.order_counts) if params.is_ordered else None,
        )


class PopReader:
    """Pops messages for groups. Owned by the event loop's thread."""

    def __init__(self, context: HandlerContext, pop: PopService) -> None:
        self._context, self._store, self._pop = context, context.store, pop
        self._turn = 0
        self._failures = RateLimitedLogger(logger, level=logging.ERROR)

    def pop(self, params: PopParameters, now_ms: int) -> PopResult:
        """Pops up to params.messages messages, and stores their checkpoints."""
        self._turn += 1
        queue = ORDER_REVIVE_QUEUE if params.is_ordered else self._turn % REVIVE_QUEUES
        popped = PopResult(now_ms, queue)
        order, retry_first = self._choose(params)
        if not params.is_ordered and retry_first:
            self._pop_retries(params, popped, order)
        for queue_id in params.queue_ids(order):
            self._pop_queue(params, popped, params.topic, queue_id)
        if not params.is_ordered and not retry_first:
            self._pop_retries(params, popped, order)
        popped.refused = popped.refused or popped.damage
        return popped

    def _choose(self, params: PopParameters) -> tuple[QueueOrder, bool]:
        """Returns the order of the queues, and whether the retry topics are read first: sometimes, so that
        neither they nor the topic starve."""
        settings = self._context.settings
        if not by_chance(params.priority_factor):
            return from_any, by_chance(settings.pop_from_retry_probability)
        order = from_last if settings.priority_order_asc else range
        return order, by_chance(settings.pop_from_retry_probability_for_priority)

    def _pop_retries(self, params: PopParameters, popped: PopResult, order: QueueOrder) -> None:
        """Pops from the retry topics without the filter, which their messages have passed before."""
        params = replace(params, message_filter=MATCH_ALL)
        for place in self._retry_queues(params, order):
            self._pop_queue(params, popped, place.topic, place.queue_id)

    def _retry_queues(self, params: PopParameters, order: QueueOrder) -> list[QueueOfGroup]:
        topics = self._context.topics
        return [
            QueueOfGroup(params.group, name, queue_id)
            for name in retry_topics(params.group, params.topic)
            if (topic := topics.get(name)) is not None
            for queue_id in order(topic.read_queue_nums)
        ]

    # -- one queue ---------------------------------------------------------------------------------------

    def has_any(self, params: PopParameters, now_ms: int) -> bool:
        """Returns whether a pop would find a message, for notifications. Messages of the retry topics have
        passed the filter before."""
        queue_ids = params.queue_ids(from_any)
        places = [QueueOfGroup(params.group, params.topic, queue_id) for queue_id in queue_ids]
        retries = [] if params.is_ordered else self._retry_queues(params, from_any)
        return any(self._has_message(params, place, now_ms) for place in places) or any(
            self._has_message(replace(params, message_filter=MATCH_ALL), place, now_ms) for place in retries
        )

    def _has_message(self, params: PopParameters, place: QueueOfGroup, now_ms: int) -> bool:
        ordered = params.is_ordered
        if ordered and self._pop.order.is_blocked(place, params.attempt_id, now_ms=now_ms):
            return False
        start = self._start(place, MIN_MODE, ordered=ordered)
        rest = self.rest(place, start)
        if params.message_filter == MATCH_ALL or not 0 < rest <= FILTERED_MAX:
            return rest > 0
        try:
            return self._has_match(place, start, params.message_filter)
        except DamagedQueueError:
            return True  # the pop is answered with the error

    def _has_match(self, place: QueueOfGroup, start: int, message_filter: MessageFilter) -> bool:
        """Returns whether one of the last FILTERED_MAX messages of a queue matches, from `start` on."""
        while self.rest(place, start):
            result = self._select(place, start, FILTERED_MAX, BODY_BYTES_MAX, message_filter)
            if result.views:
                return True
            if result.next_begin_offset <= start:
                break
            start = result.next_begin_offset
        return False

    def rest(self, place: QueueOfGroup, start: int) -> int:
        """Returns how many messages the queue has from offset `start` on."""
        return max(self._store.max_queue_offset(place.topic, place.queue_id) - start, 0)

    def _pop_queue(self, params: PopParameters, popped: PopResult, topic: str, queue_id: int) -> None:
        place = QueueOfGroup(params.group, topic, queue_id)
        self._apply_reset(place, popped)
        start = self._start(place, params.init_mode, ordered=params.is_ordered)
        blocked = params.is_ordered and self._pop.order.is_blocked(
            place, params.attempt_id, now_ms=popped.pop_ms
        )
        left, room = params.messages - popped.messages, BODY_BYTES_MAX - popped.body_bytes
        if popped.refused is None and self.rest(place, start) and not self._pop.offsets.has_room(place):
            popped.refused = TABLE_IS_FULL
        if left <= 0 or room <= 0 or blocked or popped.refused is not None:
            popped.rest += self.rest(place, start)
            return
        try:
            result = self._read(place, start, left, room, params.message_filter, popped)
        except DamagedQueueError as error:
            self._pass_over(params, popped, place, error)
        else:
            if result.views:
                self._hand_out(params, popped, place, result)
        popped.rest += self.rest(place, self._start(place, params.init_mode, ordered=params.is_ordered))

    def _pass_over(
        self, params: PopParameters, popped: PopResult, place: QueueOfGroup, error: DamagedQueueError
    ) -> None:
        """Skips a damaged queue, since others may have messages: those of the topic, or the retries. If they
        have none, a pop of only this queue is refused."""
        self._failures.tell(self._context.now_ms(), "%s", error)
        if (place.topic, place.queue_id) == (params.topic, params.queue_id):
            popped.damage = PutRefused(ResponseCode.SYSTEM_ERROR, str(error))

    def _apply_reset(self, place: QueueOfGroup, popped: PopResult) -> None:
        """Applies an offset that an operator has set for the group (broker-ops pitfall 15)."""
        resets = self._context.resets
        offset = resets.offsets.get(place)
        if offset is None or popped.refused is not None:
            return
        popped.refused = self._pop.reset(place, offset)
        if popped.refused is None:
            resets.take(*place)

    def _start(self, place: QueueOfGroup, init_mode: int, *, ordered: bool) -> int:
        block = self._pop.order.blocks.get(place) if ordered else None
        if block is not None:
            return block.progress
        offset = self._pop.offsets.get(place)
        return offset if offset >= 0 else self._first(place, init_mode)

    def _first(self, place: QueueOfGroup, init_mode: int) -> int:
        """Returns the first offset of a group that is new here. A retry topic is read from its beginning
        (broker-ops pitfall 16), and so is a young topic, which is in memory as a whole."""
        queue = self._store.find_queue(place.topic, place.queue_id)
        if queue is None:
            return 0
        is_retry = place.topic in retry_topics_of(place)
        if init_mode == MIN_MODE or is_retry or queue.max_offset <= queue.min_offset:
            return queue.min_offset
        log_offset, _, _ = queue.unit(queue.min_offset)
        is_young = self._store.commit_log.max_offset - log_offset <= self._context.cached_bytes
        return queue.min_offset if queue.min_offset == 0 and is_young else queue.max_offset - 1

    def _read(
        self,
        place: QueueOfGroup,
        start: int,
        messages: int,
        size: int,
        message_filter: MessageFilter,
        popped: PopResult,
    ) -> GetResult:
        """Reads until the filter matches, READS_MAX times at most. Moves the group's offset past messages
        that do not match; an empty queue does not move it (broker-ops pitfall 18)."""
        for _ in range(READS_MAX):
            began_s = monotonic()
            result = self._select(place, start, messages, size, message_filter)
            self._context.reads.record_lookup_time(monotonic() - began_s)
            if result.views or result.status not in _CONTINUES or result.next_begin_offset == start:
                break
            start = result.next_begin_offset
            self._pop.offsets.set(place, start, self._store.commit_log.max_offset)
            self._pop.order.forget(place)
        else:
            popped.is_unfinished |= self.rest(place, start) > 0
        return result

    def _select(
        self, place: QueueOfGroup, start: int, messages: int, size: int, message_filter: MessageFilter
    ) -> GetResult:
        """Reads once from a queue; returns the messages that match."""
        result = self._store.get(
            place.topic, place.queue_id, start, messages, size, message_filter.tag_codes, decodes=True
        )
        return (
            result if message_filter.sql is None or not result.views else select(result, message_filter.sql)
        )

    def _hand_out(
        self, params: PopParameters, popped: PopResult, place: QueueOfGroup, result: GetResult
    ) -> None:
        offsets = tuple(_offsets(result.views))
        if place.topic == params.topic:
            bodies = list(map(bytes, result.views))
        else:  # before the checkpoint: an error here must leave nothing popped
            bodies = self._as_subscribed_topic(params, popped, place, offsets[0], result.views)
        start, flag = offsets[0], retry_flag(place.topic, params.group)
        if params.is_ordered:
            block = Block(
                popped.pop_ms, params.invisible_ms, offsets, result.next_begin_offset, params.attempt_id,
                params.owner,
            )  # fmt: skip
            self._pop.order.popped(place, block)
            self._pop.offsets.commit(place, start)
            popped.order_counts += order_count_infos(flag, place.queue_id, block.counts, len(offsets))
        else:
            key = Key(*place, start, popped.pop_ms)
            checkpoint = Checkpoint(
                key, params.invisible_ms, offsets, result.next_begin_offset, popped.revive_queue,
                owner=params.owner,
            )  # fmt: skip
            end = self._pop.hand_out(checkpoint)
            if isinstance(end, PutRefused):
                popped.refused = end
                return
            popped.end = end
        popped.starts.append(start_offset_info(flag, place.queue_id, start))
        popped.offsets.append(msg_offset_info(flag, place.queue_id, offsets))
        popped.messages += len(offsets)
        popped.body_bytes += result.body_bytes
        popped.bodies += bodies
        end = result.next_begin_offset
        self._context.reads.count_read(
            params.topic, params.group, place.queue_id, end, len(offsets), result.body_bytes
        )

    def _as_subscribed_topic(
        self,
        params: PopParameters,
        popped: PopResult,
        place: QueueOfGroup,
        start: int,
        views: list[memoryview],
    ) -> list[bytes]:
        """Retries as messages of the subscribed topic; they carry their handle, since the client would derive
        a wrong one from that name. If its properties have no room for it, a message is returned unchanged,
        under the retry topic's name (popResponseReturnActualRetryTopic), from which clients derive the right
        one."""
        found = []
        flag = retry_flag(place.topic, params.group)
        for view in views:
            at = 0
            while at < len(view):
                record = decode(view, at)
                raw = view[at : at + record.size]
                at += record.size
                handle = Handle(
                    start, popped.pop_ms, params.invisible_ms, popped.revive_queue, flag,
                    self._pop.broker_name, place.queue_id, record.queue_offset,
                )  # fmt: skip
                properties = with_properties(record.properties, {b"POP_CK": handle.text().encode()})
                if len(properties) > PROPERTIES_BYTES_MAX:
                    found.append(bytes(raw))
                else:
                    found.append(encode(replace(record, topic=params.topic, properties=properties)))
        return found

    # -- peek --------------------------------------------------------------------------------------------

    def peek(self, params: PopParameters, now_ms: int) -> PopResult:
        """Returns the next messages and changes nothing."""
        popped = PopResult(now_ms, 0)
        queue_ids = params.queue_ids(from_any)
        places = [QueueOfGroup(params.group, params.topic, queue_id) for queue_id in queue_ids]
        for place in places + self._retry_queues(params, from_any):
            start = self._start(place, MIN_MODE, ordered=False)
            left, room = params.messages - popped.messages, BODY_BYTES_MAX - popped.body_bytes
            if left > 0 and room > 0:
                try:
                    result = self._store.get(
                        place.topic, place.queue_id, start, left, room, None, decodes=True
                    )
                except DamagedQueueError as error:
                    self._pass_over(params, popped, place, error)
                else:
                    popped.bodies += map(bytes, result.views)
                    popped.messages += result.message_count
                    popped.body_bytes += result.body_bytes
            popped.rest += self.rest(place, start)
        popped.refused = popped.damage
        return popped


_CONTINUES: Final = frozenset(
    {
        GetStatus.NO_MATCHED_MESSAGE,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.OFFSET_TOO_SMALL,
    }
)


def retry_topics_of(place: QueueOfGroup) -> tuple[str, ...]:
    """Returns the place's topic, if it is a retry topic of its group."""
    return (place.topic,) if retry_flag(place.topic, place.group) != "0" else ()


def _offsets(views: list[memoryview]) -> list[int]:
    found = []
    for view in views:
        at = 0
        while at < len(view):
            size = int.from_bytes(view[at : at + 4], "big")
            found.append(int.from_bytes(view[at + 20 : at + 28], "big"))
            at += size
    return found
