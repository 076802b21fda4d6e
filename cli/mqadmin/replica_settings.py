"""Settings of a whole broker group: a change at every replica in a safe order, and what replicas differ in.

Replicas come first, then the master: whatever happens in between, a replica that is elected then has the new
setting already, and a master never gives a guarantee that its successor would not keep. If a replica refuses
the change, the master is not asked, so a refused value changes no master.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cli.mqadmin.targets import brokers_of, brokers_of_cluster
from keelmq.client.admin import AdminClient, AdminError, ServerResult
from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.operations.route import BrokerData

NO_MASTER = "NO_MASTER"
OWN_KEYS = frozenset(
    {
        "advertisedListeners", "bindAddress", "brokerIP1", "brokerIP2", "brokerId", "brokerRole",
        "clientCallbackExecutorThreads", "configStorePath",
        "fastListenPort", "haListenPort", "haMasterAddress", "httpPort", "listenPort", "listeners",
        "startAcceptSendRequestTimeStamp", "storePathCommitLog", "storePathEpochFile", "storePathRootDir",
    }
)  # fmt: skip
"""Keys that differ between healthy replicas."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """The addresses of a broker name, or of a cluster, in the order of a change."""

    slaves: tuple[str, ...]
    masters: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    """Broker name by address."""

    @property
    def all(self) -> tuple[str, ...]:
        """Slaves first."""
        return (*self.slaves, *self.masters)

    def title(self, address: str) -> str:
        """Returns the heading of a replica's settings, as in RocketMQ: master, or slave of which master."""
        if address in self.masters:
            return f"Master: {address}"
        name = self.names[address]
        master = next((each for each in self.masters if self.names[each] == name), NO_MASTER)
        return f"My Master: {master}=====Slave: {address}"


def replicas_of(brokers: Sequence[BrokerData]) -> Replicas:
    """Returns the replicas of these broker names."""
    places = [
        (number, address, broker.broker_name)
        for broker in brokers
        for number, address in sorted(broker.broker_addrs.items())
    ]
    return Replicas(
        tuple(address for number, address, _ in places if number != MASTER_ID),
        tuple(address for number, address, _ in places if number == MASTER_ID),
        {address: name for _, address, name in places},
    )


async def find_replicas(
    admin: AdminClient, namesrv_addr: str, *, group: str | None, cluster_name: str | None
) -> Replicas:
    """Returns every replica of a broker name, or of a cluster. Raises AdminError: there is none."""
    if group is None:
        return replicas_of(await brokers_of_cluster(admin, str(cluster_name), namesrv_addr))
    found = brokers_of(await admin.name_servers.cluster_info(namesrv_addr), [group], namesrv_addr)
    if cluster_name is not None and found[0].cluster != cluster_name:
        raise AdminError(
            "getBrokerClusterInfo",
            namesrv_addr,
            f"{group} is in cluster {found[0].cluster}, not {cluster_name}",
        )
    return replicas_of(found)


async def change_in_order(
    admin: AdminClient, replicas: Replicas, change: Callable[[str], Awaitable[str]]
) -> tuple[list[ServerResult[str]], list[str]]:
    """Changes slaves, then masters. Returns the answers, and a line for each master that was not asked."""
    results: list[ServerResult[str]] = []
    if replicas.slaves:
        results += await admin.each(";".join(replicas.slaves), change)
    refused = [each for each in results if each.error is not None and each.error.code is not None]
    if refused:
        return results, [
            f"{each}: not asked, because a replica refused the change" for each in replicas.masters
        ]
    if replicas.masters:
        results += await admin.each(";".join(replicas.masters), change)
    return results, []


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that the replicas of a broker name do not agree on. values: by address; None: it is not set."""

    broker_name: str
    key: str
    values: Mapping[str, str | None]


def differences(replicas: Replicas, settings: Mapping[str, Mapping[str, str]]) -> list[Difference]:
    """Returns the differences between the replicas of each broker name, without OWN_KEYS. settings: by
    address."""
    found = []
    for name in sorted(set(replicas.names.values())):
        group = {
            each: settings[each] for each in replicas.all if replicas.names[each] == name and each in settings
        }
        for key in sorted({key for table in group.values() for key in table} - OWN_KEYS):
            values = {address: table.get(key) for address, table in group.items()}
            if len(set(values.values())) > 1:
                found.append(Difference(name, key, values))
    return found


def compared_names(replicas: Replicas, settings: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Returns the broker names with two or more replicas that answered, sorted. settings: by address."""
    answered = Counter(replicas.names[each] for each in settings)
    return sorted(name for name, count in answered.items() if count > 1)


def difference_text(
    found: Sequence[Difference], replicas: Replicas, settings: Mapping[str, Mapping[str, str]]
) -> str:
    """Returns a heading for each key, and a line for each replica; then, if no key differs, the replicas that
    were compared, and the broker names with nothing to compare."""
    lines: list[str] = []
    for each in found:
        lines.append(f"{each.broker_name}: {each.key}")
        for address, value in each.values.items():
            role = "master" if address in replicas.masters else "slave"
            lines.append(f"    {address:<24} {role:<7} {'(not set)' if value is None else value}")
    compared = compared_names(replicas, settings)
    if compared and not found:
        which = "all replicas" if len(settings) == len(replicas.names) else "the replicas that answer"
        lines.append(f"{which} have the same settings")
    alone = sorted(set(replicas.names.values()) - set(compared))
    lines += [f"{each}: nothing to compare: fewer than two replicas answer" for each in alone]
    return "\n".join(lines)
