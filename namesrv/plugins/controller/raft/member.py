"""One member's turn of the raft thread: what happens around the library's tick and to every message.

    before_tick   sync the journal, send the acknowledgements held since the last turn; pre-vote
    (library)     elections, commits, applies, appends
    after_work    sync what the leader appended, while the followers do the same; links' timers
    (library)     poll: all input is handled there and arrives in link_frame

No acknowledgement leaves before the entries that it confirms are durable; one fdatasync serves all of them.
"""

import logging
import random
from collections.abc import Callable
from typing import Any, Protocol

from namesrv.plugins.controller.raft.api import RaftSettings
from namesrv.plugins.controller.raft.codec import (
    Acknowledgement,
    CodecError,
    Hello,
    Message,
    Ping,
    PreVoteGrant,
    PreVoteRequest,
    RequestVote,
    Standing,
    TermHint,
    WelcomeRequest,
    decode_message,
    encode,
    to_library,
)
from namesrv.plugins.controller.raft.guard import Guard
from namesrv.plugins.controller.raft.journal import Journal
from namesrv.plugins.controller.raft.links import Links
from namesrv.plugins.controller.raft.prevote import LogEnd, PreVote
from namesrv.plugins.controller.raft.standing import Joining

logger = logging.getLogger(__name__)

FAST_ELECTION_MIN_S = 0.01
LOG_EVERY_S = 60.0
NEVER = float("inf")
WELCOME_RETRY_S = 0.5
LOG_WAITING_S = 10.0


class Core(Protocol):
    """The library, as this module uses it."""

    election_deadline: float

    @property
    def term(self) -> int: ...
    @property
    def commit_index(self) -> int: ...
    @property
    def last_applied(self) -> int: ...
    @property
    def log(self) -> Journal: ...
    @property
    def leads(self) -> bool: ...
    @property
    def leader_id(self) -> str | None: ...
    def last_responses(self) -> list[float]: ...
    def now(self) -> float: ...
    def wake(self) -> None: ...
    def abstain(self) -> None: ...
    def finish_compaction(self, first_index: int) -> None: ...


