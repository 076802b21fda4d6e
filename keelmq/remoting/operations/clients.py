"""Requests about clients: heartbeats, group members, queue locks.

Source: RocketMQ 5.3.3 HeartbeatData, ConsumerData, SubscriptionData, ConsumerConnection,
LockBatchRequestBody. Clients in other languages write enumerations as ordinals, numbers as text, and leave
members out.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Empty, Operation, Wire
from keelmq.remoting.operations.broker import TopicRequest
from keelmq.remoting.operations.broker_metadata import GroupRequest

CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


def _named(names: tuple[str, ...]) -> BeforeValidator:
    """An enumeration by name or by ordinal; a name that we do not know is kept."""

    def name_of(value: Any) -> Any:
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value < len(names):
                raise ValueError(f"{value} is none of {', '.join(names)}")
            return names[value]
        return value

    return BeforeValidator(name_of)


class SubscriptionData(Wire):
    """What a group wants of a topic. codeSet comes wrong from some clients: it is computed again."""

    topic: str
    sub_string: str = "*"
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False
    code_set: list[int] = Field(default_factory=list)
    tags_set: list[str] = Field(default_factory=list)


class ConsumerData(Wire):
    group_name: str
    consume_type: Annotated[str, _named(CONSUME_TYPES)] = "CONSUME_PASSIVELY"
    message_model: Annotated[str, _named(MESSAGE_MODELS)] = "CLUSTERING"
    consume_from_where: Annotated[str, _named(CONSUME_FROM_WHERE)] = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = Field(default_factory=list)
    unit_mode: bool = False


class ProducerData(Wire):
    group_name: str


class HeartbeatData(Wire):
    """without_sub: the short form of heartbeats V2, which says nothing about subscriptions."""

    client_id: str = Field(alias="clientID", min_length=1)
    producer_data_set: list[ProducerData] = Field(default_factory=list)
    consumer_data_set: list[ConsumerData] = Field(default_factory=list)
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class HeartbeatResponse(Wire):
    """is_sub_change: send the full form next time, too."""

    is_support_heart_beat_v2: bool = Field(default=True, alias="IS_SUPPORT_HEART_BEAT_V2")
    is_sub_change: bool = Field(default=True, alias="IS_SUB_CHANGE")


class UnregisterClientRequest(Wire):
    client_id: str = Field(alias="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerGroupRequest(Wire):
    consumer_group: str


class ProducerGroupRequest(Wire):
    producer_group: str


class ConsumerIdList(Wire):
    consumer_id_list: list[str] = Field(default_factory=list)


class ConnectionBody(Wire):
    client_addr: str
    client_id: str
    language: str
    version: int


class ConsumerConnectionBody(Wire):
    connection_set: list[ConnectionBody] = Field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = Field(default_factory=dict)
    consume_type: str = CONSUME_TYPES[1]
    message_model: str = MESSAGE_MODELS[1]
    consume_from_where: str = CONSUME_FROM_WHERE[0]


class ProducerConnectionBody(Wire):
    connection_set: list[ConnectionBody] = Field(default_factory=list)


class MessageQueueBody(Wire):
    topic: str
    broker_name: str
    queue_id: int


class LockBatchBody(Wire):
    consumer_group: str
    client_id: str
    mq_set: list[MessageQueueBody] = Field(default_factory=list)
    only_this_broker: bool = False


class LockedQueues(Wire):
    lock_ok_mq_set: list[MessageQueueBody] = Field(default_factory=list, alias="lockOKMQSet")


class SendBackRequest(Wire):
    """offset: of the message in the CommitLog. delay_level 0: the broker chooses, below 0: no more retries.
    Some clients send these three only. forwarded (ours): by a broker that is not master any more."""

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None
    forwarded: bool | None = None


class ResetOffsetRequest(Wire):
    """queue_id -1: all. offset, if it is there and not negative; else the first one at `timestamp` (ms; -1:
    the end), which leaves out messages that are not consumed yet by force only."""

    topic: str
    group: str
    queue_id: int = -1
    offset: int | None = None
    timestamp: int
    is_force: bool = False


class GroupTopicRequest(Wire):
    group: str
    topic: str


class GroupForbiddenRequest(Wire):
    group: str
    topic: str
    readable: bool | None = None


class GroupForbidden(Wire):
    group: str
    topic: str
    readable: bool


class TopicNames(Wire):
    topic_list: list[str] = Field(default_factory=list)


class ConsumeStatsRequest(Wire):
    """topic_list: separated by semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class ConsumerCallRequest(Wire):
    """For one consumer. msg_id: the offset message id of what it should handle."""

    consumer_group: str
    client_id: str
    msg_id: str | None = None
    jstack_enable: bool | None = None


