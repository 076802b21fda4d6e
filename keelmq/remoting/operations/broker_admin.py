"""Administration requests to a broker: statistics, consume progress, settings, bulk changes.

Source: RocketMQ 5.3.3 AdminBrokerProcessor and its headers. Responses whose maps have queues as keys are raw
bytes here: see keelmq/remoting/queue_map.py.
"""

from pydantic import Field

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Operation, Wire
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.clients import (
    GroupTopicRequest,
    MessageQueueBody,
    SubscriptionData,
    TopicNames,
)
from keelmq.remoting.operations.route import TopicConfig, TopicList


class CorrectionOffsetRequest(Wire):
    """Header of 308. filter_groups: "g1,g2", groups to leave out. compare_group: the group whose offsets are
    compared."""

    topic: str
    filter_groups: str | None = None
    compare_group: str | None = None


class CorrectionOffsets(Wire):
    """Response body of 308: queueId -> the lowest offset of all groups; 2**63 - 1: compare_group is ahead of
    it."""

    correction_offsets: dict[int, int] = Field(default_factory=dict)


class CloneOffsetRequest(Wire):
    """Header of 314. topic: None or blank means every topic of src_group. offline: include topics to which it
    does not subscribe now."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ViewStatsRequest(Wire):
    """Header of 315: a counter such as TOPIC_PUT_NUMS, and its key, e.g. a topic."""

    stats_name: str
    stats_key: str


class StatsItem(Wire):
    """One window of a counter in the body of 315: the sum, per second (tps), and the mean value of one event
    (avgpt)."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Wire):
    """Response body of 315: the last minute, hour and day."""

    stats_minute: StatsItem
    stats_hour: StatsItem
    stats_day: StatsItem


class BrokerConsumeStatsRequest(Wire):
    """Header of 317. is_order: only groups that consume in order."""

    is_order: bool = False


class ConsumeTimeSpan(Wire):
    """One queue in the body of 303. Store timestamps (ms) of its oldest and newest message and of the last
    consumed one; delay_time: how long the next one has been waiting (ms)."""

    message_queue: MessageQueueBody
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


class ConsumeTimeSpans(Wire):
    """Response body of 303."""

    consume_time_span_set: list[ConsumeTimeSpan] = Field(default_factory=list)


class ConsumeQueueRequest(Wire):
    """Header of 321: `count` entries of a queue, from `index` on. consumer_group: whose subscription is
    returned as well."""

    topic: str
    queue_id: int = 0
    index: int = 0
    count: int = 0
    consumer_group: str | None = None


class ConsumeQueueEntry(Wire):
    """One entry in the body of 321. eval: the subscription of consumer_group matches the message."""

    physic_offset: int
    physic_size: int
    tags_code: int
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = True
    msg: str | None = None


class ConsumeQueueEntries(Wire):
    """Response body of 321. subscription_data, filter_data: of the group that the request names; filter_data
    is JSON text of an SQL92 filter, "null" for tags, and tells if the group is not online."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueEntry] = Field(default_factory=list)
    max_queue_index: int = 0
    min_queue_index: int = 0


class TopicConfigs(Wire):
    """Body of UPDATE_AND_CREATE_TOPIC_LIST (18). attributes of each: changes, "+key": "value", "-key": ""."""

    topic_config_list: list[TopicConfig] = Field(default_factory=list)


class GroupConfigs(Wire):
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""

    group_config_list: list[SubscriptionGroupConfig] = Field(default_factory=list)


class GroupNames(Wire):
    """Body of DELETE_SUBSCRIPTION_GROUP_LIST (5003). clean_offset: as in 207."""

    group_name_list: list[str] = Field(default_factory=list)
    clean_offset: bool = False


class ExchangeHaInfo(Wire):
    """Header of 906, request and response. master_ha_address in a request: replicas without controllers shall
    copy from there. master_flush_offset: the sender's log is on its disk up to this offset."""

    master_ha_address: str | None = None
    master_flush_offset: int | None = None
    master_address: str | None = None


