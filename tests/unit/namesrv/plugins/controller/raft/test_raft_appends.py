"""What a leader sends after a commit: nothing that the next append or heartbeat would say anyway."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from namesrv.plugins.controller.raft.api import RaftSettings
from namesrv.plugins.controller.raft.codec import AppendEntries, VoteEligibility, decode_message
from namesrv.plugins.controller.raft.member import Member
from namesrv.plugins.controller.raft.membership.member_list import MemberList
from namesrv.plugins.controller.raft.membership.vote_eligibility import Joining

HEARTBEAT_S = 0.1


class Leader:
    """A Member whose library and links are looked at."""

    def __init__(self, directory: Path) -> None:
        members = dict.fromkeys(("n0", "n1", "n2"), ("127.0.0.1", 1))
        self.member = Member(
            RaftSettings("n0", members, directory, "group", insecure=True, heartbeat_s=HEARTBEAT_S),
            member_list=MemberList(members),
            joining=Joining(
                "n0", frozenset(("n1", "n2")), VoteEligibility("", "member", ()), lambda _changed: None
            ),
            welcomed_as=lambda: None,
            welcome=lambda _member, _incarnation: None,
        )
        self.now, self.sent = 10.0, list[tuple[str, AppendEntries]]()
        core: Any = SimpleNamespace(now=lambda: self.now, term=1)
        links: Any = SimpleNamespace(send=self._send)
        self.member.core, self.member.links = core, links

    def _send(self, member: str, frame: bytes) -> bool:
        message = decode_message(frame)
        assert isinstance(message, AppendEntries)
        self.sent.append((member, message))
        return True

    def append(self, member: str, *entries: tuple[bytes, int, int], commit_index: int = 1) -> int:
        """How many frames that made."""
        before = len(self.sent)
        message = {
            "type": "append_entries",
            "term": 1,
            "commit_index": commit_index,
            "entries": list(entries),
        }
        assert self.member.send(member, message | {"prevLogIdx": 1, "prevLogTerm": 1}), "the library goes on"
        return len(self.sent) - before


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(tmp_path)


def test_a_commit_alone_is_told_with_the_next_append_or_heartbeat(leader: Leader) -> None:
    assert leader.append("n1", (b"\x00a", 2, 1)) == 1
    leader.now += 0.001
    assert leader.append("n1", commit_index=2) == 0, "only news: the commit index"
    assert leader.append("n1", (b"\x00b", 3, 1), commit_index=2) == 1
    assert leader.sent[-1][1].commit_index == 2
    leader.now += 0.001
    assert leader.append("n1", commit_index=3) == 0
    leader.now += HEARTBEAT_S
    assert leader.append("n1", commit_index=3) == 1, "the heartbeat"


def test_a_late_commit_is_told_and_silence_is_bounded(leader: Leader) -> None:
    """The library's heartbeat comes a period after its last append, also if that was not sent."""
    assert leader.append("n1") == 1
    silent_since = leader.now
    for _ in range(100):
        leader.now += 0.007
        if leader.append("n1"):
            assert leader.now - silent_since < HEARTBEAT_S
            silent_since = leader.now


def test_each_member_is_told_for_itself_and_snapshots_always(leader: Leader) -> None:
    assert leader.append("n1", (b"\x00a", 2, 1)) == 1
    assert leader.append("n2", commit_index=2) == 1, "this one had no append yet"
    chunk = {"type": "append_entries", "term": 1, "commit_index": 2, "serialized": (b"x", True, False)}
    assert leader.member.send("n1", chunk)
    assert leader.member.send("n1", chunk)
    assert [name for name, message in leader.sent if message.serialized] == ["n1", "n1"]
