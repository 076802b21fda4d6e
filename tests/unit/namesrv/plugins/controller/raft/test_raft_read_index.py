"""Reads add nothing to the log: which answers confirm that a leader still leads (groups: tests/sim/raft)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from namesrv.plugins.controller.raft.codec import (
    Acknowledgement,
    LeaderVerified,
    Message,
    RequestVote,
    TermHint,
    VerifyLeader,
)
from namesrv.plugins.controller.raft.read_index import ASK_AGAIN_S, ReadIndex
from namesrv.plugins.controller.replicator import Committed
from tests.support.raft_group import Group, QuietMember, elect


def sent(member: QuietMember) -> list[tuple[str, Message]]:
    return [each for each in member.answers() if isinstance(each[1], VerifyLeader)]


class Leader(QuietMember):
    """n0 of three leads, and all its entries are committed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        elect(self)
        self.tick()
        self.acknowledge()
        self.results: list[bool | None] = []

    def acknowledge(self) -> None:
        _, index, term = self.core.log[-1]
        self.receive("n1", Acknowledgement(index + 1, reset=False, success=True, term=term))
        self.tick()

    def read(self) -> list[tuple[str, Message]]:
        """Begins a read; returns the checks that it sends."""
        self.member.read_index.begin(self.core.term, self.results.append)
        return sent(self)

    def verified(self, name: str, check: int, *, term: int | None = None) -> None:
        self.receive(name, LeaderVerified(self.core.term if term is None else term, check))
        self.tick()


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    with Leader(tmp_path) as member:
        yield member


@pytest.fixture
def able(leader: Leader) -> Leader:
    """n1 has answered a check, number 1."""
    leader.read()
    leader.verified("n1", 1)
    leader.results.clear()
    return leader


def test_members_of_an_older_release_are_rarely_asked_and_reads_use_the_log(leader: Leader) -> None:
    term = leader.core.term
    assert leader.read() == [("n1", VerifyLeader(term, 1)), ("n2", VerifyLeader(term, 1))]
    assert leader.read() == []
    leader.member.link_up("n2")
    assert leader.read() == [("n2", VerifyLeader(term, 3))]
    assert leader.results == [None, None, None]


def test_a_voter_that_could_not_answer_yet_is_asked_again(leader: Leader) -> None:
    """It was not in this term yet, or did not vote yet; its link stays."""
    leader.read()
    now = leader.core.now()
    leader.core.now = lambda: now + ASK_AGAIN_S - 0.1  # type: ignore[method-assign]
    assert leader.read() == []
    leader.core.now = lambda: now + ASK_AGAIN_S  # type: ignore[method-assign]
    assert leader.read() == [(name, VerifyLeader(leader.core.term, 3)) for name in ("n1", "n2")]
    leader.verified("n1", 3)
    leader.results.clear()
    leader.read()
    leader.verified("n1", 4)
    assert leader.results == [True]


def test_only_an_answer_to_a_check_after_its_begin_confirms_a_read(able: Leader) -> None:
    term = able.core.term
    assert able.read() == [("n1", VerifyLeader(term, 2))]
    assert able.read() == [("n1", VerifyLeader(term, 3))]
    able.verified("n1", 1)
    able.verified("n1", 3, term=term - 1)
    able.verified("n7", 3)
    assert able.results == []
    able.verified("n1", 2)
    assert able.results == [True]
    able.verified("n1", 3)
    assert able.results == [True, True]


def test_half_of_an_even_number_of_voters_confirms_nothing(leader: Leader) -> None:
    """The other half may have elected another leader."""
    reads = ReadIndex(leader.core, lambda: {"n1", "n2", "n3"}, lambda *sent: None, resend_s=1.0)
    reads.verified("n1", LeaderVerified(leader.core.term, 0))
    reads.verified("n2", LeaderVerified(leader.core.term, 0))
    reads.begin(leader.core.term, leader.results.append)
    reads.turn()
    reads.verified("n1", LeaderVerified(leader.core.term, 1))
    reads.turn()
    assert leader.results == []
    reads.verified("n2", LeaderVerified(leader.core.term, 1))
    reads.turn()
    assert leader.results == [True]


def test_a_read_waits_until_what_was_appended_before_is_applied(able: Leader) -> None:
    """A change whose outcome was unknown is in what the next read sees, or never will be."""
    able.core.append(b"\x94\xa5claim\x01\xa2n0\x90")
    able.read()
    able.verified("n1", 2)
    assert able.results == []
    able.acknowledge()
    assert able.results == [True]


def test_a_lost_check_is_sent_again(able: Leader) -> None:
    able.read()
    now = able.core.now()
    assert sent(able) == []
    able.core.now = lambda: now + 0.2  # type: ignore[method-assign]
    assert sent(able) == [("n1", VerifyLeader(able.core.term, 2))]


def test_a_read_whose_voters_are_gone_uses_the_log(able: Leader) -> None:
    able.read()
    able.member.link_down("n1")
    able.tick()
    assert able.results == [None]
    able.member.link_up("n1")
    assert able.read() == [("n1", VerifyLeader(able.core.term, 3))], "it is asked again"


def test_a_deposed_leader_confirms_nothing(able: Leader) -> None:
    term = able.core.term
    able.read()
    able.receive("n2", TermHint(term + 1))
    able.verified("n1", 2, term=term)
    assert able.results == [False]
    able.member.read_index.begin(term, able.results.append)
    able.tick()
    assert able.results == [False, False]


def test_a_voter_answers_the_leader_of_its_own_term_only(tmp_path: Path) -> None:
    with QuietMember(tmp_path / "votes") as member:
        member.receive("n1", RequestVote(term=5, last_log_index=9, last_log_term=4))
        member.answers()
        for term, answer in ((4, [TermHint(5)]), (5, [LeaderVerified(5, 7)]), (6, [])):
            member.receive("n2", VerifyLeader(term, 7))
            assert [each for _, each in member.answers()] == answer
    with QuietMember(tmp_path / "lost its votes", bootstrap=False) as member:
        member.receive("n2", VerifyLeader(member.core.term, 7))
        assert member.answers() == []


async def test_reads_of_a_group_write_nothing(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:

        def written() -> list[tuple[int, int]]:
            statuses = [each.status() for each in group.running.values()]
            return [(each["journalSyncs"], each["lastApplied"]) for each in statuses]

        for _ in range(20):  # the first reads use the log; on a busy machine an election may come between
            before = written()
            outcomes = [await (await group.active()).barrier() for _ in range(20)]
            if outcomes == [Committed(None)] * 20 and written() == before:
                return
        raise AssertionError("reads write")