class FlushOffsetRequest(Wire):
    """Header of 908."""

    master_flush_offset: int


class ReadAheadRequest(Wire):
    """Header of SET_COMMITLOG_READ_MODE (2004). mode: 0: the system's default read-ahead; 1: random access,
    no read-ahead."""

    mode: int = Field(alias="READ_AHEAD_MODE")


UPDATE_AND_CREATE_TOPIC_LIST = Operation(
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, "updateAndCreateTopicList", request_body=TopicConfigs
)
EXCHANGE_BROKER_HA_INFO = Operation(
    RequestCode.EXCHANGE_BROKER_HA_INFO, "exchangeBrokerHaInfo", ExchangeHaInfo, ExchangeHaInfo
)
RESET_MASTER_FLUSH_OFFSET = Operation(
    RequestCode.RESET_MASTER_FLUSH_OFFSET, "resetMasterFlushOffset", FlushOffsetRequest
)
"""RocketMQ's brokers serve it; ours refuse it with an explanation (keelmq/upstream/wire.toml)."""
SET_COMMITLOG_READ_MODE = Operation(
    RequestCode.SET_COMMITLOG_READ_MODE, "setCommitLogReadMode", ReadAheadRequest
)
UPDATE_BROKER_CONFIG = Operation(RequestCode.UPDATE_BROKER_CONFIG, "updateBrokerConfig", request_body=bytes)
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = Operation(
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    "updateAndCreateSubscriptionGroupList",
    request_body=GroupConfigs,
)
DELETE_TOPIC_IN_BROKER_LIST = Operation(
    RequestCode.DELETE_TOPIC_IN_BROKER_LIST, "deleteTopicInBrokerList", request_body=TopicNames
)
DELETE_SUBSCRIPTION_GROUP_LIST = Operation(
    RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST, "deleteSubscriptionGroupList", request_body=GroupNames
)
QUERY_CONSUME_TIME_SPAN = Operation(
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    "queryConsumeTimeSpan",
    GroupTopicRequest,
    response_body=ConsumeTimeSpans,
)
GET_SYSTEM_TOPIC_LIST_FROM_BROKER = Operation(
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, "getSystemTopicListFromBroker", response_body=TopicList
)
CLEAN_EXPIRED_CONSUMEQUEUE = Operation(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, "cleanExpiredConsumeQueue")
QUERY_CORRECTION_OFFSET = Operation(
    RequestCode.QUERY_CORRECTION_OFFSET,
    "queryCorrectionOffset",
    CorrectionOffsetRequest,
    response_body=CorrectionOffsets,
)
CLONE_GROUP_OFFSET = Operation(RequestCode.CLONE_GROUP_OFFSET, "cloneGroupOffset", CloneOffsetRequest)
VIEW_BROKER_STATS_DATA = Operation(
    RequestCode.VIEW_BROKER_STATS_DATA, "viewBrokerStatsData", ViewStatsRequest, response_body=BrokerStatsData
)
CLEAN_UNUSED_TOPIC = Operation(RequestCode.CLEAN_UNUSED_TOPIC, "cleanUnusedTopic")
GET_BROKER_CONSUME_STATS = Operation(
    RequestCode.GET_BROKER_CONSUME_STATS,
    "getBrokerConsumeStats",
    BrokerConsumeStatsRequest,
    response_body=bytes,
    body_is_json=True,
)
QUERY_CONSUME_QUEUE = Operation(
    RequestCode.QUERY_CONSUME_QUEUE,
    "queryConsumeQueue",
    ConsumeQueueRequest,
    response_body=ConsumeQueueEntries,
)
DELETE_EXPIRED_COMMITLOG = Operation(RequestCode.DELETE_EXPIRED_COMMITLOG, "deleteExpiredCommitLog")
