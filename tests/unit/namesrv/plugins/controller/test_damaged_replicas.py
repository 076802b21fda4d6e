"""Elections among replicas whose logs are damaged, which they say in their heartbeats."""

from pathlib import Path

import pytest

from keelmq.remoting.operation import CommandError
from keelmq.remoting.operations import controller as wire
from namesrv.plugins.controller.core.elect import LiveInfo, LiveView, rank
from tests.support.controller_fakes import Bench


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    await made.group_of(1, 2, 3)
    return made


async def winner(bench: Bench) -> tuple[int | None, dict[int, str]]:
    reply = await bench.elect(-1, dry_run=True)
    assert isinstance(reply.body, wire.ElectMasterResponseBody) and reply.body.explanation is not None
    found = reply.body.explanation
    return found.new_master_broker_id, {each.broker_id: each.why for each in found.candidates}


async def test_a_sound_member_wins_over_a_damaged_one_with_a_longer_log(bench: Bench) -> None:
    await bench.heartbeat(1, epoch=1, max_offset=100, confirm_offset=90)
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, damaged_bytes=8)
    await bench.heartbeat(3, epoch=1, max_offset=95, confirm_offset=90)
    bench.lose(1)
    elected, why = await winner(bench)
    assert elected == 3
    assert why[2] == "8 confirmed bytes of its log are damaged"
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90)  # healed
    assert (await winner(bench))[0] == 2


async def test_a_damaged_member_wins_if_no_sound_one_is_alive(bench: Bench) -> None:
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, damaged_bytes=8)
    bench.lose(1)
    bench.lose(3) if 3 in bench.peers else None
    elected, why = await winner(bench)
    assert elected == 2 and why[2].startswith("wins")


async def test_confirmed_messages_are_worth_more_than_a_sound_log(bench: Bench) -> None:
    """A member that has restarted may lack some: electing it would lose them at all replicas."""
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, damaged_bytes=8)
    await bench.heartbeat(3, epoch=1, max_offset=80, confirm_offset=70)
    bench.lose(1)
    assert (await winner(bench))[0] == 2
    await bench.heartbeat(3, epoch=0, max_offset=100, confirm_offset=90)
    assert (await winner(bench))[0] == 2


async def test_a_damaged_replica_is_not_designated(bench: Bench) -> None:
    await bench.heartbeat(1, epoch=1, max_offset=100, confirm_offset=90)
    await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, damaged_bytes=8)
    await bench.heartbeat(3, epoch=1, max_offset=100, confirm_offset=90)
    with pytest.raises(
        CommandError, match="broker 2 is not elected: 8 confirmed bytes of its log are damaged"
    ):
        await bench.elect(2, designate=True)
    bench.lose(1)
    with pytest.raises(CommandError, match="are damaged"):
        await bench.elect(2, designate=True)
    bench.lose(3)
    assert (await bench.elect(2, designate=True)).header.master_broker_id == 2  # type: ignore[union-attr]


async def test_a_master_that_has_restarted_is_not_succeeded_by_a_damaged_member(bench: Bench) -> None:
    for damaged in (None, 8):
        await bench.heartbeat(2, epoch=1, max_offset=100, confirm_offset=90, damaged_bytes=damaged)
        view = LiveView({2: LiveInfo("a", 1, 100, 90, damaged_bytes=damaged or 0)})
        assert rank(2, view)[0] is (damaged is None)


def test_without_damage_the_order_is_as_it_was() -> None:
    infos = [
        LiveInfo("a", epoch, end, confirm)
        for epoch in (1, 2)
        for end in (50, 60, 70)
        for confirm in (40, 50)
        if confirm <= end
    ]
    for first in infos:
        for second in infos:
            view = LiveView({1: first, 2: second})
            assert (rank(1, view) > rank(2, view)) == (rank(1, view)[1:] > rank(2, view)[1:])
