"""Inner batches in the store: one record and one unit for many messages, whose offsets the queue counts."""

import contextlib
import shutil
import struct
from pathlib import Path
from random import Random

import pytest

from broker.message.inner_batch import INNER_BATCH, MESSAGES_MAX, NEED_UNWRAP, split
from broker.message.record import Record, decode, parse_properties, tag_code
from broker.store.client_batch import put_inner_batch
from broker.store.message_store import MessageStore
from broker.store.querying import earliest_time, find_by_key, offset_by_time
from broker.store.queue.batch_queue import BATCH_UNIT_BYTES, BatchQueue
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.queue.reading import DamagedQueueError, GetStatus
from broker.store.settings import NamedTopic
from tests.support.batch_parts import item
from tests.support.store_disk import After, StoreDisk, Torn
from tests.support.store_parts import BORN_HOST, FILE_BYTES, crash, cut_demoted, open_store
from tests.unit.broker.store.test_index import FOREVER

TOPIC = NamedTopic("Batches")
UNITS_PER_FILE = 4


def open_batches(root: Path, *, master: bool = True, **settings: int) -> MessageStore:
    sizes = {"batch_queue_file_bytes": UNITS_PER_FILE * BATCH_UNIT_BYTES} | settings
    store = open_store(root, master=master, **sizes)
    store.queues.has_batch_type = lambda topic: topic == "Batches"
    return store


def items(count: int, first: int = 0) -> bytes:
    return b"".join(
        item(b"item %d" % number, b"UNIQ_KEY\x01AC%04X\x02TAGS\x01t%d\x02" % (number, number % 3), number)
        for number in range(first, first + count)
    )


def put_items(
    store: MessageStore, body: bytes, properties: bytes = b"", at: int = 5_000
) -> tuple[int, int, int]:
    queue = store.queues.get("Batches", 0)
    assert isinstance(queue, BatchQueue)
    return put_inner_batch(store, queue, TOPIC, body, properties, 9, 0, 7, BORN_HOST, 0, at)


def put_alone(
    store: MessageStore, body: bytes, properties: bytes = b"", at: int = 5_000
) -> tuple[int, int, int]:
    tag = tag_code(parse_properties(properties).get("TAGS", ""))
    return store.put(TOPIC, 0, body, properties, 3, 0, 7, BORN_HOST, 0, tag, at)


def confirm(store: MessageStore) -> None:
    store.set_confirm_offset(store.commit_log.max_offset)
    while store.dispatcher.dispatch(1):
        pass


def records_from(store: MessageStore, offset: int, nums: int = 32, size: int = 1 << 20) -> list[Record]:
    result = store.get("Batches", 0, offset, nums, size, None)
    found, raw = [], b"".join(result.views)
    while raw:
        found.append(decode(raw))
        raw = raw[found[-1].size :]
    return found


def messages(store: MessageStore, offset: int = 0) -> list[tuple[int, bytes]]:
    """(queue offset, body) of all that a consumer of the queue gets, message by message."""
    found: list[tuple[int, bytes]] = []
    while records := records_from(store, offset):
        for record in records:
            found += [(each.queue_offset, each.body) for each in split(record)]
        offset = found[-1][0] + 1
    return found


# -- as they are stored --------------------------------------------------------------------------------------


