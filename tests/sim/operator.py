"""An operator who works on the cluster while it burns: planned hand-overs, replaced machines, settings.

A machine is replaced as the handbook says: its broker is dead, 1011 is repeated until the answer is certain,
and only then the empty disk of the new machine comes in.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from keelmq.remoting.codes import ResponseCode
from namesrv.plugins.controller.core.decide import (
    Decision,
    ElectionRequest,
    decide_clean,
    decide_elect,
    decide_update_config,
)
from namesrv.plugins.controller.core.elect import LiveView
from namesrv.plugins.controller.core.state import BrokerSet, State
from tests.sim.brokers import CLUSTER, GROUP, Disk
from tests.sim.controllers import SimController

if TYPE_CHECKING:
    from tests.sim.group import Group

RETRY_MS = 200
REFUSED = (ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, ResponseCode.CONTROLLER_INVALID_REQUEST)


class Operator:
    def __init__(self, group: "Group") -> None:
        self.group, self.world = group, group.world

    def ask(
        self,
        decide: Callable[[SimController, State], Decision],
        answered: Callable[[BrokerSet | None, ResponseCode], None],
    ) -> None:
        """At the controller that leads, if there is one; the answer may get lost."""
        for member in self.group.controllers.members:
            if member.is_active:
                member.request(
                    lambda state, member=member: decide(member, state),
                    lambda group, code, member=member: self.world.send(
                        member.name, "operator", lambda: answered(group, code)
                    ),
                )
                return

    def hand_over(self) -> None:
        """electMaster with any replica, master and dead ones included."""
        broker_id = self.world.random.randint(1, 4)
        ballot = ElectionRequest(GROUP, CLUSTER, broker_id, designate_elect=True)
        self.world.note(f"operator: electMaster {broker_id}")
        self.ask(
            lambda member, state: decide_elect(state, _view(member, state), ballot),
            lambda _group, code: self.world.note(f"operator: electMaster {broker_id}: {code.name}"),
        )

    def configure(self) -> None:
        changes: dict[str, str | None] = {
            "controllerGraceMs": self.world.random.choice([None, "1000", "2000"]),
        }
        self.ask(lambda _member, state: decide_update_config(state, changes), lambda _group, _code: None)

    def replace_machine(self) -> None:
        up = [broker for broker in self.group.brokers.values() if broker.is_running]
        if len(up) == len(self.group.brokers):
            victim = self.world.random.choice(up)
            self.world.note(f"replace the machine of {victim.name} (id {victim.broker_id})")
            victim.crash()
            self.world.at(RETRY_MS, lambda: self._clean(victim.name, victim.broker_id))

    def _clean(self, name: str, broker_id: int) -> None:
        done = [False]

        def answered(_group: BrokerSet | None, code: ResponseCode) -> None:
            if done[0]:
                return
            if code is ResponseCode.SUCCESS:
                done[0] = True
                self.world.note(f"{name} has an empty disk")
                self.group.disks[name] = Disk()
                self.group.start_broker(name)
            elif code in REFUSED:
                done[0] = True
                self.world.note(f"{name} keeps its disk")
                self.group.start_broker(name)

        def again() -> None:
            if not done[0]:
                done[0] = True
                self._clean(name, broker_id)

        self.ask(
            lambda member, state: decide_clean(
                state,
                _view(member, state),
                cluster_name=CLUSTER,
                broker_name=GROUP,
                broker_ids=str(broker_id),
                clean_living=False,
            ),
            answered,
        )
        self.world.at(RETRY_MS, again)


def _view(member: SimController, state: State) -> LiveView:
    group = state.brokers.get(GROUP)
    return LiveView() if group is None else member.view(group)
