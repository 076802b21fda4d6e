"""Records of RocketMQ's message trace: what happened to a message, as lines of text in the trace topic.

Fields end with \\x01, records with \\x02; the body of a trace message is a sequence of records, and its KEYS
are the ids and keys of the messages in them, so that a query by id (mqadmin queryMsgTraceById) finds them:

    Pub            time region group topic msgId tags keys storeHost bodyLength costTime msgType
                   offsetMsgId success
    SubBefore      time region group requestId msgId retryTimes keys
    SubAfter       requestId msgId costTime success keys contextCode time group
    EndTransaction time region group topic msgId tags keys storeHost msgType transactionId state fromCheck

A missing value is the text "null", as RocketMQ writes it: Java's split drops an empty last field, and the
reader fails. Source: RocketMQ 5.x TraceDataEncoder.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

FIELD_END, RECORD_END = "\x01", "\x02"
NULL: Final = "null"
DEFAULT_REGION: Final = "DefaultRegion"

BODY_CHARS_MAX: Final = 118_000
"""Characters of one trace message, as in RocketMQ; the last record may exceed it."""
KEY_CHARS_MAX: Final = 24_000
"""Characters of its KEYS: all properties of a message together have at most 32,767 bytes."""


class MsgType(IntEnum):
    """Ordinals of RocketMQ's MessageType."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3


class ContextCode(IntEnum):
    """The outcome of a listener call: ordinals of RocketMQ's ConsumeReturnType."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    FAILED = 4  # the listener requested redelivery


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One encoded record. `keys`: the index keys by which queries find it."""

    text: str
    keys: tuple[str, ...]


def pub(
    *,
    time_ms: int,
    region: str,
    group: str,
    topic: str,
    msg_id: str,
    tags: str | None,
    keys: str | None,
    store_host: str,
    body_bytes: int,
    cost_ms: int,
    msg_type: MsgType,
    offset_msg_id: str,
    success: bool,
) -> TraceRecord:
    """Returns the Pub record of a send. `keys`: separated by blanks, as in the property KEYS. `store_host`:
    address:port of the broker."""
    return _record(
        msg_id, keys,
        "Pub", time_ms, region, group, topic, msg_id, _null(tags), _null(keys), store_host, body_bytes,
        cost_ms, int(msg_type), offset_msg_id, _java(success),
    )  # fmt: skip


def sub_before(
    *, time_ms: int, region: str, group: str, request_id: str, msg_id: str, retry_times: int, keys: str | None
) -> TraceRecord:
    """Returns the SubBefore record of one message. `request_id`: identifies the listener call."""
    return _record(
        msg_id, keys, "SubBefore", time_ms, region, group, request_id, msg_id, retry_times, _null(keys)
    )


def sub_after(
    *,
    time_ms: int,
    group: str,
    request_id: str,
    msg_id: str,
    cost_ms: int,
    success: bool,
    keys: str | None,
    code: ContextCode,
) -> TraceRecord:
    """Returns the SubAfter record of one message. `cost_ms`: the call's duration divided by its messages."""
    return _record(
        msg_id, keys,
        "SubAfter", request_id, msg_id, cost_ms, _java(success), _null(keys), int(code), time_ms, group,
    )  # fmt: skip


def end_transaction(
    *,
    time_ms: int,
    region: str,
    group: str,
    topic: str,
    msg_id: str,
    tags: str | None,
    keys: str | None,
    store_host: str,
    transaction_id: str,
    committed: bool,
    from_check: bool,
) -> TraceRecord:
    """Returns the EndTransaction record of a commit or rollback."""
    state = "COMMIT_MESSAGE" if committed else "ROLLBACK_MESSAGE"
    return _record(
        msg_id, keys,
        "EndTransaction", time_ms, region, group, topic, msg_id, _null(tags), _null(keys), store_host,
        int(MsgType.TRANSACTION_COMMIT), transaction_id, state, _java(from_check),
    )  # fmt: skip


def fields_of(body: str) -> list[list[str]]:
    """Returns the fields of each record of a trace message; the first field is the record's kind."""
    return [record.split(FIELD_END) for record in body.split(RECORD_END) if record]


@dataclass(slots=True)
class TraceBuffer:
    """Records that wait to be sent: at most `records_max`; later ones are dropped and counted."""

    records_max: int
    dropped: int = 0
    _waiting: deque[TraceRecord] = field(default_factory=deque)
    _chars: int = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_worth_a_message(self) -> bool:
        """Returns whether the waiting records fill a trace message."""
        return self._chars >= BODY_CHARS_MAX

    def add(self, records: Iterable[TraceRecord]) -> None:
        """Adds records, or counts them in `dropped` if the buffer is full."""
        for record in records:
            if len(self._waiting) >= self.records_max:
                self.dropped += 1
            else:
                self._waiting.append(record)
                self._chars += len(record.text)

    def next_message(self) -> tuple[str, Sequence[str], int] | None:
        """Returns body, keys and number of records of the next trace message; None if no record waits."""
        texts: list[str] = []
        keys: dict[str, None] = {}
        chars = key_chars = 0
        while self._waiting and chars < BODY_CHARS_MAX and key_chars < KEY_CHARS_MAX:
            record = self._waiting.popleft()
            texts.append(record.text)
            chars += len(record.text)
            for key in record.keys:
                if key not in keys:
                    keys[key] = None
                    key_chars += len(key.encode()) + 1
        self._chars -= chars
        return ("".join(texts), tuple(keys), len(texts)) if texts else None


def _record(msg_id: str, keys: str | None, *fields: object) -> TraceRecord:
    text = FIELD_END.join(map(str, fields)) + RECORD_END
    return TraceRecord(text, tuple(key for key in (msg_id, *(keys or "").split(" ")) if key))


def _null(text: str | None) -> str:
    return text or NULL


def _java(value: bool) -> str:
    return "true" if value else "false"
