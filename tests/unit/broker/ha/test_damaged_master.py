"""A master whose log is damaged on its disk: a replica gets what is in front of the damage, and waits there
until it is healed. A replica whose newest records are damaged keeps them, and goes on behind them."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.ha import catch_up
from broker.ha.catch_up import CheckBatch
from broker.ha.core import master_link
from broker.message.record import parse
from tests.support.reach_in import read_from
from tests.unit.broker.ha.test_ha_catch_up import SETTINGS
from tests.unit.broker.ha.test_ha_service import FILE_BYTES, Broker, Controller, group, same, until

BY_LOOP, BY_THREAD = replace(SETTINGS, catch_up_threads=0), SETTINGS


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in production, with all sizes divided by 64."""
    for name in ("FAR_BYTES", "NEAR_BYTES", "SENDFILE_BYTES", "SENDFILE_BYTES_MIN"):
        monkeypatch.setattr(master_link, name, getattr(master_link, name) // 64)
    monkeypatch.setattr(catch_up, "CHECK_AHEAD_BYTES", catch_up.CHECK_AHEAD_BYTES // 512)


def starts(broker: Broker) -> list[tuple[int, int]]:
    """Offset and size of each record."""
    found, log, offset = list[tuple[int, int]](), broker.store.commit_log, 0
    while view := log.view(offset, FILE_BYTES):
        pos = 0
        while pos < len(view) and (parsed := parse(view, pos, len(view), offset=offset + pos)) is not None:
            if parsed[1]:
                found.append((offset + pos, parsed[0]))
            pos += parsed[0]
        offset += pos
    return found


def flip(broker: Broker, offset: int) -> None:
    file_start = offset - offset % FILE_BYTES
    path = broker.store.root / "commitlog" / f"{file_start:020d}"
    with path.open("r+b") as file:
        file.seek(offset - file_start)
        (byte,) = file.read(1)
        file.seek(offset - file_start)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("settings", [BY_LOOP, BY_THREAD], ids=["loop", "thread"])
@pytest.mark.parametrize("kilobytes", [30, 600])
async def test_damage_is_not_sent(
    tmp_path: Path, settings, kilobytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    checks: list[CheckBatch] = []
    original = CheckBatch.send
    monkeypatch.setattr(CheckBatch, "send", lambda batch: (checks.append(batch), original(batch)))
    async with group(tmp_path, 2, settings) as (master, slave):
        await master.lead(1)
        master.put(bytes(100), count=kilobytes * 5)
        records = starts(master)
        number = len(records) // 2
        offset, size = records[number]
        await master.service.stop()
        master.store.close()
        flip(master, offset + 100)
        again = Broker(master.store.root, Controller({1}), 1, settings)
        await again.service.start()
        master.service, master.store = again.service, again.store
        await again.lead(2)
        again.put(count=3)

        await slave.follow(again, 2)
        await until(lambda: slave.store.commit_log.max_offset == offset, "everything in front of the damage")
        assert [(found.start, found.end) for found in again.store.damage.ranges] == [(offset, offset + size)]
        again.put(count=3)
        link = again.service.links[2]
        heard = link.ack_count
        await until(lambda: link.ack_count >= heard + 2, "the link is alive")
        assert slave.store.commit_log.max_offset == offset
        assert slave.service.client is not None and 2 in again.service.links
        assert slave.log_bytes() == again.log_bytes()[:offset]
        assert bool(checks) is (settings is BY_THREAD and kilobytes > 100)

        flip(again, offset + 100)
        again.store.damage.healed(offset, offset + size)
        await until(lambda: same(again, slave), "the whole log")


async def test_a_replica_whose_log_ends_in_a_record_goes_on(tmp_path: Path) -> None:
    async with group(tmp_path, 2, BY_LOOP) as (master, slave):
        await master.lead(1)
        master.put(bytes(100), count=100)
        offset, _ = starts(master)[50]
        check = master.store.log_check
        check.loaded(master.store.commit_log.max_offset)
        assert check.known_end(offset + 5) == offset + 5
        check.check_some(offset + 5)
        assert check.known_end(offset + 5) == starts(master)[51][0]
        assert not master.store.damage
        await slave.follow(master, 1)
        await until(lambda: same(master, slave), "the whole log")


@pytest.mark.parametrize("at", [2, 4, 28])
async def test_a_replica_with_a_damaged_end_does_not_cut_it(tmp_path: Path, at: int) -> None:
    """It counts in the SyncStateSet: elected between the cut and the copy, it would lack what was
    acknowledged."""
    async with group(tmp_path, 2, BY_LOOP) as (master, slave):
        await master.lead(1)
        await slave.follow(master, 1)
        master.put(count=30)
        end = master.store.commit_log.max_offset
        await until(lambda: slave.store.confirm_offset == end, "all is confirmed")
        await slave.service.leave_role("a test")
        offset, size = starts(slave)[-2]
        read_from(slave.store, offset)
        slave.store.commit_log.view(offset, size)[at] ^= 0x40
        await slave.follow(master, 1)
        master.put(count=3)
        await until(lambda: slave.store.commit_log.max_offset > end, "copied")
        assert slave.store.cutter.cut_count == 0
        assert [(each.start, each.end) for each in slave.store.damage.ranges] == [(offset, offset + size)]
        slave.store.commit_log.view(offset, size)[at] ^= 0x40
        slave.store.damage.healed(0, end)
        await until(lambda: same(master, slave), "the same log")
        assert slave.store.cutter.cut_count == 0
