"""The forms of the programs' HTTP answers, as far as the verdicts read them: /v1/health of a name server or
controller, and /v1/groups. Another program may listen at an address, or another release answer. So a value is
checked once, where it is read; a value of another form is reported, and not used."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

Number = int | None
LATEST_S: Final = int(datetime(9999, 1, 1).timestamp())
CHARS_MAX: Final = 200


class _Raft(msgspec.Struct, rename="camel"):
    running: bool | None = None
    role: str | None = None
    term: Number = None
    commit_index: Number = None
    last_applied: Number = None
    connected: list[str] | None = None
    other_member_lists: list[str] | None = None
    refused_connections: dict[str, int] | None = None
    certificate_fault: str | None = None
    certificate_ends: float | None = None


class _Telemetry(msgspec.Struct):
    fault: str | None = None


class _Controller(msgspec.Struct):
    address: str | None = None
    active: bool | None = None
    raft: _Raft | None = None
    telemetry: _Telemetry | None = None


class _Plugins(msgspec.Struct):
    controller: _Controller | None = None


class Health(msgspec.Struct):
    """/v1/health and /readyz."""

    ready: bool | None = None
    reasons: list[str | dict[str, str | None]] | None = None
    plugins: _Plugins | None = None


class _Replica(msgspec.Struct, rename="camel"):
    broker_id: int
    address: str
    in_sync: bool | None = None
    alive: bool | None = None
    heartbeat_age_ms: Number = None
    epoch: Number = None
    max_offset: Number = None
    confirm_offset: Number = None
    lag_bytes: Number = None


class _Election(msgspec.Struct, rename="camel"):
    ts: Number = None
    master_broker_id: Number = None
    master_epoch: int = 0
    reason: str | None = None


class _Group(msgspec.Struct, rename="camel"):
    broker_name: str
    cluster: str | None = None
    master_broker_id: Number = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    replicas: list[_Replica] = []
    disagreements: list[str] | None = None
    without_live_master: str | None = None
    last_election: _Election | None = None


class Groups(msgspec.Struct):
    """/v1/groups."""

    groups: list[_Group] = []


def fault_of(value: object, form: type[Health | Groups]) -> str:
    """Returns where the JSON value has another form, in one line; "": it has this one."""
    try:
        found = msgspec.convert(value, form)
    except (msgspec.ValidationError, RecursionError) as error:
        return str(error)[:CHARS_MAX].replace("`", "'")
    plugins = found.plugins if isinstance(found, Health) else None
    raft = plugins.controller.raft if plugins is not None and plugins.controller is not None else None
    if raft is not None and not 0 <= (raft.certificate_ends or 0) <= LATEST_S:
        return "certificateEnds is no time"
    return ""


def groups_of(value: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the groups of /v1/groups by name, after fault_of()."""
    return {each["brokerName"]: each for each in value.get("groups", ())}
