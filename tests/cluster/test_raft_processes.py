"""Raft members as real processes: killed, frozen, without disk space or descriptors; new members."""

import asyncio
import os
import random
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.cluster.raft_chaos import Chaos, fail_overs, own_settings
from tests.cluster.raft_members import WAIT_S, MemberProcess, Processes
from tests.support.raft_group import free_ports

pytestmark = pytest.mark.cluster


async def test_kill_9_of_the_leader_again_and_again(tmp_path: Path) -> None:
    async with Processes(tmp_path, compaction_entries=40) as group:
        places, gaps, stop = dict[str, int](), list[float](), asyncio.Event()
        clients = [asyncio.create_task(group.append_until(stop, name, places)) for name in "ab"]
        for turn in range(5):
            for step in range(20):
                await group.append(f"step-{turn}-{step}")
            await group.whole()
            leader = await group.active()
            await leader.end(signal.SIGKILL)
            killed = time.monotonic()
            await group.append(f"turn-{turn}")
            gaps.append(time.monotonic() - killed)
            await leader.start()
        stop.set()
        await asyncio.gather(*clients)
        events = await group.same_everywhere(await group.append("last"))
        assert all(events[place - 1] == text for text, place in places.items())
    print(f"kill -9 to the first accepted append: {sorted(round(gap, 3) for gap in gaps)} s")
    assert min(gaps) < 1.0


async def test_a_frozen_leader_is_replaced_and_does_not_come_back(tmp_path: Path) -> None:
    async with Processes(tmp_path, compaction_entries=5_000) as group:
        await group.append("first")
        frozen = await group.active()
        frozen.process.send_signal(signal.SIGSTOP)
        frozen.active = False
        started = time.monotonic()
        assert await group.append("second") == 2
        assert time.monotonic() - started < 5.0
        frozen.process.send_signal(signal.SIGCONT)
        reading = asyncio.create_task(frozen.ask(barrier=True))
        assert await frozen.ask(append="stale") in ("NotActive", "Unknown")
        assert await reading in ("NotActive", "Unknown"), "no fresh read, either"
        assert await group.append("third") == 3


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounts a small disk: root only"
)
async def test_a_full_disk_ends_one_member_and_the_others_go_on(tmp_path: Path) -> None:
    """Exit code 70 or 72; once there is room again, the same directory starts."""
    small = tmp_path / "n1"
    small.mkdir()
    mount = f'mount -t tmpfs -o size=60k keel {small} && exec "$@"'
    prefix = ("unshare", "-m", "sh", "-c", mount, "sh")
    async with Processes(tmp_path, compaction_entries=5_000, each={"n1": {"prefix": prefix}}) as group:
        victim = next(each for each in group.all if each.settings["self_id"] == "n1")
        deadline, count = time.monotonic() + WAIT_S, 0
        while victim.process.returncode is None:
            await group.append(f"{count}-" + "x" * 2000)
            count += 1
            assert time.monotonic() < deadline, "the disk is never full"
        assert victim.process.returncode in (70, 72)
        assert await group.append("still", but=victim) == count + 1
        victim.settings["prefix"] = ()
        await victim.start()  # the mount went with its process: an empty directory, so it joins anew
        await group.same_everywhere(count + 1)


async def test_a_member_without_descriptors_goes_on(tmp_path: Path) -> None:
    """Anonymous clients hold all of them: it keeps its links, votes, and listens again afterwards."""
    async with Processes(tmp_path, compaction_entries=5_000, each={"n0": {"nofile": 30}}) as group:
        first = group.all[0]
        await group.append("first")
        await group.whole()
        address = first.settings["members"]["n0"]
        unverified_peers = [socket.create_connection(address) for _ in range(60)]
        try:
            leader = await group.active()
            if leader is first:
                assert await leader.ask(transfer="n1") == "Committed"
                leader = await group.active(but=first)
            await leader.end(signal.SIGKILL)
            assert await group.append("second") == 2, "n0 gave its vote, and stored it"
        finally:
            for unverified_peer in unverified_peers:
                unverified_peer.close()
        await leader.start()
        await group.whole()
        await group.same_everywhere(2)


