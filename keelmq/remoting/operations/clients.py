"""Requests of and about clients: heartbeats, group members, queue locks.

Source: RocketMQ 5.3.3 HeartbeatData, ConsumerData, SubscriptionData, ConsumerConnection,
LockBatchRequestBody. Clients in other languages write enumerations as ordinals, numbers as text, and leave
members out.
"""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Operation, Wire
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
    """Returns a validator of an enumeration by name or ordinal; an unknown name is kept."""

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
    """A group's subscription to a topic: in the bodies of 34, 46 and 203. codeSet is wrong from some clients,
    so brokers compute it again."""

    topic: str
    sub_string: str = "*"
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False
    code_set: list[int] = Field(default_factory=list)
    tags_set: list[str] = Field(default_factory=list)


class ConsumerData(Wire):
    """A consumer group in the body of 34."""

    group_name: str
    consume_type: Annotated[str, _named(CONSUME_TYPES)] = "CONSUME_PASSIVELY"
    message_model: Annotated[str, _named(MESSAGE_MODELS)] = "CLUSTERING"
    consume_from_where: Annotated[str, _named(CONSUME_FROM_WHERE)] = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = Field(default_factory=list)
    unit_mode: bool = False


class ProducerData(Wire):
    """A producer group in the body of 34."""

    group_name: str


class HeartbeatData(Wire):
    """Body of 34. without_sub: the short form of heartbeats V2, without subscriptions."""

    client_id: str = Field(alias="clientID", min_length=1)
    producer_data_set: list[ProducerData] = Field(default_factory=list)
    consumer_data_set: list[ConsumerData] = Field(default_factory=list)
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class HeartbeatResponse(Wire):
    """Response header of 34. is_sub_change: the client shall send the full form next time."""

    is_support_heart_beat_v2: bool = Field(default=True, alias="IS_SUPPORT_HEART_BEAT_V2")
    is_sub_change: bool = Field(default=True, alias="IS_SUB_CHANGE")


