"""Broker operations. Source: RocketMQ 5.3.3 SendMessage*, PullMessage*, GetMaxOffset* headers.

Send (10, 310) and pull (11) are data-path codes: brokers decode them with the msgspec structs of
broker/handlers; these models serve clients and tools.
"""

from pydantic import ConfigDict, Field

from keelmq.remoting.operation import Operation, Wire
from keelmq.remoting.operations.route import (
    TopicConfigSerializeWrapper,
    TopicPageRequest,
    TopicPageResponse,
)


class SendMessageRequestV2(Wire):
    """Header of 310 and 325, with one-letter names on the wire. properties: key \\x01 value \\x02 ..."""

    model_config = ConfigDict(alias_generator=None, populate_by_name=True, frozen=True, extra="ignore")

    producer_group: str = Field(alias="a")
    topic: str = Field(alias="b")
    default_topic: str = Field(default="TBW102", alias="c")
    default_topic_queue_nums: int = Field(default=4, alias="d")
    queue_id: int = Field(alias="e")
    sys_flag: int = Field(default=0, alias="f")
    born_timestamp: int = Field(alias="g")
    flag: int = Field(default=0, alias="h")
    properties: str | None = Field(default=None, alias="i")
    reconsume_times: int | None = Field(default=0, alias="j")
    unit_mode: bool | None = Field(default=False, alias="k")
    max_reconsume_times: int | None = Field(default=None, alias="l")
    batch: bool | None = Field(default=False, alias="m")
    broker_name: str | None = Field(default=None, alias="n")


class SendMessageResponse(Wire):
    """Response header of 310, 324 and 325. recall_handle: for recalling a timer message (370). batch_uniq_id:
    UNIQ_KEY of a batch that is stored as one record (queue.type=BatchCQ). region_id, trace_on: for message
    traces, trace_on is "true" or "false". master_address (ours): the broker has forwarded the message to this
    one; the sender's route is old."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    master_address: str | None = None
    region_id: str | None = Field(default=None, alias="MSG_REGION")
    trace_on: str | None = Field(default=None, alias="TRACE_ON")


class PullMessageRequest(Wire):
    """Header of 11. sys_flag bits: 1 commit offset, 2 suspend (long polling), 4 subscription, 8 filter, 16
    lite pull."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int = 4
    commit_offset: int = 0
    suspend_timeout_millis: int = 0
    subscription: str | None = "*"
    sub_version: int = 0
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    broker_name: str | None = Field(default=None, alias="bname")


class PullMessageResponse(Wire):
    """Response header of 11. suggest_which_broker_id: the replica for the next pull. max_offset is
    exclusive."""

    suggest_which_broker_id: int = 0
    next_begin_offset: int
    min_offset: int
    max_offset: int
    forbidden_type: int | None = None


class QueueRequest(Wire):
    """Header of 30, 31 and 32: one queue."""

    topic: str
    queue_id: int


class OffsetResponse(Wire):
    """Response header of 29, 30 and 31."""

    offset: int


class QueryMessageRequest(Wire):
    """Header of 12. key: a UNIQ_KEY or one of KEYS. Times: of storing, ms. unique_key_query: the broker
    itself limits the number of messages, and max_num is not needed."""

    topic: str
    key: str
    max_num: int | None = None
    begin_timestamp: int = 0
    end_timestamp: int = 2**63 - 1
    unique_key_query: bool | None = Field(default=None, alias="_UNIQUE_KEY_QUERY")


class QueryMessageResponse(Wire):
    """Response header of 12: the newest record in the index."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


class ViewMessageRequest(Wire):
    """Header of 33. offset: in the CommitLog, as in the offset message id."""

    offset: int
    topic: str | None = None


class SearchOffsetRequest(Wire):
    """Header of 29. boundary_type UPPER: the last message stored at or before timestamp (ms); else the first
    one at or after it."""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None


class TimestampResponse(Wire):
    """Response header of 32, ms; -1: the queue has no message."""

    timestamp: int


class BrokerConfigResponse(Wire):
    """Response header of 26: the data version of the settings, JSON in a string."""

    version: str = '{"counter":0,"stateVersion":0,"timestamp":0}'


class EpochEntryBody(Wire):
    """One masterEpoch in the body of 1007, with its CommitLog offsets; end_offset is exclusive."""

    epoch: int
    start_offset: int
    end_offset: int


class EpochEntryCache(Wire):
    """Response body of 1007."""

    cluster_name: str
    broker_name: str
    broker_id: int
    epoch_list: list[EpochEntryBody]
    max_offset: int


class HaConnectionRuntimeInfo(Wire):
    """One slave in the body of 907. transfer_from_where: offset of the next byte that is sent. Ours:
    broker_id, eta_millis, began_at_offset: where the link began, and lag_millis: time since the slave last
    had the whole log, 0: it has it now."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0
    broker_id: int | None = None
    eta_millis: int | None = None
    lag_millis: int | None = None
    began_at_offset: int | None = None


