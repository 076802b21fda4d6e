"""Two crashes or lost replies at every pair of steps, a rival broker at every step: one id, owned for life.

The disk is a model (tests/unit/broker/controller_mode/test_broker_meta_file.py shows that the real one keeps
its promises), and the controller is a dictionary.
"""

from itertools import product

import pytest

from broker.controller_mode.broker_meta_file import BrokerMeta
from broker.core.registration import (
    TRANSITIONS,
    Effect,
    Event,
    RegisterState,
    Registration,
    event_of,
    recover,
    step,
)
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok, Unknown

STEPS_MAX = 60
FAULTS = ("none", "crash before", "crash after", "lost request", "lost reply")


class ModelFiles:
    """What MetaFiles promises: every operation happens as a whole, and what was written stays."""

    def __init__(self) -> None:
        self.temp: BrokerMeta | None = None
        self.meta: BrokerMeta | None = None

    def load(self) -> tuple[BrokerMeta | None, BrokerMeta | None]:
        return self.temp, self.meta

    def write_temp(self, broker_id: int, register_check_code: str) -> None:
        self.temp = BrokerMeta("C", "b", broker_id, register_check_code)

    def delete_temp(self) -> None:
        self.temp = None

    def replace_temp_by_meta(self) -> None:
        self.meta, self.temp = self.temp, None


class World:
    """One broker's disk and the controller's table: brokerId -> registerCheckCode."""

    def __init__(self) -> None:
        self.files = ModelFiles()
        self.owners: dict[int, str] = {}
        self.starts = 0
        self.registered: list[int] = []

    def restart(self) -> Registration:
        self.starts += 1
        temp, meta = self.files.load()
        return recover(temp and temp.broker_id, meta and meta.broker_id)

    def perform(self, now: Registration) -> tuple[Event, int | None]:
        match now.effect:
            case Effect.GET_NEXT_BROKER_ID:
                return Event.OK, max(self.owners, default=0) + 1
            case Effect.WRITE_TEMP:
                assert now.broker_id is not None
                self.files.write_temp(now.broker_id, f"me:1;{self.starts}")
            case Effect.APPLY_BROKER_ID:
                temp, _ = self.files.load()
                assert temp is not None and temp.broker_id == now.broker_id
                if (
                    self.owners.setdefault(temp.broker_id, temp.register_check_code)
                    != temp.register_check_code
                ):
                    return Event.REFUSED, None
            case Effect.DELETE_TEMP:
                self.files.delete_temp()
            case Effect.REPLACE_TEMP_BY_META:
                self.files.replace_temp_by_meta()
            case Effect.REGISTER_TO_CONTROLLER:
                assert now.broker_id is not None
                self.registered.append(now.broker_id)
        return Event.OK, None


REMOTE = {Effect.GET_NEXT_BROKER_ID, Effect.APPLY_BROKER_ID, Effect.REGISTER_TO_CONTROLLER}


def run_one(world: World, now: Registration, fault: str) -> Registration:
    """One step under one fault. A lost request or reply exists only where the network is."""
    if fault == "crash before":
        return world.restart()
    if fault == "lost request" and now.effect in REMOTE:
        return step(now, Event.UNKNOWN)
    event, broker_id = world.perform(now)
    if fault == "crash after":
        return world.restart()
    if fault == "lost reply" and now.effect in REMOTE:
        return step(now, Event.UNKNOWN)
    return step(now, event, broker_id)


@pytest.mark.parametrize("rival_at", [None, 0, 1, 2, 3, 4])
@pytest.mark.parametrize("faults", list(product(FAULTS[1:], repeat=2)), ids=lambda pair: "+".join(pair))
def test_one_broker_id_for_life_wherever_we_fail(faults: tuple[str, str], rival_at: int | None) -> None:
    for first, gap in product(range(8), range(8)):
        at = {first: faults[0], first + 1 + gap: faults[1]}
        world = World()
        now = world.restart()
        for number in range(STEPS_MAX):
            if number == rival_at:
                world.owners.setdefault(max(world.owners, default=0) + 1, "rival")
            if now.state is RegisterState.REGISTERED:
                break
            now = run_one(world, now, at.get(number, "none"))
        temp, meta = world.files.load()
        where = f"faults {at}, rival at {rival_at}"
        assert now.state is RegisterState.REGISTERED, where
        assert temp is None and meta is not None, where
        mine = [number for number, owner in world.owners.items() if owner.startswith("me:")]
        assert mine == [meta.broker_id] == [now.broker_id], where
        assert set(world.registered) == {meta.broker_id}, where


def test_every_state_but_the_last_has_a_way_on() -> None:
    reachable = {(state, effect) for state, effect in TRANSITIONS.values()} | {
        (RegisterState.INITIAL, Effect.GET_NEXT_BROKER_ID)
    }
    for state, effect in reachable - {(RegisterState.REGISTERED, Effect.NOTHING)}:
        assert (state, effect, Event.OK) in TRANSITIONS


def test_an_event_outside_the_table_is_our_bug() -> None:
    with pytest.raises(KeyError):
        step(Registration(), Event.REFUSED)


@pytest.mark.parametrize("effect", sorted(REMOTE, key=str))
def test_only_a_taken_id_is_a_refusal(effect: Effect) -> None:
    assert event_of(effect, Ok(Empty())) is Event.OK
    assert event_of(effect, Unknown("timeout")) is Event.UNKNOWN
    for code in (ResponseCode.CONTROLLER_NOT_LEADER, ResponseCode.SYSTEM_ERROR):
        assert event_of(effect, Failed(code, "")) is Event.UNKNOWN
    taken = event_of(effect, Failed(ResponseCode.CONTROLLER_BROKER_ID_INVALID, "taken"))
    assert taken is (Event.REFUSED if effect is Effect.APPLY_BROKER_ID else Event.UNKNOWN)
