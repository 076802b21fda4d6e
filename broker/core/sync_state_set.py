"""The SyncStateSet as its master maintains it: which replicas join and leave, and whose acks count. Pure.

SyncStateSetManager.next_proposal() is the only place where the set shrinks (_shrink) or expands (_expand).

Between the moment a proposal is sent to the controller and the moment its outcome is known, the next election
may use either set. So acks are counted over the union: the agreed set, and every replica named by a proposal
that may still be accepted ("in doubt"). Only evidence ends a doubt, never a timeout alone:

    an answer or a read with a higher set epoch    the controller refuses every older proposal from then on
    a read begun SETTLE_MS after the proposal      the request can hardly be on its way any more

The second is no proof (a controller may have been paused while it held the request). It is needed for
RocketMQ's controllers only: KeelMQ's raise the set epoch when a master in doubt reads.

Invariants: one proposal at a time; the master is in every proposal; no replica is in doubt once the outcome
is known.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec

SETTLE_MS = 3_000
"""Upper limit for the life of a request to the controller: the timeout of the call."""

HOLD_MS = 200
HOLD_PAUSE_MS = 2_000
HOLD_BYTES_MAX = 4 << 20
"""A slave that follows closely under steady load is always a few packets behind a confirmOffset that the
master moves alone. So its acks count for HOLD_MS before it is proposed: confirmOffset waits, and the slave
reaches it. confirmOffset does not wait for a slave that is further behind than HOLD_BYTES_MAX, or failed less
than HOLD_PAUSE_MS ago."""

CLOSE_BEHIND_MS = 1_000
"""A slave that had the whole log this recently follows closely."""

JOIN_PAUSE_FIRST_MS, JOIN_PAUSE_MAX_MS = 200, 1_600
"""A candidate whose joining was refused (most likely the controllers consider it dead) is not proposed again
for a pause that doubles each time: a member that leaves meanwhile must not be refused with it, and every
attempt costs the controllers an event. The shell checks again before the first pause is over
(ha/mastership.py)."""


class SyncStateSet(msgspec.Struct, frozen=True):
    """Ids of the replicas in sync, master included, and the controller's epoch of this set."""

    members: frozenset[int]
    epoch: int


class Proposal(msgspec.Struct, frozen=True):
    """Replace the set of `base_epoch` by `members`."""

    members: frozenset[int]
    base_epoch: int


class Follower(Protocol):
    """The state of a slave's live link (MasterLink)."""

    @property
    def ack_offset(self) -> int:
        """The slave has every byte of the log below this offset; -1: nothing was acknowledged yet."""

    @property
    def learner(self) -> bool:
        """Whether the slave only copies and never joins the SyncStateSet (asyncLearner)."""

    def caught_up_ms(self, now_ms: int) -> int:
        """Returns the last time at which the slave had the whole log of the master."""
        ...