def test_a_batch_is_one_record_and_one_unit(tmp_path: Path) -> None:
    """store.md 3.2, byte for byte."""
    store = open_batches(tmp_path)
    assert put_items(store, items(3), b"UNIQ_KEY\x01OUTER\x02TAGS\x01whole") == (
        0,
        store.commit_log.max_offset,
        0,
    )
    put_alone(store, b"alone", b"TAGS\x01a")
    put_items(store, items(2, 3), b"INNER_NUM\x01999\x02")
    confirm(store)
    first, second, third = records_from(store, 0)
    assert (first.body, first.flag, first.queue_offset) == (items(3), 9, 0)
    assert first.sys_flag == NEED_UNWRAP | INNER_BATCH == 0xC0
    assert first.properties == b"UNIQ_KEY\x01OUTER\x02TAGS\x01whole\x02INNER_NUM\x013\x02INNER_BASE\x010\x02"
    assert (second.body, second.flag, second.queue_offset, second.sys_flag) == (b"alone", 3, 3, INNER_BATCH)
    assert second.properties == b"TAGS\x01a\x02INNER_NUM\x011\x02INNER_BASE\x013\x02"
    assert (third.queue_offset, third.properties) == (4, b"INNER_NUM\x012\x02INNER_BASE\x014\x02")
    store.close()
    raw = (tmp_path / "batchconsumequeue" / "Batches" / "0" / f"{0:020d}").read_bytes()
    assert raw == b"".join(
        (
            struct.pack(">qiqqqhii", 0, first.size, tag_code("whole"), 5_000, 0, 3, -1, 0),
            struct.pack(">qiqqqhii", second.offset, second.size, tag_code("a"), 5_000, 3, 1, -1, 0),
            struct.pack(">qiqqqhii", third.offset, third.size, 0, 5_000, 4, 2, -1, 0),
            bytes(46),
        )
    )
    assert not (tmp_path / "consumequeue" / "Batches").exists()


def test_queue_offsets_count_messages(tmp_path: Path) -> None:
    store = open_batches(tmp_path)
    assert [put_items(store, items(count))[2] for count in (3, 1, 5)] == [0, 3, 4]
    assert store.max_queue_offset("Batches", 0) == 0  # nothing is confirmed yet
    confirm(store)
    assert (store.min_queue_offset("Batches", 0), store.max_queue_offset("Batches", 0)) == (0, 9)
    assert store.put_messages == 9
    assert sum(queue.max_offset for queue in store.queues.of_topic("Batches").values()) == 9
    assert [offset for offset, _ in messages(store)] == list(range(9))
    store.close()


@pytest.mark.parametrize("batch", [b"", items(2)[:-1], items(1) + b"\0\0", bytes(22)])
def test_what_is_no_batch_leaves_nothing(tmp_path: Path, batch: bytes) -> None:
    store = open_batches(tmp_path)
    with pytest.raises((ValueError, struct.error)):
        put_items(store, batch)
    with pytest.raises(ValueError, match="properties of 327"):
        put_items(store, items(1), b"A\x01" + bytes([65]) * 32_740)
    assert store.commit_log.max_offset == 0
    assert put_items(store, items(1))[2] == 0
    store.close()


def test_a_batch_has_as_many_messages_as_its_count_can_say(tmp_path: Path) -> None:
    store = open_batches(tmp_path, commit_log_file_bytes=1 << 20, index_entries=100_000)
    with pytest.raises(ValueError, match="a batch of 32768 items"):
        put_items(store, item(b"") * (MESSAGES_MAX + 1))
    assert put_items(store, item(b"") * MESSAGES_MAX)[2] == 0
    assert put_items(store, items(1))[2] == MESSAGES_MAX
    confirm(store)
    assert records_from(store, MESSAGES_MAX - 1, nums=1)[0].properties.startswith(b"INNER_NUM\x0132767\x02")
    store.close()


# -- reading -------------------------------------------------------------------------------------------------


def test_a_pull_inside_of_a_batch_gets_all_of_it(tmp_path: Path) -> None:
    store = open_batches(tmp_path)
    for count in (3, 4, 2):
        put_items(store, items(count))
    confirm(store)
    for offset, first in ((0, 0), (2, 0), (3, 3), (6, 3), (7, 7), (8, 7)):
        assert records_from(store, offset)[0].queue_offset == first
        assert store.get("Batches", 0, offset, 32, 1 << 20, None).next_begin_offset == 9
    assert store.get("Batches", 0, 9, 32, 1 << 20, None).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.get("Batches", 0, 10, 32, 1 << 20, None).status is GetStatus.OFFSET_OVERFLOW_BADLY
    queue = store.find_queue("Batches", 0)
    assert queue is not None
    assert [queue.unit(offset)[1] for offset in range(9)] == [each[1] for each in queue.units(0, 99)]
    with pytest.raises(IndexError):
        queue.unit(9)
    store.close()


