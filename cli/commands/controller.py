"""mqadmin: what is asked of controllers. Any controller of -a may be named: the leader is found from it."""

from typing import Annotated

import typer

from cli import layouts
from cli.admin_shell import (
    Action,
    BrokerName,
    ClusterName,
    ControllerAddress,
    OptionalNamesrvAddr,
    Output,
    command,
    dump,
)
from cli.commands.cluster import names_of_cluster
from client.admin import AdminClient, AdminError
from remoting.codes import ResponseCode


@command("getControllerMetaData")
def get_controller_metadata(controller_addr: ControllerAddress) -> Action:
    """Which controllers there are and which one leads."""

    async def action(admin: AdminClient) -> Output:
        metadata = await admin.controller_metadata(controller_addr)
        return Output(dump(metadata), layouts.controller_metadata(metadata))

    return action


@command("getSyncStateSet", repeats=True)
def get_sync_state_set(
    controller_addr: ControllerAddress,
    cluster_name: ClusterName = None,
    broker_name: BrokerName = None,
    namesrv_addr: OptionalNamesrvAddr = None,
) -> Action:
    """Master, epochs and SyncStateSet of a broker name (-b), or of all of a cluster (-c, needs -n)."""
    if broker_name is None and (cluster_name is None or namesrv_addr is None):
        raise typer.BadParameter("give -b BROKERNAME, or -c CLUSTERNAME with -n NAMESRVADDR")

    async def action(admin: AdminClient) -> Output:
        if broker_name is not None:
            names = [broker_name]
        else:
            info = await admin.cluster_info(str(namesrv_addr))
            names = names_of_cluster(info, str(cluster_name), str(namesrv_addr))
        sets = await admin.sync_state_sets(controller_addr, names)
        unknown = [name for name in names if name not in sets.replicas_info_table]
        if unknown and not sets.replicas_info_table:
            remark = f"the controller knows no broker named {', '.join(unknown)}"
            code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            raise AdminError("getSyncStateSet", controller_addr, remark, code)
        problems = tuple(f"the controller knows no broker named {name}" for name in unknown)
        return Output(dump(sets)["replicasInfoTable"], layouts.sync_state_sets(sets), problems)

    return action


@command("electMaster")
def elect_master(
    controller_addr: ControllerAddress,
    broker_id: Annotated[
        int, typer.Option("-b", "--brokerId", min=1, help="Id of the replica to make master")
    ],
    broker_name: Annotated[str, typer.Option("-bn", "--brokerName", help="Its broker name")],
    cluster_name: Annotated[str, typer.Option("-c", "--clusterName", help="Its cluster")],
) -> Action:
    """Make a replica the master. It must be alive and in the SyncStateSet."""

    async def action(admin: AdminClient) -> Output:
        master, body = await admin.elect_master(
            controller_addr, cluster_name=cluster_name, broker_name=broker_name, broker_id=broker_id
        )
        value = {**dump(master), **dump(body)}
        return Output(value, layouts.elected(cluster_name, broker_name, master, body))

    return action
