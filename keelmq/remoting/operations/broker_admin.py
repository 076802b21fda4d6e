"""Requests of administration tools to a broker: statistics, consume progress, settings, bulk changes.

Source: RocketMQ 5.3.3 AdminBrokerProcessor and its headers. Responses whose maps have queues as keys are raw
bytes here: see keelmq/remoting/queue_map.py.
"""

from pydantic import Field

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Empty, Operation, Wire
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.clients import GroupTopicRequest, MessageQueueBody
from keelmq.remoting.operations.route import TopicConfig, TopicList


class CorrectionOffsetRequest(Wire):
    """filter_groups: "g1,g2", which do not count. compare_group: whose offsets are compared."""

    topic: str
    filter_groups: str | None = None
    compare_group: str | None = None


class CorrectionOffsets(Wire):
    """queueId -> the lowest offset of all groups; 2**63 - 1: compare_group is beyond it."""

    correction_offsets: dict[int, int] = Field(default_factory=dict)


class CloneOffsetRequest(Wire):
    """topic: None or blank: every topic of src_group. offline: also those that it does not subscribe to."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ViewStatsRequest(Wire):
    stats_name: str
    stats_key: str


class StatsItem(Wire):
    """sum within the window, per second, and of one counting up (mean)."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Wire):
    stats_minute: StatsItem
    stats_hour: StatsItem
    stats_day: StatsItem


class BrokerConsumeStatsRequest(Wire):
    """is_order: only groups that consume in order."""

    is_order: bool = False


class ConsumeTimeSpan(Wire):
    """Store timestamps (ms) of a queue's oldest and newest message and of the last consumed one; how long the
    next one has been waiting (ms)."""

    message_queue: MessageQueueBody
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


class ConsumeTimeSpans(Wire):
    consume_time_span_set: list[ConsumeTimeSpan] = Field(default_factory=list)


class ConsumeQueueRequest(Wire):
    """count entries of a queue, from `index` on."""

    topic: str
    queue_id: int
    index: int
    count: int
    consumer_group: str | None = None


class ConsumeQueueEntry(Wire):
    physic_offset: int
    physic_size: int
    tags_code: int
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = True
    msg: str | None = None


class ConsumeQueueEntries(Wire):
    queue_data: list[ConsumeQueueEntry] = Field(default_factory=list)
    max_queue_index: int = 0
    min_queue_index: int = 0


class TopicConfigs(Wire):
    """attributes of each: "+key": "value", "-key": "", as an administrator writes changes."""

    topic_config_list: list[TopicConfig] = Field(default_factory=list)


class GroupConfigs(Wire):
    group_config_list: list[SubscriptionGroupConfig] = Field(default_factory=list)


class ExchangeHaInfo(Wire):
    """906, request and answer. master_ha_address in a request: "copy from there", for replicas without
    controllers. master_flush_offset: the sender's log is on its disk up to there."""

    master_ha_address: str | None = None
    master_flush_offset: int | None = None
    master_address: str | None = None


class FlushOffsetRequest(Wire):
    master_flush_offset: int


class ReadAheadRequest(Wire):
    """0: as the system does it; 1: only what is asked for."""

    mode: int = Field(alias="READ_AHEAD_MODE")


UPDATE_AND_CREATE_TOPIC_LIST = Operation(
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    "updateAndCreateTopicList",
    Empty,
    Empty,
    request_body=TopicConfigs,
)
EXCHANGE_BROKER_HA_INFO = Operation(
    RequestCode.EXCHANGE_BROKER_HA_INFO, "exchangeBrokerHaInfo", ExchangeHaInfo, ExchangeHaInfo
)
RESET_MASTER_FLUSH_OFFSET = Operation(
    RequestCode.RESET_MASTER_FLUSH_OFFSET, "resetMasterFlushOffset", FlushOffsetRequest, Empty
)
"""Brokers of RocketMQ serve it; ours refuse it in words (broker/admin/unsupported_requests.py)."""
SET_COMMITLOG_READ_MODE = Operation(
    RequestCode.SET_COMMITLOG_READ_MODE, "setCommitLogReadMode", ReadAheadRequest, Empty
)
UPDATE_BROKER_CONFIG = Operation(
    RequestCode.UPDATE_BROKER_CONFIG, "updateBrokerConfig", Empty, Empty, request_body=bytes
)
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = Operation(
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    "updateAndCreateSubscriptionGroupList",
    Empty,
    Empty,
    request_body=GroupConfigs,
)
QUERY_CONSUME_TIME_SPAN = Operation(
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    "queryConsumeTimeSpan",
    GroupTopicRequest,
    Empty,
    response_body=ConsumeTimeSpans,
)
GET_SYSTEM_TOPIC_LIST_FROM_BROKER = Operation(
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    "getSystemTopicListFromBroker",
    Empty,
    Empty,
    response_body=TopicList,
)
CLEAN_EXPIRED_CONSUMEQUEUE = Operation(
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, "cleanExpiredConsumeQueue", Empty, Empty
)
QUERY_CORRECTION_OFFSET = Operation(
    RequestCode.QUERY_CORRECTION_OFFSET,
    "queryCorrectionOffset",
    CorrectionOffsetRequest,
    Empty,
    response_body=CorrectionOffsets,
)
CLONE_GROUP_OFFSET = Operation(RequestCode.CLONE_GROUP_OFFSET, "cloneGroupOffset", CloneOffsetRequest, Empty)
VIEW_BROKER_STATS_DATA = Operation(
    RequestCode.VIEW_BROKER_STATS_DATA,
    "viewBrokerStatsData",
    ViewStatsRequest,
    Empty,
    response_body=BrokerStatsData,
)
CLEAN_UNUSED_TOPIC = Operation(RequestCode.CLEAN_UNUSED_TOPIC, "cleanUnusedTopic", Empty, Empty)
GET_BROKER_CONSUME_STATS = Operation(
    RequestCode.GET_BROKER_CONSUME_STATS,
    "getBrokerConsumeStats",
    BrokerConsumeStatsRequest,
    Empty,
    response_body=bytes,
)
QUERY_CONSUME_QUEUE = Operation(
    RequestCode.QUERY_CONSUME_QUEUE,
    "queryConsumeQueue",
    ConsumeQueueRequest,
    Empty,
    response_body=ConsumeQueueEntries,
)
DELETE_EXPIRED_COMMITLOG = Operation(
    RequestCode.DELETE_EXPIRED_COMMITLOG, "deleteExpiredCommitLog", Empty, Empty
)
