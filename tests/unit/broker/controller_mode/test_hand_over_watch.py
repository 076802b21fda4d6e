"""HandOverWatch: when a master that is damaged, or whose disk is full, hands over."""

import logging
from itertools import pairwise
from typing import Any, cast

import pytest

from broker.controller_mode.hand_over import HandOverError
from broker.controller_mode.hand_over_watch import HEAL_MS, RETRY_MS, HandOverWatch

GRACE_MS = HEAL_MS
DAMAGED = "the log of this master is damaged at 10..20 (a test)"


class Scene:
    def __init__(self, *, for_room: bool = False) -> None:
        self.reason = ""
        self.now_ms, self.given, self.quiet, self.for_room = 0, 0, list[bool](), list[bool]()
        self.is_master = self.has_target = True
        self.error = ""
        self.watch = HandOverWatch(
            lambda: self.reason,
            cast(Any, self),
            grace_ms=GRACE_MS,
            for_room=for_room,
            clock=lambda: self.now_ms,
        )

    async def give(self, *, for_room: bool, quiet: bool) -> None:
        self.given += 1
        self.quiet.append(quiet)
        self.for_room.append(for_room)
        if self.error:
            raise HandOverError(self.error)

    async def after(self, ms: int) -> int:
        self.now_ms += ms
        await self.watch.step()
        return self.given


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_reason_that_ends_in_time_is_none(scene: Scene) -> None:
    scene.reason = DAMAGED
    assert await scene.after(0) == await scene.after(GRACE_MS - 1) == 0
    scene.reason = ""
    assert await scene.after(GRACE_MS) == 0
    scene.reason = DAMAGED
    assert await scene.after(0) == 0, "it has its own time"


@pytest.mark.parametrize("for_room", [False, True])
async def test_a_full_disk_needs_a_member_with_room(for_room: bool) -> None:
    scene = Scene(for_room=for_room)
    scene.reason = DAMAGED
    await scene.after(0)
    await scene.after(GRACE_MS)
    assert scene.for_room == [for_room]


async def test_a_master_hands_over(scene: Scene) -> None:
    scene.reason = DAMAGED
    await scene.after(0)
    assert await scene.after(GRACE_MS) == 1
    scene.is_master = False
    assert await scene.after(RETRY_MS) == 1


async def test_it_tries_again_and_says_once_why_it_stays(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.reason = DAMAGED
    scene.error = "the controllers refuse"
    await scene.after(0)
    assert await scene.after(GRACE_MS) == 1
    assert f"{DAMAGED}, and this broker stays master: the controllers refuse" in caplog.text
    assert await scene.after(RETRY_MS - 1) == 1
    assert await scene.after(1) == 2
    assert scene.quiet == [False, True] and caplog.text.count("stays master") == 1
    scene.error = "not drained"
    await scene.after(RETRY_MS)
    assert caplog.text.count("stays master") == 2, "another cause"


async def test_without_a_target_it_says_so_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.reason = DAMAGED
    scene.has_target = False
    await scene.after(0)
    caplog.set_level(logging.ERROR)
    for _ in range(3):
        assert await scene.after(GRACE_MS) == 0
    assert caplog.text.count("no other member of the SyncStateSet can take over") == 1
    scene.has_target = True
    assert await scene.after(1) == 1, "nothing was tried, so nothing is waited for"


async def test_brokers_whose_disks_are_all_full_do_not_hand_over_in_turns(scene: Scene) -> None:
    """A controller of an earlier release knows no full disks, and refuses no target."""
    scene.reason = "the disk is full"
    attempts = []
    for _ in range(5 * RETRY_MS // GRACE_MS):
        before = scene.given
        if await scene.after(GRACE_MS) > before:
            attempts.append(scene.now_ms)
            scene.is_master = False
            await scene.after(1)
            scene.is_master = True  # the new master has handed it back at once
    assert all(later - earlier >= RETRY_MS for earlier, later in pairwise(attempts))
    assert 4 <= len(attempts) <= 5


async def test_sends_may_wait_for_a_successor_until_the_first_attempt_has_failed(scene: Scene) -> None:
    scene.error = "refused: its disk is full"
    assert not scene.watch.is_due
    scene.reason = "the disk is full"
    assert scene.watch.is_due
    scene.has_target = False
    assert not scene.watch.is_due
    scene.has_target = True
    await scene.after(0)
    await scene.after(GRACE_MS)
    assert not scene.watch.is_due
    await scene.after(RETRY_MS - GRACE_MS)
    assert scene.watch.is_due
    scene.is_master = False
    assert not scene.watch.is_due
