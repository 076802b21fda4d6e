"""Rules that configuration files must keep, each on its own and together. Pure: values in, findings out; no
file, socket or clock.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from broker.config.broker_config import BrokerConfig
from cli.doctor.files import ConfigFile, Kind
from cli.doctor.plain_groups import plain_rules
from keelmq.health.findings import Finding, failed, ok, warning
from keelmq.health.group_settings import group_rules
from keelmq.remoting.address_text import host_of, is_ip, join_address
from keelmq.remoting.addresses import is_loopback
from namesrv.plugins.controller.config import LEASE_GRACE_MS, ControllerConfig

ROUTES_EXPIRE_MS = 120_000
"""A name server removes a broker that has not registered for this long."""


def rules(files: Sequence[ConfigFile]) -> list[Finding]:
    """Returns findings about each file on its own and about the files in comparison. They have all loaded."""
    brokers = [(file, file.broker) for file in files if file.broker is not None]
    controllers = [(file, file.controller) for file in files if file.controller is not None]
    found = [*_controllers(controllers), *_loopback(files)]
    for file, controller in controllers:
        found += _members(file.name, controller)
    found += _lease(brokers, controllers)
    found += _listeners(files, brokers)
    for file, broker in brokers:
        found += _broker_timeouts(file.name, broker)
        found += _lists(file.name, broker, controllers)
    groups: dict[str, dict[str, Mapping[str, str]]] = defaultdict(dict)
    for file, broker in brokers:
        groups[broker.broker_name][file.name] = properties(broker)
    for name, replicas in sorted(groups.items()):
        found += group_rules("config.group", name, replicas)
        found += plain_rules(name, {file.name: each for file, each in brokers if each.broker_name == name})
        found += _group_size(name, [broker for _, broker in brokers if broker.broker_name == name])
    return found


def properties(broker: BrokerConfig) -> dict[str, str]:
    """Returns the settings as a running broker answers them (26)."""
    values = broker.model_dump(by_alias=True, mode="json", exclude_none=True)
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()
    }


def _group_size(name: str, brokers: Sequence[BrokerConfig]) -> Iterator[Finding]:
    least = max(broker.min_in_sync_replicas for broker in brokers)
    members = sum(not broker.async_learner for broker in brokers)
    if least > members and len(brokers) > 1:
        text = f"minInSyncReplicas={least}, but only {members} of these files can be in the SyncStateSet"
        yield failed("config.group", name, text, "add replicas, or lower it: every message is refused")
    elif least == members > 1:
        text = f"minInSyncReplicas={least} of {members} replicas: one failure stops all writes"
        yield warning("config.group", name, text, "add a replica, or lower minInSyncReplicas by one")


def _controllers(controllers: Sequence[tuple[ConfigFile, ControllerConfig]]) -> Iterator[Finding]:
    """Pitfall: peers that differ make two groups of one, each with its own majority."""
    if len(controllers) < 2:
        return
    found = []
    for key, value in (
        ("controllerDLegerGroup", lambda each: each.controller_d_leger_group),
        ("controllerDLegerPeers", lambda each: _peers_text(each.request_addresses)),
        ("controllerRaftPeers", lambda each: _peers_text(each.raft_addresses)),
        ("enableElectUncleanMaster", lambda each: str(each.enable_elect_unclean_master).lower()),
    ):
        values: dict[str, list[str]] = defaultdict(list)
        for file, controller in controllers:
            values[value(controller)].append(file.name)
        if len(values) > 1:
            text = "; ".join(f"{each} in {', '.join(names)}" for each, names in sorted(values.items()))
            step = "give all controllers the same value: different members elect different leaders"
            found.append(failed("config.controllers", key, f"differs: {text}", step))
    ids: dict[str, list[str]] = defaultdict(list)
    for file, controller in controllers:
        ids[controller.controller_d_leger_self_id].append(file.name)
    for member, names in sorted(ids.items()):
        if len(names) > 1:
            text = f"controllerDLegerSelfId {member} is in {', '.join(names)}"
            step = "give each an id of its own from the peers: a duplicate id can lose acknowledged changes"
            found.append(failed("config.controllers", member, text, step))
    everybody = controllers[0][1].request_addresses.keys()
    if not found and (missing := sorted(everybody - ids.keys())):
        text = f"no file was given for {', '.join(missing)}"
        step = "give those files with -c as well, to compare them"
        found.append(warning("config.controllers", "controllerDLegerPeers", text, step))
    yield from found or [
        ok("config.controllers", f"{len(controllers)} controllers", "same group and members, own ids")
    ]


def _peers_text(peers: Mapping[str, tuple[str, int]]) -> str:
    return ";".join(f"{member}-{host}:{port}" for member, (host, port) in sorted(peers.items()))


def _members(name: str, controller: ControllerConfig) -> Iterator[Finding]:
    """Controller pitfall 44: members on 127.0.0.1 cannot be reached from other machines."""
    hosts = {member: host for member, (host, _) in controller.request_addresses.items()}
    loopback = sorted(member for member, host in hosts.items() if is_loopback(host))
    if loopback and len(loopback) < len(hosts):
        text = f"{', '.join(loopback)} of controllerDLegerPeers are on 127.0.0.1, others are not"
        step = "use the addresses that the other machines can reach: 127.0.0.1 is each machine itself"
        yield failed("config.addresses", name, text, step)
    elif loopback:
        text = "controllerDLegerPeers on 127.0.0.1: brokers and tools on other machines cannot use them"
        step = "for more than a trial on one machine, use the machines' addresses"
        yield warning("config.addresses", name, text, step)
    if len(hosts) % 2 == 0:
        text = f"{len(hosts)} controllers survive no more failures than {len(hosts) - 1} controllers"
        yield warning("config.addresses", name, text, "use 1, 3 or 5 members")


def _loopback(files: Sequence[ConfigFile]) -> Iterator[Finding]:
    """A broker that registers 127.0.0.1, or listens there only, while its servers are on other machines."""
    for file in files:
        broker = file.broker
        if broker is None:
            continue
        for key, value in (("brokerIP1", broker.broker_ip1), ("bindAddress", broker.bind_address)):
            remote = [
                each for each in (*broker.controllers, *broker.name_servers) if not is_loopback(host_of(each))
            ]
            if value and is_loopback(value) and remote:
                text = f"{key}={value}, but {remote[0]} is another machine"
                step = "set it to the address that clients and replicas use for this broker"
                yield failed("config.addresses", file.name, text, step)


def _listeners(
    files: Sequence[ConfigFile], brokers: Sequence[tuple[ConfigFile, BrokerConfig]]
) -> Iterator[Finding]:
    """Listeners that name servers lack, and one address that two brokers announce."""
    owners: dict[str, str] = {}
    for file, broker in brokers:
        for name, at in broker.advertised.items():
            address = join_address(*at)
            other = owners.setdefault(address, file.name)
            if other != file.name:
                text = f"announces {address}, and so does {other}"
                step = "give each broker its own address in advertisedListeners"
                yield failed("config.listeners", file.name, text, step)
            lacking = [
                each.name
                for each in files
                if each.kind is Kind.NAMESRV and each.namesrv and name not in each.namesrv.further_listeners
            ]
            if lacking:
                text = f"no client gets its listener {name} at {', '.join(lacking)}"
                step = f"add {name} to listeners of the name server"
                yield failed("config.listeners", file.name, text, step)


def _lists(
    name: str, broker: BrokerConfig, controllers: Sequence[tuple[ConfigFile, ControllerConfig]]
) -> Iterator[Finding]:
    """A controller that is not listed gets no heartbeats: as the leader, it considers this broker dead."""
    if not broker.enable_controller_mode or not controllers:
        return
    members = {
        join_address(host, port): member
        for member, (host, port) in controllers[0][1].request_addresses.items()
    }
    missing = [f"{member} ({each})" for each, member in members.items() if each not in broker.controllers]
    by_name = any(not is_ip(host_of(each)) for each in broker.controllers)
    if missing and len(missing) == len(members) and not by_name:
        text = f"controllerAddr {broker.controller_addr} names none of the controllers of these files"
        step = "use the addresses of controllerDLegerPeers"
        yield failed("config.addresses", name, text, step)
    elif missing and not by_name:  # a name may resolve to all of them
        text = f"controllerAddr lacks {', '.join(missing)}"
        step = "list every controller: a leader that gets no heartbeats considers this broker dead"
        yield failed("config.addresses", name, text, step)


def _lease(
    brokers: Sequence[tuple[ConfigFile, BrokerConfig]],
    controllers: Sequence[tuple[ConfigFile, ControllerConfig]],
) -> Iterator[Finding]:
    """A new leader that waits less than masters rely on may replace one that still acknowledges."""
    leased = [each for _, each in brokers if each.enable_controller_mode and each.isolation_lease_enable]
    if brokers and not leased:
        return
    relied_ms = min(
        LEASE_GRACE_MS,
        max((each.controller_heart_beat_timeout_mills for each in leased), default=LEASE_GRACE_MS),
    )
    for file, controller in controllers:
        if controller.controller_grace_ms < relied_ms:
            text = f"controllerGraceMs={controller.controller_grace_ms}, and masters rely on {relied_ms}"
            step = (
                "raise it, or lower controllerHeartBeatTimeoutMills of the brokers: a master that is cut off "
                "may acknowledge after another one was elected"
            )
            yield failed("config.timeouts", file.name, text, step)


def _broker_timeouts(name: str, broker: BrokerConfig) -> Iterator[Finding]:
    """Timeouts that the broker's configuration model accepts, but that hurt in operation."""
    found = []
    if broker.register_name_server_period >= ROUTES_EXPIRE_MS:
        text = (
            f"registerNameServerPeriod={broker.register_name_server_period} is not below "
            f"{ROUTES_EXPIRE_MS}, after which name servers forget a broker"
        )
        found.append(("30000 is usual", text))
    if (
        broker.enable_controller_mode
        and broker.sync_broker_metadata_period > broker.controller_heart_beat_timeout_mills
    ):
        text = (
            f"syncBrokerMetadataPeriod={broker.sync_broker_metadata_period} is above "
            f"controllerHeartBeatTimeoutMills={broker.controller_heart_beat_timeout_mills}: "
            "a lost notification delays a fail-over by more than the detection of a dead master"
        )
        found.append(("1000 is usual", text))
    for step, text in found:
        yield warning("config.timeouts", name, text, step)
    if not found:
        yield ok("config.timeouts", name, "heartbeats, registration and replication fit together")
