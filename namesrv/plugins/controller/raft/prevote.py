"""PreVote (Raft, 9.6): a member asks whether it could win an election before it raises its term. Pure.

So a member that returns, or that has merely lost its own link, cannot depose a leader that is connected to
the others. Safety does not depend on it: a wrong answer costs time, not data.
"""

import msgspec

WON_VALID_S = 1.0  # a round that was won longer ago is repeated

LogEnd = tuple[int, int]  # (term, index) of the last entry: compared as Raft compares logs


class _Round(msgspec.Struct):
    term: int
    grants: set[str] = msgspec.field(default_factory=set)
    won_at: float | None = None


class PreVote:
    """The pre-vote rounds of one member. `others`: the number of other voters."""

    def __init__(self, self_id: str, others: int) -> None:
        self._self_id, self.others = self_id, others
        self._round: _Round | None = None
        self.refused = 0

    def ask(self, term: int) -> None:
        """Starts a round. Call it when the election deadline has passed."""
        self._round = _Round(term)

    def may_campaign(self, term: int, now: float) -> bool:
        """Returns whether a majority has granted this term within WON_VALID_S, and ends the round if so."""
        won = self._round is not None and self._round.term == term and self._round.won_at is not None
        fresh = won and self._round is not None and now - (self._round.won_at or 0.0) < WON_VALID_S
        if fresh:
            self._round = None
        return fresh

    def granted(self, member: str, term: int, current_term: int, now: float) -> bool:
        """Counts a grant. True: there is a majority with it."""
        if (
            self._round is None
            or self._round.won_at is not None
            or not term == self._round.term == current_term
        ):
            return False
        self._round.grants.add(member)
        if len(self._round.grants) + 1 <= (self.others + 1) / 2:
            return False
        self._round.won_at = now
        return True

    def grant(self, member: str, *, asker: LogEnd, mine: LogEnd, leader_fresh: bool) -> bool:
        """Returns whether `member` may campaign.

        If two members with equal logs ask each other, only the smaller id gets a grant: otherwise both would
        campaign and split the vote, which costs a whole election timeout.
        """
        duel = self._round is not None and asker == mine and member > self._self_id
        if leader_fresh or asker < mine or duel:
            self.refused += 1
            return False
        self._round = None
        return True
