"""Who may vote: the first start, an empty directory, promises, rejoins; and the files that remember it."""

import asyncio
import shutil
from pathlib import Path

import pytest

from namesrv.plugins.controller.raft.codec import (
    Acknowledgement,
    AppendEntries,
    PreVoteRequest,
    RejoinRequest,
    RequestVote,
    VoteEligibility,
)
from namesrv.plugins.controller.raft.fenced_state_machine import Batch, encode_batch
from namesrv.plugins.controller.raft.membership import vote_eligibility
from namesrv.plugins.controller.raft.membership.vote_eligibility import Joining
from namesrv.plugins.controller.raft.storage.files import DamagedError
from namesrv.plugins.controller.replicator import Committed, NotActive, Unknown
from tests.support.raft_group import Group, ListMachine, QuietMember, kinds, no_ops, until
from tests.support.reach_in import open_core

NAMES = ("n0", "n1", "n2")


class Members:
    """The pure half of three members; what they tell each other is delivered by hand."""

    def __init__(self) -> None:
        self.stored: dict[str, VoteEligibility] = {}
        self.all = {name: self.make(name, VoteEligibility(f"{name}-a", "new", ())) for name in NAMES}

    def make(self, name: str, own: VoteEligibility) -> Joining:
        def store(new: VoteEligibility) -> None:
            self.stored[name] = new

        return Joining(name, frozenset(NAMES) - {name}, own, store)

    def tell(self, sender: str, receiver: str) -> bool:
        return self.all[receiver].receive(sender, self.all[sender].own)

    def states(self) -> list[str]:
        return [self.all[name].own.state for name in NAMES]

    def tell_all(self) -> None:
        for sender in NAMES:
            for receiver in NAMES:
                if sender != receiver:
                    self.tell(sender, receiver)


def test_a_first_start_needs_every_member_once() -> None:
    members = Members()
    assert not members.tell("n1", "n0")
    assert members.all["n0"].waits_for() == ["n2"]
    assert members.tell("n2", "n0")  # n0 promises
    assert members.states() == ["promised", "new", "new"]
    members.tell_all()
    members.tell_all()
    assert members.states() == ["member"] * 3
    assert {each.member_list for each in members.stored.values()} == {
        (("n0", "n0-a"), ("n1", "n1-a"), ("n2", "n2-a"))
    }


def test_a_member_that_lost_its_disk_is_not_new() -> None:
    members = Members()
    members.tell_all()
    members.tell_all()
    members.all["n2"] = members.make("n2", VoteEligibility("n2-b", "new", ()))
    members.tell_all()
    assert members.states() == ["member", "member", "new"]
    assert members.all["n2"].rejoins
    assert members.all["n2"].waits_for() == []
    members.all["n2"].rejoined()
    assert members.stored["n2"] == VoteEligibility("n2-b", "member", ())


def test_a_promise_is_given_once() -> None:
    """n2 loses its disk in the middle of a first start: nobody may join with its new directory."""
    members = Members()
    members.tell("n1", "n0")
    members.tell("n2", "n0")  # n0 has promised the old one
    members.all["n2"] = members.make("n2", VoteEligibility("n2-b", "new", ()))
    for _ in range(3):
        members.tell_all()
    assert "member" not in members.states()
    assert members.all["n0"].own.member_list[2] == ("n2", "n2-a")


@pytest.mark.parametrize("other", ["n2-a", "n2-b"])
def test_a_member_joins_only_those_that_promised_the_same_directories(other: str) -> None:
    """n2-b: n1 has promised another directory of n2, and two groups must not begin."""
    list_of_n1 = (("n0", "n0-a"), ("n1", "n1-a"), ("n2", other))
    members = Members()
    members.tell("n1", "n0")
    members.tell("n2", "n0")
    own = members.all["n0"]
    assert own.own == VoteEligibility("n0-a", "promised", (*list_of_n1[:2], ("n2", "n2-a")))
    own.receive("n2", VoteEligibility("n2-a", "promised", own.own.member_list))
    own.receive("n1", VoteEligibility("n1-a", "promised", list_of_n1))
    assert own.own.state == ("member" if other == "n2-a" else "promised")


def test_what_was_heard_is_forgotten_with_the_link() -> None:
    members = Members()
    members.tell("n1", "n0")
    members.all["n0"].disconnected("n1")
    assert not members.tell("n2", "n0")
    assert members.all["n0"].waits_for() == ["n1"]


def test_a_member_alone_needs_nobody() -> None:
    alone = Joining("n0", frozenset(), VoteEligibility("a", "new", ()), lambda _vote_eligibility: None)
    assert alone.is_member


def test_every_flipped_byte_of_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "raft.standing"
    first = vote_eligibility.load(path, has_journal=False, bootstrap=False)
    assert first.state == "new"
    assert vote_eligibility.load(path, has_journal=False, bootstrap=False) == first
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(DamagedError):
            vote_eligibility.load(path, has_journal=False, bootstrap=False)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedError):
            vote_eligibility.load(path, has_journal=False, bootstrap=False)


def test_what_a_directory_says(tmp_path: Path) -> None:
    def load(name: str, **facts: bool) -> VoteEligibility:
        return vote_eligibility.load(tmp_path / name, **({"has_journal": False, "bootstrap": False} | facts))

    assert load("old release", has_journal=True).state == "member"
    assert load("forced", bootstrap=True).state == "member"
    assert load("new").state == "new"
    assert load("new", bootstrap=True).state == "member"
    with pytest.raises(DamagedError, match="empty the whole directory and start again"):
        load("new")  # it is a member now: where is its journal?


