"""The line of each next step, ready to paste: our programs' commands with this cluster's addresses. Pure.

FILE is a placeholder for a configuration file on another machine: no server reports its path.
"""

import shlex
from collections.abc import Iterable, Mapping

from keelmq.health.reach import Silent
from keelmq.health.snapshot import ClusterSnapshot
from keelmq.remoting.operations.controller import ControllerMetadata

WATCH_S = 2
AT_RUN_TIME = frozenset(
    {
        "autoCreateTopicEnable",
        "brokerPermission",
        "defaultTopicQueueNums",
        "maxMessageSize",
        "minInSyncReplicas",
    }
)
"""The settings that brokers of a group must have in common and that a request can change; a test compares
them with the broker's own list."""
START_BROKER = "mqbroker -c FILE"
START_NAME_SERVER = "mqnamesrv -c FILE"
ASK_NAME_SERVER = "keelmq status -n HOST:9876"
START_CONTROLLER = "mqcontroller -c FILE"


def joined(addresses: Iterable[str]) -> str:
    """Returns "host:port;host:port", quoted for a shell."""
    return shlex.quote(";".join(dict.fromkeys(addresses)))


def name_servers(snapshot: ClusterSnapshot) -> str:
    """Returns -n with every name server of the snapshot."""
    return f"-n {joined(snapshot.name_servers)}" if snapshot.name_servers else ""


def controllers(snapshot: ClusterSnapshot) -> str:
    """Returns -a with the controllers that answer; if none does, with all."""
    up = [at for at, view in snapshot.controllers.items() if isinstance(view, ControllerMetadata)]
    return f"-a {joined(up or snapshot.controllers)}" if snapshot.controllers else ""


def watch(snapshot: ClusterSnapshot, group: str = "") -> str:
    """Returns the command that shows whether a problem goes away on its own."""
    where = name_servers(snapshot) or controllers(snapshot)
    only = f" --group {shlex.quote(group)}" if group else ""
    return f"keelmq status {where}{only} --watch {WATCH_S}"


def sign(snapshot: ClusterSnapshot) -> str:
    """Returns the same question with credentials."""
    return f"keelmq status {name_servers(snapshot) or controllers(snapshot)} --credentials FILE"


def with_tls(snapshot: ClusterSnapshot) -> str:
    """Returns the same question with TLS."""
    return f"keelmq --tls-ca FILE status {name_servers(snapshot) or controllers(snapshot)}"


def start_broker(answer: object, snapshot: ClusterSnapshot, group: str = "") -> str:
    """Returns the command for a broker that does not answer: nothing listens there, or it may hang."""
    if isinstance(answer, Silent) and answer.is_refusal:
        return sign(snapshot)
    if isinstance(answer, Silent) and answer.was_plain:
        return with_tls(snapshot)
    if isinstance(answer, Silent) and answer.hangs:
        return watch(snapshot, group)
    return START_BROKER


def start_with(key: str, addresses: Iterable[str]) -> str:
    """Returns the start of a broker with another address list; the file is to be changed as well."""
    return f"{START_BROKER} --set {shlex.quote(key + '=' + ';'.join(addresses))}"


def update_broker(address: str, key: str, value: str) -> str:
    """Returns the change of a setting of one running broker."""
    return f"mqadmin updateBrokerConfig -b {address} -k {key} -v {shlex.quote(value)}"


def same_setting(replicas: Mapping[str, Mapping[str, str]], key: str, value: str) -> str:
    """Returns the change of a setting at the brokers (address -> settings) that have another value, or of one
    that is read at the start, the start with it."""
    other = [at for at, settings in replicas.items() if settings.get(key, value) != value]
    if key in AT_RUN_TIME:
        return f"mqadmin updateBrokerConfig -b {joined(other)} -k {key} -v {shlex.quote(value)}"
    return f"{START_BROKER} --set {shlex.quote(f'{key}={value}')}"


def update_controllers(snapshot: ClusterSnapshot, key: str, value: str) -> str:
    """Returns the change of a setting of all controllers."""
    return f"mqadmin updateControllerConfig {controllers(snapshot)} -k {key} -v {shlex.quote(value)}"


def clean_replica(snapshot: ClusterSnapshot, group: str, cluster: str, broker_id: int) -> str:
    """Returns the command that makes the controllers forget a replica."""
    of = f"-bn {shlex.quote(group)} -c {shlex.quote(cluster or 'CLUSTER')}"
    return f"mqadmin cleanBrokerMetadata {controllers(snapshot)} {of} -b {broker_id}"


def verify(snapshot: ClusterSnapshot, group: str = "") -> str:
    """Returns the command that finds which copy of a log is right. It changes nothing. group: the only one to
    look at."""
    only = f" --group {shlex.quote(group)}" if group else ""
    return f"keelmq verify {name_servers(snapshot) or '-n HOST:9876'}{only}"


def explain_election(snapshot: ClusterSnapshot, group: str, cluster: str) -> str:
    """Returns the command that shows which replicas could be elected, and why not the others."""
    of = f"-bn {shlex.quote(group)} -c {shlex.quote(cluster or 'CLUSTER')}"
    return f"mqadmin electMaster {controllers(snapshot)} {of} --dry-run"


def broker_status(address: str) -> str:
    """Returns the command that prints the numbers of one broker."""
    return f"mqadmin brokerStatus -b {address}"


def watch_replication(master: str) -> str:
    """Returns the command that shows how the replicas of a master catch up."""
    return f"mqadmin haStatus -b {master} --watch {WATCH_S}"


def consumer_status(snapshot: ClusterSnapshot, group: str) -> str:
    """Returns the command that shows subscriptions and queues of each member of a consumer group."""
    return f"mqadmin consumerStatus {name_servers(snapshot) or '-n HOST:9876'} -g {shlex.quote(group)}"


def consumer_progress(snapshot: ClusterSnapshot, group: str) -> str:
    """Returns the command that shows how far a consumer group is."""
    return f"mqadmin consumerProgress {name_servers(snapshot) or '-n HOST:9876'} -g {shlex.quote(group)}"
