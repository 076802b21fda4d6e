"""The history of a run: the operations of clients, the faults and the state of the cluster, in one file.

One JSON object per line, in the order in which it was seen by one process with one monotonic clock; `t` is
microseconds since the run began. An operation is two lines, `invoke` and its end: `ok`; `fail` (it certainly
did not happen); `info` (unknown). At the end follow entries from telemetry and disks.
A message is known by its number: (sender, count) in one integer, see make_number.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, Self

import msgspec

from keelmq.remoting.records import ControllerEvent, HaSample, RoleChange

SENDER_STEP = 1_000_000_000
DAMAGED = -1
"""The number of a message that was read, but was not sent by the run, or is damaged."""

LOOP_BUDGET_MS = 50

End = Literal["ok", "fail", "info"]
Phase = Literal["invoke", "ok", "fail", "info"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="entry", omit_defaults=True, gc=False):
    t: int
    by: str = ""


class Run(Entry, tag="run", frozen=True, kw_only=True):
    """First line. `wall_ms`: the wall clock at t = 0."""

    seed: int
    wall_ms: int
    settings: dict[str, str] = {}


class Send(Entry, tag="send", frozen=True, kw_only=True):
    """`ordered`: its sender waits for the end of a send before the next. `queue`: None until the broker says.
    `uncertain`: attempts of this send that may have stored another copy."""

    type: Phase
    number: int
    ordered: bool = False
    queue: int | None = None
    offset: int | None = None
    attempts: int = 1
    uncertain: int = 0
    remark: str = ""


class Read(Entry, tag="read", frozen=True, kw_only=True):
    """`messages`: (queue offset, number). `final`: read at the end, when all faults were healed."""

    type: Phase
    queue: int
    start: int
    messages: tuple[tuple[int, int], ...] = ()
    final: bool = False
    remark: str = ""


class Batch(Entry, tag="batch", frozen=True, kw_only=True):
    """One batch of full load: `count` messages of one queue in one request. Its sender waits for the end of a
    batch before the next one. `offset`: queue offset of its first message."""

    type: Phase
    sender: int
    batch: int
    count: int
    queue: int
    offset: int | None = None
    attempts: int = 1
    uncertain: int = 0
    remark: str = ""


class BatchRead(Entry, tag="batch read", frozen=True, kw_only=True):
    """Messages of full load that were read. `runs`: (queue offset of the first, sender, batch, position of
    the first in its batch, how many) with consecutive offsets and positions; sender DAMAGED: a body whose
    checksum is wrong. `final`: read at the end, and `runs` has all messages; else only the damaged ones."""

    queue: int
    read: int
    runs: tuple[tuple[int, int, int, int, int], ...] = ()
    final: bool = False


class Damage(Entry, tag="damage", frozen=True, kw_only=True):
    """The change that a fault made to a file of a replica. `start`, `length`: in bytes of the file; of a
    flipped bit, its byte."""

    program: str
    kind: str
    file: str
    start: int
    length: int


class Scrub(Entry, tag="scrub", frozen=True, kw_only=True):
    """The check of a replica's files at the end, when its program had ended: records read, and faults.
    `unhealed`: damage of this run that is still there."""

    program: str
    records: int
    faults: tuple[str, ...] = ()
    unhealed: tuple[str, ...] = ()


class Commit(Entry, tag="commit", frozen=True, kw_only=True):
    """An offset that a consumer commits at the master. Each group has one consumer."""

    type: Phase
    group: str
    queue: int
    offset: int
    remark: str = ""


class Fetch(Entry, tag="fetch", frozen=True, kw_only=True):
    """A query of a group's committed offset at the master; None: it has none."""

    type: Phase
    group: str
    queue: int
    offset: int | None = None
    remark: str = ""


class Subscribe(Entry, tag="subscribe", frozen=True, kw_only=True):
    """A gRPC consumer has received nothing from the topic, and so every message that is sent from now on."""

    group: str


class Receive(Entry, tag="receive", frozen=True, kw_only=True):
    """The messages that a gRPC consumer has received with one call."""

    group: str
    numbers: tuple[int, ...]


class Acknowledge(Entry, tag="acknowledge", frozen=True, kw_only=True):
    """The messages that a gRPC consumer acknowledges with one call. ok: the answer says so; info: it is
    unknown whether they are acknowledged. A refused one is not here: its message comes again."""

    type: Literal["ok", "info"]
    group: str
    numbers: tuple[int, ...]


