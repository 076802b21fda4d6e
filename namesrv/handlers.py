"""The route operations (103, 104, 105, 106, 904) bound to RouteTable and HeartbeatTable.

Each handler is one step of the event loop: it never awaits between looking and changing, so a registration
and the end of its connection cannot interleave (#11043). Source of facts: RocketMQ 5.3.3,
DefaultRequestProcessor.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from namesrv.core.liveness import HeartbeatTable, RouteKey, route_key
from namesrv.core.register_body import (
    BARE_WRAPPER_BELOW,
    BadBody,
    check_crc32,
    inflate_body,
    is_deflated,
)
from namesrv.core.routes import Refused, Registration, RouteTable, Stale
from remoting.codes import MASTER_ID, ResponseCode
from remoting.command import BadRequest, body_bytes, decode_body
from remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from remoting.operations.route import (
    BROKER_HEARTBEAT,
    GET_BROKER_CLUSTER_INFO,
    GET_ROUTEINFO_BY_TOPIC,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    BrokerHeartbeatRequest,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    RouteRequest,
    TopicConfigSerializeWrapper,
    TopicRouteData,
    UnregisterBrokerRequest,
)

log = logging.getLogger(__name__)

ROUTE_TIMEOUT_MS = 120_000
"""How long a registration lives without a beat when its broker does not say (brokers register every 30 s)."""
STRICT_JSON_SINCE = 401
"""Release ordinal of 4.9.4: older clients read the keys of brokerAddrs only as bare numbers (#4473)."""
NO_ROUTE_HELP = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
ZONE_NAME, ZONE_MODE = "__ZONE_NAME", "__ZONE_MODE"

_QUOTED_NUMBER_KEY = re.compile(rb'([{,])"(-?[0-9]+)":')


@dataclass(slots=True)
class RouteHandlers:
    """`clock`: monotonic ms. `serve_from_ms`: before that moment routes are refused (needWaitForService)."""

    routes: RouteTable
    liveness: HeartbeatTable
    clock: Callable[[], int]
    serve_from_ms: int = 0

    def bind(self, table: OperationTable) -> None:
        table.bind(REGISTER_BROKER, self.register_broker)
        table.bind(UNREGISTER_BROKER, self.unregister_broker)
        table.bind(GET_ROUTEINFO_BY_TOPIC, self.get_route_info_by_topic)
        table.bind(GET_BROKER_CLUSTER_INFO, self.get_broker_cluster_info)
        table.bind(BROKER_HEARTBEAT, self.broker_heartbeat)

    async def register_broker(self, request: RegisterBrokerRequest, call: Call) -> Reply | None:
        if call.peer.is_closing():
            return None  # its close was seen already: a registration now would outlive its connection
        body = _register_body(request, call)
        registration = Registration(
            cluster_name=request.cluster_name,
            broker_name=request.broker_name,
            broker_id=request.broker_id,
            broker_addr=request.broker_addr,
            ha_server_addr=request.ha_server_addr,
            enable_acting_master=request.enable_acting_master,
            zone_name=call.ext_fields.get(ZONE_NAME),
            topics=body.topic_config_serialize_wrapper,
            filter_servers=tuple(body.filter_server_list),
        )
        result = self.routes.register(registration)
        if isinstance(result, Refused):
            raise CommandError(ResponseCode.SYSTEM_ERROR, result.remark)
        if isinstance(result, Stale):
            log.warning(
                "stale registration of %s id %d from %s (stateVersion %d): %s holds it with stateVersion %d",
                request.broker_name,
                request.broker_id,
                request.broker_addr,
                registration.topics.data_version.state_version,
                result.holder_addr,
                result.holder_state_version,
            )
            return Reply()  # upstream answers success: a broker looks at the route, not at this code
        for address in result.replaced:
            self.liveness.forget(route_key(*address))
        self._beat(request, call)
        return Reply(
            RegisterBrokerResponse(ha_server_addr=result.ha_server_addr, master_addr=result.master_addr)
        )

    async def unregister_broker(self, request: UnregisterBrokerRequest, call: Call) -> Empty:
        if self.routes.unregister(request.cluster_name, request.broker_name, request.broker_addr):
            self.liveness.forget(route_key(request.cluster_name, request.broker_addr))
            log.info("unregistered %s at %s, at its request", request.broker_name, request.broker_addr)
        return Empty()

    async def get_route_info_by_topic(self, request: RouteRequest, call: Call) -> Reply:
        if self.clock() < self.serve_from_ms:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "name server not ready")
        route = self.routes.pick_up_route(request.topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {request.topic}\n{NO_ROUTE_HELP}"
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, remark)
        raw = body_bytes(in_zone(route, call.ext_fields))
        if call.version < STRICT_JSON_SINCE and not request.accept_standard_json_only:
            raw = bare_number_keys(raw)
        return Reply(body=raw)

    async def get_broker_cluster_info(self, request: Empty, call: Call) -> Reply:
        """Number keys are bare for everyone, as upstream writes them (its tools read both)."""
        return Reply(body=bare_number_keys(body_bytes(self.routes.cluster_info())))

    async def broker_heartbeat(self, request: BrokerHeartbeatRequest, call: Call) -> Empty:
        """Success even if unknown: the broker comes back with its next 103 (reference, pitfall 19)."""
        self.liveness.touch(route_key(request.cluster_name, request.broker_addr), self.clock())
        return Empty()

    def expired(self, key: RouteKey) -> None:
        """The heartbeat table found this registration inactive."""
        live = self.routes.live(key.cluster_name, key.broker_addr)
        if live is not None and self.routes.expire(key.cluster_name, key.broker_addr):
            log.info("unregistered %s at %s: connection lost or silent", live.broker_name, key.broker_addr)
        self.liveness.forget(key)

    def _beat(self, request: RegisterBrokerRequest, call: Call) -> None:
        timeout_ms = request.heartbeat_timeout_millis
        new = self.liveness.beat(
            route_key(request.cluster_name, request.broker_addr),
            connection_id=call.peer.connection_id,
            incarnation="",
            timeout_ms=ROUTE_TIMEOUT_MS if timeout_ms is None else timeout_ms,
            now_ms=self.clock(),
            info=None,
            grace_ms=0,
        )
        if new:
            role = "master" if request.broker_id == MASTER_ID else f"slave {request.broker_id}"
            log.info("registered %s %s at %s", request.broker_name, role, request.broker_addr)


