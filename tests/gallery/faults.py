"""The staged faults: how each is put into a healthy cluster, and what `keelmq status` must say and advise.

docs/status.md has a table of them, which `python -m tests.gallery.table` writes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from keelmq.health.reach import Silent
from keelmq.health.snapshot import ClusterSnapshot
from keelmq.health.status import Verdict
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.broker import HaRuntimeInfo
from keelmq.remoting.operations.container import BrokerState
from keelmq.remoting.operations.controller import ReplicaIdentity
from tests.gallery.cluster import (
    BROKERS,
    CONTAINER,
    CONTROLLERS,
    HTTP,
    NAME,
    NS,
    PLAIN,
    PLAIN_NAME,
    ROUTES,
    broker,
    container,
    controller,
    heard,
    inner,
    links,
    name_server,
    ready,
    replicas,
)

REFUSED, HUNG = Silent("connection refused"), Silent("no answer in 1200 ms")
NOT_SUPPORTED = Silent(
    "REQUEST_CODE_NOT_SUPPORTED, request type not supported", ResponseCode.REQUEST_CODE_NOT_SUPPORTED
)
WATCH = f"keelmq status -n '{';'.join(NS)}' --watch 2"
WATCH_GROUP = f"keelmq status -n '{';'.join(NS)}' --group {NAME} --watch 2"
AT_ALL = f"-a '{';'.join(CONTROLLERS)}'"
OF_GROUP = f"-bn {NAME} -c C"


@dataclass(frozen=True)
class Fault:
    """words: in the problem's text. what: for the table."""

    what: str
    put: Callable[[ClusterSnapshot], None]
    level: Verdict
    check: str
    subject: str
    words: str
    command: str


FAULTS: dict[str, Fault] = {}


def fault(
    what: str, level: str, check: str, subject: str, words: str, command: str
) -> Callable[[Callable[[ClusterSnapshot], None]], Callable[[ClusterSnapshot], None]]:
    """Registers a fault under the name of the function that puts it into a snapshot."""

    def register(put: Callable[[ClusterSnapshot], None]) -> Callable[[ClusterSnapshot], None]:
        FAULTS[put.__name__] = Fault(what, put, Verdict(level), check, subject, words, command)
        return put

    return register


@fault(
    "a majority of the controllers is down",
    "failed",
    "controller.leader",
    "controllers",
    "only 1 of 3 answer",
    "mqnamesrv -c FILE",
)
def majority_lost(seen: ClusterSnapshot) -> None:
    for number in (1, 2):
        seen.controllers[CONTROLLERS[number]] = REFUSED
        seen.name_servers[NS[number]] = REFUSED


@fault(
    "no controller is left, and the master does not answer",
    "failed",
    "group.master",
    NAME,
    "master 10.0.1.1:10911 does not answer, and no controller answers for the group",
    WATCH_GROUP,
)
def controllers_and_master_lost(seen: ClusterSnapshot) -> None:
    seen.controllers = dict.fromkeys(CONTROLLERS, REFUSED)
    seen.sets, seen.groups, seen.health = None, {}, {}
    seen.brokers[BROKERS[0]] = REFUSED


@fault(
    "no broker runs: a total outage, also if the controllers are not known (HTTP is off, or elsewhere)",
    "failed",
    "namesrv.reachable",
    ", ".join(NS),
    "no broker is registered, here or at another one",
    "mqbroker -c FILE",
)
def outage(seen: ClusterSnapshot) -> None:
    seen.name_servers = {at: name_server({}) for at in NS}
    seen.controllers, seen.brokers, seen.health = {}, {}, {}
    seen.sets, seen.groups, seen.containers = None, {}, {}


@fault(
    "one controller is down",
    "failed",
    "controller.reachable",
    CONTROLLERS[2],
    "connection refused",
    "mqcontroller -c FILE",
)
def controller_down(seen: ClusterSnapshot) -> None:
    seen.controllers[CONTROLLERS[2]] = REFUSED


@fault(
    "all controllers run, none leads", "failed", "controller.leader", "controllers", "3 of 3 answer", WATCH
)
def nobody_leads(seen: ClusterSnapshot) -> None:
    seen.controllers = {at: controller(number, leader=None) for number, at in enumerate(CONTROLLERS)}


@fault(
    "the master was killed, and no replica is in sync with it",
    "failed",
    "group.master",
    NAME,
    "master 1 at 10.0.1.1:10911 is dead",
    f"mqadmin electMaster {AT_ALL} {OF_GROUP} --dry-run",
)
def no_candidate(seen: ClusterSnapshot) -> None:
    seen.sets = {NAME: replicas(dead=(1,), out=(2, 3))}
    seen.brokers[BROKERS[0]] = REFUSED


