"""A snapshot of a running cluster: what its name servers, controllers and brokers answer, not judged.

The questions go out in rounds. The answers of one round name the servers of the next; all servers of a round
are asked at once.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from keelmq.client.admin import AdminClient, AdminError
from keelmq.health.answers import Groups, Health, fault_of, groups_of
from keelmq.health.memory import Memory
from keelmq.health.numbers import whole
from keelmq.health.reach import HttpAnswer, Reach, Silent
from keelmq.health.users import Rights, rights_of
from keelmq.remoting.address_text import host_of, join_address, split_address, split_list
from keelmq.remoting.booleans import is_true
from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.operations.broker import EpochEntryCache, HaRuntimeInfo
from keelmq.remoting.operations.container import ContainerStatus
from keelmq.remoting.operations.controller import ControllerMetadata, PastElection, ReplicasInfo
from keelmq.remoting.operations.route import ClusterInfo
from keelmq.remoting.servers.http_port import HTTP_PORT_DISTANCE, PORT_MAX, http_listen_port
from keelmq.runtime.clock import wall_ms

BROKERS_ASKED_MAX = 500
"""Maximum number of brokers that are asked, because of the time limit and 1024 open files."""
AT_ONCE_MAX = 128
"""Servers that are asked concurrently."""
ELECTIONS_MAX = 1_000
HTTP_PORT_KEY = "httpPort"
PROBE_TOPIC = "SELF_TEST_TOPIC"
"""A topic that every broker has."""

T = TypeVar("T")
_RUNTIME = re.compile(r"(\d{1,6}) days, (\d{1,2}) hours, (\d{1,2}) minutes, (\d{1,2}) seconds")


class NameServer(msgspec.Struct, frozen=True):
    """The answers of one name server."""

    cluster: ClusterInfo
    settings: Mapping[str, str]
    topics: frozenset[str] | None  # None: enableAllTopicList=false
    permissions: Mapping[str, int] = msgspec.field(default_factory=dict)  # broker name -> of PROBE_TOPIC
    rights: Rights | None = None  # of its users
    keelmq_version: str = ""


class RunningBroker(msgspec.Struct, frozen=True):
    """The answers of one broker; the numbers are the request codes. None: it does not answer that one, such
    as a broker without replication."""

    info: Mapping[str, str]  # 28
    settings: Mapping[str, str]  # 26
    clock_ms: int | None = None  # how far its clock is ahead of ours, to the second
    ha: HaRuntimeInfo | None = None  # 907
    epochs: EpochEntryCache | None = None  # 1007


class ClusterSnapshot(msgspec.Struct):
    """Keys are addresses (host:port). A Silent value says why there is no answer."""

    name_servers: dict[str, NameServer | Silent] = msgspec.field(default_factory=dict)
    controllers: dict[str, ControllerMetadata | Silent] = msgspec.field(default_factory=dict)
    brokers: dict[str, RunningBroker | Silent] = msgspec.field(default_factory=dict)
    health: dict[str, HttpAnswer | Silent] = msgspec.field(default_factory=dict)  # by HTTP address
    malformed: dict[str, str] = msgspec.field(default_factory=dict)  # HTTP address -> which answer, and where
    http_servers: Mapping[str, str] = msgspec.field(default_factory=dict)  # HTTP -> TCP address
    sets: Mapping[str, ReplicasInfo] | Silent | None = None  # None: there is no leader to ask
    groups: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)  # the leader's /v1/groups
    elections: Sequence[PastElection] = ()  # 29012, newest first
    master_rights: dict[str, Rights | Silent | None] = msgspec.field(default_factory=dict)  # users of masters
    containers: dict[str, ContainerStatus | Silent] = msgspec.field(default_factory=dict)  # 29031
    controller_settings: dict[str, Mapping[str, str] | Silent] = msgspec.field(default_factory=dict)  # 1010
    not_asked: int = 0  # brokers beyond BROKERS_ASKED_MAX
    taken_ms: int = 0  # when the first question was asked, wall clock
    took_ms: int = 0
    clocks: dict[str, list[int]] = msgspec.field(default_factory=dict)  # host -> ms ahead of ours
    resolved: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)  # host:port -> ip:port

    @property
    def leader(self) -> str | None:
        """Address of the active controller, by its own report, else by another's. None: unknown."""
        views = [(at, view) for at, view in self.controllers.items() if isinstance(view, ControllerMetadata)]
        for address, view in views:
            if view.is_leader:
                return view.controller_leader_address or address
        named = [view.controller_leader_address for _, view in views if view.controller_leader_address]
        return named[0] if named else None

    def is_up(self, address: str) -> bool:
        """Returns whether this name server or controller answers."""
        answers = (self.name_servers.get(address), self.controllers.get(address))
        return any(isinstance(each, NameServer | ControllerMetadata) for each in answers)

    def is_embedded(self, controller: str) -> bool:
        """Returns whether a controller is in a name server's process, as far as addresses tell: one of the
        same machine answers if it does."""
        host, is_silent = host_of(controller), isinstance(self.controllers.get(controller), Silent)
        return any(
            host_of(at) == host and isinstance(answer, Silent) == is_silent
            for at, answer in self.name_servers.items()
        )

    def member_of(self, controller: str) -> str:
        """Returns the id of a controller, such as n0; "": not known."""
        views = [view for view in self.controllers.values() if isinstance(view, ControllerMetadata)]
        return next((id_ for view in views for id_, at in peers_of(view).items() if at == controller), "")

    @property
    def answering(self) -> dict[str, NameServer]:
        """The name servers that answer."""
        return {at: each for at, each in self.name_servers.items() if isinstance(each, NameServer)}

    @property
    def group_names(self) -> list[str]:
        """Broker names that a name server lists or the controllers know, sorted."""
        listed = {name for each in self.answering.values() for name in each.cluster.broker_addr_table}
        return sorted(listed | set(self.groups))

    @property
    def plugins(self) -> list[tuple[str, Mapping[str, Any]]]:
        """(HTTP address, the controller's part of the answer) of each /v1/health of a controller."""
        found: list[tuple[str, Mapping[str, Any]]] = []
        for http_address, answer in self.health.items():
            value = answer.json() if isinstance(answer, HttpAnswer) else None
            plugins = value.get("plugins") if isinstance(value, dict) else None
            plugin = plugins.get("controller") if isinstance(plugins, dict) else None
            if isinstance(plugin, dict):
                found.append((http_address, plugin))
        return found


