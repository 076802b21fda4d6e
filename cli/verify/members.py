"""Which replicas a group has: the controllers know those that no name server lists, because they are down."""

from collections.abc import Sequence

from cli.rebalance.survey import find_controllers
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.operations.controller import ReplicasInfo
from keelmq.remoting.operations.route import BrokerData


async def unlisted_members(
    admin: AdminClient, namesrv_addr: str, brokers: Sequence[BrokerData]
) -> dict[str, list[str]]:
    """Returns brokerName -> addresses of its replicas that the routes lack, from the controllers; empty for
    groups without controllers. Raises AdminError: the controllers do not answer, so they are not known."""
    try:
        controllers = await find_controllers(admin, namesrv_addr, brokers)
    except AdminError as error:
        if error.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
            return {}
        raise
    names = [each.broker_name for each in brokers]
    sets = (await admin.controllers.sync_state_sets(controllers, names)).replicas_info_table
    return {
        each.broker_name: unlisted(each, sets[each.broker_name])
        for each in brokers
        if each.broker_name in sets
    }


def unlisted(broker: BrokerData, info: ReplicasInfo) -> list[str]:
    """Returns the addresses of the controllers' replicas that a route lacks. A replica is known by its id,
    because a route may have another address of it (the master's id there is 0)."""
    listed = set(broker.broker_addrs) - {MASTER_ID}
    if MASTER_ID in broker.broker_addrs and info.master_broker_id is not None:
        listed.add(info.master_broker_id)
    return [
        each.broker_address
        for each in sorted(
            [*info.in_sync_replicas, *info.not_in_sync_replicas], key=lambda each: each.broker_id
        )
        if each.broker_id not in listed and each.broker_address not in broker.broker_addrs.values()
    ]
