"""Pull requests (11, 361): the type that msgspec decodes, the lenient decoder, and refusals."""

from collections.abc import Mapping
from typing import Final

import msgspec

from broker.admission.fast_path import Int32
from broker.filter.core.subscription import TAG
from keelmq.remoting.command import response_frame
from keelmq.remoting.operations.broker import PullMessageResponse

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


class PullFields(msgspec.Struct, gc=False, rename="camel"):
    """extFields of 11 that the broker uses."""

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
    """A request 11 or 361."""

    opaque: Int32
    ext: PullFields
    flag: int = 0


def keep_little(command: PullCommand) -> None:
    """Called when the pull begins to wait: drops the subscription, which is not read again. It may be as
    large as a frame, and thousands of pulls wait."""
    ext = command.ext
    if ext.sys_flag & (FLAG_SUBSCRIPTION | FLAG_CLASS_FILTER) != FLAG_SUBSCRIPTION:
        ext.subscription = ext.expression_type = ""


def refuse(command: PullCommand, code: int, remark: str, forbidden: int | None = None) -> bytes:
    """Returns a refusal, with the header fields of an answer: some clients read them for any code.

    forbidden: one of FORBIDDEN_*, for code 16.
    """
    offset = command.ext.queue_offset
    header = PullMessageResponse(
        next_begin_offset=offset, min_offset=0, max_offset=0, forbidden_type=forbidden
    )
    return response_frame(command.opaque, code, remark, header)


def lenient(code: int, opaque: int, flag: int, ext: Mapping[str, str]) -> PullCommand:
    """Returns a pull from text fields. KeyError: a mandatory field is missing; ValueError: not a number."""
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
