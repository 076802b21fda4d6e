"""What goes into the route table and what comes out of it, as frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from remoting.operations.route import DataVersion

Address = tuple[str, str]
"""(clusterName, brokerAddr), the key of the live table."""


NO_VERSION = DataVersion()


class QueueNums(Protocol):
    """What a name server keeps of a TopicConfig."""

    @property
    def read_queue_nums(self) -> int: ...

    @property
    def write_queue_nums(self) -> int: ...

    @property
    def perm(self) -> int: ...

    @property
    def topic_sys_flag(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RegisterBody:
    """The body of one 103. `mappings`: topic -> TopicQueueMappingInfo, kept as it came and never interpreted.
    `filter_servers` None leaves what is known, an empty tuple removes it."""

    topics: Mapping[str, QueueNums] = field(default_factory=dict)
    data_version: DataVersion = NO_VERSION
    mappings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    filter_servers: tuple[str, ...] | None = ()


NO_BODY = RegisterBody()


@dataclass(frozen=True, slots=True)
class Registration:
    """What one 103 says. `enable_acting_master` None: a broker older than 5.0."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str = ""
    enable_acting_master: bool | None = None
    zone_name: str | None = None
    body: RegisterBody = NO_BODY


@dataclass(frozen=True, slots=True)
class MinIdChange:
    """The lowest id of a group is another one now (905). `receivers`: addresses of members to tell.
    `offline_addr`: who left. `ha_addr`: the HA address of a new lowest one."""

    broker_name: str
    min_id: int
    min_addr: str
    receivers: tuple[str, ...]
    offline_addr: str | None = None
    ha_addr: str | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """`replaced`: registrations that ended with this one, to be forgotten by the heartbeat table as well
    (before it hears of the new one: the address may be the same, under another name)."""

    master_addr: str | None = None
    ha_server_addr: str | None = None
    replaced: tuple[Address, ...] = ()
    min_id_changes: tuple[MinIdChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Stale:
    """A live broker with a greater stateVersion holds this id. On the wire: success, empty header."""

    holder_addr: str
    holder_state_version: int


@dataclass(frozen=True, slots=True)
class Refused:
    remark: str


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """What the live table remembers of one address."""

    broker_name: str
    broker_addr: str
    data_version: DataVersion
    ha_server_addr: str
    filter_servers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unregistered:
    """What a batch of removals did: who was there and left, and which groups have another lowest id."""

    removed: tuple[LiveBroker, ...] = ()
    min_id_changes: tuple[MinIdChange, ...] = ()
