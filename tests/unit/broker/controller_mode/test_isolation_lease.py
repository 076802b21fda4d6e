"""The isolation lease of one broker: when a changed timeout counts, and what an operator reads."""

import asyncio
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from broker.controller_mode.isolation_lease import IsolationLease
from broker.core.report_lease import HEARD_MS, LEASE_MAX_MS
from tests.unit.broker.ha.test_ha_service import until

HEARTBEAT_MS = 500


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    now_ms = [10_000]
    monkeypatch.setattr("broker.controller_mode.isolation_lease.now_ms", lambda: now_ms[0])
    monkeypatch.setattr("broker.controller_mode.isolation_lease.LOOK_MS", 1)
    yield now_ms


def lease_of(timeout_ms: int, **heard_ms: int) -> IsolationLease:
    """Of a master whose SyncStateSet has broker 2, too."""
    links = {
        int(name[1:]): SimpleNamespace(heard_ms=at_ms, pulls_metadata=name[0] == "b")
        for name, at_ms in heard_ms.items()
    }
    ha: Any = SimpleNamespace(transfer_targets={2}, links=links)
    return IsolationLease(ha, timeout_ms=timeout_ms, heartbeat_interval_ms=HEARTBEAT_MS)


def end_of(lease: IsolationLease) -> int:
    return next(at for at in range(9_000, 30_000) if lease.is_over(at))


async def look(lease: IsolationLease, *isolated: bool) -> None:
    """Lets it look as often as there are answers, and once more."""
    answers = [*isolated, *isolated[-1:]] or [False]
    asked: list[bool] = []

    def is_isolated() -> bool:
        asked.append(answers[min(len(asked), len(answers) - 1)])
        return asked[-1]

    task = asyncio.create_task(lease.watch(is_isolated))
    await until(lambda: len(asked) > len(answers))
    task.cancel()
    await asyncio.wait([task])


async def test_a_longer_timeout_counts_when_the_shorter_one_has_passed(clock: list[int]) -> None:
    """Until then a controller may go by a heartbeat that was sent before the change."""
    lease = lease_of(1_000)
    clock[0] = 10_100
    lease.configure(timeout_ms=3_000, heartbeat_interval_ms=HEARTBEAT_MS)
    lease.heartbeat_answered("c", 10_200, 10_200)
    lease.confirmed("c", 10_250)
    assert end_of(lease) == 11_100
    clock[0] = 11_099
    await look(lease)
    assert end_of(lease) == 11_100
    clock[0] = 11_100
    await look(lease)
    assert end_of(lease) == 10_200 + 2_700
    lease.configure(timeout_ms=2_000, heartbeat_interval_ms=HEARTBEAT_MS)
    assert end_of(lease) == 10_200 + 1_800, "which is shorter than the one in force"


async def test_a_shorter_timeout_counts_at_once_and_ends_a_longer_one(clock: list[int]) -> None:
    lease = lease_of(1_000)
    lease.configure(timeout_ms=3_000, heartbeat_interval_ms=HEARTBEAT_MS)
    lease.configure(timeout_ms=500, heartbeat_interval_ms=HEARTBEAT_MS)
    clock[0] = 12_000
    await look(lease)
    lease.heartbeat_answered("c", 12_000, 12_000)
    lease.confirmed("c", 12_000)
    assert end_of(lease) == 12_450


def test_a_report_counts_by_the_settings_in_force(clock: list[int]) -> None:
    """It does not depend on haSendHeartbeatInterval."""
    assert end_of(lease_of(3_000, b2=10_000)) == 10_000 + LEASE_MAX_MS
    assert end_of(lease_of(10_000, r2=10_000)) == 10_000 + 9_000 - HEARTBEAT_MS - HEARD_MS
    lease = lease_of(3_000, b2=10_000)
    lease.configure(timeout_ms=3_000, heartbeat_interval_ms=1_500)
    assert end_of(lease) == 10_000 + 2_700 - 1_500 - HEARD_MS
    lease.configure(timeout_ms=1_500, heartbeat_interval_ms=HEARTBEAT_MS)
    assert end_of(lease) == 10_000 + 1_350 - HEARTBEAT_MS - HEARD_MS
    lease.configure(timeout_ms=1_000, heartbeat_interval_ms=HEARTBEAT_MS)
    assert end_of(lease) == 10_000, "its reports are not used"


async def test_with_a_longer_timeout_a_report_counts_longer_later(clock: list[int]) -> None:
    """As long as a controller may go by a heartbeat with the old one."""
    lease = lease_of(1_500, b2=12_000)
    lease.configure(timeout_ms=3_000, heartbeat_interval_ms=HEARTBEAT_MS)
    assert end_of(lease) == 12_000 + 1_350 - HEARTBEAT_MS - HEARD_MS
    clock[0] = 11_500
    await look(lease)
    assert end_of(lease) == 12_000 + LEASE_MAX_MS


async def test_isolation_and_its_end_are_logged_once(
    clock: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    await look(lease_of(1_000), False, False)
    assert not caplog.records
    await look(lease_of(1_000), True, True, True, False, False)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "every in-sync replica ([2])" in caplog.text and "no longer isolated" in caplog.text