async def take_snapshot(
    reach: Reach,
    name_servers: Sequence[str],
    controllers: Sequence[str],
    http: Mapping[str, str],
    memory: Memory | None = None,
    containers: Sequence[str] = (),
) -> ClusterSnapshot:
    """Asks all servers that the given ones lead to. `http`: TCP address -> HTTP address, from the files.
    `memory`: of earlier snapshots, for a caller that repeats them: answers that rarely change are then asked
    for rarely."""
    memory, began_s = memory or Memory(), asyncio.get_running_loop().time()
    snapshot = ClusterSnapshot(
        http_servers={each: address for address, each in http.items()}, taken_ms=wall_ms()
    )
    await asyncio.gather(
        _all(snapshot.name_servers, name_servers, lambda each: _name_server(reach, each, memory)),
        _all(snapshot.controllers, controllers, _ask_metadata(reach)),
    )
    named = [http.get(each) or _http_of_name_server(snapshot, each) for each in name_servers]
    named += [http[address] for address in controllers if address in http]
    guesses = [_http_guess(each) for each in name_servers if _is_http_unknown(snapshot, each, http)]
    if not name_servers:
        said = {address: _http_of_controller(snapshot, address) for address in controllers}
        named += said.values()
        guesses += [_http_guess(address) for address, its_own in said.items() if its_own is None]
    await asyncio.gather(
        _all(snapshot.health, filter(None, named), lambda each: _health(reach, each)),
        _all(snapshot.health, filter(None, guesses), lambda each: _health(reach, each, as_user=False)),
    )
    listed = list(dict.fromkeys(_broker_addresses(snapshot)))
    addresses, snapshot.not_asked = listed[:BROKERS_ASKED_MAX], max(len(listed) - BROKERS_ASKED_MAX, 0)
    known = [str(plugin.get("address", "")) for _, plugin in snapshot.plugins] if not controllers else []
    await asyncio.gather(
        _all(snapshot.brokers, addresses, lambda each: _broker(reach, each, memory)),
        _all(snapshot.controllers, filter(None, [*_peers(snapshot), *known]), _ask_metadata(reach)),
    )
    answered = any(isinstance(each, ControllerMetadata) for each in snapshot.controllers.values())
    await _all(snapshot.controllers, [] if answered else _of_brokers(snapshot), _ask_metadata(reach))
    await _all(snapshot.controllers, _peers(snapshot), _ask_metadata(reach))
    await _all(snapshot.health, _said_http(snapshot), lambda each: _health(reach, each))
    await asyncio.gather(
        _ask_leader(snapshot, reach),
        _resolve(snapshot, reach),
        _all(
            snapshot.controller_settings, _answering(snapshot), lambda each: _controller(reach, each, memory)
        ),
    )
    await _all(
        snapshot.containers,
        containers,
        lambda each: reach.ask(each, lambda admin, address: admin.containers.container_status(address)),
    )
    await _all(snapshot.brokers, _unlisted(snapshot), lambda each: _broker(reach, each, memory))
    await _all(
        snapshot.master_rights, _masters(snapshot), lambda each: _rights(snapshot, reach, each, memory)
    )
    _read_clocks(snapshot)
    snapshot.took_ms = round((asyncio.get_running_loop().time() - began_s) * 1000)
    return snapshot