def rejoin(term: int, index: int, incarnation: str) -> tuple[tuple[bytes, int, int], ...]:
    from pysyncobj.pickle import dumps

    claim = encode_batch(Batch("claim", term, "n1"))
    batch = encode_batch(Batch("welcome", term, "n0", ((incarnation, None),)))
    return tuple((b"\x00" + dumps((0, (data,))), index + at, term) for at, data in enumerate((claim, batch)))


def test_an_empty_directory_gives_no_vote_and_no_acknowledgement_that_counts(tmp_path: Path) -> None:
    with QuietMember(tmp_path, bootstrap=False) as member:
        own = member.member.joining.own
        member.receive("n1", VoteEligibility("x", "member", ()))
        member.receive("n2", RequestVote(term=4, last_log_index=90, last_log_term=4))
        member.receive("n2", PreVoteRequest(4, 90, 4))
        member.core.election_deadline = 0.0
        assert kinds(member.answers()) == []
        member.receive("n1", AppendEntries(3, 1, no_ops(2, 9, 3), prev_index=1, prev_term=0))
        assert member.answers() == [
            ("n1", Acknowledgement(10, reset=True, success=False, term=3)),
            ("n1", RejoinRequest(own.incarnation)),
        ]
        entries = rejoin(3, 10, own.incarnation)
        member.receive("n1", AppendEntries(3, 11, entries, prev_index=9, prev_term=3))
        member.tick()
        member.tick()
        assert member.member.joining.is_member
        member.answers()
        member.receive("n2", RequestVote(term=3, last_log_index=90, last_log_term=3))
        assert kinds(member.answers()) == []  # it may have voted in term 3 before it lost its disk
        member.receive("n2", RequestVote(term=4, last_log_index=90, last_log_term=4))
        assert kinds(member.answers()) == ["ResponseVote"]
    with QuietMember(tmp_path, bootstrap=False) as again:
        assert again.member.joining.is_member


def test_a_rejoin_of_another_directory_is_not_ours(tmp_path: Path) -> None:
    with QuietMember(tmp_path, bootstrap=False) as member:
        member.receive("n1", AppendEntries(3, 3, rejoin(3, 2, "0123"), prev_index=1, prev_term=0))
        member.tick()
        member.tick()
        assert not member.member.joining.is_member


async def test_a_lost_disk_comes_back_from_the_others(tmp_path: Path) -> None:
    async with Group(tmp_path, append_deadline_s=0.4) as group:
        leader = await group.active()
        for count in range(20):
            assert await leader.append(b"%d" % count) == Committed(count + 1)
        lost, other = (name for name in group.members if name != leader.self_id)
        await group.stop(lost)
        shutil.rmtree(tmp_path / lost)
        await group.start(lost)
        await until(lambda: group.running[lost].status()["standing"] == "member", "it may vote again")
        await group.converged(20)
        await group.stop(other)
        assert isinstance(await leader.append(b"20"), Committed), "it counts again"


async def test_two_lost_disks_of_three_elect_nobody(tmp_path: Path) -> None:
    """Nothing safe can be done: they wait for the third, and say so."""
    async with Group(tmp_path, append_deadline_s=0.3) as group:
        leader = await group.active()
        assert await leader.append(b"precious") == Committed(1)
        await group.converged(1)
        others = [name for name in group.members if name != leader.self_id]
        await group.stop(leader.self_id)
        for name in others:
            await group.stop(name)
            shutil.rmtree(tmp_path / name)
        for name in others:
            await group.start(name)
        await until(lambda: all(group.running[n].status()["waitsFor"] == [leader.self_id] for n in others))
        await group.start(leader.self_id)
        await until(lambda: all(group.running[n].status()["standing"] == "rejoining" for n in others))
        for name in group.members:
            assert isinstance(await group.running[name].append(b"no"), NotActive | Unknown)
        assert group.machines[others[0]].events == []


async def test_bootstrap_starts_a_group_of_which_one_never_came(tmp_path: Path) -> None:
    group = Group(tmp_path, bootstrap=True)
    try:
        await group.start("n0")
        await group.start("n1")
        assert await (await group.active()).append(b"a") == Committed(1)
    finally:
        await group.__aexit__()


def test_files_of_the_first_release_are_read(tmp_path: Path) -> None:
    """Written before there was a vote eligibility, with request ids in log and snapshot, which has no
    rejoins."""
    shutil.copytree(Path("tests/fixtures/raft/v1"), tmp_path / "n0")
    machine = ListMachine()
    replica = Group(tmp_path, 1, secret=None).replicator("n0", machine)
    core = open_core(replica)
    core.doTick(0.0)
    core.doTick(0.0)
    assert machine.events == [b"event %d" % number for number in range(20)]
    assert replica.vote_eligibility.state == "member"
    core.close()
    replica.directory.close()


async def test_the_first_start_is_one_round_of_messages(tmp_path: Path) -> None:
    started = asyncio.get_running_loop().time()
    async with Group(tmp_path) as group:
        await group.active()
        assert asyncio.get_running_loop().time() - started < 5.0
