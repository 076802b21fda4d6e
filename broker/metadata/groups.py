"""Subscription groups: config/subscriptionGroup.json in memory.

A row has the group's settings and the topics that it must not read (RocketMQ keeps these in a second table in
the same file). Source: RocketMQ 5.3.3 SubscriptionGroupManager.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from broker.admission.auto_creation import AutoCreation
from broker.metadata.core.attributes import GROUP_ATTRIBUTES, alter, without_effect
from broker.metadata.core.table import Update, Version
from broker.metadata.encoded_rows import RowEncoder
from broker.metadata.file_store import FileStore
from broker.metadata.store import data_version
from keelmq.remoting.addresses import network_of_peer
from keelmq.remoting.body import body_bytes
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import decode_body
from keelmq.remoting.operation import CommandError, Peer
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig, SubscriptionGroups
from keelmq.runtime.clock import wall_ms

GROUP_BYTES_MAX: Final = 255
FORBIDDEN_READ: Final = 1
"""Bit of Group.forbidden: the group must not read the topic."""
_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
BUILT_IN: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONSAPI_OWNER",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_PULL",
    "CID_ONS-HTTP-PROXY",
    "CID_RMQ_SYS_TRANS",
)

POSITIONS: Final = frozenset({"CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_REVIVE_GROUP", "CID_RMQ_SYS_REVIVE_SETTLED"})
"""Groups whose offsets are the broker's own positions in its system topics. A client that moved them would
make the next master skip half messages, or unacknowledged popped messages."""


def refuse_position(group: str) -> None:
    """Raises CommandError if the group's offsets are positions of the broker."""
    if group in POSITIONS:
        remark = f"the group {group} belongs to the broker, which keeps its own positions as its offsets"
        raise CommandError(ResponseCode.NO_PERMISSION, remark)


def illegal_group(name: str) -> str | None:
    """Returns why a group must not have this name; None: it may."""
    if not name:
        return "the specified group is blank"
    if len(name.encode()) > GROUP_BYTES_MAX:
        return f"the specified group is longer than group max length {GROUP_BYTES_MAX}"
    if not _LEGAL_NAME.match(name):
        return "the specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


class Group(msgspec.Struct, frozen=True):
    """The settings of a group. forbidden: topic -> RocketMQ's bit set."""

    config: SubscriptionGroupConfig
    forbidden: Mapping[str, int] = msgspec.field(default_factory=dict)