def test_limits_of_a_pull_count_messages(tmp_path: Path) -> None:
    store = open_batches(tmp_path)
    for _ in range(4):
        put_items(store, items(3))
    confirm(store)
    size = records_from(store, 0)[0].size
    for nums, limit, wanted in (
        (1, 1 << 20, 3),
        (5, 1 << 20, 3),
        (6, 1 << 20, 6),
        (32, 1, 3),
        (32, 2 * size, 6),
    ):
        result = store.get("Batches", 0, 0, nums, limit, None)
        assert (result.message_count, result.next_begin_offset) == (wanted, wanted)
        assert result.body_bytes == sum(map(len, result.views))
    store.close()


def test_tags_of_a_batch_are_the_consumers_business(tmp_path: Path) -> None:
    """A batch without a tag of its own passes: who takes it apart looks at its messages' tags."""
    store = open_batches(tmp_path)
    put_items(store, items(3))
    put_alone(store, b"no tag")
    put_alone(store, b"a", b"TAGS\x01a")
    put_items(store, items(2), b"TAGS\x01b")
    confirm(store)

    def found(tag: str, offset: int = 0) -> tuple[list[int], int]:
        result = store.get("Batches", 0, offset, 32, 1 << 20, frozenset({tag_code(tag)}))
        raw, offsets = b"".join(result.views), list[int]()
        while raw:
            offsets.append(decode(raw).queue_offset)
            raw = raw[decode(raw).size :]
        return offsets, result.next_begin_offset

    assert found("a") == ([0, 4], 7)
    assert found("b") == ([0, 5], 7)
    assert found("c", 3) == ([], 7)
    store.close()


@pytest.mark.parametrize("damaged", [0, 1])
@pytest.mark.parametrize("place", [(2**62, 100), (500, -600)])
@pytest.mark.parametrize("tag_codes", [None, frozenset({tag_code("t0")})])
def test_a_damaged_queue_gives_no_part_of_it(
    tmp_path: Path, damaged: int, place: tuple[int, int], tag_codes: frozenset[int] | None
) -> None:
    """A response with fewer bytes than it announces would leave its connection out of step."""
    store = open_batches(tmp_path)
    for first in (0, 2):
        put_items(store, items(2, first))
    confirm(store)
    path, *_ = sorted((tmp_path / "batchconsumequeue" / "Batches" / "0").iterdir())
    with path.open("r+b") as file:
        file.seek(damaged * BATCH_UNIT_BYTES)
        file.write(struct.pack(">qi", *place))
    if damaged:  # what is in front of it is good
        assert store.get("Batches", 0, 0, 32, 1 << 20, tag_codes).next_begin_offset == 2
    with pytest.raises(
        DamagedQueueError, match=rf"Batches, queue 0, is damaged near offset {2 * damaged}: .*not in"
    ):
        store.get("Batches", 0, 2 * damaged, 32, 1 << 20, tag_codes)
    store.close()


@pytest.mark.parametrize("damaged", [(-3, 2), (0, 0), (1, -1), (2**62, 2), (0, 2**15 - 1)])
@pytest.mark.parametrize("unit", [1, 2])
def test_a_pull_never_goes_back_or_beyond_the_end(
    tmp_path: Path, damaged: tuple[int, int], unit: int
) -> None:
    """Who waits at the queue reads on from the offset that he gets."""
    store = open_batches(tmp_path)
    for first in (0, 2, 4):
        put_items(store, items(2, first))
    confirm(store)
    path, *_ = sorted((tmp_path / "batchconsumequeue" / "Batches" / "0").iterdir())
    with path.open("r+b") as file:
        file.seek(unit * BATCH_UNIT_BYTES + 28)
        file.write(struct.pack(">qh", *damaged))
    for offset in range(6):
        try:
            result = store.get("Batches", 0, offset, 32, 1 << 20, frozenset({1}))
        except DamagedQueueError:
            continue
        assert offset < result.next_begin_offset <= 6
    store.close()


