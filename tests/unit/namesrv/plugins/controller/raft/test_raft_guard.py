"""The library with our guard: each rule that mends one of its faults, seen through the real library."""

import pickle
from pathlib import Path

import msgspec
import pysyncobj.journal
import pysyncobj.pickle
import pytest

from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft import codec
from namesrv.plugins.controller.raft.codec import (
    Acknowledgement,
    AppendEntries,
    PreVoteGrant,
    PreVoteRequest,
    RequestVote,
    ResponseVote,
    TermHint,
)
from namesrv.plugins.controller.raft.prevote import PreVote
from namesrv.plugins.controller.raft.storage.snapshot import Snapshot, encode_snapshot
from namesrv.plugins.controller.replicator import prepare_library
from tests.support.raft_attackers import Touch
from tests.support.raft_group import ListMachine, QuietMember, elect, kinds, no_ops
from tests.support.reach_in import library_part


def append(term: int, prefix: int, prefix_term: int, entries: object = (), commit: int = 1) -> AppendEntries:
    return AppendEntries(term, commit, entries, prev_index=prefix, prev_term=prefix_term)  # type: ignore[arg-type]


def test_a_vote_survives_a_crash(tmp_path: Path) -> None:
    with QuietMember(tmp_path) as member:
        member.receive("n1", RequestVote(term=5, last_log_index=9, last_log_term=4))
        assert kinds(member.answers()) == ["ResponseVote"]
    with QuietMember(tmp_path) as member:
        assert member.core.term == 5
        member.receive("n2", RequestVote(term=5, last_log_index=9, last_log_term=4))
        assert kinds(member.answers()) == []
        member.receive("n2", RequestVote(term=6, last_log_index=9, last_log_term=4))
        assert kinds(member.answers()) == ["ResponseVote"]


@pytest.mark.parametrize("serialized", [None, (b"x", True, False)], ids=["pending", "chunk"])
def test_a_snapshot_frame_does_not_move_the_commit_index(
    tmp_path: Path, serialized: tuple[bytes, bool, bool] | None
) -> None:
    with QuietMember(tmp_path) as member:
        member.receive("n1", append(1, 1, 0, no_ops(2, 10, 1)))
        member.receive("n2", AppendEntries(term=2, commit_index=50, serialized=serialized))
        member.tick()
        assert member.core.commit_index == 1
        assert member.core.term == 2
        # the library closes its half-received file only when the next one begins
        member.receive("n2", AppendEntries(term=2, commit_index=50, serialized=(b"", False, False)))
        _close_incoming(member)


def _close_incoming(member: QuietMember) -> None:
    serializer = library_part(member.core, "serializer")
    incoming = serializer.__dict__["_Serializer__incomingTransmissionFile"]
    if incoming is not None:
        incoming.close()


def test_a_repeated_append_removes_nothing(tmp_path: Path) -> None:
    with QuietMember(tmp_path) as member:
        member.receive("n1", append(1, 1, 0, no_ops(2, 10, 1)))
        assert member.answers() == [("n1", Acknowledgement(11, False, True, 1))]
        member.receive("n1", append(1, 1, 0, no_ops(2, 4, 1)))
        assert member.answers() == [("n1", Acknowledgement(5, False, True, 1))]
        assert member.log()[-1] == (10, 1)


def test_a_conflicting_tail_is_cut(tmp_path: Path) -> None:
    with QuietMember(tmp_path) as member:
        member.receive("n1", append(1, 1, 0, no_ops(2, 10, 1)))
        member.receive("n2", append(2, 1, 0, (*no_ops(2, 4, 1), *no_ops(5, 6, 2))))
        assert member.log()[3:] == [(4, 1), (5, 2), (6, 2)]
        assert member.answers()[-1] == ("n2", Acknowledgement(7, False, True, 2))


def test_removing_committed_entries_ends_the_process(tmp_path: Path) -> None:
    with QuietMember(tmp_path) as member:
        member.receive("n1", append(1, 1, 0, no_ops(2, 10, 1), commit=8))
        with pytest.raises(Exception, match="committed up to 8"):
            member.receive("n2", append(2, 1, 0, no_ops(2, 4, 2)))
        assert member.group.fatal[0][0] == 71


def test_a_reset_aims_behind_the_committed_prefix(tmp_path: Path) -> None:
    with QuietMember(tmp_path) as member:
        member.receive("n1", append(1, 1, 0, no_ops(2, 10, 1), commit=6))
        member.answers()
        member.receive("n2", append(2, 10, 2))
        assert member.answers() == [("n2", Acknowledgement(7, True, False, 2))]


