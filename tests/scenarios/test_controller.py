"""Stories of one broker set at the controller: decide and apply, told as text."""

from pathlib import Path

import pytest

from namesrv.plugins.controller.core.apply import apply
from namesrv.plugins.controller.core.decide import (
    CONTROLLER_ITSELF,
    Answer,
    Decision,
    ElectionRequest,
    decide_alter_sync_state_set,
    decide_apply_broker_id,
    decide_elect,
    decide_register,
)
from namesrv.plugins.controller.core.elect import LiveInfo, LiveView
from namesrv.plugins.controller.core.events import AlterSyncStateSet, ApplyBrokerId
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import State
from tests.scenarios.datadriven import play

FILES = sorted((Path(__file__).parent / "controller").glob("*.txt"))
GROUP, CLUSTER = "b-a", "C1"


class Story:
    """Commands: alive ID[:maxOffset]..., apply ID [code], register ID address, elect ID, designate ID,
    trigger, alter MASTER set=1,2 epoch=E set_epoch=S, show."""

    def __init__(self) -> None:
        self.state = State()
        self.view = LiveView()

    def run(self, line: str) -> str:
        name, *words = line.split()
        if name == "alive":
            return self._alive(words)
        if name == "show":
            return self._shown()
        return self._decided(self._decide(name, words))

    def _alive(self, words: list[str]) -> str:
        pairs = [word.partition(":") for word in words]
        self.view = LiveView({int(i): LiveInfo(f"h{i}:1", 1, int(offset or 0)) for i, _, offset in pairs})
        return f"alive: {', '.join(words) or 'nobody'}"

    def _decide(self, name: str, words: list[str]) -> Decision:
        match name:
            case "apply":
                code = words[1] if len(words) > 1 else f"h{words[0]}:1;1"
                return decide_apply_broker_id(
                    self.state,
                    ApplyBrokerId(
                        broker_name=GROUP,
                        cluster_name=CLUSTER,
                        broker_id=int(words[0]),
                        broker_address=code.partition(";")[0],
                        register_check_code=code,
                    ),
                )
            case "register":
                return decide_register(
                    self.state,
                    self.view,
                    cluster_name=CLUSTER,
                    broker_name=GROUP,
                    broker_id=int(words[0]),
                    broker_address=words[1],
                )
            case "alter":
                given = dict(word.split("=") for word in words[1:])
                return decide_alter_sync_state_set(
                    self.state,
                    AlterSyncStateSet(
                        broker_name=GROUP,
                        master_broker_id=int(words[0]),
                        new_sync_state_set=tuple(int(each) for each in given["set"].split(",")),
                        expected_master_epoch=int(given["epoch"]),
                        expected_sync_state_set_epoch=int(given["set_epoch"]),
                    ),
                    self.view,
                )
            case "elect" | "designate" | "trigger":
                broker_id = int(words[0]) if words else CONTROLLER_ITSELF
                ballot = ElectionRequest(GROUP, CLUSTER, broker_id, designate_elect=name == "designate")
                return decide_elect(self.state, self.view, ballot)
        raise AssertionError(f"unknown command {name}")

    def _decided(self, decision: Decision) -> str:
        if isinstance(decision, Refused):
            return f"refused {int(decision.code)}: {decision.remark}"
        if isinstance(decision, Answer):
            return f"answer {int(decision.code)}: {self._shown()}"
        applied = apply(self.state, decision)
        self.state = applied.state
        if applied.refused is not None:
            return f"fenced {int(applied.refused.code)}: {applied.refused.remark}"
        return self._shown()

    def _shown(self) -> str:
        group = self.state.brokers.get(GROUP)
        if group is None:
            return "no such broker set"
        group.check_invariants()
        return (
            f"master {group.master_broker_id} epoch {group.master_epoch}, set {sorted(group.sync_state_set)} "
            f"epoch {group.sync_state_set_epoch}, next id {group.next_broker_id}"
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_controller(path: Path, request: pytest.FixtureRequest) -> None:
    play(path, Story().run, rewrite=request.config.getoption("--rewrite"))


def test_there_are_stories() -> None:
    assert len(FILES) >= 3
