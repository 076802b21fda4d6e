"""Elections among replicas whose disks are full, which they say in their heartbeats."""

from pathlib import Path

import pytest

from keelmq.remoting.operation import CommandError
from namesrv.plugins.controller.core.elect import LiveInfo, LiveView, rank
from tests.support.controller_fakes import Bench
from tests.unit.namesrv.plugins.controller.test_damaged_replicas import winner

FULL = {"disk_full": True}


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    await made.group_of(1, 2, 3)
    return made


async def test_between_equal_logs_the_member_with_room_wins(bench: Bench) -> None:
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, election_priority=1, **FULL)
    await bench.heartbeat(3, epoch=1, max_offset=100, confirm_offset=90, election_priority=2)
    bench.lose(1)
    elected, why = await winner(bench)
    assert elected == 3 and why[2] == "its disk is full"
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, election_priority=1)
    assert (await winner(bench))[0] == 2, "it has room again"


async def test_a_longer_log_is_worth_more_than_room(bench: Bench) -> None:
    """It may have messages that were acknowledged with fewer replicas than all, and are not confirmed."""
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, **FULL)
    await bench.heartbeat(3, epoch=1, max_offset=95, confirm_offset=90)
    bench.lose(1)
    assert (await winner(bench))[0] == 2


async def test_a_full_member_wins_if_it_alone_has_all_that_is_confirmed(bench: Bench) -> None:
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, **FULL)
    await bench.heartbeat(3, epoch=1, max_offset=80, confirm_offset=70)
    bench.lose(1)
    assert (await winner(bench))[0] == 2


async def test_confirmed_messages_are_worth_more_than_room_and_a_sound_log(bench: Bench) -> None:
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, damaged_bytes=8, **FULL)
    await bench.heartbeat(3, epoch=1, max_offset=80, confirm_offset=70)
    bench.lose(1)
    assert (await winner(bench))[0] == 2


async def test_a_sound_full_member_wins_over_a_damaged_one(bench: Bench) -> None:
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, **FULL)
    await bench.heartbeat(3, epoch=1, max_offset=100, confirm_offset=90, damaged_bytes=8)
    bench.lose(1)
    assert (await winner(bench))[0] == 2


async def test_a_hand_over_for_room_to_a_full_member_is_refused(bench: Bench) -> None:
    await bench.heartbeat(1, epoch=1, max_offset=100, confirm_offset=90, **FULL)
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, **FULL)
    await bench.heartbeat(3, epoch=1, max_offset=100, confirm_offset=90)
    drained = {"master_broker_id": 1, "master_epoch": 1, "sync_state_set_epoch": 2, "equal_replicas": "1;2;3"}
    with pytest.raises(CommandError, match="broker 2 is not elected: its disk is full"):
        await bench.elect(2, designate=True, needs_room=True, **drained)
    reply = await bench.elect(3, designate=True, needs_room=True, **drained)
    assert reply.header.master_broker_id == 3  # type: ignore[union-attr]


async def test_an_operator_may_designate_a_full_member(bench: Bench) -> None:
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, **FULL)
    assert (await bench.elect(2, designate=True)).header.master_broker_id == 2  # type: ignore[union-attr]


async def test_a_dry_run_says_whose_disk_is_full(bench: Bench) -> None:
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, **FULL)
    _, why = await winner(bench)
    assert why[2] == "electable, but its disk is full" and why[3] == "electable"


def test_with_room_the_order_is_as_it_was() -> None:
    infos = [
        LiveInfo("a", epoch, end, confirm, damaged_bytes=damaged)
        for epoch in (1, 2)
        for end in (50, 60, 70)
        for confirm in (40, 50)
        for damaged in (0, 8)
        if confirm <= end
    ]
    for first in infos:
        for second in infos:
            view = LiveView({1: first, 2: second})
            ranks = {each: rank(each, view) for each in (1, 2)}
            without = {each: (*key[:4], *key[5:]) for each, key in ranks.items()}
            assert (ranks[1] > ranks[2]) == (without[1] > without[2])