def test_an_old_leader_is_told_the_new_term(tmp_path: Path) -> None:
    with QuietMember(tmp_path) as member:
        member.receive("n1", append(7, 1, 0))
        member.answers()
        member.receive("n2", append(6, 1, 0))
        assert member.answers() == [("n2", TermHint(7))]
        member.receive("n2", TermHint(9))
        assert member.core.term == 9
        assert member.answers() == []  # adopted, no vote granted


def snapshot_frames(index: int, term: int, cluster_id: str = "group") -> list[AppendEntries]:
    state = Snapshot(
        cluster_id=cluster_id,
        members=("n0", "n1", "n2"),
        last=(b"\x01", index, 1),
        previous=(b"\x01", index - 1, 1),
        claimed_term=0,
        state=ListMachine().snapshot(),
    )
    data = encode_snapshot(state)
    chunks = [(data[:40], True, False), (data[40:], False, False), (b"", False, True)]
    return [AppendEntries(term, index, serialized=chunk) for chunk in chunks]


def test_a_snapshot_without_news_cuts_nothing(tmp_path: Path) -> None:
    """Rule 8: a leader may send the same snapshot again; what was acknowledged since must stay."""
    with QuietMember(tmp_path) as member:
        member.receive("n1", append(1, 1, 0, no_ops(2, 10, 1)))
        assert member.answers() == [("n1", Acknowledgement(11, False, True, 1))]
        for frame in snapshot_frames(6, 1):
            member.receive("n1", frame)
        assert member.answers() == [("n1", Acknowledgement(7, False, True, 1))]
        assert member.log()[-1] == (10, 1)
        for frame in snapshot_frames(30, 1):
            member.receive("n1", frame)
        assert member.answers() == [("n1", Acknowledgement(31, False, True, 1))]
        assert member.log() == [(29, 1), (30, 1)]


def test_snapshots_that_are_not_installed(tmp_path: Path) -> None:
    with QuietMember(tmp_path) as member:
        first, second, last = snapshot_frames(30, 1)
        for frame in snapshot_frames(30, 1, "other"):
            member.receive("n1", frame)
        for sender, frame in (("n1", first), ("n2", second), ("n1", last)):
            member.receive(sender, frame)  # n2 may not continue what n1 began
        broken = AppendEntries(1, 30, serialized=(b"garbage", False, False))
        for frame in (first, broken, last):
            member.receive("n1", frame)
        assert member.log() == [(1, 0)]
        assert member.member.guard.dropped == {
            "snapshot of another cluster": 1,
            "snapshot chunk out of turn": 2,
            "damaged snapshot": 1,
        }


def test_stale_acknowledgements_and_second_votes_do_not_count(tmp_path: Path) -> None:
    with QuietMember(tmp_path) as member:
        elect(member)
        assert member.core.leads
        member.receive("n2", Acknowledgement(3, False, True, term=0))
        member.tick()
        assert member.core.commit_index == 1
        member.receive("n2", Acknowledgement(3, False, True, member.core.term))
        member.tick()
        assert member.core.commit_index == 2
        member.receive("n1", ResponseVote(member.core.term))
        assert member.member.guard.dropped == {"acknowledgement of another term": 1, "second vote": 1}


def test_nothing_of_an_unverified_peer_with_our_key_counts(tmp_path: Path) -> None:
    """One that is no member yet, or no more, may link to us: a later member knows the member list only
    then."""
    with QuietMember(tmp_path) as member:
        member.member.link_up("n7")
        member.core.election_deadline = 0.0
        assert "PreVoteRequest" in kinds(member.answers())
        member.receive("n7", PreVoteGrant(member.core.term))
        assert "RequestVote" not in kinds(member.answers())
        member.receive("n1", PreVoteGrant(member.core.term))
        assert "RequestVote" in kinds(member.answers())
        member.receive("n7", ResponseVote(member.core.term))
        member.tick()
        assert not member.core.leads
        member.receive("n1", ResponseVote(member.core.term))
        member.tick()
        assert member.core.leads
        commit = member.core.commit_index
        member.receive("n7", Acknowledgement(99, False, True, term=member.core.term))
        member.tick()
        assert member.core.commit_index == commit
        assert member.member.guard.dropped["vote of no member"] == 2
        assert member.member.guard.dropped["acknowledgement of no member"] == 1