class GroupTable(FileStore[Group]):
    """Groups are created by clients if auto_create is set (autoCreateSubscriptionGroup)."""

    name: ClassVar[str] = "groups"
    what: ClassVar[str] = "the table of subscription groups"

    def __init__(self, path: Path, *, auto_create: bool = True, clock: Callable[[], int] = wall_ms) -> None:
        super().__init__(path, clock=clock)
        self.auto_create = auto_create
        self.creation = AutoCreation("group", "autoCreateSubscriptionGroupMax", "mqadmin updateSubGroup")
        self.encoder = RowEncoder[Group](
            self.table.rows,
            lambda: self.data_version,
            lambda: self.table.version,
            lambda row, _: body_bytes(row.config),
        )

    # -- JSON --------------------------------------------------------------------------------------------

    def row_of(self, value: Any) -> Group:
        """Returns the row of {"config": SubscriptionGroupConfig, "forbidden": {topic: bits}}."""
        config = SubscriptionGroupConfig.model_validate(value["config"])
        return Group(config, {str(topic): int(bits) for topic, bits in value.get("forbidden", {}).items()})

    def json_of(self, row: Group) -> Any:
        """Returns the JSON that row_of() reads."""
        return {"config": _plain(row.config), "forbidden": dict(row.forbidden)}

    def read_file(self, value: Mapping[str, Any]) -> tuple[dict[str, Group], dict[str, int]]:
        """Returns the rows of subscriptionGroup.json; there are no tombstones."""
        groups = SubscriptionGroups.model_validate(value)
        rows = {
            name: Group(config, groups.forbidden_table.get(name, {}))
            for name, config in groups.subscription_group_table.items()
        }
        return rows, {}

    def file_of(self, rows: Mapping[str, Group], gone: Mapping[str, int], version: Version) -> dict[str, Any]:
        """Returns the content of subscriptionGroup.json."""
        return {
            "subscriptionGroupTable": self.texts(rows, lambda row: _plain(row.config)),
            "forbiddenTable": {
                name: dict(rows[name].forbidden) for name in sorted(rows) if rows[name].forbidden
            },
            "dataVersion": data_version(version).model_dump(by_alias=True),
        }

    def built_in(self) -> dict[str, Group]:
        """Returns RocketMQ's system groups, with default settings."""
        return {name: Group(SubscriptionGroupConfig(group_name=name)) for name in BUILT_IN}

    def forbidden(self) -> dict[str, dict[str, int]]:
        """Returns the bits of every group with forbidden topics: group -> topic -> RocketMQ's bit set."""
        found = {name: dict(row.forbidden) for name, row in self.table.rows.items() if row.forbidden}
        return dict(sorted(found.items()))

    def without_effect(self) -> dict[str, list[str]]:
        """Returns the attributes that this broker does not implement, by group."""
        found = {
            name: without_effect(GROUP_ATTRIBUTES, row.config.attributes)
            for name, row in self.table.rows.items()
            if row.config.attributes
        }
        return {f"group {name}": why for name, why in sorted(found.items()) if why}

    # -- use ---------------------------------------------------------------------------------------------

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        """Returns the settings; None: there is no such group."""
        row = self.table.rows.get(name)
        return None if row is None else row.config

    def find(self, name: str, peer: Peer | None = None) -> SubscriptionGroupConfig | None:
        """Returns the settings; creates the group if that is allowed. None: there is no such group. Raises
        OSError: a new one cannot be written; CommandError: clients, or this one, may create no more, or the
        group belongs to the broker."""
        refuse_position(name)
        row = self.table.rows.get(name)
        if row is not None:
            return row.config
        if not self.auto_create or illegal_group(name) or len(self.table.rows) >= self.rows_max:
            return None
        network = b"" if peer is None else network_of_peer(peer.address)
        refusal = self.creation.refuse(name, len(self.table.rows), network)
        if refusal is not None:
            raise CommandError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, refusal)
        self.change({name: Group(SubscriptionGroupConfig(group_name=name))})
        return self.get(name)

    def update(self, config: SubscriptionGroupConfig) -> Version:
        """Creates or replaces a group and returns the version with it; config.attributes are changes.
        Raises ValueError with the reason for a refusal."""
        row = self.table.rows.get(config.group_name)
        if row is None and len(self.table.rows) >= self.rows_max:
            raise ValueError(f"there are already {self.rows_max} groups: delete some")
        current = row.config.attributes if row is not None else {}
        attributes = alter(GROUP_ATTRIBUTES, current, config.attributes, creating=row is None)
        new = Group(config.model_copy(update={"attributes": attributes}), row.forbidden if row else {})
        if new == row:
            return self.table.version
        return self.change({config.group_name: new})

    def delete(self, name: str) -> Version:
        """Deletes the group and returns the version without it; an unknown group is no error."""
        return self.change({}, {name: 0}) if name in self.table.rows else self.table.version

    # -- a RocketMQ master's table -----------------------------------------------------------------------

    def adopt(self, body: SubscriptionGroups, source_epoch: int) -> str | None:
        """Adopts the whole table of a RocketMQ master. Returns why it was refused; None: it was adopted, or
        has no change."""
        version = Version(
            max(body.data_version.state_version, source_epoch),
            body.data_version.counter,
            body.data_version.timestamp,
        )
        if version == self.table.version:
            return None
        rows, _ = self.read_file(_plain(body))
        return self.accept(self.to_wire(Update(version, rows)))


def _plain(model: SubscriptionGroups | SubscriptionGroupConfig) -> dict[str, Any]:
    plain: dict[str, Any] = decode_body(dict[str, Any], body_bytes(model))
    return plain
