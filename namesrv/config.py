"""NamesrvConfig: the keys of mqnamesrv, RocketMQ's names and defaults where it has them."""

from functools import cache
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from keelmq.remoting.config_store import StoredConfig
from keelmq.remoting.servers.http_port import http_listen_port
from keelmq.remoting.servers.listener_settings import ListenersConfig
from keelmq.runtime.config import home_path
from keelmq.security.file_users import FileUsersConfig
from keelmq.security.server_config import ServerConfig
from keelmq.upstream.keys import NAME_SERVER, Foreign
from namesrv.core.aliases import NO_ALIASES, AliasLimits

AT_RUN_TIME = frozenset(
    {
        "deleteTopicWithBrokerRegistration",
        "enableAllTopicList",
        "enableTopicList",
        "notifyMinBrokerIdChanged",
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "routeAliasesEnable",
        "routeAliasesMaxPercent",
        "routeAliasesPerGroup",
        "scanNotActiveBrokerInterval",
        "supportActingMaster",
    }
)
"""Keys that a request (318) can change; the others are read at start."""


@cache
def _keys_of_controller() -> frozenset[str]:
    """Returns the keys of the controller plugin. Cached: finding a plugin reads all installed packages."""
    from namesrv.plugins import load_plugin  # the plugin need not be loaded for anything else

    models = load_plugin("controller").config_models()
    return frozenset(field.alias or name for model in models for name, field in model.model_fields.items())


class NamesrvConfig(StoredConfig, FileUsersConfig, ListenersConfig, ServerConfig):
    """Frozen. A RocketMQ key without effect here is accepted, so that RocketMQ's file can be used."""

    DEFAULTS: ClassVar[tuple[str, ...]] = (*ServerConfig.DEFAULTS, "namesrv.conf")
    UPSTREAM: ClassVar[frozenset[str]] = NAME_SERVER
    AT_RUN_TIME: ClassVar[frozenset[str]] = AT_RUN_TIME
    BLACK_LIST: ClassVar[frozenset[str]] = StoredConfig.BLACK_LIST | {"analyticsOutputDir", "kvConfigPath"}

    listen_port: int = Field(9876, ge=0, le=65535, description="remoting port; 0 = any free port")
    bind_address: str = Field(
        "0.0.0.0", min_length=1, description="address that all ports bind; ::, IPv4 and IPv6"
    )
    http_port: int = Field(
        0,
        ge=-1,
        le=65535,
        description="HTTP port; 0 = listenPort + 10000 (mqcontroller: request port + 10000); -1 = no HTTP",
    )
    analytics_output_dir: Path | None = Field(
        None,
        description="directory of `keelmq analytics run --output`: the HTTP port shows its dashboard",
    )
    console_enable: bool = Field(
        True,
        description="serve the console at /console/ of the HTTP port; it asks no server until it is opened",
    )
    console_poll_mills: int = Field(
        2_000, ge=250, description="ms between two questions to every server, while a console is open"
    )
    console_read_only: bool = Field(False, description="the console shows everything and changes nothing")
    enable_controller_in_namesrv: bool = Field(False, description="load the controller plugin")
    scan_not_active_broker_interval: int = Field(
        1_000, gt=0, description="ms between scans for inactive brokers"
    )
    support_acting_master: bool = Field(
        False, description="show the slave with the lowest id as master while there is no master"
    )
    need_wait_for_service: bool = Field(
        False, description="refuse route requests until waitSecondsForService"
    )
    wait_seconds_for_service: int = Field(45, ge=0, description="s after start, see needWaitForService")
    notify_min_broker_id_changed: bool = Field(
        False, description="push 905 to the members of a group whose lowest broker id changed"
    )
    route_aliases_enable: bool = Field(
        False,
        description="show slaves as further, write-only broker names in routes, so that a client's retry "
        "reaches the group while its master is gone",
    )
    route_aliases_per_group: int = Field(
        1, ge=1, le=8, description="alias entries of a group, with one write queue each"
    )
    route_aliases_max_percent: int = Field(
        34,
        ge=1,
        le=50,
        description="largest share of a topic's write queues that are aliases; with 34 a topic needs two "
        "queues for one alias, with 50 one",
    )
    enable_all_topic_list: bool = Field(True, description="answer 206 (all topics)")
    enable_topic_list: bool = Field(
        True, description="answer 224, 311, 312, 313 (topics of a cluster, of units)"
    )
    order_message_enable: bool = Field(False, description="add a topic's order configuration to its route")
    return_order_topic_config_to_broker: bool = Field(
        True, description="answer a registration with the order configuration of all topics"
    )
    delete_topic_with_broker_registration: bool = Field(
        False,
        description="remove the topics that a registration lacks; only if every registration is complete "
        "(brokers with enableSingleTopicRegister=true, without enableSplitRegistration)",
    )
    kv_config_path: Path | None = Field(
        None, description="file of the KV configuration, one per process (default ~/namesrv/kvConfig.json)"
    )
    config_black_list: str = Field(
        "configBlackList;configStorePath;kvConfigPath",
        description="keys that requests cannot change; they can never change paths",
    )
    rocketmq_home: str | None = Field(None, description="without effect")
    product_env_name: str = Field("center", description="without effect")
    cluster_test: bool = Field(False, description="without effect")
    client_request_thread_pool_nums: int = Field(8, ge=1, description="without effect: one event loop")
    default_thread_pool_nums: int = Field(16, ge=1, description="without effect: one event loop")
    client_request_thread_pool_queue_capacity: int = Field(50_000, ge=1, description="without effect")
    default_thread_pool_queue_capacity: int = Field(10_000, ge=1, description="without effect")
    un_register_broker_queue_capacity: int = Field(3_000, ge=1, description="without effect: applied at once")

    @field_validator("analytics_output_dir", "config_store_path", "kv_config_path", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("analytics_output_dir", "config_store_path")
    @classmethod
    def _expand(cls, path: Path | None) -> Path | None:
        return home_path(path)

    @model_validator(mode="after")
    def _check_listeners(self) -> Self:
        self.check_listener_ports(
            {
                "listenPort": (self.bind_address, self.listen_port),
                "httpPort": (
                    self.http_bind_address or self.bind_address,
                    self.http_listen_port(self.listen_port) or 0,
                ),
            }
        )
        return self

    @classmethod
    def foreign(cls, key: str, value: str) -> Foreign | None:
        """Returns why a key of the controller has no effect: the controller is off, or its model would have
        the key."""
        if key in _keys_of_controller():
            return Foreign("the controller is off; enableControllerInNamesrv=true turns it on", False)
        return None

    def alias_limits(self) -> AliasLimits:
        """Returns how many alias entries routes may have."""
        if not self.route_aliases_enable:
            return NO_ALIASES
        return AliasLimits(self.route_aliases_per_group, self.route_aliases_max_percent)

    def http_listen_port(self, listen_port: int) -> int | None:
        """Returns the HTTP port; None: no HTTP. `listen_port`: the bound one."""
        return http_listen_port(self.http_port, listen_port=self.listen_port, bound_port=listen_port)