def test_search_by_time(tmp_path: Path) -> None:
    """All messages of a batch were stored at the same time."""
    store = open_batches(tmp_path)
    for at, count in ((100, 3), (200, 2), (200, 1), (300, 4)):
        put_items(store, items(count), at=at)
    confirm(store)
    for time, lower, upper in (
        (0, 0, 0),
        (100, 0, 2),
        (101, 3, 2),
        (200, 3, 5),
        (250, 6, 5),
        (300, 6, 9),
        (9_999, 10, 9),
    ):
        assert offset_by_time(store, "Batches", 0, time, upper=False) == lower
        assert offset_by_time(store, "Batches", 0, time, upper=True) == upper
    assert earliest_time(store, "Batches", 0) == 100
    store.close()


def test_messages_of_a_batch_are_found_by_their_keys(tmp_path: Path) -> None:
    """Each as a record of its own; the batch by its own key. The same when the index is made again."""
    store = open_batches(tmp_path)
    body = item(b"one", b"UNIQ_KEY\x01U1\x02KEYS\x01k x") + item(b"two", b"UNIQ_KEY\x01U2\x02KEYS\x01k", 5)
    put_alone(store, b"before", b"KEYS\x01k")
    put_items(store, body, b"UNIQ_KEY\x01OUTER\x02")
    confirm(store)

    def found(key: str, limit: int = 9) -> list[tuple[bytes, int, int]]:
        views = find_by_key(store, "Batches", key, limit, 0, FOREVER)
        return [(decode(view).body, decode(view).queue_offset, decode(view).sys_flag) for view in views]

    def check() -> None:
        assert found("U2") == [(b"two", 2, 0)]
        assert found("x") == [(b"one", 1, 0)]
        assert found("k") == [(b"before", 0, INNER_BATCH), (b"one", 1, 0), (b"two", 2, 0)]
        assert found("k", 1) == [(b"two", 2, 0)]
        assert found("OUTER") == [(body, 1, 0xC0)]

    check()
    store.close()
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    store = open_batches(tmp_path)
    while store.dispatcher.catch_up_index(1):
        pass
    check()
    store.close()


# -- replicas, crashes, cuts ---------------------------------------------------------------------------------


def queue_files(root: Path) -> dict[str, bytes]:
    found = sorted((root / "batchconsumequeue" / "Batches" / "0").iterdir())
    return {path.name: path.read_bytes() for path in found}


def replicate(master: MessageStore, slave: MessageStore) -> None:
    while slave.commit_log.max_offset < master.commit_log.max_offset:
        data = master.commit_log.view(slave.commit_log.max_offset, 1 << 20)
        target = slave.commit_log.receive_view()
        count = min(len(data), len(target))
        target[:count] = data[:count]
        slave.commit_log.received(count)
        target.release()


def fill(store: MessageStore) -> None:
    for number in range(12):
        if number % 3:
            put_items(store, items(number % 5 + 1, 10 * number))
        else:
            put_alone(store, b"alone %d" % number, b"TAGS\x01t")


def test_a_replica_that_does_not_know_the_topic_makes_the_same_queue(tmp_path: Path) -> None:
    master, slave = (
        open_batches(tmp_path / "m"),
        open_store(tmp_path / "s", master=False, batch_queue_file_bytes=UNITS_PER_FILE * BATCH_UNIT_BYTES),
    )
    heard: list[tuple[str, int]] = []
    slave.dispatcher.on_queue = lambda topic, queue_id: heard.append((topic, queue_id))
    fill(master)
    confirm(master)
    replicate(master, slave)
    confirm(slave)
    assert messages(slave) == messages(master)
    assert heard == [("Batches", 0)]
    assert [decode(view).body for view in find_by_key(slave, "Batches", "AC0015", 9, 0, FOREVER)] == [
        b"item 21"
    ]
    slave.become_master()
    assert put_items(slave, items(2))[2] == master.max_queue_offset("Batches", 0)
    master.close()
    slave.close()
    assert len(queue_files(tmp_path / "m")) == 3
    same = queue_files(tmp_path / "s")
    assert {name: raw[:552] for name, raw in same.items()} == queue_files(tmp_path / "m")


