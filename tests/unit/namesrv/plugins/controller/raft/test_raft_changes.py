"""The group changes while it works: one more member, one less, another leader; and the member list behind
it."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from keelmq.remoting.operation import Unknown
from namesrv.plugins.controller.raft import changes
from namesrv.plugins.controller.raft.codec import Acknowledgement, AppendEntries, TimeoutNow
from namesrv.plugins.controller.raft.fenced_state_machine import Batch, encode_batch
from namesrv.plugins.controller.raft.membership.member_list import (
    Change,
    MemberList,
    encode_change,
)
from namesrv.plugins.controller.raft.membership.voters import Voters
from namesrv.plugins.controller.replicator import ChangeRefused, Committed, NotActive, RaftReplicator
from tests.support.raft_group import WAIT_S, Group, QuietMember, elect, free_ports, kinds, until
from tests.support.reach_in import raft_core

A, B, C, D = (("a", "h", 1), ("b", "h", 2), ("c", "h", 3), ("d", "h", 4))


def entry(change: Change, term: int = 1, batch_term: int = 1) -> tuple[bytes, int]:
    batch = Batch("members", batch_term, "a", ((None, encode_change(change)),))
    return b"\x00" + msgspec.msgpack.encode((0, (encode_batch(batch),))), term


class TestTheMemberList:
    def member_list(self) -> MemberList:
        member_list = MemberList({"a": ("h", 1), "b": ("h", 2), "c": ("h", 3)})
        self.seen: list[list[str]] = []
        member_list.changed = lambda: self.seen.append(sorted(member_list.members))
        return member_list

    def append(
        self, member_list: MemberList, index: int, change: Change, term: int = 1, batch_term: int = 1
    ) -> None:
        command, term = entry(change, term, batch_term)
        member_list.appended(command, index, term)

    def test_a_change_counts_when_it_is_appended_and_no_longer_when_it_is_cut(self) -> None:
        member_list = self.member_list()
        self.append(member_list, 7, Change(0, (A, B, C, D), fresh=("d", "x")))
        assert sorted(member_list.members) == ["a", "b", "c", "d"]
        assert (member_list.index, member_list.fresh) == (7, ("d", "x"))
        member_list.cut(8)
        assert member_list.index == 7
        member_list.cut(7)
        assert (sorted(member_list.members), member_list.index) == (["a", "b", "c"], 0)
        assert self.seen == [["a", "b", "c", "d"], ["a", "b", "c"]]

    def test_two_changes_can_never_be_under_way(self) -> None:
        """Whatever lingered in a queue: the second is based on what the first has changed."""
        member_list = self.member_list()
        self.append(member_list, 7, Change(0, (A, B)))
        self.append(member_list, 8, Change(0, (A, C)))
        assert sorted(member_list.members) == ["a", "b"]
        self.append(member_list, 9, Change(7, (A,)))
        assert sorted(member_list.members) == ["a"]
        assert member_list.used_ids(encode_change(Change(0, (A, C)))) is None

    def test_a_change_of_an_older_term_is_void(self) -> None:
        member_list = self.member_list()
        self.append(member_list, 7, Change(0, (A, B)), term=3, batch_term=2)
        assert member_list.index == 0

    def test_what_only_looks_like_one_is_none(self) -> None:
        member_list = self.member_list()
        for command in (b"\x00\xa7members", b"\x01\xa7members", b"\x00" + b"\xa7members" * 3):
            member_list.appended(command, 7, 1)
        assert member_list.index == 0

    def test_addresses_of_a_request_win_over_the_file_and_the_file_over_the_rest(self) -> None:
        """A file may be older than the request, and of an earlier life of the id; for the members that came
        by configuration nobody else's file counts."""
        member_list, files = self.member_list(), {"a": ("h", 1), "b": ("new", 2), "d": ("old", 4)}
        requests = {"a": ("r", 1), "b": ("r", 2), "c": ("r", 3), "d": ("old", 5)}
        assert member_list.request_addresses(requests) == {each: requests[each] for each in "abc"}
        change = Change(0, (A, B, C, D), added=(("d", "r", 9),))
        self.append(member_list, 7, change)
        assert member_list.addresses(files) == {"a": ("h", 1), "b": ("new", 2), "c": ("h", 3), "d": ("h", 4)}
        assert member_list.request_addresses(requests) == {**requests, "d": ("r", 9)}
        assert member_list.request_addresses({}) == member_list.added == {"d": ("r", 9)}
        other = self.member_list()
        other.restored(7, (7, encode_change(change)))
        assert other.added == {"d": ("r", 9)}, "a snapshot holds it"
        self.append(member_list, 8, Change(7, (A, B, C)))
        assert member_list.added == {} and "d" not in member_list.request_addresses(requests)
        member_list.cut(8)
        assert member_list.added == {"d": ("r", 9)}

    def test_a_change_of_a_program_without_addresses_is_read(self) -> None:
        """Shorter by one field, and known by its own bytes again when it is applied."""
        member_list = self.member_list()
        old = msgspec.msgpack.encode((0, (A, B), ("a", "b", "c"), None))
        batch = Batch("members", 1, "a", ((None, old),))
        member_list.appended(b"\x00" + msgspec.msgpack.encode((0, (encode_batch(batch),))), 7, 1)
        assert sorted(member_list.members) == ["a", "b"] and member_list.added == {}
        assert member_list.used_ids(old) == ("a", "b", "c")
        assert member_list.used_ids(b"garbage") is None

    def test_a_snapshot_holds_only_what_cannot_be_cut_any_more(self) -> None:
        member_list = self.member_list()
        self.append(member_list, 7, Change(0, (A, B, C, D)))
        self.append(member_list, 9, Change(7, (A, B, C)))
        assert member_list.at(6)[0] == 0
        index, change = member_list.at(8)
        assert (index, change.members) == (7, (A, B, C, D))
        other = self.member_list()
        other.restored(8, (index, encode_change(change)))
        assert sorted(other.members) == ["a", "b", "c", "d"]
        member_list.restored(8, (index, encode_change(change)))
        assert sorted(member_list.members) == ["a", "b", "c"], "what follows the snapshot stays"
        member_list.cleared()
        assert sorted(member_list.members) == ["a", "b", "c", "d"]


