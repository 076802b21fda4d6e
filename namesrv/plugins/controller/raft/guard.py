"""Guard: corrects or drops raft messages between the links and the library. No I/O; raft thread.

The protocol of pysyncobj has faults that lose acknowledged writes. Each rule corrects one of them:

    1  a snapshot frame must not move the commit index
    2  an acknowledgement counts only in the term in which it was sent
    3  an append removes only conflicting entries, never entries that the log already has
    4  a rejected append requests entries from the commit index on, or the leader would start again for ever
    5  a leader of an old term receives the newer term (and steps down, without granting a vote)
    6  one vote per member and term
    7  chunked commands, leadership transfer and forwarded commands do not exist (codec and send refuse them)
    8  a snapshot without new entries is not installed: installing it removes every later entry, even those
       that this member has acknowledged (a leader may send the same snapshot repeatedly)
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from namesrv.plugins.controller.raft.codec import (
    Acknowledgement,
    AppendEntries,
    Message,
    RequestVote,
    ResponseVote,
    TermHint,
)
from namesrv.plugins.controller.raft.raft_library import RaftLibrary
from namesrv.plugins.controller.raft.storage.files import DamagedError
from namesrv.plugins.controller.raft.storage.snapshot import FILE_BYTES_MAX, decode_snapshot

ForLibrary = AppendEntries | Acknowledgement | RequestVote | ResponseVote


class Guard:
    """`reply(member, message)` sends without the library. `dropped`: messages by reason."""

    def __init__(self, core: RaftLibrary, reply: Callable[[str, Message], None], cluster_id: str) -> None:
        self._core, self._reply, self._cluster_id = core, reply, cluster_id
        self._snapshot = bytearray()  # the chunks received so far
        self._snapshot_of: tuple[str, int] | None = None  # (member, term) of its sender
        self._votes_term = -1
        self._voters: set[str] = set()
        self.dropped: Counter[str] = Counter()
        self.last_append: float = float("-inf")  # when a leader of our term sent an append, seconds of `now`

    def incoming(self, member: str, message: ForLibrary | TermHint, now: float) -> ForLibrary | None:
        """Returns the message as the library may handle it; None: it is dropped."""
        match message:
            case AppendEntries():
                return self._append(member, message, now)
            case Acknowledgement():
                return self._in_this_term(message)
            case ResponseVote():
                return self._first_vote(member, message)
            case TermHint():
                return self._adopt_term(message)
            case RequestVote():
                return message

    def outgoing(self, message: dict[str, Any]) -> dict[str, Any]:
        """Returns the library's own message, corrected."""
        if message["type"] == "next_node_idx":
            message["t"] = self._core.term  # rule 2
            if message["reset"]:
                message["next_node_idx"] = self._reset_aim(message["next_node_idx"])
        return message

    def _append(self, member: str, message: AppendEntries, now: float) -> AppendEntries | None:
        if message.term < self._core.term:
            self._send_term(member)
            self.dropped["append of an old term"] += 1
            return None
        self.last_append = now
        if isinstance(message.prev_index, int):
            return self._trim(member, message, message.prev_index)
        if message.prev_index is not None:  # UNSET: snapshot chunk or "snapshot pending"
            message.commit_index = self._commit_of_snapshot_frame(message.commit_index)
            if message.serialized is not None:
                message.serialized = self._whole_snapshot(member, message.term, *message.serialized)
        return message

    def _whole_snapshot(
        self, member: str, term: int, chunk: bytes, is_first: bool, is_last: bool
    ) -> tuple[bytes, bool, bool] | None:
        """Collects the chunks of a snapshot. None: it is not complete, or invalid, or without new entries."""
        if is_first:
            self._snapshot, self._snapshot_of = bytearray(), (member, term)
        if self._snapshot_of != (member, term) or len(self._snapshot) + len(chunk) > FILE_BYTES_MAX:
            self._snapshot_of = None
            self.dropped["snapshot chunk out of turn"] += 1
            return None
        self._snapshot += chunk
        if not is_last:
            return None
        whole, self._snapshot, self._snapshot_of = bytes(self._snapshot), bytearray(), None
        try:
            snapshot = decode_snapshot(whole, f"snapshot of {member}")
        except DamagedError:
            self.dropped["damaged snapshot"] += 1
            return None
        if snapshot.cluster_id != self._cluster_id:
            self.dropped["snapshot of another cluster"] += 1
            return None
        if self._is_known(snapshot.last[1], snapshot.last[2]):
            self.dropped["snapshot without new entries"] += 1
            next_index = max(snapshot.last[1], self._core.commit_index) + 1
            self._reply(member, Acknowledgement(next_index, reset=False, success=True, term=term))
            return None
        return whole, True, True

    # Each rule is a separate method, so that tests can switch it off.

    def _commit_of_snapshot_frame(self, _commit_index: int) -> int:
        """Rule 1."""
        return 0

    def _is_known(self, index: int, term: int) -> bool:
        """Rule 8: returns whether the log has everything up to this committed entry."""
        log = self._core.log
        first, last = log[0][1], log[-1][1]
        if index <= self._core.commit_index:
            return True
        return first <= index <= last and log[index - first][2] == term

    def _in_this_term(self, message: Acknowledgement) -> Acknowledgement | None:
        """Rule 2."""
        if message.term != self._core.term:
            self.dropped["acknowledgement of another term"] += 1
            return None
        return message

    def _reset_aim(self, next_index: int) -> int:
        """Rule 4; safe only together with rule 3."""
        return min(next_index, max(self._core.commit_index, self._core.last_applied) + 1)

    def _send_term(self, member: str) -> None:
        """Rule 5, the sender's side."""
        self._reply(member, TermHint(term=self._core.term))

    def _adopt_term(self, message: TermHint) -> RequestVote | None:
        """Rule 5: the library adopts the term and steps down; a log that ends at index 0 never gets a
        vote."""
        if message.term <= self._core.term:
            return None
        return RequestVote(term=message.term, last_log_index=0, last_log_term=0)

    def _trim(self, member: str, message: AppendEntries, prefix: int) -> AppendEntries:
        """Rule 3: AppendEntries as in the raft paper."""
        log = self._core.log
        first, last = log[0][1], log[-1][1]
        if not first <= prefix <= last or log[prefix - first][2] != message.prev_term:
            return message  # the library answers with a reset, which rule 4 corrects
        entries, known = message.entries, 0
        while known < len(entries) and entries[known][1] <= last:
            if log[entries[known][1] - first][2] != entries[known][2]:
                break
            known += 1
        if known:
            prefix, prefix_term = entries[known - 1][1], entries[known - 1][2]
            message.prev_index, message.prev_term, message.entries = prefix, prefix_term, entries[known:]
        if not message.entries and prefix < last:
            # nothing to add, and this log is longer: the library would truncate it, so answer here instead
            ack = Acknowledgement(next_index=prefix + 1, reset=False, success=True, term=message.term)
            self._reply(member, ack)
            return AppendEntries(term=message.term, commit_index=min(message.commit_index, prefix))
        return message

    def _first_vote(self, member: str, message: ResponseVote) -> ResponseVote | None:
        """Rule 6."""
        if message.term != self._core.term:
            self.dropped["vote of another term"] += 1
            return None
        if self._votes_term != message.term:
            self._votes_term, self._voters = message.term, set()
        if member in self._voters:
            self.dropped["second vote"] += 1
            return None
        self._voters.add(member)
        return message
