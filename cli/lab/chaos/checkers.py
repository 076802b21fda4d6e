"""Checks a history. Pure: entries in, findings out; a finding is one violation, as text.

The checkers know what clients may assume, not how brokers work: an acknowledged message exists, where and as
it was acknowledged; what a consumer has read stays; a refused message does not exist; a committed offset is
never lost. From the brokers' and controllers' own files: one master per epoch, one log of controllers,
replicas with equal bytes. tests/unit/cli/lab/test_chaos_checkers.py has bad histories for each checker.
"""

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cli.lab.chaos.batch_checkers import Bursts
from cli.lab.chaos.history import (
    DAMAGED,
    Acknowledge,
    AnyEntry,
    Batch,
    BatchRead,
    Commit,
    Damage,
    Event,
    Exit,
    Fault,
    Fetch,
    Log,
    LongTurn,
    Read,
    Receive,
    Role,
    Scrub,
    Send,
    Stuck,
    Subscribe,
)

MESSAGES_SHOWN = 10

QueueOffset = tuple[int, int]
"""Queue and queue offset."""


@dataclass(slots=True)
class World:
    """A history sorted by kind. From the final reads: `final`, place -> number; `copies`, number ->
    places."""

    invoked: dict[int, Send] = field(default_factory=dict)
    ended: dict[int, Send] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    final: dict[QueueOffset, int] = field(default_factory=dict)
    final_reads: list[Read] = field(default_factory=list)
    copies: dict[int, list[QueueOffset]] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    bursts: Bursts = field(default_factory=Bursts)
    damages: list[Damage] = field(default_factory=list)
    scrubs: list[Scrub] = field(default_factory=list)
    long_turns: list[LongTurn] = field(default_factory=list)
    stuck: list[Stuck] = field(default_factory=list)
    subscribed: dict[str, int] = field(default_factory=dict)
    received: dict[str, set[int]] = field(default_factory=dict)
    acknowledged: dict[str, set[int]] = field(default_factory=dict)

    @property
    def acked(self) -> Iterator[Send]:
        """The acknowledged sends, in the order in which they ended."""
        return (send for send in self.ended.values() if send.type == "ok")


def sort(entries: Iterable[AnyEntry]) -> World:
    """Returns the entries by kind. The final reads also fill `final` and `copies`."""
    world = World()
    for entry in entries:
        match entry:
            case Send(type="invoke"):
                world.invoked[entry.number] = entry
            case Send():
                world.ended[entry.number] = entry
            case Read(type="ok"):
                (world.final_reads if entry.final else world.reads).append(entry)
            case Batch() | BatchRead():
                world.bursts.put(entry)
            case Damage():
                world.damages.append(entry)
            case Scrub():
                world.scrubs.append(entry)
            case Commit():
                world.commits.append(entry)
            case Fetch():
                world.fetches.append(entry)
            case Fault():
                world.faults.append(entry)
            case Role():
                world.roles.append(entry)
            case Event():
                world.events.append(entry)
            case Log():
                world.logs.append(entry)
            case Exit():
                world.exits.append(entry)
            case LongTurn():
                world.long_turns.append(entry)
            case Stuck():
                world.stuck.append(entry)
            case Subscribe():
                world.subscribed[entry.group] = entry.t
            case Receive():
                world.received.setdefault(entry.group, set()).update(entry.numbers)
            case Acknowledge():
                world.acknowledged.setdefault(entry.group, set()).update(entry.numbers)
    for read in world.final_reads:
        for offset, number in read.messages:
            world.final[read.queue, offset] = number
            world.copies.setdefault(number, []).append((read.queue, offset))
    return world


# -- messages ----------------------------------------------------------------------------------------------


def lost(world: World) -> Iterator[str]:
    """Acknowledged and not read back."""
    for send in world.acked:
        if send.number not in world.copies:
            yield f"{_send(send)} is not there at the end"
    yield from world.bursts.lost()


def moved(world: World) -> Iterator[str]:
    """Acknowledged at a place that holds something else at the end."""
    for send in world.acked:
        if send.offset is None or send.queue is None or send.number not in world.copies:
            continue  # the message does not exist: lost() reports it
        found = world.final.get((send.queue, send.offset))
        if found != send.number:
            yield f"{_send(send)}: {_named(found)} is there at the end"


