"""The settings of a broker while it runs: shown (26), changed (25), and put into force.

Most parts read a setting from the broker's one BrokerConfig each time they need it; that object takes over
the new values (Config.become). What keeps a value of its own is told here. Keys that are read at start only
are refused, with that reason: a broker never says yes to a change that it does not make.
"""

import json
import logging
from typing import TYPE_CHECKING

from broker.announcement import properties_of
from broker.config import BrokerConfig
from broker.handlers.admin import BrokerHandlers
from broker.topics import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE
from remoting.clock import wall_ms
from remoting.config_store import ConfigStore
from remoting.operation import Call, Empty, OperationTable, Reply
from remoting.operations.broker import GET_BROKER_CONFIG, BrokerConfigResponse
from remoting.operations.broker_admin import UPDATE_BROKER_CONFIG

if TYPE_CHECKING:
    from broker.app import Broker

logger = logging.getLogger(__name__)


class LiveSettings:
    def __init__(self, broker: "Broker", handlers: BrokerHandlers) -> None:
        self._broker, self._handlers, given = broker, handlers, broker.given
        self._store: ConfigStore[BrokerConfig] = ConfigStore(
            broker.config.model_copy(),
            path=given.path,
            environ=given.environ,
            overrides=given.overrides,
        )
        self._store.on_change = self._changed
        self._changed_ms = 0

    def bind(self, table: OperationTable) -> None:
        table.bind(UPDATE_BROKER_CONFIG, self.update)
        table.bind(GET_BROKER_CONFIG, self.get)

    async def get(self, header: Empty, call: Call) -> Reply:
        version = {"counter": self._store.version, "stateVersion": 0, "timestamp": self._changed_ms}
        text = json.dumps(version, separators=(",", ":"))
        return Reply(header=BrokerConfigResponse(version=text), body=properties_of(self._broker).encode())

    async def update(self, header: Empty, call: Call) -> Reply:
        return Reply(remark=await self._store.update(call.raw_body))

    def _changed(self) -> None:
        broker, now = self._broker, self._store.current
        permission = broker.config.broker_permission
        self._changed_ms = wall_ms()
        broker.config.become(now)
        broker.metadata.groups.auto_create = now.auto_create_subscription_group
        broker.topics.default_queue_nums = now.default_topic_queue_nums
        broker.topics.auto_create = now.auto_create_topic_enable
        if broker.controlled is not None:
            broker.gate.min_in_sync = now.min_in_sync_replicas
        self._handlers.configure(
            message_bytes_max=now.max_message_size,
            readable=bool(now.broker_permission & PERM_READ),
            permits_write=bool(now.broker_permission & PERM_WRITE),
            flush_timeout_ms=now.sync_flush_timeout,
        )
        try:
            self._announce(permission_changed=permission != now.broker_permission)
        except OSError as error:  # the setting is in force and kept; name servers hear of it later
            logger.error("cannot write %s: %s", error.filename or broker.topics.path, error)

    def _announce(self, *, permission_changed: bool) -> None:
        """Name servers look at a registration only if its topic table has a new version; a master's has."""
        broker = self._broker
        if not broker.gate.writable:
            return
        topics = broker.topics
        if topics.auto_create and topics.get(AUTO_CREATE_TOPIC) is None:
            topics.update(topics.built_in()[AUTO_CREATE_TOPIC])
        elif permission_changed:
            topics.change({})
