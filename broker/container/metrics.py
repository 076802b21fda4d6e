"""The metrics page of a container: its own metrics, and those of its brokers with one header for each name.

Imported only when HTTP is enabled: it needs prometheus_client.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from broker.container.core.identity import NOT_APPLIED
from keelmq.remoting.operations.container import BrokerState, ContainerStatus
from keelmq.remoting.peer_limits import PeerLimits
from keelmq.remoting.servers.metrics import (
    Metric,
    Scrape,
    Table,
    add_limits,
    add_loop,
    add_unsent,
    limit_metrics,
    loop_metrics,
    unsent_metrics,
)
from keelmq.remoting.write_buffers import WriteBuffers
from keelmq.runtime import loop_watch

OF_BROKER = "broker_name"
"""A family whose samples lack this label is about a process."""
WORKER = "worker"

TABLE = Table(
    "mqbrokercontainer",
    ("node_type", "node_id"),
    (
        Metric("rocketmq_container_brokers", "brokers of this container, by their state", ("state",)),
        Metric(
            "rocketmq_container_quarantined",
            "1 for each broker that could not start or failed; `keelmq container list` has the reason",
            ("cluster", "broker_name", "broker_id", "config_path"),
        ),
        Metric("rocketmq_container_worker_up", "1 while the process runs, else 0", (WORKER,)),
        Metric("rocketmq_container_worker_restarts_total", "since the container started", (WORKER,)),
        Metric("rocketmq_container_worker_cpu_seconds_total", "CPU time of the process", (WORKER,)),
        Metric("rocketmq_container_worker_resident_bytes", "memory of the process", (WORKER,)),
        *unsent_metrics("rocketmq_container"),
        *limit_metrics("rocketmq_container"),
        *loop_metrics("rocketmq_container"),
    ),
)


def scrape(status: ContainerStatus, write_buffers: WriteBuffers, limits: PeerLimits) -> Scrape:
    """Returns the container's own values. write_buffers, limits: of its own process."""
    made = Scrape(TABLE, ("container", status.address))
    states = Counter(broker.state for broker in status.brokers)
    for state in BrokerState:
        made.add("rocketmq_container_brokers", states[state], state)
    for broker in status.brokers:
        if broker.state is BrokerState.QUARANTINED:
            broker_id = "" if broker.broker_id == NOT_APPLIED else str(broker.broker_id)
            names = broker.broker_cluster_name, broker.broker_name, broker_id
            made.add("rocketmq_container_quarantined", 1, *names, broker.config_path)
    for worker in status.workers:
        name = str(worker.number)
        made.add("rocketmq_container_worker_up", worker.is_running, name)
        made.add("rocketmq_container_worker_restarts_total", worker.restarts, name)
        made.add("rocketmq_container_worker_cpu_seconds_total", worker.cpu_millis / 1_000, name)
        made.add("rocketmq_container_worker_resident_bytes", worker.resident_bytes, name)
    add_unsent(made, "rocketmq_container", write_buffers)
    add_limits(made, "rocketmq_container", limits)
    add_loop(made, "rocketmq_container", loop_watch.running())
    return made


def merged(by_worker: Sequence[tuple[int | None, Iterable[Family]]]) -> Iterator[Family]:
    """Yields each family once, with the samples of all processes. Families about a process, not about a
    broker, get the label `worker`, unless the number is None."""
    found: dict[str, Family] = {}
    for number, families in by_worker:
        for family in families:
            into = found.get(family.name)
            if into is None:
                into = found[family.name] = Family(family.name, family.documentation, family.type)
            into.samples += [_labelled(sample, number) for sample in family.samples]
    yield from found.values()


def _labelled(sample: Sample, number: int | None) -> Sample:
    if number is None or OF_BROKER in sample.labels:
        return sample
    return sample._replace(labels={WORKER: str(number), **sample.labels})
