"""mqadmin: the state of replication, as the brokers report it (907)."""

import typer

from cli.command_line import OptionalNamesrvAddr
from cli.mqadmin.layouts import ha as layouts_ha
from cli.mqadmin.shell import REFUSED, Action, ClusterName, Output, command, dump, exit_code_of, explain
from cli.mqadmin.targets import BrokerAddr, brokers_of, names_of_cluster
from keelmq.client.admin import AdminClient
from keelmq.remoting.address_text import parse_addresses
from keelmq.remoting.codes import MASTER_ID


@command("haStatus", repeats=True)
def ha_status(
    cluster_name: ClusterName = None,
    broker_addr: BrokerAddr = None,
    namesrv_addr: OptionalNamesrvAddr = None,
) -> Action:
    """Replication of one broker, master or slave (-b), or of all masters of a cluster (-c, needs -n)."""
    if broker_addr is None and (cluster_name is None or namesrv_addr is None):
        raise typer.BadParameter("give -b BROKERADDR, or -c CLUSTERNAME with -n NAMESRVADDR")

    async def action(admin: AdminClient) -> Output:
        problems: list[str] = []
        if broker_addr is not None:
            addresses = parse_addresses(broker_addr)
        else:
            addresses, problems = await _masters(admin, str(cluster_name), str(namesrv_addr))
        results = await admin.each(";".join(addresses), admin.brokers.ha_status) if addresses else []
        errors = [each.error for each in results if each.error is not None]
        told = [(each.address, each.answer) for each in results if each.answer is not None]
        value = [
            {"brokerAddr": each.address, "error": explain(each.error) if each.error else None}
            | (dump(each.answer) if each.answer is not None else {})
            for each in results
        ]
        problems += [explain(error) for error in errors]
        nothing = exit_code_of(*errors) if errors else REFUSED
        code = nothing if problems and not told else None
        text = "\n".join(layouts_ha.ha_status(address, status) for address, status in told)
        return Output(value, text, tuple(problems), exit_code=code)

    return action


async def _masters(admin: AdminClient, cluster_name: str, namesrv_addr: str) -> tuple[list[str], list[str]]:
    """Returns the masters' addresses, and a line for each group without one. AdminError: no such cluster."""
    info = await admin.name_servers.cluster_info(namesrv_addr)
    brokers = brokers_of(info, names_of_cluster(info, cluster_name, namesrv_addr), namesrv_addr)
    addresses = [each.broker_addrs[MASTER_ID] for each in brokers if MASTER_ID in each.broker_addrs]
    missing = [each.broker_name for each in brokers if MASTER_ID not in each.broker_addrs]
    step = "see why with `keelmq doctor`, or electMaster --dry-run"
    return addresses, [f"the name servers list no master of {name}; {step}" for name in missing]
