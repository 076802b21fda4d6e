"""Operations on a broker's metadata: topics, subscription groups, consumer and delay offsets.

Source: RocketMQ 5.3.3 CreateTopicRequestHeader, QueryConsumerOffset*, UpdateConsumerOffset* headers,
SubscriptionGroupConfig. 29001 is ours: how a KeelMQ replica follows its master's tables; RocketMQ's brokers
answer it with 3 (not supported).
"""

from typing import Any

from pydantic import Field

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Empty, Operation, Wire
from keelmq.remoting.operations.broker import TopicRequest
from keelmq.remoting.operations.route import DataVersion, TopicConfig


class CreateTopicRequest(Wire):
    """attributes: "+key=value,-key", as an administrator writes changes."""

    topic: str
    default_topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class ConsumerOffsetRequest(Wire):
    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


class ConsumerOffsetResponse(Wire):
    offset: int | None = None


class UpdateConsumerOffsetRequest(Wire):
    """forwarded (ours): by a broker that is not master any more."""

    consumer_group: str
    topic: str
    queue_id: int | None = None
    commit_offset: int | None = None
    forwarded: bool | None = None


class ConsumerOffsets(Wire):
    """consumerOffset.json: "topic@group" -> queueId -> offset."""

    offset_table: dict[str, dict[int, int]] = Field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class DelayOffsets(Wire):
    """delayOffset.json: delay level -> next offset in that level's queue."""

    offset_table: dict[int, int] = Field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class SubscriptionGroupConfig(Wire):
    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = Field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[Any] | None = None
    attributes: dict[str, str] = Field(default_factory=dict)


class SubscriptionGroups(Wire):
    """subscriptionGroup.json. forbidden_table: group -> topic -> bits (1: not readable)."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = Field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] = Field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class DeleteGroupRequest(Wire):
    """clean_offset: forget the group's consumer offsets, too."""

    group_name: str
    clean_offset: bool = False


class GroupRequest(Wire):
    group: str


class PullMetadataRequest(Wire):
    """A replica asks the master of `master_epoch`; it may be kept waiting for wait_millis."""

    broker_name: str
    broker_id: int
    master_epoch: int
    wait_millis: int = 0


class PullMetadataResponse(Wire):
    master_epoch: int


class MetadataVersions(Wire):
    """Table name -> the version that the replica has durably."""

    versions: dict[str, DataVersion] = Field(default_factory=dict)


class MetadataUpdate(Wire):
    """base None: the whole table. gone: key -> log offset of its deletion, or 0."""

    store: str
    version: DataVersion
    base: DataVersion | None = None
    rows: dict[str, Any] = Field(default_factory=dict)
    gone: dict[str, int] = Field(default_factory=dict)


class MetadataUpdates(Wire):
    updates: list[MetadataUpdate] = Field(default_factory=list)


QUERY_CONSUMER_OFFSET = Operation(14, "queryConsumerOffset", ConsumerOffsetRequest, ConsumerOffsetResponse)
UPDATE_CONSUMER_OFFSET = Operation(15, "updateConsumerOffset", UpdateConsumerOffsetRequest, Empty)
UPDATE_AND_CREATE_TOPIC = Operation(17, "updateAndCreateTopic", CreateTopicRequest, Empty)
GET_ALL_CONSUMER_OFFSET = Operation(43, "getAllConsumerOffset", Empty, Empty, response_body=ConsumerOffsets)
GET_ALL_DELAY_OFFSET = Operation(45, "getAllDelayOffset", Empty, Empty, response_body=DelayOffsets)
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = Operation(
    200, "updateAndCreateSubscriptionGroup", Empty, Empty, request_body=SubscriptionGroupConfig
)
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = Operation(
    201, "getAllSubscriptionGroupConfig", Empty, Empty, response_body=SubscriptionGroups
)
DELETE_SUBSCRIPTIONGROUP = Operation(207, "deleteSubscriptionGroup", DeleteGroupRequest, Empty)
GET_TOPIC_CONFIG = Operation(351, "getTopicConfig", TopicRequest, Empty, response_body=TopicConfig)
GET_SUBSCRIPTIONGROUP_CONFIG = Operation(
    352, "getSubscriptionGroupConfig", GroupRequest, Empty, response_body=SubscriptionGroupConfig
)
PULL_METADATA = Operation(
    RequestCode.KEELMQ_PULL_METADATA,
    "pullMetadata",
    PullMetadataRequest,
    PullMetadataResponse,
    request_body=MetadataVersions,
    response_body=bytes,
)
"""The body is MetadataUpdates, deflated when it is large: broker/metadata/wire.py."""
