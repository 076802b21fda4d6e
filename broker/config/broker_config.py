"""BrokerConfig: the keys of RocketMQ that this broker honours, with the purpose and the unit of each.

An unknown key stops the start: a typo must not lead to a default value. Source: RocketMQ 5.3.3 BrokerConfig
and MessageStoreConfig; where a default differs from RocketMQ's, the description states it.
"""

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from broker.config.client_settings import ClientSettings
from broker.config.creation_limits import CreationLimits
from broker.config.grpc_settings import GrpcSettings
from broker.config.ha_settings import HaLinkSettings, HaSecuritySettings
from broker.config.log_settings import LogSettings
from broker.config.master_slave_settings import MasterSlaveSettings
from broker.config.metrics_settings import MetricsSettings
from broker.config.run_time_keys import AT_RUN_TIME
from broker.config.store_settings import StoreSettings
from broker.core.durability import Durability, power_lost, rpo
from broker.core.report_lease import report_lease_ms, shortest_timeout_ms
from keelmq.remoting.address_text import ANY_ADDRESS, parse_listeners, split_address, split_list
from keelmq.remoting.config_store import StoredConfig
from keelmq.remoting.servers.http_port import http_listen_port
from keelmq.remoting.servers.listener_settings import ListenersConfig
from keelmq.runtime.config import home_path
from keelmq.security.server_config import ServerConfig
from keelmq.upstream.keys import BROKER

PORT_MAX = 65_535
HEARTBEATS_PER_TIMEOUT_MIN = 3
QUEUE_ENTRY_BYTES = 20
_WITH_PORT = re.compile(r"(\[.*\]|[^:]*):[0-9]*")
_PLAIN_NAME = re.compile(r"[a-zA-Z0-9._%|-]{1,100}")


