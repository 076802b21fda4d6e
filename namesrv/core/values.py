"""Frozen values that the route table takes and returns."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from keelmq.remoting.address_text import parse_listeners
from keelmq.remoting.operations.route import DataVersion

FILTER_SERVERS_MAX = 1_000

Address = tuple[str, str]
"""(clusterName, brokerAddr), the key of the live table."""


NO_VERSION = DataVersion()


class QueueNums(Protocol):
    """The fields of a TopicConfig that a name server keeps."""

    @property
    def read_queue_nums(self) -> int:
        """Number of queues that consumers read."""
        ...

    @property
    def write_queue_nums(self) -> int:
        """Number of queues that producers write."""
        ...

    @property
    def perm(self) -> int:
        """RocketMQ's PermName bits: 4 read, 2 write, 1 inherit."""
        ...

    @property
    def topic_sys_flag(self) -> int:
        """RocketMQ's TopicSysFlag bits: UNIT_FLAG, UNIT_SUB_FLAG."""
        ...


class RegisterBody(msgspec.Struct, frozen=True):
    """The body of a registerBroker (103). `mappings`: topic -> TopicQueueMappingInfo, never interpreted.
    `filter_servers`: None leaves the known ones, an empty tuple removes them. `ordered`: topics that their
    configuration calls ordered (order, or message.type=FIFO)."""

    topics: Mapping[str, QueueNums] = msgspec.field(default_factory=dict)
    data_version: DataVersion = NO_VERSION
    mappings: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    filter_servers: tuple[str, ...] | None = ()
    ordered: frozenset[str] = frozenset()


NO_BODY = RegisterBody()


class Part(msgspec.Struct, frozen=True):
    """Which part of a topic table a registration has. `number` counts from 1."""

    number: int
    is_last: bool


WHOLE = Part(1, True)


class Registration(msgspec.Struct, frozen=True):
    """One registerBroker (103). `enable_acting_master` None: a broker older than 5.0.
    `forwards_sends`: as a slave it forwards messages of producers to the master.
    `advertised_listeners`: its address at each listener but `internal`, as a text.
    `part`: of the broker's topics, if it registers them in several requests."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str = ""
    enable_acting_master: bool | None = None
    zone_name: str | None = None
    body: RegisterBody = NO_BODY
    forwards_sends: bool = False
    advertised_listeners: str = ""
    part: Part = WHOLE

    @property
    def listeners(self) -> Mapping[str, str]:
        """The addresses in advertised_listeners by listener. ValueError: it is malformed."""
        return parse_listeners(self.advertised_listeners)

    def malformed(self, chars_max: int) -> str | None:
        """Returns why this registration is refused; None: no name or list is too long, and the listeners are
        well-formed."""
        servers = self.body.filter_servers or ()
        names = (self.cluster_name, self.broker_name, self.broker_addr, self.ha_server_addr)
        if any(len(name or "") > chars_max for name in (*names, self.zone_name, *servers)):
            return f"a name or an address has more than {chars_max} characters"
        if len(servers) > FILTER_SERVERS_MAX:
            return f"{len(servers)} filter servers; {FILTER_SERVERS_MAX} is the limit"
        try:
            too_long = any(len(address) > chars_max for address in self.listeners.values())
        except ValueError as error:
            return f"advertisedListeners: {error}"
        return f"advertisedListeners: an address has more than {chars_max} characters" if too_long else None


class MinIdChange(msgspec.Struct, frozen=True):
    """The lowest broker id of a group changed (905). `receivers`: addresses of the members to notify.
    `offline_addr`: the removed broker. `ha_addr`: the HA address of the new lowest one."""

    broker_name: str
    min_id: int
    min_addr: str
    receivers: tuple[str, ...]
    offline_addr: str | None = None
    ha_addr: str | None = None


class Registered(msgspec.Struct, frozen=True):
    """`replaced`: registrations that this one removed. The heartbeat table must forget them before it records
    the new one, whose address may be the same under another name."""

    master_addr: str | None = None
    ha_server_addr: str | None = None
    replaced: tuple[Address, ...] = ()
    min_id_changes: tuple[MinIdChange, ...] = ()


class StaleRegistration(msgspec.Struct, frozen=True):
    """A registered broker with a greater stateVersion has this id. The reply is success with no header."""

    holder_addr: str
    holder_state_version: int


class RegistrationRefused(msgspec.Struct, frozen=True):
    """The reply is SYSTEM_ERROR with this remark; nothing was changed."""

    remark: str


class Elected(msgspec.Struct, frozen=True):
    """What the controllers decided about a group. `is_registered`: the master has registered as such, so from
    now on its registration counts."""

    cluster_name: str
    master_addr: str
    master_epoch: int
    is_registered: bool = False


class LiveBroker(msgspec.Struct, frozen=True):
    """The registration of one address, which is that of the listener `internal`. `listeners`: its address at
    each other listener."""

    broker_name: str
    broker_addr: str
    data_version: DataVersion
    ha_server_addr: str
    filter_servers: tuple[str, ...] = ()
    forwards_sends: bool = False
    listeners: Mapping[str, str] = msgspec.field(default_factory=dict)


class Unregistered(msgspec.Struct, frozen=True):
    """The result of a batch of removals: the removed brokers, and the groups whose lowest id changed."""

    removed: tuple[LiveBroker, ...] = ()
    min_id_changes: tuple[MinIdChange, ...] = ()
