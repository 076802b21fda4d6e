"""Judges what masters report about consumer groups (28): members that subscribe differently, topics that are
no longer consumed. RocketMQ's brokers do not report it. Pure."""

from collections.abc import Iterator, Mapping

from keelmq.health import commands
from keelmq.health.findings import Finding, warning
from keelmq.health.snapshot import ClusterSnapshot, RunningBroker
from keelmq.health.status import GroupStatus


def consumer_rules(snapshot: ClusterSnapshot, statuses: Mapping[str, GroupStatus]) -> Iterator[Finding]:
    """Yields a finding for each consumer group, and for each of its topics, whichever masters name it."""
    masters = [snapshot.brokers.get(each.master_address) for each in statuses.values()]
    running = [each for each in masters if isinstance(each, RunningBroker)]
    for group in _named(running, "subscriptionsDiffer"):
        text = (
            "its members subscribe differently: queues of a topic are shared out to members that do not "
            "subscribe to it as well, and messages are filtered with the expression of one of them"
        )
        step = "give all members the same topics and expressions; this command shows what each subscribes to"
        yield warning(
            "consumers.agree",
            f"consumer group {group}",
            text,
            step,
            commands.consumer_status(snapshot, group),
        )
    for name in _named(running, "topicsNotConsumed"):
        group, _, topic = name.partition("@")
        text = f"topic {topic} has messages for it, but every member has unsubscribed"
        step = (
            "subscribe to it again, or if the group is not to get them, skip them; this command shows how "
            "many there are"
        )
        line = commands.consumer_progress(snapshot, group)
        yield warning("consumers.agree", f"consumer group {group}", text, step, line)


def _named(brokers: list[RunningBroker], key: str) -> list[str]:
    return sorted({name for each in brokers for name in each.info.get(key, "").split(",") if name})
