"""What a start knows from how the process before has ended: in the same boot nothing that it wrote is
missing."""

import os
import shutil
from pathlib import Path
from unittest import mock

import pytest

from broker.store import last_exit, message_store
from broker.store.last_exit import LastExit, boot_id, mark_running, read_last_exit
from broker.store.log.mapped_file import write_mark
from broker.store.message_store import MessageStore
from tests.support.store_disk import Torn, boot_again
from tests.support.store_parts import bodies, crash, damage_unit, new_store, open_store, put_many

RECORD_BYTES = 106
"""Of one of put_many(), about."""


def crashed(root: Path, *, durable: int, more: int) -> tuple[int, int]:
    """A store that was killed. Returns up to where the checkpoint counts it as durable, and its end."""
    store = open_store(root)
    put_many(store, durable)
    store.flush_checkpoint()
    checked = store.commit_log.max_offset
    put_many(store, more)
    end = store.commit_log.max_offset
    crash(store)
    return checked, end


def log_of(root: Path) -> Path:
    return root / "commitlog" / "0".zfill(20)


def zero(root: Path, start: int, end: int) -> None:
    with log_of(root).open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


def start_slave(root: Path) -> MessageStore:
    return open_store(root, master=False)


def killed_start(root: Path, step: str) -> None:
    """A start that is killed before this step."""
    store = new_store(root)
    with mock.patch.object(message_store, step, side_effect=Torn), pytest.raises(Torn):
        store.load()
    crash(store)


def test_the_mark_names_the_boot(tmp_path: Path) -> None:
    assert read_last_exit(tmp_path) == LastExit(abnormal=False, is_own=False, same_boot=False)
    mark_running(tmp_path)
    assert read_last_exit(tmp_path) == LastExit(abnormal=True, is_own=True, same_boot=True)
    boot_again(tmp_path)
    assert read_last_exit(tmp_path) == LastExit(abnormal=True, is_own=True, same_boot=False)
    mark_running(tmp_path, with_boot=False)
    assert read_last_exit(tmp_path) == LastExit(abnormal=True, is_own=True, same_boot=False)
    write_mark(tmp_path / "abort", f"4711 {boot_id()}")
    assert read_last_exit(tmp_path) == LastExit(abnormal=True, is_own=False, same_boot=False)


def test_a_system_without_a_boot_id_has_no_same_boot(tmp_path: Path) -> None:
    with mock.patch.object(last_exit, "_BOOT_ID", tmp_path / "missing"):
        mark_running(tmp_path)
        assert read_last_exit(tmp_path) == LastExit(abnormal=True, is_own=True, same_boot=False)


@pytest.mark.parametrize("kind", ["zeros", "shorter"])
def test_in_the_same_boot_a_lost_end_is_damage_and_after_another_one_it_is_a_power_cut(
    tmp_path: Path, kind: str
) -> None:
    """Over any number of starts."""
    _, end = crashed(tmp_path, durable=10, more=5)
    cut = end - 2 * RECORD_BYTES
    if kind == "zeros":
        zero(tmp_path, cut, end)
    else:
        os.truncate(log_of(tmp_path), cut)
    other = tmp_path.with_name(f"{tmp_path.name}-after-a-power-cut")
    shutil.copytree(tmp_path, other)
    boot_again(other)

    for _ in range(2):
        store = start_slave(tmp_path)
        assert store.commit_log.max_offset <= cut
        assert f"confirmed up to {end}" in store.dispatcher.tail_fault()
        crash(store)
    store = start_slave(other)
    assert store.commit_log.max_offset <= cut and not store.dispatcher.tail_fault()
    crash(store)


def test_in_the_same_boot_a_hole_behind_the_checkpoint_is_a_damaged_range(tmp_path: Path) -> None:
    """The records behind it were confirmed, and stay."""
    checked, end = crashed(tmp_path, durable=10, more=10)
    zero(tmp_path, checked + 2 * RECORD_BYTES, checked + 3 * RECORD_BYTES)
    store = start_slave(tmp_path)
    assert store.commit_log.max_offset == end and store.damage and not store.damage.lost_end
    crash(store)


def test_a_file_that_ends_in_front_of_the_checkpoint_is_not_taken_for_whole(tmp_path: Path) -> None:
    """After a crash a start believes the checkpoint. The file was made as long as before, with zeros, and the
    log went on behind them. Also in another boot, and if the start that made it longer was killed."""
    checked, _ = crashed(tmp_path, durable=10, more=0)
    boot_again(tmp_path)
    os.truncate(log_of(tmp_path), checked // 2)
    killed_start(tmp_path, "scan_start")
    assert log_of(tmp_path).stat().st_size > checked
    store = start_slave(tmp_path)
    assert store.commit_log.max_offset <= checked // 2
    assert f"confirmed up to {checked}" in store.dispatcher.tail_fault()
    crash(store)


def test_nothing_is_lost_after_a_kill(tmp_path: Path) -> None:
    """What a start notes for the case that it is killed is gone at its end."""
    _, end = crashed(tmp_path, durable=10, more=5)
    store = open_store(tmp_path)
    assert store.commit_log.max_offset == store.confirm_offset == end
    assert not store.damage.describe() and not (tmp_path / "damagedRanges").exists()
    store.close()


def test_a_start_that_is_killed_has_noted_the_end_before_it_cuts_the_entries(tmp_path: Path) -> None:
    _, end = crashed(tmp_path, durable=10, more=5)
    zero(tmp_path, end - RECORD_BYTES, end)
    killed_start(tmp_path, "scan_end")
    store = start_slave(tmp_path)
    assert f"confirmed up to {end}" in store.dispatcher.tail_fault()
    crash(store)


def test_an_entry_that_is_damaged_itself_is_no_evidence(tmp_path: Path) -> None:
    crashed(tmp_path, durable=10, more=5)
    damage_unit(tmp_path, 7)
    store = start_slave(tmp_path)
    assert not store.damage.lost_end
    crash(store)


@pytest.mark.parametrize("where", ["back", "anew"])
def test_a_cut_that_is_killed_is_no_damage(tmp_path: Path, where: str) -> None:
    """The log is cut before its queues."""
    store = open_store(tmp_path)
    put_many(store, 10)
    store.become_slave()
    offset = next(at for at in range(5 * RECORD_BYTES, 0, -1) if store.commit_log.is_record_start(at))
    with (
        mock.patch.object(type(store.queues), "cut", return_value=[]),
        mock.patch.object(type(store.queues), "cut_all", return_value=[]),
    ):
        if where == "back":
            store.cutter.begin_cut(offset)
        else:
            store.cutter.begin_reset(0)
        store.cutter.write_cut()
    crash(store)
    store = start_slave(tmp_path)
    assert not store.damage.describe() and not store.dispatcher.tail_fault()
    assert len(bodies(store)) <= 5
    crash(store)
