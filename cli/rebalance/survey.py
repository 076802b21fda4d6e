"""The input of a rebalancing: groups, their replicas with hosts, SyncStateSets and masters.

Name servers list the groups. The brokers' settings name the controllers, which know masters and
SyncStateSets. A replica's host is the one of its address, or the address of the container that lists it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from cli.mqadmin.targets import brokers_of, names_of_cluster
from cli.rebalance.core.plan import Group
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.address_text import host_of, parse_addresses, split_list
from keelmq.remoting.booleans import is_true
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.operations.controller import ReplicasInfo
from keelmq.remoting.operations.route import BrokerData


@dataclass(frozen=True, slots=True)
class SurveyScope:
    """The servers and brokers of a survey. controllers: None, as the brokers are configured. containers:
    hosts are grouped by container, "" by machine."""

    name_servers: str
    cluster: str | None = None
    controllers: str | None = None
    containers: str = ""


@dataclass
class Survey:
    """groups: that have a master and controllers. fixed: masters per host that cannot be moved. addresses:
    (broker name, broker id) -> host:port. notes: why a group is not, or cannot be, part of the plan."""

    controllers: str
    groups: list[Group] = field(default_factory=list)
    fixed: Counter[str] = field(default_factory=Counter)
    addresses: dict[tuple[str, int], str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


async def take_survey(admin: AdminClient, scope: SurveyScope) -> Survey:
    """Asks name servers, brokers, controllers and containers. AdminError: one that is needed did not answer,
    there is no such cluster, or no broker has controllers."""
    info = await admin.name_servers.cluster_info(scope.name_servers)
    if scope.cluster is None:
        brokers = list(info.broker_addr_table.values())
    else:
        names = names_of_cluster(info, scope.cluster, scope.name_servers)
        brokers = brokers_of(info, names, scope.name_servers)
    controllers = scope.controllers or await find_controllers(admin, scope.name_servers, brokers)
    names = [each.broker_name for each in brokers]
    sets = (await admin.controllers.sync_state_sets(controllers, names)).replicas_info_table
    containers = await _containers(admin, scope.containers)
    survey = Survey(controllers)
    for broker in sorted(brokers, key=lambda each: (each.cluster, each.broker_name)):
        _add(survey, broker, sets.get(broker.broker_name), containers)
    return survey


async def find_controllers(admin: AdminClient, name_servers: str, brokers: Sequence[BrokerData]) -> str:
    """Returns the controllers in the settings of these brokers, host:port;host:port. AdminError: none."""
    addresses = [each.broker_addrs[min(each.broker_addrs)] for each in brokers if each.broker_addrs]
    results = await admin.each(";".join(addresses), admin.brokers.broker_config) if addresses else []
    found = [
        address
        for each in results
        if each.answer is not None and is_true(each.answer.get("enableControllerMode"))
        for address in split_list(each.answer.get("controllerAddr", ""))
    ]
    if found:
        return ";".join(dict.fromkeys(found))
    silent = ", ".join(each.address for each in results if each.error is not None)
    remark = (
        "no broker is in controller mode, and without controllers no mastership can be moved"
        + (f" ({silent} did not answer)" if silent else "")
        + "; -a names the controllers"
    )
    raise AdminError(
        "getBrokerConfig", name_servers, remark, ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
    )


async def _containers(admin: AdminClient, containers: str) -> dict[str, str]:
    """Returns address of a broker -> address of the container that it is in. AdminError."""
    found = {}
    for address in parse_addresses(containers) if containers else []:
        for broker in (await admin.containers.container_status(address)).brokers:
            found[broker.address] = address
    return found


def _add(survey: Survey, broker: BrokerData, info: ReplicasInfo | None, containers: dict[str, str]) -> None:
    name, master_address = broker.broker_name, broker.broker_addrs.get(MASTER_ID)

    def machine_of(address: str) -> str:
        return containers.get(address) or host_of(address)

    if info is None:
        if master_address is not None:
            survey.fixed[machine_of(master_address)] += 1
        survey.notes.append(f"{name}: the controllers do not know it: its master stays where it is")
        return
    members = [*info.in_sync_replicas, *info.not_in_sync_replicas]
    replicas = {each.broker_id: machine_of(each.broker_address) for each in members}
    if info.master_broker_id not in replicas:
        survey.notes.append(f"{name}: it has no master now: see mqadmin electMaster --dry-run")
        return
    eligible = frozenset(each.broker_id for each in info.in_sync_replicas if each.alive)
    survey.addresses |= {(name, each.broker_id): each.broker_address for each in members}
    survey.groups.append(Group(broker.cluster, name, info.master_broker_id, replicas, eligible))
    behind = sorted(set(replicas) - eligible)
    if behind:
        ids = ", ".join(map(str, behind))
        survey.notes.append(f"{name}: replica {ids} is not in sync or not alive, and cannot become master")
