"""Whom a command of mqadmin is about: one broker (-b), or those of a cluster (-c, by the name servers)."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer

from cli.command_line import checked_addresses
from cli.mqadmin.shell import Output, exit_code_of, explain, per_server
from keelmq.client.admin import AdminClient, AdminError, ServerResult
from keelmq.client.cluster.routes import parse_addresses
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.operations.route import BrokerData, ClusterInfo, TopicRouteData

T = TypeVar("T")

BrokerAddr = Annotated[
    str | None,
    typer.Option("-b", "--brokerAddr", callback=checked_addresses, help="These brokers, host:port;host:port"),
]
Cluster = Annotated[str | None, typer.Option("-c", "--clusterName", help="The brokers of this cluster")]


@dataclass(frozen=True)
class Target:
    """Of a cluster: its masters; with slaves, every replica. `missing`: a line for each without master."""

    addresses: tuple[str, ...]
    missing: tuple[str, ...] = ()


def check_target(broker_addr: str | None, cluster_name: str | None, namesrv_addr: str | None) -> None:
    """Usage errors."""
    if (broker_addr is None) == (cluster_name is None):
        raise typer.BadParameter("give -b BROKERADDR or -c CLUSTERNAME")
    if cluster_name is not None and namesrv_addr is None:
        raise typer.BadParameter("-c CLUSTERNAME needs -n NAMESRVADDR (or NAMESRV_ADDR)")


async def find_target(
    admin: AdminClient,
    broker_addr: str | None,
    cluster_name: str | None,
    namesrv_addr: str | None,
    *,
    slaves: bool = False,
) -> Target:
    """AdminError: no such cluster, or no broker in it."""
    if broker_addr is not None:
        return Target(tuple(parse_addresses(broker_addr)))
    brokers = await brokers_of_cluster(admin, str(cluster_name), str(namesrv_addr))
    if slaves:
        addresses = [each.broker_addrs[number] for each in brokers for number in sorted(each.broker_addrs)]
        return Target(tuple(addresses))
    masters = [each.broker_addrs[MASTER_ID] for each in brokers if MASTER_ID in each.broker_addrs]
    missing = [
        f"{each.broker_name} has no master at the name servers: nothing was done there"
        for each in brokers
        if MASTER_ID not in each.broker_addrs
    ]
    if not masters:
        remark = f"no broker of cluster {cluster_name} has a master"
        raise AdminError("getBrokerClusterInfo", str(namesrv_addr), remark, ResponseCode.BROKER_NOT_EXIST)
    return Target(tuple(masters), tuple(missing))


async def brokers_of_cluster(admin: AdminClient, cluster_name: str, namesrv_addr: str) -> list[BrokerData]:
    info = await admin.cluster_info(namesrv_addr)
    return brokers_of(info, names_of_cluster(info, cluster_name, namesrv_addr), namesrv_addr)


def names_of_cluster(info: ClusterInfo, cluster_name: str, namesrv_addr: str) -> list[str]:
    """Its broker names. Raises AdminError: no such cluster."""
    if cluster_name not in info.cluster_addr_table:
        known = ", ".join(sorted(info.cluster_addr_table)) or "none"
        remark = f"no cluster named {cluster_name} (known: {known})"
        raise AdminError("getBrokerClusterInfo", namesrv_addr, remark, ResponseCode.INVALID_PARAMETER)
    return sorted(info.cluster_addr_table[cluster_name])


def brokers_of(info: ClusterInfo, names: list[str], namesrv_addr: str) -> list[BrokerData]:
    """Those of the names that are known. Raises AdminError: none of them is."""
    brokers = [info.broker_addr_table[name] for name in names if name in info.broker_addr_table]
    if not brokers and names:
        known = ", ".join(sorted(info.broker_addr_table)) or "none"
        remark = f"no broker named {', '.join(names)} (known: {known})"
        raise AdminError("getBrokerClusterInfo", namesrv_addr, remark, ResponseCode.BROKER_NOT_EXIST)
    return brokers


async def on_each(
    admin: AdminClient, target: Target, ask: Callable[[str], Awaitable[T]]
) -> list[ServerResult[T]]:
    return await admin.each(";".join(target.addresses), ask)


def changed(
    said: Sequence[ServerResult[Any]], target: Target, text: Callable[[str], str], *, footer: str = ""
) -> Output:
    """The output of a change: a line for each broker that took it, and who did not."""
    good = [each.address for each in said if each.error is None]
    lines = [text(address) for address in good]
    output = per_server(said, "\n".join([*lines, *([footer] if footer and good else [])]), done="changed")
    problems = (*output.problems, *target.missing)
    code = output.exit_code if output.exit_code is not None else (4 if target.missing else None)
    return Output(output.value, output.text, problems, output.notes, code)


def readable_addresses(route: TopicRouteData) -> list[tuple[str, str]]:
    """(broker name, address) of each broker of a topic: its master, or else another replica."""
    return [
        (broker.broker_name, broker.broker_addrs[min(broker.broker_addrs)])
        for broker in route.broker_datas
        if broker.broker_addrs
    ]


async def ask_brokers(
    admin: AdminClient, route: TopicRouteData, ask: Callable[[str], Awaitable[T]]
) -> tuple[list[tuple[str, T]], list[AdminError]]:
    """(address, answer) of each broker of a topic that answers, and why the others do not."""
    addresses = [address for _, address in readable_addresses(route)]
    said = await admin.each(";".join(addresses), ask) if addresses else []
    errors = [each.error for each in said if each.error is not None]
    return [(each.address, each.answer) for each in said if each.answer is not None], errors


def shown(value: object, text: str, errors: Sequence[AdminError], *, found: bool) -> Output:
    """The output of a question: with nothing found the errors decide the exit code."""
    code = exit_code_of(*errors) if errors and not found else None
    return Output(value, text if found else "", tuple(explain(error) for error in errors), exit_code=code)
