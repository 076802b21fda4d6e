"""Name-server operations: routes, registration, topic lists, permissions. Source: RocketMQ 5.3.3,
RegisterBroker*, GetRouteInfo*, RemotingCommand headers. KV and server configuration: namesrv_admin.py."""

from typing import Any

from pydantic import Field

from keelmq.remoting.operation import Operation, Wire


class DataVersion(Wire):
    """Version of a broker's topic table, in 103 and 322; order: stateVersion (the masterEpoch), counter,
    timestamp (ms)."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class TopicConfig(Wire):
    """A topic of a broker: in the bodies of 103, 21 and 18, response body of 351."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = Field(default_factory=dict)


class TopicConfigSerializeWrapper(Wire):
    """A broker's topics: response body of 21, part of the body of 103."""

    topic_config_table: dict[str, TopicConfig] = Field(default_factory=dict)
    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_info_map: dict[str, Any] = Field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, Any] = Field(default_factory=dict)


class TopicPageRequest(Wire):
    """Header of 21, whose fields are of RocketMQ 5.3.4; without them, the whole table is meant. topic_seq:
    the first topic, in the order of their names. data_version: JSON of the version of earlier pages."""

    topic_seq: int | None = None
    max_topic_num: int | None = None
    data_version: str | None = None


class TopicPageResponse(Wire):
    """Response header of 21. total_topic_num: of the whole table, if the body is a page of it; None: the body
    is the whole table."""

    total_topic_num: int | None = None


class RegisterBrokerBody(Wire):
    """Body of 103."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = TopicConfigSerializeWrapper()
    filter_server_list: list[str] = Field(default_factory=list)


class RegisterBrokerRequest(Wire):
    """Header of 103. Ours, which RocketMQ's name servers ignore: forwards_sends, as a slave this broker
    forwards messages of producers to the master, so the name server may show it as an alias of the master;
    part_number, from 1, and part_count, if the broker's topics are registered in several requests;
    advertised_listeners, the broker's address at each listener but `internal` (address_text.py)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str = ""
    broker_id: int
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: int = 0
    forwards_sends: bool | None = None
    part_number: int | None = None
    part_count: int | None = None
    advertised_listeners: str | None = None


class RegisterBrokerResponse(Wire):
    """Response header of 103. Ours: listeners, the names of this name server's listeners but `internal`, if
    the broker has advertised_listeners."""

    ha_server_addr: str | None = None
    master_addr: str | None = None
    listeners: str | None = None


class UnregisterBrokerRequest(Wire):
    """Header of 104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


class RouteRequest(Wire):
    """Header of 105."""

    topic: str
    accept_standard_json_only: bool | None = None


class QueueData(Wire):
    """A topic's queues at one broker name, in the body of 105."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerData(Wire):
    """A broker name in the bodies of 105 and 106. broker_addrs: brokerId (0 = master) -> "host:port"."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None


class TopicRouteData(Wire):
    """Response body of 105; body of 217."""

    broker_datas: list[BrokerData] = Field(default_factory=list)
    queue_datas: list[QueueData] = Field(default_factory=list)
    filter_server_table: dict[str, list[str] | None] = Field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, Any] | None = None


class ClusterInfo(Wire):
    """Response body of 106."""

    broker_addr_table: dict[str, BrokerData] = Field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = Field(default_factory=dict)


class BrokerHeartbeatRequest(Wire):
    """Header of 904, at name server and controller. RocketMQ spells the field heartbeatTimeoutMills. Ours:
    hands_over, this broker knows HAND_OVER; min_in_sync_replicas, below this number it refuses messages;
    send_time_millis, ms since 1970 by the broker's clock, with which the controllers compare theirs;
    all_ack_in_sync_state_set, of a master: it acknowledges nothing that a member of the SyncStateSet lacks;
    silent_master_epoch, of a slave: its link to the master of this masterEpoch is silent; damaged_bytes, of
    its confirmed log: they failed their checksum and are not healed, so a sound replica is elected;
    disk_full, its disk has no room for messages, so a replica that has some is elected; unfit_broker_id,
    instead of broker_id: this broker refuses to be master, because it has lost the end of its log, which was
    confirmed up to confirm_offset (controllers that do not know this field refuse the heartbeat, and so do
    not elect it); refused_master_epoch, of such a broker: it has begun no term behind `epoch`, and begins
    none up to this masterEpoch."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int | None = None
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    heartbeat_timeout_mills: int | None = None
    election_priority: int = 2147483647
    hands_over: bool = False
    min_in_sync_replicas: int | None = None
    send_time_millis: int | None = None
    all_ack_in_sync_state_set: bool = False
    silent_master_epoch: int | None = None
    damaged_bytes: int | None = None
    disk_full: bool | None = None
    unfit_broker_id: int | None = None
    refused_master_epoch: int | None = None


class BrokerHeartbeatResponse(Wire):
    """Header of the response to 904, empty in RocketMQ. finds_hung_masters: this controller is active, and
    elects another master before the timeout if heartbeats come often enough to be missed."""

    finds_hung_masters: bool | None = None


class KVTable(Wire):
    """Response body of 219: one namespace of the KV configuration; in the response to 103 it is
    ORDER_TOPIC_CONFIG."""

    table: dict[str, str] = Field(default_factory=dict)


