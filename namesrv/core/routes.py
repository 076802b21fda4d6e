"""RouteTable: which brokers and topics exist, as the brokers registered them. Pure; knows no time.

One value per brokerName (its addresses by id, 0 is the master), one live entry per address in it, and the
queue data of each topic by brokerName. Source: RocketMQ 5.3.3 RouteInfoManager. Where we differ from it, on
purpose:

- A live entry exists exactly while its address is in the table (theirs leaks when an address is replaced).
- A refused registration changes nothing (theirs first removes the sender's old id).
- A brokerName belongs to one cluster (theirs merges groups of the same name).
- A first registration with one topic is accepted: later ones add whatever topic is missing for the broker, so
  the one-topic broker that theirs guards against cannot stay, and real one-topic brokers can register.

Invariants: check_invariants().
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from remoting.codes import MASTER_ID, PERM_WRITE
from remoting.operations.route import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicRouteData,
)

SYNC_MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
Address = tuple[str, str]
"""(clusterName, brokerAddr), the key of the live table."""


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
    topics: TopicConfigSerializeWrapper = field(default_factory=TopicConfigSerializeWrapper)
    filter_servers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """`replaced`: addresses that left the table, to be forgotten by the heartbeat table as well."""

    master_addr: str | None = None
    ha_server_addr: str | None = None
    replaced: tuple[Address, ...] = ()


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
    data_version: DataVersion
    ha_server_addr: str
    filter_servers: tuple[str, ...] = ()


@dataclass(slots=True)
class _Group:
    """All replicas of one brokerName."""

    cluster_name: str
    broker_name: str
    addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None

    def broker_data(self, *, acting_master: bool = False) -> BrokerData:
        addrs = dict(sorted(self.addrs.items()))
        if acting_master:
            addrs = {MASTER_ID: addrs.pop(min(addrs)), **addrs}
        return BrokerData(
            cluster=self.cluster_name,
            broker_name=self.broker_name,
            broker_addrs=addrs,
            enable_acting_master=self.enable_acting_master,
            zone_name=self.zone_name,
        )


@dataclass(slots=True)
class RouteTable:
    """Not thread-safe: it lives in the event loop, and every answer is a snapshot."""

    support_acting_master: bool = False
    _groups: dict[str, _Group] = field(default_factory=dict)
    _live: dict[Address, LiveBroker] = field(default_factory=dict)
    _topics: dict[str, dict[str, QueueData]] = field(default_factory=dict)

    def register(self, request: Registration) -> Registered | Stale | Refused:
        """The register algorithm (namesrv reference §6)."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        address = (request.cluster_name, request.broker_addr)
        before = self._live.get(address)
        if before is not None and before.broker_name != request.broker_name:
            # A broker that came back under another name: its old name leaves with its address.
            self.unregister(request.cluster_name, before.broker_name, request.broker_addr)
            before = None
        group = self._groups.get(request.broker_name)
        if group is None:
            group = _Group(request.cluster_name, request.broker_name)
            self._groups[request.broker_name] = group
        group.enable_acting_master = bool(request.enable_acting_master)
        group.zone_name = request.zone_name
        first = request.broker_id not in group.addrs
        replaced = self._take_id(group, request)
        if self._is_master_or_prime_slave(group, request):
            self._update_topics(request, group, before, first)
        filter_servers = request.filter_servers
        if filter_servers is None:  # None leaves, an empty list removes
            filter_servers = before.filter_servers if before else ()
        self._live[address] = LiveBroker(
            request.broker_name, request.topics.data_version, request.ha_server_addr, filter_servers
        )
        return self._registered(group, request, replaced)

    def unregister(self, cluster_name: str, broker_name: str, broker_addr: str) -> bool:
        """Remove every id with this address, not by id: it may be another broker's by now (#5374).

        False: the address was not registered for that name (unregistering twice is harmless).
        """
        group = self._groups.get(broker_name)
        if group is None or group.cluster_name != cluster_name or broker_addr not in group.addrs.values():
            return False
        group.addrs = {each: addr for each, addr in group.addrs.items() if addr != broker_addr}
        del self._live[cluster_name, broker_addr]
        if not group.addrs:
            self._drop_group(broker_name)
        elif group.enable_acting_master and MASTER_ID not in group.addrs:
            self._clear_write(broker_name)
        return True

    def expire(self, cluster_name: str, broker_addr: str) -> bool:
        """unregister() for an address of which only the live entry is at hand."""
        live = self._live.get((cluster_name, broker_addr))
        return live is not None and self.unregister(cluster_name, live.broker_name, broker_addr)

    def pick_up_route(self, topic: str) -> TopicRouteData | None:
        """None: no queue data, or none of its brokers is known. Sorted by brokerName."""
        queues = [
            queue for name, queue in sorted(self._topics.get(topic, {}).items()) if name in self._groups
        ]
        if not queues:
            return None
        groups = [self._groups[queue.broker_name] for queue in queues]
        filter_servers: dict[str, list[str] | None] = {
            addr: list(live.filter_servers)
            for group in groups
            for addr in group.addrs.values()
            if (live := self._live[group.cluster_name, addr]).filter_servers
        }
        return TopicRouteData(
            broker_datas=[
                group.broker_data(acting_master=self._acts(topic, group, queue))
                for group, queue in zip(groups, queues, strict=True)
            ],
            queue_datas=queues,
            filter_server_table=dict(sorted(filter_servers.items())),
        )

    def broker_data(self, broker_name: str) -> BrokerData | None:
        """Who of this group is registered; None: nobody."""
        group = self._groups.get(broker_name)
        return None if group is None else group.broker_data()

    def cluster_info(self) -> ClusterInfo:
        clusters: dict[str, list[str]] = {}
        for name, group in sorted(self._groups.items()):
            clusters.setdefault(group.cluster_name, []).append(name)
        return ClusterInfo(
            broker_addr_table={name: group.broker_data() for name, group in sorted(self._groups.items())},
            cluster_addr_table=dict(sorted(clusters.items())),
        )

    def live(self, cluster_name: str, broker_addr: str) -> LiveBroker | None:
        return self._live.get((cluster_name, broker_addr))

    def counts(self) -> Mapping[str, int]:
        """For /readyz and logs."""
        return {"topics": len(self._topics), "groups": len(self._groups), "brokers": len(self._live)}

    def check_invariants(self) -> None:
        addresses = {
            (group.cluster_name, addr) for group in self._groups.values() for addr in group.addrs.values()
        }
        assert addresses == set(self._live), "live entries and addresses differ"
        for name, group in self._groups.items():
            assert group.addrs, f"group {name} without an address"
            assert len(set(group.addrs.values())) == len(group.addrs), f"{name}: one address under two ids"
        for topic, queues in self._topics.items():
            assert queues, f"topic {topic} without queue data"
            assert set(queues) <= set(self._groups), f"topic {topic} at an unknown broker"

    def _refusal(self, request: Registration) -> Stale | Refused | None:
        """Looks only: what is refused here has changed nothing."""
        group = self._groups.get(request.broker_name)
        if group is not None and group.cluster_name != request.cluster_name:
            return Refused(
                f"brokerName {request.broker_name} belongs to cluster {group.cluster_name}, "
                f"not {request.cluster_name}: choose another brokerName"
            )
        holder = None if group is None else group.addrs.get(request.broker_id)
        if holder is None or holder == request.broker_addr:
            return None
        held = self._live[request.cluster_name, holder].data_version.state_version
        if held > request.topics.data_version.state_version:
            return Stale(holder, held)  # #6316: an old master must not take id 0 back
        return None

    def _take_id(self, group: _Group, request: Registration) -> tuple[Address, ...]:
        """Put id -> address; the address's other id and the id's other address leave."""
        group.addrs = {
            each: addr
            for each, addr in group.addrs.items()
            if addr != request.broker_addr or each == request.broker_id
        }
        holder = group.addrs.get(request.broker_id)
        group.addrs[request.broker_id] = request.broker_addr
        if holder is None or holder == request.broker_addr:
            return ()
        del self._live[request.cluster_name, holder]
        return ((request.cluster_name, holder),)

    @staticmethod
    def _is_master_or_prime_slave(group: _Group, request: Registration) -> bool:
        if request.broker_id == MASTER_ID:
            return True
        return request.enable_acting_master is not None and min(group.addrs) == request.broker_id

    def _update_topics(
        self, request: Registration, group: _Group, before: LiveBroker | None, first: bool
    ) -> None:
        changed = first or before is None or before.data_version != request.topics.data_version
        keeps_write = request.broker_id == MASTER_ID or not group.enable_acting_master  # #7626
        for topic, config in request.topics.topic_config_table.items():
            queues = self._topics.setdefault(topic, {})
            if changed or request.broker_name not in queues:
                queues[request.broker_name] = _queue_data(request.broker_name, config, keeps_write)

    def _registered(self, group: _Group, request: Registration, replaced: tuple[Address, ...]) -> Registered:
        master_addr = group.addrs.get(MASTER_ID)
        if request.broker_id == MASTER_ID or master_addr is None:
            return Registered(replaced=replaced)
        master = self._live[group.cluster_name, master_addr]
        return Registered(master_addr, master.ha_server_addr, replaced)

    def _acts(self, topic: str, group: _Group, queue: QueueData) -> bool:
        """Is the lowest slave shown as master (acting master, namesrv reference §9)?"""
        return (
            self.support_acting_master
            and group.enable_acting_master
            and MASTER_ID not in group.addrs
            and not queue.perm & PERM_WRITE
            and not topic.startswith(SYNC_MEMBER_TOPIC_PREFIX)
        )

    def _clear_write(self, broker_name: str) -> None:
        for queues in self._topics.values():
            queue = queues.get(broker_name)
            if queue is not None:
                queues[broker_name] = queue.model_copy(update={"perm": queue.perm & ~PERM_WRITE})

    def _drop_group(self, broker_name: str) -> None:
        del self._groups[broker_name]
        for topic in [topic for topic, queues in self._topics.items() if broker_name in queues]:
            del self._topics[topic][broker_name]
            if not self._topics[topic]:
                del self._topics[topic]


def _queue_data(broker_name: str, config: TopicConfig, keeps_write: bool) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm if keeps_write else config.perm & ~PERM_WRITE,
        topic_sys_flag=config.topic_sys_flag,
    )