def damaged(world: World) -> Iterator[str]:
    """Read, but never sent, or not read as it was sent."""
    for read in (*world.reads, *world.final_reads):
        for offset, number in read.messages:
            if number == DAMAGED or number not in world.invoked:
                yield f"{read.by} read {_named(number)} at {_place(read.queue, offset)}, which nobody sent"
    for group, numbers in world.received.items():
        for number in sorted(numbers - world.invoked.keys()):
            yield f"group {group} received {_named(number)}, which nobody sent"
    yield from world.bursts.damaged()


def unexplained(world: World) -> Iterator[str]:
    """More than one copy of a message, although no attempt to send it was uncertain."""
    for number, places in world.copies.items():
        ended = world.ended.get(number)
        sure = ended is not None and ended.type == "ok" and ended.uncertain == 0
        if sure and len(places) > 1:
            yield f"message {number} was sent once, and is there {len(places)} times: {places[:5]}"
    yield from world.bursts.unexplained()


def phantom(world: World) -> Iterator[str]:
    """Stored, although the producer was told that it was certainly not stored."""
    for send in world.ended.values():
        if send.type == "fail" and send.number in world.copies:
            yield f"{_send(send)} was refused ({send.remark}), but is there: {world.copies[send.number]}"
    yield from world.bursts.phantom()


def reordered(world: World) -> Iterator[str]:
    """An ordered sender sends the next message after the acknowledgement of the last one: places ascend."""
    last: dict[tuple[str, int], Send] = {}
    for send in world.ended.values():
        if send.type != "ok" or not send.ordered or send.queue is None or send.offset is None:
            continue
        before = last.get((send.by, send.queue))
        if before is not None:
            if before.offset is not None and before.offset >= send.offset:
                yield f"{_send(before)}, and after it {_send(send)}"
            first, second = _first(world, before), _first(world, send)
            if first is not None and second is not None and first >= second:
                yield f"{before.number} was sent before {send.number} and stands behind it: {first}, {second}"
        last[send.by, send.queue] = send
    yield from world.bursts.reordered()


def vanished(world: World) -> Iterator[str]:
    """Read by a consumer, but not there at the end: it was readable before it was confirmed."""
    for read in world.reads:
        for offset, number in read.messages:
            if world.final.get((read.queue, offset)) != number:
                there = _named(world.final.get((read.queue, offset)))
                yield (
                    f"{read.by} read {_named(number)} at {_place(read.queue, offset)}, "
                    f"t={read.t / 1e6:.3f} s; {there} is there at the end"
                )


def reused(world: World) -> Iterator[str]:
    """Two messages at one place, for producers, for consumers, or in the final reads."""
    owner: dict[QueueOffset, int] = {}
    for send in world.acked:
        if send.queue is not None and send.offset is not None:
            other = owner.setdefault((send.queue, send.offset), send.number)
            if other != send.number:
                yield f"{_place(send.queue, send.offset)} was acknowledged to {other} and to {send.number}"
    seen: dict[QueueOffset, int] = {}
    for read in (*world.reads, *world.final_reads):
        for offset, number in read.messages:
            other = seen.setdefault((read.queue, offset), number)
            if other != number:
                yield f"{_place(read.queue, offset)} was read as {_named(other)} and as {_named(number)}"


def holes(world: World) -> Iterator[str]:
    """An offset of a queue is missing between two others in the final reads."""
    for queue in sorted({read.queue for read in world.final_reads}):
        offsets = sorted(offset for of, offset in world.final if of == queue)
        for before, after in itertools.pairwise(offsets):
            if after != before + 1:
                yield f"queue {queue} has nothing from offset {before + 1} to {after - 1}"
    yield from world.bursts.holes()


# -- consumer offsets --------------------------------------------------------------------------------------