class ConsumerStatusRequest(Wire):
    """client_addr: of the one client that is asked (its id, by upstream's habit); None or "": all of them."""

    topic: str
    group: str
    client_addr: str | None = None


class CheckClientBody(Wire):
    client_id: str | None = None
    group: str | None = None
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


HEART_BEAT = Operation(
    RequestCode.HEART_BEAT, "heartBeat", Empty, HeartbeatResponse, request_body=HeartbeatData
)
UNREGISTER_CLIENT = Operation(
    RequestCode.UNREGISTER_CLIENT, "unregisterClient", UnregisterClientRequest, Empty
)
GET_CONSUMER_LIST_BY_GROUP = Operation(
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    "getConsumerListByGroup",
    ConsumerGroupRequest,
    Empty,
    response_body=ConsumerIdList,
)
NOTIFY_CONSUMER_IDS_CHANGED = Operation(
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    "notifyConsumerIdsChanged",
    ConsumerGroupRequest,
    Empty,
    oneway=True,
)
LOCK_BATCH_MQ = Operation(
    RequestCode.LOCK_BATCH_MQ,
    "lockBatchMQ",
    Empty,
    Empty,
    request_body=LockBatchBody,
    response_body=LockedQueues,
)
UNLOCK_BATCH_MQ = Operation(
    RequestCode.UNLOCK_BATCH_MQ, "unlockBatchMQ", Empty, Empty, request_body=LockBatchBody
)
GET_CONSUMER_CONNECTION_LIST = Operation(
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    "getConsumerConnectionList",
    ConsumerGroupRequest,
    Empty,
    response_body=ConsumerConnectionBody,
)
GET_PRODUCER_CONNECTION_LIST = Operation(
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    "getProducerConnectionList",
    ProducerGroupRequest,
    Empty,
    response_body=ProducerConnectionBody,
)
CONSUMER_SEND_MSG_BACK = Operation(
    RequestCode.CONSUMER_SEND_MSG_BACK, "consumerSendMsgBack", SendBackRequest, Empty
)
CHECK_CLIENT_CONFIG = Operation(
    RequestCode.CHECK_CLIENT_CONFIG, "checkClientConfig", Empty, Empty, request_body=CheckClientBody
)
INVOKE_BROKER_TO_RESET_OFFSET = Operation(
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, "resetOffset", ResetOffsetRequest, Empty, response_body=bytes
)
GET_ALL_PRODUCER_INFO = Operation(
    RequestCode.GET_ALL_PRODUCER_INFO, "getAllProducerInfo", Empty, Empty, response_body=dict[str, Any]
)
QUERY_TOPICS_BY_CONSUMER = Operation(
    RequestCode.QUERY_TOPICS_BY_CONSUMER,
    "queryTopicsByConsumer",
    GroupRequest,
    Empty,
    response_body=TopicNames,
)
QUERY_SUBSCRIPTION_BY_CONSUMER = Operation(
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, "querySubscriptionByConsumer", GroupTopicRequest, Empty
)
UPDATE_AND_GET_GROUP_FORBIDDEN = Operation(
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    "updateAndGetGroupForbidden",
    GroupForbiddenRequest,
    Empty,
    response_body=GroupForbidden,
)
GET_CONSUMER_RUNNING_INFO = Operation(
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    "getConsumerRunningInfo",
    ConsumerCallRequest,
    Empty,
    response_body=bytes,
)
CONSUME_MESSAGE_DIRECTLY = Operation(
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    "consumeMessageDirectly",
    ConsumerCallRequest,
    Empty,
    response_body=bytes,
)
INVOKE_BROKER_TO_GET_CONSUMER_STATUS = Operation(
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    "invokeBrokerToGetConsumerStatus",
    ConsumerStatusRequest,
    Empty,
    response_body=bytes,
)
GET_CONSUMER_STATUS_FROM_CLIENT = Operation(
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    "getConsumerStatusFromClient",
    ConsumerStatusRequest,
    Empty,
    response_body=bytes,
)
GET_TOPIC_STATS_INFO = Operation(
    RequestCode.GET_TOPIC_STATS_INFO, "getTopicStatsInfo", TopicRequest, Empty, response_body=bytes
)
GET_CONSUME_STATS = Operation(
    RequestCode.GET_CONSUME_STATS, "getConsumeStats", ConsumeStatsRequest, Empty, response_body=bytes
)
