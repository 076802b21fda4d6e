"""Groups of masters and slaves without controllers: they have no elections, so the files determine the master
and the slaves' ids. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from broker.config.broker_config import BrokerConfig
from keelmq.health.findings import Finding, failed, ok, plural, warning


def plain_rules(group: str, brokers: Mapping[str, BrokerConfig]) -> Iterator[Finding]:
    """Yields what is wrong with the ids and roles of a group's files. brokers: file -> settings, all of one
    brokerName; those in controller mode are left out, since controllers give the ids there."""
    clusters: dict[str, dict[str, BrokerConfig]] = defaultdict(dict)
    for name, broker in brokers.items():
        if not broker.enable_controller_mode:
            clusters[broker.broker_cluster_name][name] = broker
    for cluster, plain in sorted(clusters.items()):
        yield from _of_one_group(f"{cluster}:{group}", plain)


def _of_one_group(group: str, plain: Mapping[str, BrokerConfig]) -> Iterator[Finding]:
    masters = [name for name, broker in plain.items() if not broker.is_plain_slave]
    slaves = {name: broker.broker_id for name, broker in plain.items() if broker.is_plain_slave}
    found = []
    if len(masters) > 1:
        text = f"{len(masters)} masters have this brokerName: {', '.join(masters)}"
        step = (
            "give all but one another brokerName: name servers would show clients now one, now the other. "
            "One without messages can become a slave (brokerRole=SLAVE and a brokerId of its own above 0); "
            "the log of another one would be replaced by its master's"
        )
        found.append(failed("config.group", group, text, step))
    by_id: dict[int, list[str]] = defaultdict(list)
    for name, broker_id in slaves.items():
        by_id[broker_id].append(name)
    for broker_id, names in sorted(by_id.items()):
        if len(names) > 1:
            text = f"{len(names)} slaves have brokerId {broker_id}: {', '.join(names)}"
            step = f"give each a brokerId of its own; {_free(by_id)} is free"
            found.append(failed("config.group", group, text, step))
    if slaves and not masters:
        text = f"no file configures its master, only slaves: {', '.join(slaves)}"
        step = (
            "give the master's file with -c as well; if there is none, write one without brokerRole=SLAVE: a "
            "slave without controllers never becomes master"
        )
        found.append(warning("config.group", group, text, step))
    if slaves and not found:
        yield ok("config.group", group, f"one master, {plural(len(slaves), 'slave')} with ids of their own")
    yield from found


def _free(used: Mapping[int, Sequence[str]]) -> int:
    return next(number for number in range(1, len(used) + 2) if number not in used)
