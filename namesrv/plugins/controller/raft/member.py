"""Member: the work around each tick of the raft library, and on every message in and out.

    before_tick   pre-vote; acknowledgements that a broken link has left behind
    (library)     elections, commits, applies, appends
    after_work    sync what the leader has appended, while the followers do the same; timers of the links
    (library)     poll: all input is read here and is passed to link_frame
    frames_end    sync the journal, send the held acknowledgements: the leader waits for nothing else

No acknowledgement is sent before the entries that it confirms are durable; one fdatasync serves all of them.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from namesrv.plugins.controller.raft.api import RaftSettings
from namesrv.plugins.controller.raft.codec import (
    Acknowledgement,
    CodecError,
    Hello,
    LeaderVerified,
    MemberListNote,
    Message,
    Ping,
    PreVoteGrant,
    PreVoteRequest,
    RejoinRequest,
    RequestVote,
    ResponseVote,
    TermHint,
    TimeoutNow,
    VerifyLeader,
    VoteEligibility,
    decode_message,
    encode,
    to_library,
)
from namesrv.plugins.controller.raft.election_wait import ElectionWait
from namesrv.plugins.controller.raft.guard import Guard
from namesrv.plugins.controller.raft.membership.member_list import MemberList
from namesrv.plugins.controller.raft.membership.vote_eligibility import Joining
from namesrv.plugins.controller.raft.membership.voters import Voters
from namesrv.plugins.controller.raft.prevote import LogEnd, PreVote
from namesrv.plugins.controller.raft.raft_library import RaftLibrary
from namesrv.plugins.controller.raft.read_index import ReadIndex
from namesrv.plugins.controller.raft.transport.links import Links

logger = logging.getLogger(__name__)

LOG_EVERY_S = 60.0
NEVER, NEVER_YET = float("inf"), float("-inf")
REJOIN_RETRY_S = 0.5
LOG_WAITING_S = 10.0


class HeldAcknowledgements:
    """Acknowledgements by member, in the order of hold(). Raft thread."""

    def __init__(self) -> None:
        self._held: dict[str, list[Acknowledgement]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, member: str, ack: Acknowledgement) -> None:
        """Queues an acknowledgement for this member until release()."""
        self._held.setdefault(member, []).append(ack)

    def release(self) -> Iterator[tuple[str, Acknowledgement]]:
        """Yields and removes all acknowledgements, without those that a later one covers. Call it after the
        journal was synced."""
        held, self._held = self._held, {}
        for member, acks in held.items():
            for ack, following in zip(acks, [*acks[1:], None], strict=True):
                if following is None or not _covers(following, ack):
                    yield member, ack


def _covers(later: Acknowledgement, ack: Acknowledgement) -> bool:
    """Returns whether `later` confirms everything that `ack` confirms."""
    alike = (ack.success, ack.reset) == (later.success, later.reset)
    return alike and ack.term == later.term and later.next_index >= ack.next_index


class Member:
    """Implements LinkEvents. The adapter of the library sets the three callbacks before the first tick, and
    `links` unless this is a group of one.

    `rejoined_as()`: the incarnation of this member that has rejoined, as applied here; None: none.
    `rejoin(member, incarnation)`: proposes a rejoin if this member leads.
    `deliver(member, message)` passes a message to the library; `connected`, `disconnected` report voters.
    """

    links: Links | None = None
    deliver: Callable[[str, dict[str, Any]], None]
    connected: Callable[[str], None]
    disconnected: Callable[[str], None]

    def __init__(
        self,
        settings: RaftSettings,
        core: RaftLibrary,
        *,
        member_list: MemberList,
        joining: Joining,
        rejoined_as: Callable[[], str | None],
        rejoin: Callable[[str, str], None],
    ) -> None:
        self._settings, self.core, self.member_list, self.joining = settings, core, member_list, joining
        self._rejoined_as, self._rejoin = rejoined_as, rejoin
        self.voters = Voters(settings, core, joining, member_list, lambda: self.links)
        self.guard = Guard(core, self.reply, settings.cluster_id)
        self.read_index = ReadIndex(core, lambda: self.voters.others, self.reply, settings.heartbeat_s)
        self._prevote = PreVote(settings.self_id, 0)
        self._held = HeldAcknowledgements()
        self._appended_at = NEVER_YET  # as leader: when the last appends left
        self._logged_at: dict[str, float] = {}  # when an invalid frame of a member was logged
        self._timeout_now_term = -1  # the term whose leader asked us to campaign
        self._actions: deque[Callable[[], object]] = deque()
        self._wait = ElectionWait(settings.election_min_s, settings.fast_election_s)
        self._deadline = NEVER  # of the next election; that of the library is kept at NEVER
        self._ask_rejoin_at = self._log_waiting_at = NEVER_YET
        self.snapshot_index: int | None = None  # where the log begins after the snapshot of this tick
        self.later: list[dict[str, Any]] = []  # refusals for the library itself, delivered in the next tick
        self._led_by: tuple[str | None, int] = (None, 0)  # leader and its term, as last logged
        self.invalid_frames = self.elections_asked = self.campaigns = self.leader_changes = 0

    # ------------------------------------------------------------------ turn of the raft thread
    def before_tick(self) -> None:
        """Called before each tick of the library."""
        later, self.later = self.later, []
        for message in later:
            self.deliver("", message)
        while self._actions:
            self._actions.popleft()()
        self._release_acknowledgements()
        self.voters.retire()
        if self.voters.others:
            self._take_deadline()
            if self.may_vote:
                self._ask_before_campaign(self.core.now())
            else:
                self._wait_for_vote(self.core.now())

    def after_work(self) -> None:
        """Called in each tick, after the library's work and before it polls."""
        self._log_leader()
        if self.snapshot_index is not None:
            self.core.finish_compaction(self.snapshot_index)
            self.snapshot_index = None
        self.read_index.turn()
        self.core.log.sync()
        if self.links is not None:
            self.links.tick()
        elif self.core.leads and self.core.commit_index < self.core.log[-1][1]:
            self.core.wake()  # a group of one: no answer of a follower would end the poll

    def _log_leader(self) -> None:
        leader, term = led_by = self.core.leader_id, self.core.term
        before, _ = self._led_by
        if led_by == self._led_by or leader is before is None:
            return
        self._led_by = led_by
        self.leader_changes += leader is not None
        who = "no controller" if leader is None else f"controller {leader}"
        logger.info("%s: %s leads now, term %d", self._settings.self_id, who, term)

    def do(self, action: Callable[[], object]) -> None:
        """Runs `action` in the raft thread before its next tick. Any thread."""
        self._actions.append(action)
        self.core.wake()

    @property
    def may_vote(self) -> bool:
        """Whether this member is a voter, and its directory contains all votes that it has given."""
        return self.joining.is_member and self._settings.self_id in self.voters.ids

    def wait_s(self) -> float:
        """Returns how long the poll may wait for input, in seconds."""
        due = min(self._deadline, self.core.election_deadline)
        if self.core.leads:
            due = self._appended_at + self._settings.heartbeat_s  # followers triple the longest gap
        return min(max(due - self.core.now(), 0.001), self._settings.tick_s)

    def close(self) -> None:
        """Closes every link and the raft port."""
        if self.links is not None:
            self.links.close()

    def status(self) -> dict[str, Any]:
        """Returns this member's part of Replicator.status()."""
        return {
            "role": self._role(),
            "members": {name: f"{host}:{port}" for name, (host, port) in self.member_list.members.items()},
            "membersSinceIndex": self.member_list.index,
            "connected": [] if self.links is None else self.links.connected(),
            "refusedConnections": {} if self.links is None else dict(self.links.refused),
            # after a membership change the log decides, whatever the lists were at the handshake
            "otherMemberLists": []
            if self.links is None or self.member_list.index
            else sorted(self.links.differing_lists),
            "guardDrops": dict(self.guard.dropped),
            "invalidFrames": self.invalid_frames,
            "electionsAsked": self.elections_asked,
            "campaigns": self.campaigns,
            "leaderChanges": self.leader_changes,
            "standing": "rejoining" if self.joining.rejoins else self.joining.own.state,
            "waitsFor": self.joining.waits_for(),
            "preVotesRefused": self._prevote.refused,
        }

    def _role(self) -> str:
        if self.core.leads:
            return "leader"
        if self.joining.is_member:
            return "follower" if self.may_vote and not self.voters.is_removed else "removed"
        return "learner"

    # ------------------------------------------------------------------ out
    def send(self, member: str, message: dict[str, Any]) -> bool:
        """Sends a message of the library. False: there is no link to that member."""
        message = self.guard.outgoing(message)
        if message["type"] == "next_node_idx":
            ack = Acknowledgement(
                message["next_node_idx"], message["reset"], message["success"], message["t"]
            )
            return self._hold(member, ack)
        return self.links is not None and self.links.send(member, encode(message))

    def must_append(self) -> bool:
        """Returns whether the appends that the library is about to send must leave. After each commit it
        sends some with the commit index alone.

        They would delay the next event and load the members; the next append or heartbeat has the same index.
        """
        now = self.core.now()
        if not self.core.has_unsent_entries and now - self._appended_at < self._settings.heartbeat_s / 2:
            return False
        self._appended_at = now
        return True

    def reply(self, member: str, message: Message) -> None:
        """Sends a message of this package. An acknowledgement is held until the journal is synced."""
        if isinstance(message, Acknowledgement):
            self._hold(member, message)
        elif self.links is not None:
            self.links.send(member, encode(message))

    def _hold(self, member: str, ack: Acknowledgement) -> bool:
        if not self.may_vote and ack.success:
            ack = self._uncounted(ack)
        self._held.hold(member, ack)
        return True

    def _uncounted(self, ack: Acknowledgement) -> Acknowledgement:
        """Returns an acknowledgement that sets the leader's next index, but does not count for a majority."""
        return Acknowledgement(ack.next_index, reset=True, success=False, term=ack.term)

    def _release_acknowledgements(self) -> None:
        if self._held and self.links is not None:
            self.core.log.sync()
            for member, ack in self._held.release():
                self.links.send(member, encode(ack))

    # ------------------------------------------------------------------ in
    def link_up(self, member: str) -> None:
        self.read_index.link_changed(member)
        if member not in self.voters.learners:
            self.connected(member)
        elif self.voters.is_replicated_to(member):
            self.core.learner_up(member)
        self.reply(member, self.joining.own)
        self.reply(member, MemberListNote(self.member_list.index, tuple(sorted(self.voters.ids))))

    def link_down(self, member: str) -> None:
        self.joining.disconnected(member)
        self.read_index.link_changed(member)
        if member in self.voters.learners:
            self.core.learner_down(member)
        else:
            self.disconnected(member)
        if self._settings.fast_election_s and not self.core.leads and member == self.core.leader_id:
            # kill -9 closes the connection at once; if only our link broke, the others refuse the pre-vote
            self.guard.last_append = NEVER_YET
            self._take_deadline()
            self._deadline = min(self._deadline, self.core.now() + self._wait.link_lost(self.voters.rank))

    def link_frame(self, member: str, frame: bytes) -> None:
        try:
            message = decode_message(frame)
        except CodecError as error:
            self._invalid(member, error)
            return
        match message:
            case Ping() | Hello():
                pass
            case VoteEligibility():
                if self.joining.receive(member, message):
                    self._send_vote_eligibility()
            case RejoinRequest():
                if self.core.leads:
                    self._rejoin(member, message.incarnation)
            case MemberListNote():
                self.voters.check_member_list(member, message)
            case TimeoutNow():
                if member == self.core.leader_id and message.term == self.core.term and self.may_vote:
                    self._take_deadline()
                    self._deadline, self._timeout_now_term = self.core.now(), message.term
            case VerifyLeader():
                if message.term < self.core.term:
                    self.reply(member, TermHint(term=self.core.term))
                elif message.term == self.core.term and self.may_vote:
                    self.reply(member, LeaderVerified(message.term, message.check))
            case LeaderVerified():
                self.read_index.verified(member, message)
            case PreVoteRequest() | RequestVote() if not self.may_vote:
                self.guard.dropped["asked for a vote that we may not give"] += 1
            case PreVoteRequest():
                self._on_prevote_request(member, message)
            case ResponseVote() | PreVoteGrant() if member not in self.voters.ids:
                self.guard.dropped["vote of no member"] += 1
            case PreVoteGrant():
                if self._prevote.granted(member, message.term, self.core.term, self.core.now()):
                    self._take_deadline()
                    self._deadline = self.core.now()  # campaign in the next tick
            case Acknowledgement() if not self.voters.is_replicated_to(member):
                self.guard.dropped["acknowledgement of no member"] += 1  # the library would fail on it
            case _:
                passed = self.guard.incoming(member, message, now := self.core.now())
                if self.guard.last_append == now:
                    self._wait.appended(self.core.term, now)
                if passed is not None:
                    self.deliver(member, to_library(passed))

    def frames_end(self) -> None:
        self._release_acknowledgements()

    def _invalid(self, member: str, error: CodecError) -> None:
        self.invalid_frames += 1
        if self.core.now() - self._logged_at.get(member, NEVER_YET) > LOG_EVERY_S:
            self._logged_at[member] = self.core.now()
            logger.warning("dropping a raft message of %s: %s", member, error)

    # ------------------------------------------------------------------ without a vote
    def _wait_for_vote(self, now: float) -> None:
        """Follows the leader, without votes, campaigns or acknowledgements that count, until it may vote."""
        self._deadline = NEVER
        own = self.joining.own.incarnation
        if self.joining.is_member:
            pass  # removed from the group: it never votes again
        elif own == self._rejoined_as() or self.member_list.fresh == (self._settings.self_id, own):
            self.core.abstain()  # it may have voted in this term before its directory was lost
            self.joining.rejoined()
            logger.warning("this member has every entry that it may have acknowledged, and votes again")
            self._send_vote_eligibility()
        elif self.joining.rejoins and now >= self._ask_rejoin_at and self.core.leader_id is not None:
            self._ask_rejoin_at = now + REJOIN_RETRY_S
            self.reply(self.core.leader_id, RejoinRequest(self.joining.own.incarnation))
        if now >= self._log_waiting_at:
            self._log_waiting_at = now + LOG_WAITING_S
            self._log_waiting()

    def apply_member_list(self) -> None:
        """Called after each change of the member list: from now on majorities are counted over it."""
        self.voters.apply_member_list()
        self._prevote.others = len(self.voters.others)

    def _log_waiting(self) -> None:
        if self.joining.is_member:
            logger.warning("this member was removed from the group: stop it")
        elif self.joining.rejoins:
            logger.warning("the data directory was empty: catching up with the group, without a vote")
        elif self.joining.waits_for():
            names = ", ".join(self.joining.waits_for())
            logger.info("first start: waiting for %s (all members must start once)", names)

    def _send_vote_eligibility(self) -> None:
        if self.joining.is_member:
            self._deadline = self.core.now() + self._wait.timeout_s(self.voters.rank)
        for member in self.voters.others:
            self.reply(member, self.joining.own)

    # ------------------------------------------------------------------ pre-vote
    def _take_deadline(self) -> None:
        """Moves the library's election deadline here: the library would campaign without a pre-vote.

        It gets the deadline back only in the tick in which it may campaign.
        """
        if self.core.election_deadline != NEVER:  # an append or a vote came, and a new wait begins
            is_due, now = self.core.election_deadline <= self.core.now(), self.core.now()
            self._deadline = now if is_due else now + self._wait.timeout_s(self.voters.rank)
            self.core.election_deadline = NEVER

    def _ask_before_campaign(self, now: float) -> None:
        core = self.core
        # heartbeats of the leader that asked us have moved the deadline again
        is_asked, self._timeout_now_term = self._timeout_now_term == core.term, -1
        if core.leads or (self._deadline > now and not is_asked):
            return
        if is_asked or self._prevote.may_campaign(core.term, now):
            self.campaigns += 1
            core.election_deadline = now - 1e-6  # in this tick; then the library sets its next deadline
            return
        self._deadline = now + self._wait.next_round_s()
        term, index = self._log_end()
        self._prevote.ask(core.term)
        self.elections_asked += 1
        request = encode(PreVoteRequest(term=core.term, last_log_index=index, last_log_term=term))
        for member in self.voters.others:
            if self.links is not None:
                self.links.send(member, request)

    def _on_prevote_request(self, member: str, request: PreVoteRequest) -> None:
        core = self.core
        if request.term < core.term:
            self.reply(member, TermHint(term=core.term))  # otherwise two members can block each other
            return
        asker = (request.last_log_term, request.last_log_index)
        fresh = self._leader_is_fresh(core.now())
        if self._prevote.grant(member, asker=asker, mine=self._log_end(), leader_fresh=fresh):
            # do not campaign against the member that this grant is for
            self._take_deadline()
            self._deadline = max(self._deadline, core.now() + self._settings.election_min_s / 2)
            self.reply(member, PreVoteGrant(term=request.term))

    def _leader_is_fresh(self, now: float) -> bool:
        if self.core.leads:
            answers = [now - at < self._settings.election_min_s for at in self.core.last_responses()]
            return 1 + sum(answers) > (len(self.voters.others) + 1) / 2
        return now - self.guard.last_append < self._wait.silence_s

    def _log_end(self) -> LogEnd:
        _, index, term = self.core.log[-1]
        return term, index
