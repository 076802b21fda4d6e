"""Telemetry records: the schemas that brokers, controllers and producers write, and analytics reads.

One JSON object per line, snake_case, "record" (its kind) and "v" first. Times are wall-clock ms UTC of the
writer; offsets are CommitLog bytes and comparable only within one master_epoch. Never a message body, a key
or a secret. A reader ignores fields that it does not know; a changed meaning of a field raises
RECORD_VERSION.

Order controller events by (broker_name, event_id), never by ts: controllers' clocks differ. Every controller
writes every event, so readers drop duplicates by (broker_name, event_id, type).
"""

from collections.abc import Sequence
from functools import cache
from typing import Literal

import msgspec

RECORD_VERSION = 1


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="record"):
    """Base of all records. `ts`: when it happened."""

    v: int = RECORD_VERSION
    ts: int
    cluster_name: str
    broker_name: str


class ReplicaSample(msgspec.Struct, frozen=True, kw_only=True):
    """A connected replica as its master sees it. `lag_ms`: since it last had everything; 0: it has."""

    broker_id: int
    ack_offset: int
    lag_ms: int
    in_sync: bool


class HaSample(Record, tag="ha_sample", frozen=True, kw_only=True):
    """Every broker, once a second. max_offset and confirm_offset are of one instant.

    `lag_ms`: how long the oldest unconfirmed byte has waited; the `_max` fields: the worst since the sample
    before, so that a spike between two samples is not lost. `role`: "master", "slave" or "none". The set and
    the replicas are known to a master only, and empty otherwise.
    """

    broker_id: int
    role: Literal["master", "slave", "none"]
    master_epoch: int
    max_offset: int
    confirm_offset: int
    lag_ms: int = 0
    lag_ms_max: int = 0
    lag_bytes_max: int = 0
    sync_state_set: tuple[int, ...] = ()
    sync_state_set_epoch: int = 0
    min_in_sync_replicas: int = 1
    replicas: tuple[ReplicaSample, ...] = ()


class RoleChange(Record, tag="role_change", frozen=True, kw_only=True):
    """A broker finished a role change; as master it accepts messages from `ts` on.

    `truncated_bytes`: cut off the log by the change itself (half a message).
    """

    broker_id: int
    role: Literal["master", "slave"]
    master_epoch: int
    previous_role: Literal["master", "slave", "none"]
    previous_epoch: int
    started_ts: int
    max_offset: int
    confirm_offset: int
    truncated_bytes: int = 0


class GroupView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A broker group in the controller's replicated state."""

    master_broker_id: int | None
    master_epoch: int
    sync_state_set: tuple[int, ...]
    sync_state_set_epoch: int
    replicas: tuple[int, ...]


class ControllerEvent(Record, tag="controller_event", frozen=True, kw_only=True):
    """An event of the controllers' log, with its group before and after. `ts`: when it was proposed.

    `event_id`: its place in the log, the same at every controller. `type`: the event's name ("electMaster"),
    or "snapshot": the group as it is, written first into every file, so that an hour can be understood from
    its own file. `refused`: why apply() refused it; before and after are equal then. `reason`: for an
    election, why it was held; for a SyncStateSet, "caught_up", "lag" or "gone" (its broker was not active).
    `last_heartbeat_ts` and `detected_ts` only with an election that replaces a lost master.
    """

    event_id: int
    type: str
    controller_id: str
    before: GroupView | None = None
    after: GroupView | None = None
    refused: str | None = None
    reason: str = ""
    unclean: bool = False
    last_heartbeat_ts: int | None = None
    detected_ts: int | None = None


class SendGap(Record, tag="send_gap", frozen=True, kw_only=True):
    """A producer's view of a fail-over: from `started_ts` (the fault) until `ts` nothing that was started
    after the fault had been acknowledged. `broker_id`: the master that was lost; `program`: its process."""

    broker_id: int
    program: str
    started_ts: int
    gap_ms: int


AnyRecord = HaSample | RoleChange | ControllerEvent | SendGap
RECORDS: tuple[type[Record], ...] = (HaSample, RoleChange, ControllerEvent, SendGap)


@cache
def name_of(record: type[Record]) -> str:
    """ "ha_sample" of HaSample: the folder that holds its files."""
    tag = record.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyRecord)


def encode_record(record: Record) -> bytes:
    """One line, with its newline."""
    return _encoder.encode(record) + b"\n"


def encode_records(records: Sequence[Record]) -> bytes:
    """Their lines. Raises what encode_record() raises, and does not say for which of them."""
    return _encoder.encode_lines(records)


def decode_record(line: bytes) -> AnyRecord:
    """Raises msgspec.DecodeError for a line that is no record of ours."""
    decoded: AnyRecord = _decoder.decode(line)
    return decoded