def test_a_record_of_rocketmq_without_the_properties_gets_its_unit(tmp_path: Path) -> None:
    """Of a message that was sent alone; its own broker would not show it."""
    store = open_batches(tmp_path)
    store.become_slave()
    store.commit_log.append(TOPIC.topic_raw, 0, 0, 0, 0, 1, BORN_HOST, BORN_HOST, 5_000, 0, b"theirs", b"")
    store.become_master()  # and its tail was never dispatched
    assert put_items(store, items(2))[2] == 1
    confirm(store)
    assert messages(store) == [(0, b"theirs"), (1, b"item 0"), (2, b"item 1")]
    store.close()


@pytest.mark.parametrize("lost_unit", [None, 0, 5, 11])
def test_a_start_after_a_crash(tmp_path: Path, lost_unit: int | None) -> None:
    """Also when the system has written later units and not an earlier one."""
    store = open_batches(tmp_path)
    fill(store)
    confirm(store)
    wanted, end = messages(store), store.max_queue_offset("Batches", 0)
    crash(store)
    if lost_unit is not None:
        name, at = divmod(lost_unit, UNITS_PER_FILE)
        path = tmp_path / "batchconsumequeue" / "Batches" / "0" / f"{name * UNITS_PER_FILE * 46:020d}"
        raw = path.read_bytes()
        path.write_bytes(raw[: at * 46] + bytes(46) + raw[at * 46 + 46 :])
    store = open_batches(tmp_path)
    confirm(store)
    assert messages(store) == wanted
    assert put_items(store, items(1))[2] == end
    store.close()


def test_a_cut_goes_through_no_batch(tmp_path: Path) -> None:
    """A demoted master: the queue ends with the last whole record, and the numbering goes on there."""
    store = open_batches(tmp_path)
    ends = [put_items(store, items(count))[1] for count in (3, 4, 2, 5, 1, 2)]
    confirm(store)
    wanted = messages(store)
    store.become_slave()
    store.cutter.truncate(ends[3] - 1)
    assert store.commit_log.max_offset == ends[3] - 1
    assert store.cutter.truncate_half_message() == ends[2]
    assert messages(store) == wanted[:9]
    assert store.max_queue_offset("Batches", 0) == 9
    store.become_master()
    assert put_items(store, items(2))[2] == 9
    confirm(store)
    assert messages(store)[9:] == [(9, b"item 0"), (10, b"item 1")]
    store.close()


def test_the_numbering_outlives_a_cut_of_all_that_a_late_replica_has(tmp_path: Path) -> None:
    store = open_batches(tmp_path / "m")
    ends = [put_items(store, items(3))[1] for _ in range(40)]
    begin = next(end for end in ends if end > FILE_BYTES) // FILE_BYTES * FILE_BYTES
    late = open_batches(tmp_path / "late", master=False)
    late.cutter.reset_to(begin)
    replicate(store, late)
    confirm(late)
    first = late.min_queue_offset("Batches", 0)
    assert first == 3 * sum(end <= begin for end in ends) > 0
    late.cutter.truncate(begin)
    assert (late.min_queue_offset("Batches", 0), late.max_queue_offset("Batches", 0)) == (first, first)
    late.close()
    late = open_batches(tmp_path / "late")
    assert (late.min_queue_offset("Batches", 0), late.max_queue_offset("Batches", 0)) == (first, first)
    assert put_items(late, items(2))[2] == first
    confirm(late)
    assert late.get("Batches", 0, first, 32, 1 << 20, None).next_begin_offset == first + 2
    assert late.get("Batches", 0, first - 1, 32, 1 << 20, None).status is GetStatus.OFFSET_TOO_SMALL
    cut_demoted(late, begin)
    assert late.max_queue_offset("Batches", 0) == first
    late.close()
    store.close()


