"""What must be true of every run of a whole group, seen from outside: by producers, consumers and
administrators in their answers, and on the disks of the replicas. Every judge is tested on bad histories.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.message.record import HEADER_BYTES, decode, parse
from tests.sim.checkers import Violation

PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class Acked:
    """A message whose producer was told that it is stored."""

    body: bytes
    offset: int
    topic: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True)
class LeftOut:
    """What a broker says that it left out when it became the master, where its log ended `at` (ADR 62, 5).
    unread: begin, end and bytes of each range without a readable header. next_offsets: the queues that go on
    behind the gap, and where."""

    at: int
    unread: tuple[tuple[int, int, bytes], ...]
    next_offsets: Mapping[tuple[str, int], int]


class LogView:
    """A replica's CommitLog, as far as a judge reads it."""

    min_offset: int

    def view(self, offset: int, limit: int, *, end: int | None = None) -> memoryview:
        raise NotImplementedError


@dataclass
class Judge:
    """`sent`: the bodies of all messages; empty: not known. `log`: the one history of bytes that were
    confirmed anywhere. `late`: acknowledgements that came after another election; only settings that may lose
    older ones ask for them. `deleted`: the end of what retention has deleted anywhere; no log may begin
    behind it, and what it has from there on is judged. `left_out`: by promotions with a damaged header."""

    acked: list[Acked] = field(default_factory=list)
    sent: set[bytes] = field(default_factory=set)
    masters: dict[int, str] = field(default_factory=dict)
    log: bytearray = field(default_factory=bytearray)
    deleted: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    seen: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)

    # -- what clients were told --------------------------------------------------------------------------

    def consumed(self, topic: str, queue_id: int, queue_offset: int, body: bytes) -> None:
        if self.sent and body not in self.sent:
            raise Violation(f"offset {queue_offset} of queue {topic}/{queue_id} is {body!r}: nobody sent it")
        before = self.seen.setdefault((topic, queue_id, queue_offset), body)
        if before != body:
            raise Violation(
                f"offset {queue_offset} of queue {topic}/{queue_id} was {before!r} and is {body!r} now"
            )

    # -- what replicas have ------------------------------------------------------------------------------

    def confirmed(self, name: str, log: LogView, begin: int, end: int) -> None:
        """Bytes begin..end, as far as they are kept, are confirmed at `name`: nobody may say otherwise."""
        self.begins(name, log)
        at = max(begin, log.min_offset)
        while at < end:
            piece = bytes(log.view(at, PIECE_BYTES, end=end))
            if not piece:
                raise Violation(f"{name} confirms up to {end}, and its log cannot be read at {at}")
            if at > len(self.log):
                raise Violation(f"{name} confirms from {at} on; nobody has confirmed {len(self.log)}..{at}")
            known = self.log[at : at + len(piece)]
            if piece[: len(known)] != known:
                where = next(
                    i for i, (one, other) in enumerate(zip(piece, known, strict=False)) if one != other
                )
                raise Violation(f"{name} confirms other bytes at {at + where} than were confirmed before")
            if at + len(piece) > len(self.log):
                self.log[at:] = piece
            at += len(piece)

    def begins(self, who: str, log: LogView) -> None:
        if log.min_offset > self.deleted:
            raise Violation(f"{who} begins at {log.min_offset}; retention has deleted {self.deleted} only")

    def began(self, name: str, epoch: int, log: LogView, *, is_newest: bool = True) -> None:
        """`name` takes itself for the master of `epoch` from now on. Not the newest: another one has been
        elected since, and it has not heard of that; it lacks what that one acknowledges."""
        owner = self.masters.setdefault(epoch, name)
        if owner != name:
            raise Violation(f"masterEpoch {epoch} has two masters: {owner} and {name}")
        if is_newest:
            self.has_all(f"{name}, master of epoch {epoch},", log)

    def has_all(self, who: str, log: LogView) -> None:
        self.begins(who, log)
        for each in self.acked:
            if each.offset >= log.min_offset and self.read(log, each.offset) != each.body:
                raise Violation(f"{who} lacks {each}")

    @staticmethod
    def read(log: LogView, offset: int) -> bytes | None:
        """The body of the record at offset; None: there is none."""
        view = log.view(offset, PIECE_BYTES)
        parsed = parse(view, 0, len(view), offset=offset)
        return decode(view[: parsed[0]]).body if parsed is not None and parsed[1] else None

    def has_metadata(
        self, who: str, topics: dict[str, int], groups: set[str], offsets: dict[tuple[str, str, int], int]
    ) -> None:
        """S3: what an administrator or a consumer was told to be done."""
        for name, queues in self.topics.items():
            if topics.get(name) != queues:
                raise Violation(f"{who} has topic {name} with {topics.get(name)} queues, not {queues}")
        if lost := self.groups - groups:
            raise Violation(f"{who} lacks the groups {sorted(lost)}")
        for key, offset in self.offsets.items():
            if offsets.get(key, -1) < offset:
                raise Violation(f"{who} has offset {offsets.get(key)} of {key}, {offset} was acknowledged")

    # -- the end -----------------------------------------------------------------------------------------

    def queue_offsets(self, who: str, log: LogView, end: int) -> Counter[tuple[str, int]]:
        """Each queue counts 0, 1, 2... in the order of the log: none twice, none left out (S4), unless a
        promotion had to. What this log has deleted is counted as it was confirmed."""
        next_offsets: Counter[tuple[str, int]] = Counter()
        at = 0
        while at < end:
            if at < log.min_offset:
                view = memoryview(bytes(self.log[at : min(at + PIECE_BYTES, log.min_offset)]))
            else:
                view = log.view(at, PIECE_BYTES, end=end)
            parsed = parse(view, 0, len(view), offset=at)
            if parsed is None:
                raise Violation(f"{who}: no record at {at}, its log ends at {end}")
            if parsed[1]:
                key = parsed[1].decode(), parsed[2]
                if parsed[3] != next_offsets[key] and not self.has_gap(key, at, next_offsets[key], parsed[3]):
                    raise Violation(
                        f"{who}: record {at} has offset {parsed[3]} of queue {key}, not {next_offsets[key]}"
                    )
                next_offsets[key] = parsed[3] + 1
            at += parsed[0]
        return next_offsets

    def has_gap(self, key: tuple[str, int], at: int, wanted: int, found: int) -> bool:
        """Whether a record at `at` may be the first one behind a gap: exactly the promised number, and not
        more are left out than the bytes that are really damaged can have had."""
        for each in self.left_out:
            if at >= each.at and each.next_offsets.get(key) == found:
                damaged = [(begin, end) for begin, end, raw in each.unread if self.is_damaged(begin, raw)]
                if 0 < found - wanted <= sum(end - begin for begin, end in damaged) // HEADER_BYTES:
                    return True
        return False

    def is_damaged(self, begin: int, raw: bytes) -> bool:
        """Whether other bytes were confirmed there."""
        return self.log[begin : begin + len(raw)] != raw

    def equal(self, name: str, log: LogView, end: int) -> None:
        """A replica in sync, up to the master's confirmOffset."""
        self.confirmed(name, log, 0, end)
