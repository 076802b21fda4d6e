"""ConsumeQueues: units over several files, repeats, gaps, cuts and what a restart finds."""

import logging
from pathlib import Path

import pytest

from broker.store.log.mapped_file import file_name
from broker.store.queue.consume_queue import FILLER, UNIT, UNIT_BYTES, ConsumeQueue
from tests.support.store_disk import StoreDisk

FILE_UNITS = 10


def open_queue(path: Path, log_min_offset: int = 0) -> ConsumeQueue:
    queue = ConsumeQueue(path / "0", "TopicA", 0, FILE_UNITS * UNIT_BYTES)
    queue.load(log_min_offset=log_min_offset)
    return queue


def first_file(path: Path) -> Path:
    """Of the queue that open_queue() opens here."""
    return min(each for each in (path / "0").rglob("*") if each.is_file())


def fill(queue: ConsumeQueue, count: int) -> None:
    for index in range(queue.max_offset, queue.max_offset + count):
        queue.append(index, index * 100, 100, index)


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 35])
def test_what_was_written_is_found_again(tmp_path: Path, count: int) -> None:
    queue = open_queue(tmp_path)
    fill(queue, count)
    queue.close()
    again = open_queue(tmp_path)
    assert (again.min_offset, again.max_offset, again.next_offset) == (0, count, count)
    assert [again.unit(index) for index in range(count)] == [(i * 100, 100, i) for i in range(count)]
    assert again.log_end_offset() == count * 100
    again.close()