async def _all(
    into: dict[str, T | Silent], addresses: Iterable[str], question: Callable[[str], Awaitable[T]]
) -> None:
    gate = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(address: str) -> T | Silent:
        async with gate:
            try:
                return await question(address)
            except Silent as silent:
                return silent

    new = [address for address in dict.fromkeys(addresses) if address not in into]
    into.update(zip(new, await asyncio.gather(*(one(address) for address in new)), strict=True))


async def _name_server(reach: Reach, server: str, memory: Memory) -> NameServer:
    async def rarely(admin: AdminClient, address: str) -> NameServer:
        settings, permissions = await admin.name_servers.namesrv_config(address), {}
        with suppress(AdminError):  # no broker has registered it there
            route = await admin.name_servers.topic_route(address, PROBE_TOPIC)
            permissions = {each.broker_name: each.perm for each in route.queue_datas}
        topics = None
        if is_true(settings.get("enableAllTopicList", "true")):
            topics = frozenset(await admin.name_servers.topic_list(address))
        rights = await rights_of(admin, address, settings)
        version = await admin.name_servers.namesrv_version(address)
        return NameServer(ClusterInfo(), settings, topics, permissions, rights, version)

    cluster, kept = await asyncio.gather(
        reach.ask(server, lambda admin, address: admin.name_servers.cluster_info(address)),
        memory.recall(("name server", server), lambda: reach.ask(server, rarely)),
    )
    return replace(kept, cluster=cluster)


async def _controller(reach: Reach, server: str, memory: Memory) -> Mapping[str, str]:
    async def ask() -> Mapping[str, str]:
        return await reach.ask(server, lambda admin, address: admin.controllers.controller_config(address))

    return await memory.recall(("controller", server), ask)


async def _health(reach: Reach, http_address: str, *, as_user: bool = True) -> HttpAnswer:
    """Returns the answer of /v1/health. Of a program that refuses it, or has none, that of /readyz: an older
    KeelMQ reports everything there, a newer one only whether it is ready. as_user: see Reach.get(); False for
    an address that no server and no file has named."""
    path = "/v1/health"
    answer = await reach.get(http_address, path, as_user=as_user)
    if answer.status != HTTPStatus.OK:
        path = "/readyz"
        answer = await reach.get(http_address, path)
    if isinstance(value := answer.json(), dict) and (fault := fault_of(value, Health)):
        raise Silent(f"{path} answers in another form: {fault}")
    return answer


def _ask_metadata(reach: Reach) -> Callable[[str], Awaitable[ControllerMetadata]]:
    return lambda each: reach.ask(each, lambda admin, address: admin.controllers.controller_metadata(address))


