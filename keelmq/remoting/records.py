"""Telemetry records: the schemas that brokers, controllers and producers write, and analytics reads.

One JSON object per line, snake_case, "record" (its kind) and "v" first. Times are wall-clock ms UTC of the
writer; offsets are CommitLog bytes, comparable only within one master_epoch. Records never contain a message
body, a key or a secret. Readers ignore unknown fields; a change of a field's meaning increments
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
    """A replica as its master sees it, connected or not: one that has disconnected stays with its last
    ack_offset until the term ends. `lag_ms`: since it last had every byte; 0: it has them now."""

    broker_id: int
    ack_offset: int
    lag_ms: int
    in_sync: bool


class HaSample(Record, tag="ha_sample", frozen=True, kw_only=True):
    """Written by every broker once a second. max_offset and confirm_offset are from one instant.

    `lag_ms`: how long the oldest unconfirmed byte has waited; the `_max` fields: the worst value since the
    previous sample, so a spike between two samples is not lost. `role`: "master", "slave" or "none". Only a
    master knows the set and the replicas; otherwise they are empty.

    `lag_us` and `confirm_us` are histograms of what happened since the previous sample, as (bucket, count)
    pairs of log_buckets, by bucket: the age of the oldest unconfirmed byte, looked at in even intervals; and
    the time from append to confirm, of each confirmed append (the messages that one iteration of the event
    loop stored are one). Both in microseconds, of a master; empty: not measured, or none was confirmed.
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
    lag_us: tuple[tuple[int, int], ...] = ()
    confirm_us: tuple[tuple[int, int], ...] = ()


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

    `event_id`: its position in the log, the same at every controller. `log_id`: which log; controllers built
    anew begin another, whose event ids start again; "": an older writer. `type`: the event's name
    ("electMaster"), or "snapshot": the present state of the group, written at the start of every file, so
    that each hour can be read from its own file. `refused`: why apply() refused it; before and after are
    equal then. `reason`: for an election, why it was held; for a SyncStateSet, "caught_up", "lag" or "gone"
    (its broker was not active). `last_heartbeat_ts` and `detected_ts` only for an election that replaces a
    lost master.
    """

    event_id: int
    type: str
    controller_id: str
    log_id: str = ""
    before: GroupView | None = None
    after: GroupView | None = None
    refused: str | None = None
    reason: str = ""
    unclean: bool = False
    last_heartbeat_ts: int | None = None
    detected_ts: int | None = None


class SendGap(Record, tag="send_gap", frozen=True, kw_only=True):
    """A producer's view of a fail-over: from `started_ts` (the fault) until `ts`, no message sent after the
    fault was acknowledged. Times are of the producer's clock.

    `broker_id`: the lost master; 0: the producer does not know its id, so the group and the time say which
    fail-over it was. `program`: the producer's process; of the demo, the broker that it killed.
    """

    broker_id: int
    program: str
    started_ts: int
    gap_ms: int


class ClockSample(Record, tag="clock_sample", frozen=True, kw_only=True):
    """The active controller's comparison of a broker's clock with its own, over about a minute.

    `offset_ms`: the least (controller's clock at receipt - broker's clock at sending) of its heartbeats, so
    the broker's clock is behind by that much, except for the shortest transmission time.
    """

    broker_id: int
    controller_id: str
    offset_ms: int
    heartbeats: int


class ConsumerLag(Record, tag="consumer_lag", frozen=True, kw_only=True):
    """How far a consumer group is behind on one topic of a broker, all queues together, as its master sees.

    `lag_messages`: stored and not consumed. `lag_ms`: since the oldest of them was stored; 0: none is.
    """

    broker_id: int
    consumer_group: str
    topic: str
    lag_messages: int
    lag_ms: int


AnyRecord = HaSample | RoleChange | ControllerEvent | SendGap | ClockSample | ConsumerLag
RECORDS: tuple[type[Record], ...] = (
    HaSample,
    RoleChange,
    ControllerEvent,
    SendGap,
    ClockSample,
    ConsumerLag,
)


@cache
def name_of(record: type[Record]) -> str:
    """Returns the record's name, "ha_sample" for HaSample; also the folder of its files."""
    tag = record.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyRecord)


def encode_record(record: Record) -> bytes:
    """Returns the record as one line, with its newline."""
    return _encoder.encode(record) + b"\n"


def encode_records(records: Sequence[Record]) -> bytes:
    """Returns the lines of the records. Raises the errors of encode_record(), without naming the record."""
    return _encoder.encode_lines(records)


def decode_record(line: bytes) -> AnyRecord:
    """Returns the record in a line. Raises msgspec.DecodeError if the line is not one of these records."""
    decoded: AnyRecord = _decoder.decode(line)
    return decoded
