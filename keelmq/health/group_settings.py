"""Settings that the brokers of one group must have in common. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from keelmq.health.findings import Finding, failed, ok, warning
from keelmq.remoting.address_text import split_list

MUST_BE_EQUAL = {
    "brokerClusterName": "a group belongs to one cluster: another cluster's group needs another brokerName",
    "enableControllerMode": "the controllers lead all replicas of a group, or the group has one broker only",
    "mappedFileSizeCommitLog": "replicas copy the CommitLog byte for byte, file ends included",
}
"""Keys of the brokers of one group whose difference breaks replication or elections."""

SHOULD_BE_EQUAL = (
    "allAckInSyncStateSet",
    "autoCreateTopicEnable",
    "brokerHeartbeatInterval",
    "brokerPermission",
    "checkSyncStateSetPeriod",
    "controllerHeartBeatTimeoutMills",
    "defaultTopicQueueNums",
    "flushDiskType",
    "haMaxTimeSlaveNotCatchup",
    "inSyncReplicas",
    "isolationLeaseEnable",
    "maxMessageSize",
    "messageDelayLevel",
    "minInSyncReplicas",
    "slaveTimeout",
    "timerPrecisionMs",
)
"""Keys whose difference makes the group's guarantees depend on which replica is master."""

SAME_ADDRESSES = ("controllerAddr", "namesrvAddr")


def group_rules(
    check: str,
    group: str,
    replicas: Mapping[str, Mapping[str, str]],
    command: Callable[[str, str], str] = lambda key, value: "",
) -> Iterator[Finding]:
    """Yields what differs. `replicas`: file or address -> its settings; a missing key is not compared.
    `command`: (key, the most frequent value) -> the line that makes it the same, "": there is none."""
    if len(replicas) < 2:
        return
    found = []

    def line(key: str) -> str:
        values = [settings[key] for settings in replicas.values() if key in settings]
        return command(key, max(values, key=values.count))

    for key, why in MUST_BE_EQUAL.items():
        if differs := _differing(key, replicas, str.strip):
            found.append(
                failed(check, group, f"{key} differs: {differs}", f"make it the same: {why}", line(key))
            )
    for key in SHOULD_BE_EQUAL:
        if differs := _differing(key, replicas, str.strip):
            step = "make it the same everywhere: after a fail-over another replica's value applies"
            found.append(warning(check, group, f"{key} differs: {differs}", step, line(key)))
    for key in SAME_ADDRESSES:
        if differs := _differing(key, replicas, lambda text: ";".join(sorted(split_list(text)))):
            step = "give every replica the whole list"
            found.append(warning(check, group, f"{key} differs: {differs}", step, line(key)))
    yield from found or [ok(check, group, f"{len(replicas)} replicas have the same settings")]


def _differing(key: str, replicas: Mapping[str, Mapping[str, str]], normal: Callable[[str], str]) -> str:
    """Returns each value with the names that have it; "" if all agree."""
    values: dict[str, list[str]] = defaultdict(list)
    for name, settings in replicas.items():
        if key in settings:
            values[normal(settings[key])].append(name)
    if len(values) < 2:
        return ""
    return ", ".join(f"{value or 'empty'} ({', '.join(names)})" for value, names in sorted(values.items()))