class BrokerConfig(
    StoredConfig,
    ClientSettings,
    StoreSettings,
    CreationLimits,
    LogSettings,
    MetricsSettings,
    GrpcSettings,
    MasterSlaveSettings,
    HaLinkSettings,
    HaSecuritySettings,
    ListenersConfig,
    ServerConfig,
):
    """The settings of one mqbroker process. Names are RocketMQ's keys; the description has the unit."""

    DEFAULTS: ClassVar[tuple[str, ...]] = (*ServerConfig.DEFAULTS, "broker.conf")
    UPSTREAM: ClassVar[frozenset[str]] = BROKER
    AT_RUN_TIME: ClassVar[frozenset[str]] = AT_RUN_TIME
    BLACK_LIST: ClassVar[frozenset[str]] = StoredConfig.BLACK_LIST | {"brokerConfigPath"}

    config_black_list: str = Field(
        "configBlackList;brokerConfigPath", description="keys that requests must not change"
    )
    broker_cluster_name: str = Field(
        "DefaultCluster", min_length=1, description="cluster this group belongs to"
    )
    broker_name: str = Field(
        default_factory=socket.gethostname, min_length=1, description="group name; replicas share it"
    )
    broker_id: int = Field(
        0,
        ge=-1,
        description="0 of a master, above 0 of a slave; the controllers give ids in controller mode",
    )
    namesrv_addr: str = Field("", alias="namesrvAddr", description="name servers, host:port;host:port")
    bind_address: str = Field("0.0.0.0", description="interface for all listening ports; ::, IPv4 and IPv6")
    listen_port: int = Field(10911, ge=0, le=PORT_MAX, description="clients' port; 0: any free one")
    fast_listen_port: int = Field(
        0,
        ge=-1,
        le=PORT_MAX,
        description="port of clients' VIP channel; 0: listenPort - 2 if it is free, -1: none (ours)",
    )
    http_port: int = Field(
        0,
        ge=-1,
        le=PORT_MAX,
        description="port of /livez, /readyz, /metrics and the API; 0: listenPort + 10000, -1: none",
    )
    enable_proxy: bool = Field(
        False, description="serve RocketMQ 5's own clients (gRPC) at grpcServerPort (--enable-proxy)"
    )
    broker_ip1: str = Field(
        "", alias="brokerIP1", description="address announced to clients; empty: detected"
    )
    broker_ip2: str = Field(
        "", alias="brokerIP2", description="address announced to slaves; empty: brokerIP1"
    )
    advertised_listeners: str = Field(
        "",
        description="address announced to clients of each of `listeners`, NAME://HOST:PORT;NAME://HOST:PORT; "
        "without an entry that in listeners (ours)",
    )
    ha_listen_port: int = Field(0, ge=0, le=PORT_MAX, description="replication port; 0: listenPort + 1")

    store_path_root_dir: Path = Field(Path("~/store"), description="everything this broker keeps on disk")
    store_path_commit_log: Path | None = Field(
        None, description="<root>/commitlog, and nothing else: make that a link for a disk of its own"
    )
    store_path_epoch_file: Path | None = Field(None, description="default: <root>/epochFileCheckpoint")
    mapped_file_size_commit_log: int = Field(
        1_073_741_824, ge=4_096, description="bytes per CommitLog file; must be equal on all replicas"
    )
    mapped_file_size_consume_queue: int = Field(
        6_000_000, ge=20, description="bytes per ConsumeQueue file, 20 per entry; rounded up"
    )
    max_message_size: int = Field(4_194_304, gt=0, le=16_000_000, description="bytes of one message body")
    flush_disk_type: Literal["ASYNC_FLUSH", "SYNC_FLUSH"] = Field(
        "ASYNC_FLUSH",
        description="SYNC_FLUSH: a message is acknowledged when it is on disk, by a slave as well",
    )
    sync_flush_timeout: int = Field(
        5_000, gt=0, description="ms until a message that waits for the disk is answered with code 10"
    )
    flush_interval_commit_log: int = Field(500, gt=0, description="ms between two flushes to disk")

    enable_controller_mode: bool = Field(False, description="let the controllers decide who is master")
    controller_addr: str = Field(
        "", description="ALL controllers, host:port;host:port: heartbeats go to each"
    )
    sync_broker_metadata_period: int = Field(
        1_000, gt=0, description="ms between two polls of the master (1004); RocketMQ: 5000"
    )
    controller_heart_beat_timeout_mills: int = Field(
        3_000,
        gt=0,
        description="ms without heartbeat until the controller takes the broker for dead; at least 3 x "
        "brokerHeartbeatInterval, and so long that the reports of slaves count for isolationLeaseEnable: "
        "brokerHeartbeatInterval + 800, and a ninth of that; RocketMQ: 10000",
    )
    broker_heartbeat_interval: int = Field(
        1_000, gt=0, description="ms between two heartbeats to every controller"
    )
    broker_election_priority: int = Field(2_147_483_647, ge=0, description="lower wins among equals")

    register_name_server_period: int = Field(30_000, gt=0, description="ms between two registrations")
    register_broker_timeout_mills: int = Field(
        3_000, gt=0, description="ms per request of a registration; RocketMQ: 24000"
    )
    enable_split_registration: bool = Field(
        False,
        description="always register the topics in parts of splitRegistrationSize; false: only if they do "
        "not fit into one request of 16 MiB",
    )
    split_registration_size: int = Field(
        800, ge=2, le=10_000, description="topics in one part of a registration that is split"
    )

    auto_create_topic_enable: bool = Field(True, description="create a topic on its first message")
    auto_create_subscription_group: bool = Field(
        True, description="create a subscription group when it is first used"
    )
    flush_consumer_offset_interval: int = Field(
        5_000,
        gt=0,
        description="ms between two writes of consumerOffset.json; later commits are in its journal",
    )
    default_topic_queue_nums: int = Field(8, gt=0, le=1024, description="queues of such a topic")
    broker_permission: Literal[2, 4, 6] = Field(6, description="2 write, 4 read")

    all_ack_in_sync_state_set: bool = Field(
        False, description="acknowledge a message when every member of the SyncStateSet has it"
    )
    slave_timeout: int = Field(
        3_000, gt=0, description="ms until a message that waits for replicas is answered with code 12"
    )
    async_learner: bool = Field(False, description="replicate, but never join the SyncStateSet")

    sync_from_last_file: bool = Field(
        False,
        description="an empty replica begins with the master's last file: it has no older messages, "
        "and these are lost for consumers if it is elected",
    )

    isolation_lease_enable: bool = Field(
        True,
        description="a master that hears neither controllers nor in-sync replicas acknowledges nothing",
    )
    forward_late_sends: bool = Field(
        True,
        description="a slave forwards messages to the master, for clients with an old route",
    )
    shutdown_hand_over_timeout: int = Field(
        4_000,
        ge=0,
        description="ms that a master has at SIGTERM to hand over before it stops; 0: it stops without",
    )
    shutdown_forward_timeout: int = Field(
        40_000,
        ge=0,
        description="ms after a hand-over for which a stopping broker serves clients of RocketMQ that are "
        "connected to it: they poll the route every 30 s. It stops earlier if there are none. 0: it does not "
        "wait for them",
    )

    ha_max_time_slave_not_catchup: int = Field(
        2_000,
        gt=0,
        description="ms of lag that cost the membership; below slaveTimeout, so that a hung slave delays "
        "acknowledgements but fails none; RocketMQ: 15000",
    )
    check_sync_state_set_period: int = Field(
        500, gt=0, description="ms between two checks for replicas that lag; RocketMQ: 5000"
    )

    @field_validator("broker_permission", "timer_precision_ms", mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        """Converts the text of a file: pydantic does not convert text for a Literal of numbers."""
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    @field_validator("broker_ip1", "broker_ip2")
    @classmethod
    def _host_of_this_machine(cls, host: str) -> str:
        """Refuses unreachable addresses: they are announced to clients, slaves and controllers."""
        if host in ANY_ADDRESS:
            raise ValueError("nothing can connect to it: write this machine's address, or leave it out")
        if _WITH_PORT.fullmatch(host):
            raise ValueError("write the address alone: its port is listenPort, or haListenPort")
        return host

    @field_validator("broker_name", "broker_cluster_name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        """Refuses names that cannot be part of the names of topics and files."""
        if not _PLAIN_NAME.fullmatch(name):
            raise ValueError("letters, digits and . _ - % | only, and at most 100 of them")
        return name

    @field_validator("mapped_file_size_consume_queue")
    @classmethod
    def _whole_entries(cls, size: int) -> int:
        return size + -size % QUEUE_ENTRY_BYTES

    @field_validator(
        "backup_path",
        "config_store_path",
        "store_path_root_dir",
        "store_path_commit_log",
        "store_path_epoch_file",
    )
    @classmethod
    def _expand(cls, path: Path | None) -> Path | None:
        return home_path(path)

    @model_validator(mode="after")
    def _check_listeners(self) -> Self:
        listen = self.listen_port
        self.check_listener_ports(
            {
                "listenPort": (self.bind_address, listen),
                "fastListenPort": (self.bind_address, max(self.fast_listen_port, 0)),
                "haListenPort": (self.bind_address, self.ha_port if self.has_ha_port else 0),
                "httpPort": (
                    self.http_bind_address or self.bind_address,
                    http_listen_port(self.http_port, listen_port=listen, bound_port=listen) or 0,
                ),
            }
        )
        try:
            announced = parse_listeners(self.advertised_listeners)
        except ValueError as error:
            raise ValueError(f"advertisedListeners: {error}") from None
        for name in announced.keys() - self.further_listeners.keys():
            raise ValueError(f"advertisedListeners: {name} is not in listeners")
        for name, (host, _) in self.advertised.items():
            if host in ANY_ADDRESS:
                raise ValueError(f"advertisedListeners: no client can connect to {host} of {name}")
        return self

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.enable_controller_mode and not self.controllers:
            raise ValueError("enableControllerMode needs controllerAddr")
        if self.enable_controller_mode:
            self.check_controlled()
        else:
            self.check_plain(self.broker_id, knows_name_servers=bool(self.name_servers))
        for name, addresses in (("controllerAddr", self.controllers), ("namesrvAddr", self.name_servers)):
            for address in addresses:
                try:
                    split_address(address)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        if self.has_ha_port and not self.ha_listen_port and self.listen_port == PORT_MAX:
            raise ValueError(f"haListenPort would be {PORT_MAX + 1} (listenPort + 1): set it")
        if self.check_sync_state_set_period >= self.ha_max_time_slave_not_catchup:
            raise ValueError("checkSyncStateSetPeriod must be below haMaxTimeSlaveNotCatchup")
        if self.ha_send_heartbeat_interval >= self.ha_housekeeping_interval:
            raise ValueError("haSendHeartbeatInterval must be below haHousekeepingInterval")
        heartbeats = self.controller_heart_beat_timeout_mills // self.broker_heartbeat_interval
        if self.enable_controller_mode and heartbeats < HEARTBEATS_PER_TIMEOUT_MIN:
            raise ValueError(
                "controllerHeartBeatTimeoutMills must be at least "
                f"{HEARTBEATS_PER_TIMEOUT_MIN} x brokerHeartbeatInterval"
            )
        if self.store_path_commit_log not in (None, self.store_path_root_dir / "commitlog"):
            raise ValueError(
                f"storePathCommitLog: the log is in {self.store_path_root_dir / 'commitlog'}; leave the key "
                f"out, and for a disk of its own make that a link to {self.store_path_commit_log}"
            )
        if 0 < self.max_commit_log_bytes < 2 * self.mapped_file_size_commit_log:
            raise ValueError(
                f"maxCommitLogBytes {self.max_commit_log_bytes} is less than two files of "
                f"mappedFileSizeCommitLog {self.mapped_file_size_commit_log}: whole files are deleted, so "
                "hardly anything would be left; a new store can have smaller files (the same on all replicas)"
            )
        return self

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses in namesrvAddr."""
        return tuple(split_list(self.namesrv_addr))

    @property
    def controllers(self) -> tuple[str, ...]:
        """The addresses in controllerAddr."""
        return tuple(split_list(self.controller_addr))

    @property
    def advertised(self) -> Mapping[str, tuple[str, int]]:
        """Name, and host and port that clients connect to, of each listener but `internal`."""
        announced = parse_listeners(self.advertised_listeners)
        return self.further_listeners | {name: split_address(at) for name, at in announced.items()}

    @property
    def epoch_path(self) -> Path:
        """The path of the epoch file, in storePathRootDir unless storePathEpochFile is set."""
        return self.store_path_epoch_file or self.store_path_root_dir / "epochFileCheckpoint"

    @property
    def telemetry_path(self) -> Path:
        """The directory of the telemetry files."""
        return self.store_path_root_dir / "telemetry"

    @property
    def waits_for_replicas(self) -> bool:
        """Whether replies wait until replicas have the message."""
        if not self.enable_controller_mode:
            return self.copy_rules.waits
        return self.all_ack_in_sync_state_set or self.in_sync_replicas > 1

    @property
    def is_plain_slave(self) -> bool:
        """Whether this broker is a permanent slave, without controllers."""
        return not self.enable_controller_mode and self.broker_role == "SLAVE"

    @property
    def serves_plain_slaves(self) -> bool:
        """Whether slaves may copy from this master without controllers. A broker whose file does not mention
        replication opens no port for it."""
        if self.enable_controller_mode or self.is_plain_slave:
            return False
        return bool({"broker_role", "total_replicas", "ha_listen_port"} & self.model_fields_set)

    @property
    def has_ha_port(self) -> bool:
        """Whether slaves can connect to this broker."""
        return self.enable_controller_mode or self.serves_plain_slaves

    @property
    def ha_port(self) -> int:
        """The port to listen on for slaves; 0: any free one."""
        return self.ha_listen_port or (self.listen_port + 1 if self.listen_port else 0)

    @property
    def sync_flush(self) -> bool:
        """Whether replies wait until the message is on disk (flushDiskType)."""
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def durability(self) -> Durability:
        """The replicas and disks that a reply waits for."""
        return Durability(
            controlled=self.enable_controller_mode,
            all_ack=self.all_ack_in_sync_state_set,
            copies=self.in_sync_replicas,
            min_in_sync=self.min_in_sync_replicas,
            sync_flush=self.sync_flush,
            flush_interval_ms=self.flush_interval_commit_log,
            heartbeat_timeout_ms=self.controller_heart_beat_timeout_mills,
            hands_over=bool(self.shutdown_hand_over_timeout),
            forward_ms=self.shutdown_forward_timeout if self.forward_late_sends else 0,
            plain_role="" if not (self.is_plain_slave or self.serves_plain_slaves) else self.broker_role,
        )

    def promise(self) -> str:
        """Returns what is lost, with these settings, when a broker is lost, and at a power cut. The start
        banner has more details."""
        return f"{rpo(self.durability)}; at a power cut {power_lost(self.durability)}"

    def warnings(self) -> list[str]:
        """Returns texts about settings that are legal and probably a mistake."""
        found = [] if self.enable_controller_mode else self.plain_warnings()
        if self.enable_controller_mode:
            found += self._controlled_warnings()
        if self.force_verify_prop_crc and not self.check_crc_on_recover:
            found.append("forceVerifyPropCRC has no effect without checkCRCOnRecover")
        if not self.name_servers:
            found.append("namesrvAddr is empty: no client will find this broker")
        return found

    def _controlled_warnings(self) -> list[str]:
        """Returns the part of warnings() about inconsistent keys of controller mode."""
        found, timeout_ms = [], self.controller_heart_beat_timeout_mills
        if self.waits_for_replicas and self.ha_max_time_slave_not_catchup >= self.slave_timeout:
            found.append(
                f"haMaxTimeSlaveNotCatchup {self.ha_max_time_slave_not_catchup} is not below slaveTimeout "
                f"{self.slave_timeout}: messages fail (code 12) before a replica that hangs leaves the "
                "SyncStateSet; lower haMaxTimeSlaveNotCatchup, or raise slaveTimeout"
            )
        terms = timeout_ms, self.broker_heartbeat_interval
        if self.isolation_lease_enable and not report_lease_ms(*terms, is_keelmq=True):
            least = shortest_timeout_ms(self.broker_heartbeat_interval)
            found.append(
                f"controllerHeartBeatTimeoutMills {timeout_ms} is below {least}: between the reports of its "
                "slaves another master could be elected, so they do not count for isolationLeaseEnable, and "
                "a master acknowledges nothing while all controllers are down; raise it, or lower "
                "brokerHeartbeatInterval"
            )
        return found
