"""Requests at a broker's own port beside the data: what it refuses in words, and what it takes as a hint."""

import mmap
from pathlib import Path
from typing import Any

import pytest

from broker.admin.notifications import Notifications
from broker.app.broker import Broker
from broker.controller_mode.replicas_manager import ReplicasManager
from broker.controller_mode.role_change_notifications import (
    HINT_PAUSE_MS,
    RoleChangeNotifications,
    RoleHints,
)
from broker.store.log.commit_log import CommitLog
from broker.store.log.sync_fault import SyncFault
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.operation import Call, Empty, Failed, Ok, Operation
from keelmq.remoting.operations.broker_admin import (
    EXCHANGE_BROKER_HA_INFO,
    SET_COMMITLOG_READ_MODE,
    ExchangeHaInfo,
    ReadAheadRequest,
)
from keelmq.remoting.operations.controller import NOTIFY_BROKER_ROLE_CHANGED, NotifyBrokerRoleChangedRequest
from keelmq.remoting.operations.route import NOTIFY_MIN_BROKER_ID_CHANGE, MinBrokerIdChangeRequest
from keelmq.upstream.wire import reasons, wire_verdicts
from tests.support.store_parts import FakePeer
from tests.unit.broker.app.test_broker_app import config, send

MIN_ID = MinBrokerIdChangeRequest(min_broker_id=2, min_broker_addr="10.0.0.2:10911")


async def test_what_is_not_served_says_why(tmp_path: Path, client: RemotingClient) -> None:
    async with Broker(config(tmp_path)) as broker:
        for name, remark in reasons(wire_verdicts().request).items():
            code = RequestCode[name]
            outcome = await client.call(broker.address, Operation(code, "x", Empty, Empty), Empty())
            assert isinstance(outcome, Failed) and outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert outcome.remark == remark
        for code in (4711, RequestCode.REGISTER_BROKER):
            outcome = await client.call(broker.address, Operation(code, "x", Empty, Empty), Empty())
            assert isinstance(outcome, Failed) and outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert outcome.remark == f" request type {code} not supported"


# -- hints -------------------------------------------------------------------------------------------------


ROLE_UPDATE = NotifyBrokerRoleChangedRequest(master_broker_id=1, master_address="x:1", master_epoch=9)


async def test_hints_of_a_role_change_are_followed_once_a_second_at_most() -> None:
    """905 and 1008 at the broker's own port come from anybody, and are never believed."""
    asked, now = list[int](), [50_000]
    hints = RoleHints(lambda: asked.append(now[0]), clock=lambda: now[0])
    notifications = Notifications("b", hint=hints.hint, ha_info=ExchangeHaInfo)
    nobody: Any = None  # neither the ReplicasManager nor the ControllerClient is told
    role_changes = RoleChangeNotifications(nobody, nobody, hints, broker_name="b", dialled=nobody)
    call = Call(FakePeer())
    await notifications.notify_min_broker_id_change(MIN_ID, call)
    assert len(asked) == 1
    now[0] += HINT_PAUSE_MS - 1
    await notifications.notify_min_broker_id_change(MIN_ID, call)
    assert len(asked) == 1
    now[0] += 1
    await role_changes.hinted(ROLE_UPDATE.model_copy(update={"broker_name": "other"}), call)
    assert len(asked) == 1
    await role_changes.hinted(ROLE_UPDATE.model_copy(update={"broker_name": "b"}), call)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("operation", "header"),
    [(NOTIFY_MIN_BROKER_ID_CHANGE, MIN_ID), (NOTIFY_BROKER_ROLE_CHANGED, ROLE_UPDATE)],
)
async def test_a_hint_makes_the_broker_ask_the_controllers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    client: RemotingClient,
    operation: Operation[Any, Any],
    header: Any,
) -> None:
    settings = config(tmp_path, enable_controller_mode=True, controller_addr="127.0.0.1:1")
    asked = list[object]()
    monkeypatch.setattr(ReplicasManager, "poll_now", lambda self: asked.append(self))
    async with Broker(settings) as broker:
        asked.clear()
        served = Operation(operation.code, operation.name, operation.request, Empty)  # not oneway
        assert isinstance(await client.call(broker.address, served, header), Ok)
        assert len(asked) == 1
        assert broker.controlled is not None and broker.controlled.role.epoch == 0


