"""Damaged files of a controller: it starts with everything that it acknowledged, or it is refused, names the
file, and changes nothing. It never forgets a vote."""

from functools import partial
from pathlib import Path

import pytest

from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft.storage.journal import RESERVE_BYTES_MIN
from namesrv.plugins.controller.replicator import Committed, RaftReplicator
from tests.support.file_damage import DAMAGE, content_of, put_back, times_of, tries
from tests.support.raft_group import Group, until
from tests.unit.namesrv.plugins.controller.raft.test_raft_journal import filled, open_journal

FILES = ["raft.journal", "raft.vote", "raft.snapshot", "raft.lock"]
FLIPS = 15


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", FILES)
async def test_a_damaged_file_of_a_controller(tmp_path: Path, name: str, kind: str) -> None:
    async with Group(tmp_path, size=1, secret=None, compaction_entries=20) as group:
        active = await group.active()
        for number in range(60):
            await active.append(b"event %d" % number)
        await until(lambda: active.status()["snapshotBytes"] > 0, "a snapshot")
        events = list(group.machines["n0"].events)
        await group.stop("n0")
        root = tmp_path / "n0"
        files, times = content_of(root), times_of(root)
        for dice in tries(kind, FLIPS):
            DAMAGE[kind](root / name, dice)
            damaged = content_of(root)
            try:
                await group.start("n0")
            except ConfigError as error:
                assert name in str(error) or str(root) in str(error)
                assert content_of(root) == damaged
            else:
                await group.active()
                await group.converged(len(events))
                assert group.machines["n0"].events == events
                await group.stop("n0")
            put_back(root, files, times)


def has_snapshot(member: RaftReplicator) -> bool:
    return bool(member.status()["snapshotBytes"] > 0)


def has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", FILES)
async def test_a_file_that_is_damaged_while_the_controller_runs(tmp_path: Path, name: str, kind: str) -> None:
    """It works on, from memory; the next start has everything that was acknowledged, or is refused."""
    for dice in tries(kind, 4):
        async with Group(tmp_path / str(dice.random()), size=1, secret=None, compaction_entries=20) as group:
            active = await group.active()
            for number in range(30):
                await active.append(b"event %d" % number)
            await until(partial(has_snapshot, active), "a snapshot")
            path = group.root / "n0" / name
            if not has_content(path):
                continue
            DAMAGE[kind](path, dice)
            for number in range(5):
                assert isinstance(await active.append(b"later %d" % number), Committed)
            events = list(group.machines["n0"].events)
            await group.stop("n0")
            damaged = content_of(group.root)
            try:
                await group.start("n0")
            except ConfigError as error:
                assert "n0" in str(error)
                assert content_of(group.root) == damaged
            else:
                await group.active()
                await group.converged(len(events))
                assert group.machines["n0"].events == events


@pytest.mark.parametrize("how", ["add", "align"])
def test_torn_bytes_are_cut_by_the_first_write(tmp_path: Path, how: str) -> None:
    """Not before: the start may be refused. More bytes than the zeros that are reserved behind the log."""
    path, torn = tmp_path / "raft.journal", b"torn" * RESERVE_BYTES_MIN
    journal, _ = filled(path, [3])
    journal.setCurrentTerm(1, "n0")
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    journal = open_journal(path)
    assert path.read_bytes() == whole + torn
    if how == "add":
        journal.add(b"\x01x", 4, 1)
        journal.sync()
    else:
        journal.align(None, None)
    assert path.read_bytes().startswith(whole) and b"torn" not in path.read_bytes()
    journal.close()
