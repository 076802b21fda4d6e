"""Routes to groups of masters and slaves without controllers. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from keelmq.health.findings import Finding, failed
from keelmq.remoting.codes import MASTER_ID


def plain_routes(group: str, shown: Mapping[str, Mapping[int, str]]) -> Iterator[Finding]:
    """Yields the faults of the ids under which the brokers of a group registered. shown: name server ->
    {brokerId: address}. Two brokers with one id replace each other in a route, so one name server shows one
    of them, and another name server the other."""
    at: dict[int, set[str]] = defaultdict(set)
    for addresses in shown.values():
        for broker_id, address in addresses.items():
            at[broker_id].add(address)
    for broker_id, those in sorted(at.items()):
        if len(those) > 1:
            listed = ", ".join(sorted(those))
            if broker_id == MASTER_ID:
                text = f"{len(those)} masters of this brokerName: {listed}"
                step = (
                    "give one of them another brokerName: both may have messages that the other one lacks; "
                    "only one without messages can become a slave (brokerRole=SLAVE and a brokerId), since "
                    "its log is replaced by its master's"
                )
            else:
                text = f"{len(those)} brokers have brokerId {broker_id}: {listed}"
                step = "stop one of them, and give it a brokerId of its own"
            step += "; the doctor compares the files"
            yield failed("group.master", group, text, step, "keelmq doctor -c FILE -c FILE")
    slaves = {number: min(those) for number, those in at.items() if number != MASTER_ID}
    if slaves and MASTER_ID not in at:
        running = ", ".join(f"{number} at {address}" for number, address in sorted(slaves.items()))
        text = f"no master, only slaves without controllers: {running}; clients can read, but not send"
        step = "start the master again (mqbroker -c FILE, or its container): its slaves never become master"
        yield failed("group.master", group, text, step, "mqbroker -c FILE")