def _register_body(request: RegisterBrokerRequest, call: Call) -> RegisterBrokerBody:
    raw = call.raw_body
    if not check_crc32(raw, request.body_crc32):
        raise CommandError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    if not raw:
        return RegisterBrokerBody()
    try:
        if is_deflated(raw, compressed=request.compressed):
            return inflate_body(raw, call.version)
        if call.version < BARE_WRAPPER_BELOW:
            wrapper: TopicConfigSerializeWrapper = decode_body(TopicConfigSerializeWrapper, raw)
            return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)
        body: RegisterBrokerBody = decode_body(RegisterBrokerBody, raw)
        return body
    except (BadBody, BadRequest, ValidationError) as error:
        problem = error.remark if isinstance(error, BadRequest) else str(error).splitlines()[0]
        raise CommandError(ResponseCode.SYSTEM_ERROR, f"register body: {problem}") from error


def in_zone(route: TopicRouteData, ext_fields: Mapping[str, str]) -> TopicRouteData:
    """Zone routing (namesrv reference §11): brokers of the caller's zone, and those without a master."""
    zone = ext_fields.get(ZONE_NAME)
    if not zone or ext_fields.get(ZONE_MODE, "").lower() != "true":
        return route
    kept = [
        data
        for data in route.broker_datas
        if MASTER_ID not in data.broker_addrs or (data.zone_name or "").lower() == zone.lower()
    ]
    names = {data.broker_name for data in kept}
    addrs = {addr for data in kept for addr in data.broker_addrs.values()}
    return route.model_copy(
        update={
            "broker_datas": kept,
            "queue_datas": [queue for queue in route.queue_datas if queue.broker_name in names],
            "filter_server_table": {k: v for k, v in route.filter_server_table.items() if k in addrs},
        }
    )


def bare_number_keys(raw: bytes) -> bytes:
    """{"0":...} -> {0:...}, the legacy style. Safe on compact JSON: inside a string a quote is escaped."""
    return _QUOTED_NUMBER_KEY.sub(rb"\1\2:", raw)
