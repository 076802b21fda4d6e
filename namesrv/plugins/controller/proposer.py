"""decide, propose, reply: the one way in which the controller's handlers change or read the replicated state.

An outcome that is not known is answered with code 1 and never with success (a leader that lost its majority
cannot say whether its change will survive); every operation is safe to repeat. A refusal or an answer from
local state is given only after a barrier, so that a deposed leader does not spread what it remembers.

What apply() refuses is decided again, on the state that refused it: when two elections of a group meet, the
second is answered with the master that the first one made.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from namesrv.plugins.controller.core.apply import Applied
from namesrv.plugins.controller.core.decide import Answer, Decision
from namesrv.plugins.controller.core.events import AnyEvent, encode_event
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import BrokerSet, State
from namesrv.plugins.controller.machine import ControllerMachine
from namesrv.plugins.controller.raft import api as raft
from remoting.clock import wall_ms
from remoting.codes import ResponseCode
from remoting.operation import CommandError, Unknown, UnknownOutcome

TRIES_MAX = 3
"""A group that changes more often than that between a decision and its place in the log: repeat later."""

NOT_LEADER_REMARK = "The controller is not in leader state"


@dataclass(frozen=True, slots=True)
class Settled:
    """The group as a reply may show it: as `after` the event, or as it is. None: it is no more, or the
    request is about no single group. event is None if nothing had to be logged."""

    after: BrokerSet | None
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None
    event: AnyEvent | None = None

    @property
    def broker_set(self) -> BrokerSet:
        assert self.after is not None, "an accepted event of a group has one"
        return self.after


def not_leader() -> CommandError:
    return CommandError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER_REMARK)


class Proposer:
    def __init__(
        self,
        machine: ControllerMachine,
        replicator: raft.Replicator,
        wall_clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._machine, self._replicator, self._wall_clock = machine, replicator, wall_clock

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def is_active(self) -> bool:
        return self._replicator.is_active

    async def settle(self, decide: Callable[[State], Decision]) -> Settled:
        """Raises CommandError: refused, not leader, busy, or not known. decide() may be called often."""
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
                return Settled(decision.broker_set, decision.code, decision.remark)
            applied = await self.propose(decision)
            if applied.refused is None:
                return Settled(applied.after, event=decision)
            refused = applied.refused
        assert refused is not None
        raise CommandError(refused.code, refused.remark)

    async def propose(self, event: AnyEvent) -> Applied:
        """Raises CommandError unless the event was applied; Applied.refused may say that it was fenced.

        Here, and nowhere else, the event gets its `ts`: each controller then writes down the same one.
        """
        dated = msgspec.structs.replace(event, ts=self._wall_clock())
        result = result_of(await self._replicator.append(encode_event(dated)))
        assert isinstance(result, Applied)
        return result

    async def barrier(self) -> None:
        """After it, local state has everything that was acknowledged before. Raises CommandError."""
        if not self.is_active:
            raise not_leader()
        result_of(await self._replicator.barrier())


def result_of(outcome: raft.AppendOutcome) -> object:
    """Of what was applied. Raises CommandError."""
    match outcome:
        case raft.Applied():
            return outcome.result
        case raft.NotActive():
            raise not_leader()
        case raft.Busy():
            raise CommandError(
                ResponseCode.SYSTEM_BUSY, "the controller has too many changes waiting: repeat"
            )
        case Unknown():
            remark = f"outcome unknown ({outcome.remark}): it may have happened, repeat"
            raise UnknownOutcome(ResponseCode.SYSTEM_ERROR, remark)