@fault(
    "the master hangs (SIGSTOP, a stalled disk)",
    "failed",
    "broker.reachable",
    BROKERS[0],
    "no answer in 1200 ms",
    WATCH,
)
def master_hangs(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[0]] = HUNG


@fault(
    "a replica is down",
    "warning",
    "group.in-sync",
    NAME,
    "replica 3 at 10.0.1.3:10911 is not alive",
    "mqbroker -c FILE",
)
def replica_down(seen: ClusterSnapshot) -> None:
    seen.sets = {NAME: replicas(dead=(3,), out=(3,))}
    seen.brokers[BROKERS[2]] = REFUSED


@fault(
    "a replica lags behind its master",
    "warning",
    "group.in-sync",
    NAME,
    "lags: 73,400,320 bytes for 9 s",
    f"mqadmin haStatus -b {BROKERS[0]} --watch 2",
)
def replica_lags(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[0]] = broker(0, ha=links(lag_bytes=73_400_320, lag_ms=9_000))


@fault(
    "a broker does not dispatch what it has copied",
    "warning",
    "group.in-sync",
    NAME,
    "cannot read the last 33,554,432 confirmed bytes",
    f"mqadmin brokerStatus -b {BROKERS[2]}",
)
def dispatch_behind(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[2]] = broker(2, dispatchBehindBytes=str(32 << 20))


@fault(
    "a replica catches up, out of the SyncStateSet",
    "warning",
    "group.in-sync",
    NAME,
    "is alive, but not in sync",
    f"mqadmin haStatus -b {BROKERS[0]} --watch 2",
)
def replica_out_of_sync(seen: ClusterSnapshot) -> None:
    seen.sets = {NAME: replicas(out=(3,))}


@fault(
    "fewer replicas in sync than minInSyncReplicas: sends are refused",
    "failed",
    "group.in-sync",
    NAME,
    "1 of 3 replicas in sync, 2 needed",
    "mqbroker -c FILE",
)
def below_minimum(seen: ClusterSnapshot) -> None:
    seen.sets = {NAME: replicas(dead=(2, 3), out=(2, 3))}


@fault(
    "one replica is down and another copies nothing: sends are refused",
    "failed",
    "group.in-sync",
    NAME,
    "1 of 3 replicas in sync, 2 needed",
    "mqbroker -c FILE",
)
def down_and_stopped(seen: ClusterSnapshot) -> None:
    seen.sets = {NAME: replicas(dead=(3,), out=(2, 3))}
    seen.brokers[BROKERS[1]] = broker(1, ha=HaRuntimeInfo(master=False, fault="no epoch in common"))


@fault(
    "members of a consumer group subscribe differently, as after an unsubscribe in one of them",
    "warning",
    "consumers.agree",
    "consumer group billing",
    "its members subscribe differently",
    f"mqadmin consumerStatus -n '{';'.join(NS)}' -g billing",
)
def subscriptions_differ(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[0]] = broker(0, subscriptionsDiffer="billing")


@fault(
    "every member of a consumer group has unsubscribed from a topic that has messages for it",
    "warning",
    "consumers.agree",
    "consumer group billing",
    "topic orders has messages for it, but every member has unsubscribed",
    f"mqadmin consumerProgress -n '{';'.join(NS)}' -g billing",
)
def nobody_consumes(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[0]] = broker(0, topicsNotConsumed="billing@orders")


@fault(
    "the disk of a store is full",
    "failed",
    "broker.disk",
    BROKERS[0],
    "96% full",
    f"mqadmin brokerStatus -b {BROKERS[0]}",
)
def disk_full(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[0]] = broker(0, commitLogDiskRatio="0.9600", fileReservedTime="72")


@fault(
    "the disk of a store is nearly full",
    "warning",
    "broker.disk",
    BROKERS[1],
    "85% full",
    f"mqadmin updateBrokerConfig -b {BROKERS[1]} -k fileReservedTime -v 36",
)
def disk_nearly_full(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[1]] = broker(1, commitLogDiskRatio="0.8500", fileReservedTime="72")


@fault(
    "records of a broker's log are damaged",
    "failed",
    "broker.damage",
    BROKERS[1],
    "209 bytes of the log are damaged",
    f"keelmq verify -n '{';'.join(NS)}' --group {NAME}",
)
def log_damaged(seen: ClusterSnapshot) -> None:
    text = "209 bytes of the log are damaged: 1806..2015: the checksum of the record does not match"
    seen.brokers[BROKERS[1]] = broker(1, logDamage=text)