def rewound(world: World) -> Iterator[str]:
    """A master answers an offset below the last acknowledged commit, or one that was never committed."""
    moves: list[Commit | Fetch] = sorted([*world.commits, *world.fetches], key=lambda each: each.t)
    acknowledged: dict[tuple[str, int], int] = {}
    floors: dict[tuple[str, int], int] = {}
    tried: dict[tuple[str, int], set[int]] = {}
    for move in moves:
        key = (move.group, move.queue)
        if isinstance(move, Commit):
            if move.type == "invoke":
                tried.setdefault(key, set()).add(move.offset)
            elif move.type == "ok":
                acknowledged[key] = move.offset
        elif move.type == "invoke":
            floors[key] = acknowledged.get(key, -1)
        elif move.type == "ok":
            if (-1 if move.offset is None else move.offset) < floors.get(key, -1):
                yield f"{_group(move)}: offset {move.offset}, after {floors[key]} was acknowledged"
            elif move.offset is not None and move.offset not in tried.get(key, set()):
                yield f"{_group(move)}: offset {move.offset}, which nobody committed"


# -- gRPC consumers ----------------------------------------------------------------------------------------


def undelivered(world: World) -> Iterator[str]:
    """Stored at the end, sent after a group of gRPC consumers had begun, and never received by it."""
    for group, begun in world.subscribed.items():
        for number in _expected(world, begun) - world.received.get(group, set()):
            yield f"{_send(world.invoked[number])} was never received by group {group}"


def unacknowledged(world: World) -> Iterator[str]:
    """Received by a group of gRPC consumers that has not acknowledged it, and not received again."""
    for group in world.subscribed:
        left = world.received.get(group, set()) - world.acknowledged.get(group, set())
        for number in sorted(left & world.invoked.keys()):
            yield f"message {number} was received by group {group}, and is stuck"


def _expected(world: World, begun: int) -> set[int]:
    """Returns the stored messages that were sent after this time."""
    return {number for number in world.copies if number in world.invoked and world.invoked[number].t >= begun}


# -- masters, controllers, disks ---------------------------------------------------------------------------


def masters(world: World) -> Iterator[str]:
    """Two masters had the same epoch."""
    owners: dict[int, set[int]] = {}
    for role in world.roles:
        owners.setdefault(role.master_epoch, set()).add(role.broker_id)
    for epoch, brokers in sorted(owners.items()):
        if len(brokers) > 1:
            yield f"masterEpoch {epoch} had the masters {sorted(brokers)}"


def diverged(world: World) -> Iterator[str]:
    """Controllers applied different events, or replicas have different CommitLogs."""
    first: dict[tuple[int, str], Event] = {}
    for event in world.events:
        other = first.setdefault((event.event_id, event.type), event)
        if other.after != event.after:
            yield (
                f"event {event.event_id} ({event.type}) is {other.after} at controller {other.controller} "
                f"and {event.after} at {event.controller}"
            )
    begin = max((log.begin for log in world.logs), default=0)
    whole = [log for log in world.logs if log.crc is not None]
    for log in world.logs:
        if log.begin > 0:
            yield f"the CommitLog of {log.program} begins at {log.begin}: a run deletes no files"
        if log.crc is None:
            yield f"the CommitLog of {log.program} has a hole or ends before the confirmed {log.bytes}"
        elif log.crc != whole[0].crc:
            programs = f"{whole[0].program} and {log.program}"
            yield f"{programs} differ in the CommitLog from offset {begin} to {log.bytes}"


def crashed(world: World) -> Iterator[str]:
    """A program ended that was not killed, and not because its disk was full."""
    for end in world.exits:
        if not end.excused:
            yield f"{end.program} ended by itself with code {end.code} at t={end.t / 1e6:.3f} s"


def unhealed(world: World) -> Iterator[str]:
    """A replica's files are damaged at the end."""
    for scrub in world.scrubs:
        for text in (*scrub.unhealed, *scrub.faults):
            yield f"{scrub.program}: {text}"
    checked = {scrub.program for scrub in world.scrubs}
    for program in sorted({damage.program for damage in world.damages} - checked):
        yield f"{program} was damaged, and its files were not checked at the end"


def stalled(world: World) -> Iterator[str]:
    """A callback blocked a program's event loop, and so all other work."""
    for turn in world.long_turns:
        yield f"{turn.program}: {turn.cpu_ms} ms of CPU time without a turn of the event loop, in {turn.at}"


# -- recovery ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recovery:
    """`ms`: from the start of the fault to the first acknowledged send that was started while or after it was
    in effect; None: there was none. `gap_ms`: the longest time without any acknowledgement until the next
    fault. `held_ms`: how long the fault lasted."""

    number: int
    kinds: tuple[str, ...]
    targets: tuple[str, ...]
    master: str
    start_t: int
    held_ms: int
    ms: int | None
    gap_ms: int