class Member:
    """Implements LinkEvents. The owner sets `core`, `links` (None: alone) and the callbacks before use."""

    core: Core
    links: Links | None = None
    joining: Joining
    welcomed_as: Callable[[], str | None]  # incarnation of us that the group has welcomed, as applied here
    welcome: Callable[[str, str], None]  # (member, incarnation): propose it, if we lead
    deliver: Callable[[str, dict[str, Any]], None]  # a message for the library
    connected: Callable[[str], None]
    disconnected: Callable[[str], None]

    def __init__(self, settings: RaftSettings) -> None:
        self._settings = settings
        self._others = sorted(set(settings.members) - {settings.self_id})
        self._guard: Guard | None = None
        self._prevote = PreVote(settings.self_id, len(self._others))
        self._held: dict[str, list[Acknowledgement]] = {}
        self._logged_at = float("-inf")
        self._deadline = NEVER  # of the next election; the library's own is out of its reach
        self._ask_welcome_at = self._log_waiting_at = float("-inf")
        self.snapshot_index: int | None = None  # where the log begins after the snapshot of this tick
        self.later: list[dict[str, Any]] = []  # the library's own answers, delivered in the next tick
        self.invalid_frames = self.elections_asked = self.campaigns = 0

    @property
    def guard(self) -> Guard:
        if self._guard is None:
            self._guard = Guard(self.core, self._reply, self._settings.cluster_id)
        return self._guard

    # ------------------------------------------------------------------ turn of the raft thread
    def before_tick(self) -> None:
        later, self.later = self.later, []
        for message in later:
            self.deliver("", message)
        self._release_acknowledgements()
        if self._others:
            self._take_deadline()
            if self.joining.is_member:
                self._ask_before_campaign(self.core.now())
            else:
                self._wait_for_vote(self.core.now())

    def after_work(self) -> None:
        if self.snapshot_index is not None:
            self.core.finish_compaction(self.snapshot_index)
            self.snapshot_index = None
        self.core.log.sync()
        if self.links is not None:
            self.links.tick()
        elif self.core.leads and self.core.commit_index < self.core.log[-1][1]:
            self.core.wake()  # alone: nobody's answer would wake the poll before the tick is over

    def wait_s(self) -> float:
        """How long the poll may wait for input."""
        until_election = min(self._deadline, self.core.election_deadline) - self.core.now()
        if self.core.leads or until_election > self._settings.tick_s:
            return self._settings.tick_s
        return max(until_election, 0.001)

    def close(self) -> None:
        if self.links is not None:
            self.links.close()

    def status(self) -> dict[str, Any]:
        return {
            "role": self._role(),
            "connected": [] if self.links is None else self.links.connected(),
            "refusedConnections": {} if self.links is None else dict(self.links.refused),
            "otherMemberLists": [] if self.links is None else sorted(self.links.other_lists),
            "guardDrops": dict(self.guard.dropped),
            "invalidFrames": self.invalid_frames,
            "electionsAsked": self.elections_asked,
            "campaigns": self.campaigns,
            "standing": "rejoining" if self.joining.rejoins else self.joining.own.state,
            "waitsFor": self.joining.waits_for(),
            "preVotesRefused": self._prevote.refused,
        }

    def _role(self) -> str:
        if self.core.leads:
            return "leader"
        return "follower" if self.joining.is_member else "learner"

    # ------------------------------------------------------------------ out
    def send(self, member: str, message: dict[str, Any]) -> bool:
        """A message of the library."""
        message = self.guard.outgoing(message)
        if message["type"] == "next_node_idx":
            ack = Acknowledgement(
                message["next_node_idx"], message["reset"], message["success"], message["t"]
            )
            return self._hold(member, ack)
        return self.links is not None and self.links.send(member, encode(message))

    def _reply(self, member: str, message: Message) -> None:
        if isinstance(message, Acknowledgement):
            self._hold(member, message)
        elif self.links is not None:
            self.links.send(member, encode(message))

    def _hold(self, member: str, ack: Acknowledgement) -> bool:
        if not self.joining.is_member and ack.success:
            ack = self._uncounted(ack)
        self._held.setdefault(member, []).append(ack)
        return True

    def _uncounted(self, ack: Acknowledgement) -> Acknowledgement:
        """ "Send from here on": the leader does, but does not count it towards a majority."""
        return Acknowledgement(ack.next_index, reset=True, success=False, term=ack.term)

    def _release_acknowledgements(self) -> None:
        if not self._held or self.links is None:
            return
        self.core.log.sync()
        held, self._held = self._held, {}
        for member, acks in held.items():
            for ack, following in zip(acks, [*acks[1:], None], strict=True):
                if following is None or not _covers(following, ack):
                    self.links.send(member, encode(ack))

    # ------------------------------------------------------------------ in
    def link_up(self, member: str) -> None:
        self.connected(member)
        self._reply(member, self.joining.own)

    def link_down(self, member: str) -> None:
        self.joining.lost(member)
        self.disconnected(member)
        if self._settings.fast_election_s and not self.core.leads and member == self.core.leader_id:
            # kill -9 closes the connection at once; the others refuse us if only our own link broke
            self.guard.last_append = float("-inf")
            delay = random.uniform(FAST_ELECTION_MIN_S, self._settings.fast_election_s)
            self._take_deadline()
            self._deadline = min(self._deadline, self.core.now() + delay)

    def link_frame(self, member: str, frame: bytes) -> None:
        try:
            message = decode_message(frame)
        except CodecError as error:
            self._invalid(member, error)
            return
        match message:
            case Ping() | Hello():
                pass
            case Standing():
                if self.joining.hear(member, message):
                    self._tell_standing()
            case WelcomeRequest():
                if self.core.leads:
                    self.welcome(member, message.incarnation)
            case PreVoteRequest() | RequestVote() if not self.joining.is_member:
                self.guard.dropped["asked for a vote that we may not give"] += 1
            case PreVoteRequest():
                self._on_prevote_request(member, message)
            case PreVoteGrant():
                if self._prevote.granted(member, message.term, self.core.term, self.core.now()):
                    self._take_deadline()
                    self._deadline = self.core.now()  # campaign in the next tick
            case _:
                passed = self.guard.incoming(member, message, self.core.now())
                if passed is not None:
                    self.deliver(member, to_library(passed))

    def _invalid(self, member: str, error: CodecError) -> None:
        self.invalid_frames += 1
        if self.core.now() - self._logged_at > LOG_EVERY_S:
            self._logged_at = self.core.now()
            logger.warning("dropping a raft message of %s: %s", member, error)

    # ------------------------------------------------------------------ without a vote
    def _wait_for_vote(self, now: float) -> None:
        """No campaigns, no votes, no acknowledgement that counts, until it is sure that nothing is lost."""
        self._deadline = NEVER
        if self.welcomed_as() == self.joining.own.incarnation:
            self.core.abstain()  # we may have voted in this term, and not know it
            self.joining.welcomed()
            logger.warning("this member has everything again that it may have acknowledged: it votes")
            self._tell_standing()
        elif self.joining.rejoins and now >= self._ask_welcome_at and self.core.leader_id is not None:
            self._ask_welcome_at = now + WELCOME_RETRY_S
            self._reply(self.core.leader_id, WelcomeRequest(self.joining.own.incarnation))
        if now >= self._log_waiting_at:
            self._log_waiting_at = now + LOG_WAITING_S
            self._log_waiting()

    def _log_waiting(self) -> None:
        if self.joining.rejoins:
            logger.warning("the data directory was empty: catching up with the group, without a vote")
        elif self.joining.waits_for():
            names = ", ".join(self.joining.waits_for())
            logger.info("first start: waiting for %s (a new group needs every member once)", names)

    def _tell_standing(self) -> None:
        if self.joining.is_member:
            self._deadline = self.core.now() + self._election_timeout()
        for member in self._others:
            self._reply(member, self.joining.own)

    # ------------------------------------------------------------------ pre-vote
    def _take_deadline(self) -> None:
        """The library would campaign by itself once its deadline has passed, however little after our look
        at it. So it never has one, but for the tick in which we let it campaign."""
        if self.core.election_deadline != NEVER:
            self._deadline, self.core.election_deadline = self.core.election_deadline, NEVER

    def _ask_before_campaign(self, now: float) -> None:
        core = self.core
        if core.leads or self._deadline > now:
            return
        if self._prevote.may_campaign(core.term, now):
            self.campaigns += 1
            core.election_deadline = now - 1e-6  # in this tick; then the library sets the next one
            return
        self._deadline = now + self._election_timeout()
        term, index = self._log_end()
        self._prevote.ask(core.term)
        self.elections_asked += 1
        request = encode(PreVoteRequest(term=core.term, last_log_index=index, last_log_term=term))
        for member in self._others:
            if self.links is not None:
                self.links.send(member, request)

    def _on_prevote_request(self, member: str, request: PreVoteRequest) -> None:
        core = self.core
        if request.term < core.term:
            self._reply(member, TermHint(term=core.term))  # else two survivors can block each other
            return
        asker = (request.last_log_term, request.last_log_index)
        fresh = self._leader_is_fresh(core.now())
        if self._prevote.grant(member, asker=asker, mine=self._log_end(), leader_fresh=fresh):
            # do not compete with the one we just let go first
            self._take_deadline()
            self._deadline = max(self._deadline, core.now() + self._settings.election_min_s / 2)
            self._reply(member, PreVoteGrant(term=request.term))

    def _leader_is_fresh(self, now: float) -> bool:
        limit = self._settings.election_min_s
        if self.core.leads:
            answering = 1 + sum(now - at < limit for at in self.core.last_responses())
            return answering > (len(self._others) + 1) / 2
        return now - self.guard.last_append < limit

    def _log_end(self) -> LogEnd:
        _, index, term = self.core.log[-1]
        return term, index

    def _election_timeout(self) -> float:
        return random.uniform(self._settings.election_min_s, self._settings.election_max_s)


def _covers(later: Acknowledgement, ack: Acknowledgement) -> bool:
    """A plain success followed by another says nothing that the other does not say."""
    alike = (ack.success, ack.reset) == (later.success, later.reset)
    return alike and ack.term == later.term and later.next_index >= ack.next_index
