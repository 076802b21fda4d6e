"""The dispatcher of a replica: slices of a turn, and records that are not confirmed."""

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from broker.ha import dispatcher
from broker.ha.dispatcher import SLICE_RECORDS, SLICE_US, Dispatcher
from broker.store.message_store import MessageStore
from tests.support.client_parts import until
from tests.support.store_parts import crash, open_store, put_many
from tests.unit.broker.store.test_message_store import copy_log


def replica(root: Path, records: int) -> MessageStore:
    """A store that has received records and dispatched none."""
    master, slave = open_store(root / "m"), open_store(root / "s", master=False)
    slave.become_slave()
    put_many(master, records)
    copy_log(master, slave)
    crash(master)
    return slave


@pytest.fixture
def slow_records(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each look at the clock is half of a turn later."""
    clock = count(0, SLICE_US // 2)
    monkeypatch.setattr(dispatcher, "now_us", lambda: next(clock))
    yield


async def test_no_turn_takes_much_longer_than_its_slice(tmp_path: Path, slow_records: None) -> None:
    slave = replica(tmp_path, 5 * SLICE_RECORDS)
    slave.set_confirm_offset(slave.commit_log.max_offset)
    offsets = list[int]()
    runner = Dispatcher(slave, lambda: offsets.append(slave.dispatch_offset), is_far_behind=lambda: False)
    runner.start()
    await until(lambda: not slave.dispatcher.dispatch_behind, "everything is dispatched")
    runner.stop()
    assert offsets == sorted(set(offsets)) and len(offsets) >= 4, "one slice in each turn"
    crash(slave)


async def test_records_that_are_not_confirmed_are_scanned(tmp_path: Path) -> None:
    slave = replica(tmp_path, 10)
    runner = Dispatcher(slave, lambda: None, is_far_behind=lambda: False)
    runner.start()
    await until(lambda: not slave.dispatcher.scan_behind, "everything is scanned")
    runner.wake()
    await asyncio.sleep(0)
    runner.stop()
    assert slave.dispatcher.scanned_offset == slave.commit_log.max_offset and slave.dispatch_offset == 0
    crash(slave)


async def test_after_stop_nothing_is_dispatched(tmp_path: Path) -> None:
    slave = replica(tmp_path, 10)
    slave.set_confirm_offset(slave.commit_log.max_offset)
    runner = Dispatcher(slave, lambda: None, is_far_behind=lambda: False)
    runner.start()
    runner.stop()
    await asyncio.sleep(0)
    assert slave.dispatch_offset == 0
    crash(slave)
