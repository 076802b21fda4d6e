"""ReadIndex: confirms that this member still leads, so that a read adds no entry to the log (Raft, 6.4).

A majority must answer a check that was sent after the read began. A voter answers only in its own term, so it
has elected no later leader before, and no other leader has acknowledged anything that the read could miss. An
answer names its check: an answer to an earlier one may have waited in a socket while this process was paused.
Terms decide, not clocks: a broken link starts an election within milliseconds, which no lease could outlast.

Members of older releases do not know these messages. A voter counts as able to answer once it has answered on
its present link. While no majority counts as able, a read is an entry of the log, as in those releases.
"""

from collections.abc import Callable, Collection

import msgspec

from namesrv.plugins.controller.raft.codec import LeaderVerified, VerifyLeader
from namesrv.plugins.controller.raft.raft_library import RaftLibrary

ASK_AGAIN_S = 5.0
NEVER_YET = float("-inf")

Done = Callable[[bool | None], None]
"""True: the state is fresh; False: this member does not lead in that term; None: read through the log."""


class _Read(msgspec.Struct):
    check: int  # answers to this check or a later one confirm it
    index: int  # it needs everything up to here
    done: Done


class ReadIndex:
    """The reads of one member. Raft thread. `voters()`: the other members that majorities are counted over.
    `send(member, check)` may lose it."""

    def __init__(
        self,
        core: RaftLibrary,
        voters: Callable[[], Collection[str]],
        send: Callable[[str, VerifyLeader], object],
        resend_s: float,
    ) -> None:
        self._core, self._voters, self._send, self._resend_s = core, voters, send, resend_s
        self._begun: list[tuple[int, Done]] = []
        self._reads: list[_Read] = []
        self._check, self._sent_at = 0, 0.0
        self._term: int | None = None  # of the answers in _verified; None: this member does not lead
        self._verified: dict[str, int] = {}  # member -> last check that it has answered in _term
        self._asked: dict[str, float] = {}  # member -> when it was sent a check on its present link
        self._able: set[str] = set()  # those that have answered one

    def begin(self, term: int, done: Done) -> None:
        """Begins a read of the leader of `term`; `done` is called in turn()."""
        self._begun.append((term, done))

    def verified(self, member: str, answer: LeaderVerified) -> None:
        """Takes the answer of a voter."""
        self._able.add(member)
        if answer.term == self._term:
            self._verified[member] = max(self._verified.get(member, 0), answer.check)

    def link_changed(self, member: str) -> None:
        """The link to this member is closed, or new: the peer may be of another release than before."""
        self._asked.pop(member, None)
        self._able.discard(member)

    @property
    def waiting(self) -> int:
        """Number of reads that wait for answers."""
        return len(self._reads)

    def turn(self) -> None:
        """Called in each tick after the library's work: entries that were submitted before a read are in the
        log then."""
        core, term = self._core, self._core.term if self._core.leads else None
        if term != self._term:
            reads, self._reads, self._verified = self._reads, [], {}
            self._term = term
            for read in reads:
                read.done(False)
        begun, self._begun = self._begun, []
        for done in (done for of_term, done in begun if of_term != term):
            done(False)
        if term is None:
            return
        if current := [done for of_term, done in begun if of_term == term]:
            self._check += 1
            self._reads += [_Read(self._check, core.log[-1][1], done) for done in current]
        if current or (self._reads and core.now() - self._sent_at >= self._resend_s):
            self._send_check(term)
        while self._reads and self._is_fresh(self._reads[0]):
            self._reads.pop(0).done(True)
        if self._reads and not self._is_majority(self._able):
            reads, self._reads = self._reads, []
            for read in reads:
                read.done(None)

    def _send_check(self, term: int) -> None:
        """Sends the last check to the voters; to those that have not answered any on their link, after
        ASK_AGAIN_S. Such a voter may be of an older release, or not be in this term yet, or not vote yet."""
        now = self._sent_at = self._core.now()
        for member in sorted(self._voters()):
            if member in self._able or now - self._asked.get(member, NEVER_YET) >= ASK_AGAIN_S:
                self._asked[member] = now
                self._send(member, VerifyLeader(term, self._check))

    def _is_fresh(self, read: _Read) -> bool:
        verified = {member for member, check in self._verified.items() if check >= read.check}
        return self._core.last_applied >= read.index and self._is_majority(verified)

    def _is_majority(self, members: Collection[str]) -> bool:
        """Returns whether these and this member are a majority."""
        voters = self._voters()
        return 1 + sum(each in members for each in voters) > (len(voters) + 1) / 2