class HaClientRuntimeInfo(Wire):
    """The slave's own HA connection in the body of 907; times in wall-clock ms. RocketMQ sends an empty one
    for a master."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    activated: bool = False
    eta_millis: int | None = None


class HaRuntimeInfo(Wire):
    """Response body of 907. fault (ours): why a replica copies nothing."""

    master: bool
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HaConnectionRuntimeInfo] = Field(default_factory=list)
    ha_client_runtime_info: HaClientRuntimeInfo = Field(default_factory=HaClientRuntimeInfo)
    fault: str | None = None


class BrokerNameOptionalRequest(Wire):
    """Header of 1007."""

    broker_name: str | None = None


class TopicRequest(Wire):
    """Header of 202, 215, 300 and 351: one topic."""

    topic: str


class GroupList(Wire):
    """Response body of 300: consumer groups."""

    group_list: list[str] = Field(default_factory=list)


class CommitLogOffsets(Wire):
    """Response body of 28 (RocketMQ's KVTable): runtime statistics as text by name."""

    table: dict[str, str]


class TopicDeletion(Wire):
    """Response body of 29051: what this broker has of the topic that 215 would delete."""

    is_known: bool
    queues: int = 0
    messages: int = 0
    consumer_groups: list[str] = Field(default_factory=list)


SEND_MESSAGE_V2 = Operation(310, "sendMessage", SendMessageRequestV2, SendMessageResponse, request_body=bytes)
PULL_MESSAGE = Operation(11, "pullMessage", PullMessageRequest, PullMessageResponse, response_body=bytes)
QUERY_MESSAGE = Operation(12, "queryMessage", QueryMessageRequest, QueryMessageResponse, response_body=bytes)
VIEW_MESSAGE_BY_ID = Operation(33, "viewMessageById", ViewMessageRequest, response_body=bytes)
SEARCH_OFFSET_BY_TIMESTAMP = Operation(29, "searchOffsetByTimestamp", SearchOffsetRequest, OffsetResponse)
GET_EARLIEST_MSG_STORETIME = Operation(32, "getEarliestMsgStoreTime", QueueRequest, TimestampResponse)
GET_MAX_OFFSET = Operation(30, "getMaxOffset", QueueRequest, OffsetResponse)
GET_MIN_OFFSET = Operation(31, "getMinOffset", QueueRequest, OffsetResponse)
GET_ALL_TOPIC_CONFIG = Operation(
    21, "getAllTopicConfig", TopicPageRequest, TopicPageResponse, response_body=TopicConfigSerializeWrapper
)
GET_BROKER_CONFIG = Operation(26, "getBrokerConfig", response=BrokerConfigResponse, response_body=bytes)
GET_BROKER_RUNTIME_INFO = Operation(28, "getBrokerRuntimeInfo", response_body=CommitLogOffsets)
GET_BROKER_EPOCH_CACHE = Operation(
    1007, "getBrokerEpoch", BrokerNameOptionalRequest, response_body=EpochEntryCache
)
GET_BROKER_HA_STATUS = Operation(907, "getBrokerHaStatus", response_body=HaRuntimeInfo)
DELETE_TOPIC_IN_BROKER = Operation(215, "deleteTopicInBroker", TopicRequest)
EXPLAIN_DELETE_TOPIC = Operation(
    29051, "explainDeleteTopicInBroker", TopicRequest, response_body=TopicDeletion
)
QUERY_TOPIC_CONSUME_BY_WHO = Operation(300, "queryTopicConsumeByWho", TopicRequest, response_body=GroupList)