@fault(
    "name servers show different masters",
    "failed",
    "namesrv.agree",
    NAME,
    "name servers disagree",
    WATCH_GROUP,
)
def name_servers_disagree(seen: ClusterSnapshot) -> None:
    shown = {0: BROKERS[1], 1: BROKERS[0], 3: BROKERS[2]}
    seen.name_servers[NS[1]] = name_server(ROUTES | {NAME: shown})


@fault(
    "a name server is down",
    "failed",
    "namesrv.reachable",
    NS[0],
    "connection refused",
    "mqnamesrv -c FILE",
)
def name_server_down(seen: ClusterSnapshot) -> None:
    seen.name_servers[NS[0]] = REFUSED


@fault(
    "a name server hangs, and the controller in its process",
    "failed",
    "namesrv.reachable",
    NS[2],
    "no answer",
    WATCH,
)
def name_server_hangs(seen: ClusterSnapshot) -> None:
    seen.name_servers[NS[2]] = seen.controllers[CONTROLLERS[2]] = HUNG


@fault(
    "a broker's namesrvAddr lacks a name server",
    "failed",
    "namesrv.agree",
    NAME,
    "name servers disagree",
    f"mqbroker -c FILE --set 'namesrvAddr={';'.join(NS)}'",
)
def missing_in_name_server(seen: ClusterSnapshot) -> None:
    seen.name_servers[NS[2]] = name_server(ROUTES | {NAME: {0: BROKERS[0], 3: BROKERS[2]}})
    seen.brokers[BROKERS[1]] = broker(1, namesrvAddr=";".join(NS[:2]))


@fault(
    "a broker's controllerAddr lacks a controller that was added",
    "warning",
    "broker.settings",
    BROKERS[1],
    "controllerAddr of this broker lacks 10.0.0.3:9878",
    f"mqbroker -c FILE --set 'controllerAddr={';'.join(CONTROLLERS)}'",
)
def controller_added(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[1]] = broker(1, controllerAddr=";".join(CONTROLLERS[:2]), haCatchUpThreads="2")


@fault(
    "controllerAddr of a broker of RocketMQ lacks a controller",
    "failed",
    "broker.settings",
    BROKERS[1],
    "controllerAddr of this broker lacks 10.0.0.3:9878",
    f"mqbroker -c FILE --set 'controllerAddr={';'.join(CONTROLLERS)}'",
)
def wrong_controllers(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[1]] = broker(1, controllerAddr=";".join(CONTROLLERS[:2]))


@fault("a machine's clock is off", "warning", "machine.clock", "10.0.1.1", "61.0 s ahead", "chronyc tracking")
def clocks_apart(seen: ClusterSnapshot) -> None:
    seen.clocks["10.0.1.1"] = [61_000]


@fault(
    "a replica was removed permanently, and the controllers still count it",
    "warning",
    "group.in-sync",
    NAME,
    "no heartbeat for 30 hours",
    f"mqadmin cleanBrokerMetadata {AT_ALL} {OF_GROUP} -b 3",
)
def removed_replica(seen: ClusterSnapshot) -> None:
    seen.sets = {NAME: replicas(dead=(3,), out=(3,))}
    seen.groups = heard(heartbeatAgeMs=30 * 3_600_000)
    del seen.brokers[BROKERS[2]]
    shown = {0: BROKERS[0], 2: BROKERS[1]}
    seen.name_servers = {at: name_server(ROUTES | {NAME: shown}) for at in NS}


@fault(
    "the disk of a replica was replaced: it runs again, under a new id",
    "warning",
    "group.in-sync",
    NAME,
    "replica 3 at 10.0.1.3:10911 is not alive: broker 4 runs at its address",
    f"mqadmin cleanBrokerMetadata {AT_ALL} {OF_GROUP} -b 3",
)
def replaced_disk(seen: ClusterSnapshot) -> None:
    new = ReplicaIdentity(broker_name=NAME, broker_id=4, broker_address=BROKERS[2], alive=True)
    old = replicas(dead=(3,), out=(3,))
    seen.sets = {NAME: old.model_copy(update={"in_sync_replicas": [*old.in_sync_replicas, new]})}
    shown = {0: BROKERS[0], 2: BROKERS[1], 4: BROKERS[2]}
    seen.name_servers = {at: name_server(ROUTES | {NAME: shown}) for at in NS}


@fault(
    "settings of replicas differ",
    "warning",
    "broker.settings",
    NAME,
    "minInSyncReplicas differs: 1 (10.0.1.3:10911), 2",
    f"mqadmin updateBrokerConfig -b {BROKERS[2]} -k minInSyncReplicas -v 2",
)
def settings_differ(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[2]] = broker(2, minInSyncReplicas="1")


