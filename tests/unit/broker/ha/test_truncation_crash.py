"""A cut of the log that a kill or a power cut interrupts: what lay behind it never comes back (#10666).

The real store cuts its files, torn away at each operation in turn; it is opened again on what is left.
Either the cut has not begun to count, then the log is a prefix of the old one and the master will ask for the
same cut again, or it was told to be durable, then the log ends at the cut, whatever the disk kept.
"""

from pathlib import Path
from random import Random

import pytest

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile
from broker.message.record_scan import QueueScans, Scanned, scan_ends
from broker.store import dispatching
from broker.store.message_store import MessageStore
from tests.support.slices import first
from tests.support.store_disk import After, StoreDisk, Torn
from tests.support.store_parts import bodies, crash, open_store, put

QUEUES = 2
MESSAGES = 25  # three files of the log, several of each queue
KEPT = 11  # before the cut
KEPT_IN_THE_LAST_FILE = 23
SURVIVALS = 4  # 0: a kill; else a power cut, each time another one


def filled(root: Path, kept: int = KEPT) -> tuple[MessageStore, int]:
    """A store on disk whose second half is to be cut; where. Everything is confirmed, dispatched, flushed."""
    store = open_store(root)
    cut = 0
    for index in range(MESSAGES):
        _, end, _ = put(
            store, b"%s %d " % (b"kept" if index < kept else b"stale", index) * 40, queue_id=index % QUEUES
        )
        if index == kept - 1:
            cut = end
    store.set_confirm_offset(store.commit_log.max_offset)
    store.flush_checkpoint()
    EpochFile(root / "epochFileCheckpoint").save(Epochs.of([(1, 0), (2, cut)]))
    store.become_slave()
    return store, cut


def put_behind(store: MessageStore) -> int:
    """Appends a record that is not confirmed to the log of a slave. Returns its offset."""
    store.become_master()
    offset, _, _ = put(store, b"a tail")
    store.become_slave()
    return offset


def cut_it(store: MessageStore, offset: int) -> None:
    """What the slave does in this order: log and queues, then the epochs."""
    store.cutter.truncate(offset)
    store.cutter.truncate_half_message()
    store.commit_log.sync()
    EpochFile(store.root / "epochFileCheckpoint").save(Epochs.of([(1, 0)]))


def log_bytes(store: MessageStore) -> bytes:
    log, found, offset = store.commit_log, b"", store.commit_log.min_offset
    while view := log.view(offset, log.file_bytes):
        found += bytes(view)
        offset += len(view)
    return found


def survivors(disk: StoreDisk, target: Path, seed: int) -> Path:
    if seed % SURVIVALS == 0:
        return disk.survivors_of_a_kill(target)
    return disk.survivors_of_a_power_cut(target, Random(seed))


def check(root: Path, before: bytes, cut: int, *, done: bool, kept: int = KEPT) -> None:
    """On what is left: whole records only, the queues fit, the same cut ends where it should, and stays."""
    epochs = EpochFile(root / "epochFileCheckpoint").load()
    assert epochs in (Epochs.of([(1, 0)]), Epochs.of([(1, 0), (2, cut)]))
    store = open_store(root, master=False)
    found = log_bytes(store)
    assert before.startswith(found)
    assert len(found) >= cut, "what stays was durable"
    if done:
        assert len(found) == cut
        assert epochs == Epochs.of([(1, 0)])
    assert store.confirm_offset <= len(found)
    cut_it(store, cut)
    for queue_id in range(QUEUES):
        assert not any(b"stale" in body for body in bodies(store, queue_id))
    assert log_bytes(store) == before[:cut]
    store.become_master()
    put(store, b"new" * 50)
    store.set_confirm_offset(store.commit_log.max_offset)
    store.flush_checkpoint()
    crash(store)
    again = open_store(root, master=False)
    assert b"stale" not in log_bytes(again)
    assert [body[:4] for queue in range(QUEUES) for body in bodies(again, queue)].count(b"kept") == kept
    crash(again)


@pytest.mark.parametrize(("kept", "operations_min"), [(KEPT, 20), (KEPT_IN_THE_LAST_FILE, 10)])
@pytest.mark.parametrize("survival", first(1, range(SURVIVALS)))
def test_torn_away_at_every_operation_of_a_cut(
    tmp_path: Path, survival: int, kept: int, operations_min: int
) -> None:
    """Pitfall 49. In the last file zeros stay where the records were."""
    operations = 0
    while True:
        root = tmp_path / f"{operations}"
        store, cut = filled(root, kept)
        before = log_bytes(store)
        disk = StoreDisk(root)
        done = False
        with disk.watched(After(operations)):
            try:
                cut_it(store, cut)
                done = True
            except Torn:
                pass
        left = survivors(disk, tmp_path / f"{operations}-left", survival + operations * SURVIVALS)
        crash(store)
        check(left, before, cut, done=done, kept=kept)
        if done:
            break
        operations += 1
    assert operations > operations_min, "that many operations, and each was the first one that did not happen"


@pytest.mark.parametrize("seed", first(4, range(12)))
def test_a_power_cut_after_a_cut_brings_nothing_back(tmp_path: Path, seed: int) -> None:
    """The slave's ack says that the log ends here; it must be so on any disk that keeps fsync's promise."""
    store, cut = filled(tmp_path / "s")
    before = log_bytes(store)
    disk = StoreDisk(tmp_path / "s")
    with disk.watched(After(1 << 30)):
        cut_it(store, cut)
    left = disk.survivors_of_a_power_cut(tmp_path / "left", Random(seed))
    crash(store)
    check(left, before, cut, done=True)


def test_the_bytes_behind_a_cut_are_gone_from_the_files(tmp_path: Path) -> None:
    """Nothing that looks like a record is left, wherever a later scan may begin."""
    store, cut = filled(tmp_path)
    cut_it(store, cut)
    crash(store)
    files = sorted((tmp_path / "commitlog").iterdir())
    assert b"stale" not in b"".join(path.read_bytes() for path in files)
    assert len(files) == cut // 4_096 + 1


def test_what_a_new_master_wrote_is_not_taken_for_the_confirmed_records_that_were_cut(tmp_path: Path) -> None:
    """The checkpoint of before the cut says how far records were confirmed; these are others."""
    root = tmp_path / "s"
    store, cut = filled(root)
    disk = StoreDisk(root)
    with disk.watched(After(1 << 30)):
        store.commit_log.truncate(cut)  # and here the process dies: queues and checkpoint are of before
    disk.survivors_of_a_kill(tmp_path / "second")
    crash(store)
    second = open_store(tmp_path / "second")
    for _ in range(MESSAGES - KEPT):
        put(second, b"unconfirmed" * 20)
    crash(second)  # before anything was flushed or confirmed
    third = open_store(tmp_path / "second", master=False)
    assert third.confirm_offset == cut
    assert not any(b"unconfirmed" in body for body in bodies(third))
    crash(third)


def test_a_cut_looks_at_the_tail_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 11: upstream scanned from too early a position, for minutes."""
    store, cut = filled(tmp_path)
    tail = [put_behind(store) for _ in range(3)]
    starts: list[int] = []

    def noted(raw: bytes, offset: int, count_max: int, places: QueueScans) -> Scanned:
        starts.append(offset)
        return scan_ends(raw, offset, count_max, places)

    monkeypatch.setattr(dispatching, "scan_ends", noted)
    cut_it(store, tail[1])
    assert starts and min(starts) >= tail[0] > cut, "what is dispatched is not read again"
    crash(store)
