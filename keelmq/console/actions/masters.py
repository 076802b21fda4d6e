"""The masters of a cluster, which an action changes, and the results of several servers."""

import msgspec

from keelmq.client.admin import AdminError, ServerResult
from keelmq.console.actions.action import Acting, ServerOutcome, outcome_of
from keelmq.console.data.cluster_context import Missing, masters_in
from keelmq.remoting.operations.route import BrokerData
from keelmq.remoting.servers.http_answers import NotFound


class Masters(msgspec.Struct, frozen=True):
    """`without`: broker names that have no master now; nothing is done there."""

    addresses: list[str]
    brokers: list[BrokerData]
    without: list[str]

    @property
    def warnings(self) -> list[str]:
        """What is not reached."""
        return [f"{each} has no master: nothing is done there; repeat it later" for each in self.without]

    @property
    def replicas(self) -> list[str]:
        """Every replica of the cluster, masters first."""
        every = [
            (broker_id, address) for each in self.brokers for broker_id, address in each.broker_addrs.items()
        ]
        return [address for _, address in sorted(every)]


async def masters(acting: Acting, cluster: str) -> Masters:
    """Returns the masters of a cluster. Raises NotFound: no such cluster, or none has a master."""
    info = await acting.admin.name_servers.cluster_info(acting.name_server_list)
    try:
        addresses, without = masters_in(info, cluster)
    except Missing as error:
        raise NotFound(str(error)) from None
    if not addresses:
        raise NotFound(f"no broker of cluster {cluster} has a master now")
    names = sorted(info.cluster_addr_table[cluster])
    brokers = [info.broker_addr_table[name] for name in names if name in info.broker_addr_table]
    return Masters(addresses, brokers, without)


async def outcomes(result: ServerResult[None]) -> ServerOutcome:
    """Returns the outcome of one server's request."""

    async def said() -> None:
        if isinstance(result.error, AdminError):
            raise result.error

    return await outcome_of(result.address, said())
