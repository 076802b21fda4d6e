"""Judges a cluster snapshot: what is wrong, and what the operator should do. Pure: values in, findings
out."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from shlex import quote
from typing import Any

from keelmq.health import commands
from keelmq.health.certificates import certificate_problems
from keelmq.health.disk_rules import disk_rules
from keelmq.health.findings import Finding, failed, ok, plural, warning
from keelmq.health.group_settings import group_rules
from keelmq.health.reach import HttpAnswer, Silent
from keelmq.health.snapshot import ClusterSnapshot, NameServer, RunningBroker, peers_of
from keelmq.health.users import same_rights
from keelmq.remoting.address_text import split_list
from keelmq.remoting.booleans import is_true
from keelmq.remoting.operations.controller import ControllerMetadata

CLOCK_WARNING_MS = 2_000
CLOCK_STEP = (
    "run NTP (chrony) on all machines: timestamps of messages depend on it, and a closed cluster refuses a "
    "program that starts with a clock more than 30 s off"
)
RAFT_LAG_ENTRIES = 1_000
NAMES_SHOWN = 5
SIGN_STEP = "give the credentials of a user who may read"
HANGS = "it hangs, or its machine is unreachable: wait for it to answer again; if it does not, restart"
TLS_STEP = "if it accepts only TLS, give its CA; otherwise check that it runs there"
ANOTHER_STEP = "another program answers there, such as a broker: correct the address lists"
UNHEARD_STEP = "list all and restart the broker: a leader considers it dead without its heartbeats"
UNLISTED_STEP = "list all before its next start: it finds no other controllers if the listed ones do not run"
IDLE_STEP = (
    "remove them with mqadmin updateTopic -a -KEY (groups: updateSubGroup -a -KEY), or do not rely on them"
)
AGAIN = "run it again in some seconds: a fail-over or a start may be in progress"
NOT_SHOWN = (
    "the state of its raft is not known: /v1/health was refused (--credentials FILE; over HTTP the password "
    "is sent only to this machine, or over TLS)"
)


def verdict(snapshot: ClusterSnapshot) -> list[Finding]:
    """Returns findings about name servers, controllers, brokers and clocks; groups() judges the groups."""
    return [
        *_name_servers(snapshot),
        *_name_servers_agree(snapshot),
        *_users_agree(snapshot),
        *_controllers(snapshot),
        *_raft(snapshot),
        *_brokers(snapshot),
        *_broker_settings(snapshot),
        *_clocks(snapshot),
    ]


def _name_servers(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    for address, server in snapshot.name_servers.items():
        if isinstance(server, Silent):
            yield _silent_name_server(snapshot, address, server)
            continue
        brokers = sum(len(each.broker_addrs) for each in server.cluster.broker_addr_table.values())
        groups = len(server.cluster.broker_addr_table)
        if brokers:
            yield ok(
                "namesrv.reachable",
                address,
                f"name server: {plural(brokers, 'broker')} in {plural(groups, 'group')}",
            )
        else:
            yield _without_brokers(snapshot, address)


def _without_brokers(snapshot: ClusterSnapshot, address: str) -> Finding:
    """If no name server lists a broker, no client sends or receives: an outage, not a name server's start."""
    step = "start brokers with this address in namesrvAddr; after its own restart, wait 30 s"
    if any(each.cluster.broker_addr_table for each in snapshot.answering.values()):
        text = "name server: no broker is registered"
        return warning("namesrv.reachable", address, text, step, commands.watch(snapshot))
    text = "name server: no broker is registered, here or at another one: no message is sent or received"
    return failed("namesrv.reachable", address, text, step, commands.START_BROKER)


def _silent_name_server(snapshot: ClusterSnapshot, address: str, silent: Silent) -> Finding:
    step = "start mqnamesrv there (clients use the others meanwhile), or correct the address lists"
    hung = f"{HANGS} mqnamesrv there; clients use the others meanwhile"
    step, line = _unanswered(snapshot, silent, (step, commands.START_NAME_SERVER), hung)
    return failed("namesrv.reachable", address, f"name server: {silent}", step, line)