@pytest.mark.parametrize("certificates", [False, True], ids=["key", "tls"])
async def test_a_killed_and_a_frozen_leader(tmp_path: Path, certificates: bool) -> None:
    """With certificates as with a key. How fast: make raft-failover."""
    each = own_settings(tmp_path, certificates=certificates)
    async with Processes(tmp_path, compaction_entries=50, each=each) as group:
        gaps = await fail_overs(group, 2, idle_s=0.1, freeze=False)
        gaps += await fail_overs(group, 2, idle_s=0.1, freeze=True)
        assert max(gaps) < WAIT_S
        await group.same_everywhere(8)
    print(f"until the next accepted append: {[round(gap, 3) for gap in gaps]} s")


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("certificates", [False, True], ids=["key", "tls"])
async def test_a_minute_of_kills_and_freezes(tmp_path: Path, certificates: bool) -> None:
    """Also all members at once: each acknowledged event is there once, and no fresh read is stale."""
    each = own_settings(tmp_path, certificates=certificates)
    async with Processes(tmp_path, compaction_entries=200, each=each) as group:
        await group.append("first")
        seen = await Chaos(group, random.Random(7)).run(60.0)
    print(seen.line())
    assert len(seen.places) > 200 and seen.fresh_reads > 50


class TestTheJudge:
    """It must reject a history that is wrong in the way it looks for."""

    async def judged(self, events: list[str], places: dict[str, int], stale: list[str]) -> None:
        class Group:
            async def append(self, text: str) -> int:
                return len(events)

            async def same_everywhere(self, last: int) -> list[str]:
                return events

        chaos = Chaos(Group(), random.Random(0))  # type: ignore[arg-type]
        chaos.seen.places.update(places)
        chaos.seen.stale_reads.extend(stale)
        await chaos._judge()

    async def test_a_good_history_passes(self) -> None:
        await self.judged(["a", "b", "last"], {"a": 1, "b": 2}, [])

    async def test_an_event_in_another_place(self) -> None:
        with pytest.raises(AssertionError, match="'b'"):
            await self.judged(["a", "c", "last"], {"a": 1, "b": 2}, [])

    async def test_a_stale_read(self) -> None:
        with pytest.raises(AssertionError, match="1 events, 2"):
            await self.judged(["a", "b", "last"], {"a": 1}, ["1 events, 2 were acknowledged"])


async def test_a_lost_disk_and_a_new_member(tmp_path: Path) -> None:
    async with Processes(tmp_path, compaction_entries=20) as group:
        for count in range(50):
            await group.append(f"{count}")
        leader = await group.active()
        victim = next(each for each in group.all if each is not leader)
        await victim.end(signal.SIGKILL)
        shutil.rmtree(victim.settings["directory"])
        await victim.start()
        await group.same_everywhere(50)
        settings = dict(victim.settings, self_id="n3", directory=str(tmp_path / "n3"))
        settings["members"] = {**settings["members"], "n3": ("127.0.0.1", free_ports(1)[0])}
        newcomer = MemberProcess(settings)
        await newcomer.start()
        group.all.append(newcomer)
        leader = await group.active()
        assert await leader.ask(add="n3", address=settings["members"]["n3"]) == "Committed"
        await group.append("with four")
        await group.same_everywhere(51)
        assert sorted((await newcomer.ask(status=True))["members"]) == ["n0", "n1", "n2", "n3"]
        gone = next(each for each in group.all if each not in (leader, newcomer))
        assert await leader.ask(remove=gone.settings["self_id"]) == "Committed"
        assert await leader.ask(transfer="n3") == "Committed"
        assert await group.append("with three", but=gone) == 52
