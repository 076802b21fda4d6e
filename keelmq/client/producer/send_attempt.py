"""PendingSend: a message or a batch over all its attempts; and the codes after which it is sent again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from keelmq.client.core.checks import INT32_MAX, check_int, check_one_of, check_text
from keelmq.client.core.send_result import SendError, SendErrorKind, SendResult
from keelmq.client.message import (
    HALF_FLAG,
    TRAN_MSG,
    Message,
    encode_properties,
)
from keelmq.client.producer.compression import compressed
from keelmq.remoting.codes import ResponseCode

RETRY_CODES = frozenset(
    {
        ResponseCode.RPC_SEND_TO_CHANNEL_FAILED,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
NO_ATTEMPT = "the timeout passed before the first attempt"
DENIALS_MAX = 3
"""NO_PERMISSION ends a send after this many attempts, as RocketMQ's producers end all: another broker may
permit it, but waiting does not help."""
STORED_CODES = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT}
)
"""The master has the message, but its flush or replication timed out: neither a success nor a failure."""


@dataclass(slots=True)
class PendingSend:
    """One message, or one batch, over all its attempts. `reconsume_times`: of a message that a consumer sends
    back."""

    topic: str
    body: bytes
    sys_flag: int
    flag: int
    properties: str
    unique_key: str
    deadline_ms: int
    batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    attempts: int = 0
    uncertain: int = 0
    denials: int = 0
    in_doubt: bool = False  # an attempt was sent and has no response yet
    last_broker: str = ""
    last_address: str = ""
    problem: SendErrorKind = SendErrorKind.NO_ROUTE
    remark: str = NO_ATTEMPT
    answer: str = ""  # the remark of the last response of a broker or a name server

    async def compress(self, over_bytes: int | None) -> None:
        """Compresses the body if it has over_bytes or more, and gets shorter; None: never."""
        self.body, flag = await compressed(self.body, over_bytes)
        self.sys_flag |= flag

    def fail(self, kind: SendErrorKind, remark: str, *, answered: bool = True) -> None:
        """Records why the latest attempt failed. `answered`: by a server. Without an answer (no server could
        be reached) the kind stays that of the last answer, and the remark names both. CLOSED stays:
        an attempt that ends after close() does not replace it."""
        if self.problem is SendErrorKind.CLOSED:
            return
        if answered:
            self.problem, self.remark, self.answer = kind, remark, remark
        elif self.answer:
            self.remark = f"{self.answer}; then: {remark}"
        else:
            self.problem, self.remark = kind, remark

    def sends_again(self, code: int) -> bool:
        """Returns whether another attempt may succeed after this code, and counts it."""
        self.denials += code == ResponseCode.NO_PERMISSION
        return code in RETRY_CODES and self.denials < DENIALS_MAX

    def error(self) -> SendError:
        """Returns the SendError of the whole send; UNKNOWN if any attempt may be stored."""
        uncertain = self.uncertain + self.in_doubt
        kind = SendErrorKind.UNKNOWN if uncertain else self.problem
        remark = self.remark
        # The deadline ended the latest attempt.
        if self.in_doubt and self.problem is not SendErrorKind.CLOSED:
            earlier = f"; before: {remark}" if remark != NO_ATTEMPT else ""
            remark = f"{self.last_address}: no answer in time{earlier}"
        return SendError(kind, remark, self.attempts, self.unique_key)


def pending(message: Message, unique_key: str, deadline_ms: int) -> PendingSend:
    """Returns the send of a message. Its body is not compressed yet."""
    properties = encode_properties(message, unique_key)
    sys_flag = HALF_FLAG if message.properties.get(TRAN_MSG) == "true" else 0
    return PendingSend(
        message.topic, message.body, sys_flag, message.flag, properties, unique_key, deadline_ms
    )


def one_batch(messages: Sequence[Message]) -> tuple[str, bool]:
    """Returns the topic and the WAIT that the messages share. ValueError: they cannot be one batch."""
    if not messages:
        raise ValueError("an empty batch")
    for message in messages:
        check_text("topic", message.topic)
        check_one_of("wait", message.wait, bool)
        check_int("delay_level", message.delay_level)
        check_int("priority", message.priority, most=INT32_MAX, optional=True)
    topics, waits = {message.topic for message in messages}, {message.wait for message in messages}
    if len(topics) > 1 or len(waits) > 1:
        raise ValueError(f"a batch has one topic and one `wait`, these have {sorted(topics)} and {waits}")
    (topic,) = topics
    if topic.startswith("%RETRY%") or any(message.delay_level for message in messages):
        raise ValueError("a batch is neither delayed nor for a retry topic: send those one by one")
    if any(message.priority is not None for message in messages):
        raise ValueError("a batch has one queue, and a priority chooses another one: send those one by one")
    return topic, waits.pop()


def results_of_batch(whole: SendResult, keys: Sequence[str]) -> list[SendResult]:
    """Returns one result per message. The broker returns the first queue offset and all ids, joined by
    commas, or one id for all if the batch is one record (queue.type=BatchCQ)."""
    ids = whole.offset_msg_id.split(",")
    ids += [ids[0] if len(ids) == 1 else ""] * (len(keys) - len(ids))
    return [
        replace(whole, msg_id=key, offset_msg_id=ids[index], queue_offset=whole.queue_offset + index)
        for index, key in enumerate(keys)
    ]
