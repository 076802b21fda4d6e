"""S14: a background task that dies is an alarm, and lives again (#7219: it stayed dead upstream)."""

import logging
from pathlib import Path
from typing import Any

import pytest

from broker.admin import metrics
from broker.app.broker import Broker
from broker.clients.service import Clients
from broker.core.sync_state_set import SyncStateSetManager
from tests.unit.broker.app.test_broker_app import config
from tests.unit.broker.ha.test_ha_service import group, until

pytestmark = [pytest.mark.timeout(20), pytest.mark.promise("S14")]


async def test_the_task_of_the_sync_state_set_dies_and_the_set_still_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """broker-ha.md pitfall 8, user pain 23."""
    alive, deaths = SyncStateSetManager.next_proposal, 2

    def dies_twice(*args: Any, **options: Any) -> object:
        nonlocal deaths
        if deaths:
            deaths -= 1
            raise RuntimeError("set changed size during iteration")
        return alive(*args, **options)

    monkeypatch.setattr(SyncStateSetManager, "next_proposal", dies_twice)
    async with group(tmp_path, 2) as (master, slave):
        with caplog.at_level(logging.ERROR):
            await master.lead(1)
            await slave.follow(master, 1)
            await until(lambda: master.in_sync() == [1, 2], "the slave joins")
        assert master.service.task_deaths == {"SyncStateSet": 2}
        assert "background task SyncStateSet failed" in caplog.text and "changed size" in caplog.text


async def test_a_death_is_a_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(self: Clients, now: int) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(Clients, "expire", dies)
    async with Broker(config(tmp_path)) as broker:
        await until(lambda: bool(broker.status.task_deaths))
        families = {family.name: family for family in await metrics.scrape(broker.metric_sources())}
    (sample,) = families["rocketmq_background_task_deaths"].samples
    assert sample.labels["task"] == "expiry of waiting requests" and sample.value >= 1
