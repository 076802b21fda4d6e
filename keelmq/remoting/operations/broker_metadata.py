"""Operations on a broker's metadata: topics, subscription groups, consumer and delay offsets.

Source: RocketMQ 5.3.3 CreateTopicRequestHeader, QueryConsumerOffset*, UpdateConsumerOffset* headers,
SubscriptionGroupConfig. 29001 is ours: a KeelMQ replica pulls its master's tables with it; RocketMQ's brokers
answer it with 3 (not supported).
"""

from typing import Any

from pydantic import Field

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Operation, Wire
from keelmq.remoting.operations.broker import TopicRequest
from keelmq.remoting.operations.route import DataVersion, TopicConfig


class CreateTopicRequest(Wire):
    """Header of 17. attributes: changes, "+key=value,-key". default_topic: not used."""

    topic: str
    default_topic: str = ""
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class ConsumerOffsetRequest(Wire):
    """Header of 14."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


class ConsumerOffsetResponse(Wire):
    """Response header of 14."""

    offset: int | None = None


class UpdateConsumerOffsetRequest(Wire):
    """Header of 15. forwarded (ours): set by a broker that received the request but is no longer master."""

    consumer_group: str
    topic: str
    queue_id: int | None = None
    commit_offset: int | None = None
    forwarded: bool | None = None


class ConsumerOffsets(Wire):
    """Response body of 43 (consumerOffset.json): "topic@group" -> queueId -> offset."""

    offset_table: dict[str, dict[int, int]] = Field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class DelayOffsets(Wire):
    """Response body of 45 (delayOffset.json): delay level -> next offset in that level's queue."""

    offset_table: dict[int, int] = Field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class SubscriptionGroupConfig(Wire):
    """A consumer group: body of 200, in the body of 201 and 225, response body of 352."""

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
    """Response body of 201 (subscriptionGroup.json). forbidden_table: group -> topic -> bits (1: not
    readable)."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = Field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] = Field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class GroupPageRequest(Wire):
    """Header of 201, whose fields are of RocketMQ 5.3.4; without them, the whole table is meant. group_seq:
    the first group, in the order of their names. data_version: JSON of the version of earlier pages."""

    group_seq: int | None = None
    max_group_num: int | None = None
    data_version: str | None = None


class GroupPageResponse(Wire):
    """Response header of 201. total_group_num: of the whole table, if the body is a page of it; None: the
    body is the whole table."""

    total_group_num: int | None = None


class DeleteGroupRequest(Wire):
    """Header of 207. clean_offset: delete the group's consumer offsets as well."""

    group_name: str
    clean_offset: bool = False


class GroupRequest(Wire):
    """Header of 343 and 352: one group."""

    group: str


class PullMetadataRequest(Wire):
    """Header of 29001: a replica's request to the master of `master_epoch`, which may hold it for
    wait_millis. takes_parts: the replica knows MetadataUpdate.parts."""

    broker_name: str
    broker_id: int
    master_epoch: int
    wait_millis: int = 0
    takes_parts: bool = False


class PullMetadataResponse(Wire):
    """Response header of 29001."""

    master_epoch: int


class MetadataVersions(Wire):
    """Body of 29001: table name -> the version that the replica has durably."""

    versions: dict[str, DataVersion] = Field(default_factory=dict)


class MetadataUpdate(Wire):
    """One table in the response body of 29001. base: the version to which `rows` and `gone` apply; None: rows
    are the whole table. gone: deleted key -> log offset of its deletion, or 0. parts: key -> the changed
    members of its row; only for replicas that say takes_parts."""

    store: str
    version: DataVersion
    base: DataVersion | None = None
    rows: dict[str, Any] = Field(default_factory=dict)
    gone: dict[str, int] = Field(default_factory=dict)
    parts: dict[str, Any] = Field(default_factory=dict)


class MetadataUpdates(Wire):
    """Response body of 29001, before compression."""

    updates: list[MetadataUpdate] = Field(default_factory=list)


class GroupDeletion(Wire):
    """Response body of 29052: what this broker has of the group that 207 would delete. behind: messages that
    it has not consumed yet. topics: its retry and dead letter topics, which 207 leaves."""

    is_known: bool
    behind: int = 0
    members: int = 0
    topics: list[str] = Field(default_factory=list)


QUERY_CONSUMER_OFFSET = Operation(14, "queryConsumerOffset", ConsumerOffsetRequest, ConsumerOffsetResponse)
UPDATE_CONSUMER_OFFSET = Operation(15, "updateConsumerOffset", UpdateConsumerOffsetRequest)
UPDATE_AND_CREATE_TOPIC = Operation(17, "updateAndCreateTopic", CreateTopicRequest)
GET_ALL_CONSUMER_OFFSET = Operation(43, "getAllConsumerOffset", response_body=ConsumerOffsets)
GET_ALL_DELAY_OFFSET = Operation(45, "getAllDelayOffset", response_body=DelayOffsets)
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = Operation(
    200, "updateAndCreateSubscriptionGroup", request_body=SubscriptionGroupConfig
)
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = Operation(
    201,
    "getAllSubscriptionGroupConfig",
    GroupPageRequest,
    GroupPageResponse,
    response_body=SubscriptionGroups,
)
DELETE_SUBSCRIPTIONGROUP = Operation(207, "deleteSubscriptionGroup", DeleteGroupRequest)
EXPLAIN_DELETE_GROUP = Operation(
    29052, "explainDeleteSubscriptionGroup", DeleteGroupRequest, response_body=GroupDeletion
)
GET_TOPIC_CONFIG = Operation(351, "getTopicConfig", TopicRequest, response_body=TopicConfig)
GET_SUBSCRIPTIONGROUP_CONFIG = Operation(
    352, "getSubscriptionGroupConfig", GroupRequest, response_body=SubscriptionGroupConfig
)
PULL_METADATA = Operation(
    RequestCode.KEELMQ_PULL_METADATA,
    "pullMetadata",
    PullMetadataRequest,
    PullMetadataResponse,
    request_body=MetadataVersions,
    response_body=bytes,
)
"""The response body is MetadataUpdates, deflated if it is large: broker/metadata/wire.py."""
