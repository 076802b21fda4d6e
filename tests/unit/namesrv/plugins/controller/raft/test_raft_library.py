"""What we rely on in pysyncobj, and what of it must stay switched off."""

import ast
import pickle
from pathlib import Path

import pytest
from pysyncobj import SyncObj

from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller import replicator
from namesrv.plugins.controller.raft import proposals, replica
from namesrv.plugins.controller.raft.storage import files, snapshot
from namesrv.plugins.controller.raft.storage.journal import Journal
from tests.support.raft_attackers import Touch
from tests.support.raft_group import Group, QuietMember, until
from tests.support.reach_in import library_part

RAFT = Path(replica.__file__).parent


def test_there_is_one_replicated_method_for_ever(tmp_path: Path) -> None:
    """P3: methods are numbered in the order of their names, and the numbers are in the journal."""
    with QuietMember(tmp_path) as member:
        assert member.core._methodToID == {"append_v0": 0}


def test_the_configuration_that_makes_it_safe(tmp_path: Path) -> None:
    """H4, H6, H15, P2, P4, P5: each default that would lose something is another value here."""
    with QuietMember(tmp_path) as member:
        conf = member.core.conf
        assert conf.autoTick is False
        assert conf.appendEntriesUseBatch is False
        assert conf.commandsWaitLeader is False
        assert conf.dynamicMembershipChange is False
        assert conf.password is None
        assert conf.serializer is not None, "switches fork off"
        assert conf.deserializer is not None
        assert Path(conf.journalFile).parent == Path(conf.fullDumpFile).parent == tmp_path / "n0"
        assert conf.leaderFallbackTimeout < 1.0
        assert conf.raftMinTimeout > 3 * conf.appendEntriesPeriod


def test_what_we_send_is_never_cut_into_pieces_by_the_library() -> None:
    """H19, P6: an entry fits one message, and what is in flight fits its pipe."""
    most = proposals.BATCH_BYTES_MAX + proposals.EVENT_BYTES_MAX
    assert most < replicator.APPEND_BYTES_MAX
    assert replicator.COMMANDS_QUEUED_MAX < 65_536


def test_utility_messages_and_forwarded_commands_do_not_exist(tmp_path: Path) -> None:
    """X2: neither status nor add, remove or transfer, nor a command from outside."""
    with QuietMember(tmp_path) as member:
        transport = library_part(member.core, "transport")
        assert transport._onUtilityMessageCallbacks == {}
        answers: list[int] = []
        member.core.append(b"x", callback=lambda _result, error: answers.append(error))
        member.receive(
            "n1", {"type": "append_entries", "term": 1, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 0}
        )
        for _ in range(3):
            member.tick()
        assert answers
        assert answers[0] in proposals.NEVER_APPLIED
        before = member.member.invalid_frames
        member.receive("n1", {"type": "apply_command", "command": b"\x00x"})
        member.receive("n1", {"type": "timeout_now", "term": 1})
        assert member.member.invalid_frames == before + 2


def test_no_wall_clock_is_read() -> None:
    """A wall clock may jump: nobody looks at one (jumps of the other clock: tests/sim/raft). Certificates end
    by the calendar: a jump may cost new connections, never an order of events."""
    forbidden = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}
    for path in [*RAFT.glob("*.py"), Path(replicator.__file__)]:
        if path.name == "certificates.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in forbidden, path


@pytest.mark.parametrize("name", ["_SyncObj__tryLogCompaction", "_SyncObj__setCurrentTerm"])
def test_a_private_method_that_is_gone_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(SyncObj, name)
    with pytest.raises(Exception, match=f"lacks SyncObj.{name}"):
        replicator.prepare_library()


@pytest.mark.parametrize("name", ["raft.vote", "raft.snapshot", "raft.standing", "raft.journal", "raft.lock"])
@pytest.mark.parametrize("sealed", [False, True], ids=["bare", "with a good checksum"])
async def test_a_pickle_in_a_file_is_refused_at_the_start(tmp_path: Path, name: str, sealed: bool) -> None:
    """The library's own files are pickles: who can write one would own the process."""
    group = Group(tmp_path, 1, secret=None, compaction_entries=5)
    async with group:
        member = await group.active()
        for _ in range(20):
            await member.append(b"x")
        await until(lambda: member.status()["snapshotBytes"] > 0)
    boom = tmp_path / "boom"
    bomb = pickle.dumps(Touch(boom), 2)
    path = tmp_path / "n0" / name
    if sealed:
        bomb = (snapshot.MAGIC if name == "raft.snapshot" else b"") + files.with_checksum(bomb)
    path.write_bytes(bomb)
    with pytest.raises(ConfigError, match="raft"):
        await group.start("n0")
    assert not boom.exists()


async def test_a_pickle_in_the_place_of_a_command_ends_the_member(tmp_path: Path) -> None:
    group = Group(tmp_path, 1, secret=None)
    async with group:
        await (await group.active()).append(b"x")
    log = Journal(tmp_path / "n0" / "raft.journal", fatal=lambda code, text: pytest.fail(text))
    _, index, term = log[-1]
    log.add(b"\x00" + pickle.dumps(Touch(tmp_path / "boom"), 2), index + 1, term)
    log.sync()
    log.close()
    await group.start("n0")
    await until(lambda: len(group.fatal) > 0, "it ends")
    await group.stop("n0")
    assert "not a command" in group.fatal[0][1]
    assert not (tmp_path / "boom").exists()
