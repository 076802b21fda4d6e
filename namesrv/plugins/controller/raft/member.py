"""One member's turn of the raft thread: what happens around the library's tick and to every message.

    before_tick   sync the journal, send the acknowledgements held since the last turn; pre-vote
    (library)     elections, commits, applies, appends
    after_work    sync what the leader appended, while the followers do the same; links' timers
    (library)     poll: all input is handled there and arrives in link_frame

No acknowledgement leaves before the entries that it confirms are durable; one fdatasync serves all of them.
"""

import logging
import random
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol

from namesrv.plugins.controller.raft.api import RaftSettings
from namesrv.plugins.controller.raft.codec import (
    Acknowledgement,
    CodecError,
    HandOver,
    Hello,
    Message,
    Ping,
    PreVoteGrant,
    PreVoteRequest,
    RequestVote,
    ResponseVote,
    RosterNote,
    Standing,
    TermHint,
    WelcomeRequest,
    decode_message,
    encode,
    to_library,
)
from namesrv.plugins.controller.raft.electorate import Electorate
from namesrv.plugins.controller.raft.guard import Guard
from namesrv.plugins.controller.raft.journal import Journal
from namesrv.plugins.controller.raft.links import Links
from namesrv.plugins.controller.raft.prevote import LogEnd, PreVote
from namesrv.plugins.controller.raft.roster import Roster
from namesrv.plugins.controller.raft.standing import Joining

logger = logging.getLogger(__name__)

FAST_ELECTION_MIN_S = 0.01
LOG_EVERY_S = 60.0
NEVER, NEVER_YET = float("inf"), float("-inf")
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
    def next_index(self, member: str) -> int: ...
    def match_index(self, member: str) -> int: ...
    def follow(self, others: Collection[str]) -> None: ...
    def learner_up(self, member: str) -> None: ...
    def learner_down(self, member: str) -> None: ...
    def now(self) -> float: ...
    def wake(self) -> None: ...
    def abstain(self) -> None: ...
    def finish_compaction(self, first_index: int) -> None: ...