async def test_without_controllers_a_hint_is_taken_and_changes_nothing(
    tmp_path: Path, client: RemotingClient
) -> None:
    async with Broker(config(tmp_path)) as broker:
        served = Operation(905, "notifyMinBrokerIdChange", MinBrokerIdChangeRequest, Empty)
        assert isinstance(await client.call(broker.address, served, MIN_ID), Ok)
        assert broker.gate.writable


# -- where a master is copied from -------------------------------------------------------------------------


async def test_a_master_says_where_it_is_copied_from(tmp_path: Path, client: RemotingClient) -> None:
    async with Broker(config(tmp_path)) as broker:
        await send(client, broker, b"one")
        broker.store.flush()
        outcome = await client.call(broker.address, EXCHANGE_BROKER_HA_INFO, ExchangeHaInfo())
        assert isinstance(outcome, Ok)
        end = broker.store.commit_log.max_offset
        assert outcome.header == ExchangeHaInfo(master_flush_offset=end, master_address=broker.address)
        moved = ExchangeHaInfo(master_ha_address="10.0.0.66:10912")
        refused = await client.call(broker.address, EXCHANGE_BROKER_HA_INFO, moved)
        assert isinstance(refused, Failed) and refused.code == ResponseCode.NO_PERMISSION
        assert "controllers" in refused.remark


async def test_who_is_no_master_says_nothing(tmp_path: Path, client: RemotingClient) -> None:
    settings = config(tmp_path, enable_controller_mode=True, controller_addr="127.0.0.1:1")
    async with Broker(settings) as broker:
        outcome = await client.call(broker.address, EXCHANGE_BROKER_HA_INFO, ExchangeHaInfo())
        assert isinstance(outcome, Ok) and outcome.header == ExchangeHaInfo()


# -- how the log is read -----------------------------------------------------------------------------------


async def test_pages_ahead_are_read_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: RemotingClient
) -> None:
    advice: list[int] = []
    monkeypatch.setattr(
        "broker.store.log.mapped_file._MADVISE", lambda base, count, kind: advice.append(kind)
    )
    async with Broker(config(tmp_path)) as broker:
        await send(client, broker, b"one")
        log = broker.store.commit_log
        advice.clear()

        outcome = await client.call(
            broker.address, SET_COMMITLOG_READ_MODE, ReadAheadRequest(READ_AHEAD_MODE=1)
        )
        assert isinstance(outcome, Ok) and advice == [mmap.MADV_RANDOM] and not log.reads_ahead
        first = log.max_offset // log.file_bytes
        while log.max_offset // log.file_bytes == first:  # the next file is read in the same way
            await send(client, broker, b"x" * 4_000)
        assert advice.count(mmap.MADV_RANDOM) == 2
        outcome = await client.call(
            broker.address, SET_COMMITLOG_READ_MODE, ReadAheadRequest(READ_AHEAD_MODE=0)
        )
        assert isinstance(outcome, Ok) and advice.count(mmap.MADV_NORMAL) == 2 and log.reads_ahead
        outcome = await client.call(
            broker.address, SET_COMMITLOG_READ_MODE, ReadAheadRequest(READ_AHEAD_MODE=3)
        )
        assert isinstance(outcome, Failed) and outcome.code == ResponseCode.SYSTEM_ERROR
        assert "0 (normal) or 1 (random)" in outcome.remark


def test_the_system_takes_the_advice(tmp_path: Path) -> None:
    log = CommitLog(tmp_path / "log", 65_536, sync_fault=SyncFault(pytest.fail))
    log.load()
    assert log.receive_view(), "the first file is there"

    def is_random() -> bool:
        """The flag rr of the map, as the kernel shows it."""
        maps = Path("/proc/self/smaps").read_text().split(str(tmp_path / "log"))[1]
        return " rr" in next(line for line in maps.splitlines() if line.startswith("VmFlags:"))

    assert not is_random()
    log.read_ahead(False)
    assert is_random()
    log.read_ahead(True)
    assert not is_random()
    log.close()
