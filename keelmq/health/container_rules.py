"""Judges containers: brokers that could not start, processes that do not run. Pure."""

from collections.abc import Iterator
from shlex import quote

from keelmq.health.findings import Finding, failed
from keelmq.health.reach import Silent
from keelmq.health.snapshot import ClusterSnapshot
from keelmq.remoting.operations.container import BrokerState, ContainerStatus


def container_rules(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yields what is wrong with the containers that were named."""
    for address, answer in snapshot.containers.items():
        if isinstance(answer, Silent):
            step = "start mqbrokercontainer there: all its brokers are down"
            line = "mqbrokercontainer -c FILE"
            yield failed("broker.container", address, f"container: {answer}", step, line)
        else:
            yield from _one(address, answer)


def _one(address: str, status: ContainerStatus) -> Iterator[Finding]:
    down = {each.number for each in status.workers if not each.is_running}
    for worker in status.workers:
        if worker.number in down:
            text = f"process {worker.number} does not run: {worker.reason or 'it ended'}"
            step = "its brokers are down; restart it"
            line = f"keelmq container restart -c {address} {worker.number}"
            yield failed("broker.container", address, text, step, line)
    for broker in status.brokers:
        if broker.state is BrokerState.QUARANTINED and broker.worker not in down:
            text = f"{broker.canonical_name} is quarantined: {broker.reason}"
            step = "remove the cause, then add it again"
            line = f"mqadmin addBroker -c {address} -b {quote(broker.config_path or 'FILE')}"
            yield failed("broker.container", address, text, step, line)
