"""Queries: routes (105), clusters (106), member groups (901), topic lists (206, 224, 304, 311, 312, 313).

A reply is encoded once and cached until a table changes: clients request the same routes repeatedly, and all
clients at once when a master dies. Source: RocketMQ 5.3.3, ClientRequestProcessor.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import msgspec

from keelmq.remoting.address_text import INTERNAL
from keelmq.remoting.body import body_bytes
from keelmq.remoting.booleans import is_true
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.config_store import ConfigStore
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from keelmq.remoting.operations.route import (
    GET_ALL_TOPIC_LIST,
    GET_BROKER_CLUSTER_INFO,
    GET_BROKER_MEMBER_GROUP,
    GET_HAS_UNIT_SUB_TOPIC_LIST,
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    GET_ROUTEINFO_BY_TOPIC,
    GET_SYSTEM_TOPIC_LIST,
    GET_TOPICS_BY_CLUSTER,
    GET_UNIT_TOPIC_LIST,
    BrokerMemberGroupBody,
    BrokerMemberGroupRequest,
    ClusterRequest,
    RouteRequest,
    TopicRouteData,
)
from keelmq.runtime.slices import Slices, in_slices
from namesrv.config import NamesrvConfig
from namesrv.core.json_dialect import escaped_json, legacy_json
from namesrv.core.routes import RouteTable
from namesrv.handlers.registration import ZONE_NAME
from namesrv.kv_store import ORDER_TOPIC_CONFIG, KvStore

STRICT_JSON_SINCE = 401
"""Release ordinal of 4.9.4: older clients can parse number keys only without quotes (#4473)."""
NO_ROUTE_HELP = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
ZONE_MODE = "__ZONE_MODE"
OUR_LANGUAGE = "PYTHON"
"""Language of KeelMQ's programs and client. RocketMQ has no remoting client in Python itself: the one on PyPI
wraps the C++ client, and sends CPP."""
ENCODED_BYTES_MAX = 64 * 1024 * 1024
"""Size of all cached replies; above it the cache is cleared."""


class EncodedAnswers(msgspec.Struct):
    """A cache of encoded replies, valid for one `version()` of the tables."""

    version: Callable[[], Hashable]
    _made_at: Hashable = None
    _answers: dict[Hashable, bytes] = msgspec.field(default_factory=dict)
    _bytes: int = 0
    _turn: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    async def made(self, key: Hashable, make: Callable[[], Slices[bytes]]) -> bytes:
        """Returns the cached reply, or that of `make`, which is cached if nothing has changed meanwhile.
        Requests for the same reply make it once."""
        async with self._turn:
            version = self.version()
            answer = self.get(key, lambda: None)
            if answer is None:
                answer = await in_slices(make())
                if version == self.version():
                    self.get(key, lambda: answer)
            return answer

    def get(self, key: Hashable, make: Callable[[], bytes | None]) -> bytes | None:
        """Returns the cached reply, or that of `make`. None is not cached."""
        version = self.version()
        if version != self._made_at or self._bytes > ENCODED_BYTES_MAX:
            self._answers.clear()
            self._made_at, self._bytes = version, 0
        answer = self._answers.get(key)
        if answer is None:
            answer = make()
            if answer is not None:
                self._answers[key] = answer
                self._bytes += len(answer)
        return answer


@dataclass(slots=True)
class Queries:
    """`clock`: monotonic ms. `listener`: answers have the addresses of brokers there. `serve_from_ms`: until
    then route requests are refused (needWaitForService)."""

    routes: RouteTable
    kv: KvStore
    settings: ConfigStore[NamesrvConfig]
    clock: Callable[[], int]
    listener: str = INTERNAL
    serve_from_ms: int = 0
    _encoded: EncodedAnswers = field(init=False)

    def __post_init__(self) -> None:
        self._encoded = EncodedAnswers(lambda: (self.routes.version, self.kv.version, self.settings.version))

    def bind(self, table: OperationTable) -> None:
        """Binds 105, 106, 206, 224, 304, 311, 312, 313 and 901."""
        table.bind(GET_ROUTEINFO_BY_TOPIC, self.get_route_info_by_topic)
        table.bind(GET_BROKER_CLUSTER_INFO, self.get_broker_cluster_info)
        table.bind(GET_BROKER_MEMBER_GROUP, self.get_broker_member_group)
        table.bind(GET_ALL_TOPIC_LIST, self.get_all_topic_list)
        table.bind(GET_TOPICS_BY_CLUSTER, self.get_topics_by_cluster)
        table.bind(GET_SYSTEM_TOPIC_LIST, self.get_system_topic_list)
        table.bind(GET_UNIT_TOPIC_LIST, self.get_unit_topic_list)
        table.bind(GET_HAS_UNIT_SUB_TOPIC_LIST, self.get_has_unit_sub_topic_list)
        table.bind(GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, self.get_has_unit_sub_ununit_topic_list)

    async def get_route_info_by_topic(self, request: RouteRequest, call: Call) -> Reply:
        """Returns the TopicRouteData of a topic (105), in the JSON dialect that the client reads.

        With alias entries (core/aliases.py) except for KeelMQ's own programs and clients, which read the
        route again as soon as a master is gone, and would list and count aliases as brokers.

        Raises CommandError: TOPIC_NOT_EXIST, or SYSTEM_ERROR before `serve_from_ms`.
        """
        self.check_ready()
        standard = call.version >= STRICT_JSON_SINCE or bool(request.accept_standard_json_only)
        zone = _zone(call.ext_fields)
        aliases = self.settings.current.route_aliases_enable and call.language != OUR_LANGUAGE

        def make() -> bytes | None:
            return self._route(request.topic, zone, standard=standard, aliases=aliases)

        raw = (
            make()
            if zone is not None
            else self._encoded.get(("route", request.topic, standard, aliases), make)
        )
        if raw is None:
            remark = f"No topic route info in name server for the topic: {request.topic}\n{NO_ROUTE_HELP}"
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, remark)
        return Reply(body=raw)

    async def get_broker_cluster_info(self, request: Empty, call: Call) -> Reply:
        """Returns all clusters and brokers (106). Number keys have no quotes, as in RocketMQ's reply."""
        make = lambda: legacy_json(body_bytes(self.routes.cluster_info(self.listener)))  # noqa: E731
        return Reply(body=self._encoded.get("clusters", make))

    async def get_broker_member_group(self, request: BrokerMemberGroupRequest, call: Call) -> Reply:
        """Returns the addresses of one brokerName by id (901); empty if it is unknown."""
        group = self.routes.member_group(request.cluster_name, request.broker_name, self.listener)
        return Reply(body=legacy_json(body_bytes(BrokerMemberGroupBody(broker_member_group=group))))

    async def get_all_topic_list(self, request: Empty, call: Call) -> Reply:
        """Returns the names of all topics (206). Raises CommandError: enableAllTopicList is false."""
        self.check_topic_list()
        return Reply(body=await self._encoded.made("topics", self.routes.topics))

    async def get_topics_by_cluster(self, request: ClusterRequest, call: Call) -> Reply:
        """Returns the topics of one cluster (224). Raises CommandError: enableTopicList is false."""
        _check_enabled(self.settings.current.enable_topic_list)
        return Reply(body=await in_slices(self.routes.topics_of_cluster(request.cluster)))

    async def get_system_topic_list(self, request: Empty, call: Call) -> Reply:
        """Returns the topics named after clusters and brokers, and one broker address (304)."""
        return Reply(body=self.routes.system_topics(self.listener))

    async def get_unit_topic_list(self, request: Empty, call: Call) -> Reply:
        """Returns the topics that belong to a unit (311). Raises CommandError: enableTopicList is false."""
        _check_enabled(self.settings.current.enable_topic_list)
        return Reply(body=await in_slices(self.routes.unit_topics()))

    async def get_has_unit_sub_topic_list(self, request: Empty, call: Call) -> Reply:
        """Returns the topics that a unit subscribes to (312). Raises CommandError, like 311."""
        _check_enabled(self.settings.current.enable_topic_list)
        return Reply(body=await in_slices(self.routes.unit_sub_topics()))

    async def get_has_unit_sub_ununit_topic_list(self, request: Empty, call: Call) -> Reply:
        """Returns the topics outside units that a unit subscribes to (313). Raises CommandError, like 311."""
        _check_enabled(self.settings.current.enable_topic_list)
        return Reply(body=await in_slices(self.routes.unit_sub_topics(outside_units=True)))

    def check_ready(self) -> None:
        """Raises CommandError before `serve_from_ms`."""
        if self.clock() < self.serve_from_ms:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "name server not ready")

    def check_topic_list(self) -> None:
        """Raises CommandError: enableAllTopicList is false."""
        _check_enabled(self.settings.current.enable_all_topic_list)

    def route(self, topic: str, *, aliases: bool = False) -> TopicRouteData | None:
        """Returns the route with the order configuration; None: no broker has the topic. A topic with an
        order configuration has no aliases."""
        ordered = aliases and self.kv.get(ORDER_TOPIC_CONFIG, topic) is not None
        route = self.routes.pick_up_route(topic, aliases=aliases and not ordered, listener=self.listener)
        if route is None or not self.settings.current.order_message_enable:
            return route
        return route.model_copy(update={"order_topic_conf": self.kv.get(ORDER_TOPIC_CONFIG, topic)})

    def _route(self, topic: str, zone: str | None, *, standard: bool, aliases: bool) -> bytes | None:
        route = self.route(topic, aliases=aliases)
        if route is None:
            return None
        raw = body_bytes(route if zone is None else in_zone(route, zone))
        return escaped_json(raw) if standard else legacy_json(raw)


def _check_enabled(enabled: bool) -> None:
    if not enabled:
        raise CommandError(ResponseCode.SYSTEM_ERROR, "disable")


def _zone(ext_fields: Mapping[str, str]) -> str | None:
    """Returns the sender's zone; None: it wants brokers of all zones."""
    zone = ext_fields.get(ZONE_NAME)
    return zone if zone and is_true(ext_fields.get(ZONE_MODE)) else None


def in_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Returns the route reduced to groups of this zone and groups without a master (ZoneRouteRPCHook)."""
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
