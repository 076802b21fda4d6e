"""A message that is ready to be stored, and where it was stored."""

from typing import NamedTuple

import msgspec

from broker.store.settings import TopicLike


class MessageToStore(msgspec.Struct):
    """properties: as stored. delay_level: 0, or the level that the message waits for.
    timer_out_ms: 0, or when a timer message is due (ms since 1970). prepared_offset: the log offset of the
    half message that this message commits, or 0."""

    topic: TopicLike
    queue_id: int
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int
    delay_level: int = 0
    prepared_offset: int = 0
    timer_out_ms: int = 0


class PutMessageResult(NamedTuple):
    """Log offset of the record, log offset behind it, and the message's offset in its queue."""

    offset: int
    end: int
    queue_offset: int
