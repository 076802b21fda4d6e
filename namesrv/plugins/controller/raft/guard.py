"""Repairs on every raft message, between the links and the library. No I/O; called in the raft thread.

The library's protocol has faults that lose acknowledged writes; each rule below mends one of them:

    1  a snapshot frame must not move the commit index
    2  an acknowledgement counts only in the term in which it was sent
    3  an append removes only what conflicts, never what is already there
    4  a "too new" answer aims at the committed prefix, so the leader does not start over for ever
    5  a leader with an old term is told the newer one (and steps down without granting a vote)
    6  one vote per member and term
    7  chunked commands, leadership hand-over and forwarded commands do not exist (codec and send refuse them)
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from namesrv.plugins.controller.raft.codec import (
    Acknowledgement,
    AppendEntries,
    Message,
    RequestVote,
    ResponseVote,
    TermHint,
)


class Log(Protocol):
    def __getitem__(self, position: int, /) -> tuple[bytes, int, int]: ...


class RaftView(Protocol):
    """What the rules look at. `log` is never empty; its indexes ascend by one."""

    @property
    def term(self) -> int: ...
    @property
    def commit_index(self) -> int: ...
    @property
    def last_applied(self) -> int: ...
    @property
    def log(self) -> Log: ...


ForLibrary = AppendEntries | Acknowledgement | RequestVote | ResponseVote


class Guard:
    """`reply(member, message)` sends at once, past the library."""

    def __init__(self, view: RaftView, reply: Callable[[str, Message], None]) -> None:
        self._view, self._reply = view, reply
        self._votes_term = -1
        self._voters: set[str] = set()
        self.dropped: Counter[str] = Counter()
        self.last_append: float = float("-inf")  # when a leader of our term was heard, seconds of `now`

    def incoming(self, member: str, message: ForLibrary | TermHint, now: float) -> ForLibrary | None:
        """What the library may see of a message, None for nothing."""
        match message:
            case AppendEntries():
                return self._append(member, message, now)
            case Acknowledgement():
                if message.term != self._view.term:
                    self.dropped["acknowledgement of another term"] += 1
                    return None
                return message
            case ResponseVote():
                return self._vote(member, message)
            case TermHint():
                if message.term <= self._view.term:
                    return None
                # rule 5: adopts the term and steps down; index 0 of term 0 is never granted a vote
                return RequestVote(term=message.term, last_log_index=0, last_log_term=0)
            case RequestVote():
                return message

    def outgoing(self, message: dict[str, Any]) -> dict[str, Any]:
        """The library's own message, mended."""
        if message["type"] == "next_node_idx":
            message["t"] = self._view.term  # rule 2
            if message["reset"]:  # rule 4; only safe together with rule 3
                settled = max(self._view.commit_index, self._view.last_applied)
                message["next_node_idx"] = min(message["next_node_idx"], settled + 1)
        return message

    def _append(self, member: str, message: AppendEntries, now: float) -> AppendEntries | None:
        if message.term < self._view.term:
            self._reply(member, TermHint(term=self._view.term))  # rule 5
            self.dropped["append of an old term"] += 1
            return None
        self.last_append = now
        if not isinstance(message.prev_index, int):
            if message.prev_index is not None:  # UNSET: snapshot chunk or "snapshot pending"
                message.commit_index = 0  # rule 1
            return message
        return self._trim(member, message, message.prev_index)

    def _trim(self, member: str, message: AppendEntries, prefix: int) -> AppendEntries:
        """Rule 3: AppendEntries as Raft means it."""
        log = self._view.log
        first, last = log[0][1], log[-1][1]
        if not first <= prefix <= last or log[prefix - first][2] != message.prev_term:
            return message  # the library answers with a reset, rule 4 aims it
        entries, known = message.entries, 0
        while known < len(entries) and entries[known][1] <= last:
            if log[entries[known][1] - first][2] != entries[known][2]:
                break
            known += 1
        if known:
            prefix, prefix_term = entries[known - 1][1], entries[known - 1][2]
            message.prev_index, message.prev_term, message.entries = prefix, prefix_term, entries[known:]
        if not message.entries and prefix < last:
            # nothing to add and a longer log here: the library would cut it, so answer in its place
            ack = Acknowledgement(next_index=prefix + 1, reset=False, success=True, term=message.term)
            self._reply(member, ack)
            return AppendEntries(term=message.term, commit_index=min(message.commit_index, prefix))
        return message

    def _vote(self, member: str, message: ResponseVote) -> ResponseVote | None:
        if message.term != self._view.term:
            self.dropped["vote of another term"] += 1
            return None
        if self._votes_term != message.term:
            self._votes_term, self._voters = message.term, set()
        if member in self._voters:
            self.dropped["second vote"] += 1
            return None
        self._voters.add(member)
        return message