def test_acknowledgements_wait_for_the_disk(tmp_path: Path) -> None:
    with QuietMember(tmp_path) as member:
        syncs = member.core.log.syncs
        member.receive("n1", append(1, 1, 0, no_ops(2, 3, 1)))
        member.receive("n1", append(1, 3, 1, no_ops(4, 5, 1)))
        assert member.links.sent == []
        assert member.answers() == [("n1", Acknowledgement(6, False, True, 1))]  # one sync, one answer
        assert member.core.log.syncs == syncs + 1


def test_prevote_of_a_member_that_hears_its_leader(tmp_path: Path) -> None:
    with QuietMember(tmp_path) as member:
        member.receive("n1", append(3, 1, 0))
        member.answers()
        member.receive("n2", PreVoteRequest(3, 1, 0))
        assert member.answers() == []
        member.core.election_deadline = float("inf")
        member.member.link_down("n1")  # the leader is gone
        member.core.election_deadline = float("inf")
        member.receive("n2", PreVoteRequest(3, 1, 0))
        assert member.answers() == [("n2", PreVoteGrant(3))]
        member.receive("n2", PreVoteRequest(2, 1, 0))
        assert member.answers() == [("n2", TermHint(3))]


def test_prevote_of_a_leader_and_of_one_without_a_vote(tmp_path: Path) -> None:
    with QuietMember(tmp_path / "leads") as member:
        elect(member)
        member.receive("n1", Acknowledgement(3, False, True, term=member.core.term))
        member.answers()
        assert member.core.leads
        member.receive("n2", PreVoteRequest(member.core.term, 99, 99))
        assert "PreVoteGrant" not in kinds(member.answers()), "a majority answers it: nobody is to campaign"
    with QuietMember(tmp_path / "learns", bootstrap=False) as member:
        member.receive("n2", PreVoteRequest(member.core.term, 99, 99))
        member.receive("n2", RequestVote(member.core.term + 1, 99, 99))
        assert not {"PreVoteGrant", "ResponseVote"} & set(kinds(member.answers()))


def test_prevote_table() -> None:
    voter = PreVote("b", 2)
    assert not voter.grant("c", asker=(1, 5), mine=(1, 5), leader_fresh=True)
    assert not voter.grant("c", asker=(1, 4), mine=(1, 5), leader_fresh=False)
    assert voter.grant("c", asker=(2, 1), mine=(1, 5), leader_fresh=False)
    voter.ask(3)  # a duel: the smaller id goes first, unless the other log is newer
    assert not voter.grant("c", asker=(1, 5), mine=(1, 5), leader_fresh=False)
    assert voter.grant("c", asker=(1, 6), mine=(1, 5), leader_fresh=False)
    voter.ask(3)
    assert voter.grant("a", asker=(1, 5), mine=(1, 5), leader_fresh=False)
    assert not voter.granted("c", 3, 3, 0.0)  # gave way


def test_no_pickle_is_ever_parsed(tmp_path: Path) -> None:
    bomb = pickle.dumps(Touch(tmp_path / "boom"), 2)
    with QuietMember(tmp_path) as member:
        member.member.link_frame("n1", bomb)
        member.member.link_frame("n1", codec.encode({"type": "append_entries", "data": bomb}))
        command = b"\x00" + bomb
        member.receive("n1", append(1, 1, 0, ((command, 2, 1),), commit=2))
        assert member.member.invalid_frames == 2
        with pytest.raises(codec.CodecError):  # ends the raft thread; the command came from an elected leader
            member.tick()
        library_part(member.core, "serializer")
    for module in (pysyncobj.pickle, pysyncobj.journal):
        with pytest.raises(codec.CodecError):
            module.loads(bomb)
    assert not (tmp_path / "boom").exists()


def test_commands_that_only_the_library_knows_are_refused() -> None:
    for kind in (b"\x02", b"\x03", b""):
        frame = msgspec.msgpack.encode(append(1, 1, 0, ((kind + b"x" * len(kind), 2, 1),)))
        with pytest.raises(codec.CodecError, match="command kind"):
            codec.decode_message(frame)


def test_another_library_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("namesrv.plugins.controller.replicator.VERSION", "0.3.16")
    with pytest.raises(ConfigError, match=r"exactly 0\.3\.17"):
        prepare_library()


def test_a_missing_private_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pysyncobj.syncobj.monotonicTime")
    with pytest.raises(ConfigError, match=r"lacks pysyncobj\.syncobj\.monotonicTime"):
        prepare_library()