class TopicList(Wire):
    """Response body of 206, 224, 304, 305 and 311 to 313. broker_addr: one broker of the cluster, only in the
    list of system topics."""

    topic_list: list[str] = Field(default_factory=list)
    broker_addr: str | None = None


class ClusterRequest(Wire):
    """Header of 224."""

    cluster: str


class RouteBrokerNameRequest(Wire):
    """Header of 205, 327 and 29056."""

    broker_name: str


class WipeWritePermResponse(Wire):
    """Response header of 205 and 29056: the number of the broker's topics."""

    wipe_topic_count: int


class WipeExplanation(Wire):
    """Response body of 29056. topics: those that 205 would make unwritable at the broker; nowhere_else: those
    of them that no other broker accepts messages of."""

    topics: list[str] = Field(default_factory=list)
    nowhere_else: list[str] = Field(default_factory=list)


class AddWritePermResponse(Wire):
    """Response header of 327: the number of changed topics."""

    add_topic_count: int


class DeleteTopicRequest(Wire):
    """Header of 216. cluster_name None: at the brokers of every cluster."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicRequest(Wire):
    """Header of 217."""

    topic: str


class QueryDataVersionRequest(Wire):
    """Header of 322. Ours: asks_for_parts, the answer shall say whether the topics may be registered in
    parts; RocketMQ's name servers ignore it."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int
    asks_for_parts: bool | None = None


class QueryDataVersionResponse(Wire):
    """Response header of 322. takes_parts: only if it was asked for."""

    changed: bool
    takes_parts: bool | None = None


class BrokerMemberGroupRequest(Wire):
    """Header of 901. cluster_name: only echoed."""

    cluster_name: str = ""
    broker_name: str


class BrokerMemberGroup(Wire):
    """A broker group in the body of 901."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = Field(default_factory=dict)


class BrokerMemberGroupBody(Wire):
    """Response body of 901."""

    broker_member_group: BrokerMemberGroup


class MinBrokerIdChangeRequest(Wire):
    """Header of 905, name server to the brokers of a group. offline_broker_addr: the broker that left;
    ha_broker_addr: of the broker that now has the lowest id."""

    min_broker_id: int
    min_broker_addr: str
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None
    broker_name: str | None = None


# The register body may be deflated, bare or absent: the handler decodes it (raw_body).
REGISTER_BROKER = Operation(
    103,
    "registerBroker",
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    request_body=bytes,
    response_body=KVTable,
)
UNREGISTER_BROKER = Operation(104, "unregisterBroker", UnregisterBrokerRequest)
GET_ROUTEINFO_BY_TOPIC = Operation(105, "getRouteInfoByTopic", RouteRequest, response_body=TopicRouteData)
GET_BROKER_CLUSTER_INFO = Operation(106, "getBrokerClusterInfo", response_body=ClusterInfo)
BROKER_HEARTBEAT = Operation(904, "brokerHeartbeat", BrokerHeartbeatRequest, BrokerHeartbeatResponse)
QUERY_DATA_VERSION = Operation(
    322,
    "queryDataVersion",
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    request_body=DataVersion,
    response_body=DataVersion,
)
GET_BROKER_MEMBER_GROUP = Operation(
    901, "getBrokerMemberGroup", BrokerMemberGroupRequest, response_body=BrokerMemberGroupBody
)
NOTIFY_MIN_BROKER_ID_CHANGE = Operation(905, "notifyMinBrokerIdChange", MinBrokerIdChangeRequest, oneway=True)
"""Sent by the name server, never served by it."""

GET_ALL_TOPIC_LIST = Operation(206, "getAllTopicListFromNameserver", response_body=TopicList)
GET_TOPICS_BY_CLUSTER = Operation(224, "getTopicsByCluster", ClusterRequest, response_body=TopicList)
GET_SYSTEM_TOPIC_LIST = Operation(304, "getSystemTopicListFromNs", response_body=TopicList)
GET_UNIT_TOPIC_LIST = Operation(311, "getUnitTopicList", response_body=TopicList)
GET_HAS_UNIT_SUB_TOPIC_LIST = Operation(312, "getHasUnitSubTopicList", response_body=TopicList)
GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = Operation(313, "getHasUnitSubUnUnitTopicList", response_body=TopicList)

WIPE_WRITE_PERM_OF_BROKER = Operation(
    205, "wipeWritePermOfBroker", RouteBrokerNameRequest, WipeWritePermResponse
)
EXPLAIN_WIPE_WRITE_PERM = Operation(
    29056,
    "explainWipeWritePermOfBroker",
    RouteBrokerNameRequest,
    WipeWritePermResponse,
    response_body=WipeExplanation,
)
ADD_WRITE_PERM_OF_BROKER = Operation(
    327, "addWritePermOfBroker", RouteBrokerNameRequest, AddWritePermResponse
)
DELETE_TOPIC_IN_NAMESRV = Operation(216, "deleteTopicInNamesrv", DeleteTopicRequest)
REGISTER_TOPIC_IN_NAMESRV = Operation(
    217, "registerTopicInNamesrv", RegisterTopicRequest, request_body=TopicRouteData
)
