"""Proposer: how every handler reads or changes the replicated state: it decides, proposes and replies.

An unknown outcome is answered with code 1, never with success: a leader that lost its majority does not know
whether its change will survive. Every operation is safe to repeat. A refusal or a reply from local state is
sent only after a barrier, so that a deposed leader does not reply from old state.

If apply() refuses an event, the request is decided again on the new state: of two concurrent elections of one
group, the second is answered with the master that the first has elected.
"""

from collections.abc import Callable

import msgspec

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError, Unknown, UnknownOutcome
from keelmq.runtime.clock import wall_ms
from namesrv.plugins.controller.core.apply import Applied
from namesrv.plugins.controller.core.decide import Answer, Decision
from namesrv.plugins.controller.core.events import AnyEvent, encode_event
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import BrokerSet, State
from namesrv.plugins.controller.machine import ControllerMachine
from namesrv.plugins.controller.raft import api as raft

TRIES_MAX = 3
"""Maximum number of decisions for one request; it is decided again if apply() refused the event."""

NOT_LEADER_REMARK = "The controller is not in leader state"


class Decided(msgspec.Struct, frozen=True):
    """The result of a request. after: the group after `event`; None: it was cleaned, or the request does not
    concern a single group. event None: nothing had to be logged."""

    after: BrokerSet | None
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None
    event: AnyEvent | None = None

    @property
    def broker_set(self) -> BrokerSet:
        """`after` of a request that concerns one group, which still exists."""
        assert self.after is not None, "an accepted event of a group has one"
        return self.after


def not_leader() -> CommandError:
    """Returns the refusal of a controller that is not active (2007)."""
    return CommandError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER_REMARK)


class Proposer:
    """Event loop only. `wall_clock`: ms since 1970, for the `ts` of events."""

    def __init__(
        self,
        machine: ControllerMachine,
        replicator: raft.Replicator,
        wall_clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._machine, self._replicator, self._wall_clock = machine, replicator, wall_clock
        self._new_log_id = ""

    @property
    def state(self) -> State:
        """The replicated state as this controller has applied it; may be old unless read after barrier()."""
        return self._machine.state

    @property
    def is_active(self) -> bool:
        return self._replicator.is_active

    def call_in_loop(self, action: Callable[[], object]) -> None:
        """Runs `action` in the event loop. For the raft thread (Replicator.call_in_loop)."""
        self._replicator.call_in_loop(action)

    async def decide_and_propose(self, decide: Callable[[State], Decision]) -> Decided:
        """Decides and proposes until an event is applied. `decide` may be called several times.

        Raises CommandError: refused, not leader, or busy; UnknownOutcome.
        """
        if not self.is_active:
            raise not_leader()
        refused: Refused | None = None
        for _ in range(TRIES_MAX):
            decision = decide(self.state)
            if isinstance(decision, Answer | Refused):
                await self.barrier()
                decision = decide(self.state)
            if isinstance(decision, Refused):
                raise CommandError(decision.code, decision.remark)
            if isinstance(decision, Answer):
                return Decided(decision.broker_set, decision.code, decision.remark)
            applied = await self.propose(decision)
            if applied.refused is None:
                return Decided(applied.after, event=decision)
            refused = applied.refused
        assert refused is not None
        raise CommandError(refused.code, refused.remark)

    async def propose(self, event: AnyEvent) -> Applied:
        """Appends the event with the current time as `ts`, so that all controllers record the same time.

        Applied.refused: it was fenced. Raises CommandError: not leader, or busy; UnknownOutcome.
        """
        log_id = self.state.log_id or await self._name_log()
        dated = msgspec.structs.replace(event, ts=self._wall_clock(), log_id=log_id)
        result = result_of(await self._replicator.append(encode_event(dated)))
        assert isinstance(result, Applied)
        return result

    async def _name_log(self) -> str:
        """Returns the log_id for a log without one: new, of this controller's name and the time.

        After the barrier everything that an earlier leader has proposed is applied, or never will be: so two
        leaders do not give the log two names. Raises what barrier() raises.
        """
        await self.barrier()
        self._new_log_id = self._new_log_id or f"{self._replicator.self_id}-{self._wall_clock()}"
        return self.state.log_id or self._new_log_id

    async def barrier(self) -> None:
        """Waits until everything acknowledged before this call is applied here.

        Raises CommandError: not leader, or busy; UnknownOutcome.
        """
        if not self.is_active:
            raise not_leader()
        result_of(await self._replicator.barrier())


def result_of(outcome: raft.AppendOutcome) -> object:
    """Returns the result of a committed append. Raises CommandError, UnknownOutcome."""
    match outcome:
        case raft.Committed():
            return outcome.result
        case raft.NotActive():
            raise not_leader()
        case raft.Busy():
            raise CommandError(
                ResponseCode.SYSTEM_BUSY, "the controller has too many queued changes: repeat later"
            )
        case Unknown():
            remark = f"outcome unknown ({outcome.remark}): it may have happened, repeat"
            raise UnknownOutcome(ResponseCode.SYSTEM_ERROR, remark)