@fault(
    "unclean elections are switched on",
    "warning",
    "controller.settings",
    ", ".join(CONTROLLERS),
    "a replica that lacks acknowledged messages may become master",
    f"mqadmin updateControllerConfig {AT_ALL} -k enableElectUncleanMaster -v false",
)
def unclean_elections(seen: ClusterSnapshot) -> None:
    seen.controller_settings = {at: {"enableElectUncleanMaster": "true"} for at in CONTROLLERS}


@fault(
    "a partitioned master does not know that it was replaced",
    "failed",
    "group.master",
    NAME,
    f"{BROKERS[1]} also acts as master",
    WATCH_GROUP,
)
def second_master(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[1]] = broker(1, ha=HaRuntimeInfo(master=True), notWritable="the lease is over")


@fault(
    "a fenced master refuses messages",
    "failed",
    "broker.writable",
    BROKERS[0],
    "accepts no messages: it hears no controller",
    WATCH_GROUP,
)
def master_fenced(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[0]] = broker(0, notWritable="it hears no controller")


@fault(
    "the disk of a master is full, and no replica in sync has room",
    "failed",
    "broker.writable",
    BROKERS[0],
    "accepts no messages: service not available now: the disk is full",
    f"mqadmin electMaster {AT_ALL} {OF_GROUP} --dry-run",
)
def master_full(seen: ClusterSnapshot) -> None:
    refusal = "service not available now: the disk is full: above diskSpaceWarningLevelRatio"
    seen.brokers[BROKERS[0]] = broker(0, notWritable=refusal)


@fault(
    "a slave copies nothing, because its disk takes no writes",
    "failed",
    "group.in-sync",
    NAME,
    "copies nothing: cannot write here: ",
    f"mqadmin brokerStatus -b {BROKERS[1]}",
)
def slave_disk_failed(seen: ClusterSnapshot) -> None:
    stopped = HaRuntimeInfo(
        master=False, fault="cannot write here: 00000000 could not be synced: Input/output error"
    )
    seen.brokers[BROKERS[1]] = replace(broker(1), ha=stopped)


@fault(
    "the disk of a slave is read-only, or a sync of it failed",
    "failed",
    "broker.disk",
    BROKERS[1],
    "the disk takes no writes: 00000000 could not be synced: Read-only file system",
    f"mqadmin brokerStatus -b {BROKERS[1]}",
)
def slave_read_only(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[1]] = broker(1, syncFault="00000000 could not be synced: Read-only file system")
    seen.sets = {NAME: replicas(dead=(2,), out=(2,))}


@fault(
    "the disk of a master is read-only, and no other replica is in sync",
    "failed",
    "group.master",
    NAME,
    "master 1 at 10.0.1.1:10911 is dead",
    f"mqadmin electMaster {AT_ALL} {OF_GROUP} --dry-run",
)
def master_read_only(seen: ClusterSnapshot) -> None:
    text = "00000000 could not be synced: Read-only file system"
    refusal = f"service not available now: {text}"
    seen.brokers[BROKERS[0]] = broker(0, syncFault=text, notWritable=refusal)
    seen.sets = {NAME: replicas(dead=(1,), out=(2, 3))}


@fault(
    "two masters without controllers have one brokerName",
    "failed",
    "group.master",
    PLAIN_NAME,
    "2 masters of this brokerName",
    "keelmq doctor -c FILE -c FILE",
)
def two_plain_masters(seen: ClusterSnapshot) -> None:
    seen.name_servers[NS[1]] = name_server(ROUTES | {PLAIN_NAME: {0: PLAIN[1]}})


@fault(
    "slaves without controllers lost their master",
    "failed",
    "group.master",
    PLAIN_NAME,
    "no master, only slaves without controllers",
    "mqbroker -c FILE",
)
def plain_slave_alone(seen: ClusterSnapshot) -> None:
    del seen.brokers[PLAIN[0]]
    seen.name_servers = {at: name_server(ROUTES | {PLAIN_NAME: {1: PLAIN[1]}}) for at in NS}


@fault(
    "a broker of a container is quarantined",
    "failed",
    "broker.container",
    CONTAINER,
    "is quarantined: its port is in use",
    f"mqadmin addBroker -c {CONTAINER} -b /etc/keelmq/broker-c.conf",
)
def quarantined(seen: ClusterSnapshot) -> None:
    seen.containers[CONTAINER] = container(inner(BrokerState.QUARANTINED, "its port is in use"))


