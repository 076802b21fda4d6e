"""DamageWatch: when a master with damage hands over."""

import logging

import pytest

from broker.controller_mode.damage_watch import HEAL_MS, RETRY_MS, DamageWatch
from broker.controller_mode.hand_over import HandOverError
from broker.store.damage import DamagedRanges


class Scene:
    def __init__(self, root) -> None:  # type: ignore[no-untyped-def]
        self.damage, self.confirm_offset = DamagedRanges(root), 1_000
        self.now_ms, self.given = 0, 0
        self.is_master = self.has_target = True
        self.error = ""
        self.watch = DamageWatch(
            self,  # type: ignore[arg-type]
            is_master=lambda: self.is_master,
            has_target=lambda: self.has_target,
            give=self.give,
            clock=lambda: self.now_ms,
        )

    async def give(self) -> None:
        self.given += 1
        if self.error:
            raise HandOverError(self.error)

    async def after(self, ms: int) -> int:
        self.now_ms += ms
        await self.watch.step()
        return self.given


@pytest.fixture
def scene(tmp_path) -> Scene:  # type: ignore[no-untyped-def]
    return Scene(tmp_path)


async def test_damage_that_is_healed_in_time_is_no_reason(scene: Scene) -> None:
    scene.damage.add(10, 20, "a test")
    assert await scene.after(0) == await scene.after(HEAL_MS - 1) == 0
    scene.damage.healed(10, 20)
    assert await scene.after(HEAL_MS) == 0
    scene.damage.add(10, 20, "again")
    assert await scene.after(0) == 0, "it has its own time"


async def test_a_master_hands_over(scene: Scene) -> None:
    scene.damage.add(10, 20, "a test")
    await scene.after(0)
    assert await scene.after(HEAL_MS) == 1
    scene.is_master = False
    assert await scene.after(RETRY_MS) == 1


async def test_it_tries_again_and_says_why_it_stays(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.damage.add(10, 20, "a test")
    scene.error = "the controllers refuse"
    await scene.after(0)
    assert await scene.after(HEAL_MS) == 1
    assert "damaged at 10..20 (a test), and it stays master: the controllers refuse" in caplog.text
    assert await scene.after(RETRY_MS - 1) == 1
    assert await scene.after(1) == 2


async def test_without_a_target_it_says_so_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.damage.add(10, 20, "a test")
    scene.has_target = False
    await scene.after(0)
    caplog.set_level(logging.ERROR)
    for _ in range(3):
        assert await scene.after(HEAL_MS) == 0
    assert caplog.text.count("no other member of the SyncStateSet can take over") == 1


async def test_only_damage_of_the_confirmed_log_counts(scene: Scene) -> None:
    scene.damage.add(1_000, 1_010, "a test")
    await scene.after(0)
    assert await scene.after(HEAL_MS) == 0
