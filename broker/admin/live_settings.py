"""The settings of a running broker: returned (26) and changed (25).

Most parts read a setting from the broker's one BrokerConfig each time they need it, and that object takes
over the new values (Config.become). Parts that keep a copy are updated here. A key that is only read at the
start is refused with that reason, so a broker never accepts a change without effect.
"""

import json
import logging
from collections.abc import Callable, Mapping

from broker.admission.send_gate import SendGate
from broker.config.broker_config import BrokerConfig
from broker.core.durability import guarantees
from broker.metadata.groups import GroupTable
from broker.metadata.topics import AUTO_CREATE_TOPIC, TopicTable
from keelmq.remoting.config_store import ConfigSources, ConfigStore, Settings
from keelmq.remoting.operation import Call, Empty, OperationTable, Reply
from keelmq.remoting.operations.broker import GET_BROKER_CONFIG, BrokerConfigResponse
from keelmq.remoting.operations.broker_admin import UPDATE_BROKER_CONFIG
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.config import to_properties

logger = logging.getLogger(__name__)


class LiveSettings:
    """Handlers of 25 and 26."""

    def __init__(
        self,
        config: BrokerConfig,
        config_sources: ConfigSources,
        *,
        topics: TopicTable,
        groups: GroupTable,
        gate: SendGate,
        detected: Callable[[], Mapping[str, str]],
        on_change: Callable[[], None],
    ) -> None:
        """config: of the broker; changes are applied to it. config_sources: where its values came from.
        detected: returns keys that were detected or chosen (addresses, ports), with their current values.
        on_change: called when the configuration has new values."""
        self._on_change = on_change
        self._config, self._topics, self._groups, self._gate = config, topics, groups, gate
        self._detected = detected
        self._store: ConfigStore[BrokerConfig] = ConfigStore(
            config.model_copy(),
            path=config_sources.path,
            environ=config_sources.environ,
            overrides=config_sources.overrides,
            on_change=self._changed,
        )
        self._changed_ms = 0

    def bind(self, table: OperationTable) -> None:
        """Binds 25 (UPDATE_BROKER_CONFIG) and 26 (GET_BROKER_CONFIG)."""
        table.bind(UPDATE_BROKER_CONFIG, self.update)
        table.bind(GET_BROKER_CONFIG, self.get)

    def view(self, table: OperationTable) -> Settings:
        """Returns the settings that HTTP shows and changes. table: it has the bindings of these handlers."""
        return Settings(
            program="mqbroker",
            current=lambda: self._config,
            at_run_time=self._config.AT_RUN_TIME,
            sources=lambda: self._store.sources,
            table=table,
            update=UPDATE_BROKER_CONFIG,
        )

    async def get(self, header: Empty, call: Call) -> Reply:
        """Returns the current settings as key=value lines, and their DataVersion in the header (26)."""
        version = {"counter": self._store.version, "stateVersion": 0, "timestamp": self._changed_ms}
        text = json.dumps(version, separators=(",", ":"))
        return Reply(header=BrokerConfigResponse(version=text), body=self._properties().encode())

    async def update(self, header: Empty, call: Call) -> Reply:
        """Changes all given settings or none (25). Raises CommandError if one is refused. The remark warns of
        a change that weakens the guarantee of an acknowledgement, or that stops writes, and of settings that
        are now inconsistent."""
        before, refusing = list(guarantees(self._config.durability)), self._gate.refuse_few_replicas()
        warned = self._config.warnings()
        remark = await self._store.update(call.raw_body, call.changes)
        now, refused = list(guarantees(self._config.durability)), self._gate.refuse_few_replicas()
        notes = [] if remark is None else [remark]
        notes += [f"now {line}" for line in now if line not in before and line.startswith("RPO")]
        warnings = [line for line in self._config.warnings() if line not in warned]
        for line in warnings:
            logger.warning("%s", line)
        notes += [f"warning: {line}" for line in warnings]
        if refused is not None and refusing is None and self._gate.writable:
            notes.append(f"messages are refused from now on: {refused.remark}")
        return Reply(remark="; ".join(notes) or None)

    def _properties(self) -> str:
        """Returns key=value lines, sorted, with detected values in place of the configured ones."""
        detected = self._detected()
        configured = (line for line in to_properties(self._config).splitlines())
        lines = [line for line in configured if line.partition("=")[0] not in detected]
        lines += [f"{key}={value}" for key, value in detected.items()]
        return "".join(f"{line}\n" for line in sorted(lines))

    def _changed(self) -> None:
        now, permission = self._store.current, self._config.broker_permission
        self._changed_ms = wall_ms()
        self._config.become(now)
        self._groups.auto_create = now.auto_create_subscription_group
        self._topics.default_queue_nums = now.default_topic_queue_nums
        self._topics.auto_create = now.auto_create_topic_enable
        if self._config.has_ha_port:
            self._gate.min_in_sync = now.min_in_sync_replicas
        self._on_change()
        try:
            self._register_topics(permission_changed=permission != now.broker_permission)
        except OSError as error:  # the setting is applied and stored; name servers get it later
            logger.error("cannot write %s: %s", error.filename or self._topics.path, error)

    def _register_topics(self, *, permission_changed: bool) -> None:
        """Gives a master's topic table a new version if the name servers must read it again: they ignore a
        registration with a known version."""
        if not self._gate.writable:
            return
        topics = self._topics
        if topics.auto_create and topics.get(AUTO_CREATE_TOPIC) is None:
            topics.update(topics.built_in()[AUTO_CREATE_TOPIC])
        elif permission_changed:
            topics.change({})
