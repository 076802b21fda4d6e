"""Name-server operations. Source: RocketMQ 5.3.3, RegisterBroker*, GetRouteInfo*, RemotingCommand headers."""

from typing import Any

from pydantic import Field

from remoting.operation import Empty, Operation, Wire


class DataVersion(Wire):
    """Version of a broker's topic table; order: stateVersion (the masterEpoch), counter, timestamp (ms)."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class TopicConfig(Wire):
    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = Field(default_factory=dict)


class TopicConfigSerializeWrapper(Wire):
    topic_config_table: dict[str, TopicConfig] = Field(default_factory=dict)
    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_info_map: dict[str, Any] = Field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, Any] = Field(default_factory=dict)


class RegisterBrokerBody(Wire):
    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = TopicConfigSerializeWrapper()
    filter_server_list: list[str] = Field(default_factory=list)


class RegisterBrokerRequest(Wire):
    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str = ""
    broker_id: int
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: int = 0


class RegisterBrokerResponse(Wire):
    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerRequest(Wire):
    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


class RouteRequest(Wire):
    topic: str
    accept_standard_json_only: bool | None = None


class QueueData(Wire):
    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class BrokerData(Wire):
    """broker_addrs: brokerId (0 = master) -> "host:port"."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None


class TopicRouteData(Wire):
    broker_datas: list[BrokerData] = Field(default_factory=list)
    queue_datas: list[QueueData] = Field(default_factory=list)
    filter_server_table: dict[str, list[str] | None] = Field(default_factory=dict)
    order_topic_conf: str | None = None


class ClusterInfo(Wire):
    broker_addr_table: dict[str, BrokerData] = Field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = Field(default_factory=dict)


class BrokerHeartbeatRequest(Wire):
    """904 at name server and controller. The field is spelled heartbeatTimeoutMills upstream."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int | None = None
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    heartbeat_timeout_mills: int | None = None
    election_priority: int = 2147483647


# The register body may be deflated, bare or absent: the handler decodes it (raw_body).
REGISTER_BROKER = Operation(
    103, "registerBroker", RegisterBrokerRequest, RegisterBrokerResponse, request_body=bytes
)
UNREGISTER_BROKER = Operation(104, "unregisterBroker", UnregisterBrokerRequest, Empty)
GET_ROUTEINFO_BY_TOPIC = Operation(
    105, "getRouteInfoByTopic", RouteRequest, Empty, response_body=TopicRouteData
)
GET_BROKER_CLUSTER_INFO = Operation(106, "getBrokerClusterInfo", Empty, Empty, response_body=ClusterInfo)
BROKER_HEARTBEAT = Operation(904, "brokerHeartbeat", BrokerHeartbeatRequest, Empty)
