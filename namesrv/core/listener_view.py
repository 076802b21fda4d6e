"""The addresses in an answer, as they are at the listener that was asked (docs/adr/0077). Pure.

Answers are made with internal addresses, which identify brokers. For another listener they are exchanged
here, as the last step. A broker that registered no listeners has one address, shown at all of them. One that
registered listeners is shown only at those.
"""

from collections.abc import Callable, Mapping

from keelmq.remoting.address_text import INTERNAL
from keelmq.remoting.operations.route import BrokerData, ClusterInfo, TopicRouteData
from namesrv.core.values import LiveBroker

AddressOf = Callable[[str, str], str | None]
"""(clusterName, internal address) -> the address at a listener; None: the broker is not shown there."""


def address_at(broker: LiveBroker, listener: str) -> str | None:
    """Returns the address of a broker at a listener; None: it has none."""
    if listener == INTERNAL or not broker.listeners:
        return broker.broker_addr
    return broker.listeners.get(listener)


def shown_addresses(cluster_name: str, addresses: Mapping[int, str], address_of: AddressOf) -> dict[int, str]:
    """Returns the addresses of a group by broker id, without brokers that are not shown."""
    found = {each: address_of(cluster_name, address) for each, address in addresses.items()}
    return {each: address for each, address in found.items() if address is not None}


def shown_group(group: BrokerData, address_of: AddressOf) -> BrokerData | None:
    """Returns the group with the brokers that are shown; None: none is."""
    addresses = shown_addresses(group.cluster, group.broker_addrs, address_of)
    return group.model_copy(update={"broker_addrs": addresses}) if addresses else None


def shown_route(route: TopicRouteData, address_of: AddressOf) -> TopicRouteData | None:
    """Returns the route to the groups that are shown; None: none is."""
    groups = [shown for each in route.broker_datas if (shown := shown_group(each, address_of)) is not None]
    names = {each.broker_name for each in groups}
    clusters = {
        address: each.cluster for each in route.broker_datas for address in each.broker_addrs.values()
    }
    filters = {
        address_of(clusters[address], address): servers
        for address, servers in route.filter_server_table.items()
        if address in clusters
    }
    if not groups:
        return None
    known = route.topic_queue_mapping_by_broker or {}
    mappings = {name: mapping for name, mapping in known.items() if name in names}
    return route.model_copy(
        update={
            "broker_datas": groups,
            "queue_datas": [each for each in route.queue_datas if each.broker_name in names],
            "filter_server_table": {at: servers for at, servers in filters.items() if at is not None},
            "topic_queue_mapping_by_broker": mappings or None,
        }
    )


def shown_clusters(info: ClusterInfo, address_of: AddressOf) -> ClusterInfo:
    """Returns the clusters with the groups that are shown."""
    groups = {
        name: shown
        for name, each in info.broker_addr_table.items()
        if (shown := shown_group(each, address_of)) is not None
    }
    clusters = {
        cluster: [name for name in names if name in groups]
        for cluster, names in info.cluster_addr_table.items()
    }
    return ClusterInfo(
        broker_addr_table=groups,
        cluster_addr_table={cluster: names for cluster, names in clusters.items() if names},
    )
