"""The groups, servers and machines of a ClusterStatus."""

from keelmq.health.status import ClusterStatus, ControllerStatus, GroupStatus
from keelmq.remoting.address_text import split_address
from keelmq.remoting.servers.http_answers import NotFound, some_of


def find_group(status: ClusterStatus, cluster: str, broker_name: str) -> GroupStatus:
    """Returns a group. Raises NotFound."""
    for each in status.groups:
        if (each.cluster, each.broker_name) == (cluster, broker_name):
            return each
    known = some_of(f"{each.cluster}/{each.broker_name}" for each in status.groups)
    raise NotFound(f"there is no group {cluster}/{broker_name} {known}")


def leader_of(status: ClusterStatus) -> str | None:
    """Returns the leading controller; None: unknown."""
    return next((each.address for each in status.controllers if each.role == "leader"), None)


def leader_first(status: ClusterStatus) -> list[ControllerStatus]:
    """Returns the controllers, the leading one first."""
    return sorted(status.controllers, key=lambda each: each.role != "leader")


def servers_of(status: ClusterStatus) -> dict[str, str]:
    """Returns address -> "nameServer", "controller" or "broker" of every server of a status. Only these are
    contacted: a page cannot make the console contact other machines."""
    found = {each.address: "nameServer" for each in status.name_servers}
    found |= {each.address: "controller" for each in status.controllers}
    found |= {each.address: "broker" for group in status.groups for each in group.replicas if each.address}
    return found


def hosts_of(status: ClusterStatus) -> set[str]:
    """Returns the machines of a status."""
    return {split_address(each)[0] for each in servers_of(status)}
