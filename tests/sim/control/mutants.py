"""Each protection of the controller, switched off: what the checkers must notice. Test the testers."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from msgspec.structs import replace

from namesrv.plugins.controller import machine
from namesrv.plugins.controller.core import apply as applying
from namesrv.plugins.controller.core import decide as deciding
from namesrv.plugins.controller.core import rules
from namesrv.plugins.controller.core.elect import LiveView
from namesrv.plugins.controller.core.state import BrokerSet
from namesrv.plugins.controller.election.liveness_view import LivenessView
from namesrv.plugins.controller.election.reconcile_loop import Elections
from namesrv.plugins.controller.machine import ControllerMachine
from namesrv.plugins.controller.proposer import Proposer, not_leader


@dataclass(frozen=True)
class Mutant:
    """`found`: what the violation says (a regular expression); `weather`: where it shows; `seeds`: from the
    first that shows it."""

    found: str
    patches: tuple[tuple[Any, str, Any], ...]
    conditions: dict[str, Any] = field(default_factory=dict)
    seeds: range = range(60)

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in self.patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield


def _none(*_: object, **__: object) -> None: ...


async def _none_soon(*_: object, **__: object) -> None: ...


async def _local_barrier(proposer: Proposer) -> None:
    if not proposer.is_active:
        raise not_leader()


_propose = Proposer.propose


_unanswered = set[asyncio.Task[Any]]()


async def _hoped(proposer: Proposer, event: Any) -> Any:
    """The reply as it will be if the event is applied, without waiting for that."""
    hoped = applying.apply(proposer.state, event)
    task = asyncio.get_running_loop().create_task(_propose(proposer, event))
    _unanswered.add(task)
    task.add_done_callback(lambda done: (_unanswered.discard(done), done.cancelled() or done.exception()))
    return hoped


_elections_propose = Elections._propose


async def _notified_before(elections: Elections, broker_set: BrokerSet, election: Any, view: Any) -> None:
    event = deciding.elect_event(broker_set, election, view)
    hoped = applying.apply(elections._proposer.state, event).after
    if hoped is not None:
        elections._notifier.notify(hoped)
    await _elections_propose(elections, broker_set, election, view)


_apply = applying.apply
_calls = itertools.count()


def _forgetful_apply(state: Any, event: Any) -> Any:
    """What a member does depends on how long it runs."""
    applied = _apply(state, event)
    if next(_calls) % 11 or applied.after is None:
        return applied
    after = replace(applied.after, next_broker_id=applied.after.next_broker_id + 1)
    return replace(applied, state=applied.state.with_set(after), after=after)


MUTANTS = {
    "no fence": Mutant(
        "masters .* in epoch|never applied|went back|same epoch|not master|outside",
        (
            (applying, "fence", _none),
            (rules, "fence", _none),
            (rules, "check_master", _none),
            (applying, "check_master", _none),
        ),
    ),
    "no barrier": Mutant(
        "was acknowledged", ((Proposer, "barrier", _local_barrier),), {"fault_every_s": 0.3}
    ),
    "ids are given twice": Mutant(
        "belongs to|another owner",
        ((applying, "check_broker_id", _none), (deciding, "check_broker_id", _none)),
        {"replicas": 3},
    ),
    "a copy takes the id over": Mutant(
        "whose owner works", ((LiveView, "works_at", lambda *_: False),), {"loss": 0.0}
    ),
    "anybody may win": Mutant("outside the SyncStateSet", ((BrokerSet, "is_new", property(lambda _: True)),)),
    "replies are hoped for": Mutant("never applied|belongs to", ((Proposer, "propose", _hoped),)),
    "notified before it is applied": Mutant(
        "a notification of", ((Elections, "_propose", _notified_before),), {"fault_every_s": 0.3}
    ),
    "apply() depends on more": Mutant(
        "another state|restored a state", ((machine, "apply", _forgetful_apply),)
    ),
    "no snapshot is read": Mutant("applied .* as event", ((ControllerMachine, "restore", _none),)),
    "no grace for who was not heard": Mutant(
        "because a controller died",
        ((LivenessView, "became_active", _none),),
        {"quiet_brokers": True, "loss": 0.0},
    ),
    "the dead stay master": Mutant(
        "not healed .* may win",
        ((Elections, "start_due", _none_soon),),
        {"loss": 0.0, "fault_every_s": 0.3},
        range(25, 60),
    ),
}
