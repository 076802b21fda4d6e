"""ContainerConfig: the keys of a broker container. RocketMQ's where it has them; TLS, security, limits and
HTTP as in every program, for all brokers of the container.

Source: RocketMQ 5.3.3 BrokerContainerConfig.
"""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from broker.config.broker_config import PORT_MAX
from keelmq.remoting.address_text import split_address, split_list
from keelmq.remoting.config_store import StoredConfig
from keelmq.remoting.servers.limits import LIMIT_KEYS
from keelmq.runtime.config import home_path
from keelmq.security.file_users import FileUsersConfig
from keelmq.security.server_config import ServerConfig
from keelmq.upstream.keys import CONTAINER

PATHS_SEPARATOR = ":"
WORKERS_MAX = 256


class ContainerConfig(StoredConfig, FileUsersConfig, ServerConfig):
    """The settings of one mqbrokercontainer process; names are RocketMQ's keys."""

    DEFAULTS: ClassVar[tuple[str, ...]] = (*ServerConfig.DEFAULTS, "container.conf")
    UPSTREAM: ClassVar[frozenset[str]] = CONTAINER
    AT_RUN_TIME: ClassVar[frozenset[str]] = LIMIT_KEYS | {"persistBrokers"}
    BLACK_LIST: ClassVar[frozenset[str]] = StoredConfig.BLACK_LIST | {
        "brokerConfigDirectories",
        "brokerConfigPaths",
        "containerStatePath",
    }

    config_black_list: str = Field(
        "configBlackList;brokerConfigPaths", description="keys that requests must not change"
    )
    listen_port: int = Field(
        10811, ge=0, le=PORT_MAX, description="the container's own port, for tools; 0: any free one"
    )
    fast_listen_port: int = Field(
        0,
        ge=-1,
        le=PORT_MAX,
        description="the same for tools with the VIP channel; 0: listenPort - 2 if it is free, -1: none "
        "(ours)",
    )
    http_port: int = Field(
        0, ge=-1, le=PORT_MAX, description="port of /livez, /readyz, /metrics and the API; 0: listenPort + "
        "10000, -1: none (ours)",
    )  # fmt: skip
    bind_address: str = Field(
        "0.0.0.0", description="interface of all ports, the brokers' too; ::, IPv4 and IPv6 (ours)"
    )
    namesrv_addr: str = Field(
        "", alias="namesrvAddr", description="name servers of all brokers here, host:port;host:port"
    )
    broker_container_ip: str = Field(
        "",
        alias="brokerContainerIP",
        description="address that the container announces, and each broker here whose file has no brokerIP1; "
        "empty: detected",
    )
    broker_config_paths: str = Field(
        "", description="files of the brokers to start with, `:` between them; one that is bad does not stop "
        "the others",
    )  # fmt: skip
    broker_config_directories: str = Field(
        "",
        description="where the files of brokers may be that requests add, `:` between the directories "
        "(default: the directories of brokerConfigPaths and of the -c file, ours)",
    )
    persist_brokers: bool = Field(
        True, description="brokers that were added or removed by requests stay so after a restart (ours)"
    )
    container_state_path: Path | None = Field(
        None, description="file that keeps them (default: ~/store/container/brokers-<listenPort>.json, ours)"
    )
    container_processes: int = Field(
        1,
        ge=1,
        le=WORKERS_MAX,
        description="processes that the brokers are spread over; 1: all are in the container's own (ours)",
    )
    rocketmq_home: str | None = Field(None, description="without effect")

    @field_validator("container_state_path")
    @classmethod
    def _expand_state(cls, path: Path | None) -> Path | None:
        return home_path(path)

    @field_validator("broker_config_paths", "broker_config_directories")
    @classmethod
    def _check_paths(cls, text: str) -> str:
        for each in text.split(PATHS_SEPARATOR):
            home_path(Path(each.strip()))
        return text

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        for address in self.name_servers:
            try:
                split_address(address)
            except ValueError as error:
                raise ValueError(f"namesrvAddr: {error}") from None
        return self

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses in namesrvAddr."""
        return tuple(split_list(self.namesrv_addr))

    @property
    def config_paths(self) -> tuple[Path, ...]:
        """The files in brokerConfigPaths."""
        return paths_of(self.broker_config_paths)

    @property
    def config_directories(self) -> tuple[Path, ...]:
        """The directories in brokerConfigDirectories."""
        return paths_of(self.broker_config_directories)

    @property
    def state_path(self) -> Path:
        """Where brokers that requests added or removed are kept."""
        default = Path(f"~/store/container/brokers-{self.listen_port}.json").expanduser()
        return self.container_state_path or default


def paths_of(text: str) -> tuple[Path, ...]:
    """ "/a:/b" -> (/a, /b), with ~ replaced."""
    parts = (part.strip() for part in text.split(PATHS_SEPARATOR))
    return tuple(Path(part).expanduser() for part in parts if part)