def test_the_numbering_outlives_a_cut_that_is_cut_off(tmp_path: Path) -> None:
    """Torn away at any operation, by a kill or by a power cut: what is zeroed was the last that knew it."""
    queue_path, cut_at = tmp_path / "s" / "0", 500
    for left in range(12):
        for is_kill in (True, False):
            shutil.rmtree(tmp_path / "s", ignore_errors=True)
            queue = BatchQueue(queue_path, "Batches", 0, UNITS_PER_FILE * BATCH_UNIT_BYTES)
            for base in range(10, 40, 5):
                queue.append(base, cut_at + base * 100, 100, 0, 5_000, 5)
            queue.sync()
            disk, hook = StoreDisk(tmp_path / "s"), After(left)
            with disk.watched(hook), contextlib.suppress(Torn):
                queue.truncate(cut_at)
            queue.close()
            target = tmp_path / f"{left}-{is_kill}"
            if is_kill:
                disk.survivors_of_a_kill(target)
            else:
                disk.survivors_of_a_power_cut(target, Random(left), journal=True)
            again = BatchQueue(target / "0", "Batches", 0, UNITS_PER_FILE * BATCH_UNIT_BYTES)
            again.load(log_min_offset=cut_at)
            again.truncate(cut_at)
            assert (again.min_offset, again.max_offset) == (10, 10), (left, is_kill)
            again.close()
    assert hook.left, "the cut has no more operations than were tried"


def test_retention_moves_the_beginning(tmp_path: Path) -> None:
    store = open_batches(tmp_path)
    ends = [put_items(store, items(3))[1] for _ in range(40)]
    confirm(store)
    old = store.commit_log.take_oldest()
    (queue,) = store.queues.each()
    gone = queue.expire(store.commit_log.min_offset)
    for file in (old, *gone):
        file.delete()
    first = 3 * sum(end <= FILE_BYTES for end in ends)
    assert len(gone) == first // 3 // UNITS_PER_FILE > 0
    assert store.min_queue_offset("Batches", 0) == first
    assert store.get("Batches", 0, first - 1, 32, 1 << 20, None).status is GetStatus.OFFSET_TOO_SMALL
    assert messages(store, first)[0] == (first, b"item 0")
    store.close()
    store = open_batches(tmp_path)
    assert (store.min_queue_offset("Batches", 0), store.max_queue_offset("Batches", 0)) == (first, 120)
    assert messages(store, first)[-1] == (119, b"item 2")
    store.close()


def test_units_wait_for_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_batches(tmp_path)
    with monkeypatch.context() as patched:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr("broker.store.log.mapped_file.MappedFile.reserve", full)
        put_items(store, items(3))
        store.set_confirm_offset(store.commit_log.max_offset)
        assert store.dispatcher.dispatch_fault
        assert store.max_queue_offset("Batches", 0) == 0
    put_items(store, items(2, 3))
    confirm(store)
    assert [body for _, body in messages(store)] == [b"item %d" % number for number in range(5)]
    store.close()


# -- which kind of queue -------------------------------------------------------------------------------------


