"""What we rely on in pysyncobj, and what of it must stay switched off."""

import ast
from pathlib import Path

import pytest
from pysyncobj import SyncObj

from namesrv.plugins.controller import replicator
from namesrv.plugins.controller.raft import proposals, replica
from tests.unit.raft_group import QuietMember

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
        transport = member.core._private("transport")
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
    """A wall clock may jump: nobody looks at one (jumps of the other clock: tests/sim/raft)."""
    forbidden = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}
    for path in [*RAFT.glob("*.py"), Path(replicator.__file__)]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in forbidden, path


@pytest.mark.parametrize("name", ["_SyncObj__tryLogCompaction", "_SyncObj__setCurrentTerm"])
def test_a_private_method_that_is_gone_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(SyncObj, name)
    with pytest.raises(Exception, match=f"lacks SyncObj.{name}"):
        replicator.prepare_library()
