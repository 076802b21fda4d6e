"""Absent and zero header fields, as RocketMQ 5.3.3 reads them.

Java's reader logs that a required field is absent, and goes on with the default of its type: 0 or false of
a primitive one, null of a boxed one. So a request without a field of a primitive type, or without one that
its processor does not read, is served. ABSENT has these fields of all our request headers, and Java's value.
REFUSED has the fields that we require although Java would serve the request, and why.
"""

from typing import Any, Final, NamedTuple

import pytest

from keelmq.remoting.command import BadRequest, parse_header
from keelmq.remoting.operation import Operation
from keelmq.remoting.operations.broker import QUERY_MESSAGE
from keelmq.remoting.operations.broker_admin import (
    CLONE_GROUP_OFFSET,
    GET_BROKER_CONSUME_STATS,
    QUERY_CONSUME_QUEUE,
    RESET_MASTER_FLUSH_OFFSET,
)
from keelmq.remoting.operations.broker_metadata import DELETE_SUBSCRIPTIONGROUP, UPDATE_AND_CREATE_TOPIC
from keelmq.remoting.operations.clients import (
    CONSUMER_SEND_MSG_BACK,
    INVOKE_BROKER_TO_RESET_OFFSET,
    UNREGISTER_CLIENT,
)
from keelmq.remoting.operations.pop import (
    CHANGE_MESSAGE_INVISIBLETIME,
    NOTIFICATION,
    PEEK_MESSAGE,
    POLLING_INFO,
    POP_MESSAGE,
)
from keelmq.remoting.operations.route import GET_BROKER_MEMBER_GROUP, REGISTER_BROKER
from keelmq.remoting.operations.transactions import END_TRANSACTION

GROUP_AND_TOPIC: Final = {"consumerGroup": "g", "topic": "T"}
MEMBER: Final = {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "0"}


class Absent(NamedTuple):
    """field: the name on the wire; given: the other fields of a request that Java serves without it."""

    operation: Operation[Any, Any]
    given: dict[str, str]
    field: str
    java: object


ABSENT: Final = [
    Absent(POP_MESSAGE, GROUP_AND_TOPIC, "queueId", 0),
    Absent(POP_MESSAGE, GROUP_AND_TOPIC, "maxMsgNums", 0),
    Absent(POP_MESSAGE, GROUP_AND_TOPIC, "invisibleTime", 0),
    Absent(POP_MESSAGE, GROUP_AND_TOPIC, "pollTime", 0),
    Absent(POP_MESSAGE, GROUP_AND_TOPIC, "bornTime", 0),
    Absent(POP_MESSAGE, GROUP_AND_TOPIC, "initMode", 0),
    Absent(POP_MESSAGE, GROUP_AND_TOPIC, "order", False),
    Absent(PEEK_MESSAGE, GROUP_AND_TOPIC, "queueId", 0),
    Absent(PEEK_MESSAGE, GROUP_AND_TOPIC, "maxMsgNums", 0),
    Absent(NOTIFICATION, GROUP_AND_TOPIC, "queueId", 0),
    Absent(NOTIFICATION, GROUP_AND_TOPIC, "pollTime", 0),
    Absent(NOTIFICATION, GROUP_AND_TOPIC, "bornTime", 0),
    Absent(NOTIFICATION, GROUP_AND_TOPIC, "order", False),
    Absent(POLLING_INFO, GROUP_AND_TOPIC, "queueId", 0),
    Absent(QUERY_CONSUME_QUEUE, {"topic": "T"}, "queueId", 0),
    Absent(QUERY_CONSUME_QUEUE, {"topic": "T"}, "index", 0),
    Absent(QUERY_CONSUME_QUEUE, {"topic": "T"}, "count", 0),
    Absent(INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "T", "group": "g", "offset": "3"}, "timestamp", None),
    Absent(INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "T", "group": "g", "offset": "3"}, "queueId", -1),
    Absent(INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "T", "group": "g", "offset": "3"}, "isForce", False),
    Absent(CLONE_GROUP_OFFSET, {"srcGroup": "a", "destGroup": "b"}, "offline", False),
    Absent(GET_BROKER_CONSUME_STATS, {}, "isOrder", False),
    Absent(DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}, "cleanOffset", False),
    Absent(QUERY_MESSAGE, {"topic": "T", "key": "k", "_UNIQUE_KEY_QUERY": "true"}, "maxNum", None),
    Absent(
        UPDATE_AND_CREATE_TOPIC,
        {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"},
        "defaultTopic",
        "",
    ),
    Absent(
        UPDATE_AND_CREATE_TOPIC,
        {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"},
        "topicSysFlag",
        0,
    ),
    Absent(
        END_TRANSACTION,
        {"producerGroup": "p", "tranStateTableOffset": "1", "commitLogOffset": "2", "commitOrRollback": "8"},
        "msgId",
        None,
    ),
    Absent(
        CONSUMER_SEND_MSG_BACK, {"offset": "1", "group": "g", "delayLevel": "0"}, "maxReconsumeTimes", None
    ),
    Absent(GET_BROKER_MEMBER_GROUP, {"brokerName": "b"}, "clusterName", ""),
    Absent(REGISTER_BROKER, MEMBER, "compressed", False),
    Absent(REGISTER_BROKER, MEMBER, "bodyCrc32", 0),
]


@pytest.mark.parametrize("case", ABSENT, ids=lambda each: f"{each.operation.code}-{each.field}")
def test_an_absent_field_is_what_java_makes_of_it(case: Absent) -> None:
    model = case.operation.request
    (name,) = [name for name, field in model.model_fields.items() if (field.alias or name) == case.field]
    for fields in (case.given, case.given | {case.field: ""}):  # binary headers cannot tell them apart
        assert getattr(parse_header(model, fields), name) == case.java


class Refused(NamedTuple):
    operation: Operation[Any, Any]
    given: dict[str, str]
    remark: str
    why: str


REFUSED: Final = [
    Refused(
        POP_MESSAGE, GROUP_AND_TOPIC | {"invisibleTime": "-1"}, "invisibleTime",
        "Java: the message is visible again before it arrives",
    ),
    Refused(
        CHANGE_MESSAGE_INVISIBLETIME,
        GROUP_AND_TOPIC | {"queueId": "0", "extraInfo": "x", "offset": "0", "invisibleTime": "-1"},
        "invisibleTime",
        "the same",
    ),
    Refused(
        RESET_MASTER_FLUSH_OFFSET, {}, "masterFlushOffset is missing", "Java: answers 0 and changes nothing"
    ),
    Refused(
        UNREGISTER_CLIENT, {"consumerGroup": "g"}, "clientID is missing",
        "Java: ends with an exception after half of the work",
    ),
    Refused(
        POP_MESSAGE, GROUP_AND_TOPIC | {"bornTime": "soon"}, "bornTime",
        "Java: logs it and takes the default; a client would never hear of its fault",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda each: f"{each.operation.code}-{each.remark}")
def test_what_java_serves_and_we_refuse(case: Refused) -> None:
    with pytest.raises(BadRequest, match=case.remark):
        parse_header(case.operation.request, case.given)