def recoveries(world: World) -> list[Recovery]:
    """Returns the recovery from each fault that took effect, in the order of the faults."""
    phases = {(fault.number, fault.phase): fault.t for fault in world.faults}
    placed = sorted((fault for fault in world.faults if fault.phase == "placed"), key=lambda fault: fault.t)
    acks = sorted(
        (send.t, world.invoked[send.number].t) for send in world.acked if send.number in world.invoked
    )
    times = [ack for ack, _ in acks]
    found = []
    for fault, following in itertools.zip_longest(placed, placed[1:]):
        start_t = phases.get((fault.number, "start"), fault.t)
        end_t = phases.get((fault.number, "end"), fault.t)
        next_t = phases.get((following.number, "start"), following.t) if following else end_of(world)
        first = bisect.bisect_left(times, fault.t)
        ack_t = next((ack for ack, begun in itertools.islice(acks, first, None) if begun >= fault.t), None)
        window = times[bisect.bisect_left(times, start_t) : bisect.bisect_left(times, next_t)]
        gaps = [after - before for before, after in itertools.pairwise([start_t, *window, next_t])]
        found.append(
            Recovery(
                number=fault.number,
                kinds=fault.kinds,
                targets=fault.targets,
                master=fault.master,
                start_t=start_t,
                held_ms=(end_t - start_t) // 1_000,
                ms=None if ack_t is None else (ack_t - start_t) // 1_000,
                gap_ms=max(gaps) // 1_000,
            )
        )
    return found


def end_of(world: World) -> int:
    """Returns when the last send or fault ended (µs since the start of the run)."""
    return max((each.t for each in (*world.ended.values(), *world.faults)), default=0)


def unrecovered(world: World) -> Iterator[str]:
    """No send was accepted after a fault, or the cluster did not recover in time."""
    for recovery in recoveries(world):
        if recovery.ms is None:
            yield f"fault {recovery.number} ({' and '.join(recovery.kinds)}): no send was accepted after it"
    for stuck in world.stuck:
        yield f"not in time: {stuck.what}"


Checker = Callable[[World], Iterator[str]]
CHECKERS: dict[str, Checker] = {
    checker.__name__: checker
    for checker in (
        lost, moved, damaged, reordered, vanished, unexplained, phantom, reused, holes, rewound, masters,
        diverged, crashed, stalled, unhealed, unrecovered, undelivered, unacknowledged,
    )
}  # fmt: skip


def duplicated(world: World) -> int:
    """Returns the number of surplus copies, which are allowed if an attempt was uncertain."""
    return sum(len(places) - 1 for number, places in world.copies.items() if number != DAMAGED)


NEED_FINAL = frozenset({"lost", "moved", "vanished", "undelivered"})
"""Checkers that cannot judge without the final reads."""


def check(world: World) -> dict[str, list[str] | None]:
    """Returns each checker's findings by its name; None: it cannot judge this history."""
    return {
        name: None if name in NEED_FINAL and not world.final_reads else list(checker(world))
        for name, checker in CHECKERS.items()
    }


# -- words -------------------------------------------------------------------------------------------------


def _first(world: World, send: Send) -> int | None:
    """Returns the offset of the message's first copy in its queue."""
    offsets = [offset for queue, offset in world.copies.get(send.number, ()) if queue == send.queue]
    return min(offsets, default=None)


def _send(send: Send) -> str:
    where = "" if send.offset is None or send.queue is None else f" at {_place(send.queue, send.offset)}"
    return f"message {send.number} of {send.by} ({send.type}{where}, t={send.t / 1e6:.3f} s)"


def _place(queue: int, offset: int) -> str:
    return f"queue {queue} offset {offset}"


def _named(number: int | None) -> str:
    return "nothing" if number is None else "a damaged message" if number == DAMAGED else f"message {number}"


def _group(fetch: Fetch) -> str:
    return f"group {fetch.group}, queue {fetch.queue} at t={fetch.t / 1e6:.3f} s"


def shown(findings: Sequence[str]) -> list[str]:
    """Returns the first findings, and how many more there are."""
    more = len(findings) - MESSAGES_SHOWN
    return [*findings[:MESSAGES_SHOWN], *([f"and {more} more"] if more > 0 else [])]
