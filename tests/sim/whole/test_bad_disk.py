"""The bad disk of the whole groups, and what the simulator says without a protection against it."""

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from broker.controller_mode import service
from broker.ha.service import HaService
from broker.healing.service import Healer
from broker.message.record import parse
from broker.store import log_check
from broker.store.damage import DamagedRanges
from broker.store.log.checkpoint import read_checkpoint
from cli.lab.chaos import damage
from cli.lab.chaos.damage import Ledger, Wound
from keelmq.remoting.operations.route import BrokerHeartbeatRequest
from namesrv.plugins.controller.core import elect
from tests.sim.checkers import Violation
from tests.sim.whole.bad_disk import CHECKPOINT, EPOCHS, EPOCHS_AHEAD, Healed, quick_scrub
from tests.sim.whole.group import Conditions, WholeGroup, play, seconds
from tests.sim.whole.judge import Judge
from tests.sim.whole.test_whole import Bytes
from tests.support.slices import first

QUIET = Conditions()
CHECKPOINTED_S = 12.0
"""A checkpoint is durable by then."""
POWER = Conditions(power=True, settings={"flushDiskType": "SYNC_FLUSH"})


async def damage_a_slave(world: WholeGroup, kind: str) -> None:
    """Everything runs; the log of a slave is damaged while it runs."""
    world.start()
    world.start_clients()
    await world.whole()
    await seconds(1.5)
    assert world.master is not None
    slave = world.others(world.master.name)[0]
    world.bad_disk.damage_log(slave, kind, world.bad_disk.sound_end(slave, of_all=True))
    assert world.bad_disk.unhealed()


async def heals(world: WholeGroup) -> None:
    await damage_a_slave(world, "zero")
    await world.conclude()


async def heals_a_body(world: WholeGroup) -> None:
    """Only the checksum of the body says that a bit of it is wrong."""
    with mock.patch.object(damage, "COVERED", ()):
        await damage_a_slave(world, "flip")
    await world.conclude()


async def keeps_its_end(world: WholeGroup) -> None:
    """A replica that was killed has lost the end of its log, behind its checkpoint, and is the only one that
    runs: it is no master."""
    world.start()
    world.start_clients()
    await world.whole()
    await seconds(1.0)
    assert world.master is not None
    master = world.master.name
    slave, other = world.others(master)
    end = world.bad_disk.sound_end(slave, of_all=False)
    for name in (master, other, slave):
        world.kill(name)
        await seconds(0.001)
    world.bad_disk.damage_log(slave, "truncate", end)
    await seconds(1.0)
    world.revive(slave)
    await seconds(3.0)
    if world.brokers[slave].is_master:
        raise Violation(f"{slave} has lost messages, and is master")
    await world.conclude()


async def is_elected_while_dead(world: WholeGroup) -> None:
    """The machine of a replica loses its power, and the controllers elect this replica before they miss it.
    It comes back without the end of its log, and refuses. Another member of the SyncStateSet of before is
    elected, without an operator."""
    world.start()
    world.start_clients()
    await world.whole()
    assert world.master is not None
    master = world.master.name
    slave, other = world.others(master)
    await seconds(CHECKPOINTED_S)
    world.kill(slave, power=True)
    durable = read_checkpoint(world.disks[slave].root / CHECKPOINT).confirm_offset
    world.bad_disk.damage_log(slave, "truncate", durable)
    assert world.bad_disk.unhealed()
    world.kill(other)
    world.kill(master)
    await world.until(lambda: world.members == [slave], 1.0, "it is not elected")
    await seconds(0.1)
    world.revive(slave)
    await world.until(lambda: len(world.members) == len(world.disks), 3.0, "its term is not refused")
    world.revive(other)
    await world.until(lambda: world.master is not None and world.master.name == other, 5.0, "no master")
    await world.conclude()


async def is_started_again_while_it_stops(world: WholeGroup) -> None:
    """It is killed, and is back, before the bad disk has stopped it: files of a running broker are not
    truncated, which would end its process."""
    world.start()
    world.start_clients()
    await world.whole()
    assert world.master is not None
    slave = world.others(world.master.name)[0]
    disk, stops = world.bad_disk, mock.Mock(**{"random.return_value": 0.9, "uniform.return_value": 1.0})
    with (
        mock.patch.object(disk, "_dice", stops),
        mock.patch.object(disk, "_until", math.inf),
        mock.patch.object(disk, "damage_beside") as damage_beside,
    ):
        strike = world.loop.create_task(disk.strike_stopped(slave))
        await asyncio.sleep(0)
        world.kill(slave)
        world.revive(slave)
        await strike
    assert world.brokers[slave].process.alive and not damage_beside.called
    await world.conclude()