class SyncStateSetManager:
    """The set in one term of one master. `agreed`: the newest set of the controller."""

    def __init__(
        self, broker_id: int, agreed: SyncStateSet, *, all_ack: bool, max_lag_ms: int, now_ms: int
    ) -> None:
        self.broker_id = broker_id
        self.agreed = agreed
        self._all_ack = all_ack
        self._max_lag_ms = max_lag_ms
        self._began_ms = now_ms
        self._linked: set[int] = set()  # ids of slaves that had a link in this term
        self._doubt: frozenset[int] = frozenset()
        self._in_flight: Proposal | None = None
        self._ended_ms = now_ms  # when the last proposal ended without a known outcome
        self._held: dict[int, int] = {}  # candidate -> since when its acks count
        self._hold_pause: dict[int, int] = {}  # candidate -> its acks are not counted again before this time
        self._join_pause: dict[int, tuple[int, int]] = {}  # candidate -> not proposed before, pause
        self.others: frozenset[int] = agreed.members - {broker_id}
        """The replicas whose acks confirmOffset waits for: the union without the master."""

    def configure(self, *, all_ack: bool, max_lag_ms: int) -> None:
        """Changes the settings; they count from the next proposal on."""
        self._all_ack, self._max_lag_ms = all_ack, max_lag_ms

    @property
    def in_flight(self) -> bool:
        """A proposal was sent, and has no answer yet."""
        return self._in_flight is not None

    @property
    def must_read(self) -> bool:
        """A proposal ended without a known outcome: the controller's set has to be read."""
        return bool(self._doubt) and self._in_flight is None

    @property
    def agreed_others(self) -> frozenset[int]:
        """The agreed members without the master."""
        return self.agreed.members - {self.broker_id}

    # -- proposals ---------------------------------------------------------------------------------------

    def next_proposal(
        self,
        followers: Mapping[int, Follower],
        *,
        confirm_offset: int,
        epoch_start_offset: int,
        now_ms: int,
        metadata_lag_ms: Mapping[int, int] = MappingProxyType({}),
    ) -> Proposal | None:
        """Returns the set to propose, if it differs from the agreed one and no proposal is in flight; else
        None.

        metadata_lag_ms: for how long a slave has lacked a change of topics, groups or offsets. A slave that
        lacks one does not join; a member that lacks it for longer than max_lag_ms leaves (design S3).
        """
        self._linked.update(followers)
        self._drop_holds(followers, now_ms)
        self._join_pause = {each: pause for each, pause in self._join_pause.items() if each in followers}
        staying = self._shrink(followers, metadata_lag_ms, now_ms)
        joining = self._expand(followers, metadata_lag_ms, confirm_offset, epoch_start_offset, now_ms)
        wanted = staying | joining
        if self._in_flight is not None or wanted == self.agreed.members:
            return None
        self._in_flight = Proposal(frozenset(wanted), self.agreed.epoch)
        self._doubt |= self._in_flight.members
        self._update_others()
        return self._in_flight

    def _shrink(
        self, followers: Mapping[int, Follower], metadata_lag_ms: Mapping[int, int], now_ms: int
    ) -> set[int]:
        """Returns the agreed members that stay, the master among them (RocketMQ: maybeShrinkSyncStateSet)."""
        staying = {self.broker_id}
        for member in self.agreed_others:
            lacks_metadata = metadata_lag_ms.get(member, 0) > self._max_lag_ms
            if not lacks_metadata and not self._must_leave(member, followers.get(member), now_ms):
                staying.add(member)
        return staying

    def _expand(
        self,
        followers: Mapping[int, Follower],
        metadata_lag_ms: Mapping[int, int],
        confirm_offset: int,
        epoch_start_offset: int,
        now_ms: int,
    ) -> set[int]:
        """Returns the slaves that may join the set (RocketMQ: maybeExpandInSyncStateSet)."""
        joining = set()
        for candidate, follower in sorted(followers.items()):
            if candidate in self.agreed.members or follower.learner or metadata_lag_ms.get(candidate, 0):
                continue
            if now_ms < self._join_pause.get(candidate, (0, 0))[0]:
                continue
            if self._may_join(candidate, follower, confirm_offset, epoch_start_offset, now_ms):
                joining.add(candidate)
        return joining

    def _must_leave(self, member: int, follower: Follower | None, now_ms: int) -> bool:
        """A member whose link is lost leaves at once; one whose link never came, or that lags, after
        max_lag_ms.

        A member that came back as a learner leaves at once, too: its acks no longer count.
        """
        if follower is None:
            return member in self._linked or now_ms - self._began_ms > self._max_lag_ms
        if follower.learner:
            return True
        caught_up_ms = max(self._began_ms, follower.caught_up_ms(now_ms))
        return now_ms - caught_up_ms > self._max_lag_ms

    def _may_join(
        self,
        candidate: int,
        follower: Follower,
        confirm_offset: int,
        epoch_start_offset: int,
        now_ms: int,
    ) -> bool:
        """A slave may join if it has every confirmed byte and has reached this master's own epoch.

        The second condition: a slave that has not may still turn out to hold another history.
        """
        ack = follower.ack_offset
        if ack < epoch_start_offset or ack < 0:
            return False
        if ack >= confirm_offset:
            return True
        close_behind = now_ms - follower.caught_up_ms(now_ms) <= CLOSE_BEHIND_MS
        if not self._all_ack:
            return close_behind  # without all_ack, confirmOffset is the end of the log and waits for no slave
        if close_behind and confirm_offset - ack <= HOLD_BYTES_MAX:
            self._hold(candidate, now_ms)
        return False

    def _hold(self, candidate: int, now_ms: int) -> None:
        if candidate not in self._held and now_ms >= self._hold_pause.get(candidate, 0):
            self._held[candidate] = now_ms
            self._update_others()

    def _drop_holds(self, followers: Mapping[int, Follower], now_ms: int) -> None:
        for candidate, since_ms in list(self._held.items()):
            if candidate not in followers or now_ms - since_ms > HOLD_MS:
                del self._held[candidate]
                self._hold_pause[candidate] = now_ms + HOLD_PAUSE_MS
                self._update_others()

    # -- answers -----------------------------------------------------------------------------------------

    def answered(self, answer: SyncStateSet | None, *, now_ms: int) -> bool:
        """Handles the controller's answer to the proposal; None: refused or unknown. Returns True if the
        agreed set changed."""
        proposal, self._in_flight = self._in_flight, None
        self._ended_ms = now_ms
        if answer is None or proposal is None:
            self._pause_joins(proposal, now_ms)
            return False
        return self.adopt(answer)

    def _pause_joins(self, proposal: Proposal | None, now_ms: int) -> None:
        for candidate in (proposal.members if proposal is not None else frozenset()) - self.agreed.members:
            _, before_ms = self._join_pause.get(candidate, (0, 0))
            pause_ms = min(max(2 * before_ms, JOIN_PAUSE_FIRST_MS), JOIN_PAUSE_MAX_MS)
            self._join_pause[candidate] = (now_ms + pause_ms, pause_ms)

    def read(self, reading: SyncStateSet | None, *, begun_ms: int) -> bool:
        """Handles the controller's set, read at begun_ms; None: unknown. Returns True if the agreed set
        changed."""
        if reading is None:
            return False
        changed = self.adopt(reading)
        unchanged = reading.epoch == self.agreed.epoch
        if self.must_read and unchanged and begun_ms - self._ended_ms >= SETTLE_MS:
            self._settle()
        return changed

    def adopt(self, sync_state_set: SyncStateSet) -> bool:
        """Handles a set that the controller sent in any way. Returns False for an older one, which is
        ignored."""
        if sync_state_set.epoch <= self.agreed.epoch:
            return False
        self.agreed = sync_state_set
        self._settle()
        for member in sync_state_set.members:
            self._held.pop(member, None)
            self._join_pause.pop(member, None)
        self._update_others()
        return True

    def _settle(self) -> None:
        self._doubt = frozenset()
        if self._in_flight is not None:
            self._in_flight = Proposal(
                frozenset(), -1
            )  # a newer set made it invalid; only its answer is awaited
        self._update_others()

    def _update_others(self) -> None:
        self.others = (self.agreed.members | self._doubt | self._held.keys()) - {self.broker_id}
