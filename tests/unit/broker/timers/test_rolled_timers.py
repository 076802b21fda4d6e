"""Timers that are due after their file of the log is old: they are written again before it is deleted."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.admin.retention_service import RetentionService
from broker.config.store_settings import StoreSettings
from broker.message.delay_levels import TIMER_TOPIC
from broker.message.record import parse_properties
from broker.metadata.timers import FIRST_OFFSET
from broker.timers import service
from tests.unit.broker.timers.test_timers import Scene

DAYS_10 = 10 * 86_400


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path, timerMaxDelaySec=20 * 86_400)


def roll_all(scene: Scene) -> int:
    """Returns the end of the log before."""
    end = scene.broker.store.commit_log.max_offset
    scene.timers.roll_before(end)
    scene.run()
    return end


def test_a_rolled_timer_goes_out_once_and_not_early(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ROLL_MAX", 2)
    for number in range(9):
        scene.send(b"%d" % number, UNIQ_KEY=f"K{number}", TIMER_DELAY_SEC=DAYS_10 + number % 2)
    scene.send(b"soon", TIMER_DELAY_SEC=3)
    scene.run()
    assert scene.timers.held_offset == 0
    end = roll_all(scene)
    assert scene.timers.held_offset >= end and scene.timers.rolled == 10 and len(scene.timers.wheel) == 10
    assert scene.metadata.timers.get(FIRST_OFFSET, 0) == 10
    roll_all(scene)  # of a later file
    rolled = scene.records(TIMER_TOPIC)[-1]
    assert parse_properties(rolled.properties)["TIMER_ROLL_TIMES"] == "2"
    assert parse_properties(rolled.properties)["REAL_TOPIC"] == "TopicA"
    scene.run(10_000)
    assert scene.bodies() == [b"soon"]
    scene.restart()
    scene.run((DAYS_10 - 20) * 1_000)
    assert scene.bodies() == [b"soon"]
    scene.run(30_000)
    assert sorted(scene.bodies()[1:]) == [b"%d" % number for number in range(9)]
    scene.restart()
    assert len(scene.bodies()) == 10
    assert sum(scene.timers.delays["TopicA"].counts) == 10, "each counts once"


async def test_a_rolled_timer_can_be_recalled_and_a_recall_is_rolled(scene: Scene) -> None:
    handles = [
        scene.send(b"%d" % number, UNIQ_KEY=f"K{number}", TIMER_DELAY_SEC=DAYS_10).ext_fields["recallHandle"]
        for number in range(3)
    ]
    assert (await scene.recall(handles[0])).code == 0
    scene.run()
    roll_all(scene)
    assert (await scene.recall(handles[1])).code == 0
    scene.run()
    roll_all(scene)
    scene.restart()
    scene.run((DAYS_10 + 3) * 1_000)
    assert scene.bodies() == [b"2"]


async def test_retention_deletes_no_timer(scene: Scene) -> None:
    """The file is old, the timer is not due: the file goes after the timer was written again."""
    store, broker = scene.broker.store, scene.broker

    async def nothing(ends: Mapping[tuple[str, int], int]) -> None:
        pass

    retention = RetentionService(
        store, broker.gate, StoreSettings.model_validate({"deleteWhen": ";".join(map(str, range(24)))}),
        held_offset=lambda: scene.timers.held_offset, on_emptied=nothing,
        roll_timers=lambda offset: scene.timers.roll_before(offset), usage=lambda _: 0.1,
    )  # fmt: skip
    scene.send(b"later", TIMER_DELAY_SEC=DAYS_10)
    scene.run()
    while store.commit_log.file_count < 3:
        broker.send(b"x" * 4_000)
        broker.tick()
    scene.run()
    first = sorted(store.commit_log.directory.glob("0*"))[0]
    os.utime(first, (1, 1))
    await retention.clean()
    assert first.exists(), "its timer is not written again yet"
    scene.run()
    await retention.clean()
    assert not first.exists() and store.commit_log.min_offset > 0
    scene.run()
    scene.restart()
    scene.run((DAYS_10 + 3) * 1_000)
    assert [each for each in scene.bodies() if each == b"later"] == [b"later"]


def test_only_a_master_rolls(scene: Scene) -> None:
    scene.send(TIMER_DELAY_SEC=DAYS_10)
    scene.run()
    scene.broker.store.become_slave()
    scene.timers.round()
    end = roll_all(scene)
    assert scene.broker.store.commit_log.max_offset == end and scene.timers.held_offset == sys.maxsize


def test_lost_progress_is_logged(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.send(TIMER_DELAY_SEC=3)
    scene.run(5_000)
    scene.restart()
    assert "has no progress" not in caplog.text and len(scene.bodies()) == 1
    scene.metadata.timers.table.rows.clear()
    scene.restart()
    assert "has no progress; if the file is lost" in caplog.text and len(scene.bodies()) == 2
