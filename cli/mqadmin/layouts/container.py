"""Texts about broker containers: their brokers and processes, a plan, and changes in progress."""

from collections.abc import Iterator, Sequence

from keelmq.remoting.operations.container import (
    BrokerState,
    ContainerPlan,
    ContainerStatus,
    InnerBroker,
    Worker,
)

_BROKER = "%-32s  %-7s  %-12s  %-22s  %-18s  %-7s  %-26s  %s"
_BROKER_TITLES = (
    "#Broker",
    "#Role",
    "#State",
    "#Address",
    "#Fast,HA,HTTP",
    "#Worker",
    "#Store",
    "#Reason",
)
_WORKER = "%-8s  %-8s  %-8s  %-9s  %-10s  %-10s  %s"
_WORKER_TITLES = ("#Worker", "#PID", "#Runs", "#Restarts", "#CPU", "#Memory", "#Reason")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def listing(brokers: Sequence[InnerBroker]) -> str:
    """keelmq container list: a line for each broker."""
    rows = [
        (
            each.canonical_name,
            each.role,
            each.state,
            each.address or "-",
            ",".join(
                address.rpartition(":")[2] or "-"
                for address in (each.fast_address, each.ha_address, each.http_address)
            ),
            each.worker,
            store_text(each),
            _one_line(each.reason) or "-",
        )
        for each in brokers
    ]
    return "\n".join(_BROKER % row for row in (_BROKER_TITLES, *rows))


def status(found: ContainerStatus, brokers: Sequence[InnerBroker]) -> str:
    """keelmq container status: the processes, and everything about these brokers."""
    parts = [f"#Container\t{found.address}"]
    if found.workers:
        rows = [_worker(each) for each in found.workers]
        parts.append("\n".join(_WORKER % row for row in (_WORKER_TITLES, *rows)))
    parts += ["\n".join(details(each)) for each in brokers]
    return "\n\n".join(parts)


def details(broker: InnerBroker) -> Iterator[str]:
    """Yields a line for each property of one broker."""
    identity = f"{broker.broker_cluster_name}:{broker.broker_name}:{broker.broker_id}"
    state = f"{broker.state}{', ready' if broker.is_ready else ''}"
    values: dict[str, object] = {
        "Broker": broker.canonical_name,
        "Identity": identity,
        "State": state,
        "Reason": _one_line(broker.reason),
        "Role": f"{broker.role}, masterEpoch {broker.master_epoch}",
        "Address": broker.address,
        "FastAddress": broker.fast_address,
        "HaAddress": broker.ha_address,
        "HttpAddress": broker.http_address,
        "Config": broker.config_path,
        "StorePath": broker.store_path,
        "Store": store_text(broker),
        "Worker": broker.worker,
        "Connections": broker.connections,
    }
    yield from (f"#{name}\t{value if value != '' else '-'}" for name, value in values.items())


def plan(found: ContainerPlan) -> str:
    """keelmq container plan: each file with its problems and notes."""
    lines = []
    for each in found.brokers:
        verdict = "refused" if each.problems else "ok"
        lines.append(f"{each.config_path}: {verdict}")
        if each.canonical_name:
            ports = ",".join(map(str, each.ports)) or "none"
            lines.append(f"  broker {each.canonical_name}, ports {ports}, worker {each.worker}")
            lines.append(f"  store {each.store_path or '-'}")
        lines += [f"  PROBLEM {_one_line(problem)}" for problem in each.problems]
        lines += [f"  note: {_one_line(note)}" for note in each.notes]
    return "\n".join(lines)


def changing(found: ContainerStatus) -> str:
    """The changes in progress in the container, on one line; "": none."""
    states = (BrokerState.STARTING, BrokerState.STOPPING)
    return ", ".join(
        f"{each.canonical_name} is {each.state}{f' ({_one_line(each.reason)})' if each.reason else ''}"
        for each in found.brokers
        if each.state in states
    )


def store_text(broker: InnerBroker) -> str:
    """Bytes of its store, and of its quota if it has one."""
    used = bytes_text(broker.store_bytes)
    if not broker.quota_bytes:
        return used
    return f"{used} of {bytes_text(broker.quota_bytes)} ({broker.store_bytes / broker.quota_bytes:.0%})"


def bytes_text(count: int) -> str:
    """1536 -> "1.5 KiB"."""
    value, unit = float(count), 0
    while value >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{count} B"


def _worker(worker: Worker) -> tuple[object, ...]:
    return (
        worker.number,
        worker.pid or "-",
        "yes" if worker.is_running else "no",
        worker.restarts,
        f"{worker.cpu_millis / 1000:.1f} s",
        bytes_text(worker.resident_bytes),
        _one_line(worker.reason) or "-",
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