def _unanswered(
    snapshot: ClusterSnapshot, silent: Silent, start: tuple[str, str], hung: str
) -> tuple[str, str]:
    """Returns the next step and its command. start: if nothing runs there. hung: the step if it does not
    answer."""
    if silent.is_refusal:
        return SIGN_STEP, commands.sign(snapshot)
    if silent.was_plain:
        return TLS_STEP, commands.with_tls(snapshot)
    if silent.is_another_program:
        return ANOTHER_STEP, commands.ASK_NAME_SERVER
    return (hung, commands.watch(snapshot)) if silent.hangs else start


def _name_servers_agree(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    servers = snapshot.answering
    if len(servers) < 2:
        return
    found = [*_same_brokers(snapshot), *_same_topics(snapshot, servers), *_same_settings(snapshot, servers)]
    same = "the same brokers, topics and settings everywhere"
    yield from found or [ok("namesrv.agree", f"{len(servers)} name servers", same)]


def _users_agree(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    rights = {address: server.rights for address, server in snapshot.answering.items()}
    masters = {at: each for at, each in snapshot.master_rights.items() if not isinstance(each, Silent)}
    told = {at: each for at, each in (rights | masters).items() if each is not None}
    found = list(same_rights(told))
    if len(told) > 1 and not found:
        yield ok("users.agree", f"{len(told)} servers", "the same users and ACLs at name servers and masters")
    yield from found


def _same_brokers(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    servers = snapshot.answering
    step = f"{AGAIN}; if this persists, check the brokers' connections to the name servers"
    for name in sorted({name for each in servers.values() for name in each.cluster.broker_addr_table}):
        tables: dict[str, list[str]] = defaultdict(list)
        for address, server in servers.items():
            broker = server.cluster.broker_addr_table.get(name)
            shown = {} if broker is None else dict(sorted(broker.broker_addrs.items()))
            tables[", ".join(f"{key}={at}" for key, at in shown.items()) or "nobody"].append(address)
        if len(tables) > 1:
            text = "; ".join(f"{who} at {', '.join(at)}" for who, at in tables.items())
            lacking = dict(_lacking(snapshot, name))
            if lacking:
                address, missing = next(iter(lacking.items()))
                step = f"namesrvAddr of {address} lacks {', '.join(missing)}: restart it with the whole list"
                line = commands.start_with("namesrvAddr", servers)
            else:
                line = commands.watch(snapshot, name)
            yield failed("namesrv.agree", name, f"name servers disagree: {text}", step, line)


def _lacking(snapshot: ClusterSnapshot, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yields brokers of a group with the name servers that their namesrvAddr lacks. A list of host names is
    not compared: a name may resolve to all of them."""
    for address, broker in snapshot.brokers.items():
        if isinstance(broker, RunningBroker) and broker.settings.get("brokerName") == name:
            listed = split_list(broker.settings.get("namesrvAddr", ""))
            missing = [each for each in snapshot.answering if each not in listed]
            if listed and missing and len(missing) < len(snapshot.answering):
                yield address, missing


def _same_topics(snapshot: ClusterSnapshot, servers: Mapping[str, NameServer]) -> Iterator[Finding]:
    known = {at: each.topics for at, each in servers.items() if each.topics is not None}
    everything = frozenset().union(*known.values())
    for address, topics in known.items():
        if missing := sorted(everything - topics):
            names = ", ".join(missing[:NAMES_SHOWN]) + (", ..." if len(missing) > NAMES_SHOWN else "")
            step = f"{AGAIN}; if the topic was deleted at some name servers only, repeat mqadmin deleteTopic"
            text = f"lacks {len(missing)} topics: {names}"
            yield warning("namesrv.agree", address, text, step, commands.watch(snapshot))


def _same_settings(snapshot: ClusterSnapshot, servers: Mapping[str, NameServer]) -> Iterator[Finding]:
    own = {"listenPort", "bindAddress", "httpBindAddress", "httpPort", "rocketmqHome", "analyticsOutputDir"}
    for key in sorted({key for each in servers.values() for key in each.settings} - own):
        # Ids of RocketMQ's embedded controller; files and directories, which are of each machine.
        if key.startswith("controller") or key.endswith(("Path", "File")):
            continue
        values: dict[str, list[str]] = defaultdict(list)
        for address, server in servers.items():
            values[server.settings.get(key, "not set")].append(address)
        if len(values) > 1:
            text = "; ".join(f"{value} at {', '.join(at)}" for value, at in values.items())
            step = "give all of them the value that is right, or the same configuration file"
            value = next(iter(values))
            line = f"mqadmin updateNamesrvConfig {commands.name_servers(snapshot)} -k {key} -v {quote(value)}"
            yield warning("namesrv.agree", key, f"differs: {text}", step, line)


def _controllers(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    if not snapshot.controllers:
        return
    views = {at: each for at, each in snapshot.controllers.items() if isinstance(each, ControllerMetadata)}
    for address, each in snapshot.controllers.items():
        if isinstance(each, Silent):
            without = "without a majority of controllers no master can be replaced"
            line = commands.START_NAME_SERVER if snapshot.is_embedded(address) else commands.START_CONTROLLER
            start = (f"start it there: {without}", line)
            step, line = _unanswered(snapshot, each, start, f"{HANGS} it: {without}")
            yield failed("controller.reachable", address, f"controller: {each}", step, line)
        else:
            member = snapshot.member_of(address)
            role = "leads" if each.is_leader else "follows"
            yield ok("controller.reachable", address, f"controller {member} {role}".replace("  ", " "))
    if not views:
        return
    lists = {view.peers for view in views.values()}
    if len(lists) > 1:
        text = "; ".join(f"{view.peers} at {at}" for at, view in views.items())
        step = "give all the same controllerDLegerPeers: different members elect different leaders"
        line = f"mqadmin getControllerMetaData {commands.controllers(snapshot)}"
        yield failed("controller.leader", "controllers", f"different members: {text}", step, line)
    yield from _leader(snapshot, views)


def _leader(snapshot: ClusterSnapshot, views: Mapping[str, ControllerMetadata]) -> Iterator[Finding]:
    members = max(len(peers_of(view)) for view in views.values()) or len(views)
    majority = members // 2 + 1
    named = {
        view.controller_leader_address: at for at, view in views.items() if view.controller_leader_address
    }
    if not named:
        step, line = AGAIN, commands.watch(snapshot)
        if len(views) < majority:
            step, line = f"start more of them: {majority} of {members} must run", _start_controller(snapshot)
        text = f"no controller leads; {len(views)} of {members} answer"
        yield failed("controller.leader", "controllers", text, step, line)
    elif len(named) > 1:
        text = "; ".join(f"{leader} says {at}" for leader, at in named.items())
        yield warning(
            "controller.leader", "controllers", f"different leaders: {text}", AGAIN, commands.watch(snapshot)
        )
    elif without := [at for at, view in views.items() if not view.controller_leader_address]:
        step = f"{AGAIN}; if this persists, check its log and its connection to the others"
        text, subject = "knows no leader, but the others do", ", ".join(without)
        yield failed("controller.leader", subject, text, step, commands.watch(snapshot))
    elif len(views) < majority:
        text = f"{next(iter(named))} leads as far as it knows; only {len(views)} of {members} answer"
        step = f"start more of them: {majority} of {members} must run, or nothing can be decided"
        yield failed("controller.leader", "controllers", text, step, _start_controller(snapshot))
    else:
        text = f"{next(iter(named))} leads, {len(views)} of {members} answer"
        yield ok("controller.leader", "controllers", text)


def _start_controller(snapshot: ClusterSnapshot) -> str:
    down = [at for at, each in snapshot.controllers.items() if isinstance(each, Silent)]
    embedded = any(snapshot.is_embedded(at) for at in down)
    return commands.START_NAME_SERVER if embedded else commands.START_CONTROLLER


def _raft(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    for http_address, answer in snapshot.health.items():
        if isinstance(answer, Silent) and snapshot.is_up(snapshot.http_servers.get(http_address, "")):
            step = "its file has this httpPort, and the program runs: it may have started with another file"
            yield warning("controller.raft", http_address, f"HTTP: {answer}", step)
        elif isinstance(answer, HttpAnswer) and isinstance(value := answer.json(), dict):
            if value.get("ready") is False:
                step = f"{AGAIN}; its log says more"
                text = f"not ready: {'; '.join(_reasons(value))}"
                yield failed("controller.raft", http_address, text, step, commands.watch(snapshot))
            if value.get("ready") is not None and "plugins" not in value:
                yield ok("controller.raft", http_address, NOT_SHOWN)
    for http_address, fault in snapshot.malformed.items():
        step = "check that this is the HTTP port of a controller, of the release of this tool"
        yield warning("controller.raft", http_address, f"HTTP: {fault}", step)
    plugins = [
        (str(plugin.get("address", http_address)), plugin) for http_address, plugin in snapshot.plugins
    ]
    committed = max((_raft_number(plugin, "commitIndex") for _, plugin in plugins), default=0)
    for address, plugin in plugins:
        yield from _member(snapshot, address, plugin, committed, members=len(plugins))


def _reasons(health: Mapping[str, Any]) -> Iterator[str]:
    """Yields why a program is not ready: of /v1/health with the details, of /readyz without."""
    reasons = health.get("reasons")
    for each in reasons if isinstance(reasons, list) else ():
        parts = (each.get("reason"), each.get("detail")) if isinstance(each, dict) else (each,)
        yield ": ".join(str(part) for part in parts if part)


def _member(
    snapshot: ClusterSnapshot, address: str, plugin: Mapping[str, object], committed: int, *, members: int
) -> Iterator[Finding]:
    start = commands.START_NAME_SERVER if snapshot.is_embedded(address) else commands.START_CONTROLLER
    raft = plugin.get("raft")
    raft = raft if isinstance(raft, dict) else {}
    telemetry = plugin.get("telemetry")
    if isinstance(telemetry, dict) and telemetry.get("fault"):
        step = "free disk space and restart it; elections continue, but are not recorded"
        yield warning("controller.raft", address, f"telemetry: {telemetry['fault']}", step, start)
    if raft.get("running") is False:
        step = "its log says why its raft thread ended; restart it"
        yield failed("controller.raft", address, "raft does not run", step, start)
        return
    found = list(_raft_problems(commands.watch(snapshot), address, plugin, raft, committed, members))
    found += certificate_problems(address, raft, snapshot.member_of(address))
    lag = max(committed - _raft_number(plugin, "lastApplied"), 0)
    yield from found or [ok("controller.raft", address, f"raft runs, {lag} entries behind")]


def _raft_problems(
    line: str,
    address: str,
    plugin: Mapping[str, object],
    raft: Mapping[str, Any],
    committed: int,
    members: int,
) -> Iterator[Finding]:
    """line: the command that shows whether they go away."""
    if others := raft.get("otherMemberLists"):
        text = f"{', '.join(others)} and this one have different members"
        step = "give all the same controllerDLegerPeers and controllerRaftPeers"
        yield failed("controller.raft", address, text, step)
    if raft.get("role") == "learner":
        text = "has no vote yet: its directory was empty"
        step = f"{AGAIN}; until then the group survives one failure less"
        yield warning("controller.raft", address, text, step, line)
    lag = committed - _raft_number(plugin, "lastApplied")
    if lag > RAFT_LAG_ENTRIES:
        step = f"{AGAIN}; if the number grows, check its disk and its connection"
        yield warning("controller.raft", address, f"{lag} entries behind the leader", step, line)
    connected = raft.get("connected")
    if plugin.get("active") and isinstance(connected, list) and len(connected) < members - 1:
        refused = raft.get("refusedConnections") or {}
        reasons = ", ".join(f"{reason} ({times} times)" for reason, times in refused.items())
        text = f"leads, but has a raft connection to {', '.join(connected) or 'no other member'} only"
        step = f"{AGAIN}; if this persists, check the key or CA of all members, and the raft port"
        text += f"; refused: {reasons}" if reasons else ""
        yield warning("controller.raft", address, text, step, line)


def _raft_number(plugin: Mapping[str, object], key: str) -> int:
    raft = plugin.get("raft")
    value = raft.get(key) if isinstance(raft, dict) else None
    return value if isinstance(value, int) else 0


def _brokers(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    if snapshot.not_asked:
        text = f"{snapshot.not_asked} more were not asked"
        yield ok("broker.reachable", plural(len(snapshot.brokers), "broker"), text)
    for address, broker in snapshot.brokers.items():
        if isinstance(broker, Silent):
            yield _silent_broker(snapshot, address, broker)
            continue
        name = broker.settings.get("brokerName", "")
        role = "writable" if is_true(broker.info.get("brokerActive")) else "not writable (a slave)"
        version = broker.info.get("brokerVersionDesc", "")
        yield ok("broker.reachable", address, f"broker of {name}, {role}, {version}")
        yield from _damage(
            commands.verify(snapshot, broker.settings.get("brokerName", "")), address, broker.info
        )
        yield from disk_rules(address, broker)


def _damage(command: str, address: str, info: Mapping[str, str]) -> Iterator[Finding]:
    """command: to compare the logs. Brokers of RocketMQ check nothing, and report nothing."""
    damage, fault = info.get("logDamage"), info.get("scrubFault")
    step = "another replica may have it: keep its store, check this disk, and compare the logs"
    if damage:
        yield failed("broker.damage", address, damage, step, command)
    elif fault:
        step = "its disk has errors: check it, and compare the logs of the group"
        yield failed("broker.damage", address, fault, step, command)
    elif damage is not None:
        rounds, position, end = (
            info.get(key, "0") for key in ("scrubRounds", "scrubPosition", "scrubEndOffset")
        )
        progress = "" if end == "0" else f", now {position} of {end}"
        text = f"no damage is known; rounds over the whole log: {rounds}{progress}"
        yield ok("broker.damage", address, text)


def _silent_broker(snapshot: ClusterSnapshot, address: str, silent: Silent) -> Finding:
    text, line = f"broker: {silent}", commands.start_broker(silent, snapshot)
    if silent.is_refusal:
        step = SIGN_STEP
    elif silent.was_plain:
        step = TLS_STEP
    elif silent.hangs:
        step = f"{HANGS} mqbroker there"
    else:
        step = "start mqbroker there; the name servers still list it"
    return failed("broker.reachable", address, text, step, line)


def _broker_settings(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    groups: dict[str, dict[str, Mapping[str, str]]] = defaultdict(dict)
    for address, broker in snapshot.brokers.items():
        if isinstance(broker, RunningBroker) and broker.settings:
            groups[broker.settings.get("brokerName", "")][address] = broker.settings
    for name, replicas in sorted(groups.items()):
        same = partial(commands.same_setting, replicas)
        yield from group_rules("broker.settings", name, replicas, same)
    for address, broker in snapshot.brokers.items():
        if isinstance(broker, RunningBroker) and (idle := broker.info.get("attributesWithoutEffect")):
            yield warning("broker.settings", address, f"stored and not done: {idle}", IDLE_STEP)
    views = [view for view in snapshot.controllers.values() if isinstance(view, ControllerMetadata)]
    members = {address for view in views for address in peers_of(view).values()}
    for replicas in groups.values():
        for address, settings in replicas.items():
            if is_true(settings.get("enableControllerMode")):
                yield from _knows_controllers(snapshot, address, settings, members)


def _knows_controllers(
    snapshot: ClusterSnapshot, address: str, settings: Mapping[str, str], members: set[str]
) -> Iterator[Finding]:
    """A leader that gets no heartbeats from a broker considers it dead. KeelMQ's brokers send them to every
    controller that the leader names."""
    listed = split_list(settings.get("controllerAddr", ""))
    reached = set(listed).union(*(snapshot.resolved.get(each, frozenset()) for each in listed))
    missing = [
        member
        for member in sorted(members)
        if member not in reached and not snapshot.resolved.get(member, frozenset()) & reached
    ]
    if missing:
        text = f"controllerAddr of this broker lacks {', '.join(missing)}"
        line = commands.start_with("controllerAddr", sorted(members))
        if "haCatchUpThreads" in settings:
            yield warning("broker.settings", address, text, UNLISTED_STEP, line)
        else:
            yield failed("broker.settings", address, text, UNHEARD_STEP, line)


def _clocks(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Of several readings of a machine's clock, each in whole seconds, the one closest to ours is used."""
    best = {host: min(readings, key=abs) for host, readings in snapshot.clocks.items()}
    for host, ahead_ms in best.items():
        if abs(ahead_ms) > CLOCK_WARNING_MS:
            side = "ahead of" if ahead_ms > 0 else "behind"
            text = f"its clock is {abs(ahead_ms) / 1000:.1f} s {side} ours"
            yield warning("machine.clock", host, text, CLOCK_STEP, "chronyc tracking")
    good = sum(abs(each) <= CLOCK_WARNING_MS for each in best.values())
    if good:
        text = f"clocks within {CLOCK_WARNING_MS // 1000} s of ours"
        yield ok("machine.clock", plural(good, "machine"), text)
