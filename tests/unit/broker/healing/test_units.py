"""Healed records get the ConsumeQueue units that the dispatch would have given them, so no queue offset is
given again (design S4)."""

from pathlib import Path

import pytest

from broker.healing.evidence import records_of
from broker.healing.units import restore_units
from broker.store.message_store import MessageStore
from tests.support.store_parts import FILE_BYTES, bodies, crash, open_store, put
from tests.unit.broker.store.test_damaged_log import write
from tests.unit.broker.store.test_inner_batch import confirm, items, messages, open_batches, put_items
from tests.unit.broker.store.test_message_store import copy_log
from tests.unit.broker.store.test_scan import pair
from tests.unit.broker.store.test_unread_numbers import MAGIC_AT


def damaged(master: MessageStore, slave: MessageStore, *places: int) -> None:
    """The slave gets the log, with a damaged header at each of these places, and dispatches it."""
    copy_log(master, slave)
    slave.flush()
    for place in places:
        write(slave.root, place + MAGIC_AT, b"\x11")
    confirm(master)
    confirm(slave)
    assert [each.start for each in slave.damage.ranges if each.start in places]


def heal(store: MessageStore, other: MessageStore, start: int, end: int, restored: int = 1) -> None:
    data = bytes(other.commit_log.view(start, end - start))
    store.commit_log.view(start, len(data))[:] = data
    assert restore_units(store, records_of(data, start, file_bytes=FILE_BYTES)) == restored
    store.damage.healed(start, end)


@pytest.mark.parametrize("waits", [False, True])
def test_the_first_record_of_its_queue(tmp_path: Path, waits: bool) -> None:
    """Nothing has told of its queue before; a consumer may have."""
    master, slave = pair(tmp_path)
    woken, told = list[int](), list[tuple[str, int]]()
    start, end, _ = put(master, b"first", queue_id=3)
    put(master)
    slave.dispatcher.on_queue = lambda *queue: told.append(queue)
    if waits:
        slave.wait_for("TopicA", 3, 0, lambda: woken.append(3))
    damaged(master, slave, start)
    told.clear()
    heal(slave, master, start, end)
    assert bodies(slave, 3) == [b"first"] and woken == [3] * waits and told == [("TopicA", 3)]
    slave.become_master()
    assert put(slave, queue_id=3)[2] == 1
    slave.flush()
    crash(slave)
    crash(master)
    slave = open_store(tmp_path / "s")
    assert bodies(slave, 3) == [b"first"]
    crash(slave)


def test_records_are_healed_in_any_order(tmp_path: Path) -> None:
    """A peer may have the second one only."""
    master, slave = pair(tmp_path)
    first, second = [put(master, body, queue_id=1)[:2] for body in (b"first", b"second")]
    put(master)
    damaged(master, slave, first[0], second[0])
    heal(slave, master, *second)
    assert bodies(slave, 1, 11) == [b"second"]
    slave.become_master()
    heal(slave, master, *first)
    slave.become_slave()
    slave.become_master()
    put(slave, b"third", queue_id=1)
    confirm(slave)
    assert bodies(slave, 1)[10:] == [b"first", b"second", b"third"]
    crash(master)
    crash(slave)


def test_a_batch_at_the_end_of_its_queue(tmp_path: Path) -> None:
    master, slave = open_batches(tmp_path / "m"), open_batches(tmp_path / "s", master=False)
    slave.become_slave()
    put_items(master, items(3))
    places = [put_items(master, items(3, first))[:2] for first in (3, 6)]
    put(master)
    damaged(master, slave, *(start for start, _ in places))
    for place in places:
        heal(slave, master, *place)
    assert messages(slave) == messages(master) and len(messages(slave)) == 9
    slave.become_master()
    assert put_items(slave, items(1, 9))[2] == 9
    crash(master)
    crash(slave)