class UnregisterClientRequest(Wire):
    """Header of 35."""

    client_id: str = Field(alias="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ServeForClientRequest(Wire):
    """Header of 29007 (ours): a proxy sends the request in the body for its client. access_key, signature,
    signed_text: what the client has signed, of which the request is no part; None: it is anonymous.
    judge_only: the answer says whether the client may send it, and it is not carried out."""

    client_address: str
    access_key: str | None = None
    signature: str | None = None
    signed_text: str | None = None
    judge_only: bool = False


class ConsumerGroupRequest(Wire):
    """Header of 38, 40 and 203: one consumer group."""

    consumer_group: str


class ProducerGroupRequest(Wire):
    """Header of 204: one producer group."""

    producer_group: str


class ConsumerIdList(Wire):
    """Response body of 38: the client ids of a group's members."""

    consumer_id_list: list[str] = Field(default_factory=list)


class ConnectionBody(Wire):
    """One client in the bodies of 203 and 204."""

    client_addr: str
    client_id: str
    language: str
    version: int


class ConsumerConnectionBody(Wire):
    """Response body of 203."""

    connection_set: list[ConnectionBody] = Field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = Field(default_factory=dict)
    consume_type: str = CONSUME_TYPES[1]
    message_model: str = MESSAGE_MODELS[1]
    consume_from_where: str = CONSUME_FROM_WHERE[0]


class ProducerConnectionBody(Wire):
    """Response body of 204."""

    connection_set: list[ConnectionBody] = Field(default_factory=list)


class MessageQueueBody(Wire):
    """A queue in the bodies of 41, 42, 303 and 400."""

    topic: str
    broker_name: str
    queue_id: int


class LockBatchBody(Wire):
    """Body of 41 and 42."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueueBody] = Field(default_factory=list)
    only_this_broker: bool = False


class LockedQueues(Wire):
    """Response body of 41: the queues whose locks the client holds now."""

    lock_ok_mq_set: list[MessageQueueBody] = Field(default_factory=list, alias="lockOKMQSet")


class SendBackRequest(Wire):
    """Header of 36. offset: of the message in the CommitLog. delay_level 0: the broker chooses; below 0: no
    more retries. Some clients send only these three fields (offset, group, delay_level). forwarded (ours):
    set by a broker that received the request but is no longer master."""

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None
    forwarded: bool | None = None


RESET_TO_END: Final = -1
"""As a time of ResetOffsetRequest: the end of the queue."""


class ResetOffsetRequest(Wire):
    """Header of 222 and 29053. queue_id -1: all queues. offset: the new offset, if present and not negative.
    Otherwise the first message at `timestamp` (ms; RESET_TO_END); only is_force may skip messages that are
    not consumed yet. One of both is required: RocketMQ takes an absent timestamp for 0, the first message."""

    topic: str
    group: str
    queue_id: int = -1
    offset: int | None = None
    timestamp: int | None = None
    is_force: bool = False


class ResetRow(Wire):
    """A queue in the response body of 29053, a map of queues. consumer_offset None: the group has no offset
    of it. timestamp_offset: the first message at the request's time; reset_offset: what 222 would set."""

    broker_offset: int
    consumer_offset: int | None = None
    timestamp_offset: int
    reset_offset: int


class GroupTopicRequest(Wire):
    """Header of 303 and 345: a group and a topic."""

    group: str
    topic: str


class GroupForbiddenRequest(Wire):
    """Header of 353. readable None: only returns the present value."""

    group: str
    topic: str
    readable: bool | None = None


class GroupForbidden(Wire):
    """Response body of 353."""

    group: str
    topic: str
    readable: bool


class TopicNames(Wire):
    """Response body of 343, and request body of 5002."""

    topic_list: list[str] = Field(default_factory=list)


class ConsumeStatsRequest(Wire):
    """Header of 208. topic_list: separated by semicolons."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class ConsumerCallRequest(Wire):
    """Header of 307 and 309, which the broker forwards to one consumer. msg_id: the offset message id of the
    message to consume. broker_name: of the broker that forwards 309."""

    consumer_group: str
    client_id: str
    msg_id: str | None = None
    broker_name: str | None = None
    jstack_enable: bool | None = None


class ConsumerStatusRequest(Wire):
    """Header of 221 and 223. client_addr: the id of one client (RocketMQ's tools send it in this field); None
    or "": all clients."""

    topic: str
    group: str
    client_addr: str | None = None


class CheckClientBody(Wire):
    """Body of 46."""

    client_id: str | None = None
    group: str | None = None
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


HEART_BEAT = Operation(
    RequestCode.HEART_BEAT, "heartBeat", response=HeartbeatResponse, request_body=HeartbeatData
)
UNREGISTER_CLIENT = Operation(RequestCode.UNREGISTER_CLIENT, "unregisterClient", UnregisterClientRequest)
GET_CONSUMER_LIST_BY_GROUP = Operation(
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    "getConsumerListByGroup",
    ConsumerGroupRequest,
    response_body=ConsumerIdList,
)
NOTIFY_CONSUMER_IDS_CHANGED = Operation(
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, "notifyConsumerIdsChanged", ConsumerGroupRequest, oneway=True
)
LOCK_BATCH_MQ = Operation(
    RequestCode.LOCK_BATCH_MQ, "lockBatchMQ", request_body=LockBatchBody, response_body=LockedQueues
)
UNLOCK_BATCH_MQ = Operation(RequestCode.UNLOCK_BATCH_MQ, "unlockBatchMQ", request_body=LockBatchBody)
GET_CONSUMER_CONNECTION_LIST = Operation(
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    "getConsumerConnectionList",
    ConsumerGroupRequest,
    response_body=ConsumerConnectionBody,
)
GET_PRODUCER_CONNECTION_LIST = Operation(
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    "getProducerConnectionList",
    ProducerGroupRequest,
    response_body=ProducerConnectionBody,
)
CONSUMER_SEND_MSG_BACK = Operation(RequestCode.CONSUMER_SEND_MSG_BACK, "consumerSendMsgBack", SendBackRequest)
SERVE_FOR_CLIENT = Operation(
    RequestCode.KEELMQ_SERVE_FOR_CLIENT, "serveForClient", ServeForClientRequest, request_body=bytes
)
CHECK_CLIENT_CONFIG = Operation(
    RequestCode.CHECK_CLIENT_CONFIG, "checkClientConfig", request_body=CheckClientBody
)
INVOKE_BROKER_TO_RESET_OFFSET = Operation(
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    "resetOffset",
    ResetOffsetRequest,
    response_body=bytes,
    body_is_json=True,
)
EXPLAIN_RESET_OFFSET = Operation(
    RequestCode.KEELMQ_EXPLAIN_RESET_OFFSET,
    "explainResetOffset",
    ResetOffsetRequest,
    response_body=bytes,
    body_is_json=True,
)
GET_ALL_PRODUCER_INFO = Operation(
    RequestCode.GET_ALL_PRODUCER_INFO, "getAllProducerInfo", response_body=dict[str, Any]
)
QUERY_TOPICS_BY_CONSUMER = Operation(
    RequestCode.QUERY_TOPICS_BY_CONSUMER, "queryTopicsByConsumer", GroupRequest, response_body=TopicNames
)
QUERY_SUBSCRIPTION_BY_CONSUMER = Operation(
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
    "querySubscriptionByConsumer",
    GroupTopicRequest,
    response_body=dict[str, Any],
)
UPDATE_AND_GET_GROUP_FORBIDDEN = Operation(
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    "updateAndGetGroupForbidden",
    GroupForbiddenRequest,
    response_body=GroupForbidden,
)
GET_CONSUMER_RUNNING_INFO = Operation(
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    "getConsumerRunningInfo",
    ConsumerCallRequest,
    response_body=bytes,
    body_is_json=True,
)
CONSUME_MESSAGE_DIRECTLY = Operation(
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    "consumeMessageDirectly",
    ConsumerCallRequest,
    response_body=bytes,
    body_is_json=True,
)
INVOKE_BROKER_TO_GET_CONSUMER_STATUS = Operation(
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    "invokeBrokerToGetConsumerStatus",
    ConsumerStatusRequest,
    response_body=bytes,
    body_is_json=True,
)
GET_CONSUMER_STATUS_FROM_CLIENT = Operation(
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    "getConsumerStatusFromClient",
    ConsumerStatusRequest,
    response_body=bytes,
)
GET_TOPIC_STATS_INFO = Operation(
    RequestCode.GET_TOPIC_STATS_INFO,
    "getTopicStatsInfo",
    TopicRequest,
    response_body=bytes,
    body_is_json=True,
)
GET_CONSUME_STATS = Operation(
    RequestCode.GET_CONSUME_STATS,
    "getConsumeStats",
    ConsumeStatsRequest,
    response_body=bytes,
    body_is_json=True,
)