async def start_newcomer(group: Group, name: str) -> RaftReplicator:
    group.members = {**group.members, name: ("127.0.0.1", free_ports(1)[0])}
    return await group.start(name)


def ids(replicator: RaftReplicator) -> list[str]:
    return sorted(replicator.status()["members"])


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the library leaves a file to the collector
async def test_one_more_member_and_one_less(tmp_path: Path) -> None:
    async with Group(tmp_path, compaction_entries=15, append_deadline_s=1.0) as group:
        leader = await group.active()
        for count in range(40):  # the newcomer needs a snapshot
            assert await leader.append(b"%d" % count) == Committed(count + 1)
        newcomer = await start_newcomer(group, "n3")
        assert await leader.add_member("n3", group.members["n3"]) == Committed(None)
        assert await leader.add_member("n3", group.members["n3"]) == Committed(None)
        await until(lambda: newcomer.status()["standing"] == "member", "it votes")
        await group.converged(40)
        assert all(ids(each) == ["n0", "n1", "n2", "n3"] for each in group.running.values())
        assert not any(each.status()["otherMemberLists"] for each in group.running.values())
        gone = next(name for name in ("n0", "n1", "n2") if name != leader.self_id)
        assert await leader.remove_member(gone) == Committed(None)
        await until(lambda: group.running[gone].status()["role"] == "removed", "it hears of it")
        await group.stop(gone)
        other = next(name for name in group.running if name not in ("n3", leader.self_id))
        await group.stop(other)
        assert await leader.append(b"40") == Committed(41), "two of three, and the newcomer is one of them"
        await group.start(other)
        await group.converged(41)
        assert ids(group.running[other]) == sorted({"n0", "n1", "n2", "n3"} - {gone})
        for name in list(group.running):
            await group.stop(name)
        remaining = sorted({"n0", "n1", "n2", "n3"} - {gone})
        for name in remaining:
            await group.start(name)  # whatever the configuration says: the log knows better
        assert await (await group.active()).append(b"41") == Committed(42)
        assert all(ids(group.running[name]) == remaining for name in remaining)
        assert not group.fatal


async def test_a_member_that_comes_again_rejoins_first(tmp_path: Path) -> None:
    """Its new directory has forgotten what the old one promised."""
    async with Group(tmp_path, append_deadline_s=1.0) as group:
        leader = await group.active()
        again = next(name for name in group.members if name != leader.self_id)
        assert await leader.remove_member(again) == Committed(None)
        await group.stop(again)
        for file in (tmp_path / again).iterdir():
            file.unlink()
        await group.start(again)
        assert await leader.add_member(again, group.members[again]) == Committed(None)
        await until(lambda: group.running[again].status()["standing"] == "member", "it votes")
        assert again in leader.state_machine.rejoined