class Fault(Entry, tag="fault", frozen=True, kw_only=True):
    """start: about to be injected; placed: in effect; end: healed. `kinds`: one, or several at once."""

    phase: Literal["start", "placed", "end"]
    number: int
    kinds: tuple[str, ...]
    targets: tuple[str, ...] = ()
    master: str = ""


class View(Entry, tag="view", frozen=True, kw_only=True):
    """The state that the controllers report; written when it changes."""

    master: str
    master_epoch: int
    sync_state_set: tuple[int, ...]
    leader: str


class Exit(Entry, tag="exit", frozen=True, kw_only=True):
    """A program has ended that was not killed. `excused`: its disk was full, and it reported that."""

    program: str
    code: int
    excused: bool = False


class Role(Entry, tag="role", frozen=True, kw_only=True):
    """A broker acted as master of this epoch, by its own telemetry."""

    broker_id: int
    master_epoch: int


class Event(Entry, tag="event", frozen=True, kw_only=True):
    """An event of the controllers' log as one of them applied it."""

    controller: str
    event_id: int
    type: str
    after: str


class Log(Entry, tag="log", frozen=True, kw_only=True):
    """A replica's CommitLog on its disk at the end. `begin`: the offset of its first byte. `crc`: CRC-32 from
    the greatest `begin` of all replicas up to the offset `bytes`; None: the log does not have all of it."""

    program: str
    bytes: int
    crc: int | None
    begin: int = 0


class LongTurn(Entry, tag="long_turn", frozen=True, kw_only=True):
    """A program's event loop used more CPU time than LOOP_BUDGET_MS without a turn, by its log. `at`: the
    callback's stack."""

    program: str
    cpu_ms: int
    at: str


class Stuck(Entry, tag="stuck", frozen=True, kw_only=True):
    """The cluster did not recover from faults in time."""

    what: str


AnyEntry = (
    Run | Send | Read | Batch | BatchRead | Damage | Scrub | Commit | Fetch | Fault | View | Exit | Role
    | Event | Log | LongTurn | Stuck | Subscribe | Receive | Acknowledge
)  # fmt: skip

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEntry)


class HistoryError(Exception):
    """The file is not a history; the text says where it differs."""


class History:
    """Appends entries to a file, which is flushed at each fault. `t` comes from the caller's clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = path.open("wb", buffering=1 << 20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, entry: AnyEntry) -> None:
        """Appends an entry. A Fault also flushes the file. Does nothing after close()."""
        if self._file is not None:
            self._file.write(_encoder.encode(entry) + b"\n")
            if isinstance(entry, Fault):
                self._file.flush()

    def close(self) -> None:
        """Writes the rest and closes the file. May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_history(path: Path) -> list[AnyEntry]:
    """Returns the entries; an incomplete last line (the run was killed) is skipped. HistoryError: not an
    entry."""
    entries: list[AnyEntry] = []
    lines = path.read_bytes().split(os.linesep.encode())
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            entries.append(_decoder.decode(line))
        except msgspec.DecodeError as error:
            if number == len(lines):
                break
            raise HistoryError(f"{path}, line {number}: {error}") from None
    return entries


def make_number(sender: int, count: int) -> int:
    """Returns the number of a sender's message. `count`: of its earlier messages, below SENDER_STEP."""
    return sender * SENDER_STEP + count


def sender_of(number: int) -> int:
    """Returns the sender of a message number."""
    return number // SENDER_STEP


def entries_of(records: Iterator[object], began_wall_ms: int) -> Iterator[AnyEntry]:
    """Yields what telemetry records contain about masters and about the controllers' log."""
    seen: set[tuple[int, int]] = set()
    for record in records:
        if isinstance(record, RoleChange | HaSample) and record.role == "master":
            claim = (record.broker_id, record.master_epoch)
            if claim not in seen:
                seen.add(claim)
                t = (record.ts - began_wall_ms) * 1_000
                yield Role(t=t, broker_id=record.broker_id, master_epoch=record.master_epoch)
        elif isinstance(record, ControllerEvent) and record.type != "snapshot":
            yield Event(
                t=(record.ts - began_wall_ms) * 1_000,
                controller=record.controller_id,
                event_id=record.event_id,
                type=record.type,
                after=msgspec.json.encode([record.after, record.refused]).decode(),
            )