async def loses_its_epochs(world: WholeGroup) -> None:
    world.start()
    world.start_clients()
    await world.whole()
    await seconds(1.0)
    assert world.master is not None
    slave = world.others(world.master.name)[0]
    world.kill(slave)
    world.bad_disk.damage_beside(slave, EPOCHS, "lose")
    world.revive(slave)
    await world.conclude()


async def loses_its_epochs_ahead(world: WholeGroup) -> None:
    """Of the first master, whose epochs are in the write-ahead file only."""
    world.start()
    world.start_clients()
    await world.until(lambda: world.master is not None and world.judge.acked != [], 5.0)
    assert world.master is not None
    name = world.master.name
    world.kill(name)
    assert not (world.disks[name].root / EPOCHS).exists()
    world.bad_disk.damage_beside(name, EPOCHS_AHEAD, "lose")
    world.revive(name)
    await world.conclude()


def no_healing() -> AbstractContextManager[object]:
    return mock.patch.object(Healer, "due", lambda healer: [])


def no_checksums() -> AbstractContextManager[object]:
    def sizes_only(view: memoryview, pos: int, end: int, offset: int) -> int:
        begin = pos
        while pos < end and (parsed := parse(view, pos, end, offset=offset + pos - begin)) is not None:
            pos += parsed[0]
        return pos

    return mock.patch.object(log_check, "good_end", sizes_only)


def no_lost_end() -> AbstractContextManager[object]:
    return mock.patch.object(DamagedRanges, "end_must_be_at", lambda damage, offset: None)


def no_refusal() -> AbstractContextManager[object]:
    return mock.patch.object(elect, "refused_term", lambda broker_set, view: None)


def no_unfit_heartbeats() -> AbstractContextManager[object]:
    """As before: silence."""

    def heartbeat(**fields: Any) -> BrokerHeartbeatRequest | None:
        return None if fields["unfit_broker_id"] is not None else BrokerHeartbeatRequest(**fields)

    return mock.patch.object(service, "BrokerHeartbeatRequest", heartbeat)


def no_epochs() -> AbstractContextManager[object]:
    async def nothing(ha: HaService, *arguments: object) -> None: ...

    return mock.patch.object(HaService, "_recover_epochs", nothing)


@pytest.mark.parametrize(
    "story",
    [
        heals,
        heals_a_body,
        loses_its_epochs,
        loses_its_epochs_ahead,
        keeps_its_end,
        is_elected_while_dead,
        is_started_again_while_it_stops,
    ],
)
def test_damage_of_a_minority_is_healed(story: Callable[[WholeGroup], object]) -> None:
    with quick_scrub():
        play(1, story, POWER if story is is_elected_while_dead else QUIET)


@pytest.mark.parametrize(
    ("story", "off", "what"),
    first(
        2,
        [
            (heals, no_healing, "is not healed"),
            (heals_a_body, no_checksums, "is not healed"),
            (loses_its_epochs, no_epochs, "SyncStateSet"),
            (keeps_its_end, no_lost_end, "is master"),
            (is_elected_while_dead, no_refusal, "its term is not refused"),
            (is_elected_while_dead, no_unfit_heartbeats, "its term is not refused"),
            (is_elected_while_dead, no_lost_end, "confirm|lacks|not refused"),
        ],
    ),
)
def test_a_protection_that_is_off_is_found(
    story: Callable[[WholeGroup], object], off: Callable[[], AbstractContextManager[object]], what: str
) -> None:
    with off(), quick_scrub(), pytest.raises(Violation, match=what):
        play(1, story, POWER if story is is_elected_while_dead else QUIET)


def test_a_body_that_nobody_sent_is_a_violation() -> None:
    judge = Judge(sent={b"one"})
    judge.consumed("T", 0, 5, b"one")
    with pytest.raises(Violation, match="nobody sent it"):
        judge.consumed("T", 0, 6, b"onf")


def test_judges_read_what_was_there_before_all_damage(tmp_path: Path) -> None:
    """Damage over damage, and no damage elsewhere."""
    path = tmp_path / "00000000000000000000"
    path.write_bytes(b"abcXefgh")
    ledger = Ledger()
    ledger.add(Wound("b1", path, 3, b"d", "flip"))
    path.write_bytes(b"ab\0\0\0\0gh")
    ledger.add(Wound("b1", path, 2, b"cXef", "zero"))
    assert ledger.wounds[-1].before == b"cdef"
    view = Healed(Bytes(path.read_bytes()), ledger.open_of("b1")).view(1, 5)
    assert bytes(view) == b"bcdef"
    path.write_bytes(b"abcdefgh")
    assert not ledger.open_of("b1")