async def test_leadership_moves_at_once(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.active()
        await group.converged(0)
        transfer_target = next(each for each in group.running.values() if each is not leader)
        started = asyncio.get_running_loop().time()
        assert await leader.transfer_leadership(transfer_target.self_id) == Committed(None)
        await until(lambda: transfer_target.is_active, "the heir is active")
        assert asyncio.get_running_loop().time() - started < 2.0
        assert await transfer_target.append(b"x") == Committed(1)
        assert isinstance(await leader.append(b"y"), NotActive)
        assert await transfer_target.transfer_leadership(transfer_target.self_id) == Committed(None)
        assert isinstance(await leader.transfer_leadership(transfer_target.self_id), NotActive)


def test_a_heartbeat_in_the_same_turn_does_not_stop_the_transfer_target(tmp_path: Path) -> None:
    """The library puts its election off with every append; the old leader goes on sending them meanwhile."""
    with QuietMember(tmp_path) as transfer_target:
        heartbeat = AppendEntries(3, 1, (), prev_index=1, prev_term=0)
        transfer_target.receive("n1", heartbeat)
        transfer_target.answers()
        transfer_target.receive("n1", TimeoutNow(2))  # of a term that is over
        assert "RequestVote" not in kinds(transfer_target.answers())
        transfer_target.receive("n1", TimeoutNow(3))
        transfer_target.receive("n1", heartbeat)
        assert "RequestVote" in kinds(transfer_target.answers())
        assert transfer_target.core.term == 4


def remove_n2(leader: QuietMember) -> list[str]:
    """The change is appended, and not acknowledged; whom the leader sends the log in some heartbeats."""
    leader.links.connected = lambda: ["n1", "n2"]  # type: ignore[method-assign]
    elect(leader)
    leader.receive("n1", Acknowledgement(3, False, True, leader.core.term))
    leader.answers()
    change = Change(0, tuple((name, *leader.group.members[name]) for name in ("n0", "n1")))
    batch = Batch("members", leader.core.term, "n0", ((None, encode_change(change)),))
    leader.core.submit(encode_batch(batch), lambda *_: None)
    leader.answers()
    assert sorted(leader.replica.member_list.members) == ["n0", "n1"]
    assert leader.core.commit_index < leader.replica.member_list.index
    leader.member.link_down("n2")
    leader.member.link_up("n2")
    leader.receive("n2", Acknowledgement(3, False, True, leader.core.term))  # from before: nobody stumbles
    return appends(leader, lambda told: told.count("n1") >= 3)


def appends(leader: QuietMember, enough: Callable[[list[str]], bool]) -> list[str]:
    told: list[str] = []
    deadline = time.monotonic() + WAIT_S
    while not enough(told):
        assert time.monotonic() < deadline, told
        told += [name for name, message in leader.answers() if isinstance(message, AppendEntries)]
    return told


def test_a_member_hears_of_its_removal_when_that_is_decided(tmp_path: Path) -> None:
    """Who takes itself for removed gives no vote; if the leader dies then, the others may need it."""
    with QuietMember(tmp_path) as leader:
        assert "n2" not in remove_n2(leader)
        leader.receive(
            "n1", Acknowledgement(leader.replica.member_list.index + 1, False, True, leader.core.term)
        )
        assert "n2" in appends(leader, lambda told: "n2" in told)
        assert leader.core.commit_index == leader.replica.member_list.index


def test_who_leads_no_more_tells_nobody_of_a_removal(tmp_path: Path) -> None:
    """The entry may be cut off again."""
    with QuietMember(tmp_path) as leader:
        remove_n2(leader)
        term, index = leader.core.term + 1, leader.replica.member_list.index
        leader.receive("n1", AppendEntries(term, index - 1, ((b"\x01", index, term),), index - 1, term - 1))
        leader.tick()
        leader.tick()
        assert not leader.core.leads
        assert sorted(leader.replica.member_list.members) == ["n0", "n1", "n2"]
        assert not leader.member.voters.learners and leader.member.voters.is_replicated_to("n2")


@pytest.mark.slow
async def test_changes_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "JOIN_S", 0.3)
    monkeypatch.setattr(changes, "IN_FLIGHT_S", 0.3)
    async with Group(tmp_path, append_deadline_s=0.5) as group:
        leader = await group.active()
        down, other = (name for name in group.members if name != leader.self_id)
        nowhere = ("127.0.0.1", free_ports(1)[0])
        both = await asyncio.gather(leader.add_member("n9", nowhere), leader.remove_member(other))
        assert "did not catch up" in refusal(both[0])
        assert "another change of the group is in progress" in refusal(both[1])
        assert "transfer the leadership first" in refusal(await leader.remove_member(leader.self_id))
        assert "is not a member" in refusal(await leader.transfer_leadership("n9"))
        assert isinstance(await group.running[other].add_member("n9", ("127.0.0.1", 1)), NotActive)
        assert await leader.remove_member("n9") == Committed(None)
        await group.stop(down)
        await until(lambda: down not in leader.status()["connected"], "it is seen to be down")
        assert f"{down} is not connected" in refusal(await leader.transfer_leadership(down))
        monkeypatch.setattr(Voters, "send_timeout_now", lambda self, member: False)
        assert "does not have the whole log" in refusal(await leader.transfer_leadership(other))
        refused = f"of {', '.join(sorted({leader.self_id, down}))} only {leader.self_id} could vote"
        for dry_run in (True, False):
            assert refused in refusal(await leader.remove_member(other, dry_run=dry_run))
        assert leader.status()["membersSinceIndex"] == 0
    alone = Group(tmp_path / "alone", 1, secret=None)
    async with alone:
        assert "opens no raft port" in refusal(await (await alone.active()).add_member("n1", ("h", 1)))


