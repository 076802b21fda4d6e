"""mqadmin: the brokers of a cluster, with their load and their epochs."""

from typing import Annotated

import typer

from cli.command_line import NamesrvAddr
from cli.mqadmin.layouts import cluster as layouts
from cli.mqadmin.shell import (
    Action,
    BrokerName,
    ClusterName,
    Output,
    command,
    dump,
    exit_code_of,
    explain,
)
from cli.mqadmin.targets import brokers_of, names_of_cluster
from keelmq.client.admin import AdminClient, AdminError, gather_some
from keelmq.remoting.operations.broker import EpochEntryCache
from keelmq.runtime.clock import wall_ms

RUNTIME_INFO_TIMEOUT_MS = 3_000


@command("getBrokerEpoch", repeats=True)
def get_broker_epoch(
    namesrv_addr: NamesrvAddr, cluster_name: ClusterName = None, broker_name: BrokerName = None
) -> Action:
    """The epochs of every replica of a broker name (-b) or of a cluster (-c)."""
    if broker_name is None and cluster_name is None:
        raise typer.BadParameter("give -b BROKERNAME or -c CLUSTERNAME")

    async def action(admin: AdminClient) -> Output:
        async def ask(address: str, name: str) -> tuple[str, EpochEntryCache] | AdminError:
            try:
                return address, await admin.brokers.broker_epochs(address, name)
            except AdminError as error:
                return error

        info = await admin.name_servers.cluster_info(namesrv_addr)
        names = [broker_name] if broker_name else names_of_cluster(info, str(cluster_name), namesrv_addr)
        answers = await gather_some(
            ask(address, broker.broker_name)
            for broker in brokers_of(info, names, namesrv_addr)
            for _, address in sorted(broker.broker_addrs.items())
        )
        entries = [answer for answer in answers if not isinstance(answer, AdminError)]
        errors = [answer for answer in answers if isinstance(answer, AdminError)]
        problems = tuple(map(explain, errors))
        value = [{"brokerAddr": address, **dump(cache)} for address, cache in entries]
        code = exit_code_of(*errors) if errors and not entries else None
        return Output(value, layouts.broker_epochs(entries), problems, exit_code=code)

    return action


@command("clusterList", repeats=True)
def cluster_list(
    namesrv_addr: NamesrvAddr,
    more_stats: Annotated[
        bool, typer.Option("-m", "--moreStats", help="Show message totals instead")
    ] = False,
    cluster_name: ClusterName = None,
) -> Action:
    """Every broker of the clusters, with its load."""

    async def action(admin: AdminClient) -> Output:
        info = await admin.name_servers.cluster_info(namesrv_addr)
        if cluster_name is not None:
            names_of_cluster(info, cluster_name, namesrv_addr)  # refuses an unknown cluster
        rows = await gather_some(
            _row(admin, cluster, broker.broker_name, broker_id, address)
            for cluster in sorted(info.cluster_addr_table)
            if cluster_name in (None, cluster)
            for broker in brokers_of(info, sorted(info.cluster_addr_table[cluster]), namesrv_addr)
            for broker_id, address in sorted(broker.broker_addrs.items())
        )
        text = layouts.cluster_totals(rows) if more_stats else layouts.cluster_list(rows, wall_ms())
        value = [
            {
                "clusterName": row.cluster,
                "brokerName": row.broker_name,
                "brokerId": row.broker_id,
                "brokerAddr": row.address,
                "error": row.problem or None,
                "runtimeInfo": dict(row.table),
            }
            for row in rows
        ]
        return Output(value, text, tuple(row.problem for row in rows if row.problem))

    return action


async def _row(
    admin: AdminClient, cluster: str, broker_name: str, broker_id: int, address: str
) -> layouts.BrokerRow:
    try:
        table = await admin.brokers.runtime_info(address, timeout_ms=RUNTIME_INFO_TIMEOUT_MS)
    except AdminError as error:
        return layouts.BrokerRow(cluster, broker_name, broker_id, address, problem=explain(error))
    return layouts.BrokerRow(cluster, broker_name, broker_id, address, table)
