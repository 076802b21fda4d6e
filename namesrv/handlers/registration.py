"""Registrations: registerBroker (103), unregisterBroker (104), queryDataVersion (322), heartbeat (904).

No handler awaits between a check and its change, so a registration and the closing of its connection cannot
interleave (#11043). A large registration is decoded in steps and applied in parts, with the checks before
each part; requests of one broker are carried out in the order of their arrival. A removal is applied before
the reply: there is no queue that could be full (#4726). Source: RocketMQ 5.3.3, DefaultRequestProcessor.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.config_store import ConfigStore
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from keelmq.remoting.operations.route import (
    BROKER_HEARTBEAT,
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    DataVersion,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)
from keelmq.runtime.slices import Slices, in_slices
from namesrv.config import NamesrvConfig
from namesrv.core.liveness import HeartbeatTable, RouteKey, route_key
from namesrv.core.register_body import BadBody, check_crc32, read_slices
from namesrv.core.routes import RouteTable
from namesrv.core.values import (
    MinIdChange,
    Part,
    RegisterBody,
    Registered,
    Registration,
    RegistrationRefused,
    StaleRegistration,
)
from namesrv.kv_store import ORDER_TOPIC_CONFIG, KvStore

log = logging.getLogger(__name__)

ROUTE_TIMEOUT_MS = 120_000
"""Timeout of a registration whose broker sends none; brokers register every 30 s."""
ZONE_NAME = "__ZONE_NAME"
OF_BROKERS = (REGISTER_BROKER, UNREGISTER_BROKER, BROKER_HEARTBEAT, QUERY_DATA_VERSION)
"""Operations that only the listener `internal` serves."""


class Registrations(msgspec.Struct):
    """`clock`: monotonic ms. `notify` sends 905 to the brokers of a group."""

    routes: RouteTable
    liveness: HeartbeatTable
    kv: KvStore
    settings: ConfigStore[NamesrvConfig]
    clock: Callable[[], int]
    notify: Callable[[MinIdChange], None]
    _turns: WeakValueDictionary[RouteKey, asyncio.Lock] = msgspec.field(default_factory=WeakValueDictionary)
    """Held by the request of a broker that is being carried out."""

    def bind(self, table: OperationTable) -> None:
        """Binds registerBroker (103), unregisterBroker (104), queryDataVersion (322), heartbeat (904)."""
        table.bind(REGISTER_BROKER, self.register_broker)
        table.bind(UNREGISTER_BROKER, self.unregister_broker)
        table.bind(BROKER_HEARTBEAT, self.broker_heartbeat)
        table.bind(QUERY_DATA_VERSION, self.query_data_version)

    async def register_broker(self, request: RegisterBrokerRequest, call: Call) -> Reply | None:
        """Registers a broker with its topics (103). Returns the master and the order configuration.

        None: the connection is already closed. A stale registration is answered with a success that has no
        master.
        Raises CommandError: the body is malformed, or the route table refuses it.
        """
        async with self._turn_of(route_key(request.cluster_name, request.broker_addr)):
            bodies = await _register_bodies(request, call)
            registrations = _registrations(request, call.ext_fields.get(ZONE_NAME), bodies)
            await self._refuse_any(registrations)
            result, listeners = None, None
            if request.advertised_listeners:
                listeners = ";".join(self.settings.current.further_listeners)
            for each in registrations:
                if result is not None:
                    await asyncio.sleep(0)
                if call.peer.is_closing():
                    return None  # the connection is closed: nothing would ever remove this registration
                result = self._register(request, call, each)
                if result is None:
                    # success, as RocketMQ's: a broker reads the route, not this code
                    return Reply(None if listeners is None else RegisterBrokerResponse(listeners=listeners))
            assert result is not None
            header = RegisterBrokerResponse(
                ha_server_addr=result.ha_server_addr,
                master_addr=result.master_addr,
                listeners=listeners,
            )
            return Reply(header, self._order_conf())

    async def _refuse_any(self, registrations: Sequence[Registration]) -> None:
        """Raises CommandError before the first of several parts is applied if one would be refused."""
        for each in registrations if len(registrations) > 1 else ():
            await asyncio.sleep(0)
            refusal = self.routes.refuse(each)
            if isinstance(refusal, RegistrationRefused):
                raise CommandError(ResponseCode.SYSTEM_ERROR, refusal.remark)

    def _turn_of(self, key: RouteKey) -> asyncio.Lock:
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = asyncio.Lock()
        return turn

    def _register(
        self, request: RegisterBrokerRequest, call: Call, registration: Registration
    ) -> Registered | None:
        """Applies a registration, or a part of it. Returns None if it is stale. Raises CommandError: the
        route table refuses it."""
        before = self._master_of(request.broker_name)
        result = self.routes.register(registration)
        if isinstance(result, RegistrationRefused):
            raise CommandError(ResponseCode.SYSTEM_ERROR, result.remark)
        if isinstance(result, StaleRegistration):
            _log_stale(registration, result)
            return None
        for address in result.replaced:
            self.liveness.forget(route_key(*address))
        is_new_master = request.broker_id == MASTER_ID and before != request.broker_addr
        self._record_heartbeat(request, call, is_new_master=is_new_master)
        self._notify(result.min_id_changes)
        return result

    def _master_of(self, broker_name: str) -> str | None:
        group = self.routes.broker_data(broker_name)
        return None if group is None else group.broker_addrs.get(MASTER_ID)

    async def unregister_broker(self, request: UnregisterBrokerRequest, call: Call) -> Empty:
        """Removes a broker (104). Ignored over a connection that the broker has since replaced (#11043)."""
        key = route_key(request.cluster_name, request.broker_addr)
        async with self._turn_of(key):
            if self.liveness.is_outdated(key, call.peer.connection_id):
                log.info(
                    "ignored an outdated unregisterBroker of %s at %s",
                    request.broker_name,
                    request.broker_addr,
                )
                return Empty()
            gone = self.routes.unregister(request.cluster_name, request.broker_name, request.broker_addr)
            if gone.removed:
                self.liveness.forget(key)
                log.info("unregistered %s at %s at its request", request.broker_name, request.broker_addr)
                self._notify(gone.min_id_changes)
        await in_slices(_sweep(self.routes))
        return Empty()

    async def broker_heartbeat(self, request: BrokerHeartbeatRequest, call: Call) -> BrokerHeartbeatResponse:
        """Records a heartbeat (904). An unknown broker gets success as well: its next 103 registers it."""
        self.liveness.touch(route_key(request.cluster_name, request.broker_addr), self.clock())
        return BrokerHeartbeatResponse()

    async def query_data_version(self, request: QueryDataVersionRequest, call: Call) -> Reply:
        """Returns whether the topic table has changed (322): any difference counts, even a lower counter.

        Counts as a heartbeat.
        """
        self.liveness.touch(route_key(request.cluster_name, request.broker_addr), self.clock())
        live = self.routes.live(request.cluster_name, request.broker_addr)
        asked: DataVersion | None = call.body
        changed = live is None or live.data_version != asked
        header = QueryDataVersionResponse(changed=changed, takes_parts=request.asks_for_parts or None)
        return Reply(header, None if live is None else live.data_version)

    def expired(self, keys: Iterable[RouteKey]) -> None:
        """Unregisters the keys that a scan has just found inactive, in the same step as the scan."""
        keys = list(keys)
        gone = self.routes.unregister_all((key.cluster_name, key.broker_addr) for key in keys)
        for key in keys:
            self.liveness.forget(key)
        for live in gone.removed:
            log.info(
                "unregistered %s at %s: connection lost or heartbeat timeout",
                live.broker_name,
                live.broker_addr,
            )
        self._notify(gone.min_id_changes)

    def _notify(self, changes: Iterable[MinIdChange]) -> None:
        if self.settings.current.notify_min_broker_id_changed:
            for change in changes:
                self.notify(change)

    def _order_conf(self) -> dict[str, object] | None:
        if not self.settings.current.return_order_topic_config_to_broker:
            return None
        table = self.kv.tables.get(ORDER_TOPIC_CONFIG)
        return None if table is None else {"table": table}

    def _record_heartbeat(self, request: RegisterBrokerRequest, call: Call, *, is_new_master: bool) -> None:
        timeout_ms = request.heartbeat_timeout_millis
        new = self.liveness.record_heartbeat(
            route_key(request.cluster_name, request.broker_addr),
            connection_id=call.peer.connection_id,
            incarnation="",
            timeout_ms=ROUTE_TIMEOUT_MS if timeout_ms is None else timeout_ms,
            now_ms=self.clock(),
            info=None,
            grace_ms=0,
        )
        if new or is_new_master:
            role = "master" if request.broker_id == MASTER_ID else f"slave {request.broker_id}"
            log.info("registered %s %s at %s", request.broker_name, role, request.broker_addr)


def _sweep(routes: RouteTable) -> Slices[None]:
    while routes.sweep():
        yield


async def _register_bodies(request: RegisterBrokerRequest, call: Call) -> Sequence[RegisterBody]:
    if not check_crc32(call.raw_body, request.body_crc32):
        raise CommandError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    steps = read_slices(call.raw_body, compressed=request.compressed, version=call.version)
    try:
        while True:
            next(steps)
            await asyncio.sleep(0)
    except StopIteration as end:
        found: Sequence[RegisterBody] = end.value
        return found
    except BadBody as error:
        raise CommandError(ResponseCode.SYSTEM_ERROR, f"register body: {error}") from error


def _registrations(
    request: RegisterBrokerRequest, zone_name: str | None, bodies: Sequence[RegisterBody]
) -> list[Registration]:
    """Returns one Registration for each body. A request that is itself a part, as the header says, is not
    divided again: brokers bound their parts."""
    whole = Registration(
        cluster_name=request.cluster_name,
        broker_name=request.broker_name,
        broker_id=request.broker_id,
        broker_addr=request.broker_addr,
        ha_server_addr=request.ha_server_addr,
        enable_acting_master=request.enable_acting_master,
        zone_name=zone_name,
        forwards_sends=bool(request.forwards_sends),
        advertised_listeners=request.advertised_listeners or "",
    )
    if request.part_number is None:
        last = len(bodies)
        return [replace(whole, body=body, part=Part(i, i == last)) for i, body in enumerate(bodies, 1)]
    topics = {name: topic for body in bodies for name, topic in body.topics.items()}
    ordered = frozenset[str]().union(*(body.ordered for body in bodies))
    part = Part(request.part_number, request.part_number == request.part_count)
    return [replace(whole, body=replace(bodies[0], topics=topics, ordered=ordered), part=part)]


def _log_stale(request: Registration, stale: StaleRegistration) -> None:
    log.warning(
        "stale registration of %s id %d from %s (stateVersion %d): %s has the id with stateVersion %d",
        request.broker_name,
        request.broker_id,
        request.broker_addr,
        request.body.data_version.state_version,
        stale.holder_addr,
        stale.holder_state_version,
    )