async def test_a_member_that_was_away_when_it_was_removed_is_told(tmp_path: Path) -> None:
    """And added again, its old directory is as good as a new one."""
    async with Group(tmp_path, append_deadline_s=1.0) as group:
        leader = await group.active()
        away = next(name for name in group.members if name != leader.self_id)
        await group.stop(away)
        await until(lambda: away not in leader.status()["connected"], "it is seen to be down")
        assert await leader.remove_member(away, dry_run=True) == Committed(None)
        assert away in leader.status()["members"] and leader.status()["membersSinceIndex"] == 0
        assert await leader.remove_member(away) == Committed(None)
        await group.start(away)
        again = group.running[away]
        await until(lambda: again.status()["role"] == "removed", "somebody tells it")
        assert await leader.add_member(away, group.members[away]) == Committed(None)
        await until(lambda: again.status()["role"] == "follower", "it is one again")
        assert await leader.append(b"x") == Committed(1)
        await group.converged(1)


async def test_a_transfer_target_that_was_asked_and_did_not_come_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still come."""
    monkeypatch.setattr(changes, "TAKE_OVER_S", 0.05)
    monkeypatch.setattr(Voters, "send_timeout_now", lambda self, member: True)
    async with Group(tmp_path) as group:
        leader = await group.active()
        transfer_target = next(name for name in group.members if name != leader.self_id)
        await until(lambda: transfer_target in leader.status()["connected"], "linked")
        outcome = await leader.transfer_leadership(transfer_target)
        assert isinstance(outcome, Unknown) and f"{transfer_target} was asked" in outcome.remark


def refusal(outcome: object) -> str:
    assert isinstance(outcome, ChangeRefused), outcome
    return outcome.reason


async def test_who_died_a_moment_ago_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection still stands, as after a power cut, and it answered less than leader_fallback_s ago. A
    member that must rejoin and this one: with both of them missing, nobody could ever decide again."""
    monkeypatch.setattr(changes, "RESPONSE_S", 0.3)
    async with Group(tmp_path) as group:
        leader = await group.active()
        silent, other = (group.running[name] for name in group.members if name != leader.self_id)
        answered = raft_core(leader).member.voters.responsive
        monkeypatch.setattr(
            raft_core(leader).member.voters,
            "responsive",
            lambda members, since: [each for each in answered(members, since) if each != silent.self_id],
        )
        assert "could vote, no majority" in refusal(await leader.remove_member(other.self_id))
        monkeypatch.undo()
        with_silence = answered(group.members, since=raft_core(leader).now() + 60)
        assert with_silence == [leader.self_id], "an answer from before does not count"
        assert await leader.remove_member(other.self_id) == Committed(None)


async def test_two_changes_by_configuration_at_once_are_not_linked(tmp_path: Path) -> None:
    """Two majorities without a common member: n0 n1 n2 and n2 n3 n4."""
    first, second = Group(tmp_path, 3, bootstrap=True), Group(tmp_path, 3, bootstrap=True)
    ports = free_ports(2)
    second.members = {
        "n2": first.members["n2"],
        "n3": ("127.0.0.1", ports[0]),
        "n4": ("127.0.0.1", ports[1]),
    }
    try:
        await first.start("n0")
        await first.start("n1")
        await second.start("n2")
        await second.start("n3")
        await first.active()
        await until(lambda: "n3" in second.running["n2"].status()["connected"], "its own list")
        assert "n2" not in first.running["n0"].status()["connected"]
    finally:
        await first.__aexit__()
        await second.__aexit__()