async def _broker(reach: Reach, server: str, memory: Memory) -> RunningBroker:
    asked_ms = wall_ms()
    info = await reach.ask(server, lambda admin, address: admin.brokers.runtime_info(address))
    clock_ms = clock_of(info, (asked_ms + wall_ms()) // 2)
    settings, ha, epochs = await asyncio.gather(
        memory.recall(
            ("settings", server, info.get("bootTimestamp", "")),
            lambda: reach.ask(server, lambda admin, address: admin.brokers.broker_config(address)),
        ),
        _or_none(lambda: reach.ask(server, lambda admin, address: admin.brokers.ha_status(address))),
        memory.recall(
            ("epochs", server, info.get("bootTimestamp", ""), info.get("brokerActive", "")),
            lambda: _or_none(
                lambda: reach.ask(server, lambda admin, address: admin.brokers.broker_epochs(address, ""))
            ),
        ),
    )
    return RunningBroker(info, settings, clock_ms, ha, epochs)


async def _or_none(question: Callable[[], Awaitable[T]]) -> T | None:
    """A server that refuses one of several questions has answered the others."""
    try:
        return await question()
    except Silent as silent:
        if silent.code is None:
            raise
        return None


async def _ask_leader(snapshot: ClusterSnapshot, reach: Reach) -> None:
    """Asks the active controller for the SyncStateSets of all groups."""
    leader = snapshot.leader
    if leader is None:
        return
    http_addresses = {str(plugin.get("address")): http_address for http_address, plugin in snapshot.plugins}
    if leader in http_addresses:
        await _ask_groups(snapshot, reach, http_addresses[leader])
    count = min(ELECTIONS_MAX, 50 + 2 * len(snapshot.group_names))
    with suppress(Silent):  # RocketMQ's controllers keep no past elections
        snapshot.elections = await reach.ask(
            leader, lambda admin, address: admin.controllers.elections(address, "", count)
        )
    try:
        sets = await reach.ask(
            leader, lambda admin, address: admin.controllers.sync_state_sets_at(address, snapshot.group_names)
        )
    except Silent as silent:
        snapshot.sets = silent
    else:
        snapshot.sets = sets.replicas_info_table


async def _ask_groups(snapshot: ClusterSnapshot, reach: Reach, http_address: str) -> None:
    """Asks for /v1/groups. An older program has none, and one with users may refuse: then only the name
    servers' groups are known."""
    try:
        value = (await reach.get(http_address, "/v1/groups", as_user=True)).json()
    except Silent:
        return
    if not isinstance(value, dict):
        return
    if fault := fault_of(value, Groups):
        snapshot.malformed[http_address] = f"/v1/groups answers in another form: {fault}"
    else:
        snapshot.groups = groups_of(value)


async def _resolve(snapshot: ClusterSnapshot, reach: Reach) -> None:
    """Resolves the controllers' addresses: brokers may use another name of a machine than it uses itself."""
    wanted = {*snapshot.controllers, *_of_brokers(snapshot)}

    async def one(address: str) -> None:
        try:
            host, port = split_address(address)
            snapshot.resolved[address] = frozenset(f"{each}:{port}" for each in await reach.resolve(host))
        except (Silent, ValueError):
            snapshot.resolved[address] = frozenset()

    await asyncio.gather(*(one(address) for address in sorted(wanted)))


def _http_of_controller(snapshot: ClusterSnapshot, controller: str) -> str | None:
    """Its HTTP address, as it reports it; None: it is silent, older, or has no HTTP."""
    answer = snapshot.controllers.get(controller)
    return answer.http_address if isinstance(answer, ControllerMetadata) else None


def _http_of_name_server(snapshot: ClusterSnapshot, address: str) -> str | None:
    answer = snapshot.name_servers.get(address)
    return http_address_of(address, answer.settings) if isinstance(answer, NameServer) else None


def http_address_of(address: str, settings: Mapping[str, str]) -> str | None:
    """Returns the HTTP address of the name server at `address`, by its own settings; None: it has no HTTP, or
    they do not name its address."""
    text = settings.get(HTTP_PORT_KEY, "")
    if not re.fullmatch(r"-1|[0-9]{1,5}", text):
        return None
    host, port = split_address(address)
    configured = 0 if settings.get("listenPort") == "0" else port
    number = http_listen_port(int(text), listen_port=configured, bound_port=port)
    return join_address(host, number) if number and number <= PORT_MAX else None


def _is_http_unknown(snapshot: ClusterSnapshot, address: str, http: Mapping[str, str]) -> bool:
    """Returns whether neither a file nor the name server itself shows where its HTTP port is, or that it has
    none."""
    answer = snapshot.name_servers.get(address)
    said = isinstance(answer, NameServer) and HTTP_PORT_KEY in answer.settings
    return address not in http and not said


def _said_http(snapshot: ClusterSnapshot) -> list[str]:
    """Returns the HTTP addresses of controllers whose /v1/health was not found elsewhere, as they say."""
    found = {str(plugin.get("address", "")) for _, plugin in snapshot.plugins}
    views = [(at, view) for at, view in snapshot.controllers.items() if isinstance(view, ControllerMetadata)]
    return [view.http_address for at, view in views if at not in found and view.http_address]


def _http_guess(address: str) -> str | None:
    host, port = split_address(address)
    number = port + HTTP_PORT_DISTANCE
    return join_address(host, number) if number <= PORT_MAX else None


def _masters(snapshot: ClusterSnapshot) -> list[str]:
    """Returns the masters that the name servers list and that answer."""
    listed = [
        broker.broker_addrs[MASTER_ID]
        for server in snapshot.answering.values()
        for _, broker in sorted(server.cluster.broker_addr_table.items())
        if MASTER_ID in broker.broker_addrs
    ]
    return [each for each in listed if isinstance(snapshot.brokers.get(each), RunningBroker)]


async def _rights(snapshot: ClusterSnapshot, reach: Reach, server: str, memory: Memory) -> Rights | None:
    broker = snapshot.brokers[server]
    settings = broker.settings if isinstance(broker, RunningBroker) else {}
    return await memory.recall(
        ("rights", server),
        lambda: reach.ask(server, lambda admin, address: rights_of(admin, address, settings)),
    )


def _broker_addresses(snapshot: ClusterSnapshot) -> list[str]:
    return [
        address
        for server in snapshot.answering.values()
        for _, broker in sorted(server.cluster.broker_addr_table.items())
        for _, address in sorted(broker.broker_addrs.items())
    ]


def peers_of(metadata: ControllerMetadata) -> dict[str, str]:
    """Returns id -> address from the text "n0:host:port;n1:host:port"."""
    found = {}
    for part in split_list(metadata.peers or ""):
        member, _, address = part.partition(":")
        if address.rpartition(":")[0]:
            found[member] = address
    return found


def _unlisted(snapshot: ClusterSnapshot) -> list[str]:
    """Returns the live brokers of the controllers that no name server lists."""
    sets = snapshot.sets.values() if isinstance(snapshot.sets, Mapping) else ()
    replicas = [each for info in sets for each in (*info.in_sync_replicas, *info.not_in_sync_replicas)]
    known = [
        each.broker_address for each in replicas if each.alive and each.broker_address not in snapshot.brokers
    ]
    return known[: max(BROKERS_ASKED_MAX - len(snapshot.brokers), 0)]


def _answering(snapshot: ClusterSnapshot) -> list[str]:
    return [at for at, view in snapshot.controllers.items() if isinstance(view, ControllerMetadata)]


def _peers(snapshot: ClusterSnapshot) -> list[str]:
    views = [view for view in snapshot.controllers.values() if isinstance(view, ControllerMetadata)]
    return [address for view in views for address in peers_of(view).values()]


def _of_brokers(snapshot: ClusterSnapshot) -> list[str]:
    """Addresses of the controllers in the settings of running brokers."""
    return [
        address
        for broker in snapshot.brokers.values()
        if isinstance(broker, RunningBroker) and is_true(broker.settings.get("enableControllerMode"))
        for address in split_list(broker.settings.get("controllerAddr", ""))
    ]


def _read_clocks(snapshot: ClusterSnapshot) -> None:
    for http_address, answer in snapshot.health.items():
        if isinstance(answer, HttpAnswer) and answer.clock_ms is not None:
            snapshot.clocks.setdefault(host_of(http_address), []).append(answer.clock_ms)
    for address, broker in snapshot.brokers.items():
        if isinstance(broker, RunningBroker) and broker.clock_ms is not None:
            snapshot.clocks.setdefault(host_of(address), []).append(broker.clock_ms)


def clock_of(info: Mapping[str, str], asked_ms: int) -> int | None:
    """Returns how many ms a broker's clock is ahead of ours: it started at bootTimestamp and has run for
    `runtime`, which is in whole seconds. None: the answer has no such fields."""
    match = _RUNTIME.search(info.get("runtime", ""))
    boot = whole(info.get("bootTimestamp"))
    if match is None or boot is None or boot < 0:
        return None
    days, hours, minutes, seconds = (int(each) for each in match.groups())
    runtime_ms = 1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    return boot + runtime_ms + 500 - asked_ms