def test_who_waits_for_a_topic_that_becomes_one_of_batches_is_woken(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    woken: list[int] = []
    assert store.wait_for("Batches", 0, 0, lambda: woken.append(1))
    assert type(store.queues.get("Batches", 0)) is ConsumeQueue
    store.queues.has_batch_type = lambda topic: topic == "Batches"
    store.queues.become_batch("Batches")
    store.queues.become_batch("Batches")  # each change of the topic says it again
    put_items(store, items(2))
    confirm(store)
    assert woken == [1]
    assert store.queues.waiter_count == 0
    store.close()


def test_a_queue_stays_what_it_is(tmp_path: Path) -> None:
    """Whatever becomes of its topic."""
    store = open_store(tmp_path)
    put_alone(store, b"simple")
    confirm(store)
    store.queues.has_batch_type = lambda topic: True
    store.queues.become_batch("Batches")
    assert type(store.queues.get("Batches", 0)) is ConsumeQueue
    assert store.queues.has_messages("Batches", in_batches=False)
    assert not store.queues.has_messages("Batches", in_batches=True)
    store.close()


def test_repeats_are_skipped_and_a_gap_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = BatchQueue(tmp_path / "0", "Batches", 0, UNITS_PER_FILE * BATCH_UNIT_BYTES)
    queue.append(5, 100, 10, 0, 1, 3)
    queue.append(5, 100, 10, 0, 1, 3)
    queue.append(6, 900, 10, 0, 1, 1)
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (5, 8, 8)
    assert not caplog.records
    queue.append(10, 200, 10, 0, 2, 2)
    assert "lacks messages 8 to 9" in caplog.text
    assert [queue.unit(at)[0] for at in (5, 7, 8, 10, 11)] == [100, 100, 200, 200, 200]
    assert queue.max_offset == 12
    queue.close()


def test_an_unconfirmed_tail_counts_all_of_its_messages(tmp_path: Path) -> None:
    """store.md pitfall 6: whoever becomes master over it goes on behind them."""
    store = open_batches(tmp_path)
    put_items(store, items(3))
    store.become_slave()
    store.become_master()
    assert put_items(store, items(2))[2] == 3
    crash(store)
    store = open_batches(tmp_path)
    assert put_alone(store, b"alone")[2] == 5
    store.close()


def test_units_of_what_the_log_has_lost_do_not_come_back(tmp_path: Path) -> None:
    """After a power loss: the system had written the fourth unit, and neither those before it nor the log."""
    store = open_batches(tmp_path)
    first_end = put_items(store, items(3))[1]
    confirm(store)
    store.flush_checkpoint()
    last_end = [put_items(store, items(3))[1] for _ in range(3)][-1]
    confirm(store)
    crash(store)
    queue_path = tmp_path / "batchconsumequeue" / "Batches" / "0" / f"{0:020d}"
    raw = queue_path.read_bytes()
    queue_path.write_bytes(raw[:46] + bytes(2 * 46) + raw[3 * 46 :])
    log_path = tmp_path / "commitlog" / f"{0:020d}"
    raw = log_path.read_bytes()
    log_path.write_bytes(raw[:first_end] + bytes(len(raw) - first_end))
    store = open_batches(tmp_path)
    for _ in range(2):
        put_items(store, items(1))
    while store.commit_log.max_offset < last_end:
        store.put(NamedTopic("Other"), 0, b"", b"", 0, 0, 7, BORN_HOST, 0, 0)
    confirm(store)
    store.close()
    store = open_batches(tmp_path)
    assert store.max_queue_offset("Batches", 0) == 5
    assert [offset for offset, _ in messages(store)] == [0, 1, 2, 3, 4]
    store.close()


def test_the_end_before_a_log_offset_is_where_a_cut_would_end(tmp_path: Path) -> None:
    log_ends = [100 * (index + 1) for index in range(9)]
    for at in (0, 50, *log_ends, 5_000):
        queue = BatchQueue(tmp_path / str(at), "Batches", 0, UNITS_PER_FILE * BATCH_UNIT_BYTES)
        for index, log_end in enumerate(log_ends):
            queue.append(10 + 5 * index, log_end - 100, 100, 0, 5_000, 5)
        end = queue.end_before(at)
        assert end == 10 + 5 * sum(log_end <= at for log_end in log_ends)
        queue.truncate(at)
        assert queue.next_offset == end
        queue.append(end, at + 1_000, 100, 0, 5_000, 5)
        assert queue.end_before(at) == end, "also when it has grown again"
        queue.close()