@fault(
    "a process of a container does not run",
    "failed",
    "broker.container",
    CONTAINER,
    "process 1 does not run: killed",
    f"keelmq container restart -c {CONTAINER} 1",
)
def worker_down(seen: ClusterSnapshot) -> None:
    seen.containers[CONTAINER] = container(is_running=False)


@fault(
    "a controller cannot write its telemetry",
    "warning",
    "controller.raft",
    CONTROLLERS[1],
    "telemetry: no space left",
    "mqnamesrv -c FILE",
)
def telemetry_fault(seen: ClusterSnapshot) -> None:
    seen.health[HTTP[1]] = ready(1, telemetry={"fault": "no space left"})


@fault(
    "a controller's certificate has ended",
    "failed",
    "controller.raft",
    CONTROLLERS[2],
    "its certificate ended at 2001-09-09",
    "keelmq certificates n2",
)
def certificate_ended(seen: ClusterSnapshot) -> None:
    seen.health[HTTP[2]] = ready(2, certificateEnds=1_000_000_000)


@fault(
    "write permission was wiped and not added again",
    "warning",
    "broker.writable",
    NAME,
    "its topics have no write permission",
    f"mqadmin addWritePerm -n '{';'.join(NS)}' -b {NAME}",
)
def write_permission_wiped(seen: ClusterSnapshot) -> None:
    seen.name_servers = {at: name_server(permissions={NAME: 4, PLAIN_NAME: 6}) for at in NS}


@fault(
    "a master is read-only (brokerPermission)",
    "warning",
    "broker.writable",
    BROKERS[0],
    "brokerPermission=4 has no write permission",
    f"mqadmin updateBrokerConfig -b {BROKERS[0]} -k brokerPermission -v 6",
)
def read_only(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[0]] = broker(0, brokerPermission="4")


@fault(
    "the servers refuse us: no credentials, or wrong ones",
    "failed",
    "namesrv.reachable",
    ", ".join(NS),
    "NO_PERMISSION",
    f"keelmq status -n '{';'.join(NS)}' --credentials FILE",
)
def refused(seen: ClusterSnapshot) -> None:
    silent = Silent("NO_PERMISSION, username cannot be null", ResponseCode.NO_PERMISSION)
    seen.name_servers = dict.fromkeys(NS, silent)
    seen.controllers, seen.brokers, seen.sets, seen.groups = {}, {}, None, {}


@fault(
    "the address of a name server is that of a broker",
    "failed",
    "namesrv.reachable",
    BROKERS[0],
    "REQUEST_CODE_NOT_SUPPORTED",
    "keelmq status -n HOST:9876",
)
def broker_as_name_server(seen: ClusterSnapshot) -> None:
    seen.name_servers[BROKERS[0]] = NOT_SUPPORTED


@fault(
    "the address of a controller is that of a name server",
    "failed",
    "controller.reachable",
    NS[0],
    "REQUEST_CODE_NOT_SUPPORTED",
    "keelmq status -n HOST:9876",
)
def name_server_as_controller(seen: ClusterSnapshot) -> None:
    seen.controllers[NS[0]] = NOT_SUPPORTED


@fault(
    "the servers take TLS only, and were asked without it",
    "failed",
    "namesrv.reachable",
    ", ".join(NS),
    "connection lost",
    f"keelmq --tls-ca FILE status -n '{';'.join(NS)}'",
)
def plain(seen: ClusterSnapshot) -> None:
    seen.name_servers = dict.fromkeys(NS, Silent("connection lost", was_plain=True))
    seen.controllers, seen.brokers, seen.sets, seen.groups = {}, {}, None, {}


@fault(
    "a replica's log differs from its master's (epoch divergence)",
    "failed",
    "group.epochs",
    NAME,
    "begins epoch 3 at 2048, its master at 1024",
    f"keelmq verify -n '{';'.join(NS)}' --group {NAME}",
)
def epochs_diverge(seen: ClusterSnapshot) -> None:
    seen.brokers[BROKERS[1]] = broker(1, epochs={1: 0, 3: 2_048})


@fault(
    "a replica stopped copying (no common epoch, a damaged epoch file that cannot be replaced)",
    "failed",
    "group.epochs",
    NAME,
    "copies nothing: no common epoch",
    f"keelmq verify -n '{';'.join(NS)}' --group {NAME}",
)
def replica_stopped(seen: ClusterSnapshot) -> None:
    stopped = HaRuntimeInfo(master=False, fault="no common epoch with the master")
    seen.brokers[BROKERS[1]] = replace(broker(1), ha=stopped)
