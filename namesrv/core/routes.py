"""RouteTable: brokers and topics as the brokers registered them. Pure; reads no clock.

One group for each brokerName (addresses by id, 0 is the master), one live entry for each of its addresses,
and the queue data of each topic by brokerName. Source: RocketMQ 5.3.3, RouteInfoManager. Deliberate
differences:

- A live entry exists exactly while its address is in the table (RocketMQ leaks a replaced address).
- A refused registration changes nothing (RocketMQ has removed the sender's old id by then).
- A brokerName belongs to one cluster (RocketMQ merges groups of the same name).
- A first registration with one topic is accepted (RocketMQ refuses it, because the topics of that broker
  could stay incomplete): here later registrations add every topic that is missing.
- Removing a broker removes all that it registered, also mappings of static topics (RocketMQ keeps them).

Invariants: check_invariants().
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

import msgspec

from keelmq.remoting.address_text import INTERNAL
from keelmq.remoting.codes import MASTER_ID, PERM_WRITE
from keelmq.remoting.operations.route import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicList,
    TopicRouteData,
    WipeExplanation,
)
from namesrv.core.aliases import (
    NO_ALIASES,
    AliasLimits,
    alias_addresses,
    alias_entries,
    may_have_aliases,
    only_writable,
)
from namesrv.core.broker_topics import PermChange
from namesrv.core.elected import ElectedMasters
from namesrv.core.groups import BrokerGroup
from namesrv.core.listener_view import address_at, shown_addresses, shown_clusters, shown_route
from namesrv.core.registration_rules import refuse
from namesrv.core.topic_lists import topic_list
from namesrv.core.topic_parts import TopicParts, version_after
from namesrv.core.topics import UNIT_FLAG, UNIT_SUB_FLAG, TopicTable
from namesrv.core.values import (
    Address,
    LiveBroker,
    MinIdChange,
    Registered,
    Registration,
    RegistrationRefused,
    StaleRegistration,
    Unregistered,
)

SYNC_MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"

TopicListSlices = Generator[None, None, bytes]


class RouteTable(msgspec.Struct):
    """Event loop only. Every returned value is a snapshot.

    `delete_missing_topics`: a registration, or all its parts together, contains the broker's whole topic
    table; other topics are removed.
    """

    support_acting_master: bool = False
    delete_missing_topics: bool = False
    aliases: AliasLimits = NO_ALIASES
    elected: ElectedMasters = msgspec.field(default_factory=ElectedMasters)
    _groups: dict[str, BrokerGroup] = msgspec.field(default_factory=dict)
    _live: dict[Address, LiveBroker] = msgspec.field(default_factory=dict)
    _topics: TopicTable = msgspec.field(default_factory=TopicTable)
    _parts: TopicParts = msgspec.field(default_factory=TopicParts)
    _group_version: int = 0

    @property
    def version(self) -> int:
        """Grows with every change that a reply can show, so that encoded replies can be cached."""
        return self._group_version + self._topics.version + self.elected.version

    def refuse(self, request: Registration) -> StaleRegistration | RegistrationRefused | None:
        """Returns why register() would refuse this; None: it would not. Changes nothing."""
        known = self._groups.get(request.broker_name)
        return refuse(request, known, self._live, self._topics, self.elected)

    def register(self, request: Registration) -> Registered | StaleRegistration | RegistrationRefused:
        """Registers a broker (103). StaleRegistration: a newer broker has the id; nothing was changed."""
        refusal = self.refuse(request)
        if refusal is not None:
            return refusal
        address = (request.cluster_name, request.broker_addr)
        before = self._live.get(address)
        changes: tuple[MinIdChange, ...] = ()
        left: tuple[Address, ...] = ()
        if before is not None and before.broker_name != request.broker_name:
            # the broker has restarted under another name: its old registration is removed
            changes, before, left = self.unregister_all((address,)).min_id_changes, None, (address,)
        group = self._groups.get(request.broker_name)
        if group is None:
            group = BrokerGroup(request.cluster_name, request.broker_name)
            self._groups[request.broker_name] = group
        shown, lowest = group.shown(), min(group.addrs, default=None)
        group.enable_acting_master = bool(request.enable_acting_master)
        group.zone_name = request.zone_name
        first = request.broker_id not in group.addrs
        replaced = left + self._take_id(group, request)
        if self._is_master_or_prime_slave(group, request):
            self._update_topics(request, group, before, first)
        filter_servers = request.body.filter_servers
        if filter_servers is None:
            filter_servers = before.filter_servers if before else ()
        if (
            group.shown() != shown
            or before is None
            or filter_servers != before.filter_servers
            or (before.forwards_sends, before.listeners) != (request.forwards_sends, request.listeners)
        ):
            self._group_version += 1
        self._live[address] = LiveBroker(
            request.broker_name,
            request.broker_addr,
            version_after(request),
            request.ha_server_addr,
            filter_servers,
            request.forwards_sends,
            request.listeners,
        )
        group.had_forwarders |= request.forwards_sends and request.broker_id != MASTER_ID
        self.elected.registered(request)
        change = group.min_id_change(lowest, ha_addr=request.ha_server_addr or None)
        return self._registered(group, request, replaced, (*changes, change) if change else changes)

    def unregister(self, cluster_name: str, broker_name: str, broker_addr: str) -> Unregistered:
        """Removes one address, if it is registered for that name. Safe to repeat."""
        live = self._live.get((cluster_name, broker_addr))
        if live is None or live.broker_name != broker_name:
            return Unregistered()
        return self.unregister_all(((cluster_name, broker_addr),))

    def unregister_all(self, addresses: Iterable[Address]) -> Unregistered:
        """Removes those of the addresses that are registered.

        By address, not by id: the id may belong to another broker by now (#5374). `min_id_changes` compares
        the groups before and after the whole batch.
        """
        removed: list[LiveBroker] = []
        lowest: dict[str, tuple[int, str]] = {}
        for address in addresses:
            live = self._live.get(address)
            if live is not None:
                group = self._groups[live.broker_name]
                lowest.setdefault(live.broker_name, min(group.addrs.items()))
                self._remove(address, group)
                removed.append(live)
        if removed:
            self._topics.sweep()  # brokers with few topics leave nothing behind
        changes = [
            self._groups[name].min_id_change(broker_id, offline_addr=addr)
            for name, (broker_id, addr) in lowest.items()
            if name in self._groups and self._groups[name].enable_acting_master
        ]
        return Unregistered(tuple(removed), tuple(change for change in changes if change is not None))

    def delete_topic(self, topic: str, cluster_name: str | None = None) -> None:
        """Removes the topic in one cluster; None: in all. A broker that still has it registers it again."""
        for name in list(self._topics.queues(topic)):
            if cluster_name is None or self._groups[name].cluster_name == cluster_name:
                self._topics.remove(topic, name)

    def register_topic(self, topic: str, queues: Sequence[QueueData]) -> str | None:
        """Adds a topic. Returns why it was refused (then nothing was changed); None: it was added."""
        for queue in queues:
            if queue.broker_name not in self._groups:
                return f"its broker {queue.broker_name[:80]} is not registered"
            problem = self._topics.refuse(queue.broker_name, {topic})
            if problem is not None:
                return problem
        for queue in queues:
            self._topics.put(topic, queue)
        return None

    def brokers_of(self, topic: str) -> list[str]:
        """Returns the brokerNames that a topic has a route to, sorted; empty for an unknown topic."""
        return sorted(self._topics.queues(topic))

    def wipe_write_perm(self, broker_name: str) -> PermChange:
        """Removes the write permission (205) of every topic of the broker; none: it is unknown."""
        return self._topics.clear_write(broker_name)

    def explain_wipe(self, broker_name: str) -> Generator[None, None, WipeExplanation]:
        """Returns what wipe_write_perm() would change."""
        return self._topics.explain_clear_write(broker_name)

    def add_write_perm(self, broker_name: str) -> PermChange:
        """Adds the write permission (327) to every topic of the broker; none: it is unknown."""
        return self._topics.add_write(broker_name)

    def pick_up_route(
        self, topic: str, *, aliases: bool = False, listener: str = INTERNAL
    ) -> TopicRouteData | None:
        """Returns the route of a topic (105), sorted by brokerName; None: the topic is not known, or no
        broker is shown at the listener. `aliases`: with alias entries, if the settings and the topic allow
        them."""
        queues = [queue for _, queue in sorted(self._topics.queues(topic).items())]
        if not queues:
            return None
        groups = [self._groups[queue.broker_name] for queue in queues]
        filter_servers: dict[str, list[str] | None] = {
            addr: list(live.filter_servers)
            for group in groups
            for addr in group.addrs.values()
            if (live := self._live[group.cluster_name, addr]).filter_servers
        }
        brokers = [
            group.broker_data(
                acting_master=self._acts(topic, group, queue), master_addr=self._elected_addr(group)
            )
            for group, queue in zip(groups, queues, strict=True)
        ]
        if aliases:
            more_brokers, more_queues = self._aliases(topic, groups, brokers, queues)
            brokers, queues = brokers + more_brokers, queues + more_queues
        route = TopicRouteData(
            broker_datas=brokers,
            queue_datas=queues,
            filter_server_table=dict(sorted(filter_servers.items())),
            topic_queue_mapping_by_broker=dict(sorted(self._topics.mappings(topic).items())) or None,
        )
        return route if listener == INTERNAL else shown_route(route, self._addresses_at(listener))

    def broker_data(self, broker_name: str) -> BrokerData | None:
        """Returns the registered addresses of a group; None: it has none."""
        group = self._groups.get(broker_name)
        return None if group is None else group.broker_data()

    def cluster_info(self, listener: str = INTERNAL) -> ClusterInfo:
        """Returns all clusters and brokers, sorted by name (GET_BROKER_CLUSTER_INFO, 106)."""
        clusters: dict[str, list[str]] = {}
        for name, group in sorted(self._groups.items()):
            clusters.setdefault(group.cluster_name, []).append(name)
        info = ClusterInfo(
            broker_addr_table={name: group.broker_data() for name, group in sorted(self._groups.items())},
            cluster_addr_table=dict(sorted(clusters.items())),
        )
        return info if listener == INTERNAL else shown_clusters(info, self._addresses_at(listener))

    def member_group(
        self, cluster_name: str, broker_name: str, listener: str = INTERNAL
    ) -> BrokerMemberGroup:
        """Returns the addresses of a group (901), none if it is unknown. `cluster_name` is only echoed."""
        group = self._groups.get(broker_name)
        addrs = {} if group is None else dict(sorted(group.addrs.items()))
        if group is not None:
            addrs = shown_addresses(group.cluster_name, addrs, self._addresses_at(listener))
        return BrokerMemberGroup(cluster=cluster_name, broker_name=broker_name, broker_addrs=addrs)

    def topic_names(self) -> Iterable[str]:
        """Returns all topics, unsorted."""
        return iter(self._topics)

    def broker_names(self, cluster_name: str = "") -> Iterable[str]:
        """Returns the brokerNames of one cluster, or of all ("") clusters, unsorted."""
        return (name for name, each in self._groups.items() if cluster_name in ("", each.cluster_name))

    def topics_of_broker(self, broker_name: str) -> frozenset[str]:
        """Returns the topics of this brokerName; empty for an unknown one."""
        return self._topics.of_broker(broker_name)

    def topic_count(self, broker_name: str) -> int:
        """Returns how many topics this brokerName has."""
        return len(self._topics.view(broker_name))

    def topics(self) -> TopicListSlices:
        """Returns the body with all topics, sorted (GET_ALL_TOPIC_LIST, 206), in slices."""
        return topic_list(self._topics.names())

    def topics_of_cluster(self, cluster_name: str) -> TopicListSlices:
        """Returns the body with the topics of a cluster, sorted (224), in slices; empty for an unknown
        cluster."""
        names = [name for name, group in self._groups.items() if group.cluster_name == cluster_name]
        return topic_list(self._topics.names(names))

    def system_topics(self, listener: str = INTERNAL) -> TopicList:
        """Returns the names of clusters and groups, which are topics too, and one broker address (304)."""
        clusters = {group.cluster_name for group in self._groups.values()}
        addresses = (
            addr
            for _, group in sorted(self._groups.items())
            for _, internal in sorted(group.addrs.items())
            if (addr := address_at(self._live[group.cluster_name, internal], listener)) is not None
        )
        return TopicList(topic_list=sorted(clusters | set(self._groups)), broker_addr=next(addresses, None))

    def unit_topics(self) -> TopicListSlices:
        """Returns the body with the topics that belong to a unit, sorted (311), in slices."""
        return topic_list(self._topics.with_flags(present=UNIT_FLAG))

    def unit_sub_topics(self, *, outside_units: bool = False) -> TopicListSlices:
        """Returns the body with the topics that a unit subscribes to (312), in slices; outside_units: without
        those of units (313)."""
        absent = UNIT_FLAG if outside_units else 0
        return topic_list(self._topics.with_flags(present=UNIT_SUB_FLAG, absent=absent))

    def sweep(self) -> bool:
        """Frees some remains of removed brokers, in 2 ms. Returns whether more are left. They are invisible,
        so no request waits for it."""
        return self._topics.sweep()

    def live(self, cluster_name: str, broker_addr: str) -> LiveBroker | None:
        """Returns the registration of this address (RocketMQ's brokerLiveTable); None: there is none."""
        return self._live.get((cluster_name, broker_addr))

    def counts(self) -> Mapping[str, int]:
        """Returns the numbers of topics, groups and brokers, for /v1/health and metrics. Topics of a removed
        broker count until they are swept."""
        return {"topics": len(self._topics), "groups": len(self._groups), "brokers": len(self._live)}

    def check_invariants(self) -> None:
        """Raises AssertionError if groups, live entries and topics are inconsistent."""
        addresses = {
            (group.cluster_name, addr) for group in self._groups.values() for addr in group.addrs.values()
        }
        assert addresses == set(self._live), "live entries and addresses differ"
        for name, group in self._groups.items():
            assert group.broker_name == name
            assert group.addrs, f"group {name} without an address"
            assert len(set(group.addrs.values())) == len(group.addrs), f"{name}: one address under two ids"
            for addr in group.addrs.values():
                assert self._live[group.cluster_name, addr].broker_name == name, addr
        self._topics.check_invariants()
        for topic in self._topics:
            assert set(self._topics.queues(topic)) <= set(self._groups), f"topic {topic} at an unknown broker"

    def _take_id(self, group: BrokerGroup, request: Registration) -> tuple[Address, ...]:
        """Sets id -> address; removes an earlier id of the address, and an earlier address of the id.

        Returns the removed address.
        """
        group.addrs = {
            each: addr
            for each, addr in group.addrs.items()
            if addr != request.broker_addr or each == request.broker_id
        }
        holder = group.addrs.get(request.broker_id)
        group.addrs = {**group.addrs, request.broker_id: request.broker_addr}
        if holder is None or holder == request.broker_addr:
            return ()
        del self._live[request.cluster_name, holder]
        self._parts.forget((request.cluster_name, holder))
        return ((request.cluster_name, holder),)

    @staticmethod
    def _is_master_or_prime_slave(group: BrokerGroup, request: Registration) -> bool:
        if request.broker_id == MASTER_ID:
            return True
        return request.enable_acting_master is not None and min(group.addrs) == request.broker_id

    def _update_topics(
        self, request: Registration, group: BrokerGroup, before: LiveBroker | None, first: bool
    ) -> None:
        body, name = request.body, request.broker_name
        changed = first or before is None or before.data_version != body.data_version
        keeps_write = request.broker_id == MASTER_ID or not group.enable_acting_master  # #7626
        changed, missing = self._parts.begin_or_continue(
            request, changed=changed, known=self._topics.view(name), removes=self.delete_missing_topics
        )
        self._topics.remove_all(missing, name)
        self._topics.update(name, body.topics, changed=changed, keeps_write=keeps_write)
        self._topics.update_mappings(name, body.mappings, changed=changed)
        self._topics.update_ordered(name, body.topics.keys(), body.ordered)

    def _registered(
        self,
        group: BrokerGroup,
        request: Registration,
        replaced: tuple[Address, ...],
        changes: tuple[MinIdChange, ...],
    ) -> Registered:
        master_addr = group.addrs.get(MASTER_ID)
        if request.broker_id == MASTER_ID or master_addr is None:
            return Registered(replaced=replaced, min_id_changes=changes)
        master = self._live[group.cluster_name, master_addr]
        return Registered(master_addr, master.ha_server_addr, replaced, changes)

    def _remove(self, address: Address, group: BrokerGroup) -> None:
        name = group.broker_name
        group.addrs = {each: addr for each, addr in group.addrs.items() if addr != address[1]}
        del self._live[address]
        self._parts.forget(address)
        if not group.addrs:
            del self._groups[name]
            self._topics.remove_broker(name)
        elif group.enable_acting_master and MASTER_ID not in group.addrs:
            self._topics.clear_write(name)
        self._group_version += 1

    def _addresses_at(self, listener: str) -> Callable[[str, str], str | None]:
        return lambda cluster, address: address_at(self._live[cluster, address], listener)

    def _elected_addr(self, group: BrokerGroup) -> str | None:
        """Returns the master that the controllers elected, until it has registered as such itself; None: the
        registrations are right, or the master is not registered here at all."""
        addr = self.elected.unregistered_master(group.cluster_name, group.broker_name)
        return addr if addr in group.addrs.values() else None

    def _aliases(
        self, topic: str, groups: list[BrokerGroup], brokers: list[BrokerData], queues: list[QueueData]
    ) -> tuple[list[BrokerData], list[QueueData]]:
        """Returns the alias entries of a topic. A topic at several groups needs none: a retry goes to another
        group."""
        at = only_writable(queues)
        if at is None or self._topics.is_ordered(topic) or self._topics.mappings(topic):
            return [], []
        group, names = groups[at], self._groups.keys()
        if not may_have_aliases(topic, {group.cluster_name, *names}):
            return [], []
        forwarders = [
            each for each in group.addrs.values() if self._live[group.cluster_name, each].forwards_sends
        ]
        addresses = alias_addresses(brokers[at], forwarders, keeps=group.had_forwarders)
        return alias_entries(brokers[at], queues[at], addresses, self.aliases, names)

    def _acts(self, topic: str, group: BrokerGroup, queue: QueueData) -> bool:
        """Returns whether the route shows the slave with the lowest id as master (acting master)."""
        return (
            self.support_acting_master
            and group.enable_acting_master
            and MASTER_ID not in group.addrs
            and not queue.perm & PERM_WRITE
            and not topic.startswith(SYNC_MEMBER_TOPIC_PREFIX)
        )
