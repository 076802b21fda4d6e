"""1009 and 1010: settings of all controllers at once, over their files. Pitfalls 21 and 45."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.core.lease import GRACE_MS
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations import controller as wire
from namesrv.plugins.controller.config import AT_RUN_TIME, LEASE_GRACE_MS, ControllerConfig
from namesrv.plugins.controller.core.events import UpdateConfig, decode_event
from namesrv.plugins.controller.core.state import State
from namesrv.plugins.controller.election import reconcile_loop
from namesrv.plugins.controller.settings import BLACK_LIST, LiveConfig
from tests.support.controller_fakes import Bench, config, refused, turns


async def shown(bench: Bench) -> dict[str, str]:
    reply = await bench.ask(wire.GET_CONTROLLER_CONFIG)
    assert isinstance(reply.body, bytes)
    return dict(line.split("=", 1) for line in reply.body.decode().splitlines())


async def test_a_change_is_replicated_and_in_force_at_once(bench: Bench) -> None:
    await bench.group_of(1)
    await bench.apply(2)
    await bench.heartbeat(2)
    bench.lose(1)
    assert (await refused(bench.elect(2, designate=True))).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    await bench.configure("enableElectUncleanMaster=true")
    event = decode_event(bench.replicator.events[-1])
    assert isinstance(event, UpdateConfig)
    assert event.changes == {"enableElectUncleanMaster": "true"}
    assert (await shown(bench))["enableElectUncleanMaster"] == "true"
    assert bench.plugin.config.enable_elect_unclean_master
    await bench.elect(2, designate=True)
    assert bench.broker_set.master_broker_id == 2
    assert bench.plugin.machine.state.elections[-1].unclean


async def test_it_survives_the_file_and_the_restart_45(bench: Bench, tmp_path: Path) -> None:
    await bench.configure("scanInactiveMasterInterval=700\nnotifyBrokerRoleChanged=false")
    restarted = Bench(tmp_path, scanInactiveMasterInterval=9_000)
    restarted.plugin.machine.restore(bench.plugin.machine.snapshot())
    assert restarted.plugin.config.scan_inactive_master_interval == 700
    assert not restarted.plugin.config.notify_broker_role_changed
    assert restarted.plugin.health()["settings"] == {
        "notifyBrokerRoleChanged": "false",
        "scanInactiveMasterInterval": "700",
    }
    await restarted.configure("scanInactiveMasterInterval=")
    assert restarted.plugin.config.scan_inactive_master_interval == 9_000, "the file's again"


@pytest.mark.parametrize("left", [{"controllerNewKnob": "5"}, {"scanInactiveMasterInterval": "-1"}])
async def test_what_a_newer_release_has_set_stands_in_no_ones_way(bench: Bench, left: dict[str, str]) -> None:
    """After a downgrade an unclean election could not be allowed, and nothing removed the key."""
    bench.plugin.machine.state = replace(bench.plugin.machine.state, settings=left, settings_version=1)
    await bench.configure("enableElectUncleanMaster=true")
    assert bench.plugin.config.enable_elect_unclean_master
    (key,) = left
    await bench.configure(f"{key}=")
    assert bench.plugin.machine.state.settings == {"enableElectUncleanMaster": "true"}


@pytest.mark.parametrize("key", sorted(BLACK_LIST))
async def test_the_black_list_comes_first_21(bench: Bench, key: str) -> None:
    error = await refused(bench.configure(f"{key}=/tmp/x\nnoSuchKey=1"))
    assert (error.code, error.remark) == (
        ResponseCode.NO_PERMISSION, "Can not update config in black list.",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("noSuchKey=1", "unknown key 'noSuchKey'"),
        ("enableElectUncleanMastr=true", "did you mean 'enableElectUncleanMaster'"),
        ("noSuchKey=", "unknown key 'noSuchKey'"),
        ("controllerDLegerSelfId=n1", "read at start only"),
        ("controllerDLegerSelfId=", "read at start only"),
        ("scanInactiveMasterInterval=0", "greater than 0"),
        ("scanInactiveMasterInterval=soon", "scanInactiveMasterInterval = 'soon'"),
        ("enableElectUncleanMaster=true\nscanInactiveMasterInterval=-1", "greater than 0"),
        ("no equals sign", "string2Properties error"),
    ],
)
async def test_nothing_is_proposed_that_a_file_could_not_say(bench: Bench, text: str, says: str) -> None:
    error = await refused(bench.configure(text))
    assert error.code == ResponseCode.SYSTEM_ERROR
    assert says in error.remark
    assert bench.replicator.events == []


async def test_bytes_that_are_no_text(bench: Bench) -> None:
    error = await refused(bench.ask(wire.UPDATE_CONTROLLER_CONFIG, b"\xff\xfe=1"))
    assert error.remark.startswith("string2Properties error")


async def test_the_same_again_needs_no_event(bench: Bench) -> None:
    for text in ("", "# a comment", "enableElectUncleanMaster="):
        await bench.configure(text)
    await bench.configure("enableElectUncleanMaster=true")
    await bench.configure("enableElectUncleanMaster=true")
    assert len(bench.replicator.events) == 1


async def test_two_changes_at_once_are_both_made(bench: Bench) -> None:
    """Fenced by the version of the settings; the second is decided again on what the first one made."""
    late = UpdateConfig(ts=1, changes={"controllerGraceMs": "1"}, expected_settings_version=0)
    from namesrv.plugins.controller.core.apply import apply

    await bench.configure("controllerGraceMs=2")
    assert apply(bench.plugin.machine.state, late).refused is not None
    await bench.configure("controllerGraceMs=3")
    assert bench.plugin.config.controller_grace_ms == 3
    assert bench.plugin.machine.state.settings_version == 2


async def test_1010_is_answered_by_every_controller(bench: Bench) -> None:
    await bench.configure("controllerGraceMs=7")
    bench.replicator.active = False
    assert (await shown(bench))["controllerGraceMs"] == "7"


async def test_a_follower_without_a_leader_says_so(bench: Bench) -> None:
    bench.replicator.active = False
    for forwarded in (False, True):
        bench.replicator.no_leader = True
        error = await refused(bench.configure("controllerGraceMs=7", forwarded=forwarded))
        assert error.code == ResponseCode.CONTROLLER_NOT_LEADER


def test_a_setting_that_does_not_go_with_this_file_costs_no_other() -> None:
    """Written by a newer program, or by a controller with another file."""
    state = State(
        settings={"controllerGraceMs": "5", "fromTheFuture": "1", "scanInactiveMasterInterval": "-1"}
    )
    live = LiveConfig(config(), lambda: state)
    assert live.current.controller_grace_ms == 5
    assert live.current.scan_inactive_master_interval == 5_000
    assert live.fault is not None and "fromTheFuture" in live.fault and "greater than 0" in live.fault


def test_a_grace_on_which_no_lease_can_rely_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """At the start by the plugin, and whenever 1009 has changed it; a master's lease assumes the default."""
    assert LEASE_GRACE_MS == GRACE_MS == config().controller_grace_ms
    assert not [line for line in config().warnings() if "controllerGraceMs" in line]
    (line,) = [each for each in config(controllerGraceMs="2999").warnings() if "controllerGraceMs" in each]
    assert "controllerGraceMs=2999 is below 3000" in line and "isolationLeaseEnable" in line
    live = LiveConfig(config(), lambda: State(settings={"controllerGraceMs": "5"}))
    assert live.current.controller_grace_ms == 5
    assert [each for each in caplog.messages if "controllerGraceMs=5 is below" in each]


def test_what_changes_at_run_time_is_a_key() -> None:
    known = {field.alias for field in ControllerConfig.model_fields.values()}
    assert known >= AT_RUN_TIME
    assert not AT_RUN_TIME & BLACK_LIST


async def test_the_interval_of_the_scan_changes_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is in the middle of a wait of 5 s."""
    waits = list[int]()

    async def wait(event: asyncio.Event, timeout_ms: int) -> bool:
        waits.append(timeout_ms)
        await event.wait()
        event.clear()
        return True

    monkeypatch.setattr(reconcile_loop, "wait_for_event", wait)
    await bench.group_of(1)
    async with bench.reconciling():
        await turns()
        await bench.configure("scanInactiveMasterInterval=200")
        await turns()
    assert waits[0] == 5_000 and waits[-1] == 200