def test_an_empty_queue_has_no_file(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    queue.close()
    assert list(tmp_path.iterdir()) == []


def test_repeats_are_skipped(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    fill(queue, 12)
    queue.append(3, 999, 999, 999)
    assert queue.unit(3) == (300, 100, 3)
    assert queue.max_offset == 12
    queue.close()


def test_units_are_given_file_by_file(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    fill(queue, 25)
    assert [unit[2] for unit in queue.units(8, 100)] == [8, 9]
    assert [unit[2] for unit in queue.units(10, 3)] == [10, 11, 12]
    assert [unit[2] for unit in queue.units(22, 100)] == [22, 23, 24]
    queue.close()


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 11, 24, 25])
def test_truncate_cuts_for_good(tmp_path: Path, keep: int) -> None:
    queue = open_queue(tmp_path)
    fill(queue, 25)
    queue.truncate(keep * 100 + 50)  # in the middle of a record: its unit goes too
    assert (queue.max_offset, queue.next_offset) == (min(keep, 25), min(keep, 25))
    queue.close()
    again = open_queue(tmp_path)
    assert again.max_offset == keep
    fill(again, 3)
    assert again.unit(keep) == (keep * 100, 100, keep)
    again.close()


@pytest.mark.parametrize("first", [1, 9, 10, 13, 40])
def test_a_queue_may_begin_anywhere(tmp_path: Path, first: int) -> None:
    queue = open_queue(tmp_path)
    queue.append(first, 5000, 100, 1)
    queue.append(first + 1, 5100, 100, 1)
    assert (queue.min_offset, queue.max_offset) == (first, first + 2)
    queue.close()
    again = open_queue(tmp_path, log_min_offset=5000)
    assert (again.min_offset, again.max_offset) == (first, first + 2)
    again.close()
    if first % FILE_UNITS:
        assert first_file(tmp_path).read_bytes()[:UNIT_BYTES] == FILLER  # as the peer writes it


def test_a_hole_is_filled_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = open_queue(tmp_path)
    fill(queue, 3)
    with caplog.at_level(logging.ERROR):
        queue.append(25, 2500, 100, 25)
    assert "lacks entries 3 to 24" in caplog.text
    assert (queue.min_offset, queue.max_offset) == (0, 26)
    assert queue.unit(2) == (200, 100, 2)
    assert queue.unit(25) == (2500, 100, 25)
    assert {queue.unit(index)[1] for index in range(3, 25)} == {2147483647}
    queue.close()
    again = open_queue(tmp_path)
    assert (again.min_offset, again.max_offset) == (0, 26)
    again.close()


def test_min_offset_follows_the_log(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    fill(queue, 25)
    queue.correct_min_offset(1234)
    assert queue.min_offset == 13
    queue.correct_min_offset(9999)
    assert queue.min_offset == 25
    queue.close()


def test_units_lost_by_a_power_failure_are_not_believed(tmp_path: Path) -> None:
    """Pages of the newest units may be on disk while older ones are not."""
    queue = open_queue(tmp_path)
    fill(queue, 9)
    with first_file(tmp_path).open("r+b") as file:
        file.seek(4 * UNIT_BYTES)
        file.write(bytes(2 * UNIT_BYTES))
    queue.truncate(300)
    assert queue.max_offset == 3
    queue.close()


@pytest.mark.parametrize("lost_bytes", [4, 8])
def test_a_unit_that_a_power_cut_has_torn_is_not_believed(tmp_path: Path, lost_bytes: int) -> None:
    """It lies on two pages, and the first one is on disk as it was before the unit was appended."""
    base = 5 << 32
    queue = open_queue(tmp_path)
    for index in range(9):
        queue.append(index, base + index * 100, 100, index)
    queue.close()
    with first_file(tmp_path).open("r+b") as file:
        file.seek(6 * UNIT_BYTES)
        file.write(bytes(lost_bytes))
    again = open_queue(tmp_path)
    again.truncate(base + 600, crashed=True)
    again.drop_stale()
    assert again.max_offset == 6
    again.append(6, base + 600, 100, 6)
    assert again.unit(6) == (base + 600, 100, 6)
    again.close()


def test_a_lost_unit_moves_no_beginning(tmp_path: Path) -> None:
    """It is zero, and not an old one: the beginning is where the log says."""
    queue = open_queue(tmp_path)
    fill(queue, 9)
    queue.close()
    zero_unit(tmp_path, 6)
    again = open_queue(tmp_path, log_min_offset=300)
    assert again.min_offset == 3
    again.close()


def test_units_behind_a_lost_one_do_not_come_back(tmp_path: Path) -> None:
    """The system had written them; they are of records that the log has lost."""
    queue = open_queue(tmp_path)
    fill(queue, 9)
    queue.close()
    zero_unit(tmp_path, 4)
    again = open_queue(tmp_path)
    again.truncate(400)
    again.drop_stale()
    assert again.max_offset == 4
    fill(again, 1)
    again.close()
    once_more = open_queue(tmp_path)
    assert (once_more.max_offset, once_more.unit(4)) == (5, (400, 100, 4))
    once_more.close()


def test_units_that_rocketmq_has_left_do_not_count(tmp_path: Path) -> None:
    """A start of RocketMQ after a power cut leaves them behind the first missing unit. Their records are
    older than those of the units that are appended then."""
    queue = open_queue(tmp_path)
    fill(queue, 5)
    queue.close()
    with first_file(tmp_path).open("r+b") as file:
        file.seek(8 * UNIT_BYTES)
        file.write(UNIT.pack(350, 100, 0))
    again = open_queue(tmp_path)
    assert again.max_offset == 5
    again.close()


def test_every_file_is_synced_and_none_twice(tmp_path: Path) -> None:
    """Of a queue that has filled several since the last time; what is cut and written again, too."""
    disk, synced = StoreDisk(tmp_path), list[str]()

    def hook(operation: str, path: Path) -> None:
        if operation == "fdatasync":
            synced.append(path.name)

    def names(*units: int) -> list[str]:
        return [file_name(unit * UNIT_BYTES) for unit in units]

    with disk.watched(hook):
        queue = open_queue(tmp_path)
        fill(queue, 35)
        queue.sync()
        assert synced == names(0, 10, 20, 30)
        fill(queue, 5)
        queue.sync()
        assert synced[4:] == names(30)
        fill(queue, 1)
        queue.sync()
        assert synced[5:] == names(40)
        queue.truncate(1_500)
        fill(queue, 10)
        queue.sync()
        assert synced[6:] == names(10, 20)
        queue.close()
        queue = open_queue(tmp_path)
        fill(queue, 10)
        queue.sync()
        assert synced[8:] == names(20, 30)
        queue.close()


def test_the_beginning_follows_when_old_files_end_with_a_log_file(tmp_path: Path) -> None:
    queue = open_queue(tmp_path)
    fill(queue, 25)
    gone = queue.expire(1_000)
    assert [file.path.name for file in gone] == [f"{0:020d}"]
    assert queue.min_offset == 10
    for file in gone:
        file.delete()
    queue.close()


def zero_unit(path: Path, number: int) -> None:
    (file,) = (path / "0").iterdir()
    raw = file.read_bytes()
    file.write_bytes(raw[: number * UNIT_BYTES] + bytes(UNIT_BYTES) + raw[(number + 1) * UNIT_BYTES :])


def test_the_end_before_a_log_offset_is_where_a_cut_would_end(tmp_path: Path) -> None:
    log_ends = [100 * (index + 1) for index in range(9)]
    for at in (0, 50, *log_ends, 5_000):
        queue = ConsumeQueue(tmp_path / str(at), "T", 0, 4 * UNIT_BYTES)
        for index, log_end in enumerate(log_ends):
            queue.append(index, log_end - 100, 100, 0)
        end = queue.end_before(at)
        assert end == sum(log_end <= at for log_end in log_ends)
        queue.truncate(at)
        assert queue.next_offset == end
        for index in range(end, end + 3):
            queue.append(index, at + 100 * index, 100, 0)
        assert queue.end_before(at) == end, "also when it has grown again"
        queue.close()
    empty = ConsumeQueue(tmp_path / "empty", "T", 0, 4 * UNIT_BYTES)
    empty.go_on_from(7)
    assert empty.end_before(0) == 7
