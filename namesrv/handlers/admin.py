"""Requests of operators: write permission and topics (205, 29056, 327, 216, 217), KV configuration (100, 101,
102, 219) and the name server's settings (318, 319).

The next registration with a changed topic table overwrites permissions and topics that were changed here.
"""

import logging
from collections.abc import Mapping

import msgspec

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.config_store import ConfigStore
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from keelmq.remoting.operations.namesrv_admin import (
    DELETE_KV_CONFIG,
    GET_KV_CONFIG,
    GET_KV_LIST_BY_NAMESPACE,
    GET_NAMESRV_CONFIG,
    PUT_KV_CONFIG,
    UPDATE_NAMESRV_CONFIG,
    GetKVConfigResponse,
    KVConfigKey,
    KVNamespaceRequest,
    NamesrvConfigResponse,
    PutKVConfigRequest,
)
from keelmq.remoting.operations.route import (
    ADD_WRITE_PERM_OF_BROKER,
    DELETE_TOPIC_IN_NAMESRV,
    EXPLAIN_WIPE_WRITE_PERM,
    REGISTER_TOPIC_IN_NAMESRV,
    WIPE_WRITE_PERM_OF_BROKER,
    AddWritePermResponse,
    DeleteTopicRequest,
    RegisterTopicRequest,
    RouteBrokerNameRequest,
    TopicRouteData,
    WipeWritePermResponse,
)
from keelmq.runtime.config import to_properties
from keelmq.runtime.program import installed_version
from keelmq.runtime.slices import in_slices
from namesrv.config import NamesrvConfig
from namesrv.core.broker_topics import PermChange
from namesrv.core.routes import RouteTable
from namesrv.kv_store import KvStore

log = logging.getLogger(__name__)


class TopicAdmin(msgspec.Struct, frozen=True):
    """Write permission and topics."""

    routes: RouteTable

    def bind(self, table: OperationTable) -> None:
        """Binds write permissions (205, 29056, 327), deletion (216) and registration (217) of topics."""
        table.bind(WIPE_WRITE_PERM_OF_BROKER, self.wipe_write_perm)
        table.bind(EXPLAIN_WIPE_WRITE_PERM, self.explain_wipe)
        table.bind(ADD_WRITE_PERM_OF_BROKER, self.add_write_perm)
        table.bind(DELETE_TOPIC_IN_NAMESRV, self.delete_topic)
        table.bind(REGISTER_TOPIC_IN_NAMESRV, self.register_topic)

    async def wipe_write_perm(self, request: RouteBrokerNameRequest, call: Call) -> WipeWritePermResponse:
        """Removes the write permission of every topic at a broker (205). Returns how many it has."""
        change = self.routes.wipe_write_perm(request.broker_name)
        _tell_permissions("wiped the write permission of", request.broker_name, change, call)
        return WipeWritePermResponse(wipe_topic_count=change.topics)

    async def explain_wipe(self, request: RouteBrokerNameRequest, call: Call) -> Reply:
        """Returns which topics 205 would change now, and changes none (29056)."""
        count = self.routes.topic_count(request.broker_name)
        explanation = await in_slices(self.routes.explain_wipe(request.broker_name))
        return Reply(WipeWritePermResponse(wipe_topic_count=count), explanation)

    async def add_write_perm(self, request: RouteBrokerNameRequest, call: Call) -> AddWritePermResponse:
        """Adds read and write permission to every topic at a broker (327). Returns how many it has."""
        change = self.routes.add_write_perm(request.broker_name)
        _tell_permissions("added the write permission to", request.broker_name, change, call)
        return AddWritePermResponse(add_topic_count=change.topics)

    async def delete_topic(self, request: DeleteTopicRequest, call: Call) -> Empty:
        """Removes a topic from the routes of one cluster, or of all (DELETE_TOPIC_IN_NAMESRV, 216)."""
        before = self.routes.brokers_of(request.topic)
        self.routes.delete_topic(request.topic, request.cluster_name)
        call.changes[f"brokers of topic {request.topic}"] = before, self.routes.brokers_of(request.topic)
        log.info(
            "%s: deleted topic %s in %s", call.peer.address, request.topic, request.cluster_name or "all"
        )
        return Empty()

    async def register_topic(self, request: RegisterTopicRequest, call: Call) -> Empty:
        """Adds a topic (217). A topic that is refused gets success, as RocketMQ's: brokers ignore the
        reply."""
        route: TopicRouteData | None = call.body
        before = self.routes.brokers_of(request.topic)
        if route is not None:
            problem = self.routes.register_topic(request.topic, route.queue_datas)
            if problem is not None:
                log.warning("%s: topic %s is ignored: %s", call.peer.address, request.topic[:200], problem)
        call.changes[f"brokers of topic {request.topic}"] = before, self.routes.brokers_of(request.topic)
        return Empty()


