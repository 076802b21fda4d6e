"""The rules of the guard at their limits, without the library: what it sees of the log is made up."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from namesrv.plugins.controller.raft import guard as guard_module
from namesrv.plugins.controller.raft.codec import (
    Acknowledgement,
    AppendEntries,
    Message,
    RequestVote,
    ResponseVote,
    TermHint,
)
from namesrv.plugins.controller.raft.guard import Guard
from namesrv.plugins.controller.raft.storage.snapshot import Snapshot, encode_snapshot

Entry = tuple[bytes, int, int]


def entries(first: int, last: int, term: int) -> tuple[Entry, ...]:
    return tuple((b"x", index, term) for index in range(first, last + 1))


@dataclass
class View:
    """A log from index 20 (behind a snapshot) to 30, of term 3; committed up to 24."""

    term: int = 3
    commit_index: int = 24
    last_applied: int = 23
    log: tuple[Entry, ...] = entries(20, 30, 3)
    replies: list[tuple[str, Message]] = field(default_factory=list)

    def guard(self) -> Guard:
        core: Any = self
        return Guard(core, lambda member, message: self.replies.append((member, message)), "group")


@pytest.fixture
def view() -> View:
    return View()


def append(
    prefix: int, sent: tuple[Entry, ...] = (), *, prefix_term: int = 3, commit: int = 20, term: int = 3
) -> AppendEntries:
    return AppendEntries(term, commit, sent, prev_index=prefix, prev_term=prefix_term)


def test_an_append_of_an_old_term_is_no_sign_of_a_leader(view: View) -> None:
    guard = view.guard()
    assert guard.incoming("n1", append(30, term=2), 7.0) is None
    assert guard.last_append < 0
    assert view.replies == [("n1", TermHint(term=3))]
    assert guard.incoming("n1", append(30), 8.0) is not None
    assert guard.last_append == 8.0


@pytest.mark.parametrize("prefix", [20, 25, 29])
def test_a_heartbeat_in_the_middle_of_the_log_commits_only_what_it_confirms(view: View, prefix: int) -> None:
    """The entries behind its prefix may be of an old leader, and its commit index may be beyond them."""
    passed = view.guard().incoming("n1", append(prefix, commit=28), 1.0)
    assert isinstance(passed, AppendEntries) and passed.commit_index == min(28, prefix)
    assert not passed.entries and not isinstance(passed.prev_index, int)
    assert view.replies == [("n1", Acknowledgement(prefix + 1, reset=False, success=True, term=3))]


@pytest.mark.parametrize("prefix", [19, 31])
def test_a_prefix_outside_of_the_log_is_for_the_library(view: View, prefix: int) -> None:
    message = append(prefix, entries(prefix + 1, prefix + 2, 3))
    assert view.guard().incoming("n1", message, 1.0) == append(prefix, entries(prefix + 1, prefix + 2, 3))
    assert view.replies == []


def test_a_prefix_of_another_term_is_for_the_library(view: View) -> None:
    message = append(25, entries(26, 27, 3), prefix_term=2)
    passed = view.guard().incoming("n1", message, 1.0)
    assert passed == append(25, entries(26, 27, 3), prefix_term=2) and view.replies == []


def test_known_entries_become_part_of_the_prefix(view: View) -> None:
    guard = view.guard()
    new = entries(31, 32, 3)
    assert guard.incoming("n1", append(28, (*entries(29, 30, 3), *new)), 1.0) == append(30, new)
    conflict = entries(30, 31, 4)
    view.term = 4
    passed = guard.incoming("n1", append(28, (*entries(29, 29, 3), *conflict), term=4), 1.0)
    assert passed == append(29, conflict, term=4), "from the first entry of another term on"
    assert guard.incoming("n1", append(20, entries(21, 21, 3), term=4), 1.0) == AppendEntries(4, 20)
    assert view.replies == [("n1", Acknowledgement(22, reset=False, success=True, term=4))]


def snapshot(index: int, term: int) -> list[AppendEntries]:
    state = Snapshot(
        cluster_id="group",
        members=("n0", "n1", "n2"),
        last=(b"x", index, term),
        previous=(b"x", index - 1, term),
        claimed_term=0,
        state=b"",
    )
    return [AppendEntries(3, index, serialized=(encode_snapshot(state), True, True))]


@pytest.mark.parametrize(
    ("index", "term", "acknowledged"),
    [(10, 1, 25), (20, 3, 25), (24, 3, 25), (25, 3, 26), (30, 3, 31)],
)
def test_a_snapshot_of_a_known_entry_is_not_installed(
    view: View, index: int, term: int, acknowledged: int
) -> None:
    """It would remove what was acknowledged behind it. 10: this member has compacted the entry already."""
    (frame,) = snapshot(index, term)
    passed = view.guard().incoming("n1", frame, 1.0)
    assert isinstance(passed, AppendEntries) and passed.serialized is None
    assert view.replies == [("n1", Acknowledgement(acknowledged, reset=False, success=True, term=3))]


@pytest.mark.parametrize(("index", "term"), [(25, 2), (30, 2), (31, 3), (40, 3)])
def test_a_snapshot_of_an_unknown_entry_is_installed(view: View, index: int, term: int) -> None:
    (frame,) = snapshot(index, term)
    assert view.guard().incoming("n1", frame, 1.0) is frame
    assert frame.serialized is not None and frame.serialized[1:] == (True, True)
    assert frame.commit_index == 0 and view.replies == []


@pytest.mark.parametrize(
    ("index", "term", "is_known"), [(26, 2, True), (27, 3, True), (26, 3, False), (27, 2, False)]
)
def test_the_entry_of_a_snapshot_is_compared_with_that_of_its_index(
    view: View, index: int, term: int, is_known: bool
) -> None:
    view.log = entries(20, 26, 2) + entries(27, 30, 3)
    (frame,) = snapshot(index, term)
    view.guard().incoming("n1", frame, 1.0)
    assert (frame.serialized is None) is is_known


def chunks(index: int, term: int, sent_in: int = 3) -> list[AppendEntries]:
    """The snapshot in two frames, sent in that term."""
    (frame,) = snapshot(index, term)
    assert frame.serialized is not None
    whole = frame.serialized[0]
    parts = ((whole[:9], True, False), (whole[9:], False, True))
    return [AppendEntries(sent_in, index, serialized=each) for each in parts]


@pytest.mark.parametrize(("sender", "term"), [("n2", 3), ("n1", 4)])
def test_chunks_of_two_snapshots_are_not_joined(view: View, sender: str, term: int) -> None:
    """Of two members, or of one member in two terms."""
    guard, (first, last), (_, other) = view.guard(), chunks(40, 3), chunks(40, 3, term)
    guard.incoming("n1", first, 1.0)
    view.term = term
    for name, frame in ((sender, other), ("n1", last)):
        passed = guard.incoming(name, frame, 2.0)
        assert passed is None or (isinstance(passed, AppendEntries) and passed.serialized is None)
    assert guard.dropped["snapshot chunk out of turn"] >= 1


def test_a_snapshot_above_the_limit_is_dropped(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    (frame,) = snapshot(40, 3)
    assert frame.serialized is not None
    whole = len(frame.serialized[0])
    for limit, is_dropped in ((whole, False), (whole - 1, True)):
        monkeypatch.setattr(guard_module, "FILE_BYTES_MAX", limit)
        first, last = chunks(40, 3)
        guard = view.guard()
        guard.incoming("n1", first, 1.0)
        guard.incoming("n1", last, 1.0)
        assert (last.serialized is None) is is_dropped
        assert guard.dropped["snapshot chunk out of turn"] == is_dropped


def test_a_reset_asks_for_nothing_that_is_committed_or_applied(view: View) -> None:
    aim = lambda index: view.guard().outgoing(  # noqa: E731
        {"type": "next_node_idx", "next_node_idx": index, "reset": True}
    )
    assert aim(31) == {"type": "next_node_idx", "next_node_idx": 25, "reset": True, "t": 3}
    assert aim(22)["next_node_idx"] == 22
    view.last_applied = 27
    assert aim(31)["next_node_idx"] == 28


@pytest.mark.parametrize(("hint", "adopted"), [(2, False), (3, False), (4, True)])
def test_only_a_newer_term_is_adopted(view: View, hint: int, adopted: bool) -> None:
    passed = view.guard().incoming("n1", TermHint(term=hint), 1.0)
    assert passed == (RequestVote(term=hint, last_log_index=0, last_log_term=0) if adopted else None)


def test_a_vote_counts_once_for_each_member_and_only_in_its_term(view: View) -> None:
    guard = view.guard()
    counted = lambda member, term: guard.incoming(member, ResponseVote(term=term), 1.0) is not None  # noqa: E731
    assert [counted("n1", 2), counted("n1", 4)] == [False, False]
    assert [counted("n1", 3), counted("n1", 3), counted("n2", 3), counted("n2", 3)] == [
        True, False, True, False,
    ]  # fmt: skip
    view.term = 4
    assert [counted("n1", 3), counted("n1", 4), counted("n1", 4)] == [False, True, False]
