"""Three members over loopback, in one process: commits, fail-over, catching up, minority, fatal errors."""

import asyncio
from pathlib import Path

import pytest

from namesrv.plugins.controller.replicator import Committed, NotActive, RaftReplicator, Unknown
from tests.support.raft_group import Group, until


async def append_somewhere(group: Group, event: bytes) -> object:
    """Repeats until a member says Committed, as a handler's client would."""
    deadline = asyncio.get_running_loop().time() + 8
    while asyncio.get_running_loop().time() < deadline:
        outcome = await (await group.active()).append(event)
        if isinstance(outcome, Committed):
            return outcome.result
        await asyncio.sleep(0.005)
    raise AssertionError("nobody applied it")


async def test_a_group_of_one_commits_without_a_network(tmp_path: Path) -> None:
    group = Group(tmp_path, 1, secret=None)
    async with group:
        member = await group.active()
        assert await member.append(b"a") == Committed(1)
        assert await member.barrier() == Committed(None)
        started = asyncio.get_running_loop().time()
        for count in range(2, 22):
            assert await member.append(b"b") == Committed(count)
        assert asyncio.get_running_loop().time() - started < 0.5  # a tick per commit would be 1 s
        first_epoch = member.epoch
    async with group:
        member = await group.active()
        assert await member.append(b"c") == Committed(22)
        assert member.epoch is not None
        assert first_epoch is not None
        assert member.epoch > first_epoch


async def test_commits_fail_over_and_catching_up(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        first = await group.active()
        changes: list[bool] = []
        first.on_active_changed(changes.append)
        outcomes = await asyncio.gather(*(first.append(b"%d" % i) for i in range(300)))
        assert outcomes == [Committed(i + 1) for i in range(300)]
        await group.converged(300)
        other = next(each for each in group.running.values() if each is not first)
        assert await other.append(b"no") == NotActive(first.self_id)
        assert await first.append(b"once") == Committed(301)
        await group.stop(first.self_id)
        assert changes == [False]
        assert await first.append(b"no") == NotActive(None)
        assert await append_somewhere(group, b"more") == 302
        await group.start(first.self_id)
        await group.converged(302)
        assert not group.fatal


async def test_fail_over_is_fast_after_an_idle_time(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        loop = asyncio.get_running_loop()
        first = await group.active()
        await group.converged(0)
        await until(lambda: all(len(each.status()["connected"]) == 2 for each in group.running.values()))
        started, epoch = loop.time(), first.epoch or 0
        await group.stop(first.self_id)
        second = await group.active()
        # far below an election timeout (0.4 to 0.8 s) on an idle machine; generous for a busy one
        assert loop.time() - started < 2.0
        assert second.epoch is not None
        assert second.epoch > epoch


async def test_a_restart_of_all_forgets_nothing(tmp_path: Path) -> None:
    group = Group(tmp_path)
    async with group:
        member = await group.active()
        await asyncio.gather(*(member.append(b"%d" % i) for i in range(50)))
        await group.converged(50)
    async with group:
        member = await group.active()
        assert await member.append(b"51") == Committed(51)
        await group.converged(51)


@pytest.mark.slow
@pytest.mark.promise("S6")
async def test_a_minority_leader_answers_unknown_then_not_active(tmp_path: Path) -> None:
    async with Group(tmp_path, append_deadline_s=0.5) as group:
        leader = await group.active()
        for name in list(group.running):
            if name != leader.self_id:
                await group.stop(name)
        assert isinstance(await leader.append(b"lost?"), Unknown)
        assert isinstance(await leader.barrier(), Unknown | NotActive)
        await until(lambda: not leader.is_active, "it steps down")
        assert isinstance(await leader.append(b"no"), NotActive)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the library leaves a file to the collector
async def test_a_member_that_is_too_far_behind_gets_a_snapshot(tmp_path: Path) -> None:
    async with Group(tmp_path, compaction_entries=20) as group:
        leader = await group.active()
        behind = next(name for name in group.running if name != leader.self_id)
        await group.stop(behind)
        for i in range(60):
            assert await append_somewhere(group, b"%d" % i) == i + 1
        await until(lambda: leader.status()["snapshotBytes"] > 0, "a snapshot")
        assert leader.status()["logEntries"] <= 25
        await group.start(behind)
        await group.converged(60)
        status = group.running[behind].status()
        assert status["logEntries"] <= 25
    group.settings["compaction_entries"] = 5_000
    async with group:  # from snapshot and journal
        assert await append_somewhere(group, b"60") == 61
        await group.converged(61)
    assert not group.fatal


async def test_poison_ends_every_member_with_its_code(tmp_path: Path) -> None:
    async with Group(tmp_path, append_deadline_s=0.3) as group:
        leader = await group.active()
        assert await leader.append(b"before") == Committed(1)
        await group.converged(1)
        outcome = await leader.append(b"poison")
        assert isinstance(outcome, Unknown | NotActive)
        await until(lambda: not leader.status()["running"], "the thread ends")
        assert group.fatal[0][0] == 73
        assert "ValueError: poison" in group.fatal[0][1]
    assert all(machine.events == [b"before"] for machine in group.machines.values()), "half of nothing"


async def test_a_damaged_snapshot_is_refused_at_start(tmp_path: Path) -> None:
    group = Group(tmp_path, 1, secret=None, compaction_entries=5)
    async with group:
        member = await group.active()
        for _ in range(20):
            await member.append(b"x")
        await until(lambda: member.status()["snapshotBytes"] > 0)
    snapshot = tmp_path / "n0" / "raft.snapshot"
    content = snapshot.read_bytes()
    for broken in (content[: len(content) // 2], content[:-1] + b"?"):
        snapshot.write_bytes(broken)
        with pytest.raises(Exception, match="snapshot"):
            await group.start("n0")
    snapshot.unlink()
    with pytest.raises(Exception, match="begins at index"):
        await group.start("n0")
    snapshot.write_bytes(content)
    async with group:
        assert await (await group.active()).append(b"x") == Committed(21)


async def test_stop_is_prompt_and_can_be_repeated(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        member: RaftReplicator = await group.active()
        started = asyncio.get_running_loop().time()
        await member.stop()
        await member.stop()
        assert asyncio.get_running_loop().time() - started < 1.0
        assert member.status() == {"selfId": member.self_id, "active": False, "epoch": None, "running": False}


async def test_every_member_logs_and_counts_a_change_of_leader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="namesrv.plugins.controller.raft.member")
    async with Group(tmp_path) as group:
        first = await group.active()
        told = {f"{name}: controller {first.self_id} leads now, term {first.epoch}" for name in group.running}
        await until(lambda: told <= set(caplog.messages))
        assert all(each.status()["leaderChanges"] for each in group.running.values())
        before = {name: each.status()["leaderChanges"] for name, each in group.running.items()}
        await group.stop(first.self_id)
        second = await group.active()
        for name, each in group.running.items():
            await until(lambda name=name, each=each: each.status()["leaderChanges"] > before[name])  # type: ignore[misc]
            assert f"{name}: controller {second.self_id} leads now, term {second.epoch}" in caplog.messages
