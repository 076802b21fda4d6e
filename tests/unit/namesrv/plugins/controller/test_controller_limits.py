"""Names that somebody made up: how many and how long, and that every controller comes to the same end."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations import controller as wire
from namesrv.plugins.controller.core.apply import apply
from namesrv.plugins.controller.core.decide import decide_apply_broker_id
from namesrv.plugins.controller.core.events import ApplyBrokerId, decode_event
from namesrv.plugins.controller.core.rules import GROUP_BROKERS_MAX, TEXT_BYTES_MAX, Refused
from namesrv.plugins.controller.core.state import BrokerSet, Replica, State
from namesrv.plugins.controller.core.state_codec import state_from_json, state_to_json
from namesrv.plugins.controller.core.transfer import import_events
from tests.support.controller_fakes import CLUSTER, GROUP, Bench, refused


async def invent(bench: Bench, name: str) -> None:
    await bench.ask(
        wire.APPLY_BROKER_ID,
        cluster_name=CLUSTER,
        broker_name=name,
        applied_broker_id=1,
        register_check_code="10.0.0.9:1;1",
    )


def join(name: str, broker_id: int, **values: object) -> ApplyBrokerId:
    event = ApplyBrokerId(
        v=3,
        ts=1,
        cluster_name=CLUSTER,
        broker_name=name,
        broker_id=broker_id,
        broker_address=f"h{broker_id}:1",
        register_check_code=f"h{broker_id}:1;1",
        brokers_max=2,
    )
    return replace(event, **values)


async def test_invented_names_end_at_the_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, controllerBrokersMax=3)
    for name in ("x", "y", "z"):
        await invent(bench, name)
    for _ in range(3):
        error = await refused(invent(bench, "one-more"))
        assert error.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert error.remark == (
            "no new broker: 3 brokers and 0 cleaned groups are registered, and controllerBrokersMax is 3. "
            "Raise it (updateControllerConfig), or clean brokers that are gone (cleanBrokerMetadata); "
            "a group that is cleaned whole counts on, because its ids stay used"
        )
    assert len(bench.replicator.events) == 3, "nothing that is refused is logged"
    await invent(bench, "x")  # its first answer was lost
    await bench.configure("controllerBrokersMax=4")
    await bench.apply(1)
    await refused(bench.apply(2))


async def test_what_is_cleaned_makes_room_but_for_its_epochs(tmp_path: Path) -> None:
    bench = Bench(tmp_path, controllerBrokersMax=3)
    for broker_id in (1, 2, 3):
        await bench.apply(broker_id)
    await bench.clean("2", living=True)
    await invent(bench, "x")
    await bench.clean(living=True)  # two brokers less, one cleaned group more
    assert (bench.plugin.machine.state.broker_count, bench.plugin.machine.state.size) == (1, 2)
    await invent(bench, "y")
    assert "2 brokers and 1 cleaned groups" in (await refused(invent(bench, "z"))).remark


def test_apply_refuses_what_decide_allowed_before_others_came() -> None:
    state, late = State(), join("late", 1)
    assert decide_apply_broker_id(state, late) is late
    for name in ("a", "b"):
        state = apply(state, join(name, 1)).state
    applied = apply(state, late)
    assert applied.refused is not None and "controllerBrokersMax is 2" in applied.refused.remark
    assert applied.state.brokers is state.brokers
    assert applied.refused == decide_apply_broker_id(state, late)


def test_the_limit_is_the_events_and_old_events_have_none() -> None:
    """Replay ends where the first run ended, whatever the file says today."""
    state = State()
    for name in ("a", "b", "c"):
        old = replace(join(name, 1), v=1, brokers_max=decode_event(OLD).brokers_max)  # type: ignore[union-attr]
        state = apply(state, old).state
    assert state.broker_count == 3
    assert state_from_json(state_to_json(state)) == replace(state, brokers=dict(state.brokers))


OLD = (
    b'{"type":"applyBrokerId","v":1,"ts":5,"brokerName":"a","clusterName":"C","brokerId":1,'
    b'"brokerAddress":"h:1","registerCheckCode":"h:1;1"}'
)


def test_one_group_has_a_limit_of_its_own() -> None:
    ids = range(1, GROUP_BROKERS_MAX + 1)
    replicas = {each: Replica(f"h{each}:1", f"h{each}:1;1") for each in ids}
    state = State().with_set(BrokerSet(CLUSTER, GROUP, len(ids) + 1, replicas))
    refusal = apply(state, join(GROUP, len(ids) + 1, brokers_max=10**6)).refused
    assert refusal is not None and refusal.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    assert f"at most {GROUP_BROKERS_MAX} brokers" in refusal.remark
    assert apply(state, join(GROUP, 7, brokers_max=10**6)).refused is None, "it has its id"


@pytest.mark.parametrize("field", ["cluster_name", "broker_name", "register_check_code"])
def test_a_name_is_no_place_for_a_book(field: str) -> None:
    longest = decide_apply_broker_id(State(), join("a", 1, **{field: "é" * (TEXT_BYTES_MAX // 2)}))
    assert isinstance(longest, ApplyBrokerId)
    refusal = decide_apply_broker_id(State(), join("a", 1, **{field: "é" * (TEXT_BYTES_MAX // 2) + "x"}))
    assert isinstance(refusal, Refused) and refusal.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert f"maximum is {TEXT_BYTES_MAX}" in refusal.remark


async def test_nor_is_an_address(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.group_of(1)
    error = await refused(bench.register(1, "h" * TEXT_BYTES_MAX + ":1"))
    assert error.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert error.remark.startswith("brokerAddr 'hhh")


async def test_an_import_has_the_same_limit(tmp_path: Path) -> None:
    full = State()
    for name in ("a", "b", "c"):
        full = apply(full, join(name, 1, brokers_max=3)).state
    data = state_to_json(full)
    bench = Bench(tmp_path, controllerBrokersMax=2)
    assert "nothing is imported: 3 brokers" in (await refused(bench.ask(wire.IMPORT_STATE, data))).remark
    assert bench.replicator.events == []
    (event,) = import_events(full, 2)
    assert apply(State(), event).refused is not None, "nor by apply()"
    raised = replace(full, settings={"controllerBrokersMax": "3"})
    await bench.ask(wire.IMPORT_STATE, state_to_json(raised))
    assert bench.plugin.machine.state.size == 3
