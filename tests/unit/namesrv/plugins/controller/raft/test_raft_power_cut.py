"""A power cut or a kill at each operation on the files: nothing promised is lost, nobody refuses to start.

The real library, journal, snapshots and vote file run on a disk (tests/sim/raft/disk.py) that stops at its
k-th operation and then keeps, of what was not yet fsynced, what a real one might keep. docs/controller-log.md
says what is promised; here each promise is checked after each cut.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft.api import EXIT_JOURNAL, EXIT_SNAPSHOT
from namesrv.plugins.controller.raft.codec import Acknowledgement, AppendEntries, RequestVote, ResponseVote
from namesrv.plugins.controller.raft.fenced_state_machine import Batch, encode_batch
from namesrv.plugins.controller.raft.replica import FatalRaftError
from namesrv.plugins.controller.raft.storage.snapshot import Snapshot, encode_snapshot
from tests.sim.raft.disk import Disk, Disks, PowerCut
from tests.support.raft_group import Group, ListMachine, QuietMember, no_ops
from tests.support.reach_in import forget_file, open_core
from tests.support.slices import first

EVENTS = 13
SURVIVALS = 3  # ways in which a disk may come back, for each cut


class Cut:
    """Lets `after` operations pass, then the power is gone: for good, whatever the library catches."""

    def __init__(self, after: int) -> None:
        self.left, self.is_cut = after, False

    def __call__(self, _operation: str, _path: Path) -> None:
        if self.left <= 0:
            self.is_cut = True
            raise PowerCut
        self.left -= 1


class Alone:
    """A group of one, driven by hand: no thread, no port."""

    def __init__(self, root: Path) -> None:
        self.machine = ListMachine()
        group = Group(root, 1, secret=None, compaction_entries=5, sync=True)
        self.fatal = group.fatal  # (exit code, text): the library swallows what is raised in a snapshot
        self.replica = group.replicator("n0", self.machine)
        self.core = open_core(self.replica)
        self.core.doTick(0.0)
        self.core.doTick(0.0)

    def claim_and_append(self, count: int, cut: Cut, acknowledged: list[int]) -> None:
        self.propose("claim", (), lambda _result, _reason: None)
        for number in range(count):

            def told(_result: object, reason: int, number: int = number) -> None:
                if reason == 0 and not cut.is_cut:
                    acknowledged.append(number)

            self.propose("events", ((None, b"%d" % number),), told)

    def propose(self, kind: Any, items: Any, callback: Any) -> None:
        self.core.submit(encode_batch(Batch(kind, self.core.term, "n0", items)), callback)
        for _ in range(3):
            self.core.doTick(0.0)

    def forget(self) -> None:
        """The process is gone; what the library keeps open beside the files is given back."""
        forget_file(self.core.log)
        self.core.close()


def broken_off(action: Callable[[], None], cut: Cut) -> bool:
    """True: the power went during `action`."""
    try:
        action()
    except PowerCut:
        return True
    except BaseException:
        if not cut.is_cut:
            raise
    return cut.is_cut


def after_the_cut(disk: Disk, disks: Disks, seed: int) -> None:
    disk.hook = lambda _operation, _path: None
    disks.close_all(disk)
    if seed % SURVIVALS:
        disk.power_cut(Random(seed))


def one_cut(root: Path, after: int, seed: int) -> bool:
    """A whole life until the cut, then a second one. False: the cut came too late to happen."""
    disks, cut, acknowledged = Disks(), Cut(after), list[int]()
    disk = disks.add(root / "n0")
    with disks.installed():
        disk.hook = cut
        lives: list[Alone] = []

        def life() -> None:
            alone = Alone(root)
            lives.append(alone)
            alone.claim_and_append(EVENTS, cut, acknowledged)

        was_cut = broken_off(life, cut)
        terms = [alone.core.term for alone in lives]
        after_the_cut(disk, disks, seed)
        for alone in lives:
            alone.forget()
        again = Alone(root)  # never refuses
        events = [int(event) for event in again.machine.events]
        assert events == list(range(len(events))), "no prefix"
        assert len(events) >= len(acknowledged), f"cut {after}: {acknowledged} acknowledged, {events} there"
        assert not terms or again.core.term >= terms[0]
        again.claim_and_append(3, Cut(10**9), [])
        again.replica.directory.close()
        again.core.close()
    return was_cut


@pytest.mark.slow
@pytest.mark.parametrize("survival", first(1, range(SURVIVALS)))
def test_a_cut_at_every_operation_of_a_leader(tmp_path: Path, survival: int) -> None:
    """Appends, votes, commits, snapshots and compactions; survival 0 is kill -9, the others power cuts."""
    after = 0
    while one_cut(tmp_path / str(after), after, survival + after * SURVIVALS):
        after += 1
    assert after > 60  # the life has that many operations, and each was the last one once


SNAPSHOT_AT = 30
SNAPSHOT = encode_snapshot(
    Snapshot(
        cluster_id="group",
        members=("n0", "n1", "n2"),
        last=(b"\x01", SNAPSHOT_AT, 3),
        previous=(b"\x01", SNAPSHOT_AT - 1, 3),
        claimed_term=0,
        state=ListMachine().snapshot(),
    )
)


def append(term: int, prefix: int, prefix_term: int, entries: Any, commit: int = 1) -> AppendEntries:
    return AppendEntries(term, commit, entries, prev_index=prefix, prev_term=prefix_term)


FOLLOWER_LIFE: list[tuple[str, Any]] = [
    ("n1", append(1, 1, 0, no_ops(2, 8, 1), commit=4)),
    ("n1", append(1, 8, 1, no_ops(9, 12, 1), commit=6)),
    ("n2", RequestVote(term=2, last_log_index=12, last_log_term=1)),
    ("n2", append(2, 8, 1, no_ops(9, 10, 2), commit=8)),  # 9 to 12 of term 1 go
    ("n1", RequestVote(term=3, last_log_index=12, last_log_term=2)),
    ("n1", AppendEntries(3, 30, serialized=(SNAPSHOT[:50], True, False))),
    ("n1", AppendEntries(3, 30, serialized=(SNAPSHOT[50:], False, False))),
    ("n1", AppendEntries(3, 30, serialized=(b"", False, True))),
    ("n1", append(3, SNAPSHOT_AT, 3, no_ops(31, 33, 3), commit=31)),
]


def promised(sent: list[tuple[str, Any]], conflict_seen: bool) -> tuple[int, dict[int, str]]:
    """What left this member: index up to which it has everything, and its votes."""
    index, votes = 1, {}
    for receiver, message in sent:
        if isinstance(message, Acknowledgement) and message.success and not message.reset:
            if not (conflict_seen and message.term == 1):
                index = max(index, message.next_index - 1)
            else:
                index = max(index, min(message.next_index - 1, 8))
        elif isinstance(message, ResponseVote):
            votes[message.term] = receiver
    return index, votes


def one_cut_of_a_follower(root: Path, after: int, seed: int) -> bool:
    disks, cut = Disks(), Cut(10**9)
    disk = disks.add(root / "n0")
    with disks.installed():
        first = QuietMember(root, sync=True, compaction_entries=4)
        cut.left = after
        disk.hook = cut
        seen = 0

        def life() -> None:
            nonlocal seen
            for sender, message in FOLLOWER_LIFE:
                seen += 1
                first.receive(sender, message)
                first.tick()

        was_cut = broken_off(life, cut)
        index, votes = promised(list(first.links.sent), conflict_seen=seen >= 4)
        after_the_cut(disk, disks, seed)
        forget_file(first.core.log)
        first.core.close()
        with QuietMember(root, sync=True, compaction_entries=4) as again:  # never refuses
            assert again.core.log[-1][1] >= index, f"cut {after}: acknowledged up to {index}, {again.log()}"
            for term, candidate in votes.items():
                assert again.core.term >= term
                other = "n1" if candidate == "n2" else "n2"
                again.receive(other, RequestVote(term=term, last_log_index=99, last_log_term=9))
                assert not [m for _, m in again.answers() if isinstance(m, ResponseVote)], "voted twice"
    return was_cut


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("survival", range(SURVIVALS))
def test_a_cut_at_every_operation_of_a_follower(tmp_path: Path, survival: int) -> None:
    """Appends, a conflicting tail, votes, and a snapshot from the leader."""
    after = 0
    while one_cut_of_a_follower(tmp_path / str(after), after, survival + after * SURVIVALS):
        after += 1
    assert after > 30


class Broken:
    """Every operation of one kind fails after the first few."""

    def __init__(self, operation: str, after: int, code: int) -> None:
        self.operation, self.left, self.code, self.failed = operation, after, code, 0

    def __call__(self, operation: str, path: Path) -> None:
        if operation == self.operation:
            self.left -= 1
            if self.left < 0:
                self.failed += 1
                raise OSError(self.code, os.strerror(self.code), str(path))


def life_on(root: Path, prepare: Callable[[Disk], object]) -> tuple[int, str] | None:
    """(exit code, text) of a life on a disk that fails, 1 before it has begun; a second life must work."""
    disks, acknowledged, ended = Disks(), list[int](), None
    disk = disks.add(root / "n0")
    lives: list[Alone] = []
    with disks.installed():
        prepare(disk)
        try:
            lives.append(Alone(root))
            lives[0].claim_and_append(EVENTS, Cut(10**9), acknowledged)
        except ConfigError as error:
            ended = (1, str(error))
        except FatalRaftError as error:
            ended = (error.code, error.text)
        for alone in lives:
            ended = alone.fatal[0] if alone.fatal else ended
        disk.hook, disk.capacity = lambda _operation, _path: None, None
        disks.close_all(disk)
        for alone in lives:
            alone.forget()
        again = Alone(root)
        assert len(again.machine.events) >= len(acknowledged)
        again.replica.directory.close()
        again.core.close()
    return ended


@pytest.mark.slow
def test_a_disk_that_becomes_full_ends_the_member_with_a_clear_text(tmp_path: Path) -> None:
    """Whatever was being written: journal, vote, standing or snapshot (exit codes 70 and 72)."""
    codes = set[int]()
    for capacity in range(0, 1500, 23):
        ended = life_on(tmp_path / str(capacity), lambda disk: setattr(disk, "capacity", capacity))  # noqa: B023
        if ended is not None:
            assert "No space left on device" in ended[1]
            codes.add(ended[0])
    assert codes == {1, EXIT_JOURNAL, EXIT_SNAPSHOT}


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["pwrite", "fsync", "rename", "open", "ftruncate"])
def test_an_error_of_the_disk_ends_the_member(tmp_path: Path, operation: str) -> None:
    """After a failed write or fsync nobody knows what the disk holds: only a new start finds out."""
    codes = set[int]()
    for after in range(60):
        broken = Broken(operation, after, errno.EIO)
        ended = life_on(tmp_path / str(after), lambda disk: setattr(disk, "hook", broken))  # noqa: B023
        if not broken.failed:
            break
        assert ended is not None
        assert "Input/output error" in ended[1] or "reason is logged above" in ended[1]
        codes.add(ended[0])
    assert codes and codes <= {1, EXIT_JOURNAL, EXIT_SNAPSHOT}
