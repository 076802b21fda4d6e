"""When appends and acknowledgements leave. A leader sends nothing that the next append says anyway."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from namesrv.plugins.controller.raft.api import RaftSettings
from namesrv.plugins.controller.raft.codec import Acknowledgement, AppendEntries, VoteEligibility
from namesrv.plugins.controller.raft.fenced_state_machine import Batch, encode_batch
from namesrv.plugins.controller.raft.member import Member
from namesrv.plugins.controller.raft.membership.member_list import MemberList
from namesrv.plugins.controller.raft.membership.vote_eligibility import Joining
from tests.support.raft_group import QuietMember, elect, no_ops

HEARTBEAT_S = 0.1


class Leader:
    """A Member whose library is a clock and a flag."""

    def __init__(self, directory: Path) -> None:
        members = dict.fromkeys(("n0", "n1", "n2"), ("127.0.0.1", 1))
        self.now = 10.0
        self.core: Any = SimpleNamespace(
            now=lambda: self.now, has_unsent_entries=False, leads=True, election_deadline=float("inf")
        )
        self.member = Member(
            RaftSettings("n0", members, directory, "group", insecure=True, heartbeat_s=HEARTBEAT_S),
            self.core,
            member_list=MemberList(members),
            joining=Joining(
                "n0", frozenset(("n1", "n2")), VoteEligibility("", "member", ()), lambda _changed: None
            ),
            rejoined_as=lambda: None,
            rejoin=lambda _member, _incarnation: None,
        )


def test_a_commit_alone_is_told_with_the_next_append_or_heartbeat(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.core.has_unsent_entries = True
    assert leader.member.must_append()
    leader.core.has_unsent_entries = False
    leader.now += 0.001
    assert not leader.member.must_append(), "only news: the commit index"
    leader.core.has_unsent_entries = True
    assert leader.member.must_append(), "the next event, with the commit index"
    leader.core.has_unsent_entries = False
    leader.now += HEARTBEAT_S
    assert leader.member.must_append(), "the heartbeat"


def test_silence_is_bounded_however_often_the_library_calls(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    assert leader.member.must_append(), "the first"
    silent_since = leader.now
    for _ in range(100):
        leader.now += 0.007
        if leader.member.must_append():
            assert leader.now - silent_since < HEARTBEAT_S
            silent_since = leader.now


def test_a_heartbeat_does_not_wait_for_the_end_of_a_tick(tmp_path: Path) -> None:
    """Followers triple the longest gap between appends, so a late one makes a fail-over slower."""
    leader = Leader(tmp_path)
    assert leader.member.must_append()
    leader.now += 0.06
    assert leader.member.wait_s() == pytest.approx(HEARTBEAT_S - 0.06)
    leader.now += HEARTBEAT_S
    assert leader.member.wait_s() == pytest.approx(0.001), "late: at once"


@pytest.fixture
def elected(tmp_path: Path) -> Iterator[QuietMember]:
    with QuietMember(tmp_path) as member:
        elect(member)
        member.answers()
        assert member.core.leads
        yield member


def test_an_event_is_sent_once_to_each_member_and_its_commit_not_at_all(elected: QuietMember) -> None:
    elected.core.append(encode_batch(Batch("claim", elected.core.term, "n0")))
    sent = [(name, each) for name, each in elected.answers() if isinstance(each, AppendEntries)]
    assert sorted(name for name, _ in sent) == ["n1", "n2"]
    assert all(len(each.entries) == 1 for _, each in sent)
    _, index, term = elected.core.log[-1]
    elected.receive("n1", Acknowledgement(index + 1, reset=False, success=True, term=term))
    assert elected.answers() == []
    assert elected.core.commit_index == index


def test_an_acknowledgement_leaves_at_the_end_of_the_read_and_after_the_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with QuietMember(tmp_path) as follower:
        log, send, syncs_when_sent = follower.core.log, follower.links.send, list[int]()
        syncs = log.syncs
        monkeypatch.setattr(
            follower.links, "send", lambda *sent: (syncs_when_sent.append(log.syncs), send(*sent))[1]
        )
        append = AppendEntries(term=1, commit_index=1, prev_index=1, prev_term=0)
        for index in (2, 3):
            append.entries, append.prev_index = no_ops(index, index, 1), index - 1
            append.prev_term = follower.log()[-1][1]
            follower.receive("n1", append)
        assert (log.syncs, syncs_when_sent) == (syncs, []), "both entries wait for the end of the read"
        follower.member.frames_end()
        assert syncs_when_sent == [syncs + 1], "one fsync and then one answer, for both"


def test_a_member_that_lacks_entries_gets_them_at_once(elected: QuietMember) -> None:
    """A reset makes entries unsent again: the next call of the library sends them."""
    _, index, term = elected.core.log[-1]
    elected.receive("n1", Acknowledgement(index, reset=True, success=False, term=term))
    assert elected.core.has_unsent_entries
    elected.receive("n2", Acknowledgement(index + 1, reset=False, success=True, term=term))
    sent = [(name, each) for name, each in elected.answers() if isinstance(each, AppendEntries)]
    assert [len(each.entries) for name, each in sent if name == "n1"] == [1]