class Member:
    """Implements LinkEvents. The owner sets `core`, `links` (None: alone) and the callbacks before use."""

    core: Core
    links: Links | None = None
    joining: Joining
    roster: Roster
    welcomed_as: Callable[[], str | None]  # incarnation of us that the group has welcomed, as applied here
    welcome: Callable[[str, str], None]  # (member, incarnation): propose it, if we lead
    deliver: Callable[[str, dict[str, Any]], None]  # a message for the library
    connected: Callable[[str], None]
    disconnected: Callable[[str], None]

    def __init__(self, settings: RaftSettings) -> None:
        self._settings = settings
        self.group = Electorate(settings, self)
        self._guard: Guard | None = None
        self._prevote = PreVote(settings.self_id, 0)
        self._held: dict[str, list[Acknowledgement]] = {}
        self._appended_at: dict[str, float] = {}  # as leader: when the last append to a member left
        self._logged_at: dict[str, float] = {}  # a member's last message that was none
        self._handed_over = -1  # the term whose leader asked us to campaign
        self._actions: deque[Callable[[], object]] = deque()
        self._deadline = NEVER  # of the next election; the library's own is out of its reach
        self._ask_welcome_at = self._log_waiting_at = float("-inf")
        self.snapshot_index: int | None = None  # where the log begins after the snapshot of this tick
        self.later: list[dict[str, Any]] = []  # the library's own answers, delivered in the next tick
        self.invalid_frames = self.elections_asked = self.campaigns = 0

    @property
    def guard(self) -> Guard:
        if self._guard is None:
            self._guard = Guard(self.core, self.reply, self._settings.cluster_id)
        return self._guard

    # ------------------------------------------------------------------ turn of the raft thread
    def before_tick(self) -> None:
        later, self.later = self.later, []
        for message in later:
            self.deliver("", message)
        while self._actions:
            self._actions.popleft()()
        self._release_acknowledgements()
        self.group.retire()
        if self.group.others:
            self._take_deadline()
            if self.may_vote:
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

    def do(self, action: Callable[[], object]) -> None:
        """From any thread: before the next tick, in the raft thread."""
        self._actions.append(action)
        self.core.wake()

    @property
    def may_vote(self) -> bool:
        return self.joining.is_member and self._settings.self_id in self.group.voters

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
            "members": {name: f"{host}:{port}" for name, (host, port) in self.roster.members.items()},
            "membersSinceIndex": self.roster.index,
            "connected": [] if self.links is None else self.links.connected(),
            "refusedConnections": {} if self.links is None else dict(self.links.refused),
            # since a change was made the log decides, whatever the lists were when we linked
            "otherMemberLists": []
            if self.links is None or self.roster.index
            else sorted(self.links.other_lists),
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
        if self.joining.is_member:
            return "follower" if self.may_vote and not self.group.left_out else "removed"
        return "learner"

    # ------------------------------------------------------------------ out
    def send(self, member: str, message: dict[str, Any]) -> bool:
        """A message of the library."""
        message = self.guard.outgoing(message)
        if message["type"] == "next_node_idx":
            ack = Acknowledgement(
                message["next_node_idx"], message["reset"], message["success"], message["t"]
            )
            return self._hold(member, ack)
        if message["type"] == "append_entries" and self._is_told_soon(member, message):
            return True
        return self.links is not None and self.links.send(member, encode(message))

    def _is_told_soon(self, member: str, append: dict[str, Any]) -> bool:
        """The library follows each commit with an empty append, whose only news is the commit index. It keeps
        the next event waiting and the members busy; that event's own append says the same, or a heartbeat."""
        now = self.core.now()
        is_empty = not append.get("entries") and "serialized" not in append
        if is_empty and now - self._appended_at.get(member, NEVER_YET) < self._settings.heartbeat_s / 2:
            return True
        self._appended_at[member] = now
        return False

    def reply(self, member: str, message: Message) -> None:
        if isinstance(message, Acknowledgement):
            self._hold(member, message)
        elif self.links is not None:
            self.links.send(member, encode(message))

    def _hold(self, member: str, ack: Acknowledgement) -> bool:
        if not self.may_vote and ack.success:
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
        if member not in self.group.expected:
            self.connected(member)
        elif self.group.gets_the_log(member):
            self.core.learner_up(member)
        self.reply(member, self.joining.own)
        self.reply(member, RosterNote(self.roster.index, tuple(sorted(self.group.voters))))

    def link_down(self, member: str) -> None:
        self.joining.lost(member)
        if member in self.group.expected:
            self.core.learner_down(member)
        else:
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
            case RosterNote():
                self.group.compare(member, message)
            case HandOver():
                if member == self.core.leader_id and message.term == self.core.term and self.may_vote:
                    self._take_deadline()
                    self._deadline, self._handed_over = self.core.now(), message.term
            case PreVoteRequest() | RequestVote() if not self.may_vote:
                self.guard.dropped["asked for a vote that we may not give"] += 1
            case PreVoteRequest():
                self._on_prevote_request(member, message)
            case ResponseVote() | PreVoteGrant() if member not in self.group.voters:
                self.guard.dropped["vote of no member"] += 1
            case PreVoteGrant():
                if self._prevote.granted(member, message.term, self.core.term, self.core.now()):
                    self._take_deadline()
                    self._deadline = self.core.now()  # campaign in the next tick
            case Acknowledgement() if not self.group.gets_the_log(member):
                self.guard.dropped["acknowledgement of no member"] += 1  # the library would stumble over it
            case _:
                passed = self.guard.incoming(member, message, self.core.now())
                if passed is not None:
                    self.deliver(member, to_library(passed))

    def _invalid(self, member: str, error: CodecError) -> None:
        self.invalid_frames += 1
        if self.core.now() - self._logged_at.get(member, NEVER_YET) > LOG_EVERY_S:
            self._logged_at[member] = self.core.now()
            logger.warning("dropping a raft message of %s: %s", member, error)

    # ------------------------------------------------------------------ without a vote
    def _wait_for_vote(self, now: float) -> None:
        """No campaigns, no votes, no acknowledgement that counts, until it is sure that nothing is lost."""
        self._deadline = NEVER
        own = self.joining.own.incarnation
        if self.joining.is_member:
            pass  # removed from the group: nothing to wait for
        elif own == self.welcomed_as() or self.roster.fresh == (self._settings.self_id, own):
            self.core.abstain()  # we may have voted in this term, and not know it
            self.joining.welcomed()
            logger.warning("this member has everything again that it may have acknowledged: it votes")
            self._tell_standing()
        elif self.joining.rejoins and now >= self._ask_welcome_at and self.core.leader_id is not None:
            self._ask_welcome_at = now + WELCOME_RETRY_S
            self.reply(self.core.leader_id, WelcomeRequest(self.joining.own.incarnation))
        if now >= self._log_waiting_at:
            self._log_waiting_at = now + LOG_WAITING_S
            self._log_waiting()

    def follow_roster(self) -> None:
        """The log says who belongs to the group: from now on majorities are counted so."""
        self.group.follow_roster()
        self._prevote.others = len(self.group.others)

    def _log_waiting(self) -> None:
        if self.joining.is_member:
            logger.warning("this member was removed from the group: stop it")
        elif self.joining.rejoins:
            logger.warning("the data directory was empty: catching up with the group, without a vote")
        elif self.joining.waits_for():
            names = ", ".join(self.joining.waits_for())
            logger.info("first start: waiting for %s (a new group needs every member once)", names)

    def _tell_standing(self) -> None:
        if self.joining.is_member:
            self._deadline = self.core.now() + self._election_timeout()
        for member in self.group.others:
            self.reply(member, self.joining.own)

    # ------------------------------------------------------------------ pre-vote
    def _take_deadline(self) -> None:
        """The library would campaign by itself once its deadline has passed, however little after our look
        at it. So it never has one, but for the tick in which we let it campaign."""
        if self.core.election_deadline != NEVER:
            self._deadline, self.core.election_deadline = self.core.election_deadline, NEVER

    def _ask_before_campaign(self, now: float) -> None:
        core = self.core
        # a heartbeat that came with the request to take over has put the deadline off, as do all that follow
        handed_over, self._handed_over = self._handed_over == core.term, -1
        if core.leads or (self._deadline > now and not handed_over):
            return
        if handed_over or self._prevote.may_campaign(core.term, now):
            self.campaigns += 1
            core.election_deadline = now - 1e-6  # in this tick; then the library sets the next one
            return
        self._deadline = now + self._election_timeout()
        term, index = self._log_end()
        self._prevote.ask(core.term)
        self.elections_asked += 1
        request = encode(PreVoteRequest(term=core.term, last_log_index=index, last_log_term=term))
        for member in self.group.others:
            if self.links is not None:
                self.links.send(member, request)

    def _on_prevote_request(self, member: str, request: PreVoteRequest) -> None:
        core = self.core
        if request.term < core.term:
            self.reply(member, TermHint(term=core.term))  # else two survivors can block each other
            return
        asker = (request.last_log_term, request.last_log_index)
        fresh = self._leader_is_fresh(core.now())
        if self._prevote.grant(member, asker=asker, mine=self._log_end(), leader_fresh=fresh):
            # do not compete with the one we just let go first
            self._take_deadline()
            self._deadline = max(self._deadline, core.now() + self._settings.election_min_s / 2)
            self.reply(member, PreVoteGrant(term=request.term))

    def _leader_is_fresh(self, now: float) -> bool:
        limit = self._settings.election_min_s
        if self.core.leads:
            answering = 1 + sum(now - at < limit for at in self.core.last_responses())
            return answering > (len(self.group.others) + 1) / 2
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