def _tell_permissions(what: str, broker_name: str, change: PermChange, call: Call) -> None:
    more = change.changed - len(change.before)
    rest: Mapping[str, object] = {"...": f"{more} more"} if more else {}
    call.changes[f"perm of topics at {broker_name}"] = change.before, {**change.after, **rest}
    log.info("%s: %s %d topics of %s", call.peer.address, what, change.topics, broker_name)


class KvAdmin(msgspec.Struct, frozen=True):
    """The KV configuration."""

    kv: KvStore

    def bind(self, table: OperationTable) -> None:
        """Binds the KV configuration: put (100), get (101), delete (102), list a namespace (219)."""
        table.bind(PUT_KV_CONFIG, self.put)
        table.bind(GET_KV_CONFIG, self.get)
        table.bind(DELETE_KV_CONFIG, self.delete)
        table.bind(GET_KV_LIST_BY_NAMESPACE, self.list_namespace)

    async def put(self, request: PutKVConfigRequest, call: Call) -> Empty:
        """Sets a key (100), durably. Raises CommandError: no namespace or key, or not stored."""
        if request.namespace is None or request.key is None:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        before = self.kv.get(request.namespace, request.key)
        await self.kv.change(request.namespace, request.key, request.value)
        call.changes["value"] = before, request.value
        log.info("%s: KV %s %s = %s", call.peer.address, request.namespace, request.key, request.value)
        return Empty()

    async def get(self, request: KVConfigKey, call: Call) -> GetKVConfigResponse:
        """Returns the value of a key (101). Raises CommandError QUERY_NOT_FOUND: it is not set."""
        value = self.kv.get(request.namespace, request.key)
        if value is None:
            remark = f"No config item, Namespace: {request.namespace} Key: {request.key}"
            raise CommandError(ResponseCode.QUERY_NOT_FOUND, remark)
        return GetKVConfigResponse(value=value)

    async def delete(self, request: KVConfigKey, call: Call) -> Empty:
        """Deletes a key (102), durably. Safe to repeat. Raises CommandError: not stored."""
        before = self.kv.get(request.namespace, request.key)
        await self.kv.change(request.namespace, request.key, None)
        call.changes["value"] = before, None
        log.info("%s: KV %s %s deleted", call.peer.address, request.namespace, request.key)
        return Empty()

    async def list_namespace(self, request: KVNamespaceRequest, call: Call) -> Reply:
        """Returns every key of a namespace (219). Raises CommandError QUERY_NOT_FOUND: no such namespace."""
        table = self.kv.tables.get(request.namespace)
        if table is None:
            remark = f"No config item, Namespace: {request.namespace}"
            raise CommandError(ResponseCode.QUERY_NOT_FOUND, remark)
        return Reply(body={"table": table})


class ConfigAdmin(msgspec.Struct, frozen=True):
    """The name server's settings."""

    settings: ConfigStore[NamesrvConfig]

    def bind(self, table: OperationTable) -> None:
        """Binds UPDATE_NAMESRV_CONFIG (318) and GET_NAMESRV_CONFIG (319)."""
        table.bind(UPDATE_NAMESRV_CONFIG, self.update)
        table.bind(GET_NAMESRV_CONFIG, self.get)

    async def update(self, request: Empty, call: Call) -> Reply:
        """Changes settings from key=value lines, all of them or none (318). Raises CommandError: refused."""
        return Reply(remark=await self.settings.update(call.raw_body, call.changes))

    async def get(self, request: Empty, call: Call) -> Reply:
        """Returns the settings in force as key=value lines (319)."""
        header = NamesrvConfigResponse(keelmq_version=installed_version())
        return Reply(header, to_properties(self.settings.current).encode())
